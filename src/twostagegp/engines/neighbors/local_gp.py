r"""Many small Gaussian processes, one per point, each conditioned on a few neighbours.

The formulas are in ``compiled/local.py``, which does the work for named kernels on the CPU, eight
points per vector. On a GPU, and for other kernels, torch does the same with batches of matrices:
the point and its neighbours are one problem of size k + 1 of a ``KernelBatch``.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.engines.neighbors.compiled.threads import by_slices
from twostagegp.engines.problem import ObjectiveName
from twostagegp.errors import NumericalError
from twostagegp.kernels import Kernel, NamedKernel, Vector
from twostagegp.kernels.batched import kernel_batch
from twostagegp.numerics.held_out import LOG_2PI, copies_within, copy_from_others
from twostagegp.numerics.linalg import batch_cholesky, batch_solve

if TYPE_CHECKING:
    from twostagegp.engines.neighbors.compiled.local import CompiledKernel

__all__ = [
    "LocalSizes",
    "is_compiled",
    "local_density",
    "local_predict",
    "one_factor_predict",
    "torch_density",
    "torch_predict",
]


@dataclass(frozen=True)
class LocalSizes:
    """How many points are worked on at a time; results depend on it by rounding at most.

    Examples
    --------
    >>> cpu = torch.device("cpu")
    >>> LocalSizes(block_entries=640).block(NamedKernel("rbf", 1), cpu, k=7)  # of (7 + 1)^2 each
    10
    """

    #: Points of one slice of work for a thread.
    slice_points: int = 256
    #: Entries of the matrices of a block of points in torch; None: 8 MiB in float64, about what
    #: stays in cache, and on a GPU 1 GiB.
    block_entries: int | None = None
    #: At most so many for a GPyTorch kernel: autograd keeps a dozen matrices, or one per column.
    graph_entries: int = 1 << 24

    def block(self, kernel: Kernel, device: torch.device, k: int) -> int:
        """Return the points of a block in torch, of k neighbours each."""
        entries = self.block_entries
        if entries is None:
            entries = 1 << 27 if device.type == "cuda" else 1 << 20
        if not isinstance(kernel, NamedKernel):
            entries = min(entries, self.graph_entries)
        return max(1, entries // (k + 1) ** 2)


_SIZES = LocalSizes()


def is_compiled(kernel: Kernel, rows: Rows) -> bool:
    """Whether the kernel has a compiled form and the rows are on the CPU."""
    named = isinstance(kernel, NamedKernel) and kernel.form.compiled is not None
    return named and rows.X.device.type == "cpu"


def _compiled(kernel: NamedKernel) -> CompiledKernel:
    from twostagegp.engines.neighbors.compiled.local import CompiledKernel

    assert kernel.form.compiled is not None
    return CompiledKernel.of(kernel.form.compiled, kernel.metric)


def _scaled(kernel: Kernel, X: Tensor, theta: Vector) -> np.ndarray[tuple[int, int], np.dtype]:
    assert isinstance(kernel, NamedKernel)
    return np.ascontiguousarray(kernel.scaled(X.double(), theta).numpy())


def local_predict(
    kernel: Kernel,
    parameters: Vector,
    rows: Rows,
    near: Tensor,
    points: Tensor,
    sizes: LocalSizes = _SIZES,
) -> tuple[Tensor, Tensor]:
    """Return mean and latent variance of points, each from its own neighbours.

    Parameters
    ----------
    parameters : array
        (theta, log noise variance).
    near : integer Tensor of shape (m, k)
        Row numbers of the neighbours; -1 stands for a missing neighbour.
    points : Tensor of shape (m, d)

    Returns
    -------
    mean : Tensor of shape (m,), or (m, K) for K targets
        Targets that share their noise share the factorisation.
    variance : Tensor of shape (m,)

    Examples
    --------
    >>> import numpy as np, torch
    >>> X = torch.linspace(0, 1, 9, dtype=torch.float64)[:, None]
    >>> one = torch.ones(9, dtype=torch.float64)
    >>> rows = Rows(X, X[:, 0], one, 0 * one, 0 * one)
    >>> near = torch.tensor([[3, 4, 5]], dtype=torch.int32)
    >>> parameters = np.array([0.0, 0.0, np.log(1e-6)])
    >>> mean, variance = local_predict(NamedKernel("rbf", 1), parameters, rows, near, X[4:5] + 0.05)
    >>> bool(abs(mean[0] - 0.55) < 1e-3), bool(0.0 < variance[0] < 1e-3)
    (True, True)
    """
    if rows.several or not is_compiled(kernel, rows):
        return torch_predict(kernel, parameters, rows, near, points, sizes)
    from twostagegp.engines.neighbors.compiled import local  # loads Numba

    assert isinstance(kernel, NamedKernel)
    if 4 * near.numel() < len(rows):
        rows, near = _near_rows(rows, near)
    theta, noise = parameters[:-1], math.exp(parameters[-1])
    Z, Q = _scaled(kernel, rows.X, theta), _scaled(kernel, points, theta)
    t = rows.t.double().numpy()
    noises = ((noise + rows.extra) / rows.c).double().numpy()
    form, s, index = _compiled(kernel), math.exp(theta[-1]), near.int().contiguous().numpy()
    mean, variance = np.empty(len(Q)), np.empty(len(Q))

    def work(part: slice) -> None:
        local.predict(Z, t, noises, index[part], Q[part], form, s, mean[part], variance[part])

    by_slices(work, len(Q), sizes.slice_points)
    m, v = torch.from_numpy(mean).to(points), torch.from_numpy(variance).to(points)
    failed = torch.nonzero(v.isnan())[:, 0]
    if len(failed):  # nearly equal neighbours and hardly any noise: again, with jitter
        m[failed], v[failed] = torch_predict(
            kernel, parameters, rows, near[failed], points[failed], sizes
        )
    return m, v


def _near_rows(rows: Rows, near: Tensor) -> tuple[Rows, Tensor]:
    """Return the neighbours of few points as rows of their own, and their numbers there."""
    numbers = torch.arange(near.numel(), dtype=near.dtype).reshape(near.shape)
    used = rows.subset(near.reshape(-1).clamp(min=0).long())
    return used, numbers.masked_fill_(near < 0, -1)


@dataclass(frozen=True)
class _Solved:
    """A block of points conditioned on their neighbours."""

    a: Tensor
    beta: Tensor
    mean: Tensor
    variance: Tensor
    weights: Tensor


def _condition(K: Tensor, rows: Rows, near: Tensor, noise: float) -> tuple[_Solved, Tensor]:
    """Solve with the leading k x k blocks of K (b, k+1, k+1); say which could be factorised."""
    missing, index = near < 0, near.long().clamp(min=0)
    t = rows.t[index].masked_fill(missing if rows.t.ndim == 1 else missing[..., None], 0.0)
    weights = rows.c[index]
    noises = (noise + rows.extra[index]) / weights
    k = near.shape[1]
    C, kx = K[:, :k, :k].clone(), K[:, k, :k].clone()
    C.diagonal(dim1=-2, dim2=-1).add_(noises)
    if bool(missing.any()):
        C.masked_fill_(missing[:, None, :] | missing[:, :, None], 0.0)
        C.diagonal(dim1=-2, dim2=-1).masked_fill_(missing, 1.0)
        kx.masked_fill_(missing, 0.0)
    L, fine = batch_cholesky(C)
    a, beta = batch_solve(L, kx), batch_solve(L, t)
    mean = (kx * beta).sum(1) if beta.ndim == 2 else (kx[..., None] * beta).sum(1)
    variance = K[:, k, k] - (kx * a).sum(1)
    return _Solved(a, beta, mean, variance.clamp(min=0.0), weights), fine


def _problems(rows: Rows, near: Tensor, points: Tensor) -> Tensor:
    """Return the inputs of the neighbours and of the point itself, shape (b, k + 1, d)."""
    return torch.cat([rows.X[near.long().clamp(min=0)], points[:, None, :]], dim=1)


def _shared(theta: Vector, like: Tensor) -> Tensor:
    """Return one parameter vector for all problems of a block, shape (1, p)."""
    return torch.as_tensor(theta, dtype=like.dtype, device=like.device)[None]


def _one_factor(K: Tensor, rows: Rows, near: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    r"""Return mean and variance from one batched Cholesky factor; NaN if a factor does not exist.

    The point's covariances and the targets are two more rows of the matrix, as in the compiled
    form: the factor has :math:`L^{-1} k` and :math:`L^{-1} t` in these rows, so that no system has
    to be solved. The last two diagonal entries only have to be large enough.
    """
    index = near.long()
    b, k = near.shape
    t = rows.t[index]
    noises = (noise + rows.extra[index]) / rows.c[index]
    A = K.new_zeros(b, k + 2, k + 2)
    A[:, : k + 1, : k + 1] = K
    A[:, k + 1, :k] = t
    A[:, :k, k + 1] = t
    A.diagonal(dim1=-2, dim2=-1)[:, :k] += noises
    A[:, k, k] *= 2.0
    A[:, k + 1, k + 1] = 2.0 * t.square().sum(1) / noises.amin(1) + 1.0
    A[:, k, k + 1] = A[:, k + 1, k] = 0.0
    L, info = torch.linalg.cholesky_ex(A)
    yk, yt = L[:, k, :k], L[:, k + 1, :k]
    mean, variance = (yk * yt).sum(1), K[:, k, k] - yk.square().sum(1)
    bad = info != 0
    return mean.masked_fill(bad, math.nan), variance.clamp(min=0.0).masked_fill(bad, math.nan)


def torch_predict(
    kernel: Kernel,
    parameters: Vector,
    rows: Rows,
    near: Tensor,
    points: Tensor,
    sizes: LocalSizes = _SIZES,
    one_factor: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """Return what :func:`local_predict` does, by torch for every kernel and device.

    ``one_factor`` says whether :func:`one_factor_predict` goes first, and only the points where it
    fails are solved with jitter; by default on a GPU with one target and no missing neighbour.
    """
    if one_factor is None:
        complete = not rows.several and not bool((near < 0).any())
        one_factor = points.device.type == "cuda" and complete
    if not one_factor:
        return _safe_predict(kernel, parameters, rows, near, points, sizes)
    m, v = one_factor_predict(kernel, parameters, rows, near, points, sizes)
    failed = torch.nonzero(v.isnan())[:, 0]
    if len(failed):
        m[failed], v[failed] = _safe_predict(
            kernel, parameters, rows, near[failed], points[failed], sizes
        )
    return m, v


def _matrices(
    kernel: Kernel,
    parameters: Vector,
    rows: Rows,
    near: Tensor,
    points: Tensor,
    sizes: LocalSizes,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield covariances of points and their neighbours, (b, k+1, k+1), by block, with ``near``."""
    size = sizes.block(kernel, rows.X.device, near.shape[1])
    for theirs, own in zip(torch.split(near, size), torch.split(points, size), strict=True):
        X = _problems(rows, theirs, own)
        K, _ = kernel_batch(kernel, X).evaluate(slice(None), _shared(parameters[:-1], X))
        yield K.detach(), theirs


