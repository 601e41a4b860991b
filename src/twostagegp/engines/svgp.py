r"""The inducing-point engine: a sparse variational GP (Titsias 2009; Hensman et al. 2013).

The function is summarised by its values u at M inducing points Z. With :math:`L L^\top = K_{ZZ}`,
:math:`A = L^{-1} K_{ZX}`, :math:`q_i = \|A_{:i}\|^2`, the noise :math:`D = \mathrm{diag}(s / c)` of
merged rows and a Gaussian likelihood the best :math:`q(u)` is in closed form, and

.. math::

    B = I + A D^{-1} A^\top, \qquad
    \hat m(x) = a^\top B^{-1} A D^{-1} t, \qquad
    \hat v(x) = k(x, x) - \|a\|^2 + a^\top B^{-1} a, \qquad a = L^{-1} k_{Zx} .

Its evidence lower bound replaces the likelihood in training,

.. math::

    -\mathrm{ELBO} = \tfrac12 t^\top (A^\top A + D)^{-1} t + \tfrac12 \log\det (A^\top A + D)
        + \tfrac12 \sum_i \frac{k_{ii} - q_i}{D_{ii}} + \text{copies within rows} .

**Held-out rows.** Under :math:`q(u)` row i has the mean :math:`\mu_i` and the variance
:math:`r_i = A_{:i}^\top B^{-1} A_{:i}`, and :math:`k_{ii} - q_i` is left open. Taking a copy out
divides its Gaussian factor out of q (:mod:`twostagegp.numerics.held_out`). With Z = X all of this
is the exact engine. Everything costs :math:`O(n M^2)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.rows import Rows, group_blocks
from twostagegp.data.sampling import farthest_point_sampling
from twostagegp.engines.metric import Metric
from twostagegp.engines.problem import ObjectiveName, Problem
from twostagegp.engines.several import PerTargetPosterior, SumProblem
from twostagegp.kernels import Kernel, Vector
from twostagegp.numerics.held_out import (
    LOG_2PI,
    Heldout,
    copies_within,
    group_without_factors,
    without_factor,
)
from twostagegp.numerics.linalg import not_positive_definite, safe_cholesky

__all__ = ["SparseEngine", "SparsePosterior", "SparseProblem"]

#: Share of the largest variance of an inducing point that is added to all of them, so that nearly
#: equal points do not make their matrix singular.
_JITTER = {torch.float64: 1e-10, torch.float32: 1e-5}
#: Entries of a (M, rows) panel while all rows are conditioned on: 64 MiB in float64.
_PANEL_ENTRIES = 1 << 23


@dataclass(frozen=True)
class _Parts:
    """The quantities of the module's formulas for some rows.

    ``V``, shape (M, n), is A after a solve with the Cholesky factor of B, so that r_i is the
    squared norm of its column i. ``rest`` is k_ii - q_i; all but V have shape (n,).
    """

    V: Tensor
    mu: Tensor
    r: Tensor
    rest: Tensor
    s: Tensor


def _heldout(parts: _Parts, rows: Rows) -> Heldout:
    """Return held-out residuals and variances, with one copy or one group left out at a time."""
    c, s, r = rows.c, parts.s, parts.r
    if rows.groups is None:
        return without_factor(rows.t, parts.mu, r, parts.rest, c, s)
    residual, latent = torch.empty_like(r), torch.empty_like(r)
    for G, e, C in _group_predictions(parts, rows):
        residual[G], latent[G] = e, C.diagonal()
    return Heldout(residual, torch.ones_like(c), latent + parts.rest + s)


def _group_predictions(parts: _Parts, rows: Rows) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield row numbers, held-out residuals and latent covariance of every group."""
    assert rows.groups is not None
    for G in group_blocks(rows.groups):
        V = parts.V[:, G]
        yield G, *group_without_factors(V.T @ V, (rows.t - parts.mu)[G], (rows.c / parts.s)[G])


def _group_density(parts: _Parts, rows: Rows) -> Tensor:
    """Return twice the negative log density of all groups, each predicted from the others."""
    total = parts.r.new_zeros(())
    for G, e, C in _group_predictions(parts, rows):
        S = C + torch.diag(parts.rest[G] + (parts.s / rows.c)[G])
        S = 0.5 * (S + S.T)
        total = total + e @ torch.linalg.solve(S, e) + torch.linalg.slogdet(S)[1]
    return total


