r"""The exact engine: one dense Cholesky factor of all training rows.

.. math::

    \hat m(x) = k_x^\top \alpha, \qquad
    \hat v(x) = k_\theta(x, x) - \|L^{-1} k_x\|^2, \qquad
    L L^\top = K_\theta + \mathrm{diag}(s / c), \quad \alpha = (L L^\top)^{-1} t .

The mean needs only :math:`\alpha`; the factor is touched when a variance is asked for. Up to
``LARGE_ROWS`` rows the linear algebra is LAPACK's, with several matrices of n x n numbers alive in
training; above, that of ``blocked.py`` and ``large.py``, with one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp import objectives
from twostagegp.engines.blocked import BlockedFactor, blocked_bytes
from twostagegp.engines.large import BlockedInverse, LargeProblem, group_bytes
from twostagegp.engines.panels import CovariancePanels
from twostagegp.errors import MemoryBudgetError
from twostagegp.kernels import Kernel, Vector
from twostagegp.linalg import cholesky_inverse, cholesky_solve, extended_cholesky, safe_cholesky
from twostagegp.memory import available_bytes
from twostagegp.objectives import Factored, Heldout
from twostagegp.rows import Rows
from twostagegp.training import ObjectiveName, Problem

__all__ = [
    "LARGE_ROWS",
    "ExactEngine",
    "ExactPosterior",
    "Work",
    "can_keep_factors",
    "check_dense_memory",
    "covariance_bytes",
    "dense_bytes",
    "exact_bytes",
    "memory_of_targets",
    "plan_factor",
    "several_targets",
]

#: Distinct rows above which one n x n matrix is held and derivatives are estimated.
LARGE_ROWS = 4000
#: Entries of a (queries, rows) panel during prediction: 128 MiB in float64, 512 on a GPU.
_CHUNK_ENTRIES = {"cpu": 1 << 24, "cuda": 1 << 26}
#: Such panels alive at a time.
_LIVE_CHUNKS = 5
#: Matrices of a joint covariance alive at a time: the prior's, its distances and temporaries (four
#: were measured), and one to spare.
_COVARIANCES = 5
#: Rows of a prediction from which inverses of the factor's diagonal blocks are worth making.
_MANY_QUERIES = 256
#: n x n matrices alive at the worst moment of one training step: K, its distances, the
#: matrix with noise, L, the inverse, W and two temporaries.
_LIVE_MATRICES = 8
#: The same when a conditioned model grows: K, its distances, a factor and a temporary.
_GROWING_MATRICES = 4


def dense_bytes(n: int, itemsize: int = 8) -> int:
    """Peak bytes of one training step that holds all its matrices.

    Examples
    --------
    >>> dense_bytes(10_000) // 10**6  # MB
    6400
    """
    return _LIVE_MATRICES * n * n * itemsize


def check_dense_memory(n: int, device: torch.device, itemsize: int = 8) -> None:
    """Raise before a training that holds all its matrices is begun without room for them."""
    needed, available = dense_bytes(n, itemsize), available_bytes(device)
    if available is not None and needed > available:
        most = math.isqrt(available // dense_bytes(1, itemsize))
        raise _too_large(n, device, needed, available, most)


def _too_large(
    n: int, device: torch.device, needed: int, available: int, most: int, others: int = 0
) -> MemoryBudgetError:
    targets = f" and {others + 1} targets" if others else ""
    return MemoryBudgetError(
        f"an exact fit of {n} distinct rows{targets} needs about {needed / 2**30:.1f} GiB, and "
        f"{available / 2**30:.1f} GiB are free on {device}. Use "
        "TwoStageGPRegressor(method='neighbors') or GPNNRegressor, or fit "
        + ("fewer targets at a time, or " if others else "")
        + f"a random subset of at most {most} rows."
    )


def exact_bytes(n: int, device: torch.device, itemsize: int = 8, groups: Sequence[int] = ()) -> int:
    """Peak bytes of an exact fit to n distinct rows, and of predictions from it.

    ``groups`` are the numbers of rows of the groups that are held out together, where there are
    any: few and large ones take matrices of their own.

    Examples
    --------
    >>> exact_bytes(4_000, torch.device("cpu")) // 10**6  # MB
    1024
    >>> exact_bytes(20_000, torch.device("cpu")) // 10**6
    4183
    """
    if n <= LARGE_ROWS:
        return dense_bytes(n, itemsize)
    predicting = n * n * itemsize + _LIVE_CHUNKS * _chunk_entries(device) * max(itemsize, 8)
    training = blocked_bytes(n, device, itemsize) + group_bytes(n, groups, itemsize)
    return max(training, predicting)


def plan_factor(
    n: int, device: torch.device, dtype: torch.dtype, groups: Sequence[int] = ()
) -> torch.dtype:
    """The precision in which a factor of n distinct rows fits; an error where none does.

    That of the rows where there is memory for it, otherwise float32 for more than ``LARGE_ROWS``
    rows. To be asked before an exact fit is begun.
    """
    available, others = memory_of_targets(device)
    options = [dtype]
    if dtype == torch.float64 and n > LARGE_ROWS:
        options.append(torch.float32)

    def needed(rows: int, itemsize: int, groups: Sequence[int]) -> int:
        return exact_bytes(rows, device, itemsize, groups) + others * rows * rows * itemsize

    for option in options:
        if available is None or needed(n, option.itemsize, groups) <= available:
            return option
    assert available is not None
    itemsize = options[-1].itemsize

    def of_some(rows: int) -> int:
        """The same of a random subset: of every group its share."""
        some = [max(1, g * rows // n) for g in groups]
        return needed(rows, itemsize, some)

    total, most = needed(n, itemsize, groups), _most_rows(available, of_some)
    raise _too_large(n, device, total, available, most, others)


#: Memory that was free before the first of several targets, and targets beside the one at hand.
_TARGETS: ContextVar[tuple[int, int] | None] = ContextVar("_TARGETS", default=None)


@contextmanager
def several_targets(device: torch.device, p: int) -> Iterator[None]:
    """Within, a fit of one target leaves room for the factors of all p.

    Memory is measured once, at the beginning, so that every target gets the same answer.
    """
    available = available_bytes(device) if p > 1 else None
    token = _TARGETS.set(None if available is None else (available, p - 1))
    try:
        yield
    finally:
        _TARGETS.reset(token)


def memory_of_targets(
    device: torch.device, measure: Callable[[torch.device], int | None] | None = None
) -> tuple[int | None, int]:
    """Free memory, and how many factors of other targets have to fit into it as well."""
    known = _TARGETS.get()
    return ((measure or available_bytes)(device), 0) if known is None else known


def _most_rows(available: int, needed: Callable[[int], int]) -> int:
    """The largest number of rows for which that suffices."""
    few, many = 1, math.isqrt(available) + 1
    while many - few > 1:
        middle = (few + many) // 2
        fits = needed(middle) <= available
        few, many = (middle, many) if fits else (few, middle)
    return few


def _chunk_entries(device: torch.device) -> int:
    return _CHUNK_ENTRIES.get(device.type, _CHUNK_ENTRIES["cpu"])


def covariance_bytes(q: int, n: int, device: torch.device, itemsize: int = 8) -> int:
    """Peak bytes of the joint covariance of q points, from a factor of n rows.

    Examples
    --------
    >>> covariance_bytes(1_000, 50_000, torch.device("cpu")) // 10**6  # MB
    1071
    """
    panels = min(_chunk_entries(device), q * n)
    return q * n * itemsize + 8 * max(_LIVE_CHUNKS * panels, _COVARIANCES * q * q)


def _check_covariance_memory(q: int, n: int, device: torch.device, itemsize: int) -> None:
    """Raise before a joint covariance is begun without room for it where the model is."""
    needed, available = covariance_bytes(q, n, device, itemsize), available_bytes(device)
    if available is not None and needed > available:
        most = _most_rows(available, lambda some: covariance_bytes(some, n, device, itemsize))
        raise MemoryBudgetError(
            f"the joint covariance of {q} rows given {n} training rows needs about "
            f"{needed / 2**30:.1f} GiB, and {available / 2**30:.1f} GiB are free on {device}; ask "
            f"for at most {most} rows at a time, or use return_std."
        )


def can_keep_factors(
    n: int, factors: int, device: torch.device, itemsize: int = 8, before: int = 0
) -> bool:
    """Whether a model that grows to n distinct rows can keep the factors of all its kernels.

    Raises before a growth is begun for which there is no memory even with one factor at a time.
    ``before`` is the number of distinct rows that the model has.
    """
    available = available_bytes(device)
    if available is None or _growing_bytes(n, factors, itemsize) <= available:
        return True

    def needed(rows: int) -> int:
        # Of many rows a factor that cannot grow is made anew, in float32 if need be.
        return (
            _growing_bytes(rows, 1, itemsize)
            if rows <= LARGE_ROWS
            else exact_bytes(rows, device, torch.float32.itemsize)
        )

    if needed(n) <= available:
        return False
    most = _most_rows(available, needed)
    fewer = f"Add at most {most - before} rows" if most > before else "Free memory"
    raise MemoryBudgetError(
        f"an update to {n} distinct rows needs about {needed(n) / 2**30:.1f} GiB, and "
        f"{available / 2**30:.1f} GiB are free on {device}: enough for {most} distinct rows, and "
        f"the model has {before}. {fewer}, or fit TwoStageGPRegressor(method='neighbors') or "
        "GPNNRegressor to all of them."
    )


def _growing_bytes(n: int, factors: int, itemsize: int) -> int:
    """Peak bytes of a growth from old factors to n rows, with so many factors kept."""
    return (_GROWING_MATRICES + factors) * n * n * itemsize


@dataclass
class Work:
    """How often all rows were factorised outside training (which counts its own)."""

    full_rows: int
    full_conditionings: int = 0


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
        Precision of the factor of more than ``LARGE_ROWS`` rows; by default that of the rows.
    """

    rows: Rows
    noise_floor: float = 1e-8
    use_prior: bool = True
    work: Work | None = None
    factor_dtype: torch.dtype | None = None

    def subset(self, index: NDArray[np.int64]) -> ExactEngine:
        rows = self.rows.subset(index)
        # A part for which one matrix in full precision is no larger than the whole in its own.
        fits = 2 * len(rows) ** 2 <= len(self.rows) ** 2
        return replace(self, rows=rows, factor_dtype=None if fits else self.factor_dtype)

    def to(self, device: torch.device) -> ExactEngine:
        """The same on another device."""
        return replace(self, rows=self.rows.to(device))

    def with_rows(self, rows: Rows) -> ExactEngine:
        """The same options on other rows."""
        return replace(self, rows=rows)

    def problem(self, kernel: Kernel, objective: ObjectiveName, R: Tensor | None = None) -> Problem:
        given = (kernel, self.rows, objective, R, self.noise_floor, self.use_prior)
        if len(self.rows) <= LARGE_ROWS:
            return Problem(*given)
        return LargeProblem(*given, factor_dtype=self.factor_dtype)

    def condition(self, kernel: Kernel, parameters: Vector) -> ExactPosterior:
        if self.work is not None and len(self.rows) == self.work.full_rows:
            self.work.full_conditionings += 1
        parameters = np.asarray(parameters, dtype=np.float64)
        return ExactPosterior(kernel, parameters, self.rows, self.factor_dtype)


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

    def __init__(
        self,
        kernel: Kernel,
        parameters: Vector,
        rows: Rows,
        factor_dtype: torch.dtype | None = None,
    ) -> None:
        self.kernel = kernel
        self.parameters = parameters
        self.rows = rows
        self.noise = math.exp(parameters[-1])
        self._factor: Tensor | None
        blocked = self._factorise(factor_dtype)
        self.alpha = self._solved() if blocked is None else blocked.alpha

    def rebuild_factor(self) -> None:
        """The factor from rows and hyperparameters, as after a file without it."""
        X, large = self.rows.X, len(self.rows) > LARGE_ROWS
        self._factorise(plan_factor(len(X), X.device, X.dtype) if large else None)

    def _factorise(self, dtype: torch.dtype | None) -> BlockedInverse | None:
        """Set the factor; of many rows also what its blocks can do, while they are at hand."""
        if len(self.rows) > LARGE_ROWS:
            blocked = BlockedInverse.of(self.kernel, self.parameters, self.rows, dtype)
            self._factor, self.jitter = blocked.factor.buffer, blocked.factor.jitter
            return blocked
        K, _ = self.kernel.evaluate(self.rows.X, self.parameters[:-1])
        K.diagonal().add_(self._noises() / self.rows.c)
        self._factor, self.jitter = safe_cholesky(K)
        return None

    def _blocked(self) -> BlockedInverse:
        """The factor with what its blocks can do."""
        noise = self._noises() / self.rows.c
        panels = CovariancePanels(self.kernel, self.parameters[:-1], self.rows.X, noise)
        return BlockedInverse(panels, BlockedFactor.of(self.L, self.jitter), self.rows.t)

    def _solved(self) -> Tensor:
        """The solution for the target."""
        if len(self.rows) > LARGE_ROWS:
            return self._blocked().alpha
        return cholesky_solve(self.L, self.rows.t)

    @property
    def L(self) -> Tensor:
        """The Cholesky factor of the training covariance."""
        assert self._factor is not None, "drop_factor() was called"
        return self._factor

    def drop_factor(self) -> None:
        self._factor = None

    def extended(self, rows: Rows, changed: Tensor) -> ExactPosterior:
        """The same hyperparameters conditioned on more rows.

        The factor is taken over up to the first row that has changed; from there on, and for the
        rows that are new, it is computed. Where it was dropped, all of it is; so it is of more than
        ``LARGE_ROWS`` rows where only one matrix fits.

        Parameters
        ----------
        rows : Rows
            These rows, in their order, and new ones after them.
        changed : integer Tensor
            Those of these rows whose weight is another one now.
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
        """Whether there is room for the matrices from which a grown factor comes."""
        X = self.rows.X
        available = available_bytes(X.device) if len(X) > LARGE_ROWS else None
        return available is None or _growing_bytes(len(X), 1, X.element_size()) <= available

    def _grown_factor(self, L: Tensor, changed: Tensor) -> Tensor | None:
        """The factor of all rows, from one of the first of them."""
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
        """What the objectives ask for: factor, inverse and solution, and the noise variances."""
        return Factored(self.L, cholesky_inverse(self.L), self.alpha), self._noises()

    def heldout(self) -> Heldout:
        if len(self.rows) <= LARGE_ROWS:
            f, s = self.factored()
            return objectives.heldout(f, self.rows, s)
        inverse = self._blocked()
        inverse.alpha = self.alpha  # known already
        return objectives.heldout(inverse, self.rows, self._noises())

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
        _check_covariance_memory(q, n, X.device, L.element_size())
        half_solve = self._half_solve(q)
        V = torch.empty(n, q, dtype=L.dtype, device=X.device)
        start = 0
        for part in torch.split(X, self._chunk_size(X)):
            V[:, start : start + len(part)] = half_solve(self._cross(part).T)
            start += len(part)
        prior = self.kernel.cross(X, X, self.parameters[:-1])
        return prior - (V.T @ V).to(prior.dtype)

    def _half_solve(self, queries: int) -> Callable[[Tensor], Tensor]:
        r""":math:`L^{-1} B` for matrices B of so many columns in all."""
        L = self.L
        if len(L) <= LARGE_ROWS or queries < _MANY_QUERIES:
            return lambda B: torch.linalg.solve_triangular(L, B.to(L.dtype), upper=False)
        factor = BlockedFactor.of(L)
        return lambda B: factor.half_solve_(B.to(L.dtype).contiguous())

    def _cross(self, X: Tensor) -> Tensor:
        return self.kernel.cross(X, self.rows.X, self.parameters[:-1])

    def _by_chunks(self, X: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.cat([of(part) for part in torch.split(X, self._chunk_size(X))])

    def _chunk_size(self, X: Tensor) -> int:
        """Queries of a panel."""
        return max(1, _chunk_entries(X.device) // max(1, len(self.rows)))
