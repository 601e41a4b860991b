"""What ``TwoStageGPRegressor.quick()`` saves, and what it costs in accuracy.

    python -m benchmarks.quick_preset --draws 2

The default and the preset are fitted, on one thread, to the same random rows of the public tables
of :mod:`benchmarks.many_tables` and scored on the same other rows, at most a thousand.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import RESULTS
from benchmarks.many_tables import TABLES, draw, n_rows
from benchmarks.scores import predictive_scores
from benchmarks.state_tables import levels, pairs, ratios
from benchmarks.two_states_scores import MIN_TEST_ROWS, MOST_ROWS
from measurements.arguments import names, numbers, positive
from measurements.pages import Page, joined
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.timing import Timed
from twostagegp import TwoStageGPRegressor

__all__ = ["MEASUREMENT", "Cell", "cells", "measure"]

ROWS = (100, 400, 1000)
DRAWS = 1
#: Estimators by the name of the preset, and their place in a comparison of two states.
PRESETS: Mapping[str, Callable[..., Any]] = {
    "default": TwoStageGPRegressor,
    "quick": TwoStageGPRegressor.quick,
}
STATE = {"default": "before", "quick": "now"}


@dataclass(frozen=True)
class Cell:
    """One fit of one preset to one draw of a table."""

    preset: str
    table: str
    rows: int
    draw: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tables, the numbers of rows and the draws of a run."""
    parser.add_argument("--tables", type=names(TABLES), help="tables; all thirty-five by default")
    parser.add_argument("--rows", type=numbers, default=list(ROWS), help="numbers, as in 100,400")
    parser.add_argument("--draws", type=positive, help=f"number of draws; {DRAWS} by default")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return both presets on every draw of every table."""
    tables = given.tables or (["diabetes"] if given.quick else TABLES)
    known = {table: n_rows(table) for table in tables}
    return [
        Cell(preset, table, rows, number)
        for rows in given.rows[: 1 if given.quick else None]
        for number in range(given.draws or DRAWS)
        for table in tables
        for preset in PRESETS
        if rows + MIN_TEST_ROWS <= known[table] and rows <= MOST_ROWS.get(table, rows)
    ]


def measure(cell: Cell) -> Record:
    """Fit one preset to one draw and score it."""
    rows = draw(cell.table, cell.rows, cell.draw)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = PRESETS[cell.preset](random_state=cell.draw, device="cpu")
        with Timed() as took:
            model.fit(rows.X, rows.y)
        scores = predictive_scores(model, rows.X_test, rows.y_test, rows.y)
    return {"target_sd": float(rows.y.std()), **scores, "fit_cpu_seconds": took.cpu}


def _section(records: list[Record]) -> str:
    found = pairs({**record, "state": STATE[record["preset"]]} for record in records)
    return joined(
        "Geometric means of quick / default, and mean differences of the NLPD in nats (quick − "
        "default): of the Gaussian with the model's mean and standard deviation, and of the "
        "model's own density. ± is the standard error of the mean over tables.",
        ratios(found),
        "Default → quick: RMSE and CRPS in units of the target's standard deviation, and the "
        "share of outcomes inside the 80, 95 and 99 % intervals.",
        levels(found),
    )


MEASUREMENT = Measurement(
    name="quick_preset",
    about="The quick preset against the default.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page(
        "The quick preset",
        {"Quick against default": _section},
        failed_by=("preset", "table", "rows", "draw"),
    ),
    arguments=arguments,
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
