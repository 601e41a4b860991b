"""Nine larger tables: our estimators against the libraries that a user would pick instead.

Every fit runs in a process of its own, is ended when it takes longer than the time limit, and is
stored at once. A model that raises, is killed, runs out of time or makes predictions that are not
numbers is stored as such. The data folder is named by ``TWOSTAGEGP_DATA``.

    python -m benchmarks.uci_large --sets bike,pol --models lightgbm,gpboost --folds 0
    python -m benchmarks.uci_large --models ours
    python -m benchmarks.uci_large --table-only

By default ours run on every fold, the peers on the first two, above 100,000 rows on the first. The
peers' packages are those of ``pip install "twostagegp[peers]"``; as they want other versions of
some dependencies than this package is developed with, give them an environment of their own and
name its interpreter with ``--python``.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from benchmarks import RESULTS
from benchmarks.large_sets import MANY_ROWS, SETS, load, n_folds
from benchmarks.large_tables import report
from benchmarks.peers import MODELS, OURS, PEERS, SMALL_ONLY
from benchmarks.peers.run import has_diverged, measure_fold
from measurements.arguments import names, numbers
from measurements.processes import Processes
from measurements.runner import Measurement, run
from measurements.store import Record

__all__ = ["MEASUREMENT", "Cell", "default_folds", "measure"]

DEFAULT_MODELS = ("ours", *(name for name in PEERS if name not in SMALL_ONLY))
PEER_FOLDS = 2
SECONDS = 1200


@dataclass(frozen=True)
class Cell:
    """One fit: which model, on which table, on the training rows of which fold."""

    model: str
    set: str
    fold: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tables, models and folds of a run."""
    parser.add_argument("--sets", type=names(SETS), help="tables; all nine by default")
    parser.add_argument("--models", type=names(MODELS), default=list(DEFAULT_MODELS))
    parser.add_argument("--folds", type=numbers, help="numbers, as in 0,1 or 0-4")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return all fits, table by table; folds that a table does not have are left out."""
    found = []
    for name in given.sets or (["bike"] if given.quick else SETS):
        data = load(name)
        has = n_folds(data)
        for model in given.models:
            folds = given.folds or ([0] if given.quick else default_folds(model, len(data.y), has))
            found += [Cell(model, name, fold) for fold in folds if fold < has]
    return found


def default_folds(model: str, rows: int, has: int) -> list[int]:
    """Return the folds that a model is run on unless told otherwise."""
    if model in OURS:
        return list(range(has))
    return [0] if rows > MANY_ROWS else list(range(PEER_FOLDS))


def measure(cell: Cell) -> Record:
    """Fit one model to one fold and score it."""
    return measure_fold(cell.model, cell.set, cell.fold)


MEASUREMENT = Measurement(
    name="uci_large",
    about="Nine larger tables, against other libraries.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=report,
    arguments=arguments,
    strategy=Processes(SECONDS, settled=has_diverged),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
