r"""Training many candidate kernels for little more than the price of one.

A candidate is a kernel and the objective that trains it. All of them start on a few hundred
rows; the rows grow about threefold from rung to rung of a *ladder* while the candidates
become fewer, and only the last survivors ever see all rows, each from an excellent start:
the subsampling warm start of the paper, with pruning. What a rung cost stands in its record.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.memory import LARGE_ROWS
from twostagegp.engines.problem import ObjectiveName
from twostagegp.engines.protocol import Engine, Trainable
from twostagegp.errors import NotFittableError, TwoStageGPError
from twostagegp.kernels import Kernel, Vector
from twostagegp.training.optimise import Fitted, descend, minimise
from twostagegp.training.schedule import Training

__all__ = ["Candidate", "Ladder", "Rung", "climb", "fitted_only", "train_with"]


_LOG = logging.getLogger("twostagegp")

#: Rows of a rung from which the one before has left little to do.
MANY_ROWS = 8000


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
        """Parameters whose log noise is moved to where it predicts the mean best."""
        return np.append(parameters[:-1], parameters[-1] + self.penalty_shift)

    def account(self, evaluations: int, seconds: float, is_full: bool) -> None:
        """Add what a training has cost."""
        self.evaluations += evaluations
        self.seconds += seconds
        if is_full:
            self.full_evaluations += evaluations
            self.full_seconds += seconds

    def train(
        self, engine: Trainable, R: Tensor | None, is_full: bool, steps: int, tolerance: float
    ) -> None:
        """Improve the parameters on the engine's rows; a failure is remembered.

        The first time by L-BFGS; then ``steps`` counts evaluations, and the curvature found on
        fewer rows guides them.
        """
        if steps == 0:
            return
        begin = time.perf_counter()
        problem = engine.problem(self.kernel, self.objective, R)
        try:
            start, H = self.parameters, self.inverse_hessian
            self.record(descend(problem, start, H, steps, tolerance))
        except TwoStageGPError as error:
            self.failure = str(error)
        self.account(problem.evaluations, time.perf_counter() - begin, is_full)

    def record(self, fitted: Fitted) -> None:
        """Take over what a training has found."""
        self.parameters = fitted.parameters
        self.value = fitted.value
        self.gradient_norm = fitted.gradient_norm
        self.inverse_hessian = fitted.inverse_hessian


@dataclass(frozen=True)
class Rung:
    """How many rows, how many candidates enter, and how long each is trained.

    ``steps`` are L-BFGS iterations on the first rung, evaluations on the others; a tuple gives
    each candidate its own number, best first.
    """

    rows: int
    keep: int
    steps: int | tuple[int, ...]
    tolerance: float

    def steps_of(self, rank: int) -> int:
        """Steps of the candidate that entered this rung at ``rank``."""
        if isinstance(self.steps, int):
            return self.steps
        return self.steps[rank] if rank < len(self.steps) else 0


@dataclass(frozen=True)
class Ladder:
    """The rungs of a warm start; the last one has all rows."""

    rungs: tuple[Rung, ...]

    @classmethod
    def plan(
        cls,
        n: int,
        n_candidates: int,
        full_keep: int,
        full_steps: int | tuple[int, ...],
        patient: bool = False,
    ) -> Ladder:
        """Rungs of 300, 900, 2700, ... rows, then all n.

        Where ``patient``, candidates are dropped only when they would cost something.

        Examples
        --------
        >>> [(r.rows, r.keep) for r in Ladder.plan(2000, 20, 6, 8).rungs]
        [(300, 20), (900, 6), (2000, 6)]
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
            keep = max(full_keep, n_candidates // 3**i)
            steps = 40 if i == 0 else 8 if m < MANY_ROWS else 4
            if patient:
                keep = max(keep, min(n_candidates, _affordable(m, n, steps)))
            rungs.append(Rung(m, keep, steps, 3e-4))
        return cls((*rungs, Rung(n, full_keep, full_steps, 2e-5)))


def _affordable(m: int, n: int, evaluations: int) -> int:
    """Candidates that a rung of m rows can have for a twentieth of what a large fit costs.

    That is about 24 factorisations of all n rows. An evaluation costs two of m rows where
    derivatives are estimated, nine where all matrices are held. Few rows of a noisy table tell
    kernels badly apart: no one is dropped there to save next to nothing.
    """
    if n <= LARGE_ROWS:
        return 0
    one = 2.0 if m > LARGE_ROWS else 9.0
    return int(0.05 * 24.0 * n**3 / (evaluations * one * m**3))


Scorer = Callable[[Engine, Engine, Sequence[Candidate]], NDArray[np.float64]]


def climb(
    engine: ExactEngine,
    candidates: Sequence[Candidate],
    ladder: Ladder,
    score: Scorer,
    rng: np.random.Generator,
    R: Tensor | None = None,
) -> list[Candidate]:
    """Train candidates up the ladder, keeping the best ``keep`` of each rung; the survivors.

    ``score(engine, unseen, candidates)`` ranks candidates (smaller is better) after training on
    ``engine``; ``unseen`` holds up to 1000 rows that this rung has not seen.
    Nested subsamples: each rung contains the rows of the one before it.
    """
    n = len(engine.rows)
    order = rng.permutation(n)
    alive = list(candidates)
    for position, rung in enumerate(ladder.rungs):
        index = np.sort(order[: rung.rows])
        part = engine if rung.rows >= n else engine.subset(index)
        _LOG.info(
            "step %d of %d: %d kernels on %d of %d rows",
            position + 1, len(ladder.rungs), len(alive), len(index), n,
        )  # fmt: skip
        R_part = None if R is None else R[index]
        for rank, candidate in enumerate(alive):
            steps = rung.steps_of(rank)
            candidate.train(part, R_part, rung.rows >= n, steps, rung.tolerance)
        alive = fitted_only(alive)
        if position + 1 < len(ladder.rungs):
            keep = ladder.rungs[position + 1].keep
            unseen = engine.subset(np.sort(order[rung.rows : rung.rows + 1000]))
            ranking = np.argsort(score(part, unseen, alive), kind="stable")
            alive = [alive[i] for i in ranking[:keep]]
    return alive


def train_with(
    engine: Trainable,
    candidate: Candidate,
    training: Training,
    rng: np.random.Generator,
    R: Tensor | None = None,
) -> None:
    """Train one candidate exactly as a user's :class:`Training` says.

    A failure is remembered on the way of :meth:`Candidate.train`; :func:`fitted_only` drops it.
    """
    try:
        _train_with(engine, candidate, training, rng, R)
    except TwoStageGPError as error:
        candidate.failure = str(error)


def fitted_only(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates that could be fitted; an error that names every reason if there is none."""
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
