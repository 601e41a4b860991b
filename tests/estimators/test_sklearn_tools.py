"""scikit-learn's tools around our estimators, with arrays and with frames of categories."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import StackingRegressor
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.inspection import (
    PartialDependenceDisplay,
    partial_dependence,
    permutation_importance,
)
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    HalvingGridSearchCV,
    cross_val_predict,
    cross_validate,
)
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from twostagegp import (
    CVPlusRegressor,
    ExactGPRegressor,
    TwoStageGPClassifier,
    TwoStageGPRegressor,
    TwoStageGPWarning,
    load,
)

N = 48


def numbers():
    rng = np.random.default_rng(0)
    return rng.uniform(-2, 2, size=(N, 3))


def frame():
    X = numbers()
    kind = np.array(["a", "b", "c"])[np.arange(N) % 3]
    table = pd.DataFrame({"size": X[:, 0], "load": X[:, 1], "kind": pd.Categorical(kind)})
    table.index = np.arange(N) + 1000  # a label is not a place
    return table


def target(X):
    values = X.to_numpy()[:, :2].astype(float) if isinstance(X, pd.DataFrame) else X
    jump = 2.0 * (X["kind"] == "a").to_numpy() if isinstance(X, pd.DataFrame) else 0.0
    rng = np.random.default_rng(1)
    return np.sin(2 * values[:, 0]) + jump + 0.1 * rng.normal(size=N)


def quick(**options):
    """The variance stage alone around a mean that costs nothing, or one kernel."""
    settings = {"mean": "rbf", "variance": "rbf", "calibration": "scale", "random_state": 0}
    return TwoStageGPRegressor(**{**settings, **options})


def gp(**options):
    return ExactGPRegressor(**{"kernel": "rbf", "random_state": 0, **options})


both = pytest.mark.parametrize("X", [numbers(), frame()], ids=["array", "frame"])


@both
def test_grid_search(X):
    grid = {"mean": ["constant", "rbf"]}
    search = GridSearchCV(quick(), grid, cv=2).fit(X, target(X))
    assert search.best_params_["mean"] == "rbf"
    mean, _ = search.best_estimator_.predict(X, return_std=True)
    assert isinstance(search.predict(X), np.ndarray)
    np.testing.assert_array_equal(search.predict(X), mean)


@both
def test_halving_grid_search(X):
    grid = {"kernel": ["rbf", "matern12"], "ard": [False, True]}
    search = HalvingGridSearchCV(
        gp(), grid, cv=2, min_resources=16, factor=2, random_state=0, error_score="raise"
    )
    assert search.fit(X, target(X)).n_iterations_ > 1
    assert search.predict(X).shape == (N,)


@both
def test_cross_val_predict_is_held_out(X):
    y = target(X)
    held = cross_val_predict(gp(), X, y, cv=4)
    rows = np.arange(12)
    take = X.iloc if isinstance(X, pd.DataFrame) else X
    rest = np.setdiff1d(np.arange(N), rows)
    own = gp().fit(take[rest], y[rest]).predict(take[rows])
    np.testing.assert_allclose(held[rows], own)


@both
def test_partial_dependence(X):
    model = gp(ard=True).fit(X, target(X))
    result = partial_dependence(model, X, [0], grid_resolution=5)
    curve, grid = result["average"][0], result["grid_values"][0]
    at = X.copy()
    if isinstance(X, pd.DataFrame):
        at["size"] = grid[2]
    else:
        at[:, 0] = grid[2]
    assert curve[2] == pytest.approx(model.predict(at).mean())


def test_partial_dependence_of_a_category():
    X = frame()
    model = gp().fit(X, target(X))
    result = partial_dependence(model, X, ["kind"], categorical_features=["kind"])
    values = dict(zip(result["grid_values"][0], result["average"][0], strict=True))
    assert values["a"] - values["b"] == pytest.approx(2.0, abs=0.4)
    assert abs(values["b"] - values["c"]) < 0.4


@both
def test_partial_dependence_display(X):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    model = gp().fit(X, target(X))
    features = [0, 2, (0, 1)]
    options = {"categorical_features": ["kind"]} if isinstance(X, pd.DataFrame) else {}
    features = features[:2] if options else features  # a pair with a category is a heat map
    display = PartialDependenceDisplay.from_estimator(
        model, X, features, grid_resolution=4, **options
    )
    assert display.axes_.size >= 2
    plt.close("all")


@both
def test_permutation_importance(X):
    model = gp(ard=True).fit(X, target(X))
    result = permutation_importance(model, X, target(X), n_repeats=3, random_state=0)
    assert result.importances_mean[0] > 0.3 > abs(result.importances_mean[1])
    if isinstance(X, pd.DataFrame):
        assert result.importances_mean[2] > 0.3


@both
def test_calibrated_classifier(X):
    X = X[:24]
    y = np.where(np.asarray(X)[:, 0].astype(float) > 0, "high", "low")
    classifier = TwoStageGPClassifier(stages=1, kernels=("rbf",), ard=False, random_state=0)
    model = CalibratedClassifierCV(classifier, cv=2, ensemble=False).fit(X, y)
    p = model.predict_proba(X)
    np.testing.assert_allclose(p.sum(1), 1.0)
    assert list(model.classes_) == ["high", "low"]
    assert np.mean(model.predict(X) == y) > 0.7


@both
def test_stacking(X):
    y = target(X)
    others = [("gp", gp()), ("constant", quick(mean="constant"))]
    stack = StackingRegressor(others, final_estimator=Ridge(), cv=2).fit(X, y)
    assert stack.score(X, y) > 0.6
    second = StackingRegressor(
        [("gp", gp())], final_estimator=quick(), cv=2, passthrough=isinstance(X, np.ndarray)
    )
    assert second.fit(X, y).score(X, y) > 0.6


def test_pipeline_with_a_column_transformer():
    X = frame()
    y = target(X)
    columns = ColumnTransformer(
        [("scale", StandardScaler(), ["size", "load"]), ("levels", OneHotEncoder(), ["kind"])]
    )
    model = Pipeline([("columns", columns), ("gp", quick())]).fit(X, y)
    _, std = model.predict(X, return_std=True)
    assert model.score(X, y) > 0.8
    assert (std > 0).all()
    named = Pipeline([("columns", columns.set_output(transform="pandas")), ("gp", gp())])
    names = named.set_params(columns__sparse_threshold=0)
    names.set_params(columns__levels__sparse_output=False).fit(X, y)
    assert "levels__kind_a" in names[-1].relevance_
    passed = ColumnTransformer(
        [("load", FunctionTransformer(np.abs), ["load"])], remainder="passthrough"
    )
    rest = make_pipeline(passed.set_output(transform="pandas"), gp()).fit(X, y)
    assert "remainder__kind=a" in rest[-1].relevance_  # a category that arrives as one
    assert rest.score(X, y) > 0.8


@both
def test_transformed_target(X):
    y = np.exp(target(X))
    model = TransformedTargetRegressor(gp(), func=np.log, inverse_func=np.exp).fit(X, y)
    plain = gp().fit(X, np.log(y))
    np.testing.assert_allclose(model.predict(X), np.exp(plain.predict(X)), rtol=1e-6)


class TestMetadata:
    @both
    def test_groups_and_weights_reach_the_fit(self, X):
        y = target(X)
        groups = np.arange(N) // 4
        weight = np.where(np.arange(N) % 2 == 0, 3.0, 1.0)
        with sklearn.config_context(enable_metadata_routing=True):
            model = quick(mean="constant").set_fit_request(groups=True, sample_weight=True)
            search = GridSearchCV(
                model.set_score_request(sample_weight=False),
                {"variance": ["rbf"]},
                cv=GroupKFold(3),
            )
            search.fit(X, y, groups=groups, sample_weight=weight)
            scores = cross_validate(
                model, X, y, cv=GroupKFold(3), params={"groups": groups, "sample_weight": weight}
            )
        own = quick(mean="constant").fit(X, y, groups=groups, sample_weight=weight)
        _, std = search.best_estimator_.predict(X, return_std=True)
        np.testing.assert_allclose(std, own.predict(X, return_std=True)[1])
        assert len(scores["test_score"]) == 3

    def test_what_is_not_asked_for_is_an_error_of_scikit_learn(self):
        X = numbers()
        with (
            sklearn.config_context(enable_metadata_routing=True),
            pytest.raises(ValueError, match="groups"),
        ):
            GridSearchCV(quick(), {"variance": ["rbf"]}, cv=GroupKFold(2)).fit(
                X, target(X), groups=np.arange(N) // 4, sample_weight=np.ones(N)
            )

    def test_through_a_pipeline(self):
        X = numbers()
        y, weight = target(X), np.where(np.arange(N) < 24, 0.0, 1.0)
        with sklearn.config_context(enable_metadata_routing=True):
            step = quick().set_fit_request(sample_weight=True, noise_var=True)
            scaler = StandardScaler().set_fit_request(sample_weight=False)
            model = make_pipeline(scaler, step)
            model.fit(X, y, sample_weight=weight, noise_var=np.full(N, 0.01))
        assert model[-1].fit_report_.n_rows == 24


def mixed():
    X = frame()
    X.loc[X.index[::7], "size"] = np.nan
    X["day"] = np.datetime64("2024-01-01") + np.arange(N).astype("timedelta64[D]")
    return X


class TestCVPlusFrames:
    @pytest.mark.parametrize(
        "estimator",
        [gp(), LinearRegression(), make_pipeline(FunctionTransformer(), gp())],
        ids=["ours", "numbers only", "pipeline"],
    )
    def test_columns_of_any_kind(self, estimator):
        table, y = mixed(), target(frame())
        model = CVPlusRegressor(estimator, n_folds=3, random_state=0).fit(table, y)
        assert list(model.feature_names_in_) == list(table.columns)
        low, high = model.predict_interval(table, 0.9).T
        assert np.mean((y >= low) & (y <= high)) > 0.8
        assert model.predict(table.iloc[:5]).shape == (5,)
        with pytest.raises(ValueError, match="kind"):
            model.predict(table.drop(columns="kind"))

    def test_rules_are_learned_without_the_fold(self):
        table, y = mixed(), target(frame())
        model = CVPlusRegressor(gp(), n_folds=3, random_state=0).fit(table, y)
        for k, refit in enumerate(model.estimators_):
            own = gp().fit(table[model.folds_ != k], y[model.folds_ != k])
            np.testing.assert_array_equal(refit.predict(table), own.predict(table))

    def test_saved_and_loaded(self, tmp_path):
        table, y = mixed(), target(frame())
        model = CVPlusRegressor(gp(), n_folds=2, random_state=0).fit(table, y)
        model.save(tmp_path / "model")
        again = load(tmp_path / "model")
        np.testing.assert_allclose(again.predict_interval(table), model.predict_interval(table))

    def test_a_new_level_is_named_once(self):
        table, y = mixed(), target(frame())
        model = CVPlusRegressor(gp(), n_folds=3, random_state=0).fit(table, y)
        new = table.iloc[:3].assign(kind="unheard of")
        with pytest.warns(TwoStageGPWarning, match="unheard of") as told:
            model.predict_interval(new, 0.8)
        assert len(told) == 1

    def test_names_reach_a_column_transformer(self):
        X = frame().drop(columns="kind")
        columns = ColumnTransformer([("keep", StandardScaler(), ["size"])])
        model = CVPlusRegressor(make_pipeline(columns, LinearRegression()), n_folds=3)
        model.fit(X, target(frame()))
        assert model.predict_interval(X, 0.8).shape == (N, 2)
        with pytest.warns(UserWarning, match="valid feature names"):
            values = model.predict(X.to_numpy())
        np.testing.assert_array_equal(values, model.predict(X))

    def test_gaps_of_arrays_are_the_estimators_business(self):
        X = numbers()
        y = target(X)
        X[3, 1] = np.nan
        model = CVPlusRegressor(gp(missing="impute"), n_folds=2).fit(X, y)
        assert np.isfinite(model.predict_interval(X, 0.8)).all()
        with pytest.raises(ValueError, match="missing='impute'"):
            CVPlusRegressor(gp(), n_folds=2).fit(X, y)
        with pytest.raises(ValueError, match="y contains NaN"):
            CVPlusRegressor(gp(), n_folds=2).fit(numbers(), np.full(N, np.nan))


@pytest.mark.parametrize("missing", ["error", "auto"])
def test_the_message_about_a_gap_names_the_way_out(missing):
    X = numbers()
    X[5, 1] = np.nan
    y = np.arange(N) % 2
    table = pd.DataFrame(X, columns=["size", "load", "rest"])
    classifier = TwoStageGPClassifier(missing=missing)
    for model in (gp(missing=missing), quick(missing=missing), classifier):
        with pytest.raises(ValueError, match=r"row 5, column 'x1'.*Or use missing='impute'"):
            model.fit(X, y)
        if missing == "error":
            with pytest.raises(ValueError, match=r"row 5, column 'load'.*Or use missing='impute'"):
                model.fit(table, y)
    fitted = gp(missing=missing).fit(numbers(), target(numbers()))
    with pytest.raises(ValueError, match="Or use missing='impute'"):
        fitted.predict(X)
