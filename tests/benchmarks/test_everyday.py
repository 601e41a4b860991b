"""Tables of everyday sizes: which cells there are, one small cell of each part, the page."""

from dataclasses import asdict

import numpy as np
import pytest

from benchmarks import everyday, many_tables
from benchmarks.everyday_tables import NAME, report
from benchmarks.peers import PEERS
from benchmarks.peers.base import Fitted, Prediction
from benchmarks.peers.ours import Ours
from measurements.cores import usable
from measurements.processes import Limits
from measurements.runner import measured
from twostagegp import TwoStageGPRegressor
from twostagegp.datasets import FOLDER_VARIABLE


def parse(*arguments):
    return everyday.MEASUREMENT.parser().parse_args(arguments)


@pytest.fixture
def no_data(monkeypatch):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)


@pytest.fixture
def four_cores(monkeypatch):
    monkeypatch.setattr(everyday, "usable", lambda: [0, 1, 2, 3])


# --- cells ---------------------------------------------------------------------------------------


def test_without_data_the_generated_table_is_fitted(no_data, four_cores):
    found = everyday.cells(parse("--parts", "fits"))
    assert {cell.set for cell in found} == {"generated"}
    assert {cell.rows for cell in found} == set(everyday.ROWS)
    assert {cell.cores for cell in found} == {1, 2}
    assert {cell.model for cell in found} == set(everyday.COMPARED)
    draws = {cell.rows: 1 + max(c.draw for c in found if c.rows == cell.rows) for cell in found}
    assert draws == {100: 3, 350: 3, 1000: 3, 5000: 1, 20_000: 1, 100_000: 1}


def test_exact_models_of_other_libraries_are_spared_large_tables(no_data):
    found = everyday.cells(parse("--parts", "fits", "--threads", "1"))
    largest = {cell.model: max(c.rows for c in found if c.model == cell.model) for cell in found}
    assert largest["sklearn_gpr"] == 1000
    assert largest["gpytorch_matern"] == 5000
    assert largest[NAME] == largest["gpboost"] == 100_000


def test_a_table_is_used_up_to_the_rows_that_it_has(monkeypatch):
    monkeypatch.setattr(everyday, "n_rows", lambda name: {"kin8nm": 1400, "generated": 6000}[name])
    given = parse("--parts", "fits", "--sets", "kin8nm,generated", "--models", NAME)
    found = everyday.cells(given)
    assert {cell.rows for cell in found if cell.set == "kin8nm"} == {100, 350}
    assert {cell.rows for cell in found if cell.set == "generated"} == {100, 350, 1000, 5000}


def test_options_choose_cells(no_data, four_cores):
    found = everyday.cells(
        parse(*("--rows", "350", "--threads", "2", "--models", NAME, "--draws", "2"))
    )
    fits = [cell for cell in found if cell.part == "fits"]
    assert [(cell.rows, cell.cores, cell.draw) for cell in fits] == [(350, 2, 0), (350, 2, 1)]
    cores = [cell for cell in found if cell.part == "cores" and cell.draw == 0]
    assert [(c.cores, c.busy) for c in cores] == [
        *((1, False), (1, True), (2, False), (2, True), (4, False), (4, True))
    ]
    assert {cell.machine_cores for cell in cores} == {4}
    assert not [cell for cell in found if cell.part == "latency"]


def test_no_more_threads_than_cores(no_data, monkeypatch):
    monkeypatch.setattr(everyday, "usable", lambda: [0])
    assert {cell.cores for cell in everyday.cells(parse("--rows", "100"))} == {1}


def test_latency_has_its_own_sizes_and_models(no_data):
    found = everyday.cells(parse("--parts", "latency"))
    assert [(cell.rows, cell.model) for cell in found] == [
        *((1000, NAME), (1000, "sklearn_gpr"), (1000, "lightgbm")),
        *((20_000, NAME), (20_000, "lightgbm")),
    ]


def test_only_fits_are_told_their_threads():
    usual = Limits(60, threads=None)

    def limits(part, cores):
        cell = everyday.Cell(part, NAME, "generated", 100, 0, cores)
        return everyday.MEASUREMENT.strategy.limits(cell, None, usual)

    assert (limits("fits", 2).threads, limits("fits", 2).cores) == (2, 2)
    assert (limits("cores", 2).threads, limits("cores", 2).cores) == (None, 2)
    assert (limits("latency", None).threads, limits("latency", None).cores) == (None, None)


