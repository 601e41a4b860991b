r"""The exact engine: one dense Cholesky factor of all training rows.

.. math::

    \hat m(x) = k_x^\top \alpha, \qquad
    \hat v(x) = k_\theta(x, x) - \|L^{-1} k_x\|^2, \qquad
    L L^\top = K_\theta + \mathrm{diag}(s / c), \quad \alpha = (L L^\top)^{-1} t .

The mean needs only :math:`\alpha`; variances need the factor. Up to ``settings.blocked_rows`` rows
the linear algebra is that of LAPACK, with several n x n matrices in memory during training; above,
it is that of ``blocked.py`` and ``large.py``, with one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.engines.exact.blocked import BlockedFactor
from twostagegp.engines.exact.dense import DenseProblem, factorise_, fits_in_place
from twostagegp.engines.exact.large import BlockedInverse, LargeProblem
from twostagegp.engines.exact.noise_trials import NoiseTrials
from twostagegp.engines.exact.panels import CovariancePanels
from twostagegp.engines.exact.settings import CHUNKS_AT_A_TIME, EXACT_DEFAULTS, ExactSettings
from twostagegp.engines.exact.several import SeveralPosterior, SeveralProblem
from twostagegp.engines.memory import can_grow, check_covariance_memory, plan_factor
from twostagegp.engines.problem import ObjectiveName, Problem
from twostagegp.kernels import Kernel, NamedKernel, Vector
from twostagegp.kernels.in_place import InPlaceKernel
from twostagegp.numerics.held_out import Heldout, leave_out
from twostagegp.numerics.linalg import (
    Blocks,
    block_inverses,
    cholesky_inverse,
    cholesky_solve,
    extended_cholesky,
    inverse_diagonal,
    safe_cholesky,
)
from twostagegp.numerics.objectives import Factored
from twostagegp.runtime.cores import spread

__all__ = ["ExactEngine", "ExactPosterior", "Work"]


@dataclass
class Work:
    """Number of factorisations of all rows outside training (training counts its own)."""

    full_rows: int
    full_conditionings: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def count(self, n: int) -> None:
        """Count a factorisation of n rows."""
        if n == self.full_rows:
            with self._lock:
                self.full_conditionings += 1


@dataclass(frozen=True)
class ExactEngine:
    """Training rows for the exact method.

    Parameters
    ----------
    rows : Rows
    noise_floor : float
        Lower bound of the noise variance on the standardised target.
    use_prior : bool
        Whether training adds the weak prior on hyperparameters.
    work : Work, optional
        Counts factorisations of all rows; shared by subsets.
    factor_dtype : torch.dtype, optional
        Precision of the factor of more than ``settings.blocked_rows`` rows; by default that of the
        rows.
    settings : ExactSettings
        When the engine works block by block, in which sizes, and with how much memory.
    """

    rows: Rows
    noise_floor: float = 1e-8
    use_prior: bool = True
    work: Work | None = None
    factor_dtype: torch.dtype | None = None
    settings: ExactSettings = EXACT_DEFAULTS

    def subset(self, index: NDArray[np.int64]) -> ExactEngine:
        rows = self.rows.subset(index)
        # A matrix of these rows in full precision is no larger than one of all rows in float32.
        fits = 2 * len(rows) ** 2 <= len(self.rows) ** 2
        return replace(self, rows=rows, factor_dtype=None if fits else self.factor_dtype)

    def to(self, device: torch.device) -> ExactEngine:
        """Return the engine on another device."""
        return replace(self, rows=self.rows.to(device))

    def with_rows(self, rows: Rows) -> ExactEngine:
        return replace(self, rows=rows)

    def with_noise_floor(self, noise_floor: float) -> ExactEngine:
        return replace(self, noise_floor=noise_floor)

    def problem(
        self,
        kernel: Kernel,
        objective: ObjectiveName,
        R: Tensor | None = None,
        batch: Tensor | None = None,
        start: Vector | None = None,
    ) -> Problem:
        rows = self.rows if batch is None else self.rows.subset(batch)
        given = (kernel, rows, objective, R, self.noise_floor, self.use_prior)
        if rows.several:
            return SeveralProblem(*given)
        if len(rows) <= self.settings.blocked_rows:
            return (DenseProblem if DenseProblem.fits(kernel, rows) else Problem)(*given)
        return LargeProblem(*given, factor_dtype=self.factor_dtype, settings=self.settings)

    def condition(self, kernel: Kernel, parameters: Vector) -> ExactPosterior | SeveralPosterior:
        if self.work is not None:
            self.work.count(len(self.rows))
        parameters = np.asarray(parameters, dtype=np.float64)
        if self.rows.extra.ndim == 2:
            return SeveralPosterior(kernel, parameters, self.rows)
        return ExactPosterior(kernel, parameters, self.rows, self.factor_dtype, self.settings)

    def heldout_by_noise(self, kernel: Kernel, theta: Vector) -> Callable[[float], Heldout]:
        """Return the held-out predictions of all rows as a function of the log noise variance."""

        def of_posterior(log_noise: float) -> Heldout:
            return self.condition(kernel, np.append(theta, log_noise)).heldout()

        small = len(self.rows) <= self.settings.blocked_rows
        if not (small and NoiseTrials.fits(kernel, self.rows)):
            return of_posterior
        trials = NoiseTrials(kernel, theta, self.rows)

        def heldout(log_noise: float) -> Heldout:
            held = trials.heldout(log_noise)
            if held is None:  # the posterior adds jitter, or explains why it cannot
                return of_posterior(log_noise)
            if self.work is not None:
                self.work.count(len(self.rows))
            return held

        return heldout


@dataclass(frozen=True)
class _Solved:
    """What held-out predictions need of a factorised covariance; the inverse only for groups."""

    L: Tensor
    alpha: Tensor

    @property
    def kappa(self) -> Tensor:
        return inverse_diagonal(self.L)

    def block_inverses(self, blocks: list[Tensor]) -> Blocks:
        return block_inverses(cholesky_inverse(self.L), blocks)


class ExactPosterior:
    """A zero-mean GP conditioned on rows through one Cholesky factor.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from twostagegp.kernels import NamedKernel
    >>> X = torch.linspace(0, 1, 4, dtype=torch.float64)[:, None]
    >>> one = torch.ones(4, dtype=torch.float64)
    >>> rows = Rows(X, X[:, 0], one, 0 * one, 0 * one)
    >>> gp = ExactPosterior(NamedKernel("rbf", 1), np.array([0.0, 0.0, np.log(1e-6)]), rows)
    >>> bool(torch.allclose(gp.mean(X), X[:, 0], atol=1e-3))
    True
    """

    #: Default for posteriors from a file, which does not contain the settings.
    settings = EXACT_DEFAULTS
    kernel: Kernel
    parameters: Vector
    rows: Rows
    noise: float
    jitter: float
    alpha: Tensor
    _factor: Tensor | None

    def __init__(
        self,
        kernel: Kernel,
        parameters: Vector,
        rows: Rows,
        factor_dtype: torch.dtype | None = None,
        settings: ExactSettings = EXACT_DEFAULTS,
    ) -> None:
        if settings != EXACT_DEFAULTS:
            self.settings = settings
        self.kernel = kernel
        self.parameters = parameters
        self.rows = rows
        self.noise = math.exp(parameters[-1])
        blocked = self._factorise(factor_dtype)
        self.alpha = self._solved() if blocked is None else blocked.alpha

    def rebuild_factor(self) -> None:
        """Compute the factor from rows and hyperparameters, e.g. if it was not stored in a file."""
        X, dtype = self.rows.X, None
        if self.is_large:
            dtype = plan_factor(len(X), X.device, X.dtype, (), self.settings)
        self._factorise(dtype)

    @property
    def is_large(self) -> bool:
        """Whether the factor is computed and used block by block."""
        return len(self.rows) > self.settings.blocked_rows

    @property
    def _block(self) -> int:
        """Rows of a block of the factor."""
        return self.settings.block_size(len(self.rows), self.rows.X.device)

    def _factorise(self, dtype: torch.dtype | None) -> BlockedInverse | None:
        """Set the factor; if it is a blocked one, return its inverse, which reuses its blocks."""
        if self.is_large:
            blocked = BlockedInverse.of(self.kernel, self.parameters, self.rows, self._block, dtype)
            self._factor, self.jitter = blocked.factor.buffer, blocked.factor.jitter
            return blocked
        X, theta, noises = self.rows.X, self.parameters[:-1], self._noises() / self.rows.c
        if fits_in_place(self.kernel, self.rows):
            assert isinstance(self.kernel, NamedKernel)
            U, inputs = np.zeros((len(X), len(X))), np.ascontiguousarray(X.numpy())
            covariance = InPlaceKernel(self.kernel, inputs, derivatives=False)
            self.jitter = factorise_(covariance, theta, noises.numpy(), U)
            covariance.clear_lower_(U)
            self._factor = torch.from_numpy(U).T
            return None
        K, _ = self.kernel.evaluate(X, theta)
        K.diagonal().add_(noises)
        self._factor, self.jitter = safe_cholesky(K)
        return None

    def _blocked(self) -> BlockedInverse:
        """Return the inverse of the covariance through the blocked factor."""
        noise = self._noises() / self.rows.c
        panels = CovariancePanels(
            self.kernel, self.parameters[:-1], self.rows.X, noise, self._block
        )
        return BlockedInverse(
            panels, BlockedFactor.of(self.L, self._block, self.jitter), self.rows.t
        )

    def _solved(self) -> Tensor:
        """Return alpha, the solution for the target."""
        if self.is_large:
            return self._blocked().alpha
        return cholesky_solve(self.L, self.rows.t)

    @property
    def L(self) -> Tensor:
        """The Cholesky factor of the training covariance."""
        assert self._factor is not None, "drop_factor() was called"
        return self._factor

    def drop_factor(self) -> None:
        self._factor = None

    def to(self, device: torch.device) -> ExactPosterior:
        """Return the posterior on another device."""
        posterior = copy(self)
        posterior.rows, posterior.alpha = self.rows.to(device), self.alpha.to(device)
        posterior._factor = None if self._factor is None else self._factor.to(device)
        return posterior

    def extended(self, rows: Rows, changed: Tensor) -> ExactPosterior:
        """Return the posterior on more rows at the same hyperparameters.

        The factor is reused up to the first row that has changed; from there on, and for the new
        rows, it is computed. It is computed as a whole if it was dropped, and for more than
        ``settings.blocked_rows`` rows if only one matrix fits into memory.

        Parameters
        ----------
        rows : Rows
            The rows of this posterior, in the same order, followed by the new ones.
        changed : integer Tensor
            Numbers of the rows of this posterior whose weight has changed.
        """
        posterior = copy(self)
        posterior.rows = rows
        factor = None
        taken = self._factor is not None and self._factor.dtype == rows.X.dtype
        if taken and posterior._can_grow():
            assert self._factor is not None
            factor = posterior._grown_factor(self._factor, changed)
        if factor is None:
            posterior.rebuild_factor()
        else:
            posterior._factor = factor
        posterior.alpha = posterior._solved()
        return posterior

    def _can_grow(self) -> bool:
        """Return whether there is memory for the matrices that extend the factor."""
        X = self.rows.X
        return can_grow(len(X), X.device, X.element_size(), self.settings)

    def _grown_factor(self, L: Tensor, changed: Tensor) -> Tensor | None:
        """Return the factor of all rows, from the factor L of the first rows."""
        same = int(changed.min()) if len(changed) else len(L)
        if same == 0:
            return None
        theta, X = self.parameters[:-1], self.rows.X
        K22, _ = self.kernel.evaluate(X[same:], theta)
        K22.diagonal().add_((self._noises() / self.rows.c)[same:] + self.jitter)
        K21 = self.kernel.cross(X[same:], X[:same], theta)
        return extended_cholesky(L[:same, :same], K21, K22)

    def _noises(self) -> Tensor:
        return self.noise + self.rows.extra

    def factored(self) -> tuple[Factored, Tensor]:
        """Return factor, inverse and solution, which the objectives need, and noise variances."""
        return Factored(self.L, cholesky_inverse(self.L), self.alpha), self._noises()

    def heldout(self, index: Tensor | None = None) -> Heldout:
        if index is not None and not self.is_large and self._whole_groups(index):
            return self._heldout_of(index)
        if not self.is_large:
            held = leave_out(_Solved(self.L, self.alpha), self.rows, self._noises())
        else:
            inverse = self._blocked()
            inverse.alpha = self.alpha  # known already
            held = leave_out(inverse, self.rows, self._noises())
        return held if index is None else held.subset(index)

    def _whole_groups(self, index: Tensor) -> bool:
        """Return whether these rows are all rows of their groups."""
        groups = self.rows.groups
        return groups is None or bool(torch.isin(groups, groups[index]).sum() == len(index))

    def _heldout_of(self, index: Tensor) -> Heldout:
        r"""Return held-out predictions of few rows I, from :math:`A_{II} = V^\top V`,
        :math:`V = L^{-1} E_I`, where :math:`E_I` are columns of the identity.
        """
        n, L = len(self.rows), self.L
        E = torch.zeros(n, len(index), dtype=L.dtype, device=L.device)
        E[index, torch.arange(len(index), device=L.device)] = 1.0
        V = torch.linalg.solve_triangular(L, E, upper=False)
        f = Factored(L, V.T @ V, self.alpha[index])
        noises = self._noises()
        s = noises if noises.ndim == 0 else noises[index]
        return leave_out(f, self.rows.subset(index), s)

    def mean(self, X: Tensor) -> Tensor:
        return self._by_chunks(X, lambda part: self._cross(part) @ self.alpha)

    def variance(self, X: Tensor) -> Tensor:
        half_solve = self._half_solve(len(X))

        def of(part: Tensor) -> Tensor:
            V = half_solve(self._cross(part).T)
            prior = self.kernel.diagonal(part, self.parameters[:-1])
            return (prior - V.square().sum(0)).clamp_(min=0.0)

        return self._by_chunks(X, of)

    def covariance(self, X: Tensor) -> Tensor:
        n, q, L = len(self.rows), len(X), self.L
        check_covariance_memory(q, n, X.device, L.element_size(), self.settings)
        half_solve = self._half_solve(q)
        V = torch.empty(n, q, dtype=L.dtype, device=X.device)
        size = self._chunk_size(X)

        def write(start: int) -> None:
            V[:, start : start + size] = half_solve(self._cross(X[start : start + size]).T)

        spread(write, range(0, q, size), self._chunks_at_a_time(X))
        prior = self.kernel.cross(X, X, self.parameters[:-1])
        return prior - (V.T @ V).to(prior.dtype)

    def _half_solve(self, queries: int) -> Callable[[Tensor], Tensor]:
        r"""Return a function that computes :math:`L^{-1} B`, for ``queries`` columns in total."""
        L = self.L
        # From 256 queries on, inverting the diagonal blocks of the factor pays off.
        if not self.is_large or queries < 256:
            return lambda B: torch.linalg.solve_triangular(L, B.to(L.dtype), upper=False)
        factor = BlockedFactor.of(L, self._block)
        return lambda B: factor.half_solve_(B.to(L.dtype).contiguous(), split=False)

    @cached_property
    def _cross(self) -> Callable[[Tensor], Tensor]:
        """The function X -> K(X, rows); copies, pickles and files do not contain it."""
        return self.kernel.cross_with(self.rows.X, self.parameters[:-1])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_cross"}

    def _by_chunks(self, X: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
        if len(X) == 1:
            return of(X)
        parts = torch.split(X, self._chunk_size(X))
        return torch.cat(spread(of, parts, self._chunks_at_a_time(X)))

    def _chunks_at_a_time(self, X: Tensor) -> int | None:
        """Return how many chunks may be predicted at a time; None if there is no limit.

        Each is the work of one core, and its size does not depend on the number of cores.
        """
        if X.device.type != "cpu" or not self.kernel.takes_threads:
            return 1
        return CHUNKS_AT_A_TIME if self.is_large else None

    def _chunk_size(self, X: Tensor) -> int:
        """Return the number of queries that are predicted at a time."""
        entries = self.settings.prediction_entries(X.device, self.is_large)
        return max(1, entries // max(1, len(self.rows)))
