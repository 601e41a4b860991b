r"""Intervals with guaranteed coverage: cross-validation+ with full refits.

The rows are cut into K folds, row i being in fold k(i). A model fitted without that fold gives
:math:`\mu_{-k(i)}` and :math:`\sigma_{-k(i)}`, and the score of the row is

.. math::

    R_i = \frac{|y_i - \mu_{-k(i)}(x_i)|}{\sigma_{-k(i)}(x_i)} .

The interval at x goes from the :math:`\lfloor \alpha (n + 1) \rfloor`-th smallest of the n values
:math:`\mu_{-k(i)}(x) - R_i\, \sigma_{-k(i)}(x)` to the :math:`\lceil (1 - \alpha)(n + 1) \rceil`-th
smallest of :math:`\mu_{-k(i)}(x) + R_i\, \sigma_{-k(i)}(x)`. If rows are exchangeable, it holds a
new observation with at least the following probability, for any distribution of the data and any
model:

.. math::

    1 - 2 \alpha - \min\Big\{ \frac{2 (1 - 1/K)}{n/K + 1}, \frac{1 - K/n}{K + 1} \Big\}
    \;\ge\; 1 - 2 \alpha - \sqrt{2 / n}

(Barber, Candès, Ramdas and Tibshirani 2021, theorem 4; :math:`1 - 2\alpha` for K = n); in practice
close to :math:`1 - \alpha`. The cost is K more fits, and K predictions per new row.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, RegressorMixin, clone
from sklearn.utils import _safe_indexing, check_consistent_length, check_random_state, get_tags
from sklearn.utils.validation import check_is_fitted, column_or_1d, has_fit_parameter

from twostagegp.data.checks import check_finite, check_groups
from twostagegp.data.columns.encoder import TableEncoder
from twostagegp.data.columns.tables import named_inputs, needs_encoding, training_table
from twostagegp.errors import InputError, TwoStageGPWarning
from twostagegp.estimators import shortcuts
from twostagegp.estimators.validation import Where, at_least, check_parameters
from twostagegp.pipeline.mean.build import is_regressor_like
from twostagegp.pipeline.mean.crossfit import Regressor, assign_folds
from twostagegp.runtime.prediction_checks import predict_with, require_finite
from twostagegp.runtime.transaction import unchanged_on_error

__all__ = ["CVPlusRegressor", "guaranteed_level", "takes_numbers_only"]

Array = NDArray[np.float64]


def guaranteed_level(level: float, n: int, n_folds: int) -> float:
    """Return the guaranteed coverage of CV+ intervals, by the formula of the module.

    Examples
    --------
    >>> round(guaranteed_level(0.95, n=1000, n_folds=1000), 3)
    0.9
    """
    alpha, K = 1.0 - level, n_folds
    slack = min(2.0 * (1.0 - 1.0 / K) / (n / K + 1.0), (1.0 - K / n) / (K + 1.0))
    return max(0.0, 1.0 - 2.0 * alpha - slack)


class CVPlusRegressor(MetaEstimatorMixin, RegressorMixin, BaseEstimator):
    """A regressor with prediction intervals by cross-validation+.

    Parameters
    ----------
    estimator : estimator, optional
        Any regressor; ``TwoStageGPRegressor()`` by default. If its ``predict`` takes
        ``return_std``, the width of the intervals depends on x.
    n_folds : int
        Number K of refits. K = n is the jackknife+.
    random_state : int, RandomState or None
        Seed of the folds; the estimator has its own.

    Attributes
    ----------
    estimator_ : the estimator fitted to all rows, for ``predict``
    estimators_ : list of the K refits
    scores_ : array of shape (n,)
        Score R of each row.
    folds_ : integer array of shape (n,)

    Examples
    --------
    >>> import numpy as np
    >>> from twostagegp import CVPlusRegressor, ExactGPRegressor
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> y = np.sin(6 * X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=60)
    >>> model = CVPlusRegressor(ExactGPRegressor(random_state=0), n_folds=5, random_state=0)
    >>> low, high = model.fit(X, y).predict_interval(X[:3], level=0.9).T
    >>> bool((low < high).all())
    True
    >>> round(model.guaranteed_level(0.9), 2)
    0.68
    """

    #: Entries of the (points, rows) panels during prediction; they change no result.
    chunk_entries: ClassVar[int] = 1 << 23

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "estimator": [Where("a regressor with fit and predict", holds=is_regressor_like), None],
        "n_folds": [at_least(2)],
        "random_state": ["random_state"],
    }

    n_features_in_: int
    feature_names_in_: NDArray[Any]
    folds_: NDArray[np.int64]
    estimator_: Regressor
    estimators_: list[Regressor]
    scores_: Array

    def __init__(self, estimator: Any = None, n_folds: int = 10, random_state: Any = None) -> None:
        self.estimator = estimator
        self.n_folds = n_folds
        self.random_state = random_state

    def fit(self, X: Any, y: Any, groups: ArrayLike | None = None) -> CVPlusRegressor:
        """Fit the estimator to all rows, and once without each fold.

        An error leaves the model as it was before.

        Parameters
        ----------
        X : data frame or array-like of shape (n, d)
            Columns of any kind. The estimator receives the frame, and each refit learns the
            encoding of docs/tables.md from its own rows. A regressor that takes numbers only is
            fitted behind a ``TableEncoder``.
        y : array-like of shape (n,)
        groups : array-like of shape (n,), optional
            Rows with the same label are in one fold, and groups are passed on if the estimator's
            ``fit`` takes them. The guarantee is then about rows of new groups; it needs many groups
            that are exchangeable.
        """
        with unchanged_on_error(self):
            check_parameters(self)
            # Missing values are left to the estimator.
            options = {"dtype": np.float64, "ensure_all_finite": False, "ensure_min_samples": 2}
            both = (options, {**options, "ensure_2d": False})
            table, y = training_table(self, X, y, validate_separately=both)
            y = column_or_1d(y, warn=True)
            check_finite(y, "y")
            check_consistent_length(table, y)
            X = X if isinstance(X, pd.DataFrame) else table
            with_gaps = isinstance(X, pd.DataFrame) and bool(X.isna().any(axis=None))
            encode = needs_encoding(X) or with_gaps
            labels = check_groups(groups, len(y))
            rng = check_random_state(self.random_state)
            generator = np.random.default_rng(int(rng.randint(2**31 - 1)))
            self.folds_ = assign_folds(len(y), int(self.n_folds), generator, labels)
            self.estimator_ = self._fit(X, y, labels, encode)
            self.estimators_ = []
            self.scores_ = np.empty(len(y))
            for fold in range(int(self.folds_.max()) + 1):
                out = self.folds_ == fold
                rest = None if labels is None else labels[~out]
                model = self._fit(_safe_indexing(X, ~out), y[~out], rest, encode)
                self.estimators_.append(model)
                with warnings.catch_warnings():
                    # A level or gap that occurs in one fold only needs no warning here.
                    warnings.simplefilter("ignore", TwoStageGPWarning)
                    mean, std = _moments(model, _safe_indexing(X, out))
                self.scores_[out] = np.abs(y[out] - mean) / std
            return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = get_tags(self._template()).input_tags.allow_nan
        return tags

    def _template(self) -> Any:
        """Return the estimator to clone, not fitted."""
        if self.estimator is not None:
            return self.estimator
        from twostagegp.estimators.regressor import TwoStageGPRegressor

        return TwoStageGPRegressor(random_state=self.random_state)

    def _fit(self, X: Any, y: Array, groups: Any, encode: bool) -> Any:
        model = clone(self._template())
        if groups is not None and has_fit_parameter(model, "groups"):
            return model.fit(X, y, groups=groups)
        if encode and takes_numbers_only(model):
            from sklearn.pipeline import make_pipeline

            model = make_pipeline(TableEncoder(), model)
        return model.fit(X, y)

    def _checked(self, X: Any) -> Any:
        check_is_fitted(self, "estimators_")
        named = hasattr(self, "feature_names_in_")
        if isinstance(X, pd.DataFrame):
            if not needs_encoding(X):  # shapes and names
                named_inputs(self, X, dtype=np.float64, ensure_all_finite=False)
                return X if named else X.to_numpy(dtype=np.float64)
            return named_inputs(self, X, skip_check_array=True)
        array = named_inputs(self, X, dtype=np.float64, ensure_all_finite=False)
        return pd.DataFrame(array, columns=self.feature_names_in_) if named else array

    def predict(self, X: Any) -> Array:
        """Return the prediction of the estimator fitted to all rows, shape (n,)."""
        X = self._checked(X)
        mean = np.asarray(predict_with(self.estimator_, X))
        require_finite(mean)
        return mean

    def guaranteed_level(self, level: float = 0.95) -> float:
        """Return the guaranteed coverage of intervals of ``level`` if rows are exchangeable."""
        check_is_fitted(self, "estimators_")
        return guaranteed_level(level, len(self.scores_), len(self.estimators_))

    def predict_interval(self, X: Any, level: float = 0.95) -> Array:
        """Return the interval of CV+; it is infinite if there are too few rows for the level.

        Returns
        -------
        interval : array of shape (n, 2)
        """
        if not 0.0 < level < 1.0:
            raise InputError(f"level={level!r} must lie between 0 and 1, for example 0.95.")
        X = self._checked(X)
        n = len(self.scores_)
        # Rounding must not turn 0.95 * 20 = 19 into the 20th of 19 rows.
        rank = max(1, math.ceil(level * (n + 1) - 1e-9))
        if rank > n:
            return np.tile([-np.inf, np.inf], (len(X), 1))
        interval = np.empty((len(X), 2))
        size = max(1, self.chunk_entries // n)
        for begin in range(0, len(X), size):
            part = _safe_indexing(X, slice(begin, begin + size))
            with _each_warning_once():
                moments = [_moments(model, part) for model in self.estimators_]
            mean = np.column_stack([m for m, _ in moments])[:, self.folds_]
            reach = np.column_stack([s for _, s in moments])[:, self.folds_] * self.scores_
            lower, upper = mean - reach, mean + reach
            interval[begin : begin + size, 0] = np.partition(lower, n - rank, axis=1)[:, n - rank]
            interval[begin : begin + size, 1] = np.partition(upper, rank - 1, axis=1)[:, rank - 1]
        require_finite(interval)
        return interval

    def save(self, path: str | PathLike[str], *, include_factors: bool = False) -> None:
        """Write the fitted model into a folder; :func:`twostagegp.load` reads it back.

        Parameters are those of :meth:`twostagegp.TwoStageGPRegressor.save`.
        """
        shortcuts.save(self, path, include_factors)


def takes_numbers_only(model: Any) -> bool:
    """Return whether neither a regressor nor a part of it encodes columns by itself."""
    parts = [value for value in model.get_params().values() if hasattr(value, "fit")]
    knows = "missing" in model.get_params(deep=False) or get_tags(model).input_tags.categorical
    return not (parts or hasattr(model, "steps") or knows)


@contextmanager
def _each_warning_once() -> Iterator[None]:
    """Give a warning that several of the K refits raise only once."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    for text, category in dict.fromkeys((str(w.message), w.category) for w in seen):
        warnings.warn(text, category, stacklevel=4)


def _moments(model: Any, X: Any) -> tuple[Array, Array]:
    """Return mean and standard deviation; ones if the model has no standard deviation."""
    try:
        mean, std = predict_with(model, X, return_std=True)
    except TypeError:
        mean = np.asarray(predict_with(model, X), dtype=np.float64)
        return mean, np.ones(len(mean))
    # A constant model may have a standard deviation of 0; scores must still be finite.
    return np.asarray(mean), np.maximum(np.asarray(std), math.sqrt(np.finfo(float).tiny))
