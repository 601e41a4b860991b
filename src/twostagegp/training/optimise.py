r"""Optimisers of a training problem.

A :class:`~twostagegp.engines.problem.Problem` is minimised by L-BFGS-B (default), or by Adam or
AdamW with cosine warm restarts as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from twostagegp.engines.problem import Problem
from twostagegp.errors import NumericalError
from twostagegp.kernels import Vector, WrappedKernel

__all__ = [
    "Fitted",
    "SoftplusSpace",
    "bfgs_update",
    "cosine_rate",
    "descend",
    "improve",
    "minimise",
    "shifted_optimum",
]

#: GPyTorch's lower bound of a noise variance, which Adam and AdamW respect here as well.
_GPYTORCH_NOISE_FLOOR = 1e-4


@dataclass
class Fitted:
    """Result of a minimisation."""

    parameters: Vector
    value: float
    evaluations: int
    gradient_norm: float
    jitter: float = 0.0
    inverse_hessian: Vector | None = None


def minimise(
    problem: Problem,
    start: Vector | None = None,
    *,
    optimizer: str = "lbfgs",
    steps: int = 100,
    lr: float = 0.1,
    schedule: str = "none",
    restart_every: int = 10,
    weight_decay: float = 0.01,
    tolerance: float = 1e-5,
) -> Fitted:
    """Minimise a problem from ``start`` (the problem's starting values by default).

    If a step of L-BFGS leads to a matrix that cannot be factorised, its value is set very large, so
    that the line search turns back; only a start that fails raises. Adam and AdamW have no line
    search and raise if any step fails.
    """
    before = problem.evaluations
    bounds = problem.bounds()
    x0 = problem.start() if start is None else start
    x0 = np.clip(x0, [b[0] for b in bounds], [b[1] for b in bounds])
    H = None
    if optimizer == "lbfgs":
        x, value, norm, H = _lbfgs(problem, x0, bounds, steps, tolerance)
    else:
        decay = weight_decay if optimizer == "adamw" else 0.0
        rate = cosine_rate(lr, restart_every) if schedule == "cosine" else (lambda step: lr)
        space = SoftplusSpace(problem)
        raw = np.zeros_like(x0) if start is None else space.to_raw(x0)
        raw, value, norm = _adam(space, space.fixed_start(raw, x0), steps, rate, decay)
        x = space.to_log(raw)
    return Fitted(x, value, problem.evaluations - before, norm, problem.jitter, H)


def _lbfgs(
    problem: Problem, x0: Vector, bounds: list[tuple[float, float]], steps: int, tolerance: float
) -> tuple[Vector, float, float, Vector | None]:
    if steps == 0:
        value, gradient = problem(x0)
        return x0, value, float(np.abs(gradient).max()), None
    worst = [math.inf]

    def safe(x: Vector) -> tuple[float, Vector]:
        try:
            value, gradient = problem(x)
        except NumericalError:
            if math.isinf(worst[0]):
                raise
            return worst[0] + 1e3, np.zeros_like(x)
        worst[0] = value if math.isinf(worst[0]) else max(worst[0], value)
        return value, gradient

    options = {
        "maxiter": steps,
        "maxfun": 2 * steps + 5,
        "ftol": 0.1 * tolerance,
        "gtol": tolerance,
    }
    result = minimize(safe, x0, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    norm = float(np.abs(result.jac).max())
    return result.x, float(result.fun), norm, np.asarray(result.hess_inv.todense())


def improve(
    problem: Problem,
    start: Vector,
    inverse_hessian: Vector,
    evaluations: int,
    tolerance: float = 1e-5,
    is_last: bool = False,
) -> Fitted:
    r"""Take a few quasi-Newton steps with a known curvature.

    Objectives are means over rows, so a problem on more rows, or on other rows, has nearly the same
    Hessian as the problem whose optimum it starts from. With that problem's inverse Hessian H the
    step :math:`-H \nabla L` is good from the first evaluation on; BFGS updates keep H current.

    Parameters
    ----------
    evaluations : int
        Most evaluations of the problem; at least 1.
    is_last : bool
        Whether no training follows. The last evaluation then only decides whether its step is
        taken, without a gradient; norm and inverse Hessian are those before this step.
    """
    before = problem.evaluations
    lower, upper = np.array(problem.bounds()).T
    x, H, length = np.clip(start, lower, upper), inverse_hessian, 1.0
    value, gradient = problem(x)
    for left in range(evaluations - 1, 0, -1):
        free = ~((x <= lower) & (gradient > 0.0) | (x >= upper) & (gradient < 0.0))
        downhill = np.where(free, -gradient, 0.0)
        # Parameters at a bound stay there: a step that moved them inwards could lead uphill.
        step = np.where(free, H @ downhill, 0.0)
        if step @ downhill <= 0.0:
            H = np.eye(len(x))
            step = downhill
        if 0.5 * float(step @ downhill) < tolerance:
            break
        # No log-parameter changes by more than 1 in one step.
        step *= length * min(1.0, 1.0 / np.abs(step).max())
        candidate = np.clip(x + step, lower, upper)
        only_value = is_last and left == 1
        try:
            new_value, new_gradient = (
                (problem.value(candidate), gradient) if only_value else problem(candidate)
            )
        except NumericalError:
            new_value, new_gradient = math.inf, gradient
        if not new_value <= value:
            length *= 0.3
            continue
        if only_value:
            x, value = candidate, new_value
            break
        length = 1.0
        H = bfgs_update(H, candidate - x, new_gradient - gradient)
        x, value, gradient = candidate, new_value, new_gradient
    norm = float(np.abs(gradient).max())
    return Fitted(x, value, problem.evaluations - before, norm, problem.jitter, H)


def shifted_optimum(
    problem: Problem, start: Vector, inverse_hessian: Vector | None, longest: float = 0.5
) -> Vector:
    r"""Return the optimum of a problem that differs little from the one whose optimum is known.

    The first quasi-Newton step :math:`-H \nabla L` leads there up to terms of second order, and is
    taken without a further evaluation. If it changes a log-parameter by more than ``longest``, the
    problems differ more than a little, and :func:`improve` continues from there.
    """
    if inverse_hessian is None:
        return minimise(problem, start, steps=3).parameters
    lower, upper = np.array(problem.bounds()).T
    x = np.clip(start, lower, upper)
    _, gradient = problem(x)
    free = ~((x <= lower) & (gradient > 0.0) | (x >= upper) & (gradient < 0.0))
    downhill = np.where(free, -gradient, 0.0)
    step = np.where(free, inverse_hessian @ downhill, 0.0)
    if np.abs(step).max() > longest or step @ downhill < 0.0:
        return improve(problem, start, inverse_hessian, 3, tolerance=1e-4).parameters
    return np.asarray(np.clip(x + step, lower, upper))


def descend(
    problem: Problem,
    start: Vector | None,
    inverse_hessian: Vector | None,
    steps: int,
    tolerance: float,
    is_last: bool = False,
) -> Fitted:
    """Minimise by :func:`improve` if a start and its curvature are given, else by L-BFGS."""
    if start is None or inverse_hessian is None:
        return minimise(problem, start, steps=steps, tolerance=tolerance)
    return improve(problem, start, inverse_hessian, steps, tolerance, is_last)


def bfgs_update(H: Vector, s: Vector, y: Vector) -> Vector:
    """Return the inverse Hessian after a BFGS update; unchanged without positive curvature."""
    sy = float(s @ y)
    if sy <= 1e-10 * float(np.linalg.norm(s) * np.linalg.norm(y)):
        return H
    V = np.eye(len(s)) - np.outer(s, y) / sy
    return V @ H @ V.T + np.outer(s, s) / sy


def cosine_rate(lr: float, period: int) -> Callable[[int], float]:
    """Return cosine annealing with restarts: lr (1 + cos(pi i / period)) / 2, i = step % period."""
    return lambda step: 0.5 * lr * (1.0 + math.cos(math.pi * (step % period) / period))


class SoftplusSpace:
    r"""A problem in GPyTorch's raw parameters, which Adam and AdamW optimise.

    GPyTorch represents a positive parameter as :math:`\mathrm{softplus}(\rho) = \log(1 + e^\rho)`,
    starts every :math:`\rho` at 0 and keeps noise variances above 1e-4. Step lengths and weight
    decay act on :math:`\rho`, so that the paper's learning rates have the same meaning here. The
    parameters of a wrapped kernel are raw already.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.lower, self.upper = np.array(problem.bounds()).T
        size = len(self.lower)
        self.positive = np.ones(size, dtype=bool)
        if isinstance(problem.kernel, WrappedKernel):
            self.positive[:-1] = False
        self.offset = np.zeros(size)
        self.offset[-1] = max(_GPYTORCH_NOISE_FLOOR, problem.noise_floor)

    def to_log(self, raw: Vector) -> Vector:
        values = np.log(np.logaddexp(0.0, raw) + self.offset)
        return np.clip(np.where(self.positive, values, raw), self.lower, self.upper)

    def to_raw(self, x: Vector) -> Vector:
        values = np.maximum(np.exp(np.where(self.positive, x, 0.0)) - self.offset, 1e-12)
        return np.where(self.positive, values + np.log(-np.expm1(-values)), x)

    def fixed_start(self, raw: Vector, x0: Vector) -> Vector:
        """Return ``raw`` for positive parameters and the kernel's value ``x0`` for others."""
        return np.where(self.positive, raw, x0)

    def __call__(self, raw: Vector) -> tuple[float, Vector]:
        value, gradient = self.problem(self.to_log(raw))
        slope = expit(raw) / (np.logaddexp(0.0, raw) + self.offset)
        return value, np.where(self.positive, gradient * slope, gradient)


def _adam(
    problem: Callable[[Vector], tuple[float, Vector]],
    x0: Vector,
    steps: int,
    rate: Callable[[int], float],
    decay: float,
) -> tuple[Vector, float, float]:
    x, m, v = x0, np.zeros_like(x0), np.zeros_like(x0)
    value, gradient = problem(x)
    for step in range(steps):
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        corrected = (m / (1 - 0.9 ** (step + 1))) / (np.sqrt(v / (1 - 0.999 ** (step + 1))) + 1e-8)
        eta = rate(step)
        x = x - eta * corrected - eta * decay * x
        value, gradient = problem(x)
    return x, value, float(np.abs(gradient).max())
