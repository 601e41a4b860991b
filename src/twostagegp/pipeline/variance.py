r"""Part 2, the variance: a zero-mean GP on what the mean left over.

Only its variance is used,

.. math::

    \hat\sigma^2(x) = k(x, x) - k_x^\top (K + \sigma^2 I)^{-1} k_x + \sigma^2 ,

which depends on the inputs and the hyperparameters alone. Those are chosen so that the GP's
own leave-one-out variances explain the held-out residuals of part 1
(:func:`twostagegp.numerics.objectives.heldout_variance`), or by the likelihood of the residuals,
the paper's way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.appending import AppendedRows
from twostagegp.data.rows import Merged, Rows
from twostagegp.engines.exact.engine import ExactEngine, ExactPosterior
from twostagegp.engines.problem import ObjectiveName
from twostagegp.engines.protocol import Engine, Posterior
from twostagegp.kernels import Kernel
from twostagegp.search.kernel_search import KernelSearch
from twostagegp.search.stages import search_stage
from twostagegp.training.ladder import Candidate, Ladder, climb, fitted_only, train_with
from twostagegp.training.schedule import Training

__all__ = ["ConstantVariance", "GPVariance", "fit_variance", "residual_rows"]

Array = NDArray[np.float64]


def residual_rows(rows: Rows, merged: Merged, residuals: Array) -> tuple[Rows, Tensor]:
    """Rows whose target is a residual, and the sums of squares R of each row's residuals.

    Parameters
    ----------
    residuals : array of shape (n,)
        One a row of the table, repeats included.
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
    everyone: list[Candidate]
    posterior: Posterior
    heldout_variance: Array  # one a merged row
    search: KernelSearch | None = None

    @property
    def label(self) -> str:
        return self.kernel.label

    @property
    def noise(self) -> float:
        """Noise variance on the standardised target."""
        return self.posterior.noise

    def latent(self, X: Tensor) -> Tensor:
        """Variance of the function, shape (n,)."""
        return self.posterior.variance(X)

    def latent_covariance(self, X: Tensor) -> Tensor:
        """Covariance of the function, shape (n, n)."""
        return self.posterior.covariance(X)

    def extended(self, appended: AppendedRows, residuals: Array) -> GPVariance:
        """The same hyperparameters conditioned on more rows.

        ``residuals`` are errors of predictions of the new rows before they were known; like the
        held-out variances, which stay those of the fit, no prediction depends on them.
        """
        rows, posterior = appended.data.rows, self.posterior
        if isinstance(posterior, ExactPosterior):
            rows = appended.with_target(posterior.rows, residuals)
        return replace(self, posterior=posterior.extended(rows, appended.changed_rows))


class ConstantVariance:
    """One variance everywhere: what is left when there is nothing to condition on."""

    label = "constant"
    kernel = None
    everyone: Sequence[Candidate] = ()
    search = None

    def __init__(self, noise: float, n_rows: int) -> None:
        self.noise = noise
        self.heldout_variance = np.full(n_rows, noise)

    def latent(self, X: Tensor) -> Tensor:
        """Zero: all variance is noise."""
        return torch.zeros(X.shape[0], dtype=X.dtype, device=X.device)

    def latent_covariance(self, X: Tensor) -> Tensor:
        """Zero."""
        return torch.zeros(X.shape[0], X.shape[0], dtype=X.dtype, device=X.device)


def _rank_by_value(engine: Engine, unseen: Engine, candidates: Sequence[Candidate]) -> Array:
    """Objective a row, plus one nat for every parameter (Akaike's correction)."""
    N = engine.rows.total
    return np.array([c.value + c.kernel.size / N for c in candidates])


def fit_variance(
    engine: ExactEngine,
    kernels: Sequence[Kernel],
    objective: ObjectiveName,
    R: Tensor,
    ladder: Ladder,
    training: Training | None,
    rng: np.random.Generator,
    by_test: bool = False,
) -> GPVariance:
    """Choose the kernel and hyperparameters of the second stage, and condition on all rows.

    ``engine`` holds the residual rows; ``R`` is used by ``objective="heldout"`` only. With
    ``by_test`` the kernel is chosen by the ratio test.
    """
    search = None
    if by_test:
        search = search_stage(engine.rows, kernels, "gp", rng, noise_floor=engine.noise_floor)
    kernels = kernels if search is None else [search.best]
    R_used = R if objective == "heldout" else None
    candidates = [Candidate(kernel, objective) for kernel in kernels]
    if training is None:
        survivors = climb(engine, candidates, ladder, _rank_by_value, rng, R_used)
    else:
        for candidate in candidates:
            train_with(engine, candidate, training, rng, R_used)
        survivors = fitted_only(candidates)
    best = survivors[int(np.argmin(_rank_by_value(engine, engine, survivors)))]
    assert best.parameters is not None
    posterior = engine.condition(best.kernel, best.parameters)
    held = posterior.heldout().variance.cpu().numpy()
    return GPVariance(best.kernel, best, candidates, posterior, held, search)
