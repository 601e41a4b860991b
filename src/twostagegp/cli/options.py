"""Options that several commands share, and how their values are parsed."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from twostagegp.cli.handling import DEBUG
from twostagegp.errors import InputError

__all__ = [
    "CategoryOption",
    "DebugOption",
    "DecimalOption",
    "DelimiterOption",
    "DropGapsOption",
    "DropOption",
    "EncodingOption",
    "JsonOption",
    "ModelArgument",
    "OutcomeOption",
    "SeedOption",
    "TableArgument",
    "TargetOption",
    "nearest",
    "split_names",
    "split_numbers",
]


def _remember_debug(ctx: typer.Context, value: bool) -> bool:
    if value:
        ctx.meta[DEBUG] = True
    return value


JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
DebugOption = Annotated[
    bool, typer.Option("--debug", callback=_remember_debug, help="Show tracebacks of errors.")
]
TableArgument = Annotated[
    Path,
    typer.Argument(metavar="TABLE", help="CSV, TSV, Parquet or Feather file.", show_default=False),
]
ModelArgument = Annotated[
    Path,
    typer.Argument(metavar="MODEL", help="Folder that fit has written.", show_default=False),
]
EncodingOption = Annotated[
    str, typer.Option(help="Encoding of CSV and TSV files, such as latin-1.")
]
DelimiterOption = Annotated[
    str | None, typer.Option(help="Separator of cells in a CSV file; a comma by default.")
]
DecimalOption = Annotated[str, typer.Option(help="Decimal mark of numbers in CSV and TSV files.")]
DropGapsOption = Annotated[
    bool,
    typer.Option("--drop-missing-target", help="Leave out rows without a target."),
]
TargetOption = Annotated[str, typer.Option("--target", "-t", help="Column to predict.")]
DropOption = Annotated[
    list[str] | None, typer.Option(metavar="COL,COL", help="Columns to leave out.")
]
CategoryOption = Annotated[
    list[str] | None,
    typer.Option(metavar="COL,COL", help="Columns of codes that are categories."),
]
OutcomeOption = Annotated[
    str | None,
    typer.Option("--target", "-t", help="Column with the outcomes; by default that of the fit."),
]
SeedOption = Annotated[int, typer.Option(help="Seed of all random numbers.")]


def nearest(name: str, names: Sequence[str]) -> str:
    """Return a question that suggests the most similar name, or an empty string.

    Examples
    --------
    >>> nearest("pric", ["area", "price"])
    " Did you mean 'price'?"
    """
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    lower = {other.lower().strip(): other for other in names}
    match = close[0] if close else lower.get(name.lower().strip())
    return f" Did you mean {match!r}?" if match else ""


def split_names(values: Sequence[str] | None, names: Sequence[str]) -> list[str]:
    """Return names from options that may be repeated or contain commas, as names may too.

    Examples
    --------
    >>> split_names(["a,b", "c, d"], ["a", "b", "c, d"])
    ['a', 'b', 'c, d']
    """
    found: list[str] = []
    for value in values or ():
        parts = [value] if value in names else [part.strip() for part in value.split(",")]
        found += [part for part in parts if part]
    return list(dict.fromkeys(found))


def split_numbers(text: str | None, option: str) -> list[float]:
    """Return probabilities that are separated by commas.

    Examples
    --------
    >>> split_numbers("0.05, 0.95", "--quantiles")
    [0.05, 0.95]
    """
    numbers = []
    for part in (text or "").split(","):
        if not part.strip():
            continue
        try:
            number = float(part)
        except ValueError:
            number = -1.0
        if not 0.0 < number < 1.0:
            raise InputError(f"{option} {text}: give numbers between 0 and 1, such as 0.05,0.95.")
        numbers.append(number)
    return list(dict.fromkeys(numbers))
