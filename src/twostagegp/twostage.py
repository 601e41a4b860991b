r"""The three parts in a row, on standardised numbers: mean, variance, calibration.

Each part is trained on what the part before it got wrong on rows it had not seen:

    rows -> mean candidates -> stack -> held-out residuals -> variance -> held-out z -> factor

Nothing here knows about scikit-learn, units or several targets; the front doors do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2
from torch import Tensor

from twostagegp.calibration import Calibration, scale_from_quantile
from twostagegp.candidates import Candidate, Ladder, climb, fitted_only, train_with
from twostagegp.crossfit import RegressorMean, assign_folds
from twostagegp.engines.exact import ExactEngine
from twostagegp.errors import InputError
from twostagegp.inputs import Prepared
from twostagegp.kernels import KERNELS, Kernel, NamedKernel, inverse_lengthscale_shares, make_kernel
from twostagegp.mean import (
    ConstantMean,
    MeanModel,
    RidgeMean,
    choose_penalty,
    rank_by_loo_error,
    rank_by_unseen_error,
    refit_residuals,
    tune_penalty,
)
from twostagegp.rows import Rows
from twostagegp.stack import crossfitted_residuals, simplex_weights
from twostagegp.training import ObjectiveName, Training
from twostagegp.variance import ConstantVariance, GPVariance, fit_variance, residual_rows

__all__ = ["Options", "StackedMean", "TwoStageFit", "fit_two_stage"]

Array = NDArray[np.float64]

_LOG = logging.getLogger("twostagegp")

#: Up to this many distinct rows hyperparameters are chosen again without each fold, so that
#: held-out residuals do not come from hyperparameters that saw the row.
REFIT_ROWS = 600
REFIT_FOLDS = 10
REFIT_STEPS = 3
REFIT_KEEP = 8
#: Below this many distinct rows candidates are trained by the likelihood only, fewer are
#: refitted, and the variance has one lengthscale.
SMALL_ROWS = 60
#: Above this many distinct rows the candidates that reach all rows are not trained there any more.
FULL_TRAINING_ROWS = 3000
#: Rows on which the penalty of a trained candidate is tuned.
TUNING_ROWS = 1000
#: The second stage's noise variance is at least this share of the squared size of the residuals.
NOISE_SHARE = 0.3


@dataclass(frozen=True)
class Options:
    """The choices of the front door, one field a constructor parameter."""

    kernels: Sequence[Any]
    ard: bool | str
    mean: Any
    penalty: Any
    variance: Any
    variance_objective: ObjectiveName
    selection: str
    residuals: str
    calibration: str | None
    training: Training | None
    noise_floor: float


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
    """

    models: list[MeanModel]
    weights: Array
    heldout_residuals: Array
    searched: list[Candidate] = field(default_factory=list)

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
            kernel = model.kernel if isinstance(model, RidgeMean) else None
            if isinstance(kernel, NamedKernel) and kernel.ard and isinstance(model, RidgeMean):
                scales = kernel.lengthscales(model.parameters[:-1])
                return scales / kernel.typical_lengthscale()
        return None

    def predict(self, X: Tensor) -> Tensor:
        """Weighted prediction at standardised inputs; models without weight are not asked."""
        total = X.new_zeros(X.shape[0])
        for weight, model in zip(self.weights, self.models, strict=True):
            if weight > 0.0:
                total += float(weight) * model.predict(X)
        return total


@dataclass
class TwoStageFit:
    """Everything that was learned about one target, in standardised units."""

    mean: StackedMean
    variance: GPVariance | ConstantVariance
    calibration: Calibration
    seconds: dict[str, float]
    n_refits: int

    @property
    def noise(self) -> float:
        """Noise variance before calibration."""
        return self.variance.noise

    @property
    def factor(self) -> float:
        """What the calibration multiplies every variance by."""
        return self.calibration.factor

    def predict_mean(self, X: Tensor) -> Tensor:
        """Prediction of the stack."""
        return self.mean.predict(X)

    def latent_variance(self, X: Tensor) -> Tensor:
        """Variance of the second stage, without noise."""
        return self.variance.latent(X)

    def latent_covariance(self, X: Tensor) -> Tensor:
        """Covariance of the second stage, without noise."""
        return self.variance.latent_covariance(X)

    def relevance(self, n_features: int) -> Array:
        """Inverse lengthscales of the mean's kernels, weighted as in the stack."""
        share = np.zeros(n_features)
        for weight, model in zip(self.mean.weights, self.mean.models, strict=True):
            if isinstance(model, RidgeMean):
                share += weight * inverse_lengthscale_shares(model.kernel, model.parameters)
        return share


