"""The command line that every experiment of the paper shares."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

import pytest

from experiments import __main__ as program
from experiments._runner import Experiment, run
from twostagegp.datasets import DatasetNotFoundError


@dataclass(frozen=True)
class Task:
    name: str
    seed: int


CALLS: list[Task] = []


def measure(task):
    CALLS.append(task)
    if task.name == "missing":
        raise DatasetNotFoundError("no file for 'missing'. Set TWOSTAGEGP_DATA.")
    if task.name == "bad":
        raise ValueError("it broke")
    return {"score": 10 * task.seed}


def tasks(given):
    seeds = range(1 if given.quick else given.seeds)
    return [Task(name, seed) for name in given.sets.split(",") for seed in seeds]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sets", default="a")
    parser.add_argument("--seeds", type=int, default=2)


def experiment(**changes):
    given = {
        "name": "small",
        "about": "A small one.",
        "arguments": arguments,
        "tasks": tasks,
        "measure": measure,
        "report": lambda records: f"# Small\n\n{len(records)} records\n",
        "picture": lambda records: "<svg/>\n",
    }
    return Experiment(**{**given, **changes})


@pytest.fixture(autouse=True)
def no_calls():
    CALLS.clear()


def test_results_page_and_picture_are_written(tmp_path, capsys):
    assert run(experiment(), ["--results", str(tmp_path)]) == 0
    records = [json.loads(line) for line in (tmp_path / "small.jsonl").read_text().splitlines()]
    assert [(r["name"], r["seed"], r["score"]) for r in records] == [("a", 0, 0), ("a", 1, 10)]
    assert {"version", "code"} <= records[0].keys()
    assert (tmp_path / "small.md").read_text() == "# Small\n\n2 records\n"
    assert (tmp_path / "small.svg").read_text() == "<svg/>\n"
    assert "# Small" in capsys.readouterr().out


def test_a_second_run_does_what_is_missing_only(tmp_path):
    there = ["--results", str(tmp_path)]
    run(experiment(), there)
    assert run(experiment(), [*there, "--seeds", "3"]) == 0
    assert [task.seed for task in CALLS] == [0, 1, 2]
    run(experiment(), [*there, "--redo"])
    assert len(CALLS) == 5
    run(experiment(), [*there, "--table-only", "--sets", "other"])
    assert len(CALLS) == 5


@pytest.mark.slow
def test_several_processes_give_the_same(tmp_path):
    assert run(experiment(), ["--results", str(tmp_path), "--jobs", "2", "--seeds", "3"]) == 0
    lines = (tmp_path / "small.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["seed"] for line in lines) == [0, 1, 2]


def test_a_failed_fit_is_kept_and_tried_again(tmp_path, capsys):
    there = ["--results", str(tmp_path), "--sets", "bad,a", "--seeds", "1"]
    assert run(experiment(), there) == 1
    assert "ValueError: it broke" in capsys.readouterr().out
    assert run(experiment(), there) == 1
    assert [task.name for task in CALLS] == ["bad", "a", "bad"]


def test_missing_data_end_the_run_with_a_sentence(tmp_path, capsys):
    assert run(experiment(), ["--results", str(tmp_path), "--sets", "missing"]) == 2
    assert "Set TWOSTAGEGP_DATA" in capsys.readouterr().err
    assert not (tmp_path / "small.md").exists()


def test_without_results_there_is_no_page(tmp_path, capsys):
    assert run(experiment(), ["--results", str(tmp_path), "--table-only"]) == 1
    assert "no results yet" in capsys.readouterr().err


def test_a_broken_report_leaves_the_old_page(tmp_path):
    run(experiment(), ["--results", str(tmp_path)])

    def broken(records):
        raise RuntimeError("no page")

    with pytest.raises(RuntimeError, match="no page"):
        run(experiment(report=broken), ["--results", str(tmp_path), "--table-only"])
    assert (tmp_path / "small.md").read_text() == "# Small\n\n2 records\n"


def test_quick_results_are_kept_apart(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments._runner.RESULTS", tmp_path)
    assert run(experiment(), ["--quick"]) == 0
    assert (tmp_path / "quick" / "small.md").exists()
    assert not (tmp_path / "small.md").exists()


def test_tasks_must_be_dataclasses(tmp_path):
    with pytest.raises(ValueError, match="dataclasses"):
        run(experiment(tasks=lambda given: []), ["--results", str(tmp_path)])


# --- python -m experiments ------------------------------------------------------------------------


def test_every_experiment_is_listed_and_can_be_loaded(capsys):
    assert program.main(["list"]) == 0
    out = capsys.readouterr().out
    for name in program.EXPERIMENTS:
        assert name in out
    for name in program.EXPERIMENTS:
        if name != "foundation":
            assert program.load(name).name == name


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        program.main(["table9"])
    assert "table9" in capsys.readouterr().err


def test_all_goes_on_after_a_failure_and_returns_the_worst(tmp_path, monkeypatch, capsys):
    made = {"good": experiment(name="good"), "poor": experiment(name="poor")}
    monkeypatch.setattr(program, "EXPERIMENTS", ("poor", "good"))
    monkeypatch.setattr(program, "load", made.__getitem__)
    there = ["all", "--results", str(tmp_path), "--sets"]
    assert program.main([*there, "a"]) == 0
    assert program.main([*there, "missing"]) == 2
    assert program.main([*there, "bad"]) == 1
    out = capsys.readouterr().out
    assert "no data" in out
    assert "some fits failed" in out
    assert (tmp_path / "good.md").exists()
