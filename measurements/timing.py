"""Seconds, and the number of threads that they hold for.

CPU seconds add up over the threads of the process and leave out time in which it did not run, so
they are fair on a busy machine; wall-clock seconds are what a user waits.
"""

from __future__ import annotations

import time
from types import TracebackType

import torch
from threadpoolctl import threadpool_limits

__all__ = ["Timed", "use_threads"]


class Timed:
    """``with Timed() as took: ...``, then ``took.cpu`` and ``took.wall`` in seconds."""

    cpu: float
    wall: float

    def __enter__(self) -> Timed:
        self._begin = time.process_time(), time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cpu = time.process_time() - self._begin[0]
        self.wall = time.perf_counter() - self._begin[1]


def use_threads(n: int) -> None:
    """Give BLAS and torch of this process n threads from now on."""
    threadpool_limits(n)
    torch.set_num_threads(n)
