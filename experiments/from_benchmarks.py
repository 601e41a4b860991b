"""Records of the benchmarks, for experiments that need the very fits that a benchmark has done.

A fit that two pages show is not repeated. A task whose ``source`` is
:data:`BENCHMARKS` is not fitted: its record is the benchmark's, with the version and the source
hash that it was measured with. If both exist, the page uses the experiment's own fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import benchmarks
from measurements.store import JsonLines, Record

__all__ = ["BENCHMARKS", "FIT", "FOLDER", "Source", "one_each"]

FIT, BENCHMARKS = "fit", "benchmarks"
#: Where the benchmarks keep their records.
FOLDER = Path(benchmarks.__file__).parent / "results"

Key = tuple[str | int, ...]


class Source:
    """The records of one benchmark.

    Parameters
    ----------
    file : str
    key : tuple of str
        The fields that tell its records apart.
    """

    def __init__(self, file: str, key: tuple[str, ...]) -> None:
        self.file, self.key = file, key

    def has(self, key: Key) -> bool:
        """Return whether the benchmark has a record without an error."""
        record = self._records().get(key)
        return record is not None and not record.get("error")

    def record(self, key: Key) -> Record:
        """Return a copy of that record."""
        return dict(self._records()[key])

    def records(self) -> list[Record]:
        """Return all records, failures too; an empty list if the file is missing."""
        return list(self._records().values())

    def _records(self) -> dict[Key, Record]:
        path = FOLDER / self.file
        stamp = path.stat().st_mtime_ns if path.exists() else 0
        return _read(path, self.key, stamp)


@lru_cache(maxsize=4)
def _read(path: Path, key: tuple[str, ...], stamp: int) -> dict[Key, Record]:
    """Return the file's records; ``stamp``, the file's last change, keys the cache."""
    return JsonLines(path, key).records()


def one_each(records: Iterable[Record], key: Sequence[str]) -> list[Record]:
    """Return one record per fit: a good one before a failed one, ours before the benchmark's."""
    best: dict[Key, Record] = {}
    for record in records:
        place = tuple(record[name] for name in key)
        if place not in best or _rank(record) < _rank(best[place]):
            best[place] = record
    return list(best.values())


def _rank(record: Record) -> tuple[bool, bool]:
    return bool(record.get("error")), record.get("source") != FIT
