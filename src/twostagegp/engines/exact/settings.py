"""Sizes of the exact engine, and the memory that it may take."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from twostagegp.runtime.memory import available_bytes

__all__ = ["CHUNKS_AT_A_TIME", "EXACT_DEFAULTS", "ExactSettings"]

#: Most panels of predictions in memory at a time above ``blocked_rows`` rows on a CPU.
CHUNKS_AT_A_TIME = 16


@dataclass(frozen=True)
class ExactSettings:
    """When the exact engine works block by block, in which sizes, and with how much memory.

    Examples
    --------
    >>> cpu = torch.device("cpu")
    >>> ExactSettings().block_size(10_000, cpu), ExactSettings(block_rows=32).block_size(100, cpu)
    (512, 32)
    >>> ExactSettings(memory_bytes=2**30).free_bytes(cpu)
    1073741824
    """

    #: Distinct rows above which one n x n matrix is held instead of eight, and derivatives are
    #: estimated (docs/scale.md).
    blocked_rows: int = 4000
    #: Bytes that a fit, an update or a joint covariance may take; None: the memory that is free
    #: when it begins.
    memory_bytes: int | None = None
    #: Rows of a block of the factor, enough for matrix products at full speed and few compared with
    #: the rows of the matrix; None: 512 on a CPU, 1024 on a GPU, and fewer for small matrices.
    block_rows: int | None = None
    #: Random vectors from which a derivative is estimated: the standard error falls with the root
    #: of their number, and with 256 it is small compared with the uncertainty of the parameters
    #: given the rows (docs/scale.md).
    probes: int = 256
    #: Entries of a (queries, rows) panel during prediction, the work of one core; None: 2 MiB in
    #: float64 on a CPU, which stay in its cache, from ``blocked_rows`` rows on 8 MiB, so that the
    #: factor is not read too often, and 512 MiB on a GPU.
    panel_entries: int | None = None

    def free_bytes(self, device: torch.device) -> int | None:
        """Return the bytes that may be taken; None if the system does not report free memory."""
        return available_bytes(device) if self.memory_bytes is None else self.memory_bytes

    def block_size(self, n: int, device: torch.device) -> int:
        """Return the rows of a block for a matrix of n rows."""
        if self.block_rows is not None:
            return self.block_rows
        widest = 1024 if device.type == "cuda" else 512
        return min(widest, max(64, -(-n // 4)))

    def prediction_entries(self, device: torch.device, large: bool = True) -> int:
        """Return the entries of a (queries, rows) panel during prediction."""
        if self.panel_entries is not None:
            return self.panel_entries
        return 1 << 26 if device.type == "cuda" else 1 << 20 if large else 1 << 18


#: The settings of engines that are given none.
EXACT_DEFAULTS = ExactSettings()
