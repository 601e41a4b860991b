"""Where a kernel search spends its time.

Stopwatches around the functions that the batch engine calls time the parts: the kernel's matrices
(with their distances and derivatives), and the factorisations with their inverses. Everything else
is the rest: triangular solves with the target, the derivative's weights, scores, optimiser, Python.
On a GPU each stopwatch waits for the work that it measures, so that a profiled search is a little
slower than a plain one. On a CPU one thread has to do all the work, or parts would overlap.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor

from twostagegp.engines import batched_problem as problem_batch
from twostagegp.kernels.batched import Index, KernelBatch, kernel_batch
from twostagegp.numerics.linalg import batch_cholesky

__all__ = ["Profile", "profiled"]

Result = TypeVar("Result")

KERNEL = "kernel matrices"
FACTORISATION = "factorisation and inverse"


@dataclass
class Profile:
    """Seconds of each part, and how many matrices were factorised.

    Attributes
    ----------
    seconds : dict of str to float
    matrices : Counter
        Factorised matrices by their number of rows.
    calls : int
        Calls that factorised them, each for a block of problems.
    """

    cuda: bool
    seconds: dict[str, float] = field(default_factory=lambda: {KERNEL: 0.0, FACTORISATION: 0.0})
    matrices: Counter[int] = field(default_factory=Counter)
    calls: int = 0

    def timed(self, part: str, function: Callable[..., Result]) -> Callable[..., Result]:
        """Return the same function with a stopwatch."""

        @wraps(function)
        def measured(*given: Any, **named: Any) -> Result:
            begin = self._now()
            result = function(*given, **named)
            self.seconds[part] += self._now() - begin
            return result

        return measured

    def count(self, K: Tensor) -> None:
        """Note a block of matrices that is about to be factorised."""
        self.matrices[K.shape[-1]] += len(K)
        self.calls += 1

    def _now(self) -> float:
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


class _TimedKernel:
    """A kernel batch with a stopwatch around everything that it computes."""

    def __init__(self, inner: KernelBatch, profile: Profile) -> None:
        self.concurrent = inner.concurrent
        self._gradient = profile.timed(KERNEL, inner.gradient)
        self._evaluate = profile.timed(KERNEL, inner.evaluate)
        self._cross = profile.timed(KERNEL, inner.cross)
        self._diagonal = profile.timed(KERNEL, inner.diagonal)

    def evaluate(self, index: Index, theta: Tensor) -> tuple[Tensor, Any]:
        return self._evaluate(index, theta)

    def gradient(self, theta: Tensor, K: Tensor, saved: Any, W: Tensor) -> Tensor:
        return self._gradient(theta, K, saved, W)

    def cross(self, X: Tensor, Z: Tensor, theta: Tensor) -> Tensor:
        return self._cross(X, Z, theta)

    def diagonal(self, X: Tensor, theta: Tensor) -> Tensor:
        return self._diagonal(X, theta)


@contextmanager
def profiled(cuda: bool) -> Iterator[Profile]:
    """Put stopwatches into the batch engine until the block ends."""
    profile = Profile(cuda)
    make_kernel = profile.timed(KERNEL, kernel_batch)
    factorise = profile.timed(FACTORISATION, batch_cholesky)
    invert = profile.timed(FACTORISATION, problem_batch._inverse)  # noqa: SLF001 (timed in place)

    def with_stopwatches(*given: Any) -> KernelBatch:
        return _TimedKernel(make_kernel(*given), profile)

    def count_and_factorise(K: Tensor) -> tuple[Tensor, Tensor]:
        profile.count(K)
        return factorise(K)

    with (
        patch.object(problem_batch, "kernel_batch", with_stopwatches),
        patch.object(problem_batch, "batch_cholesky", count_and_factorise),
        patch.object(problem_batch, "_inverse", invert),
    ):
        yield profile
