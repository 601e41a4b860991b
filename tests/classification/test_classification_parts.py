"""The parts of a classifier against brute force."""

import math

import gpytorch
import numpy as np
import pytest
import torch
from scipy.optimize import approx_fprime
from scipy.special import expit, log_softmax, softmax

from twostagegp.classification.calibration import LatentScale, choose_scale, losses_of
from twostagegp.classification.dirichlet import Dirichlet, soft_labels
from twostagegp.classification.latents import Latents, dirichlet_rows, label_rows, make_engine
from twostagegp.classification.pool import fit_pool, row_losses
from twostagegp.classification.probability import (
    mean_softmax,
    quadrature_softmax,
    sampled_softmax,
    sobol_normals,
)
from twostagegp.classification.ridges import Ridge, kernel_choices, ridge_member
from twostagegp.classification.table import make_table
from twostagegp.classification.variance import TrainedKernel, condition, train_latents
from twostagegp.classification.views import make_views
from twostagegp.data.rows import Rows
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.problem import Problem
from twostagegp.errors import InputError
from twostagegp.kernels import PlusConstant, make_kernel
from twostagegp.kernels.linear import LinearKernel
from twostagegp.pipeline.settings import ClassSettings

SETTINGS = ClassSettings()
CONSTANT = SETTINGS.constant
CPU, F64 = torch.device("cpu"), torch.float64
CASES = pytest.mark.parametrize("case", ["plain", "weights", "groups", "groups and weights"])


