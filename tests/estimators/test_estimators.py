"""The regressors as scikit-learn estimators: the protocol, shapes, units, options, messages."""

import pickle
from functools import cache

import gpytorch.kernels as gk
import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from twostagegp import ExactGPRegressor, GPNNRegressor, TwoStageGPRegressor
from twostagegp.engines.exact.engine import ExactPosterior
from twostagegp.errors import InputError, MemoryBudgetError
from twostagegp.estimators.prediction import check_covariance_size
from twostagegp.kernels import KERNELS
from twostagegp.pipeline.model import TwoStageFit
from twostagegp.pipeline.settings import SearchSettings, Settings
from twostagegp.training.schedule import Training

SMALL = ("rbf", "laplacian")
#: Short searches by the ratio test.
SHORT_SEARCH = Settings(search=SearchSettings(n_repeats=6))


@parametrize_with_checks(
    [
        TwoStageGPRegressor(mean="rbf", variance="rbf", ard=False, calibration="scale"),
        ExactGPRegressor(),
        GPNNRegressor(),
    ]
)
def test_follows_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        TwoStageGPRegressor(),
        TwoStageGPRegressor(kernels=SMALL, ard=False),
        TwoStageGPRegressor(mean="rbf", variance="rbf", ard=False),
        TwoStageGPRegressor(method="neighbors", kernels=("rbf",), ard=False),
        TwoStageGPRegressor(mean="search", kernels=SMALL),
        ExactGPRegressor(kernel="search", ard=True),
    ]
)
def test_follows_scikit_learn_with_other_options(estimator, check):
    check(estimator)


def table(n=40, d=2, seed=0, noise=0.1):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, -1] + noise * rng.normal(size=n)
    return X, y


def quick(**options):
    """One kernel in each stage: every part takes part, a fit takes a few hundredths of a second."""
    return TwoStageGPRegressor(
        **{"mean": "rbf", "variance": "rbf", "ard": False, "random_state": 0, **options}
    )


def exact(**options):
    return ExactGPRegressor(**{"random_state": 0, **options})


each_model = pytest.mark.parametrize("make", [quick, exact], ids=["two-stage", "exact"])
each_target = pytest.mark.parametrize("targets", [0, 1, 2], ids=["1-D", "column", "two"])


def shaped(y, targets):
    """y as (n,), (n, 1) or (n, 2)."""
    return [y, y[:, None], np.column_stack([y, -3 * y + np.arange(len(y)) / 10])][targets]


