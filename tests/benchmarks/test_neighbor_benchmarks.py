"""Speed, search, growth and defaults of the neighbour method: tiny runs, pages, operations."""

import json
import math
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import neighbor_defaults, neighbor_search, neighbors_scale, neighbors_speed
from benchmarks.large_sets import fold_rows
from benchmarks.local_solves import COVARIANCE_FLOPS, local_solves, solve_flops
from benchmarks.neighbor_search import Cell
from benchmarks.neighbors_contestants import CONTESTANTS, LOCAL, WARM_ROWS, Contestant
from benchmarks.neighbors_speed import Split, affordable, measure_contestant
from benchmarks.peers.base import Fitted, Prediction
from measurements.runner import run
from twostagegp import TwoStageGPRegressor, datasets
from twostagegp.engines.neighbors import engine
from twostagegp.engines.neighbors.compiled import lanes
from twostagegp.pipeline.mean.crossfit import boosted_trees
from twostagegp.pipeline.settings import DEFAULTS


def split_of(n=160, test=40):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n + test, 3))
    y = 5.0 + np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=n + test)
    return Split(X[:n], y[:n], X[n:], y[n:])


def row_of(page, section, name):
    part = page.split(f"{section}\n")[1].split("\n#")[0]
    row = next(line for line in part.splitlines() if line.startswith(f"| {name} "))
    return [cell.strip() for cell in row.strip("|").split("|")]


# --- speed: one model ----------------------------------------------------------------------------


class Mean(Fitted):
    """The mean and spread of the training target, after a pause for every point."""

    def __init__(self, y, pause=0.0):
        self.y, self.pause = y, pause

    def predict(self, X):
        time.sleep(self.pause * len(X))
        return Prediction(np.full(len(X), self.y.mean()), np.full(len(X), self.y.std()))


