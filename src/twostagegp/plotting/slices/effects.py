r"""The effect of a column on the predictions: how much they change if the column is shuffled.

.. math:: e_j = \tfrac{1}{n} \sum_i |\hat m(x_i) - \hat m(x_i \text{ with column } j
          \text{ from row } \pi(i))|

with a random permutation π, in the units of the target, or as a change of probability. It needs no
outcomes, refers to the user's columns however they are encoded, and is defined in the same way for
every model. Columns with the same information share their effect.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twostagegp.plotting.slices.answers import Answers

__all__ = ["shuffle_effects"]

#: Largest number of rows that are shuffled, and of rows that are predicted in total.
_ROWS, _MOST = 200, 20_000


def shuffle_effects(
    answers: Answers, frame: pd.DataFrame, random_state: int = 0
) -> dict[str, NDArray[np.float64]]:
    """Return the mean absolute change of every prediction if a column is shuffled, by column.

    Parameters
    ----------
    answers : Answers
    frame : DataFrame of shape (n, d)
        At most 200 rows, drawn at random, are used; fewer if there are more than 100 columns.
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
