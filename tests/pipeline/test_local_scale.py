"""The local scale: its objective by brute force, scales it recovers, and noise it must not fit."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from twostagegp.pipeline.calibration import local_scale
from twostagegp.pipeline.calibration.local_scale import (
    Cases,
    Combination,
    Situation,
    combine,
    fit_local_scale,
    log_squares,
)
from twostagegp.pipeline.mean.crossfit import assign_folds
from twostagegp.pipeline.settings import DEFAULTS, LocalScaleSettings


def situation(X, seed=0):
    """A mean that depends on the inputs, one variance, and an uninformative disagreement."""
    n, rng = len(X), np.random.default_rng(77 + seed)
    return Situation(X, np.sin(X[:, 0]), np.full(n, 0.04), 0.01 + 0.02 * rng.random(n))


def fit(X, z, weight=None, inverse=None, groups=None, share=1.0, seed=0, where=None, **options):
    n = len(z)
    inverse = np.arange(n) if inverse is None else inverse
    folds = assign_folds(int(inverse.max()) + 1, 5, np.random.default_rng(seed), groups)
    weight = np.ones(n) if weight is None else np.asarray(weight, dtype=float)
    where = situation(X) if where is None else where
    return fit_local_scale(where, z, weight, inverse, folds, groups, share, None, seed, **options)


def wavy(X):
    """A standard deviation that goes up and down with the first column by factors of five."""
    return np.exp(0.8 * np.sin(1.5 * X[:, 0]))


def table(n, sigma=wavy, d=1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, d))
    return X, sigma(X) * rng.normal(size=n)


def flat(X):
    return np.ones(len(X))


def nlpd(z, g):
    return float(np.mean(0.5 * np.log(g) + 0.5 * z**2 / g))


def objective(S, squares, weight, a, b, c):
    """The docstring of ``combine``, row by row."""
    total = 0.0
    for s, square, w in zip(S, squares, weight, strict=True):
        g = math.exp(sum(aj * sj for aj, sj in zip(a, s, strict=True)) + c) + b
        total += 0.5 * w * (math.log(g) + square / g)
    return total + sum(a)


class TestCombine:
    def data(self, n=60, J=2, seed=0):
        rng = np.random.default_rng(seed)
        S = rng.normal(size=(n, J))
        z = np.exp(0.5 * S[:, 0]) * rng.normal(size=n)
        return S, z**2, rng.integers(1, 4, size=n).astype(float)

    def test_value_and_gradient_equal_brute_force(self, monkeypatch):
        S, squares, weight = self.data()
        asked = []

        def recorded(fun, *args, **options):
            asked.append(fun)
            return minimize(fun, *args, **options)

        monkeypatch.setattr(local_scale, "minimize", recorded)
        combine(S, squares, weight)
        fun, N = asked[0], weight.sum()
        overall = float(weight @ squares / N)
        for p in np.random.default_rng(1).normal(size=(5, 4)) * [0.7, 0.7, 1.0, 2.0]:
            value, gradient = fun(p)
            b = overall * math.exp(p[3])
            assert value == pytest.approx(objective(S, squares, weight, p[:2], b, p[2]) / N)
            steps = 1e-6 * np.eye(4)
            numeric = [(fun(p + h)[0] - fun(p - h)[0]) / 2e-6 for h in steps]
            np.testing.assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-8)

    @pytest.mark.parametrize("seed", range(4))
    def test_no_nearby_or_random_parameters_are_better(self, seed):
        S, squares, weight = self.data(150, seed=seed)
        found = combine(S, squares, weight)
        best = objective(S, squares, weight, found.a, found.b, found.c)
        overall = float(weight @ squares / weight.sum())
        rng = np.random.default_rng(seed)
        for size in (1e-3, 1e-2, 0.1, 1.0):
            for _ in range(20):
                a = np.clip(
                    found.a + size * rng.normal(size=2), 0.0, DEFAULTS.local_scale.largest_weight
                )
                b = found.b * math.exp(size * rng.normal())
                b = min(max(b, overall / weight.sum()), overall)
                c = found.c + size * rng.normal()
                assert objective(S, squares, weight, a, b, c) > best - 1e-4

    @pytest.mark.parametrize("true", [(0.8, 0.0), (0.3, 0.9), (1.4, 0.2)])
    def test_weights_are_recovered(self, true):
        rng = np.random.default_rng(2)
        S = rng.normal(size=(20_000, 2))
        z = np.exp(0.5 * (S @ true + 0.4)) * rng.normal(size=20_000)
        found = combine(S, z**2, np.ones(20_000))
        np.testing.assert_allclose(found.a, true, atol=0.06)
        assert found.c == pytest.approx(0.4, abs=0.06)

    def test_a_constant_part_is_recovered(self):
        rng = np.random.default_rng(3)
        S = 1.5 * rng.normal(size=(20_000, 1))
        z = np.sqrt(np.exp(S[:, 0] - 0.5) + 0.4) * rng.normal(size=20_000)
        found = combine(S, z**2, np.ones(20_000))
        assert found.a[0] == pytest.approx(1.0, abs=0.05)
        assert found.b == pytest.approx(0.4, abs=0.05)
        assert found.c == pytest.approx(-0.5, abs=0.07)

    def test_useless_members_get_no_weight(self):
        for seed in range(20):
            rng = np.random.default_rng(seed)
            S = rng.normal(size=(100, 3))
            found = combine(S, 4.0 * rng.normal(size=100) ** 2, np.ones(100))
            if not found.a.any():
                assert found.factor(S) == pytest.approx(np.full(100, found.factor(S)[0]))
            assert found.a.sum() < 0.6
        # Nor for what points the wrong way.
        z = np.exp(-0.4 * S[:, 0]) * rng.normal(size=100)
        assert combine(S[:, :1], z**2, np.ones(100)).a[0] == 0.0

    def test_without_members_the_factor_is_the_mean_square(self):
        rng = np.random.default_rng(4)
        squares, weight = rng.normal(size=50) ** 2, rng.uniform(0.5, 2.0, size=50)
        found = combine(np.zeros((50, 0)), squares, weight)
        g = found.factor(np.zeros((3, 0)))
        np.testing.assert_allclose(g, weight @ squares / weight.sum())

    def test_the_constant_part_has_a_lower_bound(self):
        rng = np.random.default_rng(5)
        S = 2.0 * rng.normal(size=(400, 1))
        squares = np.exp(S[:, 0]) * rng.normal(size=400) ** 2
        for weight in (np.ones(400), np.full(400, 3.0)):
            found = combine(S, squares, weight)
            overall = weight @ squares / weight.sum()
            assert found.a[0] > 0.8
            assert found.b >= overall / weight.sum() * (1 - 1e-9)

    def test_a_weight_is_a_number_of_repeats(self):
        S, squares, weight = self.data(200)
        counts = weight.astype(int)
        one = combine(S, squares, weight)
        two = combine(np.repeat(S, counts, 0), np.repeat(squares, counts), np.ones(counts.sum()))
        np.testing.assert_allclose(one.factor(S), two.factor(S), rtol=1e-4)

    def test_extreme_numbers_give_finite_factors(self):
        S = np.array([[1e5], [-1e5], [0.0]] * 20)
        for squares in (np.zeros(60), np.full(60, 1e300), np.tile([1e12, 0.0, 1.0], 20)):
            found = combine(S, squares, np.ones(60))
            assert np.isfinite(found.factor(S)).all()
            assert (found.factor(S) > 0.0).all()

    def test_times_multiplies_the_factor(self):
        one = Combination(np.array([0.5]), 0.1, 0.3)
        S = np.linspace(-2, 2, 5)[:, None]
        np.testing.assert_allclose(one.times(2.5).factor(S), 2.5 * one.factor(S))


class TestLogSquares:
    def test_the_expectation_is_the_log_scale(self):
        z = np.random.default_rng(0).normal(size=400_000)
        for scale in (0.3, 1.0, 20.0):
            t = log_squares(scale * z)
            # Effect of SMALLEST_SQUARE: 2 pi phi(0) sqrt(1e-4) / scale.
            assert t.mean() == pytest.approx(2 * math.log(scale), abs=0.01 + 0.026 / scale)

    def test_a_z_score_of_zero_is_finite(self):
        assert np.isfinite(log_squares(np.array([0.0, 1e-300]))).all()


class TestFittedScale:
    @pytest.mark.parametrize(
        ("n", "seeds"), [(60, 8), pytest.param(200, 8, marks=pytest.mark.slow), (2000, 1)]
    )
    def test_constant_noise_costs_almost_nothing(self, n, seeds):
        cost = []
        for seed in range(seeds):
            X, z = table(n, flat, d=2, seed=seed)
            new, fresh = table(4000, flat, d=2, seed=1000 + seed)
            g = fit(X, z, seed=seed).factor(situation(new))
            cost.append(nlpd(fresh, g) - nlpd(fresh, np.full(4000, np.mean(z**2))))
        assert np.mean(cost) < 0.01
        assert np.max(cost) < 0.05

    @pytest.mark.parametrize(("n", "d"), [(400, 1), (600, 5)])
    def test_a_smooth_noise_scale_is_recovered(self, n, d):
        X, z = table(n, d=d)
        new, fresh = table(5000, d=d, seed=1)
        model = fit(X, z)
        sigma = np.sqrt(model.factor(situation(new)))
        assert np.corrcoef(sigma, wavy(new))[0, 1] > 0.9
        for third in np.array_split(np.argsort(new[:, 0]), 3):
            assert np.mean(np.abs(fresh / sigma)[third] < 1.96) == pytest.approx(0.95, abs=0.04)
        gain = nlpd(fresh, np.full(5000, np.mean(z**2))) - nlpd(fresh, sigma**2)
        best = nlpd(fresh, np.full(5000, np.mean(z**2))) - nlpd(fresh, wavy(new) ** 2)
        assert gain > 0.7 * best

    @pytest.mark.parametrize("feature", ["mean", "variance", "disagreement"])
    def test_a_scale_that_depends_on_one_derived_feature_is_recovered(self, feature):
        def make(n, seed):
            rng = np.random.default_rng(seed)
            X, u = rng.normal(size=(n, 2)), rng.normal(size=(3, n))
            where = Situation(X, u[0], np.exp(u[1]), np.exp(u[2]))
            signal = u[["mean", "variance", "disagreement"].index(feature)]
            return where, np.exp(0.6 * signal), rng.normal(size=n)

        where, sigma, noise = make(500, 0)
        model = fit(where.X, sigma * noise, where=where)
        new, sigma, _ = make(2000, 1)
        assert np.corrcoef(np.log(model.factor(new)), np.log(sigma))[0, 1] > 0.9

    def test_held_out_squares_average_one(self):
        for sigma in (wavy, flat):
            X, z = table(120, sigma)
            weight = np.random.default_rng(0).uniform(0.5, 2.0, size=120)
            g = fit(X, z, weight).heldout_factor
            assert weight @ (z**2 / g) / weight.sum() == pytest.approx(1.0)

    def test_few_rows_have_one_factor(self):
        X, z = table(DEFAULTS.local_scale.fewest_rows - 1)
        model = fit(X, z)
        assert model.label == "none"
        np.testing.assert_allclose(model.factor(situation(X)), np.mean(z**2))
        assert fit(*table(DEFAULTS.local_scale.fewest_rows)).factor(situation(X)).shape == (
            DEFAULTS.local_scale.fewest_rows - 1,
        )

    def test_the_factor_is_finite_far_away(self):
        X, z = table(300)
        model = fit(X, z)
        far = np.array([[1e6], [-1e6], [50.0]])
        for mean, variance, disagreement in ((0.0, 0.04, 0.02), (1e9, 1e12, 1e9), (0.0, 0.0, 0.0)):
            numbers = (np.full(3, value) for value in (mean, variance, disagreement))
            g = model.factor(Situation(far, *numbers))
            assert np.isfinite(g).all()
            assert (g > 0.0).all()
            inside = model.factor(situation(X))
            assert g.max() < 10.0 * inside.max()

    def test_a_column_that_was_constant_is_not_used(self):
        X, z = table(200)
        where = situation(X)
        known = Situation(X, np.zeros(200), where.variance, where.disagreement)
        model = fit(X, z, where=known)
        one = model.factor(known)
        other = model.factor(Situation(X, np.full(200, 3.0), where.variance, where.disagreement))
        np.testing.assert_array_equal(one, other)

    def test_residuals_of_exactly_zero_give_finite_factors(self):
        X, z = table(200)
        z[::3] = 0.0
        model = fit(X, z)
        assert np.isfinite(model.heldout_factor).all()
        assert (model.factor(situation(X)) > 0.0).all()


class TestRows:
    def repeated(self, n=170, seed=0):
        """A table with counts, and the same table with its rows repeated; trees take part."""
        rng = np.random.default_rng(seed)
        X, z = table(n, d=2, seed=seed)
        counts = rng.integers(1, 4, size=n)
        return X, z, counts, np.repeat(np.arange(n), counts)

    def test_a_weight_is_a_number_of_repeats(self):
        X, z, counts, rows = self.repeated()
        where = situation(X)
        one = fit(X, z, counts, where=where)
        two = fit(X, z[rows], inverse=rows, where=where.take(rows))
        assert one.label != "none"
        np.testing.assert_allclose(one.heldout_factor[rows], two.heldout_factor, rtol=1e-6)
        np.testing.assert_allclose(one.factor(where), two.factor(where), rtol=1e-6)

    def test_the_order_of_rows_does_not_matter(self):
        X, z, _, rows = self.repeated()
        # Rows with equal inputs may have different targets.
        z = z[rows] * np.random.default_rng(1).choice([1.0, 1.0, 0.5], size=len(rows))
        where, order = situation(X).take(rows), np.random.default_rng(2).permutation(len(rows))
        one = fit(X, z, inverse=rows, where=where)
        two = fit(X, z[order], inverse=rows[order], where=where.take(order))
        np.testing.assert_allclose(one.heldout_factor[order], two.heldout_factor, rtol=1e-6)
        np.testing.assert_allclose(one.factor(where), two.factor(where), rtol=1e-6)

    def cases(self, z, weight, inverse, groups=None, share=1.0, folds=None, seed=0):
        m = int(max(inverse)) + 1
        folds = np.arange(m) % 5 if folds is None else folds
        rng = np.random.default_rng(seed)
        numbers = (np.asarray(z, dtype=float), np.asarray(weight, dtype=float))
        return Cases.of(*numbers, np.asarray(inverse), folds, groups, share, rng)

    def test_cases_of_repeated_and_weighted_rows(self):
        # Distinct rows 0 (twice the same target, and another), 1 (weight 2) and 2 (weight 1/2).
        cases = self.cases([3.0, 1.0, 3.0, 5.0, 7.0], [1, 1, 1, 2, 0.5], [0, 0, 0, 1, 2])
        z = np.array([3.0, 1.0, 3.0, 5.0, 7.0])
        np.testing.assert_array_equal(z[cases.first], [1.0, 3.0, 5.0, 7.0, 3.0, 5.0])
        np.testing.assert_array_equal(cases.weight, [1.0, 1.0, 1.0, 0.5, 1.0, 1.0])
        np.testing.assert_array_equal(cases.half, [0, 4, 5, 3, 1, 2])
        np.testing.assert_array_equal(cases.of_row, [1, 0, 1, 2, 3])
        values = np.arange(6.0)
        np.testing.assert_array_equal(cases.to_rows(values), [2.5, 0.0, 2.5, 3.5, 3.0])

    def test_the_weights_of_all_cases_are_those_of_all_rows(self):
        rng = np.random.default_rng(0)
        inverse = rng.integers(0, 30, size=100)
        inverse[:30] = np.arange(30)
        weight = rng.uniform(0.1, 3.0, size=100)
        cases = self.cases(rng.choice([1.0, 2.0], size=100), weight, inverse)
        assert cases.weight.sum() == pytest.approx(weight.sum())
        np.testing.assert_array_equal(cases.half[cases.half], np.arange(len(cases.half)))

    @pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
    def test_rows_with_equal_inputs_stay_for_the_share_of_rows_that_was_held_out(self, share):
        inverse = np.repeat(np.arange(400), 2)
        z = np.random.default_rng(0).normal(size=800)
        cases = self.cases(z, np.ones(800), inverse, share=share, folds=np.arange(400) % 5)
        pairs = np.array([cases.folds[inverse[cases.first] == k] for k in range(400)])
        apart = np.mean(pairs[:, 0] != pairs[:, 1])
        assert apart == pytest.approx(0.8 * share, abs=0.08)

    def test_groups_share_a_fold(self):
        groups = np.arange(60) // 6
        folds = assign_folds(60, 5, np.random.default_rng(0), groups)
        inverse = np.repeat(np.arange(60), 2)
        z = np.random.default_rng(0).normal(size=120)
        cases = self.cases(z, np.ones(120), inverse, groups, folds=folds)
        for group in range(10):
            assert len(np.unique(cases.folds[cases.groups == group])) == 1

    def grouped(self, seed=0):
        """Groups at separate inputs, with scales independent of those of other groups."""
        rng = np.random.default_rng(seed)
        groups = np.repeat(np.arange(40), 10)
        X = np.repeat(rng.normal(size=(40, 2)), 10, axis=0) + 0.01 * rng.normal(size=(400, 2))
        sigma = np.repeat(np.exp(rng.normal(size=40)), 10)
        return X, sigma, sigma * rng.normal(size=400), groups

    def test_groups_are_held_out_together(self):
        X, sigma, z, groups = self.grouped()
        blind = fit(X, z).heldout_factor
        aware = fit(X, z, groups=groups).heldout_factor
        assert np.corrcoef(np.log(blind), np.log(sigma))[0, 1] > 0.8
        assert np.corrcoef(np.log(aware + 1e-9 * np.arange(400)), np.log(sigma))[0, 1] < 0.4

    @pytest.mark.parametrize("size", [25, 60, 240])
    def test_groups_of_any_size_are_accepted(self, size):
        settings = LocalScaleSettings(ridge_rows=50, training_rows=30)
        X, z = table(480, d=2)
        model = fit(X, z, groups=np.arange(480) // size, settings=settings)
        assert np.isfinite(model.heldout_factor).all()
        assert (model.factor(situation(X)) > 0.0).all()

    def test_more_rows_than_the_ridges_use_are_accepted(self):
        X, z = table(500)
        model = fit(X, z, settings=LocalScaleSettings(ridge_rows=200, training_rows=100))
        new, _ = table(1000, seed=1)
        assert np.corrcoef(np.log(model.factor(situation(new))), np.log(wavy(new)))[0, 1] > 0.85
