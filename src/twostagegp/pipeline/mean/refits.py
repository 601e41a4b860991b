"""Held-out residuals at hyperparameters that were trained without the row.

Closed-form leave-one-out residuals leave the row out of the prediction, but the hyperparameters
were trained on all rows. On tables of a few hundred rows, where this matters and refits are cheap,
hyperparameters are trained again without each fold.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from twostagegp.data.rows import Merged
from twostagegp.engines.protocol import Engine
from twostagegp.errors import TwoStageGPError
from twostagegp.kernels import Kernel, is_flexible
from twostagegp.pipeline.settings import MeanSettings
from twostagegp.training.candidates import Candidate
from twostagegp.training.optimise import descend, minimise

__all__ = ["refit_residuals", "shortlist", "trains_afresh"]

Array = NDArray[np.float64]


def refit_residuals(
    engine: Engine,
    merged: Merged,
    candidate: Candidate,
    folds: NDArray[np.int64],
    settings: MeanSettings,
) -> Array:
    """Return the leave-one-out residual of every row, at hyperparameters trained without its fold.

    If there are few rows per parameter of the kernel (:func:`trains_afresh`), training starts from
    the kernel's starting values, as in the fit; otherwise from the parameters found on all rows.
    The residual itself is the closed form on all rows: one copy is left out and the other copies
    stay, or the whole group is left out.

    Returns
    -------
    residuals : array of shape (n,)
        One per row of the table, repeats included.
    """
    assert candidate.parameters is not None
    residual, slope = np.empty(len(folds)), np.empty(len(folds))
    start, H = candidate.parameters, candidate.inverse_hessian
    afresh = trains_afresh(candidate.kernel, len(folds), settings.afresh_rows)
    if afresh:
        folds = folds % settings.afresh_folds
    for fold in np.unique(folds):
        out = folds == fold
        problem = engine.subset(np.flatnonzero(~out)).problem(candidate.kernel, candidate.objective)
        try:
            if afresh:
                steps = settings.afresh_steps
                parameters = minimise(problem, None, steps=steps, tolerance=1e-3).parameters
            else:
                steps = settings.refit_steps
                parameters = descend(problem, start, H, steps, tolerance=1e-3).parameters
        except TwoStageGPError:
            parameters = start
        candidate.refit_evaluations += problem.evaluations
        held = engine.condition(candidate.kernel, candidate.with_penalty(parameters)).heldout()
        residual[out], slope[out] = (v.cpu().numpy()[out] for v in (held.residual, held.slope))
    return merged.unmerge(residual, slope)


def trains_afresh(kernel: Kernel, m: int, rows_per_parameter: int = 25) -> bool:
    """Return whether refits on m distinct rows start from the kernel's starting values.

    They do if there are few rows per parameter. Thirty lengthscales that were trained on a row have
    adapted to it, and a few optimiser steps from there do not undo this: held-out residuals would
    be far too small.

    Examples
    --------
    >>> from twostagegp.kernels import make_kernel
    >>> [trains_afresh(make_kernel("rbf", 10, ard), 100) for ard in (True, False)]
    [True, False]
    """
    return is_flexible(kernel) and m < rows_per_parameter * len(kernel.start())


def shortlist(
    ranked: Sequence[Candidate], keep: int, m: int, rows_per_parameter: int
) -> list[Candidate]:
    """Return the best ``keep``; if m rows are few, up to half of them with few parameters.

    Candidates are ranked by their leave-one-out error, which is more optimistic for kernels with
    more parameters.
    """
    few = [c for c in ranked if not trains_afresh(c.kernel, m, rows_per_parameter)]
    few = few[: keep // 2] if len(few) < len(ranked) else []
    kept = [*few, *[c for c in ranked if c not in few][: keep - len(few)]]
    return [c for c in ranked if c in kept]
