"""Pictures of a predictive distribution, each drawn on axes that the caller owns.

Four questions, four pictures: what does the model believe (:func:`plot_band`), is the mean right
(:func:`plot_observed`), is the whole distribution right (:func:`plot_pit`), and do the intervals
hold what they promise (:func:`plot_reliability`). The last two need the probability integral
transform only, ``pit = model.predict_cdf(X_test, y_test)``, which is uniform for a calibrated
model; both show the band in which a calibrated model would lie on so many test rows, so that
chance is not mistaken for a fault.

Nothing here touches ``matplotlib.pyplot`` or its global state:

>>> import numpy as np
>>> from matplotlib.figure import Figure
>>> ax = Figure().subplots()
>>> plot_pit(ax, np.linspace(0.01, 0.99, 50))
>>> len(ax.patches) >= 10
True
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from twostagegp.errors import InputError

__all__ = [
    "INK",
    "LEGEND",
    "MODEL",
    "MUTED",
    "TRUTH",
    "plot_band",
    "plot_observed",
    "plot_pit",
    "plot_reliability",
    "tidy",
]

#: The four colours: text and data points, what the model says, aids to the eye, the truth.
INK, MODEL, MUTED, TRUTH = "#1d232b", "#1763a6", "#68727f", "#b4460f"

LEGEND: dict[str, Any] = {
    "frameon": False,
    "fontsize": 8,
    "handlelength": 1.2,
    "columnspacing": 1.2,
    "labelcolor": INK,
}

#: Nominal levels of the reliability picture.
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def plot_band(
    ax: Axes,
    x: ArrayLike,
    mean: ArrayLike,
    interval: ArrayLike,
    x_train: ArrayLike | None = None,
    y_train: ArrayLike | None = None,
    truth: ArrayLike | None = None,
    level: float = 0.95,
) -> None:
    """Draw a one-dimensional prediction: mean, interval band, training points, true function.

    Parameters
    ----------
    ax : Axes
    x : array-like of shape (n,) or (n, 1)
        Where the model was asked, in any order.
    mean : array-like of shape (n,)
    interval : array-like of shape (n, 2)
        Lower and upper ends.
    x_train, y_train : array-like of shape (m,) or (m, 1), and (m,), optional
        Training points.
    truth : array-like of shape (n,), optional
        The true function at x, where it is known.
    level : float
        Probability of the interval, for the legend.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = Figure().subplots()
    >>> plot_band(ax, [0, 1], [0.0, 1.0], [[-1, 1], [0, 2]])
    >>> len(ax.lines), len(ax.collections)
    (1, 1)
    """
    at = _vector(x, "x")
    order = np.argsort(at, kind="stable")
    ends = _ends(interval, len(at))[order]
    name = f"{100 * level:g} % interval"
    ax.fill_between(
        at[order], ends[:, 0], ends[:, 1], color=MODEL, alpha=0.22, linewidth=0, label=name
    )
    if truth is not None:
        f = _vector(truth, "truth", len(at))
        ax.plot(at[order], f[order], color=TRUTH, linewidth=1.0, dashes=(4, 2), label="truth")
    m = _vector(mean, "mean", len(at))
    ax.plot(at[order], m[order], color=MODEL, linewidth=1.6, label="mean")
    if x_train is not None and y_train is not None:
        points = _vector(x_train, "x_train")
        targets = _vector(y_train, "y_train", len(points))
        ax.plot(points, targets, "o", color=INK, markersize=3.0, label="training rows")
    tidy(ax, "x", "y")


def plot_observed(ax: Axes, y: ArrayLike, mean: ArrayLike, interval: ArrayLike) -> None:
    """Draw the predicted mean against the outcome, with the interval of each row as a bar.

    A bar that crosses the diagonal holds its outcome; the others are drawn in a second colour.

    Parameters
    ----------
    ax : Axes
    y, mean : array-like of shape (n,)
    interval : array-like of shape (n, 2)

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = Figure().subplots()
    >>> plot_observed(ax, [0.0, 5.0], [0.5, 1.0], [[-1, 2], [0, 2]])
    >>> ax.get_legend_handles_labels()[1]
    ['1 inside their interval', '1 outside their interval']
    """
    outcome = _vector(y, "y")
    centre = _vector(mean, "mean", len(outcome))
    ends = _ends(interval, len(outcome))
    inside = (ends[:, 0] <= outcome) & (outcome <= ends[:, 1])
    diagonal = [outcome.min(), outcome.max()]
    ax.plot(diagonal, diagonal, color=MUTED, linewidth=1.0, dashes=(4, 2))
    for rows, color, name in ((inside, MODEL, "inside"), (~inside, TRUTH, "outside")):
        if not rows.any():
            continue
        ax.vlines(outcome[rows], ends[rows, 0], ends[rows, 1], color=color, alpha=0.4, lw=1.0)
        label = f"{rows.sum()} {name} their interval"
        ax.plot(outcome[rows], centre[rows], "o", color=color, markersize=3.0, label=label)
    tidy(ax, "observed", "predicted, with interval")
    low, high = min(outcome.min(), ends.min()), max(outcome.max(), ends.max())
    ax.set_ylim(low - 0.05 * (high - low), high + 0.2 * (high - low))  # room for the legend
    ax.legend(loc="upper center", ncols=2, **LEGEND)


def plot_pit(ax: Axes, pit: ArrayLike, n_bins: int = 10, level: float = 0.95) -> None:
    """Draw the histogram of the probability integral transform.

    Bars of a calibrated model stay inside the shaded band with probability ``level`` each: a
    bin's count is binomial with n rows and probability 1 / n_bins. Bars high at both ends mean
    intervals that are too narrow, a hump in the middle intervals that are too wide.

    Parameters
    ----------
    ax : Axes
    pit : array-like of shape (n,)
        Values between 0 and 1.
    n_bins : int
    level : float
        Probability of the band.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = Figure().subplots()
    >>> plot_pit(ax, [0.1, 0.5, 0.9], n_bins=3)
    """
    values = _pit(pit)
    low, high = stats.binom.interval(level, len(values), 1.0 / n_bins)
    counts, edges = np.histogram(values, bins=n_bins, range=(0.0, 1.0))
    ax.bar(
        edges[:-1], counts, np.diff(edges), align="edge", color=MODEL, alpha=0.55,
        edgecolor=MODEL, linewidth=0.8, label="test rows",
    )  # fmt: skip
    name = f"{100 * level:g} % of calibrated bars"
    ax.axhspan(low, high, color=MUTED, alpha=0.25, linewidth=0, label=name)
    ax.axhline(len(values) / n_bins, color=MUTED, linewidth=1.0, dashes=(4, 2))
    tidy(ax, "predicted probability of a smaller outcome", "rows")
    ax.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    ax.set_xlim(0.0, 1.0)
    ax.set_ylim(0.0, 1.35 * max(float(counts.max()), float(high)))  # room for the legend
    ax.legend(loc="upper center", ncols=2, **LEGEND)


def plot_reliability(
    ax: Axes, pit: ArrayLike, levels: ArrayLike = LEVELS, band: float = 0.95
) -> None:
    """Draw the share of outcomes inside central intervals against the nominal level.

    The central interval of level p holds an outcome exactly where abs(pit - 1/2) is at most p/2.
    Below the diagonal intervals are too narrow, above it too wide; the shaded band holds a
    calibrated model's point with probability ``band`` at each level.

    Parameters
    ----------
    ax : Axes
    pit : array-like of shape (n,)
        Values between 0 and 1.
    levels : array-like of shape (k,)
        Nominal levels, increasing, between 0 and 1.
    band : float
        Probability of the band.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = Figure().subplots()
    >>> plot_reliability(ax, [0.1, 0.4, 0.5, 0.9], levels=[0.5, 0.9])
    >>> ax.lines[1].get_ydata()
    array([0.5, 1. ])
    """
    values = _pit(pit)
    nominal = _vector(levels, "levels")
    if not ((nominal > 0.0) & (nominal < 1.0)).all():
        raise InputError(f"levels={levels!r} must all lie between 0 and 1.")
    observed = np.mean(np.abs(values - 0.5) <= nominal[:, None] / 2.0, axis=1)
    grid = np.linspace(0.005, 0.995, 199)
    low, high = stats.binom.interval(band, len(values), grid)
    name = f"{100 * band:g} % of calibrated points"
    ax.fill_between(
        grid, low / len(values), high / len(values), color=MUTED, alpha=0.25, lw=0, label=name
    )
    ax.plot([0.0, 1.0], [0.0, 1.0], color=MUTED, linewidth=1.0, dashes=(4, 2))
    ax.plot(nominal, observed, "o-", color=MODEL, linewidth=1.6, markersize=4.0, label="test rows")
    tidy(ax, "nominal level of the interval", "share of outcomes inside")
    ax.set_xlim(0.0, 1.0)
    ax.set_ylim(0.0, 1.0)
    ax.legend(loc="upper left", **LEGEND)


def tidy(ax: Axes, x_label: str, y_label: str) -> None:
    """Give the axes labels, and no more lines than they need."""
    ax.set_xlabel(x_label, color=INK)
    ax.set_ylabel(y_label, color=INK)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("bottom", "left"):
        ax.spines[side].set_color(MUTED)
    ax.tick_params(color=MUTED, labelcolor=INK, labelsize=8)


def _vector(values: ArrayLike, name: str, n: int | None = None) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    flat = array.reshape(-1)
    if array.ndim > 2 or (array.ndim == 2 and array.shape[1] != 1):
        raise InputError(f"{name} has shape {array.shape}; a single column is wanted.")
    if flat.size == 0 or (n is not None and len(flat) != n):
        wanted = "at least one" if n is None else str(n)
        raise InputError(f"{name} holds {len(flat)} values; {wanted} are wanted.")
    return flat


def _ends(interval: ArrayLike, n: int) -> NDArray[np.float64]:
    array = np.asarray(interval, dtype=np.float64)
    if array.shape != (n, 2):
        raise InputError(f"interval has shape {array.shape}; {(n, 2)} is wanted.")
    return array


def _pit(pit: ArrayLike) -> NDArray[np.float64]:
    values = _vector(pit, "pit")
    if not ((values >= 0.0) & (values <= 1.0)).all():
        raise InputError("pit must lie between 0 and 1; take it from predict_cdf.")
    return values
