"""CSV and TSV files, read with pandas as a whole or in chunks.

Such files have no types. For a fit, all rows are read and pandas infers the types. For predictions,
chunks are read and nothing is inferred: columns that the model knows as numbers are read as
numbers, all others as text, so that every chunk has the same types.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from twostagegp.cli.bounded_text import open_bounded
from twostagegp.cli.formats import MISSING, lost_cells_are_errors
from twostagegp.cli.limits import Limits
from twostagegp.errors import InputError

__all__ = ["TextFile"]


@dataclass(frozen=True)
class TextFile:
    """A CSV or TSV file and how to read it.

    Attributes
    ----------
    path : Path
    encoding, delimiter, decimal : str
    limits : Limits
    """

    path: Path
    encoding: str
    delimiter: str
    decimal: str
    limits: Limits

    def header(self) -> list[str]:
        """Return the names of the columns."""
        # Not with pandas, which takes seconds for a hundred thousand names.
        with (
            open_bounded(self.path, self.delimiter, self.limits, header_only=True) as (_, _, file),
            io.TextIOWrapper(file, self.encoding, newline="") as text,
        ):
            lines = csv.reader(text, delimiter=self.delimiter, strict=True)
            line = next((cells for cells in lines if cells), None)
        if line is None:
            raise InputError(f"{self.path} is empty.")
        return [name or f"Unnamed: {k}" for k, name in enumerate(line)]

    def read(self, names: Sequence[str], as_text: Collection[str]) -> pd.DataFrame:
        """Return all rows with inferred types.

        Parameters
        ----------
        names : sequence of str
            The header.
        as_text : collection of str
            Columns that stay text.
        """
        with (
            lost_cells_are_errors(),
            open_bounded(self.path, self.delimiter, self.limits) as (_, _, file),
        ):
            types = dict.fromkeys(as_text, str)
            return self._parse(file, names, dtype=types, low_memory=False)

    def chunks(
        self,
        names: Sequence[str],
        columns: Sequence[str],
        numbers: Collection[str],
        keep: Sequence[str],
        rows: int,
    ) -> Iterator[tuple[pd.DataFrame, pa.Table, float]]:
        """Yield the columns for the model, the kept columns, and the share of the file read.

        Parameters
        ----------
        names : sequence of str
            The header.
        columns : sequence of str
            Columns for the model.
        numbers : collection of str
            Those of the columns that are numbers.
        keep : sequence of str
            Columns that are returned as the text of the file.
        rows : int
            Most rows per chunk.
        """
        as_numbers = set(numbers) - set(keep)
        wanted = {*columns, *keep}
        # Columns that are not wanted are not converted, which is faster if there are many.
        dtype: dict[str, Any] = dict.fromkeys(names, object)
        dtype |= {name: "float64" if name in as_numbers else str for name in wanted}
        missing = {name: MISSING for name in wanted if name not in keep}
        size = max(self.path.stat().st_size, 1)
        with ExitStack() as stack:
            opened = open_bounded(self.path, self.delimiter, self.limits)
            raw, counter, file = stack.enter_context(opened)
            parsed = self._parse(file, names, dtype=dtype, chunksize=rows, na_values=missing)
            reader = stack.enter_context(parsed)
            while True:
                counter.start_piece()
                try:
                    with lost_cells_are_errors():
                        frame = next(reader, None)
                except ValueError as error:
                    if "could not convert" in str(error):
                        self._name_bad_number(names, as_numbers, rows)
                    raise
                if frame is None:
                    return
                kept = pa.table({name: _as_text(frame[name]) for name in keep})
                inputs = frame[list(columns)].reset_index(drop=True)
                for name in set(keep).intersection(columns):
                    inputs[name] = inputs[name].mask(inputs[name].isin(MISSING))
                yield inputs, kept, raw.tell() / size

    def _parse(self, file: Any, names: Sequence[str], **options: Any) -> Any:
        # All columns are read: with ``usecols`` pandas would not notice rows with too many cells.
        return pd.read_csv(
            file,
            sep=self.delimiter,
            decimal=self.decimal,
            encoding=self.encoding,
            header=0,
            names=list(names),
            index_col=False,
            keep_default_na=False,
            **{"na_values": MISSING, **options},
        )

    def _name_bad_number(self, names: Sequence[str], numbers: Collection[str], rows: int) -> None:
        """Read the file again as text, and raise an error with the first cell that is no number."""
        first = 0
        with (
            open_bounded(self.path, self.delimiter, self.limits) as (_, counter, file),
            self._parse(file, names, dtype=str, chunksize=rows) as reader,
        ):
            for frame in reader:
                counter.start_piece()
                for name in sorted(numbers):
                    text = frame[name].str.replace(self.decimal, ".", regex=False)
                    bad = text.notna() & pd.to_numeric(text, errors="coerce").isna()
                    if bad.any():
                        k = int(bad.to_numpy().argmax())
                        raise InputError(
                            f"{self.path}: column {name!r} contained numbers in the fit, but row "
                            f"{first + k + 1} contains {frame[name].iloc[k]!r}. Correct it, leave "
                            "the cell empty if the value is missing, or fit again."
                        )
                first += len(frame)


def _as_text(series: pd.Series) -> pa.Array:
    """Return cells as in the file; only empty cells are missing values."""
    return pa.array(series.mask(series == ""), pa.large_string(), from_pandas=True)
