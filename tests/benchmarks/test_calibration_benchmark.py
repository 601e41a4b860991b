"""One fit with three calibrations: scores, goals, the page and a run, on made-up tables."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from benchmarks import calibration, calibration_gpnn, calibration_shift
from benchmarks import calibration_fits as fits
from benchmarks.calibration_tables import Folds, goals, report
from benchmarks.large_sets import SETS as LARGE
from benchmarks.peers import PEERS, Model
from benchmarks.peers.base import Fitted, NotInstalledError, Prediction
from benchmarks.uci_tables import REFERENCES as SMALL
from measurements.processes import TIME_LIMIT
from measurements.publish import sections
from measurements.runner import run
from twostagegp import TwoStageGPRegressor, datasets, metrics


def table(n=90, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    noise = 0.05 + 0.3 * (X[:, 1] > 0.0)
    return X, 50.0 + 4.0 * (np.sin(2.0 * X[:, 0]) + X[:, 1] + noise * rng.normal(size=n))


def row_of(page, section, name):
    lines = sections(page)[section].splitlines()
    row = next(line for line in lines if line.startswith(f"| {name} "))
    return [cell.strip() for cell in row.strip("|").split("|")]


def simple(**given):
    """A model with one kernel."""
    one = {"kernels": ["matern32"], "ard": False, "mean": "matern32"}
    return TwoStageGPRegressor(**one, method="exact", **given)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder with small tables in the place of some."""
    X, y = table()
    np.savez(tmp_path / "yacht.npz", X=X, y=y, test_0=np.arange(20), test_1=np.arange(20, 40))
    np.savez(tmp_path / "wine.npz", X=X, y=np.round(y / 4.0), test_0=np.arange(30))
    np.savez(tmp_path / "poletele.npz", X=X, y=y, subject=np.arange(90))
    july = {"X_july2010": X[:25] + 3.0, "y_july2010": y[:25]}
    np.savez(tmp_path / "house_electric_part.npz", X=X, y=y, **july)
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


# --- scores --------------------------------------------------------------------------------------


class Gaussian:
    """A model whose distribution at x is N(x, 0.5²)."""

    law = stats.norm(0.0, 0.5)

    def predict_quantiles(self, X, levels):
        return X[:, :1] + self.law.ppf(levels)

    def predict_cdf(self, X, y):
        return self.law.cdf(y - X[:, 0])


def gaussian_rows(n, rounded=False):
    rng = np.random.default_rng(1)
    X = 2.0 * rng.normal(size=(n, 1))
    y = X[:, 0] + 0.5 * rng.normal(size=n)
    return X, np.round(y) if rounded else y


def test_scores_of_a_gaussian_are_those_of_the_closed_forms():
    X, y = gaussian_rows(300)
    y_train = np.array([-1.0, 5.0, 2.0])
    moments = X[:, 0], np.full(300, 0.5)
    got = fits.distribution_scores(
        Gaussian(), moments, X, y, y_train, atoms=False, seed=0, chunk=64
    )
    centre, scale = y_train.mean(), y_train.std()
    known = metrics.evaluate((y - centre) / scale, (X[:, 0] - centre) / scale, moments[1] / scale)
    assert got["crps"] == pytest.approx(known["crps"], abs=1e-4)
    assert got["width_95"] == pytest.approx(known["interval_width"])
    assert got["coverage_95"] == pytest.approx(known["coverage"])
    for name in ("nlpd", "pinball", "qice", "qice_floor", "hc_rmse", "lc_rmse"):
        assert got[name] == pytest.approx(known[name]), name
    for level in (50, 80, 99):
        assert got[f"coverage_{level}"] == metrics.coverage(y, *moments, level=level / 100)


def test_a_target_with_few_levels_is_judged_inside_its_cells():
    X, y = gaussian_rows(20_000, rounded=True)
    moments = X[:, 0], np.full(len(y), 0.5)
    scores = {
        atoms: fits.distribution_scores(Gaussian(), moments, X, y, y, atoms, seed=0)
        for atoms in (False, True)
    }
    assert scores[True]["qice"] < 3 * scores[True]["qice_floor"]
    assert scores[False]["qice"] > 5 * scores[False]["qice_floor"]
    for level in (50, 80, 95, 99):
        assert scores[True][f"coverage_{level}"] == pytest.approx(level / 100, abs=0.015)
    assert scores[True]["crps"] == scores[False]["crps"]
    again = fits.distribution_scores(Gaussian(), moments, X, y, y, atoms=True, seed=0)
    assert again == scores[True]


