"""Batches of small problems against one problem at a time, dense formulas and a plain loop."""

import math
import threading
from dataclasses import replace

import gpytorch
import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm
from sklearn.datasets import load_diabetes

from twostagegp.data.rows import Rows
from twostagegp.engines import batched_problem as problem_batch
from twostagegp.engines.batched_problem import Extras, ProblemBatch
from twostagegp.engines.problem import Problem
from twostagegp.errors import MemoryBudgetError, NotFittableError
from twostagegp.kernels import KERNELS, NamedKernel, WrappedKernel
from twostagegp.kernels.batched import kernel_batch
from twostagegp.numerics import held_out, objectives
from twostagegp.numerics.linalg import batch_cholesky, cholesky_solve, safe_cholesky
from twostagegp.numerics.objectives import Factored
from twostagegp.training.batched import (
    BatchFit,
    Pilots,
    bfgs_updates,
    curvature,
    fit_batch,
    group_optima,
    minimise_batch,
    pilot_starts,
    positive_inverse,
)
from twostagegp.training.optimise import bfgs_update, minimise

B, N, D = 5, 12, 3


def inputs(seed=0, size=B, n=N, d=D):
    """Inputs of some problems; each has one repeated row, at distance zero."""
    X = np.random.default_rng(seed).normal(size=(size, n, d))
    X[:, 1] = X[:, 0]
    return torch.as_tensor(X)


def symmetric(seed, size, n=N):
    W = np.random.default_rng(seed).normal(size=(size, n, n))
    return torch.as_tensor(W + W.transpose(0, 2, 1))


def thetas(kernel, seed=1, size=B):
    noise = np.random.default_rng(seed).normal(scale=0.4, size=(size, kernel.size))
    return torch.as_tensor(kernel.start() + noise)


def composition():
    parts = gpytorch.kernels.RBFKernel() + gpytorch.kernels.PeriodicKernel()
    return gpytorch.kernels.ScaleKernel(parts * gpytorch.kernels.RQKernel(ard_num_dims=D))


FORMS = {
    "isotropic": {},
    "ard": {"ard": True},
    "shape": {"shape": np.array([0.5, 1.0, 3.0])},
}
every_kernel = pytest.mark.parametrize(
    "kernel",
    [NamedKernel(name, D, **form) for name in KERNELS for form in FORMS.values()]
    + [WrappedKernel(composition(), D)],
    ids=[f"{name}-{form}" for name in KERNELS for form in FORMS] + ["gpytorch"],
)


