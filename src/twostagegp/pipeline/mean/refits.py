r"""Held-out residuals at hyperparameters that were trained without the row.

Closed-form leave-one-out residuals leave the row out of the prediction, but the hyperparameters
were trained on all rows. On tables of a few hundred rows, where this matters and refits are cheap,
hyperparameters are trained again without each fold.

With many rows per parameter, leaving a fold out moves the optimum little. Its new place follows
from the gradient there of the problem without the fold, which vanishes for all rows,

.. math::

    \theta_{-f} \approx \hat\theta - H \nabla L_{-f}(\hat\theta) ,

with the inverse Hessian H found in training: one evaluation per fold
(:func:`~twostagegp.training.optimise.shifted_optimum`). With few rows per parameter, the
lengthscales have adapted to every row, and such a step does not undo this. Then training without a
fold repeats what was done with all rows: first on the rows of two other folds, from the starting
values, then on all rows but the fold's. With very many rows per parameter
(:func:`depends_on_rows`), nothing is trained again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from twostagegp.data.rows import Merged
from twostagegp.engines.problem import Problem
from twostagegp.engines.protocol import Engine
from twostagegp.errors import TwoStageGPError
from twostagegp.kernels import Kernel, Vector, is_flexible
from twostagegp.pipeline.settings import MeanSettings
from twostagegp.runtime.progress import advance
from twostagegp.training.candidates import Candidate
from twostagegp.training.ladder import EARLY_STEPS, EARLY_TOLERANCE
from twostagegp.training.optimise import Fitted, descend, minimise, shifted_optimum
from twostagegp.training.side_by_side import for_each

__all__ = [
    "FoldFits",
    "depends_on_rows",
    "early_order",
    "refit_residuals",
    "shortlist",
    "train_without_folds",
    "trains_afresh",
]

Array = NDArray[np.float64]
Folds = NDArray[np.int64]


@dataclass
class FoldFits:
    """Hyperparameters of one candidate, trained without each fold.

    Attributes
    ----------
    folds : integer array of shape (m,)
        Fold of each distinct row.
    parameters : dict
        Hyperparameters by the number of the fold that was left out.
    """

    folds: Folds
    parameters: dict[int, Vector]


def early_order(folds: Folds, rng: np.random.Generator, settings: MeanSettings) -> Folds:
    """Return a random order of the rows in which the rows of the first folds come first.

    The candidates' first training is on these rows, so it did not see the other folds.
    """
    order = rng.permutation(len(folds))
    late = folds[order] % settings.afresh_folds >= settings.early_folds
    return order[np.argsort(late, kind="stable")]


def train_without_folds(
    engine: Engine,
    candidates: Sequence[Candidate],
    folds: Folds,
    settings: MeanSettings,
    early: Mapping[int, Fitted],
    evaluations: int,
) -> list[FoldFits]:
    """Train every candidate without each fold.

    Parameters
    ----------
    folds : integer array of shape (m,)
        Fold of each distinct row.
    early : mapping
        The first training of candidates, by their id, on rows of the first folds; empty if they
        were trained on all rows from the beginning.
    evaluations : int
        Most evaluations without a fold that follow a training on rows of two other folds.

    A candidate that cannot be trained without a fold keeps its parameters there.
    """
    m = len(folds)
    afresh = [trains_afresh(c.kernel, m, settings.afresh_rows) for c in candidates]
    few = folds % settings.afresh_folds
    fits = [FoldFits(few, {}) for _ in candidates]
    starts = _Starts(engine, few, settings, early, evaluations)
    tasks = [
        (candidate, fit, int(fold), fresh)
        for candidate, fit, fresh in zip(candidates, fits, afresh, strict=True)
        for fold in np.unique(fit.folds)
    ]
    if early:
        others = [c for c, fresh in zip(candidates, afresh, strict=True) if fresh]
        starts.learn(others)

    def train(task: tuple[Candidate, FoldFits, int, bool]) -> tuple[Vector, int]:
        candidate, fit, fold, fresh = task
        assert candidate.parameters is not None
        part = engine.subset(np.flatnonzero(fit.folds != fold))
        problem = part.problem(candidate.kernel, candidate.objective)
        try:
            if fresh:
                parameters = starts.descend(problem, candidate, fold)
            else:
                H = candidate.inverse_hessian
                parameters = shifted_optimum(problem, candidate.parameters, H)
        except TwoStageGPError:
            parameters = candidate.parameters
        advance("evaluation", problem.evaluations, len(part.rows))
        return parameters, problem.evaluations

    found = for_each(train, tasks, engine.rows, [c.kernel for c in candidates])
    for (candidate, fit, fold, _), (parameters, evaluations) in zip(tasks, found, strict=True):
        fit.parameters[fold] = parameters
        candidate.refit_evaluations += evaluations
    return fits


class _Starts:
    """Where training without a fold begins: at an optimum on rows of two other folds."""

    def __init__(
        self,
        engine: Engine,
        folds: Folds,
        settings: MeanSettings,
        early: Mapping[int, Fitted],
        evaluations: int,
    ) -> None:
        self.engine, self.folds, self.settings = engine, folds, settings
        self.early, self.evaluations = early, evaluations
        self.later: dict[int, Fitted] = {}

    def learn(self, candidates: Sequence[Candidate]) -> None:
        """Train candidates on the folds after the early ones, for folds that are early."""
        k = self.settings.early_folds
        part = self.engine.subset(np.flatnonzero((self.folds >= k) & (self.folds < 2 * k)))

        def train(candidate: Candidate) -> Fitted | None:
            problem = part.problem(candidate.kernel, candidate.objective)
            try:
                return minimise(problem, None, steps=EARLY_STEPS, tolerance=EARLY_TOLERANCE)
            except TwoStageGPError:
                return None
            finally:
                advance("evaluation", problem.evaluations, len(part.rows))

        found = for_each(train, candidates, part.rows, [c.kernel for c in candidates])
        for candidate, fitted in zip(candidates, found, strict=True):
            if fitted is not None:
                self.later[id(candidate)] = fitted

    def descend(self, problem: Problem, candidate: Candidate, fold: int) -> Vector:
        """Return parameters trained on a problem that has no row of this fold."""
        known = self.later if fold < self.settings.early_folds else self.early
        start, tolerance = known.get(id(candidate)), self.settings.least_gain / problem.total
        if start is None:
            steps = self.settings.afresh_steps
            return minimise(problem, None, steps=steps, tolerance=1e-3).parameters
        H = start.inverse_hessian
        return descend(problem, start.parameters, H, self.evaluations, tolerance).parameters


def refit_residuals(engine: Engine, merged: Merged, candidate: Candidate, fits: FoldFits) -> Array:
    """Return the leave-one-out residual of every row, at hyperparameters trained without its fold.

    The residual itself is the closed form on all rows: one copy is left out and the other copies
    stay, or the whole group is left out.

    Returns
    -------
    residuals : array of shape (n,)
        One per row of the table, repeats included.
    """
    m = len(fits.folds)
    residual, slope = np.empty(m), np.empty(m)
    for fold, parameters in fits.parameters.items():
        out = np.flatnonzero(fits.folds == fold)
        posterior = engine.condition(candidate.kernel, candidate.with_penalty(parameters))
        held = posterior.heldout(torch.as_tensor(out, device=engine.rows.X.device))
        residual[out], slope[out] = held.residual.cpu().numpy(), held.slope.cpu().numpy()
    return merged.unmerge(residual, slope)


def depends_on_rows(kernel: Kernel, m: int, rows_per_parameter: int = 60) -> bool:
    """Return whether hyperparameters trained on m distinct rows depend much on any one of them.

    Examples
    --------
    >>> from twostagegp.kernels import make_kernel
    >>> [depends_on_rows(make_kernel("rbf", 10, ard), 200) for ard in (True, False)]
    [True, False]
    """
    return m < rows_per_parameter * (1 + len(kernel.start()))


def trains_afresh(kernel: Kernel, m: int, rows_per_parameter: int = 25) -> bool:
    """Return whether refits on m distinct rows start from the kernel's starting values.

    They do if there are few rows per parameter. Thirty lengthscales that were trained on a row have
    adapted to it, and a few optimiser steps from there do not undo this: held-out residuals would
    be far too small.

    Examples
    --------
    >>> from twostagegp.kernels import make_kernel
    >>> [trains_afresh(make_kernel("rbf", 10, ard), 100) for ard in (True, False)]
    [True, False]
    """
    return is_flexible(kernel) and m < rows_per_parameter * len(kernel.start())


def shortlist(
    ranked: Sequence[Candidate], keep: int, m: int, rows_per_parameter: int
) -> list[Candidate]:
    """Return the best ``keep``; if m rows are few, up to half of them with few parameters.

    Candidates are ranked by their leave-one-out error, which is more optimistic for kernels with
    more parameters.
    """
    few = [c for c in ranked if not trains_afresh(c.kernel, m, rows_per_parameter)]
    few = few[: keep // 2] if len(few) < len(ranked) else []
    kept = [*few, *[c for c in ranked if c not in few][: keep - len(few)]]
    return [c for c in ranked if c in kept]