def some_table(case="plain", n=24, d=3, K=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * [1.0, 5.0, 0.2][:d] + 3.0
    codes = rng.permutation(np.arange(n) % K)
    weight = rng.choice([0.5, 1.0, 2.0, 3.0], size=n) if "weights" in case else None
    groups = rng.integers(0, 7, size=n) if "groups" in case else None
    if groups is not None:
        groups = np.unique(groups, return_inverse=True)[1]
    return make_table(X, codes, K, [f"x{k}" for k in range(d)], weight, groups, CPU, F64)


def some_latents(case="plain", shared=False, n=14, K=3, seed=0):
    rng = np.random.default_rng(seed)

    def tensor(values):
        return torch.as_tensor(values, dtype=F64)

    c = rng.choice([0.5, 1.0, 2.0, 3.0], size=n) if "weights" in case else np.ones(n)
    groups = torch.as_tensor(rng.integers(0, 5, size=n)) if "groups" in case else None
    extra = np.full(n, 0.2) if shared else rng.uniform(0.1, 2.0, size=(n, K))
    T, X, weight = tensor(rng.normal(size=(n, K))), tensor(rng.normal(size=(n, 2))), tensor(c)
    return Rows(X, T, weight, torch.zeros_like(weight), tensor(extra), groups)


def trained_on(table, kernel="matern32", constant=0.0, alpha_eps=0.05, smoothing=0.0, ard=False):
    view = table.views[0]
    one = make_kernel(kernel, len(view.columns), ard)
    parameters = np.append(one.start() + 0.1, math.log(0.03))
    dirichlet = Dirichlet(alpha_eps, table.n_classes, smoothing)
    target = dirichlet.target(table.codes)
    centre, scale = table.c @ target / table.c.sum(), float(target.std())
    return TrainedKernel(view, one, parameters, 0.0, dirichlet, centre, scale, constant)


def noise_of(table, trained):
    """Noise variances of all rows and classes, in units of the scaled latents."""
    return trained.dirichlet.noise(table.codes) / trained.scale**2 + trained.noise


def direct(table, trained, s, t, points, c=None, keep=None):
    """Mean and variance of one latent function at points in the view, by a plain solve."""
    kernel, theta = trained.kernel, trained.parameters[:-1]
    Z = table.inputs(trained.view).numpy()
    c = table.c if c is None else c
    keep = np.arange(len(Z)) if keep is None else keep

    def k(a, b):
        A, B = torch.as_tensor(a), torch.as_tensor(b)
        return kernel.cross(A, B, theta).numpy() + trained.constant

    K = k(Z[keep], Z[keep]) + np.diag(s[keep] / c[keep])
    cross = k(points, Z[keep])
    prior = np.array([k(p[None], p[None])[0, 0] for p in points])
    solved = np.linalg.solve(K, cross.T)
    return solved.T @ t[keep], prior - (cross.T * solved).sum(0)


def refitted(table, trained, s, t):
    """Held-out mean and variance of every row: one copy, or the group, is left out."""
    Z = table.inputs(trained.view).numpy()
    mean, variance = np.empty(len(Z)), np.empty(len(Z))
    for i in range(len(Z)):
        c, keep = table.c.copy(), np.arange(len(Z)) != i
        if table.groups is not None:
            keep = table.groups != table.groups[i]
        elif c[i] > 1.0:
            keep[i], c[i] = True, c[i] - 1.0
        m, v = direct(table, trained, s, t, Z[i : i + 1], c, np.flatnonzero(keep))
        mean[i], variance[i] = m[0], v[0]
    return mean, variance


# --- transform -----------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha_eps", [0.01, 0.2])
def test_transform_is_that_of_gpytorch(alpha_eps):
    codes = np.array([0, 2, 1, 1, 2, 0, 0])
    likelihood = gpytorch.likelihoods.DirichletClassificationLikelihood(
        torch.as_tensor(codes), alpha_epsilon=alpha_eps, dtype=F64
    )
    one = Dirichlet(alpha_eps, n_classes=3)
    targets = likelihood.transformed_targets.numpy()
    targets = targets if targets.shape == (7, 3) else targets.T
    np.testing.assert_allclose(one.target(codes), targets, rtol=1e-12)
    noise = likelihood.noise_covar.noise.detach().numpy()
    np.testing.assert_allclose(one.noise(codes), noise.reshape(3, 7).T, rtol=1e-12)


def test_smoothing_moves_labels_equally_to_all_classes():
    codes = np.array([1, 0])
    Y = soft_labels(codes, 4, 0.2)
    np.testing.assert_allclose(Y, [[0.05, 0.85, 0.05, 0.05], [0.85, 0.05, 0.05, 0.05]])
    one = Dirichlet(0.01, 4, smoothing=0.2)
    noise = np.log(1.0 / (Y + 0.01) + 1.0)
    np.testing.assert_allclose(one.noise(codes), noise)
    np.testing.assert_allclose(one.target(codes), np.log(Y + 0.01) - noise / 2)


def test_a_certain_probability_has_the_latent_of_a_label():
    one = Dirichlet(0.05, 3)
    np.testing.assert_allclose(one.latent(np.array([0.0, 1.0])), one.targets)
    assert (np.diff(one.latent(np.linspace(0, 1, 30))) > 0).all()


def test_the_latent_of_a_probability_is_the_precision_weighted_mean_of_the_targets():
    one = Dirichlet(0.05, 3)
    (y0, y1), (s0, s1) = one.targets, one.noises
    for p in (0.1, 0.3, 0.8):
        expected = np.average([y1, y0], weights=[p / s1, (1 - p) / s0])
        assert one.latent(np.array([p]))[0] == pytest.approx(expected, rel=1e-12)


def test_every_draw_has_its_own_probabilities():
    rng = np.random.default_rng(0)
    mean, variance, draws = (
        rng.normal(size=(4, 3)),
        rng.uniform(size=(4, 3)),
        rng.normal(size=(5, 3)),
    )
    found = sampled_softmax(mean, variance, draws)
    assert found.shape == (5, 4, 3)
    for s, i in np.ndindex(5, 4):
        e = np.exp(mean[i] + np.sqrt(variance[i]) * draws[s])
        np.testing.assert_allclose(found[s, i], e / e.sum())
    np.testing.assert_allclose(mean_softmax(mean, variance, draws), found.mean(0))


def test_quadrature_for_many_classes_has_1024_points():
    assert sobol_normals(3).shape == (1024, 3)


def test_labels_are_one_hot_unless_smoothed():
    np.testing.assert_array_equal(soft_labels(np.array([1, 0]), 3), [[0, 1, 0], [1, 0, 0]])


# --- the objective over all classes --------------------------------------------------------------


@CASES
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("objective", ["loo", "nll", "heldout"])
def test_gradient_over_classes_is_that_of_finite_differences(objective, shared, case):
    rows = some_latents(case, shared)
    R = rows.t.square() * rows.c[:, None] if objective == "heldout" else None
    kernel = make_kernel("matern52", 2, True)
    for covariance in (kernel, PlusConstant(kernel, CONSTANT)):
        problem = ExactEngine(rows, 1e-6).problem(covariance, objective, R)
        at = problem.start() + np.array([0.3, -0.2, 0.1, 0.4])
        value, gradient = problem(at)
        numerical = approx_fprime(at, lambda p: problem(p)[0], 1e-6)  # noqa: B023
        np.testing.assert_allclose(gradient, numerical, rtol=1e-4, atol=2e-6)
        assert problem(at)[0] == value


@CASES
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("objective", ["loo", "nll", "heldout"])
def test_objective_is_the_mean_of_those_of_the_classes(objective, shared, case):
    rows = some_latents(case, shared)
    R = rows.t.square() + 0.1 if objective == "heldout" else None
    kernel = make_kernel("rbf", 2, False)
    joint = ExactEngine(rows, 1e-6, use_prior=False).problem(kernel, objective, R)
    at = joint.start() + 0.2
    value, gradient = joint(at)
    values, gradients = 0.0, np.zeros_like(gradient)
    for k in range(3):
        own = None if R is None else R[:, k]
        single = Problem(kernel, rows.of_target(k), objective, own, use_prior=False)
        one = single(at)
        values, gradients = values + one[0] / 3, gradients + one[1] / 3
    assert value == pytest.approx(values, rel=1e-10)
    np.testing.assert_allclose(gradient, gradients, rtol=1e-8, atol=1e-11)


# --- ridges --------------------------------------------------------------------------------------


def ridge_latents(table, kernel, parameters, method="exact", n_neighbors=50):
    """A ridge of the labels at fixed hyperparameters."""
    engine = make_engine(label_rows(table, table.views[0]), 1e-6, method, n_neighbors)
    posterior = engine.condition(PlusConstant(kernel, CONSTANT), parameters)
    return Latents(table.views[0], posterior, np.zeros(table.n_classes), 1.0)


@CASES
def test_held_out_latents_of_a_ridge_are_those_of_refits(case):
    table = some_table(case)
    trained = trained_on(table, constant=CONSTANT)
    noise = 0.3
    parameters = np.append(trained.parameters[:-1], math.log(noise))
    ridge = ridge_latents(table, trained.kernel, parameters)
    latents, _ = ridge.heldout(np.arange(len(table)))
    T = label_rows(table, table.views[0]).t.numpy()
    for k in range(3):
        s = np.full(len(table), noise)
        np.testing.assert_allclose(
            latents[:, k], refitted(table, trained, s, T[:, k])[0], atol=1e-9
        )


@CASES
def test_ridge_of_all_neighbours_is_the_exact_one(case):
    table = some_table(case)
    kernel = make_kernel("matern32", 3, True)
    shift = np.array([0.1, -0.3, 0.2, 0.0])
    parameters = np.append(kernel.start() + shift, math.log(0.2))
    exact = ridge_latents(table, kernel, parameters)
    local = ridge_latents(table, kernel, parameters, "neighbors", len(table))
    every = np.arange(len(table))
    np.testing.assert_allclose(local.heldout(every)[0], exact.heldout(every)[0], atol=1e-8)
    X = np.random.default_rng(1).normal(size=(9, 3)) * [1, 5, 0.2] + 3.0
    np.testing.assert_allclose(local.predict(X), exact.predict(X), atol=1e-8)


def test_held_out_latents_do_not_leak_the_label_through_the_mean_of_the_labels():
    """With more columns than rows a linear ridge could infer a label from the others' mean."""
    rng = np.random.default_rng(0)
    X, codes = rng.normal(size=(60, 300)), rng.permutation(np.arange(60) % 2)
    table = make_table(X, codes, 2, [f"x{k}" for k in range(300)], None, None, CPU, F64)
    ridge = Ridge.of(table.views[0], LinearKernel(300), CONSTANT)
    ridge.candidate.parameters = np.array([0.0, math.log(1e-3)])
    member = ridge_member(table, ridge, np.arange(60), "exact", 50, None, SETTINGS)
    margin = member.heldout[np.arange(60), codes] - member.heldout[np.arange(60), 1 - codes]
    assert abs(margin.mean()) < 3.0 * margin.std() / math.sqrt(60)


def test_wide_tables_get_linear_kernels_and_narrow_ones_one_lengthscale_per_column():
    narrow = [
        k.label for _, k in kernel_choices(("rbf", "laplacian"), "both", some_table(), SETTINGS)
    ]
    assert len(narrow) == 4
    rng = np.random.default_rng(0)
    names = [f"x{k}" for k in range(40)]
    wide = make_table(rng.normal(size=(30, 40)), np.arange(30) % 2, 2, names, None, None, CPU, F64)
    choices = kernel_choices(("rbf", "laplacian"), "both", wide, SETTINGS)
    assert sorted({view.name for view, _ in choices}) == ["columns", "common", "unit"]
    assert {kernel.label for _, kernel in choices} == {"rbf", "linear"}


# --- latent Gaussian processes -------------------------------------------------------------------


@CASES
@pytest.mark.parametrize("constant", [0.0, CONSTANT])
def test_latents_by_the_inversion_lemma_are_those_of_a_direct_solve(case, constant):
    table = some_table(case)
    trained = trained_on(table, constant=constant, smoothing=0.1 if constant else 0.0)
    latents = condition(table, trained)
    X = np.random.default_rng(1).normal(size=(8, 3)) * [1, 5, 0.2] + 3.0
    means, variances = latents.moments(X)
    held, held_variances = latents.heldout(np.arange(len(table)))
    rows = dirichlet_rows(table, trained.view, trained.dirichlet, trained.centre, trained.scale)
    np.testing.assert_allclose(latents.predict(X), means, atol=1e-10)
    for k in range(3):
        s, t = noise_of(table, trained)[:, k], rows.t[:, k].numpy()
        np.testing.assert_allclose(s, rows.extra[:, k].numpy() + trained.noise)
        m, v = direct(table, trained, s, t, trained.view(X))
        np.testing.assert_allclose(means[:, k], m * trained.scale + trained.centre[k], atol=1e-8)
        np.testing.assert_allclose(variances[:, k], v * trained.scale**2, atol=1e-8)
        m, v = refitted(table, trained, s, t)
        np.testing.assert_allclose(held[:, k], m * trained.scale + trained.centre[k], atol=1e-8)
        np.testing.assert_allclose(held_variances[:, k], v * trained.scale**2, atol=1e-8)


@CASES
@pytest.mark.parametrize("kernel", ["matern32", "laplacian"])
def test_latents_of_all_neighbours_are_the_exact_ones(case, kernel):
    table = some_table(case)
    trained = trained_on(table, kernel, constant=CONSTANT)
    exact, local = condition(table, trained), condition(table, trained, "neighbors", len(table))
    X = np.random.default_rng(1).normal(size=(9, 3)) * [1, 5, 0.2] + 3.0
    some = np.array([0, 3, 4, 17])
    for a, b in zip(exact.moments(X), local.moments(X), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)
    for a, b in zip(exact.heldout(some), local.heldout(some), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)
    np.testing.assert_allclose(local.predict(X), exact.predict(X), atol=1e-8)


def test_the_best_kernel_is_kept_and_only_a_single_stage_has_a_constant():
    table = some_table(n=60)
    rng = np.random.default_rng(0)
    dirichlet = Dirichlet(0.05, 3)
    view = table.views[0]
    choices = [(view, make_kernel("rbf", 3, False)), (view, make_kernel("matern12", 3, False))]
    every = np.arange(60)
    trained = train_latents(
        table, choices, dirichlet, None, every, None, "loo", 1e-6, SETTINGS, rng
    )
    assert set(trained.tried) == {"rbf (columns)", "matern12 (columns)"}
    assert trained.value == min(trained.tried.values())
    assert trained.constant == CONSTANT
    residuals = dirichlet.target(table.codes)
    second = train_latents(
        table, choices, dirichlet, residuals, every, None, "heldout", 1e-6, SETTINGS, rng
    )
    assert second.constant == 0.0
    assert second.noise >= 1e-6


# --- kernel and views ----------------------------------------------------------------------------


def test_linear_kernel_has_the_gradient_of_finite_differences_and_is_that_of_gpytorch():
    rng = np.random.default_rng(0)
    X, Z = (torch.as_tensor(rng.normal(size=(n, 4))) for n in (6, 3))
    W = torch.as_tensor(rng.normal(size=(6, 6)))
    kernel, theta = LinearKernel(4), np.array([0.7])
    K, saved = kernel.evaluate(X, theta)
    numerical = approx_fprime(theta, lambda p: float((W * kernel.evaluate(X, p)[0]).sum()), 1e-6)
    np.testing.assert_allclose(kernel.gradient(X, theta, K, saved, W), numerical, rtol=1e-5)
    torch.testing.assert_close(kernel.diagonal(X, theta), K.diagonal())
    gp = kernel.to_gpytorch(theta)
    torch.testing.assert_close(gp(X, Z).to_dense().detach(), kernel.cross(X, Z, theta))
    assert len(kernel.bounds()) == len(kernel.start()) == kernel.size == 1


def test_views_scale_by_column_by_a_common_factor_or_by_row():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 4)) * [1.0, 10.0, 0.1, 1.0] + [0.0, 5.0, 0.0, 0.0]
    X[:, 3] = 7.0
    weight = rng.integers(1, 4, size=50).astype(float)
    (columns, common, unit), constant = make_views(X, weight, list("abcd"), many_columns=2)
    assert constant == ["d"]
    share = weight / weight.sum()
    Z = columns(X)
    assert Z.shape == (50, 3)
    np.testing.assert_allclose(share @ Z, 0.0, atol=1e-12)
    np.testing.assert_allclose(share @ Z**2, 1.0)
    Z = common(X)
    np.testing.assert_allclose((share @ Z**2).mean(), 1.0)
    np.testing.assert_allclose(np.sqrt(share @ Z**2)[1] / np.sqrt(share @ Z**2)[0], 10, rtol=0.5)
    Z = unit(X)
    np.testing.assert_allclose(share @ Z, 0.0, atol=1e-12)
    np.testing.assert_allclose((share @ Z**2).mean(), 1.0)
    np.testing.assert_allclose(unit(3.0 * X), Z, atol=1e-10)
    rows = Z * unit.scale + unit.centre
    np.testing.assert_allclose((rows**2).sum(1), 1.0)


