r"""Hyperparameters for neighbours: densities of a batch of rows, neighbours found again and again.

A batch of rows is predicted, each from its k nearest other rows, and the mean density of the batch
is maximised over lengthscales, outputscale and noise. Who is near depends on the lengthscales, so a
*round* fixes the neighbours, takes a few quasi-Newton steps and finds the neighbours again in the
metric that was learned; the curvature is carried from round to round. Everything starts where an
exact GP on a few hundred rows ends, which needs no neighbours at all and learns which columns
matter.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.neighbors.engine import NeighborEngine
from twostagegp.errors import TwoStageGPError
from twostagegp.pipeline.mean.models import PENALTY_SHIFTS, best_shift, rank_errors
from twostagegp.training.ladder import Candidate, fitted_only
from twostagegp.training.optimise import descend

__all__ = ["Schedule", "train_mean_candidates", "train_rounds", "tune_penalty", "warm_start"]

_LOG = logging.getLogger("twostagegp")

#: Change of the ratios of lengthscales, in logs, below which neighbours need not be found again.
_SETTLED = 0.02


@dataclass(frozen=True)
class Schedule:
    """How many rows and steps training takes; docs/defaults.md has the table behind it.

    Attributes
    ----------
    warm_rows : int
        Rows of the exact GP that everything starts from.
    pool : int
        Rows among which neighbours are looked for while training.
    first, second : int
        Rows of the batch, for all candidates and for those that are kept.
    unseen : int
        Other rows that decide who is kept.
    keep : int
        Candidates that are trained on the second batch.
    rounds, steps : int
        Rounds of each batch, and steps of a round.
    """

    warm_rows: int = 300
    pool: int = 100_000
    first: int = 600
    second: int = 3000
    unseen: int = 1500
    keep: int = 5
    rounds: int = 3
    steps: int = 8


def warm_start(
    engine: NeighborEngine,
    candidates: Sequence[Candidate],
    n_rows: int,
    rng: np.random.Generator,
    R: Tensor | None = None,
    known: Tensor | None = None,
) -> list[Candidate]:
    """Train candidates by an exact GP on a few rows; those that could be.

    ``known`` are the rows that R is of (all of them by default).
    """
    among = np.arange(len(engine.rows)) if known is None else known.cpu().numpy()
    place = rng.permutation(len(among))[:n_rows]
    exact = ExactEngine(engine.rows.subset(among[place]), engine.noise_floor, engine.use_prior)
    R_part = None if R is None else R[torch.as_tensor(place, device=R.device)]
    for candidate in candidates:
        candidate.train(exact, R_part, is_full=False, steps=40, tolerance=1e-3)
    return fitted_only(candidates)


def train_rounds(
    engine: NeighborEngine,
    candidate: Candidate,
    batch: Tensor,
    rounds: int,
    steps: int,
    R: Tensor | None = None,
) -> None:
    """Improve a candidate on a batch, its neighbours found again each round.

    ``R`` has one entry a row of the batch. A failure is remembered in the candidate.
    """
    begin = time.perf_counter()
    evaluations = 0
    try:
        for _ in range(rounds):
            before = candidate.parameters
            assert before is not None
            problem = engine.local_problem(candidate.kernel, candidate.objective, before, batch, R)
            H = candidate.inverse_hessian
            candidate.record(descend(problem, before, H, steps, tolerance=3e-4))
            evaluations += problem.evaluations
            assert candidate.parameters is not None
            old, new = (
                engine.metric(candidate.kernel, parameters[:-1])
                for parameters in (before, candidate.parameters)
            )
            if new.change(old) < _SETTLED:
                break
    except TwoStageGPError as error:
        candidate.failure = str(error)
    candidate.account(evaluations, time.perf_counter() - begin, is_full=False)


def train_mean_candidates(
    engine: NeighborEngine,
    candidates: Sequence[Candidate],
    schedule: Schedule,
    rng: np.random.Generator,
) -> list[Candidate]:
    """From starting values to the candidates that may join the stack, best first."""
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
        _LOG.info("neighbours: %s, %d of %d", candidate.label, i + 1, len(alive))
        train_rounds(pool, candidate, first, 2, schedule.steps)
    alive = fitted_only(alive)
    # Rows that no batch has seen, where there are enough of them.
    unseen = rows(max(0, min(schedule.first, n - schedule.unseen)), schedule.unseen)
    columns = [_errors(pool, candidate, unseen) for candidate in alive]
    ranking = np.argsort(rank_errors(np.column_stack(columns), pool.rows.subset(unseen)))
    alive = [alive[i] for i in ranking[: schedule.keep]]
    second = rows(0, schedule.second)
    for i, candidate in enumerate(alive):
        _LOG.info("more rows: %s, %d of %d", candidate.label, i + 1, len(alive))
        train_rounds(pool, candidate, second, schedule.rounds, schedule.steps)
    return fitted_only(alive)


def _errors(
    engine: NeighborEngine, candidate: Candidate, index: Tensor
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    assert candidate.parameters is not None
    held = engine.condition(candidate.kernel, candidate.parameters).heldout_rows(index)
    return held.residual.double().cpu().numpy()


def tune_penalty(engine: NeighborEngine, candidate: Candidate, index: Tensor) -> None:
    """Move a candidate's penalty to the smallest held-out squared error on some rows."""
    assert candidate.parameters is not None
    near = engine.near_rows(candidate.kernel, candidate.parameters[:-1], index)
    errors = []
    for shift in PENALTY_SHIFTS:
        parameters = np.append(candidate.parameters[:-1], candidate.parameters[-1] + shift)
        try:
            held = engine.condition(candidate.kernel, parameters).heldout_rows(index, near)
            errors.append(float(held.sum_of_squares(engine.rows.subset(index)).sum()))
        except TwoStageGPError:
            errors.append(math.inf)
    candidate.penalty_shift = best_shift(errors)
