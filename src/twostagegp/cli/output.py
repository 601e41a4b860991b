"""Results on the standard output: JSON for programs, small tables for people."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import typer

__all__ = [
    "Progress",
    "fit_progress",
    "number",
    "print_json",
    "print_pairs",
    "print_table",
    "progress",
    "working",
]

#: Width of tables that do not go to a terminal.
_WIDTH = 120


def print_json(result: Mapping[str, Any]) -> None:
    """Print one JSON object; NaN and infinity become null."""
    typer.echo(json.dumps(_plain(result), indent=2, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def number(value: Any, digits: int = 4) -> str:
    """Return a number as readable text.

    Examples
    --------
    >>> number(123456.789), number(0.00012345), number(True), number("as it is")
    ('123,457', '0.0001234', 'yes', 'as it is')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if 10**digits <= abs(value) < 1e15 else f"{value:.{digits}g}"


def print_table(header: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """Print a table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title) if title else None, title_justify="left", show_header=any(header)
    )
    for name in header:
        table.add_column(Text(name), overflow="fold")
    for row in rows:
        table.add_row(*(Text(number(cell)) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    console.print(table)


def print_pairs(pairs: Mapping[str, Any], title: str = "") -> None:
    """Print names and values."""
    print_table(("", ""), pairs.items(), title)


class Progress(Protocol):
    """Receives the progress of a long command."""

    def __call__(self, done: float, rows: int) -> None:
        """Show the share that is done, and the number of rows."""


@contextmanager
def progress(text: str) -> Iterator[Progress]:
    """Show a bar with the remaining time, if the standard error stream is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, rows: None
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TaskProgressColumn(),
        bars.TextColumn("{task.fields[rows]:,} rows"),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=1.0, rows=0)
        yield lambda done, rows: bar.update(task, completed=done, rows=rows)


@contextmanager
def fit_progress(text: str) -> Iterator[None]:
    """Show what is being fitted, the share that is done and the remaining time, on a terminal.

    A fit without a forecast (``twostagegp.runtime.progress``) is shown as :func:`working` does.
    """
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.spinner import Spinner
    from rich.table import Table

    from twostagegp.runtime.progress import watch

    with watch() as seen:
        spinner = Spinner("dots", text)

        def line() -> RenderableType:
            share = seen.share
            if share is None:
                return spinner
            parts = Table.grid(padding=(0, 1))
            bar = ProgressBar(total=1.0, completed=share, width=20)
            parts.add_row(spinner, bar, f"{share:.0%}", seen.words())
            return parts

        console = Console(stderr=True)
        with Live(console=console, get_renderable=line, transient=True, refresh_per_second=8):
            yield


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show what is being done, if the standard error stream is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield
