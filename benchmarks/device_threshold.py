"""From how many rows on a GPU pays: the wall-clock seconds of default fits on both devices.

Needs a CUDA device and ``TWOSTAGEGP_DATA``.

    python -m benchmarks.device_threshold --rows 250,500,1000,2000,4000 --redo
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import torch

from benchmarks import RESULTS
from measurements.arguments import numbers
from measurements.errors import CannotMeasureError
from measurements.pages import Page, scored
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import figure, markdown_table
from twostagegp import TwoStageGPRegressor, datasets

__all__ = ["MEASUREMENT", "Cell", "measure"]


@dataclass(frozen=True)
class Cell:
    """A number of rows of kin8nm."""

    rows: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--rows``."""
    parser.add_argument("--rows", type=numbers, help="250,500,1000,2000,4000 by default")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return one cell per number of rows."""
    rows = given.rows or ([250] if given.quick else [250, 500, 1000, 2000, 4000])
    return [Cell(n) for n in rows]


def measure(cell: Cell) -> Record:
    """Fit the same rows on the CPU and on the GPU."""
    if not torch.cuda.is_available():
        raise CannotMeasureError("torch sees no CUDA device")
    _seconds(100, "cuda")  # the first use of a GPU includes its start
    return {
        "gpu": torch.cuda.get_device_name(),
        "cpu_threads": torch.get_num_threads(),
        "cpu": _seconds(cell.rows, "cpu"),
        "cuda": _seconds(cell.rows, "cuda"),
    }


def _seconds(rows: int, device: str) -> float:
    data = datasets.load("kin8nm")
    train, _ = data.split(0)
    model = TwoStageGPRegressor(random_state=0, device=device)
    begin = time.perf_counter()
    model.fit(data.X[train[:rows]], data.y[train[:rows]])
    return time.perf_counter() - begin


def _table(records: list[Record]) -> str:
    header = ["rows of kin8nm", "GPU", "CPU threads", "CPU, seconds", "GPU, seconds", "CPU / GPU"]
    lines = []
    for r in sorted(scored(records), key=lambda r: r["rows"]):
        shown = [str(r["rows"]), r["gpu"], str(r["cpu_threads"])]
        shown += [figure(r["cpu"]), figure(r["cuda"]), figure(r["cpu"] / r["cuda"])]
        lines.append(shown)
    return markdown_table(header, lines)


#: Not in ``measurements.publish.MODULES``: no records are stored.
MEASUREMENT = Measurement(
    name="device_threshold",
    about="From how many rows on a GPU pays.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page("When a GPU pays", {"Default fits, wall clock": _table}, failed_by=("rows",)),
    arguments=arguments,
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
