"""The same numbers on a GPU as on the CPU, at fixed hyperparameters, over random cases.

A case draws rows, columns, weights, a kernel, its parameters and a noise; every engine gives
predictions, held-out residuals, an objective and its derivatives on both devices. A difference is
told relative to the largest number of its kind.

    python -m benchmarks.device_agreement --device cuda --cases 200
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import twostagegp
from benchmarks import RESULTS
from measurements.provenance import code_version
from measurements.store import JsonLines, Record, plain, write_whole
from measurements.tables import markdown_table
from twostagegp.data.rows import Rows
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.exact.settings import ExactSettings
from twostagegp.engines.neighbors.engine import NeighborEngine
from twostagegp.kernels import KERNELS, NamedKernel

__all__ = ["compare", "main", "report"]

Array = NDArray[np.float64]
ENGINES = ("exact", "exact in blocks", "neighbors")
QUANTITIES = ("mean", "variance", "held-out residual", "held-out variance", "value", "derivative")
QUERIES, NEIGHBORS = 40, 20
CPU = torch.device("cpu")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, then write and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    device = torch.device(given.device)
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    store = JsonLines(given.results / "device_agreement.jsonl", ("place", "seed"))
    for seed in range(given.cases):
        if (place, seed) in store.done():
            continue
        known = {"place": place, "seed": seed, "torch": torch.__version__}
        known |= {"version": twostagegp.__version__, "code": code_version()}
        try:
            store.append(plain(known | compare(seed, device)))
        except Exception as error:
            store.append(known | {"error": f"{type(error).__name__}: {error}"})
    page = report(list(store.records().values()))
    write_whole(given.results / "device_agreement.md", page)
    print(page)
    return 0


def compare(seed: int, device: torch.device) -> Record:
    """One case on both devices: relative differences by engine and quantity."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(60, 500)), int(rng.integers(1, 12))
    kernel = NamedKernel(str(rng.choice(KERNELS)), d, ard=bool(rng.integers(2)))
    theta = kernel.start() + rng.normal(0.0, 0.5, kernel.size)
    noise = math.log(10.0 ** rng.uniform(-4.0, -0.5))
    rows, queries = _rows(rng, n, d), torch.as_tensor(rng.normal(size=(QUERIES, d)))
    parameters = np.append(theta, noise)
    differences = {}
    for engine in ENGINES:
        here = _answers(engine, kernel, parameters, rows, queries)
        there = _answers(engine, kernel, parameters, rows.to(device), queries.to(device))
        differences[engine] = {
            name: float(np.abs(a - b).max() / np.abs(a).max())
            for name, a, b in zip(QUANTITIES, here, there, strict=True)
        }
    return {"rows": n, "columns": d, "kernel": kernel.label, "differences": differences}


def _rows(rng: np.random.Generator, n: int, d: int) -> Rows:
    X = torch.as_tensor(rng.normal(size=(n, d)))
    t = torch.sin(2.0 * X[:, 0]) + 0.1 * torch.as_tensor(rng.normal(size=n))
    c = torch.as_tensor(rng.choice([1.0, 1.0, 2.0, 3.0], size=n))
    return Rows(X, t, c, 0.01 * (c - 1.0), torch.zeros_like(c))


def _answers(
    engine: str, kernel: NamedKernel, parameters: Array, rows: Rows, queries: torch.Tensor
) -> Iterator[Array]:
    """The quantities of one engine, in order."""
    of: Any = NeighborEngine(rows, NEIGHBORS)
    if engine != "neighbors":
        in_blocks = ExactSettings(blocked_rows=20)
        of = ExactEngine(
            rows, settings=in_blocks if engine == "exact in blocks" else ExactSettings()
        )
    posterior = of.condition(kernel, parameters)
    held = posterior.heldout()
    value, gradient = of.problem(kernel, "loo", start=parameters)(parameters)
    tensors = (
        posterior.mean(queries),
        posterior.variance(queries),
        held.residual,
        held.variance,
    )
    arrays = [tensor.cpu().numpy() for tensor in tensors]
    return iter([*arrays, np.array([value]), gradient])


def report(records: list[Record]) -> str:
    """The Markdown page."""
    fine = [r for r in records if not r.get("error")]
    places = ", ".join(sorted({r["place"] for r in records}))
    failed = len(records) - len(fine)
    lines = [
        [engine, *[f"{max(r['differences'][engine][q] for r in fine):.1e}" for q in QUANTITIES]]
        for engine in ENGINES
    ]
    words = (
        f"{len(fine)} random cases, {places} against the CPU; {failed} failed. Largest difference."
    )
    table = markdown_table(["engine", *QUANTITIES], lines)
    return f"# Agreement of devices\n\n{words}\n\n{table}\n"


if __name__ == "__main__":
    raise SystemExit(main())