def test_other_libraries_run_with_the_other_interpreter():
    other = everyday.MEASUREMENT.strategy.other_python
    for model in everyday.COMPARED:
        cell = everyday.Cell("fits", model, "generated", 100, 0)
        assert other(cell) is (model in PEERS)


# --- one cell ------------------------------------------------------------------------------------


class Trivial(Fitted):
    def __init__(self, y):
        self.y = y

    def predict(self, X):
        return Prediction(np.full(len(X), self.y.mean()), np.full(len(X), self.y.std()))


@pytest.fixture
def trivial(monkeypatch):
    """A model that costs nothing in the place of all, and a small generated table."""
    known = everyday.MODELS[NAME]
    monkeypatch.setattr(type(known), "load", lambda self: lambda X, y, seed: Trivial(y))
    rng = np.random.default_rng(0)
    table = rng.normal(size=(1300, 2)), rng.normal(size=1300)
    monkeypatch.setattr(many_tables, "load", lambda name: table)


def test_a_fit_has_seconds_and_scores(trivial):
    record = everyday.measure(everyday.Cell("fits", NAME, "generated", 100, 0, 1))
    assert {"fit_wall", "fit_cpu", "predict_wall", "nlpd", "crps", "package"} <= record.keys()
    assert record["n_test"] == 1000


def test_a_fit_between_busy_neighbors_has_the_same_scores(trivial):
    cell = everyday.Cell("cores", NAME, "generated", 100, 0, 1, False, 1)
    busy = everyday.Cell("cores", NAME, "generated", 100, 0, 1, True, 1)
    assert everyday.measure(cell)["crps"] == everyday.measure(busy)["crps"]


def test_latencies_of_every_call_of_a_model():
    calls = []
    model = Trivial(np.arange(3.0))
    model.calls = lambda: {"count": calls.append, "predict": model.predict}
    found = everyday.latencies(model, np.zeros((4, 2)), 10)
    assert set(found) == {"count", "predict"}
    assert all(0.0 < median <= late for median, late in found.values())
    assert {row.shape for row in calls} == {(1, 2)}
    assert len(calls) == 10 + everyday.CALLS_BEFORE


def test_a_latency_cell_is_idle_and_busy(trivial, monkeypatch):
    monkeypatch.setattr(everyday, "CALLS", 5)
    monkeypatch.setattr(everyday, "usable", lambda: usable()[:1])
    record = everyday.measure(everyday.Cell("latency", NAME, "generated", 100, 0))
    assert record["idle_ms"].keys() == record["busy_ms"].keys() == {"mean and standard deviation"}


@pytest.mark.parametrize("part", everyday.PARTS)
def test_a_record_leaves_the_fields_of_its_cell_as_they_are(part, trivial, monkeypatch):
    monkeypatch.setattr(everyday, "CALLS", 5)
    cell = everyday.Cell(part, NAME, "generated", 100, 0, 1)
    record = measured(everyday.measure, cell)
    assert "error" not in record
    assert {name: record[name] for name in asdict(cell)} == asdict(cell)


def test_our_calls_and_facts():
    X = np.linspace(0.0, 1.0, 25)[:, None]
    model = Ours(TwoStageGPRegressor(mean="rbf", variance="rbf").fit(X, X[:, 0]), 1.0)
    assert model.facts()["method"] == "exact"
    assert "foretold_seconds" in model.facts()
    found = {name: call(X[:1]) for name, call in model.calls().items()}
    assert found["predict"].shape == (1,)
    assert len(found["predict, return_std"]) == 2
    assert found["predict_interval"].shape == (1, 2)


# --- page ----------------------------------------------------------------------------------------


def fit_record(model=NAME, rows=100, threads=1, **changed):
    record = {"part": "fits", "model": model, "set": "generated", "rows": rows, "draw": 0}
    record |= {"cores": threads, "busy": False, "machine_cores": None, "package": "lib 1"}
    record |= {"fit_wall": 2.0, "fit_cpu": 3.0, "predict_wall": 0.5, "predict_cpu": 0.5}
    record |= {"nlpd": 0.2, "crps": 0.1, "method": "exact", "version": "0.1.0", "code": "abc"}
    return record | changed


