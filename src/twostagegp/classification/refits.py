r"""Held-out latents of small tables, at hyperparameters that have not seen the row either.

A leave-one-out prediction does not use the row, but its lengthscales were chosen with the row among
the training data. With a hundred rows and thirty lengthscales this matters greatly: the held-out
log loss may be a tenth of that of new rows, and whatever is chosen by it, from the weights of a
pool to the scale of the latents, makes the model overconfident. Therefore, up to ``refit_rows``
distinct rows, a kernel of many hyperparameters is trained again, from its starting values, without
each of a few folds f, and the latents of a row i of fold f are those of the closed form on all rows
but i (or its group) at these :math:`\theta_f`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.problem import ObjectiveName
from twostagegp.kernels import Kernel, Vector
from twostagegp.training.candidates import Candidate

__all__ = ["by_refits", "retrained"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


def retrained(
    engine: ExactEngine, kernel: Kernel, objective: ObjectiveName, rows: Index, steps: int
) -> Candidate:
    """Train a kernel on some rows, from its starting values."""
    candidate = Candidate(kernel, objective)
    candidate.train(engine.subset(rows), None, False, steps, 1e-3)
    return candidate


def by_refits(
    folds: Index,
    train: Callable[[Index], Vector | None],
    heldout: Callable[[Vector], tuple[Array, ...]],
    otherwise: Vector,
) -> tuple[Array, ...]:
    """Return held-out arrays whose rows of each fold come from hyperparameters trained without it.

    Parameters
    ----------
    folds : integer array of shape (m,)
    train : callable
        Returns hyperparameters from the rows of an index; None if that fails.
    heldout : callable
        Returns arrays of shape (m, K) at given hyperparameters, every row predicted from others.
    otherwise : array
        Hyperparameters for a fold whose training fails.

    Examples
    --------
    >>> folds = np.array([0, 1, 0])
    >>> by_refits(folds, lambda rows: rows, lambda rows: (np.full((3, 1), len(rows)),), folds)
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
