"""Which inputs matter, and what the model says along each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from twostagegp.plotting import plot_slice
from twostagegp.plotting.slices import Answers, Slice
from twostagegp.report.figures import axes, picture
from twostagegp.report.words import cell, number, percent

__all__ = ["effect_rows", "ranked", "slice_entries", "slice_features", "typical_words"]

#: Features whose slices are drawn.
MOST_SLICES = 6


def ranked(effects: dict[str, Any], column: int | None = None) -> list[tuple[str, float]]:
    """Columns by effect, largest first; summed over classes where no column is given."""
    size = {
        name: float(np.max(values) if column is None else values[column])
        for name, values in effects.items()
    }
    return sorted(size.items(), key=lambda item: -item[1])


def slice_features(order: list[tuple[str, float]]) -> list[str]:
    """Columns to slice along: those that matter most, and matter at all."""
    return [name for name, effect in order[:MOST_SLICES] if effect > 0.0]


def effect_rows(
    order: list[tuple[str, float]], classes: bool, most: int = 15
) -> list[dict[str, Any]]:
    """Rows of the table of effects, with the length of a bar in percent."""
    top = max((effect for _, effect in order), default=0.0) or 1.0
    return [
        {
            "name": name,
            "effect": percent(effect, 1) if classes else number(effect),
            "bar": round(100.0 * effect / top, 1),
        }
        for name, effect in order[:most]
    ]


def typical_words(typical: dict[str, Any], most: int = 12) -> str:
    """The values at which columns are held, as a list in one line."""
    shown = [f"{name} = {cell(value)}" for name, value in list(typical.items())[:most]]
    return ", ".join(shown) + ("…" if len(typical) > most else "")


def slice_entries(
    slices: list[Slice], answers: Answers, y_label: str, column: int | None = None
) -> list[dict[str, Any]]:
    """A picture and a sentence for each slice."""
    entries = []
    for one in slices:
        ax = axes(4.4, 3.1)
        plot_slice(ax, one, y_label, column)
        words = _words(one, column, answers.classes is not None)
        alt = (
            f"{y_label} along {one.grid.feature}, the other columns at typical values, with "
            f"{percent(answers.level)} bands. {words}"
        )
        entries.append(
            {
                "feature": one.grid.feature,
                "picture": picture(ax, one.grid.feature, alt),
                "words": words,
            }
        )
    return entries


def _words(one: Slice, column: int | None, classes: bool) -> str:
    """Where a slice is lowest and highest, and where its band is widest."""
    k = _busiest(one) if column is None else column
    middle, width = one.middle[:, k], np.diff(one.band[:, k], axis=1)[:, 0]
    say = percent if classes else number
    at = [_where(one, int(i)) for i in (middle.argmin(), middle.argmax(), width.argmax())]
    name = f" of {cell(one.names[k])}" if classes else ""
    what = f"The probability{name}" if classes else "The prediction"
    text = (
        f"{what} goes from {say(float(middle.min()))} (at {at[0]}) to "
        f"{say(float(middle.max()))} (at {at[1]})"
    )
    if width.max() > 1.1 * width.min():
        return f"{text}; the model is least sure at {at[2]}."
    return f"{text}; it is about as sure everywhere."


def _busiest(one: Slice) -> int:
    return int(np.argmax(np.ptp(one.middle, axis=0)))


def _where(one: Slice, i: int) -> str:
    if one.grid.labels is not None:
        return one.grid.labels[i]
    value = one.grid.values[i]
    if isinstance(value, pd.Timestamp):
        return value.strftime("%Y-%m-%d")
    if isinstance(value, pd.Timedelta):
        return f"{number(value / pd.Timedelta(days=1))} days"
    return number(value)
