"""Options that several commands share, and how their values are read."""

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
    "several",
    "several_numbers",
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
EncodingOption = Annotated[str, typer.Option(help="Of CSV and TSV files, such as latin-1.")]
DelimiterOption = Annotated[
    str | None, typer.Option(help="Between the cells of a CSV file; a comma by default.")
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
    typer.Option(metavar="COL,COL", help="Columns of codes, to be taken as categories."),
]
OutcomeOption = Annotated[
    str | None,
    typer.Option("--target", "-t", help="Column with the outcomes; that of the fit by default."),
]
SeedOption = Annotated[int, typer.Option(help="Of everything that is drawn.")]


def nearest(name: str, names: Sequence[str]) -> str:
    """A question about the most similar name, empty where there is none.

    Examples
    --------
    >>> nearest("pric", ["area", "price"])
    " Did you mean 'price'?"
    """
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    lower = {other.lower().strip(): other for other in names}
    match = close[0] if close else lower.get(name.lower().strip())
    return f" Did you mean {match!r}?" if match else ""


def several(values: Sequence[str] | None, names: Sequence[str]) -> list[str]:
    """Names from options that were repeated or have commas; a name may itself have commas.

    Examples
    --------
    >>> several(["a,b", "c, d"], ["a", "b", "c, d"])
    ['a', 'b', 'c, d']
    """
    found: list[str] = []
    for value in values or ():
        parts = [value] if value in names else [part.strip() for part in value.split(",")]
        found += [part for part in parts if part]
    return list(dict.fromkeys(found))


def several_numbers(text: str | None, option: str) -> list[float]:
    """Probabilities with commas between them.

    Examples
    --------
    >>> several_numbers("0.05, 0.95", "--quantiles")
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
