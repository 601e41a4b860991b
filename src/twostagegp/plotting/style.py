"""Colours, and axes with no more lines than they need.

Names of columns and of classes are the user's: :func:`plain` keeps a dollar sign in them from being
taken for mathematics, and long names from filling the picture.
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

#: The four colours: text and data points, what the model says, aids to the eye, the truth.
INK, MODEL, MUTED, TRUTH = "#1d232b", "#1763a6", "#68727f", "#b4460f"

LEGEND: dict[str, Any] = {
    "frameon": False,
    "fontsize": 8,
    "handlelength": 1.2,
    "columnspacing": 1.2,
    "labelcolor": INK,
}


def plain(text: Any, most: int = 34) -> str:
    """A user's name as matplotlib should write it: letter by letter, not longer than ``most``.

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
    """Give the axes labels, and no more lines than they need."""
    ax.set_xlabel(x_label, color=INK)
    ax.set_ylabel(y_label, color=INK)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("bottom", "left"):
        ax.spines[side].set_color(MUTED)
    ax.tick_params(color=MUTED, labelcolor=INK, labelsize=8)


def new_axes(count: int, ax: Any = None, width: float = 4.6, height: float = 3.4) -> list[Axes]:
    """The caller's axes, or as many as are needed on a new figure that pyplot knows nothing of.

    Parameters
    ----------
    count : int
    ax : Axes or sequence of Axes, optional
    width, height : float
        Inches of one picture.
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
            f"ax holds {len(given)} axes; this picture needs {count}. Leave ax out for new ones."
        )
    return list(given)


def vector(values: ArrayLike, name: str, n: int | None = None) -> NDArray[np.float64]:
    """One column of at least one number, or of n numbers."""
    array = np.asarray(values, dtype=np.float64)
    flat = array.reshape(-1)
    if array.ndim > 2 or (array.ndim == 2 and array.shape[1] != 1):
        raise InputError(f"{name} has shape {array.shape}; a single column is wanted.")
    if flat.size == 0 or (n is not None and len(flat) != n):
        wanted = "at least one" if n is None else str(n)
        raise InputError(f"{name} holds {len(flat)} values; {wanted} are wanted.")
    return flat


def interval_ends(interval: ArrayLike, n: int) -> NDArray[np.float64]:
    """Lower and upper ends, shape (n, 2)."""
    array = np.asarray(interval, dtype=np.float64)
    if array.shape != (n, 2):
        raise InputError(f"interval has shape {array.shape}; {(n, 2)} is wanted.")
    return array


def pit_values(pit: ArrayLike) -> NDArray[np.float64]:
    """Values between 0 and 1."""
    values = vector(pit, "pit")
    if not ((values >= 0.0) & (values <= 1.0)).all():
        raise InputError("pit must lie between 0 and 1; take it from predict_cdf.")
    return values
