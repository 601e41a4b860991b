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

from twostagegp.classification.calibration import (
    LatentScale,
    choose_scale,
    losses_of,
    mean_and_error,
)
from twostagegp.classification.dirichlet import Dirichlet
from twostagegp.classification.latents import Latents
from twostagegp.classification.mean import ClassMean, fit_class_mean
from twostagegp.classification.pool import row_losses
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
from twostagegp.kernels import Kernel, Vector, is_flexible
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

    stages: int | str
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
    begin = time.perf_counter()
    single = mean = None
    if options.stages == 1 or options.mean == "stack":
        single = _single_stage(table, options, sample, rng)
    if options.stages != 1:
        mean = _mean(table, options, sample, single, seed)
    if mean is None:
        assert single is not None
        return _fit_of_one_stage(table, options, single, sample, begin, rng)
    seconds = {"mean": time.perf_counter() - begin}
    _LOG.info("mean is %s; now the variance", mean.label)
    begin = time.perf_counter()
    trained, tried = _choose_dirichlet(table, options, mean, sample, rng)
    latents = condition(table, trained, options.method, options.n_neighbors)
    seconds["variance"] = time.perf_counter() - begin
    begin = time.perf_counter()
    heldout = mean.heldout, latents.heldout(sample)[1]
    scale = _scale(table, options, heldout, sample, rng)
    seconds["calibration"] = time.perf_counter() - begin
    return ClassFit(table, mean, trained, latents, scale, seconds, tried)


@dataclass(frozen=True)
class _SingleStage:
    """A Gaussian process whose mean and variance are both used.

    ``heldout`` are its held-out means and variances, each of shape (h, K).
    """

    trained: TrainedKernel
    tried: dict[float, float]
    latents: Latents
    heldout: tuple[Array, Array]

    def member(self) -> GPMember:
        """Return its mean as a member of a stack."""
        label = f"{self.trained.kernel.label} GP ({self.trained.view.name})"
        return GPMember(label, self.latents, self.heldout[0])


def _mean(
    table: ClassTable,
    options: ClassOptions,
    sample: Index,
    single: _SingleStage | None,
    seed: int,
) -> ClassMean | None:
    """Return part 1; None if ``stages="auto"`` and the single stage is as good.

    Two stages take about three times as long as one. They are fitted if their first members lower
    the held-out log loss by more than ``stage_errors`` standard errors.
    """
    if single is None:
        return fit_class_mean(table, options, sample, [], seed)
    if options.stages == 2:
        single.latents.drop_variance()
        return fit_class_mean(table, options, sample, [single.member()], seed)
    # A generator of its own: the choice does not change the fit that is chosen.
    rng = np.random.default_rng(seed)
    scale = _scale(table, replace(options, latent_scale="auto"), single.heldout, sample, rng)
    codes, weight = table.codes[sample], table.c[sample]
    labels = np.arange(len(sample)) if table.groups is None else table.groups[sample]
    losses = losses_of(scale, *single.heldout, codes)

    def lower(heldout: Array) -> bool:
        gain, error = mean_and_error(losses - row_losses(heldout, codes), weight, labels)
        return gain > options.settings.stage_errors * error

    mean = fit_class_mean(table, options, sample, [single.member()], seed, lower)
    if mean is not None:
        single.latents.drop_variance()
    return mean


def _fit_of_one_stage(
    table: ClassTable,
    options: ClassOptions,
    single: _SingleStage,
    sample: Index,
    begin: float,
    rng: np.random.Generator,
) -> ClassFit:
    """Return the single stage with its calibration."""
    seconds = {"variance": time.perf_counter() - begin}
    begin = time.perf_counter()
    scale = _scale(table, options, single.heldout, sample, rng)
    seconds["calibration"] = time.perf_counter() - begin
    return ClassFit(table, None, single.trained, single.latents, scale, seconds, single.tried)


def _heldout_rows(m: int, most: int, rng: np.random.Generator) -> Index:
    """Return the numbers of the held-out rows: all m, or ``most`` of them at random."""
    return np.arange(m) if m <= most else np.sort(rng.permutation(m)[:most])


def _single_stage(
    table: ClassTable, options: ClassOptions, sample: Index, rng: np.random.Generator
) -> _SingleStage:
    """Return the single stage, with held-out predictions."""
    trained, tried = _choose_dirichlet(table, options, None, sample, rng)
    latents = condition(table, trained, options.method, options.n_neighbors)
    heldout = _heldout(table, trained, latents, options, sample, rng)
    return _SingleStage(trained, tried, latents, heldout)


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

    With a mean they are isotropic and have its view.
    """
    kernels = options.kernels if mean is None else options.variance
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
    start: Vector | None = None,
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
        start,
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
    start = None
    for alpha_eps in options.settings.alphas:
        trained = _train(table, options, mean, sample, alpha_eps, choices, rng, start)
        # The kernel is chosen at the first value only, and its training continues at the next one.
        choices, start = [(trained.view, trained.kernel)], trained.parameters
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
    options: ClassOptions,
    heldout: tuple[Array, Array],
    sample: Index,
    rng: np.random.Generator,
) -> LatentScale:
    """Return part 3 for held-out means and variances of the rows ``sample``."""
    if not isinstance(options.latent_scale, str):
        tau = float(options.latent_scale)
        return LatentScale(tau, np.zeros(table.n_classes), tau**2)
    groups = None if table.groups is None else table.groups[sample]
    codes, weight = table.codes[sample], table.c[sample]
    return choose_scale(*heldout, codes, weight, groups, options.settings, rng)
