"""Program that measures how much memory the pieces of a Parquet or Feather file need.

A piece is decompressed at once: a row group of a Parquet file, a record batch of a Feather file.
On some damaged files pyarrow ends the process when it is asked for the sizes of columns, and the
size of a Feather batch is known only after it is decompressed. So :mod:`twostagegp.cli.arrow_files`
runs this file as a program of its own, with limited memory, and only for files whose pieces might
not fit.

The standard input holds a JSON object: ``path``, ``kind`` ("parquet" or "feather"), ``columns`` and
``memory`` (bytes). The standard output is a JSON object with

- ``pieces``: bytes per row group, or of the largest record batch;
- ``mapped``: whether the batches are not compressed, so that reading them needs no memory;
- or ``error``: the message, or null if memory did not suffice.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["feather_pieces", "parquet_pieces"]

#: Pools are kept until the process ends: buffers would refer to one that is gone.
_pools: list[pa.MemoryPool] = []
#: Address space beyond the limit for pyarrow's own needs.
_SPARE = 1 << 28


def parquet_pieces(path: str, columns: Sequence[str]) -> dict[str, Any]:
    """Return the bytes of some columns per row group.

    A column "a" is also charged with the size of a column "a.b", whose path looks like that of a
    field inside of "a".
    """
    metadata = pq.read_metadata(path)
    beginnings = tuple(f"{name}." for name in columns)
    paths = [metadata.schema.column(j).path for j in range(metadata.num_columns)]
    wanted = [j for j, name in enumerate(paths) if f"{name}.".startswith(beginnings)]
    groups = (metadata.row_group(k) for k in range(metadata.num_row_groups))
    sizes = [sum(max(g.column(j).total_uncompressed_size, 0) for j in wanted) for g in groups]
    return {"pieces": sizes, "mapped": False}


def feather_pieces(path: str, columns: Sequence[str]) -> dict[str, Any]:
    """Return the memory that reading the largest record batch takes, and whether it takes any."""
    with pa.memory_map(path) as file:
        try:
            if _peak(file, []) == 0:
                return {"pieces": [0], "mapped": True}
        except MemoryError:
            pass  # for all columns; the wanted ones may need less
        return {"pieces": [_peak(file, columns)], "mapped": False}


def _peak(file: pa.MemoryMappedFile, columns: Sequence[str]) -> int:
    """Read one batch after the other, and return the most memory that was taken at a time."""
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    _pools.append(pool)
    with pa.ipc.open_file(file) as reader:
        fields = [reader.schema.get_field_index(name) for name in columns]
    options = pa.ipc.IpcReadOptions(included_fields=sorted(set(fields)), use_threads=False)
    with pa.ipc.open_file(file, options=options, memory_pool=pool) as reader:
        for k in range(reader.num_record_batches):
            reader.get_batch(k)
            if not columns and pool.max_memory():
                break  # compressed
    return int(pool.max_memory())


def _limit_memory(path: str, memory: int) -> None:
    """Limit the address space of this process, on systems that can."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return
    most = used + os.path.getsize(path) + memory + _SPARE  # the file is mapped into memory
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    known = [most, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(known), hard))


def _main() -> None:
    asked = json.load(sys.stdin)
    _limit_memory(asked["path"], asked["memory"])
    measure = {"parquet": parquet_pieces, "feather": feather_pieces}[asked["kind"]]
    try:
        answer = measure(asked["path"], asked["columns"])
    except MemoryError:
        answer = {"error": None}
    except Exception as error:  # any damage of the file
        answer = {"error": str(error) or type(error).__name__}
    print(json.dumps(answer))  # noqa: T201 - the answer to the process that runs this program


if __name__ == "__main__":
    _main()
