"""The benchmark of rows outside the data."""

import json

import numpy as np
import pytest

from benchmarks import outside
from measurements.runner import run
from twostagegp import TwoStageGPRegressor
from twostagegp.pipeline.settings import OutsideSettings, Settings


def test_a_run_over_functions_and_its_page(tmp_path):
    arguments = ["--quick", "--kinds", "function", "--results", str(tmp_path)]
    assert run(outside.MEASUREMENT, arguments) == 0
    (record,) = map(json.loads, (tmp_path / "outside.jsonl").read_text().splitlines())
    ours, before = record["outside"]["ours"], record["outside"]["before"]
    assert ours["coverage"] >= before["coverage"]
    assert ours["width"] > before["width"]
    page = (tmp_path / "outside.md").read_text()
    assert "sin 2x" in page
    assert "## Settings" not in page


@pytest.mark.slow
def test_a_run_over_a_table_and_its_page(tmp_path):
    assert run(outside.MEASUREMENT, ["--quick", "--results", str(tmp_path)]) == 0
    page = (tmp_path / "outside.md").read_text()
    for title in ("Held-out ends", "Table by table", "Forecasts", "## Settings"):
        assert title in page
    assert page.count("usual_share=") == 2


def test_the_fit_before_is_the_one_with_members_0():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, size=(60, 1))
    y, new = np.sin(2.0 * X[:, 0]) + 0.1 * rng.normal(size=60), np.array([[0.0], [5.0]])
    options = {"kernels": ("rbf",), "random_state": 0, "n_jobs": 1}
    model = TwoStageGPRegressor(**options).fit(X, y)
    off = Settings(outside=OutsideSettings(members=0))
    other = TwoStageGPRegressor(**options, settings=off).fit(X, y)
    before = outside.without_outside(model)
    np.testing.assert_array_equal(before.predict_interval(new), other.predict_interval(new))
    assert model.predict(new, return_support=True)[1][1] < 1.0


def test_no_part_of_a_table_is_held_out_twice():
    X = np.random.default_rng(0).normal(size=(100, 3))
    X[:, 2] = 1.0
    parts = dict(outside.held_out_parts(X, X[:, 1]))
    assert list(parts)[:4] == ["low 1", "high 1", "low 0", "high 0"]
    assert list(parts)[-1] == "random"
    clusters = [rows for name, rows in parts.items() if name.startswith("cluster")]
    assert all(20 <= len(rows) <= 50 for rows in clusters)
    together = np.concatenate(clusters) if clusters else np.zeros(0)
    assert len(np.unique(together)) == len(together)
