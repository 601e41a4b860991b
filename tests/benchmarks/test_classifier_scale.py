"""The benchmark of the classifier's time and memory."""

import json

import numpy as np
import pytest

from benchmarks import classifier_scale as benchmark
from measurements.runner import run
from twostagegp.metrics.classification import log_loss


def test_labels_follow_the_probabilities():
    X, y, P = benchmark.draw(20_000, seed=1)
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1.0)
    np.testing.assert_allclose(P.sum(1), 1.0)
    entropy = -(P * np.log(P)).sum(1).mean()
    assert log_loss(y, P, np.arange(3)) == pytest.approx(entropy, abs=0.02)
    for k in range(3):
        assert (y == k).mean() == pytest.approx(P[:, k].mean(), abs=0.02)


def test_tables_of_one_function():
    again = benchmark.draw(50, seed=3)
    for a, b in zip(benchmark.draw(50, seed=3), again, strict=True):
        assert np.array_equal(a, b)
    assert not np.array_equal(benchmark.draw(50, seed=4)[0], again[0])


@pytest.mark.slow
def test_a_run_and_its_page(tmp_path, capsys):
    given = ["--rows", "60", "--threads", "1", "--results", str(tmp_path)]
    assert run(benchmark.MEASUREMENT, given) == 0
    lines = (tmp_path / "classifier_scale.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [r["method"] for r in records] == ["exact", "neighbors"]
    for r in records:
        assert r["log_loss"] > 0
        assert r["peak_gib"] >= r["before_gib"] > 0
        assert r["gpu_gib"] is None
    assert "Time and memory" in capsys.readouterr().out
    assert [cell.strip() for cell in page_row(tmp_path).split("|")[2:5]] == ["1", "exact", "60"]


def page_row(folder):
    page = (folder / "classifier_scale.md").read_text()
    return next(line for line in page.splitlines() if "| exact" in line)


def test_the_page_without_results_and_with_failures():
    assert "No fits yet" in benchmark.report([])
    failed = {"device": "cpu", "method": "exact", "rows": 10, "error": "MemoryError: too large"}
    assert "- device cpu, method exact, rows 10: MemoryError: too large" in benchmark.report(
        [failed]
    )
