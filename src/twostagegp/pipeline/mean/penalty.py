"""The penalty of a kernel ridge, by held-out squared error."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from twostagegp.engines.protocol import Engine
from twostagegp.errors import TwoStageGPError
from twostagegp.training.candidates import Candidate

__all__ = ["best_shift", "tune_penalty"]


def tune_penalty(
    engine: Engine, candidate: Candidate, shifts: Sequence[float], index: Tensor | None = None
) -> None:
    """Move a candidate's penalty to the smallest held-out squared error of some rows.

    Training by a density chooses the noise variance for the whole distribution, and one large
    residual can raise it; the mean is judged by squared error. ``shifts`` of the log penalty are
    tried, and the result is the minimum of a parabola through the best one and its neighbours.
    """
    assert candidate.parameters is not None
    rows = engine.rows if index is None else engine.rows.subset(index)
    errors = []
    for shift in shifts:
        parameters = np.append(candidate.parameters[:-1], candidate.parameters[-1] + shift)
        try:
            held = engine.condition(candidate.kernel, parameters).heldout(index)
            errors.append(float(held.sum_of_squares(rows).sum()))
        except TwoStageGPError:
            errors.append(math.inf)
    candidate.penalty_shift = best_shift(errors, shifts)


def best_shift(errors: Sequence[float], shifts: Sequence[float]) -> float:
    """Return the shift with the smallest error, from errors at equally spaced shifts.

    Examples
    --------
    >>> best_shift([4.0, 1.0, 0.0, 1.0], [-2.0, -1.0, 0.0, 1.0])
    0.0
    """
    best = int(np.argmin(errors))
    shift = shifts[best]
    if 0 < best < len(errors) - 1 and math.isfinite(errors[best - 1] + errors[best + 1]):
        left, middle, right = errors[best - 1 : best + 2]
        curvature = left - 2.0 * middle + right
        if curvature > 0.0:
            shift += 0.5 * (left - right) / curvature
    return shift
