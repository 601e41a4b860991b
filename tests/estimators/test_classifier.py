"""The front door of classification."""

import pickle
import warnings
from dataclasses import replace

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.special import softmax
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from twostagegp import (
    Training,
    TwoStageGPClassifier,
    TwoStageGPRegressor,
    TwoStageGPWarning,
)
from twostagegp.classification.dirichlet import Dirichlet
from twostagegp.classification.probability import sampled_softmax
from twostagegp.classification.table import make_table
from twostagegp.classification.variance import refit_latents, train_latents
from twostagegp.errors import InputError
from twostagegp.kernels import make_kernel
from twostagegp.pipeline.mean.crossfit import assign_folds
from twostagegp.pipeline.settings import ClassSettings, Settings

#: A fit in a fraction of a second.
QUICK = {"kernels": ("rbf",), "ard": False, "alpha_eps": 0.05, "random_state": 0}
#: Faster still: one ridge instead of a stack.
RIDGE = {**QUICK, "mean": "rbf"}


@parametrize_with_checks(
    [
        TwoStageGPClassifier(
            kernels=("rbf",), ard=False, alpha_eps=0.05, mean="rbf", latent_scale=1.0
        )
    ]
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        TwoStageGPClassifier(kernels=("rbf",), ard=False, alpha_eps=0.05),
        TwoStageGPClassifier(kernels=("rbf",), ard=False, alpha_eps=0.05, mean="rbf"),
        TwoStageGPClassifier(
            method="neighbors",
            n_neighbors=15,
            latent_scale=1.0,
            kernels=("rbf",),
            ard=False,
            alpha_eps=0.05,
            mean="rbf",
        ),
        TwoStageGPClassifier(stages=1, kernels=("rbf",), ard=False, alpha_eps=0.05),
    ]
)
def test_scikit_learn_contract_with_other_options(estimator, check):
    check(estimator)


def with_settings(**thresholds):
    """The constructor's parameter for other thresholds of classification."""
    return {"settings": Settings(classes=ClassSettings(**thresholds))}


def blobs(n=80, K=3, seed=0, slope=2.0):
    """Rows with known class probabilities."""
    X = np.random.default_rng(seed).normal(size=(n, 2))
    turn = 2 * np.pi * np.arange(K) / K
    P = softmax(slope * (X @ np.array([np.cos(turn), np.sin(turn)])), axis=1)
    u = np.random.default_rng(seed + 1000).uniform(size=n)
    return X, (u[:, None] > P.cumsum(1)).sum(1).clip(max=K - 1), P


