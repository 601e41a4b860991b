"""What an update costs, beside conditioning on all rows anew and beside a refit, in one run.

a. The exact methods: m rows come to n, once after a fit and once after another update, when the
   factors of the mean's kernels are there already; a row that repeats another. Beside it the same
   kernels conditioned on all rows at the same hyperparameters, and a fit to all rows, search
   included. Predictions of the first two are compared.
b. Neighbours: the same for a fitted model; and without a fit, up to a million rows, what finding
   repeats, building the index anew and a thousand predictions cost.

CPU seconds of one thread.

    python -m benchmarks.update_speed
"""

from __future__ import annotations

import argparse
import copy
import math
import platform
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import twostagegp
from benchmarks import RESULTS
from measurements.arguments import numbers, positive
from measurements.provenance import code_version
from measurements.store import JsonLines, Record, write_whole
from measurements.tables import figure, markdown_table
from measurements.timing import Timed, use_threads
from twostagegp import ExactGPRegressor, GPNNRegressor, TwoStageGPRegressor
from twostagegp.data.appending import append_rows
from twostagegp.data.scaling import prepare
from twostagegp.engines.exact.engine import ExactPosterior
from twostagegp.engines.neighbors.engine import NeighborEngine
from twostagegp.errors import TwoStageGPWarning
from twostagegp.kernels import NamedKernel
from twostagegp.pipeline.mean.models import RidgeMean

__all__ = ["index_costs", "main", "update_costs"]

Array = NDArray[np.float64]
COLUMNS = 4
POINTS = 200
LABELS = {
    "two stages": "TwoStageGPRegressor, exact",
    "single": "ExactGPRegressor",
    "two stages, neighbors": "TwoStageGPRegressor, neighbours",
    "gpnn": "GPNNRegressor",
}


def _table(n: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, COLUMNS))
    return X, np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=n)


def _make(name: str) -> Any:
    if name == "single":
        return ExactGPRegressor("matern52", ard=True, random_state=0, device="cpu")
    if name == "gpnn":
        return GPNNRegressor(random_state=0, device="cpu")
    method = "neighbors" if "neighbors" in name else "exact"
    return TwoStageGPRegressor(method=method, random_state=0, device="cpu")


def _conditioned(model: Any) -> tuple[Any, float]:
    """The model with every posterior conditioned on all its rows anew, and the seconds."""
    model = copy.deepcopy(model)
    fit = model.fitted_.fits[0]
    with Timed() as took:
        if isinstance(model, ExactGPRegressor):
            gp = fit.posterior
            fit.posterior = ExactPosterior(gp.kernel, gp.parameters, gp.rows)
        else:
            gp = fit.variance.posterior
            fit.variance.posterior = ExactPosterior(gp.kernel, gp.parameters, gp.rows)
            for part in fit.mean.models:
                if isinstance(part, RidgeMean):
                    known = part.posterior
                    part.posterior = ExactPosterior(known.kernel, known.parameters, known.rows)
                    part.posterior.drop_factor()
    return model, took.cpu


