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

from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.problem import ObjectiveName
from twostagegp.kernels import Kernel, Vector
from twostagegp.training.candidates import Candidate

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

    Examples
    --------
    >>> folds = np.array([0, 1, 0])
    >>> heldout_by_refits(
    ...     folds, lambda rows: rows, lambda rows: (np.full((3, 1), len(rows)),), folds
    ... )
    (array([[1],
           [2],
           [1]]),)
    """
    together: tuple[Array, ...] | None = None
    for fold in np.unique(folds):
        out = folds == fold
        parameters = train(np.flatnonzero(~out))
        found = heldout(otherwise if parameters is None else parameters)
        if together is None:
            together = tuple(np.empty_like(values) for values in found)
        for values, each in zip(together, found, strict=True):
            values[out] = each[out]
    assert together is not None
    return together