def _within(rows: Rows, s: Tensor) -> Tensor:
    """Return twice what the copies within merged rows add to a negative log density."""
    return copies_within(rows.c, rows.q, s)[0].sum()


@dataclass
class SparseProblem(Problem):
    """A training problem with fixed inducing points.

    Its derivatives by the kernel's matrices are autograd's, and the kernel turns them into
    derivatives by its parameters.
    """

    Z: Tensor = field(kw_only=True)
    metric: Metric = field(kw_only=True)

    def is_stale(self, parameters: Vector) -> bool:
        """Whether the metric of these parameters would give other inducing points."""
        metric = Metric.of(self.kernel, parameters[:-1], self.rows.X.shape[1])
        return metric.has_left(self.metric)

    def __call__(self, parameters: Vector) -> tuple[float, Vector]:
        """Return the mean objective plus prior, and its gradient."""
        self.evaluations += 1
        kernel, rows, theta = self.kernel, self.rows, parameters[:-1]
        K_zz, saved = kernel.evaluate(self.Z, theta)
        K_zx = kernel.cross(self.Z, rows.X, theta)
        k_xx = kernel.diagonal(rows.X, theta)
        log_noise = torch.tensor(parameters[-1], dtype=k_xx.dtype, device=k_xx.device)
        leaves = [part.detach().clone().requires_grad_() for part in (K_zz, K_zx, k_xx, log_noise)]
        with torch.enable_grad():
            loss = self._loss(*leaves)
            W_zz, W_zx, w_xx, by_noise = torch.autograd.grad(loss, leaves)
        gradient = kernel.gradient(self.Z, theta, K_zz, saved, 0.5 * (W_zz + W_zz.T))
        gradient = gradient + kernel.cross_gradient(self.Z, rows.X, theta, W_zx)
        gradient = gradient + kernel.diagonal_gradient(rows.X, theta, w_xx)
        return self._per_row(parameters, float(loss.detach()), np.append(gradient, float(by_noise)))

    def _loss(self, K_zz: Tensor, K_zx: Tensor, k_xx: Tensor, log_noise: Tensor) -> Tensor:
        rows = self.rows
        s = log_noise.exp() + rows.extra
        L = _factor(_with_jitter(K_zz))
        A = torch.linalg.solve_triangular(L, K_zx, upper=False)
        weight = rows.c / s
        B = torch.eye(len(L), dtype=L.dtype, device=L.device) + (A * weight) @ A.T
        L_B = _factor(B)
        V = torch.linalg.solve_triangular(L_B, A, upper=False)
        b = V @ (weight * rows.t)
        rest = (k_xx - A.square().sum(0)).clamp(min=0.0)
        if self.objective == "nll":
            fit = rows.t @ (weight * rows.t) - b @ b
            # log det(A^T A + D) with D = diag(s / c); `_within` has the other c - 1 times log s.
            determinant = 2.0 * L_B.diagonal().log().sum() + (s / rows.c).log().sum()
            return 0.5 * (fit + determinant + rest @ weight + _within(rows, s))
        parts = _Parts(V, V.T @ b, V.square().sum(0), rest, s)
        if self.objective == "loo" and rows.groups is not None:
            return 0.5 * (_group_density(parts, rows) + _within(rows, s))
        held = _heldout(parts, rows)
        squares = held.sum_of_squares(rows) if self.objective == "loo" else self.R
        assert squares is not None
        v = held.variance
        return 0.5 * (squares / v + rows.c * (v.log() + LOG_2PI)).sum()


def _with_jitter(K: Tensor) -> Tensor:
    """Return K with a small share of its largest diagonal entry added to the diagonal."""
    jitter = _JITTER[K.dtype] * float(K.detach().diagonal().max())
    return K + jitter * torch.eye(len(K), dtype=K.dtype, device=K.device)


def _factor(K: Tensor) -> Tensor:
    """Return the Cholesky factor, differentiable by autograd, or raise NumericalError."""
    L, failed = torch.linalg.cholesky_ex(K)
    if bool(failed):
        raise not_positive_definite(len(K), K.dtype, 0.0, float(K.detach().diagonal().mean()))
    return L


