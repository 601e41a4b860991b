"""Every package once, through its public names and on small tables: the core of ``make check``."""

import numpy as np
import pandas as pd
import pytest

import twostagegp
from twostagegp import (
    CVPlusRegressor,
    ExactGPRegressor,
    GPNNRegressor,
    TableEncoder,
    Training,
    TwoStageGPClassifier,
    TwoStageGPRegressor,
    datasets,
    metrics,
)
from twostagegp.errors import InputError, TwoStageGPError

NOISE = 0.1
#: One candidate of the mean and of the variance, so that a fit takes a fraction of a second.
SMALL = {"kernels": ("rbf",), "ard": False, "random_state": 0}


def table(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, size=(n, 2))
    return X, np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + NOISE * rng.normal(size=n)


X, Y = table(90)
X_NEW, Y_NEW = table(200, seed=1)


@pytest.fixture(scope="module")
def exact():
    return TwoStageGPRegressor("exact", **SMALL).fit(X, Y)


@pytest.fixture(scope="module")
def neighbors():
    return TwoStageGPRegressor("neighbors", n_neighbors=20, **SMALL).fit(*table(300))


@pytest.fixture(scope="module")
def classifier():
    return TwoStageGPClassifier(random_state=0).fit(X, np.where(Y > 0.0, "high", "low"))


@pytest.mark.parametrize("name", ["exact", "neighbors"])
def test_predictions_are_accurate_and_intervals_cover(name, request):
    model = request.getfixturevalue(name)
    mean, std = model.predict(X_NEW, return_std=True)
    assert metrics.rmse(Y_NEW, mean) < 2.0 * NOISE
    assert ((std > 0.5 * NOISE) & (std < 10.0 * NOISE)).all()
    lower, upper = model.predict_interval(X_NEW, level=0.9).T
    assert 0.8 < ((lower <= Y_NEW) & (upper >= Y_NEW)).mean() < 0.98


def test_the_methods_of_the_distribution_agree(exact):
    quantiles = exact.predict_quantiles(X_NEW[:5], [0.05, 0.5, 0.95])
    np.testing.assert_allclose(quantiles[:, [0, 2]], exact.predict_interval(X_NEW[:5], level=0.9))
    np.testing.assert_allclose(exact.predict_cdf(X_NEW[:5], quantiles[:, 1]), 0.5, atol=1e-6)
    assert np.isfinite(exact.predict_logpdf(X_NEW, Y_NEW)).all()
    assert exact.sample_y(X_NEW[:5], n_samples=3, random_state=0).shape == (5, 3)


def test_the_same_seed_gives_the_same_predictions(exact):
    again = TwoStageGPRegressor("exact", **SMALL).fit(X, Y)
    assert np.array_equal(again.predict(X_NEW), exact.predict(X_NEW))


def test_the_fit_report_says_what_was_chosen(exact):
    assert "exact" in str(exact.fit_report_)


def test_new_rows_update_a_model():
    model = TwoStageGPRegressor("exact", **SMALL).fit(X[:60], Y[:60])
    before = metrics.rmse(Y_NEW, model.predict(X_NEW))
    model.update(X[60:], Y[60:])
    assert metrics.rmse(Y_NEW, model.predict(X_NEW)) < 1.2 * before


def test_groups_weights_and_several_targets_are_accepted():
    groups, weight = np.arange(90) // 3, np.linspace(0.5, 1.5, 90)
    model = TwoStageGPRegressor("exact", **SMALL)
    model.fit(X, np.column_stack([Y, -Y]), groups=groups, sample_weight=weight)
    mean = model.predict(X_NEW)
    assert mean.shape == (200, 2)
    np.testing.assert_allclose(mean[:, 1], -mean[:, 0], atol=0.05)


@pytest.mark.parametrize(
    "model",
    [
        TwoStageGPRegressor.from_paper(kernels=("rbf",), random_state=0),
        ExactGPRegressor("rbf", training=Training("adam", steps=20), random_state=0),
        GPNNRegressor(random_state=0),
        CVPlusRegressor(ExactGPRegressor("rbf", random_state=0), n_folds=3, random_state=0),
    ],
    ids=["paper", "exact GP", "GPNN", "CV+"],
)
def test_baselines_and_the_papers_settings_fit(model):
    model.fit(X, Y)
    assert metrics.rmse(Y_NEW, model.predict(X_NEW)) < 0.5
    assert model.predict_interval(X_NEW).shape == (200, 2)