def moons(n, seed=0):
    """A boundary that no straight line follows."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    p = 1.0 / (1.0 + np.exp(-5.0 * np.sin(2.0 * X[:, 0]) - X[:, 1]))
    return X, (rng.uniform(size=n) < p).astype(int), p


@pytest.fixture(scope="module")
def fitted():
    X, y, _ = blobs(90)
    names = np.array(["ash", "birch", "cedar"])
    return TwoStageGPClassifier(**QUICK).fit(X, names[y]), X, names[y]


# --- labels and classes --------------------------------------------------------------------------


def test_labels_are_strings_and_probabilities_sum_to_one(fitted):
    model, X, y = fitted
    assert model.classes_.tolist() == ["ash", "birch", "cedar"]
    P = model.predict_proba(X)
    assert P.shape == (90, 3)
    np.testing.assert_allclose(P.sum(1), 1.0, atol=1e-12)
    np.testing.assert_array_equal(model.predict(X), model.classes_[P.argmax(1)])
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), P)
    assert model.score(X, y) > 0.6


@pytest.mark.parametrize("K", [2, 4])
@pytest.mark.parametrize("stages", [1, 2])
def test_two_and_four_classes(K, stages):
    X, y, _ = blobs(100, K)
    model = TwoStageGPClassifier(stages=stages, **QUICK).fit(X, y)
    fresh, labels, truth = blobs(400, K, seed=5)
    assert log_loss(labels, model.predict_proba(fresh)) < 1.25 * log_loss(labels, truth)
    assert np.abs(model.predict_proba(fresh) - truth).mean() < 0.1
    assert model.fit_report_.n_classes == K


@pytest.mark.parametrize("kind", [bool, "category", str, float])
def test_labels_of_any_type(kind):
    X, y, _ = blobs(50, 2)
    labels = pd.Series(y).astype(kind)
    model = TwoStageGPClassifier(**RIDGE).fit(X, labels)
    assert set(model.predict(X)) <= set(labels)
    assert model.score(X, labels) > 0.7


@pytest.mark.parametrize("options", [QUICK, {**QUICK, "mean": GaussianNB()}])
def test_a_class_of_two_rows_is_there(options):
    X, y, _ = blobs(60, 2)
    X = np.vstack([X, [[8.0, 8.0], [8.1, 8.0]]])
    y = np.append(y, [7, 7])
    model = TwoStageGPClassifier(**options).fit(X, y)
    P = model.predict_proba(X)
    assert P.shape == (62, 3)
    assert (P > 0).all()
    assert P[:60, 2].max() < 0.3


def test_a_class_of_one_row_does_not_break_the_fit():
    X, y, _ = blobs(40, 2)
    y[7] = 5
    P = TwoStageGPClassifier(**QUICK).fit(X, y).predict_proba(X)
    assert np.isfinite(P).all()


def test_a_class_without_weight_stays_a_class():
    X, y, _ = blobs(60, 3)
    model = TwoStageGPClassifier(**QUICK).fit(X, y, sample_weight=(y != 2).astype(float))
    P = model.predict_proba(X)
    assert P.shape == (60, 3)
    assert P[:, 2].max() < 0.1


@pytest.mark.parametrize("stages", [1, 2])
def test_a_rare_class_may_be_missing_in_a_sample(stages):
    """A few rows choose the Dirichlet parameter, and a class may have none among them."""
    X, y, _ = blobs(60, 2)
    y[7] = 5
    options = {**RIDGE, "alpha_eps": "auto", "stages": stages, **with_settings(choice_rows=20)}
    assert np.isfinite(TwoStageGPClassifier(**options).fit(X, y).predict_proba(X)).all()


def test_one_in_a_hundred():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = (np.arange(300) % 100 == 0).astype(int)
    X[y == 1] += 2.0
    model = TwoStageGPClassifier(**QUICK).fit(X, y)
    P = model.predict_proba(X)
    assert P[:, 1].mean() == pytest.approx(0.01, abs=0.01)
    assert model.fit_report_.log_loss < 0.08
    far, near = model.predict_proba([[-1.0, -1.0], [2.0, 2.0]])[:, 1]
    assert near > far


# --- what is held out ----------------------------------------------------------------------------


def patients(n_groups, per=6, seed=0):
    """Features that tell the patient, whose label is a coin: nothing to learn for new ones."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_groups), per)
    X = (2.0 * rng.normal(size=(n_groups, 3)))[groups] + 0.05 * rng.normal(size=(len(groups), 3))
    labels = rng.permutation(np.arange(n_groups) % 2)
    return X, labels[groups], groups


@pytest.mark.parametrize("stages", [1, 2])
def test_groups_are_held_out_whole(stages):
    X, y, groups = patients(40)
    fresh, labels, _ = patients(200, seed=1)
    options = {"stages": stages, **QUICK}
    honest = TwoStageGPClassifier(**options).fit(X, y, groups=groups)
    naive = TwoStageGPClassifier(**options).fit(X, y)
    new = log_loss(labels, honest.predict_proba(fresh))
    assert honest.fit_report_.log_loss == pytest.approx(new, abs=0.05)
    assert naive.fit_report_.log_loss < 0.3
    assert log_loss(labels, naive.predict_proba(fresh)) > new
    assert new < np.log(2) + 0.03


