"""The kernel search inside the estimators: both stages, the record, the paper's settings."""

import gpytorch
import numpy as np
import pytest
import torch
from sklearn.base import clone

from twostagegp import ExactGPRegressor, TwoStageGPRegressor
from twostagegp.data.rows import Rows
from twostagegp.errors import InputError
from twostagegp.kernels import make_kernel
from twostagegp.pipeline import variance as variance_module
from twostagegp.pipeline.settings import SearchSettings, Settings
from twostagegp.search import stages

#: Searches with few repetitions, and a seed.
FEW = {"settings": Settings(search=SearchSettings(n_repeats=6)), "random_state": 0}


def wave(n=80, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + noise * rng.normal(size=n)


@pytest.fixture(scope="module")
def paper():
    return TwoStageGPRegressor.from_paper(**FEW).fit(*wave())


def test_both_stages_take_the_winner_of_the_ratio_test():
    X, y = wave()
    model = TwoStageGPRegressor(
        kernels=("rbf", "matern12"), mean="search", selection="misspecification", **FEW
    ).fit(X, y)
    for stage in (model.search_.mean, model.search_.variance):
        assert stage.selection == "misspecification"
        assert stage.best_label == stage.table["p_hat"].idxmax()
    assert model.search_.mean.best_label == model.mean_.models[0].kernel.label
    assert model.search_.variance.best_label == model.variance_.label
    assert {row["kernel"].split("/")[0] for row in model.search_ if row["stage"] == "mean"} == {
        model.search_.mean.best_label
    }


def test_the_paper_searches_the_second_stage_by_the_ratio_test_and_the_first_by_held_out_error(
    paper,
):
    assert paper.search_.mean is None
    assert paper.search_.variance.selection == "misspecification"
    tried = {row["kernel"] for row in paper.search_ if row["stage"] == "mean"}
    assert tried == {"rbf/ridge", "laplacian/ridge"}


def test_a_given_penalty_is_tested_as_kernel_ridge():
    X, y = wave()
    model = TwoStageGPRegressor.from_paper(selection="misspecification", **FEW).fit(X, y)
    assert model.search_.mean.model == "krr"
    assert model.search_.variance.model == "gp"
    assert set(model.search_.mean.table.index) == {"rbf", "laplacian"}
    assert set(model.search_.variance.table.index) == {"rbf", "matern32", "matern12"}


def test_the_size_of_residuals_does_not_matter_to_the_choice(paper):
    X, y = wave()
    again = TwoStageGPRegressor.from_paper(**FEW).fit(X, 1e-3 * y).search_
    np.testing.assert_allclose(
        paper.search_.variance.table["p_hat"], again.variance.table["p_hat"], atol=0.02
    )


def test_held_out_selection_has_no_ratio_test():
    X, y = wave()
    model = TwoStageGPRegressor(kernels=("rbf", "matern12"), **FEW).fit(X, y)
    assert model.search_.mean is None
    assert model.search_.variance is None
    assert {"mean", "variance"} == set(model.search_.table["stage"])


def test_the_record_is_drawn_for_either_way_of_choosing():
    X, y = wave()
    for selection in ("heldout", "misspecification"):
        model = TwoStageGPRegressor(
            kernels=("rbf", "matern12"), mean="search", selection=selection, **FEW
        ).fit(X, y)
        axes = model.search_.plot()
        assert len(axes) == 2
        assert all(ax.has_data() for ax in axes)


def test_kernels_of_a_user_are_searched():
    X, y = wave()
    kernels = ("rbf", gpytorch.kernels.RBFKernel() + gpytorch.kernels.LinearKernel())
    model = TwoStageGPRegressor(
        kernels=kernels, ard=False, mean="search", selection="misspecification", **FEW
    ).fit(X, y)
    assert len(model.search_.mean.table) == 2
    assert np.isfinite(model.predict(X)).all()


def test_too_few_rows_for_a_test_fall_back_to_held_out_error():
    X, y = wave(n=8)
    model = TwoStageGPRegressor.from_paper(selection="misspecification", **FEW).fit(X, y)
    assert model.search_.mean is None
    assert model.search_.variance is None
    assert np.isfinite(model.predict(X)).all()


def test_weights_count_as_repeated_rows_in_the_search():
    X, y = wave(n=40)
    weight = np.r_[np.full(10, 2.0), np.ones(30)]
    repeated = np.r_[np.arange(40), np.arange(10)]
    a = TwoStageGPRegressor.from_paper(**FEW).fit(X, y, sample_weight=weight)
    b = TwoStageGPRegressor.from_paper(**FEW).fit(X[repeated], y[repeated])
    assert a.search_.variance.table["p_hat"].equals(b.search_.variance.table["p_hat"])
    np.testing.assert_allclose(a.predict(X), b.predict(X), atol=1e-8)


def test_the_single_stage_search_of_table_1():
    X, y = wave()
    model = ExactGPRegressor.from_paper(table=1, **FEW).fit(X, y)
    assert model.search_.mean.best_label == model.gp_.kernel.label
    assert clone(model).get_params()["selection"] == "misspecification"
    with pytest.raises(InputError, match="selection='loo'"):
        ExactGPRegressor(selection="loo").fit(X, y)


@pytest.mark.parametrize(
    "selection", ["ratio", "loo", "nll", ("heldout",), ("heldout", "ratio"), None, 3]
)
def test_an_unknown_selection_is_named(selection):
    with pytest.raises(InputError, match="selection="):
        TwoStageGPRegressor(selection=selection).fit(*wave())


def test_a_search_is_reproducible(paper):
    again = TwoStageGPRegressor.from_paper(**FEW).fit(*wave())
    tables = [model.search_.variance.table["p_hat"] for model in (paper, again)]
    assert tables[0].equals(tables[1])


# --- columns of the user's table -----------------------------------------------------------------


def with_a_constant_column(n=60, seed=0):
    """Return a column of ones, the signal, and an irrelevant column; and new rows."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(n), rng.uniform(-2, 2, size=(n, 2))])
    new = np.column_stack([np.ones(20), rng.uniform(-2, 2, size=(20, 2))])
    return X, np.sin(3 * X[:, 1]) + 0.1 * rng.normal(size=n), new


def fitted(estimator, kernel, X, y):
    if estimator is ExactGPRegressor:
        return ExactGPRegressor(kernel=kernel, **FEW).fit(X, y)
    return TwoStageGPRegressor(mean=kernel, kernels=("rbf",), **FEW).fit(X, y)


@pytest.mark.parametrize("estimator", [ExactGPRegressor, TwoStageGPRegressor])
def test_active_dims_count_the_columns_of_the_users_table(estimator):
    X, y, new = with_a_constant_column()
    kernel = gpytorch.kernels.RBFKernel
    wide = fitted(estimator, kernel(active_dims=[1]), X, y)
    narrow = fitted(estimator, kernel(active_dims=[0]), X[:, 1:], y)
    found = wide.predict(new, return_std=True)
    expected = narrow.predict(new[:, 1:], return_std=True)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)
    assert np.abs(found[0] - np.sin(3 * new[:, 1])).max() < 0.35
    other = fitted(estimator, kernel(active_dims=[2]), X, y)
    assert np.abs(other.predict(new) - np.sin(3 * new[:, 1])).max() > 0.5


@pytest.mark.parametrize("estimator", [ExactGPRegressor, TwoStageGPRegressor])
def test_ard_num_dims_counts_the_columns_of_the_users_table(estimator):
    X, y, new = with_a_constant_column()
    model = fitted(estimator, gpytorch.kernels.RBFKernel(ard_num_dims=3), X, y)
    assert np.abs(model.predict(new) - np.sin(3 * new[:, 1])).max() < 0.35
    assert list(model.relevance_) == ["x0", "x1", "x2"]
    assert model.relevance_["x0"] == 0.0
    assert model.relevance_["x1"] > 2.0 * model.relevance_["x2"] > 0.0
    assert sum(model.relevance_.values()) == pytest.approx(1.0)


def test_active_dims_of_a_variance_kernel_count_the_columns_of_the_users_table():
    X, y, new = with_a_constant_column()
    for ard in (False, "both"):
        models = [
            TwoStageGPRegressor(mean="rbf", variance=kernel, ard=ard, **FEW).fit(x, y)
            for kernel, x in (
                ([gpytorch.kernels.RBFKernel(active_dims=[2])], X),
                ([gpytorch.kernels.RBFKernel(active_dims=[1])], X[:, 1:]),
            )
        ]
        found = models[0].predict(new, return_std=True)[1]
        expected = models[1].predict(new[:, 1:], return_std=True)[1]
        np.testing.assert_allclose(found, expected, rtol=1e-6)


# --- the noise floor -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "floor", "expected"), [(0.1, 1e-8, 1e-6), (10.0, 1e-4, 1e-6), (1e-3, 1e-6, 0.1)]
)
def test_the_noise_floor_is_in_units_of_the_residuals(size, floor, expected, monkeypatch):
    seen = []
    monkeypatch.setattr(stages, "run_search", lambda rows, *args, **kw: seen.append((rows, args)))
    X, y = (torch.as_tensor(values) for values in wave(n=20))
    y, one = size * y / y.square().mean().sqrt(), torch.ones_like(y)
    rows = Rows(X, y, one, 0 * one, 0 * one)
    kernels = [make_kernel(name, 2) for name in ("rbf", "matern12")]
    stages.search_stage(rows, kernels, "gp", np.random.default_rng(0), noise_floor=floor)
    ((unit, (_, options, _)),) = seen
    assert options.noise_floor == pytest.approx(expected)
    assert float(unit.t.square().mean()) == pytest.approx(1.0)


def test_the_second_stage_is_searched_with_the_floor_of_its_fit(monkeypatch):
    seen, search_stage = [], stages.search_stage
    monkeypatch.setattr(
        variance_module,
        "search_stage",
        lambda *args, **kw: seen.append(kw["noise_floor"]) or search_stage(*args, **kw),
    )
    model = TwoStageGPRegressor.from_paper(noise_floor=1e-3, **FEW).fit(*wave())
    assert seen == [1e-3]
    assert model.search_.variance is not None
