"""A kernel from what the user passes: a name or a GPyTorch kernel object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twostagegp.data.kept_columns import Columns
from twostagegp.errors import InputError
from twostagegp.kernels.base import Kernel
from twostagegp.kernels.catalogue import KERNELS
from twostagegp.kernels.stationary import NamedKernel
from twostagegp.kernels.wrapped import WrappedKernel

__all__ = ["kernel_list", "make_kernel"]


def make_kernel(
    kernel: Any, n_features: int, ard: bool = False, columns: Columns | None = None
) -> Kernel:
    """Build a :class:`Kernel` from a name or a GPyTorch kernel object.

    ``columns`` gives the positions of the inputs in the user's table, if they are not all of it.

    Examples
    --------
    >>> make_kernel("rbf", n_features=3, ard=True).label
    'rbf-ard'
    """
    if isinstance(kernel, str):
        return NamedKernel(kernel, n_features, ard)
    if hasattr(kernel, "forward") and hasattr(kernel, "covar_dist"):
        return WrappedKernel(kernel, n_features, columns)
    raise InputError(
        f"a kernel is a name ({', '.join(KERNELS)}) or a GPyTorch kernel object, "
        f"not {type(kernel).__name__} {kernel!r}."
    )


def kernel_list(
    kernels: Sequence[Any], ard: bool | str, n_features: int, columns: Columns | None = None
) -> list[Kernel]:
    """Build every kernel asked for: isotropic, with one lengthscale per column (ARD), or both.

    A GPyTorch kernel object, and any kernel of a single column, is built once.

    Examples
    --------
    >>> [kernel.label for kernel in kernel_list(["rbf", "matern32"], "both", n_features=2)]
    ['rbf', 'rbf-ard', 'matern32', 'matern32-ard']
    """
    forms = {True: (True,), False: (False,), "both": (False, True)}[ard]
    made: list[Kernel] = []
    for kernel in kernels:
        named = isinstance(kernel, str)
        for form in forms if named and n_features > 1 else forms[:1]:
            made.append(make_kernel(kernel, n_features, form, columns))
    return made
