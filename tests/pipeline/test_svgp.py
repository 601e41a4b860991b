"""The two stages on inducing points."""

import numpy as np
import pytest
from neighbor_fits import SHORT_TREES, is_sane, rms, table, truth

from twostagegp import Training, TwoStageGPRegressor, load


def sparse(**options):
    given = {"kernels": ("rbf",), "ard": False, "random_state": 0, "settings": SHORT_TREES}
    return TwoStageGPRegressor("svgp", **{"mean": "rbf", "variance": "rbf", **given, **options})


def test_a_smooth_function_is_learned():
    X, y = table(300)
    model = sparse(mean="stack", kernels=("rbf", "matern32"), variance="search").fit(X, y)
    new, target = table(2000, seed=9)
    assert rms(model.predict(new) - truth(new)) < 0.1
    low, high = model.predict_interval(new).T
    assert 0.9 < np.mean((low < target) & (target < high)) < 0.98
    assert model.fit_report_.method == "svgp"


def test_every_training_option_changes_the_fit():
    X, y = table(80)
    default = sparse().fit(X, y)
    others = {
        "training": sparse(training=Training(steps=3)),
        "penalty": sparse(penalty=1.0),
        "variance_objective": sparse(variance_objective="nll"),
    }
    for name, model in others.items():
        model.fit(X, y)
        assert is_sane(model, X), name
        _, std = model.predict(X, return_std=True)
        assert np.any(std != default.predict(X, return_std=True)[1]), name
    searched = sparse(variance=("rbf", "matern12"), selection=("heldout", "misspecification"))
    assert searched.fit(X, y).search_.variance is not None


def test_groups_are_held_out_together():
    rng = np.random.default_rng(0)
    X = np.repeat(rng.normal(size=(60, 2)), 5, axis=0) + 1e-3 * rng.normal(size=(300, 2))
    y, groups = np.repeat(rng.normal(size=60), 5), np.repeat(np.arange(60), 5)
    aware = sparse(calibration="scale").fit(X, y, groups=groups).mean_.heldout_residuals
    assert rms(aware) > 0.9  # there is nothing to learn about a new group


def test_a_model_is_saved_loaded_and_updated(tmp_path):
    X, y = table(200)
    model = sparse().fit(X[:150], y[:150])
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    new = table(50, seed=3)[0]
    np.testing.assert_allclose(again.predict(new), model.predict(new), rtol=1e-10)
    before = rms(model.predict(new) - truth(new))
    model.update(X[150:], y[150:])
    assert rms(model.predict(new) - truth(new)) < before + 0.02
    assert len(model.variance_.posterior.rows) == 200


def test_a_weight_is_a_number_of_repeats():
    X, y = table(120)
    weight = np.random.default_rng(1).integers(1, 3, size=120)
    one = sparse(calibration="scale").fit(X, y, sample_weight=weight)
    two = sparse(calibration="scale").fit(np.repeat(X, weight, axis=0), np.repeat(y, weight))
    np.testing.assert_allclose(one.predict(X), two.predict(X), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_both_precisions_are_supported(dtype):
    X, y = table(150)
    model = sparse(dtype=dtype).fit(X, y)
    assert is_sane(model, np.vstack([X, X + 50.0]))
