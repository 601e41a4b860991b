"""Boosted trees for few rows against scikit-learn's own predictions."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor

from twostagegp.errors import InputError
from twostagegp.pipeline.mean import crossfit
from twostagegp.pipeline.mean.crossfit import RegressorMean, boosted_trees
from twostagegp.pipeline.mean.trees import FEW_ROWS, FlatTrees


def table(n=400, d=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X[:, 1] = rng.integers(0, 4, size=n)  # ties, also with thresholds
    return X, np.sin(2.0 * X[:, 0]) + X[:, 1] * (X[:, 2] > 0.3) + 0.1 * rng.normal(size=n)


MODELS = {
    "default": lambda: HistGradientBoostingRegressor(max_iter=30),
    "of the stack": boosted_trees,
    "stumps": lambda: HistGradientBoostingRegressor(max_iter=7, max_depth=1),
    "one deep tree": lambda: HistGradientBoostingRegressor(
        max_iter=1, max_leaf_nodes=None, min_samples_leaf=1
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_predictions_are_the_same_numbers(name):
    X, y = table()
    model = MODELS[name]().set_params(random_state=0).fit(X, y)
    trees = FlatTrees.of(model)
    rows = np.vstack([X, 1e6 * table(50, seed=1)[0], np.full((1, 5), np.inf)])
    assert np.array_equal(trees.predict(rows), model.predict(rows))
    assert np.array_equal(trees.predict(rows[:1]), model.predict(rows[:1]))


def test_values_on_a_threshold_go_the_same_way():
    X, y = table()
    model = HistGradientBoostingRegressor(max_iter=20, random_state=0).fit(X, y)
    trees = FlatTrees.of(model)
    inner = trees.left != trees.right
    for column in range(X.shape[1]):
        at = trees.threshold[inner & (trees.feature == column)][:30]
        rows = X[: len(at)].copy()
        rows[:, column] = at
        assert np.array_equal(trees.predict(rows), model.predict(rows))


def test_training_rows_with_gaps_do_not_matter():
    X, y = table()
    X[::7, 0] = np.nan
    model = HistGradientBoostingRegressor(max_iter=20, random_state=0).fit(X, y)
    rows = X[np.isfinite(X).all(1)]
    assert np.array_equal(FlatTrees.of(model).predict(rows), model.predict(rows))


def test_a_constant_target_has_trees_without_splits():
    X, _ = table(60)
    model = HistGradientBoostingRegressor(max_iter=3).fit(X, np.ones(60))
    assert FlatTrees.of(model).predict(X[:2]).tolist() == [1.0, 1.0]


class Twice(HistGradientBoostingRegressor):
    def predict(self, X):
        return 2.0 * super().predict(X)


@pytest.mark.parametrize(
    "model",
    [
        HistGradientBoostingRegressor(max_iter=5, loss="absolute_error"),
        HistGradientBoostingRegressor(max_iter=5, loss="poisson"),
        HistGradientBoostingRegressor(max_iter=5, categorical_features=[1]),
        Twice(max_iter=5),
        RandomForestRegressor(5),
    ],
    ids=lambda model: type(model).__name__,
)
def test_other_models_are_left_to_scikit_learn(model):
    X, y = table()
    assert FlatTrees.of(model.fit(X, np.abs(y))) is None


def test_an_unknown_version_is_left_to_scikit_learn():
    X, y = table()
    model = HistGradientBoostingRegressor(max_iter=5).fit(X, y)
    del model._predictors
    assert FlatTrees.of(model) is None


def test_trees_that_predict_other_numbers_are_left_to_scikit_learn(monkeypatch):
    X, y = table()
    model = HistGradientBoostingRegressor(max_iter=5).fit(X, y)
    right = model.predict
    monkeypatch.setattr(model, "predict", lambda X: right(X) * (1.0 + 1e-15))
    assert FlatTrees.of(model) is None


@pytest.fixture(scope="module")
def mean():
    X, y = table()
    folds = np.arange(len(y)) % 2
    return RegressorMean(boosted_trees(), X, y, np.ones(len(y)), folds, 0)


class TestRegressorMean:
    def test_few_and_many_rows_give_the_same_numbers(self, mean):
        X = torch.as_tensor(table(FEW_ROWS + 1, seed=2)[0])
        together = mean.predict(X)
        assert torch.equal(mean.predict(X[:FEW_ROWS]), together[:FEW_ROWS])
        assert all(torch.equal(mean.predict(X[[k]]), together[[k]]) for k in range(len(X)))

    def test_many_rows_do_not_need_the_arrays(self, mean):
        again = pickle.loads(pickle.dumps(mean))
        again.predict(torch.as_tensor(table(FEW_ROWS + 1, seed=2)[0]))
        assert "_trees" not in vars(again)

    def test_few_rows_do_not_call_scikit_learn(self, mean, monkeypatch):
        X = torch.as_tensor(table(2, seed=2)[0])
        mean.predict(X)
        monkeypatch.setattr(crossfit, "predict_with", None)
        mean.predict(X)

    def test_float32_rows(self, mean):
        X = torch.as_tensor(table(3, seed=2)[0]).float()
        found = mean.predict(X)
        assert found.dtype == torch.float32
        assert torch.equal(found, torch.as_tensor(mean.model.predict(X.numpy())).float())

    def test_a_value_that_is_missing_goes_to_scikit_learn(self, mean):
        X = torch.as_tensor(table(2, seed=2)[0])
        X[0, 0] = torch.nan
        assert np.array_equal(mean.predict(X).numpy(), mean.model.predict(X.numpy()))

    def test_an_error_is_that_of_many_rows(self, mean):
        X = torch.as_tensor(table(FEW_ROWS + 1, seed=2)[0])[:, :-1]
        messages = []
        for rows in (X[:1], X):
            with pytest.raises(InputError, match="cannot predict") as caught:
                mean.predict(rows)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]

    def test_pickles_do_not_contain_the_arrays(self, mean):
        X = torch.as_tensor(table(1, seed=2)[0])
        before = mean.predict(X)
        assert "_trees" in vars(mean)
        again = pickle.loads(pickle.dumps(mean))
        assert "_trees" not in vars(again)
        assert torch.equal(again.predict(X), before)
