"""Output files that are written completely or not at all.

Rows are appended to a file next to the target, ``.<name>.<random>.twostagegp-part``, which is
renamed when it is complete. The process that writes it holds a lock on it; a file of such a name
without a lock was left by a killed process, and the next run removes it.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import io
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from twostagegp.cli.formats import format_of
from twostagegp.errors import InputError

__all__ = ["Sink", "guard_formulas", "open_sink", "write_table"]

_ENDING = ".twostagegp-part"
#: Cells that a spreadsheet would execute as a formula, and those that are plain numbers.
_FORMULA = r"^[=+\-@\t\r\n＝＋－＠]"
_NUMBER = r"^[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?$"


class Sink:
    """Writes tables with the same columns, one after the other, into an open file."""

    def __init__(self, file: IO[bytes], kind: str, guard: bool) -> None:
        self.file, self.kind, self.guard = file, kind, guard
        self.writer: Any = None

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        if self.kind in ("csv", "tsv"):
            self._write_text(table)
            return
        if self.writer is None:
            self.schema = table.schema.remove_metadata()
            if self.kind == "parquet":
                self.writer = pq.ParquetWriter(self.file, self.schema)
            else:
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                self.writer = pa.ipc.new_file(self.file, self.schema, options=options)
        self.writer.write_table(table.replace_schema_metadata(None).cast(self.schema))

    def _write_text(self, table: pa.Table) -> None:
        table = guard_formulas(table) if self.guard else table
        first, self.writer = self.writer is None, True
        # Integers with missing values stay integers.
        frame: pd.DataFrame = table.to_pandas(integer_object_nulls=True)
        text = io.TextIOWrapper(self.file, encoding="utf-8", newline="", write_through=True)
        between = "," if self.kind == "csv" else "\t"
        # Many readers end a line at a carriage return, but pandas does not quote such cells.
        quoting: Any = csv.QUOTE_NONNUMERIC if _has_returns(frame) else csv.QUOTE_MINIMAL
        frame.to_csv(
            text, sep=between, index=False, header=first, lineterminator="\n", quoting=quoting
        )
        text.detach()

    def close(self) -> None:
        """Write the end of the file; a second call has no effect."""
        writer, self.writer = self.writer, None
        if self.kind in ("parquet", "feather") and writer is not None:
            writer.close()

    def finish(self) -> None:
        """Write everything to the disk."""
        self.close()
        self.file.flush()
        os.fsync(self.file.fileno())


def _has_returns(frame: pd.DataFrame) -> bool:
    """Return whether a name or a text cell contains a carriage return."""
    if any("\r" in str(name) for name in frame.columns):
        return True
    text = [k for k, kind in enumerate(frame.dtypes) if not pd.api.types.is_numeric_dtype(kind)]
    return any(frame.iloc[:, k].astype(str).str.contains("\r", regex=False).any() for k in text)


def guard_formulas(table: pa.Table) -> pa.Table:
    """Put an apostrophe before text that a spreadsheet would execute as a formula.

    Examples
    --------
    >>> guard_formulas(pa.table({"note": ["=1+1", "-5", "fine"]}))["note"].to_pylist()
    ["'=1+1", '-5', 'fine']
    """
    names, columns = [], []
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if _is_text(column.type):
            text = column.cast(pa.large_string())
            formula = pc.and_(
                pc.match_substring_regex(text, _FORMULA),
                pc.invert(pc.match_substring_regex(text, _NUMBER)),
            )
            if pc.any(formula).as_py():
                marked = pc.binary_join_element_wise(
                    pa.scalar("'", pa.large_string()), text, pa.scalar("", pa.large_string())
                )
                column = pc.if_else(formula, marked, text)
        harmless = not name or name[0] not in "=+-@\t\r\n＝＋－＠"
        names.append(name if harmless else f"'{name}")
        columns.append(column)
    return pa.table(columns, names=names)


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string)
    return any(test(kind) for test in tests) or "string_view" in str(kind)


@contextmanager
def open_sink(path: Path, guard: bool = True) -> Iterator[Sink]:
    """Yield a sink whose file replaces ``path`` at the end, unless an error is raised."""
    kind = format_of(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file.")
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_over(target)
    file, draft = _new_draft(target)
    sink = Sink(file, kind, guard)
    try:
        yield sink
        sink.finish()
        if sys.platform == "win32":
            file.close()  # Windows cannot rename an open file
        os.replace(draft, target)
    finally:
        for end in (sink.close, file.close):
            with contextlib.suppress(Exception):  # such as a full disk, which was reported before
                end()
        draft.unlink(missing_ok=True)


def write_table(path: Path, table: pa.Table, guard: bool = True) -> None:
    """Write one table to one file."""
    with open_sink(path, guard) as sink:
        sink.write(table)


def _new_draft(target: Path) -> tuple[IO[bytes], Path]:
    while True:
        draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}{_ENDING}")
        file = open(draft, "xb")  # noqa: SIM115 - open_sink closes it
        _lock(file, wait=True)
        if draft.exists():
            return file, draft
        file.close()  # another run removed it before it was locked


def _remove_left_over(target: Path) -> None:
    """Remove the files of killed runs; running ones hold a lock."""
    pattern = f".{glob.escape(target.name)}.*{_ENDING}"
    for draft in target.parent.glob(pattern):
        with contextlib.suppress(OSError), open(draft, "r+b") as file:
            _lock(file, wait=False)
            draft.unlink()


if sys.platform == "win32":

    def _lock(file: IO[bytes], wait: bool) -> None:
        """Do nothing: on Windows an open file cannot be removed."""

else:
    import fcntl

    def _lock(file: IO[bytes], wait: bool) -> None:
        """Lock a file; without ``wait``, raise OSError if another process holds the lock."""
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
