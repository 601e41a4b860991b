r"""GPyTorch kernels for exported models, with exact distances and in the user's units.

GPyTorch expands :math:`\|z - z'\|^2 = \|z\|^2 - 2 z^\top z' + \|z'\|^2`, which leaves an error of
about 1e-8 in the distance of nearly equal rows: too much for a Matérn-1/2 kernel with a small
noise. The subclasses here differ from their parents only in the distances, which are computed from
differences.

:class:`UnitsKernel` turns a kernel k on standardised inputs into a kernel on the user's inputs,

.. math::

    k_u(x, x') = s_y^2\, k\Big( \frac{x - \bar x}{s_x}, \frac{x' - \bar x}{s_x} \Big) ,

over the columns that are in use.
"""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.kernels import Kernel as GPyTorchKernel
from gpytorch.kernels import MaternKernel, RBFKernel, RQKernel
from torch import Tensor

from twostagegp.data.kept_columns import Columns
from twostagegp.data.scaling import FARTHEST, Scaling
from twostagegp.kernels import Kernel, NamedKernel, Vector, WrappedKernel
from twostagegp.kernels.gpytorch import dense

__all__ = ["ColumnKernel", "Standardise", "UnitsKernel", "exact_kernel"]


class _ExactDistances:
    """Mixin: Euclidean distances from differences, zero for equal rows."""

    def covar_dist(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool = False,
        last_dim_is_batch: bool = False,
        square_dist: bool = False,
        **params: Any,
    ) -> Tensor:
        if diag or last_dim_is_batch:
            options = {"last_dim_is_batch": True} if last_dim_is_batch else {}
            parent: Any = super()
            return torch.as_tensor(
                parent.covar_dist(x1, x2, diag=diag, square_dist=square_dist, **options, **params)
            )
        r = torch.cdist(x1, x2, compute_mode="donot_use_mm_for_euclid_dist")
        return r.square() if square_dist else r


class ExactRBFKernel(_ExactDistances, RBFKernel):
    """GPyTorch's RBF kernel with exact distances."""


class ExactMaternKernel(_ExactDistances, MaternKernel):
    """GPyTorch's Matérn kernel with exact distances."""


class ExactRQKernel(_ExactDistances, RQKernel):
    """GPyTorch's rational quadratic kernel with exact distances."""


_EXACT: dict[type, type] = {
    RBFKernel: ExactRBFKernel,
    MaternKernel: ExactMaternKernel,
    RQKernel: ExactRQKernel,
}


def exact_kernel(kernel: Kernel, theta: Vector) -> Any:
    """Return a kernel of this package as a GPyTorch kernel on standardised inputs, in float64.

    Examples
    --------
    >>> import torch
    >>> kernel = NamedKernel("matern32", n_features=2)
    >>> X = torch.tensor([[0.0, 0.0], [0.1, 0.3]], dtype=torch.float64)
    >>> module = exact_kernel(kernel, kernel.start())
    >>> bool(torch.allclose(module(X).to_dense(), kernel.evaluate(X, kernel.start())[0]))
    True
    """
    module = kernel.to_gpytorch(theta).requires_grad_(False)
    if isinstance(kernel, NamedKernel):
        base = module.base_kernel
        if type(base) in _EXACT:
            options = {"nu": base.nu} if isinstance(base, MaternKernel) else {}
            twin = _EXACT[type(base)](ard_num_dims=base.ard_num_dims, **options).double()
            twin.load_state_dict(base.state_dict())
            module.base_kernel = twin.requires_grad_(False)
    elif isinstance(kernel, WrappedKernel) and kernel.columns is not None:
        module = ColumnKernel(module, kernel.columns)
    return module


class ColumnKernel(GPyTorchKernel):
    """A kernel defined on all columns of a table, evaluated on the columns that are in use.

    The other columns were constant in the fit; they are set to zero.
    """

    def __init__(self, base_kernel: Any, columns: Columns) -> None:
        super().__init__()
        self.base_kernel = base_kernel
        self.columns = columns

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        x1, x2 = self.columns.expand(x1), self.columns.expand(x2)
        if diag:
            return torch.as_tensor(self.base_kernel(x1, x2, diag=True))
        return dense(self.base_kernel, x1, x2)


class Standardise(torch.nn.Module):
    """Map the user's columns to the standardised columns that are in use."""

    columns: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, scaling: Scaling, device: torch.device) -> None:
        super().__init__()
        self.register_buffer("columns", torch.as_tensor(scaling.columns, device=device))
        self.register_buffer("mean", torch.as_tensor(scaling.x_mean, device=device))
        self.register_buffer("scale", torch.as_tensor(scaling.x_scale, device=device))

    def forward(self, X: Tensor) -> Tensor:
        Z = (X.to(self.mean)[..., self.columns] - self.mean) / self.scale
        return Z.clamp(-FARTHEST, FARTHEST)

    def back(self, Z: Tensor, width: int) -> Tensor:
        """Return the user's columns; constant columns, on which nothing depends, are zero."""
        X = self.mean.new_zeros(*Z.shape[:-1], width)
        X[..., self.columns] = Z * self.scale + self.mean
        return X


class UnitsKernel(GPyTorchKernel):
    """A kernel on standardised inputs as a kernel on the user's inputs; see the module docstring.

    Parameters
    ----------
    base_kernel : GPyTorch kernel
    standardise : Standardise
    factor : float
        Factor of the covariance, which includes the squared scale of y.
    """

    factor: Tensor

    def __init__(self, base_kernel: Any, standardise: Standardise, factor: float) -> None:
        super().__init__()
        self.base_kernel = base_kernel
        self.standardise = standardise
        self.register_buffer("factor", torch.tensor(factor, dtype=torch.float64))

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        z1, z2 = self.standardise(x1), self.standardise(x2)
        if diag:
            return self.factor * torch.as_tensor(self.base_kernel(z1, z2, diag=True))
        return self.factor * dense(self.base_kernel, z1, z2)
