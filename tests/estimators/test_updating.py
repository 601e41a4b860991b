"""``update``: equal to dense formulas on all rows at the hyperparameters of the fit."""

import copy
import json
import math
import pickle
import warnings
from dataclasses import replace

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm
from sklearn.base import clone
from sklearn.linear_model import Ridge

from benchmarks import update_drift, update_speed
from measurements.publish import sections
from measurements.runner import run
from twostagegp import (
    ExactGPRegressor,
    GPNNRegressor,
    TwoStageGPClassifier,
    TwoStageGPRegressor,
    load,
)
from twostagegp.data.appending import append_rows
from twostagegp.data.rows import merge_rows
from twostagegp.data.scaling import prepare
from twostagegp.engines.exact import engine
from twostagegp.engines.exact.engine import ExactPosterior
from twostagegp.engines.memory import can_keep_factors, exact_bytes
from twostagegp.engines.neighbors.engine import NeighborEngine
from twostagegp.errors import (
    InputError,
    MemoryBudgetError,
    ModelFileError,
    TwoStageGPError,
    TwoStageGPWarning,
)
from twostagegp.estimators import drift
from twostagegp.kernels import NamedKernel
from twostagegp.numerics.linalg import extended_cholesky
from twostagegp.pipeline.calibration.local_scale import Situation
from twostagegp.pipeline.mean.models import ConstantMean, RidgeMean
from twostagegp.pipeline.settings import ExactSettings, Settings

RNG = np.random.default_rng(5)
N, M = 48, 14
X = RNG.uniform(-2.0, 2.0, size=(N + M, 2))
Y = np.sin(2.0 * X[:, 0]) + 0.3 * X[:, 1] + 0.2 * RNG.normal(size=N + M)
POINTS = np.vstack([RNG.uniform(-2.5, 2.5, size=(20, 2)), X[-3:], X[:2]])
WEIGHT = RNG.choice([0.5, 1.0, 2.0, 3.0], size=N + M)
GROUPS = RNG.integers(0, 8, size=N + M)


def covariance(kernel, theta, A, B):
    """A second implementation of the named kernels."""
    scaled = (A[:, None, :] - B[None, :, :]) / kernel.lengthscales(theta)
    r = np.abs(scaled).sum(2) if kernel.name == "laplacian" else np.sqrt((scaled**2).sum(2))
    forms = {
        "rbf": lambda: np.exp(-0.5 * r**2),
        "laplacian": lambda: np.exp(-r),
        "matern12": lambda: np.exp(-r),
        "matern32": lambda: (1 + math.sqrt(3) * r) * np.exp(-math.sqrt(3) * r),
        "matern52": lambda: (1 + math.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-math.sqrt(5) * r),
    }
    return math.exp(theta[-1]) * forms[kernel.name]()


def dense(kernel, parameters, Z, t, noise, points):
    """Posterior mean and latent variance, repeats as rows of their own."""
    theta = parameters[:-1]
    K = covariance(kernel, theta, Z, Z) + np.diag(noise)
    k = covariance(kernel, theta, points, Z)
    variance = math.exp(theta[-1]) - np.einsum("ij,ji->i", k, np.linalg.solve(K, k.T))
    return k @ np.linalg.solve(K, t), variance


def moments(model, X, y, weight=None, extra=0.0, target=0, points=POINTS):
    """Mean and variance of an observation by dense formulas, in units of y."""
    data, fit = model.fitted_.data[target], model.fitted_.fits[target]
    s = data.scaling
    Z, P = s.inputs(X), s.inputs(points)
    t = (y - s.y_mean) / s.y_scale
    weight = np.ones(len(y)) if weight is None else weight

    def posterior(kernel, parameters):
        noise = (math.exp(parameters[-1]) + extra / s.y_scale**2) / weight
        return dense(kernel, parameters, Z, t, noise * np.ones(len(y)), P)

    if isinstance(model, ExactGPRegressor):
        gp = fit.posterior
        mean, latent = posterior(gp.kernel, gp.parameters)
        return s.y_mean + s.y_scale * mean, s.y_scale**2 * (latent + gp.noise)
    each = []
    for part in fit.mean.models:
        if isinstance(part, RidgeMean):
            each.append(posterior(part.kernel, part.parameters)[0])
        elif isinstance(part, ConstantMean):
            each.append(np.full(len(P), weight @ t / weight.sum()))
        else:
            each.append(part.model.predict(P))
    w, each = fit.mean.weights, np.array(each)
    mean = w @ each
    second = fit.variance
    latent = posterior(second.kernel, second.posterior.parameters)[1]
    factor = np.full(len(P), fit.calibration.factor)
    if fit.calibration.local is not None:
        disagreement = np.sqrt(w @ (each - mean) ** 2)
        known = Situation(P, mean, latent + second.noise, disagreement)
        factor = fit.calibration.local.factor(known)
    noise = np.maximum(factor * second.noise, fit.noise_floor)
    return s.y_mean + s.y_scale * mean, s.y_scale**2 * (factor * latent + noise)


