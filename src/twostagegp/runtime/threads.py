"""Logging and the treatment of subnormal numbers during a fit."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from twostagegp.runtime.progress import current

__all__ = ["no_denormals", "show_log"]

#: Their product is zero in a thread that replaces subnormal numbers by zero.
_SUBNORMAL, _ONE = 1e-310, 1.0


class _WithTimeLeft(logging.Formatter):
    """Ends each line with the remaining time of the job that runs, if it has a forecast."""

    def format(self, record: logging.LogRecord) -> str:
        progress = current()
        words = "" if progress is None else progress.words()
        return super().format(record) + (f"; {words}" if words else "")


@contextmanager
def show_log(verbose: int) -> Iterator[None]:
    """Show the package's log on the screen while a job with ``verbose`` runs.

    Lines of a job with a forecast end with its remaining time.
    """
    if not verbose:
        yield
        return
    log = logging.getLogger("twostagegp")
    before, handler = log.level, logging.StreamHandler()
    handler.setFormatter(_WithTimeLeft("%(asctime)s %(message)s", "%H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


@contextmanager
def no_denormals() -> Iterator[None]:
    """Replace subnormal numbers by zero in this thread, then restore the previous setting.

    Kernels with a short lengthscale are subnormal at large distances, and arithmetic with subnormal
    numbers is many times slower.
    """
    flushed_already = _SUBNORMAL * _ONE == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed_already)
