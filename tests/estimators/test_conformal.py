"""Conformal intervals: the definition by a loop, and coverage over many random tables."""

import math
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import BaggingRegressor
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.linear_model import BayesianRidge, LinearRegression
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from twostagegp import CVPlusRegressor, ExactGPRegressor, TwoStageGPRegressor
from twostagegp.errors import InputError, NumericalError, TwoStageGPWarning
from twostagegp.estimators import cv_plus as conformal
from twostagegp.estimators.cv_plus import guaranteed_level

#: Follows every bit of noise.
BAD = KNeighborsRegressor(1)


def table(n, rng, d=2, noise=0.3):
    X = rng.uniform(-2, 2, size=(n, d))
    return X, np.sin(2 * X[:, 0]) + X[:, -1] + noise * (1 + X[:, 0] ** 2) * rng.normal(size=n)


def quick(**options):
    return TwoStageGPRegressor(
        **{"mean": "rbf", "variance": "rbf", "ard": False, "random_state": 0, **options}
    )


@parametrize_with_checks([CVPlusRegressor(BayesianRidge(), n_folds=3)])
def test_follows_scikit_learn(estimator, check):
    check(estimator)


def by_definition(model, X, level):
    """Order statistics of the n values mu - R sigma and mu + R sigma, in two loops."""
    n, alpha = len(model.scores_), 1.0 - level
    ends = []
    for x in X:
        low, high = [], []
        for i in range(n):
            fitted = model.estimators_[model.folds_[i]]
            try:
                mean, std = fitted.predict(x[None], return_std=True)
            except TypeError:
                mean, std = fitted.predict(x[None]), [1.0]
            low.append(mean[0] - model.scores_[i] * std[0])
            high.append(mean[0] + model.scores_[i] * std[0])
        lower_rank = math.floor(alpha * (n + 1) + 1e-9)
        upper_rank = math.ceil((1 - alpha) * (n + 1) - 1e-9)
        ends.append([sorted(low)[lower_rank - 1], sorted(high)[upper_rank - 1]])
    return np.array(ends)


