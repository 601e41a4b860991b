"""The benchmark of one evaluation."""

import json

from benchmarks import evaluation_floor
from measurements.runner import run


def test_a_run_and_its_page(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation_floor, "REPEAT_SECONDS", 0.01)
    assert run(evaluation_floor.MEASUREMENT, ["--quick", "--results", str(tmp_path)]) == 0
    lines = (tmp_path / "evaluation_floor.jsonl").read_text().splitlines()
    assert [json.loads(line)["objective"] for line in lines] == ["nll", "loo"]
    assert all(json.loads(line)["seconds"] > 0.0 for line in lines)
    assert "| loo" in (tmp_path / "evaluation_floor.md").read_text()
