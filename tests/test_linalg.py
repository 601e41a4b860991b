"""The safe Cholesky, its ladder of jitters and its errors, and the products built on it."""

import numpy as np
import pytest
import torch

from twostagegp.errors import NumericalError
from twostagegp.linalg import JITTERS, block_inverses, cholesky_solve, safe_cholesky, scaled_gram


def positive_definite(n, seed=0, batch=()):
    B = torch.as_tensor(np.random.default_rng(seed).normal(size=(*batch, n, n)))
    return B @ B.mT + torch.eye(n, dtype=torch.float64)


def test_a_positive_definite_matrix_needs_no_jitter():
    K = positive_definite(6)
    L, jitter = safe_cholesky(K)
    assert jitter == 0.0
    torch.testing.assert_close(L, L.tril())
    torch.testing.assert_close(L @ L.T, K)


def test_a_batch_is_factorised_matrix_by_matrix():
    K = positive_definite(4, batch=(3,))
    L, jitter = safe_cholesky(K)
    assert jitter == 0.0
    torch.testing.assert_close(L @ L.mT, K)


def test_a_singular_matrix_gets_the_smallest_jitter_that_works():
    K = torch.full((3, 3), 4.0, dtype=torch.float64)
    L, jitter = safe_cholesky(K)
    assert jitter == pytest.approx(JITTERS[0] * 4.0)
    torch.testing.assert_close(L @ L.T, K + jitter * torch.eye(3, dtype=torch.float64))


def test_the_ladder_is_climbed_as_far_as_needed():
    K = torch.diag(torch.tensor([1.0, 1.0, -1e-7], dtype=torch.float64))
    _, jitter = safe_cholesky(K)
    assert jitter == pytest.approx(JITTERS[2] * K.diagonal().mean().item())


def test_jitter_is_relative_to_the_scale_of_the_matrix():
    K = torch.ones(3, 3, dtype=torch.float64)
    assert safe_cholesky(1e6 * K)[1] == pytest.approx(1e6 * safe_cholesky(K)[1])


def test_the_matrix_is_not_changed():
    K = torch.ones(3, 3, dtype=torch.float64)
    safe_cholesky(K)
    assert torch.equal(K, torch.ones_like(K))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_entries_that_are_not_finite_are_diagnosed_first(value):
    K = -positive_definite(4)  # not positive definite either
    K[0, 1] = K[1, 0] = value
    with pytest.raises(NumericalError, match=r"4 x 4.*holds 2 entries that are NaN or infinite"):
        safe_cholesky(K)


def test_nan_above_the_diagonal_alone_is_not_read():
    # LAPACK reads the lower triangle; nothing that it does not read can spoil the factor.
    K = positive_definite(4)
    expected, _ = safe_cholesky(K)
    K[0, 1] = np.nan
    assert torch.equal(safe_cholesky(K)[0], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_hopeless_matrix_is_refused_with_size_dtype_and_jitter(dtype):
    K = torch.diag(torch.tensor([3.0, 2.0, -1.0], dtype=dtype))
    jitter = JITTERS[-1] * 4 / 3
    with pytest.raises(NumericalError) as caught:
        safe_cholesky(K)
    message = str(caught.value)
    for part in ("3 x 3", str(dtype), f"{jitter:.1e}", "noise_floor"):
        assert part in message


def test_numerical_error_is_an_arithmetic_error():
    with pytest.raises(ArithmeticError):
        safe_cholesky(-torch.eye(2, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(5,), (5, 3)], ids=["vector", "matrix"])
def test_cholesky_solve_solves(shape):
    K = positive_definite(5)
    b = torch.as_tensor(np.random.default_rng(1).normal(size=shape))
    x = cholesky_solve(safe_cholesky(K)[0], b)
    assert x.shape == shape
    torch.testing.assert_close(K @ x, b)


def test_scaled_gram_with_weights_of_both_signs():
    A = positive_definite(5)
    v = torch.tensor([1.0, -2.0, 0.0, 3.0, -0.5], dtype=torch.float64)
    torch.testing.assert_close(scaled_gram(A, v), A @ torch.diag(v) @ A)


def test_block_inverses_invert_the_diagonal_blocks():
    A = positive_definite(6)
    blocks = [torch.tensor([0, 3, 4]), torch.tensor([2]), torch.tensor([5, 1])]
    found = block_inverses(A, blocks)
    pairs = [pair for batch in found.batches for pair in zip(*batch, strict=True)]
    by_block = {tuple(G.tolist()): S for G, S in pairs}
    for G in blocks:
        S = by_block[tuple(G.tolist())]
        torch.testing.assert_close(S, torch.linalg.inv(A[np.ix_(G, G)]))
