r"""What a tenth of the rows is worth: errors of a cross-fit beside leave-one-out errors.

Kernel ridges have leave-one-out residuals, of models fitted to all rows but one. A cross-fitted
model is fitted without a whole fold, so its residuals are larger than those of the model that the
stack will use. How much larger is learned from the best ridge, which can do both,

.. math::

    r = \Big( \frac{\sum_i e_i^2}{\sum_i e_{i, -F(i)}^2} \Big)^{1/2} ,

with the residual :math:`e_i` without row i and :math:`e_{i, -F(i)}` without its fold, at the same
hyperparameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from twostagegp.data.rows import Merged
from twostagegp.engines.protocol import Engine
from twostagegp.errors import TwoStageGPError
from twostagegp.pipeline.mean.models import RidgeMean

__all__ = ["fold_error_ratio"]


def fold_error_ratio(
    ridges: Sequence[RidgeMean],
    engine: Engine,
    merged: Merged,
    folds: NDArray[np.int64],
    least: float = 0.9,
) -> float:
    """Return the ratio r between ``least`` and 1; 1 without a ridge.

    Parameters
    ----------
    ridges : sequence of RidgeMean
        On all rows of the engine.
    engine : Engine
    merged : Merged
        The distinct rows; ``merged.inverse`` says which of them a row of the table is.
    folds : integer array of shape (n,)
        Fold of each row of the table.
    least : float
        A ridge of a table without noise gains more by each row than other models do.
    """
    if not ridges:
        return 1.0
    best = min(ridges, key=lambda ridge: float(merged.weight @ ridge.heldout_residuals**2))
    _, first = np.unique(merged.inverse, return_index=True)
    groups = torch.as_tensor(folds[first], device=engine.rows.X.device)
    rows = replace(engine.rows, groups=groups)
    try:
        own = engine.condition(best.kernel, best.parameters).heldout()
        by_fold = engine.with_rows(rows).condition(best.kernel, best.parameters).heldout()
    except TwoStageGPError:
        return 1.0
    squares = float(own.sum_of_squares(engine.rows).sum())
    by_fold_squares = float(by_fold.sum_of_squares(rows).sum())
    if not 0.0 < squares < by_fold_squares:
        return 1.0
    return max(least, float(np.sqrt(squares / by_fold_squares)))
