"""What an exact fit costs, against GPyTorch and against its own budgets, in one run.

a. The default model against a plain GPyTorch exact GP, on concrete and on 2000 rows of kin8nm. The
   peer trains one kernel once; ours searches, stacks, holds out and calibrates, and should cost no
   more. GPyTorch as installed, with its approximate solver, is shown beside it.
b. On power, where one factorisation takes seconds: how many of them a fit needs, beside the time of
   a bare Cholesky of the same size, the floor of any exact method.
c. Thirty rows: how long a user waits for a fit to a very small table.

All figures are for the number of threads given (one by default). Needs ``TWOSTAGEGP_DATA``.

    python -m benchmarks.exact_speed --no-power --redo
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import RESULTS
from benchmarks.gpytorch_exact import GPyTorchExact
from measurements.arguments import positive
from measurements.pages import Page, joined, scored
from measurements.runner import Measurement, Workers, run
from measurements.store import Record
from measurements.tables import MISSING, figure, markdown_table, yes_no
from measurements.timing import Timed
from twostagegp import TwoStageGPRegressor, datasets, metrics

__all__ = ["MEASUREMENT", "Cell", "Split", "against_gpytorch", "large_fit", "measure", "small_fit"]

Array = NDArray[np.float64]
#: Training inputs and target, test inputs and target.
Split = tuple[Array, Array, Array, Array]

RATIO_GOAL = 1.0
FACTORISATIONS_GOAL = 12
SMALL_SECONDS_GOAL = 0.3
KIN8NM_ROWS = 2000
PEERS = {
    "ours": "twostagegp, default",
    "gpytorch": "GPyTorch, Cholesky",
    "gpytorch_cg": "GPyTorch as installed (CG above 800 rows)",
}


#: Tables of part a: their labels on the page, and how many training rows are taken.
COMPARED = {"concrete": ("concrete", None), "kin8nm": ("kin8nm, a part", KIN8NM_ROWS)}


@dataclass(frozen=True)
class Cell:
    """One part of the benchmark.

    Attributes
    ----------
    part : str
        A table of part a, or ``"power"`` or ``"small"``.
    repeats : int
        Fits of each model in part a.
    threads : int
    """

    part: str
    repeats: int
    threads: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--repeats`` and ``--power``."""
    parser.add_argument("--repeats", type=positive, default=3, help="fits of each model in part a")
    parser.add_argument("--power", action=argparse.BooleanOptionalAction, default=True)


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return the parts, the shortest first."""
    parts = ["small"] if given.quick else ["small", *COMPARED, *["power"] * given.power]
    return [Cell(part, given.repeats, given.threads) for part in parts]


def measure(cell: Cell) -> Record:
    """Measure one part."""
    _warm_up()
    if cell.part == "small":
        return small_fit()
    if cell.part == "power":
        return large_fit(_split("power"))
    label, rows = COMPARED[cell.part]
    return against_gpytorch(label, _split(cell.part, rows), cell.repeats)


def against_gpytorch(label: str, split: Split, repeats: int) -> Record:
    """Fit all models in turns and take the median seconds of each."""
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
    facts: Record = {"table": label, "n": len(y)}
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


def large_fit(split: Split) -> Record:
    """Fit the default once and count its factorisations, beside the time of a bare one."""
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


def small_fit(n: int = 30, d: int = 3, repeats: int = 5) -> Record:
    """Return the median seconds of a fit, over one small table per repeat."""
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


# --- page ----------------------------------------------------------------------------------------


def _about(records: list[Record]) -> str:
    found = {
        f"torch {r['torch']}, {r['machine']}, {r['threads']} thread(s)" for r in scored(records)
    }
    return "; ".join(sorted(found)) + "." if found else ""


def _part(records: list[Record], part: str) -> Record | None:
    return next((r for r in scored(records) if r["part"] == part), None)


def _peer_section(records: list[Record]) -> str:
    found = [r for part in COMPARED if (r := _part(records, part)) is not None]
    if not found:
        return ""
    repeats = ", ".join(str(n) for n in sorted({r["repeats"] for r in found}))
    words = (
        f"Seconds per fit, median of {repeats}; goal: our CPU seconds are at most "
        f"{RATIO_GOAL:g} times those of GPyTorch with Cholesky. NLPD on the standardised target."
    )
    return joined(words, _peer_table(found))


def _power_section(records: list[Record]) -> str:
    found = _part(records, "power")
    return "" if found is None else _power_table(found)


def _small_section(records: list[Record]) -> str:
    small = _part(records, "small")
    if small is None:
        return ""
    met = yes_no(small["wall_seconds"] < SMALL_SECONDS_GOAL)
    return (
        f"{figure(small['wall_seconds'])} seconds per fit ({figure(small['cpu_seconds'])} CPU "
        f"seconds), median of {len(small['all'])}; goal: below {SMALL_SECONDS_GOAL:g} s; met: "
        f"{met}."
    )


def _peer_table(rows: list[Record]) -> str:
    header = ["table", "rows", "model", "CPU seconds", "seconds", "RMSE", "NLPD"]
    header += ["ours / theirs", "met"]
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


def _power_table(facts: Record) -> str:
    factorisations = facts["full_factorisations"]
    floor = facts["cholesky_cpu_seconds"]
    lines = [
        ["distinct rows", str(facts["n"])],
        [f"full factorisations (goal ≤ {FACTORISATIONS_GOAL})", str(factorisations)],
        ["goal met", yes_no(factorisations <= FACTORISATIONS_GOAL)],
        ["CPU seconds of the fit", figure(facts["cpu_seconds"])],
        ["seconds of the fit", figure(facts["wall_seconds"])],
        ["CPU seconds of one bare Cholesky", figure(floor)],
        ["CPU seconds of the fit / of one bare Cholesky", figure(facts["cpu_seconds"] / floor)],
        ["evaluations on a subset of the rows, in the warm start", str(facts["evaluations_saved"])],
        ["seconds saved by that, estimated", figure(facts["seconds_saved"])],
        ["test RMSE", figure(facts["rmse"])],
        ["test NLPD, standardised", figure(facts["nlpd_standardized"])],
    ]
    return markdown_table(["power, split 0", ""], lines)


def _accuracy(y_train: Array, y: Array, mean: Array, std: Array) -> Record:
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
    """Return standard split 0; with ``rows``, that many of its training rows, at random."""
    data = datasets.load(name)
    train, test = data.split(0)
    if rows is not None:
        train = np.random.default_rng(0).choice(train, size=rows, replace=False)
    return data.X[train], data.y[train], data.X[test], data.y[test]


@cache
def _warm_up() -> None:
    """Import and compile before the clock runs."""
    X = np.random.default_rng(0).normal(size=(20, 2))
    TwoStageGPRegressor(random_state=0, device="cpu").fit(X, X[:, 0]).predict(X, return_std=True)
    GPyTorchExact(steps=2).fit(X, X[:, 0]).predict(X + 0.1)


MEASUREMENT = Measurement(
    name="exact_speed",
    about="What an exact fit costs.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page(
        "Speed of exact fits",
        {
            "Default model against GPyTorch's exact GP": _peer_section,
            "Full factorisations on power": _power_section,
            "30 rows, 3 columns": _small_section,
        },
        about=_about,
        failed_by=("part",),
        counted="parts",
    ),
    arguments=arguments,
    key=("part",),
    strategy=Workers(threads=1),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
