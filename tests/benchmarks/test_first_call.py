"""The benchmark of imports and first fits."""

import os

import pytest

from benchmarks import first_call as benchmark
from measurements.runner import run


def test_a_process_is_measured_and_a_failed_one_is_an_error():
    assert 0.0 < benchmark.cpu_seconds("pass", os.environ) < 10.0
    with pytest.raises(RuntimeError, match=r"exit code 3: raise SystemExit\(3\)"):
        benchmark.cpu_seconds("raise SystemExit(3)", os.environ)


def test_ratios_are_medians_over_the_rounds():
    seconds = dict.fromkeys(benchmark.STEPS, 8.0)
    settings = {"exact_rows": 30, "neighbor_rows": 100, "threads": 1, "version": "1", "code": "ab"}
    records = [
        {"round": i, **settings, **seconds, "libraries": libraries, "ours": 4.0}
        for i, libraries in enumerate([2.0, 4.0, 8.0])
    ]
    lines = benchmark.MEASUREMENT.report(records).splitlines()
    exact = next(line for line in lines if "first exact fit" in line and line.startswith("|"))
    assert [cell.strip() for cell in exact.split("|")[2:5]] == ["8.00", "2.00", "2.00"]
    ours = next(line for line in lines if "import TwoStageGPRegressor" in line)
    assert [cell.strip() for cell in ours.split("|")[2:5]] == ["4.00", "1.00", "1.00"]


@pytest.mark.slow
def test_a_run_and_its_page(tmp_path, capsys):
    assert run(benchmark.MEASUREMENT, ["--quick", "--results", str(tmp_path)]) == 0
    assert "## CPU seconds of fresh processes" in capsys.readouterr().out
    assert len((tmp_path / "first_call.jsonl").read_text().splitlines()) == 1
