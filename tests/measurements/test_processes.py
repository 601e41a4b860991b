"""Cells in processes of their own: time limits, processes that die, threads, interruptions."""

import json
import os
import time
from dataclasses import replace
from threading import Event

import pytest

from measurements.processes import TIME_LIMIT, Limits, measure_group
from measurements.runner import run
from tests.measurements.measured_alone import MEASUREMENT, Cell, measurement

LIMITS = Limits(seconds=60)


def group(*deeds, limits=LIMITS):
    cells = [Cell(deed, number) for number, deed in enumerate(deeds)]
    return list(measure_group(MEASUREMENT, cells, limits))


@pytest.fixture(scope="module")
def records():
    """Cells of one group; two of them end their process."""
    deeds = ("work", "chatter", "raise", "die", "work", "kill", "work")
    return group(*deeds, limits=Limits(60, threads=3))


def test_cells_of_a_group_share_a_process(records):
    first, second = records[:2]
    assert (first["deed"], first["number"], second["number"]) == ("work", 0, 1)
    assert first["pid"] == second["pid"] != os.getpid()
    assert first["granted"] == "3"
    assert (first["threads"], first["time_limit"]) == (3, 60)
    assert {"version", "code", "machine"} <= first.keys()


@pytest.mark.parametrize(
    ("number", "deed", "error"),
    [
        (2, "raise", "ValueError: not today"),
        (3, "die", "ended with status 3: no"),
        (5, "kill", "killed by SIGKILL: "),
    ],
)
def test_a_cell_that_fails_leaves_a_record_and_the_next_one_is_measured(
    records, number, deed, error
):
    failed = records[number]
    assert failed["error"].startswith(error)
    assert (failed["deed"], failed["number"]) == (deed, number)
    assert [record["number"] for record in records] == list(range(7))
    assert [r["number"] for r in records if "error" not in r] == [0, 1, 4, 6]
    assert len({records[measured]["pid"] for measured in (1, 4, 6)}) == 3


def test_what_libraries_print_is_not_taken_for_a_record(records):
    assert records[1]["deed"] == "chatter"
    assert "error" not in records[1]


@pytest.mark.slow
def test_a_cell_beyond_the_time_limit_is_ended():
    began = time.perf_counter()
    first, late = group("work", "sleep", limits=Limits(seconds=15))
    assert time.perf_counter() - began < 50.0
    assert "error" not in first
    assert late["error"] == TIME_LIMIT


def test_a_process_ends_with_whoever_waits_for_it():
    found = measure_group(MEASUREMENT, [Cell("work", 0), Cell("sleep", 1)], LIMITS)
    next(found)
    found.close()  # would wait for a minute otherwise


def test_no_process_is_started_once_the_run_is_stopped():
    stop = Event()
    stop.set()
    assert list(measure_group(MEASUREMENT, [Cell("work", 0)], LIMITS, stop)) == []


def test_a_process_gets_cores_threads_and_variables_of_its_limits(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    limits = Limits(60, threads=None, cores=1, environment={"COLOR": "blue"})
    (record,) = group("work", limits=limits)
    assert record["color"] == "blue"
    assert record["granted"] is None  # not the 7 of this process
    assert record["threads"] is None
    assert record["cores"] == 1


def test_limits_may_depend_on_the_cell():
    def limits(cell, given, usual):
        return replace(usual, threads=cell.number + 1)

    chosen = measurement(threads=None, limits=limits)
    given = chosen.parser().parse_args(["--deeds", "work,work"])
    records = list(chosen.strategy.records(chosen, chosen.cells(given), given))
    assert [record["granted"] for record in records] == ["1", "2"]
    with pytest.raises(SystemExit):
        chosen.parser().parse_args(["--threads", "2"])


def arguments(folder, *more):
    return ["--results", str(folder), *more]


def stored(folder):
    return [json.loads(line) for line in (folder / "alone.jsonl").read_text().splitlines()]


def test_every_cell_has_its_own_process_and_what_is_missing_here_is_not_stored(tmp_path, capsys):
    assert run(MEASUREMENT, arguments(tmp_path, "--deeds", "missing,work,work", "--jobs", "2")) == 1
    assert [record["deed"] for record in stored(tmp_path)] == ["work", "work"]
    assert len({record["pid"] for record in stored(tmp_path)}) == 2
    assert "not installed: something" in capsys.readouterr().out


def test_a_time_limit_is_tried_again_only_with_more_time(tmp_path):
    strategy = MEASUREMENT.strategy
    record = {"error": TIME_LIMIT, "time_limit": 60}
    for seconds, settled in (("60", True), ("61", False)):
        given = MEASUREMENT.parser().parse_args(["--time-limit", seconds])
        assert strategy.is_settled(record, given) is settled
    assert not strategy.is_settled({"error": "ValueError: x"}, given)
    lenient = measurement(settled=lambda record: record["error"] == "diverged").strategy
    assert lenient.is_settled({"error": "diverged"}, given)


def test_cells_that_need_no_other_library_run_with_this_interpreter(tmp_path):
    chosen = measurement(other_python=lambda cell: cell.number > 0)
    options = ["--deeds", "work,work", "--python", "no-such-interpreter"]
    with pytest.raises(FileNotFoundError, match="no-such-interpreter"):
        run(chosen, arguments(tmp_path, *options))
    assert [record["number"] for record in stored(tmp_path)] == [0]