def one_factor_predict(
    kernel: Kernel,
    parameters: Vector,
    rows: Rows,
    near: Tensor,
    points: Tensor,
    sizes: LocalSizes = _SIZES,
) -> tuple[Tensor, Tensor]:
    """Return mean and latent variance by one factor per point, NaN where there is none.

    ``near`` must not have gaps.
    """
    noise = math.exp(parameters[-1])
    means, variances = [points.new_zeros(0)], [points.new_zeros(0)]
    for K, theirs in _matrices(kernel, parameters, rows, near, points, sizes):
        mean, variance = _one_factor(K, rows, theirs, noise)
        means.append(mean)
        variances.append(variance)
    return torch.cat(means), torch.cat(variances)


def _safe_predict(
    kernel: Kernel,
    parameters: Vector,
    rows: Rows,
    near: Tensor,
    points: Tensor,
    sizes: LocalSizes,
) -> tuple[Tensor, Tensor]:
    noise, k = math.exp(parameters[-1]), near.shape[1]
    means, variances = [points.new_zeros(0, *rows.t.shape[1:])], [points.new_zeros(0)]
    for K, theirs in _matrices(kernel, parameters, rows, near, points, sizes):
        solved, fine = _condition(K, rows, theirs, noise)
        if not bool(fine.all()):
            raise NumericalError(
                f"{int((~fine).sum())} of {len(K)} points have neighbours whose {k} x {k} "
                "covariance matrix is not positive definite, even with jitter. Raise noise_floor, "
                "or remove nearly repeated rows."
            )
        means.append(solved.mean)
        variances.append(solved.variance)
    return torch.cat(means), torch.cat(variances)


