"""Colours, the style of axes, and checks of the arrays that are drawn.

Names of columns and classes come from the user. :func:`plain` shortens long names, and prevents
matplotlib from reading a dollar sign in them as the start of a formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from twostagegp.errors import InputError

__all__ = [
    "INK",
    "LEGEND",
    "MODEL",
    "MUTED",
    "TRUTH",
    "interval_ends",
    "new_axes",
    "pit_values",
    "plain",
    "tidy",
    "vector",
]

#: The four colours: text and data points, predictions, guide lines, the truth.
INK, MODEL, MUTED, TRUTH = "#1d232b", "#1763a6", "#68727f", "#b4460f"

LEGEND: dict[str, Any] = {
    "frameon": False,
    "fontsize": 8,
    "handlelength": 1.2,
    "columnspacing": 1.2,
    "labelcolor": INK,
}


def plain(text: Any, most: int = 34) -> str:
    """Return a user's name for matplotlib, taken literally and at most ``most`` characters long.

    Examples
    --------
    >>> plain("price ($) of a house")
    'price (\\\\$) of a house'
    >>> plain("a name that goes on and on and on and on", most=12)
    'a name that…'
    """
    words = " ".join(str(text).split())
    short = words if len(words) <= most else words[: most - 1].rstrip() + "…"
    return short.replace("$", r"\$")


def tidy(ax: Axes, x_label: str, y_label: str) -> None:
    """Label the axes, and remove the upper and right frame lines."""
    ax.set_xlabel(x_label, color=INK)
    ax.set_ylabel(y_label, color=INK)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("bottom", "left"):
        ax.spines[side].set_color(MUTED)
    ax.tick_params(color=MUTED, labelcolor=INK, labelsize=8)


def new_axes(count: int, ax: Any = None, width: float = 4.6, height: float = 3.4) -> list[Axes]:
    """Return the caller's axes, or ``count`` axes on a new figure outside of pyplot.

    Parameters
    ----------
    count : int
    ax : Axes or sequence of Axes, optional
    width, height : float
        Size of one picture in inches.
    """
    if ax is None:
        columns = min(count, 2)
        rows = -(-count // columns)
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for spare in grid[count:]:
            spare.remove()
        return list(grid[:count])
    given: Sequence[Any] = [ax] if isinstance(ax, Axes) else list(np.ravel(ax))
    if len(given) != count or not all(isinstance(each, Axes) for each in given):
        raise InputError(
            f"ax holds {len(given)} axes; this picture needs {count}. Omit ax to create them."
        )
    return list(given)


def vector(values: ArrayLike, name: str, n: int | None = None) -> NDArray[np.float64]:
    """Return the values as an array of shape (n,), or of any positive length if n is None."""
    array = np.asarray(values, dtype=np.float64)
    flat = array.reshape(-1)
    if array.ndim > 2 or (array.ndim == 2 and array.shape[1] != 1):
        raise InputError(f"{name} must be a single column, got shape {array.shape}.")
    if flat.size == 0 or (n is not None and len(flat) != n):
        expected = "at least one value" if n is None else f"{n} values"
        raise InputError(f"{name} must hold {expected}, got {len(flat)}.")
    return flat


def interval_ends(interval: ArrayLike, n: int) -> NDArray[np.float64]:
    """Return the lower and upper ends, shape (n, 2)."""
    array = np.asarray(interval, dtype=np.float64)
    if array.shape != (n, 2):
        raise InputError(f"interval must have shape {(n, 2)}, got {array.shape}.")
    return array


def pit_values(pit: ArrayLike) -> NDArray[np.float64]:
    """Return the PIT values, shape (n,); raise if one lies outside [0, 1]."""
    values = vector(pit, "pit")
    if not ((values >= 0.0) & (values <= 1.0)).all():
        raise InputError("pit must lie between 0 and 1; use the values of predict_pit.")
    return values
