"""Pictures of predicted class probabilities, on axes given by the caller."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from twostagegp.errors import InputError
from twostagegp.metrics.classification import risk_coverage
from twostagegp.plotting.style import INK, LEGEND, MODEL, MUTED, plain, tidy, vector

__all__ = ["confidence_bins", "plot_class_reliability", "plot_confusion", "plot_risk_coverage"]

Array = NDArray[np.float64]


def confidence_bins(
    confidence: ArrayLike, correct: ArrayLike, n_bins: int = 10, level: float = 0.95
) -> list[dict[str, float]]:
    """Return confidence and accuracy in bins of about equal size by confidence.

    Rows of equal confidence are kept in one bin. ``low`` and ``high`` are the ends of the interval,
    of probability ``level``, in which the accuracy of a bin lies if the confidence is right.

    Parameters
    ----------
    confidence : array-like of shape (n,)
        Probability of the predicted class.
    correct : array-like of shape (n,), of bool

    Returns
    -------
    list of dict
        With ``confidence``, ``accuracy``, ``low``, ``high`` and ``rows``.

    Examples
    --------
    >>> low, high = confidence_bins([0.9, 0.9, 0.6, 0.6], [True, False, True, True], n_bins=2)
    >>> low["accuracy"], high["accuracy"]
    (1.0, 0.5)
    """
    c = vector(confidence, "confidence")
    right = vector(np.asarray(correct, dtype=np.float64), "correct", len(c))
    ends = np.unique(np.quantile(c, np.linspace(0.0, 1.0, n_bins + 1)[1:], method="inverted_cdf"))
    bin_of_row = np.searchsorted(ends, c, side="left")
    bins = []
    for k in np.unique(bin_of_row):
        rows = bin_of_row == k
        n, mean = int(rows.sum()), float(c[rows].mean())
        low, high = stats.binom.interval(level, n, min(mean, 1.0))
        bins.append(
            {
                "confidence": mean,
                "accuracy": float(right[rows].mean()),
                "low": float(low) / n,
                "high": float(high) / n,
                "rows": n,
            }
        )
    return bins


def plot_class_reliability(
    ax: Axes,
    y: ArrayLike,
    proba: ArrayLike,
    classes: ArrayLike | None = None,
    n_bins: int = 10,
    band: float = 0.95,
) -> None:
    """Draw the share of correct answers against their predicted probability.

    On the diagonal the probabilities are right; below it the model is overconfident. A grey bar
    shows the range that chance allows in its bin.

    Parameters
    ----------
    ax : Axes
    y : array-like of shape (n,)
        Labels.
    proba : array-like of shape (n, K)
    classes : array-like of shape (K,), optional
        The label of each column; the sorted labels of y by default.
    n_bins : int
        Number of bins, which have about equal numbers of rows.
    band : float
        Probability of the grey bars.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = Figure().subplots()
    >>> plot_class_reliability(ax, [0, 1, 1], [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], n_bins=2)
    >>> len(ax.collections), len(ax.lines)
    (1, 2)
    """
    labels, p = np.asarray(y), np.asarray(proba, dtype=np.float64)
    names = np.unique(labels) if classes is None else np.asarray(classes)
    if p.ndim != 2 or p.shape != (len(labels), len(names)):
        raise InputError(f"proba must have shape {(len(labels), len(names))}, got {p.shape}.")
    bins = confidence_bins(p.max(1), names[p.argmax(1)] == labels, n_bins, band)
    at = [each["confidence"] for each in bins]
    name = f"{100 * band:g} % of calibrated bins"
    ax.vlines(
        at, [b["low"] for b in bins], [b["high"] for b in bins], color=MUTED, alpha=0.35, lw=7,
        label=name,
    )  # fmt: skip
    ax.plot([0.0, 1.0], [0.0, 1.0], color=MUTED, linewidth=1.0, dashes=(4, 2))
    shares = [each["accuracy"] for each in bins]
    ax.plot(at, shares, "o-", color=MODEL, linewidth=1.6, markersize=4.0, label="test rows")
    tidy(ax, "probability of the predicted class", "share of correct answers")
    left = max(0.0, min([*at, *shares]) - 0.08)
    ax.set_xlim(left, 1.0)
    ax.set_ylim(min(left, *(b["low"] for b in bins)), 1.02)
    ax.legend(loc="lower right", **LEGEND)


def plot_risk_coverage(
    ax: Axes,
    y: ArrayLike,
    proba: ArrayLike,
    certainty: ArrayLike | None = None,
    classes: ArrayLike | None = None,
) -> None:
    """Draw the error rate of the most certain rows against their share of all rows.

    Parameters
    ----------
    ax : Axes
    y, proba, certainty, classes
        As in :func:`twostagegp.metrics.risk_coverage`.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = Figure().subplots()
    >>> plot_risk_coverage(ax, [0, 1], [[0.9, 0.1], [0.6, 0.4]])
    >>> len(ax.lines)
    3
    """
    risk_coverage(y, proba, certainty, classes).plot(ax)


def plot_confusion(ax: Axes, counts: ArrayLike, classes: Any) -> None:
    """Draw a confusion matrix, with a row per true class and a column per predicted class.

    Parameters
    ----------
    ax : Axes
    counts : array-like of shape (K, K)
        ``counts[i, j]``: number of rows of class i for which the model predicted class j.
    classes : sequence of K labels

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = Figure().subplots()
    >>> plot_confusion(ax, [[5, 1], [0, 4]], ["ill", "well"])
    >>> [text.get_text() for text in ax.texts]
    ['5', '1', '0', '4']
    """
    table, labels = np.asarray(counts), list(classes)
    if table.shape != (len(labels), len(labels)):
        raise InputError(
            f"counts has shape {table.shape} for {len(labels)} classes; give one row and one "
            "column per class."
        )
    share = table / np.maximum(table.sum(1, keepdims=True), 1)
    blues = LinearSegmentedColormap.from_list("model", ["#ffffff", MODEL])
    ax.imshow(share, vmin=0.0, vmax=1.0, cmap=blues)
    for (i, j), count in np.ndenumerate(table):
        colour = "#ffffff" if share[i, j] > 0.55 else "#1d232c"
        ax.text(j, i, f"{count}", ha="center", va="center", color=colour, fontsize=9)
    ticks = [plain(label, 16) for label in labels]
    long = max(map(len, ticks)) > 5
    turn: Any = {"rotation": 35, "ha": "right"} if long else {}
    ax.set_xticks(range(len(labels)), ticks, **turn)
    ax.set_yticks(range(len(labels)), ticks)
    tidy(ax, "the model's answer", "the truth")
    ax.tick_params(labelcolor=INK)
