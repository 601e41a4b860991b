"""``twostagegp predict``: predictions for a file of any length, in bounded memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from twostagegp.cli.options import (
    DebugOption,
    DecimalOption,
    DelimiterOption,
    EncodingOption,
    JsonOption,
    ModelArgument,
    TableArgument,
    split_names,
    split_numbers,
)
from twostagegp.cli.output import print_json, print_pairs, progress
from twostagegp.errors import InputError

__all__ = ["predict"]


def predict(
    model: ModelArgument,
    table: TableArgument,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="CSV, TSV, Parquet or Feather file to write."
        ),
    ],
    interval: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL,…",
            help="Levels of intervals, for regression.  [default: 0.95]",
            show_default=False,
        ),
    ] = None,
    quantiles: Annotated[
        str | None,
        typer.Option(metavar="LEVEL,…", help="Quantiles, for regression, such as 0.05,0.5,0.95."),
    ] = None,
    support: Annotated[
        bool,
        typer.Option(
            "--support",
            help="Add a column that says how near training rows are: 1 inside the data, down to 0 "
            "far outside. For regression.",
        ),
    ] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COL,COL", help="Columns of the table to copy to the output."),
    ] = None,
    keep_all: Annotated[bool, typer.Option("--keep-all", help="Copy all columns.")] = False,
    prefix: Annotated[str, typer.Option(help="Prefix of the names of new columns.")] = "",
    chunk_rows: Annotated[int, typer.Option(min=1, help="Rows in memory at a time.")] = 20_000,
    guard: Annotated[
        bool,
        typer.Option(
            "--formula-guard/--no-formula-guard",
            help="In CSV and TSV files, put an apostrophe before text that a spreadsheet would "
            "execute as a formula (it begins with = + - @).",
        ),
    ] = True,
    encoding: EncodingOption = "utf-8",
    delimiter: DelimiterOption = None,
    decimal: DecimalOption = ".",
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Predict every row of a table.

    Regression: mean, std (of an observation, noise included), lower_0.95 and upper_0.95 per
    interval, q_0.05 per quantile, in units of the target, and support on request. Classification:
    class, certain (whether the two leading classes differ significantly) and one p_<class> per
    class.

    The table is read and the output written in chunks. The output file appears when it is complete;
    until then an older file of that name is unchanged.
    """
    from twostagegp.cli.formats import format_of
    from twostagegp.cli.models import open_model
    from twostagegp.cli.predicting import OutputColumns, predict_file
    from twostagegp.cli.source import open_source

    begin = time.perf_counter()
    format_of(output)
    source = open_source(table, encoding, delimiter, decimal)
    if output.exists() and output.samefile(table):
        raise InputError(f"{output} is the input file; choose another output.")
    kept = list(source.names) if keep_all else split_names(keep, source.names)
    source.require(kept, "--keep")
    saved = open_model(model)
    output_columns = OutputColumns.for_model(
        saved,
        split_numbers(interval, "--interval"),
        split_numbers(quantiles, "--quantiles"),
        prefix,
        support,
    )
    with progress(f"predicting {table.name}") as tell:
        rows = predict_file(saved, source, output, output_columns, kept, chunk_rows, guard, tell)
    result = {
        "output": str(output),
        "rows": rows,
        "columns": [*kept, *output_columns.names],
        "seconds": round(time.perf_counter() - begin, 3),
    }
    if as_json:
        print_json(result)
    else:
        print_pairs({**result, "columns": ", ".join([*kept, *output_columns.names])})
