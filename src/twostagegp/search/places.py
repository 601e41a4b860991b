"""Where repetitions run: in this process, or on the workers of a Dask cluster.

Subsamples are drawn, and results put together, in this process either way; a place is told the
repetitions and gives their scores. So the place changes how long a search takes and nothing else.
``distributed/repetitions.py`` has the other place; it is imported when a client is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from twostagegp.engines.batched_problem import ProblemBatch
from twostagegp.errors import InputError
from twostagegp.kernels import Kernel
from twostagegp.search.bootstrap import Statistic, refit_draws
from twostagegp.search.repetitions import Repeated, Repetitions, Settings
from twostagegp.training.batched import BatchFit

__all__ = ["Here", "Place", "place_of", "resolve_client", "searches_on"]

Array = NDArray[np.float64]

#: The client of the fit that is under way, for the searches inside it.
_CLIENT: ContextVar[Any] = ContextVar("client", default=None)


class Place(Protocol):
    """What a search asks of the place where it runs."""

    def start(
        self,
        repetitions: Repetitions,
        kernels: Sequence[Kernel],
        settings: Settings,
        first: int,
    ) -> list[Callable[[], Repeated]]:
        """One call a kernel that gives its repetitions from number ``first`` on, or raises."""
        ...

    def refit(
        self, draws: ProblemBatch, start: Array, inverse: Array, statistic: Statistic
    ) -> tuple[BatchFit, Array]:
        """What :func:`~twostagegp.search.bootstrap.refit_draws` gives."""
        ...


class Here:
    """This process: one kernel after the other, when its result is asked for."""

    def start(
        self,
        repetitions: Repetitions,
        kernels: Sequence[Kernel],
        settings: Settings,
        first: int,
    ) -> list[Callable[[], Repeated]]:
        return [partial(repetitions.run, kernel, settings, first) for kernel in kernels]

    def refit(
        self, draws: ProblemBatch, start: Array, inverse: Array, statistic: Statistic
    ) -> tuple[BatchFit, Array]:
        return refit_draws(draws, start, inverse, statistic)


@contextmanager
def place_of(client: Any) -> Iterator[Place]:
    """The workers of a client, of the fit that is under way, or this process.

    Examples
    --------
    >>> with place_of(None) as place:
    ...     type(place).__name__
    'Here'
    """
    client = _CLIENT.get() if client is None else client
    if client is None:
        yield Here()
        return
    from twostagegp.distributed.repetitions import on_workers

    with on_workers(client) as workers:
        yield workers


@contextmanager
def searches_on(client: Any) -> Iterator[None]:
    """Searches inside use the workers of this client unless they are given another."""
    token = _CLIENT.set(client)
    try:
        yield
    finally:
        _CLIENT.reset(token)


def resolve_client(client: Any, device: str) -> tuple[Any, str]:
    """The client that a ``client`` parameter means, and the device that goes with it."""
    if client is None:
        return None, device
    if device not in ("auto", "cpu"):
        raise InputError(
            f"device={device!r} with client=: workers compute on the CPU; use device='cpu', or "
            "leave client out."
        )
    from twostagegp.distributed.cluster import given_client

    return given_client(client), "cpu"