def update_costs(name: str, n: int, sizes: Sequence[int]) -> list[Record]:
    """One record for each number of new rows."""
    X, y = _table(n + 2 * max(sizes))
    points, _ = _table(POINTS, seed=1)
    model = _make(name)
    with Timed() as fitting:
        model.fit(X[:n], y[:n])
    records = []
    for m in sizes:
        first = copy.deepcopy(model)
        with Timed() as took_first:
            first.update(X[n : n + m], y[n : n + m])
        with Timed() as took_later:
            first.update(X[n + m : n + 2 * m], y[n + m : n + 2 * m])
        with Timed() as took_repeat:
            first.update(X[n // 2 : n // 2 + 1], y[:1])
        with Timed() as predicting:
            updated = first.predict(points, return_std=True)
        record: Record = {
            "model": name, "n": n, "m": m, "fit": fitting.cpu, "first": took_first.cpu,
            "later": took_later.cpu, "repeat": took_repeat.cpu, "predict": predicting.cpu,
        }  # fmt: skip
        if name in ("two stages", "single"):
            again, record["conditioning"] = _conditioned(first)
            other = again.predict(points, return_std=True)
            gaps = [float(np.abs(a - b).max()) for a, b in zip(updated, other, strict=True)]
            record["difference"] = max(gaps) / float(y.std())
        records.append(record)
        print(record, flush=True)
    return records


def index_costs(n: int, m: int = 100) -> Record:
    """What neighbours pay at n rows: no fit, one kernel."""
    X, y = _table(n + m)
    options = {"device": torch.device("cpu"), "dtype": torch.float64}
    data = prepare(X[:n], y[:n], [f"x{k}" for k in range(COLUMNS)], **options)
    kernel = NamedKernel("rbf", COLUMNS)
    parameters = np.append(kernel.start(), math.log(0.1))
    gp = NeighborEngine(data.rows).condition(kernel, parameters)
    points = torch.as_tensor(_table(1000, seed=1)[0])
    gp.mean(points[:10])
    with Timed() as growing:
        appended = append_rows(data, X[n:], y[n:], np.ones(m))
        grown = gp.extended(appended.data.rows, appended.changed_rows)
    with Timed() as building:
        grown.engine.store.index(grown.metric)
    with Timed() as predicting:
        grown.mean(points)
    record = {
        "model": "index", "n": n, "m": m, "growing": growing.cpu, "building": building.cpu,
        "predict": predicting.cpu,
    }  # fmt: skip
    print(record, flush=True)
    return record


def _page(records: Sequence[Record]) -> str:
    exact = [r for r in records if r.get("conditioning") is not None]
    near = [r for r in records if r["model"] in ("two stages, neighbors", "gpnn")]
    index = sorted((r for r in records if r["model"] == "index"), key=lambda r: r["n"])
    dense = markdown_table(
        ["model", "n", "m", "first update s", "later update s", "one repeated row s",
         "conditioning anew s", "refit s", "later / conditioning", "later / refit", "difference"],
        [
            [LABELS[r["model"]], f"{r['n']:,}", str(r["m"]), figure(r["first"]),
             figure(r["later"]), figure(r["repeat"]), figure(r["conditioning"]), figure(r["fit"]),
             figure(r["later"] / r["conditioning"]), figure(r["later"] / r["fit"]),
             figure(r["difference"], 2)]
            for r in exact
        ],
    )  # fmt: skip
    local = markdown_table(
        ["model", "n", "m", "update s", f"then {POINTS} predictions s", "refit s",
         "update / refit"],
        [
            [LABELS[r["model"]], f"{r['n']:,}", str(r["m"]), figure(r["later"]),
             figure(r["predict"]), figure(r["fit"]), figure(r["later"] / r["fit"])]
            for r in near
        ],
    )  # fmt: skip
    tree = markdown_table(
        ["n", "repeats found, rows copied s", "index of one metric s", "1,000 predictions s"],
        [
            [f"{r['n']:,}", figure(r["growing"]), figure(r["building"]), figure(r["predict"])]
            for r in index
        ],
    )
    return (
        "# Speed of updates\n\n"
        f"twostagegp {twostagegp.__version__} (source {code_version()}), torch "
        f"{torch.__version__}, {platform.processor() or platform.machine()}, 1 thread, CPU "
        f"seconds; {COLUMNS} columns.\n\n"
        "## Updates of exact models\n\nThe refit is a fit to n rows. The difference is the largest "
        "one between predictions (mean and standard deviation) of the updated model and of the one "
        f"that was conditioned anew, in standard deviations of y.\n\n{dense}\n"
        "## Updates of neighbour models\n\nAn update of neighbours predicts the new rows, copies "
        f"rows, and leaves the index to the next prediction.\n\n{local}\n"
        f"## The neighbour index\n\n100 rows come to n.\n\n{tree}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write and print the tables; returns 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.update_speed")
    parser.add_argument("--rows", type=positive, default=1500, help="rows of the exact models")
    parser.add_argument("--near", type=positive, default=10_000, help="rows of the neighbours")
    parser.add_argument("--index", type=numbers, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--sizes", type=numbers, default=[1, 30, 300])
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    use_threads(1)
    warnings.simplefilter("ignore", TwoStageGPWarning)
    index_costs(1000)  # compiles
    update_costs("single", 50, [1])
    store = JsonLines(given.results / "update_speed.jsonl", ("model", "n", "m"))
    records = [index_costs(n) for n in given.index]
    for name in LABELS:
        n = given.rows if name in ("two stages", "single") else given.near
        records += update_costs(name, n, given.sizes)
    for record in records:
        store.append(record, replace=True)
    page = _page(records)
    write_whole(given.results / "update_speed.md", page)
    print(page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
