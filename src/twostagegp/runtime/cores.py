"""One budget of processor cores for everything that a call does.

The libraries below have pools of threads of their own: torch and scikit-learn use OpenMP, NumPy and
SciPy one OpenBLAS each. Their threads wait by spinning, so that several pools, or another program
on the machine, slow all of them down many times. Inside :func:`use_cores` every pool has one
thread. The cores are used by :func:`spread` instead: independent tasks (a candidate kernel, a fold,
a slice of the rows) on ordinary threads, which sleep while they wait. NumPy, torch, LAPACK
(``numerics/lapack.py``) and the compiled loops release Python's lock.

A task computes the same numbers on any thread, so results do not depend on the number of cores.

The matrices of large exact fits are split into such tasks (``engines/exact/tiles.py``).
"""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from numbers import Integral
from typing import Any, TypeVar

import torch

from twostagegp.errors import InputError

__all__ = ["available_cores", "raise_if_stopped", "spread", "use_cores"]

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Here(threading.local):
    """What the current thread may use, and whether it was told to stop."""

    cores: int | None = None
    stop: threading.Event | None = None


_HERE = _Here()


class StoppedError(Exception):
    """Ends a task whose result is no longer needed."""


def available_cores() -> int:
    """Return the number of cores that the current thread may use.

    Outside :func:`use_cores` it is torch's number of threads.
    """
    return torch.get_num_threads() if _HERE.cores is None else _HERE.cores


def _granted(n_jobs: int | None) -> int:
    """Return the number of cores that ``n_jobs`` stands for, at most those of the machine."""
    from joblib import cpu_count

    _check_n_jobs(n_jobs)
    if _HERE.cores is not None:
        # A fit inside a fit, for example of a mean model: it shares the cores of the outer one.
        most = _HERE.cores
    else:
        most = 1 if n_jobs is None and _is_worker() else cpu_count()
    if n_jobs is None:
        return most
    asked = int(n_jobs) if n_jobs > 0 else cpu_count() + 1 + int(n_jobs)
    return max(1, min(asked, most))


def _check_n_jobs(n_jobs: Any) -> None:
    """Raise InputError unless ``n_jobs`` is None or a whole number other than zero."""
    if n_jobs is not None and (not isinstance(n_jobs, Integral) or n_jobs == 0):
        raise InputError(f"n_jobs={n_jobs!r}: use a number of threads, -1 (all) or None.")


def _is_worker() -> bool:
    """Return whether this thread is one of several workers of joblib, multiprocessing or Dask.

    The cores are in use by the other workers then.
    """
    import multiprocessing

    if multiprocessing.current_process().daemon:
        return True
    parallel = sys.modules.get("joblib.parallel")
    if parallel is not None and parallel.get_active_backend()[0].nesting_level:
        return True
    dask = sys.modules.get("distributed.worker")
    return dask is not None and hasattr(dask.thread_state, "execution_state")


class _Pools:
    """The pools of threads of NumPy, SciPy, scikit-learn and torch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._restore: list[tuple[Any, int]] = []
        self._blas: list[Any] = []
        self._openmp: list[Any] = []
        self._modules = 0

    def _look(self) -> None:
        """Find the pools; libraries may have been loaded since the last look."""
        if len(sys.modules) == self._modules:
            return
        # SciPy's BLAS is loaded with these, which would otherwise happen during the call.
        import scipy.linalg.cython_blas
        import scipy.linalg.cython_lapack  # noqa: F401
        from threadpoolctl import ThreadpoolController

        found = ThreadpoolController().lib_controllers
        self._blas = [pool for pool in found if pool.user_api == "blas"]
        self._openmp = [pool for pool in found if pool.user_api == "openmp"]
        self._modules = len(sys.modules)

    def limit_here(self) -> list[tuple[Any, int]]:
        """Give the OpenMP pools one thread when the current thread calls them."""
        before = [(pool, pool.get_num_threads()) for pool in self._openmp]
        _set((pool, 1) for pool in self._openmp)
        return before

    @contextmanager
    def one_thread_each(self) -> Iterator[None]:
        """Give every pool one thread, then restore the numbers before.

        OpenMP has a number per calling thread. BLAS has one per process: the first of several
        concurrent callers sets it, and the last one restores it.
        """
        with self._lock:
            self._look()
            if self._users == 0:
                self._restore = [(pool, pool.get_num_threads()) for pool in self._blas]
                _set((pool, 1) for pool in self._blas)
            self._users += 1
        openmp, before = self.limit_here(), torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)
            _set(openmp)
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    _set(self._restore)


def _set(pools: Iterable[tuple[Any, int]]) -> None:
    for pool, threads in pools:
        pool.set_num_threads(threads)


_POOLS = _Pools()


@contextmanager
def use_cores(n_jobs: int | None, one_is_enough: bool = False) -> Iterator[int]:
    """Use at most ``n_jobs`` cores, and give every library's pool one thread.

    Parameters
    ----------
    n_jobs : int or None
        None: all cores of the machine; one inside a worker of joblib, multiprocessing or Dask.
        Negative numbers count from the number of cores: -1 is all, -2 all but one.
    one_is_enough : bool
        Use one core whatever ``n_jobs`` says, without asking the system for their number: for work
        that takes less time than the answer.

    Examples
    --------
    >>> with use_cores(1) as cores:
    ...     cores, available_cores(), torch.get_num_threads()
    (1, 1, 1)
    """
    before = _HERE.cores
    if one_is_enough:
        _check_n_jobs(n_jobs)
    granted = 1 if one_is_enough else _granted(n_jobs)
    with _POOLS.one_thread_each():
        _HERE.cores = granted
        try:
            yield granted
        finally:
            _HERE.cores = before


def raise_if_stopped() -> None:
    """End the current task if another one has failed or the user has pressed Ctrl-C.

    Long tasks call it between steps.
    """
    if _HERE.stop is not None and _HERE.stop.is_set():
        raise StoppedError


def spread(
    work: Callable[[Item], Result], items: Sequence[Item], most: int | None = None
) -> list[Result]:
    """Return ``[work(item) for item in items]``, computed on the cores of the budget.

    An error, or Ctrl-C, ends the other tasks at their next step.

    Parameters
    ----------
    most : int, optional
        Most tasks at a time.

    Examples
    --------
    >>> spread(lambda x: x * x, [1, 2, 3])
    [1, 4, 9]
    """
    workers = min(available_cores(), len(items), len(items) if most is None else most)
    if workers <= 1:
        return [work(item) for item in items]
    stop = threading.Event()
    pool = ThreadPoolExecutor(workers, initializer=_prepare_worker, initargs=(stop,))

    def task(item: Item) -> Result:
        raise_if_stopped()
        try:
            return work(item)
        except BaseException:
            stop.set()
            raise

    try:
        futures = [pool.submit(contextvars.copy_context().run, task, item) for item in items]
        wait(futures, return_when=FIRST_EXCEPTION)
        errors = [future.exception() for future in futures if future.done()]
        for error in errors:
            if error is not None and not isinstance(error, StoppedError):
                raise error
        return [future.result() for future in futures]
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _prepare_worker(stop: threading.Event) -> None:
    """Give a new thread one core, and the caller's treatment of subnormal numbers."""
    _HERE.cores, _HERE.stop = 1, stop
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    _POOLS.limit_here()
