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
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

import twostagegp
from benchmarks import RESULTS
from benchmarks.alone import Limits, Task, measure_alone
from benchmarks.neighbors_speed import prediction_parts
from benchmarks.peers.run import peak_mib
from measurements.arguments import positive
from measurements.provenance import code_version
from measurements.store import JsonLines, Record, plain, write_whole
from measurements.tables import MISSING, figure, markdown_table, yes_no
from measurements.timing import Timed, use_threads
from twostagegp import GPNNRegressor, TwoStageGPRegressor, metrics
from twostagegp.engines.neighbors.index import TreeIndex
from twostagegp.estimators import fitted
from twostagegp.pipeline.mean.models import RidgeMean
from twostagegp.runtime.streaming import ArrayFactory

__all__ = ["draw", "function", "growth", "main", "measure", "measure_engine", "report"]

Array = NDArray[np.float64]

ROWS = {"cpu": (100_000, 300_000, 1_000_000, 2_000_000), "cuda": (100_000, 1_000_000)}
POINTS = {"cpu": 200_000, "cuda": 1_000_000}
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
    """The function that the tables are drawn from.

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
    """Inputs and a noisy target."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(rows, COLUMNS))
    return X, function(X) + NOISE * rng.standard_normal(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, keep the results, then write and print the page; returns 1 if a fit failed."""
    parser = _parser()
    given = parser.parse_args(arguments)
    points = given.points or POINTS[given.device]
    if given.alone is not None:
        return _answer(given.device, given.alone, points, given.threads)
    store = JsonLines(given.results / "neighbors_scale.jsonl", key=("device", "rows"))
    failed = 0
    if not given.table_only:
        if given.device == "cuda" and not torch.cuda.is_available():
            parser.error("torch sees no CUDA device")
        for rows in given.rows or ROWS[given.device]:
            record = _measure_alone(rows, points, given)
            failed += "error" in record
            store.append(record, replace=True)
            print(_line(record), flush=True)
            write_whole(given.results / "neighbors_scale.md", report(_records(store)))
    page = report(_records(store))
    write_whole(given.results / "neighbors_scale.md", page)
    print(page)
    return 1 if failed else 0


def _records(store: JsonLines) -> list[Record]:
    return sorted(store.records().values(), key=lambda r: (r["device"], r["rows"]))


def _measure_alone(rows: int, points: int, given: argparse.Namespace) -> Record:
    """The record of one number of rows, from a process of its own."""
    program = ["-m", "benchmarks.neighbors_scale", "--alone", str(rows), "--points", str(points)]
    program += ["--device", given.device, "--threads", str(given.threads)]
    limits = Limits(given.time_limit, given.threads, sys.executable)
    load = os.getloadavg()[0]
    record = measure_alone(Task("ours", "drawn", 0), limits, program)
    return record | {"device": given.device, "rows": rows, "load": load}


def _answer(device: str, rows: int, points: int, threads: int) -> int:
    """What the process of one number of rows does: print the record."""
    use_threads(threads)
    record: Record = {
        "version": twostagegp.__version__,
        "code": code_version(),
        "torch": torch.__version__,
        "machine": _machine(device),
        "threads": threads,
    }
    try:
        if device == "cuda":
            record |= measure_engine(rows, points, device)
        else:
            record |= measure(rows, points, threads)
    except Exception as error:
        record["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(plain(record), allow_nan=False))
    return 0


def _machine(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    return platform.processor() or platform.machine()


def _line(record: Record) -> str:
    head = f"{record['device']}, {record['rows']} rows: "
    if "error" in record:
        return head + record["error"]
    return head + (
        f"fit {record['fit_wall']:.1f} s, {record['points']} predictions "
        f"{record['predict_wall']:.1f} s, peak {record['peak_gib']:.2f} GiB"
    )


def measure(rows: int, points: int, threads: int) -> Record:
    """A default fit and its predictions: seconds, memory, error and coverage."""
    _warm_up()
    X, y = draw(rows, seed=0)
    X_test, y_test = draw(points, seed=1)
    before = peak_mib() / 1024.0
    model = TwoStageGPRegressor(method="neighbors", n_jobs=threads, device="cpu", random_state=0)
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
    """Seconds to build the tree of the mean's first ridge once more."""
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
    """One kernel on neighbours, as on a GPU: seconds of a prediction, search and solves apart."""
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
    """Parts of the inputs without travelling ahead: made and copied when they are asked for."""
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
    """The exponent p of seconds ~ rows^p, by least squares on logarithms.

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
    """The Markdown page."""
    if not records:
        return "# Growth of the neighbour method\n\nNo results yet.\n"
    parts = ["# Growth of the neighbour method\n"]
    usable = [r for r in records if "error" not in r]
    cpu = [r for r in usable if r["device"] == "cpu"]
    gpu = [r for r in usable if r["device"] == "cuda"]
    if cpu:
        parts += ["## Default fit and predictions\n", _head(cpu), _table(cpu), _growth_text(cpu)]
        parts += ["## Where the time goes\n", _parts_note(), _parts_table(cpu)]
    if gpu:
        parts += ["## The engine alone on a GPU\n", _head(gpu), _gpu_note(gpu), _gpu_table(gpu)]
    failures = [r for r in records if "error" in r]
    if failures:
        lines = (f"- {r['device']}, {r['rows']:,} rows: {r['error']}\n" for r in failures)
        parts += ["## Failures\n", "".join(lines)]
    return "\n".join(parts)


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
        f"noise of standard deviation {NOISE:g}; RMSE against the function itself.\n"
    )


def _table(records: list[Record]) -> str:
    header = ["rows", "fit wall s", "fit CPU s", "predictions", "wall s", "CPU s"]
    header += ["predictions/s", "peak GiB", "goal met", "RMSE", "95 % coverage"]
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
        "rows, the table itself and the points included.\n"
    )


def _parts_note() -> str:
    return (
        "Wall seconds. *Index*: one tree in the metric of the mean's first ridge, built once more. "
        "Parts of the fit are those of its report; of the predictions, *rest* is the trees of the "
        "stack and what comes before and after.\n"
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
        f"{NEIGHBOURS} neighbours, Matérn 3/2, a lengthscale a column, with standard deviation. "
        "Search and solves are of one more prediction, whose stopwatches wait for the GPU. "
        "*Ahead*: the next part of the points travels while one is worked on, as always; *in "
        "turn*: it does not; the best of three each. Goal: "
        f"{records[0]['points']:,} predictions below {GPU_SECONDS_GOAL:g} s.\n"
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.neighbors_scale",
        description="How time and memory of the neighbour method grow.",
    )
    listed = {device: ",".join(map(str, rows)) for device, rows in ROWS.items()}
    parser.add_argument(
        "--rows", type=_numbers, help=f"default: {listed['cpu']}; on a GPU {listed['cuda']}"
    )
    parser.add_argument("--points", type=positive, help=f"predictions (default: {POINTS})")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--time-limit", type=positive, default=TIME_LIMIT, help="seconds a size")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table-only", action="store_true", help="no fits, only the page")
    parser.add_argument("--alone", type=positive, help=argparse.SUPPRESS)
    return parser


def _numbers(text: str) -> list[int]:
    return [positive(part.strip()) for part in text.split(",")]


if __name__ == "__main__":
    raise SystemExit(main())