def test_rows_of_zeros_and_huge_rows_stay_finite_in_every_view():
    X = np.vstack([np.zeros(40), np.random.default_rng(0).normal(size=(9, 40))])
    far = np.vstack([np.zeros(40), np.full(40, 1e300), np.full(40, -1e300)])
    for view in make_views(X, np.ones(10), [f"x{k}" for k in range(40)])[0]:
        assert np.isfinite(view(X)).all()
        assert np.isfinite(view(far)).all()


def test_tables_merge_equal_rows_of_one_class_but_not_of_different_classes():
    X = np.array([[1.0], [1.0], [1.0], [2.0], [3.0]])
    codes = np.array([0, 0, 1, 1, 0])
    table = make_table(X, codes, 2, ["a"], None, None, CPU, F64)
    assert table.c.tolist() == [2.0, 1.0, 1.0, 1.0]
    assert table.codes.tolist() == [0, 1, 1, 0]
    np.testing.assert_allclose(table.prior, [0.6, 0.4])
    weight = np.array([0.0, 0.0, 1.0, 1.0, 0.0])
    with pytest.raises(InputError, match="1 class"):
        make_table(X, codes, 2, ["a"], weight, None, CPU, F64)


# --- pooling -------------------------------------------------------------------------------------


def simulated(n, K, tau=1.0, seed=0, spread=2.0):
    rng = np.random.default_rng(seed)
    f = spread * rng.normal(size=(n, K))
    return f, (rng.gumbel(size=(n, K)) + tau * f).argmax(1)


