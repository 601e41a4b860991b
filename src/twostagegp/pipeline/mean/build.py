"""Part 1, the mean: from the ``mean`` option to models, held-out residuals and stack weights."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor

from twostagegp.data.scaling import Prepared
from twostagegp.engines.protocol import Engine
from twostagegp.errors import InputError, TwoStageGPError
from twostagegp.kernels import KERNELS, Kernel, NamedKernel, kernel_list
from twostagegp.numerics.stacking import crossfitted_residuals, simplex_weights
from twostagegp.pipeline.mean.crossfit import RegressorMean
from twostagegp.pipeline.mean.models import ConstantMean, MeanModel, RidgeMean
from twostagegp.pipeline.mean.penalty import tune_penalty
from twostagegp.pipeline.mean.stacked import StackedMean
from twostagegp.pipeline.mean.tabpfn import TabPFNMean
from twostagegp.pipeline.methods.protocol import Method
from twostagegp.pipeline.settings import Options
from twostagegp.runtime.progress import advance
from twostagegp.search.kernel_search import KernelSearch
from twostagegp.search.repetitions import PAPER_PENALTIES
from twostagegp.search.stages import search_stage
from twostagegp.training.candidates import Candidate, fitted_only
from twostagegp.training.side_by_side import for_each

__all__ = ["MEANS", "fit_mean", "is_regressor_like"]

Array = NDArray[np.float64]

_LOG = logging.getLogger("twostagegp")


def fit_mean(data: Prepared, method: Method, options: Options, seed: int) -> StackedMean:
    """Fit part 1: models, stack weights, and held-out residuals under weights of other folds."""
    builder = _MeanBuilder(data, method, options, seed)
    builder.prepare(options.mean)
    models = method.prune(builder.build(options.mean))
    mean = _stacked(models, method, options)
    kept = _worth_their_seconds(mean, options.settings.mean.least_pretrained_share)
    if len(kept) < len(models):
        mean = _stacked(kept, method, options)
        builder.notes.append("TabPFN was tried; its held-out residuals give it no share.")
    return replace(mean, searched=builder.searched, search=builder.search, notes=builder.notes)


def _stacked(models: list[MeanModel], method: Method, options: Options) -> StackedMean:
    """Return models with their weights, and held-out residuals under weights of other folds."""
    weight, ridge = method.held.merged.weight, options.settings.mean.stack_ridge
    E = np.column_stack([model.heldout_residuals for model in models])
    residuals = E[:, 0]
    if len(models) > 1:
        residuals = crossfitted_residuals(E, method.stack_folds(), weight, ridge)
    return StackedMean(models, simplex_weights(E, weight, ridge), residuals)


def _worth_their_seconds(mean: StackedMean, least: float) -> list[MeanModel]:
    """Return the models without a TabPFN of a smaller share, whose predictions take seconds."""
    return [
        model
        for model, share in zip(mean.models, mean.weights, strict=True)
        if share >= least
        or not (isinstance(model, RegressorMean) and isinstance(model.regressor, TabPFNMean))
    ]


def is_regressor_like(value: Any) -> bool:
    """Whether a value has fit and predict and is not a class."""
    return hasattr(value, "fit") and hasattr(value, "predict") and not isinstance(value, type)


def _tabpfn(mean: Any) -> TabPFNMean | None:
    """Return the TabPFN that a ``mean`` option stands for, if it does."""
    if isinstance(mean, str) and mean == "tabpfn":
        return TabPFNMean()
    return mean if isinstance(mean, TabPFNMean) else None


class _MeanBuilder:
    """Turns a ``mean`` option into models."""

    def __init__(self, data: Prepared, method: Method, options: Options, seed: int) -> None:
        self.data, self.method, self.options, self.seed = data, method, options, seed
        self.searched: list[Candidate] = []
        self.search: KernelSearch | None = None
        self.notes: list[str] = []

    def prepare(self, mean: Any) -> None:
        """Check whether TabPFN can run if it is asked for, before anything is trained."""
        if isinstance(mean, list | tuple):
            for part in mean:
                self.prepare(part)
        elif (tabpfn := _tabpfn(mean)) is not None:
            self.notes.append(f"TabPFN v2: {tabpfn.ready().description}")

    def build(self, mean: Any) -> list[MeanModel]:
        """Return the models that a ``mean`` option stands for."""
        if isinstance(mean, list | tuple):
            models = [model for part in self.possible(mean) for model in self.build(part)]
            constant = [m for m in models if isinstance(m, ConstantMean)]
            return models if constant else [*models, self.constant()]
        if is_regressor_like(mean):
            return [self.regressor(mean)]
        if not isinstance(mean, str):
            return [self.best_ridge([mean])]
        if mean in _BY_NAME:
            return _BY_NAME[mean](self)
        if mean in KERNELS:
            return [self.best_ridge([mean])]
        raise InputError(
            f"mean={mean!r}: use {', '.join(map(repr, MEANS))}, a kernel name "
            f"({', '.join(KERNELS)}), a GPyTorch kernel, a regressor, or a list of these."
        )

    def possible(self, members: Sequence[Any]) -> list[Any]:
        """Return the members of a list without TabPFN if the table is too large for it."""
        n, d = self.data.n_rows, self.data.rows.X.shape[1]
        tried = ((member, _tabpfn(member)) for member in members)
        problems = [None if t is None else (t.beyond_limits(n, d) or None) for _, t in tried]
        kept = [member for member, problem in zip(members, problems, strict=True) if not problem]
        if kept:
            self.notes += [f"{problem}: it is left out." for problem in problems if problem]
        return kept or list(members)  # then regressor says what is wrong

    def stack(self) -> list[MeanModel]:
        ridges = self.ridges(self.kernels(self.options.kernels), single=False)
        further = [self.regressor(regressor) for regressor in self.method.further_members()]
        return [*ridges, *further, self.constant()]

    def constant(self) -> MeanModel:
        model = ConstantMean(self.data.merged)
        model.heldout_residuals = model.heldout_residuals[self.method.held.table_rows]
        return model

    def kernels(self, kernels: Sequence[Any]) -> list[Kernel]:
        """Return the kernels in the forms asked for."""
        # With a given penalty lengthscales are fixed and equal, so that ARD forms are duplicates.
        ard = self.options.ard if self.options.penalty == "auto" else False
        return kernel_list(kernels, ard, self.data.rows.X.shape[1], self.data.columns)

    def best_ridge(self, kernels: Sequence[Any]) -> MeanModel:
        """Return the ridge that the ratio test chooses, or that has the smallest held-out error."""
        made = self.kernels(kernels)
        if self.options.mean_selection == "misspecification":
            made = self.tested(made)
        models = self.ridges(made, single=True)
        weight = self.method.held.merged.weight
        errors = [weight @ model.heldout_residuals**2 for model in models]
        return models[int(np.argmin(errors))]

    def tested(self, kernels: list[Kernel]) -> list[Kernel]:
        """Return the kernel that the ratio test chooses, or all kernels if it is not applicable."""
        self.search = search_stage(
            self.method.search_rows(),
            kernels,
            "gp" if self.options.penalty == "auto" else "krr",
            self.method.mean_rng,
            penalties=self.penalties() or PAPER_PENALTIES,
            noise_floor=self.method.engine.noise_floor,
            settings=self.options.settings.search,
        )
        return kernels if self.search is None else [self.search.best]

    def ridges(self, kernels: list[Kernel], single: bool) -> list[MeanModel]:
        """Train kernels and return ridges of the best."""
        if self.options.penalty != "auto":
            return self.classical_ridges(kernels)
        candidates = self.method.candidates(kernels, single)
        self.searched += candidates
        survivors = self.method.train(candidates)
        tuning = self.method.tuning() if self.options.training is None else None

        def ridge(candidate: Candidate) -> RidgeMean | None:
            return self._ridge_or_none(candidate, tuning)

        kernels = [candidate.kernel for candidate in survivors]
        found = for_each(ridge, survivors, self.method.engine.rows, kernels)
        fitted_only(survivors)  # raises an error with all reasons if every candidate failed
        return [model for model in found if model is not None]

    def _ridge_or_none(
        self, candidate: Candidate, tuning: tuple[Engine, Tensor | None] | None
    ) -> RidgeMean | None:
        """Return the mean model of a trained candidate, or None after recording its failure.

        Its penalty is tuned on the engine and rows of ``tuning``, if given.
        """
        _LOG.info("held-out residuals of %s", candidate.label)
        try:
            if tuning is not None:
                shifts = self.options.settings.mean.penalty_shifts
                tune_penalty(tuning[0], candidate, shifts, tuning[1])
            return self.ridge(candidate)
        except TwoStageGPError as error:
            candidate.failure = str(error)
            return None
        finally:
            advance("ridge", 1, len(self.method.engine.rows))

    def ridge(self, candidate: Candidate) -> RidgeMean:
        """Return the mean model of a trained candidate."""
        assert candidate.parameters is not None
        engine = self.method.engine
        lowest = math.log(engine.noise_floor)
        if self.options.training is None:
            least_shift = lowest - float(candidate.parameters[-1])
            candidate.penalty_shift = max(candidate.penalty_shift, least_shift)
        parameters = candidate.with_penalty(candidate.parameters)
        parameters[-1] = max(parameters[-1], lowest)
        posterior = engine.condition(candidate.kernel, parameters)
        residuals = self.method.heldout_residuals(candidate, posterior)
        return RidgeMean(candidate, posterior, residuals)

    def penalties(self) -> list[float]:
        """Return the grid of given penalties; empty for ``"auto"``."""
        penalty = self.options.penalty
        if penalty == "auto":
            return []
        if isinstance(penalty, str):  # the paper's 0.01 n
            return [0.01 * self.method.rows_per_prediction()]
        return np.atleast_1d(penalty).tolist()

    def classical_ridges(self, kernels: list[Kernel]) -> list[MeanModel]:
        """Return kernel ridges with given penalties, without kernels for which every one fails."""
        candidates = [Candidate(kernel, "ridge") for kernel in kernels]
        self.searched += candidates
        tried = [self.classical(candidate) for candidate in candidates]
        models: list[MeanModel] = [model for model in tried if model is not None]
        if not models:
            fitted_only(candidates)  # raises an error with all reasons
        return models

    def classical(self, candidate: Candidate) -> RidgeMean | None:
        """Return kernel ridge with a fixed lengthscale and the penalty of least held-out error.

        Penalties that fail are recorded in the candidate. The result is None if all fail.
        """
        kernel, held_rows, engine = candidate.kernel, self.method.held, self.method.engine
        theta = kernel.classical() if isinstance(kernel, NamedKernel) else kernel.start()
        best: RidgeMean | None = None
        least = math.inf
        failures: list[str] = []
        rows = held_rows.rows(engine.rows)
        for penalty in self.penalties():
            parameters = np.append(theta, math.log(penalty))
            try:
                posterior = engine.condition(kernel, parameters)
                held = held_rows.heldout(posterior)
            except TwoStageGPError as failure:
                failures.append(f"{kernel.label} with penalty {penalty:g}: {failure}")
                continue
            squares = float(held.sum_of_squares(rows).sum())
            if squares < least:
                least = squares
                best = RidgeMean(candidate, posterior, held_rows.unmerged(held))
                candidate.parameters = parameters
        candidate.failure = "; ".join(failures)
        candidate.value = least / float(rows.total)
        return best

    def regressor(self, regressor: Any) -> MeanModel:
        """Return a scikit-learn regressor with cross-fitted residuals."""
        if isinstance(regressor, TabPFNMean):
            regressor.require_limits(self.data.n_rows, self.data.rows.X.shape[1])
        merged, plan = self.data.merged, self.method.crossfit_plan()
        if (most := getattr(regressor, "crossfit_folds", None)) is not None:
            plan = plan.with_folds(int(most))
        position = np.empty(self.data.n_rows, dtype=np.int64)
        position[plan.order] = np.arange(self.data.n_rows)
        wanted = position[self.method.held.table_rows]
        _LOG.info("held-out predictions of %s", type(regressor).__name__)
        limits = nullcontext()
        if plan.threads is not None:
            limits = threadpool_limits(plan.threads, user_api="openmp")
        with limits:
            model = RegressorMean(
                regressor,
                merged.X[merged.inverse[plan.order]],
                merged.y[plan.order],
                merged.weight[plan.order],
                plan.folds[plan.order],
                self.seed,
                wanted=wanted,
                refit=plan.refit,
            )
        model.heldout_residuals = model.heldout_residuals[wanted]
        advance("regressor", 1, self.data.n_rows)
        return model


#: How the named means, other than kernels, are built.
_BY_NAME: dict[str, Callable[[_MeanBuilder], list[MeanModel]]] = {
    "stack": _MeanBuilder.stack,
    "search": lambda builder: [builder.best_ridge(builder.options.kernels)],
    "constant": lambda builder: [builder.constant()],
    "tabpfn": lambda builder: [builder.regressor(TabPFNMean())],
}
#: Names that ``mean`` may have besides those of kernels.
MEANS = tuple(_BY_NAME)
