"""Do 95 % intervals hold in every level of a column, with and without ``calibrate_by``?

    python -m benchmarks.groups --draws 3

The default estimator is fitted, on one thread, to random rows of public tables with a column of
categories (:mod:`benchmarks.many_tables`), once with the common calibration and once calibrated by
that column, and scored on the same other rows, at most a thousand. ``generated`` is a table whose
noise differs between six levels by a factor of up to ten. Levels with fewer than twenty test rows
are not scored.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks import RESULTS
from benchmarks.many_tables import Draw, draw, n_rows
from measurements.arguments import names, numbers, positive
from measurements.pages import Page, joined, scored
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import markdown_table
from measurements.timing import Timed
from twostagegp import TwoStageGPRegressor, metrics

__all__ = ["COLUMNS", "GENERATED", "MEASUREMENT", "Cell", "cells", "generate", "measure"]

Array = NDArray[np.float64]

GENERATED = "generated"
#: Tables, each with a column of categories.
COLUMNS: Mapping[str, str] = {
    GENERATED: "level",
    "affairs": "children",
    "carseats": "ShelveLoc",
    "caschools": "grades",
    "chickweight": "Diet",
    "computers": "cd",
    "doctorvisits": "private",
    "evals": "rank",
    "hitters": "League",
    "houseprices": "prefer",
    "mpg": "drv",
    "psid1976": "college",
    "salaries": "rank",
    "wage": "education",
}
ROWS = (150, 500)
DRAWS = 3
LEVEL = 0.95
#: Fewest test rows of a table, and of a level that is scored.
MIN_TEST_ROWS, MIN_LEVEL_ROWS = 60, 20
#: Levels of the generated table: their shares of the rows and the standard deviation of the noise.
SHARES = (0.35, 0.25, 0.2, 0.1, 0.07, 0.03)
NOISE = (0.1, 0.3, 0.1, 1.0, 0.3, 1.0)
#: Draws of the counts of calibrated intervals.
SIMULATIONS = 2000


@dataclass(frozen=True)
class Cell:
    """One fit to one draw of a table, calibrated by the column of categories or not."""

    by_level: bool
    table: str
    rows: int
    draw: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tables, the numbers of rows and the draws of a run."""
    parser.add_argument("--tables", type=names(COLUMNS), help="tables; all by default")
    parser.add_argument("--rows", type=numbers, default=list(ROWS), help="numbers, as in 150,500")
    parser.add_argument("--draws", type=positive, help=f"number of draws; {DRAWS} by default")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return both calibrations on every draw of every table."""
    tables = given.tables or ([GENERATED] if given.quick else COLUMNS)
    known = {table: 10**9 if table == GENERATED else n_rows(table) for table in tables}
    return [
        Cell(by_level, table, rows, number)
        for number in range(given.draws or (1 if given.quick else DRAWS))
        for rows in given.rows[: 1 if given.quick else None]
        for table in tables
        for by_level in (False, True)
        if rows + MIN_TEST_ROWS <= known[table]
    ]


def generate(rows: int, number: int, test_rows: int = 1000) -> Draw:
    """Return a draw of a table with three columns of numbers and one of levels."""
    rng = np.random.default_rng([number, rows])
    n = rows + test_rows
    level = rng.choice(len(SHARES), p=SHARES, size=n)
    X = pd.DataFrame(rng.uniform(size=(n, 3)), columns=["a", "b", "c"])
    y = np.sin(6.0 * X["a"]) + 2.0 * X["b"] * X["c"] + np.array(NOISE)[level] * rng.normal(size=n)
    X["level"] = np.array([f"level {k + 1}" for k in range(len(SHARES))])[level]
    target = y.to_numpy()
    return Draw(X[:rows], target[:rows], X[rows:].reset_index(drop=True), target[rows:])


def measure(cell: Cell) -> Record:
    """Fit the default to one draw and score its intervals level by level."""
    is_made = cell.table == GENERATED
    rows = (generate if is_made else _drawn(cell.table))(cell.rows, cell.draw)
    column = COLUMNS[cell.table]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = TwoStageGPRegressor(
            calibrate_by=column if cell.by_level else None,
            random_state=cell.draw,
            device="cpu",
            n_jobs=1,
        )
        with Timed() as took:
            model.fit(rows.X, rows.y)
        interval = model.predict_interval(rows.X_test, LEVEL)
        density = model.predict_logpdf(rows.X_test, rows.y_test)
    sd = float(rows.y.std())
    return {
        **level_scores(rows.y_test, interval, rows.X_test[column]),
        "coverage": metrics.coverage(rows.y_test, interval=interval),
        "width": metrics.interval_width(rows.y_test, interval=interval) / sd,
        "nlpd_own": -float(density.mean()) - np.log(sd).item(),
        "fit_cpu_seconds": took.cpu,
    }


def _drawn(table: str) -> Any:
    def of(rows: int, number: int) -> Draw:
        return draw(table, rows, number)

    return of


def level_scores(y: Array, interval: Array, column: Any) -> dict[str, Any]:
    """Return the worst coverage of a level, the mean deviation, and both for calibrated intervals.

    Calibrated intervals contain a binomial number of outcomes in each level.
    """
    labels = pd.Series(column).astype(str)
    enough = (labels.map(labels.value_counts()) >= MIN_LEVEL_ROWS).to_numpy()
    found = metrics.coverage_by_group(
        y[enough], interval[enough], groups=labels[enough], level=LEVEL
    )
    chance = np.random.default_rng(0).binomial(
        found.rows, LEVEL, size=(SIMULATIONS, len(found.rows))
    )
    chance = chance / found.rows
    return {
        "levels": len(found.rows),
        "outside": int(found.outside.sum()),
        "worst": found.worst,
        "deviation": float(np.abs(found.coverage - LEVEL).mean()),
        "worst_by_chance": float(chance.min(1).mean()),
        "deviation_by_chance": float(np.abs(chance - LEVEL).mean()),
    }


def _by_table(records: list[Record]) -> str:
    """Return one line per table and number of rows, over the draws that both fits have."""
    groups: dict[tuple[str, int], list[tuple[Record, Record]]] = {}
    known = {_place(record, record["by_level"]): record for record in scored(records)}
    for (table, rows, number, by_level), record in known.items():
        both = known.get((table, rows, number, True))
        if not by_level and both is not None:
            groups.setdefault((table, rows), []).append((record, both))
    lines = [_line(f"{table}, {rows} rows", pairs) for (table, rows), pairs in groups.items()]
    real = [pairs for (table, _), pairs in groups.items() if table != GENERATED]
    if real:
        lines.append(_line("mean of the public tables", [pair for each in real for pair in each]))
    header = ("table", "draws", "levels", "worst level", "chance", "deviation", "chance",
              "outside", "width", "NLPD")  # fmt: skip
    return joined(
        "Common calibration → by level, for 95 % intervals, percent. Worst level: the smallest "
        "coverage of a level. Deviation: mean over the levels of the absolute difference between "
        "coverage and 95 %. Chance: the expected value of the figure before it for intervals that "
        "hold in every level, as test rows are few. Outside: share of the levels whose coverage is "
        "outside of the band that chance allows (5 % of the tables may have one). Width: ratio of "
        "the mean widths. NLPD: difference of the negative log densities, by level − common.",
        markdown_table(header, lines),
    )


def _place(record: Record, by_level: bool) -> tuple[str, int, int, bool]:
    return record["table"], record["rows"], record["draw"], by_level


def _line(name: str, pairs: Sequence[tuple[Record, Record]]) -> list[str]:
    def means(field: str) -> list[float]:
        return [fmean(pair[k][field] for pair in pairs) for k in (0, 1)]

    def change(field: str) -> str:
        before, after = (100.0 * value for value in means(field))
        return f"{before:.1f} → {after:.1f}"

    outside = [
        100.0 * sum(pair[k]["outside"] for pair in pairs) / sum(pair[k]["levels"] for pair in pairs)
        for k in (0, 1)
    ]
    ratio = np.exp(fmean(np.log(pair[1]["width"] / pair[0]["width"]) for pair in pairs))
    gain = fmean(pair[1]["nlpd_own"] - pair[0]["nlpd_own"] for pair in pairs)
    return [
        name,
        str(len(pairs)),
        f"{means('levels')[0]:.1f}",
        change("worst"),
        f"{100.0 * means('worst_by_chance')[0]:.1f}",
        change("deviation"),
        f"{100.0 * means('deviation_by_chance')[0]:.1f}",
        f"{outside[0]:.0f} → {outside[1]:.0f}",
        f"{ratio:.3f}",
        f"{gain:+.3f}",
    ]


MEASUREMENT = Measurement(
    name="groups",
    about="Intervals that hold in every level of a column.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page(
        "Intervals by the levels of a column",
        {"Coverage by level": _by_table},
        failed_by=("by_level", "table", "rows", "draw"),
    ),
    arguments=arguments,
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
