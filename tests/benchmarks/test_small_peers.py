"""Other libraries on the small tables: what is run, records of ours, the page."""

import json

import numpy as np
import pytest

from benchmarks import uci_small_peers
from benchmarks.peers import PEERS, SMALL_ONLY, run
from benchmarks.small_peers_tables import our_records, report
from benchmarks.uci_large import DEFAULT_MODELS
from benchmarks.uci_tables import REFERENCES
from measurements.runner import run as run_measurement
from twostagegp import datasets, metrics

# --- what is run ---------------------------------------------------------------------------------


def test_exact_models_are_spared_the_tables_with_thousands_of_rows():
    given = uci_small_peers.MEASUREMENT.parser().parse_args(["--models", "sklearn_gpr,gpboost"])
    found = uci_small_peers.cells(given)
    assert {cell.set for cell in found if cell.model == "gpboost"} == set(REFERENCES)
    assert {cell.set for cell in found if cell.model == "sklearn_gpr"} == {
        *("yacht", "boston", "energy", "concrete", "wine")
    }
    assert [cell.fold for cell in found if (cell.model, cell.set) == ("gpboost", "naval")] == [0, 1]


def test_every_peer_is_run_on_the_small_tables():
    assert set(uci_small_peers.MODELS) == set(PEERS)
    assert not set(SMALL_ONLY) & set(DEFAULT_MODELS)


@pytest.mark.slow
def test_a_small_run_is_kept_and_not_done_twice(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 2))
    splits = {"test_0": np.arange(10), "test_1": np.arange(10, 20)}
    np.savez(tmp_path / "yacht.npz", X=X, y=X[:, 0] + 0.1 * rng.normal(size=50), **splits)
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(tmp_path))
    arguments = ["--sets", "yacht", "--models", "sklearn_gpr", "--splits", "0,1"]
    arguments += ["--results", str(tmp_path / "out")]
    assert run_measurement(uci_small_peers.MEASUREMENT, arguments) == 0
    lines = (tmp_path / "out" / "uci_small_peers.jsonl").read_text().splitlines()
    assert [json.loads(line)["fold"] for line in lines] == [0, 1]
    assert all(json.loads(line)["rmse"] < 0.5 for line in lines)
    assert "sklearn_gpr" in (tmp_path / "out" / "uci_small_peers.md").read_text()
    assert run_measurement(uci_small_peers.MEASUREMENT, arguments) == 0
    assert "2 of 2 are stored already" in capsys.readouterr().out


# --- page ----------------------------------------------------------------------------------------


def peer_record(model, fold=0, **changed):
    scores = {"rmse": 0.3, "nlpd": 0.2, "crps": 0.1, "coverage_95": 0.9, "fit_cpu": 2.0}
    known = {"model": model, "set": "yacht", "fold": fold, "version": "lib 1"}
    return known | scores | changed


@pytest.fixture
def ours():
    record = {"model": "default", "set": "yacht", "version": "0.1.0", "code": "abc", "rmse": 3.0}
    record |= {"nlpd": 0.5 + np.log(15.0), "nlpd_standardized": 0.5, "crps": 1.5, "device": "cpu"}
    record |= {"coverage_95": 0.95, "fit_cpu_seconds": 4.0}
    made = [record | {"split": 0}, record | {"split": 7}, record | {"split": 1, "error": "no"}]
    return [*made, record | {"split": 0, "model": "paper"}]


def test_our_records_are_brought_to_the_standardised_target(ours):
    first, second = our_records(ours)
    assert (first["fold"], second["fold"]) == (0, 7)
    assert first["rmse"] == pytest.approx(0.2)
    assert first["crps"] == pytest.approx(0.1)
    assert first["nlpd"] == 0.5


def row(page, title, model):
    section = page.split(f"## {title}\n")[1].split("\n## ")[0]
    line = next(line for line in section.splitlines() if line.startswith(f"| {model} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_page_has_ours_on_the_splits_of_the_peers_and_marks_the_best(ours):
    failed = {"model": "gpnn", "set": "wine", "fold": 2, "error": "time limit"}
    page = report([peer_record("ngboost"), failed], our_records(ours))
    assert row(page, "RMSE", "ours_auto")[1] == "**0.200** ≈"
    assert row(page, "NLPD", "ngboost")[1] == "**0.200**"
    assert row(page, "Splits", "ours_auto")[1] == "1"
    assert row(page, "RMSE", "gpnn")[5] == "time limit"
    assert "- gpnn, wine, split 2: time limit" in page


def test_repeated_rows_are_told_apart():
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(30, 2)), rng.normal(size=30)
    found = run.Prediction(np.zeros(10), np.ones(10))
    twins = np.vstack([X[:4], rng.normal(size=(6, 2))])
    target = rng.normal(size=10)
    record = run.scores_on_new_rows(found, twins, target, X, y)
    scale = y.std()
    expected = metrics.nlpd(target[4:] / scale, np.zeros(6), np.full(6, 1.0 / scale))
    assert record == {"repeated_rows": 4, "nlpd_new_rows": pytest.approx(expected)}
    assert run.scores_on_new_rows(found, twins[4:], target[4:], X, y) == {}


def test_page_shows_what_repeated_rows_are_worth(ours):
    scored = peer_record("gpboost", nlpd=-2.0, nlpd_new_rows=1.0)
    again = peer_record("ours_auto", nlpd=0.6, nlpd_new_rows=0.9, code="abc")
    page = report([scored, again, peer_record("ngboost")], our_records(ours))
    assert row(page, "NLPD without repeated rows", "gpboost")[1] == "-2.00 → 1.00 (1)"
    assert row(page, "NLPD", "ours_auto")[1] == "0.600"  # not the 0.5 of the other benchmark
    assert "2 fits of theirs" in page
    assert "without repeated rows" not in report([peer_record("ngboost")])


def test_page_of_nothing():
    assert "0 fits" in report([])
