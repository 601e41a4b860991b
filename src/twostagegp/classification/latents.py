r"""The latent functions of all classes: one Gaussian process per class over the same rows.

Two kinds of targets are regressed on, with one column per class:

- one-hot labels minus the share of their class, scaled to a root mean square of one, with the same
  noise for all classes: a kernel ridge regression, of which only the mean is used;
- the targets of the Dirichlet transform (:mod:`twostagegp.classification.dirichlet`), whose known
  noise differs between a row's own class and the others.

Both use an engine that accepts several targets (:mod:`twostagegp.engines.protocol`), in one *view*
of the table (:mod:`twostagegp.classification.views`). If the mean is used, the kernel has a
constant (for the reason see :class:`twostagegp.kernels.PlusConstant`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.classification.dirichlet import Dirichlet
from twostagegp.classification.table import ClassTable
from twostagegp.classification.views import View
from twostagegp.data.rows import Rows
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.exact.settings import ExactSettings
from twostagegp.engines.neighbors.engine import NeighborEngine
from twostagegp.engines.protocol import Engine, Posterior

__all__ = ["Latents", "dirichlet_rows", "exact_engine", "label_rows", "make_engine"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


def label_rows(table: ClassTable, view: View) -> Rows:
    """Return rows whose targets are labels minus their prior, divided by ``target_scale``."""
    t = table.tensor((table.own - table.prior) / table.target_scale)
    c = table.tensor(table.c)
    zero = torch.zeros_like(c)
    return Rows(table.inputs(view), t, c, zero, zero, table.group_tensor)


def dirichlet_rows(
    table: ClassTable, view: View, dirichlet: Dirichlet, centre: Array, scale: float
) -> Rows:
    """Return rows with the targets of the transform, minus ``centre``, divided by ``scale``.

    Their known noise variance is that of the transform, divided by ``scale`` squared.
    """
    t = table.tensor((dirichlet.target(table.codes) - centre) / scale)
    extra = table.tensor(dirichlet.noise(table.codes) / scale**2)
    c = table.tensor(table.c)
    return Rows(table.inputs(view), t, c, torch.zeros_like(c), extra, table.group_tensor)


def exact_engine(rows: Rows, noise_floor: float) -> ExactEngine:
    """Return the exact engine that holds all matrices in memory for any number of rows."""
    in_memory = ExactSettings(blocked_rows=max(len(rows), 1))
    return ExactEngine(rows, noise_floor, settings=in_memory)


def make_engine(rows: Rows, noise_floor: float, method: str, n_neighbors: int) -> Engine:
    """Return the engine of ``method``, "exact" or "neighbors"."""
    if method == "exact":
        return exact_engine(rows, noise_floor)
    return NeighborEngine(rows, n_neighbors, noise_floor)


@dataclass(frozen=True)
class Latents:
    """The latent functions of all classes, conditioned on the rows.

    Attributes
    ----------
    view : View
    posterior : Posterior
        Posterior of all classes, over rows in the view.
    centre : array of shape (K,)
        The latents' mean is the posterior mean times ``scale`` plus ``centre``.
    scale : float
    """

    view: View
    posterior: Posterior
    centre: Array
    scale: float

    def _points(self, X: Array) -> Tensor:
        like = self.posterior.rows.X
        return torch.as_tensor(self.view(X), dtype=like.dtype, device=like.device)

    def _means(self, values: Tensor) -> Array:
        return _numpy(values) * self.scale + self.centre

    def _variances(self, values: Tensor) -> Array:
        return _numpy(values) * self.scale**2

    def predict(self, X: Array) -> Array:
        """Return the means at rows in the user's units, shape (n, K)."""
        return self._means(self.posterior.mean(self._points(X)))

    def moments(self, X: Array) -> tuple[Array, Array]:
        """Return means and variances at rows in the user's units, each of shape (n, K)."""
        points = self._points(X)  # one tensor: an engine may remember its neighbours
        mean, variance = self.posterior.mean(points), self.posterior.variance(points)
        return self._means(mean), self._variances(variance)

    def variance(self, X: Array) -> Array:
        """Return the variances at rows in the user's units, shape (n, K)."""
        return self._variances(self.posterior.variance(self._points(X)))

    def heldout(self, index: Index) -> tuple[Array, Array]:
        """Return held-out means and variances of the training rows ``index``.

        Means have shape (h, K). Variances have shape (h, K), or (h,) if all classes have the same
        noise.
        """
        rows = self.posterior.rows
        at = torch.as_tensor(index, device=rows.X.device)
        held = self.posterior.heldout(at)
        latent = (held.variance - (self.posterior.noise + rows.extra[at])).clamp(min=0.0)
        return self._means(rows.t[at] - held.residual), self._variances(latent)

    def drop_variance(self) -> None:
        """Free the memory that only variances need."""
        self.posterior.drop_factor()


def _numpy(values: Tensor) -> Array:
    return values.double().cpu().numpy()
