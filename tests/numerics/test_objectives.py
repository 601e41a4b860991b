"""Closed forms against brute force: dense likelihoods, refits without a row, finite differences."""

import gpytorch
import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from twostagegp.data.rows import Rows, merge_rows
from twostagegp.engines.exact.engine import ExactPosterior
from twostagegp.engines.problem import Problem
from twostagegp.kernels import KERNELS, NamedKernel, WrappedKernel
from twostagegp.numerics import held_out, objectives

NOISE = 0.3
KERNEL = NamedKernel("matern52", 2, ard=True)
PARAMETERS = np.append(np.log([0.8, 1.7, 1.3]), np.log(NOISE))


class Table:
    """A small table with repeated inputs, integer weights, known noise and groups."""

    def __init__(self, seed=0, n=14, known_noise=True, grouped=False, weighted=True):
        rng = np.random.default_rng(seed)
        distinct = rng.normal(size=(8, 2))
        self.X = distinct[rng.integers(0, 8, size=n)]
        self.y = np.sin(self.X.sum(axis=1)) + 0.3 * rng.normal(size=n)
        self.weight = rng.integers(1, 4, size=n) * 1.0 if weighted else np.ones(n)
        self.extra = rng.integers(0, 2, size=n) * 0.2 if known_noise else np.zeros(n)
        self.groups = rng.integers(0, 4, size=n) if grouped else None
        self.merged = merge_rows(self.X, self.y, self.weight, self.extra, self.groups)

    def rows(self):
        m = self.merged
        groups = None if m.groups is None else torch.as_tensor(m.groups)
        return Rows(*(torch.as_tensor(v) for v in (m.X, m.t, m.c, m.q, m.extra)), groups)

    def copies(self):
        """Return the table with every row repeated by its weight, and the number of its row."""
        return np.repeat(np.arange(len(self.y)), self.weight.astype(int))

    def per_row(self, held):
        """Held-out residual and variance of every row of the table."""
        inverse = self.merged.inverse
        slope = held.slope.numpy()[inverse]
        residual = held.residual.numpy()[inverse] + slope * self.merged.deviation
        return residual, held.variance.numpy()[inverse]


def covariance(X, Z):
    return KERNEL.cross(torch.as_tensor(X), torch.as_tensor(Z), PARAMETERS[:-1]).numpy()


def predict(X, y, noise, Xnew, noise_new):
    """Mean and covariance of new observations, by the textbook formula on a dense table."""
    solve = np.linalg.solve(covariance(X, X) + np.diag(noise), covariance(X, Xnew))
    cov = covariance(Xnew, Xnew) - covariance(Xnew, X) @ solve + np.diag(noise_new)
    return solve.T @ y, cov


def brute_force(table, groups=None):
    """Residual and covariance of each left-out part of the expanded table, by a refit for each."""
    copies = table.copies()
    X, y, noise = table.X[copies], table.y[copies], NOISE + table.extra[copies]
    parts = np.arange(len(copies)) if groups is None else groups[copies]
    for part in np.unique(parts):
        out = parts == part
        mean, cov = predict(X[~out], y[~out], noise[~out], X[out], noise[out])
        yield copies[out], y[out] - mean, cov


def evaluate(objective, table, *args):
    f, s = ExactPosterior(KERNEL, PARAMETERS, table.rows()).factored()
    return objective(f, table.rows(), s, *args)


each_table = pytest.mark.parametrize(
    "options",
    [
        {"known_noise": False, "weighted": False},
        {"known_noise": True, "weighted": False},
        {"known_noise": True, "weighted": True},
    ],
    ids=["repeats", "known noise", "weights"],
)


# --- likelihood ----------------------------------------------------------------------------------


@each_table
@pytest.mark.parametrize("grouped", [False, True])
def test_nll_of_merged_rows_is_the_density_of_the_whole_table(options, grouped):
    table = Table(**options, grouped=grouped)
    copies = table.copies()
    X, noise = table.X[copies], NOISE + table.extra[copies]
    dense = multivariate_normal(np.zeros(len(X)), covariance(X, X) + np.diag(noise))
    value = evaluate(objectives.nll, table).value
    assert value == pytest.approx(-dense.logpdf(table.y[copies]), rel=1e-10)