class TestDefinition:
    @pytest.mark.parametrize(
        "estimator",
        [LinearRegression(), BayesianRidge(), BAD, ExactGPRegressor(random_state=0)],
        ids=["linear", "with-std", "bad", "gp"],
    )
    def test_the_interval_is_that_of_the_definition(self, estimator):
        rng = np.random.default_rng(0)
        X, y = table(30, rng)
        model = CVPlusRegressor(estimator, n_folds=4, random_state=0).fit(X, y)
        new = rng.uniform(-3, 3, size=(5, 2))
        for level in (0.3, 0.5, 0.8, 0.9):
            expected = by_definition(model, new, level)
            np.testing.assert_allclose(model.predict_interval(new, level), expected, rtol=1e-9)

    def test_scores_come_from_models_that_have_not_seen_the_row(self):
        X, y = table(20, np.random.default_rng(1))
        model = CVPlusRegressor(BayesianRidge(), n_folds=5, random_state=0).fit(X, y)
        assert len(model.estimators_) == 5
        np.testing.assert_array_equal(np.bincount(model.folds_), np.full(5, 4))
        for i in range(20):
            rest = model.folds_ != model.folds_[i]
            mean, std = BayesianRidge().fit(X[rest], y[rest]).predict(X[i : i + 1], return_std=True)
            assert model.scores_[i] == pytest.approx(abs(y[i] - mean[0]) / std[0])
        np.testing.assert_allclose(model.predict(X), BayesianRidge().fit(X, y).predict(X))

    def test_with_as_many_folds_as_rows_it_is_the_jackknife(self):
        rng = np.random.default_rng(2)
        X, y = table(24, rng)
        model = CVPlusRegressor(LinearRegression(), n_folds=24, random_state=0).fit(X, y)
        new = rng.uniform(-2, 2, size=(3, 2))
        low, high = np.empty((3, 24)), np.empty((3, 24))
        for i in range(24):
            rest = np.arange(24) != i
            line = LinearRegression().fit(X[rest], y[rest])
            reach = abs(y[i] - line.predict(X[i : i + 1])[0])
            low[:, i], high[:, i] = line.predict(new) - reach, line.predict(new) + reach
        # 0.8 * 25 = 20: the 20th from below, and the 20th from above.
        expected = np.column_stack([np.sort(low)[:, 4], np.sort(high)[:, 19]])
        np.testing.assert_allclose(model.predict_interval(new, 0.8), expected)
        assert model.guaranteed_level(0.8) == pytest.approx(0.6)
        more = CVPlusRegressor(LinearRegression(), n_folds=100).fit(X, y)
        np.testing.assert_allclose(more.predict_interval(new, 0.8), expected)

    def test_the_guarantee(self):
        for n, K in ((100, 10), (100, 100), (1000, 2), (37, 5)):
            slack = min(2 * (1 - 1 / K) / (n / K + 1), (1 - K / n) / (K + 1))
            assert guaranteed_level(0.9, n, K) == pytest.approx(max(0.0, 0.8 - slack))
            assert guaranteed_level(0.9, n, K) >= 0.8 - math.sqrt(2 / n)
        assert guaranteed_level(0.4, 10, 5) == 0.0

    def test_rows_in_pieces(self):
        rng = np.random.default_rng(3)
        X, y = table(40, rng)
        model = CVPlusRegressor(LinearRegression(), random_state=0).fit(X, y)
        whole = model.predict_interval(X, 0.9)
        model.chunk_entries = 40 * 7
        np.testing.assert_array_equal(model.predict_interval(X, 0.9), whole)

    def test_intervals_widen_with_the_level(self):
        rng = np.random.default_rng(4)
        X, y = table(50, rng)
        model = CVPlusRegressor(BayesianRidge(), random_state=0).fit(X, y)
        ends = np.stack([model.predict_interval(X, level) for level in (1e-12, 0.5, 0.9, 0.97)])
        assert (np.diff(ends[..., 0], axis=0) <= 0.0).all()
        assert (np.diff(ends[..., 1], axis=0) >= 0.0).all()

    def test_too_few_rows_for_the_level(self):
        X, y = table(18, np.random.default_rng(5))
        model = CVPlusRegressor(LinearRegression(), random_state=0).fit(X, y)
        np.testing.assert_array_equal(model.predict_interval(X[:2]), [[-np.inf, np.inf]] * 2)
        X, y = table(19, np.random.default_rng(5))  # 0.95 * 20 = 19
        model.fit(X, y)
        assert np.isfinite(model.predict_interval(X[:2])).all()
        assert np.isinf(model.predict_interval(X[:2], 0.96)).all()

    def test_a_model_without_any_error(self):
        X = np.arange(30.0)[:, None]
        model = CVPlusRegressor(LinearRegression(), random_state=0).fit(X, 2.0 * X[:, 0])
        low, high = model.predict_interval(X, 0.9).T
        np.testing.assert_allclose(low, high, atol=1e-8)


class ConstantOfGroups(RegressorMixin, BaseEstimator):
    """A regressor whose ``fit`` takes groups, and remembers them."""

    def fit(self, X, y, groups=None):
        self.groups_, self.mean_ = groups, float(np.mean(y))
        return self

    def predict(self, X):
        return np.full(len(X), self.mean_)


