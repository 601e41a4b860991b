"""The safe Cholesky, its ladder of jitters and its errors, and the products built on it."""

import numpy as np
import pytest
import torch

from twostagegp.errors import NumericalError
from twostagegp.numerics.linalg import (
    JITTERS,
    batch_cholesky,
    batch_solve,
    block_inverses,
    cholesky_solve,
    extended_cholesky,
    safe_cholesky,
    scaled_gram,
)


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


def test_a_larger_jitter_is_added_if_the_smaller_ones_fail():
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
def test_non_finite_entries_are_reported_before_indefiniteness(value):
    K = -positive_definite(4)  # not positive definite either
    K[0, 1] = K[1, 0] = value
    with pytest.raises(NumericalError, match=r"4 x 4.*holds 2 entries that are NaN or infinite"):
        safe_cholesky(K)


def test_nan_above_the_diagonal_is_ignored():
    # LAPACK reads only the lower triangle, so that other entries do not affect the factor.
    K = positive_definite(4)
    expected, _ = safe_cholesky(K)
    K[0, 1] = np.nan
    assert torch.equal(safe_cholesky(K)[0], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_error_for_an_indefinite_matrix_names_size_dtype_and_jitter(dtype):
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
def test_cholesky_solve_equals_a_dense_solve(shape):
    K = positive_definite(5)
    b = torch.as_tensor(np.random.default_rng(1).normal(size=shape))
    x = cholesky_solve(safe_cholesky(K)[0], b)
    assert x.shape == shape
    torch.testing.assert_close(K @ x, b)


@pytest.mark.parametrize("signs", [(1, 1, 1, 1, 1), (-1, -1, -1, -1, -1), (1, -1, 0, 1, -1)])
def test_scaled_gram_accepts_weights_of_all_signs(signs):
    A = positive_definite(5)
    v = torch.tensor([1.0, 2.0, 0.3, 3.0, 0.5], dtype=torch.float64) * torch.tensor(signs)
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


@pytest.mark.parametrize(("least", "relative"), [(0.0, 1e-10), (-1e-9, 1e-8), (-1e-7, 1e-6)])
def test_each_jitter_step_is_relative_to_the_mean_diagonal(least, relative):
    K = torch.diag(torch.tensor([1.0, 1.0, least], dtype=torch.float64))
    assert safe_cholesky(K)[1] == pytest.approx(relative * 2.0 / 3.0)


def test_one_singular_matrix_of_a_batch_adds_jitter_to_all_of_them():
    good, singular = positive_definite(3), torch.ones(3, 3, dtype=torch.float64)
    K = torch.stack([singular, good, singular])
    L, jitter = safe_cholesky(K)
    assert jitter == pytest.approx(1e-10 * K.diagonal(dim1=1, dim2=2).mean().item())
    torch.testing.assert_close(L @ L.mT, K + jitter * torch.eye(3, dtype=torch.float64))
    worse = torch.diag(torch.tensor([1.0, 1.0, -1e-9], dtype=torch.float64))
    _, jitter = safe_cholesky(torch.stack([singular, worse]))  # 1e-10 suffices for the first
    assert jitter == pytest.approx(1e-8 * 5.0 / 6.0)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_infinity_on_the_diagonal_raises(place):
    K = positive_definite(3)
    K[place, place] = np.inf
    with pytest.raises(NumericalError, match="holds 1 entries that are NaN or infinite"):
        safe_cholesky(K)
    with pytest.raises(NumericalError, match="holds 1 entries"):
        safe_cholesky(torch.stack([positive_definite(3), K]))
    L, fine = batch_cholesky(torch.stack([positive_definite(3), K]))
    assert fine.tolist() == [True, False]
    assert torch.equal(L[1], torch.eye(3, dtype=torch.float64))


def test_a_positive_definite_batch_is_factorised_without_jitter():
    K = positive_definite(3, batch=(4,))
    L, fine = batch_cholesky(K)
    assert fine.all()
    assert torch.equal(L, torch.linalg.cholesky(K))


def test_only_the_singular_matrix_of_a_batch_gets_jitter():
    good, singular = positive_definite(3), torch.ones(3, 3, dtype=torch.float64)
    L, fine = batch_cholesky(torch.stack([good, singular]))
    assert fine.tolist() == [True, True]
    assert torch.equal(L[0], torch.linalg.cholesky(good))
    assert torch.equal(L[1], safe_cholesky(singular)[0])


def test_a_factor_is_extended_only_by_rows_that_keep_it_positive_definite():
    K = positive_definite(5)
    L = torch.linalg.cholesky(K[:3, :3])
    extended = extended_cholesky(L, K[3:, :3], K[3:, 3:])
    torch.testing.assert_close(extended, torch.linalg.cholesky(K))
    assert extended_cholesky(L, K[:2, :3], 0.5 * K[:2, :2]) is None  # rows repeated, less variance
    for bad in (np.nan, np.inf):
        K22 = K[3:, 3:].clone()
        K22[0, 0] = bad
        assert extended_cholesky(L, K[3:, :3], K22) is None


def test_batch_solve_equals_a_dense_solve_of_each_problem():
    K = positive_definite(4, batch=(3,))
    b = torch.as_tensor(np.random.default_rng(1).normal(size=(3, 4)))
    torch.testing.assert_close(batch_solve(torch.linalg.cholesky(K), b), torch.linalg.solve(K, b))


class TestBlocks:
    GROUPS = (torch.tensor([0, 3]), torch.tensor([2]), torch.tensor([5, 1]), torch.tensor([4]))

    @pytest.fixture
    def blocks(self):
        return block_inverses(positive_definite(6), list(self.GROUPS))

    @pytest.fixture
    def dense(self):
        A, S = positive_definite(6), torch.zeros(6, 6, dtype=torch.float64)
        for G in self.GROUPS:
            S[G[:, None], G] = torch.linalg.inv(A[G[:, None], G])
        return S

    @pytest.mark.parametrize("shape", [(6,), (6, 3)], ids=["vector", "matrix"])
    def test_product_with_a_matrix_on_the_right(self, blocks, dense, shape):
        V = torch.as_tensor(np.random.default_rng(1).normal(size=shape))
        torch.testing.assert_close(blocks @ V, dense @ V)

    def test_product_with_a_matrix_on_the_left(self, blocks, dense):
        A = torch.as_tensor(np.random.default_rng(1).normal(size=(4, 6)))
        torch.testing.assert_close(blocks.left(A), A @ dense)

    def test_diagonal_and_determinant_equal_the_dense_ones(self, blocks, dense):
        torch.testing.assert_close(blocks.diagonal(), dense.diagonal())
        torch.testing.assert_close(blocks.logdet(), torch.logdet(dense))

    def test_map_replaces_the_entries_of_each_block(self, blocks, dense):
        scale = torch.arange(1.0, 7.0, dtype=torch.float64)
        scaled = blocks.map(lambda G, S: scale[G][:, :, None] * S)
        torch.testing.assert_close(scaled @ torch.eye(6).double(), scale[:, None] * dense)

    def test_block_inverses_of_a_sum_with_a_product(self):
        A = positive_definite(6)
        B = torch.as_tensor(np.random.default_rng(2).normal(size=(2, 6)))
        plus = block_inverses(A, list(self.GROUPS), plus=B)
        whole = block_inverses(A + B.T @ B, list(self.GROUPS))
        torch.testing.assert_close(plus.diagonal(), whole.diagonal())

    def test_only_the_singular_block_gets_jitter(self):
        A = 2.0 * torch.eye(4, dtype=torch.float64)
        A[:2, :2] = 1.0
        S = block_inverses(A, [torch.tensor([0, 1]), torch.tensor([2, 3])])
        expected = torch.linalg.inv(A[:2, :2] + 1e-10 * torch.eye(2, dtype=torch.float64))
        torch.testing.assert_close(S.diagonal()[:2], expected.diagonal(), rtol=1e-5, atol=0.0)
        assert S.diagonal()[2:].tolist() == pytest.approx([0.5, 0.5], rel=1e-14)
