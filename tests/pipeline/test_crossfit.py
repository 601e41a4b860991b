"""Folds, and regressors whose residuals come from clones fitted without the row's fold."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.neighbors import KNeighborsRegressor

from twostagegp.pipeline.mean.crossfit import RegressorMean, assign_folds


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    y = X @ [1.0, -2.0, 0.5] + rng.normal(size=40)
    folds = assign_folds(40, 5, rng)
    return X, y, folds


# --- folds ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 60), n_folds=st.integers(1, 12), seed=st.integers(0, 1000))
def test_folds_differ_by_at_most_one_row(n, n_folds, seed):
    counts = np.bincount(assign_folds(n, n_folds, np.random.default_rng(seed)))
    assert len(counts) == min(n, n_folds)
    assert counts.max() - counts.min() <= 1


@settings(deadline=None, max_examples=30)
@given(labels=st.lists(st.integers(-3, 9), min_size=1, max_size=60), n_folds=st.integers(1, 8))
def test_a_group_stays_in_one_fold(labels, n_folds):
    groups = np.array(labels)
    folds = assign_folds(len(groups), n_folds, np.random.default_rng(0), groups)
    for group in np.unique(groups):
        assert len(np.unique(folds[groups == group])) == 1
    assert len(np.unique(folds)) == min(n_folds, len(np.unique(groups)))


def test_folds_of_equal_groups_are_balanced():
    groups = np.repeat(np.arange(20), 3)
    folds = assign_folds(60, 5, np.random.default_rng(0), groups)
    np.testing.assert_array_equal(np.bincount(folds), 12)


def test_the_largest_groups_are_spread():
    groups = np.repeat(np.arange(6), [10, 10, 10, 1, 1, 1])
    folds = assign_folds(33, 3, np.random.default_rng(0), groups)
    np.testing.assert_array_equal(np.bincount(folds), 11)


def test_the_largest_groups_come_first():
    # The other way round the two single rows would be apart and the pair on top of one.
    folds = assign_folds(4, 2, np.random.default_rng(0), np.array([0, 1, 2, 2]))
    np.testing.assert_array_equal(np.bincount(folds), 2)


@pytest.mark.parametrize("groups", [None, np.arange(50) // 2], ids=["rows", "groups"])
def test_folds_are_shuffled_and_seeded(groups):
    def draw(seed):
        return assign_folds(50, 5, np.random.default_rng(seed), groups)

    np.testing.assert_array_equal(draw(1), draw(1))
    assert not np.array_equal(draw(1), draw(2))


# --- regressors ----------------------------------------------------------------------------------


def test_residuals_equal_cross_val_predict(table):
    X, y, folds = table
    mean = RegressorMean(Ridge(0.3), X, y, np.ones(40), folds, random_state=0)
    expected = y - cross_val_predict(Ridge(0.3), X, y, cv=PredefinedSplit(folds))
    np.testing.assert_allclose(mean.heldout_residuals, expected, rtol=1e-10)


def test_prediction_is_that_of_a_fit_on_all_rows(table):
    X, y, folds = table
    mean = RegressorMean(Ridge(0.3), X, y, np.ones(40), folds, random_state=0)
    prediction = mean.predict(torch.as_tensor(X))
    assert prediction.dtype == torch.float64
    np.testing.assert_allclose(prediction.numpy(), Ridge(0.3).fit(X, y).predict(X), rtol=1e-12)


def test_a_prediction_does_not_depend_on_the_targets_of_its_fold(table):
    X, y, folds = table
    changed = y.copy()
    changed[folds == 2] += 100.0
    before = RegressorMean(Ridge(0.3), X, y, np.ones(40), folds, 0).heldout_residuals
    after = RegressorMean(Ridge(0.3), X, changed, np.ones(40), folds, 0).heldout_residuals
    np.testing.assert_allclose(after[folds == 2] - before[folds == 2], 100.0)


def test_sample_weights_are_passed_on(table):
    X, y, folds = table
    weight = np.random.default_rng(1).integers(1, 4, size=40)
    repeated = np.repeat(np.arange(40), weight)
    one = RegressorMean(LinearRegression(), X, y, weight.astype(float), folds, 0)
    other = RegressorMean(
        LinearRegression(), X[repeated], y[repeated], np.ones(len(repeated)), folds[repeated], 0
    )
    np.testing.assert_allclose(one.heldout_residuals[repeated], other.heldout_residuals, atol=1e-10)


@pytest.mark.parametrize("weight", [np.full(40, 2.0), np.linspace(1.5, 4.0, 40)])
def test_weights_that_are_all_above_one_are_passed_on(table, weight):
    X, y, folds = table
    mean = RegressorMean(Ridge(0.3), X, y, weight, folds, 0)
    expected = Ridge(0.3).fit(X, y, sample_weight=weight).predict(X)
    np.testing.assert_allclose(mean.predict(torch.as_tensor(X)).numpy(), expected, rtol=1e-12)


def test_a_regressor_without_sample_weight_is_fitted_without_weights(table):
    X, y, folds = table
    weight = np.linspace(0.5, 2.0, 40)
    mean = RegressorMean(KNeighborsRegressor(3), X, y, weight, folds, 0)
    expected = y - cross_val_predict(KNeighborsRegressor(3), X, y, cv=PredefinedSplit(folds))
    np.testing.assert_allclose(mean.heldout_residuals, expected)


def test_a_random_state_of_none_is_replaced_by_the_seed(table):
    X, y, folds = table

    def residuals(regressor):
        return RegressorMean(regressor, X, y, np.ones(40), folds, random_state=3).heldout_residuals

    forest = RandomForestRegressor(4, n_jobs=1)
    np.testing.assert_array_equal(residuals(forest), residuals(forest))
    np.testing.assert_array_equal(
        residuals(forest), residuals(RandomForestRegressor(4, random_state=3, n_jobs=1))
    )


def test_a_random_state_of_the_user_is_kept(table):
    X, y, folds = table
    forest = RandomForestRegressor(4, random_state=9, n_jobs=1)
    assert RegressorMean(forest, X, y, np.ones(40), folds, 3).model.random_state == 9


def test_the_users_regressor_is_never_fitted(table):
    X, y, folds = table
    ridge = Ridge()
    mean = RegressorMean(ridge, X, y, np.ones(40), folds, 0)
    assert not hasattr(ridge, "coef_")
    assert mean.label == "Ridge"


def test_predictions_of_shape_n_by_one_are_flattened(table):
    X, y, folds = table

    class Column(Ridge):
        def predict(self, X):
            return super().predict(X)[:, None]

    mean = RegressorMean(Column(), X, y, np.ones(40), folds, 0)
    assert mean.heldout_residuals.shape == mean.predict(torch.as_tensor(X)).shape == (40,)


def test_rows_in_no_fold_are_trained_on_and_never_held_out(table):
    X, y, folds = table
    some = np.where(folds == 0, 0, np.where(folds == 1, 3, -1))
    mean = RegressorMean(Ridge(0.3), X, y, np.ones(40), some, 0)
    for fold in (0, 3):
        out = some == fold
        expected = y[out] - Ridge(0.3).fit(X[~out], y[~out]).predict(X[out])
        np.testing.assert_allclose(mean.heldout_residuals[out], expected, rtol=1e-10)
    assert np.isnan(mean.heldout_residuals[some == -1]).all()


def test_only_the_requested_residuals_are_computed(table):
    X, y, folds = table
    fits = []

    class Counted(Ridge):
        def fit(self, X, y):
            fits.append(len(y))
            return super().fit(X, y)

    wanted = np.flatnonzero(folds == 2)[:3]
    mean = RegressorMean(Counted(0.3), X, y, np.ones(40), folds, 0, wanted=wanted)
    assert fits == [32, 40]
    out = folds == 2
    expected = y[wanted] - Ridge(0.3).fit(X[~out], y[~out]).predict(X[wanted])
    np.testing.assert_allclose(mean.heldout_residuals[wanted], expected, rtol=1e-10)
    assert np.isnan(np.delete(mean.heldout_residuals, wanted)).all()


def test_without_a_refit_the_model_of_the_only_fold_is_kept(table):
    X, y, folds = table
    one = np.where(folds == 0, 0, -1)
    mean = RegressorMean(Ridge(0.3), X, y, np.ones(40), one, 0, refit=False)
    expected = Ridge(0.3).fit(X[one != 0], y[one != 0]).predict(X)
    np.testing.assert_allclose(mean.predict(torch.as_tensor(X)).numpy(), expected, rtol=1e-12)
    none = RegressorMean(Ridge(0.3), X, y, np.ones(40), np.full(40, -1), 0, refit=False)
    expected = Ridge(0.3).fit(X, y).predict(X)
    np.testing.assert_allclose(none.predict(torch.as_tensor(X)).numpy(), expected, rtol=1e-12)


def test_ignored_weights_are_recorded(table):
    X, y, folds = table

    def ignored(regressor, weight):
        return RegressorMean(regressor, X, y, weight, folds, 0).ignored_weights

    assert ignored(KNeighborsRegressor(3), np.full(40, 2.0))
    assert ignored(KNeighborsRegressor(3), np.where(folds == 0, 2.0, 1.0))
    assert not ignored(KNeighborsRegressor(3), np.ones(40))
    assert not ignored(Ridge(), np.full(40, 2.0))


def test_new_rows_do_not_change_a_regressor(table):
    X, y, folds = table
    mean = RegressorMean(Ridge(0.3), X, y, np.ones(40), folds, 0)
    assert mean.extended(None, keep_factors=True) is mean
