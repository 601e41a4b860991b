"""Logging, the number of threads and the treatment of subnormal numbers during a fit."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral

import torch
from joblib import cpu_count, effective_n_jobs

from twostagegp.errors import InputError

__all__ = ["limit_threads", "no_denormals", "show_log", "threads_of_fit"]

#: Number of rows up to which a fit uses one thread by default.
ONE_THREAD_ROWS = 1000


@contextmanager
def show_log(verbose: int) -> Iterator[None]:
    """Show the package's log on the screen while a job with ``verbose`` runs."""
    if not verbose:
        yield
        return
    log = logging.getLogger("twostagegp")
    before, handler = log.level, logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


@contextmanager
def limit_threads(n_jobs: int | None) -> Iterator[None]:
    """Run with ``n_jobs`` torch threads (None: unchanged), then restore the previous number.

    The number of threads never exceeds the number of processors.
    """
    if n_jobs is None:
        yield
        return
    if not isinstance(n_jobs, Integral) or n_jobs == 0:
        raise InputError(f"n_jobs={n_jobs!r}: use a number of threads, -1 (all) or None.")
    before = torch.get_num_threads()
    # More threads than processors only slow each other down, and thousands cannot be started.
    torch.set_num_threads(min(effective_n_jobs(n_jobs), cpu_count()))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def no_denormals() -> Iterator[None]:
    """Replace subnormal numbers by zero in this thread, then restore the previous setting.

    Kernels with a short lengthscale are subnormal at large distances, and arithmetic with subnormal
    numbers is many times slower.
    """
    tiny = torch.full((1,), 1e-310, dtype=torch.float64)
    flushed_already = float(tiny * 1.0) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed_already)


@contextmanager
def threads_of_fit(n_jobs: int | None, n: int) -> Iterator[None]:
    """Set the threads for a fit to n rows, and replace subnormal numbers by zero.

    By default a small fit uses one thread. Its matrices are too small to gain from several threads,
    and on a busy machine threads that wait for each other take many times as long.
    """
    small = n_jobs is None and n <= ONE_THREAD_ROWS
    with limit_threads(1 if small else n_jobs), no_denormals():
        yield
