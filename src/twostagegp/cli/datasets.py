"""``twostagegp datasets``: list and download public tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twostagegp.cli.options import DebugOption, JsonOption
from twostagegp.cli.output import print_json, print_pairs, print_table

__all__ = ["app"]

app = typer.Typer(name="datasets", help="List and download public tables.", no_args_is_help=True)


@app.command("list")
def list_tables(as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """List the tables that can be downloaded, and their sources."""
    from twostagegp import datasets
    from twostagegp.datasets.recipes import RECIPES

    lines = [{"name": name, "source": RECIPES[name].url} for name in datasets.fetchable()]
    if as_json:
        print_json({"tables": lines, "folder": str(datasets.cache_folder())})
    else:
        print_table(("name", "source"), [(line["name"], line["source"]) for line in lines])


@app.command("fetch")
def fetch_table(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from the list.")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="CSV, TSV, Parquet or Feather file."),
    ],
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder of downloads; by default TWOSTAGEGP_DATA or a cache."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Prepare the table again from its source.")
    ] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Download a table, check it, and write it with its target in the column y.

    If the source has groups, their labels are in the column groups.
    """
    import sys

    import pyarrow as pa

    from twostagegp import datasets
    from twostagegp.cli.formats import format_of
    from twostagegp.cli.sink import write_table
    from twostagegp.errors import InputError

    format_of(output)
    data = datasets.fetch(name, folder, force=force, verbose=int(sys.stderr.isatty()))
    columns = dict(zip(data.feature_names, data.X.T, strict=True))
    extra = {"y": data.y} | ({} if data.groups is None else {"groups": data.groups})
    clash = sorted(columns.keys() & extra.keys())
    if clash or len(columns) < len(data.feature_names):
        raise InputError(f"the table has several columns of the same name: {', '.join(clash)}.")
    write_table(output, pa.table({n: pa.array(c) for n, c in {**columns, **extra}.items()}))
    result = {"name": name, "output": str(output), "rows": len(data.y), "target": "y"}
    if as_json:
        print_json({**result, "columns": [*columns, *extra]})
    else:
        print_pairs({**result, "columns": ", ".join([*columns, *extra])})
