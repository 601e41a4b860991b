"""The exact posterior against dense formulas, scikit-learn and GPyTorch."""

import pickle
from copy import copy
from dataclasses import replace

import gpytorch
import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from twostagegp.data.rows import Rows, merge_rows
from twostagegp.engines.exact import settings as exact_settings
from twostagegp.engines.exact.engine import ExactEngine, ExactPosterior, Work
from twostagegp.engines.exact.settings import ExactSettings
from twostagegp.engines.memory import (
    check_dense_memory,
    covariance_bytes,
    dense_bytes,
    exact_bytes,
    plan_factor,
)
from twostagegp.errors import MemoryBudgetError
from twostagegp.kernels import KERNELS, NamedKernel
from twostagegp.numerics.held_out import leave_out
from twostagegp.runtime import memory

NOISE, SCALE, LENGTHSCALES = 0.15, 1.4, [0.7, 1.6]
PARAMETERS = np.log([*LENGTHSCALES, SCALE, NOISE])
KERNEL = NamedKernel("matern32", 2, ard=True)

SKLEARN = {
    "rbf": sk.RBF(LENGTHSCALES),
    "matern12": sk.Matern(LENGTHSCALES, nu=0.5),
    "matern32": sk.Matern(LENGTHSCALES, nu=1.5),
    "matern52": sk.Matern(LENGTHSCALES, nu=2.5),
}


class Data:
    """A table with repeats, weights and known noise, and queries."""

    def __init__(self, plain=False):
        rng = np.random.default_rng(0)
        self.X = rng.normal(size=(12, 2))[rng.integers(0, 12, size=25)]
        self.y = np.sin(2 * self.X[:, 0]) + 0.3 * rng.normal(size=25)
        self.weight = np.ones(25) if plain else rng.integers(1, 4, size=25) * 1.0
        self.extra = np.zeros(25) if plain else rng.integers(0, 2, size=25) * 0.3
        m = merge_rows(self.X, self.y, self.weight, self.extra)
        self.rows = Rows(*(torch.as_tensor(v) for v in (m.X, m.t, m.c, m.q, m.extra)))
        self.queries = torch.as_tensor(np.vstack([rng.normal(size=(9, 2)), self.X[:3]]))


@pytest.fixture
def data():
    return Data()


@pytest.fixture
def plain():
    return Data(plain=True)


@pytest.fixture
def posterior(data):
    return ExactPosterior(KERNEL, PARAMETERS, data.rows)


def test_mean_and_covariance_are_those_of_the_table_with_every_copy(data, posterior):
    copies = np.repeat(np.arange(25), data.weight.astype(int))
    X, y = torch.as_tensor(data.X[copies]), data.y[copies]

    def k(A, B):
        return KERNEL.cross(A, B, PARAMETERS[:-1]).numpy()

    K = k(X, X) + np.diag(NOISE + data.extra[copies])
    Kq = k(X, data.queries)
    covariance = k(data.queries, data.queries) - Kq.T @ np.linalg.solve(K, Kq)
    np.testing.assert_allclose(
        posterior.mean(data.queries), Kq.T @ np.linalg.solve(K, y), rtol=1e-9, atol=1e-11
    )
    np.testing.assert_allclose(posterior.covariance(data.queries), covariance, atol=1e-11)
    np.testing.assert_allclose(posterior.variance(data.queries), np.diag(covariance), atol=1e-11)


@pytest.mark.parametrize("name", SKLEARN)
def test_posterior_equals_scikit_learns(name, plain):
    gp = ExactPosterior(NamedKernel(name, 2, ard=True), PARAMETERS, plain.rows)
    kernel = sk.ConstantKernel(SCALE) * SKLEARN[name]
    model = GaussianProcessRegressor(kernel, alpha=NOISE, optimizer=None).fit(plain.X, plain.y)
    mean, covariance = model.predict(plain.queries.numpy(), return_cov=True)
    np.testing.assert_allclose(gp.mean(plain.queries), mean, atol=1e-8)
    np.testing.assert_allclose(gp.covariance(plain.queries), covariance, atol=1e-8)


