"""Text files, also compressed ones, that cannot take more memory than they are allowed.

A compressed file of a few kilobytes can hold gigabytes, and a line without an end is one cell. What
comes out is counted while it is read: bytes and cells since the last end of a line, and bytes since
a reader last began anew (a chunk of rows, or the whole table).

Both a line feed and a carriage return end a line, as for the readers of pandas and Python. Those in
quotation marks count as well: to tell them apart, cells like 5" would have to be understood here.
The line of names, of which Python makes an object each, is therefore also counted as a whole.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from twostagegp.cli.formats import unpacked
from twostagegp.errors import InputError, MemoryBudgetError
from twostagegp.runtime.memory import available_bytes

__all__ = ["Bounded", "check_piece", "check_size", "open_bounded"]

#: Longest line that is taken for a row of a table.
LINE_BYTES = 64 << 20
#: Most cells of one; each is an object of Python.
LINE_CELLS = 1 << 18
#: Memory for the cells of a table, in bytes of its text: pandas makes objects of them.
_GROWTH = 4
#: Bytes that are read at a time.
_BUFFER = 1 << 18
#: What is allowed where the system does not say how much there is.
_UNKNOWN = 1 << 33


class Bounded(io.RawIOBase):
    """Reads from a file until a line, or everything since :meth:`begin`, is too long.

    Parameters
    ----------
    file : binary file
    path : Path
        For messages.
    delimiter : str
        What stands between cells.
    names_only : bool
        Whether nothing but the line of names is to be read.
    """

    def __init__(
        self, file: Any, path: Path, delimiter: str = ",", names_only: bool = False
    ) -> None:
        self.file, self.path, self.names_only = file, path, names_only
        self.mark = delimiter.encode()
        self.line = self.cells = self.seen = self.names = 0
        self.most = _budget() // _GROWTH

    def readable(self) -> bool:
        """It is."""
        return True

    def begin(self) -> None:
        """What was read before has been dealt with."""
        self.seen = 0

    def readinto(self, buffer: Any) -> int:
        """As of every raw file."""
        data = self.file.read(len(buffer))
        buffer[: len(data)] = data
        self.seen += len(data)
        ends = [at for at in (data.find(b"\n"), data.find(b"\r")) if at >= 0]
        end = max(data.rfind(b"\n"), data.rfind(b"\r"))
        longest = self.cells + data.count(self.mark, 0, min(ends, default=len(data)))
        self.line = self.line + len(data) if end < 0 else len(data) - end - 1
        self.cells = longest if end < 0 else data.count(self.mark, end)
        if self.names_only:
            self.names += data.count(self.mark)
        # Behind the names a buffer may hold rows, of at most as many cells as it has bytes.
        if longest > LINE_CELLS or self.names > LINE_CELLS + _BUFFER:
            raise InputError(
                f"{self.path} has a line of more than {LINE_CELLS:,} cells. Is it a table? Then "
                "check --delimiter, or write it as a Parquet file."
            )
        if self.line > LINE_BYTES:
            raise InputError(
                f"{self.path} has a line of more than {LINE_BYTES >> 20} MiB. Is it a table? Then "
                "check --encoding, or write it as a Parquet file."
            )
        if self.seen > self.most:
            raise MemoryBudgetError(
                f"{self.path}: {self.seen / 2**20:,.0f} MiB of text in one piece need about "
                f"{_GROWTH * self.seen / 2**30:.1f} GiB, more than is free. Is a quotation mark "
                "not closed? Otherwise fit a sample of the rows, or lower --chunk-rows."
            )
        return len(data)


@contextmanager
def open_bounded(
    path: Path, delimiter: str = ",", names_only: bool = False
) -> Iterator[tuple[IO[bytes], Bounded, io.BufferedReader]]:
    """The file itself, the counter, and what to read from."""
    with ExitStack() as stack:
        raw = stack.enter_context(open(path, "rb"))
        counter = Bounded(stack.enter_context(unpacked(raw, path)), path, delimiter, names_only)
        yield raw, counter, io.BufferedReader(counter, _BUFFER)


def check_size(path: Path, rows: int, columns: int, held: int = 0) -> None:
    """Raise before a table is read whole that says it has more than there is memory for.

    Parameters
    ----------
    path : Path
        For messages.
    rows, columns : int
    held : int
        Bytes of its cells once they are unpacked, where the file says so; texts need more than the
        eight bytes of a number.
    """
    needed, budget = _GROWTH * max(8 * rows * max(columns, 1), held), _budget()
    if needed > budget:
        raise MemoryBudgetError(
            f"{path} says that it has {rows:,} rows; {columns} columns of them need about "
            f"{needed / 2**30:.1f} GiB, and {budget / 2**30:.1f} GiB are free. Fit a sample of "
            "the rows."
        )


def check_piece(path: Path, rows: int, columns: int, unpacked: int) -> None:
    """Raise before a piece of a file is unpacked that there is no memory for.

    Parameters
    ----------
    path : Path
        For messages.
    rows, columns : int
        What is made of the piece at a time.
    unpacked : int
        Bytes that the piece has once it is unpacked.
    """
    needed, budget = unpacked + 8 * rows * max(columns, 1), _budget()
    if needed > budget:
        raise MemoryBudgetError(
            f"{path} has a piece that is unpacked at once (a row group of a Parquet file, a record "
            f"batch of a Feather file) and needs {needed / 2**20:,.0f} MiB; "
            f"{budget / 2**20:,.0f} MiB are free. Write the file with fewer rows in a piece, or "
            "lower --chunk-rows."
        )


def _budget() -> int:
    free = available_bytes(torch.device("cpu"))
    return _UNKNOWN if free is None else free