def same(a, b, X, **tolerance):
    """Two models give the same distribution."""
    for one, other in zip(
        a.predict(X, return_std=True), b.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_allclose(one, other, **{"rtol": 1e-9, **tolerance})


class TestProtocol:
    @pytest.mark.parametrize(
        "model",
        [
            TwoStageGPRegressor(random_state=0),
            quick(mean=[RandomForestRegressor(5), "rbf"], training=Training(steps=3)),
            quick(mean=gk.RBFKernel() + gk.LinearKernel(), variance=gk.MaternKernel(nu=1.5)),
            exact(kernel="search"),
            exact(kernel=gk.RBFKernel(ard_num_dims=2)),
        ],
        ids=["default", "list", "gpytorch", "exact-search", "exact-gpytorch"],
    )
    def test_clone_pickle_and_joblib(self, model, tmp_path):
        X, y = table()
        clone(model).get_params()
        model = clone(model).fit(X, y)
        model.predict(X, return_cov=True)  # caches, if any, must not stand in the way
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(model.predict(X), again.predict(X))
        same(model, again, X, rtol=0)
        joblib.dump(model, tmp_path / "model.joblib")
        same(model, joblib.load(tmp_path / "model.joblib"), X, rtol=0)
        same(model, clone(model).fit(X, y), X)

    def test_set_params_changes_the_next_fit(self):
        X, y = table()
        model = quick().fit(X, y)
        assert model.set_params(mean="constant") is model
        assert model.fit(X, y).mean_.label == "constant"
        assert quick(mean=RandomForestRegressor(5)).set_params(mean__n_estimators=3)

    def test_grid_search_over_mean_and_ard(self):
        X, y = table()
        search = GridSearchCV(quick(), {"mean": ["constant", "rbf"], "ard": [True, False]}, cv=2)
        search.fit(X, y)
        assert search.best_params_["mean"] == "rbf"
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()

    def test_numpy_booleans_count_as_booleans(self):
        X, y = table()
        same(quick(ard=np.True_).fit(X, y), quick(ard=True).fit(X, y), X)

    def test_pipeline(self):
        X, y = table()
        pipe = make_pipeline(StandardScaler(), quick()).fit(X * [10.0, 0.1] + 5, y)
        mean, std = pipe.predict(X * [10.0, 0.1] + 5, return_std=True)
        assert mean.shape == std.shape == (40,)
        assert pipe.score(X * [10.0, 0.1] + 5, y) > 0.8

    def test_feature_names(self):
        X, y = table()
        frame = pd.DataFrame(X, columns=["height", "width"])
        model = quick(ard=True).fit(frame, pd.Series(y))
        assert list(model.feature_names_in_) == ["height", "width"] == list(model.relevance_)
        assert sum(model.relevance_.values()) == pytest.approx(1.0)
        np.testing.assert_allclose(model.predict(frame), quick(ard=True).fit(X, y).predict(X))
        with pytest.raises(ValueError, match="same order"):
            model.predict(frame[["width", "height"]])

    def test_relevance_finds_the_column_that_matters(self):
        X, _ = table(n=60, d=3)
        model = exact(ard=True).fit(X, np.sin(3 * X[:, 1]))
        assert max(model.relevance_, key=model.relevance_.get) == "x1"

    @each_model
    def test_not_fitted(self, make):
        for call in ("predict", "predict_interval", "sample_y"):
            with pytest.raises(NotFittedError):
                getattr(make(), call)(np.zeros((3, 2)))

    @each_model
    def test_wrong_number_of_columns(self, make):
        X, y = table()
        with pytest.raises(ValueError, match="features"):
            make().fit(X, y).predict(X[:, :1])

    @each_model
    def test_inputs_are_not_modified(self, make):
        X, y = table()
        frozen = [X, y, np.ones(40), np.full(40, 0.01), np.arange(40) // 4]
        before = [a.copy() for a in frozen]
        for a in frozen:
            a.setflags(write=False)
        # The likelihood alone cannot hold groups out, and says so.
        model = make(**({"objective": "loo"} if make is exact else {}))
        model.fit(X, y, sample_weight=frozen[2], noise_var=frozen[3], groups=frozen[4])
        mean = model.predict(X, return_cov=True)[0]
        mean[:] = 0.0  # results are the caller's own
        assert np.any(model.predict(X) != 0.0)
        for a, b in zip(frozen, before, strict=True):
            np.testing.assert_array_equal(a, b)

    def test_same_random_state_same_result(self):
        X, y = table()
        one = TwoStageGPRegressor(kernels=SMALL, random_state=3).fit(X, y)
        two = TwoStageGPRegressor(kernels=SMALL, random_state=3).fit(X, y)
        same(one, two, X, rtol=0)


@cache
def fitted(make, targets):
    """A model of the table with so many targets, which several tests share."""
    X, y = table()
    return make().fit(X, shaped(y, targets))


class TestDistribution:
    @each_target
    @each_model
    def test_shapes(self, make, targets):
        X, y = table()
        Y = shaped(y, targets)
        tail = Y.shape[1:]
        model = fitted(make, targets)
        new = X[:7]
        assert model.predict(new).shape == (7, *tail)
        for option in ("return_std", "return_latent_std"):
            mean, std = model.predict(new, **{option: True})
            assert mean.shape == std.shape == (7, *tail)
        mean, cov = model.predict(new, return_cov=True)
        assert mean.shape == (7, *tail)
        assert cov.shape == (*tail, 7, 7)
        assert model.predict_interval(new).shape == (7, *tail, 2)
        assert model.predict_quantiles(new, [0.1, 0.5, 0.9]).shape == (7, *tail, 3)
        assert model.predict_cdf(new, Y[:7]).shape == (7, *tail)
        assert model.predict_logpdf(new, Y[:7]).shape == (7, *tail)
        for joint in (False, True):
            assert model.sample_y(new, 4, joint=joint).shape == (7, *tail, 4)
        assert isinstance(model.fit_report_, list) == (targets > 0)
        assert isinstance(model.relevance_, list) == (targets > 0)

    @each_target
    @each_model
    def test_moments_agree_with_each_other(self, make, targets):
        X, _ = table()
        model = fitted(make, targets)
        new = np.vstack([X[:5], X[:3] + 20.0])
        mean, std = model.predict(new, return_std=True)
        _, latent = model.predict(new, return_latent_std=True)
        _, cov = model.predict(new, return_cov=True)
        _, noise = model.predict(new, return_noise_std=True)
        if not hasattr(model, "calibration_"):
            reports = np.ravel(model.fit_report_)
            same = np.array([report.noise_std for report in reports]).reshape(mean.shape[1:])
            np.testing.assert_allclose(noise, np.broadcast_to(same, noise.shape), rtol=1e-10)
        np.testing.assert_allclose(std**2, latent**2 + noise**2, rtol=1e-10)
        np.testing.assert_allclose(
            np.diagonal(cov, axis1=-2, axis2=-1).T, std**2, rtol=1e-8, atol=1e-12
        )
        np.testing.assert_allclose(cov, np.swapaxes(cov, -1, -2), rtol=1e-10, atol=1e-12)
        assert np.linalg.eigvalsh(cov).min() > 0.0
        np.testing.assert_array_equal(mean, model.predict(new))

    @each_target
    @each_model
    def test_intervals_quantiles_and_densities_are_of_one_distribution(self, make, targets):
        X, y = table()
        Y = shaped(y, targets)
        model = fitted(make, targets)
        mean, std = model.predict(X, return_std=True)
        interval = model.predict_interval(X, level=0.9)
        np.testing.assert_allclose(interval, model.predict_quantiles(X, [0.05, 0.95]))
        laws = model.fitted_.shapes
        sigma = std / [law.std for law in laws]
        columns = (values.reshape(len(X), -1).T for values in (mean, sigma, Y))
        for k, (law, m, s, t) in enumerate(zip(laws, *columns, strict=True)):
            ends = m[:, None] + s[:, None] * law.ppf([0.05, 0.95])
            np.testing.assert_allclose(interval.reshape(len(X), -1, 2)[:, k], ends)
            z = (t - m) / s
            cdf, logpdf = model.predict_cdf(X, Y), model.predict_logpdf(X, Y)
            np.testing.assert_allclose(cdf.reshape(len(X), -1)[:, k], law.cdf(z))
            density = law.logpdf(z) - np.log(s)
            np.testing.assert_allclose(logpdf.reshape(len(X), -1)[:, k], density)

    @each_target
    @each_model
    def test_without_a_learned_shape_they_are_gaussian(self, make, targets):
        X, y = table()
        Y = shaped(y, targets)
        model = make()
        if "calibration" in model.get_params():
            model.set_params(calibration="scale")
        model.fit(X, Y)
        mean, std = model.predict(X, return_std=True)
        interval = model.predict_interval(X, level=0.9)
        np.testing.assert_allclose(interval.mean(-1), mean, atol=1e-12)
        np.testing.assert_allclose(model.predict_quantiles(X, 0.5)[..., 0], mean)
        np.testing.assert_allclose(
            model.predict_quantiles(X, [0.2])[..., 0], stats.norm.ppf(0.2, mean, std)
        )
        np.testing.assert_allclose(model.predict_cdf(X, Y), stats.norm.cdf(Y, mean, std))
        np.testing.assert_allclose(model.predict_logpdf(X, Y), stats.norm.logpdf(Y, mean, std))

    @each_model
    def test_targets_are_fitted_one_by_one(self, make):
        X, y = table()
        Y = shaped(y, 2)
        model = fitted(make, 2)
        for k in range(2):
            mean, std = make().fit(X, Y[:, k]).predict(X, return_std=True)
            np.testing.assert_array_equal(model.predict(X)[:, k], mean)
            np.testing.assert_array_equal(model.predict(X, return_std=True)[1][:, k], std)

    @each_target
    @each_model
    def test_samples(self, make, targets):
        X, _ = table()
        model = fitted(make, targets)
        new = np.vstack([X[:2], X[:2] + 0.01, X[:1] + 9.0])
        mean, cov = model.predict(new, return_cov=True)
        cov = cov if targets else cov[None]
        std = np.sqrt(np.diagonal(cov, axis1=-2, axis2=-1)).T.reshape(mean.shape)
        draws = 20_000
        for joint in (False, True):
            samples = model.sample_y(new, draws, joint=joint, random_state=1)
            error = (samples.mean(-1) - mean) / std * np.sqrt(draws)
            assert np.abs(error).max() < 5.0
            np.testing.assert_allclose(samples.std(-1), std, rtol=0.03)
            for k, C in enumerate(cov):
                one = samples[:, k] if targets else samples
                expected = C if joint else np.diag(np.diag(C))
                scale = np.sqrt(np.outer(np.diag(C), np.diag(C)))
                assert np.abs((np.cov(one) - expected) / scale).max() < 0.05
        np.testing.assert_array_equal(
            model.sample_y(new, 3, random_state=5), model.sample_y(new, 3, random_state=5)
        )
        assert np.any(model.sample_y(new, 3, random_state=5) != model.sample_y(new, 3))

    def test_sample_y_is_called_as_in_scikit_learn(self):
        X, y = table()
        ours = ExactGPRegressor("rbf", random_state=0).fit(X, y)
        theirs = GaussianProcessRegressor(optimizer=None).fit(X, y)
        for model in (ours, theirs):
            draws = model.sample_y(X[:4], 3, 7)
            assert draws.shape == (4, 3)
            np.testing.assert_array_equal(draws, model.sample_y(X[:4], n_samples=3, random_state=7))
            assert model.sample_y(X[:4]).shape == (4, 1)
            np.testing.assert_array_equal(model.sample_y(X[:4]), model.sample_y(X[:4], 1, 0))
        np.testing.assert_array_equal(
            ours.sample_y(X[:4], 3, 7), ours.sample_y(X[:4], 3, 7, joint=True)
        )

    @pytest.mark.parametrize(
        ("call", "word"),
        [
            (lambda m, X: m.predict(X, return_std=True, return_cov=True), "at a time"),
            (lambda m, X: m.predict_interval(X, level=95), "95"),
            (lambda m, X: m.predict_interval(X, method="magic"), "magic"),
            (lambda m, X: m.predict_quantiles(X, [0.5, 1.5]), "1.5"),
            (lambda m, X: m.predict_cdf(X, np.zeros(3)), r"\(3,\)"),
            (lambda m, X: m.sample_y(X, 0), "n_samples=0"),
        ],
    )
    def test_requests_that_make_no_sense(self, call, word):
        X, y = table(20)
        with pytest.raises(InputError, match=word):
            call(exact().fit(X, y), X)

    @each_model
    def test_mean_alone_computes_no_variance(self, make, monkeypatch):
        X, y = table()
        model = make().fit(X, y)
        calls = []
        for name in ("variance", "covariance"):
            original = getattr(ExactPosterior, name)

            def counted(self, X, original=original, name=name):
                calls.append(name)
                return original(self, X)

            monkeypatch.setattr(ExactPosterior, name, counted)
        # Members tell which rows are outside the data, where the mean is another one.
        outside = getattr(model.fitted_.fits[0], "outside", None)
        members = ["variance"] * (len(outside.members) if outside else 0)
        model.predict(X)
        assert calls == members
        calls.clear()
        model.predict(X, return_std=True)
        assert calls == ["variance", *members]

    def test_covariance_beyond_the_memory_budget(self, monkeypatch):
        X, y = table(20)
        model = quick().fit(X, shaped(y, 2))

        def forbidden(*_):
            raise AssertionError("allocated before the check")

        monkeypatch.setattr(TwoStageFit, "covariance", forbidden)
        monkeypatch.setattr(TwoStageFit, "predict_mean", forbidden)
        for call, option in ((model.predict, "return_cov"), (model.sample_y, "joint")):
            with pytest.raises(MemoryBudgetError, match=r"10001 rows .* at most 10000 rows"):
                call(np.zeros((10_001, 2)), **{option: True})
        with pytest.raises(MemoryBudgetError, match="at most 3 rows"):
            check_covariance_size(4, 2, most=8 * 2 * 9)

    @each_model
    def test_far_away_the_prediction_stays_finite(self, make):
        X, y = table()
        X *= 1e-3
        for kernel in KERNELS:
            model = exact(kernel=kernel)
            if make is quick:
                model = quick(mean=kernel, variance=kernel, calibration="scale")
            model.fit(X, y)
            for value in (1e6, 1e160, -1e308):
                mean, std = model.predict(np.full((2, 2), value), return_std=True)
                assert np.isfinite(mean).all()
                assert np.isfinite(std).all()
                assert std[0] >= 0.9 * model.predict(X, return_std=True)[1].max()
            assert np.isfinite(model.predict(np.full((2, 2), 1e300), return_cov=True)[1]).all()


class TestInvariance:
    @each_model
    @pytest.mark.parametrize(("a", "b"), [(-2.0, 7.0), (1e9, -3e9), (1e-9, 5e-9)])
    def test_units_of_y(self, make, a, b):
        X, y = table()
        mean, std = make().fit(X, y).predict(X, return_std=True)
        scaled = make().fit(X, a * y + b)
        mean2, std2 = scaled.predict(X, return_std=True)
        np.testing.assert_allclose((mean2 - b) / a, mean, atol=2e-3)
        np.testing.assert_allclose(std2 / abs(a), std, rtol=2e-2)

    @each_model
    def test_units_of_x(self, make):
        X, y = table()
        moved = X * [1e7, -1e-7] + [3e6, 1.0]
        mean, std = make().fit(X, y).predict(X, return_std=True)
        mean2, std2 = make().fit(moved, y).predict(moved, return_std=True)
        np.testing.assert_allclose(mean2, mean, atol=2e-3)
        np.testing.assert_allclose(std2, std, rtol=2e-2)

    @pytest.mark.parametrize(
        "model", [quick(), quick(mean="stack", kernels=SMALL), exact()], ids=["one", "stack", "gp"]
    )
    def test_order_of_rows(self, model):
        X, y = table()
        X, y = np.vstack([X, X[:5]]), np.append(y, y[:5] + 0.3)
        order = np.random.default_rng(1).permutation(45)
        one, two = clone(model).fit(X, y), clone(model).fit(X[order], y[order])
        same(one, two, X, rtol=1e-6, atol=1e-6)

    @each_model
    def test_a_constant_column_changes_nothing(self, make):
        X, y = table()
        wide = np.insert(X, 1, 4.2, axis=1)
        model = make().fit(wide, y)
        same_X = make().fit(X, y).predict(X, return_std=True)
        for one, other in zip(model.predict(wide, return_std=True), same_X, strict=True):
            np.testing.assert_array_equal(one, other)
        assert model.fit_report_.constant_columns == ["x1"]
        assert model.relevance_["x1"] == 0.0


class TestRows:
    """Weights, groups and known noise."""

    @pytest.mark.parametrize(
        "make",
        [
            lambda: quick(mean="stack", variance="search", kernels=SMALL),
            lambda: quick(penalty=0.1, residuals="insample"),
            lambda: exact(objective="loo"),
        ],
        ids=["stack", "classical", "exact-loo"],
    )
    def test_a_weight_is_a_number_of_repeats(self, make):
        # Not so for a regressor: cross-fitting gives each copy a fold, a weighted row just one.
        X, y = table(30)
        counts = np.random.default_rng(2).integers(0, 4, size=30)
        weighted = make().fit(X, y, sample_weight=counts)
        repeated = make().fit(np.repeat(X, counts, axis=0), np.repeat(y, counts))
        same(weighted, repeated, X, rtol=1e-6, atol=1e-7)

    @each_model
    def test_weight_zero_removes_a_row(self, make):
        X, y = table(30)
        y[7] = 1e6
        keep = np.arange(30) != 7
        same(make().fit(X, y, sample_weight=keep), make().fit(X[keep], y[keep]), X)

    @each_model
    def test_halves_of_a_row_make_one(self, make):
        X, y = table(20)
        halves = make().fit(np.vstack([X, X]), np.append(y, y), sample_weight=np.full(40, 0.5))
        same(halves, make().fit(X, y), X, rtol=1e-6)

    @pytest.mark.parametrize(
        ("option", "value", "word"),
        [
            ("sample_weight", np.zeros(20), "zero"),
            ("sample_weight", np.eye(20)[0], "all but 1 of 20"),
            ("sample_weight", np.ones(19), r"\(19,\)"),
            ("sample_weight", np.ones((20, 2)), r"\(20, 2\)"),
            ("sample_weight", np.full(20, np.nan), "NaN"),
            ("sample_weight", -np.eye(20)[3], "row 3 has -1.0"),
            ("noise_var", -0.5, "-0.5"),
            ("noise_var", np.full(20, np.inf), "inf"),
            ("noise_var", 1e200, r"1.0e\+200"),
            ("noise_var", np.ones(3), r"\(3,\)"),
            ("groups", np.ones(20), "single label"),
            ("groups", np.arange(5), "5 labels for 20 rows"),
        ],
    )
    @each_model
    def test_bad_rows(self, make, option, value, word):
        X, y = table(20)
        with pytest.raises(InputError, match=word) as caught:
            make().fit(X, y, **{option: value})
        assert option in str(caught.value)

    @each_model
    def test_weights_must_leave_two_groups(self, make):
        X, y = table(20)
        groups = np.arange(20) < 10
        with pytest.raises(InputError, match="groups"):
            make().fit(X, y, groups=groups, sample_weight=groups)

    @pytest.mark.parametrize("labels", [np.arange(30) % 6, [f"g{i % 6}" for i in range(30)]])
    def test_groups_are_held_out_together(self, labels):
        """Closed-form residuals of kernel ridge against leaving each group out for real."""
        X, y = table(30)
        model = quick(penalty=0.1).fit(X, y, groups=labels)
        Z, t = StandardScaler().fit_transform(X), (y - y.mean()) / y.std()
        expected = np.empty(30)
        for g in np.unique(labels):
            out = np.asarray(labels) == g
            ridge = KernelRidge(alpha=0.1, kernel="rbf", gamma=0.5).fit(Z[~out], t[~out])
            expected[out] = t[out] - ridge.predict(Z[out])
        np.testing.assert_allclose(model.mean_.heldout_residuals, expected, atol=1e-9)
        alone = quick(penalty=0.1).fit(X, y).mean_.heldout_residuals
        assert np.abs(alone - expected).max() > 1e-3

    @pytest.mark.parametrize(
        "mean", ["stack", LinearRegression(), "constant"], ids=["stack", "linear", "constant"]
    )
    def test_groups_with_a_common_shift_widen_the_distribution(self, mean):
        rng = np.random.default_rng(0)
        groups = np.repeat(np.arange(10), 5)
        X = np.repeat(rng.normal(size=(10, 2)), 5, axis=0) + 0.01 * rng.normal(size=(50, 2))
        y = np.repeat(rng.normal(size=10), 5) + 0.1 * rng.normal(size=50)
        options = {"mean": mean, "kernels": SMALL}
        blind = quick(**options).fit(X, y).mean_.heldout_residuals
        aware = quick(**options).fit(X, y, groups=groups).mean_.heldout_residuals
        assert (aware**2).mean() > (blind**2).mean()

    @each_model
    def test_a_row_with_more_known_noise_pulls_less(self, make):
        X, y = table(30)
        y[0] += 3.0
        pulls = []
        for v in (0.0, 1.0, 100.0):
            noise = np.zeros(30)
            noise[0] = v
            pulls.append(make().fit(X, y, noise_var=noise).predict(X[:1])[0])
        assert pulls[0] > pulls[1] > pulls[2]

    @each_model
    def test_known_noise_may_be_one_number(self, make):
        X, y = table(30)
        one = make().fit(X, y, noise_var=0.02)
        same(one, make().fit(X, y, noise_var=np.full(30, 0.02)), X)


SUM = gk.ScaleKernel(gk.RBFKernel()) + gk.ScaleKernel(gk.LinearKernel())


class TestOptions:
    @pytest.mark.parametrize(
        "mean",
        [
            "stack",
            "search",
            *KERNELS,
            gk.MaternKernel(nu=2.5),
            SUM,
            RandomForestRegressor(n_estimators=5),
            HistGradientBoostingRegressor(max_iter=5, min_samples_leaf=5),
            ["rbf", RandomForestRegressor(n_estimators=5)],
            ["search", "constant", SUM],
        ],
        ids=lambda m: m if isinstance(m, str) else type(m).__name__,
    )
    def test_every_mean_learns(self, mean):
        X, y = table(50)
        new, truth = table(200, seed=9, noise=0.0)
        model = quick(mean=mean, kernels=SMALL, calibration="scale").fit(X, y)
        predicted, std = model.predict(new, return_std=True)
        assert np.mean((predicted - truth) ** 2) < 0.6 * truth.var()
        assert np.all(std > 0)
        held = model.mean_.heldout_residuals
        assert held.shape == (50,)
        assert np.isfinite(held).all()

    def test_constant_mean(self):
        X, y = table()
        model = quick(mean="constant").fit(X, y)
        np.testing.assert_allclose(model.predict(X + 1), y.mean())
        assert model.mean_.label == "constant"

    def test_a_list_always_has_the_constant_and_convex_weights(self):
        X, y = table()
        mean = quick(mean=["rbf", LinearRegression()]).fit(X, y).mean_
        assert [m.label for m in mean.models] == ["rbf/nll", "LinearRegression", "constant"]
        assert mean.weights.min() >= 0.0
        assert mean.weights.sum() == pytest.approx(1.0)

    def test_the_regressor_given_is_not_fitted_itself(self):
        X, y = table()
        forest = RandomForestRegressor(n_estimators=3)
        quick(mean=forest).fit(X, y)
        assert not hasattr(forest, "estimators_")

    @pytest.mark.parametrize(
        "penalty", [0.1, 1, (1e-3, 1e-1, 10.0), np.array([0.1, 1.0]), [0.5], "0.01n"], ids=repr
    )
    def test_penalties(self, penalty):
        X, y = table()
        model = quick(penalty=penalty).fit(X, y)
        grid = [0.4] if isinstance(penalty, str) else np.atleast_1d(penalty)
        used = np.exp(model.mean_.models[0].parameters[-1])
        assert np.isclose(used, grid).any()
        Z, t = StandardScaler().fit_transform(X), (y - y.mean()) / y.std()
        ridge = KernelRidge(alpha=used, kernel="rbf", gamma=0.5).fit(Z, t)
        np.testing.assert_allclose(model.predict(X), y.mean() + y.std() * ridge.predict(Z))

    @pytest.mark.parametrize(
        "variance", ["search", *KERNELS, gk.RBFKernel(), SUM], ids=lambda v: str(v)[:10]
    )
    @pytest.mark.parametrize("objective", ["heldout", "nll"])
    def test_variances(self, variance, objective):
        X, y = table()
        options = {"variance_objective": objective, "calibration": "scale", "kernels": SMALL}
        model = quick(variance=variance, **options).fit(X, y)
        near = model.predict(X, return_std=True)[1]
        far = model.predict(X + 50.0, return_std=True)[1]
        assert np.all(near > 0)
        assert far.mean() >= near.mean()
        if isinstance(variance, str) and variance != "search":
            assert model.variance_.label == variance

    @pytest.mark.parametrize("objective", ["loo", "nll"])
    @pytest.mark.parametrize("residuals", ["heldout", "insample"])
    @pytest.mark.parametrize("calibration", ["local", "scale", None])
    def test_residuals_and_calibration(self, objective, residuals, calibration):
        X, y = table(60)
        options = {"objective": objective, "residuals": residuals, "calibration": calibration}
        model = quick(mean="search", kernels=SMALL, **options).fit(X, y)
        assert np.all(model.predict(X, return_std=True)[1] > 0)
        assert len(model.calibration_.z) == 60
        if calibration is None:
            assert model.calibration_.factor == 1.0

    @pytest.mark.parametrize("ard", [True, False, "both"])
    def test_ard(self, ard):
        X, y = table()
        model = TwoStageGPRegressor(ard=ard, kernels=SMALL, random_state=0).fit(X, y)
        tried = {row["kernel"].split("/")[0] for row in model.search_ if row["stage"] == "mean"}
        forms = {True: ("-ard",), False: ("",), "both": ("", "-ard")}[ard]
        assert tried == {name + form for name in SMALL for form in forms}

    @pytest.mark.parametrize(
        "training",
        [
            Training(),
            Training(optimizer="lbfgs", steps=20, subsample=20, refine_steps=3),
            Training(optimizer="adam", steps=30, lr=0.1),
            Training(optimizer="adamw", steps=30, schedule="cosine", subsample=25),
            Training(steps=0),
        ],
        ids=lambda t: f"{t.optimizer}-{t.steps}",
    )
    @each_model
    def test_training(self, make, training):
        X, y = table()
        model = make(training=training).fit(X, y)
        assert model.score(X, y) > 0.5
        assert np.all(model.predict(X, return_std=True)[1] > 0)

    @pytest.mark.parametrize(
        "model",
        [
            TwoStageGPRegressor.from_paper(random_state=0, settings=SHORT_SEARCH),
            ExactGPRegressor.from_paper(random_state=0),
            ExactGPRegressor.from_paper(table=5, random_state=0),
            ExactGPRegressor.from_paper(table=3, random_state=0),
        ],
        ids=["two-stage", "exact", "exact-5", "exact-3"],
    )
    def test_from_paper_is_nothing_but_constructor_parameters(self, model):
        X, y = table(50)
        assert clone(model).get_params() == model.get_params()
        fitted, again = clone(model).fit(X, y), clone(model).fit(X, y)
        assert fitted.score(X, y) > 0.5
        same(fitted, again, X, rtol=0)

    def test_from_paper_takes_overrides_and_only_its_tables(self):
        assert TwoStageGPRegressor.from_paper(calibration="scale").calibration == "scale"
        assert ExactGPRegressor.from_paper(table=3).kernel == "matern32"
        with pytest.raises(InputError, match="table=4"):
            ExactGPRegressor.from_paper(table=4)

    @each_model
    def test_float32_is_close(self, make):
        X, y = table()
        mean, std = make().fit(X, y).predict(X, return_std=True)
        mean32, std32 = make(dtype="float32").fit(X, y).predict(X, return_std=True)
        assert mean32.dtype == std32.dtype == np.float64
        np.testing.assert_allclose(mean32, mean, atol=0.02)
        np.testing.assert_allclose(std32, std, rtol=0.1)

    @each_model
    @pytest.mark.parametrize("n_jobs", [1, 2, -1])
    def test_n_jobs_changes_no_result_and_leaves_torch_as_it_was(self, make, n_jobs):
        X, y = table(20)
        expected, before = make().fit(X, y), torch.get_num_threads()
        same(make(n_jobs=n_jobs).fit(X, y), expected, X, rtol=0.0)
        assert torch.get_num_threads() == before

    @each_model
    def test_verbose_prints_the_report_to_stderr(self, make, capsys):
        X, y = table(20)
        make(verbose=0).fit(X, y)
        captured = capsys.readouterr()
        assert captured.out == captured.err == ""
        make(verbose=1).fit(X, y)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "20 rows" in captured.err
        assert "variance" in captured.err

    @each_model
    def test_noise_floor(self, make):
        X, _ = table(20)
        model = make(noise_floor=1e-2, **({"calibration": None} if make is quick else {}))
        std = model.fit(X, X[:, 0]).predict(X, return_std=True)[1]
        assert np.all(std >= 0.0999 * X[:, 0].std())

    @each_model
    def test_fit_report(self, make):
        X, y = table(20)
        report = make().fit(X, y).fit_report_
        assert (report.n_rows, report.n_distinct_rows, report.n_features) == (20, 20, 2)
        assert report.to_dict()["mean"] == report.mean
        assert 0.0 < report.seconds["total"] < 60.0
        assert report.full_evaluations > 0


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"optimizer": "sgd"}, "adamw"),
        ({"schedule": "linear"}, "cosine"),
        ({"steps": -1}, "steps=-1"),
        ({"lr": 0.0}, "lr=0.0"),
        ({"subsample": 1}, "subsample=1"),
    ],
)
def test_wrong_training(options, word):
    with pytest.raises(InputError, match=word):
        Training(**options)


def test_a_gpytorch_kernel_for_other_columns_is_named():
    X, y = table(20)
    with pytest.raises(InputError, match="ard_num_dims"):
        quick(mean=gk.RBFKernel(ard_num_dims=5)).fit(X, y)
