"""The benchmark of long files."""

import json

import pandas as pd
import pytest

from benchmarks import cli_stream as benchmark
from measurements.runner import run


def test_blocks_make_one_table(tmp_path):
    benchmark.write_rows(tmp_path / "t.csv", 10, seed=0, with_target=True, block=4)
    table = pd.read_csv(tmp_path / "t.csv")
    assert table.shape == (10, 5)
    assert table.notna().all(axis=None)


@pytest.mark.slow
def test_a_run_and_its_page(tmp_path, capsys):
    assert run(benchmark.MEASUREMENT, ["--rows", "50,100", "--results", str(tmp_path)]) == 0
    lines = (tmp_path / "cli_stream.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["rows"] for record in records] == [50, 100]
    assert all(record["peak_mib"] > 50 for record in records)
    assert "## Time and memory" in capsys.readouterr().out
