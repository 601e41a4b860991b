"""How the shape is learned: formulas against quadrature and independent optimisation."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize, stats

from twostagegp.pipeline.calibration.shape import GAUSSIAN
from twostagegp.pipeline.calibration.shape_fit import (
    DEGREES,
    Body,
    Student,
    _share_of_t,
    bin_edges,
    empirical_body,
    learn_shape,
    predictive_student,
)
from twostagegp.pipeline.settings import DEFAULTS

SETTINGS = DEFAULTS.shape
LEVELS = np.array([0.005, 0.025, 0.1, 0.3, 0.5, 0.7, 0.9, 0.975, 0.995])


def normal(n, rng):
    return rng.normal(size=n)


def skewed(n, rng):
    return rng.exponential(size=n) - 1.0


def bimodal(n, rng):
    return rng.choice([-1.0, 1.0], size=n) + 0.2 * rng.normal(size=n)


def heavy(n, rng):
    return rng.standard_t(3, size=n) / math.sqrt(3.0)


def z_scores(law, n, seed=0):
    """Z-scores of mean square one."""
    z = law(n, np.random.default_rng(seed))
    return z / math.sqrt(np.mean(z**2))


def learned(z, weight=None, on_floor=False, folds=None, settings=SETTINGS):
    n = len(z)
    folds = np.arange(n) % 5 if folds is None else folds
    return learn_shape(z, np.ones(n) if weight is None else weight, folds, on_floor, settings)


def second_moment(shape):
    q, h, p = shape.components
    body = (1.0 - shape.tail) * (p @ (q**2 + h**2))
    if shape.tail == 0.0:
        return body
    return body + shape.tail * shape.spread**2 * shape.degrees / (shape.degrees - 2.0)


# --- the t distribution --------------------------------------------------------------------------


def closest_by_quadrature(z, weight, tau):
    """Posterior, predictive density and closest t distribution, all by sums over fine grids."""
    size = math.sqrt(np.average(z**2, weights=weight))
    nu = 1.0 / np.linspace(1 / 200, 2 / 5, 20)[:, None]
    log_s = np.linspace(-3.0, 2.5, 250)
    s = size * np.exp(log_s)
    log_posterior = np.broadcast_to(stats.norm.logpdf(log_s, 0.0, 0.5), (20, 250)).copy()
    for value, count in zip(z, weight, strict=True):
        log_posterior += tau * count * stats.t.logpdf(value, nu, scale=s)
    posterior = np.exp(log_posterior - log_posterior.max())
    posterior /= posterior.sum()
    u = np.linspace(0.0, 12.0, 400)
    points, weights = size * np.sinh(u), size * np.cosh(u)
    weights[0] /= 2.0
    density = np.array([np.sum(posterior * stats.t.pdf(x, nu, scale=s)) for x in points])
    share = weights * density * (u[1] - u[0])
    assert share.sum() == pytest.approx(0.5, abs=1e-4)

    def loss(parameters):
        return (
            -2.0
            * share
            @ stats.t.logpdf(points, np.exp(parameters[0]), scale=size * np.exp(parameters[1]))
        )

    found = optimize.minimize(
        loss,
        [math.log(8.0), 0.0],
        method="L-BFGS-B",
        bounds=[np.log(DEGREES), (-3.0, 3.0)],
        options={"ftol": 1e-15, "gtol": 1e-10},
    )
    return Student(size * math.exp(found.x[1]), math.exp(found.x[0])), loss


class TestPredictiveStudent:
    @pytest.mark.parametrize("law", [normal, skewed, heavy])
    @pytest.mark.parametrize("n", [4, 25, 120])
    def test_it_equals_quadrature_and_independent_optimisation(self, law, n):
        rng = np.random.default_rng(n)
        z, weight = 3.0 * law(n, rng), rng.uniform(0.3, 2.0, size=n)
        t = predictive_student(z, weight)
        expected, loss = closest_by_quadrature(z, weight, 0.3)
        for level in (0.75, 0.9, 0.975, 0.995):
            quantile = expected.scale * stats.t.ppf(level, expected.degrees)
            assert t.scale * stats.t.ppf(level, t.degrees) == pytest.approx(quantile, rel=1e-3)
        assert t.degrees == pytest.approx(expected.degrees, rel=0.01)
        size = math.sqrt(np.average(z**2, weights=weight))
        least = loss([math.log(expected.degrees), math.log(expected.scale / size)])
        assert loss([math.log(t.degrees), math.log(t.scale / size)]) < least + 1e-5

    def test_the_power_of_the_likelihood_counts_rows(self):
        z = z_scores(heavy, 100)
        half = predictive_student(z, np.ones(100), replace(SETTINGS, information=0.15))
        assert half == pytest.approx(predictive_student(z, np.full(100, 0.5)), rel=1e-9)

    def test_few_rows_have_heavier_tails_and_more_variance_than_many(self):
        found = [predictive_student(z_scores(normal, n), np.ones(n)) for n in (5, 20, 100, 1000)]
        assert (np.diff([t.degrees for t in found]) > 0.0).all()
        assert (np.diff([t.variance for t in found]) < 0.0).all()
        assert found[0].degrees < 4.0
        assert found[0].variance > 1.5

    def test_many_gaussian_z_scores_are_nearly_gaussian(self):
        t = predictive_student(z_scores(normal, 20_000), np.ones(20_000))
        assert t.degrees > 50.0
        assert t.variance == pytest.approx(1.0, abs=0.01)
        found = learned(z_scores(normal, 20_000))
        assert float(found.shape.ppf(0.995)) == pytest.approx(stats.norm.ppf(0.995), rel=0.03)
        assert found.moment == pytest.approx(1.0, abs=0.01)

    @pytest.mark.parametrize("degrees", [3.0, 5.0, 12.0])
    def test_degrees_of_freedom_are_found(self, degrees):
        z = 7.0 * np.random.default_rng(0).standard_t(degrees, size=20_000)
        t = predictive_student(z, np.ones(len(z)))
        assert t.degrees == pytest.approx(degrees, rel=0.1)
        assert t.scale == pytest.approx(7.0, rel=0.03)

    def test_with_many_rows_it_has_the_largest_likelihood(self):
        z = np.random.default_rng(1).standard_t(4, size=30_000)
        t = predictive_student(z, np.ones(len(z)))
        degrees, _, scale = stats.t.fit(z, floc=0.0)
        assert t.degrees == pytest.approx(degrees, rel=0.03)
        assert t.scale == pytest.approx(scale, rel=0.01)

    def test_rows_in_blocks_give_the_same(self):
        z = np.random.default_rng(2).standard_t(4, size=5600)
        many = predictive_student(np.repeat(z, 2), np.full(11_200, 0.5))
        assert many == pytest.approx(predictive_student(z, np.ones(5600)), rel=1e-9)

    def test_degrees_of_freedom_have_bounds(self):
        outliers = np.append(np.full(5000, 1e-3), np.ones(100))
        assert predictive_student(outliers, np.ones(5100)).degrees == pytest.approx(2.5, rel=1e-6)
        two = np.tile([-1.0, 1.0], 30_000)
        assert predictive_student(two, np.ones(60_000)).degrees == pytest.approx(200.0, rel=0.02)


# --- the smoothed z-scores -----------------------------------------------------------------------


class TestEmpiricalBody:
    @pytest.mark.parametrize("size", [1.0, 0.6])
    def test_it_equals_its_definition(self, size):
        n, rng = 40, np.random.default_rng(2)
        z = np.sort(skewed(n, rng))
        z *= size / math.sqrt(np.mean(z**2))
        body = empirical_body(rng.permutation(z), np.ones(n))
        # 40 / 3 makes 13 bins, and none of fewer than three rows at the ends.
        q = np.repeat(z, 13).reshape(13, 40).mean(1)
        low, high = np.interp([0.25, 0.75], (np.arange(n) + 0.5) / n, z)
        spread = min(size, (high - low) / 1.349)
        h = np.maximum(0.45 * spread * n**-0.2, 0.75 * np.gradient(q))
        scale = size / math.sqrt(np.mean(q**2 + h**2))
        np.testing.assert_allclose(body.centres, scale * q, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(body.widths, scale * h, rtol=1e-9)
        np.testing.assert_allclose(body.shares, np.full(13, 1 / 13))
        assert body.moment == pytest.approx(size**2)

    def test_its_density_is_a_sum_of_gaussians(self):
        body = Body(np.array([-1.0, 0.4]), np.array([0.3, 0.8]), np.array([0.25, 0.75]))
        z = np.linspace(-3, 3, 7)
        expected = stats.norm.pdf(z[:, None], body.centres, body.widths) @ body.shares
        np.testing.assert_allclose(body.density(z), expected, rtol=1e-12)

    def test_equal_z_scores_have_the_least_bandwidth(self):
        np.testing.assert_allclose(empirical_body(np.ones(40), np.ones(40)).widths, 1e-6)

    def test_bin_edges_of_a_thousand_rows(self):
        # Bins of a hundredth; 0.005 is five rows, and 0.0025 would be fewer than three.
        expected = np.concatenate([[0, 0.005], np.arange(1, 100) / 100, [0.995, 1]])
        np.testing.assert_allclose(bin_edges(1000.0), expected)
        finer = [0, 0.00125, 0.0025, 0.005]
        np.testing.assert_allclose(bin_edges(2400.0)[:5], [*finer, 0.01])  # 0.00125 is three rows
        np.testing.assert_allclose(bin_edges(2.0), [0, 0.5, 1])

    @pytest.mark.parametrize("n", [0.3, 2.0, 12.0, 299.0, 12_345.0, 1e6])
    def test_bin_edges_increase_symmetrically_from_zero_to_one(self, n):
        edges = bin_edges(n)
        assert edges[0] == 0.0
        assert edges[-1] == 1.0
        assert len(edges) >= 3
        assert (np.diff(edges) > 0.0).all()
        np.testing.assert_allclose(edges, 1.0 - edges[::-1], atol=1e-15)
        if n >= 6.0:
            assert np.diff(edges).min() * n >= 2.9 / 2.0


# --- the share of the t distribution -------------------------------------------------------------


class TestShareOfT:
    @pytest.mark.parametrize("seed", range(8))
    def test_it_maximises_the_objective_and_is_a_fixed_point_of_em(self, seed):
        rng = np.random.default_rng(seed)
        n = 40 * (seed + 1)
        z, weight = heavy(n, rng), rng.uniform(0.2, 3.0, size=n)
        t = stats.t.pdf(z, 3.0, scale=0.3 + 0.1 * seed)
        b = stats.norm.pdf(z, 0.1 * seed, 0.8)
        w = _share_of_t(t, b, weight, SETTINGS)

        def objective(w):
            return 0.3 * weight @ np.log(w * t + (1.0 - w) * b) + 3.0 * np.log(w)

        grid = np.linspace(1e-4, 1.0, 5000)
        assert objective(w) >= max(map(objective, grid)) - 1e-9
        rho = w * t / (w * t + (1.0 - w) * b)
        step = (0.3 * weight @ rho + 3.0) / (0.3 * weight.sum() + 3.0)
        assert step == pytest.approx(w, abs=1e-9)

    def test_it_has_bounds(self):
        one, none, n = np.ones(50), np.zeros(50), np.ones(50)
        assert _share_of_t(one, none, n, SETTINGS) == 1.0
        assert _share_of_t(one, one, n, SETTINGS) == 1.0
        assert _share_of_t(none, none, n, SETTINGS) == 1.0  # nothing to learn from
        assert _share_of_t(none, one, n, SETTINGS) == pytest.approx(3.0 / (0.3 * 50 + 3.0))
        free = replace(SETTINGS, tail_rows=0.0)
        assert _share_of_t(none, one, n, free) < 1e-6

    def test_a_row_that_only_the_t_distribution_explains_raises_it(self):
        t, b = np.full(60, 0.3), np.full(60, 0.4)
        before = _share_of_t(t, b, np.ones(60), SETTINGS)
        b[0] = 0.0
        assert _share_of_t(t, b, np.ones(60), SETTINGS) > before + 0.01


# --- the shape -----------------------------------------------------------------------------------


class TestLearnShape:
    @pytest.mark.parametrize(("law", "w_below"), [(skewed, 0.7), (bimodal, 0.3)])
    def test_it_equals_its_definition(self, law, w_below):
        z, folds = z_scores(law, 90, seed=3), np.arange(90) % 3
        weight = np.random.default_rng(0).uniform(0.5, 2.0, size=90)
        found = learned(z, weight, folds=folds)
        by_t, by_body = np.empty(90), np.empty(90)
        for i in range(3):
            out = folds == i
            t = predictive_student(z[~out], weight[~out])
            by_t[out] = stats.t.pdf(z[out], t.degrees, scale=t.scale)
            q, h, p = empirical_body(z[~out], weight[~out])
            by_body[out] = stats.norm.pdf(z[out][:, None], q, h) @ p
        w = optimize.minimize_scalar(
            lambda w: -0.3 * weight @ np.log(w * by_t + (1 - w) * by_body) - 3 * np.log(w),
            bounds=(1e-6, 1.0),
            method="bounded",
            options={"xatol": 1e-9},
        ).x
        assert found.shape.tail == pytest.approx(w, abs=1e-4)
        assert w < w_below
        t, (q, h, p) = predictive_student(z, weight), empirical_body(z, weight)
        variance = t.scale**2 * t.degrees / (t.degrees - 2.0)
        moment = w * variance + (1.0 - w) * p @ (q**2 + h**2)
        assert found.moment == pytest.approx(moment, rel=1e-4)
        x = np.linspace(-3.0, 3.0, 11)
        inner, unit = x * math.sqrt(moment), math.sqrt(moment)
        body = stats.norm.cdf(inner[:, None], q, h) @ p
        expected = (1.0 - w) * body + w * stats.t.cdf(inner, t.degrees, scale=t.scale)
        np.testing.assert_allclose(found.shape.cdf(x), expected, atol=1e-5)
        assert found.shape.spread == pytest.approx(t.scale / unit, rel=1e-4)
        mixture = w * by_t + (1.0 - w) * by_body
        densities = {"student": by_t, "empirical": by_body, "mixture": mixture}
        assert found.scores == pytest.approx(
            {k: -np.average(np.log(d), weights=weight) for k, d in densities.items()}, abs=1e-6
        )

    def test_thirty_rows_are_mixed_and_fewer_are_not(self):
        z = z_scores(bimodal, 30)
        assert set(learned(z).scores) == {"student", "empirical", "mixture"}
        few = learned(z, np.full(30, 0.99))
        assert set(few.scores) == {"student"}
        t = predictive_student(z, np.full(30, 0.99))
        assert (few.shape.name, few.shape.tail) == ("student", 1.0)
        assert few.shape.degrees == t.degrees
        assert few.moment == pytest.approx(t.variance)
        assert learned(z, settings=replace(SETTINGS, fewest=31)).shape.name == "student"

    def test_few_rows_have_a_larger_scale_and_heavier_tails(self):
        few, many = learned(z_scores(normal, 20)), learned(z_scores(normal, 2000))
        assert few.moment > 1.3
        assert many.moment == pytest.approx(1.0, abs=0.03)
        assert few.shape.degrees < 10.0 < many.shape.degrees
        wide = [math.sqrt(each.moment) * float(each.shape.ppf(0.995)) for each in (few, many)]
        assert wide[0] > 1.3 * wide[1]

    @pytest.mark.parametrize("n", [5, 20, 60, 300, 3000])
    @pytest.mark.parametrize("law", [normal, skewed, bimodal, heavy])
    @pytest.mark.parametrize("on_floor", [False, True])
    def test_the_second_moment_is_one(self, law, n, on_floor):
        z = z_scores(law, n) * (0.3 if on_floor else 1.0)
        found = learned(z, on_floor=on_floor)
        assert second_moment(found.shape) == pytest.approx(1.0, abs=1e-9)
        levels = np.concatenate([[1e-9, 1e-6, 1e-4], np.linspace(0.001, 0.999, 999)])
        assert (np.diff(found.shape.ppf(levels)) > 0.0).all()
        if on_floor:
            assert found.moment >= 1.0

    def test_on_the_floor_z_scores_are_not_rescaled(self):
        z = 0.1 * z_scores(normal, 4000)
        found = learned(z, on_floor=True)
        assert found.moment == 1.0
        for level in (0.5, 0.8, 0.95, 0.99):
            inside = np.abs(z) < float(found.shape.ppf(0.5 + level / 2.0))
            assert inside.mean() == pytest.approx(level, abs=0.015)
        # The rest of the second moment comes from the wide component.
        e = 1.0 / 4001.0
        q, h, p = found.shape.components
        assert q[-1] == 0.0
        assert (1.0 - found.shape.tail) * p[-1] == pytest.approx(e)
        assert h[-1] ** 2 == pytest.approx((1.0 - (1.0 - e) * 0.01) / e, rel=1e-3)

    @pytest.mark.parametrize("n", [12, 400])
    def test_on_the_floor_a_t_distribution_alone_gets_a_wide_component(self, n):
        found = learned(
            0.1 * z_scores(heavy, n), on_floor=True, settings=replace(SETTINGS, fewest=n + 1)
        )
        shape, e = found.shape, 1.0 / (n + 1.0)
        assert (shape.name, len(shape.centres), found.moment) == ("empirical", 1, 1.0)
        assert shape.tail == pytest.approx(1.0 - e)
        assert np.isfinite(shape.logpdf([0.0, 0.1, 100.0])).all()
        t = predictive_student(0.1 * z_scores(heavy, n), np.ones(n))
        assert shape.widths[0] ** 2 == pytest.approx((1.0 - (1.0 - e) * t.variance) / e)

    def test_on_the_floor_wide_predictions_raise_the_variances(self):
        found = learned(0.9 * z_scores(normal, 6), on_floor=True)
        assert (found.shape.name, found.moment > 1.0) == ("student", True)

    @pytest.mark.parametrize(
        ("law", "true"),
        [
            (skewed, lambda z: stats.expon.cdf(z + 1.0)),
            (bimodal, lambda z: 0.5 * (stats.norm.cdf(z, -1, 0.2) + stats.norm.cdf(z, 1, 0.2))),
            (normal, stats.norm.cdf),
            (heavy, lambda z: stats.t.cdf(z * math.sqrt(3.0), 3.0)),
        ],
    )
    def test_many_z_scores_give_their_distribution(self, law, true):
        z, errors = np.linspace(-4, 6, 2001), []
        for n in (100, 1000, 10_000):
            scores = law(n, np.random.default_rng(0))
            found = learned(scores)
            errors.append(np.abs(found.shape.cdf(z / math.sqrt(found.moment)) - true(z)).max())
        assert errors[0] > errors[2]
        # Half of it comes from the edge of the exponential distribution, which is smoothed.
        assert errors[2] < 0.02
        for level in (0.05, 0.25, 0.6, 0.95, 0.995):
            q = float(found.shape.ppf(level)) * math.sqrt(found.moment)
            assert float(true(np.array(q))) == pytest.approx(level, abs=0.012)

    @pytest.mark.parametrize("law", [normal, skewed, bimodal])
    def test_tails_reach_beyond_the_z_scores(self, law):
        z = z_scores(law, 300)
        found = learned(z)
        assert found.shape.tail >= 3.0 / (0.3 * 300 + 3.0)
        assert math.sqrt(found.moment) * found.shape.ppf(1.0 - 1e-4) > z.max()
        assert math.sqrt(found.moment) * found.shape.ppf(1e-4) < z.min()

    @pytest.mark.parametrize("law", [normal, skewed, heavy])
    @pytest.mark.parametrize("n", [15, 70])
    def test_a_weight_is_a_number_of_repeats(self, law, n):
        z = np.append(z_scores(law, n), np.zeros(5))
        counts, folds = np.random.default_rng(0).integers(1, 4, size=n + 5), np.arange(n + 5) % 5
        one = learned(z, counts.astype(float), folds=folds)
        two = learned(np.repeat(z, counts), folds=np.repeat(folds, counts))
        assert one.shape.name == two.shape.name
        assert one.moment == pytest.approx(two.moment, rel=1e-6)
        assert one.scores == pytest.approx(two.scores, rel=1e-6)
        np.testing.assert_allclose(one.shape.ppf(LEVELS), two.shape.ppf(LEVELS), atol=1e-6)

    def test_rows_of_weight_zero_are_left_out(self):
        z, weight = z_scores(heavy, 60), np.ones(60)
        weight[::5] = 0.0  # a whole fold
        one, two = (
            learned(z, weight),
            learned(z[weight > 0.0], folds=(np.arange(60) % 5)[weight > 0]),
        )
        assert (one.moment, one.scores) == (two.moment, two.scores)

    @pytest.mark.parametrize("n", [20, 120])
    def test_order_and_units_do_not_matter(self, n):
        rng = np.random.default_rng(6)
        z, weight, folds = skewed(n, rng), rng.uniform(0.4, 3.0, size=n), np.arange(n) % 5
        one, order = learned(z, weight), rng.permutation(n)
        two = learned(z[order], weight[order], folds=folds[order])
        np.testing.assert_allclose(two.shape.ppf(LEVELS), one.shape.ppf(LEVELS), rtol=1e-5)
        for unit in (1e-9, 1e9, -1.0):
            other = learned(unit * z, weight)
            assert other.moment == pytest.approx(unit**2 * one.moment, rel=1e-6)
            levels = LEVELS if unit > 0.0 else 1.0 - LEVELS
            expected = np.sign(unit) * one.shape.ppf(levels)
            np.testing.assert_allclose(other.shape.ppf(LEVELS), expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("on_floor", [False, True])
    @pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 12, 25, 30, 40])
    def test_few_equal_and_exactly_zero_z_scores_are_accepted(self, n, on_floor):
        levels = np.array([1e-9, 0.01, 0.3, 0.5, 0.7, 0.99, 1 - 1e-9])
        z = z_scores(normal, n)
        heaviest = np.append(1e4, np.ones(n - 1))
        cases = (z, np.ones(n), -np.ones(n), np.zeros(n), np.where(z > 0, 0.0, z), np.eye(1, n)[0])
        for scores in (*cases, np.append(z[1:], 1e8)):
            for weight in (np.ones(n), np.full(n, 1e-8), np.full(n, 1e4), heaviest):
                found = learned(scores, weight, on_floor)
                q = found.shape.ppf(levels)
                assert np.isfinite(q).all()
                assert (np.diff(q) > 0.0).all()
                assert np.isfinite(found.shape.logpdf([0.0, 1.0, -1e3])).all()
                assert abs(found.shape.mean) < 1.0
                assert second_moment(found.shape) == pytest.approx(1.0, abs=1e-6)
                assert 0.0 < found.moment < math.inf
                assert np.isfinite(list(found.scores.values())).all()

    def test_one_fold_gives_a_gaussian(self):
        found = learned(np.ones(9), folds=np.zeros(9, dtype=int))
        assert found == (GAUSSIAN, 1.0, {})
        assert learned(np.ones(9), np.zeros(9)) == (GAUSSIAN, 1.0, {})
