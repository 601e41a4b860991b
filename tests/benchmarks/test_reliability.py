"""Hard tables and the program that counts failures on them."""

import json

import numpy as np
import pytest

from benchmarks import reliability
from benchmarks.hard_tables import NEW_ROWS, TABLES, classes, hard_table
from benchmarks.peers.base import Prediction
from benchmarks.reliability_fits import measure_table, verdict
from benchmarks.reliability_tables import OUTCOMES, failed, report
from measurements.runner import run


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_what_its_name_and_seed_say(name):
    table, again, other = hard_table(name, 1), hard_table(name, 1), hard_table(name, 2)
    n = len(table.y)
    assert table.X.shape == (n, table.X_new.shape[1])
    assert table.X_new.shape[0] == len(table.y_new) == NEW_ROWS
    assert 3 <= n <= 300
    assert np.isfinite(table.X).all()
    assert np.isfinite(table.y).all()
    np.testing.assert_array_equal(table.X, again.X)
    np.testing.assert_array_equal(table.y, again.y)
    assert not np.array_equal(table.X, other.X)
    labels, new = classes(table, 3)
    assert labels.shape == (n,)
    assert new.shape == (NEW_ROWS,)
    assert (np.ptp(table.y) > 0.0) <= len(np.unique(labels)) - 1 <= 2


def test_a_verdict_names_what_is_wrong():
    table = hard_table("rows 20")
    fine = Prediction(np.zeros(NEW_ROWS), np.full(NEW_ROWS, 10.0))
    wide, empty = np.tile([-99.0, 99.0], (NEW_ROWS, 1)), np.zeros((NEW_ROWS, 2))
    assert not failed(verdict(table, fine, wide, []))
    assert failed(verdict(table, fine, empty, []))
    low = verdict(table, fine, empty, [])
    assert low["coverage"] == 0.0
    said = ["Predicted variances smaller than 0. Setting those variances to 0."]
    assert verdict(table, fine, wide, said)["not_positive"] == 1
    broken = Prediction(np.full(NEW_ROWS, np.nan), np.zeros(NEW_ROWS))
    record = verdict(table, broken, wide, [])
    assert (record["not_finite"], record["not_positive"]) == (NEW_ROWS, NEW_ROWS)


def test_what_a_model_raises_is_its_record(monkeypatch):
    def fit(X, y, seed):
        raise ValueError("no\n way")

    monkeypatch.setattr("benchmarks.peers.Model.load", lambda self: fit)
    record = measure_table("gpboost", "rows 20", 0)
    assert record["exception"] == "ValueError: no way"
    assert [way for way, is_so in OUTCOMES.items() if is_so(record)] == ["exception"]


@pytest.mark.slow
def test_our_model_is_run_and_reported(tmp_path, capsys):
    options = ["--models", "ours_auto", "--tables", "rows 5", "--seeds", "0"]
    assert run(reliability.MEASUREMENT, [*options, "--results", str(tmp_path)]) == 0
    lines = (tmp_path / "reliability.jsonl").read_text().splitlines()
    assert [json.loads(line)["set"] for line in lines] == ["rows 5"]
    assert "1 fits, 1 tables, 1 seeds" in capsys.readouterr().out


def test_a_process_that_dies_is_an_outcome_that_is_not_tried_again():
    record = {"model": "m", "set": "rows 5", "fold": 0, "error": "killed by SIGKILL: no message"}
    assert failed(record)
    assert [way for way, is_so in OUTCOMES.items() if is_so(record)] == ["ended by force"]
    assert reliability.MEASUREMENT.settled(record)


def test_the_page_counts_every_way_to_fail():
    known = {"model": "gpboost", "fold": 0, "judged": True}
    fine = {"not_finite": 0, "not_positive": 0, "coverage": 0.9, "fit_cpu": 1.0, "width": 1.0}
    records = [
        known | {"set": "rows 3"} | fine,
        known | {"set": "rows 4"} | fine | {"coverage": 0.5},
        known | {"set": "rows 5", "exception": "ValueError: no"},
        known | {"set": "rows 8", "ended": "time limit"},
        known | {"set": "rows 12"} | fine | {"not_finite": 3, "coverage": None},
        known | {"set": "rows 20"} | fine | {"coverage": 0.5, "judged": False},
        known | {"set": "a table that was removed"} | fine,
    ]
    page = report(records)
    row = next(line for line in page.splitlines() if line.startswith("| gpboost"))
    assert [cell.strip() for cell in row.split("|")[2:9]] == ["6", "1", "1", "1", "0", "2", "4"]
    assert "ValueError: no" in page
