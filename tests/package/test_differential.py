"""The engines against other libraries and against refits, on random kernels and tables.

Hyperparameters are fixed, so that both sides solve the same problem. Few random draws run in the
default suite, many with ``make torture``; the tests of each engine have the fixed cases.
"""

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch import kernels as gk
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from twostagegp.classification.dirichlet import Dirichlet
from twostagegp.classification.table import make_table
from twostagegp.classification.variance import TrainedKernel, condition
from twostagegp.data.rows import Rows, merge_rows
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.neighbors.engine import NeighborEngine
from twostagegp.kernels import KERNELS, NamedKernel, WrappedKernel
from twostagegp.numerics import objectives

SHORT, LONG = range(4), range(4, 60)
random_draws = pytest.mark.parametrize(
    "seed", [*SHORT, *(pytest.param(seed, marks=pytest.mark.torture) for seed in LONG)]
)
NU = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
#: GPyTorch's distances of nearly equal rows are off by 1e-8, and by their root in a Matérn 1/2.
THEIRS = 1e-6


def exactly():
    return gpytorch.settings.fast_computations(False, False, False)


class Draw:
    """A random kernel with random hyperparameters on a random table."""

    def __init__(self, seed, names=tuple(KERNELS)):
        self.rng = rng = np.random.default_rng(seed)
        n, d = int(rng.integers(5, 40)), int(rng.integers(1, 6))
        self.name = str(rng.choice(names))
        self.kernel = NamedKernel(self.name, d, ard=bool(rng.integers(2)) and d > 1)
        self.theta = self.kernel.start() + rng.normal(scale=0.5, size=self.kernel.size)
        self.noise = float(np.exp(rng.uniform(np.log(1e-3), 0.0)))
        self.X = self.inputs(n, d)
        self.y = np.sin(self.X[:, 0]) + rng.normal(size=n)
        self.queries = np.vstack([rng.normal(size=(6, d)), 30.0 + rng.normal(size=(2, d))])

    def inputs(self, n, d):
        """Return inputs that are normal, on a grid with repeats, or in clusters."""
        X = self.rng.normal(size=(n, d))
        law = self.rng.integers(3)
        if law == 1:
            return np.round(2.0 * X) / 2.0
        if law == 2:
            return 3.0 * np.round(X) + 0.1 * self.rng.normal(size=(n, d))
        return X

    @property
    def parameters(self):
        return np.append(self.theta, np.log(self.noise))

    def merged(self, groups=None):
        return merge_rows(self.X, self.y, groups=groups)

    def rows(self, groups=None):
        m = self.merged(groups)
        given = None if m.groups is None else torch.as_tensor(m.groups)
        return Rows(*(torch.as_tensor(v) for v in (m.X, m.t, m.c, m.q, m.extra)), given)

    def sklearn(self, X, y):
        """Return the same model in scikit-learn, conditioned on these rows."""
        lengths = self.kernel.lengthscales(self.theta)
        base = sk.RBF(lengths) if self.name == "rbf" else sk.Matern(lengths, nu=NU[self.name])
        kernel = sk.ConstantKernel(float(np.exp(self.theta[-1]))) * base
        return GaussianProcessRegressor(kernel, alpha=self.noise, optimizer=None).fit(X, y)


class Model(gpytorch.models.ExactGP):
    def __init__(self, X, y, likelihood, kernel, mean=None):
        super().__init__(torch.as_tensor(X), torch.as_tensor(y), likelihood)
        self.mean = gpytorch.means.ZeroMean() if mean is None else mean
        self.kernel = kernel

    def forward(self, X):
        return gpytorch.distributions.MultivariateNormal(self.mean(X), self.kernel(X))


def gaussian(noise):
    likelihood = gpytorch.likelihoods.GaussianLikelihood(
        noise_constraint=gpytorch.constraints.GreaterThan(1e-9)
    ).double()
    likelihood.noise = torch.tensor(noise, dtype=torch.float64)
    return likelihood


def close(found, expected, tolerance):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=tolerance)


# --- the exact engine ----------------------------------------------------------------------------


@random_draws
def test_exact_posterior_and_likelihood_equal_those_of_scikit_learn(seed):
    draw = Draw(seed, ("rbf", *NU))
    gp = ExactEngine(draw.rows()).condition(draw.kernel, draw.parameters)
    model = draw.sklearn(draw.X, draw.y)
    mean, covariance = model.predict(draw.queries, return_cov=True)
    Z = torch.as_tensor(draw.queries)
    close(gp.mean(Z), mean, 1e-8)
    close(gp.covariance(Z), covariance, 1e-8)
    value = objectives.nll(*_given(gp, draw.rows())).value
    assert value == pytest.approx(-model.log_marginal_likelihood(model.kernel_.theta), rel=1e-8)


def _given(gp, rows):
    f, s = gp.factored()
    return f, rows, s


@random_draws
def test_exact_posterior_and_likelihood_equal_those_of_gpytorch(seed):
    draw = Draw(seed)
    gp = ExactEngine(draw.rows()).condition(draw.kernel, draw.parameters)
    model = Model(draw.X, draw.y, gaussian(draw.noise), draw.kernel.to_gpytorch(draw.theta))
    _same_as_gpytorch(draw, gp, model)


def _same_as_gpytorch(draw, gp, model):
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    Z = torch.as_tensor(draw.queries)
    scale = float(gp.kernel.diagonal(Z, gp.parameters[:-1]).max())
    with torch.no_grad(), exactly():
        likelihood = float(mll(model(*model.train_inputs), model.train_targets)) * len(draw.y)
        found = model.eval()(Z)
    tolerance = THEIRS * max(1.0, scale) / min(1.0, draw.noise)
    close(gp.mean(Z), found.mean, tolerance)
    close(gp.variance(Z), found.variance, tolerance)
    value = objectives.nll(*_given(gp, gp.rows)).value
    assert value == pytest.approx(-likelihood, rel=1e-5, abs=1e-4)


