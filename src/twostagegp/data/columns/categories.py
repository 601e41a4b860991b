"""Rules for columns without an order: categories and text labels, one 0/1 column per level.

The target is not used, so that held-out rows stay held out. Rare levels share one column. If a
column has very many levels, the common ones have columns of their own, and one more column holds
the share of training rows of the level, which distinguishes the others by how common they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twostagegp.data.columns.numbers import add_note, format_values, not_yet_reported

__all__ = ["MISSING", "OTHER", "CategoryColumn"]

Array = NDArray[np.float64]

#: Names of the columns of pooled rare levels and of missing values.
OTHER, MISSING = "(other)", "(missing)"


class CategoryColumn:
    """A category or text label, which becomes one column of zeros and ones per level.

    Parameters
    ----------
    name : str
    kind : str
        "category" or "text".
    max_levels : int
        Number of levels with a column of their own at most.
    min_rows : float
        Number of rows that a level needs for a column of its own.
    """

    plain = False
    name: str
    kind: str
    max_levels: int
    min_rows: float
    categorical: bool
    missing: bool
    missing_share: float
    shares: dict[Any, float]
    levels: list[Any]
    pooled: list[Any]
    frequency: bool

    def __init__(self, name: str, kind: str, max_levels: int, min_rows: float) -> None:
        self.name, self.kind = name, kind
        self.max_levels, self.min_rows = max_levels, min_rows
        self.told: set[Any] = set()

    def fit(self, series: pd.Series, weight: Array) -> CategoryColumn:
        """Learn the levels from the training rows and return the rule."""
        codes, found = pd.factorize(series)
        counts = np.bincount(codes[codes >= 0], weight[codes >= 0], minlength=len(found))
        self.categorical = isinstance(series.dtype, pd.CategoricalDtype)
        self.missing = bool((codes < 0).any())
        self.missing_share = float(weight[codes < 0].sum() / weight.sum())
        share = dict(zip(found, (counts / weight.sum()).tolist(), strict=True))
        ordered = _in_order(series, list(found))
        self.shares = {level: share[level] for level in ordered}
        enough = {
            level for level, count in zip(found, counts, strict=True) if count >= self.min_rows
        }
        common = sorted(enough, key=lambda level: (-share[level], ordered.index(level)))
        kept = set(common[: self.max_levels])
        self.levels = [level for level in ordered if level in kept]
        self.pooled = [level for level in ordered if level not in kept]
        self.frequency = len(ordered) > self.max_levels
        return self

    @property
    def names(self) -> list[str]:
        """Names of the encoded columns."""
        own = [f"{self.name}={level}" for level in self.levels]
        own += [f"{self.name}={OTHER}"] * bool(self.pooled)
        own += [f"{self.name}={MISSING}"] * self.missing
        return own + [f"{self.name}: frequency"] * self.frequency

    @property
    def _column_of_level(self) -> dict[Any, int]:
        """Number of the column of each level; pooled levels share one."""
        own = {level: k for k, level in enumerate(self.levels)}
        return own | dict.fromkeys(self.pooled, len(self.levels))

    def encode(self, series: pd.Series, notes: list[str] | None) -> Array:
        """Return zeros and ones, shape (n, len(names)).

        Texts of warnings are appended to ``notes``, each once in the lifetime of the rule.
        """
        codes, found = pd.factorize(series)
        known = self._column_of_level
        unknown = len(self.levels) if self.pooled else -1
        gap = len(self.levels) + bool(self.pooled) if self.missing else unknown
        taken = "one of the pooled rare levels" if self.pooled else "none of the known levels"
        new = [level for level in found if level not in known]
        unseen = not_yet_reported(new, self.told, notes)
        if unseen:
            seen = f"levels not seen in fit: {format_values(unseen)}"
            add_note(notes, f"column {self.name!r} holds {seen}; taken as {taken}")
        gaps = int((codes < 0).sum())
        if gaps and not self.missing and not_yet_reported([None], self.told, notes):
            seen = f"{gaps} missing value(s) but had none in fit"
            add_note(notes, f"column {self.name!r} has {seen}; taken as {taken}")
        # The code of a missing value is -1: the last entry. -1 means a row of zeros.
        column = np.array([*(known.get(level, unknown) for level in found), gap], dtype=np.int64)
        block = np.zeros((len(series), len(self.names)))
        rows = np.flatnonzero(column[codes] >= 0)
        block[rows, column[codes][rows]] = 1.0
        if self.frequency:
            shares = [*(self.shares.get(level, 0.0) for level in found), self.missing_share]
            block[:, -1] = np.array(shares)[codes]
        return block

    def decode(self, numbers: Array) -> Any:
        """Return the level with the largest number; "(other)" if pooled, missing if all are 0."""
        labels = [*self.levels, *[OTHER] * bool(self.pooled), *[None] * self.missing]
        ones = numbers[:, : len(labels)]
        values = np.full(len(numbers), None, dtype=object)
        if labels:
            best, largest = ones.argmax(1), ones.max(1)
            for row in np.flatnonzero(largest > 0.0):
                values[row] = labels[best[row]]
        if self.categorical:
            categories = [*self.levels, *[OTHER] * bool(self.pooled)]
            return pd.Categorical(values, categories=categories)
        return values

    def describe(self) -> str:
        """Return a description of the encoding."""
        text = f"one 0/1 column for each of {len(self.levels)} level(s)"
        if self.pooled:
            rare = format_values(self.pooled, 3)
            text += f", one for {len(self.pooled)} rare level(s) together ({rare})"
        text += ", one for missing values" * self.missing
        return text + ", and the share of training rows of the level" * self.frequency


def _in_order(series: pd.Series, found: list[Any]) -> list[Any]:
    """Return the levels that have rows, in the order of the categories, or sorted."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        with_rows = set(found)
        return [level for level in series.cat.categories if level in with_rows]
    return sorted(found)
