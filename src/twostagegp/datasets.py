"""Benchmark tables with their standard splits, and the toy functions of the paper.

:func:`load` reads a table from a folder of ``.npz`` files that the user has; nothing is downloaded.
The folder is given, or named by the environment variable ``TWOSTAGEGP_DATA``. In it a table lies at
``uci_small/<name>.npz`` or ``uci_large/<name>.npz`` (or flat, at ``<name>.npz``) and holds

- ``X`` of shape (n, d) and ``y`` of shape (n,);
- the standard splits, where the table has any: the test rows of split k as an index array
  ``test_k``, or as column k of a boolean array ``test_mask``;
- ``feature_names``, and an array that says which rows belong together, where the table has them.

:func:`toy` makes the two one-dimensional functions of the paper's Figures 2 and 6.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from twostagegp.errors import InputError, TwoStageGPError

__all__ = ["DatasetNotFoundError", "RegressionData", "load", "names", "toy"]

FOLDER_VARIABLE = "TWOSTAGEGP_DATA"


class DatasetNotFoundError(TwoStageGPError, FileNotFoundError):
    """No file for the table; the message says where it was looked for, and what to set."""


@dataclass(frozen=True, eq=False)  # eq: arrays have no single truth value to compare by
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
        The source's names where it has any, otherwise ``x0``, ``x1``, ….
    splits : tuple of ndarray
        The test rows of each standard split; empty where the table has no standard split.
    groups : ndarray of shape (n,) or None
        Equal values mark rows that belong together, such as those of one patient.

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
        """Return the training and the test rows of standard split k; training is all but test."""
        if not 0 <= k < len(self.splits):
            has = f"{len(self.splits)} standard splits" if self.splits else "no standard split"
            raise IndexError(f"{self.name} has {has}; split {k} was asked for")
        is_train = np.ones(self.y.shape[0], dtype=bool)
        is_train[self.splits[k]] = False
        return np.flatnonzero(is_train), self.splits[k]


@dataclass(frozen=True)
class _Source:
    """Where a table lies, and under which array names."""

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
    # The same household in July 2010: test rows under a seasonal shift for the winter part above.
    "house_electric_july2010": _Source(
        "uci_large/house_electric_part.npz", X="X_july2010", y="y_july2010"
    ),
}


def names() -> list[str]:
    """List the tables that :func:`load` knows, in alphabetical order.

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
        One of :func:`names`.
    folder : path-like, optional
        The data folder; by default the one that ``TWOSTAGEGP_DATA`` names.

    Raises
    ------
    InputError
        For an unknown name, with the nearest known ones, and for a file whose arrays do not fit;
        it is a ValueError too.
    DatasetNotFoundError
        Where no folder is known, or the file is not in it.

    Examples
    --------
    >>> load("concret")
    Traceback (most recent call last):
    ...
    twostagegp.errors.InputError: unknown table 'concret'; did you mean 'concrete'? ...
    """
    if name not in _SOURCES:
        raise InputError(_unknown(name))
    source = _SOURCES[name]
    path = _find(source.file, name, folder)
    with np.load(path, allow_pickle=False) as arrays:
        return _read(name, source, arrays, path)


def toy(
    n: int = 30,
    noise: float = 1.0,
    random_state: int | np.random.Generator | None = 0,
    kind: Literal["sine", "power"] = "sine",
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Draw the one-dimensional example of the paper's Figure 2 or 6.

    .. math:: y = f(x) + \epsilon, \quad x \sim U[-5, 5], \quad
              \epsilon \sim \mathcal{N}(0, \mathrm{noise}^2)

    with f(x) = 3x + 2 sin 2πx for ``kind="sine"`` (Figure 2) and f(x) = 3 abs(x)^(3/2) + 2 sin 2πx
    for ``kind="power"`` (Figure 6).

    Parameters
    ----------
    n : int, default=30
        Number of rows.
    noise : float, default=1.0
        Standard deviation of the noise; 0 gives f itself.
    random_state : int, Generator or None, default=0
        Seed of the draw.
    kind : {"sine", "power"}, default="sine"
        Which function.

    Returns
    -------
    X : ndarray of shape (n, 1)
    y : ndarray of shape (n,)

    Examples
    --------
    >>> X, y = toy(n=5)
    >>> X.shape, y.shape
    ((5, 1), (5,))
    """
    if kind not in ("sine", "power"):
        raise InputError(f"kind must be 'sine' or 'power', got {kind!r}")
    if n < 1:
        raise InputError(f"n must be at least 1, got {n}")
    if not noise >= 0.0:  # written so that NaN is caught too
        raise InputError(f"noise must not be negative, got {noise}")
    rng = np.random.default_rng(random_state)
    x = rng.uniform(-5.0, 5.0, size=n)
    trend = 3.0 * x if kind == "sine" else 3.0 * np.abs(x) ** 1.5
    y = trend + 2.0 * np.sin(2.0 * np.pi * x) + noise * rng.standard_normal(n)
    return x[:, np.newaxis], y


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, names(), n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"unknown table {name!r}; {hint}datasets.names() lists all"


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
        raise InputError(f"{path}: X {X.shape} and y {y.shape} do not make a table")
    return RegressionData(
        name=name,
        X=X,
        y=y,
        feature_names=_feature_names(arrays, X.shape[1], path),
        # The splits of a file are those of its main table.
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
            raise InputError(f"{path}: test_mask {mask.shape} does not fit {n} rows")
        return tuple(np.flatnonzero(column) for column in mask.T)
    splits: list[NDArray[np.intp]] = []
    # Counted up, as the order of the names in the file is alphabetical: test_10 before test_2.
    while (key := f"test_{len(splits)}") in arrays:
        rows = np.asarray(arrays[key], dtype=np.intp)
        if rows.size and not (rows.min() >= 0 and rows.max() < n):
            raise InputError(f"{path}: {key} names rows outside the table's {n}")
        splits.append(rows)
    return tuple(splits)
