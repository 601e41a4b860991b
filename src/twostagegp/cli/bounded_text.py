"""Text files that are read in bounded memory, even if they are compressed.

A compressed file of a few kilobytes can hold gigabytes, and a line without an end is one cell. So
bytes and cells are counted while they are read: those since the last end of a line, and the bytes
since the reader started a new piece (a chunk of rows, or the whole table).

A line feed and a carriage return both end a line, as for the readers of pandas and Python, also
inside quotation marks: recognising those would require parsing cells like 5" here. The header,
whose names become Python objects, is therefore also limited as a whole.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from twostagegp.cli.formats import decompressed
from twostagegp.cli.limits import COPIES, Limits
from twostagegp.errors import InputError, MemoryBudgetError

__all__ = ["BoundedText", "open_bounded"]

#: Bytes that are read at a time.
_BUFFER = 1 << 18


class BoundedText(io.RawIOBase):
    """Raw file that raises when a line, or the piece since :meth:`start_piece`, is too long.

    Parameters
    ----------
    file : binary file
    path : Path
        Named in messages.
    delimiter : str
        Separator of cells.
    header_only : bool
        Whether only the header is to be read.
    limits : Limits
    """

    def __init__(
        self, file: Any, path: Path, delimiter: str, header_only: bool, limits: Limits
    ) -> None:
        self.file, self.path, self.header_only, self.limits = file, path, header_only, limits
        self.delimiter = delimiter.encode()
        self.line_bytes = self.line_cells = self.piece_bytes = self.header_cells = 0
        self.most_bytes = limits.free_bytes() // COPIES

    def readable(self) -> bool:
        """Return True: the file is open for reading."""
        return True

    def start_piece(self) -> None:
        """Count the bytes of the next piece from zero."""
        self.piece_bytes = 0

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, as for every raw file, and check the limits."""
        data = self.file.read(len(buffer))
        buffer[: len(data)] = data
        self.piece_bytes += len(data)
        ends = [at for at in (data.find(b"\n"), data.find(b"\r")) if at >= 0]
        end = max(data.rfind(b"\n"), data.rfind(b"\r"))
        longest = self.line_cells + data.count(self.delimiter, 0, min(ends, default=len(data)))
        self.line_bytes = self.line_bytes + len(data) if end < 0 else len(data) - end - 1
        self.line_cells = longest if end < 0 else data.count(self.delimiter, end)
        if self.header_only:
            self.header_cells += data.count(self.delimiter)
        self._check(longest)
        return len(data)

    def _check(self, longest: int) -> None:
        most = self.limits.line_cells
        # The buffer may contain rows after the header, with at most one cell per byte.
        if longest > most or self.header_cells > most + _BUFFER:
            raise InputError(
                f"{self.path} has a line of more than {most:,} cells. If it is a table, check "
                "--delimiter, or write it as a Parquet file."
            )
        if self.line_bytes > self.limits.line_bytes:
            raise InputError(
                f"{self.path} has a line of more than {self.limits.line_bytes >> 20} MiB. If it is "
                "a table, check --encoding, or write it as a Parquet file."
            )
        if self.piece_bytes > self.most_bytes:
            raise MemoryBudgetError(
                f"{self.path}: {self.piece_bytes / 2**20:,.0f} MiB of text in one piece need about "
                f"{COPIES * self.piece_bytes / 2**30:.1f} GiB, more than is free. Check for a "
                "quotation mark that is not closed; otherwise fit a sample of the rows, or lower "
                "--chunk-rows."
            )


@contextmanager
def open_bounded(
    path: Path, delimiter: str, limits: Limits, header_only: bool = False
) -> Iterator[tuple[IO[bytes], BoundedText, io.BufferedReader]]:
    """Open a text file; yield the file on disk, the counter, and the stream to read from."""
    with ExitStack() as stack:
        raw = stack.enter_context(open(path, "rb"))
        text = stack.enter_context(decompressed(raw, path))
        counter = BoundedText(text, path, delimiter, header_only, limits)
        yield raw, counter, io.BufferedReader(counter, _BUFFER)
