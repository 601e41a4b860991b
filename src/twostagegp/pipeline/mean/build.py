"""Part 1 put together: from the ``mean`` option to a stack with held-out residuals.

Candidates climb the ladder of ``candidates.py``, survivors become kernel ridge models with tuned
penalties and held-out residuals (``mean.py``), regressors are cross-fitted (``crossfit.py``), and
``stack.py`` weights them all.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.appending import AppendedRows
from twostagegp.data.scaling import Prepared
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.problem import ObjectiveName
from twostagegp.engines.protocol import Engine
from twostagegp.errors import InputError, TwoStageGPError
from twostagegp.kernels import KERNELS, Kernel, NamedKernel
from twostagegp.pipeline.mean.crossfit import RegressorMean, assign_folds
from twostagegp.pipeline.mean.models import (
    ConstantMean,
    MeanModel,
    NeighborMean,
    RidgeMean,
    choose_penalty,
    rank_by_loo_error,
    rank_by_unseen_error,
    refit_residuals,
    trains_afresh,
    tune_penalty,
)
from twostagegp.pipeline.mean.stack import crossfitted_residuals, simplex_weights
from twostagegp.pipeline.options import (
    FULL_TRAINING_ROWS,
    LARGEST_TRAINING_ROWS,
    MEDIUM_ROWS,
    SMALL_ROWS,
    Options,
    kernel_list,
)
from twostagegp.search.kernel_search import KernelSearch
from twostagegp.search.repetitions import PAPER_PENALTIES
from twostagegp.search.stages import search_stage
from twostagegp.training.ladder import Candidate, Ladder, climb, fitted_only, train_with

__all__ = ["MeanReader", "StackedMean", "fit_mean", "is_regressor_like"]

Array = NDArray[np.float64]

_LOG = logging.getLogger("twostagegp")

#: Up to this many distinct rows hyperparameters are chosen again without each fold, so that
#: held-out residuals do not come from hyperparameters that saw the row.
REFIT_ROWS = 600
REFIT_FOLDS = 10
REFIT_STEPS = 3
REFIT_KEEP = 8
#: Rows on which the penalty of a trained candidate is tuned.
TUNING_ROWS = 1000


@dataclass
class StackedMean:
    """The fitted mean: models and their weights (a single model has weight one).

    Attributes
    ----------
    models : list of mean models
    weights : array of shape (len(models),)
    heldout_residuals : array of shape (n,)
        Residual of every training row under weights fitted on other folds.
    searched : list of Candidate
        Every kernel that took part, also those that were pruned.
    search : KernelSearch or None
        The search that chose the kernel, where the ratio test did.
    """

    models: list[MeanModel]
    weights: Array
    heldout_residuals: Array
    searched: list[Candidate] = field(default_factory=list)
    search: KernelSearch | None = None

    @property
    def label(self) -> str:
        """Readable composition, heaviest first."""
        order = np.argsort(-self.weights)
        parts = [(self.weights[i], self.models[i].label) for i in order if self.weights[i] > 0.005]
        if len(parts) == 1:
            return parts[0][1]
        return " + ".join(f"{weight:.2f} {label}" for weight, label in parts)

    def lengthscale_shape(self) -> Array | None:
        """Ratios of the lengthscales of the heaviest ARD kernel, or None where there is none."""
        for i in np.argsort(-self.weights):
            model = self.models[i]
            if not isinstance(model, RidgeMean | NeighborMean) or self.weights[i] <= 0.0:
                continue
            kernel = model.kernel
            if isinstance(kernel, NamedKernel) and kernel.ard:
                return kernel.lengthscales(model.parameters[:-1]) / kernel.typical_lengthscale()
        return None

    def predict(self, X: Tensor) -> Tensor:
        """Weighted prediction at standardised inputs; models without weight are not asked."""
        total = X.new_zeros(X.shape[0])
        for weight, model in zip(self.weights, self.models, strict=True):
            if weight > 0.0:
                total += float(weight) * model.predict(X)
        return total

    def predict_with_disagreement(self, X: Tensor) -> tuple[Tensor, Tensor]:
        r"""Weighted prediction, and the weighted standard deviation of the models around it.

        .. math::

            \hat m = \sum_k w_k \hat m_k, \qquad d = \Big( \sum_k w_k (\hat m_k - \hat m)^2
            \Big)^{1/2}
        """
        kept = [k for k, weight in enumerate(self.weights) if weight > 0.0]
        each = torch.stack([self.models[k].predict(X) for k in kept])
        w = torch.as_tensor(self.weights[kept]).to(each)[:, None]
        mean = (w * each).sum(0)
        return mean, (w * (each - mean).square()).sum(0).sqrt()

    def extended(self, appended: AppendedRows, keep_factors: bool) -> StackedMean:
        """The same weights over models with more rows; models without weight are left out."""
        kept = [k for k, weight in enumerate(self.weights) if weight > 0.0]
        models = [self.models[k].extended(appended, keep_factors) for k in kept]
        return replace(self, models=models, weights=self.weights[kept])

    @property
    def heldout_disagreement(self) -> Array:
        """The same standard deviation over held-out predictions, one a row that was held out."""
        E = np.column_stack([model.heldout_residuals for model in self.models])
        return np.sqrt((E - (E @ self.weights)[:, None]) ** 2 @ self.weights)


def is_regressor_like(value: Any) -> bool:
    """Anything with fit and predict that is not a class."""
    return hasattr(value, "fit") and hasattr(value, "predict") and not isinstance(value, type)


class MeanReader(ABC):
    """Reads the ``mean`` option; engines say what a ridge, a regressor and a stack are."""

    data: Prepared
    options: Options

    @abstractmethod
    def stack(self) -> list[MeanModel]:
        """The models of ``mean="stack"``."""

    @abstractmethod
    def best_ridge(self, kernels: Sequence[Any]) -> list[MeanModel]:
        """The single best ridge of some kernels."""

    @abstractmethod
    def regressor(self, regressor: Any) -> MeanModel:
        """A scikit-learn regressor with held-out residuals."""

    @abstractmethod
    def constant(self) -> MeanModel:
        """The constant with held-out residuals."""

    def build(self, mean: Any) -> list[MeanModel]:
        """The models that a ``mean`` option stands for."""
        if isinstance(mean, list | tuple):
            models = [model for part in mean for model in self.build(part)]
            constant = [m for m in models if isinstance(m, ConstantMean)]
            return models if constant else [*models, self.constant()]
        if isinstance(mean, str) and mean == "stack":
            return self.stack()
        if isinstance(mean, str) and mean == "search":
            return self.best_ridge(self.options.kernels)
        if isinstance(mean, str) and mean == "constant":
            return [self.constant()]
        if is_regressor_like(mean):
            return [self.regressor(mean)]
        if isinstance(mean, str) and mean not in KERNELS:
            raise InputError(
                f"mean={mean!r}: use 'stack', 'search', 'constant', a kernel name "
                f"({', '.join(KERNELS)}), a GPyTorch kernel, a regressor, or a list of these."
            )
        return self.best_ridge([mean])

    def kernels(self, kernels: Sequence[Any]) -> list[Kernel]:
        """The kernels in the forms asked for."""
        # With a given penalty lengthscales are fixed and equal: ARD forms would be the same again.
        ard = self.options.ard if self.options.penalty == "auto" else False
        return kernel_list(kernels, ard, self.data.rows.X.shape[1], self.data.columns)


class _MeanBuilder(MeanReader):
    """Mean models of the exact engine."""

    def __init__(self, data: Prepared, engine: ExactEngine, options: Options, seed: int) -> None:
        self.data, self.engine, self.options = data, engine, options
        self.rng = np.random.default_rng(seed)
        self.seed = seed
        self.m = len(data.rows)
        self.searched: list[Candidate] = []
        groups = data.merged.groups
        n_folds = REFIT_FOLDS if self.m >= SMALL_ROWS else REFIT_FOLDS // 2
        self.folds = assign_folds(self.m, n_folds, self.rng, groups)
        self.n_refits = 0
        self.search: KernelSearch | None = None

    @property
    def row_folds(self) -> NDArray[np.int64]:
        """Fold of every row of the table; repeats share one."""
        return self.folds[self.data.merged.inverse]

    def objectives(self, single: bool) -> tuple[ObjectiveName, ...]:
        if self.options.selection == "nll" or self.m < SMALL_ROWS:
            return ("nll",)
        return ("loo",) if single else ("loo", "nll")

    def stack(self) -> list[MeanModel]:
        return [*self.ridges(self.kernels(self.options.kernels), single=False), self.constant()]

    def constant(self) -> MeanModel:
        return ConstantMean(self.data.merged)

    def regressor(self, regressor: Any) -> MeanModel:
        merged = self.data.merged
        X, y = merged.X[merged.inverse], merged.y
        folds = self.row_folds
        if merged.groups is None:
            # One copy is held out and its twins stay, as for the kernels.
            folds = assign_folds(len(y), int(folds.max()) + 1, self.rng)
        return RegressorMean(regressor, X, y, merged.weight, folds, self.seed)

    def best_ridge(self, kernels: Sequence[Any]) -> list[MeanModel]:
        """The single ridge that passes the ratio test best, or has the smallest held-out error."""
        made = self.kernels(kernels)
        if self.options.selection == "misspecification":
            made = self.tested(made)
        models = self.ridges(made, single=True)
        errors = [self.data.merged.weight @ m.heldout_residuals**2 for m in models]
        return [models[int(np.argmin(errors))]]

    def tested(self, kernels: list[Kernel]) -> list[Kernel]:
        """The winner of the ratio test, or all where there is nothing to test."""
        fixed = self.options.penalty != "auto"
        self.search = search_stage(
            self.data.rows,
            kernels,
            "krr" if fixed else "gp",
            self.rng,
            penalties=self.penalties() if fixed else PAPER_PENALTIES,
            noise_floor=self.engine.noise_floor,
        )
        return kernels if self.search is None else [self.search.best]

    def ridges(self, made: list[Kernel], single: bool) -> list[MeanModel]:
        if self.options.penalty != "auto":
            return [self.classical(kernel) for kernel in made]
        candidates = [
            Candidate(kernel, objective)
            for objective in self.objectives(single)
            for kernel in made
            # The likelihood adds variety where there are many lengthscales to get wrong.
            if objective == "loo" or kernel.ard or len(self.objectives(single)) == 1
        ]
        self.searched += candidates
        if self.options.training is not None:
            for candidate in candidates:
                train_with(self.engine, candidate, self.options.training, self.rng)
            survivors = fitted_only(candidates)
        else:
            ladder = mean_ladder(self.m, len(candidates))
            survivors = climb(self.engine, candidates, ladder, rank_by_unseen_error, self.rng)
        return self.with_residuals(survivors)

    def with_residuals(self, survivors: list[Candidate]) -> list[MeanModel]:
        refit = self.m <= REFIT_ROWS and self.options.training is None
        keep = REFIT_KEEP if self.m >= SMALL_ROWS else REFIT_KEEP // 2
        if refit and len(survivors) > keep:
            ranking = np.argsort(rank_by_loo_error(self.engine, survivors), kind="stable")
            survivors = _of_both_forms([survivors[i] for i in ranking], keep, self.m)
        models: list[MeanModel] = []
        tuning = self.engine
        if self.m > TUNING_ROWS:
            tuning = tuning.subset(np.sort(self.rng.permutation(self.m)[:TUNING_ROWS]))
        for candidate in survivors:
            _LOG.info("held-out residuals of %s%s", candidate.label, " by refits" if refit else "")
            try:
                models.append(self.ridge(candidate, tuning, refit))
            except TwoStageGPError as error:
                candidate.failure = str(error)
        fitted_only(survivors)  # raises, with every reason, where none is left
        return models

    def ridge(self, candidate: Candidate, tuning: Engine, refit: bool) -> RidgeMean:
        """A trained candidate as a mean model: penalty tuned, residuals held out."""
        assert candidate.parameters is not None
        residuals = None
        if self.options.training is None:
            tune_penalty(tuning, candidate)
            floor = math.log(self.engine.noise_floor)
            candidate.penalty_shift = max(
                candidate.penalty_shift, floor - float(candidate.parameters[-1])
            )
        if refit:
            merged = self.data.merged
            residuals = refit_residuals(self.engine, merged, candidate, self.folds, REFIT_STEPS)
            self.n_refits += len(np.unique(self.folds))
        parameters = candidate.with_penalty(candidate.parameters)
        return RidgeMean(candidate, parameters, self.engine, self.data.merged, residuals)

    def penalties(self) -> list[float]:
        """The grid of given penalties."""
        penalty = self.options.penalty
        n = self.data.rows.total
        return [0.01 * n] if isinstance(penalty, str) else np.atleast_1d(penalty).tolist()

    def classical(self, kernel: Kernel) -> MeanModel:
        parameters, error = choose_penalty(kernel, self.engine, self.penalties())
        candidate = Candidate(kernel, "ridge", parameters, value=error)
        self.searched.append(candidate)
        return RidgeMean(candidate, parameters, self.engine, self.data.merged)


def _of_both_forms(ranked: list[Candidate], keep: int, m: int) -> list[Candidate]:
    """The best ``keep``; where m rows are few, half of them with few parameters if there are any.

    The leave-one-out error by which they are ranked is the more optimistic the more parameters
    there are.
    """
    few = [c for c in ranked if not trains_afresh(c.kernel, m)]
    few = few[: keep // 2] if len(few) < len(ranked) else []
    kept = [*few, *[c for c in ranked if c not in few][: keep - len(few)]]
    return [c for c in ranked if c in kept]


def mean_ladder(m: int, n_candidates: int) -> Ladder:
    """Warm start of the mean's candidates."""
    if m > FULL_TRAINING_ROWS:
        # The rung before has a third of the rows at least: one step is left to be made.
        first = 2 if m > LARGEST_TRAINING_ROWS else 3
        return Ladder.plan(m, n_candidates, full_keep=3, full_steps=(first, 2), patient=True)
    steps = (15, 10, 6, 6, 4, 4) if m <= MEDIUM_ROWS else (6, 4, 3, 3)
    return Ladder.plan(m, n_candidates, full_keep=len(steps), full_steps=steps)


def fit_mean(
    data: Prepared, engine: ExactEngine, options: Options, seed: int
) -> tuple[StackedMean, int]:
    """Part 1: models, weights and held-out residuals."""
    builder = _MeanBuilder(data, engine, options, seed)
    models = builder.build(options.mean)
    E = np.column_stack([model.heldout_residuals for model in models])
    weight = data.merged.weight
    weights = simplex_weights(E, weight)
    residuals = crossfitted_residuals(E, builder.row_folds, weight) if len(models) > 1 else E[:, 0]
    mean = StackedMean(models, weights, residuals, builder.searched, builder.search)
    return mean, builder.n_refits
