r"""Training on a batch of rows, in rounds.

Neighbours and inducing points depend on the lengthscales. A *round* keeps them fixed and takes a
few quasi-Newton steps on a batch of rows; the next round finds them again in the new metric. The
curvature is carried from round to round. The first round starts from the parameters of an exact GP
on a few hundred rows, which needs neither neighbours nor inducing points and shows which columns
matter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.protocol import Engine
from twostagegp.errors import TwoStageGPError
from twostagegp.runtime.progress import advance
from twostagegp.training.candidates import Candidate, fitted_only, rank_errors
from twostagegp.training.optimise import descend

__all__ = ["Schedule", "train_in_rounds", "train_on_batch", "warm_start"]

_LOG = logging.getLogger("twostagegp")


@dataclass(frozen=True)
class Schedule:
    """Numbers of rows and steps of training; docs/defaults.md has the measurements behind them.

    Attributes
    ----------
    warm_rows : int
        Rows of the exact GP that gives the first parameters.
    pool : int
        Rows among which neighbours are searched during training.
    first, second : int
        Rows of the first batch, for all candidates, and of the second, for those that are kept.
    unseen : int
        Rows outside the first batch whose errors decide which candidates are kept.
    keep : int
        Candidates that are trained on the second batch.
    first_rounds, rounds, steps : int
        Rounds on the first and on the second batch, and steps per round.
    """

    warm_rows: int = 300
    pool: int = 100_000
    first: int = 600
    second: int = 3000
    unseen: int = 1500
    keep: int = 5
    first_rounds: int = 2
    rounds: int = 3
    steps: int = 8


def warm_start(
    engine: Engine,
    candidates: Sequence[Candidate],
    n_rows: int,
    rng: np.random.Generator,
    R: Tensor | None = None,
    known: Tensor | None = None,
) -> list[Candidate]:
    """Train candidates by an exact GP on a few rows; return those that could be trained.

    ``R`` has one entry for each of the rows ``known`` (all rows by default).
    """
    among = np.arange(len(engine.rows)) if known is None else known.cpu().numpy()
    chosen = rng.permutation(len(among))[:n_rows]
    exact = ExactEngine(engine.rows.subset(among[chosen]), engine.noise_floor)
    R_part = None if R is None else R[torch.as_tensor(chosen, device=R.device)]
    for candidate in candidates:
        candidate.train(exact, R_part, is_full=False, steps=40, tolerance=1e-3)
    return fitted_only(candidates)


def train_on_batch(
    engine: Engine,
    candidate: Candidate,
    batch: Tensor,
    rounds: int,
    steps: int,
    R: Tensor | None = None,
) -> None:
    """Improve a candidate on a batch, in rounds of at most ``steps`` evaluations.

    A round finds neighbours or inducing points again if the metric has changed. Training ends early
    if it has not, and no further step is worthwhile. ``R`` has one entry per row of the batch. A
    failure is recorded in the candidate.
    """
    begin = time.perf_counter()
    evaluations = 0
    problem = None
    try:
        for _ in range(rounds):
            start = candidate.parameters
            assert start is not None
            if problem is None or problem.is_stale(start):
                problem = engine.problem(candidate.kernel, candidate.objective, R, batch, start)
            found = descend(problem, start, candidate.inverse_hessian, steps, tolerance=3e-4)
            candidate.record(found)
            evaluations += found.evaluations
            if found.evaluations < steps and not problem.is_stale(found.parameters):
                break
    except TwoStageGPError as error:
        candidate.failure = str(error)
    candidate.account(evaluations, time.perf_counter() - begin, is_full=False)
    advance("batch", evaluations, len(batch))


def train_in_rounds(
    engine: Engine,
    candidates: Sequence[Candidate],
    schedule: Schedule,
    rng: np.random.Generator,
) -> list[Candidate]:
    """Train from starting values; return the candidates for the stack, best first."""
    n = len(engine.rows)
    order = rng.permutation(n)
    _LOG.info("%d kernels on %d rows", len(candidates), min(schedule.warm_rows, n))
    alive = warm_start(engine, candidates, schedule.warm_rows, rng)
    pool = engine
    if n > schedule.pool:
        pool = engine.subset(np.sort(order[: schedule.pool]))
        n, order = schedule.pool, rng.permutation(schedule.pool)

    def rows(begin: int, count: int) -> Tensor:
        part = np.sort(order[begin : begin + count])
        return torch.as_tensor(part, device=pool.rows.X.device)

    first = rows(0, schedule.first)
    for i, candidate in enumerate(alive):
        _LOG.info("first batch: %s, %d of %d", candidate.label, i + 1, len(alive))
        train_on_batch(pool, candidate, first, schedule.first_rounds, schedule.steps)
    alive = fitted_only(alive)
    # Rows outside the first batch, if there are enough of them.
    unseen = rows(max(0, min(schedule.first, n - schedule.unseen)), schedule.unseen)
    columns = [_errors(pool, candidate, unseen) for candidate in alive]
    ranking = np.argsort(rank_errors(np.column_stack(columns), pool.rows.subset(unseen)))
    advance("ranking", len(alive), len(unseen))
    alive = [alive[i] for i in ranking[: schedule.keep]]
    second = rows(0, schedule.second)
    for i, candidate in enumerate(alive):
        _LOG.info("more rows: %s, %d of %d", candidate.label, i + 1, len(alive))
        train_on_batch(pool, candidate, second, schedule.rounds, schedule.steps)
    return fitted_only(alive)


def _errors(engine: Engine, candidate: Candidate, index: Tensor) -> NDArray[np.float64]:
    assert candidate.parameters is not None
    held = engine.condition(candidate.kernel, candidate.parameters).heldout(index)
    return held.residual.double().cpu().numpy()
