"""The predictive distribution of the front door: one law behind every question, and it holds."""

import pickle
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.base import clone

from twostagegp import TwoStageGPRegressor, TwoStageGPWarning
from twostagegp.data.rows import merge_rows
from twostagegp.pipeline.calibration.fit import (
    Calibration,
    calibrate_locally,
    calibrate_scale,
    rank_quantile,
    scale_from_quantile,
)
from twostagegp.pipeline.calibration.local_scale import (
    Combination,
    LocalScale,
    Situation,
    fit_local_scale,
)
from twostagegp.pipeline.calibration.shape import GAUSSIAN, Shape
from twostagegp.pipeline.calibration.shape_fit import learn_shape
from twostagegp.pipeline.mean.crossfit import assign_folds
from twostagegp.pipeline.settings import OutsideSettings, Settings, ShapeSettings

LEVELS = np.arange(1, 200) / 200
ENGINES = ("exact", "neighbors", "vecchia")
MOSTLY_EXACT = ("exact", *(pytest.param(e, marks=pytest.mark.slow) for e in ENGINES[1:]))


def quick(**options):
    """One kernel in each stage."""
    return TwoStageGPRegressor(
        **{
            "method": "exact",
            "mean": "rbf",
            "variance": "rbf",
            "ard": False,
            "random_state": 0,
            **options,
        }
    )


def gaussian(rng, n):
    return rng.normal(size=n)


def skewed(rng, n):
    return rng.exponential(size=n) - 1.0