def test_cells_cover_the_line_without_a_gap():
    lower, upper = fits.cells(np.array([1.0, 2.0, 4.0, -7.0, 3.2]), np.array([4.0, 2.0, 1.0, 2.0]))
    assert lower.tolist() == [-np.inf, 1.5, 3.0, -np.inf, 3.0]
    assert upper.tolist() == [1.5, 3.0, np.inf, 1.5, np.inf]
    alone = fits.cells(np.array([5.0]), np.array([5.0, 5.0]))
    assert [float(end[0]) for end in alone] == [-np.inf, np.inf]


# --- one fit -------------------------------------------------------------------------------------

SCORES = {
    *("nlpd", "crps", "pinball", "qice", "qice_floor", "width_95", "hc_rmse", "lc_rmse"),
    *("coverage_50", "coverage_80", "coverage_95", "coverage_99"),
}


def test_three_calibrations_of_one_fit(folder):
    record = fits.measure_fold(simple(random_state=1), "yacht", 1)
    json.dumps(record | {"learned": None}, allow_nan=False)
    for kind in fits.KINDS:
        assert set(record[kind]) == SCORES
    assert len({record[kind]["nlpd"] for kind in fits.KINDS}) == 3
    assert (record["n_train"], record["n_test"], record["atoms"]) == (70, 20, False)
    assert 0.0 < record["calibration_share"] < 1.0
    assert record["calibration_cpu"] < record["fit_cpu"]
    assert record["predict_cpu_local"] > 0.0
    learned = record["learned"]
    assert len(learned["a"]) == len(learned["members"])
    assert learned["shape"] in ("gaussian", "student", "empirical")


@pytest.mark.parametrize("kind", ["none", "scale", "local"])
def test_a_replaced_calibration_is_the_one_that_a_fit_would_have_had(folder, kind):
    X, y = table()
    record = fits.measure_fold(simple(random_state=0), "yacht", 0)
    option = None if kind == "none" else kind
    model = simple(random_state=0, calibration=option).fit(X[20:], y[20:])
    mean, std = model.predict(X[:20], return_std=True)
    expected = metrics.evaluate(y[:20], mean, std, y_train=y[20:])
    assert record[kind]["nlpd"] == pytest.approx(expected["nlpd_standardized"], abs=1e-6)
    assert record["rmse"] == pytest.approx(expected["rmse"] / y[20:].std())


def test_few_levels_are_noticed(folder):
    record = fits.measure_fold(simple(random_state=0), "wine", 0)
    assert record["atoms"]
    assert record["largest_atom"] > 0.05


# --- GPNN's protocol, the shift ------------------------------------------------------------------


def test_rows_of_gpnns_protocol():
    train, test = calibration_gpnn.gpnn_rows(5875, seed=1)
    assert len(train) == round(7 / 9 * 5875)
    assert sorted([*train, *test]) == list(range(5875))
    assert not np.array_equal(test, calibration_gpnn.gpnn_rows(5875, seed=2)[1])


def test_whitened_and_plain_inputs(folder):
    seen = {}

    class Spy(TwoStageGPRegressor):
        def fit(self, X, y):
            seen[len(seen)] = X, y
            return super().fit(X, y)

    cells = [calibration_gpnn.Cell("poletele", 0, inputs) for inputs in calibration_gpnn.INPUTS]
    assert [cell.inputs for cell in cells] == ["whitened", "plain"]
    for cell in cells:
        model = Spy(method="neighbors", kernels=["rbf"], ard=False, random_state=0)
        assert calibration_gpnn.measure_split(model, cell)["hc_rmse"] > 0.0
    (whitened, y), (plain, _) = seen.values()
    assert np.cov(whitened.T, bias=True) == pytest.approx(np.eye(3) / 3, abs=1e-4)
    assert np.array_equal(plain, table()[0][calibration_gpnn.gpnn_rows(90, 0)[0]])
    assert (y.mean(), y.std()) == pytest.approx((0.0, 1.0))


