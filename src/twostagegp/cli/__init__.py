"""The command line, ``twostagegp``: fit, predict, evaluate and more on table files.

torch, pandas and scikit-learn are imported only when a command needs them, so that ``--help``
answers at once.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its exit code."""
    try:
        from twostagegp.cli.app import run
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        sys.exit(
            "error: the command line needs typer; install it with: pip install 'twostagegp[cli]'"
        )
    run()