def test_nll_equals_scikit_learns():
    table = Table(known_noise=False, weighted=False)
    kernel = sk.ConstantKernel(1.3) * sk.Matern([0.8, 1.7], nu=2.5) + sk.WhiteKernel(NOISE)
    model = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(table.X, table.y)
    expected = -model.log_marginal_likelihood(model.kernel_.theta)
    assert evaluate(objectives.nll, table).value == pytest.approx(expected, rel=1e-8)


def test_nll_equals_gpytorchs():
    table = Table(known_noise=False, weighted=False)

    class Model(gpytorch.models.ExactGP):
        def __init__(self, X, y, likelihood):
            super().__init__(X, y, likelihood)
            self.mean = gpytorch.means.ZeroMean()
            self.kernel = KERNEL.to_gpytorch(PARAMETERS[:-1])

        def forward(self, X):
            return gpytorch.distributions.MultivariateNormal(self.mean(X), self.kernel(X))

    X, y = torch.as_tensor(table.X), torch.as_tensor(table.y)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = torch.tensor(NOISE, dtype=torch.float64)
    model = Model(X, y, likelihood)
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        expected = -float(mll(model(X), y)) * len(y)
    assert evaluate(objectives.nll, table).value == pytest.approx(expected, rel=1e-8)


def test_a_weight_below_one_is_a_power_of_the_likelihood():
    # The row's factor N(y; f, s)^c is N(y; f, s/c) times a constant in f.
    c, y, s = 0.4, 0.7, NOISE
    rows = Rows(*(torch.tensor(v).double() for v in ([[0.0, 0.0]], [y], [c], [0.0], [0.0])))
    f, noise = ExactPosterior(KERNEL, PARAMETERS, rows).factored()
    prior = 1.3
    constant = c * norm(0, np.sqrt(s)).logpdf(0) - norm(0, np.sqrt(s / c)).logpdf(0)
    expected = -norm(0, np.sqrt(prior + s / c)).logpdf(y) - constant
    assert objectives.nll(f, rows, noise).value == pytest.approx(expected)


# --- one copy left out ---------------------------------------------------------------------------


@each_table
def test_heldout_equals_refits_without_each_copy(options):
    table = Table(**options)
    residual, variance = table.per_row(evaluate(held_out.leave_out, table))
    for (row,), (expected,), ((cov,),) in brute_force(table):
        assert residual[row] == pytest.approx(expected, rel=1e-9, abs=1e-11)
        assert variance[row] == pytest.approx(cov, rel=1e-9)


@each_table
def test_loo_density_equals_refits_without_each_copy(options):
    table = Table(**options)
    expected = -sum(norm(0, np.sqrt(cov[0, 0])).logpdf(e[0]) for _, e, cov in brute_force(table))
    assert evaluate(objectives.loo_density, table).value == pytest.approx(expected, rel=1e-10)


@each_table
def test_sum_of_squares_is_over_all_copies(options):
    table = Table(**options)
    total = evaluate(held_out.leave_out, table).sum_of_squares(table.rows()).sum()
    assert float(total) == pytest.approx(sum(e[0] ** 2 for _, e, _ in brute_force(table)))


def sums_of_squares(table, residuals):
    """Return R of every merged row, from one residual per row of the table."""
    return np.bincount(table.merged.inverse, weights=table.weight * residuals**2)


@each_table
@pytest.mark.parametrize("grouped", [False, True])
def test_heldout_variance_is_the_density_of_given_residuals(options, grouped):
    table = Table(**options, grouped=grouped)
    given = np.random.default_rng(5).normal(size=len(table.y))
    R = torch.as_tensor(sums_of_squares(table, given))
    expected = 0.0
    for row, _, cov in brute_force(table, table.groups):
        expected -= norm(0, np.sqrt(np.diag(cov))).logpdf(given[row]).sum()
    value = evaluate(objectives.heldout_variance, table, R).value
    assert value == pytest.approx(expected, rel=1e-10)


def test_heldout_variance_does_not_depend_on_the_target():
    table = Table()
    R = torch.ones(len(table.rows())).double()
    f, s = ExactPosterior(KERNEL, PARAMETERS, table.rows()).factored()
    other = table.rows().with_target(torch.zeros_like(table.rows().t))
    g, _ = ExactPosterior(KERNEL, PARAMETERS, other).factored()
    one = objectives.heldout_variance(f, table.rows(), s, R)
    two = objectives.heldout_variance(g, other, s, R)
    assert one.value == two.value
    assert torch.equal(one.W, two.W)