def pool_objective(p, latents, codes, weight, n_e):
    J = len(latents)
    F = np.stack(latents)
    u = p[:J] * F.std(axis=(1, 2))
    log_p = log_softmax(np.tensordot(p[:J], F, 1) + p[J:], axis=1)
    loss = -(weight @ log_p[np.arange(len(codes)), codes]) / weight.sum()
    prior = 0.5 * (p[J:] @ p[J:] + ((u - u.mean()) ** 2).sum()) + u.sum()
    return loss + prior / n_e


@pytest.mark.parametrize("grouped", [False, True])
def test_pool_minimises_the_penalised_loss(grouped):
    rng = np.random.default_rng(0)
    f, codes = simulated(200, 3)
    latents = [f + rng.normal(size=f.shape), 3.0 * f + 4.0 * rng.normal(size=f.shape)]
    weight = rng.integers(1, 4, size=200).astype(float)
    groups = np.arange(200) // 10 if grouped else None
    n_e = 20 if grouped else weight.sum()
    pool = fit_pool(latents, codes, weight, groups)
    at = np.concatenate([pool.weights, pool.bias])
    best = pool_objective(at, latents, codes, weight, n_e)
    for _ in range(200):
        other = at + 10.0 ** rng.uniform(-3, -0.5) * rng.normal(size=len(at))
        other[:2] = np.maximum(other[:2], 0.0)
        assert pool_objective(other, latents, codes, weight, n_e) > best - 1e-7
    losses = row_losses(pool(latents), codes)
    assert pool.loss == pytest.approx(weight @ losses / weight.sum())


