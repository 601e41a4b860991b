"""How large some columns of a Parquet file are once they are unpacked, from its footer.

pyarrow has these sizes too, but to ask it for them ends the process where the footer is damaged (it
throws an exception of C++ that nobody catches). Here only they are read, and all else is skipped.

https://parquet.apache.org/docs/file-format/metadata and Thrift's compact protocol
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TypeVar

__all__ = ["group_sizes"]

T = TypeVar("T")

#: Types of the protocol.
_TRUE, _FALSE, _BYTE, _INT64, _DOUBLE, _BINARY, _LIST, _SET = 1, 2, 3, 6, 7, 8, 9, 10
_STRUCT, _UUID = 12, 13
#: Types that are one number of variable length: of 16, 32 and 64 bits.
_NUMBERS = (4, 5, _INT64)
_LENGTHS = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8, _UUID: 16}
#: Numbers of the fields that lead to a size.
_FILE_GROUPS, _GROUP_COLUMNS, _COLUMN_ABOUT = 4, 1, 3
_ABOUT_PATH, _ABOUT_BYTES = 3, 6


def group_sizes(path: Path, columns: Collection[str]) -> list[int]:
    """Bytes of some columns in each row group of a file once they are unpacked."""
    with open(path, "rb") as file:
        file.seek(-8, os.SEEK_END)  # the length of the footer, and "PAR1"
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, os.SEEK_END)
        footer = _Footer(file.read(length))
    return [
        sum(size for name, size in group if name in columns)
        for group in footer.lists(_FILE_GROUPS, footer.group)
    ]


class _Footer:
    """Reads what is asked for, in the order in which it stands there."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def group(self) -> list[tuple[str, int]]:
        """Names and sizes of the columns of a row group."""
        return list(self.lists(_GROUP_COLUMNS, self.column))

    def column(self) -> tuple[str, int]:
        """Name of a column, of the outermost where some are inside of others, and its bytes."""
        name, size = "", 0
        for number, kind in self.fields():
            if number == _COLUMN_ABOUT and kind == _STRUCT:
                for part, is_a in self.fields():
                    if part == _ABOUT_PATH and is_a == _LIST:
                        names = [self.text() for _ in self.items()]
                        name = names[0] if names else ""
                    elif part == _ABOUT_BYTES and is_a == _INT64:
                        size = self.number()
                    else:
                        self.skip(is_a)
            else:
                self.skip(kind)
        return name, max(size, 0)

    # --- the protocol ----------------------------------------------------------------------------

    def lists(self, wanted: int, read: Callable[[], T]) -> Iterator[T]:
        """The members of a list that is a field of the structure here."""
        for number, kind in self.fields():
            if number == wanted and kind == _LIST:
                for _ in self.items():
                    yield read()
            else:
                self.skip(kind)

    def fields(self) -> Iterator[tuple[int, int]]:
        """Numbers and types of the fields of a structure; each has to be read or skipped."""
        number = 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.number()
            yield number, head & 15

    def items(self) -> Iterator[int]:
        """Types of the members of a list; each has to be read or skipped."""
        head = self.byte()
        count = head >> 4 if head >> 4 < 15 else self.unsigned()
        # Alone, and not as a field, whether something is true takes a byte.
        kind = _BYTE if head & 15 in (_TRUE, _FALSE) else head & 15
        for _ in range(count):
            yield kind

    def skip(self, kind: int) -> None:
        """Leave something out."""
        if kind in _NUMBERS:
            self.unsigned()
        elif kind in _LENGTHS:
            self.take(_LENGTHS[kind])
        elif kind == _BINARY:
            self.take(self.unsigned())
        elif kind in (_LIST, _SET):
            for each in self.items():
                self.skip(each)
        elif kind == _STRUCT:
            for _, each in self.fields():
                self.skip(each)
        else:  # tables of keys and values are in no footer
            raise ValueError("the footer has a part of an unknown type")

    def byte(self) -> int:
        return self.take(1)[0]

    def unsigned(self) -> int:
        value = shift = 0
        while (part := self.byte()) & 128:
            value |= (part & 127) << shift
            shift += 7
            if shift > 63:
                raise ValueError("the footer has a number that does not end")
        return value | part << shift

    def number(self) -> int:
        value = self.unsigned()
        return (value >> 1) ^ -(value & 1)

    def text(self) -> str:
        return self.take(self.unsigned()).decode()

    def take(self, length: int) -> bytes:
        self.at += length
        if self.at > len(self.data):
            raise ValueError("the footer ends too early")
        return self.data[self.at - length : self.at]
