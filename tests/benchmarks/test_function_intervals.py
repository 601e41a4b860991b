"""Intervals of a known function: rows, scores, a quick run, and the page of made-up records."""

import json
import zlib

import numpy as np
import pytest

from benchmarks import function_intervals, known_laws
from benchmarks.function_intervals import Cell
from measurements.runner import run
from twostagegp import TwoStageGPRegressor

MODELS = tuple(function_intervals.MODELS)


def test_scores_are_coverage_width_over_error_and_error_over_noise():
    f, mean = np.zeros(4), np.array([0.3, -0.3, 0.3, -0.3])
    half = np.array([0.2, 0.4, 0.4, 0.4])
    interval = np.stack([mean - half, mean + half], axis=1)
    found = function_intervals.interval_scores(f, mean, interval, 0.5)
    assert found["coverage"] == 0.75
    assert found["rmse"] == pytest.approx(0.3 / 0.5)
    assert found["relative_width"] == pytest.approx(0.35 / (1.95996 * 0.3), rel=1e-5)


def test_intervals_of_a_known_standard_deviation_have_their_level():
    error = np.random.default_rng(0).normal(size=20_000)
    half = np.full_like(error, function_intervals.HALF_WIDTH)
    interval = np.stack([error - half, error + half], axis=1)
    found = function_intervals.interval_scores(np.zeros_like(error), error, interval, 1.0)
    assert found["coverage"] == pytest.approx(0.95, abs=0.005)
    assert found["relative_width"] == pytest.approx(1.0, abs=0.02)


def test_the_noise_has_its_standard_deviation():
    constant = function_intervals.generate(Cell("constant", "sin 2x", 4000, 0))
    changing = function_intervals.generate(Cell("changing", "sin 2x", 4000, 0))
    np.testing.assert_array_equal(constant.X, changing.X)
    x = constant.X[:, 0]
    z = (constant.y - np.sin(2.0 * x)) / 0.2
    assert z.std() == pytest.approx(1.0, abs=0.05)
    std = 0.05 + 0.4 * (x + 3.0) / 6.0
    np.testing.assert_allclose(changing.y - np.sin(2.0 * x), std * z, atol=1e-12)
    np.testing.assert_array_equal(constant.f_test, np.sin(2.0 * constant.X_test[:, 0]))
    assert constant.noise == pytest.approx(0.2)
    assert changing.noise == pytest.approx(0.2754, abs=0.01)


def test_a_law_is_that_of_the_generated_tables():
    X, y = known_laws.generate("friedman")
    rng = np.random.default_rng(zlib.crc32(b"friedman"))
    np.testing.assert_array_equal(X, rng.uniform(size=X.shape))
    np.testing.assert_array_equal(y, known_laws.friedman(X) + rng.normal(size=len(X)))
    rows = function_intervals.generate(Cell("constant", "friedman", 100, 0))
    assert rows.X.shape == (100, 10)
    np.testing.assert_array_equal(rows.f_test, known_laws.friedman(rows.X_test))


def test_all_cells_of_a_full_run():
    given = function_intervals.MEASUREMENT.parser().parse_args(["--draws", "1"])
    found = function_intervals.cells(given)
    assert len(set(found)) == len(found) == 2 * 10 * 3 + 2 * 2
    assert all(cell.noise == "constant" for cell in found if cell.function == "friedman")


def test_part_2_alone_has_the_latent_variance_of_the_second_stage():
    rows = function_intervals.generate(Cell("constant", "tanh x", 40, 0))
    model = TwoStageGPRegressor(kernels=("rbf",), random_state=0, n_jobs=1).fit(rows.X, rows.y)
    (target,) = model.fitted_.targets
    variance = target.fit.moments(target.standardized(rows.X_test))[1].numpy()
    half = 1.959964 * np.sqrt(variance) * target.data.scaling.y_scale
    mean, interval = function_intervals.part_2_interval(model, rows.X_test)
    np.testing.assert_allclose(mean, model.predict(rows.X_test), rtol=1e-12)
    np.testing.assert_allclose(interval[:, 1] - mean, half, rtol=1e-6)


def test_a_quick_run_is_stored_and_writes_a_page(tmp_path):
    arguments = ["--quick", "--noise", "constant", "--functions", "sin 2x"]
    assert run(function_intervals.MEASUREMENT, [*arguments, "--results", str(tmp_path)]) == 0
    lines = (tmp_path / "function_intervals.jsonl").read_text().splitlines()
    (record,) = map(json.loads, lines)
    assert (record["noise"], record["function"], record["rows"]) == ("constant", "sin 2x", 120)
    for model in MODELS:
        assert 0.0 <= record[model]["coverage"] <= 1.0
        assert record[model]["relative_width"] > 0.0
    assert record["part_2"]["rmse"] == pytest.approx(record["ours"]["rmse"])
    page = (tmp_path / "function_intervals.md").read_text()
    assert "## By function" in page
    assert "## Several columns" not in page


def made_up(noise, function, rows, draw, coverage):
    scores = {"coverage": coverage, "relative_width": 2.0 ** (2 * draw - 1), "rmse": 0.25}
    origin = {"version": "1", "code": "ab", "has_members": draw == 0}
    cell = {"noise": noise, "function": function, "rows": rows, "draw": draw}
    return cell | origin | dict.fromkeys(MODELS, scores)


def test_the_page_of_made_up_records():
    records = [
        made_up(noise, function, rows, draw, coverage=0.75 + 0.15 * draw)
        for noise, function, rows in (
            ("constant", "x", 60),
            ("constant", "x", 120),
            ("changing", "|x|", 120),
            ("constant", "smooth", 100),
        )
        for draw in (0, 1)
    ]
    failed = {"noise": "constant", "function": "x", "rows": 400, "draw": 0, "error": "boom"}
    page = function_intervals.MEASUREMENT.report([*records, failed])
    assert "4 of 8 default fits have no kernel ridge" in page
    sections = dict(part.split("\n", 1) for part in page.split("\n## ")[1:])
    assert list(sections)[:2] == ["Constant noise", "Noise that changes with x"]
    lines = sections["Constant noise"].splitlines()
    ours = [[field.strip() for field in line.split("|")[1:-1]] for line in lines if "ours" in line]
    assert [fields[0] for fields in ours] == ["60", "120"]
    assert ours[0][2:] == ["0.825 ± 0.075", "50.0 ± 50.0", "1.00 ± 0.69", "0.250 ± 0.000"]
    lines = sections["By function"].splitlines()
    (of_x,) = (line for line in lines if line.startswith("| x "))
    assert of_x.count("0.825") == len(MODELS)  # no record with changing noise
    assert "boom" in sections["Fits that failed"]