class TestEstimator:
    def test_groups_share_a_fold(self):
        rng = np.random.default_rng(0)
        X, y = table(60, rng)
        groups = np.repeat(list("abcdefghijkl"), 5)
        for estimator in (LinearRegression(), ConstantOfGroups(), quick()):
            model = CVPlusRegressor(estimator, n_folds=4, random_state=0).fit(X, y, groups=groups)
            for label in np.unique(groups):
                assert len(np.unique(model.folds_[groups == label])) == 1
            assert len(model.estimators_) == 4
            assert np.isfinite(model.predict_interval(X, 0.9)).all()
        model = CVPlusRegressor(ConstantOfGroups(), n_folds=4, random_state=0)
        for fold, fitted in enumerate(model.fit(X, y, groups=groups).estimators_):
            assert len(np.unique(fitted.groups_)) == 9
            assert len(fitted.groups_) == np.sum(model.folds_ != fold)
        few = CVPlusRegressor(LinearRegression(), n_folds=10).fit(X, y, groups=groups < "d")
        assert len(few.estimators_) == 2

    def test_groups_with_a_shift_of_their_own(self):
        """New groups are covered; without groups, rows of the same one make it look easy."""
        hits = {True: [], False: []}
        for seed in range(20):
            rng = np.random.default_rng(seed)
            groups = np.repeat(np.arange(30), 6)
            place = rng.uniform(-2, 2, size=(31, 1))
            shift = rng.normal(size=31)

            def rows(index, rng=rng, place=place, shift=shift):
                X = place[index] + 1e-3 * rng.normal(size=(len(index), 1))
                return X, shift[index] + 0.1 * rng.normal(size=len(index))

            X, y = rows(groups)
            new, fresh = rows(np.full(6, 30))
            for grouped in hits:
                model = CVPlusRegressor(KNeighborsRegressor(5), n_folds=10, random_state=seed)
                model.fit(X, y, groups=groups if grouped else None)
                low, high = model.predict_interval(new, 0.9).T
                hits[grouped].append(np.mean((fresh >= low) & (fresh <= high)))
        assert np.mean(hits[True]) > 0.75
        assert np.mean(hits[False]) < 0.4

    @pytest.mark.parametrize("level", [0.0, 1.0, 95, -0.1, np.nan])
    def test_wrong_levels(self, level):
        X, y = table(20, np.random.default_rng(0))
        model = CVPlusRegressor(LinearRegression()).fit(X, y)
        with pytest.raises(InputError, match="level"):
            model.predict_interval(X, level)

    def test_one_group_is_too_few(self):
        X, y = table(20, np.random.default_rng(0))
        with pytest.raises(InputError, match="group"):
            CVPlusRegressor(LinearRegression()).fit(X, y, groups=np.zeros(20))

    def test_not_fitted(self):
        for call in ("predict", "predict_interval"):
            with pytest.raises(NotFittedError):
                getattr(CVPlusRegressor(), call)(np.zeros((2, 2)))
        with pytest.raises(NotFittedError):
            CVPlusRegressor().guaranteed_level()

    def test_clone_pickle_parameters_and_frames(self):
        X, y = table(40, np.random.default_rng(0))
        frame = pd.DataFrame(X, columns=["height", "width"])
        pipe = make_pipeline(StandardScaler(), quick())
        model = CVPlusRegressor(pipe, n_folds=3, random_state=1)
        assert clone(model).get_params()["n_folds"] == 3
        assert model.get_params()["estimator__twostagegpregressor__mean"] == "rbf"
        model = clone(model).fit(frame, pd.Series(y))
        assert list(model.feature_names_in_) == ["height", "width"]
        assert not hasattr(pipe, "n_features_in_")
        interval = model.predict_interval(frame, 0.8)
        assert interval.shape == (40, 2)
        # A pipeline hands the standard deviation of its last step through.
        assert np.ptp(np.diff(interval, axis=1)) > 1e-3
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.predict_interval(frame, 0.8), interval)
        plain = clone(model).fit(X, y)
        np.testing.assert_allclose(plain.predict_interval(X, 0.8), interval)
        assert model.score(frame, y) > 0.5

    def test_the_default_estimator(self):
        X, y = table(30, np.random.default_rng(0), d=1)
        model = CVPlusRegressor(n_folds=2, random_state=0).fit(X, y)
        assert isinstance(model.estimator_, TwoStageGPRegressor)
        assert np.isfinite(model.predict_interval(X, 0.8)).all()


LEVELS = (0.5, 0.8, 0.9)


def hits(estimator, n=40, n_folds=5, tables=300, new=20, seed=0, make=table):
    """Share of new rows covered at each of ``LEVELS``, over many random tables."""
    covered = []
    for k in range(tables):
        rng = np.random.default_rng([seed, k])
        X, y = make(n + new, rng)
        model = CVPlusRegressor(estimator, n_folds=n_folds, random_state=k).fit(X[:n], y[:n])
        ends = [model.predict_interval(X[n:], level).T for level in LEVELS]
        covered.append([np.mean((y[n:] >= low) & (y[n:] <= high)) for low, high in ends])
    return np.mean(covered, axis=0)


class Grouped(LinearRegression):
    """Remembers the groups that it was fitted with."""

    def fit(self, X, y, groups=None):
        self.groups_ = None if groups is None else np.asarray(groups)
        return super().fit(X, y)


