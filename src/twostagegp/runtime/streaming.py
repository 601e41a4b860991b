"""Inputs of predictions on their way to a device: the next part travels while one is worked on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Make", "stream"]

#: Makes one array, shape (rows, columns).
Make = Callable[[], NDArray[np.float64]]


def stream(parts: Iterable[Make], like: Tensor) -> Iterator[Tensor]:
    """The arrays that ``parts`` make, one after the other, in the dtype and on the device of like.

    For a GPU a thread makes the next array and copies it, from memory that the GPU can read by
    itself and on a queue of its own, while the caller works on the one before: at most two parts
    are on the device.

    Examples
    --------
    >>> [Z.tolist() for Z in stream([lambda: np.ones(2), lambda: np.zeros(1)], torch.empty(0))]
    [[1.0, 1.0], [0.0]]
    """
    if like.device.type != "cuda":
        for make in parts:
            yield torch.as_tensor(make()).to(like)
        return
    yield from _ahead(iter(parts), like)


def _ahead(parts: Iterator[Make], like: Tensor) -> Iterator[Tensor]:
    queue, callers = torch.cuda.Stream(like.device), torch.cuda.current_stream(like.device)

    def send() -> tuple[Tensor, torch.cuda.Event] | None:
        make = next(parts, None)
        if make is None:
            return None
        here = torch.as_tensor(make()).to(like.dtype).pin_memory()
        with torch.cuda.stream(queue):
            there = here.to(like.device, non_blocking=True)
            # The caller's queue uses the memory next: it must not be given away before.
            there.record_stream(callers)
            return there, queue.record_event()

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(send)
        while (sent := coming.result()) is not None:
            coming = pool.submit(send)
            there, arrived = sent
            callers.wait_event(arrived)
            yield there