class InducingPoints:
    """Inducing points of the same rows for several metrics; those used last are kept."""

    _KEPT = 6

    def __init__(self, X: Tensor, n_inducing: int, pool_rows: int, seed: int) -> None:
        self.X, self.n_inducing, self.pool_rows, self.seed = X, n_inducing, pool_rows, seed
        self._found: dict[Metric, Tensor] = {}

    def near(self, metric: Metric) -> Tensor:
        """Return the points for a metric, shape (M, d)."""
        known = self._found.get(metric)
        if known is None:
            known = self._choose(metric)
            self._found[metric] = known
            while len(self._found) > self._KEPT:
                self._found.pop(next(iter(self._found)))
        return known

    def _choose(self, metric: Metric) -> Tensor:
        X, rng = self.X, np.random.default_rng(self.seed)
        if len(X) <= self.n_inducing:
            return X
        pool = X
        if len(X) > self.pool_rows:
            some = np.sort(rng.permutation(len(X))[: self.pool_rows])
            pool = X[torch.as_tensor(some, device=X.device)]
        scaled = metric.scale(pool).double().cpu().numpy()
        chosen = np.asarray(farthest_point_sampling(scaled, self.n_inducing))
        return pool[torch.as_tensor(chosen, device=X.device)]


@dataclass(frozen=True)
class SparseEngine:
    """Training rows for the inducing-point method.

    Parameters
    ----------
    rows : Rows
    n_inducing : int
        Number of inducing points; with fewer rows than that, every row is one.
    noise_floor : float
        Lower bound of the noise variance on the standardised target.
    use_prior : bool
        Whether training adds the weak prior on hyperparameters.
    pool_rows : int
        Random rows among which inducing points are chosen.
    seed : int
        Seed of that choice.
    """

    rows: Rows
    n_inducing: int = 256
    noise_floor: float = 1e-8
    use_prior: bool = True
    pool_rows: int = 20_000
    seed: int = 0
    points: InducingPoints = field(default=None)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.points is None:
            made = InducingPoints(self.rows.X, self.n_inducing, self.pool_rows, self.seed)
            object.__setattr__(self, "points", made)

    def subset(self, index: NDArray[np.int64]) -> SparseEngine:
        return self.with_rows(self.rows.subset(index))

    def with_rows(self, rows: Rows) -> SparseEngine:
        points = self.points if rows.X is self.rows.X else None
        return replace(self, rows=rows, points=points)  # type: ignore[arg-type]

    def with_noise_floor(self, noise_floor: float) -> SparseEngine:
        return replace(self, noise_floor=noise_floor)

    def problem(
        self,
        kernel: Kernel,
        objective: ObjectiveName,
        R: Tensor | None = None,
        batch: Tensor | None = None,
        start: Vector | None = None,
    ) -> Problem:
        if self.rows.several:
            return SumProblem.of(self, kernel, objective, R, batch, start, self.use_prior)
        engine = self if batch is None else self.with_rows(self.rows.subset(batch))
        theta = kernel.start() if start is None else start[:-1]
        metric = Metric.of(kernel, theta, self.rows.X.shape[1])
        return SparseProblem(
            kernel, engine.rows, objective, R, self.noise_floor, self.use_prior,
            Z=engine.points.near(metric), metric=metric,
        )  # fmt: skip

    def condition(self, kernel: Kernel, parameters: Vector) -> SparsePosterior | PerTargetPosterior:
        parameters = np.asarray(parameters, dtype=np.float64)
        if self.rows.several:
            return PerTargetPosterior.of(self, kernel, parameters)
        metric = Metric.of(kernel, parameters[:-1], self.rows.X.shape[1])
        return SparsePosterior(kernel, parameters, self.rows, self.points.near(metric))


