"""The benchmark of the quick preset."""

import json

from benchmarks import quick_preset
from measurements.runner import run


def test_a_run_and_its_page(tmp_path):
    arguments = ["--quick", "--rows", "40", "--results", str(tmp_path)]
    assert run(quick_preset.MEASUREMENT, arguments) == 0
    lines = (tmp_path / "quick_preset.jsonl").read_text().splitlines()
    assert [json.loads(line)["preset"] for line in lines] == ["default", "quick"]
    assert "Quick against default" in (tmp_path / "quick_preset.md").read_text()
