"""Two states of the source, each imported by processes of its own.

A state is the folder ``src`` of a checkout. A process imports it if the folder comes first in its
``PYTHONPATH``; benchmarks and measurements are those of this checkout in both cases, so they may
only use what both states offer.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

__all__ = ["STATES", "add_arguments", "python_path", "sources"]

STATES = ("before", "now")
ROOT = Path(__file__).parent.parent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--before`` and ``--now``."""
    parser.add_argument("--before", type=Path, help="folder src of the other state")
    parser.add_argument(
        "--now", type=Path, default=ROOT / "src", help="folder src of this state; this checkout's"
    )


def sources(given: argparse.Namespace) -> dict[str, Path]:
    """Return the folder of each state; end the program if one does not hold the package."""
    if given.before is None:
        raise SystemExit("--before is needed: the folder src of another checkout")
    found = {"before": given.before.resolve(), "now": given.now.resolve()}
    for state, folder in found.items():
        if not (folder / "twostagegp" / "__init__.py").is_file():
            raise SystemExit(f"--{state}: there is no package twostagegp in {folder}")
    return found


def python_path(source: Path) -> str:
    """Return a ``PYTHONPATH`` by which a process imports that state, and this checkout's rest."""
    return os.pathsep.join([str(source), str(ROOT), os.environ.get("PYTHONPATH", "")])
