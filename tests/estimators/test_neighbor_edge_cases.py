"""The method for large tables on tables that break regressors."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from neighbor_fits import NOISE, SHORT_TREES, is_sane, neighbors, ridge, table, truth
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression

from twostagegp import TwoStageGPRegressor, TwoStageGPWarning
from twostagegp.engines.neighbors.engine import NeighborPosterior
from twostagegp.errors import NotFittableError, NumericalError
from twostagegp.pipeline.mean import build
from twostagegp.pipeline.mean.models import RidgeMean
from twostagegp.pipeline.settings import OutsideSettings

#: The three parts alone, also outside the data.
NOT_OUTSIDE = replace(SHORT_TREES, outside=OutsideSettings(members=0))


def test_repeated_rows():
    X, y = table(150)
    X, y = np.repeat(X, 4, axis=0), np.repeat(truth(X), 4)
    y = y + NOISE * np.random.default_rng(1).normal(size=600)
    model = neighbors().fit(X, y)
    assert model.fit_report_.n_distinct_rows == 150
    assert model.mean_.heldout_residuals.shape == (600,)
    std = model.predict(X[::4], return_std=True)[1]
    assert np.median(std) == pytest.approx(NOISE, rel=0.3)


def test_exact_copies():
    X, y = table(50)
    model = neighbors().fit(np.repeat(X, 3, axis=0), np.repeat(y, 3))
    assert is_sane(model, np.vstack([X, X + 0.1]))


@pytest.mark.parametrize("gap", [1e-12, 1e-7])
def test_nearly_equal_rows(gap):
    X, y = table(60)
    model = neighbors().fit(np.vstack([X, X + gap]), np.append(y, -y))
    assert is_sane(model, np.vstack([X, X + 0.1]))


def test_constant_columns_change_nothing():
    X, y = table(80)
    wide = np.insert(X, 1, 4.2, axis=1)
    one, other = neighbors().fit(X, y), neighbors().fit(wide, y)
    for a, b in zip(
        one.predict(X, return_std=True), other.predict(wide, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert other.fit_report_.constant_columns == ["x1"]
    assert other.relevance_["x1"] == 0.0


@pytest.mark.parametrize("k", [1, 2, 10_000])
def test_any_number_of_neighbours(k):
    X, y = table(120)
    model = neighbors(n_neighbors=k).fit(X, y)
    assert is_sane(model, np.vstack([X, X + 0.1, X + 100.0]))
    assert model.score(*table(500, seed=9)) > 0.7


def test_more_neighbours_than_rows_give_the_exact_method():
    X, y = table(80)
    options = {"mean": "rbf", "penalty": 0.1, "variance": "rbf", "ard": False}
    near = TwoStageGPRegressor("neighbors", n_neighbors=999, **options).fit(X, y)
    exact = TwoStageGPRegressor("exact", **options).fit(X, y)
    np.testing.assert_allclose(near.predict(X + 0.1), exact.predict(X + 0.1), atol=1e-9)
    np.testing.assert_allclose(
        near.mean_.heldout_residuals, exact.mean_.heldout_residuals, atol=1e-9
    )


def test_a_cluster_far_away():
    X, y = table(400)
    X[:40] += 1e6
    model = neighbors(ard="both").fit(X, y)
    assert is_sane(model, np.vstack([X, X + 0.1, X / 2]))
    # Both ends of the table have rows of their own; in between there is nothing.
    std = model.predict(np.vstack([X[:1], X[-1:], [[3e5, 3e5]]]), return_std=True)[1]
    assert std[2] >= 0.999 * std[:2].max()


@pytest.mark.parametrize("name", ["rbf", "matern12", "laplacian"])
def test_far_outside_the_prior_of_the_variance_and_the_rest_of_the_mean_return(name):
    X, y = table(300)
    model = neighbors(mean=[name, LinearRegression(), HistGradientBoostingRegressor(max_iter=5)])
    model.set_params(variance=name, settings=NOT_OUTSIDE).fit(X, y)
    scaling = model.fitted_.data[0].scaling
    outputscale = math.exp(model.variance_.posterior.parameters[-2])
    factor = model.calibration_.factor
    largest = model.predict(X, return_latent_std=True)[1].max()
    for place in (1e4, 1e9, 1e200, -1e300):
        far = np.full((1, 2), place)
        mean, latent = model.predict(far, return_latent_std=True)
        prior = scaling.y_scale * math.sqrt(factor * outputscale)
        assert latent[0] == pytest.approx(prior, rel=1e-9)
        Z = torch.as_tensor(scaling.inputs(far))
        rest = [
            weight * float(part.predict(Z))
            for weight, part in zip(model.mean_.weights, model.mean_.models, strict=True)
            if not isinstance(part, RidgeMean)
        ]
        assert len(rest) == 3
        assert mean[0] == pytest.approx(scaling.y_mean + scaling.y_scale * sum(rest), rel=1e-9)
        assert latent[0] >= largest * (1 - 1e-9)


def test_far_outside_the_mean_is_finite_and_uncertain():
    X, y = table(300)
    model = neighbors(mean=["rbf", LinearRegression(), HistGradientBoostingRegressor(max_iter=5)])
    off = neighbors(mean=model.mean, settings=NOT_OUTSIDE).fit(X, y)
    model.fit(X, y)
    for place in (1e4, 1e9, 1e200, -1e300):
        far = np.full((1, 2), place)
        mean, latent = model.predict(far, return_latent_std=True)
        assert np.isfinite(mean).all()
        assert latent[0] > off.predict(far, return_latent_std=True)[1][0]
        assert model.predict(far, return_support=True)[1][0] == pytest.approx(0.0, abs=1e-9)


def test_a_ridge_alone_returns_to_the_mean_far_outside():
    X, y = table(200)
    model = ridge(settings=NOT_OUTSIDE).fit(X, y)
    assert model.predict([[1e5, -1e5]])[0] == pytest.approx(y.mean())


@pytest.mark.parametrize("n", [3, 4, 7])
@pytest.mark.parametrize("method", ["neighbors", "vecchia"])
def test_a_handful_of_rows(method, n):
    X, y = table(n)
    assert is_sane(neighbors(method=method).fit(X, y), np.vstack([X, X + 0.1, X + 1e3]))


@pytest.mark.parametrize(
    ("X", "y", "word"),
    [
        (table(30)[0], np.full(30, 7.0), "constant"),
        (np.ones((30, 3)), np.arange(30.0), "No input column"),
        (np.array([[0.0], [1.0], [1.0]]), np.array([1.0, 2.0, 4.0]), "Fewer than three"),
        (np.array([[0.0], [1.0]]), np.array([1.0, 2.0]), "Fewer than three"),
    ],
    ids=["constant target", "no columns", "two distinct rows", "two rows"],
)
@pytest.mark.parametrize("method", ["neighbors", "vecchia"])
def test_too_little_to_learn_from_gives_constant_parts(method, X, y, word):
    model = neighbors(method=method)
    with pytest.warns(TwoStageGPWarning, match=word):
        model.fit(X, y)
    assert model.mean_.label == model.variance_.label == "constant"
    assert model.fit_report_.method == method
    np.testing.assert_allclose(model.predict(X), y.mean())
    assert is_sane(model, np.asarray(X) + 10.0)


def test_a_group_with_all_rows_but_one():
    X, y = table(60)
    model = neighbors().fit(X, y, groups=np.arange(60) == 7)
    assert is_sane(model, X)


def test_a_regressor_that_takes_no_weights_is_said(witness):
    X, y = table(60)
    with pytest.warns(TwoStageGPWarning, match="Witness takes no sample_weight"):
        ridge(mean=witness).fit(X, y, sample_weight=1.0 + np.arange(60) % 2)


def test_one_kernel_that_fails_does_not_end_the_fit(monkeypatch):
    original = build.tune_penalty

    def failing(engine, candidate, *args):
        if candidate.kernel.name == "rbf":
            raise NumericalError("made to fail")
        original(engine, candidate, *args)

    monkeypatch.setattr(build, "tune_penalty", failing)
    model = neighbors(kernels=("rbf", "matern32")).fit(*table(100))
    failures = {row["kernel"]: row["failure"] for row in model.search_ if row["stage"] == "mean"}
    assert failures["rbf/loo"] == "made to fail"


def failing_at(monkeypatch, *penalties):
    """Held-out predictions that fail at some penalties (all, where none is given)."""
    heldout = NeighborPosterior.heldout

    def failing(self, *args):
        if not penalties or np.isclose(self.noise, penalties).any():
            raise NumericalError(f"made to fail at {self.noise:.0e}")
        return heldout(self, *args)

    monkeypatch.setattr(NeighborPosterior, "heldout", failing)


@pytest.mark.parametrize("method", ["neighbors", "vecchia"])
def test_one_penalty_that_fails_does_not_end_the_fit(method, monkeypatch):
    X, y = table(100)
    expected = ridge(method=method, penalty=(1e-2, 10.0), variance_objective="nll").fit(X, y)
    failing_at(monkeypatch, 1e-1, 1e-4)
    grid = (1e-1, 1e-2, 1e-4, 10.0)
    model = ridge(method=method, penalty=grid, variance_objective="nll").fit(X, y)
    np.testing.assert_array_equal(model.predict(X), expected.predict(X))
    (row,) = [row for row in model.search_ if row["stage"] == "mean"]
    assert row["failure"] == (
        "rbf with penalty 0.1: made to fail at 1e-01; "
        "rbf with penalty 0.0001: made to fail at 1e-04"
    )
    assert (row["weight"], row["noise_variance"]) == (1.0, pytest.approx(1e-2))


def test_one_kernel_without_a_penalty_that_works_does_not_end_the_fit(monkeypatch):
    heldout = NeighborPosterior.heldout

    def failing(self, *args):
        if self.kernel.name == "rbf":
            raise NumericalError("made to fail")
        return heldout(self, *args)

    monkeypatch.setattr(NeighborPosterior, "heldout", failing)
    model = neighbors(kernels=("rbf", "matern32"), variance="matern32")
    model.set_params(mean="search", penalty=(1e-2, 1e-1)).fit(*table(100))
    assert model.mean_.label == "matern32/ridge"
    rows = {row["kernel"]: row for row in model.search_ if row["stage"] == "mean"}
    assert rows["rbf/ridge"]["score"] == math.inf
    assert rows["rbf/ridge"]["failure"].count("made to fail") == 2
    assert rows["matern32/ridge"]["failure"] == ""


def test_penalties_of_which_none_works_are_all_named(monkeypatch):
    failing_at(monkeypatch)
    with pytest.raises(NotFittableError) as caught:
        neighbors(mean="search", kernels=("rbf", "rq"), penalty=(1e-2, 1e-1)).fit(*table(60))
    for name in ("rbf", "rq"):
        assert f"{name} with penalty 0.01: made to fail at 1e-02" in str(caught.value)
        assert f"{name} with penalty 0.1: made to fail at 1e-01" in str(caught.value)


def test_prediction_within_inference_mode():
    X, y = table(100)
    model = ridge().fit(X, y)
    with torch.inference_mode():
        mean = model.predict(X)
    np.testing.assert_array_equal(mean, model.predict(X))
