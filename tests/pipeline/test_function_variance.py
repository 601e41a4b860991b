"""The function's own variance: formula, coverage of known functions, and everything made of it."""

import numpy as np
import pytest

import twostagegp
from twostagegp import TwoStageGPRegressor
from twostagegp.engines.exact.engine import ExactPosterior
from twostagegp.errors import InputError
from twostagegp.pipeline.model import LARGEST_SHARE
from twostagegp.pipeline.settings import ExactSettings, Settings


def table(n=60, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, size=(n, 2))
    f = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] ** 2
    return X, f + 0.3 * rng.normal(size=n), f


@pytest.fixture(scope="module")
def model():
    X, y, _ = table()
    return TwoStageGPRegressor(random_state=0).fit(X, y)


@pytest.fixture(scope="module")
def new():
    return np.vstack([table(30, seed=1)[0], [[6.0, -5.0], [9.0, 9.0]]])


def test_it_is_the_variance_of_the_mixture_of_posteriors(model, new):
    (target,) = model.fitted_.targets
    fit, Z = target.fit, target.standardized(new)
    ridges = [
        (weight, each)
        for weight, each in zip(fit.mean.weights, fit.mean.models, strict=True)
        if weight > 0.0
    ]
    assert len(ridges) == len(fit.outside.members)
    means = np.array([each.predict(Z).numpy() for _, each in ridges])
    w = np.array([weight for weight, _ in ridges])
    within = np.zeros(len(new))
    for weight, each in ridges:
        posterior = ExactPosterior(each.kernel, each.parameters, target.data.rows)
        held = posterior.heldout()
        scale = float((held.residual**2 / held.variance).mean())
        within += weight * scale * posterior.variance(Z).numpy()
    mixture = within + w @ (means - w @ means) ** 2
    observed = fit.moments(Z)[2].numpy()
    found = fit.function_variance(Z).numpy()
    inside = fit.support(Z).numpy() == 1.0
    assert inside.sum() > 20
    np.testing.assert_allclose(
        found[inside], np.minimum(mixture, LARGEST_SHARE * observed)[inside], rtol=1e-9
    )
    assert (found >= np.minimum(mixture, LARGEST_SHARE * observed) * (1.0 - 1e-9)).all()
    assert (found <= LARGEST_SHARE * observed * (1.0 + 1e-12)).all()


@pytest.mark.parametrize("method", ["exact", "neighbors"])
def test_intervals_of_the_function_cover_known_functions(method):
    covered = []
    for f in (np.tanh, np.abs, lambda x: np.sin(2.0 * x), lambda x: np.where(x > 0.0, 1.0, -1.0)):
        rng = np.random.default_rng(len(covered))
        X, new = (rng.uniform(-3.0, 3.0, size=(n, 1)) for n in (120, 300))
        model = TwoStageGPRegressor(random_state=0, method=method)
        model.fit(X, f(X[:, 0]) + 0.2 * rng.normal(size=len(X)))
        low, high = model.predict_interval(new, noise=False).T
        covered.append(np.mean((low <= f(new[:, 0])) & (f(new[:, 0]) <= high)))
    assert 0.9 <= np.mean(covered) <= 0.99


def test_squares_of_both_parts_add_up(model, new):
    std, function, noise = (
        model.predict(new, **{f"return_{part}": True})[1]
        for part in ("std", "latent_std", "noise_std")
    )
    np.testing.assert_allclose(std**2, function**2 + noise**2, rtol=1e-10)
    assert (noise > 0.0).all()