def local_density(
    kernel: Kernel,
    parameters: Vector,
    rows: Rows,
    batch: Tensor,
    near: Tensor,
    objective: ObjectiveName = "loo",
    R: Tensor | None = None,
    sizes: LocalSizes = _SIZES,
) -> tuple[float, Vector]:
    r"""Return the negative log density of rows, each given its neighbours, and its gradient.

    .. math::

        F = \tfrac12 \sum_i \frac{Q_i}{V_i} + c_i \log V_i + c_i \log 2\pi ,

    with the held-out variance :math:`V_i` and the sum of squares :math:`Q_i` of row i's copies, as
    in ``objectives.py``. With ``objective="heldout"`` and R in place of Q this is the held-out
    variance density; with ``"nll"``, and neighbours that precede their row in some order, it is
    Vecchia's likelihood, :math:`-\sum_i \log p(t_i \mid t_{\text{near}(i)})`.

    Parameters
    ----------
    batch : integer Tensor of shape (m,)
        The rows whose density counts.
    near : integer Tensor of shape (m, k)
        Their neighbours, without themselves.
    objective : {"loo", "heldout", "nll"}
    R : Tensor of shape (m,), optional
        For ``"heldout"``.

    Returns
    -------
    value : float
    gradient : array of shape (len(parameters),)
    """
    R = R if objective == "heldout" else None
    if is_compiled(kernel, rows):
        return _compiled_density(kernel, parameters, rows, batch, near, objective, R, sizes)
    return torch_density(kernel, parameters, rows, batch, near, objective, R, sizes)


