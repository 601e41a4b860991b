"""The comparison on larger tables: folds, records, errors, tables, and every peer that is there."""

import importlib
import json

import numpy as np
import pytest

from benchmarks import large_sets, uci_large
from benchmarks.large_tables import METRICS, RMSE, Grid, report
from benchmarks.peers import MODELS, OURS, PEERS, Model, gpnn, ours, run
from benchmarks.peers.base import Fitted, NotInstalledError, Prediction, Scaling, Split
from measurements.runner import run as run_measurement
from twostagegp import ExactGPRegressor, datasets, metrics


def table(n=200, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, 5.0 + 2.0 * (X[:, 0] + np.sin(2.0 * X[:, 1]) + noise * rng.normal(size=n))


# --- folds ---------------------------------------------------------------------------------------


def data_of(splits, n=57):
    return datasets.RegressionData("tiny", np.zeros((n, 1)), np.zeros(n), ("x0",), splits, None)


STANDARD = (np.array([0, 5, 56]), np.array([5, 6]))


@pytest.mark.parametrize("splits", [(), STANDARD], ids=["random", "standard"])
def test_train_and_test_rows_are_disjoint_and_cover_the_table(splits):
    data = data_of(splits)
    assert large_sets.n_folds(data) == (len(splits) or 5)
    for fold in range(large_sets.n_folds(data)):
        train, test = large_sets.fold_rows(data, fold)
        assert sorted([*train, *test]) == list(range(57))
    with pytest.raises(IndexError):
        large_sets.fold_rows(data, large_sets.n_folds(data))


def test_random_folds_share_no_row_and_stay_the_same():
    folds = large_sets.random_folds(1000)
    assert [len(fold) for fold in folds] == [100] * 5
    assert len(set(np.concatenate(folds))) == 500
    for one, again in zip(folds, large_sets.random_folds(1000), strict=True):
        assert np.array_equal(one, again)


def test_standard_splits_are_taken_as_they_are():
    assert np.array_equal(large_sets.fold_rows(data_of(STANDARD), 1)[1], [5, 6])


def test_every_table_is_one_that_can_be_loaded():
    assert len(large_sets.SETS) == 9
    assert set(large_sets.SETS) <= set(datasets.names())


# --- one record ----------------------------------------------------------------------------------


class Trivial(Fitted):
    """The mean of the training target, its sd, and an interval that holds everything."""

    def __init__(self, y):
        self.y = y

    def predict(self, X):
        return Prediction(np.full(len(X), self.y.mean()), np.full(len(X), self.y.std()))

    def interval(self, X):
        return np.tile([self.y.min() - 9.0, self.y.max() + 9.0], (len(X), 1))

    def own_scores(self, X, y):
        return {"nlpd_own": 1.5}


def trivial(X, y, seed):
    return Trivial(y)


class Broken(Trivial):
    def predict(self, X):
        return Prediction(np.full(len(X), np.nan), np.ones(len(X)))


FIELDS = {
    *("rmse", "nlpd", "crps", "qice", "qice_floor", "hc_rmse", "lc_rmse"),
    *("coverage_50", "coverage_80", "coverage_95", "coverage_99"),
    *("fit_cpu", "fit_wall", "predict_cpu", "predict_wall", "predictions_a_second"),
    *("peak_mib", "before_mib", "own_interval"),
}
FOLD_FIELDS = {"n_train", "n_test", "d", "version", "code"}


@pytest.fixture
def bike(tmp_path, monkeypatch):
    """A small table in the place of bike."""
    X, y = table(80)
    np.savez(tmp_path / "bike.npz", X=X, y=y, test_0=np.arange(20), test_1=np.arange(20, 40))
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(tmp_path))
    return X, y


def use(monkeypatch, fit, **changed):
    """Put a function in the place of the models."""
    known = Model("a test", "numpy", "none:none", **changed)
    monkeypatch.setattr(Model, "load", lambda self: fit)
    monkeypatch.setattr(run, "MODELS", {"trivial": known})