# --- weights below one ---------------------------------------------------------------------------


@pytest.fixture
def light():
    """Rows of weight below one, one of them merged from two: they are left out whole."""
    table = Table(known_noise=True, n=9)
    table.X = np.random.default_rng(7).normal(size=(9, 2))
    table.X[8], table.extra[8] = table.X[7], table.extra[7]
    table.weight = np.array([0.2, 0.9, 1.0, 0.5, 0.7, 0.3, 0.6, 0.25, 0.5])
    table.merged = merge_rows(table.X, table.y, table.weight, table.extra)
    return table


def light_brute_force(table):
    """Residual and variance of every row of the table, its merged row left out whole."""
    inverse, noise = table.merged.inverse, NOISE + table.extra
    for i in range(len(table.y)):
        rest = inverse != inverse[i]
        mean, cov = predict(
            table.X[rest],
            table.y[rest],
            noise[rest] / table.weight[rest],
            table.X[[i]],
            noise[[i]],
        )
        yield table.y[i] - mean[0], cov[0, 0]


def test_a_row_of_weight_below_one_is_left_out_whole(light):
    residual, variance = light.per_row(evaluate(held_out.leave_out, light))
    expected, cov = np.array(list(light_brute_force(light))).T
    np.testing.assert_allclose(residual, expected, rtol=1e-9)
    np.testing.assert_allclose(variance, cov, rtol=1e-9)


def test_loo_density_with_weights_below_one_is_a_weighted_sum(light):
    e, v = np.array(list(light_brute_force(light))).T
    expected = -light.weight @ norm(0, np.sqrt(v)).logpdf(e)
    assert evaluate(objectives.loo_density, light).value == pytest.approx(expected, rel=1e-10)


def test_heldout_variance_with_weights_below_one_is_a_weighted_sum(light):
    given = np.random.default_rng(5).normal(size=len(light.y))
    R = torch.as_tensor(sums_of_squares(light, given))
    _, v = np.array(list(light_brute_force(light))).T
    expected = -light.weight @ norm(0, np.sqrt(v)).logpdf(given)
    value = evaluate(objectives.heldout_variance, light, R).value
    assert value == pytest.approx(expected, rel=1e-10)


# --- one group left out --------------------------------------------------------------------------


