"""The method for large tables on small ones: accuracy, coverage, held-out rows, shared searches."""

from dataclasses import replace

import numpy as np
import pytest
from neighbor_fits import LARGE, NOISE, Witness, is_sane, neighbors, ridge, rms, table, truth
from threadpoolctl import threadpool_info

from twostagegp import TwoStageGPRegressor
from twostagegp.pipeline.held_rows import HeldRows
from twostagegp.pipeline.mean.models import ConstantMean, RidgeMean
from twostagegp.pipeline.settings import DEFAULTS, MeanSettings, Settings

# --- how good it is ------------------------------------------------------------------------------


def test_a_smooth_function_is_learned(fitted, fresh):
    X, y = fresh
    assert rms(fitted.predict(X) - truth(X)) < 0.5 * NOISE
    assert rms(fitted.predict(X) - y) < 0.35 * y.std()


def test_errors_are_close_to_those_of_the_exact_method(fitted, fresh):
    X, y = fresh
    # Refits change the held-out residuals, not the mean.
    quick = Settings(mean=MeanSettings(refit_rows=0))
    options = {"mean": "rbf", "variance": "rbf", "ard": True, "calibration": "scale"}
    exact = TwoStageGPRegressor("exact", **options, random_state=0, settings=quick)
    exact.fit(*table(600, 3))
    assert rms(fitted.predict(X) - y) < 1.05 * rms(exact.predict(X) - y)


def test_intervals_hold_on_fresh_rows(fitted, fresh):
    X, y = fresh
    low, high = fitted.predict_interval(X, level=0.95).T
    assert 0.9 < np.mean((low < y) & (y < high)) < 0.98


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_pure_noise_is_predicted_nearly_as_well_as_by_the_constant(seed):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(1500, 4)), rng.normal(size=1500)
    model = neighbors(kernels=("laplacian",), ard=True, random_state=seed, settings=None)
    model.fit(X, y)
    new, noise = rng.normal(size=(20_000, 4)), rng.normal(size=20_000)
    mean, std = model.predict(new, return_std=True)
    assert rms(noise - mean) < 1.003 * rms(noise - y.mean())
    assert 0.9 < np.median(std) < 1.1


def test_the_stack_has_convex_weights_and_few_ridges(fitted):
    mean = fitted.mean_
    ridges = [m for m in mean.models if isinstance(m, RidgeMean)]
    assert 1 <= len(ridges) <= DEFAULTS.sample.most_ridges
    assert [m.label for m in mean.models[-2:]] == ["HistGradientBoostingRegressor", "constant"]
    assert mean.weights.min() >= 0.0
    assert mean.weights.sum() == pytest.approx(1.0)
    weights = mean.weights[: len(ridges)]
    assert (weights >= DEFAULTS.sample.least_ridge_weight).all()


def test_the_report_describes_the_fit(fitted):
    report = fitted.fit_report_
    assert (report.method, report.method_reason) == ("neighbors", "asked for")
    assert report.full_factorizations == report.full_evaluations == 0
    assert report.evaluations > 0
    assert report.mean == fitted.mean_.label
    tried = [row for row in fitted.search_ if row["stage"] == "mean"]
    assert len(tried) == 4
    assert sum(row["weight"] for row in tried) == pytest.approx(fitted.mean_.weights[:-2].sum())
    assert set(fitted.relevance_) == {"x0", "x1", "x2"}
    assert sum(fitted.relevance_.values()) == pytest.approx(1.0)
    assert max(fitted.relevance_, key=fitted.relevance_.get) == "x0"
    assert str(report)


# --- large tables --------------------------------------------------------------------------------


def test_a_large_table_is_learned_too():
    model = neighbors(kernels=("rbf", "matern32"), ard="both", settings=LARGE).fit(*table(900))
    X, y = table(4000, seed=9)
    assert rms(model.predict(X) - y) < 1.1 * NOISE
    low, high = model.predict_interval(X).T
    # 150 held-out rows with an outlier: intervals allow for heavier tails than the true ones.
    assert 0.93 < np.mean((low < y) & (y < high)) < 0.995


def test_only_a_sample_is_held_out():
    X, y = table(500)
    model = neighbors(settings=LARGE).fit(X, y)
    assert model.mean_.heldout_residuals.shape == model.calibration_.z.shape == (150,)
    assert model.variance_.heldout_variance.shape == (150,)
    for part in model.mean_.models:
        assert part.heldout_residuals.shape == (150,)
        assert np.isfinite(part.heldout_residuals).all()
    # A prediction is still made from all rows.
    assert len(model.variance_.posterior.rows) == 500


def test_residuals_of_the_sample_equal_the_closed_form():
    X, y = table(500)
    X[3:8], y[3:8] = X[2], y[2] + np.arange(5.0)  # several copies of one row
    model = ridge(mean=["rbf", "constant"], settings=LARGE).fit(X, y)
    data = model.fitted_.data[0]
    # The sample of the fit, drawn again.
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    sample = HeldRows.draw(data, 150, np.random.default_rng(seed))
    expected = ConstantMean(data.merged).heldout_residuals[sample.table_rows]
    np.testing.assert_array_equal(model.mean_.models[-1].heldout_residuals, expected)
    gp = model.mean_.models[0]
    held = gp.posterior.heldout()
    unmerged = data.merged.unmerge(held.residual.numpy(), held.slope.numpy())
    np.testing.assert_allclose(gp.heldout_residuals, unmerged[sample.table_rows], atol=1e-10)


