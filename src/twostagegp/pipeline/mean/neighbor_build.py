"""The three parts for large tables: neighbours in both stages, held-out work on a sample of rows.

The mean is a stack of neighbour ridges, a boosted tree ensemble and the constant. A prediction
needs inputs, targets and hyperparameters, never the residuals of all rows, so that only a *sample*
of rows is held out: it decides the stack's weights, trains the variance and calibrates. The
sample's rows are predicted from all other rows, as new ones are.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits
from torch import Tensor

from twostagegp.data.rows import Merged, Rows
from twostagegp.data.scaling import Prepared
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.neighbors.engine import NeighborEngine, NeighborPosterior
from twostagegp.engines.problem import ObjectiveName
from twostagegp.errors import TwoStageGPError
from twostagegp.kernels import Kernel, NamedKernel
from twostagegp.pipeline.mean.build import MeanReader, StackedMean
from twostagegp.pipeline.mean.crossfit import RegressorMean, assign_folds
from twostagegp.pipeline.mean.models import ConstantMean, MeanModel, NeighborMean
from twostagegp.pipeline.mean.stack import crossfitted_residuals, simplex_weights
from twostagegp.pipeline.options import SMALL_ROWS, Options, kernel_list
from twostagegp.pipeline.variance import GPVariance, residual_rows
from twostagegp.search.kernel_search import KernelSearch
from twostagegp.search.repetitions import PAPER_PENALTIES
from twostagegp.search.stages import search_stage
from twostagegp.training.ladder import Candidate, fitted_only, train_with
from twostagegp.training.neighbor_schedule import (
    Schedule,
    train_mean_candidates,
    train_rounds,
    tune_penalty,
    warm_start,
)

__all__ = [
    "SUBSAMPLE_ROWS",
    "MeanBuilder",
    "Sample",
    "boosted_trees",
    "fit_neighbor_mean",
    "fit_neighbor_variance",
    "neighbor_variance_kernels",
]

Array = NDArray[np.float64]

_LOG = logging.getLogger("twostagegp")

#: Rows that are held out: weights, variance and calibration see these.
SAMPLE_ROWS = 12_000
#: Of them, those that train the variance.
VARIANCE_ROWS = 3000
#: Folds of a cross-fitted regressor, by rows of the table. Above the last number the sample is less
#: than a third of them, and one fit without it will do.
CROSSFIT_FOLDS = {20_000: 5, 40_000: 3}
#: Largest share of the table that such a fit may leave out.
MOST_HELD_OUT = 0.35
#: Fewest rows that the trees are fitted to.
TREE_ROWS = 50
#: Up to this many rows a regressor is then fitted to all of them, for predictions.
REFIT_ROWS = 100_000
#: Rows of a GP that is trained on a random subsample alone.
SUBSAMPLE_ROWS = 1000
#: Up to this many rows a regressor gets one thread, and the trees take their time.
ONE_THREAD_ROWS = 200_000
#: Ridges of the stack at most: each is a search for neighbours and a solve for every prediction.
RIDGES = 3
#: A ridge with less weight than this is not worth its price.
LEAST_WEIGHT = 0.03
#: Folds over which the stack's weights are cross-fitted.
STACK_FOLDS = 10


def boosted_trees(n: int) -> HistGradientBoostingRegressor:
    """The stack's tree ensemble: strong where a target jumps or depends on many columns weakly.

    Large tables get fewer and larger steps, as each of them passes over all rows.
    """
    large = n > ONE_THREAD_ROWS
    return HistGradientBoostingRegressor(
        learning_rate=0.1 if large else 0.05,
        max_iter=500 if large else 1000,
        max_leaf_nodes=63,
        max_features=0.6,
        l2_regularization=5.0,
        early_stopping=True,
        validation_fraction=0.1,
        n_iter_no_change=20,
    )


@dataclass(frozen=True)
class Sample:
    """The rows that are held out.

    Attributes
    ----------
    index : integer array of shape (m,)
        Merged rows.
    merged : Merged
        They, with the rows of the table that they stand for.
    table_rows : integer array of shape (n,)
        Numbers of those rows in the table.
    """

    index: NDArray[np.int64]
    merged: Merged
    table_rows: NDArray[np.int64]

    @classmethod
    def draw(cls, data: Prepared, rng: np.random.Generator) -> Sample:
        """A random sample; whole tables up to ``SAMPLE_ROWS``."""
        m = len(data.rows)
        index = np.sort(rng.permutation(m)[:SAMPLE_ROWS])
        return cls(index, data.merged.subset(index), data.merged.rows_of(index))

    def tensor(self, device: torch.device) -> Tensor:
        """``index`` on a device."""
        return torch.as_tensor(self.index, device=device)


class MeanBuilder(MeanReader):
    """What it takes to turn a ``mean`` option into models."""

    def __init__(
        self,
        data: Prepared,
        engine: NeighborEngine,
        options: Options,
        sample: Sample,
        seed: int,
        rng: np.random.Generator,
    ) -> None:
        self.data, self.engine, self.options = data, engine, options
        self.sample, self.seed, self.rng = sample, seed, rng
        self.schedule = Schedule()
        self.searched: list[Candidate] = []
        self.search: KernelSearch | None = None

    def stack(self) -> list[MeanModel]:
        ridges = self.ridges(self.kernels(self.options.kernels))
        return [*ridges, *self.trees(), self.constant()]

    def constant(self) -> MeanModel:
        model = ConstantMean(self.data.merged)
        model.heldout_residuals = model.heldout_residuals[self.sample.table_rows]
        return model

    @cached_property
    def _folds(self) -> tuple[NDArray[np.int64], bool]:
        """Fold of every row of the table (-1: never held out), and whether there is only one."""
        merged, n = self.data.merged, self.data.n_rows
        groups, own = merged.groups, self.sample.merged.groups
        n_folds = next((k for rows, k in CROSSFIT_FOLDS.items() if n <= rows), 1)
        if n_folds == 1:
            held = np.zeros(n, dtype=bool)
            held[self.sample.table_rows] = True
            if groups is not None and own is not None:
                held = np.isin(groups, own)[merged.inverse]
            if held.mean() <= MOST_HELD_OUT:
                return np.where(held, 0, -1), True
            # Repeats or large groups: the sample stands for most of the table.
            n_folds = min(CROSSFIT_FOLDS.values())
        rng = np.random.default_rng(self.seed)
        if groups is not None:
            return assign_folds(n, n_folds, rng, groups[merged.inverse]), False
        folds = np.empty(n, dtype=np.int64)
        folds[self._order] = assign_folds(n, n_folds, rng)
        return folds, False

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        """Rows by their values, so that the order of the table does not matter."""
        merged = self.data.merged
        return np.lexsort((merged.weight, merged.y, merged.inverse))

    def trees(self) -> list[MeanModel]:
        """Boosted trees, where what a fold leaves is enough for them."""
        folds, _ = self._folds
        left = [np.count_nonzero(folds != fold) for fold in np.unique(folds[folds >= 0])]
        return [self.regressor(boosted_trees(self.data.n_rows))] if min(left) >= TREE_ROWS else []

    def regressor(self, regressor: Any) -> MeanModel:
        """Cross-fitted, or fitted once without the sample where the table is large."""
        merged, wanted = self.data.merged, self.sample.table_rows
        n, order = self.data.n_rows, self._order
        folds, once = self._folds
        place = np.empty(n, dtype=np.int64)
        place[order] = np.arange(n)
        _LOG.info("held-out predictions of %s", type(regressor).__name__)
        # Threads that wait for each other cost more than they bring on a busy machine. Torch's
        # number is what n_jobs asks for, but scikit-learn has an OpenMP library of its own.
        threads = 1 if n <= ONE_THREAD_ROWS else torch.get_num_threads()
        with threadpool_limits(threads, user_api="openmp"):
            model = RegressorMean(
                regressor,
                merged.X[merged.inverse[order]],
                merged.y[order],
                merged.weight[order],
                folds[order],
                self.seed,
                wanted=place[wanted],
                refit=not once or n <= REFIT_ROWS,
            )
        model.heldout_residuals = model.heldout_residuals[place[wanted]]
        return model

    def best_ridge(self, kernels: Sequence[Any]) -> list[MeanModel]:
        """The single ridge that passes the ratio test best, or has the smallest held-out error."""
        made = self.kernels(kernels)
        if self.options.selection == "misspecification":
            self.search = search_stage(
                self._some_rows(20_000),
                made,
                "gp" if self.options.penalty == "auto" else "krr",
                self.rng,
                penalties=self._penalties() or PAPER_PENALTIES,
                noise_floor=self.engine.noise_floor,
            )
            made = made if self.search is None else [self.search.best]
        models = self.ridges(made)
        weight = self.sample.merged.weight
        errors = [weight @ model.heldout_residuals**2 for model in models]
        return [models[int(np.argmin(errors))]]

    def _some_rows(self, count: int) -> Any:
        rows = self.engine.rows
        return rows.subset(np.sort(self.rng.permutation(len(rows))[:count]))

    def _penalties(self) -> list[float]:
        penalty = self.options.penalty
        if penalty == "auto":
            return []
        if isinstance(penalty, str):
            # The paper's 0.01 n, where n is what a prediction sees.
            return [0.01 * min(self.engine.n_neighbors, len(self.engine.rows))]
        return np.atleast_1d(penalty).tolist()

    def ridges(self, kernels: list[Kernel]) -> list[MeanModel]:
        index = self.sample.tensor(self.engine.rows.X.device)
        if self.options.penalty != "auto":
            return self.classical_ridges(kernels, index)
        objective = self._objective()
        candidates = [Candidate(kernel, objective) for kernel in kernels]
        self.searched += candidates
        if self.options.training is not None:
            for candidate in candidates:
                _train_as_told(
                    self.engine.rows, candidate, self.options, self.engine.noise_floor, self.rng
                )
            alive = fitted_only(candidates)
        else:
            alive = train_mean_candidates(self.engine, candidates, self.schedule, self.rng)
            tuning = index[torch.as_tensor(self.rng.permutation(len(index))[:2000]).sort().values]
            for candidate in alive:
                try:
                    tune_penalty(self.engine, candidate, tuning)
                except TwoStageGPError as error:
                    candidate.failure = str(error)
        models: list[MeanModel] = []
        for candidate in fitted_only(alive):
            assert candidate.parameters is not None
            floor = math.log(self.engine.noise_floor)
            parameters = candidate.with_penalty(candidate.parameters)
            parameters[-1] = max(parameters[-1], floor)
            try:
                models.append(self._model(candidate, parameters, index))
            except TwoStageGPError as error:
                candidate.failure = str(error)
        fitted_only(alive)  # raises, with every reason, where none is left
        return models

    def _objective(self) -> ObjectiveName:
        return "loo" if self.engine.order is None else "nll"

    def _model(self, candidate: Candidate, parameters: Array, index: Tensor) -> MeanModel:
        posterior = self.engine.condition(candidate.kernel, parameters)
        held = posterior.heldout_rows(index)
        residual, slope = held.residual.double().cpu().numpy(), held.slope.double().cpu().numpy()
        return NeighborMean(candidate, posterior, self.sample.merged.unmerge(residual, slope))

    def classical_ridges(self, kernels: list[Kernel], index: Tensor) -> list[MeanModel]:
        """Kernel ridges with given penalties, of the kernels for which one of them works."""
        candidates = [Candidate(kernel, "ridge") for kernel in kernels]
        self.searched += candidates
        tried = [self.classical(candidate, index) for candidate in candidates]
        models = [model for model in tried if model is not None]
        if not models:
            fitted_only(candidates)  # raises, with every reason
        return models

    def classical(self, candidate: Candidate, index: Tensor) -> MeanModel | None:
        """Kernel ridge with a fixed lengthscale; the penalty by held-out squared error.

        Penalties that cannot be used are named in the candidate; None where that is all of them.
        """
        kernel = candidate.kernel
        theta = kernel.classical() if isinstance(kernel, NamedKernel) else kernel.start()
        best: MeanModel | None = None
        error = math.inf
        near = self.engine.near_rows(kernel, theta, index)
        failures: list[str] = []
        for penalty in self._penalties():
            parameters = np.append(theta, math.log(penalty))
            posterior = self.engine.condition(kernel, parameters)
            try:
                held = posterior.heldout_rows(index, near)
            except TwoStageGPError as failure:
                failures.append(f"{kernel.label} with penalty {penalty:g}: {failure}")
                continue
            squares = float(held.sum_of_squares(self.engine.rows.subset(index)).sum())
            if squares < error:
                error = squares
                residual, slope = (v.double().cpu().numpy() for v in (held.residual, held.slope))
                unmerged = self.sample.merged.unmerge(residual, slope)
                best = NeighborMean(candidate, posterior, unmerged)
                candidate.parameters = parameters
        candidate.failure = "; ".join(failures)
        candidate.value = error / float(self.sample.merged.c.sum())
        return best


def _pruned(models: list[MeanModel], weight: Array) -> tuple[list[MeanModel], Array]:
    """Weights of the stack, without ridges that are not worth their price."""
    while True:
        E = np.column_stack([model.heldout_residuals for model in models])
        weights = simplex_weights(E, weight)
        ridges = [i for i, model in enumerate(models) if isinstance(model, NeighborMean)]
        if not ridges:
            return models, weights
        least = min(ridges, key=lambda i: weights[i])
        if len(ridges) <= RIDGES and (weights[least] >= LEAST_WEIGHT or len(models) == 1):
            return models, weights
        models = [model for i, model in enumerate(models) if i != least]


def fit_neighbor_mean(
    data: Prepared,
    engine: NeighborEngine,
    options: Options,
    sample: Sample,
    seed: int,
    rng: np.random.Generator,
    make: type[MeanBuilder] | None = None,
) -> StackedMean:
    """Part 1: models, weights and the held-out residuals of the sample's rows.

    ``make`` turns the ``mean`` option into models; neighbours by default.
    """
    make = MeanBuilder if make is None else make
    builder = make(data, engine, options, sample, seed, rng)
    weight = sample.merged.weight
    models, weights = _pruned(builder.build(options.mean), weight)
    E = np.column_stack([model.heldout_residuals for model in models])
    residuals = E[:, 0]
    if len(models) > 1:
        groups = sample.merged.groups
        folds = assign_folds(len(sample.index), STACK_FOLDS, rng, groups)[sample.merged.inverse]
        residuals = crossfitted_residuals(E, folds, weight)
    return StackedMean(models, weights, residuals, builder.searched, builder.search)


def fit_neighbor_variance(
    data: Prepared,
    engine: NeighborEngine,
    kernels: Sequence[Kernel],
    options: Options,
    sample: Sample,
    residuals: Array,
    rng: np.random.Generator,
) -> GPVariance:
    """Part 2: kernel and hyperparameters from the sample's residuals, variances from all rows.

    ``engine`` has the noise floor of the second stage.
    """
    device = data.rows.X.device
    index = sample.tensor(device)
    own_rows, R = residual_rows(data.rows.subset(sample.index), sample.merged, residuals)
    search = None
    if options.variance_selection == "misspecification":
        search = search_stage(own_rows, kernels, "gp", rng, noise_floor=engine.noise_floor)
    kernels = kernels if search is None else [search.best]
    candidates = [Candidate(kernel, options.variance_objective) for kernel in kernels]
    if options.training is not None or options.variance_objective == "nll":
        for candidate in candidates:
            if options.training is None:
                some = own_rows.subset(np.sort(rng.permutation(len(own_rows))[:SUBSAMPLE_ROWS]))
                exact = ExactEngine(some, engine.noise_floor)
                candidate.train(exact, None, is_full=False, steps=40, tolerance=1e-3)
            else:
                _train_as_told(own_rows, candidate, options, engine.noise_floor, rng, R)
        alive = fitted_only(candidates)
    else:
        place = torch.as_tensor(np.sort(rng.permutation(len(index))[:VARIANCE_ROWS]), device=device)
        batch, R_batch = index[place], R[place]
        alive = warm_start(engine, candidates, Schedule().warm_rows, rng, R, index)
        for candidate in alive:
            train_rounds(engine, candidate, batch, 2, 12, R_batch)
        alive = fitted_only(alive)
    N = float(sample.merged.weight.sum())
    scores = [candidate.value + candidate.kernel.size / N for candidate in alive]
    best = alive[int(np.argmin(scores))]
    assert best.parameters is not None
    posterior: NeighborPosterior = engine.condition(best.kernel, best.parameters)
    held = posterior.heldout_rows(index).variance.double().cpu().numpy()
    return GPVariance(best.kernel, best, candidates, posterior, held, search)


def _train_as_told(
    rows: Rows,
    candidate: Candidate,
    options: Options,
    noise_floor: float,
    rng: np.random.Generator,
    R: Tensor | None = None,
) -> None:
    """The paper's way: the given schedule, on a random subsample alone."""
    training = options.training
    assert training is not None
    part = np.sort(rng.permutation(len(rows))[: training.subsample or SUBSAMPLE_ROWS])
    exact = ExactEngine(rows.subset(part), noise_floor, use_prior=False)
    R_used = None
    if R is not None and candidate.objective == "heldout":
        R_used = R[torch.as_tensor(part, device=R.device)]
    train_with(exact, candidate, training, rng, R_used)
    candidate.full_evaluations, candidate.full_seconds = 0, 0.0  # these are not all rows


