"""The local scale of tensors against that of arrays; on the CPU, in place of a GPU."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from twostagegp import TwoStageGPRegressor
from twostagegp.pipeline.calibration.local_scale import (
    Cases,
    Combination,
    LocalScale,
    Situation,
    scale_members,
)
from twostagegp.pipeline.mean import crossfit
from twostagegp.pipeline.settings import LocalScaleSettings

CPU = torch.device("cpu")
NAMES = ("X", "mean", "variance", "disagreement")


def features(n, seed=0, constant=False):
    rng = np.random.default_rng(seed)
    disagreement = np.where(np.arange(n) < 5, 0.0, rng.exponential(size=n))
    mean = np.zeros(n) if constant else rng.normal(size=n)
    return Situation(rng.normal(size=(n, 2)), mean, rng.exponential(size=n) + 0.1, disagreement)


def as_tensors(situation):
    return replace(situation, **{name: torch.as_tensor(vars(situation)[name]) for name in NAMES})


def local_scale(uses_mean=True, constant=False):
    """A local scale with two ridges and trees; with ``constant``, one feature is constant."""
    n, rng = 160, np.random.default_rng(0)
    where = replace(features(n, constant=constant), uses_mean=uses_mean)
    z, rows = np.exp(where.X[:, 0]) * rng.normal(size=n), np.arange(n)
    cases = Cases.of(z, np.ones(n), rows, rows % 5, None, 1.0, rng)
    members = scale_members(where, z, cases, None, 0, rng, LocalScaleSettings(tree_rows=150), CPU)
    assert len(members) == 3
    combination = Combination(np.array([0.5, 0.6, 0.7]), 0.1, 0.2)
    return LocalScale(members, combination, np.ones(n), 2.0, 0.5, uses_mean)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("uses_mean", [True, False])
def test_factors_of_tensors_are_those_of_arrays(uses_mean, constant):
    local, new = local_scale(uses_mean, constant), features(300, seed=1)
    expected = local.factor(new)
    assert isinstance(expected, np.ndarray)
    assert np.ptp(expected) > 0.5
    assert (new.log_variance > local.largest).any()
    found = local.factor(as_tensors(new))
    assert isinstance(found, torch.Tensor)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_every_member_of_tensors_is_that_of_arrays(monkeypatch):
    local, new = local_scale(), features(300, seed=1)
    expected = [member.predict(new) for member in local.members]
    monkeypatch.setattr(crossfit, "predict_with", None)  # scikit-learn
    for member, right in zip(local.members, expected, strict=True):
        np.testing.assert_allclose(member.predict(as_tensors(new)), right, rtol=1e-12, atol=1e-12)


def test_without_members_and_far_away():
    few = LocalScale([], Combination(np.zeros(0), 0.0, 0.3), np.ones(3), 2.0, 0.5, True)
    far = Situation(np.full((3, 2), 1e6), np.full(3, 1e9), np.array([0.0, 1.0, 1e12]), np.zeros(3))
    for local in (few, local_scale()):
        found = local.factor(as_tensors(far))
        np.testing.assert_allclose(found, local.factor(far), rtol=1e-12)


def test_a_feature_that_is_missing_gives_the_numbers_of_arrays():
    local, new = local_scale(), features(40, seed=1)
    new.mean[7] = np.nan
    np.testing.assert_allclose(local.factor(as_tensors(new)), local.factor(new), rtol=1e-12)


def test_a_ridge_is_moved_once_and_pickles_do_not_contain_the_copy():
    ridge = local_scale().members[0]
    other = torch.device("cpu", 0)  # not equal to "cpu", so that it counts as another device
    size = len(pickle.dumps(ridge))
    moved = ridge.posterior_on(other)
    assert ridge.posterior_on(other) is moved
    assert ridge.posterior_on(CPU) is ridge.posterior
    assert moved is not ridge.posterior
    Z = torch.randn(20, 3, dtype=torch.float64)
    assert torch.equal(moved.mean(Z), ridge.posterior.mean(Z))
    assert len(pickle.dumps(ridge)) == size


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_factors_of_a_model_are_those_of_its_tensors(dtype):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    y = np.sin(X[:, 0]) + np.exp(X[:, 1]) * 0.2 * rng.normal(size=200)
    options = {"mean": "matern12", "variance": "matern12", "ard": False, "random_state": 0}
    model = TwoStageGPRegressor(dtype=dtype, **options).fit(X, y)
    (target,) = model.fitted_.targets
    fit, Z = target.fit, target.standardized(rng.normal(size=(50, 2)))
    mean, disagreement = fit.mean.predict_with_disagreement(Z)
    latent = fit.variance.latent(Z)
    given = (Z, mean, latent + fit.variance.noise, disagreement)
    factors = fit.calibration.local.factor(Situation(*(values.double() for values in given)))
    assert fit.calibration.local.members
    found = factors.to(Z) * latent
    assert found.dtype == getattr(torch, dtype)
    torch.testing.assert_close(
        found, fit.moments(Z)[1], rtol=1e-12 if dtype == "float64" else 1e-6, atol=0.0
    )
