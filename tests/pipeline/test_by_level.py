"""Intervals by the levels of a column: the formulas, their limits, and the option of the model."""

import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.optimize import brentq
from sklearn.base import clone

import twostagegp
from twostagegp import TwoStageGPRegressor
from twostagegp.data.columns.levels import Levels, find_column
from twostagegp.errors import InputError, ModelFileError
from twostagegp.metrics import coverage_by_group
from twostagegp.pipeline.calibration.by_level import (
    fit_level_factors,
    log_variances,
    shrink,
)
from twostagegp.pipeline.settings import LevelSettings, Settings
from twostagegp.storage.checks import check_level_factors, check_target

SPREAD = {"a": 0.05, "b": 0.1, "c": 0.4, "d": 0.4}


def levels_of(L):
    return Levels("kind", [str(k) for k in range(L)], np.array([0]), np.arange(L)[:, None] * 1.0)


def draw(rows, seed=0):
    """z-scores of standard deviations 1, 2, ..., with this many rows per level."""
    of_row = np.repeat(np.arange(len(rows)), rows)
    return (1.0 + of_row) * np.random.default_rng(seed).normal(size=len(of_row)), of_row


class TestFormulas:
    def test_log_variances_solve_the_robust_equation(self):
        z, of_row = draw([30, 80, 11])
        settings = LevelSettings(smallest=0.0)
        w = np.random.default_rng(1).uniform(0.5, 2.0, len(z))
        theta, K = log_variances(z, w, of_row, 3, None, settings)
        nu, errors, slopes = 8.0, [], []
        for level in range(3):
            own, c = z[of_row == level], w[of_row == level]

            def excess(t, own=own, c=c):
                r = own**2 * np.exp(-t)
                return c @ ((nu + 1.0) * r / (nu + r) - 1.0)

            root = brentq(excess, -10.0, 10.0, xtol=1e-13)
            assert theta[level] == pytest.approx(root + K / (2.0 * c.sum()), abs=1e-8)
            r = own**2 * np.exp(-root)
            u = (nu + 1.0) * r / (nu + r)
            errors.append(c @ (u - 1.0) ** 2)
            slopes.append(c @ (u * nu / (nu + r)))
        expected = sum(errors) / (w.sum() - 3.0) / (sum(slopes) / w.sum()) ** 2
        np.testing.assert_allclose(K, max(expected, 2.0))

    def test_without_bound_on_outliers_it_is_the_mean_square_and_the_kurtosis(self):
        z, of_row = draw([400, 600])
        z = z * np.random.default_rng(2).exponential(size=1000)
        settings = LevelSettings(degrees=1e12, smallest=0.0)
        theta, K = log_variances(z, np.ones(1000), of_row, 2, None, settings)
        means = [np.mean(z[of_row == k] ** 2) for k in (0, 1)]
        np.testing.assert_allclose(theta - K / np.array([800.0, 1200.0]), np.log(means), atol=1e-6)
        u = z**2 / np.array(means)[of_row]
        np.testing.assert_allclose(K, np.sum((u - 1.0) ** 2) / 998.0, rtol=1e-5)

    def test_shrunken_factors_are_those_of_the_posterior(self):
        """Brute force: the mean and s on a grid, with the density of the estimates."""
        theta, V = np.array([0.0, 1.0, -0.7, 2.0]), np.array([0.05, 0.4, 0.1, 3.0])
        factor, average, spread = shrink(theta, V)
        s = np.linspace(0.0005, 6.0, 1200)[:, None, None]
        mu = np.linspace(-8.0, 8.0, 801)[:, None]
        density = stats.norm.pdf(theta, mu, np.sqrt(V + s**2)).prod(-1)
        p = density * stats.norm.pdf(s[..., 0])
        p /= p.sum()
        share = (p[..., None] * (s**2 / (s**2 + V))).sum((0, 1))
        centre = float((p * mu[:, 0]).sum())
        expected = np.exp(centre + share * (theta - centre)).mean()
        assert average == pytest.approx(expected, rel=1e-3)
        np.testing.assert_allclose(factor, (np.exp(theta) / expected) ** share, rtol=2e-3)
        assert spread == pytest.approx(float((p * s[..., 0]).sum()), rel=2e-3)

    def test_levels_that_differ_by_less_than_chance_have_factors_near_one(self):
        factor, _, _ = shrink(np.array([0.1, -0.1, 0.05]), np.full(3, 0.2))
        np.testing.assert_allclose(factor, 1.0, atol=0.06)

    def test_a_weight_is_a_number_of_equal_rows(self):
        z, of_row = draw([20, 35])
        count = np.random.default_rng(3).integers(1, 4, len(z))
        weighted = fit_level_factors(levels_of(2), z, count.astype(float), of_row)
        repeated = fit_level_factors(
            levels_of(2), np.repeat(z, count), np.ones(count.sum()), np.repeat(of_row, count)
        )
        np.testing.assert_allclose(weighted.factor, repeated.factor)

    def test_groups_that_share_an_error_count_as_fewer_rows(self):
        rng = np.random.default_rng(4)
        groups, of_row = np.repeat(np.arange(60), 10), np.repeat([0, 1], 300)
        z = rng.normal(size=60)[groups] * np.array([1.0, 1.5])[of_row]
        alone = fit_level_factors(levels_of(2), z, np.ones(600), of_row)
        together = fit_level_factors(levels_of(2), z, np.ones(600), of_row, groups)
        assert np.ptp(together.factor) < np.ptp(alone.factor)


