r"""Training many candidate kernels for little more than the price of one.

A candidate is a kernel and the objective that trains it. All of them start on a few hundred
rows; the rows grow about threefold from rung to rung of a *ladder* while the candidates
become fewer, and only the last survivors ever see all rows, each from an excellent start:
the subsampling warm start of the paper, with pruning. What a rung cost stands in its record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.engines.exact.settings import EXACT_DEFAULTS
from twostagegp.engines.protocol import Engine
from twostagegp.training.candidates import Candidate, fitted_only

__all__ = ["Ladder", "Rung", "climb"]


_LOG = logging.getLogger("twostagegp")


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
        blocked_rows: int = EXACT_DEFAULTS.blocked_rows,
    ) -> Ladder:
        """Plan rungs of 300, 900, 2700, ... rows, then all n.

        If ``patient``, candidates are dropped only where keeping them would cost something.
        ``blocked_rows`` is the exact engine's: an evaluation of more rows costs less.

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
            # A rung of 8000 rows finds little left to do: the one before has thousands already.
            steps = 40 if i == 0 else 8 if m < 8000 else 4
            if patient:
                keep = max(keep, min(n_candidates, _affordable(m, n, steps, blocked_rows)))
            rungs.append(Rung(m, keep, steps, 3e-4))
        return cls((*rungs, Rung(n, full_keep, full_steps, 2e-5)))


def _affordable(m: int, n: int, evaluations: int, blocked_rows: int) -> int:
    """Return how many candidates a rung of m rows can have for a twentieth of a large fit's cost.

    That is about 24 factorisations of all n rows. An evaluation costs two of m rows where
    derivatives are estimated, nine where all matrices are held. Few rows of a noisy table tell
    kernels badly apart: no candidate is dropped there to save next to nothing.
    """
    if n <= blocked_rows:
        return 0
    one = 2.0 if m > blocked_rows else 9.0
    return int(0.05 * 24.0 * n**3 / (evaluations * one * m**3))


Scorer = Callable[[Engine, Engine, Sequence[Candidate]], NDArray[np.float64]]


def climb(
    engine: Engine,
    candidates: Sequence[Candidate],
    ladder: Ladder,
    score: Scorer,
    rng: np.random.Generator,
    R: Tensor | None = None,
) -> list[Candidate]:
    """Train candidates up the ladder, keep the best ``keep`` of each rung; return the survivors.

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