class Trivial(Fitted):
    """The mean and spread of the training target."""

    def __init__(self, y, own):
        self.y, self.own = y, own

    def predict(self, X):
        return Prediction(np.full(len(X), self.y.mean()), np.full(len(X), self.y.std()))

    def interval(self, X):
        ends = self.y.mean() + self.y.std() * np.array([-1.0, 1.0])
        return np.tile(ends, (len(X), 1)) if self.own else None


@pytest.mark.parametrize(("own", "width"), [(True, 2.0), (False, 2 * 1.959964)])
def test_the_shift_is_scored_in_both_seasons(folder, monkeypatch, own, width):
    monkeypatch.setattr(Model, "load", lambda self: lambda X, y, seed: Trivial(y, own))
    record = calibration_shift.measure(calibration_shift.Cell("lightgbm", 0))
    assert (record["n_train"], record["n_winter"], record["n_july"]) == (81, 9, 25)
    for season in ("winter", "july"):
        assert record[season]["width_95"] == pytest.approx(width)
        assert 0.0 <= record[season]["coverage_95"] <= 1.0
    assert record["winter"]["rmse"] != record["july"]["rmse"]
    assert record["code"] is None


def test_a_missing_package_is_told_apart(folder, monkeypatch):
    missing = Model("none", "no-such-package", "no_such_module:fit")
    monkeypatch.setattr(calibration_shift, "MODELS", {"lightgbm": missing})
    with pytest.raises(NotInstalledError):  # which the runner does not store
        calibration_shift.measure(calibration_shift.Cell("lightgbm", 0))


# --- the page ------------------------------------------------------------------------------------


def scores(nlpd=-1.0, qice=1.0, floor=1.0, coverage=0.0, **changed):
    """A distribution's scores, its coverages off by so many points."""
    known = {"nlpd": nlpd, "crps": 0.1, "pinball": 0.05, "qice": qice, "qice_floor": floor}
    known |= {"width_95": 0.5, "hc_rmse": 0.01, "lc_rmse": 0.3}
    known |= {f"coverage_{level}": (level + coverage) / 100 for level in (50, 80, 95, 99)}
    return known | changed


def record(name, fold=0, local=None, scale=None, **changed):
    learned = {"members": ["trees"], "a": [0.5], "shape": "empirical", "degrees": 4.0}
    known = {"set": name, "fold": fold, "n_test": 1000, "atoms": False, "rmse": 0.2}
    known |= {"none": scores(), "scale": scale or scores(), "local": local or scores()}
    known |= {"fit_cpu": 10.0, "calibration_share": 0.2, "learned": learned}
    known |= {"predict_cpu_local": 0.3, "predict_cpu_scale": 0.2}
    return known | {"version": "1.0", "code": "abc"} | changed


def met(found, title):
    (goal,) = [goal for goal in found if goal.title.startswith(title)]
    return goal.met


def of(*records):
    by_set = {}
    for one in records:
        by_set.setdefault(one["set"], []).append(one)
    return [Folds(name, group) for name, group in by_set.items()]


@pytest.mark.parametrize(
    ("qice", "floor", "near"), [(4.9, 4.0, True), (5.1, 4.0, False), (1.3, 1.0, True)]
)
def test_a_qice_near_its_floor(qice, floor, near):
    (folds,) = of(record("yacht", local=scores(qice=qice, floor=floor)))
    assert folds.qice_near is near


def test_four_of_five_sets_must_be_near_and_none_far():
    good = [record(name) for name in ("yacht", "boston", "energy", "concrete")]
    bad = record("kin8nm", local=scores(qice=2.4))
    with_atoms = record("wine", local=scores(qice=9.0, coverage=9.0), atoms=True)
    found = goals(of(*good, bad, with_atoms))
    assert met(found, "QICE at most")
    assert met(found, "QICE above")
    assert met(found, "coverage off")
    found = goals(of(*good[1:], bad, record("power", local=scores(qice=2.6))))
    assert met(found, "QICE at most") is False
    assert met(found, "QICE above") is False


def test_coverage_is_pooled_over_the_rows_of_large_enough_sets():
    off = [record("kin8nm", 0, local=scores(coverage=-6.0)), record("kin8nm", 1, n_test=9000)]
    assert met(goals(of(*off)), "coverage off") is True
    assert met(goals(of(off[0])), "coverage off") is False
    assert met(goals(of(off[0] | {"n_test": 600})), "coverage off") is None


