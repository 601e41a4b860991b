"""Copy inputs to a device in parts: the next part is copied while the caller uses the current."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["ArrayFactory", "stream"]

#: A function that returns one array of shape (rows, columns).
ArrayFactory = Callable[[], NDArray[np.float64]]


def stream(parts: Iterable[ArrayFactory], like: Tensor) -> Iterator[Tensor]:
    """Yield the arrays that ``parts`` return, with the dtype and on the device of ``like``.

    For a GPU, a thread creates the next array and copies it, from pinned memory and on its own CUDA
    stream, while the caller works on the previous one: at most two parts are on the device.

    Examples
    --------
    >>> [Z.tolist() for Z in stream([lambda: np.ones(2), lambda: np.zeros(1)], torch.empty(0))]
    [[1.0, 1.0], [0.0]]
    """
    if like.device.type != "cuda":
        for make in parts:
            yield torch.as_tensor(make()).to(like)
        return
    yield from _prefetch(iter(parts), like)


def _prefetch(parts: Iterator[ArrayFactory], like: Tensor) -> Iterator[Tensor]:
    """Yield the arrays on a GPU; each is copied while the caller works on the previous one."""
    copies, callers = torch.cuda.Stream(like.device), torch.cuda.current_stream(like.device)

    def copy_next() -> tuple[Tensor, torch.cuda.Event] | None:
        make = next(parts, None)
        if make is None:
            return None
        on_host = torch.as_tensor(make()).to(like.dtype).pin_memory()
        with torch.cuda.stream(copies):
            on_device = on_host.to(like.device, non_blocking=True)
            # The caller's stream will use the memory: it must not be reused before.
            on_device.record_stream(callers)
            return on_device, copies.record_event()

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(copy_next)
        while (copied := pending.result()) is not None:
            pending = pool.submit(copy_next)
            on_device, finished = copied
            callers.wait_event(finished)
            yield on_device
