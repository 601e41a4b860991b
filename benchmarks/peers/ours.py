"""The estimators of this package, run and scored exactly as the peers are.

One table from name to constructor. The constructors run when a model is fitted, so that a method
missing in the installed version gives a failed record, not a failed import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import twostagegp
from benchmarks.peers.base import LEVEL, Array, Fitted, Prediction
from twostagegp import TwoStageGPRegressor, metrics

__all__ = ["CONSTRUCTORS", "Ours", "fitter"]

CONSTRUCTORS: Mapping[str, Callable[[int], Any]] = {
    "ours": lambda seed: TwoStageGPRegressor(method="neighbors", random_state=seed),
    "ours_auto": lambda seed: TwoStageGPRegressor(method="auto", random_state=seed),
    "ours_paper": lambda seed: TwoStageGPRegressor.from_paper(
        method="neighbors", random_state=seed
    ),
    "ours_svgp": lambda seed: TwoStageGPRegressor(method="svgp", random_state=seed),
    "ours_vecchia": lambda seed: TwoStageGPRegressor(method="vecchia", random_state=seed),
    "ours_gpnn": lambda seed: twostagegp.GPNNRegressor(random_state=seed),
}


class Ours(Fitted):
    """An estimator with the methods that all of this package's have."""

    def __init__(self, model: Any, y_scale: float) -> None:
        self.model = model
        self._y_scale = y_scale

    def predict(self, X: Array) -> Prediction:
        return Prediction(*self.model.predict(X, return_std=True))

    def interval(self, X: Array) -> Array:
        return self.model.predict_interval(X, level=LEVEL)

    def quantiles(self, X: Array, levels: Array) -> Array:
        return np.asarray(self.model.predict_quantiles(X, levels))

    def own_scores(self, X: Array, y: Array) -> dict[str, float]:
        """Return scores of the model's own density and distribution, target standardised."""
        nlpd = -float(np.mean(self.model.predict_logpdf(X, y)))
        return {
            "nlpd_own": nlpd - float(np.log(self._y_scale)),
            "qice_own": metrics.qice(pit=self.model.predict_pit(X, y)),
        }

    def facts(self) -> dict[str, Any]:
        """Return the method that was used, and the seconds that were predicted for the fit."""
        report = getattr(self.model, "fit_report_", None)
        fields = ("method", "foretold_seconds")
        return {name: getattr(report, name, None) for name in fields}

    def calls(self) -> Mapping[str, Callable[[Array], object]]:
        return {
            "predict": self.model.predict,
            "predict, return_std": lambda X: self.model.predict(X, return_std=True),
            "predict_interval": self.model.predict_interval,
        }


def fitter(name: str) -> Callable[[Array, Array, int], Fitted]:
    """Return the function that fits the model of that name."""

    def fit(X: Array, y: Array, seed: int) -> Fitted:
        return Ours(CONSTRUCTORS[name](seed).fit(X, y), float(np.std(y)))

    return fit
