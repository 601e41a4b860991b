"""Files of tables: which format, which columns, and rows in chunks of bounded size.

CSV and TSV files have no types. Read whole, for a fit, pandas infers them from all rows at once.
Read in chunks, for predictions, nothing is inferred: columns that the model knows as numbers are
read as numbers, everything else as text, so that no chunk can get another type than the one before.
Parquet and Feather files say their types themselves.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from twostagegp.cli.arrow_sizes import BatchSize, batch_sizes, dictionary_size
from twostagegp.cli.bounded import check_piece, check_size, open_bounded
from twostagegp.cli.formats import GAPS, PACKED, format_of, reading, strict
from twostagegp.cli.options import nearest
from twostagegp.cli.parquet_sizes import group_sizes
from twostagegp.errors import InputError, MemoryBudgetError

__all__ = ["Chunk", "Source", "open_source"]

#: Columns in which pandas keeps the index of a frame.
_INDEX = "__index_level_"


@dataclass(frozen=True)
class Chunk:
    """Some rows.

    Attributes
    ----------
    frame : DataFrame
        The columns for the model.
    kept : pyarrow Table
        The columns that go into the output as they are.
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
    """A file that is there, with its format and the names of its columns."""

    path: Path
    kind: str
    names: list[str]
    encoding: str = "utf-8"
    delimiter: str = ","
    decimal: str = "."

    @property
    def is_text(self) -> bool:
        """Whether the file has no types of its own."""
        return self.kind in ("csv", "tsv")

    def as_input_errors(self) -> AbstractContextManager[None]:
        return reading(self.path, self.kind, self.encoding, self.delimiter)

    def require(self, columns: Sequence[str], what: str) -> None:
        """Raise where a column is not there, with the nearest name and the list of all."""
        for name in columns:
            if name not in self.names:
                listed = ", ".join(repr(each) for each in self.names[:40])
                more = f" and {len(self.names) - 40} more" if len(self.names) > 40 else ""
                raise InputError(
                    f"{self.path} has no column {name!r} ({what}).{nearest(name, self.names)} "
                    f"Its columns: {listed}{more}."
                )

    def read(self, columns: Sequence[str], as_text: Collection[str] = ()) -> pd.DataFrame:
        """All rows of some columns, with types inferred where the file has none."""
        with self.as_input_errors():
            if self.is_text:
                with strict(), open_bounded(self.path, self.delimiter) as (_, _, file):
                    frame = self._csv(file, dtype=dict.fromkeys(as_text, str), low_memory=False)
            else:
                frame = _to_frame(self._table(columns))
        if len(frame) == 0:
            raise InputError(f"{self.path} has no rows.")
        return frame[list(columns)]

    def chunks(
        self, columns: Sequence[str], numbers: Collection[str], keep: Sequence[str], rows: int
    ) -> Iterator[Chunk]:
        """All rows, at most ``rows`` at a time.

        Parameters
        ----------
        columns : sequence of str
            What the model is given.
        numbers : collection of str
            Those of the columns that are numbers.
        keep : sequence of str
            What goes through.
        rows : int
        """
        made = (
            self._csv_chunks(columns, numbers, keep, rows)
            if self.is_text
            else self._arrow_chunks(columns, keep, rows)
        )
        first = 0
        with self.as_input_errors():
            for frame, kept, done in made:
                if len(frame):
                    yield Chunk(frame, kept, first, done)
                first += len(frame)
        if first == 0:
            raise InputError(f"{self.path} has no rows.")

    def _table(self, columns: Sequence[str]) -> pa.Table:
        """All rows of a Parquet or Feather file."""
        if self.kind == "parquet":
            metadata = pq.read_metadata(self.path)
            self._check_groups(check_size, sum, metadata, metadata.num_rows, columns)
            table = pq.read_table(self.path, columns=list(columns)).select(list(columns))
        else:
            with self._feather(columns) as (reader, sizes, dictionaries):
                rows, held = sum(size.rows for size in sizes), sum(size.held for size in sizes)
                check_size(self.path, rows, len(columns), held + dictionaries)
                table = reader.read_all().select(list(columns))
        table.validate(full=True)  # whether texts are texts, and end inside of the file
        return table

    def _check_groups(
        self,
        check: Callable[[Path, int, int, int], None],
        together: Callable[[list[int]], int],
        metadata: pq.FileMetaData,
        rows: int,
        columns: Sequence[str],
    ) -> None:
        """Raise where the row groups of a Parquet file need too much, all or one at a time."""
        groups = [metadata.row_group(k) for k in range(metadata.num_row_groups)]
        try:
            held = together([max(group.total_byte_size, 0) for group in groups])
            check(self.path, rows, len(columns), held)
        except MemoryBudgetError:  # for all columns; what some need takes longer to find out
            check(self.path, rows, len(columns), together(group_sizes(self.path, set(columns))))

    @contextmanager
    def _feather(self, columns: Sequence[str]) -> Iterator[tuple[Any, list[BatchSize], int]]:
        """A reader of some columns, the sizes of its batches, and bytes of its dictionaries."""
        with pa.memory_map(str(self.path)) as memory:
            with pa.ipc.open_file(memory) as whole:
                schema = whole.schema
            memory.seek(0)
            data = memoryview(memory.read_buffer())
            sizes = list(batch_sizes(data, schema, set(columns)))
            # What is not compressed stays in the file; to include fields would copy them.
            is_packed = any(size.unpacked for size in batch_sizes(data, schema, schema.names))
            places = sorted({schema.get_field_index(name) for name in columns})
            options = pa.ipc.IpcReadOptions(included_fields=places if is_packed else [])
            with pa.ipc.open_file(memory, options=options) as reader:
                if len(sizes) != reader.num_record_batches:  # else rows would be lost
                    raise InputError(f"{self.path} cannot be read as feather: damaged footer.")
                yield reader, sizes, dictionary_size(data)

    # --- CSV -------------------------------------------------------------------------------------

    def _csv(self, file: Any, **options: Any) -> Any:
        # All columns are read: with ``usecols`` pandas would not notice rows with too many cells.
        return pd.read_csv(
            file,
            sep=self.delimiter,
            decimal=self.decimal,
            encoding=self.encoding,
            header=0,
            names=self.names,
            index_col=False,
            keep_default_na=False,
            **{"na_values": GAPS, **options},
        )

    def _csv_chunks(
        self, columns: Sequence[str], numbers: Collection[str], keep: Sequence[str], rows: int
    ) -> Iterator[tuple[pd.DataFrame, pa.Table, float]]:
        read_as_numbers = set(numbers) - set(keep)  # what is kept is kept as it stands in the file
        wanted = {*columns, *keep}
        # Columns that nobody asks for stay what they are, which is quicker where they are many.
        dtype: dict[str, Any] = dict.fromkeys(self.names, object)
        dtype |= {name: "float64" if name in read_as_numbers else str for name in wanted}
        gaps = {name: GAPS for name in wanted if name not in keep}
        size = max(self.path.stat().st_size, 1)
        with ExitStack() as stack:
            raw, counter, file = stack.enter_context(open_bounded(self.path, self.delimiter))
            given = self._csv(file, dtype=dtype, chunksize=rows, na_values=gaps)
            reader = stack.enter_context(given)
            while True:
                counter.begin()
                try:
                    with strict():
                        frame = next(reader, None)
                except ValueError as error:
                    if "could not convert" in str(error):
                        self._name_bad_number(read_as_numbers, rows)
                    raise
                if frame is None:
                    return
                kept = pa.table({name: _as_text(frame[name]) for name in keep})
                inputs = frame[list(columns)].reset_index(drop=True)
                for name in set(keep).intersection(columns):
                    inputs[name] = inputs[name].mask(inputs[name].isin(GAPS))
                yield inputs, kept, raw.tell() / size

    def _name_bad_number(self, numbers: Collection[str], rows: int) -> None:
        """Raise with the first cell that is no number; the file is read once more, as text."""
        first = 0
        with (
            open_bounded(self.path, self.delimiter) as (_, counter, file),
            self._csv(file, dtype=str, chunksize=rows) as reader,
        ):
            for frame in reader:
                counter.begin()
                for name in sorted(numbers):
                    text = frame[name].str.replace(self.decimal, ".", regex=False)
                    bad = text.notna() & pd.to_numeric(text, errors="coerce").isna()
                    if bad.any():
                        k = int(bad.to_numpy().argmax())
                        raise InputError(
                            f"{self.path}: column {name!r} held numbers in fit, and now "
                            f"{frame[name].iloc[k]!r} in row {first + k + 1}. Correct it, leave "
                            "the cell empty where the value is missing, or fit again."
                        )
                first += len(frame)

    # --- Parquet and Feather ---------------------------------------------------------------------

    def _arrow_chunks(
        self, columns: Sequence[str], keep: Sequence[str], rows: int
    ) -> Iterator[tuple[pd.DataFrame, pa.Table, float]]:
        wanted = list(dict.fromkeys([*columns, *keep]))
        done = 0
        for batch, total in self._batches(wanted, rows):
            done += batch.num_rows
            table = pa.Table.from_batches([batch]).select(wanted)
            frame = _to_frame(table.select(list(columns)))[list(columns)]
            yield frame.reset_index(drop=True), table.select(list(keep)), done / max(total, 1)

    def _batches(self, columns: Sequence[str], rows: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        if self.kind == "parquet":
            with pq.ParquetFile(self.path) as file:
                total = file.metadata.num_rows
                self._check_groups(check_piece, _largest, file.metadata, min(rows, total), columns)
                for batch in file.iter_batches(batch_size=rows, columns=list(columns)):
                    batch.validate(full=True)
                    yield batch, total
            return
        with self._feather(columns) as (reader, sizes, dictionaries):
            total = sum(size.rows for size in sizes)
            for number, size in enumerate(sizes):
                held = size.unpacked + (0 if number else dictionaries)
                check_piece(self.path, min(rows, size.rows), len(columns), held)
                batch = reader.get_batch(number).select(list(columns))
                batch.validate(full=True)
                for begin in range(0, batch.num_rows, rows):
                    yield batch.slice(begin, rows), total


def open_source(
    path: Path, encoding: str = "utf-8", delimiter: str | None = None, decimal: str = "."
) -> Source:
    """Look at a file: format and columns."""
    plain = path.with_suffix("") if path.suffix.lower() in PACKED else path
    kind = format_of(plain)
    if plain is not path and kind not in ("csv", "tsv"):
        raise InputError(f"{path}: only CSV and TSV files are read from compressed files.")
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "is not there"
        raise InputError(f"{path} {what}.")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty.")
    between = delimiter or ("\t" if kind == "tsv" else ",")
    between = {"\\t": "\t", "tab": "\t"}.get(between, between)
    for name, mark in (("delimiter", between), ("decimal", decimal)):
        if len(mark) != 1:
            raise InputError(f"--{name} {mark!r}: give one character.")
    # A byte order mark, which spreadsheets write, is not part of the first name.
    codec = "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding
    found = Source(path, kind, [], codec, between, decimal)
    with found.as_input_errors():
        names = _header(found)
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"{path} has more than one column {twice[0]!r}; rename them.")
    if len(names) == 1 and found.is_text:
        for mark in ";\t|,":
            if mark in names[0]:
                raise InputError(
                    f"{path} seems to have one column only, {names[0]!r}; if its cells are "
                    f"separated by {mark!r}, say --delimiter {mark!r}."
                )
    return Source(path, kind, names, codec, between, decimal)