class SparsePosterior:
    """A zero-mean GP conditioned on rows through inducing points.

    Parameters
    ----------
    kernel : Kernel
    parameters : array
        (theta, log noise variance).
    rows : Rows
    Z : Tensor of shape (M, d)

    Examples
    --------
    >>> import numpy as np, torch
    >>> from twostagegp.kernels import NamedKernel
    >>> X = torch.linspace(0, 1, 200, dtype=torch.float64)[:, None]
    >>> one = torch.ones(200, dtype=torch.float64)
    >>> rows = Rows(X, torch.sin(6 * X[:, 0]), one, 0 * one, 0 * one)
    >>> engine = SparseEngine(rows, n_inducing=20)
    >>> gp = engine.condition(NamedKernel("rbf", 1), np.array([-1.0, 0.0, np.log(1e-4)]))
    >>> bool(torch.allclose(gp.mean(X), rows.t, atol=1e-2))
    True
    """

    def __init__(self, kernel: Kernel, parameters: Vector, rows: Rows, Z: Tensor) -> None:
        self.kernel = kernel
        self.parameters = parameters
        self.rows = rows
        self.Z = Z
        self.noise = math.exp(parameters[-1])
        self.jitter = 0.0
        K, _ = kernel.evaluate(Z, parameters[:-1])
        self.L, jitter = safe_cholesky(_with_jitter(K.detach()))
        self.jitter = max(self.jitter, jitter)
        self._condition()

    def _condition(self) -> None:
        """Set the factor of B and the weights of the mean, panel by panel of the rows."""
        rows, M = self.rows, len(self.Z)
        B = torch.eye(M, dtype=self.L.dtype, device=self.L.device)
        b = torch.zeros(M, dtype=self.L.dtype, device=self.L.device)
        weight = rows.c / (self.noise + rows.extra)
        for part in self._panels(len(rows)):
            A = self._half_solve(rows.X[part])
            B.addmm_(A * weight[part], A.T)
            b.addmv_(A, (weight * rows.t)[part])
        self.L_B, jitter = safe_cholesky(B)
        self.jitter = max(self.jitter, jitter)
        solved = torch.cholesky_solve(b[:, None], self.L_B)
        self.alpha = torch.linalg.solve_triangular(self.L.T, solved, upper=True)[:, 0]
        self._mean_weights = solved[:, 0]

    def _panels(self, n: int) -> Iterator[slice]:
        size = max(1, _PANEL_ENTRIES // max(1, len(self.Z)))
        for begin in range(0, n, size):
            yield slice(begin, begin + size)

    def _half_solve(self, X: Tensor) -> Tensor:
        """Return :math:`L^{-1} k(Z, X)`, shape (M, n)."""
        K = self.kernel.cross(self.Z, X, self.parameters[:-1])
        return torch.linalg.solve_triangular(self.L, K, upper=False)

    def mean(self, X: Tensor) -> Tensor:
        theta = self.parameters[:-1]
        parts = [self.kernel.cross(X[p], self.Z, theta) @ self.alpha for p in self._panels(len(X))]
        return torch.cat([X.new_zeros(0), *parts])

    def variance(self, X: Tensor) -> Tensor:
        found = [X.new_zeros(0)]
        for part in self._panels(len(X)):
            A = self._half_solve(X[part])
            V = torch.linalg.solve_triangular(self.L_B, A, upper=False)
            prior = self.kernel.diagonal(X[part], self.parameters[:-1])
            rest = (prior - A.square().sum(0)).clamp_(min=0.0)
            found.append(rest + V.square().sum(0))
        return torch.cat(found)

    def covariance(self, X: Tensor) -> Tensor:
        A = self._half_solve(X)
        V = torch.linalg.solve_triangular(self.L_B, A, upper=False)
        return self.kernel.cross(X, X, self.parameters[:-1]) - A.T @ A + V.T @ V

    def heldout(self, index: Tensor | None = None) -> Heldout:
        n = len(self.rows)
        device = self.rows.X.device
        wanted = torch.arange(n, device=device) if index is None else index
        if self.rows.groups is None:
            parts = [self._heldout_of(wanted[part]) for part in self._panels(len(wanted))]
            return Heldout(
                torch.cat([held.residual for held in parts]),
                torch.cat([held.slope for held in parts]),
                torch.cat([held.variance for held in parts]),
            )
        # Whole groups are needed to leave a group out.
        groups = self.rows.groups
        whole = torch.nonzero(torch.isin(groups, groups[wanted]))[:, 0]
        place = torch.empty(n, dtype=torch.long, device=device)
        place[whole] = torch.arange(len(whole), device=device)
        return self._heldout_of(whole).subset(place[wanted])

    def _heldout_of(self, index: Tensor) -> Heldout:
        rows = self.rows.subset(index)
        A = self._half_solve(rows.X)
        V = torch.linalg.solve_triangular(self.L_B, A, upper=False)
        prior = self.kernel.diagonal(rows.X, self.parameters[:-1])
        rest = (prior - A.square().sum(0)).clamp_(min=0.0)
        mu = A.T @ self._mean_weights
        return _heldout(_Parts(V, mu, V.square().sum(0), rest, self.noise + rows.extra), rows)

    def drop_factor(self) -> None:
        """Do nothing: no factor is larger than (M, M)."""

    def extended(self, rows: Rows, changed: Tensor) -> SparsePosterior:
        """Condition on more rows with the same inducing points."""
        return SparsePosterior(self.kernel, self.parameters, rows, self.Z)
