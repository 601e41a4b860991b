"""The benchmark of the time that calibration adds to predictions."""

import json

from benchmarks import calibrated_predictions
from measurements.runner import run


def test_a_run_and_its_page(tmp_path):
    arguments = ["--quick", "--rows", "200", "--results", str(tmp_path)]
    assert run(calibrated_predictions.MEASUREMENT, arguments) == 0
    record = json.loads((tmp_path / "calibrated_predictions.jsonl").read_text())
    assert record["same_mean"]
    assert record["calibrated"] > 0.0
    assert record["ratio"] > 0.5
    assert "| CPU" in (tmp_path / "calibrated_predictions.md").read_text()
