"""The number of stages by held-out scores, and the quick preset of the classifier."""

import numpy as np
import pytest

from twostagegp import TwoStageGPClassifier
from twostagegp.pipeline.settings import DEFAULTS, QUICK, ClassSettings, Settings

SMALL = {"kernels": ("rbf", "matern32"), "alpha_eps": 0.05, "random_state": 0, "n_jobs": 1}


def _table(n=140, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, (X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=n) > 0).astype(int)


def _probabilities(stages, errors=0.0, groups=None):
    X, y = _table()
    settings = Settings(classes=ClassSettings(stage_errors=errors))
    model = TwoStageGPClassifier(stages=stages, settings=settings, **SMALL)
    model.fit(X[:100], y[:100], groups=groups)
    return model, model.predict_proba(X[100:])


@pytest.mark.parametrize("groups", [None, np.arange(100) // 4])
def test_auto_is_one_stage_if_the_stack_gains_too_little_and_two_stages_otherwise(groups):
    for stages, errors in ((1, np.inf), (2, -np.inf)):
        model, P = _probabilities("auto", errors, groups)
        same, expected = _probabilities(stages, groups=groups)
        assert (model.mean_ is None) == (stages == 1)
        assert (same.mean_ is None) == (stages == 1)
        # The members of a stack come in another order, which changes its weights by rounding.
        np.testing.assert_allclose(P, expected, atol=1e-9 if stages == 1 else 1e-4)


def test_auto_takes_the_second_stage_where_it_lowers_the_loss_of_held_out_rows():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 8))
    y = (X.sum(1) + 0.5 * rng.normal(size=300) > 0).astype(int)  # a logistic regression's table
    model = TwoStageGPClassifier(stages="auto", **SMALL).fit(X[:150], y[:150])
    assert model.mean_ is not None
    assert "logistic" in model.mean_.label


def test_the_preset_takes_less_work_and_can_be_changed():
    model = TwoStageGPClassifier.quick(random_state=3)
    assert (model.stages, model.kernels, model.settings) == (1, ("matern52",), QUICK)
    assert QUICK.classes.training_rows < DEFAULTS.classes.training_rows
    assert len(QUICK.classes.alphas) < len(DEFAULTS.classes.alphas)
    assert TwoStageGPClassifier.quick(stages=2).stages == 2
    X, y = _table(300)
    assert model.fit(X[:150], y[:150]).score(X[150:], y[150:]) > 0.7


def test_one_core_and_two_give_the_same_probabilities():
    X, y = _table(420)
    given = {**SMALL, "n_jobs": None}
    one, two = (
        TwoStageGPClassifier(**{**given, "n_jobs": jobs}).fit(X[:350], y[:350]) for jobs in (1, 2)
    )
    assert (one.predict_proba(X[350:]) == two.predict_proba(X[350:])).all()
