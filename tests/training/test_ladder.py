"""The ladder: numbers of rows."""

import numpy as np
import pytest

from twostagegp.training.ladder import rung_sizes


@pytest.mark.parametrize("n", [100, 540, 700, 1353, 5000, 100_000])
@pytest.mark.parametrize("first", [150, 300])
@pytest.mark.parametrize("growth", [2.8, 4.0])
def test_rows_grow_by_one_factor_that_is_not_too_large(n, first, growth):
    sizes = rung_sizes(n, first, growth)
    if n < 1.8 * first:
        assert sizes == []
        return
    ratios = np.divide([*sizes[1:], n], sizes)
    assert sizes[0] == first
    assert ratios.max() <= growth + 0.02
    assert np.ptp(ratios) < 0.02
    # With one rung fewer, the factor would have been too large.
    assert len(sizes) == 1 or (n / first) ** (1.0 / (len(sizes) - 1)) > growth


def test_without_a_first_training_there_is_one_rung():
    assert rung_sizes(1000, 0) == []
