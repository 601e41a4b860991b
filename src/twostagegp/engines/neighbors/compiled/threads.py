"""Run compiled loops on several threads: they release the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable

from twostagegp.runtime.cores import available_cores, spread

__all__ = ["by_slices", "even_share"]


def by_slices(work: Callable[[slice], None], n: int, size: int) -> None:
    """Call ``work`` with slices of at most ``size`` that cover ``range(n)``, on the cores of
    the budget.

    Slices take equally long, so no more threads begin than shorten the work: 12 slices on 8 cores
    take two rounds, as on 6. An error, or Ctrl-C, ends the work after the slices that have begun.

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
    slices = [slice(begin, min(begin + size, n)) for begin in range(0, n, size)]
    spread(work, slices, even_share(len(slices), available_cores()))


def even_share(items: int, cores: int) -> int:
    """Return the fewest threads that do equal items in as many rounds as all cores do.

    Examples
    --------
    >>> even_share(12, 8), even_share(12, 16), even_share(0, 8)
    (6, 12, 0)
    """
    rounds = -(-items // cores)
    return -(-items // max(rounds, 1))