def test_a_model_that_is_wrong_gets_no_weight():
    f, codes = simulated(400, 3)
    pool = fit_pool([f, -f], codes, np.ones(400))
    assert pool.weights[1] == 0.0
    assert pool.weights[0] == pytest.approx(1.0, rel=0.3)


def test_identical_models_share_the_weight():
    f, codes = simulated(300, 2)
    pool = fit_pool([f, f], codes, np.ones(300))
    assert pool.weights[0] == pytest.approx(pool.weights[1], rel=0.05)


def test_a_group_counts_as_one_row_in_the_price_of_a_bias():
    f, codes = simulated(200, 2, tau=0.1)
    codes = np.where(np.arange(200) % 4 == 0, codes, 0)
    rows = fit_pool([f], codes, np.ones(200))
    groups = fit_pool([f], codes, np.ones(200), np.arange(200) // 50)
    assert np.abs(groups.bias).max() < 0.8 * np.abs(rows.bias).max()


# --- probabilities and calibration ---------------------------------------------------------------


@pytest.mark.parametrize("K", [2, 3, 7])
def test_quadrature_is_near_the_mean_of_many_draws(K):
    rng = np.random.default_rng(K)
    mean, variance = 2.0 * rng.normal(size=(12, K)), rng.uniform(0.0, 4.0, size=(12, K))
    P = quadrature_softmax(mean, variance)
    np.testing.assert_allclose(P.sum(1), 1.0, atol=1e-12)
    long = mean_softmax(mean, variance, rng.standard_normal((200_000, K)))
    assert np.abs(P - long).max() < (0.003 if K == 2 else 0.01)


@pytest.mark.parametrize("spread", [1.0, 6.0, 20.0, 40.0])
def test_two_classes_are_integrated_accurately_for_any_latent_variance(spread):
    difference = spread * np.linspace(-2.0, 2.0, 41)
    z = np.linspace(-9.0, 9.0, 100_001)
    density = np.exp(-0.5 * z**2)
    truth = np.array([expit(each + spread * z) @ density for each in difference]) / density.sum()
    mean = np.column_stack([np.zeros(41), difference])
    P = quadrature_softmax(mean, np.full((41, 2), 0.5 * spread**2))
    np.testing.assert_allclose(P[:, 1], truth, atol=1e-6)


@pytest.mark.parametrize("K", [2, 5])
def test_without_variance_probabilities_are_the_softmax(K):
    rng = np.random.default_rng(0)
    mean = 3.0 * rng.normal(size=(6, K))
    exact = softmax(mean, axis=1)
    np.testing.assert_allclose(quadrature_softmax(mean, np.zeros((6, K))), exact, atol=1e-12)
    draws = rng.standard_normal((5, K))
    np.testing.assert_allclose(mean_softmax(mean, np.zeros((6, K)), draws), exact, atol=1e-12)


def test_the_probability_of_a_row_does_not_depend_on_the_others():
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(size=(30, 3)), rng.uniform(size=(30, 3))
    draws = rng.standard_normal((64, 3))
    P = mean_softmax(mean, variance, draws)
    np.testing.assert_array_equal(mean_softmax(mean[7:11], variance[7:11], draws), P[7:11])
    np.testing.assert_allclose(sampled_softmax(mean, variance, draws).mean(0), P, atol=1e-15)
    in_blocks = mean_softmax(mean, variance, draws, block_entries=64 * 3 * 4)
    np.testing.assert_allclose(in_blocks, P, atol=1e-15)


@pytest.mark.parametrize(
    ("K", "tau"),
    [
        (2, 0.3),
        (2, 1.0),
        (2, 2.5),
        (4, 1.0),
        pytest.param(4, 0.3, marks=pytest.mark.slow),
        pytest.param(4, 2.5, marks=pytest.mark.slow),
    ],
)
def test_the_scale_of_latents_is_recovered(K, tau):
    f, codes = simulated(900, K, tau, spread=1.5)
    rng = np.random.default_rng(0)
    scale = choose_scale(f, np.zeros_like(f), codes, np.ones(900), None, SETTINGS, rng)
    assert scale.tau == pytest.approx(tau, rel=0.2)
    assert np.abs(scale.bias - scale.bias.mean()).max() < 0.25
    assert scale.loss == pytest.approx(losses_of(scale, f, np.zeros_like(f), codes).mean())


def test_the_bias_of_a_class_is_recovered():
    f, _ = simulated(1500, 3, spread=1.0)
    shift = np.array([1.5, 0.0, -1.0])
    rng = np.random.default_rng(1)
    codes = (rng.gumbel(size=f.shape) + f + shift).argmax(1)
    scale = choose_scale(f, np.zeros_like(f), codes, np.ones(1500), None, SETTINGS, rng)
    np.testing.assert_allclose(scale.bias - scale.bias.mean(), shift - shift.mean(), atol=0.3)


def test_too_small_variances_get_a_larger_factor_and_too_large_ones_a_smaller_one():
    """Half of the rows have precise latents, the others have errors of the stated variance."""
    rng = np.random.default_rng(0)
    n, K = 1200, 2
    truth = 3.0 * rng.normal(size=(n, K))
    codes = (rng.gumbel(size=(n, K)) + truth).argmax(1)
    variance = np.where(np.arange(n)[:, None] % 2 == 0, 0.01, 16.0) * np.ones((n, K))
    error = np.sqrt(variance) * rng.normal(size=(n, K))
    # Posterior means of a truth of variance 9 that was measured with these errors.
    shrink = 9.0 / (9.0 + variance)
    latents, spread = shrink * (truth + error), shrink * variance
    honest = choose_scale(latents, spread, codes, np.ones(n), None, SETTINGS, rng)
    assert 0.3 <= honest.c <= 3.0
    too_small = choose_scale(latents, spread / 10.0, codes, np.ones(n), None, SETTINGS, rng)
    assert too_small.c > honest.c
    too_large = choose_scale(latents, 10.0 * spread, codes, np.ones(n), None, SETTINGS, rng)
    assert too_large.c < honest.c


def test_the_largest_variance_factor_is_chosen_if_it_does_not_raise_the_loss():
    f, codes = simulated(300, 3, spread=0.0)
    f += 1e-9 * np.random.default_rng(0).normal(size=f.shape)
    rng = np.random.default_rng(0)
    scale = choose_scale(f, np.ones_like(f), codes, np.ones(300), None, SETTINGS, rng)
    assert scale.c == max(SETTINGS.variance_factors)


def test_scale_is_applied_to_both_moments():
    mean, variance = LatentScale(2.0, np.array([1.0, 0.0]), 0.5)(np.ones((3, 2)), np.ones((3, 2)))
    np.testing.assert_array_equal(mean, [[3.0, 2.0]] * 3)
    np.testing.assert_array_equal(variance, 0.5)


def test_weights_of_calibration_are_counts():
    f, codes = simulated(150, 3, 0.5)
    v = np.full_like(f, 0.5)
    w = np.random.default_rng(0).integers(1, 4, size=150)
    rng = np.random.default_rng(0)
    once = choose_scale(f, v, codes, w.astype(float), None, SETTINGS, rng)
    repeat = np.repeat(np.arange(150), w)
    groups = repeat
    ones = np.ones(len(repeat))
    many = choose_scale(f[repeat], v[repeat], codes[repeat], ones, groups, SETTINGS, rng)
    assert once.tau == pytest.approx(many.tau, rel=0.05)
