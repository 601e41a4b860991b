"""How often ``update`` asks for a refit: on streams without a change, and after one.

A model is fitted to n rows; then as many as half of that come in, in batches. On streams without a
change the share that ever raises the evidence of docs/updating.md to its limit is the rate of false
alarms; after a change it is the power, with the rows that it took. The rule for rows that have
grown by half is left out. All streams of a seed share one fit.

    python -m benchmarks.update_drift --seeds 0-99
"""

from __future__ import annotations

import argparse
import copy
import statistics
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import twostagegp
from benchmarks import RESULTS
from measurements.arguments import numbers
from measurements.provenance import code_version
from measurements.store import JsonLines, Record, write_whole
from measurements.tables import markdown_table
from measurements.timing import use_threads
from twostagegp import TwoStageGPRegressor
from twostagegp.errors import TwoStageGPWarning
from twostagegp.estimators.drift import LEVEL

__all__ = ["main"]

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
    """Rows after which the evidence reaches its limit; 0 where it never does."""
    model = copy.deepcopy(model)
    for seen in range(batch, rows + 1, batch):
        model.update(*draw(batch))
        if model.fit_report_.updates[-1]["evidence"] >= 1.0 / LEVEL:
            return seen
    return 0


def _measure(seed: int, n: int, batches: Sequence[int]) -> list[Record]:
    records: list[Record] = []
    fits: dict[str, Any] = {}
    for kind in (*STEADY, *CHANGES):
        base = kind if kind in ("little", "tails", "local") else "noise"
        if base not in fits:
            X, y = _rows(base, n, np.random.default_rng(seed), fitting=True)
            model = TwoStageGPRegressor(kernels=("rbf", "matern32"), random_state=0)
            fits[base] = model.fit(X, y)
        for batch in batches if kind in STEADY else batches[-1:]:
            rng = np.random.default_rng([seed, 1])
            seen = _alarm(fits[base], lambda m, k=kind, r=rng: _rows(k, m, r, False), n // 2, batch)
            records.append(
                {"kind": kind, "n": n, "batch": batch, "seed": seed, "alarm": seen,
                 "code": code_version()}
            )  # fmt: skip
    return records


def _share(found: Sequence[Record]) -> str:
    alarms = sum(record["alarm"] > 0 for record in found)
    return f"{alarms / len(found):.2f}" if found else "–"


def _page(records: Sequence[Record]) -> str:
    def of(kind: str, n: int, batch: int) -> list[Record]:
        wanted = (kind, n, batch)
        return [r for r in records if (r["kind"], r["n"], r["batch"]) == wanted]

    sizes = sorted({r["n"] for r in records})
    batches = sorted({r["batch"] for r in records})
    pairs = [(n, batch) for n in sizes for batch in batches]
    steady = markdown_table(
        ["stream", *(f"n = {n}, batches of {batch}" for n, batch in pairs)],
        [[text, *(_share(of(kind, *pair)) for pair in pairs)] for kind, text in STEADY.items()],
    )
    rows = []
    for kind, text in CHANGES.items():
        line = [text]
        for n in sizes:
            found = of(kind, n, batches[-1])
            took = [r["alarm"] for r in found if r["alarm"]]
            line += [_share(found), f"{statistics.median(took):.0f}" if took else "–"]
        rows.append(line)
    header = ["change"]
    for n in sizes:
        header += [f"n = {n}: share of alarms", "median rows to it"]
    seeds, codes = (
        len({r["seed"] for r in records}),
        ", ".join(sorted({r["code"] for r in records})),
    )
    return (
        "# Alarms of update\n\n"
        f"twostagegp {twostagegp.__version__} (source {codes}). {seeds} fits for each n, two "
        "columns, half as many new rows as n.\n\n"
        f"## Streams without a change\n\nShare with a false alarm at any time; the limit "
        f"promises {LEVEL:g} for a calibrated model and independent rows.\n\n{steady}\n"
        f"## Streams after a change\n\nBatches of {batches[-1]}.\n\n"
        f"{markdown_table(header, rows)}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, write and print the tables; returns 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.update_drift")
    parser.add_argument("--seeds", type=numbers, default=list(range(100)))
    parser.add_argument("--rows", type=numbers, default=[60, 200])
    parser.add_argument("--batches", type=numbers, default=[1, 10])
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    use_threads(1)
    warnings.simplefilter("ignore", TwoStageGPWarning)
    store = JsonLines(given.results / "update_drift.jsonl", ("kind", "n", "batch", "seed"))
    for seed in given.seeds:
        for n in given.rows:
            last = (list(CHANGES)[-1], n, given.batches[-1], seed)
            if last in store.done():
                continue
            for record in _measure(seed, n, given.batches):
                store.append(record)
    page = _page(list(store.records().values()))
    write_whole(given.results / "update_drift.md", page)
    print(page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
