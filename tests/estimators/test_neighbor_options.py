"""Every option of the method for large tables."""

import pickle

import gpytorch.kernels as gk
import numpy as np
import pytest
from neighbor_fits import (
    LARGE,
    SHORT_SEARCH,
    SHORT_TREES,
    is_sane,
    neighbors,
    ridge,
    rms,
    same,
    table,
    truth,
)
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression, Ridge

from twostagegp import Training, TwoStageGPRegressor
from twostagegp.errors import InputError

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
    model = ridge(method=method, mean=mean, n_neighbors=20, calibration="scale").fit(X, y)
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
def test_gpytorch_kernels_learn(method, mean):
    X, y = table(60)
    new = table(100, seed=9)[0]
    model = ridge(method=method, mean=mean, n_neighbors=10, settings=LARGE).fit(X, y)
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
    options = {"kernels": ("rbf", "matern52"), "n_neighbors": 20, "calibration": "scale"}
    model = ridge(variance=variance, ard=ard, **options).fit(X, y)
    near = model.predict(X, return_std=True)[1]
    far = model.predict(X + 50.0, return_std=True)[1]
    assert np.all(near > 0)
    assert far.mean() >= near.mean()
    if isinstance(variance, str) and variance != "search":
        assert model.variance_.kernel.name == variance


@pytest.mark.parametrize("variance", [gk.RBFKernel(), ["matern32", SUM]], ids=["one", "list"])
@pytest.mark.parametrize("ard", [False, "both"])
def test_gpytorch_variances(variance, ard):
    X, y = table(60)
    model = ridge(variance=variance, ard=ard, n_neighbors=10, settings=LARGE).fit(X, y)
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
    X, y = table(60)
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
        model = ridge(penalty=penalty, calibration="scale").fit(X, y)
        scores[penalty] = rms(model.mean_.heldout_residuals)
    model = ridge(penalty=tuple(scores), calibration="scale").fit(X, y)
    assert model.mean_.models[0].posterior.noise == pytest.approx(min(scores, key=scores.get))


def test_the_papers_penalty_counts_the_rows_that_a_prediction_sees():
    X, y = table(100)
    model = ridge(penalty="0.01n", n_neighbors=10_000).fit(X, y)
    assert model.mean_.models[0].posterior.noise == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("selection", "objective"),
    [
        ("heldout", "nll"),
        ("misspecification", "loo"),
        (("misspecification", "heldout"), "loo"),
    ],
)
def test_selections(selection, objective):
    X, y = table(150)
    options = {"mean": "search", "variance": "search", "kernels": ("rbf", "matern12")}
    options |= {"selection": selection, "objective": objective}
    model = ridge(settings=SHORT_SEARCH, **options).fit(X, y)
    assert model.score(*table(500, seed=9)) > 0.8
    pair = selection if isinstance(selection, tuple) else (selection, selection)
    assert (model.search_.mean is not None) == (pair[0] == "misspecification")
    assert (model.search_.variance is not None) == (pair[1] == "misspecification")
    labels = [row["kernel"] for row in model.search_ if row["stage"] == "mean"]
    assert all(label.endswith("/" + objective) for label in labels)
    assert len(labels) == (1 if pair[0] == "misspecification" else 2)


def test_the_ratio_test_on_a_grid_of_penalties():
    options = {"mean": "search", "penalty": (1e-2, 1e-1), "selection": "misspecification"}
    model = ridge(kernels=("rbf", "laplacian"), settings=SHORT_SEARCH, **options)
    model.fit(*table(150))
    assert model.search_.mean is not None
    assert is_sane(model, table(50)[0])


@pytest.mark.parametrize("calibration", ["local", "scale", None])
@pytest.mark.parametrize("residuals", ["heldout", "insample"])
@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
def test_residuals_and_calibration(residuals, calibration, is_large):
    settings = LARGE if is_large else SHORT_TREES
    X, y = table(300)
    model = ridge(residuals=residuals, calibration=calibration, settings=settings).fit(X, y)
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
    options = {"training": training, "variance_objective": objective, "calibration": "scale"}
    model = ridge(method=method, **options).fit(X, y)
    assert model.score(*table(500, seed=9)) > 0.5
    assert is_sane(model, X)


def test_evaluations_on_a_subsample_are_not_reported_as_on_all_rows():
    report = ridge(training=Training(steps=5, subsample=50)).fit(*table(200)).fit_report_
    assert report.full_evaluations == report.full_factorizations == 0


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
def test_from_paper_is_nothing_but_constructor_parameters(method):
    model = TwoStageGPRegressor.from_paper(method=method, random_state=0, settings=SHORT_SEARCH)
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


def test_a_number_of_neighbours_of_numpy():
    X, y = table(100)
    same(ridge(n_neighbors=np.int32(9)).fit(X, y), ridge(n_neighbors=9).fit(X, y), X)