@pytest.mark.parametrize("name", [k for k in KERNELS if k != "rq"])
def test_posterior_equals_gpytorchs(name, plain):
    kernel = NamedKernel(name, 2, ard=True)

    class Model(gpytorch.models.ExactGP):
        def __init__(self, X, y, likelihood):
            super().__init__(X, y, likelihood)
            self.mean = gpytorch.means.ZeroMean()
            self.kernel = kernel.to_gpytorch(PARAMETERS[:-1])

        def forward(self, X):
            return gpytorch.distributions.MultivariateNormal(self.mean(X), self.kernel(X))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = torch.tensor(NOISE, dtype=torch.float64)
    model = Model(torch.as_tensor(plain.X), torch.as_tensor(plain.y), likelihood).eval()
    queries = plain.queries[:9]  # GPyTorch's distance of a row to itself is not exactly zero
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        expected = model(queries)
    gp = ExactPosterior(kernel, PARAMETERS, plain.rows)
    # The repeats in the table meet GPyTorch's inexact zeros, worst for the rough matern12.
    atol = 1e-7 if name == "matern12" else 1e-8
    np.testing.assert_allclose(gp.mean(queries), expected.mean, atol=atol)
    np.testing.assert_allclose(gp.variance(queries), expected.variance, atol=atol)


def test_variance_is_the_diagonal_of_the_covariance(data, posterior):
    torch.testing.assert_close(
        posterior.variance(data.queries), posterior.covariance(data.queries).diagonal()
    )


