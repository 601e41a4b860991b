"""Exact fits as far as one device goes: seconds, memory and accuracy against the number of rows.

Random rows of ``flights`` (8 columns, heavy-tailed target), 10,000 others to predict with
intervals. Beside each fit stand the arithmetic that it cannot do without (its factorisations of
all rows, and the diagonals of their inverses) at the rate of a matrix product measured in the same
run, and GPyTorch's exact GP in its two documented ways. ``--algebra`` measures the blocked
factorisation alone, in float64 and in float32 with refinement. Every result is kept as soon as it
is known. Needs ``TWOSTAGEGP_DATA``.

    python -m benchmarks.exact_scale --device cuda --rows 10000,20000,50000,100000
    python -m benchmarks.exact_scale --device cuda --rows 10000,20000,50000 --models cholesky,cg
    python -m benchmarks.exact_scale --device cpu --rows 10000,20000 --algebra
    python -m benchmarks.exact_scale --device cuda --rows 5000 --sets kin8nm,power --only-algebra
"""

from __future__ import annotations

import argparse
import math
import resource
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import RESULTS
from benchmarks.exact_scale_peers import GPyTorchOnDevice
from measurements.arguments import names
from measurements.pages import Page, scored
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import figure, markdown_table
from twostagegp import TwoStageGPRegressor, datasets, metrics
from twostagegp.data.rows import Rows
from twostagegp.engines.exact.engine import ExactEngine, ExactPosterior
from twostagegp.engines.exact.large import LargeProblem
from twostagegp.engines.memory import exact_bytes
from twostagegp.engines.problem import Problem
from twostagegp.kernels import NamedKernel
from twostagegp.pipeline.settings import DEFAULTS, ExactSettings, Settings
from twostagegp.training.optimise import minimise

__all__ = ["MEASUREMENT", "Cell", "measure", "measure_algebra", "measure_derivatives"]

Array = NDArray[np.float64]
QUERIES = 10_000
_PATHS = ("dense", "large")
#: Seconds that a default fit and its predictions may take on an H200.
GOALS = {10_000: 5.0, 20_000: 12.0, 50_000: 90.0, 100_000: 240.0}
LABELS = {
    "ours": "twostagegp, default",
    "cholesky": "GPyTorch, Cholesky, float64",
    "cg": "GPyTorch as installed, float32",
}


@dataclass(frozen=True)
class Cell:
    """One measurement at one number of rows.

    Attributes
    ----------
    kind : str
        A key of ``MEASURES``.
    place : str
        Name of the device.
    device : str
        As torch names its type.
    model : str
        The model, number type, objective or table, depending on the kind.
    rows, threads : int
    cap : float
        Seconds after which the training of another library stops.
    """

    kind: str
    place: str
    device: str
    model: str
    rows: int
    threads: int
    cap: float


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add what is measured and where."""
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=_whole_numbers, help="10000 by default")
    parser.add_argument("--models", type=names(LABELS), default=["ours"])
    parser.add_argument("--algebra", action="store_true")
    parser.add_argument("--derivatives", action="store_true")
    parser.add_argument("--sets", type=lambda text: text.split(","), default=[])
    parser.add_argument("--only-algebra", action="store_true", help="no fits")
    parser.add_argument("--threads", type=int, help="default: as many as torch takes")
    parser.add_argument("--cap", type=float, default=120.0, help="seconds of a peer's training")


def _whole_numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return everything that is asked for, size by size."""
    device = torch.device(given.device)
    threads = given.threads or torch.get_num_threads()
    is_gpu = device.type == "cuda"
    place = torch.cuda.get_device_name(device) if is_gpu else f"CPU, {threads} threads"
    wanted = [] if given.only_algebra else [("fit", model) for model in given.models]
    if given.algebra:
        wanted += [("algebra", "float64"), ("algebra", "float32")]
    if given.derivatives:
        wanted += [("derivatives", "loo"), ("derivatives", "nll"), ("derivatives", "heldout")]
    wanted += [("paths", name) for name in given.sets]
    return [
        Cell(kind, place, device.type, model, n, threads, given.cap)
        for n in given.rows or ([500] if given.quick else [10_000])
        for kind, model in wanted
    ]


