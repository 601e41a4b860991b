"""Candidates: a kernel, the objective that trains it, and the state of its training."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.engines.problem import ObjectiveName
from twostagegp.engines.protocol import Engine, Trainable
from twostagegp.errors import NotFittableError, TwoStageGPError
from twostagegp.kernels import Kernel, Vector
from twostagegp.numerics.stacking import simplex_weights
from twostagegp.runtime.progress import advance
from twostagegp.training.optimise import Fitted, descend, minimise
from twostagegp.training.schedule import Training

__all__ = [
    "Candidate",
    "fitted_only",
    "rank_by_loo_error",
    "rank_by_unseen_error",
    "rank_errors",
    "train_with",
]

Array = NDArray[np.float64]


@dataclass
class Candidate:
    """A kernel, the objective that trains it, and the state of its training."""

    kernel: Kernel
    objective: ObjectiveName
    parameters: Vector | None = None
    value: float = math.inf
    gradient_norm: float = math.nan
    evaluations: int = 0
    full_evaluations: int = 0
    refit_evaluations: int = 0
    seconds: float = 0.0
    full_seconds: float = 0.0
    failure: str = ""
    inverse_hessian: Vector | None = None
    penalty_shift: float = 0.0

    @property
    def label(self) -> str:
        return f"{self.kernel.label}/{self.objective}"

    def with_penalty(self, parameters: Vector) -> Vector:
        """Return parameters with the log noise moved by the tuned shift of the penalty."""
        return np.append(parameters[:-1], parameters[-1] + self.penalty_shift)

    def account(self, evaluations: int, seconds: float, is_full: bool) -> None:
        """Add the cost of a training."""
        self.evaluations += evaluations
        self.seconds += seconds
        if is_full:
            self.full_evaluations += evaluations
            self.full_seconds += seconds

    def train(
        self,
        engine: Trainable,
        R: Tensor | None,
        is_full: bool,
        steps: int,
        tolerance: float,
        is_last: bool = False,
    ) -> None:
        """Improve the parameters on the engine's rows; a failure is recorded in ``failure``.

        The first training uses L-BFGS. Later ones use the curvature found before, and ``steps`` is
        then the number of evaluations. ``is_last`` says that no training follows
        (:func:`~twostagegp.training.optimise.improve`).
        """
        if steps == 0:
            return
        begin = time.perf_counter()
        problem = engine.problem(self.kernel, self.objective, R)
        try:
            start, H = self.parameters, self.inverse_hessian
            self.record(descend(problem, start, H, steps, tolerance, is_last))
        except TwoStageGPError as error:
            self.failure = str(error)
        self.account(problem.evaluations, time.perf_counter() - begin, is_full)
        advance("evaluation", problem.evaluations, len(engine.rows))

    def fitted(self) -> Fitted:
        """Return the result of the last training."""
        assert self.parameters is not None
        return Fitted(
            self.parameters,
            self.value,
            self.evaluations,
            self.gradient_norm,
            inverse_hessian=self.inverse_hessian,
        )

    def record(self, fitted: Fitted) -> None:
        """Store the result of a training."""
        self.parameters = fitted.parameters
        self.value = fitted.value
        self.gradient_norm = fitted.gradient_norm
        self.inverse_hessian = fitted.inverse_hessian


def train_with(
    engine: Trainable,
    candidate: Candidate,
    training: Training,
    rng: np.random.Generator,
    R: Tensor | None = None,
) -> None:
    """Train one candidate by the schedule of a user's :class:`Training`.

    A failure is recorded in the candidate, which :func:`fitted_only` then drops.
    """
    try:
        _train_with(engine, candidate, training, rng, R)
    except TwoStageGPError as error:
        candidate.failure = str(error)


def fitted_only(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that could be fitted; raise an error with all reasons if none could."""
    fitted = [c for c in candidates if c.parameters is not None and not c.failure]
    if not fitted:
        reasons = sorted({c.failure for c in candidates})
        raise NotFittableError(f"no kernel could be fitted: {'; '.join(reasons)}")
    return fitted


def _train_with(
    engine: Trainable,
    candidate: Candidate,
    training: Training,
    rng: np.random.Generator,
    R: Tensor | None,
) -> None:
    n = len(engine.rows)
    options: dict[str, Any] = {
        "optimizer": training.optimizer,
        "schedule": training.schedule,
        "restart_every": training.restart_every,
        "weight_decay": training.weight_decay,
    }
    parameters = candidate.parameters
    warm = training.subsample is not None and training.subsample < n
    if warm:
        index = np.sort(rng.permutation(n)[: training.subsample])
        R_part = None if R is None else R[index]
        problem = engine.subset(index).problem(candidate.kernel, candidate.objective, R_part)
        begin = time.perf_counter()
        parameters = minimise(
            problem, parameters, steps=training.steps, lr=training.lr, **options
        ).parameters
        candidate.account(problem.evaluations, time.perf_counter() - begin, is_full=False)
    problem = engine.problem(candidate.kernel, candidate.objective, R)
    steps = training.refine_steps if warm else training.steps
    lr = training.refine_lr if warm else training.lr
    begin = time.perf_counter()
    candidate.record(minimise(problem, parameters, steps=steps, lr=lr, **options))
    candidate.account(problem.evaluations, time.perf_counter() - begin, is_full=True)


def rank_by_unseen_error(engine: Engine, unseen: Engine, candidates: Sequence[Candidate]) -> Array:
    """Rank candidates by their errors on rows that they were not trained on.

    With groups the unseen rows may share a group with the training rows, so the closed form for
    whole groups is used instead.
    """
    if engine.rows.groups is not None:
        return rank_by_loo_error(engine, candidates)
    rows = unseen.rows
    columns = []
    for candidate in candidates:
        assert candidate.parameters is not None
        mean = engine.condition(candidate.kernel, candidate.parameters).mean(rows.X)
        columns.append((rows.t - mean).cpu().numpy())
    return rank_errors(np.column_stack(columns), rows)


def rank_by_loo_error(engine: Engine, candidates: Sequence[Candidate]) -> Array:
    """Rank candidates by their closed-form leave-one-out errors."""
    columns = []
    for candidate in candidates:
        assert candidate.parameters is not None
        held = engine.condition(candidate.kernel, candidate.parameters).heldout()
        columns.append(held.residual.cpu().numpy())
    return rank_errors(np.column_stack(columns), engine.rows)


def rank_errors(E: Array, rows: Rows) -> Array:
    """Return a rank per candidate (smaller is better) from their errors E, shape (n, C).

    Candidates to which a stack over these errors gives weight come first, then those with the
    smallest squared error.
    """
    weight = rows.c.cpu().numpy()
    error = weight @ E**2 / weight.sum()
    wanted = simplex_weights(E, weight)
    return np.where(wanted > 0.01, -wanted, error)
