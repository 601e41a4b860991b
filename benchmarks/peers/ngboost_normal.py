"""NGBoost with a Normal distribution and early stopping.

Base learner, score and learning rate are the documented defaults. The default of 500 rounds would
end before early stopping does, so up to 2000 are allowed, as in its authors' own experiments. Above
100,000 rows each round takes a random tenth of them, as these experiments do on their one such
table, with ten times the learning rate, so that 2000 rounds are enough. For few rows there is one
model per fold (:mod:`benchmarks.peers.folds`), with four times the learning rate: that many models
would take long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ngboost import NGBRegressor
from ngboost.distns import Normal

from benchmarks.peers.base import Array, Fitted, Prediction, Split, as_float64
from benchmarks.peers.folds import fit_folds

__all__ = ["fit", "fit_few_rows"]

MAX_ROUNDS = 2000
#: Rounds without a better validation score before the boosting ends.
PATIENCE = 50
SETTINGS = {"learning_rate": 0.01, "minibatch_frac": 1.0}
SETTINGS_FOR_FOLDS = {"learning_rate": 0.04, "minibatch_frac": 1.0}
MANY_ROWS = 100_000
SETTINGS_FOR_MANY_ROWS = {"learning_rate": 0.1, "minibatch_frac": 0.1}


class _Normal(Fitted):
    def __init__(self, model: Any) -> None:
        self.model = model

    def predict(self, X: Array) -> Prediction:
        # One more than the number of the best round, as rounds are counted from 0.
        found = self.model.pred_dist(X, max_iter=self.model.best_val_loss_itr + 1)
        return Prediction(as_float64(found.params["loc"]), as_float64(found.params["scale"]))


def fit(X: Array, y: Array, seed: int) -> Fitted:
    """Boost until the validation score has not risen for some rounds."""
    settings = SETTINGS_FOR_MANY_ROWS if len(y) > MANY_ROWS else SETTINGS
    return _boost(Split.of(X, y, seed), seed, settings)


def fit_few_rows(X: Array, y: Array, seed: int) -> Fitted:
    """Boost on each fold's training rows."""
    return fit_folds(lambda rows: _boost(rows, seed, SETTINGS_FOR_FOLDS), X, y, seed)


def _boost(rows: Split, seed: int, settings: Mapping[str, Any]) -> Fitted:
    model = NGBRegressor(
        Dist=Normal, n_estimators=MAX_ROUNDS, random_state=seed, verbose=False, **settings
    )
    model.fit(
        rows.X,
        rows.y,
        X_val=rows.X_validation,
        Y_val=rows.y_validation,
        early_stopping_rounds=PATIENCE,
    )
    return _Normal(model)
