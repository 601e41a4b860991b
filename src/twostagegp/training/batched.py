r"""Choosing the hyperparameters of many small problems at once.

Repetitions of one kernel on subsamples of one table, or on draws of one model, have nearly the
same optimum and nearly the same curvature. So a few *pilots*, problems with some of their rows, are
solved from several starts; their optimum and their Hessian, by differences of the gradient, start
all problems. From there

.. math::

    x_b \leftarrow x_b - \eta_b H_b \nabla L_b(x_b)

with BFGS updates of each :math:`H_b` needs a handful of evaluations. A problem that has converged
takes no part in the evaluations of the others.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twostagegp.engines.batched_problem import ProblemBatch
from twostagegp.errors import NotFittableError

__all__ = [
    "BatchFit",
    "Pilots",
    "Starts",
    "bfgs_updates",
    "curvature",
    "fit_batch",
    "group_optima",
    "minimise_batch",
    "pilot_index",
    "pilot_starts",
    "positive_inverse",
]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
#: Starting values for all problems, and their inverse Hessian.
Starts = tuple[list[Array], Array]

#: A problem stops when a step promises less than this, in the mean over rows.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Pilots:
    """Which problems lead the way for the others, and what counts as another optimum."""

    #: How many pilots, on how many of their rows, and how far they are driven.
    count: int = 4
    rows: int = 150
    tolerance: float = 1e-4
    #: Shifts of (log lengthscale, log noise) of their starts: a likelihood often has two optima,
    #: one of which takes the noise for a rough function.
    shifts: tuple[tuple[float, float], ...] = ((0.0, 0.0), (-1.5, -3.0), (0.7, 2.0))
    #: An optimum is a rival of the best one if it is at most so much worse, in the mean over rows.
    rival: float = 0.03


PILOTS = Pilots()


@dataclass
class BatchFit:
    """Optima of B problems.

    Attributes
    ----------
    parameters : array of shape (B, p)
    value : array of shape (B,)
        Infinite where the problem could not be evaluated anywhere.
    evaluations : array of shape (B,)
    converged : array of shape (B,)
    """

    parameters: Array
    value: Array
    evaluations: Indices
    converged: NDArray[np.bool_]

    def spread(self, index: Indices, size: int) -> BatchFit:
        """These problems as numbers ``index`` of ``size``, the others not fitted yet."""
        nothing = BatchFit(
            np.zeros((size, self.parameters.shape[1])),
            np.full(size, np.inf),
            np.zeros(size, dtype=np.int64),
            np.zeros(size, dtype=bool),
        )
        return nothing.merge_better(self, index)

    def extended(self, other: BatchFit) -> BatchFit:
        """These problems and others after them."""
        names = self.__dataclass_fields__
        pairs = ((getattr(self, name), getattr(other, name)) for name in names)
        return BatchFit(*(np.concatenate(pair) for pair in pairs))

    def merge_better(self, other: BatchFit, index: Indices) -> BatchFit:
        """The better of two fits of each problem; the other one has the problems ``index``."""
        better = ~(other.value > self.value[index])
        fit = copy.deepcopy(self)
        fit.evaluations[index] += other.evaluations
        for name in ("parameters", "value", "converged"):
            getattr(fit, name)[index[better]] = getattr(other, name)[better]
        return fit


def minimise_batch(
    problems: ProblemBatch,
    start: Array,
    inverse_hessian: Array | None = None,
    *,
    index: Indices | None = None,
    evaluations: int = 40,
    tolerance: float = TOLERANCE,
) -> BatchFit:
    """Minimise every problem from its own start.

    Parameters
    ----------
    start : array of shape (B, p)
    inverse_hessian : array of shape (p, p), optional
        Of all problems, approximately; the identity by default.
    index : array of shape (B,), optional
        Which problems of the batch; one may occur several times with several starts.
    evaluations : int
        At most, for each problem.
    tolerance : float
        Smallest promised gain of a step, in the mean over rows.
    """
    lower, upper = problems.bounds()
    index = np.arange(len(problems)) if index is None else index
    x = np.clip(start, lower, upper)
    B, p = x.shape
    H = np.tile(np.eye(p) if inverse_hessian is None else inverse_hessian, (B, 1, 1))
    length, count = np.ones(B), np.ones(B, dtype=np.int64)
    value, gradient = problems(x, index)
    alive, converged = np.isfinite(value), np.zeros(B, dtype=bool)
    for _ in range(evaluations - 1):
        free = ~((x <= lower) & (gradient > 0.0) | (x >= upper) & (gradient < 0.0))
        g = np.where(free, gradient, 0.0)
        step = -np.einsum("bij,bj->bi", H, g) * free
        slope = (step * g).sum(1)
        uphill = alive & (slope >= 0.0) & (np.abs(g).max(1) > 0.0)
        H[uphill], step[uphill] = np.eye(p), -g[uphill]
        slope = np.where(uphill, -(g * g).sum(1), slope)
        promises_little = alive & (-0.5 * slope < tolerance)
        converged |= promises_little
        alive &= ~promises_little
        if not alive.any():
            break
        # No log-parameter changes by more than 1.5 in one step.
        longest = np.abs(step).max(1)
        step *= (length * np.minimum(1.0, 1.5 / np.maximum(longest, 1e-300)))[:, None]
        now = np.flatnonzero(alive)
        candidate = np.clip(x[now] + step[now], lower, upper)
        new_value, new_gradient = problems(candidate, index[now])
        count[now] += 1
        better = new_value < value[now]
        taken, refused = now[better], now[~better]
        H[taken] = bfgs_updates(
            H[taken], candidate[better] - x[taken], new_gradient[better] - gradient[taken]
        )
        x[taken], value[taken] = candidate[better], new_value[better]
        gradient[taken] = new_gradient[better]
        length[taken] = 1.0
        length[refused] *= 0.3
        # So short a step that still leads uphill is rounding: there is nothing left to gain.
        stuck = refused[length[refused] < 1e-3]
        alive[stuck], converged[stuck] = False, True
    return BatchFit(x, value, count, converged)


def bfgs_updates(H: Array, s: Array, y: Array) -> Array:
    """Return each inverse Hessian by the BFGS formula; as it was without positive curvature."""
    sy = (s * y).sum(1)
    good = sy > 1e-10 * np.linalg.norm(s, axis=1) * np.linalg.norm(y, axis=1)
    rho = np.where(good, 1.0 / np.where(good, sy, 1.0), 0.0)[:, None, None]
    V = np.eye(s.shape[1]) - rho * s[:, :, None] * y[:, None, :]
    return V @ H @ V.transpose(0, 2, 1) + rho * s[:, :, None] * s[:, None, :]


def fit_batch(
    problems: ProblemBatch,
    *,
    starts: Starts | None = None,
    evaluations: int = 40,
    tolerance: float = TOLERANCE,
    pilots: Pilots = PILOTS,
) -> BatchFit:
    """Minimise every problem, started from pilots.

    Parameters
    ----------
    starts : optional
        What :func:`pilot_starts` gave for these problems or for others like them.

    Raises
    ------
    NotFittableError
        If no pilot can be evaluated at any start.
    """
    centres, inverse = pilot_starts(problems, pilots) if starts is None else starts
    everyone = np.arange(len(problems))
    height = np.stack([problems(np.tile(c, (len(problems), 1)), everyone)[0] for c in centres])
    fit: BatchFit | None = None
    for centre, value in zip(centres, height, strict=True):
        # A start far above another one is not worth the way down.
        index = np.flatnonzero(value <= height.min(0) + pilots.rival)
        if index.size == 0:
            continue
        part = minimise_batch(
            problems,
            np.tile(centre, (len(index), 1)),
            inverse,
            index=index,
            evaluations=evaluations,
            tolerance=tolerance,
        )
        fit = part.spread(index, len(problems)) if fit is None else fit.merge_better(part, index)
    assert fit is not None
    return fit


def pilot_index(B: int, count: int = PILOTS.count) -> Indices:
    """Which of B problems are the pilots; all where they are the only problems.

    Examples
    --------
    >>> pilot_index(100).tolist(), pilot_index(4).tolist()
    ([0, 33, 66, 99], [0, 1, 2, 3])
    """
    return np.unique(np.linspace(0, B - 1, min(count, B)).round().astype(np.int64))


def pilot_starts(problems: ProblemBatch, pilots: Pilots = PILOTS) -> Starts:
    """Starts for all problems and their inverse Hessian, from a few problems on fewer rows."""
    index = pilot_index(len(problems), pilots.count)
    optima, value = _optima_from_several_starts(problems.subset(index, pilots.rows), pilots)
    fitted = np.isfinite(value).any(0)
    index, optima, value = index[fitted], optima[:, fitted], value[:, fitted]
    best = optima[value.argmin(0), np.arange(len(index))]
    hessian = _hessian(problems.subset(index, pilots.rows), best)
    inverse = positive_inverse(hessian)
    rival = value <= value.min(0) + pilots.rival
    found, owner = optima[rival], np.broadcast_to(np.arange(len(index)), rival.shape)[rival]
    # The optimum moves with the number of rows: whole problems, those that a start was found on,
    # say where to.
    centres, curvatures = [], []
    for group in group_optima(found, hessian):
        owners = np.unique(owner[group])[:2]
        whole = problems.subset(index[owners], problems.n_rows)
        start = np.tile(np.median(found[group], axis=0), (len(whole), 1))
        moved = minimise_batch(whole, start, inverse)
        centres.append(np.asarray(moved.parameters.mean(0)))
        curvatures.append(_hessian(whole, moved.parameters))
    return centres, positive_inverse(np.mean(curvatures, axis=0))


def _optima_from_several_starts(problems: ProblemBatch, pilots: Pilots) -> tuple[Array, Array]:
    """Optima (starts, problems, p) and their values (starts, problems)."""
    B, starts = len(problems), []
    for lengthscale, noise in pilots.shifts:
        start = problems.starts()
        start[:, : problems.kernel.lengthscale_slots] += lengthscale
        start[:, -1] += noise
        starts.append(start)
    index = np.tile(np.arange(B), len(starts))
    fit = minimise_batch(problems, np.concatenate(starts), index=index, tolerance=pilots.tolerance)
    if not np.isfinite(fit.value).any():
        raise NotFittableError(
            f"the covariance of kernel {problems.kernel.label} cannot be factorised at any "
            "starting value; raise noise_floor or drop the kernel."
        )
    return fit.parameters.reshape(len(starts), B, -1), fit.value.reshape(len(starts), B)


def curvature(problems: ProblemBatch, x: Array) -> Array:
    """Inverse of the mean Hessian at the parameters x (B, p), made positive definite, (p, p)."""
    return positive_inverse(_hessian(problems, x))


def _hessian(problems: ProblemBatch, x: Array) -> Array:
    """Mean Hessian at the optima, by differences of the gradient."""
    (k, p), step = x.shape, 0.02  # wide: the curvature of a whole step, not of a point
    shifts = np.concatenate([np.eye(p), -np.eye(p)]) * step
    points = (x[:, None, :] + shifts[None]).reshape(-1, p)
    value, gradient = problems(points, np.repeat(np.arange(k), 2 * p))
    gradient = gradient.reshape(k, 2, p, p)
    hessians = (gradient[:, 0] - gradient[:, 1]) / (2.0 * step)
    fine = np.isfinite(value).reshape(k, -1).all(1)
    mean = hessians[fine].mean(0) if fine.any() else np.eye(p)
    return np.asarray(0.5 * (mean + mean.T))


def positive_inverse(hessian: Array) -> Array:
    """Return the inverse with every eigenvalue's absolute value, bounded away from zero."""
    eigenvalues, vectors = np.linalg.eigh(hessian)
    positive = np.maximum(np.abs(eigenvalues), 1e-3)
    return np.asarray((vectors / positive) @ vectors.T)