@pytest.mark.parametrize("method", ["exact", pytest.param("neighbors", marks=pytest.mark.slow)])
@pytest.mark.parametrize("grouped", [True, False])
def test_more_columns_than_rows_and_no_signal_is_not_better_than_the_prior(grouped, method):
    losses = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        groups = np.arange(40) // (4 if grouped else 1)
        labels = rng.permutation(np.arange(groups.max() + 1) % 2)
        X = rng.normal(size=(40, 80))
        if grouped:
            X += 2.0 * rng.normal(size=(10, 80))[groups]
        model = TwoStageGPClassifier(method=method, n_neighbors=40, **QUICK)
        model.set_params(kernels=("rbf", "matern32"), variance="rbf")
        model.fit(X, labels[groups], groups=groups if grouped else None)
        losses.append(model.fit_report_.log_loss)
    # Weights and a scale are chosen on these rows: a little below the prior is chance.
    assert np.mean(losses) > np.log(2) - 0.06
    assert np.max(losses) < np.log(2) + 0.05


def test_pure_noise_is_not_worse_than_the_prior():
    for stages in (1, 2):
        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(150, 3)), rng.permutation(np.arange(150) % 3)
        fresh, labels = rng.normal(size=(1000, 3)), np.arange(1000) % 3
        model = TwoStageGPClassifier(stages=stages, **QUICK).fit(X, y)
        assert log_loss(labels, model.predict_proba(fresh)) < 1.02 * np.log(3)


def test_log_loss_is_near_the_entropy_of_the_truth():
    X, y, _ = moons(150)
    fresh, labels, p = moons(2000, seed=1)
    options = {**QUICK, "kernels": ("rbf", "matern52"), "ard": "both"}
    model = TwoStageGPClassifier(**options).fit(X, y)
    reached = log_loss(labels, model.predict_proba(fresh))
    neighbours = KNeighborsClassifier(10).fit(X, y).predict_proba(fresh)
    assert reached < 1.25 * log_loss(labels, p)
    assert reached < log_loss(labels, neighbours)
    assert model.fit_report_.log_loss == pytest.approx(reached, abs=0.12)


def test_a_boundary_that_is_a_line_costs_little_over_the_truth():
    X, y, _ = blobs(150, 3, seed=11)
    fresh, labels, P = blobs(2000, 3, seed=7)
    reached = log_loss(labels, TwoStageGPClassifier(**QUICK).fit(X, y).predict_proba(fresh))
    assert reached < 1.08 * log_loss(labels, P)


# --- invariances ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"stages": 1}, {"method": "neighbors", "n_neighbors": 20}])
def test_weights_are_repeats_to_the_last_bit(options):
    X, y, _ = blobs(50)
    weight = np.random.default_rng(0).integers(0, 4, size=50)
    repeat = np.repeat(np.arange(50), weight)
    shuffled = np.random.default_rng(1).permutation(repeat)
    model = TwoStageGPClassifier(**{**QUICK, **options})
    weighted = clone(model).fit(X, y, sample_weight=weight).predict_proba(X)
    repeated = clone(model).fit(X[shuffled], y[shuffled]).predict_proba(X)
    np.testing.assert_array_equal(weighted, repeated)


def test_neither_the_order_of_rows_nor_names_of_groups_matter():
    X, y, _ = blobs(60)
    groups = np.arange(60) // 3
    order = np.random.default_rng(0).permutation(60)
    one = TwoStageGPClassifier(**QUICK).fit(X, y, groups=groups)
    names = np.array([f"g{g:02d}" for g in groups])
    other = TwoStageGPClassifier(**QUICK).fit(X[order], y[order], groups=names[order])
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))


def test_same_seed_same_result_and_rows_are_predicted_alone(fitted):
    model, X, y = fitted
    again = clone(model).fit(X, y)
    P = model.predict_proba(X)
    np.testing.assert_array_equal(again.predict_proba(X), P)
    np.testing.assert_allclose(model.predict_proba(X[5:8]), P[5:8], atol=1e-12)
    assert again.fit_report_.log_loss == model.fit_report_.log_loss


