"""What a prediction from 50 neighbours costs: ours, three other libraries, and the arithmetic.

Every model is fitted once to the training rows of fold 0, in a process of its own, and then
predicts test rows with a standard deviation, several times over; the fastest call counts, as other
programs only ever add time. All have the same number of threads. A small fit and a small prediction
come first, so that no model is charged for loading; the table has the cost of a first call. A
model too slow for all test rows predicts fewer, and the page says how many: its cost per row is
that of those.

The second part, ``local_solves``, is one local solve against its number of operations
(:mod:`benchmarks.local_solves`), always on one thread.

The data folder is named by ``TWOSTAGEGP_DATA``; the interpreter of the other libraries
(``--python``) is that of :mod:`benchmarks.uci_large`. ``--redo`` measures again what is stored.

    python -m benchmarks.neighbors_speed --python .venv-peers/bin/python --redo
    python -m benchmarks.neighbors_speed --models bare_iso,local_solves --runs 10 --redo
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks import RESULTS
from benchmarks.large_sets import SETS, fold_rows, load
from benchmarks.local_solves import local_solves
from benchmarks.neighbors_contestants import (
    CONTESTANTS,
    LOCAL,
    WARM_POINTS,
    WARM_ROWS,
    Contestant,
)
from benchmarks.neighbors_speed_tables import report
from benchmarks.peers import PEERS
from benchmarks.peers.base import Array, Fitted
from benchmarks.search_profile import Profile
from measurements.arguments import names, positive
from measurements.processes import Processes
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.timing import Timed, use_threads
from twostagegp.engines.neighbors import engine as neighbors

__all__ = [
    "MEASUREMENT",
    "Cell",
    "Split",
    "affordable",
    "measure_contestant",
    "prediction_parts",
]

#: Points from whose times the cost of one more point is told.
PROBE_POINTS = (64, 256)
#: A call that would take longer gets fewer points.
CALL_SECONDS = 15.0
TIME_LIMIT = 1800
QUICK_MODELS = ("bare_iso", LOCAL)


@dataclass(frozen=True)
class Cell:
    """One model on a table, or the local solves, whose ``set`` is empty.

    Attributes
    ----------
    set, model : str
    runs : int
        Calls of which the fastest counts.
    points : int, optional
        Test rows that are predicted; None: all.
    """

    set: str
    model: str
    runs: int
    points: int | None


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the table, models, points and calls of a run."""
    parser.add_argument("--set", choices=SETS, default="protein", help="one of the larger tables")
    parser.add_argument("--models", type=names([*CONTESTANTS, LOCAL]), help="all by default")
    parser.add_argument("--points", type=positive, help="test rows (default: all of the fold)")
    parser.add_argument("--runs", type=positive, default=5, help="calls, the fastest counts")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return one cell per model."""
    models = given.models or (QUICK_MODELS if given.quick else [*CONTESTANTS, LOCAL])
    if any(model != LOCAL for model in models):
        load(given.set)  # a missing table is reported once, not for every model
    return [
        Cell("", model, given.runs, None)
        if model == LOCAL
        else Cell(given.set, model, given.runs, given.points)
        for model in models
    ]


def is_peer(cell: Cell) -> bool:
    """Return whether the model is that of another library."""
    return cell.model != LOCAL and CONTESTANTS[cell.model].peer is not None


def measure(cell: Cell) -> Record:
    """Measure one model, or the local solves."""
    busy = {"load": os.getloadavg()[0]}
    if cell.model == LOCAL:
        use_threads(1)
        return busy | local_solves(runs=cell.runs)
    contestant, split = CONTESTANTS[cell.model], Split.of_fold(cell.set)
    return busy | measure_contestant(contestant, split, cell.runs, cell.points)


@dataclass(frozen=True)
class Split:
    """Training and test rows."""

    X: Array
    y: Array
    X_test: Array
    y_test: Array

    @classmethod
    def of_fold(cls, name: str, fold: int = 0) -> Split:
        """Return a fold of one of the larger tables."""
        data = load(name)
        train, test = fold_rows(data, fold)
        return cls(data.X[train], data.y[train], data.X[test], data.y[test])


def measure_contestant(
    contestant: Contestant, split: Split, runs: int = 5, points: int | None = None
) -> Record:
    """Fit once, then predict several times; return the costs and the scores.

    Parameters
    ----------
    contestant : Contestant
    split : Split
    runs : int
        Predictions of the same points.
    points : int, optional
        The first so many test rows; all by default.
    """
    rows = np.random.default_rng(0).permutation(len(split.y))[:WARM_ROWS]
    contestant.fit(split.X[rows], split.y[rows], 0).predict(split.X_test[:WARM_POINTS])
    with Timed() as fitting:
        model = contestant.fit(split.X, split.y, 0)
    X = split.X_test[:points]
    with Timed() as first:
        model.predict(X[:WARM_POINTS])
    X = X[: affordable(model, X)]
    took = []
    for _ in range(runs):
        with Timed() as predicting:
            found = model.predict(X)
        took.append(predicting)
    wall, cpu = min(t.wall for t in took), min(t.cpu for t in took)
    parts = {}
    if contestant.peer is None:
        seconds = prediction_parts(lambda: model.predict(X))
        parts = {"parts_us": {part: 1e6 * s / len(X) for part, s in seconds.items()}}
    scale = float(np.std(split.y))
    error = (split.y_test[: len(X)] - found.mean) / scale
    variance = (found.std / scale) ** 2
    return {
        **_origin(contestant),
        "n": len(split.y),
        "d": split.X.shape[1],
        "fit_wall": fitting.wall,
        "fit_cpu": fitting.cpu,
        "first_call": first.wall,
        "test_rows": len(split.y_test),
        "points": len(X),
        "runs": runs,
        "wall_us": 1e6 * wall / len(X),
        "cpu_us": 1e6 * cpu / len(X),
        "all_wall_us": [1e6 * t.wall / len(X) for t in took],
        "predictions_a_second": len(X) / wall,
        **parts,
        "rmse": float(np.sqrt(np.mean(error**2))),
        "nlpd": float(np.mean(0.5 * (error**2 / variance + np.log(2.0 * np.pi * variance)))),
    }


def prediction_parts(predict: Callable[[], Any], cuda: bool = False) -> dict[str, float]:
    """Return wall-clock seconds of a prediction of ours: search, local solves, and the rest.

    The rest is what comes before and after, and the trees of a stack that has some.
    """
    profile = Profile(cuda, {"search": 0.0, "solve": 0.0})
    near = profile.timed("search", neighbors.IndexStore.near)
    solve = profile.timed("solve", neighbors.local_predict)
    with (
        patch.object(neighbors.IndexStore, "near", near),
        patch.object(neighbors, "local_predict", solve),
        Timed() as took,
    ):
        predict()
    return {**profile.seconds, "rest": took.wall - sum(profile.seconds.values())}


def _origin(contestant: Contestant) -> Record:
    """Return version and source hash of another library; ours are added by the runner."""
    if contestant.peer is None:
        return {}
    return {"version": PEERS[contestant.peer].version(), "code": None}


def affordable(model: Fitted, X: Array, seconds: float = CALL_SECONDS) -> int:
    """Return how many points one call can predict in so many seconds.

    The fixed cost of a call is not counted as a cost of its points.

    Examples
    --------
    >>> class Instant(Fitted):
    ...     def predict(self, X): ...
    >>> affordable(Instant(), np.zeros((1000, 1)))
    1000
    """
    few, more = PROBE_POINTS
    if len(X) <= more:
        return len(X)
    took = []
    for count in PROBE_POINTS:
        with Timed() as call:
            model.predict(X[:count])
        took.append(call.wall)
    each = max((took[1] - took[0]) / (more - few), 1e-9)
    fixed = max(took[0] - few * each, 0.0)
    if fixed + len(X) * each <= seconds:
        return len(X)
    return max(more, int((seconds - fixed) / each))


MEASUREMENT = Measurement(
    name="neighbors_speed",
    about="What a prediction from neighbours costs.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=report,
    arguments=arguments,
    key=("set", "model"),
    strategy=Processes(TIME_LIMIT, threads=2, other_python=is_peer),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
