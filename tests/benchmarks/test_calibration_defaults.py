"""The benchmark behind the constants of the calibration, on made-up tables."""

import json

import numpy as np
import pytest

from benchmarks import calibration_defaults as program
from benchmarks.variants import DEFAULT
from twostagegp.datasets import RegressionData


def made(n, splits=()):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    y = X[:, 0] + np.exp(0.5 * X[:, 1]) * rng.normal(size=n)
    return RegressionData("yacht", X, y, ("x0", "x1"), splits, None)


def test_places_are_drawn_from_training_rows_only():
    test = np.arange(20)
    data = made(100, splits=(test, test + 20))
    for place in (0, 1):
        fitted, held = program.place_rows(data, place)
        used = np.concatenate([fitted, held])
        assert len(np.unique(used)) == len(used) == 80
        assert not np.isin(used, test + 20 * place).any()


def test_a_large_table_is_used_in_part():
    fitted, held = program.place_rows(made(5000), 3)
    assert (len(fitted), len(held)) == (program.PART_ROWS, program.HELD_ROWS)
    assert not np.isin(fitted, held).any()


@pytest.fixture
def run(monkeypatch, tmp_path):
    wanted = {
        name: program.VARIANTS[name] for name in (DEFAULT, "no local scale", "gaussian", "student")
    }
    monkeypatch.setattr(program, "VARIANTS", wanted)
    monkeypatch.setattr(program, "load", lambda name: made(150))
    records = [program.measure("yacht", place) for place in range(2)]
    path = tmp_path / "calibration_defaults.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path, records


def test_variants_differ(run):
    folder, records = run
    scores = records[0]["scores"]
    assert set(scores) == {DEFAULT, "no local scale", "gaussian", "student"}
    assert scores["no local scale"]["nlpd"] != scores[DEFAULT]["nlpd"]
    # The shape does not touch the moments.
    assert scores["student"]["nlpd"] == pytest.approx(scores["gaussian"]["nlpd"], abs=0.02)

    assert program.main(["--table-only", "--results", str(folder)]) == 0
    page = (folder / "calibration_defaults.md").read_text()
    change = np.mean(
        [r["scores"]["no local scale"]["nlpd"] - r["scores"][DEFAULT]["nlpd"] for r in records]
    )
    assert f"{change:+.4f}" in page


def test_a_failed_fit_is_shown(run):
    folder, _ = run
    with (folder / "calibration_defaults.jsonl").open("a") as file:
        failed = {
            "set": "boston",
            "place": 0,
            "version": "0",
            "code": "0",
            "error": "ValueError: x",
        }
        file.write(json.dumps(failed) + "\n")
    assert program.main(["--table-only", "--results", str(folder)]) == 0
    assert "boston, 0: ValueError: x" in (folder / "calibration_defaults.md").read_text()
