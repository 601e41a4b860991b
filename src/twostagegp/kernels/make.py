"""From what a user passes, a name or a GPyTorch kernel object, to a kernel."""

from __future__ import annotations

from typing import Any

from twostagegp.data.kept_columns import Columns
from twostagegp.errors import InputError
from twostagegp.kernels.base import Kernel
from twostagegp.kernels.stationary import KERNELS, NamedKernel
from twostagegp.kernels.wrapped import WrappedKernel

__all__ = ["make_kernel"]


def make_kernel(
    kernel: Any, n_features: int, ard: bool = False, columns: Columns | None = None
) -> Kernel:
    """Build a :class:`Kernel` from a name or a GPyTorch kernel object.

    ``columns`` says where the inputs stand in the user's table, where they are not all of it.

    Examples
    --------
    >>> make_kernel("rbf", n_features=3, ard=True).label
    'rbf-ard'
    """
    if isinstance(kernel, str):
        if kernel not in KERNELS:
            raise InputError(f"unknown kernel {kernel!r}; the names are {', '.join(KERNELS)}.")
        return NamedKernel(kernel, n_features, ard)
    if hasattr(kernel, "forward") and hasattr(kernel, "covar_dist"):
        return WrappedKernel(kernel, n_features, columns)
    raise InputError(
        f"a kernel is a name ({', '.join(KERNELS)}) or a GPyTorch kernel object, "
        f"not {type(kernel).__name__} {kernel!r}."
    )