class TestWhatTheEstimatorSees:
    def test_every_refit_is_given_the_groups_of_its_rows(self):
        X, y = table(12, np.random.default_rng(0))
        groups = np.repeat(np.arange(4), 3)
        model = CVPlusRegressor(Grouped(), n_folds=4, random_state=0).fit(X, y, groups=groups)
        np.testing.assert_array_equal(model.estimator_.groups_, groups)
        for k, one in enumerate(model.estimators_):
            np.testing.assert_array_equal(one.groups_, groups[model.folds_ != k])
        assert CVPlusRegressor(Grouped(), n_folds=3).fit(X, y).estimator_.groups_ is None

    def test_a_line_through_a_frame_with_labels_and_gaps(self):
        rng = np.random.default_rng(0)
        frame = pd.DataFrame({"x": rng.normal(size=30), "kind": ["a", "b", "c"] * 10})
        y = frame["x"] + (frame["kind"] == "b")
        model = CVPlusRegressor(LinearRegression(), n_folds=3, random_state=0).fit(frame, y)
        np.testing.assert_allclose(model.predict(frame), y, atol=1e-9)
        low, high = model.predict_interval(frame, 0.8).T
        np.testing.assert_allclose(low, high, atol=1e-8)
        numbers = frame[["x"]].assign(z=rng.normal(size=30))
        numbers.loc[[3, 8, 20], "z"] = np.nan
        model.fit(numbers, frame["x"])
        np.testing.assert_allclose(model.predict(numbers), frame["x"], atol=1e-9)

    def test_frames_of_numbers_keep_their_names(self):
        rng = np.random.default_rng(0)
        frame = pd.DataFrame(rng.normal(size=(20, 2)), columns=["a", "b"])
        y = frame["a"] - frame["b"]
        model = CVPlusRegressor(LinearRegression(), n_folds=3, random_state=0).fit(frame, y)
        assert model.estimator_.feature_names_in_.tolist() == ["a", "b"]
        np.testing.assert_allclose(model.predict(frame), y)
        with pytest.raises(ValueError, match="feature names"):
            model.predict(frame.rename(columns={"b": "c"}))
        careless = CVPlusRegressor(DummyRegressor(), n_folds=3).fit(frame, y)
        with pytest.raises(ValueError, match="feature names"):
            careless.predict(frame.rename(columns={"b": "c"}))
        unnamed = frame.set_axis([0, 1], axis=1)
        model.fit(unnamed, y)
        np.testing.assert_allclose(model.predict(unnamed), y)
        np.testing.assert_allclose(model.predict(unnamed.to_numpy()), y)

    def test_which_estimators_need_an_encoder(self):
        knows = conformal.takes_numbers_only
        assert knows(LinearRegression())
        assert not knows(ExactGPRegressor())
        assert not knows(make_pipeline(LinearRegression()))
        assert not knows(BaggingRegressor(LinearRegression()))


class Speaks(LinearRegression):
    """Says something in every prediction, and infinity where it is told to."""

    def __init__(self, category=UserWarning, infinite=False):
        super().__init__()
        self.category = category
        self.infinite = infinite

    def predict(self, X):
        warnings.warn("hello", self.category, stacklevel=1)
        return super().predict(X) + (np.inf if self.infinite else 0.0)


