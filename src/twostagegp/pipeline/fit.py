r"""The three parts in a row, on standardised numbers: mean, variance, calibration.

Each part is trained on what the part before it got wrong on rows it had not seen:

    rows -> candidates -> stack -> held-out residuals -> variance -> held-out z -> calibration

Nothing here knows about scikit-learn, units or several targets; the front doors do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import chi2
from torch import Tensor

from twostagegp.data.appending import CONSTANT_MODEL, AppendedRows
from twostagegp.data.rows import Merged
from twostagegp.data.scaling import Prepared
from twostagegp.engines.exact.engine import ExactEngine, Work
from twostagegp.engines.memory import can_keep_factors
from twostagegp.engines.neighbors.engine import NeighborEngine
from twostagegp.errors import InputError
from twostagegp.kernels import Kernel, NamedKernel, inverse_lengthscale_shares
from twostagegp.pipeline.calibration.fit import Calibration, calibrate_locally, calibrate_scale
from twostagegp.pipeline.calibration.local_scale import Situation
from twostagegp.pipeline.calibration.shape import Shape
from twostagegp.pipeline.mean.build import StackedMean, fit_mean
from twostagegp.pipeline.mean.models import ConstantMean, NeighborMean, RidgeMean
from twostagegp.pipeline.mean.neighbor_build import (
    Sample,
    fit_neighbor_mean,
    fit_neighbor_variance,
    neighbor_variance_kernels,
)
from twostagegp.pipeline.options import (
    FULL_TRAINING_ROWS,
    MEDIUM_ROWS,
    SMALL_ROWS,
    Options,
    kernel_list,
)
from twostagegp.pipeline.variance import ConstantVariance, GPVariance, fit_variance, residual_rows
from twostagegp.search.kernel_search import KernelSearch
from twostagegp.training.ladder import Ladder

if TYPE_CHECKING:
    from twostagegp.pipeline.svgp import SparseVariance

__all__ = ["TwoStageFit", "fit_two_stage"]

Array = NDArray[np.float64]

_LOG = logging.getLogger("twostagegp")

#: The second stage's noise variance is at least this share of the squared size of the residuals.
NOISE_SHARE = 0.3

#: A law of less spread than this share of sigma is as good as a point.
_LEAST_STD = 1e-3

#: Held-out predictions that leaving a row out moves by more than this share of their own spread say
#: more about the row's target than about its place.
MOST_MOVED = 0.5
#: Rows on which that is looked at.
FINAL_ROWS = 1000


@dataclass
class TwoStageFit:
    """Everything that was learned about one target, in standardised units."""

    mean: StackedMean
    variance: GPVariance | ConstantVariance | SparseVariance
    calibration: Calibration
    seconds: dict[str, float]
    n_refits: int
    noise_floor: float
    conditionings: int = 0
    method: tuple[str, str] = ("exact", "asked for")

    @property
    def noise(self) -> float:
        """Calibrated noise variance (of a typical row), never below the floor."""
        return max(self.calibration.factor * self.variance.noise, self.least_noise)

    @property
    def least_noise(self) -> float:
        """The floor in units of sigma squared, of which a law off centre has only a share."""
        return self.noise_floor / max(self.shape.std, _LEAST_STD) ** 2

    @property
    def shape(self) -> Shape:
        """The law of an observation around its mean, in units of sigma."""
        return self.calibration.shape

    @property
    def searches(self) -> tuple[KernelSearch | None, KernelSearch | None]:
        """The searches by the ratio test of mean and variance, where there were any."""
        return self.mean.search, self.variance.search

    def predict_mean(self, X: Tensor) -> Tensor:
        """Prediction of the stack."""
        return self.mean.predict(X)

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, variance of the function and variance of an observation, each of shape (n,)."""
        mean, latent, factors = self._scaled_parts(X)
        noise = (factors * self.variance.noise).clamp_(min=self.least_noise)
        latent = factors * latent
        return mean, latent, latent + noise

    def covariance(self, X: Tensor) -> Tensor:
        r"""Joint covariance of observations, shape (n, n).

        With the local scale g it is :math:`\sqrt{g(x)}\, C(x, x') \sqrt{g(x')}`, so that its
        diagonal is the variance of each observation and correlations are those of part 2.
        """
        C = self.variance.latent_covariance(X)
        if self.calibration.local is None:  # one factor: nothing else of these rows is needed
            C.mul_(self.calibration.factor).diagonal().add_(self.noise)
            return C
        _, _, factors = self._scaled_parts(X)
        root = factors.sqrt()
        C = C * root[:, None] * root
        C.diagonal().add_((factors * self.variance.noise).clamp_(min=self.least_noise))
        return C

    def _scaled_parts(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, variance of part 2 without noise, and what the calibration multiplies it by."""
        if self.calibration.local is None:
            latent = self.variance.latent(X)
            return self.mean.predict(X), latent, torch.full_like(latent, self.calibration.factor)
        mean, disagreement = self.mean.predict_with_disagreement(X)
        latent = self.variance.latent(X)
        sigma2 = latent + self.variance.noise
        situation = Situation(_numpy(X), _numpy(mean), _numpy(sigma2), _numpy(disagreement))
        factors = self.calibration.local.factor(situation)
        return mean, latent, torch.as_tensor(factors).to(latent)

    def extended(self, appended: AppendedRows, residuals: Array) -> TwoStageFit:
        """The same hyperparameters, weights and calibration with more rows.

        ``residuals`` are the errors of predictions of the new rows, made without them.
        """
        variance = self.variance
        if isinstance(variance, ConstantVariance):
            raise InputError(CONSTANT_MODEL)
        if not isinstance(variance, GPVariance):
            raise InputError(
                "method='svgp' cannot be updated: its inducing points are trained on all rows. "
                "Call fit with all rows, or use method='neighbors' or 'exact'."
            )
        keep = False
        if self.method[0] == "exact":
            X = appended.data.rows.X
            ridges = sum(isinstance(model, RidgeMean) for model in self.mean.models)
            size = X.element_size()
            keep = can_keep_factors(len(X), 1 + ridges, X.device, size, appended.n_before)
        return replace(
            self,
            mean=self.mean.extended(appended, keep),
            variance=variance.extended(appended, residuals),
        )

    def relevance(self, n_features: int) -> Array:
        """Inverse lengthscales of the mean's kernels, weighted as in the stack."""
        share = np.zeros(n_features)
        for weight, model in zip(self.mean.weights, self.mean.models, strict=True):
            if isinstance(model, RidgeMean | NeighborMean):
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


def variance_ladder(m: int, n_candidates: int) -> Ladder:
    """Warm start of the variance's candidates."""
    steps = 3 if m > FULL_TRAINING_ROWS else 8 if m <= MEDIUM_ROWS else 5
    return Ladder.plan(m, n_candidates, full_keep=1, full_steps=steps)


def variance_kernels(options: Options, mean: StackedMean, data: Prepared) -> list[Kernel]:
    """Kernels of the second stage.

    With ``ard="both"`` each name comes in two forms: with lengthscales in the ratios that the
    mean has found, so that only their common size is open, and with all of them open.
    """
    m, d, columns = len(data.rows), data.rows.X.shape[1], data.columns
    kernels = options.variance
    if isinstance(kernels, str) and kernels == "search":
        kernels = options.kernels
    elif not isinstance(kernels, list | tuple):
        kernels = [kernels]
    shape = mean.lengthscale_shape() if options.ard == "both" else None
    if shape is None:
        ard = False if options.ard == "both" and m < SMALL_ROWS else options.ard
        return kernel_list(kernels, ard, d, columns)
    named = [kernel for kernel in kernels if isinstance(kernel, str)]
    made: list[Kernel] = [NamedKernel(name, d, shape=shape) for name in named]
    objects = [kernel for kernel in kernels if not isinstance(kernel, str)]
    made += kernel_list(objects, False, d, columns)
    return made if m < SMALL_ROWS else made + kernel_list(named, True, d)


def _constant_parts(data: Prepared, options: Options) -> TwoStageFit:
    """Too few distinct rows, no usable column or a constant target: mean and one variance."""
    model = ConstantMean(data.merged)
    residuals = model.heldout_residuals
    weight = data.merged.weight
    noise = max(float(weight @ residuals**2 / weight.sum()), options.noise_floor)
    variance = ConstantVariance(noise, len(data.rows))
    calibration = Calibration(
        "none", 1.0, residuals / np.sqrt(noise), weight, note="too little to learn from"
    )
    mean = StackedMean([model], np.ones(1), residuals)
    return TwoStageFit(mean, variance, calibration, {}, 0, options.noise_floor)


def fit_two_stage(data: Prepared, options: Options, seed: int) -> TwoStageFit:
    """Fit the three parts to one standardised target."""
    m, d = len(data.rows), data.rows.X.shape[1]
    if m < 3 or d == 0 or data.constant_target:
        return _constant_parts(data, options)
    if options.method in ("neighbors", "vecchia", "svgp"):
        return _fit_neighbors(data, options, seed)
    clock = _Clock()
    work = Work(full_rows=m)
    # The paper's schedules know no prior.
    engine = ExactEngine(
        data.rows, options.noise_floor, options.training is None, work, options.factor_dtype
    )
    _LOG.info("mean: %d rows, %d distinct, %d columns", data.n_rows, m, d)
    with clock("mean"):
        mean, n_refits = fit_mean(data, engine, options, seed)
        residuals = mean.heldout_residuals
        if options.residuals == "insample":
            residuals = data.merged.y - mean.predict(data.rows.X).cpu().numpy()[data.merged.inverse]
    _LOG.info("mean is %s; now the variance", mean.label)
    with clock("variance"):
        rows, R = residual_rows(data.rows, data.merged, residuals)
        kernels = variance_kernels(options, mean, data)
        floor = _variance_floor(residuals, data.merged, options)
        variance = fit_variance(
            replace(engine.with_rows(rows), noise_floor=floor),
            kernels,
            options.variance_objective,
            R,
            variance_ladder(m, len(kernels)),
            options.training,
            np.random.default_rng(seed + 1),
            by_test=options.variance_selection == "misspecification",
        )
    with clock("calibration"):
        index = torch.arange(m, device=data.rows.X.device)
        calibration = _calibrate(data, data.merged, index, variance, mean, options, seed)
    return TwoStageFit(
        mean,
        variance,
        calibration,
        clock.seconds,
        n_refits,
        options.noise_floor,
        work.full_conditionings,
    )


def _fit_neighbors(data: Prepared, options: Options, seed: int) -> TwoStageFit:
    """The three parts on neighbours; what is held out is a sample of rows."""
    clock, rng = _Clock(), np.random.default_rng(seed)
    m, d = len(data.rows), data.rows.X.shape[1]
    order = None
    if options.method == "vecchia" or options.selection == "nll":
        order = torch.as_tensor(rng.permutation(m), device=data.rows.X.device)
    engine = NeighborEngine(
        data.rows, options.n_neighbors, options.noise_floor, options.training is None, order
    )
    sample = Sample.draw(data, rng)
    _LOG.info("mean: %d rows, %d distinct, %d columns", data.n_rows, m, d)
    sparse = options.method == "svgp"
    make = None
    if sparse:  # GPyTorch is slow to import
        from twostagegp.pipeline.svgp import SparseMeanBuilder, fit_sparse_variance

        make = SparseMeanBuilder
    with clock("mean"):
        mean = fit_neighbor_mean(data, engine, options, sample, seed, rng, make)
        residuals = mean.heldout_residuals
        if options.residuals == "insample":
            fitted = mean.predict(data.rows.X[sample.tensor(data.rows.X.device)])
            residuals = sample.merged.y - fitted.double().cpu().numpy()[sample.merged.inverse]
    _LOG.info("mean is %s; now the variance", mean.label)
    with clock("variance"):
        floor = _variance_floor(residuals, sample.merged, options)
        kernels = neighbor_variance_kernels(options, mean, data)
        variance: GPVariance | SparseVariance
        if sparse:
            own_rows, _ = residual_rows(data.rows.subset(sample.index), sample.merged, residuals)
            variance = fit_sparse_variance(own_rows, kernels, floor, sample, residuals, seed, rng)
        else:
            variance = fit_neighbor_variance(
                data, engine.with_noise_floor(floor), kernels, options, sample, residuals, rng
            )
    with clock("calibration"):
        index = sample.tensor(data.rows.X.device)
        calibration = _calibrate(data, sample.merged, index, variance, mean, options, seed)
    return TwoStageFit(mean, variance, calibration, clock.seconds, 0, options.noise_floor)


def _variance_floor(residuals: Array, merged: Merged, options: Options) -> float:
    """Lower bound of the second stage's noise, from the residuals' size.

    Leave-one-out variances say what to expect at the usual distance from a training row. They
    cannot tell noise from a function that wiggles between the rows, so that without a bound the
    variance may vanish right at the rows.
    """
    if options.variance_objective != "heldout":
        return options.noise_floor
    weight, known = merged.weight, merged.extra[merged.inverse]
    squared = np.maximum(residuals**2 - known, 0.0)
    order = np.argsort(squared)
    middle = np.searchsorted(np.cumsum(weight[order]), 0.5 * weight.sum() - 1e-9)
    typical = float(squared[order][middle]) / float(chi2.median(1))
    return max(options.noise_floor, NOISE_SHARE * typical)


def _calibrate(
    data: Prepared,
    merged: Merged,
    index: Tensor,
    variance: GPVariance | SparseVariance,
    mean: StackedMean,
    options: Options,
    seed: int,
) -> Calibration:
    """Part 3, from the rows that were held out: ``merged``, the distinct rows ``index``."""
    residuals = mean.heldout_residuals
    held = np.asarray(variance.heldout_variance, dtype=np.float64)
    v = np.maximum(held, options.noise_floor)[merged.inverse]
    z = residuals / np.sqrt(v)
    if options.calibration is None:
        return Calibration("none", 1.0, z, merged.weight)
    if options.calibration == "scale":
        return calibrate_scale(z, merged.weight)
    predicted = merged.y - residuals
    some = np.random.default_rng(seed).permutation(len(index))[:FINAL_ROWS]
    final = _numpy(mean.predict(data.rows.X[index[torch.as_tensor(some).to(index)]]))
    situation = Situation(
        merged.X[merged.inverse],
        predicted,
        v,
        mean.heldout_disagreement,
        _is_telling(predicted, merged, some, final),
    )
    share = len(index) / len(data.rows)
    return calibrate_locally(
        situation,
        z,
        merged,
        share,
        mean.lengthscale_shape(),
        float(variance.noise),
        options.noise_floor,
        seed,
        data.rows.X.device,
    )


def _is_telling(heldout: Array, merged: Merged, some: NDArray[np.int64], final: Array) -> bool:
    """Whether held-out predictions vary by more than what leaving a row out does to them.

    ``final`` are predictions of the final model for ``some`` of the distinct rows.
    """
    weight, m = merged.weight, len(merged.c)
    by_row = np.bincount(merged.inverse, weights=weight * heldout, minlength=m) / merged.c
    share = merged.c[some] / merged.c[some].sum()
    moved = float(np.sqrt(share @ (by_row[some] - final) ** 2))
    centred = heldout - weight @ heldout / weight.sum()
    return moved <= MOST_MOVED * float(np.sqrt(weight @ centred**2 / weight.sum()))


def _numpy(values: Tensor) -> Array:
    return values.double().cpu().numpy()
