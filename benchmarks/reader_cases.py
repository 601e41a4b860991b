"""Spoilt tables for the readers of the command line, one for every number.

CSV (plain and compressed), Parquet and Feather files with broken bytes, other encodings, cells that
do not end, marks in wrong places, lines of many lengths, footers and pages with false contents.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.hostile_values import change_bytes
from twostagegp.cli import piece_sizes
from twostagegp.cli.column_types import conform, infer_dates
from twostagegp.cli.limits import Limits
from twostagegp.cli.source import open_source

__all__ = ["ReaderCases"]

NAMES = ["area", "color", "when", "id"]
#: Rows that are read at a time.
CHUNK = 16
_CELLS = (
    "", "NA", "=1+1", "-5", "1e999", "-1e-999", "nan", "inf", "0x1p3", "1_000", "١٢", "\x00", '"',
    '""', '"a', "a\"b", "\r", "\ufeff", "\u202e", "2024-13-45", "9999999999999999999999", "true",
    "x" * 5_000, ",", ";", "\t", "\n", "\\", "é", "1,5", "'", "@SUM(1)", " 7 ", "--7", "7e",
)  # fmt: skip
_ENCODINGS = ("utf-8", "latin-1", "utf-16", "utf-16-le", "utf-32", "cp1252", "utf-7", "no such")


def _frame(rows: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "area": rng.normal(size=rows).round(3),
            "color": rng.choice(["red", "green", "blue"], rows),
            "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 99, rows), "D"),
            "id": [f"h{k}" for k in range(rows)],
        }
    )


class ReaderCases:
    """From a number to a spoilt table and to what reads it."""

    #: Files whose pieces may not fit into memory are measured by this program.
    programs = (piece_sizes.__file__,)

    def __init__(
        self, rules: list[Any], folder: Path, seed: int, limits: Limits | None = None
    ) -> None:
        self.rules, self.folder, self.seed, self.limits = rules, folder, seed, limits
        self.text = _frame().to_csv(index=False).encode()
        table = pa.Table.from_pandas(_frame())
        self.parquet = [_parquet(table, **options) for options in _WRITERS]
        self.feather = [_feather(table, packed) for packed in (None, "lz4", "zstd")]
        self.kinds: list[tuple[str, float, Callable[[random.Random], tuple[str, bytes]]]] = [
            ("CSV bytes", 0.2, self._bytes),
            ("CSV cells", 0.3, self._cells),
            ("CSV encoding", 0.08, self._encoding),
            ("compressed CSV", 0.1, self._packed),
            ("Parquet", 0.2, self._parquet),
            ("Feather", 0.12, self._feather),
        ]

    def warm(self) -> None:
        """Read good files once."""
        for ending, data in (
            ("csv", self.text),
            ("csv.gz", gzip.compress(self.text)),
            ("parquet", self.parquet[0]),
            ("feather", self.feather[0]),
        ):
            path = self.folder / f"table.{ending}"
            path.write_bytes(data)
            for whole in (False, True):
                assert self._read(path, "utf-8", ",", whole) == "table"
            path.unlink()

    def __call__(self, number: int) -> tuple[str, Callable[[], str]]:
        """Write the file of a case; returns its kind and the function to run."""
        draw = random.Random(f"{self.seed} {number}")
        weights = [share for _, share, _ in self.kinds]
        kind, _, make = draw.choices(self.kinds, weights)[0]
        ending, data = make(draw)
        for old in self.folder.glob("table.*"):
            old.unlink()
        path = self.folder / f"table.{ending}"
        path.write_bytes(data)
        encoding = draw.choice(_ENCODINGS) if draw.random() < 0.1 else "utf-8"
        between = draw.choice((",", ";", "\t", "|", '"', "\n", "x")) if draw.random() < 0.1 else ","
        return kind, lambda: self._read(path, encoding, between, number % 2 == 0)

    def _read(self, path: Path, encoding: str, delimiter: str, whole: bool) -> str:
        """Read as ``fit`` does, or in chunks as ``predict`` does."""
        source = open_source(path, encoding, delimiter, limits=self.limits)
        names = ["area", "color", "when"]
        if whole:
            frame = source.read(source.names)
            infer_dates(frame)
            return "table"
        source.require(names, "the model was fitted with it")
        keep = [name for name in source.names if name == "id"]
        for chunk in source.chunks(names, {"area"}, keep, CHUNK):
            conform(chunk.frame[names], self.rules, chunk.first)
        return "table"

    # --- kinds of cases --------------------------------------------------------------------------

    def _bytes(self, draw: random.Random) -> tuple[str, bytes]:
        return "csv", change_bytes(self.text, draw)

    def _cells(self, draw: random.Random) -> tuple[str, bytes]:
        lines = self.text.decode().splitlines()
        for _ in range(draw.choice((1, 1, 2, 5))):
            k = draw.randrange(len(lines))
            cells = lines[k].split(",")
            cells[draw.randrange(len(cells))] = draw.choice(_CELLS)
            kind = draw.random()
            if kind < 0.1:
                cells = _repeated(cells, draw.choice((0, 2, 50)))
            elif kind < 0.2:
                cells = cells[:-1]
            elif kind < 0.22:
                cells = _repeated(cells, 5_000)
            lines[k] = ",".join(cells)
        end = draw.choice(("\n", "\r\n", "\r", "\n\r", "\n\n", "\x00\n", "\x0b", "\u2028"))
        return draw.choice(("csv", "csv", "tsv")), end.join(lines).encode("utf-8", "replace")

    def _encoding(self, draw: random.Random) -> tuple[str, bytes]:
        text = self.text.decode().replace("red", draw.choice(("rot", "größe", "赤", "\U0001f600")))
        data = text.encode(draw.choice(("utf-16", "utf-32", "utf-8-sig", "utf-7", "utf-16-be")))
        return "csv", change_bytes(data, draw) if draw.random() < 0.5 else data

    def _packed(self, draw: random.Random) -> tuple[str, bytes]:
        ending, pack = draw.choice((("gz", gzip.compress), ("bz2", bz2.compress),
                                    ("xz", lzma.compress)))  # fmt: skip
        text = self.text
        if draw.random() < 0.3:
            text = self._cells(draw)[1]
        data = pack(text)
        kind = draw.random()
        if kind < 0.5:
            data = change_bytes(data, draw)
        elif kind < 0.6:
            data = pack(data)
        elif kind < 0.7:
            data += data
        elif kind < 0.73:  # megabytes of one cell
            data = pack(
                b"area,color,when,id\n" + draw.choice((b"0", b'"', b"\n", b",")) * (1 << 22)
            )
        return f"csv.{ending}", data

    def _parquet(self, draw: random.Random) -> tuple[str, bytes]:
        data = draw.choice(self.parquet)
        size = struct.unpack("<I", data[-8:-4])[0]
        kind = draw.random()
        if kind < 0.4:  # the footer, which says everything
            foot = change_bytes(data[-8 - size : -8], draw)
            length = len(foot) if draw.random() < 0.9 else draw.choice((0, 1, 2**31, 2**32 - 1))
            return "parquet", data[: -8 - size] + foot + struct.pack("<I", length) + b"PAR1"
        if kind < 0.8:  # pages
            return "parquet", change_bytes(data[: -8 - size], draw) + data[-8 - size :]
        return "parquet", change_bytes(data, draw)

    def _feather(self, draw: random.Random) -> tuple[str, bytes]:
        return "feather", change_bytes(draw.choice(self.feather), draw)


_WRITERS: tuple[dict[str, Any], ...] = (
    {},
    {"compression": "none"},
    {"compression": "gzip", "use_dictionary": False},
    {"compression": "zstd", "row_group_size": 10, "data_page_version": "2.0"},
    {"compression": "none", "store_schema": False, "write_statistics": False},
)


def _repeated(cells: list[str], times: int) -> list[str]:
    """Return the cells repeated ``times`` times, but never more than a line of 64 MiB holds."""
    most = (64 << 20) // (sum(map(len, cells)) + len(cells))
    return cells * min(times, max(most, 1))


def _parquet(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def _feather(table: pa.Table, packed: str | None) -> bytes:
    out = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=packed)
    with pa.ipc.new_file(out, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=15)
    return out.getvalue()
