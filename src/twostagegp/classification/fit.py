"""The three parts of a classifier, carried out one after the other."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from twostagegp.classification.calibration import LatentScale, choose_scale
from twostagegp.classification.dirichlet import Dirichlet
from twostagegp.classification.mean import ClassMean, fit_class_mean, kernel_choices
from twostagegp.classification.table import ClassTable
from twostagegp.classification.variance import (
    ExactLatents,
    LocalLatents,
    TrainedKernel,
    refit_latents,
    train_latents,
)
from twostagegp.classification.views import View
from twostagegp.engines.problem import ObjectiveName
from twostagegp.kernels import Kernel, is_flexible
from twostagegp.pipeline.mean.crossfit import assign_folds
from twostagegp.pipeline.settings import ClassSettings
from twostagegp.training.schedule import Training

__all__ = ["ClassFit", "ClassOptions", "fit_classes"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]

_LOG = logging.getLogger("twostagegp")

#: Dirichlet parameters of the other classes that are tried.
ALPHAS = (0.01, 0.05, 0.2, 0.5)
#: Distinct rows that are held out where the method is that of neighbours.
SAMPLE_ROWS = 5000
#: Distinct rows on which the Dirichlet parameter is chosen.
CHOICE_ROWS = 800


@dataclass(frozen=True)
class ClassOptions:
    """The choices of the front door, one field a constructor parameter."""

    stages: int
    alpha_eps: float | str
    latent_scale: float | str
    smoothing: float
    method: str
    kernels: Sequence[Any]
    ard: bool | str
    mean: Any
    variance: Any
    residuals: str
    n_neighbors: int
    training: Training | None
    noise_floor: float
    settings: ClassSettings = field(default_factory=ClassSettings)


@dataclass
class ClassFit:
    """Everything that was learned.

    Attributes
    ----------
    mean : ClassMean or None
        Part 1; None for a single stage, whose mean is that of ``latents``.
    latents : ExactLatents or LocalLatents
        Part 2.
    scale : LatentScale
        Part 3.
    """

    mean: ClassMean | None
    latents: ExactLatents | LocalLatents
    scale: LatentScale
    seconds: dict[str, float]
    tried_alphas: dict[float, float] = field(default_factory=dict)

    @property
    def trained(self) -> TrainedKernel:
        return self.latents.trained

    def moments(self, X: Array) -> tuple[Array, Array]:
        """Calibrated means and variances of the latents, each of shape (n, K)."""
        mean, variance = self.latents.moments(X)
        if self.mean is not None:
            mean = self.mean.predict(X)
        return self.scale(mean, variance)


class GPMember:
    """The mean of the single-stage Gaussian process, as a member of the stack."""

    latents: ExactLatents | LocalLatents
    heldout: Array
    label: str

    def __init__(
        self, table: ClassTable, options: ClassOptions, sample: Index, rng: np.random.Generator
    ) -> None:
        trained, _ = _choose_dirichlet(table, replace(options, stages=1), None, sample, rng)
        self.latents = _condition(table, trained, options)
        self.heldout = _heldout(table, self.latents, options, sample, rng)[0]
        self.latents.drop_variance()
        self.label = f"{trained.kernel.label} GP ({trained.view.name})"

    def predict(self, X: Array) -> Array:
        """Latents, shape (n, K)."""
        return self.latents.predict(X)


def fit_classes(table: ClassTable, options: ClassOptions, seed: int) -> ClassFit:
    """Fit one or two stages."""
    rng = np.random.default_rng(seed)
    sample = np.arange(len(table))
    if options.method == "neighbors":
        sample = _heldout_rows(table, rng)
    seconds: dict[str, float] = {}
    begin = time.perf_counter()
    mean = None
    if options.stages == 2:
        further = [GPMember(table, options, sample, rng)] if options.mean == "stack" else []
        mean = fit_class_mean(
            table,
            options.mean,
            options.kernels,
            options.ard,
            options.method,
            options.n_neighbors,
            sample,
            further,
            _refits(table, options),
            seed,
        )
        seconds["mean"] = time.perf_counter() - begin
        _LOG.info("mean is %s; now the variance", mean.label)
    begin = time.perf_counter()
    trained, tried = _choose_dirichlet(table, options, mean, sample, rng)
    latents = _condition(table, trained, options)
    seconds["variance"] = time.perf_counter() - begin
    begin = time.perf_counter()
    scale = _scale(table, latents, mean, options, sample, rng)
    seconds["calibration"] = time.perf_counter() - begin
    return ClassFit(mean, latents, scale, seconds, tried)


def _heldout_rows(table: ClassTable, rng: np.random.Generator) -> Index:
    """Distinct rows that are held out where not all are."""
    m = len(table)
    if m <= SAMPLE_ROWS:
        return np.arange(m)
    return np.sort(rng.permutation(m)[:SAMPLE_ROWS])


def _condition(
    table: ClassTable, trained: TrainedKernel, options: ClassOptions
) -> ExactLatents | LocalLatents:
    if options.method == "exact":
        return ExactLatents(table, trained)
    return LocalLatents(table, trained, options.n_neighbors)


def _heldout(
    table: ClassTable,
    latents: ExactLatents | LocalLatents,
    options: ClassOptions,
    sample: Index,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Held-out means and variances of a single stage; by refits where rows are few."""
    flexible = is_flexible(latents.trained.kernel)
    if flexible and _refits(table, options) and isinstance(latents, ExactLatents):
        folds = assign_folds(len(table), options.settings.refit_folds, rng, table.groups)
        return refit_latents(table, latents, options.noise_floor, folds)
    return latents.heldout(sample)


