r"""How time and memory of the neighbour method grow, from a hundred thousand rows to millions.

Tables are drawn with eight uniform columns and

.. math::

    f(x) = 2 \sin(\pi x_1 x_2) + \sin(2 \pi x_3) + 4 (x_4 - \tfrac12)^2 + x_5 x_6 + \tfrac12 x_7 ,
    \qquad y = f(x) + \epsilon, \quad \epsilon \sim \mathcal{N}(0, 0.2^2) ,

so that the eighth column means nothing and the error against the function itself is known. Every
number of rows has a process of its own, whose largest memory is its own too: one default fit, then
200,000 predictions with standard deviation, with stopwatches around search and local solves. The
tree of the mean's first ridge is built once more at the end, to be timed alone. The slope of log
seconds over log rows says how both grow.

On a GPU (``--device cuda``) it is the engine alone, :class:`~twostagegp.GPNNRegressor` with one
kernel, that predicts a million points from 100,000 and from 1,000,000 rows.

    python -m benchmarks.neighbors_scale --rows 100000,300000,1000000,2000000
    python -m benchmarks.neighbors_scale --device cuda --results build/results
    python -m benchmarks.neighbors_scale --redo
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import RESULTS
from benchmarks.neighbors_speed import prediction_parts
from benchmarks.peers.run import peak_mib
from measurements.arguments import numbers, positive
from measurements.errors import CannotMeasureError
from measurements.pages import NO_RECORDS, failures, joined, scored
from measurements.processes import Processes
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import MISSING, figure, markdown_table, yes_no
from measurements.timing import Timed
from twostagegp import GPNNRegressor, TwoStageGPRegressor, metrics
from twostagegp.engines.neighbors.index import TreeIndex
from twostagegp.estimators import fitted
from twostagegp.pipeline.mean.models import RidgeMean
from twostagegp.runtime.streaming import ArrayFactory

__all__ = [
    "MEASUREMENT",
    "Cell",
    "draw",
    "function",
    "growth",
    "measure_engine",
    "measure_model",
    "report",
]

Array = NDArray[np.float64]

ROWS = {"cpu": (100_000, 300_000, 1_000_000, 2_000_000), "cuda": (100_000, 1_000_000)}
POINTS = {"cpu": 200_000, "cuda": 1_000_000}
QUICK_ROWS, QUICK_POINTS = (1000,), 1000
COLUMNS = 8
NOISE = 0.2
NEIGHBOURS = 50
TIME_LIMIT = 3600
#: Rows between which the growth of time is measured.
GROWTH_ROWS = (100_000, 2_000_000)
#: Memory of a fit and its predictions at so many rows.
PEAK_ROWS, PEAK_GIB_GOAL = 2_000_000, 4.0
#: Seconds of a million predictions on a GPU.
GPU_SECONDS_GOAL = 10.0


def function(X: Array) -> Array:
    """Return the function that the tables are drawn from.

    Examples
    --------
    >>> function(np.full((1, 8), 0.5)).round(6).tolist()
    [1.914214]
    """
    return (
        2.0 * np.sin(np.pi * X[:, 0] * X[:, 1])
        + np.sin(2.0 * np.pi * X[:, 2])
        + 4.0 * (X[:, 3] - 0.5) ** 2
        + X[:, 4] * X[:, 5]
        + 0.5 * X[:, 6]
    )


def draw(rows: int, seed: int) -> tuple[Array, Array]:
    """Return inputs and a noisy target."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(rows, COLUMNS))
    return X, function(X) + NOISE * rng.standard_normal(rows)


@dataclass(frozen=True)
class Cell:
    """One number of rows on one device."""

    device: str
    rows: int
    points: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the device, the numbers of rows and the number of predictions."""
    listed = {device: ",".join(map(str, rows)) for device, rows in ROWS.items()}
    parser.add_argument(
        "--rows", type=numbers, help=f"default: {listed['cpu']}; on a GPU {listed['cuda']}"
    )
    parser.add_argument("--points", type=positive, help=f"predictions (default: {POINTS})")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return every number of rows on the device."""
    rows = given.rows or (QUICK_ROWS if given.quick else ROWS[given.device])
    points = given.points or (QUICK_POINTS if given.quick else POINTS[given.device])
    return [Cell(given.device, n, points) for n in rows]


