"""Formats of files by the endings of their names, and what their readers' errors mean."""

from __future__ import annotations

import bz2
import gzip
import lzma
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pandas as pd

from twostagegp.errors import InputError, MemoryBudgetError, TwoStageGPError

__all__ = ["FORMATS", "GAPS", "PACKED", "format_of", "reading", "strict", "unpacked"]

#: Format by the ending of a name.
FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".feather": "feather",
    ".arrow": "feather",
}
#: Cells of CSV and TSV files that are gaps: those of pandas.
GAPS = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
#: How compressed CSV and TSV files are opened.
PACKED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def format_of(path: Path) -> str:
    """The format that the ending of a name stands for.

    Examples
    --------
    >>> format_of(Path("a/b.CSV"))
    'csv'
    """
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        known = ", ".join(FORMATS)
        raise InputError(f"{path}: the name must end in one of {known} (got {path.suffix!r}).")
    return kind


@contextmanager
def unpacked(raw: IO[bytes], path: Path) -> Iterator[Any]:
    """The content of a file that may be compressed."""
    unpack = PACKED.get(path.suffix.lower())
    if unpack is None:
        yield raw
    else:
        with unpack(raw, "rb") as file:
            yield file


@contextmanager
def strict() -> Iterator[None]:
    """Make an error of the warning that cells of a CSV file would be lost."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        yield


@contextmanager
def reading(path: Path, kind: str, encoding: str, delimiter: str) -> Iterator[None]:
    """Errors of the readers, with the file and the way out."""
    try:
        yield
    except TwoStageGPError:
        raise
    except MemoryError as error:
        raise MemoryBudgetError(
            f"{path} needs more memory than there is; lower --chunk-rows, or read fewer columns."
        ) from error
    except UnicodeError as error:
        raise InputError(
            f"{path} is not {encoding.removesuffix('-sig')} text ({error}); name its "
            "encoding, for example --encoding latin-1."
        ) from error
    except LookupError as error:
        if "encoding" not in str(error):
            raise InputError(f"{path} cannot be read as {kind}: {error!r}") from error
        raise InputError(f"--encoding {encoding}: {error}.") from error
    except pd.errors.EmptyDataError as error:
        raise InputError(f"{path} is empty.") from error
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        raise InputError(
            f"{path} is not a regular table: {str(error).strip()} Is the delimiter "
            f"{delimiter!r}? Are cells with delimiters in quotation marks?"
        ) from error
    except OSError as error:
        if error.errno is not None:  # of the system, and not of a reader
            raise
        raise InputError(f"{path} cannot be read as {kind}: {error}") from error
    except Exception as error:  # what a file can do to the libraries that read it has no one type
        raise InputError(f"{path} cannot be read as {kind}: {error}") from error
