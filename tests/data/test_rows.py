"""Merging repeated rows: no information is lost, and order, repeats and weights are equivalent."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twostagegp.data.rows import Rows, lexicographic_order, merge_rows

MERGED = ("X", "t", "c", "q", "extra", "groups")


def table(seed, n=30, d=2, levels=3):
    """A table with few distinct inputs and targets, so that many rows repeat."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, levels, size=(n, d)).astype(float) / 7.0
    y = rng.normal(size=levels + 2)[rng.integers(0, levels + 2, size=n)]
    return X, y, rng


def assert_identical(one, other):
    for name in MERGED:
        left, right = getattr(one, name), getattr(other, name)
        assert (left is None) == (right is None)
        if left is not None:
            np.testing.assert_array_equal(left, right, err_msg=name)


def to_rows(merged):
    values = [getattr(merged, name) for name in MERGED]
    return Rows(*(None if v is None else torch.as_tensor(v) for v in values))


def test_distinct_rows_are_sorted_and_kept():
    X, y = np.array([[2.0], [0.0], [1.0]]), np.array([5.0, 6.0, 7.0])
    merged = merge_rows(X, y)
    np.testing.assert_array_equal(merged.X.ravel(), [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(merged.t, [6.0, 7.0, 5.0])
    np.testing.assert_array_equal(merged.c, 1.0)
    np.testing.assert_array_equal(merged.q, 0.0)


def test_merged_rows_and_deviations_restore_the_table():
    X, y, rng = table(0)
    merged = merge_rows(X, y, rng.uniform(0.2, 3.0, size=len(y)))
    np.testing.assert_array_equal(merged.X[merged.inverse], X)
    np.testing.assert_allclose(merged.t[merged.inverse] + merged.deviation, y, rtol=1e-14)


def test_mean_and_sum_of_squares_are_weighted():
    X, y = np.zeros((3, 1)), np.array([1.0, 2.0, 6.0])
    merged = merge_rows(X, y, np.array([1.0, 2.0, 0.5]))
    mean = (1.0 + 4.0 + 3.0) / 3.5
    assert merged.c[0] == 3.5
    assert merged.t[0] == pytest.approx(mean)
    assert merged.q[0] == pytest.approx(
        (1 - mean) ** 2 + 2 * (2 - mean) ** 2 + 0.5 * (6 - mean) ** 2
    )


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**16))
def test_merging_does_not_depend_on_the_order_of_the_table_to_the_last_bit(seed):
    X, y, rng = table(seed)
    weight, extra = rng.integers(1, 5, size=len(y)) * 1.0, rng.integers(0, 2, size=len(y)) / 3.0
    groups = rng.integers(0, 2, size=len(y))
    order = rng.permutation(len(y))
    assert_identical(
        merge_rows(X[order], y[order], weight[order], extra[order], groups[order]),
        merge_rows(X, y, weight, extra, groups),
    )


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**16))
def test_a_weight_equals_repeated_rows_to_the_last_bit(seed):
    X, y, rng = table(seed)
    weight = rng.integers(1, 9, size=len(y))
    assert_identical(
        merge_rows(np.repeat(X, weight, axis=0), np.repeat(y, weight)),
        merge_rows(X, y, weight.astype(float)),
    )


def test_minus_zero_is_zero():
    merged = merge_rows(np.array([[0.0, 1.0], [-0.0, 1.0]]), np.array([1.0, 3.0]))
    np.testing.assert_array_equal(merged.c, [2.0])


def test_nearly_equal_rows_are_not_merged():
    assert len(merge_rows(np.array([[1.0], [np.nextafter(1.0, 2.0)]]), np.zeros(2)).c) == 2


def test_equal_rows_of_different_groups_are_not_merged():
    merged = merge_rows(np.zeros((3, 1)), np.arange(3.0), groups=np.array([4, 1, 4]))
    np.testing.assert_array_equal(merged.groups, [1, 4])
    np.testing.assert_array_equal(merged.c, [1.0, 2.0])


def test_equal_rows_of_different_known_noise_are_not_merged():
    merged = merge_rows(np.zeros((3, 1)), np.arange(3.0), extra=np.array([0.5, 0.1, 0.5]))
    np.testing.assert_array_equal(merged.extra, [0.1, 0.5])
    np.testing.assert_array_equal(merged.t, [1.0, 1.0])


def test_inputs_are_not_changed():
    X, y, rng = table(1)
    weight = rng.uniform(size=len(y))
    copies = X.copy(), y.copy(), weight.copy()
    merge_rows(X, y, weight)
    for before, after in zip(copies, (X, y, weight), strict=True):
        np.testing.assert_array_equal(before, after)


def test_total_is_the_number_of_rows_before_merging():
    X, y, _ = table(2)
    rows = to_rows(merge_rows(X, y))
    assert len(rows) < len(y)
    assert rows.total == len(y)


def test_blocks_are_the_rows_of_each_group_in_order():
    one = torch.ones(5, dtype=torch.float64)
    groups = torch.tensor([7, 2, 7, 2, 9])
    blocks = Rows(one[:, None], one, one, one, one, groups).blocks()
    assert [b.tolist() for b in blocks] == [[1, 3], [0, 2], [4]]


