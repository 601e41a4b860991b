"""The penalty of a kernel ridge, by held-out squared error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.protocol import Engine, Heldout
from twostagegp.errors import TwoStageGPError
from twostagegp.kernels import Kernel, Vector
from twostagegp.training.candidates import Candidate

__all__ = ["best_shift", "errors_downhill", "tune_penalty"]


def tune_penalty(
    engine: Engine, candidate: Candidate, shifts: Sequence[float], index: Tensor | None = None
) -> None:
    """Move a candidate's penalty to the smallest held-out squared error of some rows.

    Training by a density chooses the noise variance for the whole distribution, and one large
    residual can raise it; the mean is judged by squared error. From the trained penalty the search
    goes downhill over ``shifts`` of its logarithm, and the result is the minimum of a parabola
    through the best one and its neighbours.
    """
    assert candidate.parameters is not None
    trained = candidate.parameters
    rows = engine.rows if index is None else engine.rows.subset(index)

    heldout = _heldout_by_noise(engine, candidate.kernel, trained[:-1], index)

    def error(shift: float) -> float:
        try:
            held = heldout(trained[-1] + shift)
            return float(held.sum_of_squares(rows).sum())
        except TwoStageGPError:
            return math.inf

    candidate.penalty_shift = best_shift(errors_downhill(error, shifts), shifts)


def _heldout_by_noise(
    engine: Engine, kernel: Kernel, theta: Vector, index: Tensor | None
) -> Callable[[float], Heldout]:
    """Return the held-out predictions of some rows as a function of the log noise variance."""
    if isinstance(engine, ExactEngine) and index is None:
        return engine.heldout_by_noise(kernel, theta)
    return lambda log_noise: engine.condition(kernel, np.append(theta, log_noise)).heldout(index)


def errors_downhill(error: Callable[[float], float], shifts: Sequence[float]) -> list[float]:
    """Return the error at the shifts around a minimum, and infinity at those that were not tried.

    The search begins at the shift closest to zero, and first tries the smaller ones.

    Examples
    --------
    >>> errors_downhill(lambda shift: (shift - 0.2) ** 2, [-2.0, -1.0, 0.0, 1.0])
    [inf, 1.44, 0.04000000000000001, 0.6400000000000001]
    """
    errors = [math.inf] * len(shifts)
    start = best = int(np.argmin(np.abs(shifts)))
    errors[start] = error(shifts[start])
    for downhill in (range(start - 1, -1, -1), range(start + 1, len(shifts))):
        for i in downhill:
            errors[i] = error(shifts[i])
            if not errors[i] < errors[best]:
                break
            best = i
        if best != start:
            break  # the minimum is on this side
    return errors


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