def test_units_of_the_columns_do_not_matter(fitted):
    model, X, y = fitted
    other = clone(model).fit(X * [1e3, 1e-3] + [5.0, -1.0], y)
    P = other.predict_proba(X * [1e3, 1e-3] + [5.0, -1.0])
    np.testing.assert_allclose(P, model.predict_proba(X), atol=1e-4)


def test_predictions_in_chunks_are_the_same(fitted):
    model, X, _ = fitted
    ((mean, variance),) = model.fitted_.moments(X)
    chunks = list(model.fitted_.moments(X, chunk_rows=7))
    assert [len(chunk[0]) for chunk in chunks] == [7] * 12 + [6]
    np.testing.assert_allclose(np.concatenate([m for m, _ in chunks]), mean, atol=1e-12)
    np.testing.assert_allclose(np.concatenate([v for _, v in chunks]), variance, atol=1e-12)
    assert model.sample_proba(X, 5, random_state=0).shape == (5, 90, 3)


# --- probabilities and certainty -----------------------------------------------------------------


@pytest.mark.parametrize("K", [2, 3])
def test_quadrature_is_the_limit_of_sampling(K):
    X, y, _ = blobs(60, K)
    model = TwoStageGPClassifier(n_samples=20_000, **RIDGE).fit(X, y)
    far = np.vstack([X[:20], [[5.0, 5.0]]])
    difference = model.predict_proba(far) - model.predict_proba(far, method="quadrature")
    assert np.abs(difference).max() < 0.01


def test_latents_and_draws_tell_the_same_story(fitted):
    model, X, _ = fitted
    mean, std = model.predict_latent(X)
    P = model.sample_proba(X, n_samples=4000, random_state=0)
    np.testing.assert_allclose(P.sum(2), 1.0, atol=1e-12)
    assert (std >= 0).all()
    expected = softmax(mean + std * np.random.RandomState(1).randn(4000, 1, 3), axis=2).mean(0)
    assert np.abs(P.mean(0) - expected).max() < 0.03
    assert np.abs(P.mean(0) - model.predict_proba(X)).max() < 0.06
    np.testing.assert_array_equal(P, model.sample_proba(X, n_samples=4000, random_state=0))


def test_certainty_is_the_paired_t_test_of_scipy(fitted):
    model, X, _ = fitted
    certain, p = model.predict_certainty(X, level=0.01, n_samples=50, return_pvalue=True)
    mean, std = model.predict_latent(X)
    draws = np.random.default_rng(0).standard_normal((50, 3))
    P = sampled_softmax(mean, std**2, draws)
    for i in range(len(X)):
        second, first = np.argsort(P[:, i].mean(0))[-2:]
        expected = stats.ttest_rel(P[:, i, first], P[:, i, second]).pvalue
        assert p[i] == pytest.approx(expected, rel=1e-6, abs=1e-300)
    np.testing.assert_array_equal(certain, p < 0.01)
    assert certain.dtype == bool


def test_a_stricter_level_leaves_fewer_certain(fitted):
    model, X, _ = fitted
    last = np.zeros(len(X), dtype=bool)
    for level in (1e-12, 1e-6, 0.01, 0.2, 0.9):
        certain = model.predict_certainty(X, level=level)
        assert (certain >= last).all()
        last = certain
    assert last.any()


def test_far_from_all_rows_predictions_are_less_certain():
    X, y, _ = moons(120)
    model = TwoStageGPClassifier(**{**QUICK, "latent_scale": 1.0}).fit(X, y)
    far = X + 100.0 * np.sign(X)
    _, near_p = model.predict_certainty(X, return_pvalue=True)
    _, far_p = model.predict_certainty(far, return_pvalue=True)
    assert np.median(far_p) > np.median(near_p)
    assert model.predict_latent(far)[1].min() > np.median(model.predict_latent(X)[1])


