"""Small tables of many columns: are the hyperparameters' own errors held out?

With a hundred rows and a lengthscale a column, hyperparameters that were chosen with a row in sight
know it, and held-out scores that use them are too good. Two ways of training them again without
each fold are compared: *afresh*, the default, and *warm*, a few steps from the hyperparameters of
the whole (for the classifier: not at all, as it was before). Columns are independent normals; the
target is noise alone, or noise and a linear function of as much variance. For classes the labels
are random or follow such a function. The scores are those of a thousand new rows.

    python -m benchmarks.many_columns --seeds 5
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import twostagegp
from benchmarks import RESULTS
from benchmarks.variants import changed_settings
from measurements.arguments import positive
from measurements.provenance import code_version, provenance
from measurements.store import JsonLines, Record, write_whole
from measurements.tables import markdown_table, mean_se
from measurements.timing import Timed
from twostagegp import TwoStageGPClassifier, TwoStageGPRegressor, metrics
from twostagegp.pipeline.settings import Settings

__all__ = ["main", "measure", "report"]

Array = NDArray[np.float64]
SIZES = ((40, 10), (80, 12), (80, 30), (200, 30), (240, 6))
KINDS = ("noise", "signal")
N_NEW = 1000
#: Settings of the two ways: with hyperparameters of held-out rows trained from the start, or from
#: those of all rows.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "afresh": {},
    "warm": {"mean.afresh_rows": 0, "classes.refit_rows": 0},
}
KEY = ("task", "way", "kind", "rows", "columns", "seed")


def draw(kind: str, rows: int, columns: int, seed: int) -> tuple[Array, Array]:
    """Training rows, then a thousand new ones, and a function with noise of equal variance."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows + N_NEW, columns))
    slope = rng.normal(size=columns) / np.sqrt(columns) if kind == "signal" else np.zeros(columns)
    return X, X @ slope + rng.normal(size=len(X))


def measure(task: str, way: str, kind: str, rows: int, columns: int, seed: int) -> Record:
    """Scores of one fit on new rows."""
    X, y = draw(kind, rows, columns, seed)
    record: Record = dict(zip(KEY, (task, way, kind, rows, columns, seed), strict=True))
    record |= {"version": twostagegp.__version__, "code": code_version()}
    settings = changed_settings(WAYS[way])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", twostagegp.TwoStageGPWarning)
        score = _regression if task == "regression" else _classification
        return record | score(X, y, rows, settings)


def _regression(X: Array, y: Array, rows: int, settings: Settings) -> dict[str, float]:
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


def _classification(X: Array, y: Array, rows: int, settings: Settings) -> dict[str, float]:
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


def report(records: Sequence[Record]) -> str:
    """The page in Markdown."""
    head = "# Small tables of many columns\n"
    if not records:
        return head + "\nNo fits yet.\n"
    return "\n".join(
        [
            head,
            provenance(list(records)),
            "",
            "## Regression on small tables of many columns",
            "",
            "Mean ± standard error over the draws. *Afresh* is the default. The error of the best "
            "prediction is 1, its NLPD 1.419.",
            "",
            _table(records, "regression", {"rmse": "RMSE", "loss": "NLPD", "coverage": "95 %"}),
            "## Classification on small tables of many columns",
            "",
            "Random labels cost 0.693 nats.",
            "",
            _table(records, "classification", {"loss": "log loss", "ece": "ECE"}),
        ]
    )


def _table(records: Sequence[Record], task: str, fields: Mapping[str, str]) -> str:
    fields = {**fields, "fit_cpu_seconds": "CPU s"}
    head = ["target", "rows", "columns", "draws"]
    head += [f"{label}, {way}" for label in fields.values() for way in WAYS]
    rows = []
    for kind in KINDS:
        for n, d in SIZES:
            cells = {way: _of(records, task, way, kind, n, d) for way in WAYS}
            if not any(cells.values()):
                continue
            draws = str(max(len(found) for found in cells.values()))
            values = [mean_se([r[f] for r in cells[way]]) for f in fields for way in WAYS]
            rows.append([kind, str(n), str(d), draws, *values])
    return markdown_table(head, rows)


def _of(records: Sequence[Record], *place: Any) -> list[Record]:
    return [r for r in records if tuple(r[key] for key in KEY[:-1]) == place]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, then write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_columns", description=__doc__)
    parser.add_argument("--seeds", type=positive, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table-only", action="store_true", help="no fits, only the page")
    given = parser.parse_args(arguments)
    store = JsonLines(given.results / "many_columns.jsonl", key=KEY)
    wanted = [
        (task, way, kind, n, d, seed)
        for seed in range(0 if given.table_only else given.seeds)
        for n, d in SIZES
        for kind in KINDS
        for task in ("regression", "classification")
        for way in WAYS
    ]
    done = store.done()
    for place in wanted:
        if place not in done:
            record = measure(*place)
            store.append(record)
            print(*place, f"loss {record['loss']:.3f}", flush=True)
    page = report(list(store.records().values()))
    write_whole(given.results / "many_columns.md", page)
    print(page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
