"""The methods for large tables, which hold out a random sample of rows.

Neighbours, Vecchia's likelihood and inducing points share this class. They differ in one record per
method in :data:`SAMPLED`; a further engine of this kind needs one more record. The mean is a stack
of ridges, boosted trees and the constant. Stack weights, variance and calibration are learned from
the held-out sample, whose rows are predicted from all other rows, as new rows are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.data.scaling import Prepared
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.neighbors.engine import NeighborEngine
from twostagegp.engines.problem import ObjectiveName
from twostagegp.engines.protocol import Engine, Posterior
from twostagegp.engines.svgp import SparseEngine
from twostagegp.kernels import Kernel, NamedKernel, kernel_list
from twostagegp.numerics.stacking import simplex_weights
from twostagegp.pipeline.held_rows import HeldRows
from twostagegp.pipeline.mean.crossfit import assign_folds, boosted_trees
from twostagegp.pipeline.mean.models import RidgeMean
from twostagegp.pipeline.methods.protocol import CrossfitPlan
from twostagegp.pipeline.settings import Options, SampleSettings
from twostagegp.runtime.cores import available_cores
from twostagegp.training.candidates import Candidate, fitted_only, train_with
from twostagegp.training.rounds import train_in_rounds, train_on_batch, warm_start

if TYPE_CHECKING:
    from twostagegp.pipeline.mean.stacked import StackedMean

__all__ = ["SAMPLED", "SampledKind", "SampledMethod"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class SampledKind:
    """The choices that differ between the methods for large tables.

    Attributes
    ----------
    make_engine : callable
        Takes the table, the options, a seed and a random generator; returns the engine of the mean.
    objective : {"loo", "nll"}
        Objective of the mean's candidates, unless the user asks for the likelihood.
    uses_all_rows : bool
        Whether a prediction depends on all rows rather than on ``n_neighbors`` of them.
    """

    make_engine: Callable[[Prepared, Options, int, np.random.Generator], Engine]
    objective: ObjectiveName = "loo"
    uses_all_rows: bool = False


def _neighbors(data: Prepared, options: Options, seed: int, rng: np.random.Generator) -> Engine:
    rows, order = data.rows, None
    if options.method == "vecchia" or options.objective == "nll":
        order = torch.as_tensor(rng.permutation(len(rows)), device=rows.X.device)
    use_prior = options.training is None
    return NeighborEngine(rows, options.n_neighbors, options.noise_floor, use_prior, order)


def _inducing(data: Prepared, options: Options, seed: int, rng: np.random.Generator) -> Engine:
    sizes, use_prior = options.settings.method, options.training is None
    count, pool = sizes.n_inducing, sizes.inducing_pool
    return SparseEngine(data.rows, count, options.noise_floor, use_prior, pool, seed)


#: The methods for large tables, by the names that ``method`` takes.
SAMPLED: Mapping[str, SampledKind] = {
    "neighbors": SampledKind(_neighbors),
    "vecchia": SampledKind(_neighbors, "nll"),
    "svgp": SampledKind(_inducing, "nll", uses_all_rows=True),
}


class SampledMethod:
    """A sample of rows is held out; candidates are trained in rounds on batches of rows."""

    n_refits = 0
    conditionings = 0

    def __init__(self, data: Prepared, options: Options, seed: int) -> None:
        self.data, self.options, self.seed = data, options, seed
        self.mean_rng = self.variance_rng = np.random.default_rng(seed)
        self.kind = SAMPLED[options.method]
        self.engine = self.kind.make_engine(data, options, seed, self.mean_rng)
        self.held = HeldRows.draw(data, self._settings.rows, self.mean_rng)

    @property
    def _settings(self) -> SampleSettings:
        return self.options.settings.sample

    @property
    def _device(self) -> torch.device:
        return self.data.rows.X.device

    def candidates(self, kernels: Sequence[Kernel], single: bool) -> list[Candidate]:
        objective = "nll" if self.options.objective == "nll" else self.kind.objective
        return [Candidate(kernel, objective) for kernel in kernels]

    def train(self, candidates: list[Candidate]) -> list[Candidate]:
        if self.options.training is None:
            return train_in_rounds(self.engine, candidates, self._settings.schedule, self.mean_rng)
        floor = self.engine.noise_floor
        for candidate in candidates:
            self._train_on_subsample(self.engine.rows, candidate, floor, self.mean_rng)
        return fitted_only(candidates)

    def _train_on_subsample(
        self,
        rows: Rows,
        candidate: Candidate,
        noise_floor: float,
        rng: np.random.Generator,
        R: Tensor | None = None,
    ) -> None:
        """Train by the given schedule on a random subsample only, as in the paper."""
        training = self.options.training
        assert training is not None
        count = training.subsample or self._settings.subsample_rows
        part = np.sort(rng.permutation(len(rows))[:count])
        exact = ExactEngine(rows.subset(part), noise_floor, use_prior=False)
        R_used = None
        if R is not None and candidate.objective == "heldout":
            R_used = R[torch.as_tensor(part, device=R.device)]
        train_with(exact, candidate, training, rng, R_used)
        candidate.full_evaluations, candidate.full_seconds = 0, 0.0  # these are not all rows

    def tuning(self) -> tuple[Engine, Tensor | None]:
        index = self.held.tensor(self._device)
        some = self.mean_rng.permutation(len(index))[: self._settings.tuning_rows]
        return self.engine, index[torch.as_tensor(some).sort().values]

    def heldout_residuals(self, candidate: Candidate, posterior: Posterior) -> Array:
        return self.held.residuals(posterior)

    def search_rows(self) -> Rows:
        rows, count = self.engine.rows, self._settings.search_rows
        return rows.subset(np.sort(self.mean_rng.permutation(len(rows))[:count]))

    def rows_per_prediction(self) -> float:
        if self.kind.uses_all_rows:
            return self.data.rows.total
        return min(self.options.n_neighbors, len(self.engine.rows))

    def crossfit_plan(self) -> CrossfitPlan:
        n, (folds, once) = self.data.n_rows, self._folds
        few = n <= self._settings.one_thread_rows
        return CrossfitPlan(
            self._order,
            folds,
            refit=not once or n <= self._settings.regressor_refit_rows,
            # On a busy machine, threads that wait for each other cost more time than they save on
            # small tables.
            threads=1 if few else available_cores(),
        )

    @cached_property
    def _order(self) -> Index:
        """Numbers of the rows sorted by value, so that results do not depend on the row order."""
        merged = self.data.merged
        return np.lexsort((merged.weight, merged.y, merged.inverse))

    @cached_property
    def _folds(self) -> tuple[Index, bool]:
        """Fold of every row of the table (-1: never held out), and whether it is the only fold."""
        merged, n, settings = self.data.merged, self.data.n_rows, self._settings
        groups, own = merged.groups, self.held.merged.groups
        n_folds = next((k for rows, k in settings.crossfit_folds if n <= rows), 1)
        if n_folds == 1:
            held = np.zeros(n, dtype=bool)
            held[self.held.table_rows] = True
            if groups is not None and own is not None:
                held = np.isin(groups, own)[merged.inverse]
            if held.mean() <= settings.most_held_out:
                return np.where(held, 0, -1), True
            # With many repeats or large groups, the sample covers a large part of the table.
            n_folds = min(k for _, k in settings.crossfit_folds)
        rng = np.random.default_rng(self.seed)
        if groups is not None:
            return assign_folds(n, n_folds, rng, groups[merged.inverse]), False
        folds = np.empty(n, dtype=np.int64)
        folds[self._order] = assign_folds(n, n_folds, rng)
        return folds, False

    def further_members(self) -> list[Any]:
        """Return boosted trees, if there are enough rows outside every fold."""
        folds, _ = self._folds
        left = [np.count_nonzero(folds != fold) for fold in np.unique(folds[folds >= 0])]
        if min(left) < self._settings.tree_rows:
            return []
        return [boosted_trees().set_params(**dict(self._settings.tree_parameters))]

    def stack_folds(self) -> Index:
        held, folds = self.held, self._settings.stack_folds
        by_row = assign_folds(len(held.index), folds, self.mean_rng, held.merged.groups)
        return by_row[held.merged.inverse]

    def prune(self, models: list[Any]) -> list[Any]:
        """Drop ridges with small weights, the smallest first, and those above ``most_ridges``."""
        settings, weight = self._settings, self.held.merged.weight
        while True:
            E = np.column_stack([model.heldout_residuals for model in models])
            weights = simplex_weights(E, weight, self.options.settings.mean.stack_ridge)
            ridges = [i for i, model in enumerate(models) if isinstance(model, RidgeMean)]
            if not ridges:
                return models
            least = min(ridges, key=lambda i: weights[i])
            heavy = weights[least] >= settings.least_ridge_weight or len(models) == 1
            if len(ridges) <= settings.most_ridges and heavy:
                return models
            models = [model for i, model in enumerate(models) if i != least]

    def variance_kernels(self, mean: StackedMean) -> list[Kernel]:
        """Return kernels in the metric of the mean's ridges with ``ard="both"``.

        For each norm (Euclidean and L1) the ridge with the largest weight gives the lengthscale
        ratios. Only a common factor of the lengthscales is trained, and a prediction searches its
        neighbours once for both stages.
        """
        options, d, columns = self.options, self.data.rows.X.shape[1], self.data.columns
        asked = options.variance_choices()
        if options.ard != "both" or len(self.data.rows) < options.settings.mean.small_rows:
            ard = options.ard != "both" and bool(options.ard)
            return kernel_list(asked, ard, d, columns)
        names = [kernel for kernel in asked if isinstance(kernel, str)]
        made: list[Kernel] = []
        norms = set()
        for i in np.argsort(-mean.weights):
            model = mean.models[i]
            if not isinstance(model, RidgeMean) or not isinstance(model.kernel, NamedKernel):
                continue
            if model.kernel.metric in norms:
                continue
            norms.add(model.kernel.metric)
            scales = model.kernel.lengthscales(model.parameters[:-1])
            shape = scales / np.exp(np.log(scales).mean())
            shaped = [NamedKernel(name, d, shape=shape) for name in names]
            made += [kernel for kernel in shaped if kernel.metric == model.kernel.metric]
        objects = [kernel for kernel in asked if not isinstance(kernel, str)]
        if options.variance != "search":
            # Kernels that the user has named are tried with any norm.
            known = {kernel.name for kernel in made}
            objects += [name for name in names if name not in known]
        made += kernel_list(objects, False, d, columns)
        return made or kernel_list(asked, False, d, columns)

    def variance_engine(self, rows: Rows, noise_floor: float) -> Engine:
        # The variance does not depend on the target, so it is conditioned on all rows.
        return self.engine.with_noise_floor(noise_floor)

    def train_variance(
        self, engine: Engine, candidates: list[Candidate], rows: Rows, R: Tensor
    ) -> list[Candidate]:
        options, settings, rng = self.options, self._settings, self.variance_rng
        if options.training is not None:
            for candidate in candidates:
                self._train_on_subsample(rows, candidate, engine.noise_floor, rng, R)
            return fitted_only(candidates)
        if options.variance_objective == "nll":
            for candidate in candidates:
                some = np.sort(rng.permutation(len(rows))[: settings.subsample_rows])
                exact = ExactEngine(rows.subset(some), engine.noise_floor)
                candidate.train(exact, None, is_full=False, steps=40, tolerance=1e-3)
            return fitted_only(candidates)
        index = self.held.tensor(self._device)
        some = np.sort(rng.permutation(len(index))[: settings.variance_rows])
        chosen = torch.as_tensor(some, device=self._device)
        alive = warm_start(engine, candidates, settings.schedule.warm_rows, rng, R, index)
        rounds, steps = settings.variance_rounds, settings.variance_steps
        for candidate in alive:
            train_on_batch(engine, candidate, index[chosen], rounds, steps, R[chosen])
        return fitted_only(alive)