def _not_definite(k: int) -> NumericalError:
    return NumericalError(
        f"a {k} x {k} covariance matrix of neighbours is not positive definite. Raise noise_floor, "
        "or remove nearly repeated rows."
    )


def _compiled_density(
    kernel: Kernel,
    parameters: Vector,
    rows: Rows,
    batch: Tensor,
    near: Tensor,
    objective: ObjectiveName,
    R: Tensor | None,
    sizes: LocalSizes,
) -> tuple[float, Vector]:
    from twostagegp.engines.neighbors.compiled import local

    assert isinstance(kernel, NamedKernel)
    theta, noise = parameters[:-1], math.exp(parameters[-1])
    Z = _scaled(kernel, rows.X, theta)
    t, c, q, extra = (v.double().numpy() for v in (rows.t, rows.c, rows.q, rows.extra))
    mode, all_copies = local.MODES[objective], rows.groups is not None
    residuals = np.empty(0) if R is None else R.double().contiguous().numpy()
    index, neighbours = batch.long().contiguous().numpy(), near.int().contiguous().numpy()
    form, s = _compiled(kernel), math.exp(theta[-1])
    lock = threading.Lock()
    parts: dict[int, tuple[float, Vector]] = {}

    def work(part: slice) -> None:
        gradient = np.zeros(len(parameters))
        own = residuals if R is None else residuals[part]
        value = local.evaluate(
            Z, t, c, q, extra, all_copies, mode, own, index[part], neighbours[part], form, s, noise,
            kernel.ard, gradient,
        )  # fmt: skip
        with lock:
            parts[part.start] = value, gradient

    by_slices(work, len(index), sizes.slice_points)
    # Summed in the order of the rows, so that the result does not depend on the threads.
    ordered = [parts[start] for start in sorted(parts)]
    value = sum(v for v, _ in ordered)
    if not math.isfinite(value):
        raise _not_definite(near.shape[1])
    return value, np.sum([g for _, g in ordered], axis=0)


