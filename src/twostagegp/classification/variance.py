r"""Part 2 of a classifier: Gaussian processes with Dirichlet noise, one kernel for all classes.

The noise of a row takes two values, :math:`s_1` for its own class and :math:`s_0` for the others
(:mod:`twostagegp.classification.dirichlet`). So the matrix of class k differs from one that all
share only in the rows :math:`I_k` of the class,

.. math::

    A_0 = (K_\theta + \mathrm{diag}(s_0 / c))^{-1} , \qquad
    A_k = A_0 + B_k^\top B_k , \qquad B_k = L_k^{-1} A_0[I_k, :] , \qquad
    L_k L_k^\top = \mathrm{diag}\Big( \frac{c}{s_0 - s_1} \Big)_{I_k} - A_0[I_k, I_k] ,

by the matrix inversion lemma: one factorisation of all rows, and one of the rows of each class,
instead of K of all rows. With :math:`h = A_0 k_x`

.. math::

    v_k(x) = k(x, x) - k_x^\top h - \| L_k^{-1} h_{I_k} \|^2 , \qquad f_k(x) = k_x^\top A_k t_k .

Hyperparameters of the second stage are those under which the held-out residuals of the first have
the largest density (:func:`twostagegp.numerics.objectives.heldout_variance`, summed over classes),
or with in-sample residuals the largest likelihood; those of a single stage maximise the
leave-one-out density of the targets. All are trained on a few hundred rows, unless a
:class:`Training` says otherwise.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.classification.dirichlet import Dirichlet
from twostagegp.classification.latents import CONSTANT, LatentEngine, LatentRows
from twostagegp.classification.local import LocalRows, weighted
from twostagegp.classification.refits import by_refits, retrained
from twostagegp.classification.table import ClassTable
from twostagegp.classification.views import View
from twostagegp.data.rows import group_blocks
from twostagegp.engines.problem import ObjectiveName
from twostagegp.kernels import Kernel, Vector
from twostagegp.numerics.linalg import block_inverses, safe_cholesky
from twostagegp.numerics.objectives import one_copy_out
from twostagegp.training.candidates import Candidate, fitted_only, train_with
from twostagegp.training.schedule import Training

__all__ = [
    "ExactLatents",
    "LocalLatents",
    "TrainedKernel",
    "latent_rows",
    "refit_latents",
    "train_latents",
]

Array = NDArray[np.float64]
Index = NDArray[np.int64]

_LOG = logging.getLogger("twostagegp")

#: Rows on which the kernels are trained, and steps of that, also without a fold.
TRAINING_ROWS, STEPS = 600, 30
#: Entries of a (points, rows) panel during prediction.
_CHUNK_ENTRIES = 1 << 24


@dataclass(frozen=True)
class TrainedKernel:
    """A kernel in a view with its hyperparameters, and the transform they are for.

    ``scale`` is what latents are divided by before training, ``centre`` what targets are less,
    ``constant`` the prior variance of a constant: of a single stage, whose mean it serves.
    """

    view: View
    kernel: Kernel
    parameters: Vector
    value: float
    dirichlet: Dirichlet
    centre: Array
    scale: float
    constant: float = 0.0
    tried: dict[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.kernel.label} ({self.view.name})"

    @property
    def noise(self) -> float:
        """Noise variance that was learned, on top of the transform's."""
        return math.exp(self.parameters[-1])

    def scaled_target(self, table: ClassTable) -> Tensor:
        """Dirichlet targets less their centre, in units of the scale, shape (m, K)."""
        return table.tensor((self.dirichlet.target(table.codes) - self.centre) / self.scale)

    def noises(self) -> tuple[float, float]:
        """Noise variance of a row for other classes and for its own."""
        other, own = self.dirichlet.noises
        return other / self.scale**2 + self.noise, own / self.scale**2 + self.noise


def latent_rows(
    table: ClassTable, view: View, dirichlet: Dirichlet, centre: Array, scale: float
) -> LatentRows:
    """Dirichlet targets less ``centre``, in units of ``scale``."""
    T = (dirichlet.target(table.codes) - centre) / scale
    return LatentRows(
        table.inputs(view),
        table.tensor(T),
        table.tensor(table.c),
        table.tensor(dirichlet.noise(table.codes) / scale**2),
        table.group_tensor,
    )


