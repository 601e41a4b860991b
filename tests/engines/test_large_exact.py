"""One n x n matrix: blocked factors, kernels by panels, derivatives from random signs."""

from dataclasses import replace

import gpytorch
import joblib
import numpy as np
import pytest
import torch

from twostagegp import ExactGPRegressor, Training, TwoStageGPRegressor, load
from twostagegp.data.rows import Rows
from twostagegp.engines import choice
from twostagegp.engines.exact import settings as exact_settings
from twostagegp.engines.exact.blocked import BlockedFactor, blocked_bytes
from twostagegp.engines.exact.engine import ExactEngine, ExactPosterior
from twostagegp.engines.exact.large import BlockedInverse, LargeProblem
from twostagegp.engines.exact.panels import CovariancePanels
from twostagegp.engines.exact.tiles import column_slices, row_slices
from twostagegp.engines.memory import exact_bytes, plan_factor, several_targets
from twostagegp.engines.problem import Problem
from twostagegp.errors import MemoryBudgetError, NumericalError
from twostagegp.kernels import KERNELS, NamedKernel, WrappedKernel
from twostagegp.pipeline.settings import ExactSettings, Settings
from twostagegp.runtime.cores import use_cores
from twostagegp.training.optimise import minimise

N, D = 150, 3


IN_BLOCKS = ExactSettings(blocked_rows=60, block_rows=32)
CPU = torch.device("cpu")


def blocked_engine(rows, **options):
    """The exact engine with one matrix, made in blocks."""
    return ExactEngine(rows, settings=IN_BLOCKS, **options)


