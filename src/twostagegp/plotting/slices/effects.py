r"""How much a column matters to the predictions: shuffle it and see how far they move.

.. math:: e_j = \tfrac{1}{n} \sum_i |\hat m(x_i) - \hat m(x_i \text{ with column } j
          \text{ from row } \pi(i))|

in the units of the target, or as a change of probability. It needs no outcomes, speaks of the
user's columns whatever they were encoded as, and is the same question for every model. Columns that
say the same share their effect.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twostagegp.plotting.slices.answers import Answers

__all__ = ["shuffle_effects"]

#: Rows that are shuffled, and rows that are predicted in all, at most.
_ROWS, _MOST = 200, 20_000


def shuffle_effects(
    answers: Answers, frame: pd.DataFrame, random_state: int = 0
) -> dict[str, NDArray[np.float64]]:
    """Mean absolute change of every answer when a column is shuffled, by name of the column.

    Parameters
    ----------
    answers : Answers
    frame : DataFrame of shape (n, d)
        At most 200 rows, drawn at random, are used; fewer where there are more than 100 columns.
    random_state : int

    Returns
    -------
    dict of str to array of shape (len(answers.names),)

    Examples
    --------
    >>> from twostagegp import ExactGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 2))
    >>> answers = Answers(ExactGPRegressor(ard=True).fit(X, X[:, 1]))
    >>> effects = shuffle_effects(answers, pd.DataFrame(X, columns=["x0", "x1"]))
    >>> bool(effects["x1"] > 10 * effects["x0"])
    True
    """
    rng = np.random.default_rng(random_state)
    d = frame.shape[1]
    most = min(len(frame), _ROWS, max(20, _MOST // max(d, 1)))
    rows = frame.iloc[np.sort(rng.permutation(len(frame))[:most])].reset_index(drop=True)
    base = answers.middle(rows)
    effects = {}
    order = rng.permutation(len(rows))
    for name in frame.columns:
        moved = rows.copy()
        moved[name] = rows[name].iloc[order].set_axis(rows.index)
        effects[str(name)] = np.abs(answers.middle(moved) - base).mean(0)
    return effects