def table(n, seed=0, noise=gaussian, d=1):
    """A wave whose noise grows by a factor of 25 from left to right."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, d))
    return X, np.sin(2 * X[:, 0]) + 0.2 * np.exp(0.8 * X[:, 0]) * noise(rng, n)


def made_of_degrees(degrees):
    return replace(GAUSSIAN, name="student", tail=1.0, degrees=degrees)


def targets(y):
    return np.column_stack([y, np.exp(y) - 3.0])


def nlpd(model, X, y):
    return float(-model.predict_logpdf(X, y).mean())


def coverage(model, X, y, level):
    low, high = model.predict_interval(X, level).T
    return float(np.mean((y > low) & (y < high)))


@pytest.fixture(scope="module", params=ENGINES)
def wavy(request):
    """Gaussian noise that depends on x, by every engine."""
    return quick(method=request.param).fit(*table(150))


@pytest.fixture(scope="module")
def lopsided():
    """Noise that is far from symmetric."""
    model = quick().fit(*table(300, noise=skewed))
    assert model.calibration_.shape.name == "empirical"
    return model


@pytest.fixture(scope="module")
def both():
    X, y = table(120, noise=skewed)
    return quick(reweight_values=False).fit(X, targets(y))


@pytest.fixture(scope="module", params=["gaussian", "lopsided", "both"])
def model(request):
    if request.param == "gaussian":
        return quick().fit(*table(150))
    return request.getfixturevalue(request.param)


NEW = np.array([[-1.9], [-0.6], [0.1], [1.3], [1.95], [4.0]])


class TestOneDistribution:
    """All public prediction methods describe the same distribution."""

    def shapes(self, model):
        parts = np.ravel(np.array(model.calibration_, dtype=object))
        return [part.shape for part in parts]

    def test_an_interval_lies_between_two_quantiles(self, model):
        for level in (0.5, 0.9, 0.999):
            ends = [0.5 - level / 2, 0.5 + level / 2]
            np.testing.assert_array_equal(
                model.predict_interval(NEW, level), model.predict_quantiles(NEW, ends)
            )

    def test_quantiles_never_cross(self, model):
        assert (np.diff(model.predict_quantiles(NEW, LEVELS), axis=-1) > 0.0).all()
        # Columns are in the order of the levels that were given.
        mixed = model.predict_quantiles(NEW, [0.9, 0.1])
        np.testing.assert_array_equal(mixed[..., ::-1], model.predict_quantiles(NEW, [0.1, 0.9]))

    def test_quantiles_invert_the_cdf(self, model):
        for level in (0.001, 0.05, 0.5, 0.8, 0.999):
            q = model.predict_quantiles(NEW, level)[..., 0]
            np.testing.assert_allclose(model.predict_cdf(NEW, q), level, rtol=1e-6)

    def test_the_standard_deviation_and_mean_are_those_of_the_distribution(self, model):
        mean, std = model.predict(NEW, return_std=True)
        # Midpoints of the quantiles, and the tails of a t distribution, which they cut off.
        q = model.predict_quantiles(NEW, (np.arange(1500) + 0.5) / 1500)
        np.testing.assert_allclose(q.std(-1), std, rtol=0.04)
        sigma = std / [shape.std for shape in self.shapes(model)]
        shift = sigma * [shape.mean for shape in self.shapes(model)]
        if mean.ndim == 1:
            assert shift.shape == mean.shape
        np.testing.assert_allclose(q.mean(-1), mean + shift, atol=4e-3 * std.max())

    def test_the_density_integrates_to_one_and_to_the_cdf(self, model):
        mean, std = model.predict(NEW, return_std=True)
        steps = np.linspace(-30, 30, 4001)
        for row in (0, 5):
            X = np.repeat(NEW[row : row + 1], len(steps), axis=0)
            y = mean[row] + std[row] * steps.reshape(-1, *[1] * (mean.ndim - 1))
            y = np.broadcast_to(y, (len(steps), *mean.shape[1:]))
            density = np.exp(model.predict_logpdf(X, y))
            area = np.trapezoid(density, y, axis=0)
            np.testing.assert_allclose(area, 1.0, atol=2e-3)
            half = np.trapezoid(density[:2001], y[:2001], axis=0)
            np.testing.assert_allclose(half, model.predict_cdf(X, y)[2000], atol=2e-3)

    @pytest.mark.parametrize(("joint", "draws"), [(False, 8000), (True, 1000)])
    def test_samples_follow_the_cdf(self, model, joint, draws):
        new = NEW[[0, 3, 5]]
        samples = model.sample_y(new, draws, joint=joint, random_state=1)
        mean, std = model.predict(new, return_std=True)
        shapes = self.shapes(model)
        sigma = std / [shape.std for shape in shapes]
        expected = mean + sigma * [shape.mean for shape in shapes]
        assert np.abs((samples.mean(-1) - expected) / std).max() < 5.0 / np.sqrt(draws)
        # The mean absolute deviation: with heavy tails the sample's standard deviation has no
        # finite error.
        middles = (np.arange(20_000) + 0.5) / 20_000
        steps = model.predict_quantiles(new, middles) - mean[..., None]
        spread = np.abs(samples - mean[..., None]).mean(-1)
        np.testing.assert_allclose(spread, np.abs(steps).mean(-1), rtol=5.0 / np.sqrt(draws))
        for level in (0.02, 0.25, 0.5, 0.75, 0.98):
            below = np.mean(samples < model.predict_quantiles(new, level), axis=-1)
            np.testing.assert_allclose(below, level, atol=4 * np.sqrt(0.25 / draws))
        u = np.stack([model.predict_cdf(new, samples[..., k]) for k in range(200)], axis=-1)
        for row in u.reshape(-1, u.shape[-1]):
            assert stats.kstest(row, "uniform").pvalue > 1e-3

    def test_joint_samples_depend_on_each_other_and_single_ones_do_not(self, lopsided):
        X = np.array([[0.5], [0.501]])
        _, cov = lopsided.predict(X, return_cov=True)
        wanted = cov[0, 1] / np.sqrt(cov[0, 0] * cov[1, 1])
        together = lopsided.sample_y(X, 2000)
        alone = lopsided.sample_y(X, 2000, joint=False)
        assert np.corrcoef(alone)[0, 1] == pytest.approx(0.0, abs=0.08)
        assert np.corrcoef(together)[0, 1] == pytest.approx(wanted, abs=0.08)

    def test_the_diagonal_of_the_covariance_is_the_variance(self, model):
        _, std = model.predict(NEW, return_std=True)
        _, cov = model.predict(NEW, return_cov=True)
        diagonal = np.diagonal(cov, axis1=-2, axis2=-1).T
        np.testing.assert_allclose(diagonal, std**2, rtol=1e-7)
        assert np.linalg.eigvalsh(cov).min() > 0.0

    def test_every_engine_has_one_consistent_distribution(self, wavy):
        mean, std = wavy.predict(NEW, return_std=True)
        _, cov = wavy.predict(NEW, return_cov=True)
        np.testing.assert_allclose(np.diag(cov), std**2, rtol=1e-6)
        q = wavy.predict_quantiles(NEW, LEVELS)
        assert (np.diff(q, axis=-1) > 0.0).all()
        np.testing.assert_allclose(
            wavy.predict_interval(NEW, 0.9), wavy.predict_quantiles(NEW, [0.05, 0.95]), rtol=1e-12
        )
        np.testing.assert_allclose(wavy.predict_cdf(NEW, q[:, 20]), LEVELS[20], rtol=1e-6)
        np.testing.assert_array_equal(mean, wavy.predict(NEW))
        samples = wavy.sample_y(NEW, 5000, joint=False)
        np.testing.assert_allclose(samples.std(-1), std, rtol=0.06)
        low, high = wavy.predict_interval(NEW, 0.9, method="conformal").T
        np.testing.assert_allclose((low + high) / 2, mean, atol=1e-12)

    def test_several_targets_are_fitted_one_by_one(self, both):
        X, y = table(120, noise=skewed)
        assert isinstance(both.calibration_, list)
        for k, column in enumerate(targets(y).T):
            alone = quick(reweight_values=False).fit(X, column)
            np.testing.assert_array_equal(
                both.predict_quantiles(NEW, [0.1, 0.6])[:, k],
                alone.predict_quantiles(NEW, [0.1, 0.6]),
            )
            np.testing.assert_array_equal(
                both.predict_interval(NEW, 0.9, method="conformal")[:, k],
                alone.predict_interval(NEW, 0.9, method="conformal"),
            )


class TestRecord:
    def test_what_was_learned_is_published(self, lopsided):
        part = lopsided.calibration_
        assert isinstance(part, Calibration)
        assert part.kind == "local"
        assert isinstance(part.local, LocalScale)
        assert isinstance(part.shape, Shape)
        assert len(part.a) == len(part.local.members) > 0
        assert (part.a > 0.0).all()
        assert np.isfinite(part.c)
        assert part.factor > 0.0
        for values in (part.z, part.z_calibrated, part.pit_before, part.pit_after):
            assert values.shape == (300,)
        np.testing.assert_allclose(part.pit_before, stats.norm.cdf(part.z))
        np.testing.assert_allclose(part.pit_after, part.shape.cdf(part.z_calibrated))
        moment = part.local.overall / np.mean(part.z**2)
        assert moment == pytest.approx(1.0, abs=0.1)
        assert np.mean(part.z_calibrated**2) == pytest.approx(1.0 / moment)
        assert set(part.shape_scores) == {"student", "empirical", "mixture"}
        assert part.local.label in part.label
        assert "empirical" in part.label

    def test_calibration_makes_the_transform_more_uniform(self, lopsided):
        part = lopsided.calibration_
        before = stats.kstest(part.pit_before, "uniform").statistic
        after = stats.kstest(part.pit_after, "uniform").statistic
        assert after < 0.5 * before

    @pytest.mark.parametrize("calibration", ["scale", None])
    def test_other_calibrations_are_gaussian_and_have_no_local_scale(self, calibration):
        X, y = table(60)
        part = quick(calibration=calibration).fit(X, y).calibration_
        assert part.local is None
        assert part.shape.name == "gaussian"
        assert part.a.shape == (0,)
        assert part.c == pytest.approx(np.log(part.factor))
        np.testing.assert_allclose(part.z_calibrated, part.z / np.sqrt(part.factor))

    def test_rank_quantile_has_the_rank_of_split_conformal_prediction(self):
        size = np.array([3.0, 1.0, 2.0, 5.0, 4.0, 9.0, 8.0, 7.0, 6.0])
        for rank in range(1, 10):
            assert rank_quantile(size, np.ones(9), rank / 10) == rank
        assert rank_quantile(size, np.ones(9), 0.99) == 9.0
        nineteen = np.arange(1.0, 20.0)
        for rank in range(1, 20):  # 0.55 * 20 is a little more than 11
            assert rank_quantile(nineteen, np.ones(19), rank / 20) == rank
        counts = np.array([1, 2, 3, 1, 1, 2, 1, 1, 4])
        for level in np.linspace(0.03, 0.97, 20):
            assert rank_quantile(size, counts.astype(float), level) == rank_quantile(
                np.repeat(size, counts), np.ones(counts.sum()), level
            )

    def test_the_factor_of_zero_residuals_is_not_zero(self):
        assert calibrate_scale(np.zeros(30), np.ones(30)).factor > 0.0


class TestParts:
    """The formulas of the module, without a fitted model."""

    Z = np.arange(1.0, 20.0) * np.where(np.arange(19) % 2, -1.0, 1.0)

    def test_the_factor_is_the_square_of_a_ratio_of_quantiles(self):
        assert scale_from_quantile(self.Z) == pytest.approx((19 / stats.norm.ppf(0.975)) ** 2)
        half = (10 / stats.norm.ppf(0.75)) ** 2
        assert scale_from_quantile(self.Z, level=0.5) == pytest.approx(half)
        repeats = np.where(np.abs(self.Z) == 2.0, 41.0, 1.0)  # more than half of all
        middle = (2 / stats.norm.ppf(0.75)) ** 2
        assert scale_from_quantile(self.Z, repeats, level=0.5) == pytest.approx(middle)

    def test_one_factor_is_recorded(self):
        part = calibrate_scale(self.Z, np.ones(19), note="a reason")
        factor = (19 / stats.norm.ppf(0.975)) ** 2
        assert (part.kind, part.note, part.local) == ("scale", "a reason", None)
        assert part.factor == pytest.approx(factor)
        assert part.label == f"scale, factor {factor:.3g}"
        assert part.c == pytest.approx(np.log(factor))
        np.testing.assert_allclose(part.z_calibrated, self.Z / np.sqrt(factor))
        np.testing.assert_allclose(part.pit_before, stats.norm.cdf(self.Z))
        np.testing.assert_allclose(part.pit_after, stats.norm.cdf(self.Z / np.sqrt(factor)))
        assert part.conformal_score(0.5) == pytest.approx(10 / np.sqrt(factor))
        assert calibrate_scale(np.zeros(19), np.ones(19)).factor == 1e-6

    def test_a_local_scale_is_recorded(self):
        factor = np.linspace(0.5, 2.0, 19)
        member = SimpleNamespace(label="ridge")
        combination = Combination(np.array([0.7]), 0.1, -0.4)
        local = LocalScale([member], combination, factor, 1.0, 9.0, True)
        part = Calibration("local", 1.5, self.Z, np.ones(19), local, made_of_degrees(4.25))
        np.testing.assert_allclose(part.z_calibrated, self.Z / np.sqrt(factor))
        np.testing.assert_allclose(part.pit_after, part.shape.cdf(self.Z / np.sqrt(factor)))
        assert part.c == -0.4
        assert part.a.tolist() == [0.7]
        assert part.label.endswith(
            "median factor 1.5; student (4.2 degrees of freedom in the tails)"
        )
        assert replace(part, shape=GAUSSIAN).label.endswith("median factor 1.5; gaussian")
        score = np.sort(np.abs(self.Z) / np.sqrt(factor))[9]
        assert part.conformal_score(0.5) == pytest.approx(score)

    @pytest.mark.parametrize(("floor", "least"), [(0.0, 1.0), (0.3, 0.8)])
    def test_a_local_calibration_from_its_parts(self, floor, least):
        rng = np.random.default_rng(0)
        X, noise = rng.normal(size=(40, 1)), 0.1
        variance = noise * rng.choice([least, 1.5, 3.0], size=40)  # 0.8: less than the noise
        where = Situation(X, np.sin(X[:, 0]), variance, rng.uniform(size=40))
        z, weight = np.exp(0.5 * X[:, 0]) * rng.normal(size=40), rng.choice([1.0, 2.0], size=40)
        merged = merge_rows(X, z, weight)
        part = calibrate_locally(where, z, merged, 1.0, None, noise, floor, seed=3)
        folds = assign_folds(40, 5, np.random.default_rng(3))
        local = fit_local_scale(where, z, weight, merged.inverse, folds, None, 1.0, None, 3)

        def factors(g):
            latent = g * np.clip(variance - noise, 0.0, None)
            return (latent + np.clip(g * noise, floor, None)) / variance

        before = factors(local.heldout_factor)
        moment = np.average(z**2 / before, weights=weight)
        assert (moment < 0.9) == (floor > 0.0)
        inner = folds[merged.inverse]
        shape, scale, scores = learn_shape(z / np.sqrt(before), weight, inner, floor > 0.0)
        assert part.shape_scores == pytest.approx(scores)
        assert part.shape.name == shape.name
        levels = [0.1, 0.5, 0.9]
        np.testing.assert_allclose(part.shape.ppf(levels), shape.ppf(levels))
        # The second moment of the shape multiplies the local scale.
        expected = factors(scale * local.heldout_factor)
        np.testing.assert_allclose(part.local.heldout_factor, expected)
        new = Situation(where.X[:7] + 0.1, where.mean[:7], variance[:7], where.disagreement[:7])
        np.testing.assert_allclose(part.local.factor(new), scale * local.factor(new))
        assert part.kind == "local"
        assert part.factor == rank_quantile(expected, weight, 0.5)

    def test_residuals_of_zero_give_one_factor(self):
        X = np.arange(12.0)[:, None]
        where = Situation(X, X[:, 0], np.ones(12), np.ones(12))
        z = np.zeros(12)
        part = calibrate_locally(where, z, merge_rows(X, z), 1.0, None, 0.1, 0.0, seed=0)
        assert (part.kind, part.note) == ("scale", "no residual to learn from")
        z[3] = 1.0
        part = calibrate_locally(where, z, merge_rows(X, z), 1.0, None, 0.1, 0.0, seed=0)
        assert part.kind == "local"

    @pytest.mark.parametrize("n", [12, 200])
    def test_few_rows_widen_the_scale_and_leave_the_mean(self, n):
        rng = np.random.default_rng(1)
        X = rng.normal(size=(n, 1))
        where = Situation(X, X[:, 0], np.ones(n), np.ones(n))
        z = rng.normal(size=n)
        part = calibrate_locally(where, z, merge_rows(X, z), 1.0, None, 0.1, 0.0, seed=0)
        wider = np.sqrt(part.factor / np.mean(z**2))
        assert 1.2 < wider < 2.0 if n == 12 else 0.95 < wider < 1.1
        assert part.shape.mean == pytest.approx(0.0, abs=0.05)

    def test_the_shape_changes_no_prediction_and_all_variances_by_one_factor(self):
        X, y = table(60)
        models = [
            quick(
                settings=Settings(
                    shape=ShapeSettings(information=tau), outside=OutsideSettings(members=0)
                )
            ).fit(X, y)
            for tau in (0.1, 1.0)
        ]
        (mean, wide), (same, narrow) = (model.predict(NEW, return_std=True) for model in models)
        np.testing.assert_array_equal(mean, same)
        ratio = wide / narrow
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)
        assert ratio[0] > 1.05
        tails = [model.predict_interval(NEW, 0.99) for model in models]
        assert (np.diff(tails[0]) > 1.1 * np.diff(tails[1])).all()


class TestInvariance:
    def same(self, one, two, X, a=1.0, b=0.0, rtol=1e-6):
        levels = [0.01, 0.3, 0.5, 0.9, 0.99] if a > 0 else [0.99, 0.7, 0.5, 0.1, 0.01]
        expected = a * one.predict_quantiles(X, [0.01, 0.3, 0.5, 0.9, 0.99]) + b
        spread = np.ptp(expected)
        np.testing.assert_allclose(two.predict_quantiles(X, levels), expected, atol=rtol * spread)

    @pytest.mark.parametrize("engine", MOSTLY_EXACT[:2])
    def test_units_of_the_target_do_not_matter(self, engine):
        X, y = table(100, noise=skewed)
        one = quick(method=engine).fit(X, y)
        for a, b in ((1e6, 1e6), (2.0**-20, -1.0)):
            two = quick(method=engine).fit(X, a * y + b)
            self.same(one, two, NEW, a, b, rtol=2e-3)
            shift = -np.log(a)
            np.testing.assert_allclose(
                two.predict_logpdf(X, a * y + b), one.predict_logpdf(X, y) + shift, atol=0.05
            )

    def test_negating_the_target_mirrors_the_distribution(self):
        X, y = table(100, noise=skewed)
        one, two = quick().fit(X, y), quick().fit(X, -y)
        for q, r in zip(
            one.predict_quantiles(NEW, [0.05, 0.5]).T,
            two.predict_quantiles(NEW, [0.95, 0.5]).T,
            strict=True,
        ):
            np.testing.assert_allclose(q, -r, atol=0.02)

    @pytest.mark.parametrize("n", [30, 60, 155])
    def test_a_weight_is_a_number_of_repeats(self, n):
        X, y = table(n, d=2)
        y[: n // 2] = np.round(y[: n // 2], 1)
        counts = np.random.default_rng(2).integers(0, 4, size=n)
        one = quick().fit(X, y, sample_weight=counts)
        two = quick().fit(np.repeat(X, counts, axis=0), np.repeat(y, counts))
        # Weights count in units of their mean here: rounding may turn a split of the trees, and end
        # a minimisation elsewhere within its tolerance, on one kind of processor or another.
        self.same(one, two, X, rtol=1e-3 if n > 150 else 1e-6)
        noises = [model.fit_report_.noise_std for model in (one, two)]
        assert noises[0] == pytest.approx(noises[1], rel=1e-3 if n > 150 else 1e-6)
        np.testing.assert_allclose(
            one.predict_interval(X, 0.9, method="conformal"),
            two.predict_interval(X, 0.9, method="conformal"),
            rtol=1e-6,
            atol=0.0 if n < 150 else 1e-2,
        )

    def test_weights_are_repeats_for_rows_with_equal_inputs(self):
        X, y = table(40)
        X, y = np.vstack([X, X[:15]]), np.append(y, y[:15] + 0.2)
        counts = np.random.default_rng(3).integers(1, 3, size=55)
        one = quick().fit(X, y, sample_weight=counts)
        two = quick().fit(np.repeat(X, counts, axis=0), np.repeat(y, counts))
        self.same(one, two, X)

    def test_two_rows_of_weight_one_half_equal_one_row(self):
        X, y = table(60)
        twice = np.vstack([X, X]), np.append(y, y)
        self.same(quick().fit(*twice, sample_weight=np.full(120, 0.5)), quick().fit(X, y), X)

    @pytest.mark.parametrize("engine", MOSTLY_EXACT)
    def test_the_order_of_rows_does_not_matter(self, engine):
        X, y = table(160)
        X, y = np.vstack([X, X[:8]]), np.append(y, y[:8] + 0.3)
        order = np.random.default_rng(1).permutation(168)
        one = quick(method=engine).fit(X, y)
        two = quick(method=engine).fit(X[order], y[order])
        self.same(one, two, X, rtol=1e-5)

    def test_clones_pickles_and_frames_predict_the_same(self, lopsided):
        again = pickle.loads(pickle.dumps(lopsided))
        np.testing.assert_array_equal(
            again.predict_quantiles(NEW, LEVELS), lopsided.predict_quantiles(NEW, LEVELS)
        )
        np.testing.assert_array_equal(again.sample_y(NEW, 5), lopsided.sample_y(NEW, 5))
        X, y = table(300, noise=skewed)
        frame = pd.DataFrame(X, columns=["x"])
        refit = clone(lopsided).fit(frame, pd.Series(y))
        np.testing.assert_allclose(
            refit.predict_interval(pd.DataFrame(NEW, columns=["x"])),
            lopsided.predict_interval(NEW),
        )


class TestCoverage:
    @pytest.mark.parametrize("engine", MOSTLY_EXACT)
    def test_intervals_hold_for_noise_that_depends_on_x(self, engine):
        new = table(6000, seed=99)
        local, scale = (
            quick(method=engine, calibration=kind).fit(*table(400)) for kind in ("local", "scale")
        )
        for level in (0.5, 0.8, 0.95, 0.99):
            assert coverage(local, *new, level) == pytest.approx(level, abs=0.04)
        assert nlpd(local, *new) < nlpd(scale, *new) - 0.4
        X, y = new
        for third in np.array_split(np.argsort(X[:, 0]), 3):
            assert coverage(local, X[third], y[third], 0.9) == pytest.approx(0.9, abs=0.06)

    def test_intervals_hold_for_skewed_noise(self, lopsided):
        new = table(6000, seed=99, noise=skewed)
        others = [quick().fit(*table(300, seed=seed, noise=skewed)) for seed in (1, 2)]
        models = [lopsided, *others]
        for level in (0.5, 0.8, 0.95, 0.99):
            covered = np.mean([coverage(model, *new, level) for model in models])
            assert covered == pytest.approx(level, abs=0.03)
        # The t distribution in the mixture also reaches below the end of the exponential one.
        for level, error in ((0.05, 0.035), (0.25, 0.03), (0.75, 0.03), (0.95, 0.03)):
            quantiles = [model.predict_quantiles(new[0], level)[:, 0] for model in models]
            below = np.mean([new[1] < quantile for quantile in quantiles])
            assert below == pytest.approx(level, abs=error)

    @pytest.mark.parametrize(
        ("mean", "n", "seeds"),
        [
            ("rbf", 60, (0, 1)),
            ("constant", 60, (0, 1)),
            pytest.param("rbf", 300, (1, 3), marks=pytest.mark.slow),
            ("constant", 300, (1, 3)),
        ],
    )
    def test_pure_noise_costs_almost_nothing(self, mean, n, seeds):
        # The held-out constant depends on the row's target, which must not be used as a feature.
        worse = []
        for seed in seeds:
            rng = np.random.default_rng(seed)
            X, y = rng.normal(size=(n, 2)), rng.normal(size=n)
            new = rng.normal(size=(3000, 2)), rng.normal(size=3000)
            local, scale = (
                quick(mean=mean, calibration=kind).fit(X, y) for kind in ("local", "scale")
            )
            np.testing.assert_allclose(local.predict(X), scale.predict(X))
            worse.append(nlpd(local, *new) - nlpd(scale, *new))
        assert np.mean(worse) < 0.05

    @pytest.mark.parametrize("engine", MOSTLY_EXACT[:2])
    def test_a_local_scale_is_found_in_noise_without_a_mean(self, engine):
        def returns(n, seed):
            rng = np.random.default_rng(seed)
            X = rng.normal(size=(n, 2))
            return X, np.exp(0.7 * X[:, 0]) * rng.normal(size=n)

        new = returns(5000, 99)
        local, scale = (
            quick(method=engine, calibration=kind).fit(*returns(300, 2))
            for kind in ("local", "scale")
        )
        assert nlpd(local, *new) < nlpd(scale, *new) - 0.15
        assert coverage(local, *new, 0.9) == pytest.approx(0.9, abs=0.04)

    def test_a_local_scale_with_a_stack_costs_almost_nothing_on_pure_noise(self):
        rng = np.random.default_rng(3)
        X, y = rng.normal(size=(90, 2)), rng.normal(size=90)
        new = rng.normal(size=(3000, 2)), rng.normal(size=3000)
        models = [
            TwoStageGPRegressor(kernels=("rbf", "matern12"), calibration=kind, random_state=0)
            for kind in ("local", "scale")
        ]
        local, scale = (nlpd(model.fit(X, y), *new) for model in models)
        assert local < scale + 0.05

    @pytest.mark.parametrize("calibration", ["local", "scale"])
    def test_the_noise_floor_is_respected(self, calibration):
        X = np.linspace(-2, 2, 80)[:, None]
        y = np.sin(2 * X[:, 0])
        for floor in (1e-6, 1e-2):
            model = quick(noise_floor=floor, calibration=calibration).fit(X, y)
            _, std = model.predict(np.vstack([X, NEW]), return_std=True)
            least = np.sqrt(floor) * y.std()
            assert (std >= model.calibration_.shape.std * least * (1 - 1e-9)).all()

    @pytest.mark.parametrize("engine", ENGINES)
    def test_a_constant_target_is_predicted_with_finite_variance(self, engine):
        X, _ = table(40)
        model = quick(method=engine)
        with pytest.warns(TwoStageGPWarning, match="constant"):
            model.fit(X, np.full(40, 7.0))
        mean, std = model.predict(NEW, return_std=True)
        np.testing.assert_allclose(mean, 7.0)
        assert np.isfinite(std).all()
        low, high = model.predict_interval(NEW).T
        assert (low <= 7.0).all()
        assert (high >= 7.0).all()
        assert np.isfinite(model.predict_logpdf(NEW, np.full(6, 7.0))).all()

    @pytest.mark.parametrize("engine", ["exact", "neighbors"])
    @pytest.mark.parametrize("n", [3, 4, 5, 8, 13, 29, 39, 50])
    def test_small_tables_have_finite_increasing_quantiles(self, engine, n):
        model = quick(method=engine).fit(*table(n))
        new = table(500, seed=9)
        q = model.predict_quantiles(new[0], LEVELS)
        assert np.isfinite(q).all()
        assert (np.diff(q, axis=-1) > 0.0).all()
        assert np.isfinite(nlpd(model, *new))
        assert np.isfinite(model.sample_y(NEW, 3, joint=True)).all()
        assert np.isfinite(model.predict_interval(NEW, method="conformal")).all()
        assert len(model.calibration_.z) == n

    def test_predictions_far_away_are_finite_and_wider(self, lopsided):
        for x in (1e3, -1e160, 1e308):
            far = np.array([[x]])
            assert np.isfinite(lopsided.predict_quantiles(far, LEVELS)).all()
            _, std = lopsided.predict(far, return_std=True)
            assert std[0] > lopsided.predict(NEW[:1], return_std=True)[1][0]

    def test_repeated_target_values_give_finite_increasing_quantiles(self):
        # Most residuals are then exactly the same, and many z-scores nearly so.
        X, y = table(120)
        model = quick().fit(X, np.round(y))
        assert np.isfinite(model.predict_quantiles(NEW, LEVELS)).all()
        zeros = np.where(np.arange(120) % 4 == 0, y, 0.0)
        model = quick().fit(X, zeros)
        assert (np.diff(model.predict_quantiles(NEW, LEVELS), axis=-1) >= 0.0).all()
        model = quick(reweight_values=False).fit(X, zeros)
        assert (np.diff(model.predict_quantiles(NEW, LEVELS), axis=-1) > 0.0).all()

    def test_intervals_cover_new_groups(self):
        """Groups have different shifts; intervals cover rows of new groups."""
        rng = np.random.default_rng(0)

        def grouped(k, seed):
            rng = np.random.default_rng(seed)
            X = np.repeat(rng.uniform(-2, 2, size=(k, 1)), 5, axis=0)
            X = X + 0.01 * rng.normal(size=X.shape)
            shift = np.repeat(0.5 * rng.normal(size=k), 5)
            return X, np.sin(2 * X[:, 0]) + shift + 0.1 * rng.normal(size=5 * k)

        X, y = grouped(30, 0)
        groups = np.repeat(np.arange(30), 5)
        order = rng.permutation(150)
        model = quick().fit(X[order], y[order], groups=groups[order])
        assert coverage(model, *grouped(600, 1), 0.9) == pytest.approx(0.9, abs=0.07)

    @pytest.mark.slow
    def test_the_sparse_engine_is_calibrated(self):
        model = quick(method="svgp").fit(*table(150))
        new = table(4000, seed=99)
        for level in (0.5, 0.8, 0.95):
            assert coverage(model, *new, level) == pytest.approx(level, abs=0.1)
        _, std = model.predict(NEW, return_std=True)
        _, cov = model.predict(NEW, return_cov=True)
        np.testing.assert_allclose(np.diag(cov), std**2, rtol=1e-6)
        assert (np.diff(model.predict_quantiles(NEW, LEVELS), axis=-1) > 0.0).all()
