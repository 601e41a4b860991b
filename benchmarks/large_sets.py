"""The nine larger tables and their folds.

If a table has standard splits, they are its folds. For the other tables five folds are made
by one seeded shuffle of the rows, a tenth of them being the test rows of each, no row in two folds.
So rows of one patient (poletele), neighbouring minutes (house_electric_part) and neighbouring cells
of a grid (elevation) are on both sides, as in the publications that use such tables: the scores
measure interpolation between known rows, not extrapolation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twostagegp import datasets
from twostagegp.datasets import RegressionData

__all__ = ["MANY_ROWS", "N_RANDOM_FOLDS", "SETS", "fold_rows", "load", "n_folds", "random_folds"]

Rows = NDArray[np.intp]

SETS = (
    "poletele",
    "bike",
    "pol",
    "protein",
    "keggdirected",
    "diamonds",
    "elevation",
    "flights",
    "house_electric_part",
)

N_RANDOM_FOLDS = 5
TEST_SHARE = 0.1
SHUFFLE_SEED = 20230601
#: Above so many rows the peers are run on one fold only.
MANY_ROWS = 100_000


def random_folds(n: int) -> tuple[Rows, ...]:
    """Test rows of each fold of a table without a standard split.

    Examples
    --------
    >>> [len(rows) for rows in random_folds(101)]
    [10, 10, 10, 10, 10]
    """
    order = np.random.default_rng(SHUFFLE_SEED).permutation(n)
    size = int(TEST_SHARE * n)
    return tuple(np.sort(order[k * size : (k + 1) * size]) for k in range(N_RANDOM_FOLDS))


def n_folds(data: RegressionData) -> int:
    """Return the number of folds of a table."""
    return len(data.splits) or N_RANDOM_FOLDS


def fold_rows(data: RegressionData, fold: int) -> tuple[Rows, Rows]:
    """Return training and test rows of a fold."""
    if data.splits:
        return data.split(fold)
    if not 0 <= fold < N_RANDOM_FOLDS:
        raise IndexError(f"{data.name} has {N_RANDOM_FOLDS} folds; fold {fold} was asked for")
    test = random_folds(len(data.y))[fold]
    return np.setdiff1d(np.arange(len(data.y)), test), test


def load(name: str) -> RegressionData:
    """Return one of :data:`SETS`, read from the folder that ``TWOSTAGEGP_DATA`` names."""
    return datasets.load(name)