def measure(cell: Cell) -> Record:
    """Fit and predict: the default on a CPU, the engine alone on a GPU."""
    load = {"load": os.getloadavg()[0]}
    if cell.device == "cuda":
        if not torch.cuda.is_available():
            raise CannotMeasureError("torch sees no CUDA device")
        machine = {"machine": torch.cuda.get_device_name()}
        return load | machine | measure_engine(cell.rows, cell.points, cell.device)
    _warm_up()
    model = TwoStageGPRegressor(
        method="neighbors", n_jobs=torch.get_num_threads(), device="cpu", random_state=0
    )
    return load | measure_model(model, cell.rows, cell.points)


def measure_model(model: TwoStageGPRegressor, rows: int, points: int) -> Record:
    """Return seconds, memory, error and coverage of a fit and its predictions."""
    X, y = draw(rows, seed=0)
    X_test, y_test = draw(points, seed=1)
    before = peak_mib() / 1024.0
    with Timed() as fitting:
        model.fit(X, y)
    after_fit = peak_mib() / 1024.0
    found: list[Any] = []
    with Timed() as predicting:
        parts = prediction_parts(lambda: found.extend(model.predict(X_test, return_std=True)))
    peak = peak_mib() / 1024.0
    mean, std = found
    return {
        "columns": COLUMNS,
        "points": points,
        "before_gib": before,
        "fit_gib": after_fit,
        "peak_gib": peak,
        "fit_wall": fitting.wall,
        "fit_cpu": fitting.cpu,
        "fit_seconds": dict(model.fit_report_.seconds),
        "predict_wall": predicting.wall,
        "predict_cpu": predicting.cpu,
        "predict_parts": parts,
        "mean": model.fit_report_.mean,
        "variance": model.fit_report_.variance,
        **_index(model),
        **_scores(X_test, y_test, mean, std),
    }


def _index(model: TwoStageGPRegressor) -> Record:
    """Return the seconds to build the tree of the mean's first ridge once more."""
    ridges = [part for part in model.mean_.models if isinstance(part, RidgeMean)]
    if not ridges:
        return {"index_wall": None, "index_cpu": None}
    posterior: Any = ridges[0].posterior
    metric = posterior.metric
    inputs = metric.scale(posterior.rows.X)
    with Timed() as building:
        TreeIndex(inputs, metric.manhattan)
    return {"index_wall": building.wall, "index_cpu": building.cpu}


def measure_engine(rows: int, points: int, device: str) -> Record:
    """Return seconds of one kernel on neighbours, as on a GPU, search and solves apart."""
    cuda = device == "cuda"
    model = GPNNRegressor(
        kernel="matern32",
        n_neighbors=NEIGHBOURS,
        objective="neighbors",
        ard=True,
        preprocess="standardize",
        device=device,
        random_state=0,
    )
    X, y = draw(min(rows, 2000), seed=2)
    model.fit(X, y).predict(X[:100], return_std=True)  # the first use of a GPU pays for its start
    X, y = draw(rows, seed=0)
    X_test, y_test = draw(points, seed=1)
    with Timed() as fitting:
        model.fit(X, y)
    with Timed() as first:
        model.predict(X_test[:100], return_std=True)
    with Timed() as predicting:
        mean, std = model.predict(X_test, return_std=True)
    ahead, in_turn = math.inf, math.inf
    for _ in range(3):
        ahead = min(ahead, _prediction_seconds(model, X_test))
        with patch.object(fitted, "stream", _in_turn):
            in_turn = min(in_turn, _prediction_seconds(model, X_test))
    parts = prediction_parts(lambda: model.predict(X_test, return_std=True), cuda)
    peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else peak_mib() / 1024.0
    return {
        "columns": COLUMNS,
        "points": points,
        "peak_gib": peak,
        "fit_wall": fitting.wall,
        "fit_cpu": fitting.cpu,
        "first_call": first.wall,
        "predict_wall": predicting.wall,
        "predict_cpu": predicting.cpu,
        "predict_parts": parts,
        "ahead_wall": ahead,
        "in_turn_wall": in_turn,
        **_scores(X_test, y_test, mean, std),
    }


