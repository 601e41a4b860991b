"""Ranking candidates by held-out errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from twostagegp.data.rows import Rows
from twostagegp.engines.protocol import Engine
from twostagegp.numerics.stacking import simplex_weights
from twostagegp.training.candidates import Candidate

__all__ = ["rank_by_loo_error", "rank_by_unseen_error", "rank_errors"]

Array = NDArray[np.float64]


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
