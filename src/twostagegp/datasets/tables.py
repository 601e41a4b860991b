"""Tables for regression, read from a folder of ``.npz`` files.

:func:`load` reads a table from the user's folder; nothing is downloaded. The folder is given as an
argument or by the environment variable ``TWOSTAGEGP_DATA``. A table is the file
``uci_small/<name>.npz`` or ``uci_large/<name>.npz`` (or simply ``<name>.npz``) with the arrays

- ``X`` of shape (n, d) and ``y`` of shape (n,);
- the standard splits, if any: the test rows of split k as an index array ``test_k``, or as column
  k of a boolean array ``test_mask``;
- optionally ``feature_names``, and an array of group labels.

Other arrays are ignored.
"""

from __future__ import annotations

import difflib
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twostagegp.errors import InputError, TwoStageGPError

__all__ = [
    "FOLDER_VARIABLE",
    "FULL",
    "DatasetNotFoundError",
    "RegressionData",
    "load",
    "names",
    "own_file",
    "unknown_name",
]

FOLDER_VARIABLE = "TWOSTAGEGP_DATA"


class DatasetNotFoundError(TwoStageGPError, FileNotFoundError):
    """There is no file for the table; the message names the places searched and what to set."""


@dataclass(frozen=True, eq=False)  # eq=False: == between arrays has no single truth value
class RegressionData:
    """A table for regression.

    Attributes
    ----------
    name : str
        As given to :func:`load`.
    X : ndarray of shape (n, d), float64
        Inputs, as in the source: not standardised.
    y : ndarray of shape (n,), float64
        Target.
    feature_names : tuple of str
        The names in the source, or ``x0``, ``x1``, … if it has none.
    splits : tuple of ndarray
        The test rows of each standard split; empty if the table has no standard split.
    groups : ndarray of shape (n,) or None
        One group label per row, such as the patient; rows of a group are not independent.

    Examples
    --------
    >>> data = RegressionData(
    ...     name="tiny",
    ...     X=np.zeros((3, 1)),
    ...     y=np.zeros(3),
    ...     feature_names=("x0",),
    ...     splits=(np.array([1]),),
    ...     groups=None,
    ... )
    >>> data.split(0)
    (array([0, 2]), array([1]))
    """

    name: str
    X: NDArray[np.float64]
    y: NDArray[np.float64]
    feature_names: tuple[str, ...]
    splits: tuple[NDArray[np.intp], ...]
    groups: NDArray[Any] | None

    def split(self, k: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the training and the test rows of standard split k."""
        if not 0 <= k < len(self.splits):
            has = f"{len(self.splits)} standard splits" if self.splits else "no standard split"
            raise IndexError(f"split {k} does not exist: {self.name} has {has}")
        is_train = np.ones(self.y.shape[0], dtype=bool)
        is_train[self.splits[k]] = False
        return np.flatnonzero(is_train), self.splits[k]


@dataclass(frozen=True)
class _Source:
    """The file of a table in the folder, and the names of its arrays."""

    file: str
    X: str = "X"
    y: str = "y"
    groups: str | None = None


_SMALL = ("yacht", "boston", "energy", "concrete", "wine", "kin8nm", "power", "naval")
_LARGE = (
    "pol",
    "bike",
    "protein",
    "keggdirected",
    "house_electric_part",
    "road3d_part",
    "elevation",
    "flights",
    "diamonds",
)
_SOURCES: Mapping[str, _Source] = {
    **{name: _Source(f"uci_small/{name}.npz") for name in _SMALL},
    **{name: _Source(f"uci_large/{name}.npz") for name in _LARGE},
    "poletele": _Source("uci_large/poletele.npz", groups="subject"),
    "ctslice_part": _Source("uci_large/ctslice_part.npz", groups="patient"),
    # The same household in July 2010: a seasonal shift from the winter months of the part above.
    "house_electric_july2010": _Source(
        "uci_large/house_electric_part.npz", X="X_july2010", y="y_july2010"
    ),
}
#: Complete tables of which the benchmarks use a part; :func:`twostagegp.datasets.fetch` writes
#: them.
FULL: Mapping[str, _Source] = {
    "song": _Source("uci_large/song.npz"),
    "house_electric": _Source("uci_large/house_electric.npz"),
    "road3d": _Source("uci_large/road3d.npz", groups="road"),
    "ctslice": _Source("uci_large/ctslice.npz", groups="patient"),
}


def names() -> list[str]:
    """List the tables of the benchmarks, in alphabetical order.

    :func:`load` reads these and those of :func:`twostagegp.datasets.fetchable`.

    Examples
    --------
    >>> names()[:3]
    ['bike', 'boston', 'concrete']
    """
    return sorted(_SOURCES)


def load(name: str, folder: str | os.PathLike[str] | None = None) -> RegressionData:
    """Read a table from the user's data folder.

    Parameters
    ----------
    name : str
        One of :func:`names` or of :func:`twostagegp.datasets.fetchable`.
    folder : path-like, optional
        The data folder; by default the one that ``TWOSTAGEGP_DATA`` names.

    Raises
    ------
    InputError
        If the name is unknown (the message suggests similar ones), or the arrays of the file do
        not fit together. It is a ValueError.
    DatasetNotFoundError
        If no folder is given, or the file is not in it.

    Examples
    --------
    >>> load("concret")
    Traceback (most recent call last):
    ...
    twostagegp.errors.InputError: unknown table 'concret'; did you mean 'concrete'? ...
    """
    source = _source(name)
    path = _find(source.file, name, folder)
    try:
        # Opened here because NumPy does not close a damaged file.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return _read(name, source, arrays, path)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InputError(f"{path} is damaged ({error}): replace or delete it.") from error


def own_file(name: str, folder: Path) -> tuple[Path, bool]:
    """Return the path of a table in a folder, and whether the file exists."""
    try:
        return _find(_source(name).file, name, folder), True
    except DatasetNotFoundError:
        return folder / _source(name).file, False


def unknown_name(name: str, known: Iterable[str]) -> str:
    """Return the error message for an unknown name, with the most similar known ones."""
    near = difflib.get_close_matches(name, sorted(known), n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return (
        f"unknown table {name!r}; {hint}datasets.names() lists the tables of the benchmarks, "
        "datasets.fetchable() those that can be downloaded"
    )


def _source(name: str) -> _Source:
    known = {**_SOURCES, **FULL}
    if name not in known:
        raise InputError(unknown_name(name, known))
    return known[name]


def _find(file: str, name: str, folder: str | os.PathLike[str] | None) -> Path:
    how = f"Give load() the folder, or set the environment variable {FOLDER_VARIABLE} to it."
    given = folder if folder is not None else os.environ.get(FOLDER_VARIABLE)
    if not given:
        raise DatasetNotFoundError(f"no data folder for the table {name!r}. {how}")
    root = Path(given)
    tried = (root / file, root / Path(file).name)
    for path in tried:
        if path.is_file():
            return path
    places = ", ".join(str(path) for path in tried)
    raise DatasetNotFoundError(f"no file for the table {name!r}; tried {places}. {how}")


def _read(
    name: str, source: _Source, arrays: Mapping[str, NDArray[Any]], path: Path
) -> RegressionData:
    missing = [key for key in (source.X, source.y, source.groups) if key and key not in arrays]
    if missing:
        raise InputError(f"{path} lacks the arrays {missing} of the table {name!r}")
    X = np.asarray(arrays[source.X], dtype=np.float64)
    y = np.asarray(arrays[source.y], dtype=np.float64)
    if X.ndim != 2 or y.shape != X.shape[:1]:
        raise InputError(f"{path}: X of shape {X.shape} does not fit y of shape {y.shape}")
    return RegressionData(
        name=name,
        X=X,
        y=y,
        feature_names=_feature_names(arrays, X.shape[1], path),
        # The splits in a file belong to its main table.
        splits=_splits(arrays, y.shape[0], path) if source.X == "X" else (),
        groups=np.asarray(arrays[source.groups]) if source.groups else None,
    )


def _feature_names(arrays: Mapping[str, NDArray[Any]], d: int, path: Path) -> tuple[str, ...]:
    if "feature_names" not in arrays:
        return tuple(f"x{j}" for j in range(d))
    found = tuple(str(feature) for feature in arrays["feature_names"])
    if len(found) != d:
        raise InputError(f"{path}: {len(found)} feature names for {d} columns")
    return found


def _splits(arrays: Mapping[str, NDArray[Any]], n: int, path: Path) -> tuple[NDArray[np.intp], ...]:
    if "test_mask" in arrays:
        mask = np.asarray(arrays["test_mask"], dtype=bool)
        if mask.ndim != 2 or mask.shape[0] != n:
            raise InputError(f"{path}: test_mask of shape {mask.shape} does not fit {n} rows")
        return tuple(np.flatnonzero(column) for column in mask.T)
    splits: list[NDArray[np.intp]] = []
    # By number: the names in the file are in alphabetical order, test_10 before test_2.
    while (key := f"test_{len(splits)}") in arrays:
        rows = np.asarray(arrays[key], dtype=np.intp)
        if rows.size and not (rows.min() >= 0 and rows.max() < n):
            raise InputError(f"{path}: {key} has indices outside of the {n} rows")
        splits.append(rows)
    return tuple(splits)