def measure(cell: Cell) -> Record:
    """Measure one cell, beside the device's rate of a matrix product."""
    torch.set_num_threads(cell.threads)
    device = torch.device(cell.device)
    rate = matrix_product_rate(device)
    try:
        return {"rate": rate, **MEASURES[cell.kind](cell.rows, cell.model, device, cell.cap)}
    finally:
        if cell.device == "cuda":
            torch.cuda.empty_cache()


@cache
def matrix_product_rate(device: torch.device) -> float:
    """Return the operations per second of a large float64 matrix product, the best of three."""
    m = 8192 if device.type == "cuda" else 3000
    A = torch.ones(m, m, dtype=torch.float64, device=device)
    best = math.inf
    for _ in range(3):
        _wait(device)
        begin = time.perf_counter()
        torch.mm(A, A)
        _wait(device)
        best = min(best, time.perf_counter() - begin)
    return 2.0 * m**3 / best


def measure_fit(n: int, model: str, device: torch.device, cap: float) -> Record:
    """Measure one fit and 10,000 predictions with intervals."""
    X, y, X_new, y_new = _split(n)
    if model == "ours":
        small = TwoStageGPRegressor(method="exact", device=str(device), random_state=0)
        small.fit(X[:300], y[:300])  # compiled and loaded before the clock starts
    begin_cpu = time.process_time()
    with Peak(device) as peak:
        begin = time.perf_counter()
        if model == "ours":
            ours = TwoStageGPRegressor(method="exact", device=str(device), random_state=0)
            ours.fit(X, y)
            fitted = time.perf_counter()
            mean, std = ours.predict(X_new, return_std=True)
            interval = ours.predict_interval(X_new, level=0.95)
        else:
            peer = GPyTorchOnDevice(model, str(device), cap).fit(X, y)
            fitted = time.perf_counter()
            mean, std = peer.predict(X_new)
            interval = np.column_stack([mean - 1.96 * std, mean + 1.96 * std])
        end = time.perf_counter()
    record: Record = {
        "fit_seconds": fitted - begin,
        "predict_seconds": end - fitted,
        "cpu_seconds": time.process_time() - begin_cpu,
        "peak_bytes": peak.bytes,
        "rmse": metrics.rmse(y_new, mean),
        "coverage": metrics.coverage(y_new, interval=interval),
    }
    if model != "ours":
        z = (y_new - mean) / std
        density = -0.5 * z**2 - np.log(std) - 0.5 * math.log(2.0 * math.pi)
        return record | {"nlpd": -float(density.mean()), "steps": peer.steps}
    told = ours.fit_report_
    m = told.n_distinct_rows
    arithmetic = told.full_factorizations * 2.0 * m**3 / 3.0 + QUERIES * float(m) ** 2
    return record | {
        "nlpd": -float(np.mean(ours.predict_logpdf(X_new, y_new))),
        "factorisations": told.full_factorizations,
        "arithmetic": arithmetic,
        "predicted_bytes": exact_bytes(m, device),
        "seconds": told.seconds,
        "mean": told.mean,
        "variance": told.variance,
    }