def neighbor_variance_kernels(options: Options, mean: StackedMean, data: Prepared) -> list[Kernel]:
    """Kernels of the second stage.

    With ``ard="both"`` they take the metric of the mean's heaviest ridge (Euclidean and L1 each),
    so that only a common size of the lengthscales is open, and a prediction finds its neighbours
    once for both stages.
    """
    d, columns = data.rows.X.shape[1], data.columns
    asked = options.variance
    if isinstance(asked, str) and asked == "search":
        asked = options.kernels
    elif not isinstance(asked, list | tuple):
        asked = [asked]
    if options.ard != "both" or len(data.rows) < SMALL_ROWS:
        ard = options.ard != "both" and bool(options.ard)
        return kernel_list(asked, ard, d, columns)
    names = [kernel for kernel in asked if isinstance(kernel, str)]
    made: list[Kernel] = []
    norms = set()
    for i in np.argsort(-mean.weights):
        model = mean.models[i]
        if not isinstance(model, NeighborMean) or not isinstance(model.kernel, NamedKernel):
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
        # Kernels that were named are tried, whatever their norm.
        known = {kernel.name for kernel in made}
        objects += [name for name in names if name not in known]
    made += kernel_list(objects, False, d, columns)
    return made or kernel_list(asked, False, d, columns)