@pytest.mark.parametrize(
    ("n", "fits"),
    [(50, [40] * 5 + [50]), (99, [66] * 3 + [99]), (540, [390, 540]), (600, [450])],
    ids=["small", "medium", "larger", "large"],
)
def test_a_regressor_is_fitted_the_less_often_the_larger_the_table(witness, n, fits):
    X, y = table(n)
    model = ridge(mean=witness, settings=LARGE).fit(X, y)
    assert [len(seen) for seen in Witness.seen] == fits
    t = model.fitted_.data[0].merged.y
    held = model.mean_.heldout_residuals
    if n > 500:
        # The first fit was made without the sample.
        sample = np.flatnonzero(~np.isin(t, Witness.seen[0]))
        np.testing.assert_allclose(held, t[sample] - Witness.seen[0].mean(), atol=1e-12)
    else:
        assert held.shape == (n,)
    # Predictions come from the last fit.
    expected = y.mean() + y.std() * Witness.seen[-1].mean()
    np.testing.assert_allclose(model.predict(X), expected, atol=1e-9)


@pytest.mark.parametrize(
    ("sample", "size", "fits"),
    [(150, 1, 1), (10, 5, 1), (150, 5, 4), (150, 300, 3)],
    ids=["single", "few", "many", "halves"],
)
def test_a_regressor_is_not_fitted_to_the_groups_it_predicts(witness, sample, size, fits):
    """Groups are left out once if that leaves most rows; otherwise they are cross-fitted."""
    settings = replace(LARGE, sample=replace(LARGE.sample, rows=sample))
    X, y = table(600)
    groups = np.arange(600) // size
    model = ridge(mean=witness, settings=settings).fit(X, y, groups=groups)
    assert len(Witness.seen) == fits
    t, expected = model.fitted_.data[0].merged.y, np.full(600, np.inf)
    for seen in Witness.seen[: max(1, fits - 1)]:
        inside = np.isin(t, seen)
        assert not np.isin(groups[inside], groups[~inside]).any()
        expected[~inside] = t[~inside] - seen.mean()
    held = model.mean_.heldout_residuals
    assert held.shape == (sample,)
    assert np.abs(expected[:, None] - held).min(0).max() < 1e-12


class Counted(Witness):
    """A regressor that records the number of OpenMP threads."""

    def fit(self, X, y):
        libraries = [found for found in threadpool_info() if found["user_api"] == "openmp"]
        Witness.seen.append({found["num_threads"] for found in libraries})
        self.mean_ = float(np.mean(y))
        return self


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("rows", [100, 50])
def test_a_regressor_gets_as_many_threads_as_the_fit(witness, rows, n_jobs):
    """It gets one thread up to ``one_thread_rows`` rows, and ``n_jobs`` threads above."""
    settings = replace(LARGE, sample=replace(LARGE.sample, one_thread_rows=99))
    before = [found["num_threads"] for found in threadpool_info()]
    ridge(mean=Counted(), n_jobs=n_jobs, settings=settings).fit(*table(rows))
    assert Witness.seen
    assert all(seen == {n_jobs if rows == 100 else 1} for seen in Witness.seen)
    assert [found["num_threads"] for found in threadpool_info()] == before


def test_a_large_table_with_few_distinct_rows_is_fitted():
    """There are too many rows for a cross-fit, and fewer distinct rows than in a sample."""
    X, y = table(120)
    X, y = np.repeat(X, 5, axis=0), np.repeat(y, 5)
    y = y + NOISE * np.random.default_rng(1).normal(size=600)
    model = neighbors(settings=LARGE).fit(X, y)
    assert is_sane(model, X)


def test_a_sample_that_is_most_of_the_table_leaves_enough_to_a_regressor(witness):
    X, y = table(160)
    ridge(mean=witness, settings=LARGE).fit(X, y)
    assert min(len(seen) for seen in Witness.seen) >= 80


# --- one search per metric -----------------------------------------------------------------------


def test_the_variance_shares_the_means_metric(searches):
    X, y = table(150, 3)
    model = ridge(mean="search", variance="search", kernels=("rbf", "matern32"), ard="both")
    model.fit(X, y)
    assert model.variance_.label.endswith("-shaped")
    assert model.variance_.posterior.metric == model.mean_.models[0].posterior.metric
    searches.clear()
    model.predict(X[:100], return_std=True)
    assert searches == [100]
    searches.clear()
    model.fitted_.moments(X[:100], chunk_rows=40)
    assert searches == [40, 40, 20]


def test_neighbours_are_searched_once_per_metric(fitted, searches):
    X = table(50, 3, seed=5)[0]
    ridges = [m.posterior for m in fitted.mean_.models if isinstance(m, RidgeMean)]
    metrics = {gp.metric for gp in ridges}
    assert fitted.variance_.posterior.metric in metrics
    fitted.predict(X, return_std=True)
    assert searches == [50] * len(metrics)


def test_several_targets_do_not_mix(searches):
    X, y = table(50)
    Y = np.column_stack([y, np.cos(3 * X[:, 1]), -5.0 * y])
    model = ridge(ard=True).fit(X, Y)
    searches.clear()
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (50, 3)
    assert model.predict_interval(X).shape == (50, 3, 2)
    assert len(model.fit_report_) == 3
    for k in range(3):
        one_mean, one_std = ridge(ard=True).fit(X, Y[:, k]).predict(X, return_std=True)
        np.testing.assert_array_equal(mean[:, k], one_mean)
        np.testing.assert_array_equal(std[:, k], one_std)