def _refits(table: ClassTable, options: ClassOptions) -> bool:
    """Whether hyperparameters of many are trained again without each fold."""
    few = len(table) <= options.settings.refit_rows
    return options.method == "exact" and options.training is None and few


def _variance_choices(
    table: ClassTable, options: ClassOptions, mean: ClassMean | None
) -> list[tuple[View, Kernel]]:
    """Kernels of the Gaussian process: isotropic ones, of two stages in the view of the mean."""
    kernels = options.variance if options.stages == 2 else options.kernels
    if isinstance(kernels, str) and kernels == "search":
        kernels = options.kernels
    elif not isinstance(kernels, list | tuple):
        kernels = [kernels]
    choices = kernel_choices(kernels, False if mean is not None else options.ard, table)
    if mean is not None:
        choices = [(view, kernel) for view, kernel in choices if view.name == mean.view.name]
    return choices


def _residuals(
    table: ClassTable, dirichlet: Dirichlet, mean: ClassMean, sample: Index, insample: bool
) -> Array:
    """Dirichlet targets less what the mean says of them, shape (h, K)."""
    latents = mean.predict(table.X[sample]) if insample else mean.heldout
    P = np.asarray(softmax(latents, axis=1))
    return dirichlet.target(table.codes[sample]) - dirichlet.latent(P)


def _train(
    table: ClassTable,
    options: ClassOptions,
    mean: ClassMean | None,
    sample: Index,
    alpha_eps: float,
    choices: list[tuple[View, Kernel]],
    rng: np.random.Generator,
) -> TrainedKernel:
    dirichlet = Dirichlet(alpha_eps, table.n_classes, options.smoothing)
    residuals = None
    if mean is not None:
        insample = options.residuals == "insample"
        residuals = _residuals(table, dirichlet, mean, sample, insample)
    objective: ObjectiveName = "loo"
    if mean is not None:
        objective = "nll" if options.residuals == "insample" else "heldout"
    return train_latents(
        table,
        choices,
        dirichlet,
        residuals,
        sample,
        options.training,
        objective,
        options.noise_floor,
        rng,
    )


def _choose_dirichlet(
    table: ClassTable,
    options: ClassOptions,
    mean: ClassMean | None,
    sample: Index,
    rng: np.random.Generator,
) -> tuple[TrainedKernel, dict[float, float]]:
    """The Dirichlet parameter by held-out log loss on some rows, and its trained kernel."""
    choices = _variance_choices(table, options, mean)
    if not isinstance(options.alpha_eps, str):
        trained = _train(table, options, mean, sample, options.alpha_eps, choices, rng)
        return trained, {}
    some = np.sort(rng.permutation(len(sample))[:CHOICE_ROWS])
    part = table.subset(sample[some])
    found: dict[float, tuple[float, TrainedKernel]] = {}
    for alpha_eps in ALPHAS:
        trained = _train(table, options, mean, sample, alpha_eps, choices, rng)
        choices = [(trained.view, trained.kernel)]  # the best of the first serves the others
        latents = ExactLatents(part, trained)
        means, variances = latents.heldout(np.arange(len(part)))
        if mean is not None:
            means = mean.heldout[some]
        scale = choose_scale(means, variances, part.codes, part.c, part.groups, rng)
        found[alpha_eps] = min(scale.losses.values()), trained
    best = min(found, key=lambda alpha_eps: found[alpha_eps][0])
    return found[best][1], {alpha_eps: loss for alpha_eps, (loss, _) in found.items()}


def _scale(
    table: ClassTable,
    latents: ExactLatents | LocalLatents,
    mean: ClassMean | None,
    options: ClassOptions,
    sample: Index,
    rng: np.random.Generator,
) -> LatentScale:
    K = table.n_classes
    if not isinstance(options.latent_scale, str):
        tau = float(options.latent_scale)
        return LatentScale(tau, np.zeros(K), tau**2)
    if mean is None:
        means, variances = _heldout(table, latents, options, sample, rng)
    else:
        means, variances = mean.heldout, latents.heldout(sample)[1]
    groups = None if table.groups is None else table.groups[sample]
    return choose_scale(means, variances, table.codes[sample], table.c[sample], groups, rng)