class TestSmallThings:
    X, y = table(200, np.random.default_rng(7))

    @pytest.mark.parametrize("level", [0.004, 0.1, 0.5, 0.77, 0.995])
    def test_ranks_of_many_rows(self, level):
        model = CVPlusRegressor(LinearRegression(), n_folds=3, random_state=0).fit(self.X, self.y)
        expected = by_definition(model, self.X[:3], level)
        np.testing.assert_allclose(model.predict_interval(self.X[:3], level), expected)

    def test_ranks_of_thousands_of_rows(self):
        X, y = table(4000, np.random.default_rng(8))
        model = CVPlusRegressor(LinearRegression(), n_folds=2, random_state=0).fit(X, y)
        centre = np.array([one.predict(X[:1])[0] for one in model.estimators_])[model.folds_]
        low, high = np.sort(centre - model.scores_), np.sort(centre + model.scores_)
        for rank in range(1, 4000, 37):
            found = model.predict_interval(X[:1], (rank - 0.5) / 4001)[0]
            np.testing.assert_allclose(found, [low[4000 - rank], high[rank - 1]])

    def test_two_rows_and_two_folds_are_enough(self):
        model = CVPlusRegressor(DummyRegressor(), n_folds=2).fit(self.X[:2], self.y[:2])
        assert len(model.estimators_) == 2
        assert CVPlusRegressor().n_folds == 10
        with pytest.raises(ValueError, match="1 sample"):
            CVPlusRegressor(DummyRegressor(), n_folds=2).fit(self.X[:1], self.y[:1])

    def test_default_level(self):
        model = CVPlusRegressor(DummyRegressor()).fit(self.X, self.y)
        assert model.guaranteed_level() == model.guaranteed_level(0.95)

    def test_targets_that_are_not_numbers_or_too_few_or_a_column(self):
        y = self.y.copy()
        y[3] = np.nan
        with pytest.raises(InputError, match="y"):
            CVPlusRegressor(DummyRegressor()).fit(self.X, y)
        with pytest.raises(ValueError, match="inconsistent"):
            CVPlusRegressor(DummyRegressor()).fit(self.X, self.y[:-1])
        with pytest.warns(DataConversionWarning):
            CVPlusRegressor(DummyRegressor()).fit(self.X, self.y[:, None])

    def test_gaps_in_new_rows_are_the_estimators_business(self):
        model = CVPlusRegressor(DummyRegressor()).fit(self.X, self.y)
        assert np.isfinite(model.predict(np.full((1, 2), np.nan))).all()

    def test_an_estimator_that_takes_no_groups_is_given_none(self):
        groups = np.arange(200) // 10
        model = CVPlusRegressor(LinearRegression(), n_folds=4).fit(self.X, self.y, groups=groups)
        assert all(len(set(model.folds_[groups == g])) == 1 for g in range(20))

    def test_what_all_refits_say_is_said_once(self):
        model = CVPlusRegressor(Speaks(TwoStageGPWarning), n_folds=4).fit(self.X, self.y)
        with pytest.warns(TwoStageGPWarning, match="hello") as said:
            model.predict_interval(self.X[:5])
        assert len(said) == 1

    @pytest.mark.filterwarnings("ignore:hello")
    def test_predictions_that_are_not_finite_are_an_error(self):
        model = CVPlusRegressor(Speaks(TwoStageGPWarning), n_folds=3).fit(self.X, self.y)
        for each in (model.estimator_, *model.estimators_):
            each.set_params(infinite=True)
        for ask in (model.predict, model.predict_interval):
            with pytest.raises(NumericalError):
                ask(self.X)

    def test_a_refit_that_fails_leaves_the_old_intervals(self):
        model = CVPlusRegressor(LinearRegression(), n_folds=3).fit(self.X, self.y)
        before = model.predict_interval(self.X)
        with pytest.raises(ValueError, match="NaN"):
            model.fit(np.where(self.X > 1.9, np.nan, self.X), self.y)
        np.testing.assert_array_equal(model.predict_interval(self.X), before)


class TestCoverage:
    @pytest.mark.parametrize(
        ("estimator", "more"),
        [
            pytest.param(LinearRegression(), 0.05, id="good", marks=pytest.mark.slow),
            pytest.param(DummyRegressor(), 0.05, id="constant"),
            pytest.param(BAD, 0.1, id="bad", marks=pytest.mark.slow),
        ],
    )
    def test_over_many_tables(self, estimator, more):
        # Refits that differ much from each other make intervals wider than they need be.
        for share, level in zip(hits(estimator), LEVELS, strict=True):
            assert share >= guaranteed_level(level, 40, 5)
            assert level - 0.05 < share < level + more

    def test_a_standard_deviation_that_is_nonsense_costs_width_only(self):
        class Liar(LinearRegression):
            def predict(self, X, return_std=False):
                mean = super().predict(X)
                return (mean, np.exp(3 * np.sin(50 * X[:, 0]))) if return_std else mean

        np.testing.assert_allclose(hits(Liar(), tables=100), LEVELS, atol=0.06)

    def test_heavy_tails(self):
        def cauchy(n, rng):
            X = rng.normal(size=(n, 1))
            return X, X[:, 0] + rng.standard_cauchy(size=n)

        np.testing.assert_allclose(
            hits(LinearRegression(), tables=150, make=cauchy), LEVELS, atol=0.06
        )

    def test_as_many_folds_as_rows(self):
        share = hits(LinearRegression(), n=19, n_folds=19, tables=60)
        np.testing.assert_allclose(share, LEVELS, atol=0.07)

    def test_a_gaussian_process(self):
        model = ExactGPRegressor("rbf", ard=False, random_state=0)
        for share, level in zip(hits(model, tables=10, new=60), LEVELS, strict=True):
            assert level - 0.08 < share < level + 0.1


