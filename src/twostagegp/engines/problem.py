r"""A training problem: a kernel, rows and an objective of :math:`(\theta, \log \sigma^2)`.

Its value is the mean over rows of the objective plus the negative log of a weak prior, divided by
the number of rows. ``training/optimise.py`` minimises it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.kernels import Kernel, Vector
from twostagegp.numerics import objectives
from twostagegp.numerics.linalg import cholesky_inverse, cholesky_solve, safe_cholesky
from twostagegp.numerics.objectives import Factored, Objective
from twostagegp.runtime.cores import raise_if_stopped

__all__ = ["NOISE_PRIOR", "ObjectiveName", "Problem"]

ObjectiveName = Literal["nll", "loo", "heldout", "ridge"]
#: Mean and precision of the prior of log(noise variance), for a standardised target: wide, around
#: a noise variance of 0.01.
NOISE_PRIOR = (math.log(1e-2), 1.0 / 3.0**2)


@dataclass
class Problem:
    """One training problem: kernel, rows, objective.

    Parameters
    ----------
    objective : {"nll", "loo", "heldout"}
        ``"heldout"`` is the variance objective and needs ``R``, the sums of squares of the
        held-out residuals of each row.
    noise_floor : float
        Lower bound of the noise variance, relative to the variance of the target.
    use_prior : bool
        Add the weak prior.
    """

    kernel: Kernel
    rows: Rows
    objective: ObjectiveName = "nll"
    R: Tensor | None = None
    noise_floor: float = 1e-8
    use_prior: bool = True
    evaluations: int = field(default=0, init=False)
    jitter: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        mean, precision = self.kernel.prior()
        self._prior_mean = np.append(mean, NOISE_PRIOR[0])
        self._prior_precision = np.append(precision, NOISE_PRIOR[1])
        self._total = self.rows.total

    def start(self) -> Vector:
        return np.append(self.kernel.start(), math.log(max(0.05, 2.0 * self.noise_floor)))

    def bounds(self) -> list[tuple[float, float]]:
        floor = math.log(self.noise_floor)
        return [*self.kernel.bounds(), (floor, max(math.log(1e2), floor + 1.0))]

    def is_stale(self, parameters: Vector) -> bool:
        """Return whether the problem should be posed again near these parameters.

        Neighbours and inducing points depend on the lengthscales that they were found with.
        """
        return False

    @property
    def total(self) -> float:
        """Total weight of the rows times the number of targets: the value is a mean over these."""
        return self._total

    def objective_of(self, f: Factored, rows: Rows, s: Tensor, R: Tensor | None) -> Objective:
        """Return the objective of one target, with its derivatives."""
        return objectives.terms(self.objective, f, rows, s, R).dense(f)

    def __call__(self, parameters: Vector) -> tuple[float, Vector]:
        """Return the mean objective plus prior, and its gradient."""
        raise_if_stopped()
        self.evaluations += 1
        rows, theta, noise = self.rows, parameters[:-1], math.exp(parameters[-1])
        K, saved = self.kernel.evaluate(rows.X, theta)
        s = noise + rows.extra
        # The noise is added to the diagonal and removed again: K is needed without it below.
        diagonal = K.diagonal().clone()
        K.diagonal().add_(s / rows.c)
        L, jitter = safe_cholesky(K)
        K.diagonal().copy_(diagonal)
        self.jitter = max(self.jitter, jitter)
        f = Factored(L, cholesky_inverse(L), cholesky_solve(L, rows.t))
        result = self.objective_of(f, rows, s, self.R)
        gradient = np.empty(len(parameters))
        gradient[:-1] = self.kernel.gradient(rows.X, theta, K, saved, result.W)
        gradient[-1] = noise * float((result.W.diagonal() / rows.c + result.g).sum())
        return self._per_row(parameters, result.value, gradient)

    def value(self, parameters: Vector) -> float:
        """Return the mean objective plus prior; engines may save the work of the gradient."""
        return self(parameters)[0]

    def _per_row(self, parameters: Vector, value: float, gradient: Vector) -> tuple[float, Vector]:
        """Return an objective and its gradient, plus the prior, divided by the number of rows."""
        scale = 1.0 / self._total
        if self.use_prior:
            penalty, slope = self._prior(parameters)
            value, gradient = value + penalty, gradient + slope
        return value * scale, gradient * scale

    def _prior(self, parameters: Vector) -> tuple[float, Vector]:
        offset = parameters - self._prior_mean
        slope = self._prior_precision * offset
        return 0.5 * float(slope @ offset), slope