def test_a_record_has_every_field_and_scores_of_the_standardised_target(bike, monkeypatch):
    use(monkeypatch, trivial)
    record = run.measure_fold("trivial", "bike", 0)
    assert set(record) == FIELDS | FOLD_FIELDS | {"nlpd_own"}
    _, y = bike
    scale = y[20:].std()
    assert record["rmse"] == pytest.approx(np.sqrt(np.mean((y[:20] - y[20:].mean()) ** 2)) / scale)
    expected = metrics.nlpd((y[:20] - y[20:].mean()) / scale, np.zeros(20), np.ones(20))
    assert record["nlpd"] == pytest.approx(expected)
    assert record["coverage_95"] == 1.0  # the model's own interval, not the Gaussian's
    assert record["qice_floor"] == metrics.qice_floor(20)
    assert (record["n_train"], record["n_test"], record["d"]) == (60, 20, 3)
    assert record["hc_rmse"] == record["lc_rmse"] == record["rmse"]
    assert record["peak_mib"] > 10.0
    json.dumps(record, allow_nan=False)


def test_without_an_interval_of_its_own_coverage_is_the_gaussians(monkeypatch):
    X, y = table()
    monkeypatch.setattr(Trivial, "interval", lambda self, X: None)
    record = run.measure(trivial, X, y, X, y, 0)
    assert record["coverage_95"] == metrics.coverage(
        y, np.full(200, y.mean()), np.full(200, y.std())
    )
    assert record["own_interval"] is False


def test_our_records_name_the_state_of_the_source(bike, monkeypatch):
    use(monkeypatch, trivial, ours=True)
    assert len(run.measure_fold("trivial", "bike", 0)["code"]) == 10


def test_predictions_that_are_no_numbers_are_recorded_as_such(bike, monkeypatch):
    use(monkeypatch, lambda X, y, seed: Broken(y))
    record = run.measure_fold("trivial", "bike", 0)
    assert record["error"] == "diverged: 20 of 20 predictions are unusable"
    assert record["fit_cpu"] >= 0.0


def test_a_missing_package_is_told_apart():
    missing = Model("none", "no-such-package", "no_such_module:fit")
    assert missing.version() is None
    with pytest.raises(NotInstalledError, match="not installed: benchmarks"):
        missing.load()


# --- a process of its own ------------------------------------------------------------------------


@pytest.mark.slow
def test_a_fit_in_a_process_of_its_own(bike, tmp_path):
    arguments = ["--sets", "bike", "--models", "sklearn_gpr", "--folds", "0"]
    arguments += ["--results", str(tmp_path / "results")]
    assert run_measurement(uci_large.MEASUREMENT, arguments) == 0
    (line,) = (tmp_path / "results" / "uci_large.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert set(record) >= FIELDS | FOLD_FIELDS
    assert record["rmse"] < 0.5
    assert record["threads"] == 1
    assert "sklearn_gpr" in (tmp_path / "results" / "uci_large.md").read_text()


def test_a_model_that_diverged_is_not_tried_again():
    assert run.has_diverged({"error": "diverged: 1 of 2"})
    assert not run.has_diverged({"error": "ValueError: x"})
    assert not run.has_diverged({"rmse": 1.0})


# --- arguments -----------------------------------------------------------------------------------


def test_default_folds():
    assert uci_large.default_folds("ours", 500_000, 10) == list(range(10))
    assert uci_large.default_folds("gpnn", 50_000, 10) == [0, 1]
    assert uci_large.default_folds("gpnn", 200_000, 5) == [0]


@pytest.mark.parametrize(
    "arguments",
    [("--folds", "few"), ("--folds", ""), ("--sets", "iris"), ("--models", "best")],
)
def test_bad_arguments_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        uci_large.MEASUREMENT.parser().parse_args(arguments)
    assert arguments[0] in capsys.readouterr().err


# --- tables --------------------------------------------------------------------------------------


def record_of(model, name="bike", fold=0, rmse=0.5, **changed):
    scores = {"nlpd": 0.1, "qice": 2.0, "qice_floor": 0.5, "coverage_95": 0.94, "rmse": rmse}
    more = {"hc_rmse": 0.2, "lc_rmse": 0.9, "fit_cpu": 12.34, "predictions_a_second": 12345.0}
    rest = {"peak_mib": 400.0, "version": "1.0"}
    if model in OURS:
        rest["code"] = "abc"
    return {"model": model, "set": name, "fold": fold, **scores, **more, **rest, **changed}


def row_of(page, title, name):
    section = page.split(f"## {title}\n")[1].split("\n## ")[0]
    row = next(line for line in section.splitlines() if line.startswith(f"| {name}"))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_empty_page():
    page = report([])
    assert all(f"| {name}" in page for name in large_sets.SETS)
    assert all(f"## {metric.title}" in page for metric in METRICS)


def test_best_is_bold_and_ours_near_it_is_marked():
    page = report(
        [
            record_of("ours", rmse=0.5049),
            record_of("gpnn", rmse=0.6),
            record_of("gpboost", rmse=0.5),
        ]
    )
    assert row_of(page, "RMSE", "bike") == ["bike", "0.505 ≈", "**0.500**", "0.600"]
    assert "ours: RMSE first or within 1 % of first on 1 of 9 sets** (0 first; 1 sets run)" in page


def test_first_is_decided_on_the_folds_that_both_have():
    # Over its own folds the peer has the lower mean; on the fold that both have it has not.
    records = [
        record_of("ours", fold=0, rmse=0.3),
        record_of("ours", fold=1, rmse=0.9),
        record_of("gpnn", fold=0, rmse=0.31),
    ]
    page = report(records)
    assert row_of(page, "RMSE", "bike") == ["bike", "**0.600 ± 0.424** ≈", "0.310"]
    assert Grid(records).not_beaten("gpnn", "bike", RMSE, PEERS) is None


def test_our_own_variants_are_no_rivals_in_the_summary():
    page = report([record_of("ours"), record_of("ours_svgp", rmse=0.4), record_of("gpnn")])
    assert "ours: RMSE first or within 1 % of first on 1 of 9" in page
    assert "ours_svgp: RMSE first or within 1 % of first on 1 of 9" in page


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("time limit", "time limit"),
        ("diverged: 3 of 9 predictions are unusable", "diverged"),
        ("ValueError: x", "failed"),
    ],
)
def test_errors_are_shown(error, shown):
    failed = {"model": "gpnn", "set": "bike", "fold": 0, "error": error}
    page = report([failed, record_of("ours")])
    assert row_of(page, "RMSE", "bike")[2] == shown
    assert row_of(page, "Time and memory", "bike")[3] == shown
    assert f"- gpnn, bike, fold 0: {error}" in page