def test_interval_without_noise_is_gaussian_around_the_mean(model, new):
    mean, std = model.predict(new, return_latent_std=True)
    low, high = model.predict_interval(new, 0.95, noise=False).T
    np.testing.assert_allclose((low + high) / 2.0, mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose((high - low) / 2.0, 1.959963985 * std, rtol=1e-8)
    with pytest.raises(InputError, match="noise=False"):
        model.predict_interval(new, method="conformal", noise=False)


@pytest.mark.parametrize("joint", [True, False])
def test_samples_without_noise_have_the_spread_of_the_function(model, new, joint):
    std = model.predict(new, return_latent_std=True)[1]
    draws = model.sample_y(new, 4000, joint=joint, noise=False)
    np.testing.assert_allclose(draws.std(1), std, rtol=0.06)
    near = model.sample_y(np.array([[0.5, 0.5], [0.5, 0.501]]), 400, joint=joint, noise=False)
    correlation = np.corrcoef(near)[0, 1]
    assert (correlation > 0.99) == joint


def test_joint_covariance_has_it_on_its_diagonal(model, new):
    C = model.fitted_.covariances(new, noise=False)[0]
    std = model.predict(new, return_latent_std=True)[1]
    np.testing.assert_allclose(np.sqrt(np.diag(C)), std, rtol=1e-8)
    assert np.linalg.eigvalsh(C).min() > -1e-9 * C.max()


def test_it_shrinks_with_more_rows_and_the_noise_does_not():
    new = table(40, seed=9)[0]
    few, many = (TwoStageGPRegressor(random_state=0).fit(*table(n, seed=3)[:2]) for n in (60, 400))
    function, noise = (
        [model.predict(new, **{name: True})[1].mean() for model in (few, many)]
        for name in ("return_latent_std", "return_noise_std")
    )
    assert function[1] < 0.7 * function[0]
    assert 0.6 < noise[1] / noise[0] < 1.6


@pytest.mark.parametrize("calibration", ["scale", None])
def test_the_printed_method_keeps_the_variance_of_part_2(calibration, new):
    X, y, _ = table()
    model = TwoStageGPRegressor(random_state=0, calibration=calibration).fit(X, y)
    latent = model.fitted_.moments(new)[1][:, 0]
    np.testing.assert_allclose(model.predict(new, return_latent_std=True)[1] ** 2, latent)
    C = model.fitted_.covariances(new, noise=False)[0]
    np.testing.assert_allclose(np.diag(C), latent)


def test_after_an_update_and_from_a_file(model, new, tmp_path):
    before = model.predict(new, return_latent_std=True)[1]
    model.save(tmp_path / "model")
    loaded = twostagegp.load(tmp_path / "model")
    np.testing.assert_allclose(loaded.predict(new, return_latent_std=True)[1], before, rtol=1e-9)
    loaded.update(new[:4], model.predict(new[:4]))
    assert (loaded.predict(new[:4], return_latent_std=True)[1] < before[:4]).all()


def test_a_factor_that_is_used_block_by_block_is_not_kept():
    X, y, _ = table(80)
    from twostagegp.pipeline.settings import ExactSettings, Settings

    settings = Settings(exact=ExactSettings(blocked_rows=50))
    model = TwoStageGPRegressor(random_state=0, method="exact", settings=settings).fit(X, y)
    std = model.predict(X, return_latent_std=True)[1]
    assert np.isfinite(std).all()
    ridges = model.fitted_.fits[0].mean.leading_ridges(3)
    assert not any(ridge.keeps_factor for _, ridge in ridges)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_draws_of_a_function_without_noise_stay_near_it(dtype):
    """Where rounding leaves no posterior variance, nothing is magnified."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, size=(40, 2))
    for y in (X[:, 0], X.sum(1) ** 2, 1e3 * X[:, 0] + X[:, 1] ** 2):
        model = TwoStageGPRegressor(mean=["rbf", "matern52"], dtype=dtype, random_state=0)
        model.fit(X, y)
        draws = model.sample_y(X, 200, joint=True, noise=False, random_state=0)
        spread = draws.std(-1 if draws.shape[0] == len(X) else 0)
        assert spread.max() < 0.1 * y.std()


def test_large_ridges_are_not_factorised_for_every_prediction(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, size=(200, 1))
    settings = Settings(exact=ExactSettings(blocked_rows=150))
    model = TwoStageGPRegressor(mean="rbf", variance="rbf", random_state=0, settings=settings)
    model.fit(X, np.sin(2.0 * X[:, 0]) + 0.1 * rng.normal(size=200))
    calls = []
    rebuild = ExactPosterior.rebuild_factor
    monkeypatch.setattr(
        ExactPosterior, "rebuild_factor", lambda self: (calls.append(1), rebuild(self))[1]
    )
    std = model.predict(X[:5], return_latent_std=True)[1]
    assert not calls
    assert ((std > 0.0) & (std < 0.3)).all()
