"""Errors, warnings and signals of all commands.

An error is printed as one message with an exit code; ``--debug`` adds the traceback. A warning is
one line. Signals become exceptions, so that incomplete files are removed.
"""

from __future__ import annotations

import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from twostagegp.errors import TwoStageGPError, TwoStageGPWarning

__all__ = ["DEBUG", "Commands", "handle_signals"]

#: Key of ``--debug`` in the ``meta`` dictionary of a click context.
DEBUG = "twostagegp.debug"
INTERRUPTED, TERMINATED = 130, 143

_INTERRUPTED = "interrupted; the output is unchanged"
_EXPECTED = (TwoStageGPError, OSError, ValueError, MemoryError, ImportError)
_signals: set[int] = set()


class Commands(TyperGroup):
    """A group of commands that fail with one message and an exit code."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command; turn whatever it raises into a message and an exit code."""
        with _warnings_as_lines(ctx):
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:
                _leave(INTERRUPTED, _INTERRUPTED)
            except (typer.Exit, typer.Abort, BrokenPipeError):
                raise
            except Exception as error:
                if hasattr(error, "exit_code"):  # wrong usage, reported by typer
                    raise
                if signal.SIGINT in _signals:  # a library may have raised another error instead
                    _leave(INTERRUPTED, _INTERRUPTED)
                if ctx.meta.get(DEBUG):
                    typer.echo("".join(traceback.format_exception(error)), err=True, nl=False)
                _leave(1, f"error: {_message(error)}")


def _leave(code: int, text: str) -> None:
    typer.echo(text, err=True)
    raise typer.Exit(code)


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and not isinstance(error, TwoStageGPError):
        name = "" if error.filename is None else f": {error.filename}"
        return f"{error.strerror}{name}"
    text = str(error).strip() or type(error).__name__
    if isinstance(error, _EXPECTED):
        return text
    return f"unexpected {type(error).__name__}: {text}. --debug shows where it happened."


@contextmanager
def _warnings_as_lines(ctx: typer.Context) -> Iterator[None]:
    """Print each of our warnings once, in one line; others only with ``--debug``."""
    printed: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        text = f"warning: {message}"
        if text not in printed:
            printed.add(text)
            typer.echo(text, err=True)

    with warnings.catch_warnings():
        if not ctx.meta.get(DEBUG):
            warnings.simplefilter("ignore")
        warnings.simplefilter("always", TwoStageGPWarning)
        warnings.showwarning = show
        yield


def handle_signals() -> None:
    """Raise exceptions on SIGINT and SIGTERM, unless the process ignores these signals."""

    def interrupt(number: int, frame: Any) -> None:
        _signals.add(signal.SIGINT)
        raise KeyboardInterrupt

    def terminate(number: int, frame: Any) -> None:
        sys.exit(TERMINATED)

    for number, handler in ((signal.SIGINT, interrupt), (signal.SIGTERM, terminate)):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)