def torch_density(
    kernel: Kernel,
    parameters: Vector,
    rows: Rows,
    batch: Tensor,
    near: Tensor,
    objective: ObjectiveName = "loo",
    R: Tensor | None = None,
    sizes: LocalSizes = _SIZES,
) -> tuple[float, Vector]:
    """Return what :func:`local_density` does, by torch for every kernel and device."""
    noise = math.exp(parameters[-1])
    total, gradient = 0.0, np.zeros(len(parameters))
    k = near.shape[1]
    size = sizes.block(kernel, rows.X.device, k)
    for begin in range(0, len(batch), size):
        part = slice(begin, begin + size)
        own, theirs = batch[part].long(), near[part]
        X = _problems(rows, theirs, rows.X[own])
        kernels = kernel_batch(kernel, X)
        theta = _shared(parameters[:-1], X)
        K, saved = kernels.evaluate(slice(None), theta)
        solved, fine = _condition(K.detach(), rows, theirs, noise)
        if not bool(fine.all()):
            raise _not_definite(near.shape[1])
        value, by_mean, by_variance, by_noise = _loss(
            solved, rows.subset(own), noise, objective, None if R is None else R[part]
        )
        a, beta = solved.a, solved.beta
        w = by_variance[:, None] * a - by_mean[:, None] * beta
        W = K.new_zeros(K.shape)
        W[:, :k, :k] = 0.5 * (a[:, :, None] * w[:, None, :] + w[:, :, None] * a[:, None, :])
        cross = 0.5 * (by_mean[:, None] * beta - 2.0 * by_variance[:, None] * a)
        W[:, k, :k] = cross
        W[:, :k, k] = cross
        W[:, k, k] = by_variance
        gradient[:-1] += kernels.gradient(theta, K, saved, W)[0].cpu().numpy()
        gradient[-1] += noise * float((a * w / solved.weights).sum() + by_noise)
        total += value
    return total, gradient


def _loss(
    solved: _Solved, own: Rows, noise: float, objective: ObjectiveName, R: Tensor | None
) -> tuple[float, Tensor, Tensor, float]:
    """Return the loss of a block, and its derivatives by mean, variance and (summed) noise."""
    mean = solved.mean.detach().requires_grad_(True)
    variance = solved.variance.detach().requires_grad_(True)
    level = mean.new_tensor(noise, requires_grad=True)
    with torch.enable_grad():
        s, c = level + own.extra, own.c
        if objective == "nll":
            V = variance + s / c
            within, _ = copies_within(c, own.q, s)
            value = 0.5 * ((own.t - mean).square() / V + V.log() + within).sum()
            return float(value.detach()), *_derivatives(value, mean, variance, level)
        ratio, slope, V = copy_from_others(variance, c, s, own.groups is not None)
        Q = R
        if Q is None:
            Q = c * (ratio * (own.t - mean)).square() + slope.square() * own.q
        value = 0.5 * (Q / V + c * (V.log() + LOG_2PI)).sum()
    return float(value.detach()), *_derivatives(value, mean, variance, level)


def _derivatives(
    value: Tensor, mean: Tensor, variance: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor, float]:
    by_mean, by_variance, by_noise = torch.autograd.grad(
        value, [mean, variance, noise], allow_unused=True
    )
    by_mean = torch.zeros_like(mean) if by_mean is None else by_mean
    return by_mean, by_variance, float(by_noise)
