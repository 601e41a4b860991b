"""Several targets over the same rows, one target after the other.

Every engine accepts rows whose target has K columns (``Rows.t`` of shape (m, K)). Its training
problem is then the mean over the targets, its posterior's mean and held-out residuals have K
columns, and so has the variance if the known noise differs by target. Engines that can share a
factorisation between the targets do so; the two classes here serve the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.engines.problem import ObjectiveName, Problem
from twostagegp.engines.protocol import Engine, Posterior
from twostagegp.kernels import Kernel, Vector
from twostagegp.numerics.held_out import Heldout

__all__ = ["PerTargetPosterior", "SumProblem", "split_targets"]


def split_targets(rows: Rows) -> list[Rows]:
    """Return the rows of each target."""
    return [rows.of_target(k) for k in range(rows.t.shape[1])]


@dataclass
class SumProblem(Problem):
    """The mean of the training problems of several targets, with one prior."""

    problems: Sequence[Problem] = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for problem in self.problems:
            problem.use_prior = False

    @classmethod
    def of(
        cls,
        engine: Engine,
        kernel: Kernel,
        objective: ObjectiveName,
        R: Tensor | None,
        batch: Tensor | None,
        start: Vector | None,
        use_prior: bool,
    ) -> SumProblem:
        """Pose one problem per target, each on a separate engine; R has shape (b, K)."""
        problems = [
            engine.with_rows(rows).problem(
                kernel, objective, None if R is None else R[:, k], batch, start
            )
            for k, rows in enumerate(split_targets(engine.rows))
        ]
        given = (kernel, engine.rows, objective, R, engine.noise_floor, use_prior)
        return cls(*given, problems=problems)

    def is_stale(self, parameters: Vector) -> bool:
        return self.problems[0].is_stale(parameters)

    def __call__(self, parameters: Vector) -> tuple[float, Vector]:
        self.evaluations += 1
        parts = [problem(parameters) for problem in self.problems]
        self.jitter = max(problem.jitter for problem in self.problems)
        value = float(np.mean([value for value, _ in parts]))
        gradient = np.mean([gradient for _, gradient in parts], axis=0)
        if not self.use_prior:
            return value, gradient
        penalty, slope = self._prior(parameters)
        total = len(self.problems) * self.problems[0].total
        return value + penalty / total, gradient + slope / total


class PerTargetPosterior:
    """One posterior per target; predictions have one column per target.

    ``rows`` are those of all targets; kernel and parameters are common to the targets.
    """

    posteriors: list[Posterior]
    rows: Rows

    def __init__(self, posteriors: Sequence[Posterior], rows: Rows) -> None:
        self.posteriors, self.rows = list(posteriors), rows

    @classmethod
    def of(cls, engine: Engine, kernel: Kernel, parameters: Vector) -> PerTargetPosterior:
        """Condition an engine on each of its targets."""
        targets = split_targets(engine.rows)
        made = [engine.with_rows(rows).condition(kernel, parameters) for rows in targets]
        return cls(made, engine.rows)

    @property
    def kernel(self) -> Kernel:
        return self.posteriors[0].kernel

    @property
    def parameters(self) -> Vector:
        return self.posteriors[0].parameters

    @property
    def noise(self) -> float:
        return self.posteriors[0].noise

    @property
    def jitter(self) -> float:
        return max(posterior.jitter for posterior in self.posteriors)

    def mean(self, X: Tensor) -> Tensor:
        return torch.stack([posterior.mean(X) for posterior in self.posteriors], dim=1)

    def variance(self, X: Tensor) -> Tensor:
        if self.rows.extra.ndim == 1:
            return self.posteriors[0].variance(X)
        return torch.stack([posterior.variance(X) for posterior in self.posteriors], dim=1)

    def covariance(self, X: Tensor) -> Tensor:
        if self.rows.extra.ndim == 1:
            return self.posteriors[0].covariance(X)
        return torch.stack([posterior.covariance(X) for posterior in self.posteriors], dim=2)

    def heldout(self, index: Tensor | None = None) -> Heldout:
        parts = [posterior.heldout(index) for posterior in self.posteriors]
        residual = torch.stack([held.residual for held in parts], dim=1)
        if self.rows.extra.ndim == 1:
            return Heldout(residual, parts[0].slope, parts[0].variance)
        slope = torch.stack([held.slope for held in parts], dim=1)
        return Heldout(residual, slope, torch.stack([held.variance for held in parts], dim=1))

    def drop_factor(self) -> None:
        for posterior in self.posteriors:
            posterior.drop_factor()

    def extended(self, rows: Rows, changed: Tensor) -> PerTargetPosterior:
        pairs = zip(self.posteriors, split_targets(rows), strict=True)
        return PerTargetPosterior([post.extended(own, changed) for post, own in pairs], rows)