class _Clock:
    """Seconds by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[part] = time.perf_counter() - begin


def kernel_list(kernels: Sequence[Any], ard: bool | str, n_features: int) -> list[Kernel]:
    """Every kernel asked for, isotropic, ARD or both; one-column inputs need only one form."""
    forms = {True: (True,), False: (False,), "both": (False, True)}[ard]
    made: list[Kernel] = []
    for kernel in kernels:
        named = isinstance(kernel, str)
        for form in forms if named and n_features > 1 else forms[:1]:
            made.append(make_kernel(kernel, n_features, form))
    return made


def is_regressor_like(value: Any) -> bool:
    """Anything with fit and predict that is not a class."""
    return hasattr(value, "fit") and hasattr(value, "predict") and not isinstance(value, type)


class _MeanBuilder:
    """Turns the ``mean`` option into mean models."""

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

    @property
    def row_folds(self) -> NDArray[np.int64]:
        """Fold of every row of the table; repeats share one."""
        return self.folds[self.data.merged.inverse]

    def objectives(self, single: bool) -> tuple[ObjectiveName, ...]:
        if self.options.selection == "nll" or self.m < SMALL_ROWS:
            return ("nll",)
        return ("loo",) if single else ("loo", "nll")

    def build(self, mean: Any) -> list[MeanModel]:
        kernels = self.options.kernels
        if isinstance(mean, list | tuple):
            models = [model for part in mean for model in self.build(part)]
            constant = [m for m in models if isinstance(m, ConstantMean)]
            return models if constant else [*models, ConstantMean(self.data.merged)]
        if isinstance(mean, str) and mean == "stack":
            return [*self.ridges(kernels, single=False), ConstantMean(self.data.merged)]
        if isinstance(mean, str) and mean == "search":
            return self.best_ridge(kernels)
        if isinstance(mean, str) and mean == "constant":
            return [ConstantMean(self.data.merged)]
        if is_regressor_like(mean):
            return [self.regressor(mean)]
        if isinstance(mean, str) and mean not in KERNELS:
            raise InputError(
                f"mean={mean!r}: use 'stack', 'search', 'constant', a kernel name "
                f"({', '.join(KERNELS)}), a GPyTorch kernel, a regressor, or a list of these."
            )
        return self.best_ridge([mean])

    def regressor(self, regressor: Any) -> MeanModel:
        merged = self.data.merged
        y = merged.t[merged.inverse] + merged.deviation
        X = merged.X[merged.inverse]
        return RegressorMean(regressor, X, y, merged.weight, self.row_folds, self.seed)

    def best_ridge(self, kernels: Sequence[Any]) -> list[MeanModel]:
        """The single ridge with the smallest held-out squared error."""
        models = self.ridges(kernels, single=True)
        errors = [self.data.merged.weight @ m.heldout_residuals**2 for m in models]
        return [models[int(np.argmin(errors))]]

    def ridges(self, kernels: Sequence[Any], single: bool) -> list[MeanModel]:
        d = self.data.rows.X.shape[1]
        made = kernel_list(kernels, self.options.ard, d)
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
            survivors = climb(
                self.engine, candidates, ladder, rank_by_unseen_error, self.rng
            ).survivors
        return self.with_residuals(survivors)

    def with_residuals(self, survivors: list[Candidate]) -> list[MeanModel]:
        merged = self.data.merged
        refit = self.m <= REFIT_ROWS and self.options.training is None
        keep = REFIT_KEEP if self.m >= SMALL_ROWS else REFIT_KEEP // 2
        if refit and len(survivors) > keep:
            ranking = np.argsort(rank_by_loo_error(self.engine, survivors), kind="stable")
            survivors = [survivors[i] for i in ranking[:keep]]
        models: list[MeanModel] = []
        tuning = self.engine
        if self.m > TUNING_ROWS:
            tuning = tuning.subset(np.sort(self.rng.permutation(self.m)[:TUNING_ROWS]))
        for candidate in survivors:
            _LOG.info("held-out residuals of %s%s", candidate.label, " by refits" if refit else "")
            residuals = None
            if self.options.training is None:
                tune_penalty(tuning, candidate)
            if refit:
                held = refit_residuals(self.engine, candidate, self.folds, REFIT_STEPS)
                residuals = held[merged.inverse] + merged.deviation
                self.n_refits += len(np.unique(self.folds))
            assert candidate.parameters is not None
            models.append(
                RidgeMean(
                    candidate.kernel,
                    candidate.with_penalty(candidate.parameters),
                    self.engine,
                    merged,
                    candidate.label,
                    residuals,
                )
            )
        return models

    def classical(self, kernel: Kernel) -> MeanModel:
        penalty = self.options.penalty
        n = self.data.rows.total
        grid = [0.01 * n] if isinstance(penalty, str) else np.atleast_1d(penalty).tolist()
        parameters, _ = choose_penalty(kernel, self.engine, grid)
        label = f"{kernel.label}/ridge"
        return RidgeMean(kernel, parameters, self.engine, self.data.merged, label)


def mean_ladder(m: int, n_candidates: int) -> Ladder:
    """Warm start of the mean's candidates."""
    if m > FULL_TRAINING_ROWS:
        return Ladder.plan(m, n_candidates, full_keep=3, full_steps=(3, 2))
    steps = (15, 10, 6, 6) if m <= 1200 else (6, 4, 3, 3)
    return Ladder.plan(m, n_candidates, full_keep=4, full_steps=steps)


