r"""Intervals with a guarantee: cross-validation+ with full refits.

The rows are cut into K folds, row i being in fold k(i). A model fitted without that fold gives
:math:`\mu_{-k(i)}` and :math:`\sigma_{-k(i)}`, and the score of the row is

.. math::

    R_i = \frac{|y_i - \mu_{-k(i)}(x_i)|}{\sigma_{-k(i)}(x_i)} .

The interval at x goes from the :math:`\lfloor \alpha (n + 1) \rfloor`-th smallest of the n values
:math:`\mu_{-k(i)}(x) - R_i\, \sigma_{-k(i)}(x)` to the :math:`\lceil (1 - \alpha)(n + 1) \rceil`-th
smallest of :math:`\mu_{-k(i)}(x) + R_i\, \sigma_{-k(i)}(x)`. Whatever the distribution of the data
and however bad the models, if rows are exchangeable it holds a new observation with probability at
least

.. math::

    1 - 2 \alpha - \min\Big\{ \frac{2 (1 - 1/K)}{n/K + 1}, \frac{1 - K/n}{K + 1} \Big\}
    \;\ge\; 1 - 2 \alpha - \sqrt{2 / n}

(Barber, Candès, Ramdas and Tibshirani 2021, theorem 4; :math:`1 - 2\alpha` for K = n); in practice
close to :math:`1 - \alpha`. The price are K fits, and K predictions for every new row.
"""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, RegressorMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, has_fit_parameter, validate_data

from twostagegp.crossfit import assign_folds
from twostagegp.errors import InputError
from twostagegp.files.savable import Savable
from twostagegp.inputs import check_groups

__all__ = ["CVPlusRegressor", "guaranteed_level"]

Array = NDArray[np.float64]

#: Entries of the (points, rows) panels during prediction.
_CHUNK_ENTRIES = 1 << 23


def guaranteed_level(level: float, n: int, n_folds: int) -> float:
    """Coverage that an interval of CV+ is sure to have, see the module's formula.

    Examples
    --------
    >>> round(guaranteed_level(0.95, n=1000, n_folds=1000), 3)
    0.9
    """
    alpha, K = 1.0 - level, n_folds
    slack = min(2.0 * (1.0 - 1.0 / K) / (n / K + 1.0), (1.0 - K / n) / (K + 1.0))
    return max(0.0, 1.0 - 2.0 * alpha - slack)


class CVPlusRegressor(MetaEstimatorMixin, RegressorMixin, Savable, BaseEstimator):
    """A regressor with the intervals of cross-validation+ around it.

    Parameters
    ----------
    estimator : estimator, optional
        Any regressor; ``TwoStageGPRegressor()`` by default. One that takes ``return_std`` in
        ``predict`` gives intervals whose width depends on x, others give residuals of one size.
    n_folds : int
        K; the number of refits. With K = n this is the jackknife+.
    random_state : int, RandomState or None
        Of the folds; estimators keep their own.

    Attributes
    ----------
    estimator_ : the estimator fitted to all rows, for ``predict``
    estimators_ : list of the K refits
    scores_ : array of shape (n,)
        R of every row.
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

    def __init__(self, estimator: Any = None, n_folds: int = 10, random_state: Any = None) -> None:
        self.estimator = estimator
        self.n_folds = n_folds
        self.random_state = random_state

    def fit(self, X: Any, y: Any, groups: ArrayLike | None = None) -> CVPlusRegressor:
        """Fit the estimator to all rows and once without each fold.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,)
        groups : array-like of shape (n,), optional
            Rows with the same label are in one fold, and an estimator whose ``fit`` takes groups
            is given them. The guarantee is then about rows of new groups, and only as good as
            groups are many and exchangeable.
        """
        K = self.n_folds
        if not isinstance(K, Integral) or isinstance(K, bool) or K < 2:
            raise InputError(f"n_folds={K!r} must be a whole number of at least 2, such as 10.")
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        labels = check_groups(groups, len(y))
        rng = check_random_state(self.random_state)
        generator = np.random.default_rng(int(rng.randint(2**31 - 1)))
        self.folds_: NDArray[np.int64] = assign_folds(len(y), int(K), generator, labels)
        self.estimator_: Any = self._fit(X, y, labels)
        self.estimators_: list[Any] = []
        self.scores_: Array = np.empty(len(y))
        for fold in range(int(self.folds_.max()) + 1):
            out = self.folds_ == fold
            model = self._fit(X[~out], y[~out], None if labels is None else labels[~out])
            self.estimators_.append(model)
            mean, std = _moments(model, X[out])
            self.scores_[out] = np.abs(y[out] - mean) / std
        return self

    def _fit(self, X: Array, y: Array, groups: Any) -> Any:
        if self.estimator is None:
            from twostagegp.regressor import TwoStageGPRegressor

            model: Any = TwoStageGPRegressor(random_state=self.random_state)
        else:
            model = clone(self.estimator)
        if groups is None or not has_fit_parameter(model, "groups"):
            return model.fit(X, y)
        return model.fit(X, y, groups=groups)

    def _checked(self, X: Any) -> Array:
        check_is_fitted(self, "estimators_")
        return validate_data(self, X, dtype=np.float64, reset=False)

    def predict(self, X: Any) -> Array:
        """Prediction of the estimator that was fitted to all rows, shape (n,)."""
        X = self._checked(X)
        return np.asarray(self.estimator_.predict(X))

    def guaranteed_level(self, level: float = 0.95) -> float:
        """Coverage that intervals of ``level`` are sure to have if rows are exchangeable."""
        check_is_fitted(self, "estimators_")
        return guaranteed_level(level, len(self.scores_), len(self.estimators_))

    def predict_interval(self, X: Any, level: float = 0.95) -> Array:
        """Interval of CV+; unbounded where there are too few rows for the level.

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
        size = max(1, _CHUNK_ENTRIES // n)
        for begin in range(0, len(X), size):
            part = X[begin : begin + size]
            moments = [_moments(model, part) for model in self.estimators_]
            mean = np.column_stack([m for m, _ in moments])[:, self.folds_]
            reach = np.column_stack([s for _, s in moments])[:, self.folds_] * self.scores_
            lower, upper = mean - reach, mean + reach
            interval[begin : begin + size, 0] = np.partition(lower, n - rank, axis=1)[:, n - rank]
            interval[begin : begin + size, 1] = np.partition(upper, rank - 1, axis=1)[:, rank - 1]
        return interval


def _moments(model: Any, X: Array) -> tuple[Array, Array]:
    """Mean and standard deviation; ones where the model has none."""
    try:
        mean, std = model.predict(X, return_std=True)
    except TypeError:
        mean = np.asarray(model.predict(X), dtype=np.float64)
        return mean, np.ones(len(mean))
    # Where a model is sure of everything, as a constant is, residuals must still be finite.
    return np.asarray(mean), np.maximum(np.asarray(std), math.sqrt(np.finfo(float).tiny))
