"""Bugs that the hard tables have found: one test per symptom."""

import numpy as np
import pytest
import torch
from invariants import Fixed

from benchmarks.hard_tables import hard_table
from twostagegp import ExactGPRegressor, GPNNRegressor, TwoStageGPRegressor, load
from twostagegp.data.scaling import prepare


def quick(random_state=0):
    return TwoStageGPRegressor(
        mean="matern52", variance="rbf", ard=False, random_state=random_state
    )


def one_hot(n=60, levels=20):
    rng = np.random.default_rng(0)
    codes = rng.integers(levels, size=n)
    return np.eye(levels)[codes], rng.normal(size=levels)[codes] + 0.1 * rng.normal(size=n)


def test_a_constant_column_does_not_decide_between_neighbours_at_the_same_distance():
    X, y = one_hot()
    padded = np.insert(X, 0, 7.0, axis=1)
    options = {"device": torch.device("cpu"), "dtype": torch.float64}
    plain = prepare(X, y, [f"x{k}" for k in range(20)], **options)
    wide = prepare(padded, y, [f"x{k}" for k in range(21)], **options)
    assert torch.equal(plain.rows.X, wide.rows.X)
    expected = Fixed(X, y, engine="neighbors").predict(X)
    found = Fixed(padded, y, engine="neighbors").predict(padded)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-9)


def test_the_function_never_varies_more_than_an_observation():
    """The standard deviation of a law off centre fell below that of the function alone."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    y = np.sin(2.0 * X[:, 0])
    y[0] = 1e9
    model = TwoStageGPRegressor(mean="matern32", variance="rbf", ard=False, random_state=0)
    model.fit(X, y)
    assert model.calibration_.shape.std < 1.0
    far = np.vstack([X, X + 1e3])
    _, std = model.predict(far, return_std=True)
    _, latent = model.predict(far, return_latent_std=True)
    assert (latent <= std).all()


def test_a_law_off_centre_does_not_fall_below_the_noise_floor():
    table = hard_table("no noise: step")
    model = TwoStageGPRegressor("neighbors", mean=["rbf", "laplacian"], noise_floor=1e-4)
    model.set_params(random_state=0).fit(table.X, table.y)
    assert model.calibration_.shape.std < 1.0
    _, std = model.predict(table.X, return_std=True)
    cov = model.predict(table.X[:5], return_cov=True)[1]
    assert std.min() >= 0.01 * np.std(table.y) * (1.0 - 1e-9)
    np.testing.assert_allclose(np.sqrt(np.diag(cov)), std[:5], rtol=1e-9)


@pytest.fixture(scope="module")
def table():
    return hard_table("rows 40")


@pytest.fixture(scope="module")
def once(table):
    return quick().fit(table.X, table.y).predict_interval(table.X_new)


class TestCopies:
    """Rows pasted twice, or of weight 2, left nothing but the noise floor: coverage 0."""

    @pytest.mark.parametrize("weight", [1.5, 2.0, 1e6])
    def test_a_weight_that_is_the_same_for_all_rows_changes_nothing(self, table, once, weight):
        model = quick().fit(table.X, table.y, sample_weight=np.full(40, weight))
        np.testing.assert_allclose(model.predict_interval(table.X_new), once, rtol=1e-6, atol=1e-6)
        assert "copies" in model.fit_report_.method_reason

    def test_a_table_that_was_pasted_under_itself_is_the_table(self, table, once):
        model = quick().fit(np.vstack([table.X] * 3), np.tile(table.y, 3))
        np.testing.assert_allclose(model.predict_interval(table.X_new), once, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("make", [quick, ExactGPRegressor, GPNNRegressor])
    def test_rows_drawn_with_replacement_leave_the_noise(self, make):
        table = hard_table("bootstrap sample")
        model = make(random_state=0).fit(table.X, table.y)
        low, high = model.predict_interval(table.X_new).T
        assert np.mean((low <= table.y_new) & (table.y_new <= high)) > 0.8
        weight = np.unique(np.column_stack([table.X, table.y]), axis=0, return_counts=True)
        same = make(random_state=0).fit(weight[0][:, :2], weight[0][:, 2], sample_weight=weight[1])
        expected = model.predict(table.X_new, return_std=True)
        found = same.predict(table.X_new, return_std=True)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)

    def test_measurements_that_differ_are_counted_as_before(self):
        table = hard_table("places 8")
        model = quick().fit(table.X, table.y)
        assert model.fitted_.data[0].weight_unit == 1.0
        assert model.fitted_.data[0].merged.c.sum() == 40.0

    def test_an_update_counts_in_the_same_unit(self, table):
        one, ten = (quick().fit(table.X, table.y, sample_weight=np.full(40, w)) for w in (1.0, 10))
        one.update(table.X_new[:5], table.y_new[:5], sample_weight=np.ones(5))
        ten.update(table.X_new[:5], table.y_new[:5], sample_weight=np.full(5, 10.0))
        found, expected = (m.predict(table.X_new, return_std=True) for m in (ten, one))
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)

    def test_the_unit_is_kept_in_files(self, table, tmp_path):
        model = quick().fit(table.X, table.y, sample_weight=np.full(40, 3.0))
        model.save(tmp_path / "model")
        assert load(tmp_path / "model").fitted_.data[0].weight_unit == 3.0
