"""The method for large tables on small ones: accuracy, honesty, edge cases, every option."""

import math
import pickle

import gpytorch.kernels as gk
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression, Ridge

from twostagegp import Training, TwoStageGPRegressor, TwoStageGPWarning, estimator, neighbor_stages
from twostagegp.crossfit import RegressorMean
from twostagegp.engines import choice
from twostagegp.engines.exact import ExactEngine
from twostagegp.engines.neighbors import NeighborEngine
from twostagegp.errors import InputError, NumericalError
from twostagegp.kernels import NamedKernel
from twostagegp.mean import PENALTY_SHIFTS, ConstantMean, NeighborMean, best_shift
from twostagegp.neighbor_stages import Sample
from twostagegp.neighbor_training import Schedule
from twostagegp.neighbors import TreeIndex
from twostagegp.rows import Rows, _lexicographic, merge_rows
from twostagegp.search import stages

NOISE = 0.2
TREES = neighbor_stages.boosted_trees


def truth(X):
    return np.sin(2 * X[:, 0]) + 0.4 * X[:, -1]


def table(n=300, d=2, seed=0, noise=NOISE):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, truth(X) + noise * rng.normal(size=n)


def neighbors(**options):
    """The stack of one kernel, trees and the constant; half a second."""
    return TwoStageGPRegressor(
        **{"method": "neighbors", "kernels": ("rbf",), "ard": False, "random_state": 0, **options}
    )


def ridge(**options):
    """One kernel in each stage: a tenth of a second."""
    return neighbors(**{"mean": "rbf", "variance": "rbf", **options})


def same(a, b, X, rtol=1e-9, atol=1e-12):
    """Two models give the same distribution."""
    for one, other in zip(
        a.predict(X, return_std=True), b.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def is_sane(model, X):
    mean, std = model.predict(X, return_std=True)
    return bool(np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all())


def rms(values):
    return math.sqrt(np.mean(values**2))


@pytest.fixture(autouse=True)
def short_trees(monkeypatch):
    """Trees that do not take long where rows repeat and nothing ends the boosting."""
    trees = TREES(100).set_params(max_iter=30, max_leaf_nodes=15)
    monkeypatch.setattr(neighbor_stages, "boosted_trees", lambda n: trees)


@pytest.fixture
def large(monkeypatch):
    """Sizes at which a few hundred rows are a large table."""
    monkeypatch.setattr(neighbor_stages, "SAMPLE_ROWS", 150)
    monkeypatch.setattr(neighbor_stages, "VARIANCE_ROWS", 100)
    monkeypatch.setattr(neighbor_stages, "CROSSFIT_FOLDS", {50: 5, 100: 3})
    monkeypatch.setattr(neighbor_stages, "REFIT_ROWS", 550)
    small = Schedule(warm_rows=60, pool=400, first=60, second=120, unseen=80, keep=2)
    monkeypatch.setattr(neighbor_stages, "Schedule", lambda: small)


@pytest.fixture
def short_search(monkeypatch):
    monkeypatch.setattr(stages, "_REPEATS", 4)
    monkeypatch.setattr(stages, "_SUBSAMPLE", 60)


@pytest.fixture
def searches(monkeypatch):
    """The number of points of every search for neighbours."""
    seen, query = [], TreeIndex.query

    def counted(self, points, *args):
        seen.append(len(points))
        return query(self, points, *args)

    monkeypatch.setattr(TreeIndex, "query", counted)
    return seen


class Witness(RegressorMixin, BaseEstimator):
    """A regressor that remembers, for all its clones, which targets it was fitted on."""

    seen: list[np.ndarray] = []  # noqa: RUF012

    def fit(self, X, y):
        Witness.seen.append(np.asarray(y))
        self.mean_ = float(np.mean(y))
        return self

    def predict(self, X):
        return np.full(len(X), self.mean_)


@pytest.fixture
def witness(monkeypatch):
    monkeypatch.setattr(Witness, "seen", [])
    return Witness()


# --- how good it is ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    """The defaults, but for fewer kernels."""
    assert neighbor_stages.boosted_trees is TREES
    model = TwoStageGPRegressor("neighbors", kernels=("rbf", "matern32", "laplacian"))
    return model.set_params(random_state=0).fit(*table(600, 3))


@pytest.fixture(scope="module")
def fresh():
    return table(4000, 3, seed=9)


def test_a_smooth_function_is_learned(fitted, fresh):
    X, y = fresh
    assert rms(fitted.predict(X) - truth(X)) < 0.5 * NOISE
    assert rms(fitted.predict(X) - y) < 0.35 * y.std()


def test_it_is_about_as_good_as_the_exact_method(fitted, fresh):
    X, y = fresh
    exact = TwoStageGPRegressor("exact", mean="rbf", variance="rbf", ard=True, random_state=0)
    exact.fit(*table(600, 3))
    assert rms(fitted.predict(X) - y) < 1.05 * rms(exact.predict(X) - y)


def test_intervals_hold_on_fresh_rows(fitted, fresh):
    X, y = fresh
    low, high = fitted.predict_interval(X, level=0.95).T
    assert 0.9 < np.mean((low < y) & (y < high)) < 0.98


@pytest.mark.parametrize("seed", range(3))
def test_pure_noise_is_left_alone(seed, monkeypatch):
    monkeypatch.setattr(neighbor_stages, "boosted_trees", TREES)
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(1500, 4)), rng.normal(size=1500)
    model = neighbors(kernels=("laplacian",), ard=True, random_state=seed).fit(X, y)
    new, noise = rng.normal(size=(20_000, 4)), rng.normal(size=20_000)
    assert rms(noise - model.predict(new)) < 1.003 * rms(noise - y.mean())
    assert 0.9 < np.median(model.predict(new, return_std=True)[1]) < 1.1


def test_the_stack_has_convex_weights_and_few_ridges(fitted):
    mean = fitted.mean_
    ridges = [m for m in mean.models if isinstance(m, NeighborMean)]
    assert 1 <= len(ridges) <= neighbor_stages.RIDGES
    assert [m.label for m in mean.models[-2:]] == ["HistGradientBoostingRegressor", "constant"]
    assert mean.weights.min() >= 0.0
    assert mean.weights.sum() == pytest.approx(1.0)
    weights = mean.weights[: len(ridges)]
    assert (weights >= neighbor_stages.LEAST_WEIGHT).all()


def test_the_report_says_what_was_done(fitted):
    report = fitted.fit_report_
    assert (report.method, report.method_reason) == ("neighbors", "asked for")
    assert report.full_factorisations == report.full_evaluations == 0
    assert report.evaluations > 0
    assert report.mean == fitted.mean_.label
    tried = [row for row in fitted.search_ if row["stage"] == "mean"]
    assert len(tried) == 6
    assert sum(row["weight"] for row in tried) == pytest.approx(fitted.mean_.weights[:-2].sum())
    assert set(fitted.relevance_) == {"x0", "x1", "x2"}
    assert sum(fitted.relevance_.values()) == pytest.approx(1.0)
    assert max(fitted.relevance_, key=fitted.relevance_.get) == "x0"
    assert str(report)


