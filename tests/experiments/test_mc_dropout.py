"""Monte Carlo dropout: the formula by hand, samples, weights, and scikit-learn's contract."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from experiments.mc_dropout import MCDropoutClassifier
from twostagegp.errors import InputError, NumericalError


@parametrize_with_checks([MCDropoutClassifier()])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([MCDropoutClassifier(hidden=(16,))])
def test_scikit_learn_contract_with_a_hidden_layer(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def data():
    X, y = make_classification(400, 20, n_informative=6, n_classes=3, random_state=0)
    return 3.0 * X + 5.0, np.array(["benign", "malignant", "unclear"])[y]


@pytest.fixture(scope="module")
def fitted(data):
    return MCDropoutClassifier(dropout=0.3, random_state=0).fit(*data)


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def by_hand(model, X, count, seed):
    """The formula of the module, with masks on the features and not on the weights."""
    keep = 1.0 - model.dropout
    Z = (X - X.mean(0)) / X.std(0)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        h = Z
        for k, (W, b) in enumerate(zip(model.coefs_, model.intercepts_, strict=True)):
            h = np.maximum(h, 0.0) if k else h
            draws = torch.rand(len(W), 1, generator=generator, dtype=torch.float64).numpy()[:, 0]
            h = (h * (draws < keep) / keep) @ W + b
        yield softmax(h)


@pytest.mark.parametrize("hidden", [None, (8,), (8, 5)])
def test_the_formula(data, hidden):
    X, y = data
    model = MCDropoutClassifier(hidden, 0.4, epochs=3, n_samples=7, random_state=0).fit(X, y)
    expected = np.stack(list(by_hand(model, X, 7, model.mask_seed_)))
    np.testing.assert_allclose(model.sample_proba(X), expected, atol=1e-12)
    np.testing.assert_allclose(model.predict_proba(X), expected.mean(0), atol=1e-12)
    assert [W.shape for W in model.coefs_][-1][1] == 3


def test_samples(fitted, data):
    X, _ = data
    samples = fitted.sample_proba(X[:50], n_samples=30)
    assert samples.shape == (30, 50, 3)
    np.testing.assert_allclose(samples.sum(2), 1.0)
    assert (samples.std(0).max(1) > 1e-3).all()
    # The same networks for every row, whatever rows are asked for.
    np.testing.assert_allclose(fitted.sample_proba(X[10:12], 30), samples[:, 10:12], atol=1e-12)
    np.testing.assert_allclose(fitted.predict_proba(X), fitted.sample_proba(X).mean(0), atol=1e-12)
    other = fitted.sample_proba(X[:50], 30, random_state=1)
    np.testing.assert_array_equal(other, fitted.sample_proba(X[:50], 30, random_state=1))
    assert np.abs(other - samples).max() > 1e-3


def test_without_dropout_all_samples_agree(data):
    X, y = data
    model = MCDropoutClassifier(dropout=0.0, random_state=0).fit(X, y)
    samples = model.sample_proba(X, 5)
    Z = (X - X.mean(0)) / X.std(0)
    expected = softmax(Z @ model.coefs_[0] + model.intercepts_[0])
    np.testing.assert_allclose(samples, np.broadcast_to(expected, samples.shape), atol=1e-10)


def test_more_dropout_is_less_certain(data):
    X, y = data
    spreads = [
        MCDropoutClassifier(dropout=p, random_state=0).fit(X, y).sample_proba(X).std(0).mean()
        for p in (0.05, 0.2, 0.5)
    ]
    assert spreads == sorted(spreads)
    assert spreads[0] < 0.5 * spreads[2]


def test_as_accurate_as_logistic_regression(data):
    X, y = data
    model = MCDropoutClassifier(random_state=0).fit(X[:300], y[:300])
    logistic = make_pipeline(StandardScaler(), LogisticRegression()).fit(X[:300], y[:300])
    assert model.score(X[300:], y[300:]) > logistic.score(X[300:], y[300:]) - 0.05
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    assert len(model.loss_curve_) == 30


def test_hidden_layers_learn_what_a_line_cannot():
    X, blob = make_blobs(400, centers=[(0, 0), (4, 4), (0, 4), (4, 0)], random_state=0)
    y = blob // 2
    linear = MCDropoutClassifier(random_state=0).fit(X, y)
    deep = MCDropoutClassifier((32,), epochs=100, random_state=0).fit(X, y)
    assert linear.score(X, y) < 0.7
    assert deep.score(X, y) > 0.9


def test_a_weight_is_a_number_of_repeats(data):
    X, y = data
    rng = np.random.default_rng(0)
    weight = rng.integers(0, 4, len(X))
    order = rng.permutation(int(weight.sum()))
    model = MCDropoutClassifier(epochs=5, random_state=0)
    weighted = clone(model).fit(X, y, sample_weight=weight).predict_proba(X)
    repeated = clone(model).fit(X.repeat(weight, 0)[order], y.repeat(weight)[order])
    np.testing.assert_allclose(weighted, repeated.predict_proba(X), atol=1e-12)
    plain = clone(model).fit(X, y).predict_proba(X)
    assert np.abs(plain - weighted).max() > 1e-3
    scaled = clone(model).fit(X, y, sample_weight=np.full(len(X), 7.0)).predict_proba(X)
    np.testing.assert_allclose(plain, scaled, atol=1e-9)


def test_rows_of_weight_zero_are_ignored(data):
    X, y = data
    weight = (y != "unclear").astype(float)
    model = MCDropoutClassifier(epochs=5, random_state=0).fit(X, y, sample_weight=weight)
    assert model.classes_.tolist() == ["benign", "malignant"]
    with pytest.raises(InputError, match="zero in all rows"):
        model.fit(X, y, sample_weight=np.zeros(len(X)))
    with pytest.raises(InputError, match="must not be negative; row 0"):
        model.fit(X, y, sample_weight=-np.ones(len(X)))


def test_random_state(data):
    X, y = data

    def fit(seed):
        return MCDropoutClassifier(epochs=3, random_state=seed).fit(X, y).predict_proba(X)

    np.testing.assert_array_equal(fit(0), fit(0))
    assert np.abs(fit(0) - fit(1)).max() > 1e-4
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    fit(None)
    assert torch.equal(torch.rand(2), expected)  # the caller's generator is left alone


def test_constant_columns_and_scales(data):
    X, y = data
    model = MCDropoutClassifier(random_state=0)
    scores = clone(model).fit(X, y).predict_proba(X)
    moved = clone(model).fit(1e6 * X - 3e5, y).predict_proba(1e6 * X - 3e5)
    assert np.abs(scores - moved).mean() < 0.03  # rows are in another order: other batches
    wide = np.column_stack([X, np.full(len(X), 0.1)])
    assert np.isfinite(clone(model).fit(wide, y).predict_proba(wide)).all()
    raw = MCDropoutClassifier(standardize=False, random_state=0).fit(X, y)
    assert np.abs(raw.predict_proba(X) - scores).max() > 1e-3


def test_one_class():
    model = MCDropoutClassifier(random_state=0).fit([[1.0], [2.0]], ["only", "only"])
    assert model.predict([[3.0]]).tolist() == ["only"]
    np.testing.assert_array_equal(model.predict_proba([[3.0]]), [[1.0]])


def test_grid_search_pickle_and_data_frames(data):
    X, y = data
    frame = pd.DataFrame(X, columns=[f"f{k}" for k in range(20)])
    search = GridSearchCV(
        MCDropoutClassifier(epochs=5, random_state=0), {"dropout": [0.1, 0.5]}, cv=3
    ).fit(frame, y)
    best = search.best_estimator_
    copy = pickle.loads(pickle.dumps(best))
    np.testing.assert_array_equal(copy.predict_proba(frame), best.predict_proba(frame))
    with pytest.raises(InputError, match="column 'f3'"):
        best.predict(frame.assign(f3=np.nan))


@pytest.mark.parametrize(
    "parameters",
    [
        {"hidden": 8},
        {"hidden": (0,)},
        {"dropout": 1.0},
        {"dropout": -0.1},
        {"dropout": "some"},
        {"epochs": 0},
        {"lr": 0.0},
        {"weight_decay": -1.0},
        {"batch_size": 1.5},
        {"n_samples": 0},
        {"standardize": "yes"},
        {"device": "abacus"},
    ],
)
def test_parameters_are_checked(data, parameters):
    (name,) = parameters
    with pytest.raises(InputError, match=name):
        MCDropoutClassifier(**parameters).fit(*data)


def test_the_number_of_samples_is_checked(fitted, data):
    with pytest.raises(InputError, match="n_samples"):
        fitted.sample_proba(data[0], n_samples=0)


def test_training_that_diverges(data):
    X, y = data
    with pytest.raises(NumericalError, match="smaller"):
        MCDropoutClassifier(lr=1e200, standardize=False, random_state=0).fit(1e150 * X, y)


@pytest.mark.gpu
def test_on_a_gpu(data):
    X, y = data
    model = MCDropoutClassifier((8,), random_state=0, device="cuda").fit(X, y)
    on_gpu = model.sample_proba(X)
    np.testing.assert_allclose(model.set_params(device="cpu").sample_proba(X), on_gpu, atol=1e-9)
    assert model.score(X, y) > 0.6
    again = MCDropoutClassifier((8,), random_state=0, device="cuda").fit(X, y)
    np.testing.assert_allclose(again.sample_proba(X), on_gpu, atol=1e-6)
