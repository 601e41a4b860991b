"""Parquet and Feather files, read with pyarrow as a whole or in pieces of bounded size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from twostagegp.cli import piece_sizes
from twostagegp.cli.limits import COPIES, Limits
from twostagegp.errors import InputError, MemoryBudgetError

__all__ = ["column_names", "read_batches", "read_table"]

#: Most bytes per byte of a compressed buffer (zstd: a block of 128 KiB in 4 bytes), times the
#: three buffers of a column of text.
_MOST_EXPANSION = 3 << 15
#: Seconds that measuring a file may take: a minute, and one per 10 MB of the file.
_MINUTE, _BYTES_PER_SECOND = 60.0, 1e7


def column_names(path: Path, kind: str) -> list[str]:
    """Return the names of the columns of a file."""
    if kind == "parquet":
        return list(pq.read_schema(path).names)
    with pa.memory_map(str(path)) as memory, pa.ipc.open_file(memory) as reader:
        return list(reader.schema.names)


def read_table(path: Path, kind: str, columns: Sequence[str], limits: Limits) -> pa.Table:
    """Return all rows of some columns, or raise if they do not fit into memory."""
    if kind == "parquet":
        metadata = pq.read_metadata(path)
        held = sum(_group_sizes(path, metadata, columns, limits))
        limits.check_table(path, len(columns), held, metadata.num_rows)
        table = pq.read_table(path, columns=list(columns)).select(list(columns))
    else:
        with _open_feather(path, columns, limits, limits.check_table) as reader:
            batches = list(_checked_batches(reader, path, columns, limits))
            table = pa.Table.from_batches(batches, reader.schema).select(list(columns))
    table.validate(full=True)  # text is UTF-8 and ends inside of the file
    return table


def read_batches(
    path: Path, kind: str, columns: Sequence[str], rows: int, limits: Limits
) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Yield at most ``rows`` rows at a time, and the share of the file that has been read.

    A row group of a Parquet file and a record batch of a Feather file is decompressed as a whole;
    if one does not fit into memory, MemoryBudgetError is raised before it is read.
    """
    if kind == "parquet":
        with pq.ParquetFile(path) as file:
            total = file.metadata.num_rows
            held = max(_group_sizes(path, file.metadata, columns, limits), default=0)
            limits.check_piece(path, len(columns), held, min(rows, total))
            done = 0
            for batch in file.iter_batches(batch_size=rows, columns=list(columns)):
                batch.validate(full=True)
                done += batch.num_rows
                yield batch, done / max(total, 1)
        return
    with _open_feather(path, columns, limits, limits.check_piece) as reader:
        pieces = reader.num_record_batches
        for k in range(pieces):
            batch = reader.get_batch(k).select(list(columns))
            batch.validate(full=True)
            for begin in range(0, batch.num_rows, rows):
                part = batch.slice(begin, rows)
                yield part, (k + (begin + part.num_rows) / batch.num_rows) / pieces


def _group_sizes(
    path: Path, metadata: pq.FileMetaData, columns: Sequence[str], limits: Limits
) -> list[int]:
    """Return the bytes per row group: of all columns if they fit, otherwise of the wanted ones."""
    groups = (metadata.row_group(k) for k in range(metadata.num_row_groups))
    sizes = [max(group.total_byte_size, 0) for group in groups]
    if COPIES * sum(sizes) <= limits.free_bytes():
        return sizes
    return list(_measured(path, "parquet", columns, limits)["pieces"])


@contextmanager
def _open_feather(
    path: Path,
    columns: Sequence[str],
    limits: Limits,
    check: Callable[[Path, int, int], None],
) -> Iterator[pa.RecordBatchFileReader]:
    """Open a Feather file whose batches fit into memory according to ``check``."""
    mapped = False
    if path.stat().st_size * _MOST_EXPANSION * len(columns) > limits.free_bytes():
        measured = _measured(path, "feather", columns, limits)
        mapped = measured["mapped"]
        check(path, len(columns), max(measured["pieces"]))
    with pa.memory_map(str(path)) as memory:
        with pa.ipc.open_file(memory) as whole:
            positions = sorted({whole.schema.get_field_index(name) for name in columns})
        # Buffers that are not compressed stay in the file; to select fields would copy them.
        options = pa.ipc.IpcReadOptions(included_fields=[] if mapped else positions)
        with pa.ipc.open_file(memory, options=options) as reader:
            yield reader


def _checked_batches(
    reader: pa.RecordBatchFileReader, path: Path, columns: Sequence[str], limits: Limits
) -> Iterator[pa.RecordBatch]:
    """Yield the batches until together they do not fit into memory."""
    rows = held = 0
    for k in range(reader.num_record_batches):
        batch = reader.get_batch(k)
        rows += batch.num_rows
        held += batch.select(list(columns)).nbytes
        limits.check_table(path, len(columns), held, rows)
        yield batch


def _measured(path: Path, kind: str, columns: Sequence[str], limits: Limits) -> dict[str, Any]:
    """Run :mod:`twostagegp.cli.piece_sizes` on a file and return its answer."""
    memory = limits.free_bytes()
    asked = {"path": str(path), "kind": kind, "columns": list(columns), "memory": memory}
    try:
        done = subprocess.run(
            [sys.executable, "-P", piece_sizes.__file__],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=_MINUTE + path.stat().st_size / _BYTES_PER_SECOND,
            # Arenas of other allocators would count towards the limit.
            env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
        )
        answer: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        raise InputError(
            f"{path} cannot be read as {kind}: pyarrow could not measure its columns, so the file "
            "seems to be damaged."
        ) from None
    if "error" not in answer:
        return answer
    if answer["error"] is None:
        raise MemoryBudgetError(
            f"{path} has a piece (a record batch) that needs more than the {memory / 2**20:,.0f} "
            "MiB that are free. Write the file with fewer rows per piece."
        )
    raise InputError(f"{path} cannot be read as {kind}: {answer['error']}")
