"""Two states of the source: tables and draws, cells, one small run, the page."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import many_tables, states, two_states, two_states_scores
from benchmarks.state_tables import pairs, report
from measurements.errors import CannotMeasureError
from measurements.provenance import code_version
from measurements.runner import run
from twostagegp import datasets

SOURCE = Path(two_states_scores.__file__).parents[1] / "src"


def parse(*arguments):
    return two_states_scores.MEASUREMENT.parser().parse_args(arguments)


# --- tables --------------------------------------------------------------------------------------


def test_there_are_thirty_five_tables_of_which_numpy_reads_those_that_the_package_knows():
    assert len(set(many_tables.TABLES)) == 35
    assert set(many_tables.NUMERIC) <= set(datasets.names())


def test_draws_are_repeatable_and_share_no_row():
    first, again = (many_tables.draw("diabetes", 100, 0, 50) for _ in range(2))
    assert np.array_equal(first.X, again.X)
    assert (first.X.shape, first.X_test.shape) == ((100, 10), (50, 10))
    rows = {row.tobytes() for row in first.X}
    assert not rows & {row.tobytes() for row in first.X_test}
    assert not np.array_equal(first.X, many_tables.draw("diabetes", 100, 1, 50).X)


def test_data_frames_are_passed_as_they_are_without_rows_that_lack_the_target(
    tmp_path, monkeypatch
):
    many_tables.load.cache_clear()
    (tmp_path / "real_tables").mkdir()
    table = pd.DataFrame({"kind": ["a", "b", None, "b"], "hwy": [1.0, 2.0, 3.0, None]})
    table.to_csv(tmp_path / "real_tables" / "mpg.csv.gz", index=False)
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(tmp_path))
    found = many_tables.draw("mpg", 2, 0)
    many_tables.load.cache_clear()
    assert list(found.X.columns) == ["kind"]
    assert sorted([*found.y, *found.y_test]) == [1.0, 2.0, 3.0]


def test_a_missing_data_frame_says_what_to_set(monkeypatch):
    many_tables.load.cache_clear()
    monkeypatch.delenv(datasets.FOLDER_VARIABLE, raising=False)
    with pytest.raises(datasets.DatasetNotFoundError, match="TWOSTAGEGP_DATA"):
        many_tables.load("mpg")


# --- states --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "program", [two_states.main, lambda a: run(two_states_scores.MEASUREMENT, a)]
)
def test_the_other_state_is_needed_and_must_hold_the_package(program, tmp_path):
    with pytest.raises(SystemExit, match="--before is needed"):
        program([])
    with pytest.raises(SystemExit, match="no package twostagegp in"):
        program(["--before", str(tmp_path)])


def test_the_source_of_a_state_comes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    assert states.python_path(tmp_path).split(":")[0] == str(tmp_path)
    assert states.python_path(tmp_path).split(":")[-1] == "elsewhere"


def test_cells_alternate_between_the_states_draw_by_draw():
    given = parse("--before", str(SOURCE), "--tables", "diabetes", "--rows", "100,400,1000")
    found = two_states_scores.cells(given)
    assert [(c.rows, c.draw, c.state) for c in found[:4]] == [
        *((100, 0, "before"), (100, 0, "now"), (100, 1, "before"), (100, 1, "now"))
    ]
    assert {cell.rows for cell in found} == {100, 400}  # diabetes has 442 rows
    assert {cell.code for cell in found} == {code_version()}


def test_a_process_with_another_source_measures_nothing():
    with pytest.raises(CannotMeasureError, match="not other"):
        two_states_scores.measure(two_states_scores.Cell("before", "other", "diabetes", 40, 0))


def test_a_record_of_a_changed_source_is_not_current():
    current = two_states_scores.MEASUREMENT.current
    cell = two_states_scores.Cell("now", "new", "diabetes", 40, 0)
    assert current(cell, {"code": "new"})
    assert not current(cell, {"code": "old"})


@pytest.mark.slow
def test_a_small_run_is_stored_and_compares_a_state_with_itself(tmp_path, capsys):
    arguments = ["--before", str(SOURCE), "--tables", "diabetes", "--rows", "40", "--draws", "1"]
    arguments += ["--results", str(tmp_path)]
    assert run(two_states_scores.MEASUREMENT, arguments) == 0
    lines = (tmp_path / "two_states_scores.jsonl").read_text().splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["before", "now"]
    assert "| 40   | 1      | 1     | 1.000 ± 0.000 |" in capsys.readouterr().out
    assert run(two_states_scores.MEASUREMENT, arguments) == 0
    assert "2 of 2 are stored already" in capsys.readouterr().out


# --- page ----------------------------------------------------------------------------------------


def record(state, table="yacht", rows=100, draw=0, **changed):
    found = {"state": state, "table": table, "rows": rows, "draw": draw, "target_sd": 2.0}
    found |= {"rmse": 1.0, "crps": 0.5, "nlpd_standardized": 0.1, "nlpd_own": 0.2}
    found |= {"coverage_80": 0.8, "coverage_95": 0.95, "coverage_99": 0.99}
    found |= {"fit_cpu_seconds": 4.0, "version": "0.1.0", "code": f"code-{state}"}
    return found | changed


def line_of(page, start):
    line = next(line for line in page.splitlines() if line.startswith(start))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_page_of_nothing():
    assert "No fits yet" in report([])
    assert "No fits yet" in report([record("before")])


def test_only_draws_of_both_states_are_compared():
    failed = record("now", draw=2, error="ValueError: x")
    made = [record("before"), record("now"), record("before", draw=1), record("before", draw=2)]
    assert len(pairs([*made, failed])) == 1
    assert "state now, table yacht, rows 100, draw 2: ValueError: x" in report([*made, failed])


def test_ratios_are_geometric_means_over_tables_with_their_standard_error():
    made = []
    for table, ratios in {"yacht": (0.5, 0.5), "wine": (2.0,)}.items():
        for draw, ratio in enumerate(ratios):
            now = {"crps": 0.5 * ratio, "fit_cpu_seconds": 1.0, "nlpd_standardized": 0.4}
            made += [record("before", table, draw=draw), record("now", table, draw=draw, **now)]
    page = report(made)
    all_rows = line_of(page, "| all ")
    error = math.log(2.0)  # of the mean of log 0.5 and log 2
    assert all_rows[1:5] == ["2", "3", "1.000 ± 0.000", f"1.000 ± {error:.3f}"]
    assert all_rows[5] == "+0.300 ± 0.000"
    assert all_rows[7] == "0.250 ± 0.000"
    assert "- before: twostagegp 0.1.0 (source code-before); 3 fits." in page


def test_page_shows_both_levels_and_lists_tables_from_worst_to_best():
    made = []
    for number, table in enumerate(("yacht", "wine", "boston")):
        made += [record("before", table), record("now", table, crps=0.5 + 0.1 * number)]
    page = report(made)
    assert "0.250 → 0.300" in page  # CRPS / sd, mean over the tables
    listed = page.split("## Worst and best tables by CRPS")[1]
    positions = [listed.index(f"| {table} ") for table in ("boston", "wine", "yacht")]
    assert positions == sorted(positions)
