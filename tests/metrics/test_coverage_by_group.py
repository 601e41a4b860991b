"""Coverage by group: counts, bands of chance, and arguments that are refused."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from twostagegp.errors import InputError
from twostagegp.metrics import coverage, coverage_by_group

RNG = np.random.default_rng(0)
Y = RNG.normal(size=300)
GROUPS = RNG.choice(["a", "b", "c"], p=[0.6, 0.3, 0.1], size=300)
LOW, HIGH = np.full(300, -1.5), np.full(300, 1.2)


def test_each_group_has_the_coverage_of_its_own_rows():
    found = coverage_by_group(Y, LOW, HIGH, GROUPS)
    assert found.groups == ["a", "b", "c"]
    for k, group in enumerate(found.groups):
        own = group == GROUPS
        ends = np.column_stack([LOW, HIGH])[own]
        assert found.coverage[k] == coverage(Y[own], interval=ends)
        assert found.rows[k] == own.sum()
    assert found.worst == found.coverage.min()
    assert found.to_frame().loc["b", "rows"] == found.rows[1]


def test_ends_in_one_array_or_two_are_the_same():
    both = coverage_by_group(Y, np.column_stack([LOW, HIGH]), groups=GROUPS)
    assert both.to_frame().equals(coverage_by_group(Y, LOW, HIGH, GROUPS).to_frame())


@pytest.mark.parametrize("n", [1, 7, 50, 1000])
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_the_band_is_exact_and_corrected_for_the_number_of_groups(n, level):
    """Brute force: the least band of each tail's probability, from the binomial law itself."""
    G, y = 4, np.zeros(4 * n)
    found = coverage_by_group(y, y - 1.0, y + 1.0, np.repeat(np.arange(G), n), level)
    tail = (1.0 - 0.95 ** (1.0 / G)) / 2.0
    chance = stats.binom.pmf(np.arange(n + 1), n, level)
    low = next(k for k in range(n + 1) if chance[: k + 1].sum() >= tail)
    high = next(k for k in range(n + 1) if chance[: k + 1].sum() >= 1.0 - tail)
    np.testing.assert_allclose(found.low, low / n)
    np.testing.assert_allclose(found.high, high / n)


def test_calibrated_intervals_have_a_group_outside_in_at_most_one_of_twenty_tables():
    rng, outside = np.random.default_rng(1), 0
    groups = np.repeat(np.arange(10), [5, 10, 20, 40, 80, 160, 20, 20, 300, 50])
    for _ in range(400):
        z = rng.normal(size=len(groups))
        half = np.full(len(z), 1.959964)
        outside += coverage_by_group(z, -half, half, groups).outside.any()
    assert outside / 400 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)


def test_labels_of_any_kind():
    y, ends = np.zeros(4), np.tile([-1.0, 1.0], (4, 1))
    assert coverage_by_group(y, ends, groups=[True, False, True, True]).groups == [False, True]
    made = pd.Categorical(["low", "high", "low", None], ["low", "high", "never"])
    found = coverage_by_group(y, ends, groups=pd.Series(made))
    assert found.groups[:2] == ["low", "high"]
    assert found.rows.tolist() == [2, 1, 1]
    assert coverage_by_group(y, ends, groups=["a", 1, "a", 1]).rows.tolist() == [2, 2]


def test_what_is_refused():
    ends = np.column_stack([LOW, HIGH])
    with pytest.raises(InputError, match="groups is missing"):
        coverage_by_group(Y, ends)
    with pytest.raises(InputError, match="groups has 2 rows, but y has 300"):
        coverage_by_group(Y, ends, groups=["a", "b"])
    with pytest.raises(InputError, match="level must lie"):
        coverage_by_group(Y, ends, groups=GROUPS, level=95)
    with pytest.raises(InputError, match="same shape"):
        coverage_by_group(Y, LOW, HIGH[:5], GROUPS)
    with pytest.raises(InputError, match="wrong order"):
        coverage_by_group(Y, HIGH, LOW, GROUPS)
