r"""Held-out latents of small tables, at hyperparameters that were trained without the row.

A leave-one-out prediction does not use the row, but its lengthscales were chosen with the row among
the training data. With a hundred rows and thirty lengthscales this matters greatly: the held-out
log loss may be a tenth of that of new rows, and everything chosen by it, from the weights of a pool
to the scale of the latents, makes the model overconfident. Therefore, up to ``refit_rows`` distinct
rows, a kernel with many hyperparameters is trained again, from its starting values, without each of
a few folds f. The latents of a row i of fold f are those of the closed form on all rows but i (or
its group) at these :math:`\theta_f`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from twostagegp.data.rows import Rows
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.problem import ObjectiveName
from twostagegp.kernels import Kernel, Vector
from twostagegp.training.candidates import Candidate
from twostagegp.training.side_by_side import for_each

__all__ = ["heldout_by_refits", "train_from_start"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


def train_from_start(
    engine: ExactEngine, kernel: Kernel, objective: ObjectiveName, rows: Index, steps: int
) -> Candidate:
    """Train a kernel on some rows, from its starting values."""
    candidate = Candidate(kernel, objective)
    candidate.train(engine.subset(rows), None, False, steps, 1e-3)
    return candidate


def heldout_by_refits(
    folds: Index,
    train: Callable[[Index], Vector | None],
    heldout: Callable[[Vector], tuple[Array, ...]],
    otherwise: Vector,
    rows: Rows,
    kernel: Kernel,
) -> tuple[Array, ...]:
    """Return held-out arrays, each row at hyperparameters trained without the row's fold.

    Parameters
    ----------
    folds : integer array of shape (m,)
    train : callable
        Takes row numbers and returns hyperparameters trained on them; None if training fails.
    heldout : callable
        Takes hyperparameters and returns held-out arrays of all rows, of shape (m, K).
    otherwise : array
        Hyperparameters for a fold whose training fails.
    rows : Rows
        All rows: the folds are trained side by side if matrices of this size permit it.
    kernel : Kernel
    """
    found = {int(fold): np.flatnonzero(folds == fold) for fold in np.unique(folds)}

    def of_fold(fold: int) -> tuple[Array, ...]:
        parameters = train(np.flatnonzero(folds != fold))
        held = heldout(otherwise if parameters is None else parameters)
        return tuple(values[found[fold]] for values in held)

    parts = for_each(of_fold, list(found), rows, [kernel])
    order = np.argsort(np.concatenate(list(found.values())), kind="stable")
    return tuple(np.concatenate(arrays)[order] for arrays in zip(*parts, strict=True))
