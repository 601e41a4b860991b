"""Shapes against quadrature, repeated rows and known distributions."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from twostagegp.pipeline.calibration.shape import (
    DEGREES,
    GAUSSIAN,
    MAKERS,
    Shape,
    bin_edges,
    choose_shape,
    crps,
    empirical_shape,
    gaussian_shape,
    student_shape,
)
from twostagegp.pipeline.mean.crossfit import assign_folds

EXTREME = np.array([1e-9, 1e-7, 1e-5, 1e-3, 0.01, 0.1, 0.3, 0.49999])


def normal(n, rng):
    return rng.normal(size=n)


def skewed(n, rng):
    return rng.exponential(size=n) - 1.0


def bimodal(n, rng):
    return rng.choice([-1.0, 1.0], size=n) + 0.2 * rng.normal(size=n)


def heavy(n, rng):
    return rng.standard_t(3, size=n) / math.sqrt(3.0)


def atoms(n, rng):
    """Every third z-score exactly zero."""
    return np.where(np.arange(n) % 3 == 0, 0.0, rng.normal(size=n))


def z_scores(law, n, seed=0):
    return law(n, np.random.default_rng(seed))


def made(maker, law, n, seed=0):
    return maker(z_scores(law, n, seed), np.ones(n))


SHAPES = {
    "gaussian": lambda: GAUSSIAN,
    "student-3": lambda: made(student_shape, heavy, 4000),
    "student-200": lambda: made(student_shape, normal, 300),
    "empirical-normal": lambda: made(empirical_shape, normal, 500),
    "empirical-skewed": lambda: made(empirical_shape, skewed, 5000),
    "empirical-bimodal": lambda: made(empirical_shape, bimodal, 2000),
    "empirical-heavy": lambda: made(empirical_shape, heavy, 3000),
    "empirical-atoms": lambda: made(empirical_shape, atoms, 300),
    "empirical-of-3": lambda: made(empirical_shape, normal, 3),
    "empirical-on-the-floor": lambda: empirical_shape(z_scores(skewed, 3000), np.ones(3000), 0.2),
    "empirical-of-equal": lambda: empirical_shape(np.ones(40), np.ones(40)),
}


@pytest.fixture(scope="module")
def shape(request):
    return SHAPES[request.param]()


each_shape = pytest.mark.parametrize("shape", SHAPES, indirect=True)
each_maker = pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS.keys())


def integral(shape, f, below=np.inf):
    """The integral of f times the density up to ``below``: Gauss-Legendre between breaks."""
    steps = np.concatenate([-np.arange(9.0)[:0:-1], np.arange(9.0)])
    near = (shape.centres[:, None] + shape.widths[:, None] * steps).reshape(-1)
    far = np.concatenate([np.ldexp(1.0, np.arange(-6, 100)), [0.0]])
    breaks = np.unique(np.concatenate([near, far, -far]))
    breaks = np.append(breaks[breaks < below], [below] if np.isfinite(below) else [])
    nodes, weights = np.polynomial.legendre.leggauss(12)
    middle, half = 0.5 * (breaks[1:] + breaks[:-1]), 0.5 * np.diff(breaks)
    z = middle[:, None] + half[:, None] * nodes
    return float(np.sum(f(z) * np.exp(shape.logpdf(z)) * weights * half[:, None]))


class TestDistribution:
    @each_shape
    def test_the_cdf_is_the_integral_of_the_density(self, shape):
        assert integral(shape, np.ones_like) == pytest.approx(1.0, abs=1e-9)
        for z in (-6.0, -1.3, -0.2, 0.0, 0.05, 0.9, 2.5, 8.0):
            area = integral(shape, np.ones_like, below=z)
            assert area == pytest.approx(float(shape.cdf(z)), abs=1e-8)

    @each_shape
    def test_second_moment_mean_and_deviation_equal_quadrature(self, shape):
        # With 2.5 degrees of freedom the squares beyond 2^99 still weigh 1e-15.
        assert integral(shape, np.square) == pytest.approx(1.0, abs=1e-6)
        mean = integral(shape, lambda z: z)
        assert shape.mean == pytest.approx(mean, abs=1e-8)
        variance = integral(shape, lambda z: (z - mean) ** 2)
        assert shape.std == pytest.approx(math.sqrt(variance), abs=1e-6)

    @each_shape
    def test_quantiles_invert_the_cdf_far_out_too(self, shape):
        low = shape.ppf(EXTREME)
        np.testing.assert_allclose(shape.cdf(low), EXTREME, rtol=1e-6)
        # The upper tail, where a cdf is only exact as the lower tail of the mirror image.
        upper = 1.0 - EXTREME
        mirror = replace(shape, centres=-shape.centres)
        np.testing.assert_allclose(mirror.cdf(-shape.ppf(upper)), 1.0 - upper, rtol=1e-6)
        z = np.array([-2.0, -0.7, 0.0, 0.4, 1.7])
        inside = (shape.cdf(z) > 1e-6) & (shape.cdf(z) < 1.0 - 1e-6)
        density = np.exp(shape.logpdf(z))
        assert (np.abs(shape.ppf(shape.cdf(z)) - z) * density < 1e-9)[inside].all()

    @each_shape
    def test_quantiles_increase_strictly(self, shape):
        tails = np.geomspace(1e-9, 0.004, 200)
        levels = np.concatenate([tails, np.linspace(0.005, 0.995, 991), (1.0 - tails)[::-1]])
        assert (np.diff(shape.ppf(levels)) > 0.0).all()

    @each_shape
    def test_results_have_the_shape_of_the_arguments(self, shape):
        for f in (shape.cdf, shape.logpdf, shape.ppf):
            assert np.shape(f(0.3)) == ()
            assert f(np.full((2, 3), 0.3)).shape == (2, 3)
            np.testing.assert_array_equal(f([[0.3]]), [[f(0.3)]])

    @each_shape
    def test_samples_follow_the_cdf(self, shape):
        draws = shape.sample((100, 50), np.random.RandomState(4))
        assert draws.shape == (100, 50)
        assert stats.kstest(draws.reshape(-1), shape.cdf).pvalue > 0.01

    @each_shape
    def test_far_outliers_have_a_finite_log_density(self, shape):
        density = shape.logpdf([-1e8, -1e3, 1e3, 1e8])
        assert np.isfinite(density).all()
        assert (density < -8.0).all()

    def test_a_mixture_is_the_sum_of_its_components(self):
        q, h, p = np.array([-1.0, 0.4]), np.array([0.3, 0.8]), np.array([0.25, 0.75])
        law = Shape("empirical", q, h, p, tail=0.2, degrees=5.0)
        z, scale = np.linspace(-3, 3, 7), math.sqrt(3 / 5)
        tail = stats.t(5.0, scale=scale)
        body = p * stats.norm.pdf(z[:, None], q, h)
        expected = 0.8 * body.sum(1) + 0.2 * tail.pdf(z)
        np.testing.assert_allclose(law.logpdf(z), np.log(expected), rtol=1e-12)
        body = p * stats.norm.cdf(z[:, None], q, h)
        np.testing.assert_allclose(law.cdf(z), 0.8 * body.sum(1) + 0.2 * tail.cdf(z), rtol=1e-12)
        assert law.mean == pytest.approx(0.8 * (p @ q))
        levels = np.array([1e-12, 0.3, 0.5, 0.8])
        np.testing.assert_allclose(law.cdf(law.ppf(levels)), levels, rtol=1e-9)
        mirror = replace(law, centres=-q)
        upper = 1.0 - np.array([1e-12, 1e-6])
        np.testing.assert_allclose(mirror.cdf(-law.ppf(upper)), 1.0 - upper, rtol=1e-9)

    def test_many_values_are_compared_with_one_component_after_the_other(self):
        law, z = made(empirical_shape, skewed, 60), np.linspace(-3, 3, 10_002).reshape(3, 3334)
        np.testing.assert_allclose(law.cdf(z), [law.cdf(row) for row in z], rtol=1e-12)

    def test_the_gaussian_and_t_shapes_equal_those_of_scipy(self):
        z = np.linspace(-5, 5, 11)
        np.testing.assert_allclose(GAUSSIAN.cdf(z), stats.norm.cdf(z))
        np.testing.assert_allclose(GAUSSIAN.logpdf(z), stats.norm.logpdf(z))
        shape = SHAPES["student-3"]()
        scale = math.sqrt((shape.degrees - 2.0) / shape.degrees)
        law = stats.t(shape.degrees, scale=scale)
        assert law.var() == pytest.approx(1.0)
        np.testing.assert_allclose(shape.cdf(z), law.cdf(z))
        np.testing.assert_allclose(shape.logpdf(z), law.logpdf(z))
        np.testing.assert_allclose(shape.ppf(EXTREME), law.ppf(EXTREME))


class TestMakers:
    @pytest.mark.parametrize("degrees", [3.0, 5.0, 12.0])
    def test_degrees_of_freedom_are_found(self, degrees):
        z = 7.0 * np.random.default_rng(0).standard_t(degrees, size=20_000)
        assert student_shape(z, np.ones(len(z))).degrees == pytest.approx(degrees, rel=0.2)

    def test_gaussian_z_scores_have_many_degrees_of_freedom(self):
        assert made(student_shape, normal, 5000).degrees > 30.0
        low, high = DEGREES
        assert low <= made(student_shape, heavy, 10).degrees <= high

    @pytest.mark.parametrize(
        ("law", "true"),
        [
            (skewed, lambda z: stats.expon.cdf(z + 1.0)),
            (bimodal, lambda z: 0.5 * (stats.norm.cdf(z, -1, 0.2) + stats.norm.cdf(z, 1, 0.2))),
            (normal, stats.norm.cdf),
        ],
    )
    def test_the_empirical_shape_is_the_distribution_of_the_z_scores(self, law, true):
        z, errors = np.linspace(-4, 6, 2001), []
        for n in (100, 1000, 10_000):
            shape, size = made(empirical_shape, law, n), math.sqrt(np.mean(z_scores(law, n) ** 2))
            errors.append(np.abs(shape.cdf(z / size) - true(z)).max())
        assert errors[0] > errors[1] > errors[2]
        # Half of it comes from the edge of the exponential distribution, which is smoothed.
        assert errors[2] < 0.02
        for level in (0.05, 0.25, 0.6, 0.95, 0.995):
            q = float(shape.ppf(level)) * size
            assert float(true(np.array(q))) == pytest.approx(level, abs=0.012)

    def test_z_scores_with_a_second_moment_below_one_are_not_rescaled(self):
        z = 0.1 * z_scores(normal, 4000)
        shape = empirical_shape(z, np.ones(len(z)), float(np.mean(z**2)))
        for level in (0.5, 0.8, 0.95, 0.99):
            inside = np.abs(z) < float(shape.ppf(0.5 + level / 2.0))
            assert inside.mean() == pytest.approx(level, abs=0.015)
        # The rest of the second moment comes from the wide component.
        assert shape.sample((400_000,), np.random.RandomState(0)).std() == pytest.approx(1, abs=0.1)

    def test_the_tails_of_an_empirical_shape_reach_beyond_the_z_scores(self):
        z = z_scores(normal, 300)
        shape = empirical_shape(z, np.ones(300))
        assert shape.ppf(1.0 - 1e-4) > z.max()
        assert shape.ppf(1e-4) < z.min()

    @each_maker
    def test_a_weight_is_a_number_of_repeats(self, maker):
        rng = np.random.default_rng(5)
        z = np.append(skewed(150, rng), np.zeros(5))
        levels = np.linspace(0.001, 0.999, 101)
        for counts in (np.full(155, 2), rng.integers(1, 5, size=155)):
            weighted = maker(z, counts.astype(float))
            repeated = maker(np.repeat(z, counts), np.ones(counts.sum()))
            assert weighted.degrees == pytest.approx(repeated.degrees, rel=1e-4)
            np.testing.assert_allclose(
                weighted.ppf(levels), repeated.ppf(levels), rtol=1e-6, atol=1e-6
            )

    @each_maker
    def test_order_and_units_do_not_matter(self, maker):
        rng = np.random.default_rng(6)
        z, weight = skewed(120, rng), rng.uniform(0.2, 3.0, size=120)
        order, levels = rng.permutation(120), np.linspace(0.01, 0.99, 21)
        expected = maker(z, weight).ppf(levels)
        np.testing.assert_allclose(maker(z[order], weight[order]).ppf(levels), expected, rtol=1e-5)
        for unit in (1e-9, 1e9):
            np.testing.assert_allclose(maker(unit * z, weight).ppf(levels), expected, rtol=1e-5)

    @each_maker
    def test_few_equal_and_exactly_zero_z_scores_are_accepted(self, maker):
        levels = np.array([1e-9, 0.01, 0.3, 0.5, 0.7, 0.99, 1 - 1e-9])
        for n in (2, 3, 4, 5, 7, 12, 25, 40):
            z = z_scores(normal, n)
            for scores in (z, np.ones(n), -np.ones(n), np.zeros(n), np.where(z > 0, 0.0, z)):
                shape = maker(scores, np.ones(n))
                q = shape.ppf(levels)
                assert np.isfinite(q).all()
                assert (np.diff(q) > 0.0).all()
                assert np.isfinite(shape.logpdf([0.0, 1.0, -1e6])).all()
                assert abs(shape.mean) <= 1.0

    @each_maker
    def test_one_huge_z_score_is_accepted(self, maker):
        z = np.append(z_scores(normal, 100), 1e5)
        shape = maker(z, np.ones(101))
        assert np.isfinite(shape.logpdf([z[0] / 1e4, 10.0, 1e4])).all()
        assert (np.diff(shape.ppf(np.linspace(0.001, 0.999, 99))) > 0.0).all()

    @pytest.mark.parametrize("moment", [1.0, 0.4])
    def test_the_empirical_shape_equals_its_definition(self, moment):
        n, rng = 40, np.random.default_rng(2)
        z = np.sort(skewed(n, rng))
        shape = empirical_shape(rng.permutation(z), np.ones(n), moment)
        z = z * math.sqrt(moment / np.mean(z**2))
        # 40 / 3 makes 13 bins, and none of fewer than three rows at the ends.
        q = np.repeat(z, 13).reshape(13, 40).mean(1)
        low, high = np.interp([0.25, 0.75], (np.arange(n) + 0.5) / n, z)
        spread = min(math.sqrt(moment), (high - low) / 1.349)
        h = np.maximum(0.45 * spread * n**-0.2, 0.75 * np.gradient(q))
        scale = math.sqrt(moment / np.mean(q**2 + h**2))
        np.testing.assert_allclose(shape.centres[:13], scale * q, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(shape.widths[:13], scale * h, rtol=1e-9)
        assert shape.tail == pytest.approx(5 / 45)
        alike = student_shape(z, np.ones(n), moment).degrees
        assert shape.degrees == pytest.approx(alike, rel=1e-4)
        if moment == 1.0:
            np.testing.assert_allclose(shape.shares, np.full(13, 1 / 13))
            return
        # The rest of the second moment: a share of 1/9 with this variance.
        np.testing.assert_allclose(shape.shares, np.append(np.full(13, 8 / 9 / 13), 1 / 9))
        assert shape.centres[-1] == 0.0
        assert shape.widths[-1] ** 2 == pytest.approx((1 - 8 / 9 * moment) / (1 / 9))

    def test_equal_z_scores_have_the_least_bandwidth(self):
        shape = empirical_shape(np.ones(40), np.ones(40))
        np.testing.assert_allclose(shape.widths, 1e-6, rtol=1e-9)

    def test_bin_edges_of_a_thousand_rows(self):
        # Bins of a hundredth; 0.005 is five rows, and 0.0025 would be fewer than three.
        expected = np.concatenate([[0, 0.005], np.arange(1, 100) / 100, [0.995, 1]])
        np.testing.assert_allclose(bin_edges(1000.0), expected)
        finer = [0, 0.00125, 0.0025, 0.005]
        np.testing.assert_allclose(bin_edges(2400.0)[:5], [*finer, 0.01])  # 0.00125 is three rows
        np.testing.assert_allclose(bin_edges(2.0), [0, 0.5, 1])

    def test_degrees_of_freedom_have_bounds(self):
        outlier = np.append(np.full(50, 1e-3), 1.0)
        assert student_shape(outlier, np.ones(51)).degrees == pytest.approx(2.5, rel=1e-4)
        two = np.tile([-1.0, 1.0], 30)
        assert student_shape(two, np.ones(60)).degrees == pytest.approx(200.0, rel=1e-3)

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


class TestChoice:
    def choose(self, z, weight=None, seed=0):
        n = len(z)
        folds = assign_folds(n, 5, np.random.default_rng(seed))
        return choose_shape(z, np.ones(n) if weight is None else weight, folds)

    def test_the_score_is_the_continuous_ranked_probability_score(self):
        z = np.linspace(-4, 4, 81)
        closed = z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi)
        np.testing.assert_allclose(crps(GAUSSIAN, z), closed, atol=0.025)

    def test_the_score_is_the_mean_pinball_loss_of_99_quantiles(self):
        shape, z = made(student_shape, heavy, 200), np.array([-3.0, -0.2, 0.0, 1.1])
        levels = np.arange(1, 100) / 100
        q = shape.ppf(levels)
        for value, score in zip(z, crps(shape, z), strict=True):
            losses = np.maximum(levels * (value - q), (levels - 1.0) * (value - q))
            assert score == pytest.approx(2.0 * losses.mean(), rel=1e-12)

    @pytest.mark.parametrize(("law", "moment"), [(skewed, 1.0), (normal, 0.5), (heavy, 1.0)])
    def test_the_choice_equals_its_definition(self, law, moment):
        z, folds = z_scores(law, 60, seed=3), np.arange(60) % 2
        weight = np.random.default_rng(0).uniform(0.5, 2.0, size=60)
        shape, scores = choose_shape(z, weight, folds, moment)
        losses = {name: np.empty(60) for name in MAKERS}
        for i in range(2):
            out = folds == i
            for name, make in MAKERS.items():
                losses[name][out] = crps(make(z[~out], weight[~out], moment), z[out])
        assert scores == pytest.approx(
            {name: np.average(loss, weights=weight) for name, loss in losses.items()}
        )
        best = "gaussian"
        for name in ("student", "empirical"):
            d = losses[name] - losses[best]
            gain = np.average(d, weights=weight)
            variance = np.average((d - gain) ** 2, weights=weight)
            best = name if gain < -math.sqrt(variance / weight.sum()) else best
        assert shape.name == best
        np.testing.assert_array_equal(shape.ppf(0.3), MAKERS[best](z, weight, moment).ppf(0.3))

    def test_thirty_rows_are_enough_for_an_empirical_shape(self):
        z, folds = z_scores(bimodal, 30), np.arange(30) % 2
        assert "empirical" in choose_shape(z, np.ones(30), folds)[1]
        assert "empirical" not in choose_shape(z, np.full(30, 0.99), folds)[1]

    def test_the_gaussian_is_chosen_for_gaussian_z_scores(self):
        names = [self.choose(z_scores(normal, 300, seed))[0].name for seed in range(5)]
        assert names.count("gaussian") >= 4

    @pytest.mark.parametrize(
        ("law", "allowed"),
        [(skewed, {"empirical"}), (bimodal, {"empirical"}), (heavy, {"student", "empirical"})],
    )
    def test_another_shape_is_chosen_for_other_z_scores(self, law, allowed):
        for seed in range(3):
            shape, scores = self.choose(z_scores(law, 500, seed))
            assert shape.name in allowed
            assert scores[shape.name] < scores["gaussian"]

    def test_the_chosen_shape_is_fitted_to_all_z_scores(self):
        z = z_scores(skewed, 300)
        shape, _ = self.choose(z)
        levels = [0.1, 0.5, 0.9]
        expected = empirical_shape(z, np.ones(300)).ppf(levels)
        np.testing.assert_array_equal(shape.ppf(levels), expected)

    @pytest.mark.parametrize("law", [normal, skewed, heavy])
    def test_a_weight_is_a_number_of_repeats(self, law):
        for seed in range(2):
            z = z_scores(law, 70, seed)
            counts = np.random.default_rng(seed).integers(1, 4, size=70)
            folds = np.arange(70) % 5
            weighted, scores = choose_shape(z, counts.astype(float), folds)
            repeated, scores2 = choose_shape(
                np.repeat(z, counts), np.ones(counts.sum()), np.repeat(folds, counts)
            )
            assert weighted.name == repeated.name
            assert scores == pytest.approx(scores2, rel=1e-6)

    def test_few_rows_get_a_simple_shape(self):
        shape, scores = self.choose(z_scores(bimodal, 29))
        assert set(scores) == {"gaussian", "student"}
        assert shape.name in scores
        assert choose_shape(np.ones(9), np.ones(9), np.zeros(9, dtype=int)) == (GAUSSIAN, {})

    @pytest.mark.parametrize("n", [2, 3, 7, 30, 40])
    def test_degenerate_z_scores_are_accepted(self, n):
        for z in (z_scores(normal, n), np.ones(n), np.where(np.arange(n) % 2, 1.0, 0.0)):
            shape, scores = self.choose(z)
            assert np.isfinite(shape.ppf([0.01, 0.99])).all()
            assert np.isfinite(list(scores.values())).all()

    def test_the_gaussian_maker_ignores_the_z_scores(self):
        assert gaussian_shape(np.full(3, np.nan), np.ones(3)) is GAUSSIAN


class TestKnownQuantiles:
    """Quantiles at levels that were asked for before."""

    @pytest.mark.parametrize("name", SHAPES)
    def test_they_are_the_same_numbers(self, name):
        shape, levels = SHAPES[name](), np.array([0.025, 0.975])
        first, second = shape.ppf(levels), shape.ppf(levels)
        assert np.array_equal(first, second)
        assert np.array_equal(first, replace(shape).ppf(levels))
        assert np.array_equal(shape.ppf([[0.025], [0.975]]), first[:, None])
        assert shape.ppf(0.025) == first[0]

    def test_a_result_may_be_changed(self):
        shape = made(student_shape, heavy, 400)
        first = shape.ppf([0.1])
        kept = first.copy()
        first[:] = 0.0
        assert np.array_equal(shape.ppf([0.1]), kept)

    def test_they_are_computed_once(self, monkeypatch):
        shape = made(empirical_shape, skewed, 400)
        before = shape.ppf([0.05, 0.95])
        monkeypatch.setattr(Shape, "cdf", None)
        assert np.array_equal(shape.ppf([0.05, 0.95]), before)

    def test_there_are_never_many(self):
        shape = made(student_shape, heavy, 400)
        for level in np.linspace(0.01, 0.99, 500):
            shape.ppf([level])
        shape.ppf(np.linspace(0.01, 0.99, 500))
        assert len(pickle.dumps(vars(shape))) < 20_000

    def test_pickles_do_not_contain_them(self):
        shape = made(student_shape, heavy, 400)
        before = pickle.dumps(shape)
        shape.ppf([0.1])
        assert pickle.dumps(shape) == before
        assert np.array_equal(pickle.loads(before).ppf([0.1]), shape.ppf([0.1]))