# --- the kernel of a batch -----------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True], ids=["own inputs", "shared inputs"])
@every_kernel
def test_covariances_and_derivatives_are_those_of_each_problem(kernel, shared):
    X = inputs(size=1 if shared else B)
    theta, W = thetas(kernel), symmetric(2, B)
    batch = kernel_batch(kernel, X)
    K, saved = batch.evaluate(slice(0, B), theta)
    gradient = batch.gradient(theta, K, saved, W)
    for b in range(B):
        x = X[0 if shared else b]
        single, single_saved = kernel.evaluate(x, theta[b].numpy())
        torch.testing.assert_close(K[b], single, rtol=1e-12, atol=1e-13)
        expected = kernel.gradient(x, theta[b].numpy(), single, single_saved, W[b])
        np.testing.assert_allclose(gradient[b].numpy(), expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("shared", [False, True], ids=["own inputs", "shared inputs"])
@every_kernel
def test_cross_covariances_and_diagonals_are_those_of_each_problem(kernel, shared):
    X, Z = inputs(size=1 if shared else B), inputs(seed=3, size=1 if shared else B, n=4)
    theta = thetas(kernel)
    batch = kernel_batch(kernel, X)
    cross, diagonal = batch.cross(Z, X, theta), batch.diagonal(Z, theta)
    assert cross.shape == (B, 4, N)
    assert diagonal.shape == (B, 4)
    for b in range(B):
        x, z = (X[0], Z[0]) if shared else (X[b], Z[b])
        expected = kernel.cross(z, x, theta[b].numpy())
        torch.testing.assert_close(cross[b], expected, rtol=1e-12, atol=1e-13)
        expected = kernel.diagonal(z, theta[b].numpy())
        torch.testing.assert_close(diagonal[b], expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("index", [slice(1, 3), torch.tensor([4, 0])], ids=["slice", "tensor"])
@pytest.mark.parametrize("ard", [False, True], ids=["isotropic", "ard"])
def test_some_problems_of_a_batch_are_evaluated_with_their_own_inputs(ard, index):
    kernel, X = NamedKernel("matern52", D, ard), inputs()
    theta = thetas(kernel, size=2)
    K, _ = kernel_batch(kernel, X).evaluate(index, theta)
    for b, x in enumerate(X[index]):
        torch.testing.assert_close(K[b], kernel.evaluate(x, theta[b].numpy())[0])


def test_a_gpytorch_kernel_is_not_used_by_two_threads_at_once():
    assert kernel_batch(NamedKernel("rbf", D), inputs()).concurrent
    assert not kernel_batch(WrappedKernel(composition(), D), inputs()).concurrent


# --- many factorisations -------------------------------------------------------------------------


def test_each_matrix_of_a_batch_gets_only_the_jitter_that_it_needs():
    good = torch.eye(3, dtype=torch.float64) * 2.0
    K = torch.stack([good, torch.ones_like(good), -good, good * math.nan])
    L, fine = batch_cholesky(K)
    assert fine.tolist() == [True, True, False, False]
    torch.testing.assert_close(L[0] @ L[0].T, good, rtol=0.0, atol=1e-15)
    torch.testing.assert_close(L[1] @ L[1].T, K[1], rtol=0.0, atol=1e-5)
    torch.testing.assert_close(L[2:], torch.eye(3).double().expand(2, 3, 3))


# --- the likelihood of a batch -------------------------------------------------------------------


def targets(seed=5, size=B, n=N):
    return torch.as_tensor(np.random.default_rng(seed).normal(size=(size, n)))


def batch_of(kernel=None, **options):
    kernel = NamedKernel("matern32", D, ard=True) if kernel is None else kernel
    return ProblemBatch.of(kernel, inputs(), targets(), **options)


def parameters_of(problems, seed=6):
    starts = problems.starts()
    return starts + np.random.default_rng(seed).normal(scale=0.3, size=starts.shape)


def single(problems, b, use_prior=True):
    rows, floor = rows_of(problems, b), problems.noise_floor
    return Problem(problems.kernel, rows, "nll", noise_floor=floor, use_prior=use_prior)


def rows_of(problems, b):
    """The merged rows of one problem."""
    X, e = own(problems.X, b), problems.extras
    one = torch.ones(problems.n_rows, dtype=torch.float64)
    extras = (one, 0 * one, 0 * one) if e is None else (own(v, b) for v in (e.c, e.q, e.known))
    return Rows(X, problems.t[b], *extras)


def own(values, b):
    """Those of problem b, where perhaps one stands for all."""
    return values[b if len(values) > 1 else 0]


def everything(problems, x):
    return problems(x, np.arange(len(x)))


@pytest.mark.parametrize("use_prior", [True, False], ids=["prior", "no prior"])
@every_kernel
def test_values_and_gradients_are_those_of_single_problems(kernel, use_prior):
    problems = batch_of(kernel, use_prior=use_prior)
    x = parameters_of(problems)
    values, gradients = everything(problems, x)
    for b in range(B):
        value, gradient = single(problems, b, use_prior)(x[b])
        assert values[b] == pytest.approx(value, abs=1e-10)
        np.testing.assert_allclose(gradients[b], gradient, rtol=1e-8, atol=1e-10)


def test_problems_with_shared_inputs_have_the_values_of_single_problems():
    problems = ProblemBatch.of(NamedKernel("rq", D), inputs(size=1), targets())
    assert len(problems) == B
    x = parameters_of(problems)
    values, gradients = everything(problems, x)
    for b in range(B):
        value, gradient = single(problems, b)(x[b])
        assert values[b] == pytest.approx(value, abs=1e-10)
        np.testing.assert_allclose(gradients[b], gradient, rtol=1e-8, atol=1e-10)


def test_starts_and_bounds_are_those_of_single_problems():
    problems = batch_of(noise_floor=1e-3)
    problem = single(problems, 0)
    np.testing.assert_array_equal(problems.starts(), np.tile(problem.start(), (B, 1)))
    np.testing.assert_array_equal(np.array(problems.bounds()).T, problem.bounds())


def slopes(problems, x):
    """Derivatives by fourth-order differences, shape (b, p)."""
    found = np.empty_like(x)
    for j in range(x.shape[1]):
        h = np.zeros_like(x)
        h[:, j] = 1e-4
        near = everything(problems, x + h)[0] - everything(problems, x - h)[0]
        far = everything(problems, x + 2 * h)[0] - everything(problems, x - 2 * h)[0]
        found[:, j] = (8 * near - far) / 12e-4
    return found


@pytest.mark.parametrize("extras", [False, True], ids=["plain", "weights and known noise"])
@pytest.mark.parametrize("ard", [False, True], ids=["isotropic", "ard"])
@pytest.mark.parametrize("name", KERNELS)
def test_gradients_equal_finite_differences(name, ard, extras):
    options = weights_and_noise() if extras else {}
    problems = batch_of(NamedKernel(name, D, ard), **options)
    x = parameters_of(problems)
    np.testing.assert_allclose(
        everything(problems, x)[1], slopes(problems, x), rtol=1e-6, atol=1e-8
    )


def weights_and_noise(size=B, weights=(0.5, 1.0, 3.0)):
    """Weights, spreads (where a row has several copies or parts of one) and known noise."""
    rng = np.random.default_rng(7)
    c = rng.choice(weights, size=(size, N))
    q = np.where(c == 1.0, 0.0, c * rng.chisquare(1, size=(size, N)))
    known = rng.choice([0.0, 0.2], size=(size, N))
    return {"extras": Extras(*(torch.as_tensor(v) for v in (c, q, known)))}


def factored(problems, x, b):
    """The factorisation and noise variances of problem b, without the batch."""
    rows = rows_of(problems, b)
    s = math.exp(x[b, -1]) + rows.extra
    K = problems.kernel.evaluate(rows.X, x[b, :-1])[0]
    L, _ = safe_cholesky(K + torch.diag(s / rows.c))
    return Factored(L, torch.cholesky_inverse(L), cholesky_solve(L, rows.t)), rows, s


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("use_prior", [True, False], ids=["prior", "no prior"])
@every_kernel
def test_merged_rows_have_the_values_and_gradients_of_single_problems(kernel, use_prior, shared):
    problems = batch_of(kernel, use_prior=use_prior, **weights_and_noise(1 if shared else B))
    assert {0.5, 1.0, 3.0} == set(problems.extras.c.unique().tolist())
    x = parameters_of(problems)
    values, gradients = everything(problems, x)
    for b in range(B):
        value, gradient = single(problems, b, use_prior)(x[b])
        assert values[b] == pytest.approx(value, abs=1e-10)
        np.testing.assert_allclose(gradients[b], gradient, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@every_kernel
def test_merged_rows_have_the_densities_and_errors_of_their_objectives(kernel, shared):
    problems = batch_of(kernel, **weights_and_noise(1 if shared else B))
    x = parameters_of(problems)
    columns = ("nll", "loo_density", "loo_error")
    found = {
        name: np.concatenate(
            problems.map(x, np.arange(B), lambda block, name=name: getattr(block, name)())
        )
        for name in columns
    }
    for b in range(B):
        f, rows, s = factored(problems, x, b)
        assert found["nll"][b] == pytest.approx(objectives.nll(f, rows, s).value, abs=1e-10)
        loo = objectives.loo_density(f, rows, s).value
        assert found["loo_density"][b] == pytest.approx(loo, abs=1e-10)
        squares = held_out.leave_out(f, rows, s).sum_of_squares(rows)
        assert found["loo_error"][b] == pytest.approx(float(squares.sum()) / rows.total, abs=1e-10)


def test_rows_without_repeats_and_noise_have_no_extras():
    one = torch.ones(4, dtype=torch.float64)
    X, index = torch.arange(4.0).double()[:, None], torch.tensor([[2, 0], [1, 3]])
    assert Extras.of(Rows(X, one, one, 0 * one, 0 * one), index) is None
    for c, q, known in ((2 * one, 0 * one, 0 * one), (one, one, 0 * one), (one, 0 * one, one)):
        rows = Rows(X, one, c + X[:, 0], q + X[:, 0], known + X[:, 0])
        extras = Extras.of(rows, index)
        torch.testing.assert_close(extras.c, rows.c[index])
        torch.testing.assert_close(extras.q, rows.q[index])
        torch.testing.assert_close(extras.known, rows.extra[index])


def test_extras_of_plain_rows_do_not_change_the_result():
    one = torch.ones(1, N, dtype=torch.float64)
    plain, said = batch_of(), batch_of(extras=Extras(one, 0 * one, 0 * one))
    x = parameters_of(plain)
    for expected, found in zip(everything(plain, x), everything(said, x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
    first, second = blocks(plain, x), blocks(said, x)
    torch.testing.assert_close(first.loo_density(), second.loo_density())
    torch.testing.assert_close(first.loo_error(), second.loo_error())


class Copies:
    """A batch of merged rows, and the rows of every problem before merging."""

    def __init__(self, given, shared=False):
        rng = np.random.default_rng(7)
        self.kernel = NamedKernel("matern32", D, ard=True)
        X, sizes = inputs().numpy(), rng.choice([1, 2, 3], size=(1 if shared else B, N))
        known = rng.choice([0.0, 0.2], size=(1 if shared else B, N))
        if "weight" not in given:
            sizes[:] = 1
        if "known" not in given:
            known[:] = 0.0
        self.problem, merged = [], []
        X[:, 1] += 0.01  # no two rows of a problem are the same before they are repeated
        for b in range(B):
            row = np.repeat(np.arange(N), own(sizes, b))
            y = rng.normal(size=N)[row] + 0.3 * rng.normal(size=len(row))
            self.problem.append((X[b][row], y, own(known, b)[row]))
            t = np.bincount(row, y) / own(sizes, b)
            merged.append((t, np.bincount(row, (y - t[row]) ** 2)))
        t, q = (torch.as_tensor(np.array(v)) for v in zip(*merged, strict=True))
        c = torch.as_tensor(sizes.astype(float))
        extras = Extras(c, q, torch.as_tensor(known))
        self.batch = ProblemBatch.of(
            self.kernel, torch.as_tensor(X), t, extras=extras, use_prior=False
        )

    def dense(self, x, b):
        """K without noise, noise of every row, and target, of problem b."""
        X, y, known = self.problem[b]
        X = torch.as_tensor(X)
        return self.kernel.cross(X, X, x[b, :-1]).numpy(), math.exp(x[b, -1]) + known, y


given_extras = pytest.mark.parametrize(
    "given", [("weight",), ("known",), ("weight", "known")], ids=" ".join
)


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@given_extras
def test_the_value_is_the_log_density_of_all_copies_per_copy(given, shared):
    copies = Copies(given, shared)
    x = parameters_of(copies.batch)
    values, _ = everything(copies.batch, x)
    totals = np.broadcast_to(blocks(copies.batch, x).total, B)
    for b in range(B):
        K, s, y = copies.dense(x, b)
        density = multivariate_normal(np.zeros(len(y)), K + np.diag(s)).logpdf(y)
        assert totals[b] == len(y)
        assert values[b] * len(y) == pytest.approx(-density, abs=1e-9)


def dense(problems, x, b):
    """K without noise, and what stands on the diagonal, of problem b."""
    rows = rows_of(problems, b)
    K = problems.kernel.evaluate(rows.X, x[b, :-1])[0].numpy()
    return K, ((math.exp(x[b, -1]) + rows.extra) / rows.c).numpy()


def blocks(problems, x):
    """The whole batch as one block."""
    (block,) = problems.map(x, np.arange(len(x)), lambda block: block)
    return block


def assert_scores_of_refits(block, b, K, s, t):
    """Leave-one-out density and error are those of predictions of each row from the others."""
    total, squares = 0.0, 0.0
    for i in range(len(t)):
        rest = np.arange(len(t)) != i
        solve = np.linalg.solve(K[rest][:, rest] + np.diag(s[rest]), K[rest, i])
        variance = K[i, i] + s[i] - K[i, rest] @ solve
        total -= norm.logpdf(t[i], solve @ t[rest], math.sqrt(variance))
        squares += (t[i] - solve @ t[rest]) ** 2
    assert float(block.loo_density()[b]) == pytest.approx(total, rel=1e-9)
    assert float(block.loo_error()[b]) == pytest.approx(squares / len(t), rel=1e-9)


def test_leave_one_out_density_and_error_are_those_of_refits():
    problems = batch_of(use_prior=False)
    x = parameters_of(problems)
    block = blocks(problems, x)
    for b in range(B):
        assert_scores_of_refits(block, b, *dense(problems, x, b), problems.t[b].numpy())


@given_extras
def test_leave_one_out_density_and_error_of_merged_rows_leave_one_copy_out(given):
    copies = Copies(given)
    x = parameters_of(copies.batch)
    block = blocks(copies.batch, x)
    for b in range(B):
        assert_scores_of_refits(block, b, *copies.dense(x, b))


def test_a_block_holds_the_factorisation_of_its_problems():
    problems = batch_of(**weights_and_noise())
    x = parameters_of(problems)
    block = blocks(problems, x)
    for b in range(B):
        K, s = dense(problems, x, b)
        A = np.linalg.inv(K + np.diag(s))
        np.testing.assert_allclose(block.K[b], K, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(block.s[b], s, rtol=1e-12)
        np.testing.assert_allclose(block.A[b], A, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(block.alpha[b], A @ problems.t[b].numpy(), rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(block.L[b] @ block.L[b].T, K + np.diag(s), atol=1e-12)


# --- blocks and threads --------------------------------------------------------------------------


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("problems_a_block", [1, 2, 3, 100])
@pytest.mark.parametrize("wrapped", [False, True], ids=["named", "gpytorch"])
def test_the_size_of_a_block_does_not_matter(wrapped, problems_a_block):
    kernel = WrappedKernel(composition(), D) if wrapped else NamedKernel("matern12", D)
    problems = batch_of(kernel)
    x = parameters_of(problems)
    expected = [single(problems, b)(x[b]) for b in range(B)]
    problems = replace(problems, cache_entries=problems_a_block * N * N)
    sizes = problems.map(x, np.arange(B), lambda block: len(block.t))
    # A GPyTorch kernel is differentiated before it is evaluated for the next problem.
    assert len(sizes) == (B if wrapped else math.ceil(B / problems_a_block))
    values, gradients = everything(problems, x)
    np.testing.assert_allclose(values, [value for value, _ in expected], rtol=1e-11)
    np.testing.assert_allclose(gradients, [g for _, g in expected], rtol=1e-8, atol=1e-10)


def test_the_number_of_threads_does_not_matter():
    problems = replace(batch_of(**weights_and_noise()), cache_entries=N * N)
    x = parameters_of(problems)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(everything(problems, x))
    finally:
        torch.set_num_threads(before)
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-12)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("two_threads")
def test_blocks_are_shared_between_workers_that_end_afterwards():
    problems = replace(batch_of(), cache_entries=N * N)
    alive = set(threading.enumerate())

    def where(block):
        return threading.current_thread(), torch.get_num_threads(), int(block.index.start)

    found = problems.map(problems.starts(), np.arange(B), where)
    assert not {thread for thread, _, _ in found} & alive
    assert {threads for _, threads, _ in found} == {1}
    assert [start for _, _, start in found] == list(range(B))
    assert set(threading.enumerate()) == alive
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupt_ends_all_workers_and_restores_the_number_of_threads(error):
    problems = replace(batch_of(), cache_entries=N * N)
    alive = set(threading.enumerate())

    def fails(block):
        raise error

    with pytest.raises(error):
        problems.map(problems.starts(), np.arange(B), fails)
    assert set(threading.enumerate()) == alive
    assert torch.get_num_threads() == 2


# --- parts of a batch ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "index",
    [[3], [1, 2, 3], [4, 2, 0], [0, 0, 2], [1, 1, 1], [0, 2, 1, 3], [1, 0, 3], [0, 1, 2, 3, 4, 0]],
    ids=str,
)
def test_problems_are_evaluated_in_any_order_and_several_times(index):
    problems = batch_of(**weights_and_noise())
    x = parameters_of(problems)
    values, gradients = everything(problems, x)
    some = problems(x[index], np.array(index))
    np.testing.assert_allclose(some[0], values[index], rtol=1e-12)
    np.testing.assert_allclose(some[1], gradients[index], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("index", [[0, 1], [3, 1], [0, 3, 3, 3]], ids=str)
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_a_subset_has_its_problems_and_its_first_rows(index, shared):
    problems = batch_of(**weights_and_noise(1 if shared else B))
    x = parameters_of(problems)[: len(index)]
    part = problems.subset(np.array(index), 7)
    assert (len(part), part.n_rows) == (len(index), 7)
    rows, e = [0] * len(index) if shared else index, problems.extras
    extras = Extras(e.c[rows, :7], e.q[rows, :7], e.known[rows, :7])
    X, t = problems.X[index, :7], problems.t[index, :7]
    fresh = ProblemBatch.of(problems.kernel, X, t, extras=extras)
    np.testing.assert_allclose(everything(part, x)[0], everything(fresh, x)[0], rtol=1e-12)
    np.testing.assert_allclose(everything(part, x)[1], everything(fresh, x)[1], rtol=1e-9)


def test_with_shared_inputs_there_may_be_more_new_targets_than_problems():
    kernel, X = NamedKernel("rbf", D), inputs(size=1)
    one = ProblemBatch.of(kernel, X, targets(size=1))
    many = one.with_targets(targets(size=9))
    assert (len(one), len(many)) == (1, 9)
    x = parameters_of(many)
    expected = everything(ProblemBatch.of(kernel, X.expand(9, -1, -1), targets(size=9)), x)
    np.testing.assert_allclose(everything(many, x)[0], expected[0], rtol=1e-12)


def test_new_targets_of_merged_rows_may_have_new_sums_of_squares():
    kernel, X, extras = NamedKernel("rbf", D), inputs(size=1), weights_and_noise(1)["extras"]
    one = ProblemBatch.of(kernel, X, targets(size=1), extras=extras)
    q = torch.as_tensor(np.random.default_rng(9).chisquare(2, size=(9, N)))
    many = one.with_targets(targets(size=9), q)
    x = parameters_of(many)
    values, gradients = everything(many, x)
    for b in range(9):
        rows = Rows(X[0], targets(size=9)[b], extras.c[0], q[b], extras.known[0])
        value, gradient = Problem(kernel, rows, "nll")(x[b])
        assert values[b] == pytest.approx(value, abs=1e-10)
        np.testing.assert_allclose(gradients[b], gradient, rtol=0.0, atol=1e-10)
    # Without new spreads the old ones stay.
    same = one.with_targets(targets(size=9))
    torch.testing.assert_close(same.extras.q, extras.q)


def broken(how, which):
    """Noisy waves, and one problem that cannot be factorised."""
    rng = np.random.default_rng(8)
    X = torch.as_tensor(rng.uniform(-2, 2, size=(B, 25, 1)))
    t = torch.sin(2 * X[:, :, 0]) + 0.2 * torch.as_tensor(rng.normal(size=(B, 25)))
    known = torch.zeros_like(t)
    if how == "nan":
        X[which, 4, 0] = math.nan
    else:
        known[which] = -1e6
    extras = Extras(torch.ones_like(t), torch.zeros_like(t), known)
    return ProblemBatch.of(NamedKernel("rbf", 1), X, t, extras=extras)


one_is_broken = pytest.mark.parametrize(
    ("how", "which"), [("nan", 2), ("indefinite", 2), ("nan", 0), ("indefinite", 0)]
)


@one_is_broken
def test_a_problem_that_cannot_be_factorised_is_infinite_and_does_not_affect_others(how, which):
    problems = broken(how, which)
    x = parameters_of(problems)
    values, gradients = everything(problems, x)
    assert np.isfinite(gradients).all()
    for b in range(B):
        if b == which:
            assert values[b] == math.inf
        else:
            assert values[b] == pytest.approx(single(problems, b)(x[b])[0], abs=1e-10)


@one_is_broken
def test_one_problem_that_cannot_be_fitted_does_not_affect_the_others(how, which):
    problems = broken(how, which)
    fit = fit_batch(problems)
    for b in range(B):
        if b == which:
            assert fit.value[b] == math.inf
        else:
            assert fit.value[b] < minimise(single(problems, b), tolerance=1e-9).value + 1e-3


def test_a_batch_without_any_factorisable_problem_raises():
    one = torch.ones(1, N, dtype=torch.float64)
    extras = Extras(one, 0 * one, -10.0 * one)
    with pytest.raises(NotFittableError, match="rbf cannot be factorised at any starting value"):
        fit_batch(batch_of(NamedKernel("rbf", D), extras=extras))


# --- memory --------------------------------------------------------------------------------------


def test_a_batch_that_does_not_fit_into_memory_raises_with_numbers():
    X = torch.zeros(1, 1, 1, dtype=torch.float64).expand(1000, 500, 1)
    # (1000 + 8) x 500 x 500 x 8 bytes are 1.88 GiB; half of 1 GiB is allowed.
    message = "1000 problems of 500 rows needs about 1.9 GiB; the budget on cpu is 0.5 GiB"
    with pytest.raises(MemoryBudgetError, match=message):
        ProblemBatch.of(NamedKernel("rbf", 1), X, X[:, :, 0], memory_bytes=2**30)


def test_just_enough_or_unknown_memory_does_not_raise(monkeypatch):
    needed = (B + 8) * N * N * 8
    assert len(batch_of(memory_bytes=2 * needed)) == B
    with pytest.raises(MemoryBudgetError):
        batch_of(memory_bytes=2 * needed - 2)
    # A patch: only a system that does not say how much is free gives None.
    monkeypatch.setattr(problem_batch, "available_bytes", lambda device: None)
    assert len(batch_of()) == B


# --- training ------------------------------------------------------------------------------------


class Bowls:
    """Smooth functions with the interface of a ProblemBatch that minimise_batch needs."""

    def __init__(self, centres, bound=10.0, curvature=(1.0, 9.0)):
        self.centres = np.asarray(centres, dtype=float)
        self.bound, self.curvature = bound, np.array(curvature)
        self.calls = []

    def __len__(self):
        return len(self.centres)

    def bounds(self):
        p = self.centres.shape[1]
        return np.full(p, -self.bound), np.full(p, self.bound)

    def __call__(self, x, index):
        self.calls.append((x.copy(), index.copy()))
        offset = x - self.centres[index]
        value = (self.curvature * (np.cosh(offset) - 1.0)).sum(1)
        return value, self.curvature * np.sinh(offset)


CENTRES = np.array([[0.0, 0.0], [1.0, -1.0], [-2.0, 0.5], [0.3, 3.0]])


def test_every_bowl_is_minimised():
    bowls = Bowls(CENTRES)
    fit = minimise_batch(bowls, np.zeros_like(CENTRES), tolerance=1e-12)
    np.testing.assert_allclose(fit.parameters, CENTRES, atol=1e-5)
    assert fit.converged.all()


def test_a_problem_at_its_optimum_takes_one_evaluation_and_others_go_on():
    bowls = Bowls(CENTRES)
    fit = minimise_batch(bowls, np.zeros_like(CENTRES))
    assert fit.evaluations[0] == 1
    assert (fit.evaluations[1:] > 1).all()
    # What was counted is what was evaluated, and nothing else was.
    times = np.bincount(np.concatenate([index for _, index in bowls.calls]), minlength=4)
    np.testing.assert_array_equal(times, fit.evaluations)
    assert len(bowls.calls) == fit.evaluations.max()


def test_evaluations_are_limited():
    fit = minimise_batch(Bowls(CENTRES), np.zeros_like(CENTRES), evaluations=3, tolerance=1e-14)
    assert fit.evaluations.tolist() == [1, 3, 3, 3]
    assert fit.converged.tolist() == [True, False, False, False]


def test_the_value_never_rises_above_that_of_the_start():
    bowls = Bowls(CENTRES)
    start = np.random.default_rng(0).normal(scale=3.0, size=CENTRES.shape)
    fit = minimise_batch(bowls, start, evaluations=2)
    assert (fit.value <= bowls(start, np.arange(4))[0]).all()
    np.testing.assert_allclose(fit.value, bowls(fit.parameters, np.arange(4))[0])


def test_bounds_hold_and_the_best_point_within_them_is_found():
    bowls = Bowls(CENTRES, bound=0.8)
    fit = minimise_batch(bowls, np.full_like(CENTRES, 5.0), tolerance=1e-12)
    assert max(np.abs(x).max() for x, _ in bowls.calls) <= 0.8
    np.testing.assert_allclose(fit.parameters, np.clip(CENTRES, -0.8, 0.8), atol=1e-5)
    assert fit.converged.all()


def test_the_known_curvature_saves_evaluations():
    bowls = Bowls(CENTRES * 0.1)
    start = np.zeros_like(CENTRES)
    plain = minimise_batch(bowls, start, tolerance=1e-10)
    known = minimise_batch(bowls, start, np.diag([1.0, 1 / 9.0]), tolerance=1e-10)
    assert known.evaluations.sum() < plain.evaluations.sum()
    np.testing.assert_allclose(known.parameters, 0.1 * CENTRES, atol=1e-4)


def test_one_problem_may_have_several_starts():
    bowls = Bowls(CENTRES)
    index = np.array([2, 2, 0])
    fit = minimise_batch(bowls, np.zeros((3, 2)), index=index, tolerance=1e-12)
    np.testing.assert_allclose(fit.parameters, CENTRES[index], atol=1e-5)


def test_the_better_of_two_fits_is_kept_with_all_evaluations():
    nan = math.nan
    first = BatchFit(np.array([[1.0], [2.0]]), np.array([3.0, 1.0]), np.array([4, 5]), np.eye(2)[0])
    other = BatchFit(np.array([[7.0], [nan]]), np.array([2.0, 9.0]), np.array([1, 1]), np.eye(2)[1])
    best = first.merge_better(other, np.arange(2))
    np.testing.assert_array_equal(best.parameters, [[7.0], [2.0]])
    np.testing.assert_array_equal(best.value, [2.0, 1.0])
    np.testing.assert_array_equal(best.evaluations, [5, 6])
    np.testing.assert_array_equal(best.converged, [0.0, 0.0])


def test_merging_a_fit_of_some_problems_keeps_the_others():
    one = BatchFit(np.array([[7.0]]), np.array([2.0]), np.array([3]), np.array([True]))
    spread = one.spread(np.array([1]), 3)
    np.testing.assert_array_equal(spread.value, [math.inf, 2.0, math.inf])
    np.testing.assert_array_equal(spread.evaluations, [0, 3, 0])
    better = BatchFit(np.array([[5.0]]), np.array([1.0]), np.array([2]), np.array([True]))
    both = spread.merge_better(better, np.array([2]))
    np.testing.assert_array_equal(both.parameters[:, 0], [0.0, 7.0, 5.0])
    np.testing.assert_array_equal(spread.value, [math.inf, 2.0, math.inf])  # not changed


def test_updates_of_many_inverse_hessians_are_the_bfgs_formula():
    rng = np.random.default_rng(0)
    M = rng.normal(size=(6, 3, 3))
    H, s, y = M @ M.transpose(0, 2, 1), rng.normal(size=(6, 3)), rng.normal(size=(6, 3))
    assert len({bool(v > 0) for v in (s * y).sum(1)}) == 2  # both kinds are there
    expected = [bfgs_update(*parts) for parts in zip(H, s, y, strict=True)]
    np.testing.assert_allclose(bfgs_updates(H, s, y), expected, rtol=1e-10)


def test_an_indefinite_hessian_has_a_positive_inverse():
    vectors, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    hessian = (vectors * [4.0, -2.0, 1e-9]) @ vectors.T
    inverse = (vectors * [0.25, 0.5, 1e3]) @ vectors.T
    np.testing.assert_allclose(positive_inverse(hessian), inverse, rtol=1e-6, atol=1e-6)


def test_curvature_is_the_inverse_of_the_mean_hessian():
    problems = batch_of(NamedKernel("rbf", D))
    x = fit_batch(problems, tolerance=1e-10).parameters
    hessians = []
    for j in range(x.shape[1]):
        h = np.zeros_like(x)
        h[:, j] = 1e-3
        difference = everything(problems, x + h)[1] - everything(problems, x - h)[1]
        hessians.append(difference.mean(0) / 2e-3)
    hessian = np.array(hessians)
    eigenvalues, vectors = np.linalg.eigh(0.5 * (hessian + hessian.T))
    expected = (vectors / np.maximum(np.abs(eigenvalues), 1e-3)) @ vectors.T
    np.testing.assert_allclose(curvature(problems, x), expected, rtol=0.02, atol=0.02)


# --- several optima ------------------------------------------------------------------------------


def groups_of(optima, hessian):
    """Groups as lists of numbers; every optimum is in one of them, and none is empty."""
    masks = group_optima(optima, hessian)
    np.testing.assert_array_equal(np.sum(masks, axis=0), 1)
    assert all(mask.any() for mask in masks)
    return [np.flatnonzero(mask).tolist() for mask in masks]


def test_pilots_that_agree_give_one_start_and_others_give_two():
    near = np.array([[0.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.0, 0.1, 0.1]])
    assert groups_of(near, np.eye(3)) == [[0, 1, 2]]
    far = np.vstack([near, [[5.0, 5.0, 0.0]]])
    assert groups_of(far, np.eye(3)) == [[0, 1, 2], [3]]


def test_optima_with_different_noise_are_different_groups():
    optima = np.array([[0.0, -1.0], [0.1, -7.0], [0.2, -1.5], [0.3, -6.0]])
    # For any curvature: one of them explains by a rough function what is noise for the other.
    assert sorted(groups_of(optima, np.zeros((2, 2)))) == [[0, 2], [1, 3]]
    within = np.array([[0.0, math.log(1.0)], [0.0, math.log(2.9)]])
    assert groups_of(within, np.zeros((2, 2))) == [[0, 1]]


@pytest.mark.parametrize("times", [1, 2, 3])
def test_two_optima_that_are_equally_far_from_the_middle_are_two_groups(times):
    optima = np.repeat([[0.0, 0.0], [3.0, 0.0]], times, axis=0)
    found = groups_of(optima, np.eye(2))
    assert sorted(found) == [list(range(times)), list(range(times, 2 * times))]


def test_optima_that_differ_in_a_direction_without_curvature_are_one_group():
    optima = np.array([[0.0, 0.0, 0.0], [0.0, 50.0, 0.0], [0.1, 20.0, 0.0]])
    assert len(groups_of(optima, np.diag([1.0, 0.0, 1.0]))) == 1
    assert len(groups_of(optima, np.diag([1.0, -1.0, 1.0]))) == 1
    assert len(groups_of(optima, np.diag([0.0, 1.0, 1.0]))) == 2


class Wells(Bowls):
    """x^4 - 2 x^2 + tilt x: two minima; the sign of the tilt decides which is lower."""

    def __init__(self, tilts):
        super().__init__(np.zeros((len(tilts), 1)))
        self.tilts = np.array(tilts)

    def __call__(self, x, index):
        v, tilt = x[:, 0], self.tilts[index]
        return v**4 - 2 * v**2 + tilt * v, (4 * v**3 - 4 * v + tilt)[:, None]


def test_each_problem_ends_in_the_better_of_two_optima():
    wells = Wells([0.3, -0.3, 0.2])
    starts = ([np.array([-0.9]), np.array([0.9])], np.array([[0.1]]))
    fit = fit_batch(wells, starts=starts, tolerance=1e-10)
    np.testing.assert_array_equal(np.sign(fit.parameters[:, 0]), [-1, 1, -1])
    np.testing.assert_allclose(wells(fit.parameters, np.arange(3))[1], 0.0, atol=1e-3)


def test_slow_and_fast_functions_in_one_batch_each_reach_their_optimum():
    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.uniform(-2, 2, size=(4, 60, 1)))
    e = torch.as_tensor(rng.normal(size=(4, 60)))
    slow = torch.arange(4)[:, None] % 2 == 0
    t = torch.where(slow, torch.sin(2 * X[:, :, 0]) + 0.3 * e, torch.sin(8 * X[:, :, 0]) + 0.05 * e)
    problems = ProblemBatch.of(NamedKernel("rbf", 1), X, t)
    centres, inverse = pilot_starts(problems)
    assert len(centres) == 2
    best = [best_of_several_starts(single(problems, b)) for b in range(4)]
    assert (fit_batch(problems).value < np.array(best) + 1e-3).all()
    # One of the starts alone is not enough here.
    alone = [fit_batch(problems, starts=([centre], inverse)).value for centre in centres]
    assert (np.array(alone) > np.array(best) + 1.0).any()


#: Two seeds, and more in the long form.
several_seeds = pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))]
)


@several_seeds
def test_each_problem_reaches_its_own_optimum_if_pilots_found_two(seed):
    rng = np.random.default_rng(seed)
    X, e = rng.uniform(-2, 2, size=(6, 60, 1)), rng.normal(size=(6, 60))
    noisy = np.arange(6)[:, None] < 3
    t = np.where(noisy, np.sin(X[:, :, 0]) + 0.5 * e, np.sin(8 * X[:, :, 0]) + 0.02 * e)
    problems = ProblemBatch.of(NamedKernel("rbf", 1), torch.as_tensor(X), torch.as_tensor(t))
    assert len(pilot_starts(problems)[0]) == 2
    best = [best_of_several_starts(single(problems, b)) for b in range(6)]
    assert (fit_batch(problems).value < np.array(best) + 1e-2).all()


@several_seeds
def test_two_problems_that_differ_in_their_lengthscale_only_are_both_fitted(seed):
    rng = np.random.default_rng(seed)
    X, e = rng.uniform(-2, 2, size=(2, 60, 1)), rng.normal(size=(2, 60))
    t = np.sin(np.array([[1.0], [8.0]]) * X[:, :, 0]) + 0.1 * e
    problems = ProblemBatch.of(NamedKernel("rbf", 1), torch.as_tensor(X), torch.as_tensor(t))
    best = [best_of_several_starts(single(problems, b)) for b in range(2)]
    assert (fit_batch(problems).value < np.array(best) + 1e-2).all()


def best_of_several_starts(problem):
    """The lowest value that L-BFGS finds from a few starts, with a tight tolerance."""
    values = []
    for lengthscale, noise in ((0.0, 0.0), (-1.5, -3.0), (1.0, 2.0)):
        start = problem.start()
        start[:-2] += lengthscale
        start[-1] += noise
        values.append(minimise(problem, start, steps=300, tolerance=1e-9).value)
    return min(values)


# --- against one problem at a time, and against a plain loop -------------------------------------

DICTIONARY = ("rbf", "matern32", "matern12")


def diabetes(n=120):
    X, y = load_diabetes(return_X_y=True)
    rows = np.random.default_rng(0).choice(len(X), n, replace=False)
    X, y = X[rows], y[rows]
    return (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()


@pytest.fixture(scope="module")
def subsamples():
    """Four subsamples of 96 rows of a table of patients, shapes (4, 96, 10) and (4, 96)."""
    X, y = diabetes()
    rng = np.random.default_rng(1)
    index = np.array([rng.choice(len(X), 96, replace=False) for _ in range(4)])
    return torch.as_tensor(X[index]), torch.as_tensor(y[index])


@pytest.fixture(scope="module")
def fits(subsamples):
    """Problems and their fit, for every kernel."""
    X, t = subsamples
    found = {}
    for name in DICTIONARY:
        problems = ProblemBatch.of(NamedKernel(name, X.shape[2]), X, t)
        found[name] = problems, fit_batch(problems)
    return found


class PlainGP(gpytorch.models.ExactGP):
    def __init__(self, X, t, likelihood, base):
        super().__init__(X, t, likelihood)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(base)

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def plain_loop(name, X, t):
    """Negative log likelihood per row after 100 steps of AdamW, one problem after the other."""
    values = []
    for x, target in zip(X, t, strict=True):
        nu = {"matern32": 1.5, "matern12": 0.5}.get(name)
        kernels = gpytorch.kernels
        base = kernels.MaternKernel(nu=nu) if nu else kernels.RBFKernel()
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        model = PlainGP(x, target, likelihood, base).double()
        mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(100):
            optimizer.zero_grad()
            loss = -mll(model(x), target)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            values.append(-float(mll(model(x), target)))
    return np.array(values)


@pytest.mark.parametrize("name", DICTIONARY)
def test_a_batch_fit_is_as_good_as_a_fit_of_each_problem(name, fits):
    problems, fit = fits[name]
    for b in range(len(problems)):
        problem = single(problems, b)
        assert fit.value[b] == pytest.approx(problem(fit.parameters[b])[0], abs=1e-10)
        tight = minimise(problem, steps=500, tolerance=1e-10)
        assert fit.value[b] < tight.value + 1e-3


@pytest.mark.slow
def test_a_batch_fit_is_as_good_as_a_plain_loop_and_ranks_kernels_alike(subsamples, fits):
    ours, loops = {}, {}
    for name, (problems, fit) in fits.items():
        without_prior = replace(problems, use_prior=False)
        ours[name] = everything(without_prior, fit.parameters)[0]
        loops[name] = plain_loop(name, *subsamples)
        assert (ours[name] < loops[name] + 1e-3).all()
    assert sorted(ours, key=lambda k: ours[k].mean()) == sorted(
        loops, key=lambda k: loops[k].mean()
    )


@pytest.mark.parametrize("name", ["matern12", "rbf"])
def test_few_rows_of_many_columns_are_fitted_as_well_as_one_by_one(name):
    X, y = diabetes()
    rng = np.random.default_rng(1)
    index = np.array([rng.choice(len(X), 60, replace=False) for _ in range(4)])
    X, t = torch.as_tensor(X[index]), torch.as_tensor(y[index])
    problems = ProblemBatch.of(NamedKernel(name, X.shape[2]), X, t)
    fit = fit_batch(problems)
    for b in range(4):
        tight = minimise(single(problems, b), steps=500, tolerance=1e-10)
        assert fit.value[b] < tight.value + 1e-3


@pytest.mark.parametrize("wrapped", [False, True], ids=["named", "gpytorch"])
@pytest.mark.parametrize("size", [1, 2, 6])
def test_pilots_on_fewer_rows_lead_to_the_optimum_on_all(size, wrapped):
    X, y = diabetes()
    rng = np.random.default_rng(2)
    index = np.array([rng.choice(len(X), 70, replace=False) for _ in range(size)])
    X, t = torch.as_tensor(X[index][:, :, :3]), torch.as_tensor(y[index])
    kernel = NamedKernel("rbf", 3)
    if wrapped:
        kernel = WrappedKernel(gpytorch.kernels.RBFKernel() + gpytorch.kernels.LinearKernel(), 3)
    problems = ProblemBatch.of(kernel, X, t)
    fit = fit_batch(problems, pilots=Pilots(rows=30))
    lower, upper = problems.bounds()
    assert ((fit.parameters >= lower) & (fit.parameters <= upper)).all()
    for b in range(size):
        tight = minimise(single(problems, b), steps=300, tolerance=1e-9)
        assert fit.value[b] < tight.value + 1e-3