def group_optima(
    optima: Array, hessian: Array, noise_factor: float = 3.0, height: float = 0.1
) -> list[NDArray[np.bool_]]:
    """Return all optima as one group, or as two where they are different.

    Where noise is large a likelihood often has two optima, one of which takes the noise for a rough
    function; so optima whose noise variances differ by more than ``noise_factor`` are told apart by
    it. Others are different where the quadratic model puts one more than ``height`` above another.

    Returns
    -------
    masks : list of boolean arrays of shape (len(optima),)
    """
    noise = optima[:, -1]
    if np.ptp(noise) > math.log(noise_factor):
        less = noise <= 0.5 * (noise.min() + noise.max())
        return [less, ~less]
    eigenvalues, vectors = np.linalg.eigh(hessian)
    metric = (vectors * np.maximum(eigenvalues, 0.0)) @ vectors.T

    def height_above(centre: Array) -> Array:
        offset = optima - centre
        return np.asarray(0.5 * np.einsum("bi,ij,bj->b", offset, metric, offset))

    above = height_above(np.median(optima, axis=0))
    if above.max() <= height:
        return [np.ones(len(optima), dtype=bool)]
    # Nearer to the one that is farthest out, or to the one farthest from that.
    far = optima[np.argmax(above)]
    other = optima[np.argmax(height_above(far))]
    near_far = height_above(far) < height_above(other)
    return [~near_far, near_far]