def test_small_sets_may_lose_one_standard_error():
    within = [record("yacht", k, local=scores(nlpd=-1.0 + d)) for k, d in enumerate((0.3, -0.1))]
    assert of(*within)[0].change == pytest.approx((0.1, 0.2))
    assert met(goals(of(*within)), "small tables") is True
    beyond = [record("boston", k, local=scores(nlpd=-1.0 + d)) for k, d in enumerate((0.3, 0.1))]
    found = goals(of(*within, *beyond))
    assert met(found, "small tables") is False
    assert "+0.200 ± 0.100 (boston)" in report([*within, *beyond])
    assert math.isnan(of(within[0])[0].change[1])
    assert met(goals(of(within[0])), "small tables") is False  # a single fold gets no allowance


@pytest.mark.parametrize(("nlpd", "reached"), [(-0.66, True), (-0.64, False)])
def test_goals_of_single_tables_and_of_costs(nlpd, reached):
    found = goals(of(record("bike", local=scores(nlpd=nlpd))))
    assert met(found, "NLPD on bike") is reached
    assert met(found, "NLPD on pol") is None
    assert met(found, "fit: calibration")
    assert met(found, "prediction:")
    slow = record("pol", calibration_share=0.4, predict_cpu_local=0.5)
    found = goals(of(slow))
    assert met(found, "fit: calibration") is False
    assert met(found, "prediction:") is False


AHEAD = "NLPD ahead of LightGBM and of CatBoost"


def peer(model, name, fold, nlpd, crps=0.2):
    return {"model": model, "set": name, "fold": fold, "nlpd": nlpd, "crps": crps}


def rivals(name, nlpd, fold=0):
    models = ("lightgbm", "catboost_uncertainty", "catboost_rmse")
    return [peer(model, name, fold, nlpd + k / 10) for k, model in enumerate(models)]


def test_the_better_catboost_counts_and_folds_are_common():
    ours = [record("bike", fold, local=scores(nlpd=-float(fold))) for fold in range(3)]
    trees = [peer("lightgbm", "bike", fold, -0.1) for fold in (0, 1)]
    trees += [peer("catboost_uncertainty", "bike", fold, 0.3, crps=0.05) for fold in (0, 1, 2)]
    trees += [peer("catboost_rmse", "bike", 1, -0.6, crps=None)]
    row = row_of(report(ours, peers=trees), "Against boosted trees", "bike")
    assert row[1:6] == ["1", "**-1.00**", "-0.100", "-0.600 (RMSE)", "ours"]
    assert row[6:] == ["0.1000", "0.2000", "**0.05000** (uncertainty)", "catboost_uncertainty"]


@pytest.mark.parametrize(
    ("behind", "compared", "verdict"), [(1, 9, "yes"), (2, 9, "**no**"), (0, 7, "–"), (0, 0, "–")]
)
def test_ahead_on_eight_of_nine(behind, compared, verdict):
    ours = [record(name) for name in LARGE]
    trees = []
    for k, name in enumerate(LARGE[:compared]):
        trees += rivals(name, nlpd=-2.0 if k < behind else 0.0)
    row = row_of(report(ours, peers=trees), "Goals", AHEAD)
    assert row[-1] == verdict


def test_a_rival_that_is_missing_leaves_a_win_open_but_not_a_defeat():
    ours = [record("bike"), record("pol")]
    page = report(ours, peers=[peer("lightgbm", "bike", 0, 0.0), peer("lightgbm", "pol", 0, -2.0)])
    assert row_of(page, "Goals", AHEAD)[1] == "0 of 1 compared"
    assert row_of(page, "Against boosted trees", "bike")[4] == "–"


def test_tables_by_size_and_levels():
    wine = record("wine", atoms=True, learned={**record("wine")["learned"], "degrees": None})
    failed = {"set": "pol", "fold": 1, "error": TIME_LIMIT}
    page = report([record("yacht"), record("bike"), record("bike", 1), wine, failed])
    found = sections(page)
    assert "yacht" in found["Small tables"]
    assert "wine" not in found["Small tables"]
    assert row_of(page, "Larger tables", "bike")[1] == "2"
    assert row_of(page, "Targets with few levels", "wine")[2:5] == ["-1.00"] * 3
    assert row_of(page, "What was learned, and what it cost", "bike")[1:3] == [
        "0.50 trees",
        "2 empirical (4.0)",
    ]
    assert row_of(page, "What was learned, and what it cost", "yacht")[-1] == "1.50"
    assert found["Fits that failed"] == "- set pol, fold 1: time limit"
    assert "twostagegp 1.0 (source abc); 4 fits." in page


