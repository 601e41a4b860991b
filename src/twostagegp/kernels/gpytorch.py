r"""Conversions between this package's kernels and GPyTorch's; imported only when needed.

Every named kernel has an equal GPyTorch kernel, which can be part of a user's own sums and
products. For kernels that GPyTorch lacks this module has one: :class:`LaplacianKernel` (the L1
distance), and :class:`StationaryKernel` for any other entry of the catalogue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gpytorch
import numpy as np
import torch
from gpytorch.kernels import Kernel as GPyTorchKernel
from gpytorch.kernels import ScaleKernel
from torch import Tensor

from twostagegp.kernels.catalogue import stationary_form

if TYPE_CHECKING:
    from twostagegp.kernels import NamedKernel, Vector

__all__ = [
    "LaplacianKernel",
    "StationaryKernel",
    "dense",
    "describe",
    "lengthscales_of",
    "named_to_gpytorch",
    "with_outputscale",
]


class StationaryKernel(GPyTorchKernel):
    """A kernel of the catalogue as a GPyTorch kernel, differentiated by autograd.

    Parameters
    ----------
    name : str
        One of ``KERNELS``; kernels with an extra parameter have a GPyTorch kernel of their own.

    Examples
    --------
    >>> import torch
    >>> X = torch.tensor([[0.0], [1.0]])
    >>> k = StationaryKernel("matern12")
    >>> k.lengthscale = 2.0
    >>> round(float(k(X).to_dense()[0, 1].detach()), 6)  # exp(-1 / 2)
    0.606531
    """

    has_lengthscale = True

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(**options)
        self.form = stationary_form(name)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        z1, z2 = x1 / self.lengthscale, x2 / self.lengthscale
        # Differences rather than torch.cdist, whose second derivative is missing.
        u = z1 - z2 if diag else z1.unsqueeze(-2) - z2.unsqueeze(-3)
        if self.form.metric == 1:
            return self.form.formula(u.abs().sum(-1), 1.0)
        # Bounded below, so that the root has a derivative where two rows are equal.
        return self.form.formula(u.square().sum(-1).clamp_min(1e-30).sqrt(), 1.0)


class LaplacianKernel(StationaryKernel):
    r"""The L1 Laplacian :math:`\exp(-\sum_k |x_k - x'_k| / \ell_k)` as a GPyTorch kernel.

    Not the Matérn-1/2, whose distance is Euclidean.

    Examples
    --------
    >>> import torch
    >>> k = LaplacianKernel()
    >>> k.lengthscale = 2.0
    >>> X = torch.tensor([[0.0, 0.0], [1.0, 3.0]])
    >>> round(float(k(X).to_dense()[0, 1].detach()), 6)  # exp(-4 / 2)
    0.135335
    """

    def __init__(self, **options: Any) -> None:
        super().__init__("laplacian", **options)


def named_to_gpytorch(kernel: NamedKernel, theta: Vector) -> ScaleKernel:
    """Return a ``ScaleKernel`` with the values of ``theta``, in float64."""
    dims = kernel.n_features if kernel.ard or kernel.shape is not None else None
    base = kernel.form.gpytorch(dims)
    scaled = ScaleKernel(base).double()
    scales = kernel.lengthscales(theta)
    base.lengthscale = torch.as_tensor(scales if dims else scales[:1])
    if kernel.form.extra is not None:
        setattr(base, kernel.form.extra.name, torch.as_tensor(np.exp(theta[-2])))
    scaled.outputscale = torch.as_tensor(np.exp(theta[-1]))
    return scaled


def with_outputscale(module: Any) -> Any:
    """Return the kernel itself if a part of it has an outputscale, else a ``ScaleKernel`` of it."""
    has_one = any(isinstance(part, ScaleKernel) for part in module.modules())
    return module if has_one else ScaleKernel(module)


def dense(module: Any, X: Tensor, Z: Tensor) -> Tensor:
    """Return K(X, Z), with sums, products and outputscales formed entry by entry.

    Leading dimensions of X (..., n, d) and Z (..., m, d) are problems of a batch.

    GPyTorch's own sum of a matrix and a ``LinearKernel`` factorises the matrix, with jitter or, if
    it is large, by Lanczos; and it does not check the ``ard_num_dims`` of a scaled kernel.
    """
    if type(module) is ScaleKernel:
        if module.active_dims is not None and module.base_kernel.active_dims is None:
            X, Z = X[..., module.active_dims], Z[..., module.active_dims]
        return module.outputscale[..., None, None] * dense(module.base_kernel, X, Z)
    if type(module) is gpytorch.kernels.AdditiveKernel:
        return torch.stack([dense(part, X, Z) for part in module.kernels]).sum(0)
    if type(module) is gpytorch.kernels.ProductKernel:
        return torch.stack([dense(part, X, Z) for part in module.kernels]).prod(0)
    return torch.as_tensor(module(X, Z).to_dense())


def lengthscales_of(module: Any, n_features: int) -> Vector | None:
    """Return one lengthscale per column of a (scaled) kernel over all columns; None for others."""
    base = module.base_kernel if isinstance(module, ScaleKernel) else module
    if not getattr(base, "has_lengthscale", False) or base.active_dims is not None:
        return None
    values = base.lengthscale.detach().reshape(-1).double().cpu().numpy()
    return np.broadcast_to(values, (n_features,)).copy() if values.size in (1, n_features) else None


def describe(module: Any) -> str:
    """Return a short readable name: ``RBFKernel``, ``(RBFKernel + LinearKernel)``."""
    if isinstance(module, ScaleKernel):
        return describe(module.base_kernel)
    for kind, sign in (
        (gpytorch.kernels.AdditiveKernel, " + "),
        (gpytorch.kernels.ProductKernel, " * "),
    ):
        if isinstance(module, kind):
            return "(" + sign.join(describe(part) for part in module.kernels) + ")"
    return type(module).__name__