def test_without_groups_every_row_is_a_block():
    one = torch.ones(3, dtype=torch.float64)
    assert [b.tolist() for b in Rows(one[:, None], one, one, one, one).blocks()] == [[0], [1], [2]]


@pytest.mark.parametrize("grouped", [False, True])
def test_subset_takes_every_field(grouped):
    X, y, rng = table(3)
    groups = rng.integers(0, 3, size=len(y)) if grouped else None
    rows = to_rows(merge_rows(X, y, extra=rng.integers(0, 2, size=len(y)) / 3.0, groups=groups))
    index = np.array([4, 0, 2])
    part = rows.subset(index)
    for name in MERGED if grouped else MERGED[:-1]:
        assert torch.equal(getattr(part, name), getattr(rows, name)[index])
    assert (part.groups is None) == (not grouped)


def test_with_target_keeps_the_sum_of_squares_by_default():
    X, y, _ = table(4)
    rows = to_rows(merge_rows(X, y))
    t, q = torch.zeros(len(rows)).double(), torch.ones(len(rows)).double()
    assert rows.with_target(t).q is rows.q
    assert rows.with_target(t, q).q is q


def test_exact_copies_count_once_and_other_rows_keep_their_weight():
    one = torch.ones(6, dtype=torch.float64)
    c = torch.tensor([1.0, 2.0, 2.0, 0.5, 3.0, 3.0], dtype=torch.float64)
    q = torch.tensor([0.0, 0.0, 1e-3, 0.0, 2.9e-20, 3.1e-20], dtype=torch.float64)
    rows = Rows(one[:, None], one, c, q, one)
    assert rows.counting_copies_once().c.tolist() == [1.0, 1.0, 2.0, 0.5, 1.0, 3.0]
    assert rows.c is c


def test_rows_are_plain_without_repeats_and_weights():
    one, zero = torch.ones(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    light = torch.tensor([1.0, 0.5, 1.0], dtype=torch.float64)
    assert Rows(one[:, None], one, one, zero, zero).plain
    assert not Rows(one[:, None], one, light, zero, zero).plain
    assert not Rows(one[:, None], one, one, light - 0.5, zero).plain


def test_unmerge_returns_residuals_of_all_rows_of_the_table():
    X, y, rng = table(5)
    merged = merge_rows(X, y)
    np.testing.assert_allclose(merged.y, y, rtol=1e-14)
    residual, slope = rng.normal(size=(2, len(merged.c)))
    found = merged.unmerge(residual, slope)
    for i, j in enumerate(merged.inverse):
        assert found[i] == pytest.approx(residual[j] + slope[j] * (y[i] - merged.t[j]))


@pytest.mark.parametrize("grouped", [False, True])
def test_some_merged_rows_keep_the_rows_that_they_stand_for(grouped):
    X, y, rng = table(6)
    groups = rng.integers(0, 2, size=len(y)) if grouped else None
    merged = merge_rows(X, y, rng.uniform(0.5, 2.0, len(y)), rng.integers(0, 2, len(y)) / 3, groups)
    index = np.array([5, 0, 3])
    theirs = np.flatnonzero(np.isin(merged.inverse, index))
    np.testing.assert_array_equal(merged.rows_of(index), theirs)
    part = merged.subset(index)
    for name in MERGED if grouped else MERGED[:-1]:
        np.testing.assert_array_equal(getattr(part, name), getattr(merged, name)[index])
    assert (part.groups is None) == (not grouped)
    np.testing.assert_array_equal(index[part.inverse], merged.inverse[theirs])
    np.testing.assert_array_equal(part.deviation, merged.deviation[theirs])
    np.testing.assert_array_equal(part.weight, merged.weight[theirs])
    np.testing.assert_allclose(part.y, y[theirs], rtol=1e-14)


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("ties", [0, 2, 5, 30])
def test_rows_are_sorted_by_one_column_after_the_other(d, ties):
    rng = np.random.default_rng(ties)
    key = rng.normal(size=(60, d))
    key[1 : ties + 1, 0] = key[0, 0]  # runs of ties, in the middle
    key[-1, 0] = key[-2, 0] = key[:, 0].max()  # and at the end
    key[3, 1:] = key[4, 1:]
    np.testing.assert_array_equal(lexicographic_order(key), np.lexsort(key.T[::-1]))


@pytest.mark.parametrize("weight", [(0.5, 2.0), (1.0, 3.0), (2.0, 2.0)])
def test_weights_of_distinct_rows_are_kept(weight):
    X, y = np.array([[2.0], [1.0]]), np.array([3.0, 4.0])
    merged = merge_rows(X, y, np.array(weight))
    assert merged.c.tolist() == list(weight[::-1])
    assert merged.t.tolist() == [4.0, 3.0]
    assert merged.q.tolist() == [0.0, 0.0]


def test_known_noise_is_zero_if_it_is_not_given():
    X, y, _ = table(7)
    assert not merge_rows(X, y).extra.any()
