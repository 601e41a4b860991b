"""What a shift from winter to summer does to intervals, ours and those of boosted trees.

Household power: models are fitted to four weeks of winter, and tested on rows left out of them and
on a July three years later. ``--python`` names the interpreter of the peers' packages, as in
:mod:`benchmarks.uci_large`.

    python -m benchmarks.calibration_shift --python .venv-peers/bin/python
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import RESULTS
from benchmarks.calibration import TIME_LIMIT
from benchmarks.large_sets import fold_rows, load, n_folds
from benchmarks.peers import MODELS, PEERS
from benchmarks.peers.base import Array, Fitted
from measurements.arguments import names, numbers
from measurements.pages import NO_RECORDS, failures, joined, mean_or_nan, scored
from measurements.processes import Processes
from measurements.provenance import code_version, provenance
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import figure, markdown_table
from twostagegp import metrics

__all__ = ["COMPARED", "MEASUREMENT", "Cell", "measure", "report"]

WINTER, JULY = "house_electric_part", "house_electric_july2010"
COMPARED = ("ours", "lightgbm", "catboost_uncertainty")


@dataclass(frozen=True)
class Cell:
    """One fit: which model, and which tenth of the winter is left out; also the seed."""

    model: str
    fold: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the models and folds of a run."""
    parser.add_argument("--models", type=names(COMPARED), help="all by default")
    parser.add_argument("--folds", type=numbers, default=[0], help="numbers, as in 0,1 or 0-4")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return all fits; folds that the table does not have are left out."""
    load(JULY)  # a missing table is reported once, not for every fit
    has = n_folds(load(WINTER))
    models = given.models or (["ours"] if given.quick else COMPARED)
    return [Cell(model, fold) for model in models for fold in given.folds if fold < has]


def measure(cell: Cell) -> Record:
    """Fit a model to winter rows; score it on those left out and on July 2010."""
    winter, july, known = load(WINTER), load(JULY), MODELS[cell.model]
    train, test = fold_rows(winter, cell.fold)
    y = winter.y[train]
    fitted = known.load()(winter.X[train], y, cell.fold)
    return {
        "n_train": len(train),
        "n_winter": len(test),
        "n_july": len(july.y),
        "version": known.version(),
        "code": code_version() if known.ours else None,
        "winter": _interval_scores(fitted, winter.X[test], winter.y[test], y),
        "july": _interval_scores(fitted, july.X, july.y, y),
    }


def _interval_scores(model: Fitted, X: Array, y: Array, y_train: Array) -> dict[str, float]:
    """Return RMSE, and coverage and mean width of the 95 % interval, the target standardised."""
    centre, scale = float(np.mean(y_train)), float(np.std(y_train))
    found, own = model.predict(X), model.interval(X)
    target, mean, std = (y - centre) / scale, (found.mean - centre) / scale, found.std / scale
    arguments: dict[str, Any] = {"mean": mean, "std": std}
    if own is not None:
        arguments = {"interval": (own - centre) / scale}
    return {
        "rmse": metrics.rmse(target, mean),
        "coverage_95": metrics.coverage(target, **arguments),
        "width_95": metrics.interval_width(target, **arguments),
    }


_TEXT = (
    "Household power, fitted to four weeks of winter, tested on a tenth of their minutes that was "
    "left out and on July 2010, whose day of the year no model has seen. Coverage and mean width "
    "are of the model's own 95 % interval, the target standardised by the training rows."
)


def report(records: list[Record]) -> str:
    """Return the Markdown page."""
    usable = scored(records)
    parts = ["# Calibration: a shift"]
    if ours := [r for r in usable if r.get("code")]:
        parts.append(provenance(ours))
    if usable:
        parts += ["## A shift: winter to July", _TEXT, _table(usable)]
    else:
        parts.append(NO_RECORDS)
    return joined(*parts, *failures(records, ("model", "fold")))


def _table(records: list[Record]) -> str:
    fields = {"RMSE": "rmse", "95 % coverage": "coverage_95", "width": "width_95"}
    header = ["model"]
    for title in fields:
        header += [f"{title} winter", "July"]
    rows = []
    for model in COMPARED:
        own = [r for r in records if r["model"] == model]
        row = [model]
        for field in fields.values():
            row += [
                figure(mean_or_nan([r[season][field] for r in own]))
                for season in ("winter", "july")
            ]
        if own:
            rows.append(row)
    return markdown_table(header, rows)


MEASUREMENT = Measurement(
    name="calibration_shift",
    about="What a shift from winter to summer does to intervals.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=report,
    arguments=arguments,
    strategy=Processes(TIME_LIMIT, other_python=lambda cell: cell.model in PEERS),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
