"""Weights of the target's values: the formula, its maximum, and what users see of it."""

import math
import pickle

import numpy as np
import pytest
from scipy import stats

from twostagegp import ExactGPRegressor, TwoStageGPRegressor, TwoStageGPWarning, load
from twostagegp.errors import InputError
from twostagegp.pipeline.calibration.law import Law
from twostagegp.pipeline.calibration.shape import GAUSSIAN, Shape
from twostagegp.pipeline.calibration.shape_table import ShapeTable
from twostagegp.pipeline.calibration.value_weights import ValueWeights, bounds_alone
from twostagegp.pipeline.calibration.value_weights_fit import (
    HeldLaws,
    find_edges,
    find_levels,
    fit_weights,
    learn_value_weights,
)
from twostagegp.pipeline.settings import ValueSettings

NONE = (-math.inf, math.inf)
ONE = np.ones(1)
STUDENT = Shape("student", np.zeros(1), ONE, ONE, 1.0, 4.0)
TWO = Shape(
    "empirical", np.array([-0.8, 1.2]), np.array([0.3, 0.5]), np.array([0.6, 0.4]), 0.1, 5.0
)
SHAPES = pytest.mark.parametrize("shape", [GAUSSIAN, STUDENT, TWO], ids=lambda shape: shape.name)
P = np.linspace(0.001, 0.999, 999)
MEAN, SIGMA = np.array([-0.4, 0.3, 1.7, 9.0]), np.array([0.5, 1.0, 0.2, 0.4])


def weights(**changes):
    """Two levels, 0 and 1, and edges without a level at -1 and 2."""
    fields = {
        "edges": np.array([-1.0, 0.0, 1.0, 2.0]),
        "levels": np.array([1, 2]),
        "cells": np.array([[-0.5, 0.5], [0.5, 1.4]]),
        "log_between": np.log([0.2, 1.0, 2.0, 0.7, 1.5]),
        "log_at": np.log([1.3, 0.4]),
    }
    return ValueWeights(**{**fields, **changes})


class TestShapeTable:
    @SHAPES
    def test_it_agrees_with_the_shape(self, shape):
        table = ShapeTable.of(shape)
        z = np.concatenate([np.linspace(-11.0, 11.0, 3001), [-50.0, 40.0]])
        np.testing.assert_allclose(table.cdf(z), shape.cdf(z), atol=2e-7)
        p = np.concatenate([P, [1e-12, 1e-6, 1.0 - 1e-6, 1.0 - 1e-12]])
        np.testing.assert_allclose(table.ppf(p), shape.ppf(p), rtol=1e-5, atol=1e-5)

    @SHAPES
    def test_quantiles_increase(self, shape):
        p = np.sort(np.random.default_rng(0).uniform(size=20_000))
        assert (np.diff(ShapeTable.of(shape).ppf(p)) >= 0.0).all()


