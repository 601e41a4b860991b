"""One evaluation of a training objective with its gradient, beside the arithmetic that it needs.

    python -m benchmarks.evaluation_floor

The floor is the time of the matrix operations alone, at the rate of a large matrix product measured
in the same process: :math:`n^3` operations for the likelihood (Cholesky factor and inverse) and
:math:`2 n^3` for the leave-one-out density (one symmetric product more), plus :math:`4 n^2 d` for
distances and derivatives. *Plain* is the evaluation by torch, with new memory for every matrix,
which GPUs and wrapped kernels use. One thread; the kernel is Matérn 5/2 with a lengthscale per
column.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks import RESULTS
from measurements.arguments import numbers
from measurements.pages import Page, joined, scored
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import figure, markdown_table
from twostagegp.data.rows import Rows
from twostagegp.engines.exact.dense import DenseProblem
from twostagegp.engines.problem import ObjectiveName, Problem
from twostagegp.kernels import NamedKernel
from twostagegp.runtime.cores import use_cores

__all__ = ["MEASUREMENT", "Cell", "measure"]

ROWS, COLUMNS = (100, 350, 1000, 4000), (5, 20, 100)
OBJECTIVES: tuple[ObjectiveName, ...] = ("nll", "loo")
#: Seconds that each evaluation is repeated for; the fastest counts.
REPEAT_SECONDS = 2.0
#: Operations per cubed row.
OPERATIONS = {"nll": 1.0, "loo": 2.0}


@dataclass(frozen=True)
class Cell:
    """An objective on so many rows and columns."""

    objective: ObjectiveName
    rows: int
    columns: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--rows`` and ``--columns``."""
    parser.add_argument("--rows", type=numbers, default=list(ROWS))
    parser.add_argument("--columns", type=numbers, default=list(COLUMNS))


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return every objective on every size."""
    rows, columns = (given.rows, given.columns) if not given.quick else ([50], [2])
    return [Cell(objective, n, d) for n in rows for d in columns for objective in OBJECTIVES]


def _fastest(work: Callable[[], Any], seconds: float) -> float:
    """Return the shortest time of repeated calls, after one that is not timed."""
    work()
    best, end = np.inf, time.perf_counter() + seconds
    while time.perf_counter() < end or best == np.inf:
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return best


def measure(cell: Cell) -> Record:
    """Time the evaluation, the plain one and a matrix product."""
    n, d = cell.rows, cell.columns
    rng = np.random.default_rng(0)
    one = torch.ones(n, dtype=torch.float64)
    X, t = torch.tensor(rng.normal(size=(n, d))), torch.tensor(rng.normal(size=n))
    rows, kernel = Rows(X, t, one, 0.0 * one, 0.0 * one), NamedKernel("matern52", d, ard=True)
    A = rng.normal(size=(1000, 1000))
    with use_cores(1):
        rate = 2e9 / _fastest(lambda: A @ A, 0.5)
        dense, plain = (make(kernel, rows, cell.objective) for make in (DenseProblem, Problem))
        x = dense.start()
        return {
            "seconds": _fastest(lambda: dense(x), REPEAT_SECONDS),
            "plain_seconds": _fastest(lambda: plain(x), REPEAT_SECONDS),
            "floor_seconds": (OPERATIONS[cell.objective] * n**3 + 4.0 * n * n * d) / rate,
        }


def _section(records: list[Record]) -> str:
    lines = [
        [
            r["objective"],
            f"{r['rows']:,}",
            str(r["columns"]),
            *(figure(1e3 * r[key]) for key in ("seconds", "floor_seconds", "plain_seconds")),
            f"{r['seconds'] / r['floor_seconds']:.2f}",
            f"{r['plain_seconds'] / r['seconds']:.2f}",
        ]
        for r in scored(records)
    ]
    head = ["objective", "rows", "columns", "ms", "floor, ms", "plain, ms", "ms / floor"]
    return joined(
        "Milliseconds of one value with its gradient on one core, the arithmetic alone at the "
        "rate of a matrix product, and the plain evaluation by torch.",
        markdown_table([*head, "plain / ms"], lines),
    )


MEASUREMENT = Measurement(
    name="evaluation_floor",
    about="One evaluation with gradient beside its arithmetic.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page(
        "Evaluations and their arithmetic",
        {"One evaluation with its gradient": _section},
        failed_by=("objective", "rows", "columns"),
    ),
    arguments=arguments,
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