def test_no_spread_at_all_is_certain(fitted):
    model, X, _ = fitted
    sure = pickle.loads(pickle.dumps(model))
    scale = sure.calibration_
    sure.fitted_.fit.scale = type(scale)(scale.tau, scale.bias, 0.0)
    assert sure.predict_certainty(X).all()


@pytest.mark.parametrize(
    "ask", ["predict", "predict_proba", "predict_latent", "predict_certainty", "sample_proba"]
)
def test_questions_before_the_fit_are_told_so(ask):
    with pytest.raises(NotFittedError):
        getattr(TwoStageGPClassifier(), ask)([[0.0]])


# --- living with scikit-learn --------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [QUICK, {**QUICK, "stages": 1}, {**QUICK, "method": "neighbors", "n_neighbors": 9}]
)
def test_pickle_and_clone(options):
    X, y, _ = blobs(40)
    model = TwoStageGPClassifier(**options).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert clone(model).get_params() == model.get_params()


def test_grid_search_pipelines_and_cross_validation():
    X, y, _ = blobs(60, 2)
    model = TwoStageGPClassifier(**RIDGE)
    grid = GridSearchCV(model, {"alpha_eps": [0.01, 0.2]}, cv=2, scoring="neg_log_loss").fit(X, y)
    assert grid.best_params_["alpha_eps"] in (0.01, 0.2)
    pipe = make_pipeline(StandardScaler(), model)
    assert cross_val_score(pipe, X, y, cv=2).mean() > 0.7


def test_pandas_and_feature_names():
    X, y, _ = blobs(50, 2)
    frame = pd.DataFrame({"age": X[:, 0], "dose": X[:, 1]})
    model = TwoStageGPClassifier(**RIDGE).fit(frame, pd.Series(y, index=range(100, 150)))
    assert model.feature_names_in_.tolist() == ["age", "dose"]
    other = TwoStageGPClassifier(**RIDGE).fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(frame), other.predict_proba(X))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["dose", "age"]])
    refusing = TwoStageGPClassifier(**RIDGE, missing="error").fit(frame, y)
    frame.loc[3, "dose"] = np.nan
    with pytest.raises(InputError, match="row 3, column 'dose'"):
        refusing.predict(frame)
    with pytest.warns(TwoStageGPWarning, match="dose"):
        model.predict(frame)


@pytest.mark.parametrize("stages", [1, 2])
def test_settings_of_the_paper(stages):
    X, y, _ = blobs(60)
    model = TwoStageGPClassifier.from_paper(stages=stages, random_state=0)
    again = clone(model)
    assert again.get_params() == model.get_params()
    assert again.training.optimizer == "adamw"
    short = Training(**{**vars(again.training), "steps": 20, "refine_steps": 20})
    again.set_params(training=short).fit(X, y)
    assert again.score(X, y) > 0.5
    assert again.calibration_.tau == 1.0
    assert again.calibration_.c == 1.0
    assert again.fit_report_.alpha_eps == 0.01


@pytest.mark.slow
@pytest.mark.parametrize("stages", [1, 2])
def test_settings_of_the_paper_in_full(stages):
    X, y, _ = blobs(60)
    model = TwoStageGPClassifier.from_paper(stages=stages, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.6


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean", "label"),
    [
        ("matern32", "matern32 ridge"),
        ("search", "rbf ridge"),
        (gpytorch.kernels.RBFKernel(), "ridge"),
        (RandomForestClassifier(20, max_depth=3, random_state=0), "RandomForestClassifier"),
        (["rbf", GaussianNB()], ""),
        (["rbf", "matern12"], "ridge"),
    ],
)
def test_means_of_every_kind(mean, label):
    X, y, _ = blobs(70)
    model = TwoStageGPClassifier(**{**QUICK, "mean": mean}).fit(X, y)
    assert label in model.fit_report_.mean
    assert model.fit_report_.log_loss < 0.95 * np.log(3)
    fresh, labels, _ = blobs(300, seed=3)
    assert log_loss(labels, model.predict_proba(fresh)) < 0.95 * np.log(3)


