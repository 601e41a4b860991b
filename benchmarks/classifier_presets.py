"""Stages and presets of ``TwoStageGPClassifier``: what each costs, and what it gains.

    python -m benchmarks.classifier_presets --rows 200,600 --draws 2

Two stages, which are the default, one stage, the choice between both by held-out scores
(``stages="auto"``) and the quick preset are fitted, on one thread, to the same random rows of
public tables (:mod:`benchmarks.class_tables`) and scored on the same other rows, at most a
thousand. The data folder is named by ``TWOSTAGEGP_DATA``; ``--tables iris`` needs none.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks import RESULTS
from benchmarks.class_tables import TABLES, draw
from benchmarks.quick_preset import Cell
from measurements.arguments import names, numbers, positive
from measurements.pages import Page, joined, scored, standard_error
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import markdown_table
from measurements.timing import Timed
from twostagegp import TwoStageGPClassifier
from twostagegp.metrics.classification import ece, log_loss

__all__ = ["MEASUREMENT", "cells", "measure"]

ROWS, DRAWS = (200, 600), 2
PRESETS: Mapping[str, Callable[..., Any]] = {
    "two stages": TwoStageGPClassifier,
    "auto": partial(TwoStageGPClassifier, stages="auto"),
    "one stage": partial(TwoStageGPClassifier, stages=1),
    "quick": TwoStageGPClassifier.quick,
}
REFERENCE = "two stages"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tables, the numbers of rows and the draws of a run."""
    parser.add_argument("--tables", type=names(TABLES), help="tables; all by default")
    parser.add_argument("--rows", type=numbers, default=list(ROWS), help="numbers, as in 200,600")
    parser.add_argument("--draws", type=positive, default=DRAWS)


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return all presets on every draw of every table."""
    quick = given.quick
    return [
        Cell(preset, table, rows, number)
        for rows in given.rows[: 1 if quick else None]
        for number in range(1 if quick else given.draws)
        for table in given.tables or (["iris"] if quick else TABLES)
        for preset in PRESETS
    ]


def measure(cell: Cell) -> Record:
    """Fit one preset to one draw and score it."""
    rows = draw(cell.table, cell.rows, cell.draw)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = PRESETS[cell.preset](random_state=cell.draw, device="cpu", n_jobs=1)
        with Timed() as took:
            model.fit(rows.X, rows.codes)
        P = model.predict_proba(rows.X_test)
    # A class without a training row has probability zero.
    known = np.isin(rows.codes_test, model.classes_)
    column = np.searchsorted(model.classes_, rows.codes_test[known])
    return {
        "log_loss": log_loss(column, P[known]),
        "accuracy": float(np.mean(P[known].argmax(1) == column)),
        "ece": ece(column, P[known]),
        "stages": 1 if model.mean_ is None else 2,
        "fit_cpu_seconds": took.cpu,
    }


def _section(records: list[Record]) -> str:
    together: dict[tuple[int, str, int], dict[str, Record]] = defaultdict(dict)
    for r in scored(records):
        together[r["rows"], r["table"], r["draw"]][r["preset"]] = r
    complete = [found for _, found in sorted(together.items()) if len(found) == len(PRESETS)]
    rows = []
    for size in sorted({found[REFERENCE]["rows"] for found in complete}):
        here = [found for found in complete if found[REFERENCE]["rows"] == size]
        rows += [_row(size, preset, here) for preset in PRESETS]
    header = ["rows", "fits", "model", "log loss", "difference", "accuracy", "calibration error"]
    return joined(
        "Means over tables and draws; *difference* is the log loss minus that of two stages, in "
        "nats, ± the standard error of the mean over tables; *CPU seconds* is the geometric mean "
        "of the ratio to two stages; *two stages* the share of fits that have two.",
        markdown_table([*header, "CPU seconds", "two stages"], rows),
    )


def _row(size: int, preset: str, here: list[dict[str, Record]]) -> list[str]:
    by_table: dict[str, list[float]] = defaultdict(list)
    for found in here:
        difference = found[preset]["log_loss"] - found[REFERENCE]["log_loss"]
        by_table[found[preset]["table"]].append(difference)
    differences = [fmean(values) for values in by_table.values()]

    def mean(field: str) -> float:
        return fmean(found[preset][field] for found in here)

    seconds = [
        math.log(found[preset]["fit_cpu_seconds"] / found[REFERENCE]["fit_cpu_seconds"])
        for found in here
    ]
    return [
        f"{size:,}",
        str(len(here)),
        preset,
        f"{mean('log_loss'):.4f}",
        f"{fmean(differences):+.4f} ± {standard_error(differences):.4f}",
        f"{mean('accuracy'):.4f}",
        f"{mean('ece'):.4f}",
        f"{math.exp(fmean(seconds)):.2f}",
        f"{fmean(found[preset]['stages'] == 2 for found in here):.0%}",
    ]


MEASUREMENT = Measurement(
    name="classifier_presets",
    about="Stages and presets of the classifier.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page(
        "Stages and presets of the classifier",
        {"Log loss and time": _section},
        failed_by=("preset", "table", "rows", "draw"),
    ),
    arguments=arguments,
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
