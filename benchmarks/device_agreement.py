"""The same numbers on a GPU as on the CPU, at fixed hyperparameters, over random cases.

A case draws rows, columns, weights, a kernel, its parameters and a noise; every engine computes
predictions, held-out residuals, an objective and its derivatives on both devices. Differences are
relative to the largest number of their kind.

    python -m benchmarks.device_agreement --device cuda --cases 200
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import RESULTS
from measurements.arguments import positive
from measurements.pages import Page, joined, scored
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import markdown_table
from twostagegp.data.rows import Rows
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.exact.settings import ExactSettings
from twostagegp.engines.neighbors.engine import NeighborEngine
from twostagegp.kernels import KERNELS, NamedKernel

__all__ = ["MEASUREMENT", "Cell", "measure"]

Array = NDArray[np.float64]
ENGINES = ("exact", "exact in blocks", "neighbors")
QUANTITIES = ("mean", "variance", "held-out residual", "held-out variance", "value", "derivative")
QUERIES, NEIGHBORS = 40, 20


@dataclass(frozen=True)
class Cell:
    """One random case.

    Attributes
    ----------
    place : str
        Name of the device.
    device : str
        As torch names it.
    seed : int
    """

    place: str
    device: str
    seed: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--device`` and ``--cases``."""
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cases", type=positive, help="200 by default")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return the cases of one device."""
    is_gpu = torch.device(given.device).type == "cuda"
    place = torch.cuda.get_device_name(given.device) if is_gpu else "CPU"
    count = given.cases or (2 if given.quick else 200)
    return [Cell(place, given.device, seed) for seed in range(count)]


def measure(cell: Cell) -> Record:
    """Return the relative differences of one case by engine and quantity."""
    device = torch.device(cell.device)
    rng = np.random.default_rng(cell.seed)
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
    """Yield the quantities of one engine, in order."""
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


def _table(records: list[Record]) -> str:
    fine = scored(records)
    lines = [
        [engine, *[f"{max(r['differences'][engine][q] for r in fine):.1e}" for q in QUANTITIES]]
        for engine in ENGINES
    ]
    places = ", ".join(sorted({r["place"] for r in records}))
    words = (
        f"{len(fine)} random cases, {places} against the CPU; {len(records) - len(fine)} failed. "
        "Largest difference."
    )
    return joined(words, markdown_table(["engine", *QUANTITIES], lines))


MEASUREMENT = Measurement(
    name="device_agreement",
    about="The same numbers on a GPU as on the CPU.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page(
        "Agreement of devices",
        {},
        about=lambda records: _table(records) if scored(records) else "",
        failed_by=("place", "seed"),
        counted="cases",
    ),
    arguments=arguments,
    key=("place", "seed"),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
