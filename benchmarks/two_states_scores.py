"""Compare accuracy and CPU seconds of two states of the source, over many tables.

    git worktree add ../before COMMIT
    python -m benchmarks.two_states_scores --before ../before/src
    python -m benchmarks.two_states_scores --before ../before/src --rows 100,400 --draws 2 \
        --tables yacht,wage

Both states fit the default model, on one thread, to the same random rows of thirty-five public
tables (:mod:`benchmarks.many_tables`) and are scored on the same other rows, at most a thousand.
Every draw of a number of rows has one process per state, one after the other, in which a small fit
comes before those that are timed: modules are imported and compiled functions loaded then. A record
belongs to the state of the source whose hash it carries: when the source changes, its fits are
measured again, and those of the other state are kept. The data folder is named by
``TWOSTAGEGP_DATA``. For speed alone, :mod:`benchmarks.two_states` has larger jobs.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from benchmarks import RESULTS
from benchmarks.many_tables import TABLES, draw, n_rows
from benchmarks.scores import fit_facts, predictive_scores
from benchmarks.state_tables import report
from benchmarks.states import STATES, add_arguments, python_path, sources
from measurements.arguments import names, numbers, positive
from measurements.errors import CannotMeasureError
from measurements.processes import Limits, Processes
from measurements.provenance import code_version
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.timing import Timed
from twostagegp import TwoStageGPRegressor

__all__ = ["MEASUREMENT", "Cell", "cells", "measure"]

SECONDS = 600
ROWS = (100, 200, 400, 1000)
DRAWS = 3
#: A table is left out of a number of rows if fewer others are left to score the fit on.
MIN_TEST_ROWS = 40
#: The most training rows of tables whose fits would take longer than those of all others together.
MOST_ROWS: Mapping[str, int] = {"ames": 400}


@dataclass(frozen=True)
class Cell:
    """One fit of the default model: which state of the source, and to which rows.

    Attributes
    ----------
    state : {"before", "now"}
    code : str
        Hash of that state's source.
    table : str
    rows : int
    draw : int
    """

    state: str
    code: str
    table: str
    rows: int
    draw: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the two states, the tables and the draws of a run."""
    add_arguments(parser)
    parser.add_argument("--tables", type=names(TABLES), help="tables; all thirty-five by default")
    parser.add_argument("--rows", type=numbers, default=list(ROWS), help="numbers, as in 100,400")
    parser.add_argument("--draws", type=positive, help=f"number of draws; {DRAWS} by default")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return all fits: draw by draw, all tables with one state, then with the other."""
    codes = {state: code_version(src / "twostagegp") for state, src in sources(given).items()}
    tables = given.tables or (["diabetes"] if given.quick else TABLES)
    known = {table: n_rows(table) for table in tables}
    return [
        Cell(state, codes[state], table, rows, number)
        for rows in given.rows[: 1 if given.quick else None]
        for number in range(given.draws or (1 if given.quick else DRAWS))
        for state in STATES
        for table in tables
        if rows + MIN_TEST_ROWS <= known[table] and rows <= MOST_ROWS.get(table, rows)
    ]


def measure(cell: Cell) -> Record:
    """Fit the default model of the imported state to one draw and score it."""
    if code_version() != cell.code:
        raise CannotMeasureError(
            f"the process imported the source {code_version()}, not {cell.code} ({cell.state}): "
            "was the source changed during the run?"
        )
    rows = draw(cell.table, cell.rows, cell.draw)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _warm_up()
        model = TwoStageGPRegressor(random_state=cell.draw, device="cpu")
        with Timed() as took:
            model.fit(rows.X, rows.y)
        scores = predictive_scores(model, rows.X_test, rows.y_test, rows.y)
    return {
        "n_test": len(rows.y_test),
        "target_sd": float(np.std(rows.y)),
        **scores,
        "fit_cpu_seconds": took.cpu,
        "fit_wall_seconds": took.wall,
        **fit_facts(model),
    }


@cache
def _warm_up() -> None:
    """Import and compile before the clock runs."""
    import sklearn.ensemble  # noqa: F401  a fit to 500 rows or more imports its trees

    X = np.random.default_rng(0).normal(size=(60, 3))
    TwoStageGPRegressor(random_state=0, device="cpu").fit(X, X[:, 0] + np.sin(X[:, 1])).predict(X)


def _limits(cell: Cell, given: argparse.Namespace, limits: Limits) -> Limits:
    return replace(limits, environment={"PYTHONPATH": python_path(sources(given)[cell.state])})


MEASUREMENT = Measurement(
    name="two_states_scores",
    about="Accuracy and CPU seconds of two states of the source.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=report,
    arguments=arguments,
    key=("state", "table", "rows", "draw"),
    current=lambda cell, record: cell.code == record["code"],
    strategy=Processes(
        SECONDS, group=lambda cell: (cell.state, cell.rows, cell.draw), limits=_limits
    ),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