def three_parts(fitted):
    """The fitted state without what is known about rows outside the data."""
    targets = [
        replace(target, fit=replace(target.fit, outside=None))
        if hasattr(target.fit, "outside")
        else target
        for target in fitted.targets
    ]
    return replace(fitted, targets=tuple(targets))


def check(model, mean, variance, rtol=1e-7):
    got, _, observed = three_parts(model.fitted_).moments(POINTS)
    np.testing.assert_allclose(got[:, 0], mean, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(observed[:, 0], variance, rtol=rtol)


def same(one, other, **ask):
    """Two models give the same answers to rounding."""
    for a, b in zip(one.predict(POINTS, **ask), other.predict(POINTS, **ask), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def quiet(model, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TwoStageGPWarning)
        return model.update(*args, **options)


def two_stage(**options):
    return TwoStageGPRegressor(
        **{"kernels": ("rbf", "laplacian"), "method": "exact", "random_state": 0, **options}
    )


def single():
    return ExactGPRegressor("matern52", ard=True, random_state=0)


def near(**options):
    given = {"method": "neighbors", "kernels": ("rbf",), "n_neighbors": 15, "random_state": 0}
    return TwoStageGPRegressor(**{**given, **options})


MODELS = {
    "two stages": lambda: two_stage().fit(X[:N], Y[:N]),
    "weights": lambda: two_stage().fit(X[:N], Y[:N], sample_weight=WEIGHT[:N]),
    "groups": lambda: two_stage().fit(X[:N], Y[:N], groups=GROUPS[:N]),
    "scale": lambda: two_stage(calibration="scale", mean="matern32", variance="matern12").fit(
        X[:N], Y[:N], noise_var=0.02
    ),
    "regressor": lambda: two_stage(mean=["rbf", Ridge()]).fit(X[:N], Y[:N]),
    "single": lambda: single().fit(X[:N], Y[:N]),
    "float32": lambda: two_stage(dtype="float32", mean="rbf").fit(X[:N], Y[:N]),
    "gpnn": lambda: GPNNRegressor(n_neighbors=12, random_state=0).fit(X[:N], Y[:N]),
    "neighbors": lambda: near().fit(X[:N], Y[:N]),
    "vecchia": lambda: near(method="vecchia", mean="rbf").fit(X[:N], Y[:N]),
}


@pytest.fixture(scope="module")
def fitted():
    """A copy of a fitted model by name; each is fitted when it is first asked for."""
    known = {}

    def get(name):
        if name not in known:
            known[name] = MODELS[name]()
        return copy.deepcopy(known[name])

    return get


# --- the linear algebra ---------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 7])
def test_a_factor_grows_to_the_factor_of_the_whole(m):
    A = torch.as_tensor(np.random.default_rng(0).normal(size=(20, 25)))
    K = A @ A.T
    L = extended_cholesky(torch.linalg.cholesky(K[:-m, :-m]), K[-m:, :-m], K[-m:, -m:])
    torch.testing.assert_close(L, torch.linalg.cholesky(K), rtol=1e-10, atol=1e-12)


def test_a_matrix_that_is_not_positive_definite_has_no_grown_factor():
    one = torch.ones(1, 1, dtype=torch.float64)
    assert extended_cholesky(one, one, 0.5 * one) is None
    assert extended_cholesky(one, one, math.nan * one) is None


@pytest.mark.parametrize("repeats", [0, 1, 5])
def test_rows_grow_as_if_they_had_been_merged_together(repeats):
    rng = np.random.default_rng(repeats)
    A = rng.integers(0, 4, size=(30, 2)).astype(float)
    y, weight = rng.normal(size=30), rng.choice([0.5, 1.0, 2.0], size=30)
    B = np.vstack([A[:repeats], rng.normal(size=(4, 2)), A[:repeats]])
    y2, weight2 = rng.normal(size=len(B)), rng.choice([0.5, 1.0, 3.0], size=len(B))
    options = {"device": torch.device("cpu"), "dtype": torch.float64}
    data = prepare(A, y, ["a", "b"], weight=weight, **options)
    appended = append_rows(data, B, y2, weight2)
    s, merged = data.scaling, appended.data.merged
    whole = merge_rows(
        s.inputs(np.vstack([A, B])),
        (np.append(y, y2) - s.y_mean) / s.y_scale,
        np.append(weight, weight2),
    )
    order = np.lexsort(merged.X.T[::-1])
    for name in ("X", "t", "c", "q"):
        np.testing.assert_allclose(getattr(merged, name)[order], getattr(whole, name), atol=1e-12)
    np.testing.assert_allclose(merged.y, whole.y, atol=1e-12)
    np.testing.assert_allclose(merged.deviation, whole.deviation, atol=1e-12)
    assert len(appended.changed) == len(np.unique(A[:repeats], axis=0))
    assert appended.n_appended == 4


def test_minus_zero_repeats_zero():
    options = {"device": torch.device("cpu"), "dtype": torch.float64}
    data = prepare(np.array([[-1.0], [0.0], [1.0]]), np.arange(3.0), ["x"], **options)
    assert append_rows(data, np.array([[-0.0]]), np.ones(1), np.ones(1)).n_appended == 0


# --- equal to a model of all rows -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["two stages", "regressor", "single"])
@pytest.mark.parametrize("batches", [[1], [M], [1, 4, M - 5]])
def test_update_equals_dense_formulas_on_all_rows(fitted, name, batches):
    model, begin = fitted(name), N
    for size in batches:
        model = quiet(model, X[begin : begin + size], Y[begin : begin + size])
        begin += size
    check(model, *moments(model, X[:begin], Y[:begin]))
    report = model.fit_report_
    assert report.n_rows == begin
    assert [update["rows"] for update in report.updates] == batches


@pytest.mark.parametrize("name", ["two stages", "single"])
def test_repeated_rows_are_further_copies(fitted, name):
    model = fitted(name)
    A, y = np.vstack([X[:3], X[20:22], X[:1]]), np.arange(6.0) / 3.0
    model = quiet(quiet(model, A, y), np.vstack([A[1:2], X[N:]]), np.append(0.3, Y[N:]))
    rows = np.vstack([X[:N], A, A[1:2], X[N:]])
    check(model, *moments(model, rows, np.concatenate([Y[:N], y, [0.3], Y[N:]])))
    assert model.fit_report_.n_distinct_rows == N + M
    assert [update["repeated"] for update in model.fit_report_.updates] == [6, 1]


def test_weights_are_counts(fitted):
    model = quiet(fitted("weights"), X[N:], Y[N:], sample_weight=WEIGHT[N:])
    check(model, *moments(model, X, Y, WEIGHT / model.fitted_.data[0].weight_unit))
    twice = quiet(fitted("two stages"), X[N:], Y[N:], sample_weight=np.full(M, 2.0))
    copies = quiet(fitted("two stages"), np.vstack([X[N:]] * 2), np.append(Y[N:], Y[N:]))
    np.testing.assert_allclose(twice.predict(POINTS), copies.predict(POINTS), rtol=1e-9)
    without = quiet(
        fitted("two stages"), X[N:], Y[N:], sample_weight=np.append(0.0, np.ones(M - 1))
    )
    check(without, *moments(without, np.delete(X, N, 0), np.delete(Y, N)))


def test_groups_make_no_difference_to_predictions(fitted):
    model = quiet(fitted("groups"), X[N:], Y[N:], groups=GROUPS[N:])
    check(model, *moments(model, X, Y))
    groups = model.fitted_.data[0].merged.groups
    assert len(groups) == N + M
    assert groups[N:].min() > groups[:N].max()
    alone = quiet(fitted("groups"), np.vstack([X[N:], X[:2]]), np.append(Y[N:], Y[:2]))
    assert len(np.unique(alone.fitted_.data[0].merged.groups[N:])) == M + 2  # a group each
    check(alone, *moments(alone, np.vstack([X, X[:2]]), np.append(Y, Y[:2])))


def test_known_noise_comes_on_top(fitted):
    noise = RNG.uniform(0.0, 0.3, size=M)
    model = quiet(fitted("scale"), X[N:], Y[N:], noise_var=noise)
    check(model, *moments(model, X, Y, extra=np.append(np.full(N, 0.02), noise)))


def test_float32_is_equal_to_its_tolerance(fitted):
    model = quiet(fitted("float32"), X[N:], Y[N:])
    assert model.fitted_.fits[0].variance.posterior.L.dtype == torch.float32
    check(model, *moments(model, X, Y), rtol=2e-3)


@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32", "matern52", "rq", "laplacian"])
def test_every_kernel_grows_to_a_posterior_of_all_rows(name):
    options = {"device": torch.device("cpu"), "dtype": torch.float64}
    data = prepare(X[:N], Y[:N], ["a", "b"], **options)
    kernel = NamedKernel(name, 2, ard=True)
    parameters = np.append(kernel.start(), math.log(0.03))
    appended = append_rows(data, np.vstack([X[N:], X[7:8]]), np.append(Y[N:], 0.5), np.ones(M + 1))
    grown = ExactPosterior(kernel, parameters, data.rows).extended(
        appended.data.rows, appended.changed_rows
    )
    whole = ExactPosterior(kernel, parameters, appended.data.rows)
    torch.testing.assert_close(grown.L, whole.L, rtol=1e-9, atol=1e-11)
    P = torch.as_tensor(data.scaling.inputs(POINTS))
    for ask in ("mean", "variance", "covariance"):
        one, other = getattr(grown, ask)(P), getattr(whole, ask)(P)
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
    held, expected = grown.heldout(), whole.heldout()
    torch.testing.assert_close(held.residual, expected.residual, rtol=1e-8, atol=1e-10)


def test_a_factor_with_jitter_keeps_it_and_one_that_cannot_grow_is_made_anew():
    options = {"device": torch.device("cpu"), "dtype": torch.float64}
    A = np.linspace(0.0, 1.0, 40)[:, None]
    data = prepare(A, A[:, 0], ["a"], **options)
    parameters = np.array([2.0, 0.0, math.log(1e-18)])
    posterior = ExactPosterior(NamedKernel("rbf", 1), parameters, data.rows)
    assert posterior.jitter > 0.0
    appended = append_rows(data, A + 0.01, A[:, 0] + 0.01, np.ones(40))
    grown = posterior.extended(appended.data.rows, appended.changed_rows)
    assert grown.jitter > 0.0
    P = torch.as_tensor(data.scaling.inputs(A))
    torch.testing.assert_close(grown.mean(P), P[:, 0], rtol=1e-2, atol=1e-2)


def test_a_gpytorch_kernel_grows():
    kernel = gpytorch.kernels.RBFKernel() + gpytorch.kernels.LinearKernel()
    model = ExactGPRegressor(kernel, random_state=0).fit(X[:N], Y[:N])
    grown = quiet(copy.deepcopy(model), X[N:], Y[N:])
    gp = grown.gp_
    whole = ExactPosterior(gp.kernel, gp.parameters, gp.rows)
    P = torch.as_tensor(model.fitted_.data[0].scaling.inputs(POINTS))
    torch.testing.assert_close(gp.mean(P), whole.mean(P), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(gp.variance(P), whole.variance(P), rtol=1e-7, atol=1e-9)


def test_the_order_of_updates_makes_no_difference(fitted):
    A, y = np.vstack([X[N:], X[:2]]), np.append(Y[N:], [1.0, 2.0])
    one = quiet(fitted("two stages"), A, y)
    other = fitted("two stages")
    for part in (slice(9, None), slice(2, 9), slice(0, 2)):
        other = quiet(other, A[part][::-1], y[part][::-1])
    for ask in ("return_std", "return_latent_std", "return_cov"):
        same(one, other, **{ask: True})


def test_the_second_update_does_not_factorise_all_rows(fitted, monkeypatch):
    sizes, cholesky = [], torch.linalg.cholesky_ex

    def counted(K):
        sizes.append(len(K))
        return cholesky(K)

    model = quiet(fitted("two stages"), X[N:-1], Y[N:-1])
    monkeypatch.setattr(torch.linalg, "cholesky_ex", counted)
    quiet(model, X[-1:], Y[-1:])
    ridges = sum(isinstance(part, RidgeMean) for part in model.mean_.models)
    assert sizes == [1] * (ridges + 1)


def test_several_targets_are_updated_each():
    two = np.column_stack([Y, X[:, 0] ** 2 - Y])
    model = two_stage(mean="rbf").fit(X[:N], two[:N])
    model = quiet(model, X[N:], two[N:])
    assert [report.n_rows for report in model.fit_report_] == [N + M, N + M]
    got, _, observed = three_parts(model.fitted_).moments(POINTS)
    for j in range(2):
        mean, variance = moments(model, X, two[:, j], target=j)
        np.testing.assert_allclose(got[:, j], mean, rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(observed[:, j], variance, rtol=1e-7)
    with pytest.raises(InputError, match=r"y has shape \(14,\), expected \(m, 2\)"):
        model.update(X[N:], Y[N:])


def test_a_frame_follows_the_rules_of_the_fit():
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "kind": np.where(X[:, 0] > 0, "up", "down")})
    frame.loc[3, "b"] = np.nan
    model = two_stage(mean="rbf").fit(frame[:N], Y[:N])
    points = frame[:10]
    before = model.predict(points)
    numbers = model.columns_.encode(frame)
    odd = frame[N:].assign(kind="sideways")
    with pytest.warns(TwoStageGPWarning, match="sideways"):
        copy.deepcopy(model).update(odd, Y[N:])
    model = quiet(model, frame[N:], Y[N:])
    mean, _ = moments(model, numbers, Y, points=model.columns_.encode(points))
    np.testing.assert_allclose(model.predict(points), mean, rtol=1e-7, atol=1e-7)
    assert not np.allclose(before, mean)
    with pytest.raises(ValueError, match="feature names"):
        model.update(frame[N:].rename(columns={"a": "z"}), Y[N:])


# --- neighbours -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["neighbors", "vecchia", "gpnn"])
def test_neighbours_equal_an_engine_of_all_rows(fitted, name):
    model = fitted(name)
    A, y = np.vstack([X[N:], X[4:6]]), np.append(Y[N:], [0.0, 1.0])
    model = quiet(quiet(model, A[:5], y[:5]), A[5:], y[5:])
    data, fit = model.fitted_.data[0], model.fitted_.fits[0]
    P = torch.as_tensor(data.scaling.inputs(POINTS))
    parts = [fit.posterior] if name == "gpnn" else [m.posterior for m in fit.mean.models[:1]]
    parts += [] if name == "gpnn" else [fit.variance.posterior]
    if name == "gpnn":
        P = fit.whitening(P)
        torch.testing.assert_close(fit.whitening(data.rows.X), fit.posterior.rows.X)
    assert len(data.rows) == N + M
    assert data.n_rows == N + M + 2
    for gp in parts:
        rows = gp.rows
        engine = NeighborEngine(rows, gp.engine.n_neighbors, gp.engine.noise_floor)
        whole = engine.condition(gp.kernel, gp.parameters)
        torch.testing.assert_close(gp.mean(P), whole.mean(P), rtol=0.0, atol=0.0)
        torch.testing.assert_close(gp.variance(P), whole.variance(P), rtol=0.0, atol=0.0)
        # And dense formulas from the nearest rows of one point.
        k, point = gp.engine.n_neighbors, P[:1].numpy()
        theta = gp.parameters[:-1]
        gap = ((rows.X.numpy() - point) / gp.kernel.lengthscales(theta)) ** 2
        near = np.argsort(gap.sum(1), kind="stable")[:k]
        noise = gp.noise / rows.c.numpy()[near]
        mean, variance = dense(
            gp.kernel, gp.parameters, rows.X.numpy()[near], rows.t.numpy()[near], noise, point
        )
        np.testing.assert_allclose(gp.mean(P[:1]).numpy(), mean, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(gp.variance(P[:1]).numpy(), variance, rtol=1e-6, atol=1e-9)


def test_parts_that_shared_an_index_share_the_new_one(fitted):
    model = quiet(fitted("neighbors"), X[N:], Y[N:])
    fit = model.fitted_.fits[0]
    stores = {
        id(part.posterior.engine.store) for part in fit.mean.models if hasattr(part, "kernel")
    }
    assert stores == {id(fit.variance.posterior.engine.store)}
    assert all(part.posterior.rows is model.fitted_.data[0].rows for part in fit.mean.models[:1])


@pytest.mark.parametrize("name", ["two stages", "single", "gpnn", "neighbors"])
def test_a_row_that_was_added_pulls_its_own_prediction(fitted, name):
    model = fitted(name)
    point = np.array([[1.9, 1.9]])
    mean, std = model.predict(point, return_std=True)
    new = quiet(model, point, mean + 3.0 * std)
    after, std_after = new.predict(point, return_std=True)
    assert mean < after
    assert std_after <= std * (1 + 1e-9)


# --- what can go wrong ----------------------------------------------------------------------------


def bad_updates():
    hole = X[N:].copy()
    hole[2, 1] = np.nan
    lost = Y[N:].copy()
    lost[3] = np.inf
    return {
        "NaN in X": ((hole, Y[N:]), {}, "X contains NaN"),
        "infinite y": ((X[N:], lost), {}, "y contains infinity"),
        "huge y": ((X[N:], 1e150 * Y[N:]), {}, "Rescale it"),
        "columns": ((X[N:, :1], Y[N:]), {}, "1 features"),
        "lengths": ((X[N:], Y[N:-1]), {}, "inconsistent numbers of samples"),
        "shape of y": ((X[N:], Y[N:, None]), {}, r"expected \(m,\)"),
        "weight": ((X[N:], Y[N:]), {"sample_weight": -np.ones(M)}, "must not be negative"),
        "no weight": ((X[N:], Y[N:]), {"sample_weight": np.zeros(M)}, "no rows to add"),
        "groups": ((X[N:], Y[N:]), {"groups": [1, 2]}, "2 labels for 14 rows"),
        "nothing": ((X[:0], Y[:0]), {}, "0 sample"),
    }


@pytest.mark.parametrize("what", list(bad_updates()))
def test_a_failing_update_leaves_the_model_as_it_was(fitted, what):
    args, options, message = bad_updates()[what]
    model = quiet(fitted("two stages"), X[N : N + 2], Y[N : N + 2])
    before, report = model.predict(POINTS, return_cov=True), model.fit_report_.to_dict()
    with pytest.raises(ValueError, match=message):
        model.update(*args, **options)
    for a, b in zip(before, model.predict(POINTS, return_cov=True), strict=True):
        np.testing.assert_array_equal(a, b)
    assert model.fit_report_.to_dict() == report


def test_a_failure_in_the_last_target_leaves_the_first_as_it_was(monkeypatch):
    model = two_stage(mean="rbf").fit(X[:N], np.column_stack([Y, -Y])[:N])
    before = model.predict(POINTS, return_std=True)
    extended = type(model.fitted_.fits[0]).extended

    def failing(fit, appended, residuals):
        if fit is model.fitted_.fits[1]:
            raise TwoStageGPError("out of luck")
        return extended(fit, appended, residuals)

    monkeypatch.setattr(type(model.fitted_.fits[0]), "extended", failing)
    with pytest.raises(TwoStageGPError, match="luck"):
        model.update(X[N:], np.column_stack([Y, -Y])[N:])
    for a, b in zip(before, model.predict(POINTS, return_std=True), strict=True):
        np.testing.assert_array_equal(a, b)


def limit_memory(model, memory_bytes):
    """Let the fitted model take so much memory; what the fit itself took is not looked at."""
    posterior = model.variance_.posterior
    posterior.settings = replace(posterior.settings, memory_bytes=memory_bytes)


def kept_factors(model):
    """Whether the factor of each ridge of the mean is kept."""
    return [part.keeps_factor for part in model.mean_.models if isinstance(part, RidgeMean)]


def test_memory_is_asked_for_before_it_is_taken(fitted):
    model = fitted("two stages")
    before = model.predict(POINTS)
    limit_memory(model, 100_000)
    with pytest.raises(MemoryBudgetError, match="an update to 62 distinct rows needs about"):
        model.update(X[N:], Y[N:])
    np.testing.assert_array_equal(before, model.predict(POINTS))
    # Room for one factor at a time: none is kept but the variance's.
    limit_memory(model, 5 * 8 * (N + M) ** 2)
    model = quiet(model, X[N:], Y[N:])
    assert not any(kept_factors(model))
    check(model, *moments(model, X, Y))


def test_an_update_of_many_rows_is_made_anew_where_it_cannot_grow(monkeypatch):
    """Above blocked_rows one matrix does, where extending the factor would hold five."""
    exact = ExactSettings(blocked_rows=20, block_rows=8, panel_entries=64)
    room = exact_bytes(N + M, torch.device("cpu"), settings=exact)
    assert room < 5 * 8 * (N + M) ** 2
    settings = Settings(exact=replace(exact, memory_bytes=room))
    model = two_stage(settings=settings).fit(X[:N], Y[:N])
    expected = moments(model, X, Y)
    grown = []
    # A patch: a factor that was extended and one that was made anew are equal to rounding.
    monkeypatch.setattr(engine, "extended_cholesky", lambda *given: grown.append(given))
    model = quiet(model, X[N:], Y[N:])
    assert grown == []
    check(model, *expected)


def test_a_refused_update_says_how_many_rows_can_be_added():
    cpu, n = torch.device("cpu"), 100
    room = ExactSettings(memory_bytes=5 * 8 * n * n)
    with pytest.raises(MemoryBudgetError, match=r"100 distinct rows, .* has 90. Add at most 10 "):
        can_keep_factors(n + 1, 1, cpu, before=90, settings=room)
    with pytest.raises(MemoryBudgetError, match=r"100 distinct rows, .* has 120. Free memory, or"):
        can_keep_factors(n + 21, 1, cpu, before=120, settings=room)


def test_a_constant_model_has_nothing_to_keep():
    for model in (two_stage(), single(), GPNNRegressor(random_state=0)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TwoStageGPWarning)
            model.fit(X[:N], np.ones(N))
        with pytest.raises(InputError, match="Call fit with all rows"):
            model.update(X[N:], Y[N:])


def test_a_classifier_has_no_update():
    assert hasattr(two_stage(), "update")
    assert not hasattr(TwoStageGPClassifier(), "update")


def test_an_unfitted_model_is_refused():
    with pytest.raises(ValueError, match="not fitted"):
        two_stage().update(X, Y)


# --- copies and files -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["two stages", "groups", "single", "gpnn", "neighbors"])
@pytest.mark.parametrize("factors", [False, True])
def test_an_updated_model_can_be_saved_loaded_and_updated(fitted, name, factors, tmp_path):
    model = quiet(fitted(name), np.vstack([X[N:-3], X[:2]]), np.append(Y[N:-3], [0.0, 0.5]))
    model.save(tmp_path / "model", include_factors=factors)
    again = load(tmp_path / "model")
    assert again.fit_report_.updates == model.fit_report_.updates
    same(model, again, return_std=True)
    same(*(quiet(each, X[-3:], Y[-3:]) for each in (model, again)), return_std=True)


@pytest.mark.parametrize("wrong", [{"rows": 2}, {"rows": 2, "when": "", "log_evidence": [0.0]}])
def test_a_file_with_incomplete_updates_is_refused(fitted, wrong, tmp_path):
    model = fitted("single")
    model.fit_report_.updates = [wrong]
    model.save(tmp_path / "model")
    with pytest.raises(ModelFileError, match="an update without its figures"):
        load(tmp_path / "model")


@pytest.mark.parametrize("name", ["two stages", "neighbors"])
def test_pickles_and_clones(fitted, name):
    model = quiet(fitted(name), X[N:-2], Y[N:-2])
    again = pickle.loads(pickle.dumps(model))
    same(*(quiet(each, X[-2:], Y[-2:]) for each in (model, again)), return_std=True)
    assert not hasattr(clone(model), "fit_report_")


def test_a_pickle_has_no_factor_of_the_mean(fitted):
    model = quiet(fitted("two stages"), X[N:], Y[N:])
    assert all(kept_factors(model))
    assert not any(kept_factors(pickle.loads(pickle.dumps(model))))


# --- when a refit is due --------------------------------------------------------------------------


def test_growth_by_more_than_half_is_told_once(fitted):
    model = fitted("single")
    rng = np.random.default_rng(1)
    A = rng.uniform(-2.0, 2.0, size=(N, 2))
    y = model.sample_y(A, random_state=1, joint=False)[:, 0]
    half = N // 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.update(A[:half], y[:half])
    assert model.fit_report_.refit_due == ""
    assert "updates      1 since the fit with 24 rows" in str(model.fit_report_)
    with pytest.warns(
        TwoStageGPWarning, match="A refit is due: 25 rows were added to the 48 rows of the fit"
    ) as told:
        model.update(A[half : half + 1], y[half : half + 1])
    assert [each.filename for each in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.update(A[half + 1 :], y[half + 1 :])
    assert "refit due    25 rows were added" in str(model.fit_report_)
    assert "refit_due" in model.fit_report_.to_dict()
    model.fit(X, Y)
    assert (model.fit_report_.updates, model.fit_report_.refit_due) == ([], "")


def test_rows_that_do_not_fit_are_told(fitted):
    model = fitted("two stages")
    with pytest.warns(TwoStageGPWarning, match="do not fit what was predicted"):
        model.update(X[N:], Y[N:] + 1.0)
    assert model.fit_report_.updates[-1]["evidence"] > 100.0
    assert model.fit_report_.updates[-1]["z_mean"] > 1.0


def test_a_warning_made_an_error_leaves_the_model_as_it_was(fitted):
    model = fitted("two stages")
    before = model.predict(POINTS, return_std=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TwoStageGPWarning):
            model.update(X[N:], Y[N:] + 1.0)
    for a, b in zip(before, model.predict(POINTS, return_std=True), strict=True):
        np.testing.assert_array_equal(a, b)
    assert model.fit_report_.updates == []


def test_the_ratios_are_those_of_normal_densities():
    z = np.array([-2.0, 0.1, 1.7])
    for j, (mean, variance, edge, edge_variance) in enumerate(drift.BAND):
        expected = norm.logpdf(z, mean, variance**0.5) - norm.logpdf(z, edge, edge_variance**0.5)
        np.testing.assert_allclose(drift.log_ratios(z)[:, j], expected, atol=1e-12)


def test_inside_of_the_band_the_ratios_are_expected_below_one():
    grid = np.linspace(-12.0, 12.0, 4801)
    ratios = np.exp(drift.log_ratios(np.clip(grid, -drift.LARGEST, drift.LARGEST)))
    for mean in (-0.25, -0.1, 0.0, 0.25):
        for square in (0.8 + mean**2, 1.0, 1.25):
            density = norm.pdf(grid, mean, math.sqrt(square - mean**2))
            expected = (ratios * density[:, None]).sum(axis=0) * (grid[1] - grid[0])
            assert expected.max() < 1.0 + 1e-3


def test_evidence_is_a_sum_over_all_beginnings():
    rng = np.random.default_rng(0)
    batches = [rng.normal(size=size) for size in (3, 1, 5, 2)]
    log_S, log_M = drift.start_evidence(), 0.0
    for number, z in enumerate(batches, start=1):
        log_S, log_M = drift.evidence(log_S, number, z)
    products = np.array([np.exp(drift.log_ratios(z).sum(0)) for z in batches])
    begun = sum(
        products[b:].prod(0) / ((b + 1) * (b + 2)) for b in range(len(batches))
    )  # fmt: skip
    np.testing.assert_allclose(np.exp(log_S), begun)
    np.testing.assert_allclose(math.exp(log_M), begun.mean() + 1.0 / (len(batches) + 1))


def test_evidence_against_a_model_that_holds_reaches_its_limit_hardly_ever():
    rng = np.random.default_rng(0)
    for spread, centre in ((1.0, 0.0), (1.1, 0.0), (1.0, 0.2)):
        alarms = 0
        for _ in range(40):
            log_S = drift.start_evidence()
            for number in range(1, 26):
                z = np.clip(centre + spread * rng.normal(size=rng.integers(1, 12)), -3, 3)
                log_S, log_M = drift.evidence(log_S, number, z)
                if log_M >= -math.log(drift.LEVEL):
                    alarms += 1
                    break
        assert alarms <= 2


def test_a_group_is_evidence_of_one_row():
    z = np.full(20, 2.5)
    alone = drift.evidence(drift.start_evidence(), 1, z)[1]
    together = drift.evidence(drift.start_evidence(), 1, z, np.zeros(20, dtype=np.int64))[1]
    one = drift.evidence(drift.start_evidence(), 1, z[:1])[1]
    assert alone > 4.6 > together
    assert together == pytest.approx(one)


# --- benchmarks -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_benchmark_of_speed_writes_its_tables(tmp_path):
    assert run(update_speed.MEASUREMENT, ["--quick", "--results", str(tmp_path)]) == 0
    page = (tmp_path / "update_speed.md").read_text()
    for title in ("Updates of exact models", "Updates of neighbour models", "The neighbour index"):
        assert title in sections(page)
    stored = (tmp_path / "update_speed.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in stored]
    assert len(lines) == 9
    assert all(line.get("difference", 0.0) < 1e-6 for line in lines)


def test_the_benchmark_of_alarms_has_every_stream(tmp_path, capsys):
    sizes = ["--seeds", "0", "--rows", "20", "--batches", "5,10", "--results", str(tmp_path)]
    assert run(update_drift.MEASUREMENT, sizes) == 0
    assert len((tmp_path / "update_drift.jsonl").read_text().splitlines()) == 16
    assert "noise × 2" in capsys.readouterr().out
