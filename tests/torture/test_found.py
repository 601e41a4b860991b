"""What the hard tables have found: one test a symptom."""

import numpy as np
import torch
from invariants import Fixed

from benchmarks.hard_tables import hard_table
from twostagegp import TwoStageGPRegressor
from twostagegp.inputs import prepare


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
