r"""The likelihood of many small problems at once, with its derivative.

Problem b has inputs :math:`X_b` (n rows), a target :math:`t_b`, and parameters
:math:`(\theta_b, \log \sigma_b^2)`. With :math:`K = K_{\theta_b} + \sigma_b^2 I`,
:math:`A = K^{-1}`, :math:`\alpha = A t_b`:

.. math::

    L_b = \tfrac12 t_b^\top \alpha + \tfrac12 \log\det K + \tfrac n2 \log 2\pi, \qquad
    W = \frac{\partial L_b}{\partial K} = \tfrac12 (A - \alpha \alpha^\top) .

Merged rows (``data/rows.py``) have a weight c, a sum of squares q and possibly known noise, and
noise variances :math:`s / c`; their likelihood and leave-one-out density are those of
``numerics/objectives.py``. As in ``engines/problem.py`` the value is divided by the number of rows
before merging, and a weak prior is added.

Problems are evaluated in blocks: on a CPU one block per thread, small enough that the matrices of a
block stay in the cache; on a GPU as large as the memory budget allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.engines.problem import NOISE_PRIOR
from twostagegp.errors import MemoryBudgetError
from twostagegp.kernels import Kernel
from twostagegp.kernels.batched import Index, KernelBatch, kernel_batch, take
from twostagegp.numerics.held_out import LOG_2PI, copies_within, one_copy, squares_of_copies
from twostagegp.numerics.linalg import batch_cholesky, batch_solve
from twostagegp.runtime.cores import spread
from twostagegp.runtime.memory import available_bytes

__all__ = ["Block", "Extras", "ProblemBatch"]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Result = TypeVar("Result")


#: Most n x n matrices in memory while one problem of a block is evaluated.
_LIVE_MATRICES = 8
#: Share of the free memory that a batch may take.
_MEMORY_SHARE = 0.5


@dataclass(frozen=True)
class Extras:
    """Weights, sums of squares and known noise of merged rows, each of shape (B, n) or (1, n).

    Attributes
    ----------
    c : Tensor
        Weight: the number of rows that were merged.
    q : Tensor
        Sum of squared deviations of the target within the merged row.
    known : Tensor
        Known noise variance.
    """

    c: Tensor
    q: Tensor
    known: Tensor

    @classmethod
    def of(cls, rows: Rows, index: Tensor) -> Extras | None:
        """Return those of the rows ``index``, shape (B, n); None if all rows are plain."""
        if rows.plain and not bool(rows.extra.any()):
            return None
        return cls(rows.c[index], rows.q[index], rows.extra[index])

    def take(self, index: Index, n_rows: int | None = None) -> Extras:
        """Return those of some problems, for the first ``n_rows`` rows of each."""
        cut = slice(None, n_rows)
        return Extras(*(take(values, index)[:, cut] for values in (self.c, self.q, self.known)))


@dataclass(frozen=True)
class Block:
    """Some problems of a batch, factorised at their parameters.

    Attributes
    ----------
    index : slice or Tensor
        Numbers of the problems in the batch.
    theta : Tensor of shape (b, p - 1)
    noise : Tensor of shape (b,)
        Noise variance.
    s : Tensor of shape (b, n)
        Added to the diagonal: the noise variance of each row, divided by its weight.
    K, L, A : Tensors of shape (b, n, n)
        Covariance without noise; Cholesky factor and inverse of the covariance with noise.
    t, alpha : Tensors of shape (b, n)
    fine : Tensor of shape (b,)
        False if the covariance could not be factorised.
    extras : Extras or None
        None for plain rows.
    """

    index: Index
    theta: Tensor
    noise: Tensor
    s: Tensor
    K: Tensor
    L: Tensor
    A: Tensor
    t: Tensor
    alpha: Tensor
    fine: Tensor
    extras: Extras | None
    saved: object = field(repr=False)

    @property
    def kappa(self) -> Tensor:
        return self.A.diagonal(dim1=-2, dim2=-1)

    @property
    def total(self) -> Tensor:
        """Rows before merging, shape (b,) or (1,)."""
        if self.extras is None:
            return self.t.new_tensor([self.t.shape[1]])
        return self.extras.c.sum(-1)

    def nll(self) -> Tensor:
        """Return the negative log likelihood of each problem, shape (b,)."""
        logdet = self.L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        value = 0.5 * torch.linalg.vecdot(self.t, self.alpha) + logdet
        if self.extras is None:
            return value + 0.5 * self.t.shape[1] * LOG_2PI
        return value + 0.5 * self._within(self.extras)[0].sum(-1)

    def direct_noise_slope(self) -> Tensor | float:
        """Return the part of d(nll)/d(noise variance) that bypasses the covariance, shape (b,)."""
        if self.extras is None:
            return 0.0
        return self._within(self.extras)[1].sum(-1)

    def _within(self, extras: Extras) -> tuple[Tensor, Tensor]:
        return copies_within(extras.c, extras.q, self.s * extras.c)

    def heldout(self) -> tuple[Tensor, Tensor]:
        """Return squared held-out residuals, summed over copies, and variances, each (b, n)."""
        if self.extras is None:
            return (self.alpha / self.kappa).square(), 1.0 / self.kappa
        c, s = self.extras.c, self.s * self.extras.c
        v = one_copy(self.kappa, c, s).v
        return squares_of_copies(self.alpha, self.kappa, c, self.extras.q, s, v), v

    def loo_density(self) -> Tensor:
        """Return the negative leave-one-out log density, summed over rows, shape (b,)."""
        squares, v = self.heldout()
        c = 1.0 if self.extras is None else self.extras.c
        return 0.5 * (squares / v + c * (v.log() + LOG_2PI)).sum(-1)

    def loo_error(self) -> Tensor:
        """Return the mean squared leave-one-out error, shape (b,)."""
        return self.heldout()[0].sum(-1) / self.total


@dataclass(frozen=True)
class ProblemBatch:
    """B problems of one kernel.

    Parameters
    ----------
    kernel : Kernel
    X : Tensor of shape (B, n, d), or (1, n, d) if all problems have the same inputs
    t : Tensor of shape (B, n)
        Zero-mean targets of about unit size.
    extras : Extras, optional
        Weights, sums of squares and known noise of merged rows.
    noise_floor : float
        Lower bound of the noise variance.
    use_prior : bool
    cache_entries : int
        Size of a block on a CPU: entries of a stack of matrices that fits into a core's cache
        together with its temporaries.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from twostagegp.kernels import make_kernel
    >>> X = torch.randn(3, 20, 2, dtype=torch.float64)
    >>> problems = ProblemBatch.of(make_kernel("rbf", 2), X, X[:, :, 0])
    >>> values, gradients = problems(problems.starts(), np.arange(3))
    >>> values.shape, gradients.shape
    ((3,), (3, 3))
    """

    kernel: Kernel
    covariance: KernelBatch
    X: Tensor
    t: Tensor
    extras: Extras | None = None
    noise_floor: float = 1e-8
    use_prior: bool = True
    cache_entries: int = 1 << 17

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        X: Tensor,
        t: Tensor,
        *,
        extras: Extras | None = None,
        noise_floor: float = 1e-8,
        use_prior: bool = True,
        memory_bytes: int | None = None,
    ) -> ProblemBatch:
        """Return a batch, after a check that its distances fit into memory.

        A batch may take half of ``memory_bytes``, by default the free memory.
        """
        free = available_bytes(X.device) if memory_bytes is None else memory_bytes
        _check_memory(len(X), X.shape[1], X.device, X.element_size(), free)
        covariance = kernel_batch(kernel, X)
        return cls(kernel, covariance, X, t, extras, noise_floor, use_prior)

    def __len__(self) -> int:
        return len(self.t)

    @property
    def n_rows(self) -> int:
        return self.t.shape[1]

    def with_targets(self, t: Tensor, q: Tensor | None = None) -> ProblemBatch:
        """Return the batch with the same inputs and other targets, shape (B', n).

        B' may differ from B if all problems have the same inputs. ``q`` are the sums of squares of
        the targets within merged rows.
        """
        extras = self.extras if self.extras is None or q is None else replace(self.extras, q=q)
        return replace(self, t=t, extras=extras)

    def subset(self, index: Indices, n_rows: int) -> ProblemBatch:
        """Return some of the problems, with the first ``n_rows`` of their rows."""
        problems = self._index(index)
        X, t = take(self.X, problems)[:, :n_rows], self.t[problems][:, :n_rows]
        extras = None if self.extras is None else self.extras.take(problems, n_rows)
        return replace(self, covariance=kernel_batch(self.kernel, X), X=X, t=t, extras=extras)

    def starts(self) -> Array:
        """Return the kernel's starting values for every problem, shape (B, p)."""
        start = np.append(self.kernel.start(), math.log(max(0.05, 2.0 * self.noise_floor)))
        return np.tile(start, (len(self), 1))

    def bounds(self) -> tuple[Array, Array]:
        """Return lower and upper bounds of the parameters, each of shape (p,)."""
        floor = math.log(self.noise_floor)
        pairs = [*self.kernel.bounds(), (floor, max(math.log(1e2), floor + 1.0))]
        lower, upper = np.array(pairs).T
        return lower, upper

    def __call__(self, parameters: Array, index: Indices) -> tuple[Array, Array]:
        """Return values (b,) and gradients (b, p) of the problems ``index`` at their parameters.

        ``parameters`` have shape (b, p). The value is infinite if the covariance cannot be
        factorised.
        """
        parts = self.map(parameters, index, self._value_and_gradient)
        values = np.concatenate([value for value, _ in parts])
        gradients = np.concatenate([gradient for _, gradient in parts])
        if self.use_prior:
            penalty, slope = self._prior(parameters)
            total = self._totals(index)
            values, gradients = values + penalty / total, gradients + slope / total[:, None]
        return values, gradients

    def _totals(self, index: Indices) -> Array:
        """Return the number of rows before merging of each problem."""
        if self.extras is None:
            return np.full(len(index), float(self.n_rows))
        totals = self.extras.c.sum(-1).cpu().numpy().astype(np.float64)
        return totals[index] if len(totals) > 1 else np.full(len(index), totals[0])

    def _prior(self, parameters: Array) -> tuple[Array, Array]:
        mean, precision = self.kernel.prior()
        offset = parameters - np.append(mean, NOISE_PRIOR[0])
        slope = np.append(precision, NOISE_PRIOR[1]) * offset
        return 0.5 * (slope * offset).sum(1), slope

    def _value_and_gradient(self, block: Block) -> tuple[Array, Array]:
        value, direct = block.nll(), block.direct_noise_slope()
        # A is no longer needed; W is written into its memory.
        W = block.A.baddbmm_(block.alpha[:, :, None], block.alpha[:, None, :], alpha=-1.0)
        W.mul_(0.5)
        gradient = torch.empty(len(value), block.theta.shape[1] + 1).to(value)
        gradient[:, :-1] = self.covariance.gradient(block.theta, block.K, block.saved, W)
        diagonal = W.diagonal(dim1=-2, dim2=-1)
        diagonal = diagonal if block.extras is None else diagonal / block.extras.c
        gradient[:, -1] = block.noise * (diagonal.sum(-1) + direct)
        total = block.total
        value, gradient = value / total, gradient / total[:, None]
        bad = ~block.fine
        value[bad], gradient[bad] = math.inf, 0.0
        return value.cpu().numpy(), gradient.cpu().numpy()

    def map(
        self, parameters: Array, index: Indices, function: Callable[[Block], Result]
    ) -> list[Result]:
        """Return ``function(block)`` for every block of the problems ``index``, in order."""
        size = self._block_size()
        cuts = [slice(i, i + size) for i in range(0, len(index), size)]

        def work(cut: slice) -> Result:
            return function(self.block(parameters[cut], index[cut]))

        if self.X.device.type != "cpu" or not self.covariance.concurrent:
            return [work(cut) for cut in cuts]
        # Problems of a few hundred rows are too small to be shared between threads, but one problem
        # per thread keeps all threads busy.
        return spread(work, cuts)

    def _block_size(self) -> int:
        matrix = self.n_rows**2
        if not self.covariance.concurrent:
            return 1  # each problem is evaluated and differentiated before the next
        if self.X.device.type == "cpu":
            return max(1, self.cache_entries // matrix)
        free = available_bytes(self.X.device) or 0
        needed = _LIVE_MATRICES * matrix * self.X.element_size()
        return max(1, int(_MEMORY_SHARE * free) // needed)

    def _index(self, index: Indices) -> Index:
        """Return the index as a slice if the problems are consecutive, which avoids copies."""
        if len(index) and bool((np.diff(index) == 1).all()):
            return slice(int(index[0]), int(index[-1]) + 1)
        return torch.as_tensor(index, device=self.X.device)

    def block(self, parameters: Array, problems: Indices) -> Block:
        """Return some problems factorised at their parameters, shape (b, p)."""
        index = self._index(problems)
        P = torch.as_tensor(parameters, dtype=self.X.dtype, device=self.X.device)
        theta, noise = P[:, :-1], P[:, -1].exp()
        s = noise[:, None].expand(-1, self.n_rows)
        extras = None if self.extras is None else self.extras.take(index)
        if extras is not None:
            s = (s + extras.known) / extras.c
        K, saved = self.covariance.evaluate(index, theta)
        diagonal = K.diagonal(dim1=-2, dim2=-1).clone()
        K.diagonal(dim1=-2, dim2=-1).add_(s)
        L, fine = batch_cholesky(K)
        K.diagonal(dim1=-2, dim2=-1).copy_(diagonal)
        A = _inverse(L)
        t = self.t[index]
        alpha = batch_solve(L, t)
        return Block(index, theta, noise, s, K, L, A, t, alpha, fine, extras, saved)


def _inverse(L: Tensor) -> Tensor:
    """Return the inverse of L L^T for every problem, with contiguous rows."""
    if L.device.type == "cpu":
        return torch.cholesky_inverse(L).mT  # symmetric; LAPACK writes it by columns
    # On a GPU cholesky_inverse treats one problem after the other; these two calls treat all.
    identity = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand_as(L)
    root = torch.linalg.solve_triangular(L, identity, upper=False)
    return root.mT @ root


def _check_memory(
    n_problems: int, n: int, device: torch.device, itemsize: int, free: int | None
) -> None:
    """Raise MemoryBudgetError if the distances of all problems and one evaluation do not fit."""
    needed = (n_problems + _LIVE_MATRICES) * n * n * itemsize
    if free is not None and needed > _MEMORY_SHARE * free:
        raise MemoryBudgetError(
            f"a batch of {n_problems} problems of {n} rows needs about {needed / 2**30:.1f} GiB; "
            f"the budget on {device} is {_MEMORY_SHARE * free / 2**30:.1f} GiB, half of the free "
            "memory. Lower subsample or n_repeats."
        )
