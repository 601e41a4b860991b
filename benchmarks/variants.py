"""Variants of an estimator: one choice changed at a time, and what the change did.

A variant is the default estimator with other constructor parameters or other settings. Its
records are compared with those of the variant named ``default`` in the same place, that is, on the
same rows. Means over different tables are never compared, as tables differ in difficulty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from measurements.store import Record
from twostagegp.pipeline.settings import DEFAULTS, Settings

__all__ = ["DEFAULT", "Variant", "changed_settings", "changes", "difference", "log_ratio"]

#: Name of the variant that changes nothing.
DEFAULT = "default"

Compare = Callable[[Record, Record], float]


@dataclass(frozen=True)
class Variant:
    """Constructor parameters and settings that differ from the default.

    Attributes
    ----------
    group : str
        The choice that is changed.
    parameters : mapping
    settings : mapping from dotted names of settings to values
    """

    group: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the constructor."""
        changed = {"settings": changed_settings(self.settings)} if self.settings else {}
        return {**self.parameters, **changed}


def changed_settings(changes: Mapping[str, Any]) -> Settings:
    """Return the default settings with other values, by dotted names.

    Examples
    --------
    >>> changed_settings({"mean.refit_rows": 0, "scale_level": 0.9}).mean.refit_rows
    0
    """
    settings = DEFAULTS
    for name, value in changes.items():
        settings = _replaced(settings, name.split("."), value)
    return settings


def _replaced(part: Any, names: Sequence[str], value: Any) -> Any:
    first, *rest = names
    inner = _replaced(getattr(part, first), rest, value) if rest else value
    return replace(part, **{first: inner})


def log_ratio(score: str) -> Compare:
    """Return a comparison: the log ratio of a score to the default's (for geometric means)."""
    return lambda record, base: math.log(record[score] / base[score])


def difference(score: str) -> Compare:
    """Return a comparison: a score minus the default's."""
    return lambda record, base: float(record[score] - base[score])


def changes(
    records: Iterable[Record], compare: Compare, place: Sequence[str] = ("set",)
) -> dict[str, dict[str, float]]:
    """Return the mean change against the default by variant and table.

    Parameters
    ----------
    records : iterable of records
        Each with ``variant``, ``set`` and the other fields of ``place``.
    compare : callable
        ``compare(record, base)``, the change from the default's record.
    place : sequence of str
        Fields that a record and the default's have in common. Records without a default in their
        place are left out.

    Examples
    --------
    >>> scores = {"default": 1.0, "other": 3.0}
    >>> records = [{"variant": name, "set": "a", "rmse": s} for name, s in scores.items()]
    >>> changes(records, difference("rmse"))
    {'default': {'a': 0.0}, 'other': {'a': 2.0}}
    """
    records = list(records)
    bases = {_values(r, place): r for r in records if r["variant"] == DEFAULT}
    table: dict[str, dict[str, list[float]]] = {}
    for record in records:
        base = bases.get(_values(record, place))
        if base is not None:
            row = table.setdefault(record["variant"], {})
            row.setdefault(record["set"], []).append(compare(record, base))
    return {
        variant: {name: float(np.mean(values)) for name, values in row.items()}
        for variant, row in table.items()
    }


def _values(record: Record, fields: Sequence[str]) -> tuple[Any, ...]:
    return tuple(record[name] for name in fields)
