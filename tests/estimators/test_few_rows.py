"""Predictions of few rows: the same numbers and errors as for many, without the detours."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.utils.validation import check_is_fitted

import twostagegp
from twostagegp import TwoStageGPRegressor
from twostagegp.data.columns import tables
from twostagegp.errors import InputError, TwoStageGPWarning
from twostagegp.runtime.cores import available_cores, use_cores


def table(n=150, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    noise = np.where(X[:, 0] > 0.0, 0.6, 0.05) * rng.normal(size=n)
    return X, np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + noise


@pytest.fixture(scope="module", params=["exact", "neighbors"])
def model(request):
    options = {"n_neighbors": 10} if request.param == "neighbors" else {}
    model = TwoStageGPRegressor(method=request.param, random_state=0, **options)
    return model.fit(*table(200 if request.param == "exact" else 600))


@pytest.fixture(scope="module")
def simple():
    return TwoStageGPRegressor(random_state=0).fit(*table(20))


ANSWERS = {
    "mean": lambda model, X: model.predict(X),
    "std": lambda model, X: np.stack(model.predict(X, return_std=True)),
    "latent std": lambda model, X: np.stack(model.predict(X, return_latent_std=True)),
    "interval": lambda model, X: model.predict_interval(X, 0.9),
    "quantiles": lambda model, X: model.predict_quantiles(X, [0.1, 0.5, 0.7]),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_row_by_row_equals_all_rows_together_to_rounding(name, model):
    X = table(40, seed=1)[0]
    answer = ANSWERS[name]
    axis = 1 if "std" in name else 0
    each = np.concatenate([answer(model, X[k : k + 1]) for k in range(len(X))], axis=axis)
    np.testing.assert_allclose(each, answer(model, X), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ANSWERS)
def test_threads_that_predict_single_rows_do_not_disturb_each_other(name, model):
    X, answer = table(24, seed=1)[0], ANSWERS[name]
    rows = [X[k : k + 1] for k in range(len(X))]
    expected = [answer(model, row) for row in rows]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda row: answer(copy.deepcopy(model), row), rows))
        shared = list(pool.map(lambda row: answer(model, row), rows))
    for one, other, right in zip(found, shared, expected, strict=True):
        assert np.array_equal(one, right)
        assert np.array_equal(other, right)


BAD = {
    "too few columns": np.zeros((1, 2)),
    "too many columns": np.zeros((2, 4)),
    "no columns": np.zeros((1, 0)),
    "no rows": np.zeros((0, 3)),
    "one dimension": np.zeros(3),
    "three dimensions": np.zeros((1, 1, 3)),
    "NaN": np.array([[0.0, np.nan, 1.0]]),
    "infinity": np.array([[0.0, 1.0, 2.0], [0.0, 1.0, -np.inf]]),
    "text": np.array([["a", "b", "c"]]),
    "complex": np.zeros((1, 3), dtype=complex),
    "NaN in float32": np.array([[0.0, np.nan, 1.0]], dtype=np.float32),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_are_those_of_scikit_learns_checks(name, simple, monkeypatch):
    messages = []
    for shortcut in (True, False):
        if not shortcut:
            monkeypatch.setattr(tables, "_is_valid_array", lambda estimator, X: False)
        with pytest.raises(ValueError, match=r".") as caught:
            simple.predict(BAD[name])
        messages.append((type(caught.value), str(caught.value)))
    assert messages[0] == messages[1]


GOOD = {
    "float32": lambda X: X.astype(np.float32),
    "other byte order": lambda X: X.astype(">f8"),
    "by columns": np.asfortranarray,
    "every other row": lambda X: np.repeat(X, 2, axis=0)[::2],
    "read only": lambda X: np.broadcast_to(X[:1], X.shape),
    "list": lambda X: X.tolist(),
    "masked": lambda X: np.ma.masked_array(X),
}


@pytest.mark.parametrize("name", GOOD)
def test_inputs_of_other_kinds(name, simple, monkeypatch):
    X = np.round(table(3, seed=1)[0], 2).astype(np.float32).astype(np.float64)
    given = GOOD[name](X)
    found = simple.predict(given)
    monkeypatch.setattr(tables, "_is_valid_array", lambda estimator, X: False)
    assert np.array_equal(simple.predict(given), found)


def test_a_plain_array_passes_without_scikit_learns_checks(simple, monkeypatch):
    monkeypatch.setattr(tables, "validate_data", None)
    simple.predict(table(2, seed=1)[0])


def test_columns_with_names_are_still_asked_for():
    X, y = table(20)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = TwoStageGPRegressor(random_state=0).fit(frame, y)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(X[:1])


def test_gaps_are_still_imputed():
    X, y = table(30)
    model = TwoStageGPRegressor(missing="impute", random_state=0).fit(X, y)
    row = np.array([[0.1, np.nan, 0.2]])
    with pytest.warns(TwoStageGPWarning, match="training median"):  # the first time
        found = model.predict(row)
    row[0, 1] = np.median(X[:, 1])
    np.testing.assert_allclose(model.predict(row), found)


def test_the_error_before_fit_is_scikit_learns():
    model = TwoStageGPRegressor()
    messages = []
    for call in (lambda: model.predict(np.zeros((1, 3))), lambda: check_is_fitted(model)):
        with pytest.raises(ValueError, match="not fitted") as caught:
            call()
        messages.append((type(caught.value), str(caught.value)))
    assert messages[0] == messages[1]


class TestCores:
    def test_a_small_prediction_does_not_ask_for_the_number_of_cores(self, simple, monkeypatch):
        monkeypatch.setattr(joblib, "cpu_count", None)
        simple.predict(np.zeros((2, 3)), return_std=True)

    @pytest.mark.parametrize("n_jobs", [None, 1, 2, -1])
    def test_one_core_is_used(self, n_jobs):
        with use_cores(n_jobs, one_is_enough=True) as cores:
            assert cores == available_cores() == 1

    @pytest.mark.parametrize("n_jobs", [0, 1.5, "two"])
    def test_an_invalid_n_jobs_is_an_error_for_any_number_of_rows(self, n_jobs, simple):
        model = copy.copy(simple).set_params(n_jobs=n_jobs)
        for rows in (1, 100):
            with pytest.raises(InputError, match="use a number of threads, -1"):
                model.predict(np.zeros((rows, 3)))


class TestCaches:
    """What makes the next prediction faster is not part of the model."""

    @staticmethod
    def use(model):
        X = table(3, seed=1)[0]
        for answer in ANSWERS.values():
            answer(model, X[:1])

    def test_pickles_are_the_same_before_and_after(self, model):
        fresh = pickle.loads(pickle.dumps(model))
        size = len(pickle.dumps(fresh))
        self.use(fresh)
        assert len(pickle.dumps(fresh)) == size

    def test_files_can_be_written(self, model, tmp_path):
        pytest.importorskip("skops")
        pytest.importorskip("safetensors")
        self.use(model)
        model.save(tmp_path / "model")
        X = table(3, seed=1)[0]
        again = twostagegp.load(tmp_path / "model")
        for answer in ANSWERS.values():
            np.testing.assert_allclose(answer(again, X), answer(model, X), rtol=1e-7, atol=1e-9)

    def test_new_rows_are_used_after_an_update(self, model):
        X, y = table(8, seed=2)
        fresh = pickle.loads(pickle.dumps(model))
        used = pickle.loads(pickle.dumps(model))
        self.use(used)
        fresh.update(X, y)
        used.update(X, y)
        for answer in ANSWERS.values():
            assert np.array_equal(answer(used, X[:2]), answer(fresh, X[:2]))