@each_table
def test_group_heldout_equals_refits_without_each_group(options):
    table = Table(**options, grouped=True)
    residual, variance = table.per_row(evaluate(held_out.leave_out, table))
    for row, expected, cov in brute_force(table, table.groups):
        np.testing.assert_allclose(residual[row], expected, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(variance[row], np.diag(cov), rtol=1e-9)


@each_table
def test_group_density_is_the_joint_density_of_each_group(options):
    table = Table(**options, grouped=True)
    expected = -sum(
        multivariate_normal(np.zeros(len(e)), cov).logpdf(e)
        for _, e, cov in brute_force(table, table.groups)
    )
    assert evaluate(objectives.loo_density, table).value == pytest.approx(expected, rel=1e-10)


def test_groups_of_one_row_are_leave_one_out():
    table = Table(weighted=False, n=8)
    table.X = np.random.default_rng(3).normal(size=(8, 2))
    alone = objectives.loo_density, held_out.leave_out
    values = []
    for groups in (None, np.arange(8)):
        table.merged = merge_rows(table.X, table.y, table.weight, table.extra, groups)
        values.append([evaluate(of, table) for of in alone])
    (loo, held), (group_loo, group_held) = values
    assert loo.value == pytest.approx(group_loo.value)
    torch.testing.assert_close(loo.W, group_loo.W)
    torch.testing.assert_close(held.variance, group_held.variance)


# --- derivatives ---------------------------------------------------------------------------------


def problem(kernel, objective, grouped=False, use_prior=False):
    table = Table(seed=4, grouped=grouped)
    # Weights below, at and above one.
    weight = np.random.default_rng(6).choice([0.4, 1.0, 1.5, 3.0], size=len(table.y))
    table.merged = merge_rows(table.X, table.y, weight, table.extra, table.groups)
    R = None
    if objective == "heldout":
        R = torch.as_tensor(np.random.default_rng(8).chisquare(2, size=len(table.merged.c)))
    return Problem(kernel, table.rows(), objective, R, use_prior=use_prior)


def assert_gradient_is_slope(of, parameters):
    _, gradient = of(parameters)
    slopes = np.empty_like(gradient)
    for j in range(len(parameters)):
        h = np.zeros(len(parameters))
        h[j] = 1e-4
        # Fourth order, so that the differences are good to about 1e-10.
        near = of(parameters + h)[0] - of(parameters - h)[0]
        far = of(parameters + 2 * h)[0] - of(parameters - 2 * h)[0]
        slopes[j] = (8 * near - far) / 12e-4
    np.testing.assert_allclose(gradient, slopes, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("grouped", [False, True], ids=["one copy", "groups"])
@pytest.mark.parametrize("objective", ["nll", "loo", "heldout"])
@pytest.mark.parametrize("ard", [False, True], ids=["isotropic", "ard"])
@pytest.mark.parametrize("name", KERNELS)
def test_gradient_of_every_objective_and_kernel_equals_finite_differences(
    name, ard, objective, grouped
):
    kernel = NamedKernel(name, 2, ard)
    of = problem(kernel, objective, grouped)
    rng = np.random.default_rng(9)
    assert_gradient_is_slope(of, of.start() + rng.normal(scale=0.3, size=kernel.size + 1))


@pytest.mark.parametrize("objective", ["nll", "loo", "heldout"])
def test_gradient_through_a_gpytorch_kernel_equals_finite_differences(objective):
    module = gpytorch.kernels.RBFKernel() + gpytorch.kernels.LinearKernel()
    of = problem(WrappedKernel(module, 2), objective)
    assert_gradient_is_slope(of, of.start())


def test_gradient_of_the_prior_equals_finite_differences():
    of = problem(KERNEL, "nll", use_prior=True)
    assert_gradient_is_slope(of, PARAMETERS)


@pytest.mark.parametrize("grouped", [False, True], ids=["one copy", "groups"])
@pytest.mark.parametrize("objective", ["nll", "loo", "heldout"])
def test_derivative_with_respect_to_the_matrix_is_symmetric(objective, grouped):
    of = problem(KERNEL, objective, grouped)
    f, s = ExactPosterior(KERNEL, PARAMETERS, of.rows).factored()
    W = of.objective_of(f, of.rows, s, of.R).W
    torch.testing.assert_close(W, W.T)


# --- rows that all stand for themselves ----------------------------------------------------------


class NotPlain(Rows):
    """Rows that use the general formulas for weights even if all weights are one."""

    plain = False


def factored(rows):
    f, s = ExactPosterior(KERNEL, PARAMETERS, rows).factored()
    return f, rows, s


@pytest.mark.parametrize("of", [objectives.nll, objectives.loo_density])
def test_the_plain_form_equals_the_general_one(of):
    rng = np.random.default_rng(5)
    one = torch.ones(9, dtype=torch.float64)
    X, t = torch.as_tensor(rng.normal(size=(9, 2))), torch.as_tensor(rng.normal(size=9))
    extra = torch.as_tensor(rng.uniform(0.0, 0.3, size=9))
    rows = Rows(X, t, one, 0 * one, extra)
    assert rows.plain
    plain = of(*factored(rows))
    general = of(*factored(NotPlain(X, t, one, 0 * one, extra)))
    assert plain.value == pytest.approx(general.value, rel=1e-12)
    torch.testing.assert_close(plain.W, general.W)
    torch.testing.assert_close(plain.g, general.g)
    assert not plain.g.any()


def test_copies_whose_weights_sum_to_one_are_left_out_whole():
    rng = np.random.default_rng(5)
    one = torch.ones(6, dtype=torch.float64)
    X, t = torch.as_tensor(rng.normal(size=(6, 2))), torch.as_tensor(rng.normal(size=6))
    q = torch.as_tensor(rng.uniform(size=6))  # of two halves that differ
    f, rows, s = factored(Rows(X, t, one, q, 0 * one))
    held = held_out.leave_out(f, rows, s)
    assert torch.equal(held.slope, one)
    v = 1.0 / f.kappa
    density = (f.alpha / f.kappa).square() / v + q / v + v.log() + np.log(2 * np.pi)
    found = objectives.loo_density(f, rows, s).value
    assert found == pytest.approx(0.5 * float(density.sum()), rel=1e-12)