def train_latents(
    table: ClassTable,
    choices: Sequence[tuple[View, Kernel]],
    dirichlet: Dirichlet,
    residuals: Array | None,
    rows: Index,
    training: Training | None,
    objective: ObjectiveName,
    noise_floor: float,
    rng: np.random.Generator,
) -> TrainedKernel:
    """Hyperparameters of the best kernel.

    Parameters
    ----------
    residuals : array of shape (h, K) or None
        Held-out residuals of the first stage at ``rows``; None for a single stage.
    rows : integer array of shape (h,)
        Distinct rows that training may use.
    """
    target = dirichlet.target(table.codes)
    centre = table.c @ target / table.c.sum()
    scale = float(np.sqrt(np.mean(table.c @ (target - centre) ** 2 / table.c.sum())))
    pick = np.arange(len(rows))
    if training is None:
        pick = np.sort(rng.permutation(len(rows))[:TRAINING_ROWS])
    R = None
    if residuals is not None:
        R = table.tensor((residuals[pick] / scale) ** 2 * table.c[rows[pick], None])
    constant = CONSTANT if residuals is None else 0.0
    candidates: list[tuple[View, Candidate]] = []
    for view, kernel in choices:
        candidate = Candidate(kernel, objective)
        latents = latent_rows(table, view, dirichlet, centre, scale).subset(rows[pick])
        if residuals is not None:
            latents = replace(latents, T=table.tensor(residuals[pick] / scale))
        engine = LatentEngine(latents, noise_floor, constant)
        if training is None:
            candidate.train(engine, R, len(pick) == len(table), STEPS, 1e-3)
        else:
            train_with(engine, candidate, training, rng, R)
        candidates.append((view, candidate))
    fitted = fitted_only([candidate for _, candidate in candidates])
    best = min(fitted, key=lambda candidate: candidate.value)
    view = next(view for view, candidate in candidates if candidate is best)
    assert best.parameters is not None
    tried = {f"{c.kernel.label} ({view.name})": c.value for view, c in candidates if not c.failure}
    return TrainedKernel(
        view, best.kernel, best.parameters, best.value, dirichlet, centre, scale, constant, tried
    )


