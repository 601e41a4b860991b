"""The benchmark of intervals by level runs on its generated table and writes its page."""

import numpy as np
import pytest

from benchmarks import groups
from measurements.runner import run


def test_level_scores_are_those_of_levels_with_enough_rows():
    y = np.repeat([0.0, 5.0, 9.0], [40, 20, 3])
    column = np.repeat(["a", "b", "c"], [40, 20, 3])
    interval = np.tile([-1.0, 1.0], (63, 1))
    found = groups.level_scores(y, interval, column)
    assert (found["levels"], found["outside"], found["worst"]) == (2, 1, 0.0)
    assert found["deviation"] == pytest.approx((0.05 + 0.95) / 2)
    assert 0.88 < found["worst_by_chance"] < 0.95


def test_generated_levels_have_their_noise():
    rows = groups.generate(200, 0, 5000)
    assert len(rows.X) == 200
    residual = (
        rows.y_test - np.sin(6.0 * rows.X_test["a"]) - 2.0 * rows.X_test["b"] * rows.X_test["c"]
    )
    spread = residual.groupby(rows.X_test["level"]).std()
    np.testing.assert_allclose(spread, groups.NOISE, rtol=0.15)


def test_a_quick_run_writes_a_page(tmp_path):
    arguments = ["--quick", "--rows", "60", "--results", str(tmp_path)]
    assert run(groups.MEASUREMENT, arguments) == 0
    assert len((tmp_path / "groups.jsonl").read_text().splitlines()) == 2
    assert "Coverage by level" in (tmp_path / "groups.md").read_text()