def test_a_fold_that_failed_keeps_ours_from_being_first():
    failed = {"model": "ours", "set": "bike", "fold": 1, "error": "time limit"}
    page = report([record_of("ours", rmse=0.1), failed, record_of("gpnn")])
    assert row_of(page, "RMSE", "bike")[1] == "0.100 (time limit on some folds)"
    assert "on 0 of 9 sets" in page


def test_coverage_is_best_where_it_is_nearest():
    page = report([record_of("ours", coverage_95=0.99), record_of("gpnn", coverage_95=0.93)])
    assert row_of(page, "95 % coverage", "bike") == ["bike", "0.990", "**0.930**"]


# --- interface -----------------------------------------------------------------------------------


def test_every_model_of_ours_has_a_constructor():
    assert set(ours.CONSTRUCTORS) == set(OURS)
    assert set(MODELS) == set(OURS) | set(PEERS)


def test_ours_are_asked_for_their_own_distribution(monkeypatch):
    monkeypatch.setitem(
        ours.CONSTRUCTORS, "ours", lambda seed: ExactGPRegressor("rbf", random_state=seed)
    )
    X, y = table(60)
    record = run.measure(ours.fitter("ours"), X[:40], y[:40], X[40:], y[40:], 0)
    assert record["own_interval"]
    # Its distribution is the Gaussian, so both ways to the scores agree.
    assert record["nlpd_own"] == pytest.approx(record["nlpd"])
    assert record["qice_own"] == pytest.approx(record["qice"])


def test_scaling_goes_back_and_forth_and_leaves_constant_columns():
    X, y = np.array([[1.0, 7.0], [3.0, 7.0]]), np.array([2.0, 6.0])
    scaling = Scaling.of(X, y)
    assert np.array_equal(scaling.inputs(X), [[-1.0, 0.0], [1.0, 0.0]])
    found = scaling.prediction(scaling.target(y), np.array([1.0, 0.25]))
    assert np.array_equal(found.mean, y)
    assert np.array_equal(found.std, [2.0, 1.0])