class TestConformalIntervals:
    """``predict_interval(method="conformal")``: quick, and approximate."""

    @pytest.mark.parametrize("engine", ["exact", pytest.param("neighbors", marks=pytest.mark.slow)])
    def test_coverage(self, engine):
        levels, covered = (0.5, 0.8, 0.95), []
        for seed in range(4):
            rng = np.random.default_rng(seed)
            X, y = table(100, rng)
            new, fresh = table(2000, rng)
            model = quick(method=engine).fit(X, y)
            ends = [model.predict_interval(new, level, method="conformal").T for level in levels]
            covered.append([np.mean((fresh >= low) & (fresh <= high)) for low, high in ends])
        np.testing.assert_allclose(np.mean(covered, axis=0), levels, atol=0.06)

    @pytest.mark.parametrize("calibration", ["local", "scale", None])
    def test_it_is_the_rank_of_the_held_out_scores(self, calibration):
        X, y = table(60, np.random.default_rng(0))
        model = quick(calibration=calibration).fit(X, y)
        part = model.calibration_
        size = np.sort(np.abs(part.z_calibrated))
        mean, std = model.predict(X, return_std=True)
        sigma = std / part.shape.std
        for level in (0.5, 0.9):
            reach = size[math.ceil(level * 61 - 1e-9) - 1] * sigma
            interval = model.predict_interval(X, level, method="conformal")
            np.testing.assert_allclose(interval, np.column_stack([mean - reach, mean + reach]))
        most = model.predict_interval(X, 0.999, method="conformal")
        np.testing.assert_allclose(most[:, 1], mean + size[-1] * sigma)

    def test_a_model_without_held_out_rows_says_so(self):
        X, y = table(30, np.random.default_rng(0))
        model = ExactGPRegressor(random_state=0).fit(X, y)
        with pytest.raises(InputError, match="CVPlusRegressor"):
            model.predict_interval(X, method="conformal")
        assert model.predict_interval(X).shape == (30, 2)


class TestMapie:
    """The package of the same trade takes our regressors as they are."""

    def check(self, model, new, fresh, level):
        mean, ends = model.predict_interval(new)
        low, high = ends[:, 0, 0], ends[:, 1, 0]
        assert mean.shape == low.shape == (len(new),)
        assert np.mean((fresh >= low) & (fresh <= high)) == pytest.approx(level, abs=0.07)

    def test_split(self):
        regression = pytest.importorskip("mapie.regression")
        rng = np.random.default_rng(0)
        (X, y), (held, held_y), (new, fresh) = (table(n, rng) for n in (80, 150, 2000))
        split = regression.SplitConformalRegressor
        model = split(quick().fit(X, y), confidence_level=0.9, prefit=True)
        self.check(model.conformalize(held, held_y), new, fresh, 0.9)
        model = split(quick(), confidence_level=0.8, prefit=False)
        self.check(model.fit(X, y).conformalize(held, held_y), new, fresh, 0.8)

    def test_cross(self):
        regression = pytest.importorskip("mapie.regression")
        rng = np.random.default_rng(1)
        (X, y), (new, fresh) = table(100, rng), table(1000, rng)
        cross = regression.CrossConformalRegressor
        gp = quick(calibration="scale")
        model = cross(gp, confidence_level=0.9, cv=4, random_state=0)
        self.check(model.fit_conformalize(X, y), new, fresh, 0.9)
        # The same trade: our own cross-validation+ has intervals of about the same width.
        _, theirs = model.predict_interval(new)
        ours = CVPlusRegressor(gp, n_folds=4, random_state=0).fit(X, y)
        low, high = ours.predict_interval(new, 0.9).T
        width = np.mean(theirs[:, 1, 0] - theirs[:, 0, 0])
        assert np.mean(high - low) == pytest.approx(width, rel=0.3)

    def test_our_cross_validation_equals_theirs_on_the_same_folds(self):
        regression = pytest.importorskip("mapie.regression")
        from sklearn.model_selection import PredefinedSplit

        rng = np.random.default_rng(2)
        (X, y), (new, _) = table(60, rng), table(200, rng)
        ours = CVPlusRegressor(LinearRegression(), n_folds=5, random_state=0).fit(X, y)
        theirs = regression.CrossConformalRegressor(
            LinearRegression(), confidence_level=0.9, cv=PredefinedSplit(ours.folds_)
        ).fit_conformalize(X, y)
        _, ends = theirs.predict_interval(new)
        np.testing.assert_allclose(ours.predict_interval(new, 0.9), ends[:, :, 0], rtol=1e-9)