@pytest.mark.parametrize("entries", [1, 40, 1000])
def test_prediction_does_not_depend_on_the_chunks(entries, data, posterior):
    mean, variance = posterior.mean(data.queries), posterior.variance(data.queries)
    engine = ExactEngine(data.rows, settings=ExactSettings(panel_entries=entries))
    again = engine.condition(KERNEL, PARAMETERS)
    torch.testing.assert_close(again.mean(data.queries), mean, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(again.variance(data.queries), variance, rtol=1e-12, atol=1e-14)


def test_copies_and_pickles_do_not_contain_the_scaled_rows(data, posterior):
    before = posterior.mean(data.queries)
    assert "_cross" in vars(posterior)
    for other in (copy(posterior), pickle.loads(pickle.dumps(posterior))):
        assert "_cross" not in vars(other)
        assert torch.equal(other.mean(data.queries), before)


def test_no_queries_give_no_predictions(posterior):
    nothing = torch.zeros(0, 2, dtype=torch.float64)
    assert posterior.mean(nothing).shape == posterior.variance(nothing).shape == (0,)


def test_variance_is_never_negative():
    # Almost no noise, at the rows themselves: the difference is nothing but rounding.
    X = torch.linspace(0, 1, 60, dtype=torch.float64)[:, None]
    one = torch.ones(60, dtype=torch.float64)
    rows = Rows(X, X[:, 0], one, 0 * one, 0 * one)
    gp = ExactPosterior(NamedKernel("matern12", 1), np.log([0.5, 1.0, 1e-18]), rows)
    assert gp.covariance(X).diagonal().min() < 0.0
    assert gp.variance(X).min() >= 0.0


def test_far_from_all_rows_the_prior_returns(posterior):
    far = torch.full((1, 2), 1e3, dtype=torch.float64)
    assert float(posterior.mean(far)) == pytest.approx(0.0, abs=1e-12)
    assert float(posterior.variance(far)) == pytest.approx(SCALE)


def test_more_rows_never_raise_the_variance(data, posterior):
    fewer = ExactPosterior(KERNEL, PARAMETERS, data.rows.subset(np.arange(6)))
    assert torch.all(posterior.variance(data.queries) <= fewer.variance(data.queries) + 1e-12)


def test_heldout_is_the_objectives_closed_form(data, posterior):
    f, s = ExactPosterior(KERNEL, PARAMETERS, data.rows).factored()
    expected = leave_out(f, data.rows, s)
    torch.testing.assert_close(posterior.heldout().residual, expected.residual)
    torch.testing.assert_close(posterior.heldout().variance, expected.variance)


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("blocked_rows", [4000, 5])
def test_heldout_by_noise_is_that_of_the_posteriors(data, groups, blocked_rows):
    rows = data.rows
    if groups:
        rows = replace(rows, groups=torch.arange(len(rows)) % 4)
    work = Work(full_rows=len(rows))
    engine = ExactEngine(rows, work=work, settings=ExactSettings(blocked_rows=blocked_rows))
    heldout = engine.heldout_by_noise(KERNEL, PARAMETERS[:-1])
    for log_noise in (-3.0, 0.5):
        posterior = engine.condition(KERNEL, np.append(PARAMETERS[:-1], log_noise))
        found, expected = heldout(log_noise), posterior.heldout()
        torch.testing.assert_close(found.residual, expected.residual)
        torch.testing.assert_close(found.slope, expected.slope)
        torch.testing.assert_close(found.variance, expected.variance)
    assert work.full_conditionings == 4


def test_heldout_by_noise_adds_jitter_as_the_posterior_does():
    X = torch.zeros(3, 2, dtype=torch.float64)
    one = torch.ones(3, dtype=torch.float64)
    engine = ExactEngine(Rows(X, one, one, 0 * one, 0 * one))
    log_noise = np.log(1e-30)
    expected = engine.condition(KERNEL, np.append(PARAMETERS[:-1], log_noise))
    assert expected.jitter > 0.0
    found = engine.heldout_by_noise(KERNEL, PARAMETERS[:-1])(log_noise)
    torch.testing.assert_close(found.residual, expected.heldout().residual)


def test_the_mean_can_be_predicted_after_dropping_the_factor(data, posterior):
    mean = posterior.mean(data.queries)
    posterior.drop_factor()
    torch.testing.assert_close(posterior.mean(data.queries), mean)
    with pytest.raises(AssertionError, match="drop_factor"):
        posterior.variance(data.queries)


def test_another_device_changes_nothing(data, posterior):
    moved = posterior.to(torch.device("cpu"))
    assert torch.equal(moved.mean(data.queries), posterior.mean(data.queries))
    assert torch.equal(moved.variance(data.queries), posterior.variance(data.queries))
    posterior.drop_factor()
    assert torch.equal(
        posterior.to(torch.device("cpu")).mean(data.queries), moved.mean(data.queries)
    )
    assert posterior.to(torch.device("meta")).mean(data.queries.to("meta")).device.type == "meta"


# --- the engine ----------------------------------------------------------------------------------


def test_condition_returns_the_posterior_of_the_rows(data, posterior):
    gp = ExactEngine(data.rows).condition(KERNEL, PARAMETERS)
    assert torch.equal(gp.alpha, posterior.alpha)
    assert gp.noise == pytest.approx(NOISE)


def test_problem_has_the_options_of_the_engine(data):
    engine = ExactEngine(data.rows, noise_floor=1e-3, use_prior=False)
    R = torch.ones(len(data.rows)).double()
    problem = engine.problem(KERNEL, "heldout", R)
    assert (problem.rows, problem.R, problem.objective) == (data.rows, R, "heldout")
    assert (problem.noise_floor, problem.use_prior) == (1e-3, False)


def test_subset_keeps_the_options(data):
    part = ExactEngine(data.rows, noise_floor=1e-3, use_prior=False).subset(np.array([3, 1]))
    assert (part.noise_floor, part.use_prior) == (1e-3, False)
    assert torch.equal(part.rows.X, data.rows.X[[3, 1]])


# --- memory --------------------------------------------------------------------------------------


CPU = torch.device("cpu")


ONE_GIB = ExactSettings(memory_bytes=2**30)


def test_the_memory_error_names_the_bytes_and_a_way_out():
    with pytest.raises(MemoryBudgetError) as caught:
        plan_factor(100_000, CPU, torch.float64, (), ONE_GIB)
    needed = exact_bytes(100_000, CPU, 4) / 2**30
    for part in ("100000 distinct rows", f"{needed:.1f} GiB", "1.0 GiB are free on cpu"):
        assert part in str(caught.value)
    most = int(str(caught.value).split("at most ")[1].split()[0])
    assert plan_factor(most, CPU, torch.float64, (), ONE_GIB) == torch.float32
    with pytest.raises(MemoryBudgetError):
        plan_factor(most + 1, CPU, torch.float64, (), ONE_GIB)


def test_the_factor_is_float32_only_if_float64_does_not_fit():
    n = 10_000
    enough = exact_bytes(n, CPU, 8)
    for available, dtype in ((enough, torch.float64), (enough - 1, torch.float32)):
        settings = ExactSettings(memory_bytes=available)
        assert plan_factor(n, CPU, torch.float64, (), settings) == dtype


def test_dense_training_raises_if_its_matrices_do_not_fit():
    rows = int(np.sqrt(2**30 / dense_bytes(1)))
    with pytest.raises(MemoryBudgetError, match=rf"596.0 GiB.*{rows} rows"):
        check_dense_memory(100_000, CPU, settings=ONE_GIB)
    check_dense_memory(rows, CPU, settings=ONE_GIB)


def test_a_joint_covariance_raises_if_its_panels_do_not_fit():
    """Panels of shape (points, rows) are computed on the device of the model."""
    n, q = 40, 9
    one = torch.ones(n, dtype=torch.float64)
    X = torch.linspace(0, 1, n, dtype=torch.float64)[:, None]
    rows = Rows(X, X[:, 0], one, 0 * one, 0 * one)
    seen = []

    class Counted(NamedKernel):
        def cross_with(self, Z, theta):
            of = super().cross_with(Z, theta)

            def counted(X):
                seen.append((len(X), len(Z)))
                return of(X)

            return counted

    def covariance(**sizes):
        engine = ExactEngine(rows, settings=ExactSettings(**sizes))
        gp = engine.condition(Counted("rbf", 1), np.array([0.0, 0.0, -3.0]))
        return gp.covariance(X[:q])

    enough = covariance_bytes(q, n, CPU)
    assert enough >= 8 * (q * n + 4 * q * q)
    with pytest.raises(MemoryBudgetError, match=rf"{q} rows given {n} .* at most {q - 1} rows"):
        covariance(memory_bytes=enough - 1)
    expected = covariance(memory_bytes=enough)
    seen.clear()
    two_points = covariance(memory_bytes=enough, panel_entries=2 * n)
    torch.testing.assert_close(two_points, expected)
    assert seen == [(2, n)] * 4 + [(1, n), (q, q)]


def test_unknown_free_memory_does_not_raise(monkeypatch):
    """A patch: only a system that does not say how much is free gives None."""
    monkeypatch.setattr(exact_settings, "available_bytes", lambda device: None)
    check_dense_memory(10**7, CPU)
    assert plan_factor(10**7, CPU, torch.float64) == torch.float64


def test_a_small_fit_passes_the_real_check():
    check_dense_memory(100, CPU)
    assert plan_factor(100, CPU, torch.float64) == torch.float64


def test_float32_halves_the_bytes():
    assert dense_bytes(1000, itemsize=4) * 2 == dense_bytes(1000)


@pytest.mark.parametrize(
    ("system", "container", "expected"), [(5, 3, 3), (5, None, 5), (None, None, None)]
)
def test_the_smaller_of_machine_and_container_counts(system, container, expected):
    measures = (lambda: system, lambda: container)
    assert memory.available_bytes(torch.device("cpu"), measures) == expected


@pytest.mark.parametrize(
    ("limit", "used", "stat", "expected"),
    [
        (1000, 900, "anon 300\ninactive_file 400\nactive_file 150\n", 650),
        (1000, 900, "anon 900\ninactive_file 0\nactive_file 0\n", 100),
        (1000, 900, None, 100),
        (1000, 900, "not what it was\n", 100),
        (1000, 1200, "inactive_file 50\n", 0),
        (1000, 100, "inactive_file 5000\n", 1000),
        ("max", 900, "inactive_file 400\n", None),
        (2**63 - 4096, 900, "inactive_file 400\n", None),
        (None, 900, "inactive_file 400\n", None),
    ],
)
@pytest.mark.parametrize("prefix", ["", "total_"], ids=["v2", "v1"])
def test_cached_file_pages_of_a_container_count_as_free(
    limit, used, stat, expected, prefix, tmp_path
):
    """Cached files fill the memory of a container, but are dropped when memory is needed."""
    if stat is not None:
        lines = [prefix + line for line in stat.splitlines()]
        stat = "\n".join(lines)
    for name, content in (("limit", limit), ("used", used), ("stat", stat)):
        if content is not None:
            (tmp_path / name).write_text(f"{content}\n")
    names = next(group[3] for group in memory.CGROUPS if group[3][0].startswith(prefix + "in"))
    paths = tuple(str(tmp_path / name) for name in ("limit", "used", "stat"))
    assert memory.container_bytes(((*paths, names),)) == expected