def test_split_keeps_back_a_tenth():
    X, y = table(100)
    rows = Split.of(X, y, seed=3)
    assert (len(rows.y), len(rows.y_validation)) == (90, 10)
    assert set(rows.y) | set(rows.y_validation) == set(y)
    row_of_y = {value: row for row, value in enumerate(y)}
    assert np.array_equal(rows.X, X[[row_of_y[value] for value in rows.y]])


# --- GPNN ----------------------------------------------------------------------------------------


def brute_force(X, y, whitening, hyperparameters, x, k):
    """A dense Gaussian process on the k nearest rows, in NumPy."""
    A, t, a = whitening.inputs(X), whitening.target(y), whitening.inputs(x[None])[0]
    near = np.argsort(((A - a) ** 2).sum(axis=1), kind="stable")[:k]
    A, t = A[near], t[near]
    l, s, noise = (
        hyperparameters.lengthscale,
        hyperparameters.outputscale,
        hyperparameters.noise,
    )
    K = s * np.exp(-0.5 * ((A[:, None] - A) ** 2).sum(axis=2) / l**2) + noise * np.eye(k)
    c = s * np.exp(-0.5 * ((A - a) ** 2).sum(axis=1) / l**2)
    weights = np.linalg.solve(K, c)
    std = np.sqrt(s - c @ weights + noise)
    return whitening.y_mean + whitening.y_scale * (t @ weights), whitening.y_scale * std


def test_gpnn_predicts_as_a_dense_gaussian_process_on_the_neighbours():
    X, y = table(150)
    whitening = gpnn.Whitening.of(X, y)
    hyperparameters = gpnn.Hyperparameters(lengthscale=0.7, outputscale=1.3, noise=0.05)
    model = gpnn.GPNN(X, y, whitening, hyperparameters, neighbours=20)
    points = table(6, seed=1)[0]
    found = model.predict(points)
    expected = [brute_force(X, y, whitening, hyperparameters, x, 20) for x in points]
    np.testing.assert_allclose(np.column_stack([found.mean, found.std]), expected, rtol=1e-7)


def test_gpnn_whitens_by_principal_components():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 3)) @ rng.normal(size=(3, 3)) + 4.0
    white = gpnn.Whitening.of(X, X[:, 0]).inputs(X)
    np.testing.assert_allclose(white.T @ white / 500, np.eye(3) / 3, atol=1e-4)


def test_gpnn_recalibration_multiplies_the_variances():
    before = gpnn.Hyperparameters(0.5, 2.0, 0.1)
    assert before.recalibrated(3.0) == gpnn.Hyperparameters(0.5, 6.0, pytest.approx(0.3))
    assert gpnn.Hyperparameters(0.5, 2.0, 1e-6).recalibrated(0.1).noise > gpnn.MIN_NOISE


# --- every peer ----------------------------------------------------------------------------------

#: Smaller settings, so that a test takes a second: module and constants.
QUICKER = {
    "gpnn": {"ADAM_STEPS": 20, "BLOCK_ROWS": 50},
    "gpytorch_exact": {"STEPS": 40},
    "gpytorch_svgp": {"MIN_STEPS": 150, "INDUCING_POINTS": 30, "LEARNING_RATE": 0.1},
    "sklearn_gpr": {"MAX_ROWS": 100, "RESTARTS": 0},
    "ngboost_normal": {"MAX_ROUNDS": 200, "SETTINGS": {"learning_rate": 0.05}},
    "muygpys": {"NN_COUNT": 20, "BATCH_COUNT": 100, "N_ITER": 5},
}


# Warnings are the libraries' own: they are imported and run as their users would.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PEERS)
def test_peer(name, monkeypatch):
    peer = PEERS[name]
    module = peer.where.partition(":")[0]
    try:
        fit = peer.load()
    except NotInstalledError as error:
        pytest.skip(str(error))
    found = importlib.import_module(f"benchmarks.peers.{module}")
    for constant, value in QUICKER.get(module, {}).items():
        monkeypatch.setattr(found, constant, value)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    X, y = table(400)
    record = run.measure(fit, X[:300], y[:300], X[300:], y[300:], 0)
    assert record["rmse"] < 0.6
    assert 0.8 < record["coverage_95"] <= 1.0
    assert record["nlpd"] < 1.3
    assert peer.version()
