"""Folds, and scikit-learn regressors as mean models.

A regressor without a closed form for its held-out predictions gets them by cross-fitting: each fold
is predicted by a clone that was fitted without it. Folds are always shuffled and seeded, and rows
of one group are in the same fold.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.validation import has_fit_parameter
from torch import Tensor

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingRegressor

    from twostagegp.data.appending import AppendedRows

from twostagegp.pipeline.mean.tree_tensors import TreeTensors
from twostagegp.pipeline.mean.trees import FEW_ROWS, FlatTrees
from twostagegp.runtime.prediction_checks import predict_with

__all__ = [
    "Regressor",
    "RegressorMean",
    "assign_folds",
    "boosted_trees",
    "cross_predict",
    "fit_clone",
]

Array = NDArray[np.float64]


def assign_folds(
    n: int, n_folds: int, rng: np.random.Generator, groups: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return random fold numbers; folds have nearly equal size, rows of a group share a fold.

    Examples
    --------
    >>> import numpy as np
    >>> np.bincount(assign_folds(10, 5, np.random.default_rng(0)))
    array([2, 2, 2, 2, 2])
    """
    if groups is None:
        return rng.permutation(n) % min(n_folds, n)
    labels, members = np.unique(groups, return_inverse=True)
    sizes = np.bincount(members)
    # Largest groups first into the emptiest fold; ties in random order.
    order = rng.permutation(len(labels))
    order = order[np.argsort(-sizes[order], kind="stable")]
    load = np.zeros(min(n_folds, len(labels)))
    fold_of = np.empty(len(labels), dtype=np.int64)
    for group in order:
        fold_of[group] = np.argmin(load)
        load[fold_of[group]] += sizes[group]
    return fold_of[members.reshape(-1)]


def cross_predict(
    folds: NDArray[np.int64],
    fit: Callable[[NDArray[np.bool_]], Any],
    predict: Callable[[Any, NDArray[np.bool_]], Array],
    heldout: Array,
    asked: NDArray[np.bool_] | None = None,
) -> Any:
    """Predict every fold by a model that was fitted without it.

    Parameters
    ----------
    folds : integer array of shape (n,)
        Rows with -1 are in no fold: always used for fitting, never held out.
    fit : callable
        Takes a mask of rows and returns a model fitted to them.
    predict : callable
        Takes a model and a mask of rows and returns predictions.
    heldout : array of shape (n, ...)
        The predictions are written into it.
    asked : bool array of shape (n,), optional
        Rows whose predictions are needed, all by default.

    Returns
    -------
    model
        The model of the last fold; None if no fold was predicted.

    Examples
    --------
    >>> values, heldout = np.array([1.0, 2.0, 6.0]), np.zeros(3)
    >>> def predict(mean, out):
    ...     return np.full(out.sum(), mean)
    >>> _ = cross_predict(np.arange(3), lambda rows: values[rows].mean(), predict, heldout)
    >>> heldout.tolist()
    [4.0, 3.5, 1.5]
    """
    model = None
    for fold in np.unique(folds[folds >= 0]):
        out = folds == fold
        wanted = out if asked is None else out & asked
        if wanted.any():
            model = fit(~out)
            heldout[wanted] = predict(model, wanted)
    return model


def fit_clone(model: Any, X: Array, y: Any, weight: Array, random_state: int) -> Any:
    """Fit a clone of a scikit-learn estimator, with weights only if some are not one.

    If the estimator's ``random_state`` is None, the clone gets the given one.
    """
    model = clone(model)
    if "random_state" in model.get_params() and model.get_params()["random_state"] is None:
        model.set_params(random_state=random_state)
    if np.all(weight == 1.0) or not has_fit_parameter(model, "sample_weight"):
        return model.fit(X, y)
    return model.fit(X, y, sample_weight=weight)


class Regressor(Protocol):
    """A scikit-learn regressor, or an object with the same interface."""

    def fit(self, X: Any, y: Any, **options: Any) -> Any:
        """Fit the regressor and return it."""

    def predict(self, X: Any, **options: Any) -> Any:
        """Return predictions, shape (n,)."""


