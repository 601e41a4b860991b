"""Boosted trees as tensors against scikit-learn's own predictions, on the CPU."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor

from twostagegp.pipeline.mean import crossfit
from twostagegp.pipeline.mean.crossfit import RegressorMean, boosted_trees
from twostagegp.pipeline.mean.tree_tensors import TreeTensors
from twostagegp.pipeline.mean.trees import FlatTrees

CPU = torch.device("cpu")


def table(n=400, d=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X[:, 1] = rng.integers(0, 4, size=n)  # ties, also with thresholds
    return X, np.sin(2.0 * X[:, 0]) + X[:, 1] * (X[:, 2] > 0.3) + 0.1 * rng.normal(size=n)


def tensors(model):
    return TreeTensors.of(FlatTrees.of(model), CPU)


MODELS = {
    "default": lambda: HistGradientBoostingRegressor(max_iter=30),
    "of the stack": boosted_trees,
    "stumps": lambda: HistGradientBoostingRegressor(max_iter=7, max_depth=1),
    "one deep tree": lambda: HistGradientBoostingRegressor(
        max_iter=1, max_leaf_nodes=None, min_samples_leaf=1
    ),
}


@pytest.mark.parametrize("pairs", [1, 100, 1 << 20])
@pytest.mark.parametrize("name", MODELS)
def test_predictions_are_the_same_numbers(name, pairs):
    X, y = table()
    model = MODELS[name]().set_params(random_state=0).fit(X, y)
    ends = np.array([[np.inf] * 5, [-np.inf] * 5])
    rows = np.vstack([X[:150], 1e6 * table(50, seed=1)[0], ends])
    found = tensors(model).predict(torch.as_tensor(rows), pairs)
    assert np.array_equal(found.numpy(), model.predict(rows))


def test_values_on_a_threshold_go_the_same_way():
    X, y = table()
    model = HistGradientBoostingRegressor(max_iter=20, random_state=0).fit(X, y)
    flat, trees = FlatTrees.of(model), tensors(model)
    inner = flat.left != flat.right
    for column in range(X.shape[1]):
        at = flat.threshold[inner & (flat.feature == column)]
        rows = np.repeat(X[:1], 3 * len(at), axis=0)
        rows[:, column] = np.concatenate([at, np.nextafter(at, np.inf), np.nextafter(at, -np.inf)])
        assert np.array_equal(trees.predict(torch.as_tensor(rows)).numpy(), model.predict(rows))


def test_trees_of_one_node():
    X, _ = table(60)
    model = HistGradientBoostingRegressor(max_iter=3).fit(X, np.ones(60))
    assert tensors(model).depth == 0
    assert tensors(model).predict(torch.as_tensor(X[:2])).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("n", [0, 1])
def test_any_number_of_rows(n):
    X, y = table()
    model = HistGradientBoostingRegressor(max_iter=5).fit(X, y)
    assert np.array_equal(tensors(model).predict(torch.as_tensor(X[:n])), model.predict(X)[:n])


@pytest.fixture(scope="module")
def mean():
    X, y = table()
    folds = np.arange(len(y)) % 2
    return RegressorMean(boosted_trees(), X, y, np.ones(len(y)), folds, 0)


class TestRegressorMean:
    def test_numbers_are_those_of_the_cpu_without_scikit_learn(self, mean, monkeypatch):
        X = torch.as_tensor(table(100, seed=2)[0])
        expected = mean.predict(X)
        monkeypatch.setattr(crossfit, "predict_with", None)
        assert torch.equal(mean.predict_on_device(X), expected)

    def test_float32_rows(self, mean):
        X = torch.as_tensor(table(100, seed=2)[0]).float()
        found = mean.predict_on_device(X)
        assert found.dtype == torch.float32
        assert torch.equal(found, torch.as_tensor(mean.model.predict(X.numpy())).float())

    def test_a_value_that_is_missing_goes_to_scikit_learn(self, mean):
        X = torch.as_tensor(table(40, seed=2)[0])
        X[3, 0] = torch.nan
        found = mean.predict_on_device(X)
        assert np.array_equal(found.numpy(), mean.model.predict(X.numpy()))

    def test_other_regressors_are_left_to_scikit_learn(self):
        X, y = table(80)
        forest = RandomForestRegressor(5)
        mean = RegressorMean(forest, X, y, np.ones(80), np.arange(80) % 2, 0)
        found = mean.predict_on_device(torch.as_tensor(X))
        np.testing.assert_array_equal(found, mean.model.predict(X))

    def test_pickles_do_not_contain_the_tensors(self, mean):
        X = torch.as_tensor(table(20, seed=2)[0])
        before = mean.predict_on_device(X)
        assert "_tree_tensors" in vars(mean)
        again = pickle.loads(pickle.dumps(mean))
        assert not {"_trees", "_tree_tensors"} & set(vars(again))
        assert torch.equal(again.predict_on_device(X), before)
