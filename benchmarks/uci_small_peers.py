"""The eight small UCI tables: the libraries that a user would pick instead of this one.

The models of :mod:`benchmarks.peers` on the standard splits, scored as :mod:`benchmarks.uci_large`
scores them: the first five splits, of kin8nm, power and naval the first two. Exact Gaussian
processes of other libraries are run on the five tables that they can hold. A library starts once
and fits split after split; a fit beyond the time limit is ended and stored as such. Our own figures
on the page are those of ``uci_small.jsonl`` (:mod:`benchmarks.uci_small`), of the same splits;
``--models ours_auto`` runs our default as the peers are run, for the scores that only these records
have.

    python -m benchmarks.uci_small_peers --python .venv-peers/bin/python
    python -m benchmarks.uci_small_peers --models ngboost --sets yacht --splits 0-9
    python -m benchmarks.uci_small_peers --table-only
"""

from __future__ import annotations

import argparse

from benchmarks import RESULTS
from benchmarks.peers import PEERS
from benchmarks.peers.run import has_diverged
from benchmarks.small_peers_tables import NAME, our_records, report
from benchmarks.uci_large import Cell, measure
from benchmarks.uci_small import MEASUREMENT as OURS
from benchmarks.uci_tables import REFERENCES
from measurements.arguments import names, numbers
from measurements.processes import Processes
from measurements.runner import Measurement, run
from measurements.store import Record

__all__ = ["FOLDS", "MEASUREMENT", "MODELS", "cells"]

SECONDS = 300
LARGE = ("kin8nm", "power", "naval")
#: Splits that are taken of a table.
FOLDS = {name: range(2) if name in LARGE else range(5) for name in REFERENCES}
#: Their cost grows with the cube of the rows, so they are not run on the large tables.
EXACT = ("sklearn_gpr", "sklearn_matern", "gpytorch_rbf", "gpytorch_matern")
#: The quick and informative ones first.
MODELS = (
    *("catboost_uncertainty", "catboost_rmse", "gpytorch_matern", "gpytorch_rbf", "gpboost"),
    *("ngboost", "lightgbm", "gpnn", "muygpys", "sklearn_gpr", "sklearn_matern", "gpboost_ard"),
    "gpytorch_svgp",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tables, models and splits of a run."""
    parser.add_argument("--sets", type=names(REFERENCES), help="tables; all eight by default")
    parser.add_argument("--models", type=names([*PEERS, NAME]), default=list(MODELS))
    parser.add_argument("--splits", type=numbers, help="numbers, as in 0,1 or 0-4")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return all fits, model by model, each with the small tables first."""
    sets = given.sets or (["yacht"] if given.quick else REFERENCES)
    return [
        Cell(model, name, split)
        for model in given.models
        for name in REFERENCES
        if name in sets and not (model in EXACT and name in LARGE)
        for split in given.splits or (range(1) if given.quick else FOLDS[name])
    ]


def page(records: list[Record]) -> str:
    """Return the page, with our default on the same splits."""
    return report(records, our_records(OURS.records()))


MEASUREMENT = Measurement(
    name="uci_small_peers",
    about="Small tables, other libraries.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=page,
    arguments=arguments,
    strategy=Processes(SECONDS, group=lambda cell: cell.model, settled=has_diverged),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
