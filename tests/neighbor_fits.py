"""Tables and models that the tests of the method for large tables share."""

import math
from dataclasses import replace

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin

from twostagegp import TwoStageGPRegressor
from twostagegp.data.rows import Rows
from twostagegp.pipeline.settings import SampleSettings, SearchSettings, Settings
from twostagegp.training.rounds import Schedule

NOISE = 0.2
#: Trees that do not take long where rows repeat and nothing ends the boosting.
_TREES = (("max_iter", 30), ("max_leaf_nodes", 15))
SHORT_TREES = Settings(sample=SampleSettings(tree_parameters=_TREES))
#: The same, and short searches by the ratio test.
SHORT_SEARCH = replace(SHORT_TREES, search=SearchSettings(n_repeats=4, subsample=60))
#: Sizes at which a few hundred rows are a large table.
LARGE = Settings(
    sample=SampleSettings(
        rows=150,
        variance_rows=100,
        crossfit_folds=((50, 5), (100, 3)),
        regressor_refit_rows=550,
        schedule=Schedule(warm_rows=60, pool=400, first=60, second=120, unseen=80, keep=2),
        tree_parameters=_TREES,
    )
)


def truth(X):
    return np.sin(2 * X[:, 0]) + 0.4 * X[:, -1]


def table(n=300, d=2, seed=0, noise=NOISE):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, truth(X) + noise * rng.normal(size=n)


def make_rows(kind="plain", grouped=False, n=40):
    """Return distinct rows: plain, or with copies, weights below one and known noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.3 * rng.normal(size=n)
    plain = kind == "plain"
    c = np.ones(n) if plain else rng.choice([0.5, 1.0, 2.0, 3.0], size=n)
    q = np.where(c > 1.0, rng.uniform(0.0, 0.3, size=n), 0.0)
    extra = np.zeros(n) if plain else rng.choice([0.0, 0.3], size=n)
    groups = torch.as_tensor(rng.integers(0, 6, size=n)) if grouped else None
    return Rows(*(torch.as_tensor(v) for v in (X, y, c, q, extra)), groups)


def neighbors(**options):
    """Return a model that stacks one kernel, trees and the constant; it fits in half a second."""
    given = {"kernels": ("rbf",), "ard": False, "random_state": 0, "settings": SHORT_TREES}
    return TwoStageGPRegressor(**{"method": "neighbors", **given, **options})


def ridge(**options):
    """Return a model with one kernel in each stage; it fits in a tenth of a second."""
    return neighbors(**{"mean": "rbf", "variance": "rbf", **options})


def same(a, b, X, rtol=1e-9, atol=1e-12):
    """Check that two models give the same distribution."""
    for one, other in zip(
        a.predict(X, return_std=True), b.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def is_sane(model, X):
    mean, std = model.predict(X, return_std=True)
    return bool(np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all())


def rms(values):
    return math.sqrt(np.mean(values**2))


class Witness(RegressorMixin, BaseEstimator):
    """A regressor that remembers, for all its clones, which targets it was fitted on."""

    seen: list[np.ndarray] = []  # noqa: RUF012

    def fit(self, X, y):
        Witness.seen.append(np.asarray(y))
        self.mean_ = float(np.mean(y))
        return self

    def predict(self, X):
        return np.full(len(X), self.mean_)
