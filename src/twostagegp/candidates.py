r"""Training many candidate kernels for little more than the price of one.

A candidate is a kernel and the objective that trains it. All of them start on a few hundred
rows; the rows grow about threefold from rung to rung of a *ladder* while the candidates
become fewer, and only the last survivors ever see all rows, each from an excellent start:
the subsampling warm start of the paper, with pruning. What a rung cost stands in its record.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.engines.base import Engine
from twostagegp.errors import NotFittableError, TwoStageGPError
from twostagegp.kernels import Kernel, Vector
from twostagegp.training import Fitted, ObjectiveName, Training, minimise

__all__ = ["Candidate", "Ladder", "Rung", "climb", "train_with"]


@dataclass
class Candidate:
    """A kernel, the objective that trains it, and what training has found so far."""

    kernel: Kernel
    objective: ObjectiveName
    parameters: Vector | None = None
    value: float = math.inf
    gradient_norm: float = math.nan
    evaluations: int = 0
    full_evaluations: int = 0
    seconds: float = 0.0
    failure: str = ""

    @property
    def label(self) -> str:
        return f"{self.kernel.label}/{self.objective}"

    def train(
        self, engine: Engine, R: Tensor | None, is_full: bool, steps: int, tolerance: float
    ) -> None:
        """Improve the parameters on the engine's rows by L-BFGS; a failure is remembered."""
        begin = time.perf_counter()
        problem = engine.problem(self.kernel, self.objective, R)
        try:
            fitted = minimise(problem, self.parameters, steps=steps, tolerance=tolerance)
            self._record(fitted)
        except TwoStageGPError as error:
            self.failure = str(error)
        self.evaluations += problem.evaluations
        self.full_evaluations += problem.evaluations if is_full else 0
        self.seconds += time.perf_counter() - begin

    def _record(self, fitted: Fitted) -> None:
        self.parameters = fitted.parameters
        self.value = fitted.value
        self.gradient_norm = fitted.gradient_norm


@dataclass(frozen=True)
class Rung:
    """How many rows, how many candidates enter, and how long each is trained."""

    rows: int
    keep: int
    steps: int
    tolerance: float


@dataclass(frozen=True)
class Ladder:
    """The rungs of a warm start; the last one has all rows."""

    rungs: tuple[Rung, ...]

    @classmethod
    def plan(cls, n: int, n_candidates: int, full_keep: int, full_steps: int) -> Ladder:
        """Rungs of 300, 900, 2700, ... rows, then all n.

        Examples
        --------
        >>> [(r.rows, r.keep) for r in Ladder.plan(2000, 20, 6, 8).rungs]
        [(300, 20), (900, 10), (2000, 6)]
        """
        sizes = []
        size = 300
        while size <= n / 1.8:
            sizes.append(size)
            size *= 3
        if not sizes:
            # A few dozen rows do not determine hyperparameters to more digits than this.
            return cls((Rung(n, n_candidates, 60, 1e-3 if n < 60 else 2e-4),))
        rungs = []
        for i, m in enumerate(sizes):
            keep = max(full_keep, n_candidates // 2**i)
            rungs.append(Rung(m, keep, 40 if i == 0 else 12, 3e-4))
        return cls((*rungs, Rung(n, full_keep, full_steps, 1e-4)))


@dataclass
class Climb:
    """Survivors of a climb, and everyone who took part."""

    survivors: list[Candidate]
    everyone: list[Candidate] = field(default_factory=list)


Scorer = Callable[[Engine, Engine | None, Sequence[Candidate]], NDArray[np.float64]]


def climb(
    engine: Engine,
    candidates: Sequence[Candidate],
    ladder: Ladder,
    score: Scorer,
    rng: np.random.Generator,
    R: Tensor | None = None,
) -> Climb:
    """Train candidates up the ladder, keeping the best ``keep`` of each rung.

    ``score(engine, unseen, candidates)`` ranks candidates (smaller is better) after training on
    ``engine``; ``unseen`` holds up to 1000 rows that this rung has not seen, or is None.
    Nested subsamples: each rung contains the rows of the one before it.
    """
    n = len(engine.rows)
    order = rng.permutation(n)
    alive = list(candidates)
    for position, rung in enumerate(ladder.rungs):
        index = np.sort(order[: rung.rows])
        part = engine if rung.rows >= n else engine.subset(index)
        R_part = None if R is None else R[index]
        for candidate in alive:
            candidate.train(part, R_part, rung.rows >= n, rung.steps, rung.tolerance)
        alive = [c for c in alive if c.parameters is not None and not c.failure]
        if not alive:
            reasons = {c.failure for c in candidates}
            raise NotFittableError(f"no kernel could be fitted: {'; '.join(sorted(reasons))}")
        if position + 1 < len(ladder.rungs):
            keep = ladder.rungs[position + 1].keep
            unseen = engine.subset(np.sort(order[rung.rows : rung.rows + 1000]))
            ranking = np.argsort(score(part, unseen, alive), kind="stable")
            alive = [alive[i] for i in ranking[:keep]]
    return Climb(alive, list(candidates))


def train_with(
    engine: Engine,
    candidate: Candidate,
    training: Training,
    rng: np.random.Generator,
    R: Tensor | None = None,
) -> None:
    """Train one candidate exactly as a user's :class:`Training` says."""
    begin = time.perf_counter()
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
        parameters = minimise(
            problem, parameters, steps=training.steps, lr=training.lr, **options
        ).parameters
        candidate.evaluations += problem.evaluations
    problem = engine.problem(candidate.kernel, candidate.objective, R)
    steps = training.refine_steps if warm else training.steps
    lr = training.refine_lr if warm else training.lr
    candidate._record(minimise(problem, parameters, steps=steps, lr=lr, **options))
    candidate.evaluations += problem.evaluations
    candidate.full_evaluations += problem.evaluations
    candidate.seconds += time.perf_counter() - begin
