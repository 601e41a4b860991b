"""What an exact fit costs, against GPyTorch and against its own budgets, in one run.

a. The default model against a plain GPyTorch exact GP, on concrete and on 2000 rows of kin8nm. The
   peer trains one kernel once; ours searches, stacks, holds out and calibrates, and is to cost no
   more. GPyTorch as installed, with its approximate solver, stands beside it.
b. On power, where one factorisation takes seconds: how many of them a fit needs, beside the time of
   a bare Cholesky of the same size, the floor of any exact method.
c. Thirty rows: what a user waits for the smallest of tables.

All of it holds for the number of threads given (one by default). Needs ``TWOSTAGEGP_DATA``.

    python -m benchmarks.exact_speed --no-power
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import twostagegp
from benchmarks import RESULTS
from benchmarks.gpytorch_exact import GPyTorchExact
from measurements.provenance import code_version
from measurements.store import plain, write_whole
from measurements.tables import MISSING, figure, markdown_table, yes_no
from measurements.timing import Timed, use_threads
from twostagegp import TwoStageGPRegressor, datasets, metrics

__all__ = ["Split", "against_gpytorch", "large_fit", "main", "small_fit"]

Array = NDArray[np.float64]
#: Training inputs and target, test inputs and target.
Split = tuple[Array, Array, Array, Array]
Facts = dict[str, Any]

RATIO_GOAL = 1.0
FACTORISATIONS_GOAL = 12
SMALL_SECONDS_GOAL = 0.3
KIN8NM_ROWS = 2000
PEERS = {
    "ours": "twostagegp, default",
    "gpytorch": "GPyTorch, Cholesky",
    "gpytorch_cg": "GPyTorch as installed (CG above 800 rows)",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, then write and print the table."""
    given = _parser().parse_args(arguments)
    use_threads(given.threads)
    _warm_up()
    facts: Facts = {
        "version": twostagegp.__version__,
        "code": code_version(),
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
        "threads": given.threads,
        "repeats": given.repeats,
    }
    facts["small"] = small_fit()
    facts["gpytorch"] = [
        against_gpytorch("concrete", _split("concrete"), given.repeats),
        against_gpytorch("kin8nm, a part", _split("kin8nm", KIN8NM_ROWS), given.repeats),
    ]
    if given.power:
        facts["power"] = large_fit(_split("power"))
    page = report(facts)
    write_whole(given.results / "exact_speed.json", json.dumps(plain(facts), indent=2) + "\n")
    write_whole(given.results / "exact_speed.md", page)
    print(page)
    return 0


def against_gpytorch(label: str, split: Split, repeats: int) -> Facts:
    """Fit all, in turns, and take the median seconds of each."""
    X, y, X_test, y_test = split
    makers: dict[str, Callable[[], Any]] = {
        "ours": lambda: TwoStageGPRegressor(random_state=0, device="cpu"),
        "gpytorch": GPyTorchExact,
        "gpytorch_cg": lambda: GPyTorchExact(cholesky=False),
    }
    models: dict[str, Any] = {}
    took: dict[str, list[Timed]] = {who: [] for who in makers}
    for _ in range(repeats):
        for who, make in makers.items():
            with Timed() as timed:
                models[who] = make().fit(X, y)
            took[who].append(timed)
            print(f"{label}: {who} {timed.cpu:.2f} CPU s", flush=True)
    facts: Facts = {"table": label, "n": len(y)}
    for who, model in models.items():
        predicted = model.predict(X_test, return_std=True)
        facts[who] = {
            "cpu_seconds": median(timed.cpu for timed in took[who]),
            "wall_seconds": median(timed.wall for timed in took[who]),
            **_accuracy(y, y_test, *predicted),
        }
    for peer in ("gpytorch", "gpytorch_cg"):
        facts[peer]["ratio"] = facts["ours"]["cpu_seconds"] / facts[peer]["cpu_seconds"]
    return facts


def large_fit(split: Split) -> Facts:
    """One default fit: its factorisations on all rows, its seconds, and those of a bare one."""
    X, y, X_test, y_test = split
    with Timed() as took:
        model = TwoStageGPRegressor(random_state=0, device="cpu").fit(X, y)
    fitted = model.fit_report_
    return {
        "n": fitted.n_distinct_rows,
        "full_factorisations": fitted.full_factorizations,
        "full_evaluations": fitted.full_evaluations,
        "evaluations_saved": fitted.evaluations - fitted.full_evaluations,
        "seconds_saved": fitted.seconds_saved,
        "cpu_seconds": took.cpu,
        "wall_seconds": took.wall,
        "cholesky_cpu_seconds": _bare_cholesky(fitted.n_distinct_rows),
        **_accuracy(y, y_test, *model.predict(X_test, return_std=True)),
    }


