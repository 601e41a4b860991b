"""Small tables of many columns: are the hyperparameters' own errors held out?

With a hundred rows and one lengthscale per column, hyperparameters that were chosen with a row
included are fitted to that row, and held-out scores that use them are too good. Two ways of
training them again without each fold are compared: *afresh*, the default, and *warm*, a few steps
from the hyperparameters of all rows (the classifier: no steps). Columns are independent normals;
the target is noise alone, or noise plus a linear function of the same variance. Class labels are
random or follow such a function. The scores are those of a thousand new rows.

    python -m benchmarks.many_columns --seeds 5
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import RESULTS
from benchmarks.variants import changed_settings
from measurements.arguments import positive
from measurements.pages import Page, joined, scored
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import markdown_table, mean_se
from measurements.timing import Timed
from twostagegp import TwoStageGPClassifier, TwoStageGPRegressor, TwoStageGPWarning, metrics
from twostagegp.pipeline.settings import Settings

__all__ = ["MEASUREMENT", "Cell", "measure"]

Array = NDArray[np.float64]
#: Rows and columns.
SIZES = ((40, 10), (80, 12), (80, 30), (200, 30), (240, 6))
KINDS = ("noise", "signal")
N_NEW = 1000
#: Settings of the two ways: with hyperparameters of held-out rows trained from the start, or from
#: those of all rows.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "afresh": {},
    "warm": {"mean.afresh_rows": 0, "classes.refit_rows": 0},
}


@dataclass(frozen=True)
class Cell:
    """One fit to one draw."""

    task: str
    way: str
    kind: str
    rows: int
    columns: int
    seed: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--seeds``."""
    parser.add_argument("--seeds", type=positive, help="number of draws; 5 by default")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return both tasks, targets and ways on every size, draw by draw."""
    return [
        Cell(task, way, kind, rows, columns, seed)
        for seed in range(given.seeds or (1 if given.quick else 5))
        for rows, columns in (((20, 3),) if given.quick else SIZES)
        for kind in KINDS
        for task in ("regression", "classification")
        for way in WAYS
    ]


def draw(kind: str, rows: int, columns: int, seed: int) -> tuple[Array, Array]:
    """Draw training rows, then a thousand new ones; the target has noise of the same variance."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows + N_NEW, columns))
    slope = rng.normal(size=columns) / np.sqrt(columns) if kind == "signal" else np.zeros(columns)
    return X, X @ slope + rng.normal(size=len(X))


def measure(cell: Cell) -> Record:
    """Fit one way to one draw and score it on new rows."""
    X, y = draw(cell.kind, cell.rows, cell.columns, cell.seed)
    score = _regression if cell.task == "regression" else _classification
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TwoStageGPWarning)
        return score(X, y, cell.rows, changed_settings(WAYS[cell.way]))


def _regression(X: Array, y: Array, rows: int, settings: Settings) -> Record:
    model = TwoStageGPRegressor(random_state=0, settings=settings)
    with Timed() as took:
        model.fit(X[:rows], y[:rows])
    new, target = X[rows:], y[rows:]
    return {
        "rmse": metrics.rmse(target, model.predict(new)),
        "loss": -float(np.mean(model.predict_logpdf(new, target))),
        "coverage": metrics.coverage(target, interval=model.predict_interval(new)),
        "fit_cpu_seconds": took.cpu,
    }


def _classification(X: Array, y: Array, rows: int, settings: Settings) -> Record:
    labels = (y > 0.0).astype(int)
    model = TwoStageGPClassifier(random_state=0, settings=settings)
    with Timed() as took:
        model.fit(X[:rows], labels[:rows])
    proba = model.predict_proba(X[rows:])
    return {
        "loss": metrics.log_loss(labels[rows:], proba),
        "ece": metrics.ece(labels[rows:], proba),
        "fit_cpu_seconds": took.cpu,
    }


# --- page ----------------------------------------------------------------------------------------


def _table(records: Sequence[Record], task: str, fields: Mapping[str, str]) -> str:
    own = [r for r in scored(records) if r["task"] == task]
    fields = {**fields, "fit_cpu_seconds": "CPU seconds per fit"}
    head = ["target", "rows", "columns", "draws"]
    head += [f"{label}, {way}" for label in fields.values() for way in WAYS]
    rows = []
    for kind in KINDS:
        for size in sorted({(r["rows"], r["columns"]) for r in own}):
            here = [r for r in own if (r["kind"], r["rows"], r["columns"]) == (kind, *size)]
            by_way = {way: [r for r in here if r["way"] == way] for way in WAYS}
            draws = str(max(len(found) for found in by_way.values()))
            values = [mean_se([r[f] for r in by_way[way]]) for f in fields for way in WAYS]
            rows.append([kind, *map(str, size), draws, *values])
    return markdown_table(head, rows)


def _regression_section(records: list[Record]) -> str:
    return joined(
        "Mean ± standard error over the draws. *Afresh* is the default. The RMSE of the best "
        "possible prediction is 1, its NLPD 1.419.",
        _table(records, "regression", {"rmse": "RMSE", "loss": "NLPD", "coverage": "95 %"}),
    )


def _classification_section(records: list[Record]) -> str:
    return joined(
        "Predicting both classes with probability 1/2 costs 0.693 nats.",
        _table(records, "classification", {"loss": "log loss", "ece": "ECE"}),
    )


MEASUREMENT = Measurement(
    name="many_columns",
    about="Small tables of many columns.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page(
        "Small tables of many columns",
        {
            "Regression on small tables of many columns": _regression_section,
            "Classification on small tables of many columns": _classification_section,
        },
        failed_by=("task", "way", "kind", "rows", "columns", "seed"),
    ),
    arguments=arguments,
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
