"""Few training rows: how honest and how accurate are default fits to 50, 100, … rows?

Thirty-five public tables (:mod:`benchmarks.many_tables`), data frames with categories and gaps
among them, and five generated ones whose law is known (:mod:`benchmarks.known_laws`). Each draw
has random training rows and at most a thousand other rows, on which every model is scored: RMSE,
CRPS, NLPD, interval score and width in units of the standard deviation of the table's target, and
the coverage of five intervals. Default settings, one thread. The other libraries
(:mod:`benchmarks.small_models`) get the same rows. When this package changes, ours are measured
again, and their figures stay.

    python -m benchmarks.small_tables --python .venv-peers/bin/python
    python -m benchmarks.small_tables --models ours_auto --draws 3
    python -m benchmarks.small_tables --models ours_tabpfn --tabpfn-weights FILE --device cuda
    python -m benchmarks.small_tables --table-only

The data folder is named by ``TWOSTAGEGP_DATA``. The weights of TabPFN v2 are those of its regressor
(``tabpfn-v2-regressor*.ckpt``); without the file it and our stack with it are left out.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks import RESULTS
from benchmarks.known_laws import LAWS
from benchmarks.many_tables import TABLES, draw, load, n_rows
from benchmarks.peers.run import DIVERGED, has_diverged
from benchmarks.peers.tabpfn_v2 import DEVICE_VARIABLE, WEIGHTS_VARIABLE
from benchmarks.scores import quantile_scores
from benchmarks.small_models import MODELS, OURS, OURS_TABPFN, TABPFN
from benchmarks.small_pages import picture, report
from measurements.arguments import names, numbers, positive
from measurements.processes import Limits, Processes
from measurements.provenance import code_version
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.timing import Timed
from twostagegp import metrics

__all__ = ["MEASUREMENT", "Cell", "cells", "measure"]

SECONDS = 300
SIZES = (50, 100, 200, 400, 1000)
DRAWS = 5
TEST_ROWS = 1000
#: A table is left out of a size if fewer other rows are left: birthwt has 189 rows in all.
MIN_TEST_ROWS = 120
ALL_TABLES = (*TABLES, *LAWS)
NEED_WEIGHTS = (TABPFN, OURS_TABPFN)
#: A quick run: tables that need no data folder, and a peer that is always installed.
QUICK_TABLES, QUICK_SIZES, QUICK_MODELS = (
    ("friedman", "skewed", "diabetes"),
    (50, 100),
    (OURS, "sklearn_gpr"),
)


@dataclass(frozen=True)
class Cell:
    """One fit: a model, a table, and which of its random training rows."""

    model: str
    table: str
    rows: int
    draw: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tables, sizes, draws and models of a run."""
    add = parser.add_argument
    add("--tables", type=names(ALL_TABLES), help="tables; all by default")
    add("--sizes", type=numbers, help="training rows, as in 50,100")
    add("--draws", type=positive, help=f"number of draws; {DRAWS} by default")
    add("--models", type=names(MODELS), help=", ".join(MODELS))
    add("--tabpfn-weights", type=Path, help="file of the weights of TabPFN v2's regressor")
    add("--device", default="cpu", help="device of TabPFN, as cuda")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return all fits: draw by draw and size by size, model after model."""
    tables = given.tables or (QUICK_TABLES if given.quick else ALL_TABLES)
    sizes = given.sizes or (QUICK_SIZES if given.quick else SIZES)
    known = {table: n_rows(table) for table in tables}
    return [
        Cell(model, table, rows, number)
        for number in range(given.draws or (1 if given.quick else DRAWS))
        for rows in sizes
        for model in _models(given)
        if rows <= (MODELS[model].most_rows or rows)
        for table in tables
        if rows + MIN_TEST_ROWS <= known[table]
    ]


def _models(given: argparse.Namespace) -> list[str]:
    """Return the models of a run, without TabPFN if its weights are missing."""
    chosen = given.models or list(QUICK_MODELS if given.quick else MODELS)
    weights = given.tabpfn_weights
    if set(chosen) & set(NEED_WEIGHTS) and (weights is None or not weights.is_file()):
        why = "--tabpfn-weights FILE is not given" if weights is None else f"no file {weights}"
        print(f"TabPFN is left out: {why}", file=sys.stderr)
        return [model for model in chosen if model not in NEED_WEIGHTS]
    return list(chosen)


def measure(cell: Cell) -> Record:
    """Fit one model to one draw and score it."""
    known = MODELS[cell.model]
    fit, rows = known.load(), draw(cell.table, cell.rows, cell.draw, TEST_ROWS)
    scale = float(np.std(load(cell.table)[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _warm_up(cell.model)
        with Timed() as fitting:
            model = fit(rows.X, rows.y, cell.draw)
        with Timed() as predicting:
            found = model.predict(rows.X_test)
        record: Record = {
            "package": known.model.version(),
            "n_test": len(rows.y_test),
            "target_sd": scale,
            "fit_cpu_seconds": fitting.cpu,
            "fit_wall_seconds": fitting.wall,
            "predict_cpu_seconds": predicting.cpu,
            **model.facts(),
        }
        usable = np.isfinite(found.mean)
        if model.has_std:
            usable &= np.isfinite(found.std) & (found.std > 0.0)
        if not usable.all():
            bad = int(np.count_nonzero(~usable))
            return record | {"error": f"{DIVERGED}: {bad} of {len(usable)} predictions"}
        record |= quantile_scores(
            rows.y_test, found.mean, lambda levels: model.quantiles(rows.X_test, levels), scale
        )
        if not model.has_std:
            return record
        nlpd = metrics.nlpd(rows.y_test, found.mean, found.std) - math.log(scale)
        own = model.own_scores(rows.X_test, rows.y_test).get("nlpd_own")
        if own is not None:  # in units of the training rows' standard deviation
            own += math.log(float(np.std(rows.y)) / scale)
        return record | {"nlpd": nlpd, "nlpd_own": nlpd if own is None else own}


@cache
def _warm_up(model: str) -> None:
    """Import and compile before the clock runs."""
    import sklearn.ensemble  # noqa: F401  our fits to 500 rows or more import its trees

    X = np.random.default_rng(0).normal(size=(60, 3))
    MODELS[model].load()(X, X[:, 0] + np.sin(X[:, 1]), 0).predict(X)


def _limits(cell: Cell, given: argparse.Namespace, limits: Limits) -> Limits:
    if cell.model not in NEED_WEIGHTS:
        return limits
    weights = str(given.tabpfn_weights.resolve())
    return replace(limits, environment={WEIGHTS_VARIABLE: weights, DEVICE_VARIABLE: given.device})


MEASUREMENT = Measurement(
    name="small_tables",
    about="Few training rows: coverage and accuracy of default fits.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=report,
    figure=picture,
    arguments=arguments,
    current=lambda cell, record: (
        cell.model not in (OURS, OURS_TABPFN) or record.get("code") == code_version()
    ),
    strategy=Processes(
        SECONDS,
        group=lambda cell: (cell.draw, cell.rows, cell.model),
        other_python=lambda cell: cell.model != OURS,
        settled=has_diverged,
        limits=_limits,
    ),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
