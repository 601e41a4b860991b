"""File formats by the extension of the name, and the meaning of the readers' errors."""

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

__all__ = [
    "COMPRESSED",
    "FORMATS",
    "MISSING",
    "decompressed",
    "explain_errors",
    "format_of",
    "lost_cells_are_errors",
]

#: Format by extension.
FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".feather": "feather",
    ".arrow": "feather",
}
#: Cells of CSV and TSV files that are missing values, as in pandas.
MISSING = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
#: Functions that open compressed CSV and TSV files, by extension.
COMPRESSED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def format_of(path: Path) -> str:
    """Return the format that the extension of a file name stands for.

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
def decompressed(raw: IO[bytes], path: Path) -> Iterator[Any]:
    """Yield a file with the content of ``raw``, decompressed if the extension says so."""
    opener = COMPRESSED.get(path.suffix.lower())
    if opener is None:
        yield raw
    else:
        with opener(raw, "rb") as file:
            yield file


@contextmanager
def lost_cells_are_errors() -> Iterator[None]:
    """Turn pandas' warning that cells of a CSV file are lost into an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        yield


@contextmanager
def explain_errors(path: Path, kind: str, encoding: str, delimiter: str) -> Iterator[None]:
    """Turn the errors of readers into InputErrors that name the file and say what to do."""
    try:
        yield
    except TwoStageGPError:
        raise
    except MemoryError as error:
        raise MemoryBudgetError(
            f"{path} needs more memory than is free; lower --chunk-rows, or read fewer columns."
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
        if error.errno is not None:  # raised by the operating system, not by a reader
            raise
        raise InputError(f"{path} cannot be read as {kind}: {error}") from error
    except Exception as error:  # the readers raise many types of errors for damaged files
        raise InputError(f"{path} cannot be read as {kind}: {error}") from error
