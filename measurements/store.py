"""Results on disk that survive an interrupted run.

A benchmark takes hours, so each result is kept as soon as it is known: one JSON object per line,
appended under a lock and forced to disk. A run that starts again measures only what is missing.
Only the last line can be incomplete, when a run was killed while writing it; it has no newline,
is ignored by readers and cut off by the next writer. Tables are replaced as a whole instead.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["JsonLines", "Record", "plain", "write_whole"]

Record = dict[str, Any]
Key = tuple[Any, ...]


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one, never a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            os.fchmod(handle, 0o644)  # mkstemp's own mode is for secrets
            file.write(text)
            file.flush()
            os.fsync(handle)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def plain(value: Any) -> Any:
    """Make a value strict JSON: NumPy scalars become Python's, NaN and infinities become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class JsonLines:
    """Records in a file, one per line, identified by the fields ``key``.

    A record with an ``error`` can be read, but does not count as done: a later run tries again. Of
    several lines with the same key the last one counts.
    """

    path: Path
    key: tuple[str, ...]

    def key_of(self, record: Record) -> Key:
        """Return the values that identify a record."""
        return tuple(record[name] for name in self.key)

    def records(self) -> dict[Key, Record]:
        """Return all complete records by key, in the order in which the keys first came."""
        return self._parse(self.path.read_bytes()) if self.path.exists() else {}

    def done(self) -> set[Key]:
        """Return the keys of the records without an error."""
        return {key for key, record in self.records().items() if not record.get("error")}

    def append(self, record: Record, replace: bool = False) -> bool:
        """Add a record; returns False if another run has already stored the same one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed
            file.seek(0)
            content = file.read()
            there = self._parse(content).get(self.key_of(record))
            if there is not None and not there.get("error") and not replace:
                return False
            file.truncate(content.rfind(b"\n") + 1)
            line = json.dumps(plain(record), ensure_ascii=False, allow_nan=False)
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        return True

    def _parse(self, content: bytes) -> dict[Key, Record]:
        found: dict[Key, Record] = {}
        complete = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(complete.splitlines(), start=1):
            try:
                record = json.loads(line)
                found[self.key_of(record)] = record
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise ValueError(f"{self.path}, line {number}: not a result ({error!r})") from error
        return found
