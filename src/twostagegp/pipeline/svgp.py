"""The two stages with a sparse variational GP in each, in place of the neighbours.

The mean's kernel is the one that an exact GP on a few hundred rows predicts other rows best with;
the variational GP starts from it, is cross-fitted as any regressor is, and stacked with the same
companions as the neighbours. A second one on the held-out residuals gives the variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.svgp import SparseGP
from twostagegp.kernels import Kernel
from twostagegp.pipeline.mean.models import MeanModel, rank_by_unseen_error
from twostagegp.pipeline.mean.neighbor_build import SUBSAMPLE_ROWS, MeanBuilder, Sample
from twostagegp.training.ladder import Candidate, fitted_only
from twostagegp.training.neighbor_schedule import Schedule, warm_start

__all__ = ["SparseMeanBuilder", "SparseVariance", "fit_sparse_variance"]

Array = NDArray[np.float64]


class SparseMeanBuilder(MeanBuilder):
    """Turns a ``mean`` option into models whose GPs are sparse variational ones."""

    def ridges(self, kernels: list[Kernel]) -> list[MeanModel]:
        candidates = [Candidate(kernel, "loo") for kernel in kernels]
        self.searched += candidates
        rows, count = self.engine.rows, Schedule().warm_rows
        order = self.rng.permutation(len(rows))
        seen, unseen = order[:count], order[count : count + SUBSAMPLE_ROWS]
        exact = ExactEngine(rows.subset(np.sort(seen)), self.engine.noise_floor)
        alive = warm_start(self.engine.subset(np.sort(seen)), candidates, count, self.rng)
        best = alive[int(np.argmin([candidate.value for candidate in alive]))]
        if len(unseen) and len(alive) > 1:
            others = ExactEngine(rows.subset(np.sort(unseen)), self.engine.noise_floor)
            best = alive[int(np.argmin(rank_by_unseen_error(exact, others, alive)))]
        return [self.regressor(sparse_gp(best, self.engine.noise_floor))]


def sparse_gp(candidate: Candidate, noise_floor: float) -> Any:
    """A sparse GP that starts where a candidate's training ended."""
    assert candidate.parameters is not None
    return SparseGP(candidate.kernel, candidate.parameters, noise_floor=noise_floor)


class SparseVariance:
    """The second stage: variances of a sparse GP on held-out residuals."""

    search = None

    def __init__(self, candidate: Candidate, everyone: list[Candidate], gp: Any) -> None:
        self.candidate, self.everyone, self.gp = candidate, everyone, gp
        self.kernel = candidate.kernel
        self.label = f"svgp {candidate.kernel.label}"
        self.noise = gp.noise_
        self.heldout_variance = np.zeros(0)

    def latent(self, X: Tensor) -> Tensor:
        """Variance of the function, shape (n,)."""
        return self.gp.latent(X)[1]

    def latent_covariance(self, X: Tensor) -> Tensor:
        """Covariance of the function, shape (n, n)."""
        return self.gp.covariance(X)


def fit_sparse_variance(
    own_rows: Rows,
    kernels: Sequence[Kernel],
    noise_floor: float,
    sample: Sample,
    residuals: Array,
    seed: int,
    rng: np.random.Generator,
) -> SparseVariance:
    """Part 2: the kernel by the likelihood of a few residuals, then a sparse GP on all of them.

    ``own_rows`` are the sample's rows with their mean residuals as target.
    """
    candidates = [Candidate(kernel, "nll") for kernel in kernels]
    some = np.sort(rng.permutation(len(own_rows))[: Schedule().warm_rows])
    exact = ExactEngine(own_rows.subset(some), noise_floor)
    for candidate in candidates:
        candidate.train(exact, None, is_full=False, steps=40, tolerance=1e-3)
    best = min(fitted_only(candidates), key=lambda c: c.value + c.kernel.size / len(some))
    gp = sparse_gp(best, noise_floor).set_params(random_state=seed)
    merged = sample.merged
    gp.fit(merged.X[merged.inverse], residuals)
    variance = SparseVariance(best, candidates, gp)
    latent = variance.latent(torch.as_tensor(merged.X)).numpy()
    variance.heldout_variance = latent + gp.noise_ + merged.extra
    return variance
