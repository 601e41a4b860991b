"""Public tables: downloaded once with pooch, prepared once, then read from the folder.

The download is kept at ``downloads/<file>`` in the data folder, and the prepared table is written
to the place from which :func:`~twostagegp.datasets.load` reads it.
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from twostagegp.datasets.recipes import RECIPES, Arrays, Recipe, prepare
from twostagegp.datasets.tables import (
    FOLDER_VARIABLE,
    DatasetNotFoundError,
    RegressionData,
    load,
    names,
    own_file,
    unknown_name,
)
from twostagegp.errors import InputError, TwoStageGPError
from twostagegp.runtime.files import write_atomically
from twostagegp.runtime.optional import require
from twostagegp.runtime.threads import show_log

__all__ = [
    "ChecksumError",
    "DamagedFileError",
    "DownloadError",
    "cache_folder",
    "fetch",
    "fetchable",
]

_log = logging.getLogger("twostagegp")

#: Most bytes that a member of an archive may expand to; the largest known table has 450 MB.
_MAX_EXPANDED = 2**30


class DownloadError(DatasetNotFoundError):
    """A file could not be downloaded; the message names its URL and where to place it by hand."""


class ChecksumError(InputError):
    """A file does not have the expected SHA-256."""


class DamagedFileError(InputError):
    """A downloaded archive cannot be read."""


def cache_folder() -> Path:
    """Return the folder for tables that is used unless another one is named.

    It is ``twostagegp`` in ``XDG_CACHE_HOME`` or ``~/.cache``; on macOS in ``~/Library/Caches``, on
    Windows in ``LOCALAPPDATA``.
    """
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "twostagegp"


def fetchable() -> list[str]:
    """List the tables that :func:`fetch` can download, in alphabetical order.

    Examples
    --------
    >>> fetchable()[:4]
    ['bike', 'concrete', 'ctslice', 'energy']
    """
    return sorted(RECIPES)


def fetch(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    *,
    url: str | None = None,
    sha256: str | None = None,
    force: bool = False,
    timeout: float = 30.0,
    retries: int = 2,
    verbose: int = 0,
) -> RegressionData:
    """Download a public table, prepare it, and read it.

    Needs ``pip install 'twostagegp[datasets]'``. A table that is already in the folder is read
    without a connection. Otherwise its source file is downloaded, unless it is in ``downloads`` in
    the folder, where you may also place it by hand.

    Checked are the SHA-256 of the source file, where one is known (for ctslice, poletele, road3d
    and yacht no independent record was found); the checksum inside a zip archive; and the columns,
    the number of rows, missing values and the range of the target, as the source documents them.

    Parameters
    ----------
    name : str
        One of :func:`fetchable`.
    folder : path-like, optional
        The data folder; by default the one that ``TWOSTAGEGP_DATA`` names, otherwise
        :func:`cache_folder`.
    url : str, optional
        Another address of the source file, such as a mirror.
    sha256 : str, optional
        The checksum that the source file must have, instead of the known one.
    force : bool, default=False
        Prepare the table again from its source file. A table that :func:`fetch` has not written is
        never replaced.
    timeout : float, default=30
        Seconds without an answer after which an attempt is given up.
    retries : int, default=2
        Further attempts after a failed download.
    verbose : int, default=0
        1 logs progress to the screen.

    Returns
    -------
    RegressionData
        The same as :func:`~twostagegp.datasets.load` returns for this folder. Only song has a
        standard split: rows are in the order of the source, so the splits of the benchmark files do
        not apply.

    Raises
    ------
    DownloadError
        If the file cannot be downloaded, or the folder cannot be written. The message names the URL
        and where to place the file by hand. It is a DatasetNotFoundError and a FileNotFoundError.
    ChecksumError
        If the file has another checksum.
    DamagedFileError
        If the archive cannot be read.
    InputError
        If the name is unknown, or the file does not contain the expected table. ChecksumError and
        DamagedFileError are InputErrors, and these are ValueErrors.

    Examples
    --------
    >>> fetch("songs")
    Traceback (most recent call last):
    ...
    twostagegp.errors.InputError: unknown table 'songs'; did you mean 'song'? ...
    """
    recipe = _recipe(name)
    recipe = replace(recipe, url=url or recipe.url, sha256=_checked_sha256(sha256) or recipe.sha256)
    if not timeout > 0:  # also True for NaN
        raise InputError(f"timeout must be positive, got {timeout}")
    root = Path(folder or os.environ.get(FOLDER_VARIABLE) or cache_folder())
    path, exists = own_file(name, root)
    with show_log(verbose):
        if force and exists and not _is_ours(path):
            raise InputError(
                f"{path} was not written by fetch(), so it is not replaced. Move it away, or use "
                "another folder."
            )
        if force or not exists:
            download = root / "downloads" / recipe.file
            try:
                checksum = _ensure(download, recipe, timeout, retries, verbose)
                _write(path, _read(recipe, download), np.array([recipe.url, checksum]))
            except TwoStageGPError:
                raise
            except OSError as error:
                raise DownloadError(
                    f"cannot write the table {name!r} to {root} ({error}). Give fetch() a folder "
                    f"with enough space that you may write to, or set {FOLDER_VARIABLE} to one."
                ) from error
        return load(name, root)


def _recipe(name: str) -> Recipe:
    if name in RECIPES:
        return RECIPES[name]
    if name in names():
        raise InputError(
            f"fetch() knows no source of {name}; datasets.load reads it from your folder"
        )
    raise InputError(unknown_name(name, RECIPES))


def _checked_sha256(sha256: str | None) -> str | None:
    if sha256 is None:
        return None
    if not isinstance(sha256, str) or not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise InputError(f"sha256={sha256!r}: give the 64 hexadecimal digits of a SHA-256")
    return sha256.lower()


def _is_ours(path: Path) -> bool:
    """Return whether :func:`fetch` has written a table."""
    with np.load(path, allow_pickle=False) as arrays:
        return "source" in arrays


def _ensure(path: Path, recipe: Recipe, timeout: float, retries: int, verbose: int) -> str:
    """Download a file unless it exists, check its SHA-256 and return it."""
    pooch = require("pooch", "datasets")
    requests = require("requests", "datasets")
    if not path.exists():
        store = pooch.create(
            path.parent,
            base_url="",
            registry={path.name: recipe.sha256},
            urls={path.name: recipe.url},
            retry_if_failed=retries,
        )
        try:
            with _pooch_log(pooch.get_logger(), verbose):
                store.fetch(path.name, downloader=pooch.HTTPDownloader(timeout=timeout))
        except requests.exceptions.RequestException as error:
            raise DownloadError(
                f"could not download {recipe.url} ({error}). Without a connection, download it "
                f"elsewhere and save it as {path}."
            ) from error
        except ValueError as error:
            raise ChecksumError(
                f"{recipe.url}: {error} Give sha256=... if you have reason to trust the new file."
            ) from error
    found: str = pooch.file_hash(str(path))
    if recipe.sha256 not in (None, found):  # an older download, or placed by hand
        raise ChecksumError(
            f"{path} has the SHA-256 {found}, expected was {recipe.sha256}. Delete it to download "
            f"it again, or give sha256={found!r} to use it."
        )
    return found


@contextmanager
def _pooch_log(log: logging.Logger, verbose: int) -> Iterator[None]:
    """Let pooch log to the screen only if ``verbose``."""
    before = log.level
    log.setLevel(logging.INFO if verbose else logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(before)


def _read(recipe: Recipe, path: Path) -> Arrays:
    """Return the arrays of the table in a downloaded file."""
    try:
        return prepare(recipe, io.BytesIO(_content(path, recipe.member)))
    except DamagedFileError as error:
        raise DamagedFileError(f"{error}. Delete it to download it again.") from error
    except InputError as error:
        raise InputError(
            f"{recipe.member or 'the table'} in {path}: {error}. Delete the download to fetch it "
            f"again; if that does not help, {recipe.url} has changed."
        ) from error


def _write(path: Path, arrays: Arrays, source: NDArray[np.str_]) -> None:
    """Write the table to the file that :func:`~twostagegp.datasets.load` reads."""

    def save(file: BinaryIO) -> None:
        np.savez_compressed(file, source=source, **arrays)  # type: ignore[arg-type]

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, save)
    _log.info("%s: %d rows, %d columns", path, *arrays["X"].shape)


def _content(path: Path, member: str | None) -> bytes:
    """Return the content of a file, or of one member of a zip archive; nothing is extracted."""
    if member is None:
        return path.read_bytes()
    try:
        with zipfile.ZipFile(path) as archive:
            info = _find(archive, member)
            if info.file_size > _MAX_EXPANDED:
                raise DamagedFileError(
                    f"{path} would expand to {info.file_size:,} bytes, above the limit of "
                    f"{_MAX_EXPANDED:,}"
                )
            return archive.read(info)  # verifies the member's checksum
    # RuntimeError: encrypted. NotImplementedError: unknown compression.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise DamagedFileError(f"{path} is not a readable zip archive ({error})") from error


def _find(archive: zipfile.ZipFile, member: str) -> zipfile.ZipInfo:
    """Return the member of this path, or else the only one with this file name."""
    files = [info for info in archive.infolist() if not info.is_dir()]
    last = member.rpartition("/")[2]
    found = [info for info in files if info.filename == member] or [
        info for info in files if info.filename.rpartition("/")[2] == last
    ]
    if len(found) != 1:
        listed = ", ".join(info.filename for info in files[:10]) or "nothing"
        raise InputError(f"the archive has {len(found)} members of this name; it holds {listed}")
    return found[0]
