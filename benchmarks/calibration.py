"""What the calibration does: one fit, three distributions, on seventeen tables.

Every fit of the default estimator is scored with its own local scale and shape, with one factor for
all rows, and uncalibrated (:mod:`benchmarks.calibration_fits`); the page holds the figures against
goals, and against the boosted trees whose records are those of :mod:`benchmarks.uci_large`. Two
related measurements have their own programs: :mod:`benchmarks.calibration_gpnn` and
:mod:`benchmarks.calibration_shift`.

    python -m benchmarks.calibration --jobs 2
    python -m benchmarks.calibration --sets yacht,poletele --folds 0-2
    python -m benchmarks.calibration --table-only

Each fit runs in a process of its own with one thread. The data folder is named by
``TWOSTAGEGP_DATA``. By default the eight small tables run on their standard splits (three of
kin8nm, power and naval) with the exact method, the nine larger ones on folds 0 to 2 from
neighbours.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from benchmarks import RESULTS
from benchmarks.calibration_fits import measure_fold, warm_up
from benchmarks.calibration_tables import report
from benchmarks.large_sets import SETS as LARGE
from benchmarks.large_sets import load, n_folds
from benchmarks.uci_large import MEASUREMENT as PEERS
from benchmarks.uci_tables import REFERENCES as SMALL
from measurements.arguments import names, numbers
from measurements.processes import Processes
from measurements.runner import Measurement, run
from measurements.store import Record
from twostagegp import TwoStageGPRegressor

__all__ = ["MEASUREMENT", "TIME_LIMIT", "Cell", "measure"]

#: Folds of a larger table.
FOLDS = range(3)
#: Seconds after which a fit is given up: an exact one of ten thousand rows takes long.
TIME_LIMIT = 4 * 3600


@dataclass(frozen=True)
class Cell:
    """One fit: to which table, on the training rows of which fold."""

    set: str
    fold: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tables and folds of a run."""
    parser.add_argument("--sets", type=names([*SMALL, *LARGE]), help="tables; all by default")
    parser.add_argument("--folds", type=numbers, help="numbers, as in 0,1 or 0-2")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return all fits, table by table; folds that a table does not have are left out."""
    found = []
    for name in given.sets or (["yacht"] if given.quick else [*SMALL, *LARGE]):
        usual = range(SMALL[name].n_splits) if name in SMALL else FOLDS
        folds = given.folds or (range(1) if given.quick else usual)
        has = n_folds(load(name))
        found += [Cell(name, fold) for fold in folds if fold < has]
    return found


def measure(cell: Cell) -> Record:
    """Fit the default to a fold and score it with each calibration."""
    method = "exact" if cell.set in SMALL else "neighbors"
    warm_up(cell.set, cell.fold, method)
    model = TwoStageGPRegressor(method=method, random_state=cell.fold)
    return {"method": method, **measure_fold(model, cell.set, cell.fold)}


def page(records: list[Record]) -> str:
    """Return the page, with the boosted trees on the same folds."""
    return report(records, PEERS.records())


MEASUREMENT = Measurement(
    name="calibration",
    about="What the calibration does.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=page,
    arguments=arguments,
    strategy=Processes(TIME_LIMIT),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
