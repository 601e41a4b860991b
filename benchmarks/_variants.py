"""Variants of an estimator: one choice changed at a time, and what the change did.

A variant is the default estimator with other constructor parameters or other module constants. Its
records are compared with those of the variant named ``default`` in the same place, that is, on the
same rows: never mean with mean, where one of the two may have seen an easier table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks._store import Record

__all__ = ["DEFAULT", "Constants", "Variant", "changes", "difference", "log_ratio", "patched"]

#: Name of the variant that changes nothing.
DEFAULT = "default"

Constants = Mapping[tuple[Any, str], Any]
Compare = Callable[[Record, Record], float]


@dataclass(frozen=True)
class Variant:
    """Constructor parameters and module constants that differ from the default.

    Attributes
    ----------
    group : str
        The choice that is changed.
    parameters : mapping
    constants : mapping from (module, name) to a value
    """

    group: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    constants: Constants = field(default_factory=dict)


@contextmanager
def patched(constants: Constants) -> Iterator[None]:
    """Give module constants other values inside a ``with``.

    Examples
    --------
    >>> with patched({(math, "pi"): 3}):
    ...     math.pi
    3
    >>> math.pi > 3
    True
    """
    before = {(module, name): getattr(module, name) for module, name in constants}
    try:
        for (module, name), value in constants.items():
            setattr(module, name, value)
        yield
    finally:
        for (module, name), value in before.items():
            setattr(module, name, value)


def log_ratio(score: str) -> Compare:
    """The logarithm of a score over the default's; means of it are those of geometric means."""
    return lambda record, base: math.log(record[score] / base[score])


def difference(score: str) -> Compare:
    """A score minus the default's."""
    return lambda record, base: float(record[score] - base[score])


def changes(
    records: Iterable[Record], compare: Compare, place: Sequence[str] = ("set",)
) -> dict[str, dict[str, float]]:
    """Mean change against the default by variant and table.

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
