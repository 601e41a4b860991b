"""The command line that benchmarks and experiments share."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from measurements.errors import CannotMeasureError
from measurements.provenance import code_version
from measurements.runner import Measurement, run
from twostagegp.datasets import DatasetNotFoundError


@dataclass(frozen=True)
class Cell:
    name: str
    seed: int


NOWHERE = Path("nowhere")
CALLS: list[Cell] = []


def measure(cell):
    CALLS.append(cell)
    if cell.name == "missing":
        raise DatasetNotFoundError("no file for 'missing'. Set TWOSTAGEGP_DATA.")
    if cell.name == "elsewhere":
        raise CannotMeasureError("no such package")
    if cell.name == "bad":
        raise ValueError("it broke")
    return {"score": 10 * cell.seed}


def cells(given):
    seeds = range(1 if given.quick else given.seeds)
    return [Cell(name, seed) for name in given.sets.split(",") for seed in seeds]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sets", default="a")
    parser.add_argument("--seeds", type=int, default=2)


def measurement(**changes):
    given = {
        "name": "small",
        "about": "A small one.",
        "results": NOWHERE,
        "cell": Cell,
        "arguments": arguments,
        "cells": cells,
        "measure": measure,
        "report": lambda records: f"# Small\n\n{len(records)} records\n",
        "figure": lambda records: "<svg/>\n",
    }
    return Measurement(**{**given, **changes})


@pytest.fixture(autouse=True)
def no_calls():
    CALLS.clear()


def test_results_page_and_picture_are_written(tmp_path, capsys):
    assert run(measurement(), ["--results", str(tmp_path)]) == 0
    records = [json.loads(line) for line in (tmp_path / "small.jsonl").read_text().splitlines()]
    assert [(r["name"], r["seed"], r["score"]) for r in records] == [("a", 0, 0), ("a", 1, 10)]
    assert {"version", "code"} <= records[0].keys()
    assert (tmp_path / "small.md").read_text() == "# Small\n\n2 records\n"
    assert (tmp_path / "small.svg").read_text() == "<svg/>\n"
    assert "# Small" in capsys.readouterr().out


def test_a_second_run_does_what_is_missing_only(tmp_path):
    there = ["--results", str(tmp_path)]
    run(measurement(), there)
    assert run(measurement(), [*there, "--seeds", "3"]) == 0
    assert [cell.seed for cell in CALLS] == [0, 1, 2]
    run(measurement(), [*there, "--redo"])
    assert len(CALLS) == 5
    run(measurement(), [*there, "--table-only", "--sets", "other"])
    assert len(CALLS) == 5


@pytest.mark.slow
def test_several_processes_give_the_same(tmp_path):
    assert run(measurement(), ["--results", str(tmp_path), "--jobs", "2", "--seeds", "3"]) == 0
    lines = (tmp_path / "small.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["seed"] for line in lines) == [0, 1, 2]


def test_a_failed_fit_is_kept_and_tried_again(tmp_path, capsys):
    there = ["--results", str(tmp_path), "--sets", "bad,a", "--seeds", "1"]
    assert run(measurement(), there) == 1
    assert "ValueError: it broke" in capsys.readouterr().out
    assert run(measurement(), there) == 1
    assert [cell.name for cell in CALLS] == ["bad", "a", "bad"]


def test_missing_data_end_the_run_with_a_sentence(tmp_path, capsys):
    assert run(measurement(), ["--results", str(tmp_path), "--sets", "missing"]) == 2
    assert "Set TWOSTAGEGP_DATA" in capsys.readouterr().err
    assert not (tmp_path / "small.md").exists()


def test_without_results_there_is_no_page(tmp_path, capsys):
    assert run(measurement(), ["--results", str(tmp_path), "--table-only"]) == 1
    assert "no results yet" in capsys.readouterr().err


def test_a_broken_report_leaves_the_old_page(tmp_path):
    run(measurement(), ["--results", str(tmp_path)])

    def broken(records):
        raise RuntimeError("no page")

    with pytest.raises(RuntimeError, match="no page"):
        run(measurement(report=broken), ["--results", str(tmp_path), "--table-only"])
    assert (tmp_path / "small.md").read_text() == "# Small\n\n2 records\n"


def test_quick_results_are_kept_apart(tmp_path):
    assert run(measurement(results=tmp_path), ["--quick"]) == 0
    assert (tmp_path / "quick" / "small.md").exists()
    assert not (tmp_path / "small.md").exists()


def test_stale_records_are_those_of_other_source_code(tmp_path):
    there = ["--results", str(tmp_path)]
    run(measurement(), there)
    assert run(measurement(), [*there, "--redo", "stale"]) == 0
    assert len(CALLS) == 2
    path = tmp_path / "small.jsonl"
    path.write_text(path.read_text().replace(code_version(), "other", 1))
    assert run(measurement(), [*there, "--redo", "stale"]) == 0
    assert [cell.seed for cell in CALLS] == [0, 1, 0]


def test_a_record_that_is_no_longer_that_of_the_cell_is_replaced(tmp_path):
    there = ["--results", str(tmp_path)]
    run(measurement(), there)
    changed = measurement(
        current=lambda cell, record: record["seed"] != 1, measure=lambda cell: {"score": -1}
    )
    assert run(changed, there) == 0
    assert [r["score"] for r in changed.records(tmp_path)] == [0, -1]


def test_what_cannot_be_measured_here_is_not_stored(tmp_path, capsys):
    there = ["--results", str(tmp_path), "--sets", "elsewhere,a", "--seeds", "1"]
    assert run(measurement(), there) == 1
    assert "no such package" in capsys.readouterr().out
    assert len((tmp_path / "small.jsonl").read_text().splitlines()) == 1


def test_other_settings_of_a_cell_do_not_make_another_record(tmp_path):
    there = ["--results", str(tmp_path)]
    run(measurement(key=("name",)), there)
    records = measurement(key=("name",)).records(tmp_path)
    assert [(r["name"], r["seed"]) for r in records] == [("a", 0)]


def test_a_page_can_show_records_of_other_measurements(tmp_path):
    other = measurement(load=lambda folder: [{"from": folder}])
    assert run(other, ["--results", str(tmp_path), "--table-only"]) == 0
    assert (tmp_path / "small.md").read_text() == "# Small\n\n1 records\n"
