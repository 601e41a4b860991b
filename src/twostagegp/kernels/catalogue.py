r"""The named kernels: one class per kernel, with everything that the package knows about it.

A stationary kernel is a function of the distance of two scaled inputs :math:`z = x / \ell`,

.. math::

    k(x, x') = s\, \rho(r), \qquad r = \|z - z'\|_p, \qquad \rho(0) = 1,

with the outputscale s, and p = 2 (Euclidean) or p = 1. Each class below is one :math:`\rho`:

.. math::

    \text{rbf}       &: \exp(-r^2 / 2) \\
    \text{matern12}  &: \exp(-r) \\
    \text{matern32}  &: (1 + \sqrt3 r) \exp(-\sqrt3 r) \\
    \text{matern52}  &: (1 + \sqrt5 r + 5 r^2 / 3) \exp(-\sqrt5 r) \\
    \text{rq}        &: (1 + r^2 / 2\alpha)^{-\alpha} \\
    \text{laplacian} &: \exp(-r), \quad p = 1

**To add a kernel**, write a class here, put an instance into ``_FORMS``, and add its formula to the
table ``FORMULAS`` of ``tests/kernels/test_catalogue.py``. Required are ``name``, ``formula`` and
``derivative``; the rest has a default. Training, batches of problems, the export to GPyTorch,
files, reports and the command line take the kernel from here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from twostagegp.errors import InputError
from twostagegp.kernels.base import Scalars

__all__ = [
    "CATALOGUE",
    "KERNELS",
    "ExponentialForm",
    "ExtraParameter",
    "StationaryForm",
    "stationary_form",
]


@dataclass(frozen=True)
class ExtraParameter:
    """A positive parameter of a kernel besides lengthscales and outputscale; it starts at one.

    Attributes
    ----------
    name : str
        Attribute of the GPyTorch kernel that holds it.
    bounds : (float, float)
        Smallest and largest value in training.
    """

    name: str
    bounds: tuple[float, float]


@dataclass(frozen=True)
class ExponentialForm:
    r"""A kernel written as a polynomial times an exponential, for the compiled loops.

    With D the squared distance (for p = 1 the distance) and :math:`x = fD` or
    :math:`x = \sqrt{fD}`,

    .. math::

        k = s\, (1 + a_1 x + a_2 x^2 + \dots)\, e^{-x}, \qquad
        -p\, \frac{\partial k}{\partial r^p}
            = s\, g\, (1 + b_1 x + b_2 x^2 + \dots)\, e^{-x} \ [\,/\,x\,] .

    The loops take these numbers as arguments, so a kernel of this form needs no machine code of its
    own. A kernel without such a form is evaluated by torch.

    Attributes
    ----------
    factor : float
        f.
    root : bool
        Whether x is the square root of f D.
    polynomial : tuple of at most 3 floats
        :math:`a_1, a_2, \dots`.
    slope_factor : float
        g.
    slope : tuple of at most 2 floats
        :math:`b_1, b_2, \dots`.
    slope_over_x : bool
        Whether the derivative is divided by x, as for a kernel with a kink at distance zero; then
        ``root`` is True and ``slope`` is empty.
    """

    factor: float
    root: bool
    polynomial: tuple[float, ...] = ()
    slope_factor: float = 1.0
    slope: tuple[float, ...] = ()
    slope_over_x: bool = False

    def __post_init__(self) -> None:
        if len(self.polynomial) > 3 or len(self.slope) > 2:
            raise ValueError("at most 3 coefficients of the polynomial and 2 of the slope")
        if self.slope_over_x and (self.slope or not self.root):
            raise ValueError("slope_over_x needs root=True and an empty slope")


class StationaryForm(ABC):
    r"""One kernel: :math:`\rho`, its derivative, and what other libraries call it.

    Attributes
    ----------
    name : str
        What users pass as ``kernel``; also the label in tables.
    metric : {1, 2}
        p, the norm of the distance.
    smoothness : float or None
        :math:`\nu` of a Matérn kernel of the same smoothness; None if no Matérn kernel compares.
    description : str
        What the kernel assumes about the outcome, for reports: "the outcome is ...".
    classical_divisor : float
        The lengthscale of classical kernel ridge (``gamma = 1/d``) is the typical distance of two
        rows divided by this.
    extra : ExtraParameter or None
        Called ``alpha`` in the methods; without one they are given 1.0.
    compiled : ExponentialForm or None
        The form for the compiled loops of the neighbour method; if None, torch does their work.
    """

    name: ClassVar[str]
    metric: ClassVar[Literal[1, 2]] = 2
    smoothness: ClassVar[float | None] = None
    description: ClassVar[str] = ""
    classical_divisor: ClassVar[float] = 1.0
    extra: ClassVar[ExtraParameter | None] = None
    compiled: ClassVar[ExponentialForm | None] = None

    @abstractmethod
    def formula(self, r: Tensor, alpha: Scalars) -> Tensor:
        r"""Return :math:`\rho(r)` as it is printed above, in operations that autograd follows."""

    @abstractmethod
    def derivative(self, K: Tensor, r: Tensor, s: Scalars, alpha: Scalars) -> Tensor:
        r"""Return :math:`-p\, \partial K / \partial r^p`, elementwise, as a new tensor."""

    def covariance(self, r: Tensor, s: Scalars, alpha: Scalars) -> Tensor:
        r"""Return :math:`s\, \rho(r)` as a new tensor; override it to save passes over memory.

        ``s`` and ``alpha`` are numbers, or tensors of shape (B, 1, 1) for a batch of problems.
        """
        return self.formula(r, alpha) * s

    def shrink_derivative(self, K: Tensor, r: Tensor, s: Scalars, alpha: Scalars) -> Tensor:
        r"""Return :math:`-\partial K / \partial \log r`: the slope by a common log lengthscale."""
        slope = self.derivative(K, r, s, alpha).mul_(r)
        return slope if self.metric == 1 else slope.mul_(r)

    def extra_derivative(self, r: Tensor, alpha: Scalars) -> Tensor:
        r"""Return :math:`\partial \log \rho / \partial \alpha`, elementwise."""
        raise NotImplementedError(f"the kernel {self.name} has no extra parameter")

    def gpytorch(self, ard_num_dims: int | None) -> Any:
        """Return the same kernel, without its outputscale, as a GPyTorch kernel.

        The default differentiates :meth:`formula` by autograd and has no extra parameter.
        """
        from twostagegp.kernels.gpytorch import StationaryKernel

        return StationaryKernel(self.name, ard_num_dims=ard_num_dims)


class _RBF(StationaryForm):
    name = "rbf"
    smoothness = math.inf
    description = "very smooth"
    classical_divisor = math.sqrt(2.0)  # exp(-gamma |x - x'|^2) with gamma = 1/d
    compiled = ExponentialForm(factor=0.5, root=False)

    def formula(self, r: Tensor, alpha: Scalars) -> Tensor:
        return torch.exp(-(r**2) / 2.0)

    def covariance(self, r: Tensor, s: Scalars, alpha: Scalars) -> Tensor:
        return r.square().mul_(-0.5).exp_().mul_(s)

    def derivative(self, K: Tensor, r: Tensor, s: Scalars, alpha: Scalars) -> Tensor:
        return K.clone()

    def gpytorch(self, ard_num_dims: int | None) -> Any:
        from gpytorch.kernels import RBFKernel

        return RBFKernel(ard_num_dims=ard_num_dims)


class _Matern(StationaryForm):
    r"""Base of the Matérn kernels; the smoothness :math:`\nu` is a half-integer."""

    def gpytorch(self, ard_num_dims: int | None) -> Any:
        from gpytorch.kernels import MaternKernel

        return MaternKernel(nu=self.smoothness, ard_num_dims=ard_num_dims)


class _Matern12(_Matern):
    name = "matern12"
    smoothness = 0.5
    description = "rough, with jumps from row to row"
    compiled = ExponentialForm(factor=1.0, root=True, slope_over_x=True)

    def formula(self, r: Tensor, alpha: Scalars) -> Tensor:
        return torch.exp(-r)

    def covariance(self, r: Tensor, s: Scalars, alpha: Scalars) -> Tensor:
        return r.neg().exp_().mul_(s)

    def derivative(self, K: Tensor, r: Tensor, s: Scalars, alpha: Scalars) -> Tensor:
        # Infinite at distance zero, where it is multiplied by a squared difference of zero.
        return (K / r).nan_to_num_(nan=0.0, posinf=0.0)

    def shrink_derivative(self, K: Tensor, r: Tensor, s: Scalars, alpha: Scalars) -> Tensor:
        return K * r


class _Matern32(_Matern):
    name = "matern32"
    smoothness = 1.5
    description = "fairly smooth, with bends"
    compiled = ExponentialForm(factor=3.0, root=True, polynomial=(1.0,), slope_factor=3.0)

    def formula(self, r: Tensor, alpha: Scalars) -> Tensor:
        a = math.sqrt(3.0) * r
        return (1.0 + a) * torch.exp(-a)

    def covariance(self, r: Tensor, s: Scalars, alpha: Scalars) -> Tensor:
        a = r * math.sqrt(3.0)
        return a.neg().exp_().mul_(a.add_(1.0)).mul_(s)

    def derivative(self, K: Tensor, r: Tensor, s: Scalars, alpha: Scalars) -> Tensor:
        return (r * -math.sqrt(3.0)).exp_().mul_(3.0 * s)


class _Matern52(_Matern):
    name = "matern52"
    smoothness = 2.5
    description = "smooth"
    compiled = ExponentialForm(
        factor=5.0, root=True, polynomial=(1.0, 1.0 / 3.0), slope_factor=5.0 / 3.0, slope=(1.0,)
    )

    def formula(self, r: Tensor, alpha: Scalars) -> Tensor:
        a = math.sqrt(5.0) * r
        return (1.0 + a + a**2 / 3.0) * torch.exp(-a)

    def covariance(self, r: Tensor, s: Scalars, alpha: Scalars) -> Tensor:
        a = r * math.sqrt(5.0)
        return a.neg().exp_().mul_((a + 1.0).addcmul_(a, a, value=1.0 / 3.0)).mul_(s)

    def derivative(self, K: Tensor, r: Tensor, s: Scalars, alpha: Scalars) -> Tensor:
        a = r * math.sqrt(5.0)
        return a.neg().exp_().mul_(a.add_(1.0)).mul_(5.0 / 3.0 * s)


class _RationalQuadratic(StationaryForm):
    name = "rq"
    extra = ExtraParameter("alpha", (1e-2, 1e3))

    def formula(self, r: Tensor, alpha: Scalars) -> Tensor:
        return (1.0 + r**2 / (2.0 * alpha)) ** -alpha

    def covariance(self, r: Tensor, s: Scalars, alpha: Scalars) -> Tensor:
        return r.square().div_(2.0 * alpha).add_(1.0).pow_(-alpha).mul_(s)

    def derivative(self, K: Tensor, r: Tensor, s: Scalars, alpha: Scalars) -> Tensor:
        return K / r.square().div_(2.0 * alpha).add_(1.0)

    def extra_derivative(self, r: Tensor, alpha: Scalars) -> Tensor:
        base = r.square().div_(2.0 * alpha)
        return base / (base + 1.0) - torch.log1p(base)

    def gpytorch(self, ard_num_dims: int | None) -> Any:
        from gpytorch.kernels import RQKernel

        return RQKernel(ard_num_dims=ard_num_dims)


class _Laplacian(StationaryForm):
    name = "laplacian"
    metric = 1
    smoothness = 0.5
    description = "rough, and column by column"
    compiled = ExponentialForm(factor=1.0, root=False)

    def formula(self, r: Tensor, alpha: Scalars) -> Tensor:
        return torch.exp(-r)

    def covariance(self, r: Tensor, s: Scalars, alpha: Scalars) -> Tensor:
        return r.neg().exp_().mul_(s)

    def derivative(self, K: Tensor, r: Tensor, s: Scalars, alpha: Scalars) -> Tensor:
        return K.clone()

    def shrink_derivative(self, K: Tensor, r: Tensor, s: Scalars, alpha: Scalars) -> Tensor:
        return K * r

    def gpytorch(self, ard_num_dims: int | None) -> Any:
        from twostagegp.kernels.gpytorch import LaplacianKernel

        return LaplacianKernel(ard_num_dims=ard_num_dims)


_FORMS = (_RBF(), _Matern12(), _Matern32(), _Matern52(), _RationalQuadratic(), _Laplacian())
#: Every named kernel.
CATALOGUE: Mapping[str, StationaryForm] = {form.name: form for form in _FORMS}
#: Names that a user may pass wherever a kernel is asked for.
KERNELS = tuple(CATALOGUE)


def stationary_form(name: str) -> StationaryForm:
    """Return the record of a named kernel.

    Examples
    --------
    >>> stationary_form("matern32").smoothness
    1.5
    """
    if name not in CATALOGUE:
        raise InputError(f"unknown kernel {name!r}; the names are {', '.join(KERNELS)}.")
    return CATALOGUE[name]
