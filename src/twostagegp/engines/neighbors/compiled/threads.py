"""Run compiled loops on several threads: they release the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable

from twostagegp.runtime.cores import spread

__all__ = ["by_slices"]


def by_slices(work: Callable[[slice], None], n: int, size: int) -> None:
    """Call ``work`` with slices of at most ``size`` that cover ``range(n)``, on the cores of
    the budget.

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
    spread(work, [slice(begin, min(begin + size, n)) for begin in range(0, n, size)])
