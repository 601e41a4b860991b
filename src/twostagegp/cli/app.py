"""The program: its commands, and the text of ``twostagegp --help``."""

from __future__ import annotations

from typing import Annotated

import typer

from twostagegp import __version__
from twostagegp.cli.datasets import app as datasets_app
from twostagegp.cli.evaluate import evaluate
from twostagegp.cli.fit import fit
from twostagegp.cli.handling import Commands, handle_signals
from twostagegp.cli.kernels import check, search
from twostagegp.cli.options import DebugOption
from twostagegp.cli.predict import predict
from twostagegp.cli.report import report

__all__ = ["app", "run"]

_HELP = """Predictive distributions for tables: fit a model, predict, and evaluate it.

Tables are CSV, TSV, Parquet or Feather files with column names. Results go to the standard output,
as JSON with --json; progress, warnings and errors go to the standard error stream.

Exit codes: 0 done; 1 failed, with one message that gives the reason; 2 wrong usage; 130 interrupted
(Ctrl-C); 143 terminated. After any code other than 0 no output file has been changed.
"""

app = typer.Typer(
    name="twostagegp",
    cls=Commands,
    help=_HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"twostagegp {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    pass


for _command in (fit, predict, evaluate, report, search, check):
    app.command()(_command)
app.add_typer(datasets_app)


def run() -> None:
    """Run the program; the console script calls this."""
    handle_signals()
    app(prog_name="twostagegp")