def composed(rng, d, depth=2):
    """Return a random sum or product of GPyTorch kernels."""
    if depth == 0:
        leaf = rng.integers(4)
        columns = tuple(sorted(rng.choice(d, size=int(rng.integers(1, d + 1)), replace=False)))
        options = {"active_dims": tuple(int(k) for k in columns)}
        if leaf == 0:
            return gk.ScaleKernel(gk.RBFKernel(ard_num_dims=len(columns), **options))
        if leaf == 1:
            return gk.ScaleKernel(gk.MaternKernel(nu=float(rng.choice([1.5, 2.5])), **options))
        if leaf == 2:
            return gk.ScaleKernel(gk.PeriodicKernel(**options))
        return gk.ScaleKernel(gk.RQKernel(**options))  # sums of linear ones need jitter there
    left, right = composed(rng, d, depth - 1), composed(rng, d, depth - 1)
    return left + right if rng.integers(2) else left * right


@random_draws
def test_sums_and_products_of_gpytorch_kernels_equal_those_of_gpytorch(seed):
    draw = Draw(seed)
    d = draw.X.shape[1]
    kernel = WrappedKernel(composed(draw.rng, d), d)
    theta = kernel.start() + draw.rng.normal(scale=0.2, size=kernel.size)
    gp = ExactEngine(draw.rows()).condition(kernel, np.append(theta, np.log(draw.noise)))
    model = Model(draw.X, draw.y, gaussian(draw.noise), kernel.to_gpytorch(theta))
    _same_as_gpytorch(draw, gp, model)


# --- the neighbour engine ------------------------------------------------------------------------


@random_draws
def test_with_all_rows_as_neighbours_the_result_is_that_of_the_exact_engine(seed):
    draw = Draw(seed)
    for groups in (None, draw.rng.integers(0, 4, size=len(draw.y))):
        rows = draw.rows(groups)
        engines = NeighborEngine(rows, n_neighbors=len(rows)), ExactEngine(rows)
        near, exact = (engine.condition(draw.kernel, draw.parameters) for engine in engines)
        Z = torch.as_tensor(draw.queries)
        close(near.mean(Z), exact.mean(Z), 1e-7)
        close(near.variance(Z), exact.variance(Z), 1e-7)
        one, other = near.heldout(), exact.heldout()
        for part in ("residual", "slope", "variance"):
            close(getattr(one, part), getattr(other, part), 1e-7)


# --- what is held out ----------------------------------------------------------------------------


@random_draws
@pytest.mark.parametrize("grouped", [False, True])
def test_held_out_rows_and_groups_equal_refits_by_scikit_learn(seed, grouped):
    draw = Draw(seed, ("rbf", *NU))
    n = len(draw.y)
    groups = draw.rng.integers(0, 4, size=n) if grouped else None
    gp = ExactEngine(draw.rows(groups)).condition(draw.kernel, draw.parameters)
    held, merged = gp.heldout(), draw.merged(groups)
    residual = merged.unmerge(held.residual.numpy(), held.slope.numpy())
    variance = held.variance.numpy()[merged.inverse]
    for part in np.arange(n) if groups is None else np.unique(groups):
        out = np.arange(n) == part if groups is None else groups == part
        if out.all():
            continue
        model = draw.sklearn(draw.X[~out], draw.y[~out])
        mean, std = model.predict(draw.X[out], return_std=True)
        close(residual[out], draw.y[out] - mean, 1e-7)
        close(variance[out], std**2 + draw.noise, 1e-7)


# --- the classifier ------------------------------------------------------------------------------


@random_draws
def test_latents_are_those_of_gpytorchs_dirichlet_likelihood(seed):
    draw = Draw(seed)
    d, n_classes = draw.X.shape[1], int(draw.rng.integers(2, 5))
    X = draw.rng.normal(size=(30, d))
    codes = np.append(np.arange(n_classes), draw.rng.integers(n_classes, size=30 - n_classes))
    alpha_eps = float(draw.rng.choice([0.01, 0.05, 0.3]))
    options = (None, None, torch.device("cpu"), torch.float64)
    table = make_table(X, codes, n_classes, [f"x{k}" for k in range(d)], *options)
    dirichlet = Dirichlet(alpha_eps, n_classes)
    trained = TrainedKernel(
        table.views[0], draw.kernel, draw.parameters, 0.0, dirichlet, np.zeros(n_classes), 1.0, 0.0
    )
    mean, variance = condition(table, trained).moments(draw.queries)
    Z, new = (torch.as_tensor(table.views[0](V)) for V in (X, draw.queries))
    likelihood = gpytorch.likelihoods.DirichletClassificationLikelihood(
        torch.as_tensor(codes), alpha_epsilon=alpha_eps, dtype=torch.float64
    )
    targets = likelihood.transformed_targets
    targets = targets if len(targets) == n_classes else targets.T
    noises = likelihood.noise_covar.noise.detach().reshape(n_classes, 30)
    for k in range(n_classes):
        fixed = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noises[k] + draw.noise)
        kernel = draw.kernel.to_gpytorch(draw.theta)
        with torch.no_grad(), exactly():
            found = Model(Z, targets[k], fixed, kernel).eval()(new)
        close(mean[:, k], found.mean, 1e-5)
        close(variance[:, k], found.variance, 1e-5)
