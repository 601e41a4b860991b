"""Shapes against quadrature and known distributions."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from twostagegp.pipeline.calibration.shape import GAUSSIAN, Shape
from twostagegp.pipeline.calibration.shape_fit import learn_shape

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


def learned(law, n, size=1.0, on_floor=False):
    z = size * law(n, np.random.default_rng(0))
    return learn_shape(z, np.ones(n), np.arange(n) % 5, on_floor).shape


def student(degrees, spread=None):
    return Shape("student", *GAUSSIAN.components, 1.0, degrees, spread)


SHAPES = {
    "gaussian": lambda: GAUSSIAN,
    "student-3": lambda: student(3.0),
    "student-200": lambda: student(200.0, math.sqrt(198 / 200)),
    "learned-normal": lambda: learned(normal, 500),
    "learned-skewed": lambda: learned(skewed, 5000),
    "learned-bimodal": lambda: learned(bimodal, 2000),
    "learned-heavy": lambda: learned(heavy, 3000),
    "learned-atoms": lambda: learned(atoms, 300),
    "learned-of-3": lambda: learned(normal, 3),
    "learned-on-the-floor": lambda: learned(skewed, 3000, 0.4, on_floor=True),
    "learned-on-the-floor-of-12": lambda: learned(normal, 12, 0.1, on_floor=True),
    "learned-of-equal": lambda: learned(lambda n, rng: np.ones(n), 40),
}


@pytest.fixture(scope="module")
def shape(request):
    return SHAPES[request.param]()


each_shape = pytest.mark.parametrize("shape", SHAPES, indirect=True)


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

    def test_the_t_distribution_may_have_another_scale(self):
        q, h, p = np.array([-1.0, 0.4]), np.array([0.3, 0.8]), np.array([0.25, 0.75])
        law, tail = Shape("empirical", q, h, p, 0.2, 5.0, 1.7), stats.t(5.0, scale=1.7)
        z, body = np.linspace(-3, 3, 7), replace(Shape("empirical", q, h, p))
        np.testing.assert_allclose(law.cdf(z), 0.8 * body.cdf(z) + 0.2 * tail.cdf(z), rtol=1e-12)
        density = 0.8 * np.exp(body.logpdf(z)) + 0.2 * tail.pdf(z)
        np.testing.assert_allclose(law.logpdf(z), np.log(density), rtol=1e-12)
        levels = np.array([1e-9, 0.3, 0.5, 0.8])
        np.testing.assert_allclose(law.cdf(law.ppf(levels)), levels, rtol=1e-9)
        draws = law.sample((20_000,), np.random.RandomState(1))
        assert stats.kstest(draws, law.cdf).pvalue > 0.01
        alone = student(5.0, 1.7)
        np.testing.assert_allclose(alone.ppf(levels), tail.ppf(levels))
        np.testing.assert_allclose(alone.logpdf(z), tail.logpdf(z))

    def test_many_values_are_compared_with_one_component_after_the_other(self):
        law, z = learned(skewed, 60), np.linspace(-3, 3, 10_002).reshape(3, 3334)
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
        shape = student(4.5)
        first = shape.ppf([0.1])
        kept = first.copy()
        first[:] = 0.0
        assert np.array_equal(shape.ppf([0.1]), kept)

    def test_they_are_computed_once(self, monkeypatch):
        shape = learned(skewed, 400)
        before = shape.ppf([0.05, 0.95])
        monkeypatch.setattr(Shape, "cdf", None)
        assert np.array_equal(shape.ppf([0.05, 0.95]), before)

    def test_there_are_never_many(self):
        shape = student(4.5)
        for level in np.linspace(0.01, 0.99, 500):
            shape.ppf([level])
        shape.ppf(np.linspace(0.01, 0.99, 500))
        assert len(pickle.dumps(vars(shape))) < 20_000

    def test_pickles_do_not_contain_them(self):
        shape = student(4.5)
        before = pickle.dumps(shape)
        shape.ppf([0.1])
        assert pickle.dumps(shape) == before
        assert np.array_equal(pickle.loads(before).ppf([0.1]), shape.ppf([0.1]))