def make_rows(merged=False, groups=False, n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = torch.as_tensor(rng.normal(size=(n, D)))
    t = torch.sin(2.0 * X[:, 0]) + 0.2 * torch.as_tensor(rng.normal(size=n))
    c, q, extra = torch.ones(n).double(), torch.zeros(n).double(), torch.zeros(n).double()
    if merged:
        c = torch.as_tensor(rng.choice([0.5, 1.0, 3.0], size=n))
        q, extra = 0.02 * (c > 1.0) * c, torch.full((n,), 0.01).double()
    number = torch.as_tensor(rng.integers(0, 40, size=n)) if groups else None
    return Rows(X, t, c, q, extra, number)


def positive_definite(n, seed=0):
    rng = np.random.default_rng(seed)
    B = torch.as_tensor(rng.normal(size=(n, n)))
    return B @ B.T + 0.1 * n * torch.eye(n).double()


def factor_of(K, block):
    return BlockedFactor(lambda a, b: K[a:, a:b].clone(), len(K), K, block=block)


# --- the factor ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "block"), [(1, 4), (7, 7), (40, 13), (130, 10)])
def test_blocks_give_the_factor_of_lapack(n, block):
    K = positive_definite(n)
    factor = factor_of(K, block)
    torch.testing.assert_close(factor.buffer, torch.linalg.cholesky(K), rtol=1e-10, atol=1e-10)
    assert factor.jitter == 0.0
    torch.testing.assert_close(factor.log_determinant(), torch.logdet(K))


@pytest.mark.parametrize("block", [5, 16, 50])
def test_solves_and_the_inverse_equal_the_dense_ones(block):
    K = positive_definite(50)
    factor, A = factor_of(K, block), torch.linalg.inv(K)
    B = torch.as_tensor(np.random.default_rng(1).normal(size=(50, 3)))
    torch.testing.assert_close(factor.solve(B), A @ B)
    torch.testing.assert_close(factor.solve(B[:, 0]), A @ B[:, 0])
    torch.testing.assert_close(factor.inverse_diagonal(), A.diagonal())
    index = torch.tensor([3, 49, 0])
    Z = factor.inverse_columns(index)
    torch.testing.assert_close(Z.T @ Z, A[index][:, index])
    again = BlockedFactor.of(factor.buffer, block)
    torch.testing.assert_close(again.half_solve_(B.clone()), factor.half_solve_(B.clone()))


def test_a_singular_matrix_gets_the_same_jitter_as_in_safe_cholesky():
    rows = make_rows()
    X = rows.X.clone()
    X[100:] = X[:50]
    kernel, parameters = NamedKernel("rbf", D), np.array([0.0, 0.0, np.log(1e-18)])
    rows = Rows(X, rows.t, rows.c, rows.q, rows.extra)
    inverse = BlockedInverse.of(kernel, parameters, rows, 64)
    dense = ExactPosterior(kernel, parameters, rows)
    assert inverse.factor.jitter == pytest.approx(dense.jitter)
    assert inverse.factor.jitter > 0.0


def test_indefinite_matrices_and_nan_raise_different_errors():
    K = positive_definite(40)
    K[20, 20] = -100.0
    with pytest.raises(NumericalError, match="not positive definite, even with a jitter"):
        factor_of(K, 16)
    for place in ((20, 20), (39, 2), (30, 5)):
        K = positive_definite(40)
        K[place] = np.nan
        with pytest.raises(NumericalError, match="NaN or infinite"):
            factor_of(K, 16)
    K = positive_definite(40)
    K[3, 3] = np.inf
    with pytest.raises(NumericalError, match="NaN or infinite"):
        factor_of(K, 16)


def test_the_memory_estimate_includes_large_groups():
    """Two groups of half the rows each take more memory than the factor."""
    n = 20_000
    alone, halves = exact_bytes(n, CPU), exact_bytes(n, CPU, 8, [n // 2] * 2)
    assert halves - alone > 1.4 * n * n * 8
    assert exact_bytes(n, CPU, 8, [10] * (n // 10)) - alone < 0.4 * n * n * 8
    room = ExactSettings(memory_bytes=halves - 1)
    assert plan_factor(n, CPU, torch.float64, (), room) == torch.float64
    assert plan_factor(n, CPU, torch.float64, [n // 2] * 2, room) == torch.float32
    room = ExactSettings(memory_bytes=alone // 2)
    with pytest.raises(MemoryBudgetError) as caught:
        plan_factor(n, CPU, torch.float64, [n // 2] * 2, room)
    most = int(str(caught.value).split("at most ")[1].split()[0])
    assert plan_factor(most, CPU, torch.float64, [most // 2] * 2, room) == torch.float32


def test_a_fit_checks_the_memory_of_its_groups():
    X, y = table()
    exact = ExactSettings(blocked_rows=60, block_rows=8, panel_entries=64)
    needed = exact_bytes(len(X), CPU, 4, [50, 80], exact)
    assert exact_bytes(len(X), CPU, 4, (), exact) < needed - 1
    options = {"training": Training(steps=1), "random_state": 0, "objective": "loo"}
    groups = np.arange(len(X)) < 50
    for room, given in ((needed - 1, None), (needed, groups)):
        settings = Settings(exact=replace(exact, memory_bytes=room))
        ExactGPRegressor(**options, settings=settings).fit(X, y, groups=given)
    settings = Settings(exact=replace(exact, memory_bytes=needed - 1))
    with pytest.raises(MemoryBudgetError, match="130 distinct rows"):
        ExactGPRegressor(**options, settings=settings).fit(X, y, groups=groups)


def test_the_memory_estimate_is_one_matrix_and_panels():
    gpu = torch.device("cuda")
    for n in (50_000, 100_000):
        assert n * n * 8 < blocked_bytes(n, gpu) < 1.3 * n * n * 8
    assert blocked_bytes(20_000, torch.device("cpu")) < 1.5 * 20_000**2 * 8


# --- the covariance by panels --------------------------------------------------------------------


def kernels():
    named = [NamedKernel(name, D, ard) for name in KERNELS for ard in (False, True)]
    shaped = NamedKernel("matern32", D, shape=np.array([1.0, 2.0, 0.5]))
    wrapped = WrappedKernel(gpytorch.kernels.RBFKernel(ard_num_dims=D), D)
    return [*named, shaped, wrapped]


@pytest.mark.parametrize("kernel", kernels(), ids=lambda k: k.label)
def test_panels_give_the_products_and_derivatives_of_the_whole_matrix(kernel):
    rows = make_rows()
    theta = kernel.start() + 0.1 * np.arange(kernel.size)
    panels = CovariancePanels(kernel, theta, rows.X, 0.1 + rows.extra, block=32)
    K, saved = kernel.evaluate(rows.X, theta)
    rng = np.random.default_rng(3)
    U, V = (torch.as_tensor(rng.normal(size=(N, 4))) for _ in range(2))
    W = 0.5 * (U @ V.T + V @ U.T)
    expected = kernel.gradient(rows.X, theta, K, saved, W)
    np.testing.assert_allclose(panels.gradient(U, V), expected, rtol=1e-9, atol=1e-9)
    K.diagonal().add_(0.1)
    torch.testing.assert_close(panels.times(V), K @ V)


# --- parts for the cores -------------------------------------------------------------------------


def test_parts_cover_a_matrix_once():
    assert row_slices(0, 1100, CPU) == [slice(0, 512), slice(512, 1024), slice(1024, 1100)]
    assert row_slices(0, 1100, CPU, concurrent=False) == [slice(0, 1100)]
    assert row_slices(5, 5, CPU) == []
    parts = column_slices(1000, CPU)
    assert [part.stop for part in parts[:-1]] == [part.start for part in parts[1:]]
    assert (parts[0].start, parts[-1].stop) == (0, 1000)
    assert column_slices(0, CPU) == []
    cuda = torch.device("cuda")
    assert row_slices(0, 1100, cuda) == [slice(0, 1100)]
    assert column_slices(1000, cuda) == [slice(0, 1000)]


def everything_of_a_large_problem(cores):
    """A training problem's value and derivatives, and predictions, with a number of cores."""
    rows, kernel = make_rows(n=1300), NamedKernel("matern32", D, ard=True)
    settings = replace(IN_BLOCKS, block_rows=200, probes=64)
    X = torch.as_tensor(np.random.default_rng(7).normal(size=(900, D)))
    with use_cores(cores):
        problem = LargeProblem(kernel, rows, "loo", settings=settings)
        value, gradient = problem(problem.start())
        posterior = ExactEngine(rows, settings=settings).condition(kernel, problem.start())
        outputs = [posterior.mean(X), posterior.variance(X), posterior.covariance(X[:300])]
        held = posterior.heldout()
    return [torch.tensor(value), torch.tensor(gradient), *outputs, held.residual, held.variance]


def test_every_number_of_cores_computes_the_same_bits(monkeypatch):
    monkeypatch.setattr(joblib, "cpu_count", lambda *args, **options: 3)
    for one, three in zip(*map(everything_of_a_large_problem, (1, 3)), strict=True):
        assert torch.equal(one, three)


# --- training ------------------------------------------------------------------------------------


def dense_and_large(objective, kernel, probes, **options):
    rows = make_rows(**options)
    R = None
    if objective == "heldout":
        R = 0.2 * rows.c * torch.as_tensor(np.random.default_rng(5).chisquare(1, size=len(rows)))
    given = (kernel, rows, objective, R)
    return Problem(*given), LargeProblem(*given, settings=replace(IN_BLOCKS, probes=probes))


@pytest.mark.parametrize("merged", [False, True], ids=["plain", "merged"])
@pytest.mark.parametrize("groups", [False, True], ids=["rows", "groups"])
@pytest.mark.parametrize("objective", ["nll", "loo", "heldout"])
def test_values_are_exact_and_derivatives_right_on_average(objective, groups, merged):
    kernel = NamedKernel("matern32", D, ard=True)
    dense, large = dense_and_large(objective, kernel, 4000, merged=merged, groups=groups)
    x = dense.start() - 0.2
    (value, gradient), (found, estimated) = dense(x), large(x)
    assert found == pytest.approx(value, rel=1e-10)
    assert large.value(x) == found
    scale = np.abs(gradient).max()
    np.testing.assert_allclose(estimated, gradient, atol=0.05 * scale)


def test_the_error_of_derivatives_falls_with_the_root_of_the_number_of_signs():
    kernel = NamedKernel("rbf", D, ard=True)
    errors = []
    for probes in (20, 2000):
        dense, large = dense_and_large("loo", kernel, probes)
        x = dense.start() - 0.3
        errors.append(np.linalg.norm(large(x)[1] - dense(x)[1]))
    assert errors[1] < 0.3 * errors[0]  # a tenth, but for chance


def test_training_ends_near_the_dense_optimum():
    rows = make_rows(n=400)
    kernel = NamedKernel("matern52", D)
    dense = minimise(Problem(kernel, rows, "loo"))
    large = minimise(blocked_engine(rows).problem(kernel, "loo"))
    assert large.value - dense.value < 1e-3
    np.testing.assert_allclose(large.parameters, dense.parameters, atol=0.3)


# --- conditioning --------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [False, True], ids=["rows", "groups"])
def test_a_blocked_posterior_predicts_as_a_dense_one(groups):
    rows = make_rows(merged=True, groups=groups)
    kernel, parameters = NamedKernel("matern32", D), np.array([0.3, 0.1, np.log(0.05)])
    small = ExactEngine(rows).condition(kernel, parameters)
    X = torch.as_tensor(np.random.default_rng(7).normal(size=(300, D)))
    expected = [small.mean(X), small.variance(X), small.covariance(X[:5]), small.variance(X[:2])]
    held = small.heldout()
    large = blocked_engine(rows).condition(kernel, parameters)
    found = [large.mean(X), large.variance(X), large.covariance(X[:5]), large.variance(X[:2])]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
    again = large.heldout()
    for name in ("residual", "slope", "variance"):
        torch.testing.assert_close(getattr(again, name), getattr(held, name))


def test_a_float32_factor_gives_float64_solutions():
    rows = make_rows(n=300)
    kernel, parameters = NamedKernel("rbf", D), np.array([0.5, 0.5, np.log(1e-3)])
    whole = blocked_engine(rows).condition(kernel, parameters)
    half = blocked_engine(rows, factor_dtype=torch.float32).condition(kernel, parameters)
    assert half.L.dtype == torch.float32
    scale = float(whole.alpha.abs().max())
    torch.testing.assert_close(half.alpha, whole.alpha, rtol=0.0, atol=1e-8 * scale)
    unrefined = BlockedFactor.of(half.L, 32).solve(rows.t).double()
    assert float((unrefined - whole.alpha).abs().max()) > 1e-5 * scale
    X = torch.as_tensor(np.random.default_rng(7).normal(size=(300, D)))
    torch.testing.assert_close(half.variance(X), whole.variance(X), rtol=0.0, atol=1e-3)
    torch.testing.assert_close(half.heldout().variance, whole.heldout().variance, rtol=1e-2, atol=0)
    problem = blocked_engine(rows, factor_dtype=torch.float32).problem(kernel, "loo")
    value, _ = blocked_engine(rows).problem(kernel, "loo")(parameters)
    assert problem(parameters)[0] == pytest.approx(value, rel=1e-3)


def test_a_subset_has_full_precision_if_it_fits():
    engine = ExactEngine(make_rows(), factor_dtype=torch.float32)
    assert engine.subset(np.arange(100)).factor_dtype is None
    assert engine.subset(np.arange(120)).factor_dtype == torch.float32


# --- the front doors -----------------------------------------------------------------------------


def light(settings=None):
    options = {"mean": "rbf", "variance": "rbf", "ard": False, "calibration": "scale"}
    return TwoStageGPRegressor(**options, method="exact", random_state=0, settings=settings)


def table(n=130, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, np.sin(2.0 * X[:, 0]) + 0.3 * X[:, 1] + 0.2 * rng.normal(size=n)


def test_a_fit_in_blocks_is_as_good_as_a_dense_one(tmp_path):
    X, y = table()
    X_new, y_new = table(400, seed=1)

    dense = light().fit(X, y)
    large = light(Settings(exact=ExactSettings(blocked_rows=60, block_rows=64))).fit(X, y)
    losses = [-np.mean(model.predict_logpdf(X_new, y_new)) for model in (dense, large)]
    assert losses[1] < losses[0] + 0.03
    path = tmp_path / "model"
    large.save(path)
    np.testing.assert_allclose(
        load(path).predict(X_new, return_std=True), large.predict(X_new, return_std=True)
    )
    more = table(20, seed=2)
    before = large.predict(X_new)
    large.update(*more)
    assert np.abs(large.predict(X_new) - before).max() < 0.5


def test_the_report_states_that_the_factor_is_float32():
    X, y = table()
    exact = ExactSettings(blocked_rows=100)
    room = exact_bytes(130, CPU, 8, settings=exact) - 1
    settings = Settings(exact=replace(exact, memory_bytes=room))
    model = light(settings).fit(X, y)
    assert "float32" in model.fit_report_.method_reason
    assert model.variance_.posterior.L.dtype == torch.float32
    assert np.isfinite(model.predict(X, return_std=True)).all()
    single = ExactGPRegressor(training=Training(steps=3), random_state=0, settings=settings)
    single.fit(X, y)
    assert np.isfinite(single.predict(X, return_std=True)).all()
    assert "float32" in single.fit_report_.method_reason


def short_fit(X, Y, settings=None):
    model = ExactGPRegressor(training=Training(steps=1), random_state=0, settings=settings)
    return model.fit(X, Y)


def with_memory(room, blocked_rows=4000):
    return Settings(exact=ExactSettings(blocked_rows=blocked_rows, memory_bytes=room))


def test_the_memory_check_counts_the_factors_of_all_targets():
    X, y = table()
    Y, n = np.column_stack([y, -y, y]), len(y)
    enough = exact_bytes(n, CPU) + 2 * n * n * 8
    assert len(short_fit(X, Y, with_memory(enough)).gp_) == 3
    with pytest.raises(MemoryBudgetError, match=rf"{n} distinct rows and 3 targets .* fewer targ"):
        short_fit(X, Y, with_memory(enough - 1))
    short_fit(X, y, with_memory(enough - 1))


def test_free_memory_is_measured_once_for_all_targets(monkeypatch):
    """A patch: memory that shrinks while targets are fitted cannot be passed in as a number."""
    X, y = table()
    measured = iter([exact_bytes(len(y), CPU) + 2 * len(y) ** 2 * 8])
    monkeypatch.setattr(exact_settings, "available_bytes", lambda device: next(measured))
    assert len(short_fit(X, np.column_stack([y, -y, y])).gp_) == 3
    assert list(measured) == []


def test_all_targets_have_the_same_precision_if_float64_does_not_fit_for_all():
    X, y = table()
    own = exact_bytes(len(y), CPU, settings=ExactSettings(blocked_rows=100))
    settings = with_memory(own + len(y) ** 2 * 8 - 1, blocked_rows=100)
    factors = [gp.L for gp in short_fit(X, np.column_stack([y, -y]), settings).gp_]
    assert [L.dtype for L in factors] == [torch.float32] * 2


def test_auto_leaves_room_for_the_factors_of_all_targets():
    exact = ExactSettings(memory_bytes=exact_bytes(40, CPU) + 40**2 * 8 - 1)
    with several_targets(CPU, 2, exact):
        assert choice.choose_method(40, CPU, settings=exact)[0] == "neighbors"
    assert choice.choose_method(40, CPU, settings=exact)[0] == "exact"
