"""Limits on what is read from a file, and checks that are made before memory is used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from twostagegp.errors import MemoryBudgetError
from twostagegp.runtime.memory import available_bytes

__all__ = ["COPIES", "Limits"]

#: Copies of a table that reading it as a whole needs at its peak: pandas makes objects of cells.
COPIES = 4
#: Assumed free memory on systems that do not report it.
_UNKNOWN_MEMORY = 1 << 33


@dataclass(frozen=True)
class Limits:
    """Bounds on what is read from a file.

    Attributes
    ----------
    memory : int or None
        Bytes that may be used; None for the memory that is free at the time.
    line_bytes, line_cells : int
        Longest line of a text file. Each cell of a line becomes a Python object.
    """

    memory: int | None = None
    line_bytes: int = 64 << 20
    line_cells: int = 1 << 18

    def free_bytes(self) -> int:
        """Return the number of bytes that may be used now."""
        if self.memory is not None:
            return self.memory
        free = available_bytes(torch.device("cpu"))
        return _UNKNOWN_MEMORY if free is None else free

    def check_table(self, path: Path, columns: int, held: int = 0, rows: int = 0) -> None:
        """Raise MemoryBudgetError if a table does not fit into memory as a whole.

        Parameters
        ----------
        path : Path
            Named in the message.
        columns, rows : int
            Size of the table, or of a part of it.
        held : int
            Bytes of its cells after decompression, if known; text needs more than the eight bytes
            of a number.
        """
        needed, free = COPIES * max(8 * rows * max(columns, 1), held), self.free_bytes()
        if needed > free:
            size = f"{rows:,} rows of {columns} columns" if rows else f"{columns} columns"
            raise MemoryBudgetError(
                f"{path}: {size} need about {needed / 2**30:.1f} GiB as a table, and "
                f"{free / 2**30:.1f} GiB are free. Fit a sample of the rows."
            )

    def check_piece(self, path: Path, columns: int, held: int, rows: int = 0) -> None:
        """Raise MemoryBudgetError if a piece that is decompressed at once does not fit.

        Parameters
        ----------
        path : Path
            Named in the message.
        columns, rows : int
            Size of the chunk that is made from the piece.
        held : int
            Bytes of the piece after decompression.
        """
        needed, free = held + 8 * rows * max(columns, 1), self.free_bytes()
        if needed > free:
            raise MemoryBudgetError(
                f"{path} has a piece that is decompressed at once (a row group of a Parquet file, "
                f"a record batch of a Feather file) and needs {needed / 2**20:,.0f} MiB; "
                f"{free / 2**20:,.0f} MiB are free. Write the file with fewer rows per piece, or "
                "lower --chunk-rows."
            )
