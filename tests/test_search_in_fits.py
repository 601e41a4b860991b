"""The kernel search inside the estimators: both stages, the record, the paper's settings."""

import gpytorch
import numpy as np
import pytest
from sklearn.base import clone

from twostagegp import ExactGPRegressor, TwoStageGPRegressor
from twostagegp.errors import InputError
from twostagegp.search import stages


def wave(n=80, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + noise * rng.normal(size=n)


@pytest.fixture(autouse=True)
def few_repetitions(monkeypatch):
    monkeypatch.setattr(stages, "_REPEATS", 12)


def test_both_stages_take_the_winner_of_the_ratio_test():
    X, y = wave()
    model = TwoStageGPRegressor(
        kernels=("rbf", "matern12"), mean="search", selection="misspecification", random_state=0
    ).fit(X, y)
    for stage in (model.search_.mean, model.search_.variance):
        assert stage.selection == "misspecification"
        assert stage.best_label == stage.table["p_hat"].idxmax()
    assert model.search_.mean.best_label == model.mean_.models[0].kernel.label
    assert model.search_.variance.best_label == model.variance_.label
    assert {row["kernel"].split("/")[0] for row in model.search_ if row["stage"] == "mean"} == {
        model.search_.mean.best_label
    }


def test_the_paper_searches_the_second_stage_by_the_ratio_test_and_the_first_by_held_out_error():
    X, y = wave()
    model = TwoStageGPRegressor.from_paper(random_state=0).fit(X, y)
    assert model.search_.mean is None
    assert model.search_.variance.selection == "misspecification"
    tried = {row["kernel"] for row in model.search_ if row["stage"] == "mean"}
    assert tried == {"rbf/ridge", "laplacian/ridge"}


def test_a_given_penalty_is_tested_as_kernel_ridge():
    X, y = wave()
    model = TwoStageGPRegressor.from_paper(selection="misspecification", random_state=0).fit(X, y)
    assert model.search_.mean.model == "krr"
    assert model.search_.variance.model == "gp"
    assert set(model.search_.mean.table.index) == {"rbf", "laplacian"}
    assert set(model.search_.variance.table.index) == {"rbf", "matern32", "matern12"}


def test_the_size_of_residuals_does_not_matter_to_the_choice():
    X, y = wave()
    first = TwoStageGPRegressor.from_paper(random_state=0).fit(X, y).search_
    again = TwoStageGPRegressor.from_paper(random_state=0).fit(X, 1e-3 * y).search_
    np.testing.assert_allclose(
        first.variance.table["p_hat"], again.variance.table["p_hat"], atol=0.02
    )


def test_held_out_selection_has_no_ratio_test():
    X, y = wave()
    model = TwoStageGPRegressor(kernels=("rbf", "matern12"), random_state=0).fit(X, y)
    assert model.search_.mean is None
    assert model.search_.variance is None
    assert {"mean", "variance"} == set(model.search_.table["stage"])


def test_the_record_is_drawn_for_either_way_of_choosing():
    X, y = wave()
    for selection in ("loo", "misspecification"):
        model = TwoStageGPRegressor(
            kernels=("rbf", "matern12"), mean="search", selection=selection, random_state=0
        ).fit(X, y)
        axes = model.search_.plot()
        assert len(axes) == 2
        assert all(ax.has_data() for ax in axes)


def test_users_kernels_take_part():
    X, y = wave()
    kernels = ("rbf", gpytorch.kernels.RBFKernel() + gpytorch.kernels.LinearKernel())
    model = TwoStageGPRegressor(
        kernels=kernels, ard=False, mean="search", selection="misspecification", random_state=0
    ).fit(X, y)
    assert len(model.search_.mean.table) == 2
    assert np.isfinite(model.predict(X)).all()


def test_too_few_rows_for_a_test_fall_back_to_held_out_error():
    X, y = wave(n=8)
    model = TwoStageGPRegressor.from_paper(selection="misspecification", random_state=0).fit(X, y)
    assert model.search_.mean is None
    assert model.search_.variance is None
    assert np.isfinite(model.predict(X)).all()


def test_weights_are_repeats_in_the_search_too():
    X, y = wave(n=40)
    weight = np.r_[np.full(10, 2.0), np.ones(30)]
    repeated = np.r_[np.arange(40), np.arange(10)]
    a = TwoStageGPRegressor.from_paper(random_state=0).fit(X, y, sample_weight=weight)
    b = TwoStageGPRegressor.from_paper(random_state=0).fit(X[repeated], y[repeated])
    assert a.search_.variance.table["p_hat"].equals(b.search_.variance.table["p_hat"])
    np.testing.assert_allclose(a.predict(X), b.predict(X), atol=1e-8)


def test_the_single_stage_search_of_table_1():
    X, y = wave()
    model = ExactGPRegressor.from_paper(table=1, random_state=0).fit(X, y)
    assert model.search_.mean.best_label == model.gp_.kernel.label
    assert clone(model).get_params()["selection"] == "misspecification"
    with pytest.raises(InputError, match="selection='loo'"):
        ExactGPRegressor(selection="loo").fit(X, y)


@pytest.mark.parametrize("selection", ["ratio", ("loo",), ("loo", "ratio"), None, 3])
def test_an_unknown_selection_is_named(selection):
    with pytest.raises(InputError, match="selection="):
        TwoStageGPRegressor(selection=selection).fit(*wave())


def test_a_search_is_reproducible():
    X, y = wave()
    tables = [
        TwoStageGPRegressor.from_paper(random_state=3).fit(X, y).search_.variance.table["p_hat"]
        for _ in range(2)
    ]
    assert tables[0].equals(tables[1])
