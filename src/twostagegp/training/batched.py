r"""Training the hyperparameters of many small problems at once.

Repetitions of one kernel on subsamples of one table, or on draws of one model, have nearly the
same optimum and nearly the same curvature. So a few *pilots*, problems on some of their rows, are
solved from several starts. All problems then start from the optimum of the pilots and from their
Hessian, which is computed by differences of the gradient. From there

.. math::

    x_b \leftarrow x_b - \eta_b H_b \nabla L_b(x_b)

with BFGS updates of each :math:`H_b` needs a handful of evaluations. A problem that has converged
is no longer evaluated.
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

#: A problem stops when the expected gain of a step is below this, in the mean over rows.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Pilots:
    """How pilots are solved, and which optima count as different from the best."""

    #: Number of pilots, rows of each, and the tolerance to which they are solved.
    count: int = 4
    rows: int = 150
    tolerance: float = 1e-4
    #: Shifts of (log lengthscale, log noise) of their starts: a likelihood often has two optima,
    #: of which one explains the noise by a rough function.
    shifts: tuple[tuple[float, float], ...] = ((0.0, 0.0), (-1.5, -3.0), (0.7, 2.0))
    #: An optimum is a rival of the best one if its value, a mean over rows, is at most this much
    #: larger.
    rival: float = 0.03


PILOTS = Pilots()


@dataclass
class BatchFit:
    """Optima of B problems.

    Attributes
    ----------
    parameters : array of shape (B, p)
    value : array of shape (B,)
        Infinite if the problem could not be evaluated at any parameters.
    evaluations : array of shape (B,)
    converged : array of shape (B,)
    """

    parameters: Array
    value: Array
    evaluations: Indices
    converged: NDArray[np.bool_]

    def spread(self, index: Indices, size: int) -> BatchFit:
        """Return a fit of ``size`` problems: these at ``index``, the others not fitted yet."""
        unfitted = BatchFit(
            np.zeros((size, self.parameters.shape[1])),
            np.full(size, np.inf),
            np.zeros(size, dtype=np.int64),
            np.zeros(size, dtype=bool),
        )
        return unfitted.merge_better(self, index)

    def extended(self, other: BatchFit) -> BatchFit:
        """Return the fit of these problems followed by those of ``other``."""
        names = self.__dataclass_fields__
        pairs = ((getattr(self, name), getattr(other, name)) for name in names)
        return BatchFit(*(np.concatenate(pair) for pair in pairs))

    def merge_better(self, other: BatchFit, index: Indices) -> BatchFit:
        """Return the better of two fits of each problem; ``other`` has the problems ``index``."""
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
        Approximate inverse Hessian of all problems; the identity by default.
    index : array of shape (B,), optional
        Numbers of the problems; one may occur several times with several starts.
    evaluations : int
        Most evaluations per problem.
    tolerance : float
        A problem stops if the expected gain of a step is smaller, in the mean over rows.
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
        # If even so short a step leads uphill, the differences are rounding errors.
        stuck = refused[length[refused] < 1e-3]
        alive[stuck], converged[stuck] = False, True
    return BatchFit(x, value, count, converged)


def bfgs_updates(H: Array, s: Array, y: Array) -> Array:
    """Return each inverse Hessian after a BFGS update; unchanged without positive curvature."""
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
    """Minimise every problem, starting from the optima of pilots.

    Parameters
    ----------
    starts : optional
        Result of :func:`pilot_starts` for these problems or for similar ones.

    Raises
    ------
    NotFittableError
        If no pilot can be evaluated at any start.
    """
    centres, inverse = pilot_starts(problems, pilots) if starts is None else starts
    every = np.arange(len(problems))
    height = np.stack([problems(np.tile(c, (len(problems), 1)), every)[0] for c in centres])
    fit: BatchFit | None = None
    for centre, value in zip(centres, height, strict=True):
        # Starts with a much larger value than another start are skipped.
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
    """Return the numbers of the pilots among B problems; all of them if B <= count.

    Examples
    --------
    >>> pilot_index(100).tolist(), pilot_index(4).tolist()
    ([0, 33, 66, 99], [0, 1, 2, 3])
    """
    return np.unique(np.linspace(0, B - 1, min(count, B)).round().astype(np.int64))


def pilot_starts(problems: ProblemBatch, pilots: Pilots = PILOTS) -> Starts:
    """Return starts for all problems and their inverse Hessian, from a few problems on few rows."""
    index = pilot_index(len(problems), pilots.count)
    optima, value = _optima_from_several_starts(problems.subset(index, pilots.rows), pilots)
    fitted = np.isfinite(value).any(0)
    index, optima, value = index[fitted], optima[:, fitted], value[:, fitted]
    best = optima[value.argmin(0), np.arange(len(index))]
    hessian = _hessian(problems.subset(index, pilots.rows), best)
    inverse = positive_inverse(hessian)
    rival = value <= value.min(0) + pilots.rival
    found, owner = optima[rival], np.broadcast_to(np.arange(len(index)), rival.shape)[rival]
    # The optimum moves with the number of rows, so each start is improved on all rows of one or two
    # of the problems on which it was found.
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
    """Return optima of shape (starts, problems, p) and their values, shape (starts, problems)."""
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
    """Return the inverse of the mean Hessian at parameters x (B, p), made positive definite."""
    return positive_inverse(_hessian(problems, x))


def _hessian(problems: ProblemBatch, x: Array) -> Array:
    """Return the mean Hessian at the optima, by differences of the gradient."""
    (k, p), step = x.shape, 0.02  # a wide step, for the curvature over the range of a step
    shifts = np.concatenate([np.eye(p), -np.eye(p)]) * step
    points = (x[:, None, :] + shifts[None]).reshape(-1, p)
    value, gradient = problems(points, np.repeat(np.arange(k), 2 * p))
    gradient = gradient.reshape(k, 2, p, p)
    hessians = (gradient[:, 0] - gradient[:, 1]) / (2.0 * step)
    fine = np.isfinite(value).reshape(k, -1).all(1)
    mean = hessians[fine].mean(0) if fine.any() else np.eye(p)
    return np.asarray(0.5 * (mean + mean.T))


def positive_inverse(hessian: Array) -> Array:
    """Return the inverse with eigenvalues replaced by their absolute values, at least 1e-3."""
    eigenvalues, vectors = np.linalg.eigh(hessian)
    positive = np.maximum(np.abs(eigenvalues), 1e-3)
    return np.asarray((vectors / positive) @ vectors.T)


def group_optima(
    optima: Array, hessian: Array, noise_factor: float = 3.0, height: float = 0.1
) -> list[NDArray[np.bool_]]:
    """Return all optima as one group, or as two groups if they differ.

    If noise is large, a likelihood often has two optima, of which one explains the noise by a rough
    function; so optima whose noise variances differ by more than the factor ``noise_factor`` are
    grouped by noise variance. Otherwise they differ if, in the quadratic model, one of them is more
    than ``height`` above the median.

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
    # One group is nearer to the optimum farthest from the median, the other is nearer to the
    # optimum farthest from that one.
    far = optima[np.argmax(above)]
    other = optima[np.argmax(height_above(far))]
    near_far = height_above(far) < height_above(other)
    return [~near_far, near_far]