def small_fit(n: int = 30, d: int = 3, repeats: int = 5) -> Facts:
    """Median seconds of a fit over as many small tables."""
    seconds = []
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n, d))
        y = np.sin(X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=n)
        with Timed() as took:
            TwoStageGPRegressor(random_state=0, device="cpu").fit(X, y)
        seconds.append((took.wall, took.cpu))
    wall, cpu = np.median(seconds, axis=0).tolist()
    return {"n": n, "d": d, "wall_seconds": wall, "cpu_seconds": cpu, "all": seconds}


def report(facts: Facts) -> str:
    """The Markdown page."""
    small = facts["small"]
    parts = [
        "# Speed of exact fits\n",
        f"twostagegp {facts['version']} (source {facts['code']}), torch {facts['torch']}, "
        f"{facts['machine']}, {facts['threads']} thread(s).\n",
        "## Default model against GPyTorch's exact GP\n",
        f"Seconds of a fit, median of {facts['repeats']}; goal: our CPU seconds over those of the "
        f"peer that factorises too at most {RATIO_GOAL:g}. NLPD on the standardised target.\n",
        _peer_table(facts["gpytorch"]),
    ]
    if "power" in facts:
        parts += ["## Full factorisations on power\n", _power_table(facts["power"])]
    met = yes_no(small["wall_seconds"] < SMALL_SECONDS_GOAL)
    parts += [
        f"## {small['n']} rows, {small['d']} columns\n",
        f"{figure(small['wall_seconds'])} s a fit ({figure(small['cpu_seconds'])} CPU s), median "
        f"of {len(small['all'])}; goal: below {SMALL_SECONDS_GOAL:g} s; met: {met}.\n",
    ]
    return "\n".join(parts)


def _peer_table(rows: list[Facts]) -> str:
    header = ["table", "rows", "model", "CPU s", "wall s", "RMSE", "NLPD", "ours / theirs", "met"]
    lines = []
    for row in rows:
        for who, name in PEERS.items():
            fields = ("cpu_seconds", "wall_seconds", "rmse", "nlpd_standardized")
            cells = [figure(row[who][field]) for field in fields]
            ratio = row[who].get("ratio")
            # The goal is set against the peer that solves the same problem exactly.
            met = yes_no(ratio <= RATIO_GOAL) if who == "gpytorch" else MISSING
            lines.append([row["table"], str(row["n"]), name, *cells, figure(ratio), met])
    return markdown_table(header, lines)


def _power_table(facts: Facts) -> str:
    factorisations = facts["full_factorisations"]
    floor = facts["cholesky_cpu_seconds"]
    lines = [
        ["distinct rows", str(facts["n"])],
        [f"full factorisations (goal ≤ {FACTORISATIONS_GOAL})", str(factorisations)],
        ["goal met", yes_no(factorisations <= FACTORISATIONS_GOAL)],
        ["CPU s of the fit", figure(facts["cpu_seconds"])],
        ["wall s of the fit", figure(facts["wall_seconds"])],
        ["CPU s of one bare Cholesky", figure(floor)],
        ["the fit in bare Choleskys", figure(facts["cpu_seconds"] / floor)],
        ["evaluations spared all rows by the warm start", str(facts["evaluations_saved"])],
        ["seconds so saved, estimated", figure(facts["seconds_saved"])],
        ["test RMSE", figure(facts["rmse"])],
        ["test NLPD, standardised", figure(facts["nlpd_standardized"])],
    ]
    return markdown_table(["power, split 0", ""], lines)


def _accuracy(y_train: Array, y: Array, mean: Array, std: Array) -> Facts:
    scores = metrics.evaluate(y, mean, std, y_train=y_train)
    return {name: scores[name] for name in ("rmse", "nlpd_standardized")}


def _bare_cholesky(n: int) -> float:
    X = torch.rand(n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    K = torch.cdist(X, X).square_().mul_(-0.5).exp_()
    K.diagonal().add_(1.0)
    with Timed() as took:
        torch.linalg.cholesky(K)
    return took.cpu


def _split(name: str, rows: int | None = None) -> Split:
    """Standard split 0; with ``rows``, so many of its training rows, drawn by a fixed seed."""
    data = datasets.load(name)
    train, test = data.split(0)
    if rows is not None:
        train = np.random.default_rng(0).choice(train, size=rows, replace=False)
    return data.X[train], data.y[train], data.X[test], data.y[test]


def _warm_up() -> None:
    """Pay for imports and first calls before the clock runs."""
    X = np.random.default_rng(0).normal(size=(20, 2))
    TwoStageGPRegressor(random_state=0, device="cpu").fit(X, X[:, 0]).predict(X, return_std=True)
    GPyTorchExact(steps=2).fit(X, X[:, 0]).predict(X + 0.1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.exact_speed", description="What an exact fit costs."
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3, help="fits of each model in part a")
    parser.add_argument("--power", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
