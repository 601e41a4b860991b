"""Run compiled loops on several threads: they release the interpreter's lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

__all__ = ["by_slices"]


def by_slices(work: Callable[[slice], None], n: int, size: int) -> None:
    """Call ``work`` with slices of at most ``size`` that cover ``range(n)``, on torch's threads.

    An error, or Ctrl-C, ends the work after the slices that have begun.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.zeros(5)
    >>> def work(part):
    ...     x[part] += 1.0
    >>> by_slices(work, 5, 2)
    >>> x
    array([1., 1., 1., 1., 1.])
    """
    parts = [slice(begin, min(begin + size, n)) for begin in range(0, n, size)]
    threads = min(len(parts), torch.get_num_threads(), os.cpu_count() or 1)
    if threads <= 1:
        for part in parts:
            work(part)
        return
    pool = ThreadPoolExecutor(threads)
    try:
        for _ in pool.map(work, parts):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