# --- large tables --------------------------------------------------------------------------------


def test_a_large_table_is_learned_too(large):
    model = neighbors(kernels=("rbf", "matern32"), ard="both").fit(*table(900))
    X, y = table(4000, seed=9)
    assert rms(model.predict(X) - y) < 1.1 * NOISE
    low, high = model.predict_interval(X).T
    assert 0.9 < np.mean((low < y) & (y < high)) < 0.98


def test_only_a_sample_is_held_out(large):
    X, y = table(500)
    model = neighbors().fit(X, y)
    assert model.mean_.heldout_residuals.shape == model.calibration_.z.shape == (150,)
    assert model.variance_.heldout_variance.shape == (150,)
    for part in model.mean_.models:
        assert part.heldout_residuals.shape == (150,)
        assert np.isfinite(part.heldout_residuals).all()
    # A prediction is still made from all rows.
    assert len(model.variance_.posterior.rows) == 500


def test_the_samples_residuals_are_its_own(large):
    X, y = table(500)
    X[3:8], y[3:8] = X[2], y[2] + np.arange(5.0)  # several copies of one row
    model = ridge(mean=["rbf", "constant"]).fit(X, y)
    data = model._data[0]
    # What the fit has drawn, drawn once more.
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    sample = Sample.draw(data, np.random.default_rng(seed))
    expected = ConstantMean(data.merged).heldout_residuals[sample.table_rows]
    np.testing.assert_array_equal(model.mean_.models[-1].heldout_residuals, expected)
    gp = model.mean_.models[0]
    held = gp.posterior.heldout()
    unmerged = data.merged.unmerge(held.residual.numpy(), held.slope.numpy())
    np.testing.assert_allclose(gp.heldout_residuals, unmerged[sample.table_rows], atol=1e-10)


def test_training_looks_for_neighbours_in_a_pool(large, monkeypatch):
    sizes, subset = [], NeighborEngine.subset

    def recorded(self, index):
        sizes.append(len(index))
        return subset(self, index)

    monkeypatch.setattr(NeighborEngine, "subset", recorded)
    ridge().fit(*table(500))
    assert sizes == [400]
    ridge().fit(*table(300))
    assert sizes == [400]


@pytest.mark.parametrize(
    ("n", "fits"),
    [(50, [40] * 5 + [50]), (99, [66] * 3 + [99]), (540, [390, 540]), (600, [450])],
    ids=["small", "medium", "larger", "large"],
)
def test_a_regressor_is_fitted_the_less_often_the_larger_the_table(large, witness, n, fits):
    X, y = table(n)
    model = ridge(mean=witness).fit(X, y)
    assert [len(seen) for seen in Witness.seen] == fits
    t = model._data[0].merged.y
    held = model.mean_.heldout_residuals
    if n > 500:
        # The first fit has not seen the sample.
        sample = np.flatnonzero(~np.isin(t, Witness.seen[0]))
        np.testing.assert_allclose(held, t[sample] - Witness.seen[0].mean(), atol=1e-12)
    else:
        assert held.shape == (n,)
    # The last one predicts.
    expected = y.mean() + y.std() * Witness.seen[-1].mean()
    np.testing.assert_allclose(model.predict(X), expected, atol=1e-9)


@pytest.mark.parametrize(
    ("sample", "size", "fits"),
    [(150, 1, 1), (10, 5, 1), (150, 5, 4), (150, 300, 3)],
    ids=["single", "few", "many", "halves"],
)
def test_a_regressor_never_sees_the_groups_it_predicts(
    large, witness, sample, size, fits, monkeypatch
):
    """They are left out once where that leaves most rows, and cross-fitted elsewhere."""
    monkeypatch.setattr(neighbor_stages, "SAMPLE_ROWS", sample)
    X, y = table(600)
    groups = np.arange(600) // size
    model = ridge(mean=witness).fit(X, y, groups=groups)
    assert len(Witness.seen) == fits
    t, expected = model._data[0].merged.y, np.full(600, np.inf)
    for seen in Witness.seen[: max(1, fits - 1)]:
        inside = np.isin(t, seen)
        assert not np.isin(groups[inside], groups[~inside]).any()
        expected[~inside] = t[~inside] - seen.mean()
    held = model.mean_.heldout_residuals
    assert held.shape == (sample,)
    assert np.abs(expected[:, None] - held).min(0).max() < 1e-12


def test_a_large_table_with_few_distinct_rows(large):
    """More rows than a cross-fit takes, fewer distinct ones than a sample."""
    X, y = table(120)
    X, y = np.repeat(X, 5, axis=0), np.repeat(y, 5)
    y = y + NOISE * np.random.default_rng(1).normal(size=600)
    model = neighbors().fit(X, y)
    assert is_sane(model, X)


def test_a_sample_that_is_most_of_the_table_leaves_enough_to_a_regressor(large, witness):
    X, y = table(160)
    ridge(mean=witness).fit(X, y)
    assert min(len(seen) for seen in Witness.seen) >= 80


# --- tables that break regressors ----------------------------------------------------------------


def test_repeated_rows():
    X, y = table(150)
    X, y = np.repeat(X, 4, axis=0), np.repeat(truth(X), 4)
    y = y + NOISE * np.random.default_rng(1).normal(size=600)
    model = neighbors().fit(X, y)
    assert model.fit_report_.n_distinct_rows == 150
    assert model.mean_.heldout_residuals.shape == (600,)
    std = model.predict(X[::4], return_std=True)[1]
    assert np.median(std) == pytest.approx(NOISE, rel=0.3)


def test_exact_copies():
    X, y = table(100)
    model = neighbors().fit(np.repeat(X, 3, axis=0), np.repeat(y, 3))
    assert is_sane(model, np.vstack([X, X + 0.1]))


@pytest.mark.parametrize("gap", [1e-12, 1e-7])
def test_nearly_equal_rows(gap):
    X, y = table(150)
    model = neighbors().fit(np.vstack([X, X + gap]), np.append(y, -y))
    assert is_sane(model, np.vstack([X, X + 0.1]))