class TestShrinkage:
    def test_many_rows_have_their_own_factor(self):
        z, of_row = draw([20_000, 20_000, 20_000])
        found = fit_level_factors(levels_of(3), z, np.ones(len(z)), of_row)
        np.testing.assert_allclose(found.factor, found.own, rtol=2e-3)
        np.testing.assert_allclose(found.factor / found.factor[0], [1.0, 4.0, 9.0], rtol=0.06)
        assert found.factor.mean() == pytest.approx(1.0, rel=2e-3)

    def test_few_rows_have_nearly_the_common_factor(self):
        z, of_row = draw([5000, 5000, 1])
        found = fit_level_factors(levels_of(3), z, np.ones(len(z)), of_row)
        assert abs(np.log(found.factor[2])) < 0.3 * abs(np.log(found.own[2]))
        none = fit_level_factors(levels_of(4), z, np.ones(len(z)), of_row)
        assert none.factor[3] == none.own[3] == 1.0

    def test_equal_levels_have_factors_near_one(self):
        rng = np.random.default_rng(0)
        largest = []
        for _ in range(50):
            of_row = np.repeat(np.arange(5), 40)
            found = fit_level_factors(levels_of(5), rng.normal(size=200), np.ones(200), of_row)
            largest.append(np.abs(np.log(found.factor)).max())
        assert np.median(largest) < 0.1
        assert np.max(largest) < 0.5

    def test_one_outlier_does_not_decide_the_factor_of_a_level(self):
        z, of_row = draw([200, 200])
        before = fit_level_factors(levels_of(2), z, np.ones(400), of_row).factor
        z[0] = 100.0
        after = fit_level_factors(levels_of(2), z, np.ones(400), of_row).factor
        np.testing.assert_allclose(after, before, rtol=0.15)

    @pytest.mark.parametrize("of_row", [[0] * 6, [0, 0, 0, 1, 1, 1]])
    def test_residuals_of_zero_give_positive_factors(self, of_row):
        z = np.array([0.0, 0.0, 0.0, 1.0, -2.0, 0.5])
        for scores in (z, np.zeros(6)):
            found = fit_level_factors(levels_of(2), scores, np.ones(6), np.array(of_row))
            assert np.isfinite(found.factor).all()
            assert (found.factor > 0.0).all()


class TestLevels:
    def test_numbers_of_arrays_and_tensors_agree(self):
        levels = Levels("kind", ["p", "q"], np.array([0, 2]), np.array([[-0.5, 1.0], [2.0, 1.0]]))
        X = np.array([[2.0, 9.0, 1.0], [-0.5, 9.0, 1.0], [-0.5, 9.0, 1.1]])
        assert levels.numbers(X).tolist() == [1, 0, -1]
        single = torch.as_tensor(X, dtype=torch.float32)
        assert levels.numbers(single).tolist() == [1, 0, -1]
        assert levels.numbers(single[None, None]).shape == (1, 1, 3)

    def test_an_unseen_level_has_the_factor_one(self):
        z, of_row = draw([500, 500])
        found = fit_level_factors(levels_of(2), z, np.ones(1000), of_row)
        X = np.array([[1.0], [0.5], [0.0]])
        assert found.at(X).tolist() == [found.factor[1], 1.0, found.factor[0]]
        assert found.at(torch.as_tensor(X)).tolist() == found.at(X).tolist()

    def test_columns_are_found_by_name_or_number(self):
        assert find_column(np.int64(1), ["u", "v"], True) == find_column("v", ["u", "v"], True) == 1
        for wrong, message in (("w", "'u', 'v'"), (2, "from 0 to 1"), (-1, "from 0 to 1")):
            with pytest.raises(InputError, match=message):
                find_column(wrong, ["u", "v"], True)
        with pytest.raises(InputError, match="no column names"):
            find_column("u", ["x0", "x1"], False)