class RegressorMean:
    """A scikit-learn regressor as a mean model, with cross-fitted residuals.

    It is fitted to standardised inputs (constant columns removed) and the standardised target. A
    row of weight c is in one fold, while c copies of the row may be in several folds.

    Parameters
    ----------
    regressor : estimator
        Clones of it are fitted; the object itself is not changed.
    X, y, weight : arrays of shape (n, d), (n,), (n,)
        All training rows, repeats included.
    folds : integer array of shape (n,)
        Rows with -1 are in no fold: always used for fitting, never held out; their residuals are
        NaN.
    random_state : int
        The ``random_state`` of clones whose ``random_state`` is None.
    wanted : integer array, optional
        Rows whose held-out residuals are needed (all by default); the others are NaN.
    refit : bool
        False keeps the model of the only fold instead of fitting one more model to all rows.
    """

    regressor: Regressor
    model: Regressor
    label: str
    random_state: int
    takes_weights: bool
    ignored_weights: bool
    heldout_residuals: Array

    def __init__(
        self,
        regressor: Any,
        X: Array,
        y: Array,
        weight: Array,
        folds: NDArray[np.int64],
        random_state: int,
        wanted: NDArray[np.int64] | None = None,
        refit: bool = True,
    ) -> None:
        self.regressor = regressor
        self.random_state = random_state
        self.label = type(regressor).__name__
        self.takes_weights = has_fit_parameter(regressor, "sample_weight")
        self.ignored_weights = not self.takes_weights and not bool(np.all(weight == 1.0))
        asked = None
        if wanted is not None:
            asked = np.zeros(len(y), dtype=bool)
            asked[wanted] = True

        def fit(inside: NDArray[np.bool_]) -> Any:
            return fit_clone(regressor, X[inside], y[inside], weight[inside], random_state)

        def predict(fitted: Any, out: NDArray[np.bool_]) -> Array:
            return np.asarray(fitted.predict(X[out])).reshape(-1)

        predicted = np.full(len(y), np.nan)
        model = cross_predict(folds, fit, predict, predicted, asked)
        self.heldout_residuals = y - predicted
        if refit or model is None:
            model = fit_clone(regressor, X, y, weight, random_state)
        self.model = model

    def predict(self, X: Tensor) -> Tensor:
        """Return the prediction at standardised inputs, shape (n,)."""
        if X.device.type != "cpu":
            return self.predict_on_device(X)
        return torch.as_tensor(self.predict_array(X.numpy())).to(X)

    def predict_on_device(self, X: Tensor) -> Tensor:
        """Return the same as :meth:`predict`, with boosted trees as tensors on the device of X.

        Other regressors, and rows with NaN, are left to scikit-learn on the CPU.
        """
        trees = self._trees_on(X.device)
        if trees is not None and trees.takes(X):
            return trees.predict(X).to(X)
        return torch.as_tensor(self.predict_array(X.cpu().numpy())).to(X)

    def predict_array(self, X: NDArray[Any]) -> Array:
        """Return the prediction at standardised inputs, as an array of shape (n,)."""
        trees = self._trees if len(X) <= FEW_ROWS else None
        if trees is not None and trees.takes(X):
            return trees.predict(X)
        return np.asarray(predict_with(self.model, X), dtype=np.float64).reshape(-1)

    @cached_property
    def _trees(self) -> FlatTrees | None:
        """The trees of the model for few rows; None if it has none. Files do not contain them."""
        return FlatTrees.of(self.model)

    @cached_property
    def _tree_tensors(self) -> dict[torch.device, TreeTensors]:
        """The trees on each device that has been asked for them. Files do not contain them."""
        return {}

    def _trees_on(self, device: torch.device) -> TreeTensors | None:
        if self._trees is not None and device not in self._tree_tensors:
            self._tree_tensors[device] = TreeTensors.of(self._trees, device)
        return self._tree_tensors.get(device)

    def __getstate__(self) -> dict[str, Any]:
        caches = ("_trees", "_tree_tensors")
        return {name: value for name, value in self.__dict__.items() if name not in caches}

    def extended(self, appended: AppendedRows, keep_factors: bool) -> RegressorMean:
        """Return this model: regressors are not fitted again."""
        return self


def boosted_trees() -> HistGradientBoostingRegressor:
    """Return the stack's tree ensemble, for targets that jump or depend weakly on many columns."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(
        learning_rate=0.1,
        max_iter=500,
        max_leaf_nodes=63,
        max_features=0.6,
        l2_regularization=5.0,
        early_stopping=True,
        validation_fraction=0.1,
        n_iter_no_change=20,
    )
