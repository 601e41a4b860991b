"""The benchmark behind the constants of the calibration, on made-up tables."""

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


def measured(place):
    """A record of four variants, as the runner stores it; the others get the default's scores."""
    chosen = (DEFAULT, "no local scale", "t distribution alone", "information 0.2")
    variants = {name: program.VARIANTS[name] for name in chosen}
    data = made(90)
    scores = program.variant_scores(variants, data, *program.place_rows(data, place), place)
    assert set(scores) == set(chosen)
    every = {name: scores.get(name, scores[DEFAULT]) for name in program.VARIANTS}
    return {"set": "yacht", "place": place, "version": "1", "code": "a", "scores": every}


def test_variants_differ_and_a_failed_fit_is_shown():
    records = [measured(place) for place in range(2)]
    scores = records[0]["scores"]
    assert scores["no local scale"]["nlpd"] != scores[DEFAULT]["nlpd"]
    # The Gaussian NLPD feels the shape only through the scale.
    for name in ("t distribution alone", "information 0.2"):
        assert scores[name]["nlpd"] == pytest.approx(scores[DEFAULT]["nlpd"], abs=0.05)
    assert scores["information 0.2"] != scores[DEFAULT]

    page = program.report([*records, {"set": "boston", "place": 0, "error": "ValueError: x"}])
    change = np.mean(
        [r["scores"]["no local scale"]["nlpd"] - r["scores"][DEFAULT]["nlpd"] for r in records]
    )
    assert f"{change:+.4f}" in page
    assert "- set boston, place 0: ValueError: x" in page


def test_stored_variants_of_earlier_versions_are_shown_last():
    record = measured(0)
    record["scores"] = {"gone": record["scores"][DEFAULT], **record["scores"]}
    lines = program.report([record]).splitlines()
    rows = [line for line in lines if "| gone" in line]
    assert program.EARLIER in rows[0]
    assert len(rows) == 3
    last = max(i for i, line in enumerate(lines) if "| tail of 10 rows" in line)
    assert lines[last + 1] in rows
    incomplete = {**record, "scores": {DEFAULT: record["scores"][DEFAULT]}}
    assert "| gone" not in program.report([record, incomplete])


def test_every_table_has_its_first_place_before_any_has_its_second():
    given = program.MEASUREMENT.parser().parse_args(["--sets", "yacht,bike", "--places", "2"])
    places = [(cell.set, cell.place) for cell in program.cells(given)]
    assert places == [("yacht", 0), ("bike", 0), ("yacht", 1), ("bike", 1)]
