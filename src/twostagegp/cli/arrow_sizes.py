"""How large the parts of an Arrow file are, from what it says of itself, before any is unpacked.

pyarrow tells neither the rows nor the size of a record batch before it has unpacked the batch, and
a compressed batch of a few kilobytes can hold gigabytes. Both stand in the file: the footer says
where the batches are, each begins with a table of its buffers, and a compressed buffer begins with
its length once unpacked. pyarrow allocates what that length says, so that it cannot be understated.

https://arrow.apache.org/docs/format/Columnar.html and https://flatbuffers.dev/internals
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

__all__ = ["BatchSize", "batch_sizes", "dictionary_size"]

#: How files before Arrow 1.0 say that they are compressed.
_OLD_COMPRESSION = b"ARROW:experimental_compression"
#: Places of fields in the tables of the format.
_FOOTER_DICTIONARIES, _FOOTER_BATCHES = 2, 3
_MESSAGE_HEADER, _MESSAGE_LENGTH = 2, 3
_BATCH_LENGTH, _BATCH_BUFFERS, _BATCH_COMPRESSION = 0, 2, 3
_DICTIONARY_DATA = 1


@dataclass(frozen=True)
class BatchSize:
    """What a record batch says of itself.

    Attributes
    ----------
    rows : int
    held : int
        Bytes of its buffers once they are unpacked.
    unpacked : int
        Bytes that reading the batch takes: packed and unpacked, and none where nothing is packed.
    """

    rows: int
    held: int
    unpacked: int


def batch_sizes(
    data: memoryview, schema: pa.Schema, columns: Collection[str]
) -> Iterator[BatchSize]:
    """Sizes of some columns in the record batches of a file, in their order.

    Parameters
    ----------
    data : memoryview of bytes
        The file.
    schema : pyarrow Schema
    columns : collection of str
    """
    counts = [_buffer_count(field.type) for field in schema]
    wanted = [
        field.name in columns
        for field, count in zip(schema, counts, strict=True)
        for _ in range(count)
    ]
    for message, body in _messages(data, _FOOTER_BATCHES):
        yield _size(data, message, body, _follow(data, message, _MESSAGE_HEADER), wanted)


def dictionary_size(data: memoryview) -> int:
    """Bytes of all dictionaries of a file; they are read with the first batch."""
    total = 0
    for message, body in _messages(data, _FOOTER_DICTIONARIES):
        batch = _follow(data, _follow(data, message, _MESSAGE_HEADER), _DICTIONARY_DATA)
        total += _size(data, message, body, batch, []).held
    return total


def _buffer_count(kind: pa.DataType) -> int:
    """Buffers of a column without its dictionary; wrong for unions, see :func:`_size`."""
    return 0 if pa.types.is_null(kind) else len(pa.nulls(0, kind).buffers())


def _messages(data: memoryview, field: int) -> Iterator[tuple[int, int]]:
    """Where the messages begin that a list of the footer names, and where their bodies do."""
    end = len(data) - 10  # behind the footer are its length and "ARROW1"
    footer = end - _read(data, "<i", end)
    for offset, skipped, length in _structs(data, _root(data, footer), field, "<qi4xq"):
        prefix = 8 if _read(data, "<i", offset) == -1 else 4  # before Arrow 0.15 there was no -1
        message, body = _root(data, offset + prefix), offset + skipped
        at = _field(data, message, _MESSAGE_LENGTH)
        # pyarrow allocates as much before it looks whether the file has it.
        if not 0 <= body + max(length, _read(data, "<q", at) if at else 0) <= len(data):
            raise ValueError("a part lies outside of the file")
        yield message, body


def _size(data: memoryview, message: int, body: int, batch: int, wanted: list[bool]) -> BatchSize:
    """Size of a batch; of all its columns where its buffers are not as many as ``wanted``."""
    at = _field(data, batch, _BATCH_LENGTH)
    rows = _read(data, "<q", at) if at else 0
    packed = _field(data, batch, _BATCH_COMPRESSION) > 0
    packed = packed or _OLD_COMPRESSION in bytes(data[message:body])
    buffers = list(_structs(data, batch, _BATCH_BUFFERS, "<qq"))
    if len(wanted) != len(buffers):
        wanted = [True] * len(buffers)
    held = unpacked = 0
    for (offset, length), is_wanted in zip(buffers, wanted, strict=True):
        if not is_wanted or length <= 0:
            continue
        known = _read(data, "<q", body + offset) if packed else -1
        held += length if known < 0 else known  # -1: not compressed after all
        unpacked += length + max(known, 0) if packed else 0
    return BatchSize(max(rows, 0), held, unpacked)


# --- flatbuffers ---------------------------------------------------------------------------------


def _read(data: memoryview, form: str, at: int) -> int:
    return int(_unpack(data, form, at)[0])


def _unpack(data: memoryview, form: str, at: int) -> tuple[Any, ...]:
    if at < 0 or at + struct.calcsize(form) > len(data):
        raise ValueError("a part lies outside of the file")
    return struct.unpack_from(form, data, at)


def _root(data: memoryview, at: int) -> int:
    return at + _read(data, "<I", at)


def _field(data: memoryview, table: int, number: int) -> int:
    """Where a field of a table is; 0 where it is not there."""
    fields = table - _read(data, "<i", table)
    place = 4 + 2 * number
    if place + 2 > _read(data, "<H", fields):
        return 0
    offset = _read(data, "<H", fields + place)
    return table + offset if offset else 0


def _follow(data: memoryview, table: int, number: int) -> int:
    """The table that a field leads to."""
    at = _field(data, table, number)
    if not at:
        raise ValueError("a part has no content")
    return _root(data, at)


def _structs(data: memoryview, table: int, number: int, form: str) -> Iterator[tuple[Any, ...]]:
    """The members of a list of structures."""
    at = _field(data, table, number)
    if at:
        begin = _root(data, at)
        for k in range(_read(data, "<I", begin)):
            yield _unpack(data, form, begin + 4 + k * struct.calcsize(form))