def cells_of(page, title, *start):
    section = page.split(f"## {title}\n")[1].split("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[: len(start)] == list(start):
            return cells[len(start) :]
    raise AssertionError(f"no line {start} in {title}")


def test_page_of_nothing():
    assert "No fits yet" in report([])


def test_page_warns_if_the_machine_was_not_idle():
    idle, disturbed = fit_record(cores_in_use=0.1), fit_record(threads=2, cores_in_use=1.5)
    assert "not idle" not in report([idle, fit_record(threads=2, cores_in_use=None)])
    assert "before 1 of 2 measurements" in report([idle, disturbed])


def test_page_has_seconds_by_threads_and_marks_the_best_scores():
    faster = {"fit_wall": 1.0, "nlpd": 0.5, "crps": 0.05}
    page = report(
        [fit_record(), fit_record(threads=2, **{"fit_wall": 1.5}), fit_record("lightgbm", **faster)]
    )
    ours = cells_of(page, "Fits to generated", "100", "twostagegp")
    assert ours == ["1", "2.00", "0.500", "3.50", "1.50", "0.500", "3.50", "**0.200**", "0.100"]
    theirs = cells_of(page, "Fits to generated", "100", "LightGBM, conformal")
    assert theirs[-2:] == ["0.500", "**0.0500**"]
    assert theirs[4] == "–"  # not run on two threads
    against = cells_of(page, "Other libraries against ours", "100", "LightGBM, conformal")
    assert against == ["1", "0.600", "–", "1.00", "–", "0.500", "+0.300"]


def test_page_says_which_models_are_not_run_and_which_failed():
    late = {"part": "fits", "set": "generated", "rows": 20_000, "draw": 0, "cores": 1}
    late |= {"model": "gpboost", "error": "time limit"}
    page = report([fit_record(), fit_record("sklearn_gpr"), fit_record(rows=20_000), late])
    title = "Fits to generated"
    assert set(cells_of(page, title, "20,000", "scikit-learn GPR")[1:]) == {"–"}
    assert cells_of(page, title, "20,000", "GPBoost")[1] == "time limit"
    assert "- scikit-learn GPR: not run above 2,000 rows, as " in page
    assert "model gpboost, set generated, rows 20000, draw 0, cores 1: time limit" in page


def test_page_compares_cores_of_one_machine_with_each_other():
    made = [
        fit_record(part="cores", cores=cores, busy=busy, machine_cores=machine, fit_wall=wall)
        for machine, cores, busy, wall in (
            *((2, 1, False, 4.0), (2, 1, True, 8.0), (2, 2, False, 3.0), (2, 2, True, 9.0)),
            *((16, 1, False, 2.0), (16, 16, False, 0.5)),
        )
    ]
    page = report(made)
    two, sixteen = page.split("On a machine with 16 cores")
    assert "On a machine with 2 cores" in two
    assert cells_of(two, "By cores", "100", "exact", "2")[2:] == ["0.750", "9.00", "3.00", "3.00"]
    assert cells_of("## By cores\n" + sixteen, "By cores", "100", "exact", "16")[2] == "0.250"


def test_page_has_milliseconds_of_single_rows():
    states = {"idle_ms": {"predict": [1.0, 2.0]}, "busy_ms": {"predict": [3.0, 40.0]}}
    page = report([fit_record(part="latency", calls=500, **states)])
    title = "One row at a time"
    assert cells_of(page, title, "100", "twostagegp", "exact", "predict") == [
        *("1.00", "2.00", "3.00", "40.0")
    ]
    assert "500 calls" in page


def test_page_compares_predicted_seconds_if_the_model_reports_them():
    assert "Predicted seconds" not in report([fit_record(foretold_seconds=None)])
    page = report([fit_record(foretold_seconds=4.0)])
    found = cells_of(page, "Predicted seconds of a fit", "100", "generated", "exact")
    assert found == ["1", "1", "4.00", "2.00", "0.500", "3.00"]
