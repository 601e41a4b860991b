"""Pictures of fixed numbers; ``python tests/reference_pictures.py`` draws the references again."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from twostagegp import plotting
from twostagegp.plotting.slices import Grid, Slice, make_grid

FOLDER = Path(__file__).parent / "data" / "pictures"
DPI, BLOCK = 50, 5


def _wave():
    days = pd.Series(pd.Timestamp("2022-01-01") + pd.to_timedelta(np.arange(0, 400, 8), unit="D"))
    grid = make_grid("sold", days, "date", points=41)
    t = grid.positions / 60.0
    middle = np.sin(t)[:, None]
    band = np.stack([middle - 0.3 - 0.1 * t[:, None], middle + 0.3 + 0.1 * t[:, None]], axis=-1)
    return Slice(grid, middle, band, [None], {})


def _levels():
    labels = ["north", "south", "(other)"]
    grid = Grid("quarter", "text", labels, np.arange(3.0), labels=labels)
    middle = np.array([[0.2, 0.8], [0.5, 0.5], [0.9, 0.1]])
    band = np.stack([middle - 0.1, middle + 0.1], axis=-1)
    return Slice(grid, middle, band, ["cheap", "dear"], {})


def _figure(columns=1):
    return Figure(figsize=(4.0 * columns, 3.0), layout="constrained").subplots(1, columns)


def slice_of_dates():
    ax = _figure()
    plotting.plot_slice(ax, _wave())
    return ax.figure


def slice_of_levels():
    ax = _figure()
    plotting.plot_slice(ax, _levels(), "probability")
    return ax.figure


def maps():
    axes = _figure(2)
    grid = make_grid("size", pd.Series(np.linspace(0.0, 1.0, 30)), "number", points=21)
    x, y = np.meshgrid(grid.positions, grid.positions)
    plotting.plot_maps(axes, grid, grid, x + y**2, 0.1 + x * y, ([0.2, 0.8], [0.3, 0.4]))
    return axes[0].figure


def residuals():
    ax = _figure()
    x = np.linspace(0.0, 10.0, 50)
    plotting.plot_residuals(ax, x, np.sin(7.0 * x) * (1.0 + 0.2 * x), 0.6 + 0.1 * x)
    return ax.figure


def _classes():
    rng = np.random.default_rng(0)
    p = rng.uniform(size=200)
    y = (rng.uniform(size=200) < p).astype(int)
    return y, np.column_stack([1.0 - p, p])


def reliability_of_classes():
    ax = _figure()
    plotting.plot_class_reliability(ax, *_classes())
    return ax.figure


def risk_coverage():
    ax = _figure()
    plotting.plot_risk_coverage(ax, *_classes())
    return ax.figure


def confusion():
    ax = _figure()
    plotting.plot_confusion(ax, [[40, 3, 1], [5, 30, 2], [0, 9, 20]], ["cheap", "fair", "dear"])
    return ax.figure


PICTURES = {
    draw.__name__: draw
    for draw in (
        slice_of_dates, slice_of_levels, maps, residuals, reliability_of_classes, risk_coverage,
        confusion,
    )
}  # fmt: skip


def pixels(figure):
    """Return the shades of grey, from 0 to 1."""
    figure.set_dpi(DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].mean(-1) / 255.0


def coarse(shades):
    """Return the means of blocks of pixels, so that a shift by one pixel makes no difference."""
    h, w = (size // BLOCK * BLOCK for size in shades.shape)
    return shades[:h, :w].reshape(h // BLOCK, BLOCK, w // BLOCK, BLOCK).mean((1, 3))


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        figure = draw()
        figure.savefig(FOLDER / f"{name}.png", dpi=DPI, metadata={"Software": None})
