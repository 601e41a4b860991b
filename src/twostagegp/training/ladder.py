r"""Training many candidate kernels for little more than the cost of one.

A candidate is a kernel and the objective that trains it. All candidates start on a few hundred
rows. From rung to rung of a *ladder* the number of rows grows about threefold and the number of
candidates falls; only the last ones are trained on all rows, each from an excellent start. This is
the subsampling warm start of the paper, with pruning.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.engines.exact.settings import EXACT_DEFAULTS
from twostagegp.engines.protocol import Engine
from twostagegp.training.candidates import Candidate, fitted_only
from twostagegp.training.optimise import Fitted
from twostagegp.training.side_by_side import for_each

__all__ = ["EARLY_STEPS", "EARLY_TOLERANCE", "GROWTH", "Ladder", "Rung", "climb", "rung_sizes"]

#: Iterations of the first training, from the starting values, and its tolerance.
EARLY_STEPS, EARLY_TOLERANCE = 40, 1e-3

#: How many times as many rows as a rung the next one has at most.
GROWTH = 4.0

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


def rung_sizes(n: int, first: int, growth: float = GROWTH) -> list[int]:
    """Return the rows of the rungs before the one with all n rows.

    Their numbers grow by one factor, of at most ``growth``. If n is less than 1.8 times ``first``,
    the only rung is the one with all rows.

    Examples
    --------
    >>> rung_sizes(2000, 300), rung_sizes(700, 300), rung_sizes(500, 300)
    ([300, 775], [300], [])
    """
    if not 0 < first <= n / 1.8:
        return []
    steps = math.ceil(math.log(n / first, growth))
    return [round(first * (n / first) ** (i / steps)) for i in range(steps)]


@dataclass(frozen=True)
class Ladder:
    """The rungs of a warm start; the last one has all rows.

    ``is_last`` says that no training follows the ladder.
    """

    rungs: tuple[Rung, ...]
    is_last: bool = False

    @classmethod
    def plan(
        cls,
        n: int,
        n_candidates: int,
        full_keep: int,
        full_steps: int | tuple[int, ...],
        *,
        first: int = 300,
        least_gain: float = 0.05,
        kept: tuple[float, ...] = (1.0, 2 / 3, 1 / 3, 1 / 9),
        patient: bool = False,
        blocked_rows: int = EXACT_DEFAULTS.blocked_rows,
        growth: float = GROWTH,
        is_last: bool = False,
    ) -> Ladder:
        """Plan rungs of growing numbers of rows, the last with all n (:func:`rung_sizes`).

        Parameters
        ----------
        first : int
            Rows of the first rung.
        least_gain : float
            Training on a rung ends if a step is expected to gain less, in nats over all its rows.
        kept : tuple of float
            Share of the candidates that enter each rung; the last one is for all further rungs.
            Few rows rank kernels unreliably, so that most candidates go on from the first rung.
        patient : bool
            Keep candidates on rungs where training them is cheap (:func:`_affordable`).
        blocked_rows : int
            That of the exact engine: above it an evaluation costs fewer factorisations.
        growth : float
            How many times as many rows as a rung the next one has at most.
        is_last : bool
            Whether no training follows the ladder.

        Examples
        --------
        >>> [(r.rows, r.keep) for r in Ladder.plan(2000, 20, 6, 8).rungs]
        [(300, 20), (775, 13), (2000, 6)]
        """
        sizes = rung_sizes(n, first, growth)
        if not sizes:
            # A few dozen rows do not determine hyperparameters more precisely.
            return cls((Rung(n, n_candidates, 60, 1e-3 if n < 60 else 2e-4),), is_last)
        rungs = []
        for i, m in enumerate(sizes):
            keep = max(full_keep, int(n_candidates * kept[min(i, len(kept) - 1)]))
            # From 8000 rows on few steps suffice: the rung before has thousands of rows already.
            steps = EARLY_STEPS if i == 0 else 6 if m < 8000 else 4
            if patient:
                keep = max(keep, min(n_candidates, _affordable(m, n, steps, blocked_rows)))
            rungs.append(Rung(m, keep, steps, EARLY_TOLERANCE if i == 0 else least_gain / m))
        return cls((*rungs, Rung(n, full_keep, full_steps, least_gain / n)), is_last)


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
    order: NDArray[np.int64],
    R: Tensor | None = None,
) -> tuple[list[Candidate], dict[int, Fitted]]:
    """Train candidates up the ladder; return those that reach its end, and their first training.

    The next rung's ``keep`` best candidates go on. ``score(engine, unseen, candidates)`` ranks
    them (smaller is better) after training on ``engine``; ``unseen`` has up to 1000 rows that are
    not in this rung. Subsamples are nested: each rung has the first rows of a random ``order``.

    Returns
    -------
    survivors : list of Candidate
    early : dict
        Result of the first rung by the id of the candidate; empty if it had all rows.
    """
    n = len(engine.rows)
    alive = list(candidates)
    early: dict[int, Fitted] = {}
    for position, rung in enumerate(ladder.rungs):
        index = np.sort(order[: rung.rows])
        part = engine if rung.rows >= n else engine.subset(index)
        _LOG.info(
            "step %d of %d: %d kernels on %d of %d rows",
            position + 1, len(ladder.rungs), len(alive), len(index), n,
        )  # fmt: skip
        is_end = position + 1 == len(ladder.rungs)
        is_last = ladder.is_last and is_end
        _train(part, alive, None if R is None else R[index], rung, rung.rows >= n, is_last)
        alive = fitted_only(alive)
        if not is_end:
            if position == 0:
                early = {id(candidate): candidate.fitted() for candidate in alive}
            keep = ladder.rungs[position + 1].keep
            unseen = engine.subset(np.sort(order[rung.rows : rung.rows + 1000]))
            ranking = np.argsort(score(part, unseen, alive), kind="stable")
            alive = [alive[i] for i in ranking[:keep]]
    return alive, early


def _train(
    engine: Engine,
    candidates: Sequence[Candidate],
    R: Tensor | None,
    rung: Rung,
    is_full: bool,
    is_last: bool,
) -> None:
    """Train the candidates of a rung side by side."""

    def train(entry: tuple[int, Candidate]) -> None:
        rank, candidate = entry
        candidate.train(engine, R, is_full, rung.steps_of(rank), rung.tolerance, is_last)

    for_each(train, list(enumerate(candidates)), engine.rows, [c.kernel for c in candidates])
