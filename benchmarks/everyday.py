"""Tables of everyday sizes: what fits, predictions and single rows cost with default settings.

a. *Fits*: fit and predict at 100 to 100,000 rows, against scikit-learn's GPR, GPyTorch, GPBoost,
   LightGBM with conformal intervals and CatBoost, on one thread and on two, with the scores of the
   predictions. A process is restricted to as many cores as it has threads. An exact Gaussian
   process of another library is not run where it would take hours.
b. *Cores*: our default alone, with its default number of threads, in a process restricted to 1, 2,
   4, 8 and 16 cores, as many as the machine has; once on an idle machine, and once with an endless
   loop of another process on each of these cores.
c. *Latency*: the time of a call that predicts one row, idle and with busy neighbours on all cores.

Every cell has a process of its own with a time limit; a small fit comes before the one that is
timed, so that modules are imported and compiled functions loaded. Fits to a table in the data
folder that ``TWOSTAGEGP_DATA`` names, and to a generated one, which needs no data.

    python -m benchmarks.everyday --python .venv-peers/bin/python
    python -m benchmarks.everyday --rows 100,350 --sets generated --models ours_auto,sklearn_gpr
    python -m benchmarks.everyday --parts cores --redo
    python -m benchmarks.everyday --table-only

On a machine with more cores the same command adds the table of cores: what does not depend on the
number of cores is stored already.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from benchmarks import RESULTS
from benchmarks.everyday_tables import MOST_ROWS, NAME, report
from benchmarks.many_tables import GENERATED, draw, n_rows
from benchmarks.peers import MODELS, PEERS
from benchmarks.peers.base import Array, Fitted
from benchmarks.peers.run import has_diverged
from benchmarks.peers.run import measure as fit_and_score
from measurements.arguments import names, numbers, positive
from measurements.cores import CAN_RESTRICT, busy_neighbors, cores_in_use, usable
from measurements.processes import Limits, Processes
from measurements.runner import Measurement, run
from measurements.store import Record
from twostagegp.datasets import FOLDER_VARIABLE

__all__ = ["MEASUREMENT", "Cell", "cells", "latencies", "measure"]

SECONDS = 1200
PARTS = ("fits", "cores", "latency")
ROWS = (100, 350, 1_000, 5_000, 20_000, 100_000)
#: Public tables with 9,000, 46,000 and 274,000 rows; each is used up to the size that it has.
SETS = ("kin8nm", "protein", "flights", GENERATED)
COMPARED = (NAME, "sklearn_gpr", "gpytorch_matern", "gpboost", "lightgbm", "catboost_uncertainty")
TEST_ROWS = 1000
#: Draws of a small table differ much, and their fits are short.
DRAWS, SMALL_ROWS, SMALL_DRAWS = 1, 1_000, 3
THREADS = (1, 2)

CORES = (1, 2, 4, 8, 16)
CORES_ROWS = (350, 1_000, 5_000, 20_000)

LATENCY_MODELS = (NAME, "sklearn_gpr", "lightgbm")
#: Our default is exact at the first number of rows and uses neighbours at the second.
LATENCY_ROWS = (1_000, 20_000)
CALLS, CALLS_BEFORE = 500, 20


@dataclass(frozen=True)
class Cell:
    """One process.

    Attributes
    ----------
    part : {"fits", "cores", "latency"}
    model, set : str
    rows, draw : int
    cores : int or None
        Cores that the process may use; of a fit also its threads. None: all.
    busy : bool
        Whether each of these cores has a neighbour that keeps it busy; of latencies both are
        measured.
    machine_cores : int or None
        Part *cores*: the cores of the machine, as ratios between machines mean nothing.
    """

    part: str
    model: str
    set: str
    rows: int
    draw: int
    cores: int | None = None
    busy: bool = False
    machine_cores: int | None = None


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the parts, sizes, tables, models, threads and draws of a run."""
    add = parser.add_argument
    add("--parts", type=names(PARTS), default=list(PARTS), help=", ".join(PARTS))
    add("--rows", type=numbers, help="training rows, as in 100,350")
    add("--sets", type=names(SETS), help="tables; only the generated one without a data folder")
    add("--models", type=names(MODELS), default=list(COMPARED))
    add("--threads", type=numbers, default=list(THREADS), help="threads of the fits, as in 1,2")
    add("--draws", type=positive, help=f"draws; by default {SMALL_DRAWS}, of large tables {DRAWS}")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return the cells of all parts, each from few rows to many."""
    made: dict[str, Callable[[argparse.Namespace], list[Cell]]] = {
        "fits": _fits,
        "cores": _cores,
        "latency": _latency,
    }
    return [cell for part in given.parts for cell in made[part](given)]


def _fits(given: argparse.Namespace) -> list[Cell]:
    sets = given.sets or (
        SETS if os.environ.get(FOLDER_VARIABLE) and not given.quick else (GENERATED,)
    )
    known = {name: n_rows(name) for name in sets}
    return [
        Cell("fits", model, name, rows, number, threads)
        for rows in _rows(given, ROWS)
        for name in sets
        if rows + TEST_ROWS <= known[name]
        for number in range(given.draws or (SMALL_DRAWS if rows <= SMALL_ROWS else DRAWS))
        for threads in given.threads
        if threads <= len(usable())
        for model in given.models
        if rows <= MOST_ROWS.get(model, rows)
    ]


def _cores(given: argparse.Namespace) -> list[Cell]:
    if NAME not in given.models or not CAN_RESTRICT:
        return []
    machine = len(usable())
    return [
        Cell("cores", NAME, GENERATED, rows, number, cores, busy, machine)
        for rows in _rows(given, CORES_ROWS)
        for number in range(given.draws or DRAWS)
        for cores in CORES
        if cores <= machine
        for busy in (False, True)
    ]


def _latency(given: argparse.Namespace) -> list[Cell]:
    return [
        Cell("latency", model, GENERATED, rows, draw=0)
        for rows in _rows(given, LATENCY_ROWS)
        for model in LATENCY_MODELS
        if model in given.models and rows <= MOST_ROWS.get(model, rows)
    ]


def _rows(given: argparse.Namespace, default: Sequence[int]) -> list[int]:
    """Return the sizes of a part: those of its own that were asked for; of a quick run 100."""
    if given.quick:
        return given.rows or [100]
    return [rows for rows in default if given.rows is None or rows in given.rows]


def measure(cell: Cell) -> Record:
    """Fit one model in this process, and measure what the part asks for."""
    known = MODELS[cell.model]
    fit, rows = known.load(), draw(cell.set, cell.rows, cell.draw, TEST_ROWS)
    _warm_up(cell.model, cell.rows)
    record: Record = {"package": known.version(), "n_test": len(rows.y_test)}
    record["cores_in_use"] = cores_in_use()
    if cell.part == "latency":
        model = fit(rows.X, rows.y, cell.draw)
        idle = latencies(model, rows.X_test, CALLS)
        with busy_neighbors(usable()):
            busy = latencies(model, rows.X_test, CALLS)
        return record | {"idle_ms": idle, "busy_ms": busy, "calls": CALLS, **model.facts()}
    with busy_neighbors(usable()) if cell.busy else nullcontext():
        return record | fit_and_score(fit, rows.X, rows.y, rows.X_test, rows.y_test, cell.draw)


def latencies(model: Fitted, X: Array, calls: int) -> dict[str, list[float]]:
    """Return the median and the 99th percentile of the milliseconds per call for one row."""
    found = {}
    for name, call in model.calls().items():
        seconds = []
        for number in range(CALLS_BEFORE + calls):
            row = X[number % len(X)][None]
            begin = time.perf_counter()
            call(row)
            seconds.append(time.perf_counter() - begin)
        found[name] = [1e3 * s for s in np.quantile(seconds[CALLS_BEFORE:], [0.5, 0.99]).tolist()]
    return found


@cache
def _warm_up(model: str, rows: int) -> None:
    """Import and compile before the clock runs; what neighbours need only before large fits."""
    import sklearn.ensemble  # noqa: F401  our fits to 500 rows or more import its trees

    X = np.random.default_rng(0).normal(size=(100, 4))
    y = X[:, 0] + np.sin(X[:, 1]) + 0.1 * X[:, 2]
    used = [model, "ours"] if model == NAME and rows > SMALL_ROWS else [model]
    for name in used:
        MODELS[name].load()(X, y, 0).predict(X[:10])


def _limits(cell: Cell, given: argparse.Namespace, limits: Limits) -> Limits:
    threads = cell.cores if cell.part == "fits" else None
    return replace(limits, threads=threads, cores=cell.cores if CAN_RESTRICT else None)


MEASUREMENT = Measurement(
    name="everyday",
    about="Tables of everyday sizes.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=report,
    arguments=arguments,
    strategy=Processes(
        SECONDS,
        threads=None,
        other_python=lambda cell: cell.model in PEERS,
        settled=has_diverged,
        limits=_limits,
    ),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
