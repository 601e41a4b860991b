"""Kernel search and misspecification test on tables with columns of any kind."""

import numpy as np
import pandas as pd
import pytest

from twostagegp import check_misspecification, search_kernel
from twostagegp.data.columns import TableEncoder
from twostagegp.errors import InputError


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "x": rng.uniform(-2, 2, 60),
            "color": rng.choice(["red", "green"], 60),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, 60), "D"),
        }
    )
    frame.loc[::9, "x"] = np.nan
    y = np.sin(frame["x"].fillna(0.0)) + (frame["color"] == "red") + 0.1 * rng.normal(size=60)
    return frame, y


def test_search_is_that_of_the_encoded_table(table):
    frame, y = table
    options = {"kernels": ("rbf", "matern12"), "n_repeats": 3, "subsample": 40, "random_state": 0}
    given = search_kernel(frame, y, **options)
    encoded = search_kernel(TableEncoder().fit_transform(frame), y, **options)
    assert given.best == encoded.best
    pd.testing.assert_frame_equal(
        given.table.drop(columns="seconds"), encoded.table.drop(columns="seconds")
    )


def test_check_is_that_of_the_encoded_table(table):
    frame, y = table
    options = {"n_repeats": 20, "random_state": 0}
    given = check_misspecification(frame, y, "rbf", **options)
    encoded = check_misspecification(TableEncoder().fit_transform(frame), y, "rbf", **options)
    assert given.p_value == encoded.p_value
    assert given.noise == pytest.approx(encoded.noise)


def test_column_that_cannot_be_used_is_named(table):
    frame, y = table
    prose = frame.assign(note=[f"remark number {k}" for k in range(60)])
    with pytest.raises(InputError, match="column 'note' looks like free text"):
        search_kernel(prose, y)