class ExactLatents:
    """All latent functions conditioned on all rows; moments in the units of the latents."""

    table: ClassTable
    trained: TrainedKernel
    jitter: float
    members: list[Tensor]
    T: Tensor
    alpha: Tensor
    A: Tensor
    factors: list[Tensor]

    def __init__(self, table: ClassTable, trained: TrainedKernel) -> None:
        self.table, self.trained = table, trained
        self.members = [
            torch.as_tensor(np.flatnonzero(table.codes == k), device=table.device)
            for k in range(table.n_classes)
        ]
        self.rebuild_factors()
        self.T = trained.scaled_target(table)
        parts = [self._times(k, self.T[:, k]) for k in range(table.n_classes)]
        self.alpha = torch.stack(parts, dim=1)

    def rebuild_factors(self) -> None:
        """Inverse and factors from rows and hyperparameters, as after a file without them."""
        table, trained = self.table, self.trained
        s0, s1 = trained.noises()
        c = table.tensor(table.c)
        Z = table.inputs(trained.view)
        K, _ = trained.kernel.evaluate(Z, trained.parameters[:-1])
        K += trained.constant
        K.diagonal().add_(s0 / c)
        L, self.jitter = safe_cholesky(K)
        del K
        self.A = torch.cholesky_inverse(L)
        del L
        self.factors = []
        for rows in self.members:
            D = -self.A[rows[:, None], rows]
            D.diagonal().add_(c[rows] / (s0 - s1))
            # A class may have no row here: none of weight, or none in a sample.
            self.factors.append(safe_cholesky(D)[0] if len(rows) else D)

    def _times(self, k: int, t: Tensor) -> Tensor:
        """A_k t."""
        u = self.A @ t
        inner = torch.cholesky_solve(u[self.members[k], None], self.factors[k])
        return u + self.A[:, self.members[k]] @ inner[:, 0]

    def heldout(self, rows: Index) -> tuple[Array, Array]:
        """Means and variances of rows predicted from others, each of shape (h, K)."""
        table, (s0, s1) = self.table, self.trained.noises()
        c = table.tensor(table.c)
        groups = table.group_tensor
        blocks = None if groups is None else group_blocks(groups)
        target = self.T
        means, variances = torch.empty_like(target), torch.empty_like(target)
        for k, members in enumerate(self.members):
            B = torch.linalg.solve_triangular(self.factors[k], self.A[members], upper=False)
            s = torch.full_like(c, s0)
            s[members] = s1
            if blocks is None:
                kappa = self.A.diagonal() + B.square().sum(0)
                factor, v = one_copy_out(kappa, c, s)
                means[:, k] = target[:, k] - factor * self.alpha[:, k]
                variances[:, k] = v - s
                continue
            S = block_inverses(self.A, blocks, plus=B)
            means[:, k] = target[:, k] - S @ self.alpha[:, k]
            variances[:, k] = S.diagonal() - s / c
        return self._units(means, variances.clamp_(min=0.0), rows)

    def _units(self, means: Tensor, variances: Tensor, rows: Index) -> tuple[Array, Array]:
        scale, centre = self.trained.scale, self.trained.centre
        mean = means.double().cpu().numpy()[rows] * scale + centre
        return mean, variances.double().cpu().numpy()[rows] * scale**2

    def predict(self, X: Array) -> Array:
        """Means alone, shape (n, K)."""
        trained, theta = self.trained, self.trained.parameters[:-1]
        Z = self.table.inputs(trained.view)
        points = self.table.tensor(trained.view(X))
        parts = [
            (trained.kernel.cross(part, Z, theta) + trained.constant) @ self.alpha
            for part in torch.split(points, max(1, _CHUNK_ENTRIES // len(Z)))
        ]
        return torch.cat(parts).double().cpu().numpy() * trained.scale + trained.centre

    def drop_variance(self) -> None:
        """Forget what only variances need."""
        del self.A, self.factors

    def moments(self, X: Array) -> tuple[Array, Array]:
        """Means and variances at rows in the user's units, each of shape (n, K)."""
        trained, theta = self.trained, self.trained.parameters[:-1]
        Z = self.table.inputs(trained.view)
        points = self.table.tensor(trained.view(X))
        means, variances = [], []
        for part in torch.split(points, max(1, _CHUNK_ENTRIES // len(Z))):
            k = trained.kernel.cross(part, Z, theta) + trained.constant
            h = k @ self.A
            prior = trained.kernel.diagonal(part, theta) + trained.constant
            shared = prior - (k * h).sum(1)
            v = torch.empty(len(part), len(self.members), dtype=k.dtype, device=k.device)
            for j, (members, L) in enumerate(zip(self.members, self.factors, strict=True)):
                u = torch.linalg.solve_triangular(L, h[:, members].T, upper=False)
                v[:, j] = shared - u.square().sum(0)
            means.append(k @ self.alpha)
            variances.append(v.clamp_(min=0.0))
        everything = np.arange(len(points))
        return self._units(torch.cat(means), torch.cat(variances), everything)


def refit_latents(
    table: ClassTable, latents: ExactLatents, noise_floor: float, folds: Index
) -> tuple[Array, Array]:
    """Held-out means and variances, hyperparameters trained again without each fold.

    Of a single stage, whose hyperparameters are those of largest leave-one-out density.
    """
    trained = latents.trained
    rows = latent_rows(table, trained.view, trained.dirichlet, trained.centre, trained.scale)
    engine = LatentEngine(rows, noise_floor, trained.constant)
    everything = np.arange(len(table))

    def train(index: Index) -> Vector | None:
        candidate = retrained(engine, trained.kernel, "loo", index, STEPS)
        return None if candidate.failure else candidate.parameters

    def heldout(parameters: Vector) -> tuple[Array, ...]:
        return ExactLatents(table, replace(trained, parameters=parameters)).heldout(everything)

    means, variances = by_refits(folds, train, heldout, trained.parameters)
    return means, variances


class LocalLatents:
    """The same from the nearest rows of every point."""

    table: ClassTable
    trained: TrainedKernel
    rows: LocalRows
    noise: Tensor
    T: Tensor

    def __init__(self, table: ClassTable, trained: TrainedKernel, n_neighbors: int) -> None:
        self.table, self.trained = table, trained
        self.rows = LocalRows(
            table,
            trained.view,
            trained.kernel,
            trained.parameters[:-1],
            n_neighbors,
            trained.constant,
        )
        s0, s1 = trained.noises()
        noise = np.full((len(table), table.n_classes), s0)
        noise[np.arange(len(table)), table.codes] = s1
        self.noise = table.tensor(noise)
        self.T = trained.scaled_target(table)

    def predict(self, X: Array) -> Array:
        """Means alone, shape (n, K)."""
        return self.moments(X)[0]

    def drop_variance(self) -> None:
        """Nothing to forget: every prediction solves its own problem."""

    def heldout(self, rows: Index) -> tuple[Array, Array]:
        """Means and variances of rows predicted from others, each of shape (h, K)."""
        own = torch.as_tensor(rows, device=self.rows.Z.device)
        return self._solve(self.rows.Z[own], self.rows.near_heldout(rows), own)

    def moments(self, X: Array) -> tuple[Array, Array]:
        """Means and variances at rows in the user's units, each of shape (n, K)."""
        points = self.table.tensor(self.trained.view(X))
        return self._solve(points, self.rows.near(points), None)

    def _solve(self, points: Tensor, near: Tensor, own: Tensor | None) -> tuple[Array, Array]:
        means, variances = [], []
        for k in range(self.table.n_classes):
            w, v = self.rows.solve(points, near, self.noise[:, k], own)
            means.append(weighted(w, near, self.T[:, k : k + 1])[:, 0])
            variances.append(v)
        scale, centre = self.trained.scale, self.trained.centre
        mean = torch.stack(means, 1).double().cpu().numpy() * scale + centre
        return mean, torch.stack(variances, 1).double().cpu().numpy() * scale**2
