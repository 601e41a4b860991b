"""The whole fit of a classifier: mean, variance, calibration."""

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
from twostagegp.classification.latents import Latents
from twostagegp.classification.mean import ClassMean, fit_class_mean
from twostagegp.classification.ridges import GPMember, kernel_choices
from twostagegp.classification.table import ClassTable
from twostagegp.classification.variance import (
    TrainedKernel,
    condition,
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


@dataclass(frozen=True)
class ClassOptions:
    """The options of a fit, one field per constructor parameter of the estimator."""

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

    def refits(self, m: int) -> bool:
        """Return whether flexible kernels are trained again without each fold of m rows."""
        return self.method == "exact" and self.training is None and m <= self.settings.refit_rows


@dataclass
class ClassFit:
    """A fitted classifier.

    Attributes
    ----------
    table : ClassTable
        Distinct training rows with their classes.
    mean : ClassMean or None
        Part 1; None for a single stage, whose mean is that of ``latents``.
    trained : TrainedKernel
        Part 2: the kernel of the Gaussian processes and its hyperparameters.
    latents : Latents
        Part 2: the Gaussian processes, conditioned on the rows.
    scale : LatentScale
        Part 3.
    seconds : dict
        Time of each part.
    tried_alphas : dict
        Held-out log loss for each Dirichlet parameter that was tried.
    """

    table: ClassTable
    mean: ClassMean | None
    trained: TrainedKernel
    latents: Latents
    scale: LatentScale
    seconds: dict[str, float]
    tried_alphas: dict[float, float] = field(default_factory=dict)

    def moments(self, X: Array) -> tuple[Array, Array]:
        """Return calibrated means and variances of the latents, each of shape (n, K)."""
        if self.mean is None:
            return self.scale(*self.latents.moments(X))
        return self.scale(self.mean.predict(X), self.latents.variance(X))


def fit_classes(table: ClassTable, options: ClassOptions, seed: int) -> ClassFit:
    """Fit a classifier of one or two stages."""
    rng = np.random.default_rng(seed)
    sample = np.arange(len(table))
    if options.method == "neighbors":
        sample = _heldout_rows(len(table), options.settings.sample_rows, rng)
    seconds: dict[str, float] = {}
    begin = time.perf_counter()
    mean = None
    if options.stages == 2:
        further = [_single_stage(table, options, sample, rng)] if options.mean == "stack" else []
        mean = fit_class_mean(table, options, sample, further, seed)
        seconds["mean"] = time.perf_counter() - begin
        _LOG.info("mean is %s; now the variance", mean.label)
    begin = time.perf_counter()
    trained, tried = _choose_dirichlet(table, options, mean, sample, rng)
    latents = condition(table, trained, options.method, options.n_neighbors)
    seconds["variance"] = time.perf_counter() - begin
    begin = time.perf_counter()
    scale = _scale(table, trained, latents, mean, options, sample, rng)
    seconds["calibration"] = time.perf_counter() - begin
    return ClassFit(table, mean, trained, latents, scale, seconds, tried)


def _heldout_rows(m: int, most: int, rng: np.random.Generator) -> Index:
    """Return the numbers of the held-out rows: all m, or ``most`` of them at random."""
    return np.arange(m) if m <= most else np.sort(rng.permutation(m)[:most])


def _single_stage(
    table: ClassTable, options: ClassOptions, sample: Index, rng: np.random.Generator
) -> GPMember:
    """Return the mean of the single-stage Gaussian process, as a member of the stack."""
    trained, _ = _choose_dirichlet(table, replace(options, stages=1), None, sample, rng)
    latents = condition(table, trained, options.method, options.n_neighbors)
    heldout = _heldout(table, trained, latents, options, sample, rng)[0]
    latents.drop_variance()
    return GPMember(f"{trained.kernel.label} GP ({trained.view.name})", latents, heldout)


def _heldout(
    table: ClassTable,
    trained: TrainedKernel,
    latents: Latents,
    options: ClassOptions,
    sample: Index,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Return held-out means and variances of a single stage.

    They come from refits if the kernel is flexible and there are few rows.
    """
    if is_flexible(trained.kernel) and options.refits(len(table)):
        folds = assign_folds(len(table), options.settings.refit_folds, rng, table.groups)
        return refit_latents(table, trained, options.noise_floor, folds, options.settings)
    return latents.heldout(sample)


def _variance_choices(
    table: ClassTable, options: ClassOptions, mean: ClassMean | None
) -> list[tuple[View, Kernel]]:
    """Return the kernels of part 2, each with its view.

    With two stages they are isotropic and have the view of the mean.
    """
    kernels = options.variance if options.stages == 2 else options.kernels
    if isinstance(kernels, str) and kernels == "search":
        kernels = options.kernels
    elif not isinstance(kernels, list | tuple):
        kernels = [kernels]
    ard = False if mean is not None else options.ard
    choices = kernel_choices(kernels, ard, table, options.settings)
    if mean is not None:
        choices = [(view, kernel) for view, kernel in choices if view.name == mean.view.name]
    return choices


def _residuals(
    table: ClassTable, dirichlet: Dirichlet, mean: ClassMean, sample: Index, insample: bool
) -> Array:
    """Return the Dirichlet targets minus the latents of the mean's probabilities, shape (h, K)."""
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
        options.settings,
        rng,
    )


def _choose_dirichlet(
    table: ClassTable,
    options: ClassOptions,
    mean: ClassMean | None,
    sample: Index,
    rng: np.random.Generator,
) -> tuple[TrainedKernel, dict[float, float]]:
    """Choose the Dirichlet parameter by held-out log loss on some rows, and train the kernel.

    Returns the trained kernel, and the loss for each parameter that was tried.
    """
    choices = _variance_choices(table, options, mean)
    if not isinstance(options.alpha_eps, str):
        trained = _train(table, options, mean, sample, options.alpha_eps, choices, rng)
        return trained, {}
    some = np.sort(rng.permutation(len(sample))[: options.settings.choice_rows])
    part = table.subset(sample[some])
    found: dict[float, tuple[float, TrainedKernel]] = {}
    for alpha_eps in options.settings.alphas:
        trained = _train(table, options, mean, sample, alpha_eps, choices, rng)
        choices = [(trained.view, trained.kernel)]  # the kernel is chosen at the first value only
        means, variances = condition(part, trained).heldout(np.arange(len(part)))
        if mean is not None:
            means = mean.heldout[some]
        scale = choose_scale(
            means, variances, part.codes, part.c, part.groups, options.settings, rng
        )
        found[alpha_eps] = min(scale.losses.values()), trained
    best = min(found, key=lambda alpha_eps: found[alpha_eps][0])
    return found[best][1], {alpha_eps: loss for alpha_eps, (loss, _) in found.items()}


def _scale(
    table: ClassTable,
    trained: TrainedKernel,
    latents: Latents,
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
        means, variances = _heldout(table, trained, latents, options, sample, rng)
    else:
        means, variances = mean.heldout, latents.heldout(sample)[1]
    groups = None if table.groups is None else table.groups[sample]
    codes, weight = table.codes[sample], table.c[sample]
    return choose_scale(means, variances, codes, weight, groups, options.settings, rng)
