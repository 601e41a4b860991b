"""One local solve against its arithmetic.

Distances, covariances and factor of one point with k neighbours have a known number of operations,
and a matrix product shows how many of them the machine does per second, on one thread. The quotient
is the floor that the compiled loops are compared with; a batch of the same problems in torch is
measured beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit

from measurements.store import Record
from measurements.timing import Timed
from twostagegp.data.rows import Rows
from twostagegp.engines.neighbors import local_gp
from twostagegp.engines.neighbors.compiled import local
from twostagegp.engines.neighbors.compiled.lanes import LANES, OPTIONS
from twostagegp.engines.neighbors.index import TreeIndex
from twostagegp.kernels import NamedKernel

__all__ = ["COVARIANCE_FLOPS", "local_solves", "matmul_rate", "solve_flops"]

#: Operations of one Matérn 3/2 covariance in ``compiled/vector_loops.py``: s (1 + r) exp(-r) with
#: r = the root of 3 D are seven (three products, a sum, a square root, two minima); the exponential
#: is one product, ten terms of two operations each, and eight squares.
COVARIANCE_FLOPS = 36


def solve_flops(k: int, d: int, covariance: int = COVARIANCE_FLOPS) -> dict[str, float]:
    """Return the operations of one point with k neighbours in d columns, by part.

    There are k (k + 1) / 2 pairs among the neighbours and the point, each with three operations
    per column; the factor takes k³ / 3 and 2 k² for its two right-hand sides.

    Examples
    --------
    >>> solve_flops(3, 2, covariance=10)
    {'distances': 36.0, 'covariances': 60.0, 'factor': 27.0}
    """
    pairs = k * (k + 1) / 2
    return {
        "distances": pairs * 3 * d,
        "covariances": pairs * covariance,
        "factor": k**3 / 3 + 2.0 * k**2,
    }


def local_solves(
    n: int = 40_000, d: int = 9, k: int = 50, points: int = 4096, runs: int = 5
) -> Record:
    """Return the microseconds of one local solve on this thread, in parts, against its operations.

    Rows and points are normal draws; neighbours are known beforehand.
    """
    rng = np.random.default_rng(0)
    Z, Q = rng.normal(size=(n, d)), rng.normal(size=(points, d))
    t, noises = np.sin(Z.sum(axis=1)), np.full(n, 0.01)
    near = TreeIndex(torch.from_numpy(Z)).query(torch.from_numpy(Q), k)
    form = NamedKernel("matern32", d).form.compiled
    assert form is not None
    index, kernel = near.numpy(), local.CompiledKernel.of(form, metric=2)
    mean, variance = np.empty(points), np.empty(points)

    def whole() -> None:
        local.predict(Z, t, noises, index, Q, kernel, 1.0, mean, variance)

    loop = _part_loop()
    seconds = [
        _fastest(lambda count=count: loop(Z, t, noises, index, Q, kernel, 1.0, count), runs)
        for count in (1, 2, 3)
    ]
    seconds.append(_fastest(whole, runs))
    zero, one = torch.zeros(n, dtype=torch.float64), torch.ones(n, dtype=torch.float64)
    rows = Rows(torch.from_numpy(Z), torch.from_numpy(t), one, zero, zero)
    parameters = np.append(np.zeros(2), np.log(0.01))  # lengthscale and outputscale one
    found: list[Any] = []

    def batched() -> None:
        found[:] = local_gp.torch_predict(  # the engine uses the compiled loop
            NamedKernel("matern32", d), parameters, rows, near, torch.from_numpy(Q)
        )

    torch_seconds = _fastest(batched, runs)
    each = 1e6 / points
    return {
        "n": n,
        "d": d,
        "k": k,
        "points": points,
        "runs": runs,
        "matmul_gflops": matmul_rate() / 1e9,
        "flops": solve_flops(k, d),
        "microseconds": each * seconds[-1],
        "parts": dict(
            zip(
                ("gather", "distances", "covariances", "factor"),
                (each * np.diff([0.0, *seconds])).tolist(),
                strict=True,
            )
        ),
        "torch_microseconds": each * torch_seconds,
        "difference": float(
            max(
                np.abs(found[0].numpy() - mean).max(),
                np.abs(found[1].numpy() - variance).max(),
            )
        ),
    }


def matmul_rate(size: int = 1000, runs: int = 10) -> float:
    """Return the operations per CPU second of a float64 matrix product; the fastest of several.

    Examples
    --------
    >>> matmul_rate(50, runs=2) > 1e6
    True
    """
    A = torch.rand(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    out = torch.empty_like(A)
    return 2.0 * size**3 / _fastest(lambda: torch.matmul(A, A, out=out), runs)


def _fastest(work: Callable[[], Any], runs: int) -> float:
    """Return the CPU seconds of the fastest call, after one that is not counted; one thread."""
    work()
    took = []
    for _ in range(runs):
        with Timed() as timed:
            work()
        took.append(timed.cpu)
    return min(took)


def _part_loop() -> Any:
    """Return the first parts of ``compiled.local.predict``: one, two or all three of them."""
    gather, distances, covariances = local.gather, local.pair_distances, local.covariances

    @njit(**{**OPTIONS, "cache": False})
    def loop(Z, t, noise, near, points, kernel, s, count):  # type: ignore[no-untyped-def]
        m, k = near.shape
        d = Z.shape[1]
        X, T, N = np.empty((k + 1, d, LANES)), np.empty((k, LANES)), np.empty((k, LANES))
        missing = np.empty((k, LANES), np.bool_)
        D = np.zeros((k + 2, k + 2, LANES))
        for begin in range(0, m, LANES):
            gather(Z, t, noise, near, points, begin, X, T, N, missing)
            if count > 1:
                distances(X, D, False)
            if count > 2:
                for i in range(1, k + 1):
                    covariances(D.reshape(-1), i * D.shape[1] * LANES, i * LANES, kernel, s)
        return X[0, 0, 0] + D[1, 0, 0]

    return loop
