"""Predictions along one column (a slice) or over two columns (maps), with the user's names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import dates
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from twostagegp.data.columns.categories import MISSING, OTHER
from twostagegp.errors import InputError
from twostagegp.plotting.slices.grids import Grid
from twostagegp.plotting.slices.slice import Slice
from twostagegp.plotting.style import INK, LEGEND, MODEL, MUTED, TRUTH, plain, tidy

# matplotlib.dates has no types.
_dates: Any = dates

__all__ = ["axis_positions", "name_axis", "plot_maps", "plot_slice", "row_positions"]

#: Colours and line styles of the classes of a slice.
_CLASSES = (MODEL, TRUTH, INK, MUTED)
_DASHES: tuple[Any, ...] = ("-", "--", ":", "-.")
#: Largest number of marks of rows along the axis.
_MARKS = 200


def plot_slice(
    ax: Axes, slice_: Slice, y_label: str = "predicted", column: int | None = None
) -> None:
    """Draw a slice: a line with its band, or one point with a bar per category level.

    Parameters
    ----------
    ax : Axes
    slice_ : Slice
        From :func:`twostagegp.plotting.slices.make_slices`.
    y_label : str
    column : int, optional
        Which target or class to draw. By default all, or, of more than four classes, the four whose
        probability changes most.

    Examples
    --------
    >>> import pandas as pd
    >>> from matplotlib.figure import Figure
    >>> from twostagegp import ExactGPRegressor
    >>> from twostagegp.plotting.slices import Answers, make_slices
    >>> X = pd.DataFrame({"size": np.linspace(0, 1, 30)})
    >>> model = ExactGPRegressor().fit(X, X["size"])
    >>> ax = Figure().subplots()
    >>> plot_slice(ax, make_slices(Answers(model), X, ["size"])[0])
    >>> ax.get_xlabel()
    'size'
    """
    shown = _most_varying(slice_) if column is None else [column]
    positions, spread = axis_positions(slice_.grid), 0.0
    for turn, k in enumerate(shown):
        colour, dash = _CLASSES[turn % 4], _DASHES[turn % 4]
        name = None if slice_.names[k] is None or len(shown) == 1 else plain(slice_.names[k], 20)
        middle, ends = slice_.middle[:, k], slice_.band[:, k]
        if slice_.grid.labels is None:
            ax.fill_between(positions, ends[:, 0], ends[:, 1], color=colour, alpha=0.2, linewidth=0)
            ax.plot(positions, middle, color=colour, linewidth=1.6, linestyle=dash, label=name)
        else:
            at = positions + spread
            ax.vlines(at, ends[:, 0], ends[:, 1], color=colour, alpha=0.45, lw=3.0)
            ax.plot(at, middle, "o", color=colour, markersize=5.0, label=name)
            spread += 0.12
    tidy(ax, plain(slice_.grid.feature), y_label)
    name_axis(ax, slice_.grid)
    mark_rows(ax, slice_.grid)
    if len(shown) > 1:
        ax.legend(loc="best", **LEGEND)


def _most_varying(slice_: Slice) -> list[int]:
    """Return the indices, increasing, of the at most four targets or classes that change most."""
    change = np.ptp(slice_.middle, axis=0)
    return sorted(np.argsort(-change, kind="stable")[: len(_CLASSES)].tolist())


def axis_positions(grid: Grid) -> Any:
    """Return the positions of a grid on a matplotlib axis: matplotlib's day numbers for dates."""
    if grid.start is None:
        return grid.positions
    return _dates.date2num(_naive(grid.start)) + grid.positions


def _naive(date: Any) -> Any:
    return date.tz_localize(None).floor("us").to_pydatetime()


def row_positions(grid: Grid, series: pd.Series) -> NDArray[np.float64]:
    """Return the positions of a table's rows on the axis of a grid made from the same table.

    A row whose value is missing or not on the axis has position NaN. Rows of the same category
    level are spread a little to both sides, so that they do not hide each other.
    """
    if grid.labels is None:
        at = np.full(len(series), np.nan)
        at[series.notna().to_numpy()] = grid.seen + (axis_positions(grid)[0] - grid.positions[0])
        return at
    positions: dict[Any, float] = {
        value: float(k) for k, value in enumerate(grid.values) if value is not None
    }
    named = {name: float(k) for k, name in enumerate(grid.labels)}
    other, gap = named.get(OTHER, np.nan), named.get(MISSING, np.nan)
    rows = zip(series, series.isna(), strict=True)
    at = np.array([gap if missing else positions.get(value, other) for value, missing in rows])
    return at + np.random.default_rng(0).uniform(-0.18, 0.18, len(at))


