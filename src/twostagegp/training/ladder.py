r"""Training many candidate kernels for little more than the cost of one.

A candidate is a kernel and the objective that trains it. All candidates start on a few hundred
rows. From rung to rung of a *ladder* the number of rows grows about threefold and the number of
candidates falls; only the last ones are trained on all rows, each from an excellent start. This is
the subsampling warm start of the paper, with pruning.
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
    """The rows of a rung, the number of candidates that enter it, and how long each is trained.

    ``steps`` are L-BFGS iterations on the first rung, evaluations on the others; a tuple gives
    each candidate its own number, best first.
    """

    rows: int
    keep: int
    steps: int | tuple[int, ...]
    tolerance: float

    def steps_of(self, rank: int) -> int:
        """Return the steps of the candidate that entered this rung at ``rank``."""
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

        If ``patient``, candidates are kept on rungs where training them is cheap
        (:func:`_affordable`). ``blocked_rows`` is that of the exact engine: above it an evaluation
        costs fewer factorisations.

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
            # A few dozen rows do not determine hyperparameters more precisely.
            return cls((Rung(n, n_candidates, 60, 1e-3 if n < 60 else 2e-4),))
        rungs = []
        for i, m in enumerate(sizes):
            keep = max(full_keep, n_candidates // 3**i)
            # From 8000 rows on few steps suffice: the rung before has thousands of rows already.
            steps = 40 if i == 0 else 8 if m < 8000 else 4
            if patient:
                keep = max(keep, min(n_candidates, _affordable(m, n, steps, blocked_rows)))
            rungs.append(Rung(m, keep, steps, 3e-4))
        return cls((*rungs, Rung(n, full_keep, full_steps, 2e-5)))


def _affordable(m: int, n: int, evaluations: int, blocked_rows: int) -> int:
    """Return how many candidates a rung of m rows can train for a twentieth of a large fit's cost.

    A large fit costs about 24 factorisations of all n rows. An evaluation costs two factorisations
    of m rows if derivatives are estimated, nine if all matrices are held in memory. On few rows of
    a noisy table the ranking of kernels is unreliable, so candidates are not dropped there for a
    negligible saving.
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
    """Train candidates up the ladder; return those that reach its end.

    The next rung's ``keep`` best candidates go on. ``score(engine, unseen, candidates)`` ranks
    them (smaller is better) after training on ``engine``; ``unseen`` has up to 1000 rows that are
    not in this rung. Subsamples are nested: each rung contains the rows of the one before it.
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