def test_pages_of_the_other_measurements():
    code = {"version": "1.0", "code": "abc"}
    known = {"set": "bike", "rmse": 0.2, "lc_rmse": 0.4, **code}
    gpnn = [
        {**known, "fold": k, "inputs": inputs, "hc_rmse": hc}
        for k in (0, 1)
        for inputs, hc in (("whitened", 0.4), ("plain", 0.1))
    ]
    season = {"rmse": 0.1, "coverage_95": 0.9, "width_95": 0.5}
    shift = [
        {"model": "ours", "fold": 0, "winter": season, "july": {**season, "rmse": 2.0}, **code}
    ]
    shift += [{"model": "lightgbm", "fold": 0, "error": "killed"}]
    page = calibration_gpnn.report(gpnn)
    row = row_of(page, "High certainty under GPNN's protocol", "bike")
    assert row[1:7] == ["2", "0.39", "0.400", "**no**", "0.400", "0.200"]
    assert row[7:] == ["0.100", "yes", "0.400", "0.200"]
    page = calibration_shift.report(shift)
    row = row_of(page, "A shift: winter to July", "ours")
    assert row[1:] == ["0.100", "2.00", "0.900", "0.900", "0.500", "0.500"]
    assert "- model lightgbm, fold 0: killed" in page


# --- a run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [calibration, calibration_gpnn, calibration_shift])
def test_an_empty_page(module):
    assert "No fits yet" in module.report([])


def cells_of(module, *arguments):
    return module.cells(module.MEASUREMENT.parser().parse_args(arguments))


def test_what_is_run_by_default(monkeypatch):
    for module in (calibration, calibration_gpnn, calibration_shift):
        monkeypatch.setattr(module, "load", lambda name: name)
    for module in (calibration, calibration_shift):
        monkeypatch.setattr(module, "n_folds", lambda name: 20 if name in SMALL else 5)
    found = cells_of(calibration)
    count = {name: sum(cell.set == name for cell in found) for name in (*SMALL, *LARGE)}
    three = ("kin8nm", "power", "naval", *LARGE)
    assert count == dict.fromkeys(SMALL, 20) | dict.fromkeys(three, 3)
    bike = cells_of(calibration, "--sets", "bike", "--folds", "3-6")
    assert bike == [calibration.Cell("bike", 3), calibration.Cell("bike", 4)]
    gpnn = cells_of(calibration_gpnn)
    assert len(gpnn) == 3 * 3 * 2
    assert {cell.set for cell in gpnn} == set(calibration_gpnn.PAPER)
    shift = cells_of(calibration_shift)
    assert [(cell.model, cell.fold) for cell in shift] == [
        (model, 0) for model in calibration_shift.COMPARED
    ]
    other = calibration_shift.MEASUREMENT.strategy.other_python
    assert [cell.model for cell in shift if other(cell)] == ["lightgbm", "catboost_uncertainty"]
    assert {"lightgbm", "catboost_uncertainty"} <= set(PEERS)


@pytest.mark.slow
def test_fits_in_processes_of_their_own(folder, tmp_path, capsys):
    results = ["--results", str(tmp_path / "results")]
    assert run(calibration.MEASUREMENT, ["--sets", "yacht", "--folds", "0", *results]) == 0
    gpnn = ["--sets", "poletele", "--seeds", "1", *results]
    assert run(calibration_gpnn.MEASUREMENT, gpnn) == 0
    lines = [
        json.loads(line)
        for name in ("calibration", "calibration_gpnn")
        for line in (tmp_path / "results" / f"{name}.jsonl").read_text().splitlines()
    ]
    assert [(line["set"], line["fold"]) for line in lines] == [("yacht", 0)] + [("poletele", 1)] * 2
    assert lines[0]["method"] == "exact"
    page = (tmp_path / "results" / "calibration_gpnn.md").read_text()
    assert row_of(page, "High certainty under GPNN's protocol", "poletele")[1] == "1"
    capsys.readouterr()