def test_constant_columns_change_nothing():
    X, y = table(200)
    wide = np.insert(X, 1, 4.2, axis=1)
    one, other = neighbors().fit(X, y), neighbors().fit(wide, y)
    for a, b in zip(
        one.predict(X, return_std=True), other.predict(wide, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert other.fit_report_.constant_columns == ["x1"]
    assert other.relevance_["x1"] == 0.0


@pytest.mark.parametrize("k", [1, 2, 10_000])
def test_any_number_of_neighbours(k):
    X, y = table(120)
    model = neighbors(n_neighbors=k).fit(X, y)
    assert is_sane(model, np.vstack([X, X + 0.1, X + 100.0]))
    assert model.score(*table(500, seed=9)) > 0.7


def test_more_neighbours_than_rows_give_the_exact_method():
    X, y = table(80)
    options = {"mean": "rbf", "penalty": 0.1, "variance": "rbf", "ard": False}
    near = TwoStageGPRegressor("neighbors", n_neighbors=999, **options).fit(X, y)
    exact = TwoStageGPRegressor("exact", **options).fit(X, y)
    np.testing.assert_allclose(near.predict(X + 0.1), exact.predict(X + 0.1), atol=1e-9)
    np.testing.assert_allclose(
        near.mean_.heldout_residuals, exact.mean_.heldout_residuals, atol=1e-9
    )


def test_a_cluster_far_away():
    X, y = table(400)
    X[:40] += 1e6
    model = neighbors(ard="both").fit(X, y)
    assert is_sane(model, np.vstack([X, X + 0.1, X / 2]))
    # Both ends of the table have rows of their own; in between there is nothing.
    std = model.predict(np.vstack([X[:1], X[-1:], [[3e5, 3e5]]]), return_std=True)[1]
    assert std[2] >= 0.999 * std[:2].max()


@pytest.mark.parametrize("place", [1e3, 1e9, 1e200, -1e300])
@pytest.mark.parametrize("name", ["rbf", "matern12", "laplacian"])
def test_far_outside_the_prior_of_the_variance_and_the_rest_of_the_mean_return(name, place):
    X, y = table(300)
    model = neighbors(mean=[name, LinearRegression(), HistGradientBoostingRegressor(max_iter=5)])
    model.set_params(variance=name).fit(X, y)
    scaling = model._data[0].scaling
    far = np.full((1, 2), place)
    mean, latent = model.predict(far, return_latent_std=True)
    outputscale = math.exp(model.variance_.posterior.parameters[-2])
    factor = model.calibration_.factor
    assert latent[0] == pytest.approx(scaling.y_scale * math.sqrt(factor * outputscale), rel=1e-9)
    Z = torch.as_tensor(scaling.inputs(far))
    rest = [
        weight * float(part.predict(Z))
        for weight, part in zip(model.mean_.weights, model.mean_.models, strict=True)
        if not isinstance(part, NeighborMean)
    ]
    assert len(rest) == 3
    assert mean[0] == pytest.approx(scaling.y_mean + scaling.y_scale * sum(rest), rel=1e-9)
    assert latent[0] >= model.predict(X, return_latent_std=True)[1].max() * (1 - 1e-9)


def test_a_ridge_alone_returns_to_the_mean_far_outside():
    X, y = table(200)
    model = ridge().fit(X, y)
    assert model.predict([[1e5, -1e5]])[0] == pytest.approx(y.mean())


@pytest.mark.parametrize("n", [3, 4, 7])
@pytest.mark.parametrize("method", ["neighbors", "vecchia"])
def test_a_handful_of_rows(method, n):
    X, y = table(n)
    assert is_sane(neighbors(method=method).fit(X, y), np.vstack([X, X + 0.1, X + 1e3]))


@pytest.mark.parametrize(
    ("X", "y", "word"),
    [
        (table(30)[0], np.full(30, 7.0), "constant"),
        (np.ones((30, 3)), np.arange(30.0), "No input column"),
        (np.array([[0.0], [1.0], [1.0]]), np.array([1.0, 2.0, 4.0]), "Fewer than three"),
        (np.array([[0.0], [1.0]]), np.array([1.0, 2.0]), "Fewer than three"),
    ],
    ids=["constant target", "no columns", "two distinct rows", "two rows"],
)
@pytest.mark.parametrize("method", ["neighbors", "vecchia"])
def test_too_little_to_learn_from_gives_constant_parts(method, X, y, word):
    model = neighbors(method=method)
    with pytest.warns(TwoStageGPWarning, match=word):
        model.fit(X, y)
    assert model.mean_.label == model.variance_.label == "constant"
    assert model.fit_report_.method == method
    np.testing.assert_allclose(model.predict(X), y.mean())
    assert is_sane(model, np.asarray(X) + 10.0)


def test_a_group_with_all_rows_but_one():
    X, y = table(60)
    model = neighbors().fit(X, y, groups=np.arange(60) == 7)
    assert is_sane(model, X)


def test_a_regressor_that_takes_no_weights_is_said(witness):
    X, y = table(60)
    with pytest.warns(TwoStageGPWarning, match="Witness takes no sample_weight"):
        ridge(mean=witness).fit(X, y, sample_weight=np.full(60, 2.0))


def test_one_kernel_that_fails_does_not_end_the_fit(monkeypatch):
    original = neighbor_stages.tune_penalty

    def failing(engine, candidate, index):
        if candidate.kernel.name == "rbf":
            raise NumericalError("made to fail")
        original(engine, candidate, index)

    monkeypatch.setattr(neighbor_stages, "tune_penalty", failing)
    model = neighbors(kernels=("rbf", "matern32")).fit(*table(100))
    failures = {row["kernel"]: row["failure"] for row in model.search_ if row["stage"] == "mean"}
    assert failures["rbf/loo"] == "made to fail"


def test_prediction_within_inference_mode():
    X, y = table(100)
    model = ridge().fit(X, y)
    with torch.inference_mode():
        mean = model.predict(X)
    np.testing.assert_array_equal(mean, model.predict(X))


# --- invariances ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b"), [(-2.0, 7.0), (1e9, -3e9), (1e-9, 5e-9)])
def test_units_of_y(a, b):
    X, y = table(200)
    mean, std = neighbors().fit(X, y).predict(X, return_std=True)
    mean2, std2 = neighbors().fit(X, a * y + b).predict(X, return_std=True)
    np.testing.assert_allclose((mean2 - b) / a, mean, atol=1e-4)
    np.testing.assert_allclose(std2 / abs(a), std, rtol=1e-3)


def test_units_of_x():
    X, y = table(200)
    moved = X * [1e7, -1e-7] + [3e6, 1.0]
    mean, std = ridge(ard=True).fit(X, y).predict(X, return_std=True)
    mean2, std2 = ridge(ard=True).fit(moved, y).predict(moved, return_std=True)
    np.testing.assert_allclose(mean2, mean, atol=1e-4)
    np.testing.assert_allclose(std2, std, rtol=1e-3)


def disordered():
    X, y = table(250)
    X, y = np.vstack([X, X[:20]]), np.append(y, y[:20] + 0.3)
    order = np.random.default_rng(1).permutation(270)
    return X, y, order


@pytest.mark.parametrize("mean", ["search", ["rbf", "matern12"]], ids=["one", "several"])
@pytest.mark.parametrize("method", ["neighbors", "vecchia"])
def test_order_of_rows(method, mean):
    X, y, order = disordered()
    model = neighbors(method=method, mean=mean, ard="both")
    one, two = clone(model).fit(X, y), clone(model).fit(X[order], y[order])
    same(one, two, X, rtol=1e-6, atol=1e-6)


def test_order_of_rows_with_trees():
    X, y, order = disordered()
    one, two = neighbors().fit(X, y), neighbors().fit(X[order], y[order])
    same(one, two, X, rtol=1e-6, atol=1e-6)


def test_same_random_state_same_result(large):
    X, y = table(400)
    options = {"kernels": ("rbf", "laplacian"), "ard": "both", "random_state": 3}
    same(neighbors(**options).fit(X, y), neighbors(**options).fit(X, y), X, rtol=0, atol=0)
    other = neighbors(**{**options, "random_state": 4}).fit(X, y)
    assert np.any(other.predict(X) != neighbors(**options).fit(X, y).predict(X))


def test_threads_do_not_change_the_result():
    X, y = table(520)
    before = torch.get_num_threads()
    one, two = (neighbors(n_jobs=n).fit(X, y) for n in (1, 2))
    same(one, two, X, rtol=1e-8, atol=1e-9)
    assert torch.get_num_threads() == before


def test_one_row_is_predicted_as_it_is_in_a_batch(fitted):
    X = table(200, 3, seed=5)[0]
    mean, std = fitted.predict(X, return_std=True)
    for i in range(0, 200, 17):
        one_mean, one_std = fitted.predict(X[i : i + 1], return_std=True)
        assert one_mean[0] == pytest.approx(mean[i], abs=1e-9)
        assert one_std[0] == pytest.approx(std[i], abs=1e-9)


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_prediction_does_not_depend_on_the_chunks(rows, fitted, monkeypatch):
    X = table(65, 3, seed=5)[0]
    mean, std = fitted.predict(X, return_std=True)
    latent = fitted.predict(X, return_latent_std=True)[1]
    monkeypatch.setattr(estimator, "_CHUNK_ROWS", rows)
    chunks = fitted.predict(X, return_std=True)
    np.testing.assert_allclose(fitted.predict(X), mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(chunks[0], mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(chunks[1], std, rtol=1e-12)
    np.testing.assert_allclose(fitted.predict(X, return_latent_std=True)[1], latent, rtol=1e-12)


def test_joint_covariance(fitted):
    X = np.vstack([table(20, 3, seed=5)[0], np.full((1, 3), 50.0)])
    _, std = fitted.predict(X, return_std=True)
    _, cov = fitted.predict(X, return_cov=True)
    np.testing.assert_allclose(np.sqrt(np.diag(cov)), std, rtol=1e-9)
    np.testing.assert_allclose(cov, cov.T, rtol=1e-9)
    assert np.linalg.eigvalsh(cov).min() > 0.0
    assert fitted.sample_y(X, 3, joint=True, random_state=0).shape == (21, 3)


def test_clone_and_pickle(fitted, searches):
    X, y = table(60, 3, seed=5)
    mean, std = fitted.predict(X, return_std=True)
    searches.clear()
    fitted.predict(X, return_std=True)
    once = len(searches)
    again = pickle.loads(pickle.dumps(fitted))
    searches.clear()
    mean2, std2 = again.predict(X, return_std=True)
    np.testing.assert_array_equal(mean2, mean)
    np.testing.assert_array_equal(std2, std)
    assert len(searches) == once  # the stages still share their neighbours
    params = clone(fitted).get_params()
    assert {k: str(v) for k, v in params.items()} == {
        k: str(v) for k, v in fitted.get_params().items()
    }
    model = neighbors().fit(X, y)
    same(model, clone(model).fit(X, y), X, rtol=0, atol=0)


# --- one search a metric -------------------------------------------------------------------------


def test_the_variance_shares_the_means_metric(searches, monkeypatch):
    X, y = table(300, 3)
    model = ridge(mean="search", variance="search", kernels=("rbf", "matern32"), ard="both")
    model.fit(X, y)
    assert model.variance_.label.endswith("-shaped")
    assert model.variance_.posterior.metric == model.mean_.models[0].posterior.metric
    searches.clear()
    model.predict(X[:100], return_std=True)
    assert searches == [100]
    monkeypatch.setattr(estimator, "_CHUNK_ROWS", 40)
    searches.clear()
    model.predict(X[:100], return_std=True)
    assert searches == [40, 40, 20]


def test_neighbours_are_searched_once_a_metric(fitted, searches):
    X = table(50, 3, seed=5)[0]
    ridges = [m.posterior for m in fitted.mean_.models if isinstance(m, NeighborMean)]
    metrics = {gp.metric for gp in ridges}
    assert fitted.variance_.posterior.metric in metrics
    fitted.predict(X, return_std=True)
    assert searches == [50] * len(metrics)


def test_several_targets_do_not_mix(searches):
    X, y = table(100)
    Y = np.column_stack([y, np.cos(3 * X[:, 1]), -5.0 * y])
    model = ridge(ard=True).fit(X, Y)
    searches.clear()
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (100, 3)
    assert model.predict_interval(X).shape == (100, 3, 2)
    assert len(model.fit_report_) == 3
    for k in range(3):
        one_mean, one_std = ridge(ard=True).fit(X, Y[:, k]).predict(X, return_std=True)
        np.testing.assert_array_equal(mean[:, k], one_mean)
        np.testing.assert_array_equal(std[:, k], one_std)


# --- groups, weights, known noise ----------------------------------------------------------------


def shifted_groups():
    """Groups with inputs and a target of their own, nearly equal within."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(60), 5)
    X = np.repeat(rng.normal(size=(60, 2)), 5, axis=0) + 1e-3 * rng.normal(size=(300, 2))
    return X, np.repeat(rng.normal(size=60), 5), groups


@pytest.mark.parametrize(
    "mean",
    ["rbf", "stack", HistGradientBoostingRegressor(max_iter=20, min_samples_leaf=3)],
    ids=["ridge", "stack", "trees"],
)
@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
def test_rows_of_a_group_do_not_help_to_predict_it(mean, is_large, request):
    if is_large:
        request.getfixturevalue("large")
    X, y, groups = shifted_groups()
    model = neighbors(mean=mean, variance="rbf").fit(X, y, groups=groups)
    aware = rms(model.mean_.heldout_residuals)
    assert aware > 0.9  # there is nothing to learn about a new group
    low, high = model.predict_interval(np.random.default_rng(9).normal(size=(2000, 2))).T
    new = np.random.default_rng(8).normal(size=2000)
    assert 0.9 < np.mean((low < new) & (new < high)) < 0.995
    if mean == "rbf":
        blind = neighbors(mean=mean, variance="rbf").fit(X, y)
        assert rms(blind.mean_.heldout_residuals) < 0.1


def test_held_out_residuals_of_groups_are_refits_without_the_group():
    X, y = table(120)
    groups = np.arange(120) % 15
    model = ridge(penalty=0.1, n_neighbors=500).fit(X, y, groups=groups)
    for g in (0, 7):
        out = groups == g
        part = ExactEngine(model._data[0].rows.subset(np.flatnonzero(merged_groups(model) != g)))
        gp = model.mean_.models[0].posterior
        data = model._data[0]
        Z = torch.as_tensor(data.scaling.inputs(X[out]))
        mean = part.condition(gp.kernel, gp.parameters).mean(Z).numpy()
        expected = (y[out] - data.scaling.y_mean) / data.scaling.y_scale - mean
        np.testing.assert_allclose(model.mean_.heldout_residuals[out], expected, atol=1e-9)


def merged_groups(model):
    return model._data[0].merged.groups


def test_a_weight_is_a_number_of_repeats_for_kernels(large):
    X, y = table(300)
    counts = np.random.default_rng(2).integers(0, 4, size=300)
    model = neighbors(mean=["rbf", "laplacian"], ard="both")
    weighted = clone(model).fit(X, y, sample_weight=counts)
    repeated = clone(model).fit(np.repeat(X, counts, axis=0), np.repeat(y, counts))
    same(weighted, repeated, X, rtol=2e-2, atol=1e-3)


def test_weight_two_is_about_two_rows_for_the_stack():
    """A regressor's folds differ: each copy has one of its own, a weighted row just one."""
    X, y = table(300)
    weighted = neighbors().fit(X, y, sample_weight=np.full(300, 2.0))
    repeated = neighbors().fit(np.vstack([X, X]), np.append(y, y))
    new, _ = table(1000, seed=9)
    assert rms(weighted.predict(new) - repeated.predict(new)) < 0.5 * NOISE


def test_weight_zero_removes_a_row():
    X, y = table(100)
    y[7] = 1e6
    keep = np.arange(100) != 7
    same(ridge().fit(X, y, sample_weight=keep), ridge().fit(X[keep], y[keep]), X)


def test_noise_that_is_known_is_not_learned_again():
    X, y = table(300, noise=0.4)
    unknown = neighbors().fit(X, y)
    known = neighbors().fit(X, y, noise_var=0.16)
    assert known.fit_report_.noise_std < 0.6 * unknown.fit_report_.noise_std
    array = ridge().fit(X, y, noise_var=np.full(300, 0.16))
    same(array, ridge().fit(X, y, noise_var=0.16), X)


def test_a_row_with_more_known_noise_pulls_less():
    X, y = table(100)
    y[0] += 3.0
    pulls = []
    for v in (0.0, 1.0, 100.0):
        noise = np.where(np.arange(100) == 0, v, 0.0)
        pulls.append(ridge().fit(X, y, noise_var=noise).predict(X[:1])[0])
    assert pulls[0] > pulls[1] > pulls[2]


# --- options -------------------------------------------------------------------------------------

SUM = gk.ScaleKernel(gk.RBFKernel()) + gk.ScaleKernel(gk.LinearKernel())


@pytest.mark.parametrize(
    "mean",
    [
        "stack",
        "search",
        "matern12",
        "laplacian",
        "rq",
        LinearRegression(),
        HistGradientBoostingRegressor(max_iter=30),
        ["matern32", LinearRegression()],
        ["search", "constant", "rq", Ridge()],
    ],
    ids=lambda m: m if isinstance(m, str) else type(m).__name__,
)
@pytest.mark.parametrize("method", ["neighbors", "vecchia"])
def test_every_mean_learns(method, mean):
    X, y = table(120)
    new = table(500, seed=9)[0]
    model = ridge(method=method, mean=mean, n_neighbors=20).fit(X, y)
    assert rms(model.predict(new) - truth(new)) < 0.9 * truth(new).std()
    assert is_sane(model, np.vstack([X, new, new + 50.0]))
    assert model.mean_.heldout_residuals.shape == (120,)
    assert np.isfinite(model.mean_.heldout_residuals).all()
    labels = [part.label for part in model.mean_.models]
    assert ("constant" in labels) == (isinstance(mean, list) or mean == "stack")
    assert model.fit_report_.method == method


@pytest.mark.parametrize(
    ("method", "mean"),
    [
        ("neighbors", gk.RBFKernel(ard_num_dims=2)),
        ("neighbors", [SUM, LinearRegression()]),
        ("vecchia", gk.MaternKernel(nu=2.5)),
    ],
    ids=["ard", "list", "vecchia"],
)
def test_gpytorch_kernels_learn(method, mean, large):
    X, y = table(60)
    new = table(100, seed=9)[0]
    model = ridge(method=method, mean=mean, n_neighbors=10).fit(X, y)
    assert rms(model.predict(new) - truth(new)) < 0.9 * truth(new).std()
    assert is_sane(model, np.vstack([X, new + 50.0]))
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(new), model.predict(new))


def test_constant_mean():
    X, y = table(100)
    model = ridge(mean="constant").fit(X, y)
    assert model.mean_.label == "constant"
    np.testing.assert_allclose(model.predict(X + 1), y.mean())
    assert model.predict(X, return_std=True)[1].mean() == pytest.approx(y.std(), rel=0.2)


def test_an_unknown_mean_is_named():
    with pytest.raises(InputError, match="mean='magic'"):
        neighbors(mean="magic").fit(*table(30))


@pytest.mark.parametrize(
    "variance",
    [
        "search",
        "matern12",
        "rq",
        "laplacian",
        ("rbf", "matern32"),
    ],
    ids=lambda v: v if isinstance(v, str) else type(v).__name__,
)
@pytest.mark.parametrize("ard", [False, "both"])
def test_every_variance(variance, ard):
    X, y = table(120)
    model = ridge(variance=variance, ard=ard, kernels=("rbf", "matern52"), n_neighbors=20)
    model.fit(X, y)
    near = model.predict(X, return_std=True)[1]
    far = model.predict(X + 50.0, return_std=True)[1]
    assert np.all(near > 0)
    assert far.mean() >= near.mean()
    if isinstance(variance, str) and variance != "search":
        assert model.variance_.kernel.name == variance


@pytest.mark.parametrize("variance", [gk.RBFKernel(), ["matern32", SUM]], ids=["one", "list"])
@pytest.mark.parametrize("ard", [False, "both"])
def test_gpytorch_variances(variance, ard, large):
    X, y = table(60)
    model = ridge(variance=variance, ard=ard, n_neighbors=10).fit(X, y)
    tried = [row["kernel"] for row in model.search_ if row["stage"] == "variance"]
    assert len(tried) == (2 if isinstance(variance, list) else 1)
    assert is_sane(model, np.vstack([X, X + 50.0]))


def test_a_gpytorch_variance_by_the_likelihood():
    X, y = table(60)
    model = ridge(variance=gk.RBFKernel(), variance_objective="nll", n_neighbors=10).fit(X, y)
    assert model.variance_.label == "RBFKernel"
    assert is_sane(model, X)


def test_every_variance_kernel_of_a_list_is_tried():
    model = neighbors(mean="rbf", variance=("rbf", "laplacian"), ard="both").fit(*table(150))
    tried = {row["kernel"].split("-")[0] for row in model.search_ if row["stage"] == "variance"}
    assert any(name.startswith("laplacian") for name in tried)


@pytest.mark.parametrize("ard", [True, False, "both"])
def test_ard(ard):
    X, y = table(100, 3)
    model = neighbors(mean=["search"], kernels=("rbf", "laplacian"), ard=ard).fit(X, y)
    tried = {row["kernel"].split("/")[0] for row in model.search_ if row["stage"] == "mean"}
    forms = {True: ("-ard",), False: ("",), "both": ("", "-ard")}[ard]
    assert tried == {name + form for name in ("rbf", "laplacian") for form in forms}
    suffix = {True: "-ard", False: "", "both": "-shaped"}[ard]
    assert model.variance_.label in ("rbf" + suffix, "laplacian" + suffix)


def test_numpy_booleans_count_as_booleans():
    X, y = table(150)
    same(ridge(ard=np.True_).fit(X, y), ridge(ard=True).fit(X, y), X)


@pytest.mark.parametrize("penalty", [0.1, (1e-3, 1e-1, 10.0), np.array([0.5]), "0.01n"], ids=repr)
def test_penalties(penalty):
    X, y = table(150)
    model = ridge(penalty=penalty, ard="both").fit(X, y)
    grid = [0.5] if isinstance(penalty, str) else np.atleast_1d(penalty)
    gp = model.mean_.models[0].posterior
    assert np.isclose(gp.noise, grid).any()
    assert np.exp(gp.parameters[0]) == pytest.approx(1.0)  # sqrt(d / 2)
    rows = [row for row in model.search_ if row["stage"] == "mean"]
    assert [row["kernel"] for row in rows] == ["rbf/ridge"]
    assert rows[0]["score"] == pytest.approx(np.mean(model.mean_.heldout_residuals**2))


def test_the_best_penalty_of_a_grid_is_taken():
    X, y = table(150)
    scores = {}
    for penalty in (1e-4, 1e-1, 1e2):
        model = ridge(penalty=penalty).fit(X, y)
        scores[penalty] = rms(model.mean_.heldout_residuals)
    model = ridge(penalty=tuple(scores)).fit(X, y)
    assert model.mean_.models[0].posterior.noise == pytest.approx(min(scores, key=scores.get))


def test_the_papers_penalty_counts_the_rows_that_a_prediction_sees():
    X, y = table(100)
    model = ridge(penalty="0.01n", n_neighbors=10_000).fit(X, y)
    assert model.mean_.models[0].posterior.noise == pytest.approx(1.0)


@pytest.mark.parametrize("selection", ["nll", "misspecification", ("misspecification", "loo")])
def test_selections(selection, short_search):
    X, y = table(150)
    options = {"mean": "search", "variance": "search", "kernels": ("rbf", "matern12")}
    model = ridge(selection=selection, **options).fit(X, y)
    assert model.score(*table(500, seed=9)) > 0.8
    pair = selection if isinstance(selection, tuple) else (selection, selection)
    assert (model.search_.mean is not None) == (pair[0] == "misspecification")
    assert (model.search_.variance is not None) == (pair[1] == "misspecification")
    objective = "nll" if selection == "nll" else "loo"
    labels = [row["kernel"] for row in model.search_ if row["stage"] == "mean"]
    assert all(label.endswith("/" + objective) for label in labels)
    assert len(labels) == (1 if pair[0] == "misspecification" else 2)


def test_the_ratio_test_on_a_grid_of_penalties(short_search):
    options = {"mean": "search", "penalty": (1e-2, 1e-1), "selection": "misspecification"}
    model = ridge(kernels=("rbf", "laplacian"), **options).fit(*table(150))
    assert model.search_.mean is not None
    assert is_sane(model, table(50)[0])


@pytest.mark.parametrize("calibration", ["local", "scale", None])
@pytest.mark.parametrize("residuals", ["heldout", "insample"])
@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
def test_residuals_and_calibration(residuals, calibration, is_large, request):
    if is_large:
        request.getfixturevalue("large")
    X, y = table(300)
    model = ridge(residuals=residuals, calibration=calibration).fit(X, y)
    assert is_sane(model, X)
    assert len(model.calibration_.z) == (150 if is_large else 300)
    if calibration is None:
        assert model.calibration_.factor == 1.0
    else:
        # Calibration is by held-out residuals, whatever trained the variance.
        covered = np.mean(np.abs(model.calibration_.z_calibrated) < 1.96)
        assert covered == pytest.approx(0.95, abs=0.02)


def test_in_sample_residuals_are_overconfident():
    X, y = table(300, 4)
    options = {"penalty": 1e-2, "calibration": None}
    heldout, insample = (ridge(residuals=r, **options).fit(X, y) for r in ("heldout", "insample"))
    new = table(500, 4, seed=9)[0]
    ratio = insample.predict(new, return_std=True)[1] / heldout.predict(new, return_std=True)[1]
    assert np.median(ratio) < 0.7


@pytest.mark.parametrize(
    "training",
    [
        Training(steps=10),
        Training(steps=0),
        Training(optimizer="adam", steps=30, lr=0.1, subsample=80),
        Training(optimizer="adamw", steps=30, schedule="cosine", subsample=1000),
    ],
    ids=lambda t: f"{t.optimizer}-{t.steps}-{t.subsample}",
)
@pytest.mark.parametrize("objective", ["heldout", "nll"])
@pytest.mark.parametrize("method", ["neighbors", "vecchia"])
def test_training(training, objective, method):
    X, y = table(200)
    model = ridge(method=method, training=training, variance_objective=objective).fit(X, y)
    assert model.score(*table(500, seed=9)) > 0.5
    assert is_sane(model, X)


def test_evaluations_on_a_subsample_are_not_reported_as_on_all_rows():
    report = ridge(training=Training(steps=5, subsample=50)).fit(*table(200)).fit_report_
    assert report.full_evaluations == report.full_factorisations == 0


@pytest.mark.parametrize("objective", ["heldout", "nll"])
def test_variance_objectives(objective):
    X, y = table(300)
    model = ridge(variance_objective=objective).fit(X, y)
    new, target = table(2000, seed=9)
    low, high = model.predict_interval(new).T
    assert 0.9 < np.mean((low < target) & (target < high)) < 0.99


def test_float32_is_close():
    X, y = table(200)
    mean, std = neighbors().fit(X, y).predict(X, return_std=True)
    mean32, std32 = neighbors(dtype="float32").fit(X, y).predict(X, return_std=True)
    assert mean32.dtype == std32.dtype == np.float64
    np.testing.assert_allclose(mean32, mean, atol=0.03)
    np.testing.assert_allclose(std32, std, rtol=0.1)


def test_an_observation_never_varies_less_than_the_noise_floor():
    X, _ = table(150)
    model = ridge(noise_floor=1e-2, calibration=None).fit(X, X[:, 0])
    assert model.predict(X, return_std=True)[1].min() >= 0.0999 * X[:, 0].std()


@pytest.mark.parametrize("method", ["neighbors", "vecchia"])
def test_from_paper_is_nothing_but_constructor_parameters(method, short_search):
    model = TwoStageGPRegressor.from_paper(method=method, random_state=0)
    assert clone(model).get_params() == model.get_params()
    assert model.get_params() == TwoStageGPRegressor(**model.get_params()).get_params()
    assert model.training == Training(
        optimizer="adamw", steps=200, lr=0.1, schedule="cosine", subsample=1000
    )
    assert TwoStageGPRegressor.from_paper().training.subsample == 500
    assert TwoStageGPRegressor.from_paper(method=method, training=None).training is None
    X, y = table(80)
    fitted, again = clone(model).fit(X, y), clone(model).fit(X, y)
    assert fitted.fit_report_.method == method
    assert fitted.score(X, y) > 0.5
    assert fitted.calibration_.factor == 1.0
    same(fitted, again, X, rtol=0, atol=0)


@pytest.mark.parametrize("k", [0, -1, 2.5, 50.0, True, None, "many", np.array([5])], ids=repr)
def test_a_wrong_number_of_neighbours_is_named(k):
    for method in ("neighbors", "auto", "exact"):
        with pytest.raises(InputError, match="whole number of at least 1") as caught:
            neighbors(method=method, n_neighbors=k).fit(*table(20))
        assert f"n_neighbors={k!r}" in str(caught.value)


def test_a_number_of_neighbours_of_numpy():
    X, y = table(100)
    same(ridge(n_neighbors=np.int32(9)).fit(X, y), ridge(n_neighbors=9).fit(X, y), X)


# --- which method --------------------------------------------------------------------------------


def test_auto_takes_the_exact_method_for_small_tables():
    report = ridge(method="auto").fit(*table(100)).fit_report_
    assert report.method == "exact"
    assert report.method_reason == "100 distinct rows: about 0 s"


def test_auto_takes_neighbours_where_the_exact_method_would_take_too_long(monkeypatch):
    X, y = table(100)
    seconds = choice.exact_seconds(100, torch.device("cpu"))
    monkeypatch.setattr(choice, "_PATIENCE", 0.99 * seconds)
    model = ridge(method="auto").fit(X, y)
    assert model.fit_report_.method == "neighbors"
    assert "an exact fit of 100 distinct rows would take about" in model.fit_report_.method_reason
    same(model, ridge().fit(X, y), X, rtol=0, atol=0)
    monkeypatch.setattr(choice, "_PATIENCE", 1.01 * seconds)
    assert ridge(method="auto").fit(X, y).fit_report_.method == "exact"


def test_auto_counts_distinct_rows(monkeypatch):
    X, y = table(100)
    monkeypatch.setattr(choice, "_PATIENCE", choice.exact_seconds(100, torch.device("cpu")))
    model = ridge(method="auto").fit(np.vstack([X, X]), np.append(y, y + 0.1))
    assert model.fit_report_.method == "exact"


def test_auto_takes_neighbours_where_memory_is_short(monkeypatch):
    monkeypatch.setattr(choice, "available_bytes", lambda device: 1000)
    report = ridge(method="auto").fit(*table(100)).fit_report_
    assert report.method == "neighbors"
    assert "GiB" in report.method_reason
    monkeypatch.setattr(choice, "available_bytes", lambda device: None)
    assert ridge(method="auto").fit(*table(100)).fit_report_.method == "exact"


# --- Vecchia's likelihood ------------------------------------------------------------------------


def make_rows(kind, n=40):
    """Distinct rows: plain, or with copies, weights below one and known noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.3 * rng.normal(size=n)
    plain = kind == "plain"
    c = np.ones(n) if plain else rng.choice([0.5, 1.0, 2.0, 3.0], size=n)
    q = np.where(c > 1.0, rng.uniform(0.0, 0.3, size=n), 0.0)
    extra = np.zeros(n) if plain else rng.choice([0.0, 0.3], size=n)
    return Rows(*(torch.as_tensor(v) for v in (X, y, c, q, extra)))


KERNEL = NamedKernel("matern32", 2, ard=True)
PARAMETERS = np.log([0.7, 1.6, 1.4, 0.15])
ORDER = torch.as_tensor(np.random.default_rng(5).permutation(40))


@pytest.mark.parametrize("name", ["rbf", "matern12", "laplacian"])
@pytest.mark.parametrize("use_prior", [True, False])
@pytest.mark.parametrize("kind", ["plain", "weights"])
def test_with_all_rows_before_it_vecchias_likelihood_is_the_exact_one(kind, use_prior, name):
    rows, kernel = make_rows(kind), NamedKernel(name, 2, ard=True)
    engine = NeighborEngine(rows, n_neighbors=40, use_prior=use_prior, order=ORDER)
    problem = engine.local_problem(kernel, "nll", PARAMETERS, torch.arange(40))
    exact = ExactEngine(rows, use_prior=use_prior).problem(kernel, "nll")
    for parameters in (PARAMETERS, PARAMETERS + np.array([0.5, -0.3, 0.2, 1.0])):
        value, gradient = problem(parameters)
        expected, slope = exact(parameters)
        assert value == pytest.approx(expected, abs=1e-8)
        np.testing.assert_allclose(gradient, slope, atol=1e-8)


def test_neighbours_come_before_their_row():
    rows = make_rows("plain")
    engine = NeighborEngine(rows, n_neighbors=6, order=ORDER)
    index = torch.tensor([3, 30, 11, int(ORDER.argmin())])
    near = engine.near_before(KERNEL, PARAMETERS[:-1], index)
    assert near.shape == (4, 6)
    Z = rows.X.numpy() / np.exp(PARAMETERS[:2])
    for i, found in zip(index.tolist(), near.tolist(), strict=True):
        before = np.flatnonzero(ORDER.numpy() < int(ORDER[i]))
        nearest = before[np.argsort(((Z[before] - Z[i]) ** 2).sum(1))][:6]
        assert [j for j in found if j >= 0] == nearest.tolist()
    assert (near[-1] == -1).all()  # the first row has no one before it


def test_a_subset_keeps_the_order_of_its_rows():
    index = np.array([4, 9, 20, 21, 33])
    part = NeighborEngine(make_rows("plain"), n_neighbors=3, order=ORDER).subset(index)
    assert torch.equal(part.order, ORDER[torch.as_tensor(index)])
    near = part.near_before(KERNEL, PARAMETERS[:-1], torch.arange(5))
    for i, found in enumerate(near.tolist()):
        known = [j for j in found if j >= 0]
        assert len(known) == min(3, int((part.order < part.order[i]).sum()))
        assert all(part.order[j] < part.order[i] for j in known)


def test_vecchia_is_another_way_to_train():
    X, y = table(300)
    new, target = table(2000, seed=9)
    near = ridge(kernels=("rbf", "matern32"), mean="search").fit(X, y)
    vecchia = ridge(kernels=("rbf", "matern32"), mean="search", method="vecchia").fit(X, y)
    labels = {row["kernel"] for row in vecchia.search_ if row["stage"] == "mean"}
    assert labels == {"rbf/nll", "matern32/nll"}
    assert np.any(vecchia.predict(new) != near.predict(new))
    assert rms(vecchia.predict(new) - target) < 1.1 * rms(near.predict(new) - target)
    low, high = vecchia.predict_interval(new).T
    assert 0.9 < np.mean((low < target) & (target < high)) < 0.98


def test_vecchia_on_a_large_table(large):
    X, y = table(500)
    model = neighbors(method="vecchia").fit(X, y, groups=np.arange(500) // 2)
    assert model.score(*table(500, seed=9)) > 0.8


# --- rows, folds and penalties -------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**16))
def test_a_subset_of_merged_rows_is_what_merging_its_rows_gives(seed):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 4, size=(40, 2)) / 7.0
    y, weight = rng.normal(size=40), rng.integers(1, 3, size=40) * 1.0
    extra, groups = rng.integers(0, 2, size=40) / 3.0, rng.integers(0, 3, size=40)
    merged = merge_rows(X, y, weight, extra, groups)
    index = rng.permutation(len(merged.c))[: rng.integers(1, len(merged.c) + 1)]
    part, rows = merged.subset(index), merged.rows_of(index)
    np.testing.assert_array_equal(rows, np.flatnonzero(np.isin(merged.inverse, index)))
    np.testing.assert_array_equal(part.X[part.inverse], X[rows])
    np.testing.assert_allclose(part.y, y[rows], atol=1e-14)
    np.testing.assert_array_equal(part.weight, weight[rows])
    np.testing.assert_array_equal(part.extra[part.inverse], extra[rows])
    np.testing.assert_array_equal(part.groups[part.inverse], groups[rows])
    for name in ("t", "c", "q"):
        np.testing.assert_array_equal(getattr(part, name), getattr(merged, name)[index])
    residual, slope = rng.normal(size=(2, len(merged.c)))
    np.testing.assert_array_equal(
        part.unmerge(residual[index], slope[index]), merged.unmerge(residual, slope)[rows]
    )
    # Taken in order, it is what merging those rows alone gives.
    index = np.sort(index)
    part, rows = merged.subset(index), merged.rows_of(index)
    alone = merge_rows(X[rows], y[rows], weight[rows], extra[rows], groups[rows])
    for name in ("X", "t", "c", "q", "extra", "groups", "inverse", "deviation", "weight"):
        np.testing.assert_array_equal(getattr(part, name), getattr(alone, name), err_msg=name)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**16),
    levels=st.sampled_from([1, 2, 5, 300, 10**6]),
    columns=st.integers(1, 4),
    n=st.integers(1, 300),
)
def test_rows_are_sorted_by_their_columns_one_after_the_other(seed, levels, columns, n):
    rng = np.random.default_rng(seed)
    key = rng.integers(0, levels, size=(n, columns)) / 3.0
    np.testing.assert_array_equal(_lexicographic(key), np.lexsort(key.T[::-1]))


def test_merging_rows_of_any_size_is_silent():
    merged = merge_rows(np.array([[1e308], [-1e308]]), np.zeros(2))
    np.testing.assert_array_equal(merged.X[:, 0], [-1e308, 1e308])


def test_rows_in_no_fold_are_trained_on_and_never_held_out():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 2)), rng.normal(size=30)
    folds = np.where(np.arange(30) < 10, np.arange(30) % 2, -1)
    mean = RegressorMean(LinearRegression(), X, y, np.ones(30), folds, 0)
    assert np.isnan(mean.heldout_residuals[10:]).all()
    for fold in (0, 1):
        out = folds == fold
        model = LinearRegression().fit(X[~out], y[~out])
        np.testing.assert_allclose(mean.heldout_residuals[out], y[out] - model.predict(X[out]))
    everything = LinearRegression().fit(X, y)
    np.testing.assert_allclose(mean.predict(torch.as_tensor(X)).numpy(), everything.predict(X))


def test_only_wanted_residuals_are_made(witness):
    y = np.arange(30.0)
    folds = np.arange(30) % 3
    wanted = np.array([0, 3, 4])  # of folds 0 and 1
    mean = RegressorMean(witness, np.zeros((30, 1)), y, np.ones(30), folds, 0, wanted=wanted)
    assert [len(seen) for seen in Witness.seen] == [20, 20, 30]
    assert np.flatnonzero(~np.isnan(mean.heldout_residuals)).tolist() == wanted.tolist()
    np.testing.assert_allclose(mean.heldout_residuals[[0, 3]], y[[0, 3]] - y[folds != 0].mean())


def test_without_a_refit_the_model_of_the_only_fold_predicts(witness):
    y = np.arange(10.0)
    folds = np.where(y < 3, 0, -1)
    mean = RegressorMean(witness, np.zeros((10, 1)), y, np.ones(10), folds, 0, refit=False)
    assert len(Witness.seen) == 1
    assert mean.predict(torch.zeros(2, 1)).tolist() == [6.0, 6.0]
    np.testing.assert_allclose(mean.heldout_residuals[:3], y[:3] - 6.0)
    # Where no one is held out there is no model to keep.
    RegressorMean(witness, np.zeros((10, 1)), y, np.ones(10), np.full(10, -1), 0, refit=False)
    assert [len(seen) for seen in Witness.seen] == [7, 10]


@pytest.mark.parametrize("best", [-1.6, -1.0, -0.3, 0.0, 0.4])
def test_the_best_shift_is_the_bottom_of_a_parabola(best):
    errors = [2.0 + 3.0 * (shift - best) ** 2 for shift in PENALTY_SHIFTS]
    at_the_edge = best < -1.5
    assert best_shift(errors) == pytest.approx(PENALTY_SHIFTS[0] if at_the_edge else best)


def test_shifts_that_failed_are_not_taken():
    assert best_shift([math.inf, 1.0, 2.0, 3.0]) == PENALTY_SHIFTS[1]
    assert best_shift([3.0, 2.0, 1.0, math.inf]) == PENALTY_SHIFTS[2]
    assert best_shift([1.0, 1.0, 1.0, 1.0]) == PENALTY_SHIFTS[0]