def test_classes_have_probabilities(classifier):
    proba = classifier.predict_proba(X_NEW)
    np.testing.assert_allclose(proba.sum(1), 1.0)
    assert (classifier.predict(X_NEW) == np.where(Y_NEW > 0.0, "high", "low")).mean() > 0.85


def test_a_saved_model_predicts_the_same(exact, classifier, tmp_path):
    for name, model in (("regressor", exact), ("classifier", classifier)):
        model.save(tmp_path / name)
        loaded = twostagegp.load(tmp_path / name)
        assert np.array_equal(loaded.predict(X_NEW), model.predict(X_NEW))


def test_a_report_is_one_page(exact, tmp_path):
    twostagegp.report.write_report(exact, X_NEW, Y_NEW, tmp_path / "report.html")
    assert "</html>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_model_is_drawn(exact):
    assert exact.plot(X_NEW, Y_NEW) is not None


def test_gpytorch_gets_the_same_mean(exact):
    torch = pytest.importorskip("torch")
    posterior = exact.to_gpytorch()(torch.as_tensor(X_NEW[:5]))
    np.testing.assert_allclose(posterior.mean.detach(), exact.predict(X_NEW[:5]), atol=1e-6)


def test_predictions_for_dask_arrays_are_lazy(exact):
    da = pytest.importorskip("dask.array")
    lazy = exact.predict(da.from_array(X_NEW, chunks=(100, 2)))
    np.testing.assert_allclose(lazy.compute(scheduler="synchronous"), exact.predict(X_NEW))


def test_a_kernel_search_and_a_misspecification_test_run():
    options = {"n_repeats": 4, "subsample": 60, "random_state": 0}
    search = twostagegp.search_kernel(X, Y, ("rbf", "matern12"), **options)
    assert search.best_label == "rbf"
    check = twostagegp.check_misspecification(X, Y, "rbf", test="ratio", **options)
    assert 0.5 < check.p_hat <= 1.0


def test_the_command_line_fits_and_predicts(tmp_path):
    testing = pytest.importorskip("typer.testing")
    from twostagegp.cli.app import app

    frame = pd.DataFrame(X, columns=["a", "b"]).assign(y=Y)
    frame.to_csv(tmp_path / "train.csv", index=False)
    model, output = str(tmp_path / "model"), str(tmp_path / "predicted.csv")
    train = str(tmp_path / "train.csv")
    run = testing.CliRunner().invoke
    fitted = run(app, ["fit", train, "--target", "y", "--output", model, "--option", "kernels=rbf"])
    assert fitted.exit_code == 0, fitted.output
    predicted = run(app, ["predict", model, train, "--output", output])
    assert predicted.exit_code == 0, predicted.output
    assert len(pd.read_csv(output)) == 90


def test_tables_of_any_kind_become_numbers_and_rows_are_spread():
    frame = pd.DataFrame({"a": [1.0, 2.0, np.nan], "b": ["x", "y", "x"]})
    assert np.isfinite(np.asarray(TableEncoder().fit_transform(frame), dtype=float)).all()
    chosen = twostagegp.farthest_point_sampling(X, 10)
    assert len(set(chosen.tolist())) == 10


def test_toy_tables_need_no_download():
    inputs, targets = datasets.toy(n=20)
    assert len(inputs) == len(targets) == 20


def test_encoders_load_nothing_before_they_are_used():
    encoder = twostagegp.foundation.TextEncoder()
    assert encoder.get_params()


def test_errors_name_the_value_and_are_ours():
    gaps = X.copy()
    gaps[3, 1] = np.nan
    with pytest.raises(InputError, match="row 3, column 'x1'"):
        TwoStageGPRegressor().fit(gaps, Y)
    with pytest.raises(TwoStageGPError, match="device='abacus'"):
        TwoStageGPRegressor(device="abacus").fit(X, Y)
