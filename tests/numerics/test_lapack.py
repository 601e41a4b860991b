"""LAPACK in place: every routine against NumPy."""

import numpy as np
import pytest

from twostagegp.numerics import lapack

SIZES = (1, 2, 5, 96, 97, 130, 300)


def _covariance(n, seed=0):
    B = np.random.default_rng(seed).normal(size=(n, n))
    return B @ B.T / n + np.eye(n)


def _with_garbage_below(C):
    return np.triu(C) + np.tril(np.full(C.shape, 7.0), -1)


def test_scipy_publishes_the_routines():
    assert lapack.available()


@pytest.mark.parametrize("n", SIZES)
def test_factor_solve_and_inverse(n):
    K = _covariance(n)
    U = _with_garbage_below(K)
    assert lapack.cholesky_(U)
    np.testing.assert_allclose(np.triu(U), np.linalg.cholesky(K).T, atol=1e-12)
    b = np.arange(n) + 1.0
    np.testing.assert_allclose(lapack.solve_factored(U, b), np.linalg.solve(K, b), rtol=1e-9)
    lapack.invert_factor_(U)
    np.testing.assert_allclose(np.triu(U), np.triu(np.linalg.inv(K)), atol=1e-11)
    assert (U[lapack.below_diagonal(n)] == 7.0).all()  # neither read nor written
    lapack.mirror_(U)
    np.testing.assert_allclose(U, np.linalg.inv(K), atol=1e-11)


def test_an_indefinite_matrix_is_reported():
    assert not lapack.cholesky_(np.array([[1.0, 2.0], [2.0, 1.0]]))


@pytest.mark.parametrize("n", SIZES)
def test_products_of_one_triangle(n):
    rng = np.random.default_rng(1)
    A, Z = _covariance(n), rng.normal(size=(n, 3))
    B, u, v = rng.normal(size=(4, n)), rng.normal(size=n), rng.normal(size=n)
    np.testing.assert_allclose(lapack.symmetric_times(_with_garbage_below(A), Z), A @ Z, atol=1e-11)
    C = np.full((n, n), 7.0)
    lapack.add_gram_(C, B, fresh=True)
    lapack.add_gram_(C, B[:2], -0.5)
    lapack.subtract_outer_(C, u, v)
    expected = B.T @ B - 0.5 * B[:2].T @ B[:2] - 0.5 * (np.outer(u, v) + np.outer(v, u))
    np.testing.assert_allclose(np.triu(C), np.triu(expected), atol=1e-11)
    assert (C[lapack.below_diagonal(n)] == 7.0).all()


def test_empty_parts_add_nothing():
    C = np.ones((3, 3))
    lapack.add_gram_(C, np.empty((0, 3)))
    assert (C == 1.0).all()