@pytest.mark.parametrize("variance", ["matern12", ["rbf", "matern52"]])
def test_kernels_of_the_variance(variance):
    X, y, _ = blobs(50)
    model = TwoStageGPClassifier(**{**RIDGE, "variance": variance}).fit(X, y)
    names = [variance] if isinstance(variance, str) else variance
    assert any(name in model.fit_report_.variance for name in names)


def test_numbers_that_are_given_are_kept():
    X, y, _ = blobs(50)
    options = {**RIDGE, "alpha_eps": 0.123, "latent_scale": 0.7, "smoothing": 0.1}
    model = TwoStageGPClassifier(**options).fit(X, y)
    assert model.fit_report_.alpha_eps == 0.123
    assert model.calibration_.tau == 0.7
    assert model.calibration_.c == pytest.approx(0.49)
    assert not model.calibration_.bias.any()
    assert model.variance_.dirichlet.smoothing == 0.1


def test_the_dirichlet_parameter_is_one_of_those_tried_where_none_is_given():
    X, y, _ = blobs(60)
    model = TwoStageGPClassifier(**{**RIDGE, "alpha_eps": "auto"}).fit(X, y)
    tried = model.fitted_.fit.tried_alphas
    assert tried[model.fit_report_.alpha_eps] == min(tried.values())


def test_residuals_of_rows_that_were_seen_are_an_option():
    X, y, _ = blobs(60)
    model = TwoStageGPClassifier(**{**RIDGE, "residuals": "insample"}).fit(X, y)
    assert np.isfinite(model.fit_report_.log_loss)


def test_single_precision_is_near_double():
    X, y, _ = blobs(60)
    double = TwoStageGPClassifier(**RIDGE).fit(X, y).predict_proba(X)
    single = TwoStageGPClassifier(**RIDGE, dtype="float32").fit(X, y).predict_proba(X)
    assert np.abs(double - single).max() < 0.05


def test_neighbours_are_near_the_exact_result():
    X, y, _ = moons(400)
    fresh, labels, _ = moons(400, seed=1)
    options = {**RIDGE, "n_neighbors": 100}
    exact = TwoStageGPClassifier(**options, method="exact").fit(X, y)
    local = TwoStageGPClassifier(**options, method="neighbors").fit(X, y)
    P, Q = exact.predict_proba(fresh), local.predict_proba(fresh)
    assert np.abs(P - Q).mean() < 0.03
    assert log_loss(labels, Q) < 1.05 * log_loss(labels, P)
    assert local.fit_report_.method == "neighbors"


def test_neighbours_are_taken_above_a_number_of_rows():
    X, y, _ = blobs(60, 2)
    limited = with_settings(exact_rows=50)
    report = TwoStageGPClassifier(**RIDGE, device="cpu", **limited).fit(X, y).fit_report_
    assert report.method == "neighbors"
    assert report.method_reason == "60 distinct rows, more than 50"


def test_wide_tables_stay_exact_for_longer():
    X, y, _ = blobs(80, 2)
    wide = np.hstack([X, np.random.default_rng(0).normal(size=(80, 40))])
    limits = with_settings(exact_rows=50, exact_rows_wide=70)
    model = TwoStageGPClassifier(**RIDGE, device="cpu", **limits)
    assert model.fit(wide[:60], y[:60]).fit_report_.method == "exact"
    assert model.fit(wide, y).fit_report_.method_reason == "80 distinct rows, more than 70"


def test_held_out_rows_of_a_large_table_are_a_sample():
    X, y, _ = blobs(90, 2)
    groups = np.arange(90) // 2
    options = {**QUICK, "alpha_eps": "auto", "method": "neighbors", "n_neighbors": 30}
    options |= with_settings(sample_rows=40, choice_rows=30)
    model = TwoStageGPClassifier(stages=2, **options).fit(X, y, groups=groups)
    assert len(model.mean_.heldout) == 40
    assert model.score(X, y) > 0.7


