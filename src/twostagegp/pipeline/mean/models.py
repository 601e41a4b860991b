r"""Part 1, the mean: models that predict, each with a held-out residual for every row.

A mean model has a label, ``predict(X)`` and ``heldout_residuals``, one a training row (repeats
included). There are three kinds: the constant, kernel ridge (this module), and any
scikit-learn regressor (``crossfit.py``). Kernel ridge with penalty :math:`\lambda` is the
posterior mean of a GP with noise variance :math:`\lambda`,

.. math::

    \hat m(x) = k_x^\top (K + \lambda I)^{-1} y ,

so its leave-one-out residuals are in closed form. They are honest about the row, not about
hyperparameters that were chosen with the row in sight; where that matters (a few hundred
rows) and a refit is cheap, :func:`refit_residuals` chooses them again without each fold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.appending import AppendedRows
from twostagegp.data.rows import Merged, Rows
from twostagegp.engines.protocol import Engine, Posterior
from twostagegp.errors import InputError, NotFittableError, TwoStageGPError
from twostagegp.kernels import Kernel, NamedKernel, Vector, is_flexible
from twostagegp.pipeline.mean.stack import simplex_weights
from twostagegp.training.ladder import Candidate
from twostagegp.training.optimise import descend, minimise

__all__ = [
    "PENALTY_SHIFTS",
    "ConstantMean",
    "MeanModel",
    "NeighborMean",
    "RidgeMean",
    "best_shift",
    "choose_penalty",
    "rank_by_loo_error",
    "rank_by_unseen_error",
    "rank_errors",
    "refit_residuals",
    "tune_penalty",
]

Array = NDArray[np.float64]

#: Rows a parameter below which a kernel is trained afresh without a fold; folds and steps of that.
AFRESH_ROWS, AFRESH_FOLDS, AFRESH_STEPS = 25, 5, 60
#: Shifts of the log penalty, equally spaced, that are tried after training by a density.
PENALTY_SHIFTS = (-2.0, -1.0, 0.0, 1.0)


class MeanModel(Protocol):
    """What the stack and the front doors need of a mean model."""

    label: str
    heldout_residuals: Array

    def predict(self, X: Tensor) -> Tensor:
        """Prediction at standardised inputs, shape (n,)."""

    def extended(self, appended: AppendedRows, keep_factors: bool) -> Self:
        """The same model with more rows; held-out residuals stay those of the fit."""


class ConstantMean:
    r"""The weighted mean of the target.

    Held out, the mean of the other rows: with total weight N and :math:`\bar y = 0` after
    standardisation, :math:`e_i = y_i\, N / (N - 1)`; for a group of weight :math:`N_G`,
    :math:`e_i = y_i + \sum_{j \in G} c_j y_j / (N - N_G)`.

    Examples
    --------
    >>> import numpy as np
    >>> from twostagegp.data.rows import merge_rows
    >>> X, y = np.arange(4.0)[:, None], np.array([-3.0, -1.0, 1.0, 3.0])
    >>> ConstantMean(merge_rows(X, y)).heldout_residuals
    array([-4.        , -1.33333333,  1.33333333,  4.        ])
    """

    label = "constant"

    def __init__(self, merged: Merged) -> None:
        y, weight = merged.y, merged.weight
        total = weight.sum()
        self.value = float(weight @ y / total)
        if merged.groups is None:
            part_weight = np.minimum(merged.c, 1.0)[merged.inverse]  # one copy
            part = part_weight * y
        else:
            _, members = np.unique(merged.groups[merged.inverse], return_inverse=True)
            members = members.reshape(-1)
            part = np.asarray(np.bincount(members, weights=weight * y)[members])
            part_weight = np.asarray(np.bincount(members, weights=weight)[members])
        rest = np.maximum(total - part_weight, np.finfo(float).tiny)
        others = np.where(total > part_weight, (weight @ y - part) / rest, 0.0)
        self.heldout_residuals = y - others

    def predict(self, X: Tensor) -> Tensor:
        """The same number for every row."""
        return torch.full((X.shape[0],), self.value, dtype=X.dtype, device=X.device)

    def extended(self, appended: AppendedRows, keep_factors: bool) -> ConstantMean:
        """The mean of all rows."""
        merged, model = appended.data.merged, copy(self)
        model.value = float(merged.c @ merged.t / merged.c.sum())
        return model


class RidgeMean:
    """Kernel ridge at fixed hyperparameters.

    Parameters
    ----------
    candidate : Candidate
        The kernel, and where the parameters come from.
    parameters : array
        (theta, log penalty).
    engine : Engine
        Holds the rows.
    merged : Merged
        The way from merged rows back to the table.
    heldout_residuals : array of shape (n,), optional
        Residuals from elsewhere (refits); by default closed-form leave-one-out.
    """

    #: The posterior with its factor, once there was an update: the next one is cheap then.
    _whole: Posterior | None = None

    def __init__(
        self,
        candidate: Candidate,
        parameters: Vector,
        engine: Engine,
        merged: Merged,
        heldout_residuals: Array | None = None,
    ) -> None:
        self.label = candidate.label
        self.candidate = candidate
        kernel = self.kernel = candidate.kernel
        self.parameters = parameters
        posterior = engine.condition(kernel, parameters)
        if heldout_residuals is None:
            held = posterior.heldout()
            residual, slope = held.residual.cpu().numpy(), held.slope.cpu().numpy()
            heldout_residuals = merged.unmerge(residual, slope)
        self.heldout_residuals = heldout_residuals
        # Only the mean is ever asked of this posterior.
        posterior.drop_factor()
        self.posterior = posterior

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_whole"}

    def predict(self, X: Tensor) -> Tensor:
        """Posterior mean."""
        return self.posterior.mean(X)

    def extended(self, appended: AppendedRows, keep_factors: bool) -> RidgeMean:
        """The same hyperparameters conditioned on more rows.

        The first update factorises all rows, as the fit has not kept the factor; with
        ``keep_factors`` those after it do not. Pickles and files go without.
        """
        known = self.posterior if self._whole is None else self._whole
        whole = known.extended(appended.data.rows, appended.changed_rows)
        model = copy(self)
        model._whole = whole if keep_factors else None
        model.posterior = copy(whole)
        model.posterior.drop_factor()
        return model


class NeighborMean:
    """Ridge from the nearest rows only; its held-out residuals are of a sample of rows.

    Parameters
    ----------
    candidate : Candidate
    posterior : Posterior
    heldout_residuals : array of shape (m,)
    """

    def __init__(
        self, candidate: Candidate, posterior: Posterior, heldout_residuals: Array
    ) -> None:
        self.label = candidate.label
        self.candidate = candidate
        self.kernel = candidate.kernel
        self.posterior = posterior
        self.heldout_residuals = heldout_residuals

    @property
    def parameters(self) -> Vector:
        """(theta, log penalty)."""
        return self.posterior.parameters

    def predict(self, X: Tensor) -> Tensor:
        """Posterior mean."""
        return self.posterior.mean(X)

    def extended(self, appended: AppendedRows, keep_factors: bool) -> NeighborMean:
        """The same hyperparameters, with more rows to be near."""
        model = copy(self)
        model.posterior = self.posterior.extended(appended.data.rows, appended.changed_rows)
        return model


def _predict_unseen(engine: Engine, unseen: Rows, candidate: Candidate) -> Array:
    assert candidate.parameters is not None
    mean = engine.condition(candidate.kernel, candidate.parameters).mean(unseen.X)
    return (unseen.t - mean).cpu().numpy()


def rank_by_unseen_error(engine: Engine, unseen: Engine, candidates: Sequence[Candidate]) -> Array:
    """Rank candidates by their errors on rows that they were not trained on.

    First those to which a stack over these errors gives weight, then those that err least. With
    groups the unseen rows may share a group with the others, so that the closed form for whole
    groups takes their place.
    """
    if engine.rows.groups is not None:
        return rank_by_loo_error(engine, candidates)
    E = np.column_stack([_predict_unseen(engine, unseen.rows, c) for c in candidates])
    return rank_errors(E, unseen.rows)


def rank_by_loo_error(engine: Engine, candidates: Sequence[Candidate]) -> Array:
    """The same ranking from closed-form leave-one-out errors."""
    columns = []
    for c in candidates:
        assert c.parameters is not None
        columns.append(engine.condition(c.kernel, c.parameters).heldout().residual.cpu().numpy())
    return rank_errors(np.column_stack(columns), engine.rows)


def rank_errors(E: Array, rows: Rows) -> Array:
    """Rank candidates (smaller is better) by their errors E, one column a candidate.

    First those to which a stack gives weight, then those that err least.
    """
    weight = rows.c.cpu().numpy()
    error = weight @ E**2 / weight.sum()
    wanted = simplex_weights(E, weight)
    return np.where(wanted > 0.01, -wanted, error)


def refit_residuals(
    engine: Engine, merged: Merged, candidate: Candidate, folds: NDArray[np.int64], steps: int
) -> Array:
    """Leave-one-out residual of every row, at hyperparameters chosen without the row's fold.

    Where rows are few for the parameters of a kernel (:func:`trains_afresh`), it is trained again
    from its start, as the fit was; otherwise from the parameters of the whole. The residual itself
    is the closed form on all rows: one copy is left out and its twins stay, or the whole group is.

    Returns
    -------
    residuals : array of shape (n,)
        One a row of the table, repeats included.
    """
    assert candidate.parameters is not None
    residual, slope = np.empty(len(folds)), np.empty(len(folds))
    start, H = candidate.parameters, candidate.inverse_hessian
    afresh = trains_afresh(candidate.kernel, len(folds))
    if afresh:
        folds = folds % AFRESH_FOLDS
    for fold in np.unique(folds):
        out = folds == fold
        problem = engine.subset(np.flatnonzero(~out)).problem(candidate.kernel, candidate.objective)
        try:
            if afresh:
                parameters = minimise(problem, None, steps=AFRESH_STEPS, tolerance=1e-3).parameters
            else:
                parameters = descend(problem, start, H, steps, tolerance=1e-3).parameters
        except TwoStageGPError:
            parameters = start
        candidate.refit_evaluations += problem.evaluations
        held = engine.condition(candidate.kernel, candidate.with_penalty(parameters)).heldout()
        residual[out], slope[out] = (v.cpu().numpy()[out] for v in (held.residual, held.slope))
    return merged.unmerge(residual, slope)


def trains_afresh(kernel: Kernel, m: int) -> bool:
    """Whether m distinct rows are few for a kernel's parameters.

    Thirty lengthscales chosen with a row in sight know it, and a few steps from there do not
    forget it: held-out residuals would be far too small.

    Examples
    --------
    >>> from twostagegp.kernels import make_kernel
    >>> [trains_afresh(make_kernel("rbf", 10, ard), 100) for ard in (True, False)]
    [True, False]
    """
    return is_flexible(kernel) and m < AFRESH_ROWS * len(kernel.start())


def tune_penalty(engine: Engine, candidate: Candidate) -> None:
    """Move a candidate's penalty to the smallest leave-one-out squared error.

    A density chooses the noise for the whole distribution, and one large residual can raise it;
    the mean is judged by squared error. Four shifts of the log penalty are tried, and a parabola
    through the best and its neighbours gives the answer.
    """
    assert candidate.parameters is not None
    errors = []
    for shift in PENALTY_SHIFTS:
        parameters = np.append(candidate.parameters[:-1], candidate.parameters[-1] + shift)
        try:
            held = engine.condition(candidate.kernel, parameters).heldout()
            errors.append(float(held.sum_of_squares(engine.rows).sum()))
        except TwoStageGPError:
            errors.append(math.inf)
    candidate.penalty_shift = best_shift(errors)


def best_shift(errors: Sequence[float]) -> float:
    """Where the error is smallest, from its values at ``PENALTY_SHIFTS``."""
    best = int(np.argmin(errors))
    shift = PENALTY_SHIFTS[best]
    if 0 < best < len(errors) - 1 and math.isfinite(errors[best - 1] + errors[best + 1]):
        left, middle, right = errors[best - 1 : best + 2]
        curvature = left - 2.0 * middle + right
        if curvature > 0.0:
            shift += 0.5 * (left - right) / curvature
    return shift


def choose_penalty(
    kernel: Kernel, engine: Engine, penalties: Sequence[float]
) -> tuple[Vector, float]:
    """Classical kernel ridge: fixed lengthscale, penalty by leave-one-out squared error.

    Returns
    -------
    parameters : array
        (theta, log penalty).
    error : float
        The mean squared held-out error of the best penalty.
    """
    theta = kernel.classical() if isinstance(kernel, NamedKernel) else kernel.start()
    best: tuple[Vector, float] | None = None
    failures: list[str] = []
    for penalty in penalties:
        if not penalty > 0.0:
            raise InputError(f"penalty={penalty!r} must be positive.")
        parameters = np.append(theta, math.log(penalty))
        try:
            held = engine.condition(kernel, parameters).heldout()
        except TwoStageGPError as failure:
            failures.append(f"penalty {penalty:g}: {failure}")
            continue
        error = float(held.sum_of_squares(engine.rows).sum()) / engine.rows.total
        if best is None or error < best[1]:
            best = (parameters, error)
    if best is None and failures:
        raise NotFittableError(f"kernel ridge with {kernel.label} failed: {'; '.join(failures)}")
    if best is None:
        raise InputError("penalty is an empty grid; give at least one positive number.")
    return best
