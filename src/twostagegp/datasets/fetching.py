"""A public table: downloaded once, prepared once, read from the folder ever after.

:func:`fetch` is ``download`` (the file), ``archives`` (the table in it) and ``recipes`` (its
columns), one after the other. In the folder the download is kept at ``downloads/<file>``, and the
table where :func:`~twostagegp.datasets.load` looks for it.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path

import numpy as np

from twostagegp.datasets.archives import DamagedFileError, open_member
from twostagegp.datasets.download import (
    DownloadError,
    ensure_file,
    file_sha256,
    forget_checksum,
    recorded_checksum,
)
from twostagegp.datasets.locks import file_lock
from twostagegp.datasets.recipes import RECIPES, Arrays, Recipe, prepare
from twostagegp.datasets.tables import (
    FOLDER_VARIABLE,
    RegressionData,
    load,
    names,
    own_file,
    unknown_name,
)
from twostagegp.errors import InputError, TwoStageGPError
from twostagegp.runtime.threads import show_log

__all__ = ["cache_folder", "fetch", "fetchable"]

_log = logging.getLogger("twostagegp")


def cache_folder() -> Path:
    """The user's own folder for tables, where no other is named.

    ``twostagegp`` in ``XDG_CACHE_HOME`` or ``~/.cache``, on macOS in ``~/Library/Caches``, on
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
    """List the tables that :func:`fetch` knows, in alphabetical order.

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
    sha256: str | None = None,
    force: bool = False,
    timeout: float = 30.0,
    verbose: int = 0,
) -> RegressionData:
    """Download a public table, prepare it, and read it.

    A table that the folder has already is read as it is, without a connection, whoever put it
    there. Otherwise its source is downloaded, or taken from ``downloads`` in the folder where it
    lies there: a file that you place there by hand is used without a connection. An interrupted
    download is resumed by the next call.

    **What is checked.** The length that the server announces; the SHA-256 of the file; the checksum
    that a zip archive has of its own; and of the table the columns, the number of rows, missing
    values and the range of the target, against what the source documents. A SHA-256 is known here
    for those sources of which two or more independent public records agree. For the others
    (ctslice, poletele, road3d, yacht) the first download is trusted, and its checksum is written
    beside it and compared with ever after.

    Parameters
    ----------
    name : str
        One of :func:`fetchable`.
    folder : path-like, optional
        The data folder; by default the one that ``TWOSTAGEGP_DATA`` names, otherwise
        :func:`cache_folder`.
    sha256 : str, optional
        The checksum that the download must have, instead of the known one.
    force : bool, default=False
        Prepare the table again from its source. A table that :func:`fetch` has not made itself is
        never replaced.
    timeout : float, default=30
        Seconds without a byte after which a connection is given up and tried again.
    verbose : int, default=0
        1 shows progress.

    Returns
    -------
    RegressionData
        As :func:`~twostagegp.datasets.load` with the same folder returns it. Only song has a
        standard split; the order of the rows is the source's, so that the splits of the benchmark
        files do not apply.

    Raises
    ------
    DownloadError
        Where there is no connection or no such file, or the folder cannot be written. It names the
        URL and where to place the file by hand, and is a DatasetNotFoundError and a
        FileNotFoundError too.
    ChecksumError
        For a file with another checksum.
    DamagedFileError
        For an archive that cannot be read; a downloaded one is downloaded once more before.
    InputError
        For an unknown name, and a file that is not the expected table. The two before are
        InputErrors, and these are ValueErrors.

    Examples
    --------
    >>> fetch("songs")
    Traceback (most recent call last):
    ...
    twostagegp.errors.InputError: unknown table 'songs'; did you mean 'song'? ...
    """
    recipe = _recipe(name)
    expected = _checked_sha256(sha256) or recipe.sha256
    if not timeout > 0:  # written so that NaN is caught too
        raise InputError(f"timeout must be positive, got {timeout}")
    root = Path(folder or os.environ.get(FOLDER_VARIABLE) or cache_folder())
    with show_log(verbose):
        if force or not own_file(name, root)[1]:
            try:
                _make(name, recipe, root, expected, force, timeout)
            except TwoStageGPError:
                raise
            except OSError as error:
                raise DownloadError(
                    f"cannot read and write the table {name!r} below {root} ({error}). Give "
                    f"fetch() a folder with room that you may write to, or set {FOLDER_VARIABLE} "
                    "to one."
                ) from error
        return load(name, root)


def _recipe(name: str) -> Recipe:
    if name in RECIPES:
        return RECIPES[name]
    if name in names():
        raise InputError(
            f"{name} has no source that fetch() knows; datasets.load reads it from your folder"
        )
    raise InputError(unknown_name(name, RECIPES))


def _checked_sha256(sha256: str | None) -> str | None:
    if sha256 is None:
        return None
    if not isinstance(sha256, str) or not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise InputError(f"sha256={sha256!r}: give the 64 hexadecimal digits of a SHA-256")
    return sha256.lower()


def _make(
    name: str, recipe: Recipe, root: Path, expected: str | None, force: bool, timeout: float
) -> None:
    download = root / "downloads" / recipe.file
    download.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(download):
        path, is_there = own_file(name, root)
        if is_there and not force:
            return  # another program has made it while we waited
        if is_there and not _is_ours(path):
            raise InputError(
                f"{path} was not made by fetch(), so it is not replaced. Move it away, or give "
                "another folder."
            )
        arrays = _table(recipe, download, expected, timeout)
        source = np.array([recipe.url, file_sha256(download)])
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, {**arrays, "source": source})
        _log.info("%s: %d rows, %d columns in %s", name, *arrays["X"].shape, path)


def _is_ours(path: Path) -> bool:
    with np.load(path, allow_pickle=False) as arrays:
        return "source" in arrays


def _table(recipe: Recipe, download: Path, expected: str | None, timeout: float) -> Arrays:
    """The table in the download, which is fetched where needed."""
    ensure_file(recipe.url, download, sha256=expected, timeout=timeout)
    try:
        return _prepared(recipe, download)
    except DamagedFileError as error:
        if recorded_checksum(download) is None:
            raise DamagedFileError(
                f"{error}. Delete it to have it downloaded, or place a good copy there."
            ) from error
        _log.warning("%s; downloading it again", error)
    forget_checksum(download)
    download.unlink()
    ensure_file(recipe.url, download, sha256=expected, timeout=timeout)
    try:
        return _prepared(recipe, download)
    except DamagedFileError as error:
        forget_checksum(download)
        raise DamagedFileError(
            f"{error}, and it was downloaded from {recipe.url} twice. The source sends something "
            "else at the moment, such as an error page: delete the file, and try later."
        ) from error


def _prepared(recipe: Recipe, download: Path) -> Arrays:
    with open_member(download, recipe.member) as stream:
        try:
            return prepare(recipe, stream)
        except InputError as error:
            raise InputError(
                f"{recipe.member or 'the table'} in {download}: {error}. Delete the download to "
                f"fetch it again; if that does not help, {recipe.url} has changed."
            ) from error


def _write(path: Path, arrays: Arrays) -> None:
    """Write the table whole or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # arrays by name
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