def measure_algebra(n: int, model: str, device: torch.device, cap: float) -> Record:
    """Measure a factor, its solution, held-out residuals, and their errors against float64."""
    rows = _rows(n, device)
    kernel, parameters = _example()
    dtype = getattr(torch, model)
    record: Record = {}
    # The first use of a device pays for its libraries' start.
    ExactPosterior(kernel, parameters, rows.subset(np.arange(min(n, 3000))), dtype).heldout()
    with Peak(device) as peak:
        _wait(device)
        begin = time.perf_counter()
        posterior = ExactPosterior(kernel, parameters, rows, dtype)
        _wait(device)
        record["factor_seconds"] = time.perf_counter() - begin
        begin = time.perf_counter()
        held = posterior.heldout()
        _wait(device)
        record["heldout_seconds"] = time.perf_counter() - begin
    record |= {"peak_bytes": peak.bytes, "jitter": posterior.jitter}
    record["predicted_bytes"] = exact_bytes(n, device, dtype.itemsize)
    posterior.drop_factor()
    if model == "float32" and exact_bytes(n, device) < 0.9 * _all_bytes(device):
        whole = ExactPosterior(kernel, parameters, rows)
        right = whole.heldout()
        record["solution_error"] = _relative(posterior.alpha, whole.alpha)
        record["residual_error"] = _relative(held.residual, right.residual)
        record["variance_error"] = float((held.variance / right.variance - 1.0).abs().max())
    return record


def measure_derivatives(n: int, model: str, device: torch.device, cap: float) -> Record:
    r"""Compare derivatives from random signs with exact ones, at trained hyperparameters.

    The error is in standard errors of the parameters: with the Hessian H of the mean objective over
    n rows, the Newton step of an error e is :math:`H^{-1} e`, and the standard error of the
    parameters is about :math:`(n H)^{-1/2}`; ``in_standard_errors`` is the root mean square over
    parameters of their ratio.
    """
    rows = _rows(n, device)
    kernel, _ = _example()
    R = None
    if model == "heldout":
        draws = np.random.default_rng(5).chisquare(1, size=n)
        R = torch.as_tensor(0.3 * draws, device=device)
    name: Any = model
    some = np.arange(min(n, 3000))
    part = ExactEngine(rows.subset(some)).problem(kernel, name, None if R is None else R[some])
    found = minimise(part, steps=30)
    x, H_inverse = found.parameters, found.inverse_hessian
    assert H_inverse is not None
    _wait(device)
    begin = time.perf_counter()
    _, right = Problem(kernel, rows, name, R)(x)
    dense_seconds = time.perf_counter() - begin
    begin = time.perf_counter()
    _, estimated = LargeProblem(kernel, rows, name, R)(x)
    seconds = time.perf_counter() - begin
    step = H_inverse @ (estimated - right)
    spread = np.sqrt(np.maximum(np.diag(H_inverse), 1e-300) / n)
    return {
        "dense_seconds": dense_seconds,
        "large_seconds": seconds,
        "largest_step": float(np.abs(step).max()),
        "in_standard_errors": float(np.sqrt(np.mean((step / spread) ** 2))),
    }


def measure_paths(n: int, model: str, device: torch.device, cap: float) -> Record:
    """Fit the default to a part of a table, with all matrices in memory and with one at a time."""
    data = datasets.load(model)
    X, y = np.asarray(data.X, dtype=np.float64), np.asarray(data.y, dtype=np.float64)
    order = np.random.default_rng(1).permutation(len(y))
    train, test = order[:n], order[n : n + 2000]
    record: Record = {}
    for path, limit in (("dense", 10**9), ("large", DEFAULTS.exact.blocked_rows)):
        settings = Settings(exact=ExactSettings(blocked_rows=limit))
        begin = time.perf_counter()
        ours = TwoStageGPRegressor(
            method="exact", device=str(device), random_state=0, settings=settings
        )
        ours.fit(X[train], y[train])
        record[f"{path}_seconds"] = time.perf_counter() - begin
        record[f"{path}_rmse"] = metrics.rmse(y[test], ours.predict(X[test]))
        record[f"{path}_nlpd"] = -float(np.mean(ours.predict_logpdf(X[test], y[test])))
    return record


MEASURES: dict[str, Callable[[int, str, torch.device, float], Record]] = {
    "paths": measure_paths,
    "fit": measure_fit,
    "algebra": measure_algebra,
    "derivatives": measure_derivatives,
}


