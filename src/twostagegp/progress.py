"""What a long job says while it runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral

import torch
from joblib import effective_n_jobs

from twostagegp.errors import InputError

__all__ = ["limit_threads", "show_log"]


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
    """Run with ``n_jobs`` torch threads (None: as they are), and put the old number back."""
    if n_jobs is None:
        yield
        return
    if not isinstance(n_jobs, Integral) or n_jobs == 0:
        raise InputError(f"n_jobs={n_jobs!r}: use a number of threads, -1 (all) or None.")
    before = torch.get_num_threads()
    torch.set_num_threads(effective_n_jobs(n_jobs))
    try:
        yield
    finally:
        torch.set_num_threads(before)
