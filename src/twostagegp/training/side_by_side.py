"""Independent trainings side by side: how many at a time, by the size of their matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch

from twostagegp.data.rows import Rows
from twostagegp.engines.exact.settings import EXACT_DEFAULTS
from twostagegp.kernels import Kernel
from twostagegp.runtime.cores import spread
from twostagegp.runtime.memory import available_bytes

__all__ = ["for_each", "most_at_a_time"]

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Rows at which the matrices of an evaluation take about twice as long as its Python statements,
#: which hold Python's lock.
_EVEN_ROWS = 220
#: Matrices of n x n numbers that a training holds, and rows from which their size matters.
_MATRICES, _LARGE_ROWS = 8, 1000
#: Most trainings side by side on fewer rows than that. On 16 cores, fits to 350 rows were no faster
#: with eight cores than with four, and slower with other programs on the same cores.
_FEW_AT_A_TIME = 4


def most_at_a_time(n: int) -> int:
    """Return how many trainings on n rows can run side by side without waiting for each other.

    Examples
    --------
    >>> most_at_a_time(100), most_at_a_time(350), most_at_a_time(1000)
    (1, 4, 94)
    """
    most = 1 + int((n / _EVEN_ROWS) ** 3)
    return most if n >= _LARGE_ROWS else min(most, _FEW_AT_A_TIME)


def _that_fit_into_memory(n: int) -> int:
    """Return how many trainings on n rows fit into the free memory; at least one."""
    if n < _LARGE_ROWS:
        return n
    free = available_bytes(torch.device("cpu"))
    return n if free is None else max(1, free // (_MATRICES * 8 * n * n))


def for_each(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    rows: Rows,
    kernels: Iterable[Kernel],
    blocked_rows: int = EXACT_DEFAULTS.blocked_rows,
) -> list[Result]:
    """Return ``[work(item) for item in items]``; each handles matrices of these rows.

    Up to ``blocked_rows`` rows on a CPU, every item gets a core. Above, one item after the other
    gets all of them, since one of its matrices fills the memory; the engine splits that matrix
    (``engines/exact/tiles.py``). A kernel that holds its parameters
    (``takes_threads`` is False) also gets one item after the other.
    """
    n = len(rows)
    if rows.X.device.type != "cpu" or not all(kernel.takes_threads for kernel in kernels):
        return [work(item) for item in items]
    if n <= blocked_rows:
        return spread(work, items, min(most_at_a_time(n), _that_fit_into_memory(n)))
    return [work(item) for item in items]
