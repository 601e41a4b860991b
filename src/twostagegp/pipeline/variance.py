r"""Part 2, the variance: a zero-mean GP on the residuals of the mean.

Only its variance is used,

.. math::

    \hat\sigma^2(x) = k(x, x) - k_x^\top (K + \sigma^2 I)^{-1} k_x + \sigma^2 ,

which depends only on the inputs and the hyperparameters. The hyperparameters maximise the density
of the held-out residuals of part 1 under the GP's leave-one-out variances
(:func:`twostagegp.numerics.objectives.heldout_variance`) or, as in the paper, the likelihood of the
residuals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import chi2
from torch import Tensor

from twostagegp.data.appending import AppendedRows
from twostagegp.data.rows import Merged, Rows
from twostagegp.engines.exact.engine import ExactPosterior
from twostagegp.engines.protocol import Engine, Posterior
from twostagegp.kernels import Kernel
from twostagegp.search.kernel_search import KernelSearch
from twostagegp.search.stages import search_stage
from twostagegp.training.candidates import Candidate

if TYPE_CHECKING:
    from twostagegp.data.scaling import Prepared
    from twostagegp.pipeline.mean.stacked import StackedMean
    from twostagegp.pipeline.methods.protocol import Method
    from twostagegp.pipeline.settings import Options

__all__ = ["ConstantVariance", "GPVariance", "fit_variance", "rank_by_value", "residual_rows"]

Array = NDArray[np.float64]


def residual_rows(rows: Rows, merged: Merged, residuals: Array) -> tuple[Rows, Tensor]:
    """Return rows whose target is a residual, and the sum of squares R of each row's residuals.

    Parameters
    ----------
    residuals : array of shape (n,)
        One per row of the table that was held out, repeats included.
    """
    weight, inverse, m = merged.weight, merged.inverse, len(merged.c)
    t = np.bincount(inverse, weights=weight * residuals, minlength=m) / merged.c
    q = np.bincount(inverse, weights=weight * (residuals - t[inverse]) ** 2, minlength=m)
    R = np.bincount(inverse, weights=weight * residuals**2, minlength=m)
    target = rows.with_target(torch.as_tensor(t).to(rows.X), torch.as_tensor(q).to(rows.X))
    return target, torch.as_tensor(R).to(rows.X)


@dataclass
class GPVariance:
    """The fitted second stage."""

    kernel: Kernel
    candidate: Candidate
    searched: list[Candidate]
    posterior: Posterior
    heldout_variance: Array  # one per distinct row that was held out
    search: KernelSearch | None = None

    @property
    def label(self) -> str:
        return self.kernel.label

    @property
    def noise(self) -> float:
        """Noise variance on the standardised target."""
        return self.posterior.noise

    def latent(self, X: Tensor) -> Tensor:
        """Return the variance of the function, shape (n,)."""
        return self.posterior.variance(X)

    def latent_covariance(self, X: Tensor) -> Tensor:
        """Return the covariance of the function, shape (n, n)."""
        return self.posterior.covariance(X)

    def extended(self, appended: AppendedRows, residuals: Array) -> GPVariance:
        """Condition on more rows at the same hyperparameters.

        ``residuals`` are errors of predictions of the new rows, made before they were added. No
        prediction depends on them, nor on the held-out variances, which stay those of the fit.
        """
        rows, posterior = appended.data.rows, self.posterior
        if isinstance(posterior, ExactPosterior):
            rows = appended.with_target(posterior.rows, residuals)
        return replace(self, posterior=posterior.extended(rows, appended.changed_rows))


class ConstantVariance:
    """One variance for all rows, for tables on which no GP can be conditioned."""

    label = "constant"
    kernel = None
    searched: Sequence[Candidate] = ()
    search = None
    noise: float
    heldout_variance: Array

    def __init__(self, noise: float, n_rows: int) -> None:
        self.noise = noise
        self.heldout_variance = np.full(n_rows, noise)

    def latent(self, X: Tensor) -> Tensor:
        """Return zeros, shape (n,): all variance is noise."""
        return torch.zeros(X.shape[0], dtype=X.dtype, device=X.device)

    def latent_covariance(self, X: Tensor) -> Tensor:
        """Return zeros, shape (n, n)."""
        return torch.zeros(X.shape[0], X.shape[0], dtype=X.dtype, device=X.device)


def rank_by_value(engine: Engine, unseen: Engine, candidates: Sequence[Candidate]) -> Array:
    """Return the objective per row plus one nat per parameter (Akaike's correction)."""
    N = engine.rows.total
    return np.array([c.value + c.kernel.size / N for c in candidates])


def fit_variance(
    data: Prepared, method: Method, mean: StackedMean, residuals: Array, options: Options
) -> GPVariance:
    """Choose the kernel and hyperparameters of part 2 on residuals, and condition on all rows.

    ``residuals`` are those of the rows that were held out, shape (n,).
    """
    held = method.held
    rows, R = residual_rows(held.rows(data.rows), held.merged, residuals)
    engine = method.variance_engine(rows, _lowest_noise(residuals, held.merged, options))
    kernels = method.variance_kernels(mean)
    search = None
    if options.variance_selection == "misspecification":
        search = search_stage(
            rows,
            kernels,
            "gp",
            method.variance_rng,
            noise_floor=engine.noise_floor,
            settings=options.settings.search,
        )
    kernels = kernels if search is None else [search.best]
    candidates = [Candidate(kernel, options.variance_objective) for kernel in kernels]
    alive = method.train_variance(engine, candidates, rows, R)
    scores = [candidate.value + candidate.kernel.size / rows.total for candidate in alive]
    best = alive[int(np.argmin(scores))]
    assert best.parameters is not None
    posterior = engine.condition(best.kernel, best.parameters)
    variance = held.heldout(posterior).variance.double().cpu().numpy()
    return GPVariance(best.kernel, best, candidates, posterior, variance, search)


def _lowest_noise(residuals: Array, merged: Merged, options: Options) -> float:
    """Return a lower bound of the noise variance of part 2, from the size of the residuals.

    Leave-one-out variances are variances at the usual distance from a training row. They do not
    distinguish noise from a function that varies quickly between the rows, so without a bound the
    variance close to training rows may go to zero.
    """
    if options.variance_objective != "heldout":
        return options.noise_floor
    weight, known = merged.weight, merged.extra[merged.inverse]
    squared = np.maximum(residuals**2 - known, 0.0)
    order = np.argsort(squared)
    middle = np.searchsorted(np.cumsum(weight[order]), 0.5 * weight.sum() - 1e-9)
    typical = float(squared[order][middle]) / float(chi2.median(1))
    return max(options.noise_floor, options.settings.variance.noise_share * typical)