def name_axis(ax: Axes, grid: Grid, which: str = "x") -> None:
    """Label an axis with the names of category levels, or with dates."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    if grid.start is not None:
        locator = _dates.AutoDateLocator(minticks=3)
        axis.set_major_locator(locator)
        axis.set_major_formatter(_dates.ConciseDateFormatter(locator))
        return
    if grid.kind == "duration":
        axis.set_label_text(f"{axis.get_label_text()} (days)")
    if grid.labels is None:
        return
    labels = [plain(label, 14) for label in grid.labels]
    turn: dict[str, Any] = {}
    if which == "x" and sum(map(len, labels)) > 34:
        turn = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    axis.set_ticks(list(grid.positions), labels=labels, **turn)
    low, high = -0.5, len(labels) - 0.5
    ax.set_xlim(low, high) if which == "x" else ax.set_ylim(low, high)


def mark_rows(ax: Axes, grid: Grid) -> None:
    """Draw small marks along the lower edge at the rows of the table."""
    if len(grid.seen) == 0:
        return
    seen = np.sort(grid.seen)
    if len(seen) > _MARKS:
        seen = seen[np.linspace(0, len(seen) - 1, _MARKS).round().astype(int)]
    offset = 0.0 if grid.start is None else _dates.date2num(_naive(grid.start))
    ax.plot(
        seen + offset, np.zeros(len(seen)), "|", color=MUTED, markersize=5.0, alpha=0.6,
        transform=ax.get_xaxis_transform(), clip_on=False,
    )  # fmt: skip


def plot_maps(
    axes: Any,
    x_grid: Grid,
    y_grid: Grid,
    mean: ArrayLike,
    std: ArrayLike,
    points: Any = None,
    titles: tuple[str, str] = ("mean", "standard deviation"),
) -> None:
    """Draw the mean and the standard deviation over two columns, side by side.

    Parameters
    ----------
    axes : two Axes
    x_grid, y_grid : Grid
        Grids along the two axes, with g and h values.
    mean, std : array-like of shape (h, g)
    points : pair of arrays, optional
        Positions of rows to mark.
    titles : pair of str

    Examples
    --------
    >>> import pandas as pd
    >>> from matplotlib.figure import Figure
    >>> from twostagegp.plotting.slices import make_grid
    >>> grid = make_grid("size", pd.Series(np.linspace(0, 1, 20)), "number", points=5)
    >>> axes = Figure().subplots(1, 2)
    >>> plot_maps(axes, grid, grid, np.zeros((5, 5)), np.ones((5, 5)))
    >>> [ax.get_title() for ax in axes]
    ['mean', 'standard deviation']
    """
    shape = (len(y_grid.values), len(x_grid.values))
    for ax, values, title, colours in zip(
        axes, (mean, std), titles, ("viridis", "magma_r"), strict=True
    ):
        z = np.asarray(values, dtype=np.float64)
        if z.shape != shape:
            raise InputError(f"{title} must have shape {shape}, got {z.shape}.")
        mesh = ax.pcolormesh(
            axis_positions(x_grid), axis_positions(y_grid), z, cmap=colours, shading="nearest",
            rasterized=True,
        )  # fmt: skip
        bar = ax.figure.colorbar(mesh, ax=ax)
        bar.ax.tick_params(labelsize=8, labelcolor=INK)
        bar.outline.set_visible(False)
        if points is not None:
            ax.plot(
                *points, "o", color="#ffffff", markeredgecolor=INK, markersize=3.2,
                markeredgewidth=0.6,
            )  # fmt: skip
        tidy(ax, plain(x_grid.feature), plain(y_grid.feature))
        name_axis(ax, x_grid)
        name_axis(ax, y_grid, "y")
        ax.set_title(title, color=INK, fontsize=10)
