"""The exact method: one factorisation of all rows, every row held out in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.data.scaling import Prepared
from twostagegp.engines.exact.engine import ExactEngine, Work
from twostagegp.engines.problem import ObjectiveName
from twostagegp.engines.protocol import Engine, Posterior
from twostagegp.kernels import Kernel, NamedKernel, kernel_list
from twostagegp.pipeline.held_rows import HeldRows
from twostagegp.pipeline.mean.crossfit import assign_folds
from twostagegp.pipeline.mean.refits import (
    FoldFits,
    depends_on_rows,
    early_order,
    refit_residuals,
    shortlist,
    train_without_folds,
    trains_afresh,
)
from twostagegp.pipeline.methods.protocol import CrossfitPlan
from twostagegp.pipeline.settings import MeanSettings, Options
from twostagegp.pipeline.variance import rank_by_value
from twostagegp.training.candidates import (
    Candidate,
    fitted_only,
    rank_by_loo_error,
    rank_by_unseen_error,
    train_with,
)
from twostagegp.training.ladder import EARLY_STEPS, EARLY_TOLERANCE, Ladder, climb, rung_sizes

if TYPE_CHECKING:
    from twostagegp.pipeline.mean.stacked import StackedMean

__all__ = ["ExactMethod"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


class ExactMethod:
    """All rows are held out; candidates climb a ladder of subsamples."""

    def __init__(self, data: Prepared, options: Options, seed: int) -> None:
        self.data, self.options = data, options
        self.m = len(data.rows)
        self.work = Work(full_rows=self.m)
        self.engine = ExactEngine(
            data.rows,
            options.noise_floor,
            use_prior=options.training is None,  # the paper's schedules have no prior
            work=self.work,
            factor_dtype=options.factor_dtype,
            settings=options.settings.exact,
        )
        self.held = HeldRows.every(data)
        self.mean_rng = np.random.default_rng(seed)
        self.variance_rng = np.random.default_rng(seed + 1)
        few = self.m < self._settings.small_rows
        n_folds = self._settings.refit_folds // (2 if few else 1)
        self.folds = assign_folds(self.m, n_folds, self.mean_rng, data.merged.groups)
        self.n_refits = 0
        self._fold_fits: dict[int, FoldFits] = {}  # by the id of the candidate

    @property
    def _settings(self) -> MeanSettings:
        return self.options.settings.mean

    @property
    def conditionings(self) -> int:
        return self.work.full_conditionings

    def candidates(self, kernels: Sequence[Kernel], single: bool) -> list[Candidate]:
        objectives = self._objectives(single)
        return [
            Candidate(kernel, objective)
            for objective in objectives
            for kernel in kernels
            # The likelihood adds variety among kernels with many lengthscales.
            if objective == "loo" or kernel.ard or len(objectives) == 1
        ]

    def _objectives(self, single: bool) -> tuple[ObjectiveName, ...]:
        if self.options.objective == "nll" or self.m < self._settings.small_rows:
            return ("nll",)
        return ("loo",) if single else ("loo", "nll")

    def train(self, candidates: list[Candidate]) -> list[Candidate]:
        rng = self.mean_rng
        if self.options.training is not None:
            for candidate in candidates:
                train_with(self.engine, candidate, self.options.training, rng)
            return fitted_only(candidates)
        order = rng.permutation(self.m)
        if self._refits:
            order = early_order(self.folds, rng, self._settings)
        little_noise = self._has_little_noise(candidates, order)
        ladder = self._mean_ladder(candidates, little_noise)
        survivors, early = climb(self.engine, candidates, ladder, rank_by_unseen_error, order)
        keep = self._settings.refit_keep // (1 if self.m >= self._settings.small_rows else 2)
        if self._refits and len(survivors) > keep:
            ranking = np.argsort(rank_by_loo_error(self.engine, survivors), kind="stable")
            ranked = [survivors[i] for i in ranking]
            survivors = shortlist(ranked, keep, self.m, self._settings.afresh_rows)
        if self._refits:
            most = self._settings.closed_rows
            adapted = [c for c in survivors if depends_on_rows(c.kernel, self.m, most)]
            steps = self._settings.evaluations_after_the_first(little_noise)
            fits = train_without_folds(
                self.engine, adapted, self.folds, self._settings, early, steps
            )
            self._fold_fits |= {id(c): fit for c, fit in zip(adapted, fits, strict=True)}
            self.n_refits += sum(len(fit.parameters) for fit in fits)
        return survivors

    def _has_little_noise(self, candidates: list[Candidate], order: Index) -> bool:
        """Return whether one kernel, trained on the first rows, predicts each from the others well.

        On such a table every row makes the lengthscales more precise, so that a short training
        after the one on the first rows would end before the optimum.
        """
        first = self._first_training
        if not rung_sizes(self.m, first):
            return False
        flexible = [c for c in candidates if c.kernel.ard] or candidates
        probe = Candidate(flexible[len(flexible) // 2].kernel, flexible[0].objective)
        part = self.engine.subset(np.sort(order[:first]))
        probe.train(part, None, False, EARLY_STEPS, EARLY_TOLERANCE)
        if probe.parameters is None or probe.failure:
            return False
        residual = part.condition(probe.kernel, probe.parameters).heldout().residual
        share = float(residual.square().mean() / part.rows.t.var())
        return share < self._settings.little_noise

    @cached_property
    def _first_training(self) -> int:
        """Rows of the first training of a table with noise; 0 if it is on all rows."""
        sizes = self._settings
        if self.m > sizes.refit_rows:
            return sizes.first_training(self.m, self.data.rows.X.shape[1])
        share = np.isin(self.folds % sizes.afresh_folds, np.arange(sizes.early_folds))
        return int(share.sum()) if self.m >= sizes.early_rows else 0

    def _ladder(
        self,
        n_candidates: int,
        keep: int,
        steps: int | tuple[int, ...],
        first: int | None = None,
        **plan: Any,
    ) -> Ladder:
        return Ladder.plan(
            self.m,
            n_candidates,
            keep,
            steps,
            first=self._first_training if first is None else first,
            least_gain=self._settings.least_gain,
            blocked_rows=self.engine.settings.blocked_rows,
            growth=self._settings.growth_to(self.m),
            **plan,
        )

    def _mean_ladder(self, candidates: Sequence[Candidate], little_noise: bool) -> Ladder:
        m, sizes, d = self.m, self._settings, self.data.rows.X.shape[1]
        n_candidates = len(candidates)
        if m <= sizes.refit_rows:
            keep = n_candidates if little_noise else sizes.early_keep
            steps_after = sizes.evaluations_after_the_first(little_noise)
            first = 0 if little_noise and self._few_are_too_few(candidates) else None
            return self._ladder(n_candidates, keep, steps_after, first)
        steps = sizes.steps_on_all_rows(m, d, little_noise)
        if m > sizes.full_training_rows:
            return self._ladder(n_candidates, 3, steps, patient=True, is_last=True)
        first = sizes.first_training(m, d, little_noise)
        kept = sizes.medium_kept
        return self._ladder(n_candidates, len(steps), steps, first, kept=kept, is_last=True)

    def _few_are_too_few(self, candidates: Sequence[Candidate]) -> bool:
        """Return whether a table with little noise is trained on all rows from the beginning.

        Refits that start afresh begin with the first training, so they need one.
        """
        sizes = self._settings
        afresh = (trains_afresh(c.kernel, self.m, sizes.afresh_rows) for c in candidates)
        return self._first_training < sizes.first_rows and not any(afresh)

    @cached_property
    def _refits(self) -> bool:
        return self.m <= self._settings.refit_rows and self.options.training is None

    def tuning(self) -> tuple[Engine, Tensor | None]:
        most = self._settings.tuning_rows
        if self.m <= most:
            return self.engine, None
        return self.engine.subset(np.sort(self.mean_rng.permutation(self.m)[:most])), None

    def heldout_residuals(self, candidate: Candidate, posterior: Posterior) -> Array:
        fits = self._fold_fits.get(id(candidate))
        if fits is None:
            return self.held.residuals(posterior)
        return refit_residuals(self.engine, self.data.merged, candidate, fits)

    def search_rows(self) -> Rows:
        return self.data.rows

    def rows_per_prediction(self) -> float:
        return self.data.rows.total

    def crossfit_plan(self) -> CrossfitPlan:
        n, folds = self.data.n_rows, self.stack_folds()
        if self.data.merged.groups is None:
            # One copy of a row is held out and the other copies stay, as for kernel ridges.
            folds = assign_folds(n, int(folds.max()) + 1, self.mean_rng)
        return CrossfitPlan(np.arange(n), folds)

    def further_members(self) -> list[Any]:
        return []

    def stack_folds(self) -> Index:
        return self.folds[self.data.merged.inverse]

    def prune(self, models: list[Any]) -> list[Any]:
        return models

    def variance_kernels(self, mean: StackedMean) -> list[Kernel]:
        """Return the kernels of part 2, each name in two forms with ``ard="both"``.

        One form has lengthscales in the ratios of those of the mean, so that only their common
        factor is trained; in the other, all lengthscales are trained.
        """
        options, d, columns = self.options, self.data.rows.X.shape[1], self.data.columns
        few = self.m < self._settings.small_rows
        kernels = options.variance_choices()
        shape = mean.lengthscale_shape() if options.ard == "both" else None
        if shape is None:
            ard = False if options.ard == "both" and few else options.ard
            return kernel_list(kernels, ard, d, columns)
        named = [kernel for kernel in kernels if isinstance(kernel, str)]
        made: list[Kernel] = [NamedKernel(name, d, shape=shape) for name in named]
        objects = [kernel for kernel in kernels if not isinstance(kernel, str)]
        made += kernel_list(objects, False, d, columns)
        return made if few else made + kernel_list(named, True, d)

    def variance_engine(self, rows: Rows, noise_floor: float) -> Engine:
        return self.engine.with_rows(rows).with_noise_floor(noise_floor)

    def train_variance(
        self, engine: Engine, candidates: list[Candidate], rows: Rows, R: Tensor
    ) -> list[Candidate]:
        training, rng = self.options.training, self.variance_rng
        R_used = R if self.options.variance_objective == "heldout" else None
        if training is None:
            ladder, order = self._variance_ladder(len(candidates)), rng.permutation(self.m)
            return climb(engine, candidates, ladder, rank_by_value, order, R_used)[0]
        for candidate in candidates:
            train_with(engine, candidate, training, rng, R_used)
        return fitted_only(candidates)

    def _variance_ladder(self, n_candidates: int) -> Ladder:
        m, sizes = self.m, self._settings
        if m <= sizes.refit_rows:
            return self._ladder(n_candidates, sizes.variance_keep, 8)
        if m <= sizes.full_training_rows:
            return self._ladder(n_candidates, 1, 2, sizes.first_rows, kept=(1.0, 1 / 3))
        return self._ladder(n_candidates, 1, 3, kept=(1.0, 1 / 3))
