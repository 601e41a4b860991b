"""Run the repetitions of a search in this process or on the workers of a Dask cluster.

Subsamples are drawn, and results are combined, in this process either way. A runner receives the
repetitions and returns their scores, so that it changes how long a search takes and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from twostagegp.engines.batched_problem import ProblemBatch
from twostagegp.errors import InputError
from twostagegp.kernels import Kernel
from twostagegp.runtime.dask_cluster import resolve_client
from twostagegp.search.bootstrap import Statistic, refit_draws
from twostagegp.search.dask_runner import open_dask_runner
from twostagegp.search.repetitions import Repeated, RepetitionOptions, Repetitions
from twostagegp.training.batched import BatchFit

__all__ = ["LocalRunner", "RepetitionRunner", "client_and_device", "open_runner"]

Array = NDArray[np.float64]


class RepetitionRunner(Protocol):
    """Where and how the repetitions of a search are computed."""

    def start(
        self,
        repetitions: Repetitions,
        kernels: Sequence[Kernel],
        options: RepetitionOptions,
        first: int,
    ) -> list[Callable[[], Repeated]]:
        """Start the repetitions from number ``first`` on, of all kernels.

        Returns one function per kernel, which returns the kernel's scores or raises its error.
        """
        ...

    def refit(
        self, draws: ProblemBatch, start: Array, inverse: Array, statistic: Statistic
    ) -> tuple[BatchFit, Array]:
        """Return what :func:`~twostagegp.search.bootstrap.refit_draws` returns."""
        ...


class LocalRunner:
    """Runs in this process: one kernel after the other, when its scores are needed."""

    def start(
        self,
        repetitions: Repetitions,
        kernels: Sequence[Kernel],
        options: RepetitionOptions,
        first: int,
    ) -> list[Callable[[], Repeated]]:
        return [partial(repetitions.run, kernel, options, first) for kernel in kernels]

    def refit(
        self, draws: ProblemBatch, start: Array, inverse: Array, statistic: Statistic
    ) -> tuple[BatchFit, Array]:
        return refit_draws(draws, start, inverse, statistic)


@contextmanager
def open_runner(client: Any) -> Iterator[RepetitionRunner]:
    """Yield a runner on the workers of a client, or in this process if the client is None.

    Examples
    --------
    >>> with open_runner(None) as runner:
    ...     type(runner).__name__
    'LocalRunner'
    """
    if client is None:
        yield LocalRunner()
        return
    with open_dask_runner(client) as runner:
        yield runner


def client_and_device(client: Any, device: str) -> tuple[Any, str]:
    """Return the client that a ``client`` parameter means, and the device to use with it."""
    if client is None:
        return None, device
    if device not in ("auto", "cpu"):
        raise InputError(
            f"device={device!r} with client=: workers compute on the CPU; use device='cpu', or "
            "leave client out."
        )
    return resolve_client(client), "cpu"
