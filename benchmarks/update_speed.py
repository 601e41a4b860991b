"""What an update costs, beside conditioning on all rows anew and beside a refit, in one run.

a. The exact methods: m rows are added to n, once after a fit and once after another update, when
   the factors of the mean's kernels exist already; then one row that repeats another. Beside it the
   same kernels conditioned on all rows at the same hyperparameters, and a fit to n rows, search
   included. Predictions of the first two are compared.
b. Neighbours: the same for a fitted model; and without a fit, up to a million rows, the cost of
   finding repeats, of building the index anew and of a thousand predictions.

CPU seconds of one thread.

    python -m benchmarks.update_speed --redo
"""

from __future__ import annotations

import argparse
import copy
import math
import warnings
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import RESULTS
from measurements.arguments import numbers, positive
from measurements.pages import Page, joined, scored
from measurements.runner import Measurement, Workers, run
from measurements.store import Record
from measurements.tables import figure, markdown_table
from measurements.timing import Timed
from twostagegp import ExactGPRegressor, GPNNRegressor, TwoStageGPRegressor
from twostagegp.data.appending import append_rows
from twostagegp.data.scaling import prepare
from twostagegp.engines.exact.engine import ExactPosterior
from twostagegp.engines.neighbors.engine import NeighborEngine
from twostagegp.errors import TwoStageGPWarning
from twostagegp.kernels import NamedKernel
from twostagegp.pipeline.mean.models import RidgeMean

__all__ = ["MEASUREMENT", "Cell", "measure"]

Array = NDArray[np.float64]
COLUMNS = 4
POINTS = 200
LABELS = {
    "two stages": "TwoStageGPRegressor, exact",
    "single": "ExactGPRegressor",
    "two stages, neighbors": "TwoStageGPRegressor, neighbours",
    "gpnn": "GPNNRegressor",
}
EXACT = ("two stages", "single")
#: The cell that measures the neighbour index without a model, and its new rows.
INDEX, INDEX_NEW = "index", 100


@dataclass(frozen=True)
class Cell:
    """m rows that are added to n.

    Attributes
    ----------
    model : str
        A key of ``LABELS``, or ``"index"``.
    n, m : int
    """

    model: str
    n: int
    m: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the numbers of rows."""
    parser.add_argument("--rows", type=positive, help="of the exact models; 1500 by default")
    parser.add_argument("--near", type=positive, help="of the neighbours; 10,000 by default")
    parser.add_argument("--index", type=numbers, help="10,000, 100,000 and 1,000,000 by default")
    parser.add_argument("--sizes", type=numbers, help="new rows; 1,30,300 by default")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return the index at every size, then every model with every number of new rows."""
    exact = given.rows or (40 if given.quick else 1500)
    near = given.near or (120 if given.quick else 10_000)
    index = given.index or ([300] if given.quick else [10_000, 100_000, 1_000_000])
    sizes = given.sizes or ([1, 4] if given.quick else [1, 30, 300])
    found = [Cell(INDEX, n, INDEX_NEW) for n in index]
    return found + [
        Cell(name, exact if name in EXACT else near, m) for name in LABELS for m in sizes
    ]