def _prediction_seconds(model: GPNNRegressor, X: Array) -> float:
    with Timed() as watch:
        model.predict(X, return_std=True)
    return watch.wall


def _in_turn(parts: Iterable[ArrayFactory], like: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield parts of the inputs, each made and copied only when it is asked for."""
    for make in parts:
        yield torch.as_tensor(make()).to(like)


def _scores(X: Array, y: Array, mean: Array, std: Array) -> Record:
    return {
        "rmse": float(np.sqrt(np.mean((mean - function(X)) ** 2))),
        "rmse_observed": float(metrics.rmse(y, mean)),
        "coverage_95": float(metrics.coverage(y, mean, std, level=0.95)),
    }


def _warm_up() -> None:
    """Pay for imports, compiled code and first calls before the clock runs."""
    X, y = draw(300, seed=2)
    model = TwoStageGPRegressor(method="neighbors", device="cpu", random_state=0)
    model.fit(X, y).predict(X[:100], return_std=True)


def growth(rows: Sequence[int], seconds: Sequence[float]) -> float | None:
    """Return the exponent p of seconds ~ rows^p, by least squares on logarithms.

    Examples
    --------
    >>> round(growth([100, 200, 400], [1.0, 2.0, 4.0]), 6)
    1.0
    """
    if len(set(rows)) < 2:
        return None
    return float(np.polyfit(np.log(rows), np.log(seconds), 1)[0])


# --- the page ------------------------------------------------------------------------------------


def report(records: list[Record]) -> str:
    """Return the Markdown page."""
    ordered = sorted(scored(records), key=lambda r: r["rows"])
    cpu = [r for r in ordered if r["device"] == "cpu"]
    gpu = [r for r in ordered if r["device"] == "cuda"]
    parts = ["# Growth of the neighbour method", "" if ordered else NO_RECORDS]
    if cpu:
        parts += ["## Default fit and predictions", _head(cpu), _table(cpu), _growth_text(cpu)]
        parts += ["## Where the time goes", _PARTS, _parts_table(cpu)]
    if gpu:
        parts += ["## The engine alone on a GPU", _head(gpu), _gpu_note(gpu), _gpu_table(gpu)]
    return joined(*parts, *failures(records, ("device", "rows")))


def _head(records: list[Record]) -> str:
    states = sorted({(r["version"], r["code"]) for r in records})
    note = "**Mixed states of the code**: " if len(states) > 1 else ""
    listed = ", ".join(f"{version} (source {code})" for version, code in states)
    machines = ", ".join(sorted({r["machine"] for r in records}))
    counts = ", ".join(str(n) for n in sorted({r["threads"] for r in records}))
    loads = [r["load"] for r in records]
    return (
        f"{note}twostagegp {listed}, torch {records[0]['torch']}, {machines}, {counts} thread(s), "
        f"load {min(loads):.1f} to {max(loads):.1f} at the start. {records[0]['columns']} columns, "
        f"noise of standard deviation {NOISE:g}; RMSE against the function itself."
    )


def _table(records: list[Record]) -> str:
    header = ["rows", "fit, wall s", "fit, CPU s", "predictions", "all, wall s", "all, CPU s"]
    header += ["predictions per s", "peak GiB", "goal met", "RMSE", "95 % coverage"]
    lines = []
    for r in records:
        at_goal = r["rows"] == PEAK_ROWS
        lines.append(
            [
                f"{r['rows']:,}",
                figure(r["fit_wall"]),
                figure(r["fit_cpu"]),
                f"{r['points']:,}",
                figure(r["predict_wall"]),
                figure(r["predict_cpu"]),
                f"{r['points'] / r['predict_wall']:,.0f}",
                figure(r["peak_gib"]),
                yes_no(r["peak_gib"] <= PEAK_GIB_GOAL if at_goal else None),
                figure(r["rmse"]),
                f"{r['coverage_95']:.1%}",
            ]
        )
    return markdown_table(header, lines)


def _growth_text(records: list[Record]) -> str:
    low, high = GROWTH_ROWS
    inside = [r for r in records if low <= r["rows"] <= high]
    rows = [r["rows"] for r in inside]
    said = []
    for what, field in (("fit", "fit"), (f"{records[0]['points']:,} predictions", "predict")):
        for clock, kind in (("wall clock", "wall"), ("CPU time", "cpu")):
            p = growth(rows, [r[f"{field}_{kind}"] for r in inside])
            said.append(f"{what}, {clock}: {MISSING if p is None else f'n^{p:.2f}'}")
    return (
        f"Growth of time from {min(rows, default=low):,} to {max(rows, default=high):,} rows: "
        f"{'; '.join(said)}. Goal for memory: at most {PEAK_GIB_GOAL:g} GiB at {PEAK_ROWS:,} "
        "rows, the table itself and the points included."
    )


_PARTS = (
    "Wall-clock seconds. *Index*: one tree in the metric of the mean's first ridge, built once "
    "more. Parts of the fit are those of its report; of the predictions, *rest* is the trees of "
    "the stack and the work before and after."
)


def _parts_table(records: list[Record]) -> str:
    of_fit = [part for part in records[0]["fit_seconds"] if part != "total"]
    header = ["rows", "index", *(f"fit: {part}" for part in of_fit), "fit: the rest"]
    header += ["predict: search", "predict: solves", "predict: rest", "GiB before", "GiB after fit"]
    header += ["mean"]
    lines = []
    for r in records:
        seconds, parts = r["fit_seconds"], r["predict_parts"]
        known = [seconds.get(part, math.nan) for part in of_fit]
        rest = seconds.get("total", math.nan) - sum(known)
        cells = [r["index_wall"], *known, rest]
        cells += [parts["search"], parts["solve"], parts["rest"], r["before_gib"], r["fit_gib"]]
        lines.append([f"{r['rows']:,}", *(figure(cell) for cell in cells), r["mean"]])
    return markdown_table(header, lines)


def _gpu_note(records: list[Record]) -> str:
    return (
        f"{NEIGHBOURS} neighbours, Matérn 3/2, one lengthscale per column, mean and standard "
        "deviation. Search and solves are of one more prediction, whose stopwatches wait for the "
        "GPU. *Ahead*: the next part of the points is copied to the GPU while it works on the last "
        "one (the default); *in turn*: only when the last one is done; best of three each. Goal: "
        f"{records[0]['points']:,} predictions below {GPU_SECONDS_GOAL:g} s."
    )


def _gpu_table(records: list[Record]) -> str:
    header = ["rows", "points", "fit wall s", "predict wall s", "search", "solves", "rest"]
    header += ["ahead s", "in turn s", "peak GiB", "RMSE", "95 % coverage", "goal met"]
    lines = []
    for r in records:
        parts = r["predict_parts"]
        cells = [r["fit_wall"], r["predict_wall"], parts["search"], parts["solve"], parts["rest"]]
        cells += [r.get("ahead_wall"), r.get("in_turn_wall")]
        lines.append(
            [
                f"{r['rows']:,}",
                f"{r['points']:,}",
                *(figure(cell) for cell in [*cells, r["peak_gib"], r["rmse"]]),
                f"{r['coverage_95']:.1%}",
                yes_no(r["predict_wall"] < GPU_SECONDS_GOAL),
            ]
        )
    return markdown_table(header, lines)


MEASUREMENT = Measurement(
    name="neighbors_scale",
    about="How time and memory of the neighbour method grow.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=report,
    arguments=arguments,
    key=("device", "rows"),
    strategy=Processes(TIME_LIMIT, threads=2),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
