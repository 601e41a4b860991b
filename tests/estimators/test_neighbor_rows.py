"""What the method for large tables stands on: subsets of merged rows, folds, penalties."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from neighbor_fits import Witness
from sklearn.linear_model import LinearRegression

from twostagegp.data.rows import lexicographic_order, merge_rows
from twostagegp.pipeline.mean.crossfit import RegressorMean
from twostagegp.pipeline.mean.penalty import best_shift, errors_downhill
from twostagegp.pipeline.settings import DEFAULTS

SHIFTS = DEFAULTS.mean.penalty_shifts


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**16))
def test_a_subset_of_merged_rows_is_what_merging_its_rows_gives(seed):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 4, size=(40, 2)) / 7.0
    y, weight = rng.normal(size=40), rng.integers(1, 3, size=40) * 1.0
    extra, groups = rng.integers(0, 2, size=40) / 3.0, rng.integers(0, 3, size=40)
    merged = merge_rows(X, y, weight, extra, groups)
    index = rng.permutation(len(merged.c))[: rng.integers(1, len(merged.c) + 1)]
    part, rows = merged.subset(index), merged.rows_of(index)
    np.testing.assert_array_equal(rows, np.flatnonzero(np.isin(merged.inverse, index)))
    np.testing.assert_array_equal(part.X[part.inverse], X[rows])
    np.testing.assert_allclose(part.y, y[rows], atol=1e-14)
    np.testing.assert_array_equal(part.weight, weight[rows])
    np.testing.assert_array_equal(part.extra[part.inverse], extra[rows])
    np.testing.assert_array_equal(part.groups[part.inverse], groups[rows])
    for name in ("t", "c", "q"):
        np.testing.assert_array_equal(getattr(part, name), getattr(merged, name)[index])
    residual, slope = rng.normal(size=(2, len(merged.c)))
    np.testing.assert_array_equal(
        part.unmerge(residual[index], slope[index]), merged.unmerge(residual, slope)[rows]
    )
    # Taken in order, it is what merging those rows alone gives.
    index = np.sort(index)
    part, rows = merged.subset(index), merged.rows_of(index)
    alone = merge_rows(X[rows], y[rows], weight[rows], extra[rows], groups[rows])
    for name in ("X", "t", "c", "q", "extra", "groups", "inverse", "deviation", "weight"):
        np.testing.assert_array_equal(getattr(part, name), getattr(alone, name), err_msg=name)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**16),
    levels=st.sampled_from([1, 2, 5, 300, 10**6]),
    columns=st.integers(1, 4),
    n=st.integers(1, 300),
)
def test_rows_are_sorted_by_their_columns_one_after_the_other(seed, levels, columns, n):
    rng = np.random.default_rng(seed)
    key = rng.integers(0, levels, size=(n, columns)) / 3.0
    np.testing.assert_array_equal(lexicographic_order(key), np.lexsort(key.T[::-1]))


def test_merging_rows_of_any_size_is_silent():
    merged = merge_rows(np.array([[1e308], [-1e308]]), np.zeros(2))
    np.testing.assert_array_equal(merged.X[:, 0], [-1e308, 1e308])


def test_rows_in_no_fold_are_trained_on_and_never_held_out():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 2)), rng.normal(size=30)
    folds = np.where(np.arange(30) < 10, np.arange(30) % 2, -1)
    mean = RegressorMean(LinearRegression(), X, y, np.ones(30), folds, 0)
    assert np.isnan(mean.heldout_residuals[10:]).all()
    for fold in (0, 1):
        out = folds == fold
        model = LinearRegression().fit(X[~out], y[~out])
        np.testing.assert_allclose(mean.heldout_residuals[out], y[out] - model.predict(X[out]))
    everything = LinearRegression().fit(X, y)
    np.testing.assert_allclose(mean.predict(torch.as_tensor(X)).numpy(), everything.predict(X))


def test_only_wanted_residuals_are_made(witness):
    y = np.arange(30.0)
    folds = np.arange(30) % 3
    wanted = np.array([0, 3, 4])  # of folds 0 and 1
    mean = RegressorMean(witness, np.zeros((30, 1)), y, np.ones(30), folds, 0, wanted=wanted)
    assert [len(seen) for seen in Witness.seen] == [20, 20, 30]
    assert np.flatnonzero(~np.isnan(mean.heldout_residuals)).tolist() == wanted.tolist()
    np.testing.assert_allclose(mean.heldout_residuals[[0, 3]], y[[0, 3]] - y[folds != 0].mean())


def test_without_a_refit_the_model_of_the_only_fold_predicts(witness):
    y = np.arange(10.0)
    folds = np.where(y < 3, 0, -1)
    mean = RegressorMean(witness, np.zeros((10, 1)), y, np.ones(10), folds, 0, refit=False)
    assert len(Witness.seen) == 1
    assert mean.predict(torch.zeros(2, 1)).tolist() == [6.0, 6.0]
    np.testing.assert_allclose(mean.heldout_residuals[:3], y[:3] - 6.0)
    # Where no one is held out there is no model to keep.
    RegressorMean(witness, np.zeros((10, 1)), y, np.ones(10), np.full(10, -1), 0, refit=False)
    assert [len(seen) for seen in Witness.seen] == [7, 10]


@pytest.mark.parametrize("best", [-1.6, -1.0, -0.3, 0.0, 0.4])
def test_the_best_shift_is_the_bottom_of_a_parabola(best):
    errors = [2.0 + 3.0 * (shift - best) ** 2 for shift in SHIFTS]
    at_the_edge = best < -1.5
    assert best_shift(errors, SHIFTS) == pytest.approx(SHIFTS[0] if at_the_edge else best)


def test_shifts_that_failed_are_not_taken():
    assert best_shift([math.inf, 1.0, 2.0, 3.0], SHIFTS) == SHIFTS[1]
    assert best_shift([3.0, 2.0, 1.0, math.inf], SHIFTS) == SHIFTS[2]
    assert best_shift([1.0, 1.0, 1.0, 1.0], SHIFTS) == SHIFTS[0]


@pytest.mark.parametrize("best", [-2.6, -1.6, -1.0, -0.3, 0.0, 0.4, 1.7])
def test_three_errors_give_the_shift_that_all_would_give(best):
    def error(shift):
        tried.append(shift)
        return 2.0 + 3.0 * (shift - best) ** 2

    tried = []
    some = best_shift(errors_downhill(error, SHIFTS), SHIFTS)
    assert len(tried) == 3
    assert some == best_shift([error(shift) for shift in SHIFTS], SHIFTS)


def test_a_trained_penalty_that_fails_is_left_for_one_that_works():
    def error(shift):
        return math.inf if shift < 1.0 else 2.0

    assert best_shift(errors_downhill(error, SHIFTS), SHIFTS) == 1.0
