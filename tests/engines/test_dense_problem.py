"""The training problem in reused memory against the plain one."""

import numpy as np
import pytest
import torch

from twostagegp.data.rows import Rows
from twostagegp.engines.exact.dense import DenseProblem
from twostagegp.engines.exact.engine import ExactEngine, ExactPosterior
from twostagegp.engines.problem import Problem
from twostagegp.errors import NumericalError
from twostagegp.kernels import NamedKernel
from twostagegp.numerics.linalg import safe_cholesky

KERNELS = ("rbf", "matern12", "matern32", "matern52", "laplacian")


def _rows(kind, n=150, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = torch.tensor(rng.normal(size=(n, d)))
    X[3] = X[2] + 1e-6  # so close that squared distances must come from differences
    one, groups = torch.ones(n, dtype=torch.float64), None
    c, q, extra = one, 0.0 * one, 0.0 * one
    if kind == "weighted":
        c = torch.tensor(rng.choice([0.5, 1.0, 2.0, 3.0], n))
        q, extra = torch.tensor(rng.random(n)) * (c > 1.0), 0.1 * torch.tensor(rng.random(n))
    if kind == "groups":
        groups = torch.tensor(rng.integers(0, 10, n))
    return Rows(X, torch.tensor(rng.normal(size=n)), c, q, extra, groups)


@pytest.mark.parametrize("objective", ["nll", "loo", "heldout"])
@pytest.mark.parametrize("kind", ["plain", "weighted", "groups"])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("ard", [False, True])
def test_value_and_gradient_are_those_of_the_plain_problem(name, ard, kind, objective):
    rows, kernel = _rows(kind), NamedKernel(name, 3, ard=ard)
    R = torch.tensor(np.random.default_rng(1).random(len(rows))) + 0.1
    plain, dense = (make(kernel, rows, objective, R) for make in (Problem, DenseProblem))
    for seed in range(2):  # the second evaluation uses the memory of the first
        x = plain.start() + 0.4 * np.random.default_rng(seed).normal(size=len(plain.start()))
        value, gradient = plain(x)
        found, slope = dense(x)
        assert found == pytest.approx(value, rel=1e-10)
        np.testing.assert_allclose(slope, gradient, atol=1e-7 * np.abs(gradient).max())


@pytest.mark.parametrize("objective", ["nll", "loo", "heldout"])
@pytest.mark.parametrize("kind", ["plain", "weighted", "groups"])
def test_the_value_alone_is_that_with_the_gradient(kind, objective):
    rows, kernel = _rows(kind), NamedKernel("matern32", 3, ard=True)
    R = torch.tensor(np.random.default_rng(1).random(len(rows))) + 0.1
    dense = DenseProblem(kernel, rows, objective, R)
    value, gradient = dense(dense.start())
    assert dense.value(dense.start()) == pytest.approx(value, rel=1e-12)
    assert dense.evaluations == 2
    np.testing.assert_array_equal(dense(dense.start())[1], gradient)  # nothing is left behind


def test_lengthscales_with_fixed_ratios():
    rows, kernel = _rows("plain"), NamedKernel("matern52", 3, shape=np.array([1.0, 2.0, 0.5]))
    x = np.array([0.3, 0.1, -2.0])
    value, gradient = Problem(kernel, rows)(x)
    found, slope = DenseProblem(kernel, rows)(x)
    assert found == pytest.approx(value, rel=1e-10)
    np.testing.assert_allclose(slope, gradient, rtol=1e-8)


@pytest.mark.parametrize("n", [1, 2, 129, 400])
def test_any_number_of_rows(n):
    X = torch.tensor(np.random.default_rng(n).normal(size=(n, 2)))
    one = torch.ones(n, dtype=torch.float64)
    rows, kernel = Rows(X, X[:, 0], one, 0 * one, 0 * one), NamedKernel("matern32", 2, ard=True)
    plain, dense = Problem(kernel, rows, "loo"), DenseProblem(kernel, rows, "loo")
    value, gradient = plain(plain.start())
    found, slope = dense(plain.start())
    assert found == pytest.approx(value, rel=1e-10)
    np.testing.assert_allclose(slope, gradient, atol=1e-9)


def test_bytes_left_in_memory_have_no_effect():
    n = 150
    rows, kernel = _rows("plain", n), NamedKernel("matern32", 3, ard=True)
    x = Problem(kernel, rows).start()
    value, _ = Problem(kernel, rows)(x)
    signalling = np.full((8, n * n), 0x7FF0000000000001, dtype=np.uint64)
    for _ in range(8):
        left = [row.copy() for row in signalling]
        del left  # the next arrays of this size are likely to be given this memory
        found, _ = DenseProblem(kernel, rows)(x)  # a warning is an error
        assert found == pytest.approx(value, rel=1e-10)


def test_a_nearly_singular_matrix_gets_the_same_jitter():
    X = torch.linspace(0.0, 1.0, 60, dtype=torch.float64)[:, None]
    one = torch.ones(60, dtype=torch.float64)
    rows, kernel = Rows(X, X[:, 0], one, 0 * one, 0 * one), NamedKernel("rbf", 1)
    x = np.array([2.0, 5.0, -40.0])
    plain, dense = (make(kernel, rows, noise_floor=1e-18) for make in (Problem, DenseProblem))
    plain(x)
    value, gradient = dense(x)
    assert dense.jitter == pytest.approx(plain.jitter)
    assert dense.jitter > 0.0
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_an_input_that_is_not_finite_is_named_in_the_error():
    rows = _rows("plain", n=20)
    rows.X[4, 1] = np.nan
    with pytest.raises(NumericalError, match="entries that are NaN or infinite"):
        DenseProblem(NamedKernel("rbf", 3), rows)(np.array([0.0, 0.0, -1.0]))


def test_the_engine_chooses_it_for_named_kernels_on_a_cpu():
    rows = _rows("plain")
    assert isinstance(ExactEngine(rows).problem(NamedKernel("rbf", 3), "nll"), DenseProblem)
    assert type(ExactEngine(rows).problem(NamedKernel("rq", 3), "nll")) is Problem


@pytest.mark.parametrize("kind", ["plain", "weighted", "groups"])
def test_held_out_predictions_of_a_fold_are_those_of_all_rows(kind):
    rows = _rows(kind)
    posterior = ExactEngine(rows).condition(NamedKernel("matern32", 3), np.array([0.3, 0.1, -2.0]))
    index = torch.arange(0, 40)
    if kind == "groups":
        index = torch.nonzero(rows.groups < 3)[:, 0]
    part, whole = posterior.heldout(index), posterior.heldout().subset(index)
    for name in ("residual", "slope", "variance"):
        torch.testing.assert_close(getattr(part, name), getattr(whole, name))


def test_a_part_of_a_group_is_held_out_with_the_whole_group():
    rows = _rows("groups")
    posterior = ExactEngine(rows).condition(NamedKernel("rbf", 3), np.array([0.3, 0.1, -2.0]))
    index = torch.arange(0, 7)
    torch.testing.assert_close(
        posterior.heldout(index).residual, posterior.heldout().residual[index]
    )


@pytest.mark.parametrize("kind", ["plain", "weighted"])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("n", [1, 150, 600])
def test_a_posterior_has_the_factor_of_the_plain_covariance(n, name, kind):
    rows, kernel = _rows(kind, max(n, 4)).subset(np.arange(n)), NamedKernel(name, 3, ard=True)
    parameters = np.append(kernel.start(), np.log(0.1))
    K, _ = kernel.evaluate(rows.X, parameters[:-1])
    K.diagonal().add_((0.1 + rows.extra) / rows.c)
    posterior = ExactPosterior(kernel, parameters, rows)
    torch.testing.assert_close(posterior.L, safe_cholesky(K)[0], rtol=1e-9, atol=1e-11)
    assert posterior.jitter == 0.0
    assert not posterior.L.triu(1).any()


def test_a_singular_covariance_gets_the_jitter_of_the_plain_one():
    rows, kernel = _rows("plain", 40), NamedKernel("rbf", 3)
    rows = rows.subset(np.repeat(np.arange(20), 2))  # every row twice
    parameters = np.array([3.0, 0.0, -80.0])
    posterior = ExactPosterior(kernel, parameters, rows)
    K, _ = kernel.evaluate(rows.X, parameters[:-1])
    assert posterior.jitter == safe_cholesky(K)[1] > 0.0


def test_a_posterior_of_inputs_that_are_not_finite_is_refused():
    rows, kernel = _rows("plain", 30), NamedKernel("rbf", 3)
    rows.X[4, 1] = np.nan
    with pytest.raises(NumericalError, match="NaN"):
        ExactPosterior(kernel, np.append(kernel.start(), -2.0), rows)