def test_a_wide_table():
    rng = np.random.default_rng(0)
    factors, loading = rng.normal(size=(60, 3)), rng.normal(size=(3, 200))
    X = factors @ loading + 0.5 * rng.normal(size=(60, 200))
    y = (factors[:, 0] > 0).astype(int)
    options = {**QUICK, "kernels": ("rbf", "matern32")}
    model = TwoStageGPClassifier(**options).fit(X[:40], y[:40])
    assert model.score(X[40:], y[40:]) >= 0.7
    assert model.fit_report_.log_loss < 0.6
    tried = [row["kernel"] for row in model.search_ if row["stage"] == "mean"]
    assert {label.split(" (")[1] for label in tried} == {"columns)", "common)", "unit)"}


# --- awkward tables and bad arguments ------------------------------------------------------------


def test_constant_columns_are_dropped_and_said():
    X, y, _ = blobs(50, 2)
    wide = np.column_stack([X[:, 0], np.full(50, 3.0), X[:, 1]])
    with pytest.warns(TwoStageGPWarning, match="constant columns were dropped: x1"):
        model = TwoStageGPClassifier(**RIDGE).fit(wide, y)
    plain = TwoStageGPClassifier(**RIDGE).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(wide), plain.predict_proba(X), atol=1e-10)


@pytest.mark.parametrize(
    "options",
    [QUICK, RIDGE, {**QUICK, "stages": 1}, {**QUICK, "method": "neighbors"}],
)
def test_constant_columns_alone_give_the_prior(options):
    y = np.array([0] * 30 + [1] * 10)
    with pytest.warns(TwoStageGPWarning, match="constant"):
        model = TwoStageGPClassifier(**options).fit(np.ones((40, 2)), y)
    np.testing.assert_allclose(model.predict_proba(np.ones((1, 2)))[0], [0.75, 0.25], atol=0.05)


@pytest.mark.parametrize("stages", [1, 2])
def test_rows_that_contradict_each_other(stages):
    rng = np.random.default_rng(3)
    X = np.repeat(np.linspace(-2, 2, 12), 10)[:, None]
    p = 1.0 / (1.0 + np.exp(-2.0 * X[:, 0]))
    y = (rng.uniform(size=120) < p).astype(int)
    model = TwoStageGPClassifier(stages=stages, **QUICK).fit(X, y)
    assert np.abs(model.predict_proba(X)[:, 1] - p).mean() < 0.1
    assert model.fit_report_.n_distinct_rows <= 24


def test_a_table_of_six_rows():
    X = np.array([[0.0], [0.1], [0.2], [1.0], [1.1], [1.2]])
    model = TwoStageGPClassifier(**QUICK).fit(X, list("aaabbb"))
    assert np.isfinite(model.predict_proba(X)).all()


def test_two_groups_are_enough():
    X, y, _ = blobs(30, 2)
    groups = np.arange(30) // 15
    P = TwoStageGPClassifier(**QUICK).fit(X, y, groups=groups).predict_proba(X)
    assert np.isfinite(P).all()


def test_progress_and_a_report_can_be_read(capsys):
    X, y, _ = blobs(40, 2)
    model = TwoStageGPClassifier(**RIDGE, verbose=1).fit(X, y)
    text = str(model.fit_report_)
    assert "40 rows (0 repeated), 2 columns in use, 2 classes" in text
    assert "held-out log loss" in capsys.readouterr().err


