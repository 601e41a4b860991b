"""The section on the inputs: which of them matter, and the predictions along each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from twostagegp.plotting import plot_slice
from twostagegp.plotting.slices import Answers, Slice
from twostagegp.report.figures import axes, picture
from twostagegp.report.wording import cell, number, percent

__all__ = ["effect_rows", "rank_by_effect", "slice_entries", "slice_features", "typical_text"]

#: Largest number of columns whose slices are drawn.
MOST_SLICES = 6


def rank_by_effect(effects: dict[str, Any], column: int | None = None) -> list[tuple[str, float]]:
    """Return pairs (column, effect), largest effect first.

    ``column`` selects one target; by default the effect is the largest over the classes.
    """
    size = {
        name: float(np.max(values) if column is None else values[column])
        for name, values in effects.items()
    }
    return sorted(size.items(), key=lambda item: -item[1])


def slice_features(order: list[tuple[str, float]]) -> list[str]:
    """Return the columns to slice along: the most important ones with a positive effect."""
    return [name for name, effect in order[:MOST_SLICES] if effect > 0.0]


def effect_rows(
    order: list[tuple[str, float]], classes: bool, most: int = 15
) -> list[dict[str, Any]]:
    """Return the rows of the table of effects, with the length of each bar in percent."""
    top = max((effect for _, effect in order), default=0.0) or 1.0
    return [
        {
            "name": name,
            "effect": percent(effect, 1) if classes else number(effect),
            "bar": round(100.0 * effect / top, 1),
        }
        for name, effect in order[:most]
    ]


def typical_text(typical: dict[str, Any], most: int = 12) -> str:
    """Return the values at which the other columns are held, as a list in one line."""
    shown = [f"{name} = {cell(value)}" for name, value in list(typical.items())[:most]]
    return ", ".join(shown) + ("…" if len(typical) > most else "")


def slice_entries(
    slices: list[Slice], answers: Answers, y_label: str, column: int | None = None
) -> list[dict[str, Any]]:
    """Return a picture and a sentence for each slice."""
    entries = []
    for slice_ in slices:
        ax = axes(4.4, 3.1)
        plot_slice(ax, slice_, y_label, column)
        words = _slice_sentence(slice_, column, answers.classes is not None)
        alt = (
            f"{y_label} along {slice_.grid.feature}, the other columns at typical values, with "
            f"{percent(answers.level)} bands. {words}"
        )
        entries.append(
            {
                "feature": slice_.grid.feature,
                "picture": picture(ax, slice_.grid.feature, alt),
                "words": words,
            }
        )
    return entries


def _slice_sentence(slice_: Slice, column: int | None, classes: bool) -> str:
    """Return a sentence on where a slice is lowest and highest, and where its band is widest."""
    k = _most_varying(slice_) if column is None else column
    middle, width = slice_.middle[:, k], np.diff(slice_.band[:, k], axis=1)[:, 0]
    say = percent if classes else number
    at = [_value_text(slice_, int(i)) for i in (middle.argmin(), middle.argmax(), width.argmax())]
    name = f" of {cell(slice_.names[k])}" if classes else ""
    what = f"The probability{name}" if classes else "The prediction"
    text = (
        f"{what} goes from {say(float(middle.min()))} (at {at[0]}) to "
        f"{say(float(middle.max()))} (at {at[1]})"
    )
    if width.max() > 1.1 * width.min():
        return f"{text}; the model is least certain at {at[2]}."
    return f"{text}; the model is about equally certain everywhere."


def _most_varying(slice_: Slice) -> int:
    return int(np.argmax(np.ptp(slice_.middle, axis=0)))


def _value_text(slice_: Slice, i: int) -> str:
    if slice_.grid.labels is not None:
        return slice_.grid.labels[i]
    value = slice_.grid.values[i]
    if isinstance(value, pd.Timestamp):
        return value.strftime("%Y-%m-%d")
    if isinstance(value, pd.Timedelta):
        return f"{number(value / pd.Timedelta(days=1))} days"
    return number(value)