class TestFormula:
    @SHAPES
    def test_probabilities_are_those_of_the_formula(self, shape):
        values, table = weights(), ShapeTable.of(shape)
        pieces = values.pieces(MEAN, SIGMA, table)

        def below(y):
            return shape.cdf((y - MEAN) / SIGMA)

        w, v = np.exp(values.log_between), np.exp(values.log_at)
        F = [np.zeros(4), *(below(edge) for edge in values.edges), np.ones(4)]
        between = [w[j] * (F[j + 1] - F[j]) for j in range(5)]
        at = [v[k] * (below(high) - below(low)) for k, (low, high) in enumerate(values.cells)]
        total = sum(between) + sum(at)
        zero, one = (np.full(4, value) for value in (0.0, 1.0))
        atol = 1e-6 / total.min()
        np.testing.assert_allclose(pieces.cdf(zero) - pieces.below(zero), at[0] / total, atol=atol)
        np.testing.assert_allclose(pieces.cdf(one) - pieces.below(one), at[1] / total, atol=atol)
        np.testing.assert_allclose(np.exp(pieces.logpdf(one)), at[1] / total, atol=atol)
        np.testing.assert_allclose(pieces.below(zero), (between[0] + between[1]) / total, atol=atol)
        inside = np.full(4, 0.4)
        density = np.exp(shape.logpdf((0.4 - MEAN) / SIGMA)) / SIGMA
        np.testing.assert_allclose(np.exp(pieces.logpdf(inside)), 2.0 * density / total, rtol=1e-4)

    @SHAPES
    def test_quantiles_invert_the_distribution_function(self, shape):
        laws = Law(shape, weights()).at(MEAN, SIGMA)
        q = laws.quantiles(P)
        assert (np.diff(q, axis=1) >= 0.0).all()
        for k in range(0, 999, 37):
            y = q[:, k]
            level = np.isin(y, [0.0, 1.0])
            assert (laws.cdf(y)[level] >= P[k] - 1e-6).all()
            np.testing.assert_allclose(laws.cdf(y)[~level], P[k], atol=1e-5)
        assert level.any() or np.isin(q, [0.0, 1.0]).any()

    def test_few_and_many_quantiles_are_the_same(self):
        laws = Law(TWO, weights()).at(np.tile(MEAN, 100), np.tile(SIGMA, 100))
        many = laws.quantiles(P)
        few = Law(TWO, weights()).at(MEAN, SIGMA).quantiles(P[[20, 500]])
        np.testing.assert_array_equal(many[:4, [20, 500]], few)

    def test_weights_one_without_levels_change_nothing(self):
        nothing = weights(
            levels=np.zeros(0, dtype=np.int64),
            cells=np.zeros((0, 2)),
            log_between=np.zeros(5),
            log_at=np.zeros(0),
        )
        one, two = (Law(STUDENT, values).at(MEAN, SIGMA) for values in (nothing, None))
        np.testing.assert_allclose(one.quantiles(P), two.quantiles(P), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(one.cdf(MEAN + 0.3), two.cdf(MEAN + 0.3), atol=1e-7)
        np.testing.assert_allclose(one.logpdf(MEAN + 0.3), two.logpdf(MEAN + 0.3), atol=1e-6)

    def test_samples_and_the_transform_follow_the_distribution(self):
        laws = Law(TWO, weights()).at(MEAN, SIGMA)
        draws = laws.samples(20_000, np.random.RandomState(0))
        for row in range(4):
            alone = Law(TWO, weights()).at(np.full(2000, MEAN[row]), np.full(2000, SIGMA[row]))
            assert stats.kstest(alone.pit(draws[row, :2000]), "uniform").pvalue > 1e-3
        share = (draws == 1.0).mean(axis=1)
        np.testing.assert_allclose(share, np.exp(laws.logpdf(np.ones(4))), atol=0.02)

    def test_no_quantile_lies_between_two_levels_if_all_values_are_levels(self):
        values = weights(
            edges=np.array([0.0, 1.0, 2.0]),
            levels=np.arange(3),
            cells=np.array([[-np.inf, 0.5], [0.5, 1.5], [1.5, np.inf]]),
            log_between=np.log([0.01, 0.2, 0.2, 0.01]),
            log_at=np.zeros(3),
            all_levels=True,
        )
        laws = Law(GAUSSIAN, values).at(np.ones(1), ONE)
        q = laws.quantiles(P)[0]
        assert (np.diff(q) >= 0.0).all()
        assert set(q[(q >= 0.0) & (q <= 2.0)]) == {0.0, 1.0, 2.0}
        ends = np.array([q[200], q[800]])
        assert (Law(GAUSSIAN, values).at(np.ones(2), np.ones(2)).cdf(ends) >= P[[200, 800]]).all()

    @SHAPES
    @pytest.mark.parametrize("mean", [-1e6, -20.0, -3.0, 0.0, 5.0])
    def test_quantiles_beyond_a_bound_are_moved_to_it_and_no_others(self, shape, mean):
        one = (np.array([mean]), ONE)
        plain, laws = (Law(shape, values).at(*one) for values in (None, bounds_alone(0.0, 2.0)))
        q = laws.quantiles(P)
        np.testing.assert_allclose(q, np.clip(plain.quantiles(P), 0.0, 2.0), atol=1e-5)
        assert ((q >= 0.0) & (q <= 2.0)).all()
        assert laws.cdf(np.array([-1e-3]))[0] == 0.0
        for y in (0.0, 0.7, 1.999):
            expected = plain.cdf(np.array([y]))
            np.testing.assert_allclose(laws.cdf(np.array([y])), expected, atol=1e-6)
        assert laws.cdf(np.array([2.0]))[0] == pytest.approx(1.0)
        assert np.isfinite(laws.logpdf(np.array([2.0]))).all()
        np.testing.assert_allclose(
            laws.logpdf(np.array([0.7])), plain.logpdf(np.array([0.7])), atol=1e-6
        )

    def test_the_last_quantile_stays_within_the_bounds(self):
        rng = np.random.default_rng(0)
        laws = Law(GAUSSIAN, bounds_alone(-np.inf, 1.0)).at(rng.normal(size=500), np.ones(500))
        assert (laws.quantiles(np.array([1.0 - 1.1e-16])) <= 1.0).all()

    def test_the_transform_does_not_depend_on_the_order_of_rows(self):
        rng = np.random.default_rng(0)
        mean, y = rng.normal(size=2000), rng.integers(0, 2, size=2000) * 1.0
        pit = Law(TWO, weights()).at(mean, np.ones(2000)).pit(y)
        back = Law(TWO, weights()).at(mean[::-1], np.ones(2000)).pit(y[::-1])
        np.testing.assert_array_equal(back[::-1], pit)
        single = [Law(TWO, weights()).at(mean[[k]], ONE).pit(y[[k]])[0] for k in range(50)]
        np.testing.assert_array_equal(single, pit[:50])

    def test_an_unknown_outcome_has_an_unknown_probability(self):
        laws = Law(TWO, bounds_alone(0.0, np.inf)).at(np.zeros(1), ONE)
        assert np.isnan(laws.cdf(np.array([np.nan]))[0])


class TestFit:
    def rows(self, n=400, seed=0):
        rng = np.random.default_rng(seed)
        mean, sigma = rng.normal(size=n), rng.uniform(0.5, 1.0, size=n)
        y = np.maximum(mean + sigma * rng.normal(size=n), 0.0)
        return HeldLaws(y, mean, sigma, rng.integers(1, 3, size=n) * 1.0, ShapeTable.of(GAUSSIAN))

    def start(self):
        return weights(
            edges=np.array([0.0, 0.7, 1.5]),
            levels=np.zeros(1, dtype=np.int64),
            cells=np.array([[-np.inf, 0.01]]),
            log_between=np.zeros(4),
            log_at=np.zeros(1),
        )

    def test_the_weights_maximise_the_formula(self):
        rows, settings = self.rows(), ValueSettings(interval_prior=5.0, level_prior=2.0)
        start = self.start()
        found = fit_weights(rows, start, settings)
        alpha = np.array([5.0, 5.0, 5.0, 5.0, 2.0])
        F = GAUSSIAN.cdf((start.edges - rows.mean[:, None]) / rows.sigma[:, None])
        F = np.hstack([np.zeros((400, 1)), F, np.ones((400, 1))])
        at = GAUSSIAN.cdf((0.01 - rows.mean) / rows.sigma)[:, None]
        mass = np.hstack([np.diff(F, axis=1), at])
        own = np.where(rows.y == 0.0, 4, np.searchsorted(start.edges, rows.y, side="right"))

        def objective(u):
            p = mass * np.exp(u)
            fit = rows.weight @ np.log(p[np.arange(400), own] / p.sum(axis=1))
            return fit + alpha @ (u - np.exp(u))

        u = np.append(found.log_between, found.log_at)
        for k in range(5):
            step = 1e-4 * np.eye(5)[k]
            slope = (objective(u + step) - objective(u - step)) / 2e-4
            assert abs(slope) < 1e-2
            assert objective(u) > objective(u + 100 * step)
            assert objective(u) > objective(u - 100 * step)

    def test_expected_and_seen_numbers_agree(self):
        rows = self.rows(3000)
        values = fit_weights(rows, self.start())
        zero = np.zeros(3000)
        expected = rows.weight @ np.exp(
            Law(GAUSSIAN, values).at(rows.mean, rows.sigma).logpdf(zero)
        )
        assert expected == pytest.approx(rows.weight[rows.y == 0.0].sum(), rel=0.02)

    def test_levels(self):
        rng = np.random.default_rng(0)
        ratings = rng.integers(1, 6, size=200) * 1.0
        assert find_levels(ratings, np.ones(200)).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
        mixed = np.where(rng.uniform(size=200) < 0.4, 0.0, rng.lognormal(size=200))
        assert find_levels(mixed, np.ones(200)).tolist() == [0.0]
        assert find_levels(rng.normal(size=200), np.ones(200)).tolist() == []
        # A weight is a number of rows.
        assert find_levels(np.arange(100.0), np.where(np.arange(100) == 7, 9.0, 1.0)) == [7.0]

    def test_edges_do_not_depend_on_how_repeats_are_given(self):
        y, counts = np.random.default_rng(0).normal(size=50), np.arange(50) % 3 + 1
        one = find_edges(y, counts * 1.0, np.zeros(0))
        two = find_edges(np.repeat(y, counts), np.ones(counts.sum()), np.zeros(0))
        np.testing.assert_array_equal(one, two)

    def learn(self, y, mean, sigma, bounds=NONE, **settings):
        folds = np.arange(len(y)) % 5
        made = ValueSettings(**settings)
        return learn_value_weights(
            y, mean, sigma, np.ones(len(y)), folds, GAUSSIAN, bounds, 0, made
        )

    def test_a_right_distribution_is_left_alone(self):
        rng = np.random.default_rng(1)
        mean = rng.normal(size=500)
        assert self.learn(mean + 0.5 * rng.normal(size=500), mean, np.full(500, 0.5)) is None

    def test_levels_that_do_not_help_are_left_out(self):
        """Predictions are exact, and many levels have not been seen."""
        rng = np.random.default_rng(0)
        y = rng.integers(0, 60, size=100) / 10.0
        assert self.learn(y, y + 0.001 * rng.normal(size=100), np.full(100, 0.001)) is None

    def test_zero_becomes_a_bound_if_many_are_expected_beyond_it(self):
        rng = np.random.default_rng(0)
        mean = rng.uniform(0.0, 1.0, size=300)
        y = np.abs(mean + rng.normal(size=300))
        assert self.learn(y, mean, np.ones(300)).low == 0.0
        assert self.learn(-y, -mean, np.ones(300)).high == 0.0
        few = self.learn(y, mean, np.ones(300), beyond_zero=1e9)
        assert few is None or few.low == -math.inf

    def test_a_value_beyond_a_bound_by_rounding_counts_as_the_bound(self):
        rng = np.random.default_rng(0)
        y = np.append(-1e-11, rng.uniform(size=99) ** 4)
        found = self.learn(y, np.full(100, 0.3), np.full(100, 0.3), bounds=(0.0, math.inf))
        assert found.low == 0.0

    def test_one_gross_outlier_makes_no_levels_of_the_others(self):
        y = np.append(np.random.default_rng(0).uniform(size=299), 1e10)
        found = self.learn(y, np.zeros(300), np.full(300, 1e9), bounds=NONE)
        assert found is None or len(found.levels) <= 1

    def test_rows_are_few_or_many(self):
        rng = np.random.default_rng(0)
        y = rng.integers(0, 2, size=5000) * 1.0
        assert self.learn(y[:20], np.full(20, 0.5), np.full(20, 0.5)) is None
        found = self.learn(y, np.full(5000, 0.5), np.full(5000, 0.5), rows=300)
        assert found.edges[found.levels].tolist() == [0.0, 1.0]


def ratings(n=300, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    return X, np.clip(np.round(3 + X[:, 0] + 0.7 * rng.normal(size=n)), 1, 5)


def hours(n=300, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 1))
    return X, np.maximum(500 * X[:, 0] + 400 * rng.normal(size=n), 0.0)


def fitted(X, y, **options):
    return TwoStageGPRegressor.quick(random_state=0, **options).fit(X, y)


@pytest.fixture(scope="module")
def rated():
    return fitted(*ratings())


class TestRegressor:
    def test_ratings(self, rated):
        X, y = ratings(seed=1)
        values = {1.0, 2.0, 3.0, 4.0, 5.0}
        assert "5 levels (1, 2, 3, 4, 5)" in rated.fit_report_.target_values
        assert "values       5 levels" in str(rated.fit_report_)
        assert set(rated.predict_interval(X, 0.9).ravel()) <= values
        assert np.isin(rated.sample_y(X, 20, joint=False), list(values)).mean() > 0.99
        assert np.isin(rated.sample_y(X, 20), list(values)).mean() > 0.99
        probabilities = [np.exp(rated.predict_logpdf(X, np.full(300, k))) for k in values]
        assert np.sum(probabilities, axis=0) == pytest.approx(1.0, abs=0.01)
        at_most_3 = rated.predict_cdf(X, np.full(300, 3.0))
        assert at_most_3.mean() == pytest.approx((y <= 3.0).mean(), abs=0.06)
        assert stats.kstest(rated.predict_pit(X, y), "uniform").pvalue > 1e-3

    def test_it_can_be_turned_off_and_pays(self, rated):
        from twostagegp.metrics import crps_from_quantiles

        X, y = ratings(1000, seed=2)
        off = fitted(*ratings(), reweight_values=False)
        assert off.calibration_.values is None
        assert off.fit_report_.target_values == ""
        np.testing.assert_array_equal(off.predict(X), rated.predict(X))
        levels = (np.arange(99) + 0.5) / 99
        one, two = (
            crps_from_quantiles(y, model.predict_quantiles(X, levels), levels)
            for model in (rated, off)
        )
        assert one < 0.93 * two

    def test_a_model_with_levels_is_saved_and_pickled(self, rated, tmp_path):
        X, _ = ratings(40, seed=3)
        rated.save(tmp_path / "model")
        expected = rated.predict_quantiles(X, [0.1, 0.5])
        np.testing.assert_array_equal(
            load(tmp_path / "model").predict_quantiles(X, [0.1, 0.5]), expected
        )
        again = pickle.loads(pickle.dumps(rated))
        np.testing.assert_array_equal(again.predict_quantiles(X, [0.1, 0.5]), expected)

    @pytest.mark.parametrize(
        "unit", [np.log1p, lambda b: b / 3, lambda b: np.float32(b / 10), lambda b: 1e9 + b]
    )
    def test_levels_are_the_users_numbers(self, unit):
        X, y = ratings()
        y = np.asarray(unit(y), dtype=np.float64)
        model = fitted(X, y)
        assert set(model.predict_interval(X, 0.9).ravel()) <= set(y)

    @pytest.mark.parametrize("seed", [0, 1])
    def test_coverage_holds_where_the_distribution_is_far_from_the_truth(self, seed):
        """Seventy percent zeros that no column explains, and a very skewed target."""
        rng = np.random.default_rng(seed)

        def zeros(n):
            X = rng.uniform(-2, 2, size=(n, 1))
            return X, np.where(rng.uniform(size=n) < 0.7, 0.0, rng.exponential(size=n) + 1)

        def skewed(n):
            X = rng.uniform(-2, 2, size=(n, 2))
            return X, np.exp(2 * rng.normal(size=n) + X[:, 0])

        for draw in (zeros, skewed):
            X, y = draw(300)
            new, outcome = draw(2000)
            share = {}
            for weighted in (True, False):
                low, high = fitted(X, y, reweight_values=weighted).predict_interval(new, 0.9).T
                share[weighted] = np.mean((low <= outcome) & (outcome <= high))
            assert share[True] >= min(0.86, share[False] - 0.02), draw.__name__

    def test_half_of_the_rows_are_zero(self):
        model = fitted(*hours())
        X, y = hours(1000, seed=1)
        assert "level (0)" in model.fit_report_.target_values
        at_zero = np.exp(model.predict_logpdf(X, np.zeros(1000)))
        assert at_zero.mean() == pytest.approx((y == 0.0).mean(), abs=0.06)
        interval = model.predict_interval(X, 0.9)
        assert (interval >= 0.0).all()
        assert (interval[X[:, 0] < -1.0] == 0.0).mean() > 0.4
        inside = (interval[:, 0] <= y) & (y <= interval[:, 1])
        assert 0.87 < inside.mean() < 0.99

    @pytest.mark.parametrize("calibration", ["local", "scale", None])
    def test_bounds_hold(self, calibration):
        X, y = hours(100)
        share = np.clip(y / 1000.0, 0.01, 0.99)
        model = fitted(X, share, bounds=(0, 1), calibration=calibration, reweight_values=False)
        new = np.linspace(-4, 4, 50)[:, None]
        assert "none below 0, none above 1" in model.fit_report_.target_values
        for found in (
            model.predict_interval(new, 0.99),
            model.predict_quantiles(new, [0.001, 0.5, 0.999]),
            model.sample_y(new, 50),
            model.sample_y(new, 50, joint=False),
        ):
            assert ((found >= 0.0) & (found <= 1.0)).all()
        if calibration is not None:
            conformal = model.predict_interval(new, 0.9, method="conformal")
            assert ((conformal >= 0.0) & (conformal <= 1.0)).all()

    def test_bounds_of_a_constant_target(self):
        with pytest.warns(TwoStageGPWarning):
            model = fitted(np.arange(10.0)[:, None], np.ones(10), bounds=(1, None))
        assert (model.predict_interval([[3.0]]) >= 1.0).all()

    def test_bounds_that_are_numpy_numbers(self):
        X, y = hours(60)
        model = fitted(X, y, bounds=(np.int64(0), np.float32(1e6)))
        assert (model.predict_interval(X) >= 0.0).all()

    def test_a_target_beyond_its_bounds_is_refused(self):
        X, y = hours(50)
        with pytest.raises(InputError, match=r"y reaches from 0 to .* widen the bounds"):
            fitted(X, y, bounds=(1, None))

    def test_several_targets_have_values_of_their_own(self):
        X, y = hours()
        model = fitted(X, np.column_stack([y, X[:, 0] + 0.0 * y]))
        one, two = model.calibration_
        assert one.values is not None
        assert two.values is None
        q = model.predict_quantiles(X[:5], [0.05, 0.5])
        np.testing.assert_allclose(q[:, 0], fitted(X, y).predict_quantiles(X[:5], [0.05, 0.5]))

    def test_after_an_update_the_levels_are_the_same(self, rated):
        X, y = ratings(320)
        model = fitted(X[:300], y[:300]).update(X[300:], y[300:])
        assert set(model.predict_interval(X, 0.9).ravel()) <= {1.0, 2.0, 3.0, 4.0, 5.0}

    def test_the_paper_and_single_processes_have_none(self):
        X, y = ratings(60)
        assert TwoStageGPRegressor.from_paper(random_state=0).fit(X, y).calibration_.values is None
        single = ExactGPRegressor(random_state=0).fit(X, y)
        np.testing.assert_array_equal(single.predict_pit(X, y), single.predict_cdf(X, y))