def measure(cell: Cell) -> Record:
    """Return the CPU seconds of one cell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TwoStageGPWarning)
        _warm_up()
        return _costs(cell)


@cache
def _warm_up() -> None:
    """Import and compile before the clock runs."""
    _index_costs(1000, INDEX_NEW)
    _update_costs("single", 50, 1)


def _costs(cell: Cell) -> Record:
    if cell.model == INDEX:
        return _index_costs(cell.n, cell.m)
    return _update_costs(cell.model, cell.n, cell.m)


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
    """Return the model with every posterior conditioned on all its rows anew, and the seconds."""
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


@lru_cache(maxsize=1)
def _fitted(name: str, n: int) -> tuple[Any, float]:
    """Return a model fitted to n rows, and the seconds of the fit."""
    model = _make(name)
    with Timed() as took:
        model.fit(*_table(n))
    return model, took.cpu


def _update_costs(name: str, n: int, m: int) -> Record:
    """Return the seconds of two updates and of a repeated row, and of conditioning anew."""
    fitted, fit_seconds = _fitted(name, n)
    X, y = _table(n)
    X_new, y_new = _table(2 * m, seed=2)
    points, _ = _table(POINTS, seed=1)
    model = copy.deepcopy(fitted)
    with Timed() as took_first:
        model.update(X_new[:m], y_new[:m])
    with Timed() as took_later:
        model.update(X_new[m:], y_new[m:])
    with Timed() as took_repeat:
        model.update(X[n // 2 : n // 2 + 1], y[:1])
    with Timed() as predicting:
        updated = model.predict(points, return_std=True)
    record: Record = {
        "fit": fit_seconds,
        "first": took_first.cpu,
        "later": took_later.cpu,
        "repeat": took_repeat.cpu,
        "predict": predicting.cpu,
    }
    if name in EXACT:
        again, record["conditioning"] = _conditioned(model)
        other = again.predict(points, return_std=True)
        gaps = [float(np.abs(a - b).max()) for a, b in zip(updated, other, strict=True)]
        record["difference"] = max(gaps) / float(y.std())
    return record


def _index_costs(n: int, m: int) -> Record:
    """Return the seconds of the neighbour index at n rows, without a fit and with one kernel."""
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
    return {"growing": growing.cpu, "building": building.cpu, "predict": predicting.cpu}


# --- page ----------------------------------------------------------------------------------------


def _about(records: list[Record]) -> str:
    found = {f"torch {r['torch']}, {r['machine']}" for r in scored(records)}
    return f"{'; '.join(sorted(found))}, 1 thread, CPU seconds; {COLUMNS} columns."


def _exact(records: list[Record]) -> str:
    lines = [
        [LABELS[r["model"]], f"{r['n']:,}", str(r["m"]), figure(r["first"]),
         figure(r["later"]), figure(r["repeat"]), figure(r["conditioning"]), figure(r["fit"]),
         figure(r["later"] / r["conditioning"]), figure(r["later"] / r["fit"]),
         figure(r["difference"], 2)]
        for r in scored(records) if r["model"] in EXACT
    ]  # fmt: skip
    header = ["model", "n", "m", "first update", "later update", "one repeated row"]
    header += ["conditioning anew", "refit", "later / conditioning", "later / refit", "difference"]
    words = (
        "The refit is a fit to n rows. The difference is the largest one between predictions (mean "
        "and standard deviation) of the updated model and of the one that was conditioned anew, in "
        "standard deviations of y."
    )
    return joined(words, markdown_table(header, lines))


def _neighbors(records: list[Record]) -> str:
    lines = [
        [LABELS[r["model"]], f"{r['n']:,}", str(r["m"]), figure(r["later"]),
         figure(r["predict"]), figure(r["fit"]), figure(r["later"] / r["fit"])]
        for r in scored(records) if r["model"] in LABELS and r["model"] not in EXACT
    ]  # fmt: skip
    header = ["model", "n", "m", "update", f"then {POINTS} predictions", "refit", "update / refit"]
    words = (
        "An update of a neighbour model predicts the new rows and copies rows; the next "
        "prediction builds the index."
    )
    return joined(words, markdown_table(header, lines))


def _index(records: list[Record]) -> str:
    found = [r for r in scored(records) if r["model"] == INDEX]
    lines = [
        [f"{r['n']:,}", figure(r["growing"]), figure(r["building"]), figure(r["predict"])]
        for r in sorted(found, key=lambda r: r["n"])
    ]
    header = ["n", "finding repeats, copying rows", "index of one metric", "1,000 predictions"]
    return joined(f"{INDEX_NEW} rows are added to n.", markdown_table(header, lines))


MEASUREMENT = Measurement(
    name="update_speed",
    about="What an update costs.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page(
        "Speed of updates",
        {
            "Updates of exact models": _exact,
            "Updates of neighbour models": _neighbors,
            "The neighbour index": _index,
        },
        about=_about,
        failed_by=("model", "n", "m"),
        counted="measurements",
    ),
    arguments=arguments,
    strategy=Workers(threads=1),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