def table(n, seed):
    rng = np.random.default_rng(seed)
    kind = rng.choice(list(SPREAD), p=[0.45, 0.35, 0.17, 0.03], size=n)
    x = rng.uniform(size=n)
    y = np.sin(6.0 * x) + np.vectorize(SPREAD.get)(kind) * rng.normal(size=n)
    return pd.DataFrame({"x": x, "kind": kind}), y


def short(**options):
    given = {"kernels": ("rbf",), "variance": "rbf", "ard": False, "random_state": 0, "n_jobs": 1}
    return TwoStageGPRegressor(**{**given, **options})


@pytest.fixture(scope="module")
def rows():
    return table(150, 0)


@pytest.fixture(scope="module")
def model(rows):
    return short(calibrate_by="kind").fit(*rows)


class TestModel:
    def test_intervals_hold_in_each_level(self, rows, model):
        X, y = table(3000, 1)
        found = coverage_by_group(y, model.predict_interval(X), groups=X["kind"])
        assert (np.abs(found.coverage - 0.95) < 0.06).all()
        common = short().fit(*rows)
        before = coverage_by_group(y, common.predict_interval(X), groups=X["kind"])
        assert found.worst > before.worst

    def test_the_mean_stays_and_variances_are_multiplied(self, rows, model):
        X, _ = rows
        calibration = model.calibration_
        assert calibration.levels.levels.labels == ["a", "b", "c", "d"]
        other = X.assign(kind="b")
        none = X.assign(kind="never seen")
        with pytest.warns(twostagegp.TwoStageGPWarning, match="never seen"):
            assert np.isfinite(model.predict(none, return_std=True)[1]).all()
        for each in (X, other):
            data = model.fitted_.data[0]
            Z = data.scaling.inputs(model.columns_.transform(each))
            number = calibration.levels.levels.numbers(Z)
            expected = list(each["kind"].map({"a": 0, "b": 1, "c": 2, "d": 3}))
            assert number.tolist() == expected
        covariance = model.predict(X[:5], return_cov=True)[1]
        std = model.predict(X[:5], return_std=True)[1]
        # The shape's variance differs from one only by its mean.
        np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-3)

    def test_heldout_z_scores_have_mean_square_below_one_by_the_shape_only(self, model):
        part = model.calibration_
        squares = part.weight @ part.z_calibrated**2 / part.weight.sum()
        assert 0.5 < squares < 1.1
        report = model.fit_report_
        assert [each["level"] for each in report.levels] == ["a", "b", "c", "d"]
        assert sum(each["rows"] for each in report.levels) == 150
        assert "level        a: factor" in str(report)
        assert "4 levels of 'kind'" in report.calibration

    @pytest.mark.parametrize(
        "options",
        [
            {"calibration": "scale"},
            {"method": "neighbors"},
            {"dtype": "float32"},
            {"method": "svgp"},
        ],
    )
    def test_every_method_and_calibration(self, rows, options):
        fitted = short(calibrate_by=1, **options).fit(*rows)
        factor = fitted.calibration_.levels.factor
        assert factor[0] < factor[2]
        X, y = table(1500, 2)
        after = coverage_by_group(y, fitted.predict_interval(X), groups=X["kind"])
        common = short(**options).fit(*rows)
        before = coverage_by_group(y, common.predict_interval(X), groups=X["kind"])
        assert np.abs(after.coverage - 0.95).mean() < np.abs(before.coverage - 0.95).mean()

    def test_numbers_and_gaps(self, rows):
        X, y = rows
        numbers = np.column_stack([X["x"], X["kind"].map({"a": 0, "b": 1, "c": 2, "d": 7})])
        by_number = short(calibrate_by=1).fit(numbers, y)
        assert by_number.calibration_.levels.levels.labels == ["0", "1", "2", "7"]
        gaps = X.assign(kind=X["kind"].where(X["kind"] != "c"))
        labels = short(calibrate_by="kind").fit(gaps, y).calibration_.levels.levels.labels
        assert labels[-1] == "(missing)"
        flag = X.assign(wild=X["kind"].isin(["c", "d"]))
        fitted = short(calibrate_by="wild").fit(flag, y)
        assert fitted.calibration_.levels.levels.labels == ["False", "True"]

    def test_a_column_with_one_level_changes_nothing(self, rows):
        X, y = rows
        plain = short().fit(X, y)
        one = short(calibrate_by="site").fit(X.assign(site="here"), y)
        assert one.calibration_.levels.factor.tolist() == [1.0]
        both = plain.predict_interval(X), one.predict_interval(X.assign(site="here"))
        np.testing.assert_allclose(*both)

    def test_several_targets_and_groups(self, rows):
        X, y = rows
        fitted = short(calibrate_by="kind").fit(
            X, np.column_stack([y, -y]), groups=np.arange(150) // 3
        )
        first, second = fitted.calibration_
        np.testing.assert_allclose(first.levels.factor, second.levels.factor, rtol=1e-3)

    def test_copies_files_and_updates_keep_the_factors(self, rows, model, tmp_path):
        X, y = table(40, 3)
        expected = model.predict_interval(X)
        np.testing.assert_array_equal(
            pickle.loads(pickle.dumps(model)).predict_interval(X), expected
        )
        assert clone(model).calibrate_by == "kind"
        model.save(tmp_path / "model")
        loaded = twostagegp.load(tmp_path / "model")
        np.testing.assert_allclose(loaded.predict_interval(X), expected, rtol=1e-9)
        assert str(loaded.fit_report_) == str(model.fit_report_)
        updated = loaded.update(X, y)
        np.testing.assert_array_equal(
            updated.calibration_.levels.factor, model.calibration_.levels.factor
        )

    def test_files_with_other_levels_are_refused(self, model):
        target = model.fitted_.targets[0]
        found = target.fit.calibration.levels
        check_level_factors(found)
        check_target(target)
        wrong = replace(found.levels, positions=np.array([99, 98, 97, 96]))
        for changed in (
            replace(found, factor=found.factor[:2]),
            replace(found, factor=-found.factor),
            replace(found, of_row=found.of_row + 4),
            replace(found, levels=replace(found.levels, codes=found.levels.codes[:, :1])),
        ):
            with pytest.raises(ModelFileError):
                check_level_factors(changed)
        calibration = replace(target.fit.calibration, levels=replace(found, levels=wrong))
        with pytest.raises(ModelFileError, match="not among 5 inputs"):
            check_target(replace(target, fit=replace(target.fit, calibration=calibration)))

    def test_what_is_refused(self, rows):
        X, y = rows
        with pytest.raises(InputError, match=r"the columns are 'x', 'kind'"):
            short(calibrate_by="sort").fit(X, y)
        with pytest.raises(InputError, match=r"150 distinct values, but .* pandas.qcut\(X\['x'\]"):
            short(calibrate_by="x").fit(X, y)
        with pytest.raises(InputError, match="needs a calibration"):
            short(calibrate_by="kind", calibration=None).fit(X, y)
        with pytest.raises(InputError, match=r"calibrate_by=1\.5: use the name or number"):
            short(calibrate_by=1.5).fit(X, y)
        few = Settings(levels=LevelSettings(most=3))
        with pytest.raises(InputError, match="4 distinct values"):
            short(calibrate_by="kind", settings=few).fit(X, y)


def test_rows_of_tiny_weights_have_finite_factors():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=60), rng.integers(0, 3, 60)])
    model = TwoStageGPRegressor(mean="rbf", variance="rbf", calibrate_by=1, random_state=0)
    model.fit(X, rng.normal(size=60), sample_weight=np.full(60, 1e-5))
    assert np.isfinite(model.predict_interval(X)).all()


def test_a_column_of_an_array_is_named_by_its_number():
    X = np.random.default_rng(0).normal(size=(80, 2))
    with pytest.raises(InputError, match=r"calibrate_by=0: .* pandas.qcut\(X\[:, 0\], 5"):
        TwoStageGPRegressor(calibrate_by=0).fit(X, X[:, 0])
