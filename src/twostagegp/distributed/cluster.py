"""The cluster that does the work: found or started, one thread a task, its failures in words.

An existing client is used; where there is none, a ``LocalCluster`` with a process a core is
started, once, and ends with the program. Scheduling, spilling and retries are Dask's. Nothing is
scattered: whatever a worker holds is the result of a task, so that Dask computes it again from the
source when a worker is lost.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Any

from threadpoolctl import threadpool_limits

from twostagegp.errors import ClusterError, InputError
from twostagegp.runtime.threads import limit_threads

__all__ = [
    "cancel",
    "current_client",
    "gathered",
    "given_client",
    "in_words",
    "kept",
    "one_thread",
]


def current_client() -> Any:
    """The client in use, or one of a new ``LocalCluster``."""
    try:
        from distributed import Client, LocalCluster, get_client
    except ImportError:
        raise InputError("Dask needs distributed: pip install 'twostagegp[dask]'.") from None
    try:
        return get_client()
    except ValueError:
        cluster = LocalCluster(threads_per_worker=1, dashboard_address="127.0.0.1:0")
        # The client keeps the cluster and, as the default one, is found the next time; both are
        # closed by Dask when the program ends.
        return Client(cluster)


def given_client(client: Any) -> Any:
    """The client that is meant: ``"auto"`` is the one in use, or one of a new cluster."""
    if isinstance(client, str) and client == "auto":
        return current_client()
    if not all(hasattr(client, name) for name in ("submit", "gather", "asynchronous", "status")):
        raise InputError(f"client={client!r}: use a distributed.Client, 'auto' or None.")
    if client.asynchronous:
        raise InputError(f"client={client!r} is asynchronous; use one that waits for results.")
    if client.status != "running":
        raise ClusterError(f"client={client!r} is {client.status}; connect a new one.")
    return client


@contextmanager
def in_words(
    client: Any, what: str, way_out: str = "make the partitions smaller"
) -> Iterator[None]:
    """Turn what Dask raises when the cluster fails into a :class:`ClusterError`."""
    from distributed import KilledWorker
    from distributed.comm.core import CommClosedError

    try:
        yield
    except KilledWorker as error:
        raise ClusterError(
            f"{what}: the workers that tried it died, most likely out of memory ({error}). Give "
            f"workers more memory, or {way_out}."
        ) from error
    except (CommClosedError, CancelledError, asyncio.CancelledError, OSError) as error:
        lost = isinstance(error, CommClosedError | CancelledError | asyncio.CancelledError)
        if not lost and client.status == "running":  # a file that a task could not read
            raise
        raise ClusterError(
            f"{what}: the cluster was lost ({type(error).__name__}: {error}). Connect a new "
            "client and start again."
        ) from error


def gathered(client: Any, tasks: Sequence[Any], what: str) -> list[Any]:
    """Compute tasks and bring their results here; an error or Ctrl-C cancels the rest."""
    with in_words(client, what):
        futures = client.compute(list(tasks))
        try:
            return client.gather(futures)
        except BaseException:
            cancel(client, futures)
            raise


def kept(client: Any, tasks: Sequence[Any], what: str) -> list[Any]:
    """Compute tasks and leave their results on the workers."""
    from distributed import futures_of, wait

    with in_words(client, what):
        held = client.persist(list(tasks))
        futures = futures_of(held)
        try:
            wait(futures)
            for future in futures:
                if future.status != "finished":
                    future.result()  # raises what the task raised
        except BaseException:
            cancel(client, futures)
            raise
    return held


def cancel(client: Any, futures: Sequence[Any]) -> None:
    """Take back what has not been done; a cluster that is gone has nothing left to do."""
    with suppress(Exception):
        client.cancel(list(futures))


class _BlasLimit:
    """Tasks under way in this process, and what to put back after the last."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.tasks = 0
        self.limits: Any = None

    def __enter__(self) -> None:
        with self.lock:
            if self.tasks == 0:
                self.limits = threadpool_limits(1, user_api="blas")
            self.tasks += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.tasks -= 1
            if self.tasks == 0:
                self.limits.restore_original_limits()


_BLAS = _BlasLimit()


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch, BLAS, OpenMP and the compiled loops on one thread; a worker runs tasks beside others.

    Torch and OpenMP have a number for each thread that calls them. That of BLAS is the process's:
    the first task sets it, the last puts it back.

    Examples
    --------
    >>> import torch
    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    with _BLAS, threadpool_limits(1, user_api="openmp"), limit_threads(1):
        yield
