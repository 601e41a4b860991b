"""Table files: the format, the columns, and rows as a whole or in chunks of bounded size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd
import pyarrow as pa

from twostagegp.cli.arrow_files import column_names, read_batches, read_table
from twostagegp.cli.formats import COMPRESSED, explain_errors, format_of
from twostagegp.cli.limits import Limits
from twostagegp.cli.options import nearest
from twostagegp.cli.text_files import TextFile
from twostagegp.errors import InputError

__all__ = ["Chunk", "Source", "open_source"]

#: Prefix of the columns in which pandas stores an unnamed index.
_INDEX = "__index_level_"


@dataclass(frozen=True)
class Chunk:
    """Some rows of a file.

    Attributes
    ----------
    frame : DataFrame
        The columns for the model.
    kept : pyarrow Table
        The columns that are copied to the output.
    first : int
        Number of the first row, from 0.
    done : float
        Share of the file that has been read.
    """

    frame: pd.DataFrame
    kept: pa.Table
    first: int
    done: float


@dataclass(frozen=True)
class Source:
    """An existing file, its format and the names of its columns."""

    path: Path
    kind: str
    names: list[str]
    encoding: str = "utf-8"
    delimiter: str = ","
    decimal: str = "."
    limits: Limits = field(default_factory=Limits)

    @property
    def text(self) -> TextFile | None:
        """The file as CSV or TSV; None for formats that store types."""
        if self.kind not in ("csv", "tsv"):
            return None
        return TextFile(self.path, self.encoding, self.delimiter, self.decimal, self.limits)

    def explain_errors(self) -> AbstractContextManager[None]:
        """Return a context in which errors of readers become InputErrors about this file."""
        return explain_errors(self.path, self.kind, self.encoding, self.delimiter)

    def require(self, columns: Sequence[str], what: str) -> None:
        """Raise InputError if a column does not exist, with similar names and a list of all.

        Parameters
        ----------
        columns : sequence of str
        what : str
            Why the columns are needed, for the message.
        """
        for name in columns:
            if name not in self.names:
                listed = ", ".join(repr(each) for each in self.names[:40])
                more = f" and {len(self.names) - 40} more" if len(self.names) > 40 else ""
                raise InputError(
                    f"{self.path} has no column {name!r} ({what}).{nearest(name, self.names)} "
                    f"Its columns: {listed}{more}."
                )

    def header(self) -> list[str]:
        """Read the names of the columns."""
        if text := self.text:
            return text.header()
        names = column_names(self.path, self.kind)
        return [name for name in names if not name.startswith(_INDEX)]

    def read(self, columns: Sequence[str], as_text: Collection[str] = ()) -> pd.DataFrame:
        """Return all rows of some columns, with inferred types if the file stores none."""
        with self.explain_errors():
            if text := self.text:
                frame = text.read(self.names, as_text)
            else:
                frame = _to_frame(read_table(self.path, self.kind, columns, self.limits))
        if len(frame) == 0:
            raise InputError(f"{self.path} has no rows.")
        return frame[list(columns)]

    def chunks(
        self, columns: Sequence[str], numbers: Collection[str], keep: Sequence[str], rows: int
    ) -> Iterator[Chunk]:
        """Yield all rows in chunks.

        Parameters
        ----------
        columns : sequence of str
            Columns for the model.
        numbers : collection of str
            Those of the columns that are numbers.
        keep : sequence of str
            Columns that are copied to the output.
        rows : int
            Most rows per chunk.
        """
        made = (
            text.chunks(self.names, columns, numbers, keep, rows)
            if (text := self.text)
            else self._arrow_chunks(columns, keep, rows)
        )
        first = 0
        with self.explain_errors():
            for frame, kept, done in made:
                if len(frame):
                    yield Chunk(frame, kept, first, done)
                first += len(frame)
        if first == 0:
            raise InputError(f"{self.path} has no rows.")

    def _arrow_chunks(
        self, columns: Sequence[str], keep: Sequence[str], rows: int
    ) -> Iterator[tuple[pd.DataFrame, pa.Table, float]]:
        wanted = list(dict.fromkeys([*columns, *keep]))
        for batch, done in read_batches(self.path, self.kind, wanted, rows, self.limits):
            table = pa.Table.from_batches([batch]).select(wanted)
            frame = _to_frame(table.select(list(columns)))[list(columns)]
            yield frame.reset_index(drop=True), table.select(list(keep)), done


def open_source(
    path: Path,
    encoding: str = "utf-8",
    delimiter: str | None = None,
    decimal: str = ".",
    limits: Limits | None = None,
) -> Source:
    """Determine the format and the columns of a file.

    Parameters
    ----------
    path : Path
    encoding, delimiter, decimal : str
        Of CSV and TSV files.
    limits : Limits, optional
        What may be read; by default as much as fits into memory.
    """
    plain = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    kind = format_of(plain)
    if plain is not path and kind not in ("csv", "tsv"):
        raise InputError(f"{path}: only CSV and TSV files may be compressed.")
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise InputError(f"{path} {what}.")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty.")
    mark = delimiter or ("\t" if kind == "tsv" else ",")
    mark = {"\\t": "\t", "tab": "\t"}.get(mark, mark)
    for name, given in (("delimiter", mark), ("decimal", decimal)):
        if len(given) != 1:
            raise InputError(f"--{name} {given!r}: give one character.")
    # Spreadsheets write a byte order mark, which is not part of the first name.
    codec = "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding
    source = Source(path, kind, [], codec, mark, decimal, limits or Limits())
    with source.explain_errors():
        source = replace(source, names=source.header())
    _check_names(source)
    return source


def _check_names(source: Source) -> None:
    """Raise if names are repeated, or the only name contains another delimiter."""
    names = source.names
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise InputError(f"{source.path} has more than one column {repeated[0]!r}; rename them.")
    if len(names) == 1 and source.text:
        for mark in ";\t|,":
            if mark in names[0]:
                raise InputError(
                    f"{source.path} seems to have one column only, {names[0]!r}; if its cells are "
                    f"separated by {mark!r}, use --delimiter {mark!r}."
                )


def _to_frame(table: pa.Table) -> pd.DataFrame:
    """Return a table as a data frame; a named index becomes a column."""
    frame = table.to_pandas()
    frame = frame.reset_index() if any(frame.index.names) else frame
    if set(table.column_names) <= set(frame.columns):
        return frame
    # The file's note of pandas about the index is wrong, so it is ignored.
    return table.to_pandas(ignore_metadata=True)