def test_a_model_is_fitted_once_after_a_small_one_and_scored_on_the_standardised_target():
    fitted = []

    def fit(X, y, seed):
        fitted.append(len(y))
        return Mean(y)

    split = split_of(n=700)
    record = measure_contestant(Contestant("a test", "none", fit, "gpnn"), split, runs=3)
    assert fitted == [WARM_ROWS, 700]
    assert (record["points"], record["test_rows"], record["runs"]) == (40, 40, 3)
    error = (split.y_test - split.y.mean()) / split.y.std()
    assert record["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert record["nlpd"] == pytest.approx(0.5 * np.mean(error**2) + 0.5 * math.log(2 * math.pi))
    assert record["wall_us"] == min(record["all_wall_us"])
    assert record["predictions_a_second"] == pytest.approx(1e6 / record["wall_us"])
    assert "parts_us" not in record


def test_a_slow_model_gets_fewer_points():
    X, y = np.zeros((1000, 1)), np.arange(4.0)
    assert affordable(Mean(y), X) == 1000
    assert affordable(Mean(y, pause=1e-4), X, seconds=0.01) == 256
    assert affordable(Mean(y, pause=1e-4), X[:100], seconds=0.01) == 100


def test_the_bare_engine_and_where_its_time_goes():
    before = engine.local_predict
    record = measure_contestant(CONTESTANTS["bare_ard"], split_of(), runs=1, points=30)
    assert record["points"] == 30
    assert record["rmse"] < 0.5
    assert set(record["parts_us"]) == {"search", "solve", "rest"}
    assert record["parts_us"]["search"] > 0.0
    assert record["parts_us"]["solve"] > 0.0
    assert engine.local_predict is before
    assert not hasattr(engine.IndexStore.near, "__wrapped__")


def test_the_other_interpreter_measures_the_other_libraries_only():
    given = ["--models", "default,bare_iso,gpnn,gpboost_50,local_solves"]
    parsed = neighbors_speed.MEASUREMENT.parser().parse_args(given)
    strategy = neighbors_speed.MEASUREMENT.strategy
    cells = [neighbors_speed.Cell("protein", name, 1, None) for name in parsed.models]
    assert [cell.model for cell in cells if strategy.other_python(cell)] == ["gpnn", "gpboost_50"]


@pytest.mark.slow
def test_a_model_in_a_process_of_its_own(tmp_path, monkeypatch, capsys):
    split = split_of()
    X, y = np.concatenate([split.X_test, split.X]), np.concatenate([split.y_test, split.y])
    np.savez(tmp_path / "protein.npz", X=X, y=y, test_0=np.arange(40))
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(tmp_path))
    arguments = ["--models", "bare_iso", "--threads", "1", "--runs", "1", "--points", "20"]
    arguments += ["--results", str(tmp_path / "results")]
    assert run(neighbors_speed.MEASUREMENT, arguments) == 0
    (line,) = (tmp_path / "results" / "neighbors_speed.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert (record["set"], record["model"], record["points"]) == ("protein", "bare_iso", 20)
    assert (record["n"], record["threads"]) == (160, 1)
    assert (tmp_path / "results" / "neighbors_speed.md").read_text() in capsys.readouterr().out


# --- speed: operations ---------------------------------------------------------------------------


def test_operations_of_a_covariance_are_those_of_the_source():
    """Where the compiled exponential changes, the constant of the benchmark has to follow."""
    assert COVARIANCE_FLOPS == 7 + 1 + 2 * lanes.SERIES + lanes.SQUARES


def test_operations_of_a_local_solve():
    flops = solve_flops(50, 9)
    assert flops["distances"] == 1275 * 27
    assert flops["covariances"] == 1275 * 36
    assert flops["factor"] == pytest.approx(50**3 / 3 + 2 * 50**2)


def test_local_solves_agree_with_torch_and_their_parts_add_up():
    record = local_solves(n=200, d=2, k=5, points=20, runs=1)
    assert record["difference"] < 1e-10
    assert sum(record["parts"].values()) == pytest.approx(record["microseconds"])
    page = neighbors_speed.report(
        [{"model": LOCAL, "set": "", **record, "version": "1", "code": "a"}]
    )
    assert row_of(page, "## Local solves", "factor")[2] == "92"
    assert row_of(page, "## Local solves", "gather")[2] == "–"


# --- speed: page ---------------------------------------------------------------------------------


def speed_record(model, wall_us, fit=10.0, **changed):
    known = {"set": "protein", "model": model, "n": 100, "d": 9, "threads": 2, "runs": 5}
    costs = {"fit_wall": fit, "fit_cpu": fit, "first_call": 0.1, "cpu_us": 2.0 * wall_us}
    speed = {"wall_us": wall_us, "all_wall_us": [wall_us], "predictions_a_second": 1e6 / wall_us}
    scores = {"rmse": 0.5, "nlpd": 0.1, "points": 40, "test_rows": 40}
    rest = {"version": "1.0", "machine": "here", "load": 0.5}
    if CONTESTANTS[model].peer is None:
        rest["code"] = "abc"
    return {**known, **costs, **speed, **scores, **rest, **changed}


def test_goals_are_judged_by_predictions_a_second():
    page = neighbors_speed.report(
        [
            speed_record("default", 100.0, fit=9.0),
            speed_record("bare_iso", 10.0),
            speed_record("gpnn", 5000.0, points=7),
            speed_record("gpboost", 40.0, fit=10.0),
        ]
    )
    goals = "### Goals on protein"
    assert row_of(page, goals, "predictions per second, default over gpnn")[1:] == [
        *("50.0×", "50.0×", "≥ 30×", "yes")
    ]
    assert row_of(page, goals, "predictions per second, bare_iso over gpboost")[4] == "**no**"
    assert row_of(page, goals, "predictions per second, bare_iso over muygpys")[1:] == [
        *("–", "–", "≥ 10×", "–")
    ]
    assert row_of(page, goals, "fit, default over gpboost")[1:] == [
        "0.900×",
        "0.900×",
        "≤ 1×",
        "yes",
    ]
    assert "**extrapolated** per point: gpnn." in page
    assert row_of(page, "## Predictions on protein", "bare_iso")[7] == "100,000"


def test_failures_and_mixed_states_are_shown():
    failed = {"set": "protein", "model": "muygpys", "error": "time limit", "load": 1.0}
    page = neighbors_speed.report(
        [speed_record("default", 10.0), speed_record("bare_iso", 9.0, code="def"), failed]
    )
    assert "- muygpys: time limit" in page
    assert "**Mixed states of the code**" in page


@pytest.mark.parametrize(
    "module", [neighbors_speed, neighbor_search, neighbors_scale, neighbor_defaults]
)
def test_empty_pages(module):
    assert "No fits yet" in module.report([])


# --- search --------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", neighbor_search.NORMS)
@pytest.mark.parametrize("inputs", neighbor_search.INPUTS)
def test_all_searches_find_the_same_rows(inputs, norm, monkeypatch):
    monkeypatch.setattr(neighbor_search, "find_spec", lambda name: None)
    record = neighbor_search.measure(Cell(400, 3, inputs, norm, queries=30))
    assert set(record["searches"]) == {"tree", "brute", "ckdtree"}
    for facts in record["searches"].values():
        assert facts["same"] == 1.0
        assert facts["queries"] == 30
    found = {leaves: facts["recall"] for leaves, facts in record["approximate"].items()}
    if norm == "L2":
        assert found["8"] <= found["32"] == found["128"] == 1.0  # 16 leaves in all
    else:
        assert found == {}


def measured_search(*place, **given):
    """A record as the runner stores it."""
    cell = Cell(*place, **given)
    origin = {"version": "1.0", "code": "abc", "machine": "here"}
    return vars(cell) | origin | neighbor_search.measure(cell)


def test_tables_are_the_same_in_every_run_and_correlated_ones_have_few_directions():
    one = neighbor_search.table(500, 16, "correlated")
    assert torch.equal(one, neighbor_search.table(500, 16, "correlated"))
    variances = torch.linalg.eigvalsh(one.T.cov()).flip(0)
    assert float(variances[:4].sum() / variances.sum()) > 0.98


def test_faiss_is_asked_where_it_is_installed(monkeypatch):
    class IndexFlat:
        def __init__(self, d, metric):
            self.metric = metric

        def add(self, X):
            self.X = X

        def search(self, Q, k):
            D = np.linalg.norm(Q[:, None] - self.X, ord=self.metric, axis=2)
            near = np.argsort(D, axis=1)[:, :k]
            return np.take_along_axis(D, near, axis=1), near

    fake = SimpleNamespace(
        IndexFlat=IndexFlat, METRIC_L1=1, METRIC_L2=2, omp_set_num_threads=lambda n: None
    )
    monkeypatch.setitem(sys.modules, "faiss", fake)
    monkeypatch.setattr(neighbor_search, "find_spec", lambda name: object())
    record = measured_search(200, 3, "uniform", "L1", queries=20)
    assert record["searches"]["faiss"]["same"] == 1.0
    page = neighbor_search.report([record])
    assert "faiss, µs" in page


def test_what_would_take_too_long_is_left_out():
    record = measured_search(20_000, 2, "uniform", "L2", queries=10, limit=0.0)
    assert record["searches"] == {key: {"skipped": True} for key in neighbor_search.makers()}
    fine = measured_search(20_000, 2, "uniform", "L2", queries=10)
    record["searches"]["tree"] = fine["searches"]["tree"]
    assert fine["searches"]["brute"]["same"] == 1.0
    page = neighbor_search.report([record])
    assert row_of(page, "## Tree or all distances, L2", "2") == ["2", "skipped"]
    assert row_of(page, "## Uniform inputs, L2", "20,000")[3] == "skipped"


def test_a_search_slower_than_the_limit_is_probed_only():
    class Slow:
        def query(self, index):
            time.sleep(0.01)
            return np.zeros((len(index), 50))

    facts, found = neighbor_search.timed_queries(Slow(), np.arange(100), limit=0.01)
    assert found is None
    assert facts["queries"] == neighbor_search.PROBE
    assert neighbor_search.agreement(found, None) == {"same": None}


def test_a_run_searches_every_table_few_rows_first(tmp_path, capsys):
    arguments = ["--rows", "200,100", "--columns", "2", "--norms", "L2", "--threads", "1"]
    arguments += ["--queries", "10", "--results", str(tmp_path)]
    assert run(neighbor_search.MEASUREMENT, arguments) == 0
    lines = (tmp_path / "neighbor_search.jsonl").read_text().splitlines()
    places = [(r["inputs"], r["rows"]) for r in map(json.loads, lines)]
    assert places == [(i, n) for i in ("uniform", "correlated") for n in (100, 200)]
    assert (tmp_path / "neighbor_search.md").read_text() in capsys.readouterr().out


def search_record(same=1.0, **seconds):
    searches = {
        name: {"build": 0.0, "wall_us": us, "queries": 64, "same": same}
        for name, us in seconds.items()
    }
    rest = {"version": "1.0", "code": "abc", "machine": "here", "threads": 2, "load": 0.1}
    place = {"rows": 1000, "columns": 64, "inputs": "uniform", "norm": "L2"}
    return {**place, **rest, "searches": searches, "approximate": {}}


def test_where_the_tree_is_the_wrong_choice_is_marked():
    page = neighbor_search.report([search_record(tree=100.0, brute=50.0)])
    assert row_of(page, "## Tree or all distances, L2", "64") == ["64", "**0.500**"]
    page = neighbor_search.report([search_record(tree=10.0, brute=50.0, same=0.5)])
    assert row_of(page, "## Tree or all distances, L2", "64") == ["64", "5.00"]
    assert "- brute, 1000 x 64, uniform, L2: the same on 50.00% of the queries" in page


# --- growth --------------------------------------------------------------------------------------


def test_tables_of_any_size_come_from_the_function():
    X, y = neighbors_scale.draw(5000, seed=0)
    again = neighbors_scale.draw(5000, seed=0)
    assert np.array_equal(X, again[0])
    assert np.array_equal(y, again[1])
    assert np.std(y - neighbors_scale.function(X)) == pytest.approx(0.2, rel=0.05)
    changed = X.copy()
    changed[:, 7] = 0.0
    assert np.array_equal(neighbors_scale.function(X), neighbors_scale.function(changed))


def test_growth_is_the_slope_of_the_logarithms():
    assert neighbors_scale.growth([10, 100, 1000], [2.0, 20.0, 200.0]) == pytest.approx(1.0)
    assert neighbors_scale.growth([10, 100], [1.0, 1.0]) == pytest.approx(0.0)
    assert neighbors_scale.growth([10], [1.0]) is None


@pytest.mark.slow
def test_one_size():
    model = TwoStageGPRegressor(
        method="neighbors", kernels=["matern32"], ard=False, device="cpu", random_state=0
    )
    record = neighbors_scale.measure_model(model, 300, points=50)
    assert record["rmse"] < record["rmse_observed"] < 0.6
    assert record["fit_seconds"]["total"] <= record["fit_wall"]
    assert record["index_wall"] > 0.0
    assert sum(record["predict_parts"].values()) <= record["predict_wall"]
    assert 0.1 < record["before_gib"] <= record["fit_gib"] <= record["peak_gib"]
    assert record["coverage_95"] > 0.8
    known = {"device": "cpu", "rows": 300, "load": 0.0, "threads": 1, "version": "1.0"}
    page = neighbors_scale.report(
        [{**known, "code": "abc", "torch": "2", "machine": "x", **record}]
    )
    assert row_of(page, "## Where the time goes", "300")[-1] == record["mean"]


def test_the_engine_alone():
    record = neighbors_scale.measure_engine(120, 60, "cpu")
    assert record["rmse"] < 0.6
    assert set(record["predict_parts"]) == {"search", "solve", "rest"}
    assert 0.0 < min(record["ahead_wall"], record["in_turn_wall"]) < 60.0


def scale_record(rows, device="cpu", **changed):
    costs = {
        f"{what}_{clock}": rows / 1e5 for what in ("fit", "predict") for clock in ("wall", "cpu")
    }
    parts = {"search": 0.1, "solve": 0.2, "rest": 0.3}
    seconds = {"mean": 1.0, "variance": 0.5, "total": 2.0}
    memory = {"before_gib": 0.4, "fit_gib": 3.0, "peak_gib": 3.5}
    rest = {"version": "1.0", "code": "abc", "torch": "2", "machine": "here", "threads": 2}
    scores = {"rmse": 0.05, "coverage_95": 0.95, "index_wall": 0.7, "mean": "0.5 rbf"}
    more = {"load": 0.1, "columns": 8, "points": 200_000, "fit_seconds": seconds}
    more |= {"predict_parts": parts}
    return {"device": device, "rows": rows, **costs, **memory, **rest, **scores, **more, **changed}


def test_page_of_sizes():
    sizes = (100_000, 1_000_000, 2_000_000)
    records = [scale_record(rows) for rows in sizes]
    page = neighbors_scale.report(records)
    section = "## Default fit and predictions"
    assert row_of(page, section, "100,000")[8] == "–"
    assert row_of(page, section, "2,000,000")[7:9] == ["3.50", "yes"]
    assert "from 100,000 to 2,000,000 rows: fit, wall clock: n^1.00" in page
    assert row_of(page, "## Where the time goes", "100,000")[1:5] == [
        "0.700",
        "1.00",
        "0.500",
        "0.500",
    ]
    heavy = neighbors_scale.report([scale_record(2_000_000, peak_gib=4.5)])
    assert row_of(heavy, section, "2,000,000")[8] == "**no**"


def test_page_of_a_gpu_and_of_failures():
    failed = {"device": "cpu", "rows": 5, "error": "time limit"}
    slow = scale_record(1_000_000, "cuda", points=1_000_000, predict_wall=12.0)
    fast = scale_record(100_000, "cuda", points=1_000_000, predict_wall=2.0)
    page = neighbors_scale.report([failed, fast, slow])
    section = "## The engine alone on a GPU"
    assert row_of(page, section, "100,000")[-1] == "yes"
    assert row_of(page, section, "1,000,000")[-1] == "**no**"
    assert "- device cpu, rows 5: time limit" in page


@pytest.mark.slow
def test_a_size_in_a_process_of_its_own(tmp_path, capsys):
    arguments = ["--rows", "200", "--points", "20", "--threads", "1", "--results", str(tmp_path)]
    assert run(neighbors_scale.MEASUREMENT, arguments) == 0
    (line,) = (tmp_path / "neighbors_scale.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert (record["device"], record["rows"], record["points"]) == ("cpu", 200, 20)
    assert record["threads"] == 1
    assert record["load"] >= 0.0
    assert (tmp_path / "neighbors_scale.md").read_text() in capsys.readouterr().out


# --- defaults ------------------------------------------------------------------------------------


def small_table(n=200):
    """A table whose test rows of fold 0 cannot be used: who reads them, fails."""
    split = split_of(n, test=0)
    data = datasets.RegressionData("bike", split.X, split.y, ("a", "b", "c"), (), None)
    _, test = fold_rows(data, 0)
    data.X[test], data.y[test] = np.nan, np.nan
    return data


def quick(name):
    """A variant with one kernel and short trees."""
    variant = neighbor_defaults.VARIANTS[name]
    short = {"max_iter": 20, "min_samples_leaf": 5}
    parameters = {**variant.parameters, "kernels": ["matern32"], "ard": False}
    if "mean" in parameters:
        trees = boosted_trees().set_params(**short)
        parameters["mean"] = neighbor_defaults.OfRows(lambda n: trees)
    settings = {"sample.tree_parameters": tuple(short.items()), **variant.settings}
    return replace(variant, parameters=parameters, settings=settings)


def test_held_out_rows_are_training_rows_of_fold_0():
    data = small_table()
    train, test = fold_rows(data, 0)
    inner, held = neighbor_defaults.inner_rows(data)
    assert sorted([*inner, *held]) == sorted(train)
    assert len(held) == 18
    assert not {*inner, *held} & {*test}
    assert np.array_equal(neighbor_defaults.inner_rows(data)[1], held)
    assert len(neighbor_defaults.inner_rows(data, most=5)[1]) == 5


@pytest.mark.parametrize("variant", ["default", "30 neighbours", "without trees", "trees alone"])
def test_a_variant_is_fitted_and_scored_inside_the_training_rows(variant):
    record = neighbor_defaults.measure_variant(quick(variant), small_table())
    assert "error" not in record
    assert (record["n_train"], record["n_held"]) == (162, 18)
    assert record["rmse"] < 0.8
    assert record["predictions_a_second"] > 0.0
    if variant.endswith("trees"):
        assert "HistGradient" not in record["mean"]
    if variant == "trees alone":
        assert record["mean"] == "HistGradientBoostingRegressor"


def test_every_variant_differs_from_the_default():
    """Where a default has moved to a variant's value, the variant has to go."""
    default = TwoStageGPRegressor().get_params()
    for name, variant in neighbor_defaults.VARIANTS.items():
        assert (name == "default") == (not variant.arguments)
        for key, value in variant.parameters.items():
            assert default[key] != value, name
        if variant.settings:
            assert variant.arguments["settings"] != DEFAULTS, name


def defaults_record(variant, name="bike", rmse=0.2, **changed):
    scores = {"rmse": rmse, "nlpd": 10.0 * rmse, "coverage_95": 0.95}
    costs = {"fit_cpu": 10.0, "predictions_a_second": 1000.0}
    return {"variant": variant, "set": name, "version": "1.0", "code": "abc"} | (
        scores | costs | changed
    )


def test_page_of_variants():
    page = neighbor_defaults.report(
        [
            defaults_record("default"),
            defaults_record("default", "pol", rmse=0.1),
            defaults_record("two ridges", rmse=0.4, fit_cpu=5.0, coverage_95=0.90),
            defaults_record("two ridges", "pol", rmse=0.05, predictions_a_second=4000.0),
            defaults_record("one ridge", rmse=0.1),
            {"variant": "31 leaves", "set": "pol", "error": "time limit"},
            defaults_record("five ridges", "protein"),  # no default to compare with
        ]
    )
    summary = {
        cells[2]: cells[3:-1]
        for cells in (
            [cell.strip() for cell in line.split("|")]
            for line in page.split("## Change against the default")[1]
            .split("\n## ")[0]
            .splitlines()
            if line.startswith("| ")
        )
    }
    assert summary["two ridges"] == [
        *("2", "1.000", "bike 2.000", "+0.750", "bike +2.000", "92.5%", "0.71", "2.00")
    ]
    assert summary["one ridge"][:2] == ["1", "0.500"]
    assert summary["default"][1:3] == ["1.000", "–"]
    assert "five ridges" not in summary
    rmse = "## RMSE by table"
    assert row_of(page, rmse, "variant") == ["variant", "bike", "pol", "protein"]
    assert row_of(page, rmse, "one ridge") == ["one ridge", "0.1000", "–", "–"]
    assert row_of(page, rmse, "five ridges")[-1] == "0.2000"
    assert "- variant 31 leaves, set pol: time limit" in page


@pytest.mark.slow
def test_a_variant_in_a_process_of_its_own(tmp_path, monkeypatch, capsys):
    split = split_of(100, test=0)
    np.savez(tmp_path / "diamonds.npz", X=split.X, y=split.y)
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(tmp_path))
    arguments = ["--sets", "diamonds", "--variants", "one ridge"]
    arguments += ["--results", str(tmp_path / "results")]
    assert run(neighbor_defaults.MEASUREMENT, arguments) == 0
    (line,) = (tmp_path / "results" / "neighbor_defaults.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert (record["variant"], record["set"], record["n_held"]) == ("one ridge", "diamonds", 9)
    assert record["rmse"] < 1.0
    assert record["mean"].count("/loo") == 1
    capsys.readouterr()
