"""How often a fit to a hard table goes wrong: ours and the libraries a user would pick instead.

Every model is fitted to every table of :mod:`benchmarks.hard_tables` with several seeds:
scikit-learn and GPyTorch on the table as it is, as in their first examples, and all peers with the
settings of :mod:`benchmarks.peers`, columns and target standardised for them. A library starts once
and fits table after table. A fit that takes longer than the time limit is ended; that, and a
process that dies, is an outcome like any other and is not tried again without ``--redo``.

    python -m benchmarks.reliability --python .venv-peers/bin/python
    python -m benchmarks.reliability --models ours_auto --seeds 0
    python -m benchmarks.reliability --table-only
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from benchmarks import RESULTS
from benchmarks.hard_tables import TABLES
from benchmarks.reliability_fits import measure_table
from benchmarks.reliability_models import KNOWN, LABELS
from benchmarks.reliability_tables import report
from measurements.arguments import names, numbers
from measurements.processes import Processes
from measurements.runner import Measurement, run
from measurements.store import Record

__all__ = ["MEASUREMENT", "Cell", "measure"]

SECONDS = 60
SEEDS = (0, 1, 2)
QUICK_TABLES = ("rows 5", "rows 20")


@dataclass(frozen=True)
class Cell:
    """One fit: which model, to which table; ``fold`` is the seed of both."""

    model: str
    set: str
    fold: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the models, tables and seeds of a run."""
    parser.add_argument("--models", type=names(KNOWN), help="by default those of the page")
    parser.add_argument("--tables", type=_tables, help="part of their names; all by default")
    parser.add_argument("--seeds", type=numbers, help="numbers, as in 0,1 or 0-4")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return all fits, model by model."""
    tables = given.tables or (QUICK_TABLES if given.quick else list(TABLES))
    return [
        Cell(model, name, seed)
        for model in given.models or (["ours_auto"] if given.quick else list(LABELS))
        for seed in given.seeds or ([0] if given.quick else SEEDS)
        for name in tables
    ]


def measure(cell: Cell) -> Record:
    """Fit a model to a table and record what came out."""
    return measure_table(cell.model, cell.set, cell.fold)


def _tables(text: str) -> list[str]:
    """Return all tables whose name has this part."""
    found = [name for name in TABLES if text in name]
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is in no name; list them with hard_tables")
    return found


MEASUREMENT = Measurement(
    name="reliability",
    about="Hard tables, ours and peers.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=report,
    arguments=arguments,
    settled=lambda record: True,
    strategy=Processes(SECONDS, group=lambda cell: cell.model),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
