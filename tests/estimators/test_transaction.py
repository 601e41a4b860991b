"""A fit that fails leaves the model as it was."""

import numpy as np
import pytest

from twostagegp import (
    ExactGPRegressor,
    TwoStageGPClassifier,
    TwoStageGPRegressor,
)
from twostagegp.errors import InputError, MemoryBudgetError
from twostagegp.estimators import classifier
from twostagegp.estimators import exact_gp as baselines

X = np.linspace(-2.0, 2.0, 24)[:, None]
y = np.sin(2.0 * X[:, 0])


def stop(*given, **more):
    raise MemoryBudgetError("none left")


def interrupt(*given, **more):
    raise KeyboardInterrupt


@pytest.mark.parametrize("how", [stop, interrupt])
def test_a_refit_that_fails_or_is_interrupted_leaves_the_old_regressor(monkeypatch, how):
    model = ExactGPRegressor("rbf", random_state=0).fit(X, y)
    before, attributes = model.predict(X, return_std=True), set(vars(model))
    monkeypatch.setattr(baselines, "climb", how)
    with pytest.raises((MemoryBudgetError, KeyboardInterrupt)):
        model.fit(np.hstack([X, X**2]), np.column_stack([y, -y]))
    assert set(vars(model)) == attributes
    np.testing.assert_array_equal(model.predict(X, return_std=True), before)


def test_a_refit_that_fails_leaves_the_old_classifier(monkeypatch):
    labels = np.where(y > 0.0, "up", "down")
    options = {"stages": 1, "kernels": ("rbf",), "ard": False, "random_state": 0}
    model = TwoStageGPClassifier(**options).fit(X, labels)
    before = model.predict_proba(X)
    monkeypatch.setattr(classifier, "fit_classes", stop)
    with pytest.raises(MemoryBudgetError):
        model.fit(X, np.where(y > 0.0, "a", "b"))
    assert model.classes_.tolist() == ["down", "up"]
    np.testing.assert_array_equal(model.predict_proba(X), before)


def test_a_first_fit_that_fails_leaves_nothing():
    model = TwoStageGPRegressor()
    with pytest.raises(InputError):
        model.fit(X, np.full(len(y), np.nan))
    assert vars(model) == vars(TwoStageGPRegressor())
