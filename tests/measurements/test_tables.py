"""Numbers and tables as Markdown."""

import math

import pytest

from measurements.tables import MISSING, figure, markdown_table, mean_sd, mean_se, yes_no


def test_markdown_table_is_aligned():
    assert markdown_table(["set", "RMSE"], [["yacht", "0.3"], ["a|b", ""]]) == (
        "| set   | RMSE |\n| ----- | ---- |\n| yacht | 0.3  |\n| a\\|b  |      |\n"
    )


def test_markdown_table_wants_full_rows():
    with pytest.raises(ValueError, match="2 cells"):
        markdown_table(["a", "b"], [["1"]])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.7834, "3.78"),
        (0.06951, "0.0695"),
        (1.6e-5, "1.60e-05"),
        (123.4, "123"),
        (0.0, "0"),
        (-2.754, "-2.75"),
        (None, MISSING),
        (math.inf, MISSING),
    ],
)
def test_figure(value, text):
    assert figure(value) == text


def test_spread_of_a_mean():
    assert mean_sd([1.0, 2.0, 3.0]) == "2.00 ± 1.00"
    assert mean_se([1.0, 2.0, 3.0, 2.0]) == "2.00 ± 0.41"
    assert mean_sd([1e-5, 2e-5]) == "1.50e-05 ± 7e-06"
    assert mean_sd([2.0]) == "2.00"
    assert mean_sd([]) == MISSING


def test_yes_no():
    assert [yes_no(mark) for mark in (True, False, None)] == ["yes", "**no**", MISSING]
