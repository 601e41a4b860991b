"""Logging and the treatment of subnormal numbers during a fit."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["no_denormals", "show_log"]

#: Their product is zero in a thread that replaces subnormal numbers by zero.
_SUBNORMAL, _ONE = 1e-310, 1.0


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
