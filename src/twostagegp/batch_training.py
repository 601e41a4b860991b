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

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twostagegp.errors import NotFittableError
from twostagegp.problem_batch import ProblemBatch

__all__ = ["BatchFit", "curvature", "fit_batch", "minimise_batch", "pilot_starts"]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

#: Longest change of a log-parameter in one step.
_LONGEST_STEP = 1.5
#: A problem stops when a step promises less than this, in the mean over rows.
TOLERANCE = 1e-5
#: How many pilots, on how many of their rows, and how far they are driven.
_PILOTS = 4
_PILOT_ROWS = 150
_PILOT_TOLERANCE = 1e-4
#: Shifts of (log lengthscale, log noise) of the pilots' starts.
_PILOT_STARTS = ((0.0, 0.0), (-1.5, -3.0), (0.7, 2.0))
#: Two optima of pilots are different when the quadratic model puts one this far above the other.
_DISTINCT = 0.1
#: Step of the differences that give a Hessian, in log-parameters.
_DIFFERENCE = 0.02


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

    def part(self, index: slice | NDArray[np.bool_]) -> BatchFit:
        """Some of the problems."""
        return BatchFit(
            self.parameters[index],
            self.value[index],
            self.evaluations[index],
            self.converged[index],
        )

    def merge_better(self, other: BatchFit) -> BatchFit:
        """The better of two fits of each problem."""
        better = other.value < self.value
        return BatchFit(
            np.where(better[:, None], other.parameters, self.parameters),
            np.where(better, other.value, self.value),
            self.evaluations + other.evaluations,
            np.where(better, other.converged, self.converged),
        )


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
        longest = np.abs(step).max(1)
        step *= (length * np.minimum(1.0, _LONGEST_STEP / np.maximum(longest, 1e-300)))[:, None]
        now = np.flatnonzero(alive)
        candidate = np.clip(x[now] + step[now], lower, upper)
        new_value, new_gradient = problems(candidate, index[now])
        count[now] += 1
        better = new_value < value[now]
        taken, refused = now[better], now[~better]
        H[taken] = _bfgs_updates(
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


def _bfgs_updates(H: Array, s: Array, y: Array) -> Array:
    """The BFGS formula for each inverse Hessian; skipped where the curvature is not positive."""
    sy = (s * y).sum(1)
    good = sy > 1e-10 * np.linalg.norm(s, axis=1) * np.linalg.norm(y, axis=1)
    rho = np.where(good, 1.0 / np.where(good, sy, 1.0), 0.0)[:, None, None]
    V = np.eye(s.shape[1]) - rho * s[:, :, None] * y[:, None, :]
    return V @ H @ V.transpose(0, 2, 1) + rho * s[:, :, None] * s[:, None, :]


def fit_batch(
    problems: ProblemBatch,
    *,
    starts: tuple[list[Array], Array] | None = None,
    evaluations: int = 25,
    tolerance: float = TOLERANCE,
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
    centres, inverse = pilot_starts(problems) if starts is None else starts
    fits = [
        minimise_batch(
            problems,
            np.tile(centre, (len(problems), 1)),
            inverse,
            evaluations=evaluations,
            tolerance=tolerance,
        )
        for centre in centres
    ]
    return _best_of(fits)


def pilot_starts(problems: ProblemBatch) -> tuple[list[Array], Array]:
    """Starts for all problems and their inverse Hessian, from a few problems on fewer rows."""
    B = len(problems)
    index = np.unique(np.linspace(0, B - 1, min(_PILOTS, B)).round().astype(np.int64))
    pilots = problems.subset(index, _PILOT_ROWS)
    fit = _fit_from_several_starts(pilots)
    hessian = _hessian(pilots, fit.parameters)
    centres, inverse = _centres(fit.parameters, hessian), _positive_inverse(hessian)
    if len(pilots) == B and pilots.n_rows == problems.n_rows:
        return centres, inverse
    # The optimum moves with the number of rows: two whole problems say where to.
    whole = problems.subset(index[:2], problems.n_rows)
    moved = [minimise_batch(whole, np.tile(c, (len(whole), 1)), inverse) for c in centres]
    best = _best_of(moved)
    return [np.asarray(fit.parameters.mean(0)) for fit in moved], curvature(whole, best.parameters)


def _best_of(fits: list[BatchFit]) -> BatchFit:
    best = fits[0]
    for fit in fits[1:]:
        best = best.merge_better(fit)
    return best


def _fit_from_several_starts(problems: ProblemBatch) -> BatchFit:
    """Optimum of each problem, the best over several starts."""
    B, starts = len(problems), []
    for lengthscale, noise in _PILOT_STARTS:
        start = problems.starts()
        start[:, : problems.kernel.lengthscale_slots] += lengthscale
        start[:, -1] += noise
        starts.append(start)
    index = np.tile(np.arange(B), len(starts))
    fit = minimise_batch(problems, np.concatenate(starts), index=index, tolerance=_PILOT_TOLERANCE)
    best = _best_of([fit.part(slice(i * B, (i + 1) * B)) for i in range(len(starts))])
    if not np.isfinite(best.value).any():
        raise NotFittableError(
            f"the covariance of kernel {problems.kernel.label} cannot be factorised at any "
            "starting value; raise noise_floor or drop the kernel."
        )
    return best.part(np.isfinite(best.value))


def curvature(problems: ProblemBatch, x: Array) -> Array:
    """Inverse of the mean Hessian at the parameters x (B, p), made positive definite, (p, p)."""
    return _positive_inverse(_hessian(problems, x))


def _hessian(problems: ProblemBatch, x: Array) -> Array:
    """Mean Hessian at the optima, by differences of the gradient."""
    k, p = x.shape
    shifts = np.concatenate([np.eye(p), -np.eye(p)]) * _DIFFERENCE
    points = (x[:, None, :] + shifts[None]).reshape(-1, p)
    _, gradient = problems(points, np.repeat(np.arange(k), 2 * p))
    gradient = gradient.reshape(k, 2, p, p)
    hessians = (gradient[:, 0] - gradient[:, 1]) / (2.0 * _DIFFERENCE)
    mean = hessians[np.isfinite(hessians).all((1, 2))].mean(0)
    return np.asarray(0.5 * (mean + mean.T))


def _positive_inverse(hessian: Array) -> Array:
    """Inverse with every eigenvalue's absolute value, bounded away from zero."""
    eigenvalues, vectors = np.linalg.eigh(hessian)
    positive = np.maximum(np.abs(eigenvalues), 1e-3)
    return np.asarray((vectors / positive) @ vectors.T)


def _centres(optima: Array, hessian: Array) -> list[Array]:
    """One or two starts for all problems: two where the pilots have found different optima."""
    eigenvalues, vectors = np.linalg.eigh(hessian)
    metric = (vectors * np.maximum(eigenvalues, 0.0)) @ vectors.T
    first = np.median(optima, axis=0)
    offset = optima - first
    above = 0.5 * np.einsum("bi,ij,bj->b", offset, metric, offset)
    if above.max() < _DISTINCT:
        return [first]
    low, high = optima[np.argmin(above)], optima[np.argmax(above)]
    return [low, high]