def test_bad_tables_are_named():
    X, y, _ = blobs(30, 2)
    model = TwoStageGPClassifier(**RIDGE)
    bad = X.copy()
    bad[4, 1] = np.nan
    with pytest.raises(InputError, match="NaN"):
        model.fit(bad, y)
    with pytest.raises(InputError, match="one class"):
        model.fit(X, np.zeros(30))
    with pytest.raises(InputError, match="class"):
        model.fit(X, y, sample_weight=(y == 1).astype(float))
    with pytest.raises(InputError, match="sample_weight"):
        model.fit(X, y, sample_weight=-np.ones(30))
    with pytest.raises(InputError, match="sample_weight is zero in all rows"):
        model.fit(X, y, sample_weight=np.zeros(30))
    with pytest.raises(InputError, match="groups"):
        model.fit(X, y, groups=np.zeros(7))
    model.fit(X, y)
    with pytest.raises(InputError, match="level=2"):
        model.predict_certainty(X, level=2)
    with pytest.raises(InputError, match="n_samples=1"):
        model.predict_certainty(X, n_samples=1)
    with pytest.raises(InputError, match="method='magic'"):
        model.predict_proba(X, method="magic")


def test_classifiers_that_take_no_weights_meet_repeated_rows():
    X, y, _ = blobs(40, 2)
    X, y = np.vstack([X, X[:5]]), np.append(y, y[:5])
    model = TwoStageGPClassifier(**{**QUICK, "mean": KNeighborsClassifier(5)})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    assert any("KNeighborsClassifier takes no sample_weight" in str(w.message) for w in caught)
    assert model.score(X, y) > 0.6


@pytest.mark.parametrize("stages", [1, 2])
def test_random_labels_in_many_columns_do_not_make_it_confident(stages):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(560, 12)), rng.integers(0, 2, size=560)
    model = TwoStageGPClassifier(stages=stages, kernels=("rbf", "matern32"), random_state=0)
    model.fit(X[:60], y[:60])
    assert log_loss(y[60:], model.predict_proba(X[60:])) < 0.76  # 1.2 at warm hyperparameters


def test_refits_do_not_see_the_labels_of_the_fold():
    X, y, _ = blobs(60)
    table = make_table(X, y, 3, ["a", "b"], None, None, torch.device("cpu"), torch.float64)
    trained = _trained(table)
    folds = assign_folds(len(table), 5, np.random.default_rng(0))
    means, variances = refit_latents(table, trained, 1e-6, folds, ClassSettings())
    assert means.shape == variances.shape == (60, 3)
    assert (variances > 0.0).all()
    # A row's own label moves neither its mean nor its variance.
    other = replace(table, codes=np.where(np.arange(60) == 7, (table.codes + 1) % 3, table.codes))
    changed, _ = refit_latents(other, trained, 1e-6, folds, ClassSettings())
    np.testing.assert_allclose(changed[7], means[7], rtol=1e-6, atol=1e-6)
    assert np.abs(changed - means).max() > 1e-3


def _trained(table):
    rng = np.random.default_rng(0)
    choices = [(table.views[0], make_kernel("rbf", 2, True))]
    everything = np.arange(len(table))
    dirichlet = Dirichlet(0.05, 3, 0.0)
    return train_latents(
        table, choices, dirichlet, None, everything, None, "loo", 1e-6, ClassSettings(), rng
    )


def test_report_and_search_have_the_types_of_regressors():
    X, y, _ = blobs(60, 2)
    classes = TwoStageGPClassifier(**RIDGE).fit(X, y)
    numbers = TwoStageGPRegressor(random_state=0).fit(X, X[:, 0])
    assert type(classes.fit_report_) is type(numbers.fit_report_)
    assert type(classes.search_) is type(numbers.search_)
    rows = classes.search_
    assert {row["stage"] for row in rows} == {"mean", "variance"}
    for row in (*rows, *numbers.search_):
        assert {"stage", "kernel", "score", "weight", "failure"} <= set(row)
    report = classes.fit_report_
    assert report.candidates + report.variance_candidates == list(rows)
    assert (report.noise_std, numbers.fit_report_.n_classes) == (None, None)
    best = min((row for row in rows if row["stage"] == "variance"), key=lambda row: row["score"])
    assert (best["kernel"], best["weight"]) == (classes.variance_.label, 1.0)
