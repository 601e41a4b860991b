"""A measurement whose cells run in processes of their own, for the tests of these processes."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from measurements.cores import usable
from measurements.errors import CannotMeasureError
from measurements.processes import Processes
from measurements.runner import Measurement


@dataclass(frozen=True)
class Cell:
    """What the process does: ``deed`` is a key of ``DEEDS``."""

    deed: str
    number: int


def _die() -> None:
    sys.stderr.write("oh\nno\n")
    sys.stderr.flush()
    os._exit(3)


def _chatter() -> None:
    sys.stdout.write("loud\n")
    sys.stdout.flush()
    os.write(1, b"louder")


def _missing() -> None:
    raise CannotMeasureError("not installed: something")


def _raise() -> None:
    raise ValueError("not today")


DEEDS = {
    "work": lambda: None,
    "sleep": lambda: time.sleep(60),
    "die": _die,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "chatter": _chatter,
    "missing": _missing,
    "raise": _raise,
}


def measure(cell: Cell) -> dict[str, object]:
    """Do the deed; say which process did it and how many threads it may use."""
    DEEDS[cell.deed]()
    granted = os.environ.get("OMP_NUM_THREADS")
    return {
        "pid": os.getpid(),
        "granted": granted,
        "color": os.environ.get("COLOR"),
        "cores": len(usable()),
    }


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return one cell per deed that was asked for."""
    return [Cell(deed, number) for number, deed in enumerate(given.deeds.split(","))]


def measurement(**changes: object) -> Measurement[Cell]:
    """Return the measurement, with another way to share processes."""
    return Measurement(
        name="alone",
        about="Deeds.",
        results=Path("nowhere"),
        cell=Cell,
        cells=cells,
        measure=measure,
        report=lambda records: f"{len(records)} records\n",
        arguments=lambda parser: parser.add_argument("--deeds", default="work"),
        strategy=Processes(60, **changes),
    )


MEASUREMENT = measurement()
