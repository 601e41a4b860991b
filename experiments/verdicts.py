"""Verdicts on the paper's statements, made from records.

A verdict word is never written by hand: it comes from the figures, and a statement that the records
do not decide yet is *open*, not true.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from measurements.tables import markdown_table

__all__ = [
    "Judged",
    "Verdict",
    "at_least",
    "count",
    "on_all",
    "phrase",
    "verdicts",
]

#: By set: True, False, or None if there is no figure to judge by.
Judged = Mapping[str, bool | None]


@dataclass(frozen=True)
class Verdict:
    """A statement, whether it holds (None: not decided yet) and the figures that say so."""

    statement: str
    holds: bool | None
    evidence: str

    @property
    def word(self) -> str:
        """As it stands on the page."""
        return "open" if self.holds is None else "yes" if self.holds else "**no**"


def on_all(judged: Judged) -> bool | None:
    """Return whether it holds on every set; one exception decides, a missing set gives None.

    Examples
    --------
    >>> on_all({"a": True, "b": True}), on_all({"a": None, "b": False}), on_all({"a": None})
    (True, False, None)
    """
    if any(value is False for value in judged.values()):
        return False
    return None if None in judged.values() or not judged else True


def at_least(judged: Judged, wanted: int) -> bool | None:
    """Return whether it holds on at least that many sets; None if missing sets can decide it.

    Examples
    --------
    >>> at_least({"a": True, "b": None}, 1), at_least({"a": True, "b": None}, 2)
    (True, None)
    >>> at_least({"a": True, "b": False}, 2)
    False
    """
    there = sum(value is True for value in judged.values())
    possible = there + sum(value is None for value in judged.values())
    return True if there >= wanted else False if possible < wanted else None


def count(judged: Judged) -> str:
    """Return how often it holds, with the exceptions by name.

    Examples
    --------
    >>> count({"a": True, "b": False, "c": None})
    '1 of 2 (not b)'
    """
    known = {name: value for name, value in judged.items() if value is not None}
    against = [name for name, value in known.items() if not value]
    listed = f" (not {', '.join(against)})" if 0 < len(against) < len(known) else ""
    return f"{len(known) - len(against)} of {len(known)}{listed}"


def phrase(holds: bool | None, yes: str, no: str) -> str:
    """Return the words for what a verdict says; those of an open one are marked as such.

    Examples
    --------
    >>> phrase(False, "is", "is not"), phrase(None, "is", "is not")
    ('is not', 'is (not decided yet)')
    """
    return f"{yes} (not decided yet)" if holds is None else yes if holds else no


def verdicts(found: Iterable[Verdict]) -> str:
    """Return the table of a page's verdicts."""
    rows = [[v.statement, v.word, v.evidence] for v in found]
    return markdown_table(["statement", "holds", "figures"], rows)
