"""Run tasks on a Dask cluster: find or start a client, compute, and translate cluster failures.

An existing client is used. If there is none, a ``LocalCluster`` with one process per core is
started once and closed when the program ends. Scheduling, spilling to disk and retries are Dask's.
Nothing is scattered: whatever a worker holds is the result of a task, so that Dask computes it
again from its source when a worker is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from twostagegp.errors import ClusterError, InputError
from twostagegp.runtime.cores import use_cores

__all__ = [
    "DEFAULT_DASK",
    "DaskSettings",
    "cancel",
    "cluster_errors",
    "compute_here",
    "compute_on_workers",
    "current_client",
    "resolve_client",
    "single_thread",
]


@dataclass(frozen=True)
class DaskSettings:
    """Sizes of fits to and predictions for Dask collections.

    Attributes
    ----------
    sample_rows : int
        Number of rows that are sent to the client, to which hyperparameters are fitted: as many as
        a local fit uses for its neighbour searches during training.
    shard_rows : int
        Rows per shard at most, unless a single partition has more.
    block_rows : int
        Points per task of a prediction if their number is known, and points that are solved at a
        time.
    sent_bytes : int
        Bytes of points that are sent to the cluster at a time.
    """

    sample_rows: int = 100_000
    shard_rows: int = 2**20
    block_rows: int = 1 << 14
    sent_bytes: int = 4 << 20


#: The settings of fits and predictions, unless others are given.
DEFAULT_DASK = DaskSettings()


def current_client() -> Any:
    """Return the client in use, or the client of a new ``LocalCluster``."""
    try:
        from distributed import Client, LocalCluster, get_client
    except ImportError:
        raise InputError("Dask needs distributed: pip install 'twostagegp[dask]'.") from None
    try:
        return get_client()
    except ValueError:
        cluster = LocalCluster(threads_per_worker=1, dashboard_address="127.0.0.1:0")
        # The new client becomes Dask's default client, so that get_client finds it the next time.
        # It keeps the cluster alive; Dask closes both when the program ends.
        return Client(cluster)


def resolve_client(client: Any) -> Any:
    """Return a usable client for a ``client`` parameter: a ``Client``, or ``"auto"``.

    ``"auto"`` means the client in use, or that of a new cluster.
    """
    if isinstance(client, str) and client == "auto":
        return current_client()
    if not all(hasattr(client, name) for name in ("submit", "gather", "asynchronous", "status")):
        raise InputError(f"client={client!r}: use a distributed.Client, 'auto' or None.")
    if client.asynchronous:
        raise InputError(f"client={client!r} is asynchronous; use a synchronous client.")
    if client.status != "running":
        raise ClusterError(f"client={client!r} is {client.status}; connect a new one.")
    return client


@contextmanager
def cluster_errors(
    client: Any, work: str, advice: str = "make the partitions smaller"
) -> Iterator[None]:
    """Turn errors that Dask raises when the cluster fails into a :class:`ClusterError`.

    Parameters
    ----------
    client : distributed.Client
    work : str
        Names the work at the beginning of the message, such as "predicting".
    advice : str
        What to do besides giving workers more memory if they died.
    """
    from distributed import KilledWorker
    from distributed.comm.core import CommClosedError

    try:
        yield
    except KilledWorker as error:
        raise ClusterError(
            f"{work}: the workers that tried it died, most likely out of memory ({error}). Give "
            f"workers more memory, or {advice}."
        ) from error
    except (CommClosedError, CancelledError, asyncio.CancelledError, OSError) as error:
        lost = isinstance(error, CommClosedError | CancelledError | asyncio.CancelledError)
        if not lost and client.status == "running":  # a file that a task could not read
            raise
        raise ClusterError(
            f"{work}: the connection to the cluster was lost ({type(error).__name__}: {error}). "
            "Connect a new client and start again."
        ) from error


def compute_here(client: Any, tasks: Sequence[Any], work: str) -> list[Any]:
    """Compute tasks and return their results; an error or Ctrl-C cancels the others."""
    with cluster_errors(client, work):
        futures = client.compute(list(tasks))
        try:
            return client.gather(futures)
        except BaseException:
            cancel(client, futures)
            raise


def compute_on_workers(client: Any, tasks: Sequence[Any], work: str) -> list[Any]:
    """Compute tasks, leave their results on the workers and return references to them."""
    from distributed import futures_of, wait

    with cluster_errors(client, work):
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
    """Cancel tasks that are not finished; errors of a lost cluster are ignored."""
    with suppress(Exception):
        client.cancel(list(futures))


@contextmanager
def single_thread() -> Iterator[None]:
    """Run Torch, BLAS, OpenMP and the compiled loops on one thread, as a worker's task should.

    Examples
    --------
    >>> import torch
    >>> with single_thread():
    ...     torch.get_num_threads()
    1
    """
    with use_cores(1):
        yield
