"""``twostagegp report``: an HTML page about the predictions for rows with a known target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twostagegp.cli.options import (
    DebugOption,
    DecimalOption,
    DelimiterOption,
    DropGapsOption,
    EncodingOption,
    JsonOption,
    ModelArgument,
    OutcomeOption,
    TableArgument,
)
from twostagegp.cli.output import print_json, print_pairs, working
from twostagegp.errors import InputError

__all__ = ["report"]


def report(
    model: ModelArgument,
    table: TableArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="HTML file to write.")
    ],
    target: OutcomeOption = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page.")] = None,
    drop_missing_target: DropGapsOption = False,
    encoding: EncodingOption = "utf-8",
    delimiter: DelimiterOption = None,
    decimal: DecimalOption = ".",
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write a page about the predictions for rows that were not used in the fit.

    The page says in words and pictures how good they are. It is one HTML file that loads nothing
    from elsewhere. All rows are read into memory.
    """
    if output.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{output}: the name must end in .html (got {output.suffix!r}).")
    from twostagegp.cli.models import open_model
    from twostagegp.cli.scoring import all_rows, target_of
    from twostagegp.cli.source import open_source
    from twostagegp.report import write_report

    source = open_source(table, encoding, delimiter, decimal)
    saved = open_model(model)
    column = target_of(saved, source, target)
    X, y = all_rows(saved, source, column, drop_missing_target)
    with working(f"writing {output.name}"):
        written = write_report(saved.model, X, y, output, title=title)
    result = {"output": str(written), "rows": len(y), "target": column}
    if as_json:
        print_json(result)
    else:
        print_pairs(result)
