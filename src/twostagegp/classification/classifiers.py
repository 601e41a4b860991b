"""Any scikit-learn classifier as a member of a classifier's mean, by cross-fitting.

The latents are log probabilities; those of a training row come from a clone that was fitted without
the row's fold.
"""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import has_fit_parameter

from twostagegp.classification.table import ClassTable
from twostagegp.classification.views import View
from twostagegp.errors import TwoStageGPWarning
from twostagegp.pipeline.mean.crossfit import cross_predict, fit_clone
from twostagegp.pipeline.settings import ClassSettings
from twostagegp.runtime.prediction_checks import predict_with

__all__ = ["Classifier", "CrossFitted", "logistic_member"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


class Classifier(Protocol):
    """A scikit-learn classifier, or an object with the same interface."""

    classes_: NDArray[Any]

    def predict_proba(self, X: Any) -> Any:
        """Return one probability per row and class."""


class CrossFitted:
    """A scikit-learn classifier with log probabilities of held-out rows.

    Parameters
    ----------
    model : estimator
        Clones of it are fitted; the object itself is not changed.
    view : View or None
        How columns are scaled for it; None leaves them in the user's units.
    folds : integer array of shape (m,)
    sample : integer array of shape (h,)
        Rows that are held out.
    prior_share : float
        Share of the class frequencies that is mixed into the probabilities, so that all are
        positive.
    seed : int
        The ``random_state`` of clones whose ``random_state`` is None.
    """

    view: View | None
    label: str
    prior: Array
    prior_share: float
    takes_weights: bool
    heldout: Array
    model: Classifier | None

    def __init__(
        self,
        model: Any,
        view: View | None,
        table: ClassTable,
        folds: Index,
        sample: Index,
        prior_share: float,
        seed: int,
    ) -> None:
        self.view = view
        self.label = type(model).__name__
        self.prior = table.prior
        self.prior_share = prior_share
        self.takes_weights = has_fit_parameter(model, "sample_weight")
        if not self.takes_weights and not (table.c == 1.0).all():
            warnings.warn(
                f"{self.label} takes no sample_weight: it counted every distinct row once.",
                TwoStageGPWarning,
                stacklevel=2,
            )
        X = self._columns(table.X)

        def fit(inside: NDArray[np.bool_]) -> Any:
            codes = table.codes[inside]
            if len(np.unique(codes)) < 2:
                return None  # a single class is left: there is nothing to classify
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                return fit_clone(model, X[inside], codes, table.c[inside], seed)

        def predict(fitted: Any, out: NDArray[np.bool_]) -> Array:
            return self._log_probability(fitted, X[out])

        heldout = np.empty((len(table), table.n_classes))
        cross_predict(folds, fit, predict, heldout)
        self.heldout = heldout[sample]
        self.model = fit(np.ones(len(table), dtype=bool))

    def _columns(self, X: Array) -> Array:
        return X if self.view is None else self.view(X)

    def _log_probability(self, model: Any, X: Array) -> Array:
        P = np.zeros((len(X), len(self.prior)))
        if model is not None:
            P[:, model.classes_.astype(np.int64)] = predict_with(model, X, "predict_proba")
        return np.log(mixed(P, self.prior, self.prior_share))

    def predict(self, X: Array) -> Array:
        """Return log probabilities at rows in the user's units, shape (n, K)."""
        return self._log_probability(self.model, self._columns(X))


def mixed(P: Array, prior: Array, share: float) -> Array:
    """Return probabilities mixed with a share of the prior: positive, and of sum one per row.

    Examples
    --------
    >>> mixed(np.array([[1.0, 0.0]]), np.array([0.5, 0.5]), 0.2).tolist()
    [[0.9, 0.1]]
    """
    P = (1.0 - share) * P + share * prior
    return np.maximum(P / P.sum(1, keepdims=True), 1e-300)


def logistic_member(
    table: ClassTable,
    view: View,
    folds: Index,
    sample: Index,
    settings: ClassSettings,
    seed: int,
    rng: np.random.Generator,
) -> CrossFitted:
    """Return a logistic regression whose penalty has the smallest held-out log loss."""
    from sklearn.linear_model import LogisticRegression

    some = np.sort(rng.permutation(len(table))[: settings.logistic_rows])
    Z, codes, weight = view(table.X[some]), table.codes[some], table.c[some]
    penalties = [C * settings.many_columns / Z.shape[1] for C in settings.inverse_penalties]
    losses = np.zeros(len(penalties))
    for fold in np.unique(folds[some]):
        out = folds[some] == fold
        if len(np.unique(codes[~out])) < 2:
            continue
        model = LogisticRegression(warm_start=True, max_iter=100, tol=1e-3)
        for j, C in enumerate(penalties):
            model.set_params(C=C)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model.fit(Z[~out], codes[~out], sample_weight=weight[~out])
            P = np.zeros((int(out.sum()), table.n_classes))
            P[:, model.classes_] = model.predict_proba(Z[out])
            P = (1.0 - settings.prior_share) * P + settings.prior_share * table.prior
            own = np.maximum(P[np.arange(len(P)), codes[out]], 1e-300)
            losses[j] -= float(weight[out] @ np.log(own))
    C = penalties[int(np.argmin(losses))]
    model = LogisticRegression(C=C, max_iter=300, tol=1e-4)
    member = CrossFitted(model, view, table, folds, sample, settings.prior_share, seed)
    member.label = f"logistic regression ({view.name})"
    return member
