"""Pictures of predictive distributions of a number, on axes given by the caller."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from scipy import stats

from twostagegp.errors import InputError
from twostagegp.plotting.style import (
    INK,
    LEGEND,
    MODEL,
    MUTED,
    TRUTH,
    interval_ends,
    pit_values,
    tidy,
    vector,
)

__all__ = ["plot_band", "plot_observed", "plot_pit", "plot_reliability", "plot_residuals"]

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
        Inputs of the predictions, in any order.
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
    at = vector(x, "x")
    order = np.argsort(at, kind="stable")
    ends = interval_ends(interval, len(at))[order]
    name = f"{100 * level:g} % interval"
    ax.fill_between(
        at[order], ends[:, 0], ends[:, 1], color=MODEL, alpha=0.22, linewidth=0, label=name
    )
    if truth is not None:
        f = vector(truth, "truth", len(at))
        ax.plot(at[order], f[order], color=TRUTH, linewidth=1.0, dashes=(4, 2), label="truth")
    m = vector(mean, "mean", len(at))
    ax.plot(at[order], m[order], color=MODEL, linewidth=1.6, label="mean")
    if x_train is not None and y_train is not None:
        points = vector(x_train, "x_train")
        targets = vector(y_train, "y_train", len(points))
        ax.plot(points, targets, "o", color=INK, markersize=3.0, label="training rows")
    tidy(ax, "x", "y")


def plot_observed(ax: Axes, y: ArrayLike, mean: ArrayLike, interval: ArrayLike) -> None:
    """Draw the predicted mean against the outcome, with the interval of each row as a bar.

    A bar that crosses the diagonal contains its outcome; the others are drawn in a second colour.

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
    outcome = vector(y, "y")
    centre = vector(mean, "mean", len(outcome))
    ends = interval_ends(interval, len(outcome))
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

    For a calibrated model, each bar ends inside the shaded band with probability ``level``: the
    count of a bin is binomial with n rows and probability 1 / n_bins. High bars at both ends mean
    that intervals are too narrow; a hump in the middle means that they are too wide.

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
    values = pit_values(pit)
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

    The central interval of level p contains an outcome if and only if abs(pit - 1/2) ≤ p/2. Below
    the diagonal intervals are too narrow, above it too wide. At each level the point of a
    calibrated model lies in the shaded band with probability ``band``.

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
    values = pit_values(pit)
    nominal = vector(levels, "levels")
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


def plot_residuals(
    ax: Axes,
    x: ArrayLike,
    residual: ArrayLike,
    std: ArrayLike | None = None,
    x_label: str = "predicted",
) -> None:
    """Draw observed minus predicted outcomes against the prediction, or against any other number.

    Residuals should scatter around zero without a pattern. A curve means that the mean misses
    something. A funnel means that the noise changes; the bars of two predicted standard deviations
    should then follow it.

    Parameters
    ----------
    ax : Axes
    x, residual : array-like of shape (n,)
    std : array-like of shape (n,), optional
        Predicted standard deviations; bars of twice their size are drawn around zero.
    x_label : str

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = Figure().subplots()
    >>> plot_residuals(ax, [1.0, 2.0], [0.1, -0.2], std=[0.1, 0.1])
    >>> len(ax.lines), len(ax.collections)
    (2, 1)
    """
    at = vector(x, "x")
    r = vector(residual, "residual", len(at))
    if std is not None:
        s = vector(std, "std", len(at))
        ax.vlines(at, -2.0 * s, 2.0 * s, color=MUTED, alpha=0.3, lw=1.2, label="± 2 std, predicted")
    ax.axhline(0.0, color=MUTED, linewidth=1.0, dashes=(4, 2))
    ax.plot(at, r, "o", color=MODEL, markersize=2.6, alpha=0.75, label="test rows")
    tidy(ax, x_label, "observed less predicted")
    if std is not None:
        low, high = ax.get_ylim()
        ax.set_ylim(low, high + 0.15 * (high - low))  # room for the legend
        ax.legend(loc="upper center", ncols=2, **LEGEND)
