"""How often ``update`` asks for a refit: on streams without a change, and after one.

A model is fitted to n rows; then n / 2 more arrive in batches. The share of streams in which the
evidence of docs/updating.md reaches its limit is the rate of false alarms on streams without a
change, and the power after a change; the rows until the alarm are counted too. The rule for tables
that have grown by half is left out. Streams of a seed with the same noise share one fit.

    python -m benchmarks.update_drift --seeds 0-99
"""

from __future__ import annotations

import argparse
import copy
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import RESULTS
from measurements.arguments import numbers
from measurements.pages import Page, joined, scored
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import markdown_table
from twostagegp import TwoStageGPRegressor
from twostagegp.errors import TwoStageGPWarning
from twostagegp.estimators.drift import LEVEL

__all__ = ["MEASUREMENT", "Cell", "measure"]

Array = NDArray[np.float64]
Rng = np.random.Generator
NOISE = 0.3
#: Streams without a change.
STEADY = {
    "noise": "Gaussian noise",
    "little": "noise a hundredth of the signal",
    "tails": "noise with t3 tails",
    "local": "noise that depends on x",
    "places": "each batch from one place",
}
#: Changes after the fit.
CHANGES = {
    "half": "noise × 1/2",
    "more": "noise × 1.5",
    "double": "noise × 2",
    "shift": "all targets + 0.5 noise sd",
    "shift 1": "all targets + 1 noise sd",
    "concept": "± 2 noise sd, by the sign of x0",
}


@dataclass(frozen=True)
class Cell:
    """One stream: its kind, the rows of the fit, the rows per batch, and the seed."""

    kind: str
    n: int
    batch: int
    seed: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--seeds``, ``--rows`` and ``--batches``."""
    parser.add_argument("--seeds", type=numbers, help="0-99 by default")
    parser.add_argument("--rows", type=numbers, help="rows of the fits; 60,200 by default")
    parser.add_argument("--batches", type=numbers, default=[1, 10])


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return all streams; those that share a fit follow each other."""
    return [
        Cell(kind, n, batch, seed)
        for seed in given.seeds or (range(1) if given.quick else range(100))
        for n in given.rows or ([20] if given.quick else [60, 200])
        for kind in (*STEADY, *CHANGES)
        for batch in (given.batches if kind in STEADY else given.batches[-1:])
    ]


def measure(cell: Cell) -> Record:
    """Return the rows after which the evidence reaches its limit; 0 if it never does."""
    rng = np.random.default_rng([cell.seed, 1])
    noise = cell.kind if cell.kind in ("little", "tails", "local") else "noise"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TwoStageGPWarning)
        model = _fitted(noise, cell.n, cell.seed)
        alarm = _alarm(model, lambda m: _rows(cell.kind, m, rng, False), cell.n // 2, cell.batch)
    return {"alarm": alarm}


@lru_cache(maxsize=4)
def _fitted(noise: str, n: int, seed: int) -> Any:
    X, y = _rows(noise, n, np.random.default_rng(seed), fitting=True)
    return TwoStageGPRegressor(kernels=("rbf", "matern32"), random_state=0).fit(X, y)


def _function(X: Array) -> Array:
    return np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1]


def _noise(kind: str, X: Array, rng: Rng) -> Array:
    n = len(X)
    if kind == "little":
        return 0.007 * rng.normal(size=n)
    if kind == "tails":
        return NOISE / np.sqrt(3.0) * rng.standard_t(3, size=n)
    if kind == "local":
        return NOISE * np.exp(0.5 * X[:, 0]) * rng.normal(size=n)
    return NOISE * rng.normal(size=n)


def _rows(kind: str, n: int, rng: Rng, fitting: bool) -> tuple[Array, Array]:
    X = rng.uniform(-2.0, 2.0, size=(n, 2))
    if kind == "places" and not fitting:
        X = np.clip(rng.uniform(-2.0, 2.0, size=2) + 0.2 * rng.normal(size=(n, 2)), -2.0, 2.0)
    noise = _noise(kind, X, rng)
    if not fitting:
        noise = noise * {"half": 0.5, "more": 1.5, "double": 2.0}.get(kind, 1.0)
        noise = noise + {"shift": 0.5 * NOISE, "shift 1": NOISE}.get(kind, 0.0)
        if kind == "concept":
            noise = noise + 2.0 * NOISE * np.sign(X[:, 0])
    return X, _function(X) + noise


def _alarm(model: Any, draw: Callable[[int], tuple[Array, Array]], rows: int, batch: int) -> int:
    """Return the rows after which the evidence reaches its limit; 0 if it never does."""
    model = copy.deepcopy(model)
    for seen in range(batch, rows + 1, batch):
        model.update(*draw(batch))
        if model.fit_report_.updates[-1]["evidence"] >= 1.0 / LEVEL:
            return seen
    return 0


def _share(found: Sequence[Record]) -> str:
    alarms = sum(record["alarm"] > 0 for record in found)
    return f"{alarms / len(found):.2f}" if found else "–"


def _of(records: Sequence[Record], kind: str, n: int, batch: int) -> list[Record]:
    return [r for r in records if (r["kind"], r["n"], r["batch"]) == (kind, n, batch)]


def _steady(records: Sequence[Record]) -> str:
    pairs = [
        (n, batch)
        for n in sorted({r["n"] for r in records})
        for batch in sorted({r["batch"] for r in records})
    ]
    return markdown_table(
        ["stream", *(f"n = {n}, batches of {batch}" for n, batch in pairs)],
        [
            [text, *(_share(_of(records, kind, *pair)) for pair in pairs)]
            for kind, text in STEADY.items()
        ],
    )


def _changed(records: Sequence[Record], batch: int) -> str:
    sizes = sorted({r["n"] for r in records})
    header = ["change"]
    for n in sizes:
        header += [f"n = {n}: share of alarms", "median rows to it"]
    rows = []
    for kind, text in CHANGES.items():
        line = [text]
        for n in sizes:
            found = _of(records, kind, n, batch)
            took = [r["alarm"] for r in found if r["alarm"]]
            line += [_share(found), f"{statistics.median(took):.0f}" if took else "–"]
        rows.append(line)
    return markdown_table(header, rows)


def _steady_section(records: list[Record]) -> str:
    words = (
        "Share of streams with a false alarm at any time; at most "
        f"{LEVEL:g} is expected of a calibrated model and independent rows."
    )
    return joined(words, _steady(scored(records)))


def _changed_section(records: list[Record]) -> str:
    fine = scored(records)
    batch = max(r["batch"] for r in fine)
    return joined(f"Batches of {batch}.", _changed(fine, batch))


def _about(records: list[Record]) -> str:
    seeds = len({r["seed"] for r in scored(records)})
    return f"{seeds} fits for each n, two columns, half as many new rows as n."


MEASUREMENT = Measurement(
    name="update_drift",
    about="How often update asks for a refit.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page(
        "Alarms of update",
        {
            "Streams without a change": _steady_section,
            "Streams after a change": _changed_section,
        },
        about=_about,
        failed_by=("kind", "n", "batch", "seed"),
        counted="streams",
    ),
    arguments=arguments,
)

if __name__ == "__main__":
    # Imported by name: worker processes do not find cached functions of __main__.
    from benchmarks.update_drift import MEASUREMENT as MEASUREMENT_BY_NAME

    raise SystemExit(run(MEASUREMENT_BY_NAME))