class Peak:
    """The largest memory in bytes: allocated by torch on a GPU, or resident beyond the start.

    A thread looks at the resident memory every 50 ms.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bytes = 0

    def __enter__(self) -> Peak:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
            return self
        self._begin = _resident()
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.device.type == "cuda":
            self.bytes = torch.cuda.max_memory_allocated(self.device)
            return
        self._done.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._done.wait(0.05):
            self.bytes = max(self.bytes, _resident() - self._begin)


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _all_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    with open("/proc/meminfo", encoding="ascii") as file:
        return float(file.readline().split()[1]) * 1024


def _relative(found: torch.Tensor, right: torch.Tensor) -> float:
    return float((found - right).norm() / right.norm())


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _split(n: int) -> tuple[Array, Array, Array, Array]:
    data = datasets.load("flights")
    X, y = np.asarray(data.X, dtype=np.float64), np.asarray(data.y, dtype=np.float64)
    order = np.random.default_rng(0).permutation(len(y))
    test, train = order[:QUERIES], order[QUERIES : QUERIES + n]
    return X[train], y[train], X[test], y[test]


def _rows(n: int, device: torch.device) -> Rows:
    """Return standardised rows; repeated rows are not merged."""
    X, y, _, _ = _split(n)
    X = (X - X.mean(0)) / X.std(0)
    t = torch.as_tensor((y - y.mean()) / y.std(), device=device)
    one = torch.ones_like(t)
    return Rows(torch.as_tensor(X, device=device), t, one, 0.0 * one, 0.0 * one)


def _example() -> tuple[NamedKernel, Array]:
    """Return an ARD kernel and typical hyperparameters; the noise is a tenth of the variance."""
    kernel = NamedKernel("matern32", 8, ard=True)
    return kernel, np.append(kernel.start(), math.log(0.1))


# --- page ----------------------------------------------------------------------------------------


def _of_kind(kind: str, table: Callable[[list[Record]], str]) -> Callable[[list[Record]], str]:
    """Return a section on the records of one kind; empty without records."""

    def section(records: list[Record]) -> str:
        some = [r for r in scored(records) if r["kind"] == kind]
        return table(some) if some else ""

    return section


def _fit_table(records: list[Record]) -> str:
    head = ["device", "model", "rows", "fit, s", "10,000 predictions, s", "goal, s",
            "arithmetic at the product's rate, s", "share", "peak GiB", "foreseen GiB",
            "RMSE", "NLPD", "95 % holds"]  # fmt: skip
    rows = []
    for r in sorted(records, key=lambda r: (r["place"], r["rows"], -("arithmetic" in r))):
        both = r["fit_seconds"] + r["predict_seconds"]
        floor = r["arithmetic"] / r["rate"] if "arithmetic" in r else None
        goal = GOALS.get(r["rows"]) if r["device"] == "cuda" and r["model"] == "ours" else None
        steps = f" ({r['steps']} of 50 steps)" if r.get("steps", 50) < 50 else ""
        rows.append([
            r["place"], LABELS[r["model"]] + steps, f"{r['rows']:,}", figure(r["fit_seconds"]),
            figure(r["predict_seconds"]), "" if goal is None else f"{goal:.0f}",
            "" if floor is None else figure(floor),
            "" if floor is None else f"{floor / both:.0%}",
            figure(r["peak_bytes"] / 2**30),
            figure(r["predicted_bytes"] / 2**30) if "predicted_bytes" in r else "",
            figure(r["rmse"]), figure(r["nlpd"]), f"{r['coverage']:.1%}",
        ])  # fmt: skip
    return markdown_table(head, rows)


def _growth(records: list[Record]) -> str:
    """Return the exponents of growth between neighbouring sizes."""
    lines = []
    for place in sorted({r["place"] for r in records}):
        ours = sorted(
            (r for r in records if r["place"] == place and r["model"] == "ours"),
            key=lambda r: r["rows"],
        )
        for small, large in pairwise(ours):
            ratio = math.log(large["rows"] / small["rows"])
            seconds = math.log(large["fit_seconds"] / small["fit_seconds"]) / ratio
            memory = math.log(large["peak_bytes"] / small["peak_bytes"]) / ratio
            lines.append(
                [
                    place,
                    f"{small['rows']:,} to {large['rows']:,}",
                    f"{seconds:.2f}",
                    f"{memory:.2f}",
                ]
            )
    return markdown_table(["device", "rows", "exponent of seconds", "exponent of memory"], lines)


def _algebra_table(records: list[Record]) -> str:
    head = ["device", "factor in", "rows", "factor and solution, s", "share of the product's rate",
            "held-out, s", "share", "peak GiB", "foreseen GiB", "error of the solution",
            "of held-out residuals", "of held-out variances"]  # fmt: skip
    rows = []
    for r in sorted(records, key=lambda r: (r["place"], r["rows"], r["model"] != "float64")):
        floor = r["rows"] ** 3 / 3.0 / r["rate"]
        errors = [r.get(f"{name}_error") for name in ("solution", "residual", "variance")]
        rows.append([
            r["place"], r["model"], f"{r['rows']:,}", figure(r["factor_seconds"]),
            f"{floor / r['factor_seconds']:.0%}", figure(r["heldout_seconds"]),
            f"{floor / r['heldout_seconds']:.0%}", figure(r["peak_bytes"] / 2**30),
            figure(r["predicted_bytes"] / 2**30),
            *["" if error is None else f"{error:.1e}" for error in errors],
        ])  # fmt: skip
    return markdown_table(head, rows)


def _derivative_table(records: list[Record]) -> str:
    head = ["device", "objective", "rows", "all matrices, s", "random signs, s",
            "largest Newton step of the error", "in standard errors of a parameter"]  # fmt: skip
    rows = [
        [r["place"], r["model"], f"{r['rows']:,}", figure(r["dense_seconds"]),
         figure(r["large_seconds"]), f"{r['largest_step']:.1e}", figure(r["in_standard_errors"])]
        for r in sorted(records, key=lambda r: (r["place"], r["rows"], r["model"]))
    ]  # fmt: skip
    return markdown_table(head, rows)


def _path_table(records: list[Record]) -> str:
    head = ["set", "rows", "s, all matrices", "s, one", "RMSE, all matrices", "RMSE, one",
            "NLPD, all matrices", "NLPD, one"]  # fmt: skip
    rows = []
    for r in sorted(records, key=lambda r: (r["model"], r["rows"])):
        both = [r[f"{path}_{what}"] for what in ("seconds", "rmse", "nlpd") for path in _PATHS]
        rows.append([r["model"], f"{r['rows']:,}", *[figure(value, 4) for value in both]])
    return markdown_table(head, rows)


SECTIONS = {
    "Fits": _of_kind("fit", _fit_table),
    "Growth": _of_kind("fit", _growth),
    "Factorisations": _of_kind("algebra", _algebra_table),
    "Derivatives": _of_kind("derivatives", _derivative_table),
    "Both ways": _of_kind("paths", _path_table),
}
MEASUREMENT = Measurement(
    name="exact_scale",
    about="Exact fits as far as one device goes.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page(
        "Exact fits as far as one device goes",
        SECTIONS,
        failed_by=("kind", "place", "model", "rows"),
        counted="measurements",
    ),
    arguments=arguments,
    key=("kind", "place", "model", "rows"),
)

if __name__ == "__main__":
    # Imported by name: worker processes do not find cached functions of __main__.
    from benchmarks.exact_scale import MEASUREMENT as MEASUREMENT_BY_NAME

    raise SystemExit(run(MEASUREMENT_BY_NAME))
