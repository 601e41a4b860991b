"""Distances in every way of computing them."""

import numpy as np
import pytest
import torch

from twostagegp.kernels.distances import (
    distances,
    distances_by_columns,
    own_distances,
    weighted_absolute_differences,
)

D = 3

each_norm = pytest.mark.parametrize("p", [1, 2])


def inputs(*shape, seed=0):
    return torch.as_tensor(np.random.default_rng(seed).normal(size=shape))


@each_norm
@pytest.mark.parametrize("batch", [(), (2,)])
def test_distances_summed_up_by_columns(p, batch):
    X, Z = inputs(*batch, 6, D), inputs(*batch, 4, D, seed=4)
    before = X.clone(), Z.clone()
    torch.testing.assert_close(distances_by_columns(X, Z, p), torch.cdist(X, Z, p=p))
    assert torch.equal(X, before[0])
    assert torch.equal(Z, before[1])


@each_norm
@pytest.mark.parametrize("d", [1, 64, 65])
def test_nearly_equal_rows_keep_their_distance(p, d):
    X = inputs(5, d)
    X[1] = X[0] + 1e-9
    r = own_distances(X, p)
    assert not r.diagonal().any()
    assert float(r[0, 1]) == pytest.approx(1e-9 * (d if p == 1 else np.sqrt(d)), rel=1e-6)


def test_own_distances_are_those_of_differences():
    X = inputs(40, 3)
    X[5:9] = X[4] + 1e-4 * inputs(4, 3, seed=2)
    torch.testing.assert_close(own_distances(X), distances(X, X), rtol=1e-9, atol=0.0)


def test_differences_and_a_matrix_product_give_the_same_distances():
    X, Z = inputs(6, 70), inputs(5, 70, seed=1)
    by_product = distances(X, Z, direct_columns=64)
    torch.testing.assert_close(by_product, distances(X, Z, direct_columns=70))


@pytest.mark.parametrize("panel_entries", [None, 1, 20])
def test_weighted_absolute_differences_do_not_depend_on_the_panels(panel_entries):
    A, B, M = inputs(9, D), inputs(7, D, seed=1), inputs(9, 7, seed=2)
    expected = torch.einsum("ij,ijk->k", M, (A[:, None, :] - B).abs())
    torch.testing.assert_close(weighted_absolute_differences(M, A, B, panel_entries), expected)
