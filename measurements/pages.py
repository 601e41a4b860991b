"""A page of results: a title, where the records come from, and sections made from the records.

A section is a title and a function from records to Markdown, usually one table:

>>> page = Page("Speed", {"Fits": lambda records: f"{len(records)} fits"})
>>> print(page([{"version": "1", "code": "ab"}]))
# Speed
<BLANKLINE>
twostagegp 1 (source ab); 1 fits.
<BLANKLINE>
## Fits
<BLANKLINE>
1 fits
<BLANKLINE>
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from measurements.provenance import provenance
from measurements.store import Record

__all__ = [
    "NO_RECORDS",
    "Page",
    "failures",
    "joined",
    "mean_or_nan",
    "scored",
    "standard_error",
    "values",
]

#: What a page says before anything was measured.
NO_RECORDS = "No fits yet."


@dataclass(frozen=True)
class Page:
    """A page, called with all records.

    Attributes
    ----------
    title : str
    sections : mapping from titles to functions
        Each function makes the section's Markdown from all records, failed ones too; a section
        whose text is empty is left out.
    about : callable, optional
        Makes the Markdown above the sections.
    command : str, optional
        The command that measures again, shown below that text.
    figure : str, optional
        File name of the figure, shown above the sections.
    failed_by : sequence of str
        Fields that name a failed fit in the list of failures.
    counted : str
        What one record is, in the plural.
    """

    title: str
    sections: Mapping[str, Callable[[list[Record]], str]]
    about: Callable[[list[Record]], str] = lambda records: ""
    command: str = ""
    figure: str = ""
    failed_by: Sequence[str] = ()
    counted: str = "fits"

    def __call__(self, records: Iterable[Record]) -> str:
        """Return the page as Markdown."""
        records = list(records)
        fine = scored(records)
        origin = provenance(fine, self.counted) if fine else NO_RECORDS
        blocks = [f"# {self.title}", origin, self.about(records)]
        blocks.append(f"    {self.command}" if self.command else "")
        if fine:
            blocks.append(f"![{self.title}]({self.figure})" if self.figure else "")
            for title, body in self.sections.items():
                text = body(records)
                blocks += [f"## {title}", text] if text else []
        return joined(*blocks, *failures(records, self.failed_by))


def joined(*blocks: str) -> str:
    """Return Markdown blocks with one blank line between them; empty blocks are left out."""
    return "\n\n".join(block.strip("\n") for block in blocks if block.strip()) + "\n"


def failures(records: Iterable[Record], fields: Sequence[str]) -> list[str]:
    """Return a section that lists every failed fit; an empty list if none failed."""
    lines = [
        f"- {', '.join(f'{name} {record[name]}' for name in fields)}: {record['error']}"
        for record in records
        if record.get("error")
    ]
    return ["## Fits that failed\n", "\n".join(lines), ""] if lines else []


def scored(records: Iterable[Record]) -> list[Record]:
    """Return the records without an error."""
    return [record for record in records if not record.get("error")]


def values(records: Iterable[Record], field: str) -> list[float]:
    """Return one score of several records, without the records that do not have it."""
    return [record[field] for record in records if record.get(field) is not None]


def mean_or_nan(numbers: Sequence[float]) -> float:
    """Return the mean, or NaN for an empty sequence."""
    return fmean(numbers) if numbers else math.nan


def standard_error(numbers: Sequence[float]) -> float:
    """Return the standard error of the mean; 0 for a single number."""
    return stdev(numbers) / math.sqrt(len(numbers)) if len(numbers) > 1 else 0.0