def _header(source: Source) -> list[str]:
    if source.kind == "parquet":
        names = list(pq.read_schema(source.path).names)
    elif source.kind == "feather":
        with pa.memory_map(str(source.path)) as memory, pa.ipc.open_file(memory) as reader:
            names = list(reader.schema.names)
    else:
        # Not with pandas, which takes seconds where names are many.
        with (
            open_bounded(source.path, source.delimiter, names_only=True) as (_, _, file),
            io.TextIOWrapper(file, source.encoding, newline="") as text,
        ):
            lines = csv.reader(text, delimiter=source.delimiter, strict=True)
            line = next((cells for cells in lines if cells), None)
        if line is None:
            raise InputError(f"{source.path} is empty.")
        return [name or f"Unnamed: {k}" for k, name in enumerate(line)]
    return [name for name in names if not name.startswith(_INDEX)]


def _largest(sizes: list[int]) -> int:
    return max(sizes, default=0)


def _as_text(series: pd.Series) -> pa.Array:
    """Cells as they stand in the file; only empty ones are gaps."""
    return pa.array(series.mask(series == ""), pa.large_string(), from_pandas=True)


def _to_frame(table: pa.Table) -> pd.DataFrame:
    frame = table.to_pandas()
    # A column that pandas had as its index is a column all the same.
    frame = frame.reset_index() if any(frame.index.names) else frame
    if set(table.column_names) <= set(frame.columns):
        return frame
    # What pandas has noted in the file about its index is wrong: the columns themselves are there.
    return table.to_pandas(ignore_metadata=True)