def variance_ladder(m: int, n_candidates: int) -> Ladder:
    """Warm start of the variance's candidates."""
    steps = 3 if m > FULL_TRAINING_ROWS else 8 if m <= 1200 else 5
    return Ladder.plan(m, n_candidates, full_keep=1, full_steps=steps)


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
    return StackedMean(models, weights, residuals, builder.searched), builder.n_refits


def variance_kernels(options: Options, mean: StackedMean, m: int, d: int) -> list[Kernel]:
    """Kernels of the second stage.

    With ``ard="both"`` each name comes in two forms: with lengthscales in the ratios that the
    mean has found, so that only their common size is open, and with all of them open.
    """
    kernels = options.variance
    if isinstance(kernels, str) and kernels == "search":
        kernels = options.kernels
    elif not isinstance(kernels, list | tuple):
        kernels = [kernels]
    shape = mean.lengthscale_shape() if options.ard == "both" else None
    if shape is None:
        ard = False if options.ard == "both" and m < SMALL_ROWS else options.ard
        return kernel_list(kernels, ard, d)
    named = [kernel for kernel in kernels if isinstance(kernel, str)]
    made: list[Kernel] = [NamedKernel(name, d, shape=shape) for name in named]
    made += kernel_list([kernel for kernel in kernels if not isinstance(kernel, str)], False, d)
    return made if m < SMALL_ROWS else made + kernel_list(named, True, d)


def _constant_parts(data: Prepared, options: Options) -> TwoStageFit:
    """Too few distinct rows, no usable column or a constant target: mean and one variance."""
    model = ConstantMean(data.merged)
    residuals = model.heldout_residuals
    weight = data.merged.weight
    noise = max(float(weight @ residuals**2 / weight.sum()), options.noise_floor)
    variance = ConstantVariance(noise, len(data.rows))
    calibration = Calibration("none", 1.0, residuals / np.sqrt(noise), "too little to learn from")
    mean = StackedMean([model], np.ones(1), residuals)
    return TwoStageFit(mean, variance, calibration, {}, 0)


def fit_two_stage(data: Prepared, options: Options, seed: int) -> TwoStageFit:
    """Fit the three parts to one standardised target."""
    m, d = len(data.rows), data.rows.X.shape[1]
    if m < 3 or d == 0 or data.constant_target:
        return _constant_parts(data, options)
    clock = _Clock()
    # The paper's schedules know no prior.
    engine = ExactEngine(data.rows, options.noise_floor, use_prior=options.training is None)
    _LOG.info("mean: %d rows, %d distinct, %d columns", data.n_rows, m, d)
    with clock("mean"):
        mean, n_refits = fit_mean(data, engine, options, seed)
        residuals = mean.heldout_residuals
        if options.residuals == "insample":
            y = data.merged.t[data.merged.inverse] + data.merged.deviation
            residuals = y - mean.predict(data.rows.X).cpu().numpy()[data.merged.inverse]
    _LOG.info("mean is %s; now the variance", mean.label)
    with clock("variance"):
        rows, R = residual_rows(data.rows, data.merged, residuals)
        kernels = variance_kernels(options, mean, m, d)
        variance = fit_variance(
            _variance_engine(engine, rows, residuals, data.merged.weight, options),
            kernels,
            options.variance_objective,
            R,
            variance_ladder(m, len(kernels)),
            options.training,
            np.random.default_rng(seed + 1),
        )
    with clock("calibration"):
        calibration = _calibrate(data, variance, residuals, options)
    return TwoStageFit(mean, variance, calibration, clock.seconds, n_refits)


def _variance_engine(
    engine: ExactEngine, rows: Rows, residuals: Array, weight: Array, options: Options
) -> ExactEngine:
    """The engine of the second stage, whose noise is bounded below by the residuals' size.

    Leave-one-out variances say what to expect at the usual distance from a training row. They
    cannot tell noise from a function that wiggles between the rows, so that without a bound the
    variance may vanish right at the rows.
    """
    if options.variance_objective != "heldout":
        return engine.with_rows(rows)
    squared = residuals**2
    order = np.argsort(squared)
    middle = np.searchsorted(np.cumsum(weight[order]), 0.5 * weight.sum())
    typical = float(squared[order][middle]) / float(chi2.median(1))
    floor = max(engine.noise_floor, NOISE_SHARE * typical)
    return replace(engine.with_rows(rows), noise_floor=floor)


def _calibrate(
    data: Prepared, variance: GPVariance, residuals: Array, options: Options
) -> Calibration:
    v = np.maximum(variance.heldout_variance, options.noise_floor)
    z = residuals / np.sqrt(v[data.merged.inverse])
    if options.calibration is None:
        return Calibration("none", 1.0, z)
    note = ""
    if options.calibration == "local":
        note = "'local' is not available yet: one factor for all rows was used"
    # A residual of exactly zero everywhere must not give a variance of zero.
    factor = max(scale_from_quantile(z, data.merged.weight), 1e-6)
    return Calibration("scale", factor, z, note)
