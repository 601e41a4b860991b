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

import torch
from threadpoolctl import threadpool_limits

from twostagegp.errors import ClusterError, InputError

__all__ = ["current_client", "gathered", "in_words", "kept", "one_thread"]


def current_client() -> Any:
    """The client in use, or one of a new ``LocalCluster``."""
    try:
        from distributed import Client, LocalCluster, get_client
    except ImportError:
        raise InputError(
            "Dask collections need distributed: pip install 'twostagegp[dask]'."
        ) from None
    try:
        return get_client()
    except ValueError:
        cluster = LocalCluster(threads_per_worker=1, dashboard_address=None)
        # The client keeps the cluster and, as the default one, is found the next time; both are
        # closed by Dask when the program ends.
        return Client(cluster)


@contextmanager
def in_words(what: str) -> Iterator[None]:
    """Turn what Dask raises when the cluster fails into a :class:`ClusterError`."""
    from distributed import KilledWorker
    from distributed.comm import CommClosedError

    try:
        yield
    except KilledWorker as error:
        raise ClusterError(
            f"{what}: the workers that tried it died, most likely out of memory ({error}). Give "
            "workers more memory, or make the partitions smaller."
        ) from error
    except (CommClosedError, CancelledError, asyncio.CancelledError, OSError) as error:
        raise ClusterError(
            f"{what}: the cluster was lost ({type(error).__name__}: {error}). Connect a new "
            "client and call fit again."
        ) from error


def gathered(client: Any, tasks: Sequence[Any], what: str) -> list[Any]:
    """Compute tasks and bring their results here; an error or Ctrl-C cancels the rest."""
    with in_words(what):
        futures = client.compute(list(tasks))
        try:
            return client.gather(futures)
        except BaseException:
            _cancel(client, futures)
            raise


def kept(client: Any, tasks: Sequence[Any], what: str) -> list[Any]:
    """Compute tasks and leave their results on the workers."""
    from distributed import futures_of, wait

    with in_words(what):
        held = client.persist(list(tasks))
        futures = futures_of(held)
        try:
            wait(futures)
            for future in futures:
                if future.status != "finished":
                    future.result()  # raises what the task raised
        except BaseException:
            _cancel(client, futures)
            raise
    return held


def _cancel(client: Any, futures: Sequence[Any]) -> None:
    with suppress(Exception):
        client.cancel(list(futures))


class _Threads:
    """How many tasks are under way in this process, and what to put back after the last."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.tasks = 0
        self.torch_threads = 1
        self.limits: Any = None


_THREADS = _Threads()


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch, BLAS, OpenMP and the compiled loops on one thread; a worker runs tasks beside others.

    The numbers are those of the process. The first task sets them, the last puts them back.

    Examples
    --------
    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    with _THREADS.lock:
        if _THREADS.tasks == 0:
            _THREADS.torch_threads = torch.get_num_threads()
            _THREADS.limits = threadpool_limits(1)
            torch.set_num_threads(1)
        _THREADS.tasks += 1
    try:
        yield
    finally:
        with _THREADS.lock:
            _THREADS.tasks -= 1
            if _THREADS.tasks == 0:
                _THREADS.limits.restore_original_limits()
                torch.set_num_threads(_THREADS.torch_threads)
