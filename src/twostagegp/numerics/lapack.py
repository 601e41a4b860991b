r"""LAPACK and BLAS routines in place, without a copy and without Python's lock.

torch and SciPy return new matrices, have no routine that multiplies only one triangle, and SciPy
holds Python's global lock meanwhile, so that candidates could not be trained side by side. This
module calls the routines through the function pointers that SciPy publishes for compiled callers
(``scipy.linalg.cython_lapack`` and ``cython_blas``). ``ctypes`` releases the lock during a call.

Matrices are float64 arrays whose rows are contiguous. A symmetric matrix is given by its **upper
triangle**; the other one is neither read nor written. LAPACK reads matrices by columns and calls
this triangle the lower one, for which its routines are the faster ones.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "add_gram_",
    "available",
    "below_diagonal",
    "cholesky_",
    "inverse_diagonal_",
    "invert_factor_",
    "mirror_",
    "solve_factored",
    "subtract_outer_",
    "symmetric_times",
]

Array = NDArray[np.float64]

_DOUBLE = 8  # bytes
#: Rows up to which a triangle is inverted by LAPACK's own routine, which has no matrix products.
_LEAF = 96
#: Rows of the blocks that are transposed or summed at a time, so that they fit into a cache.
_MIRROR_ROWS = 128

_LOWER, _LEFT, _RIGHT, _PLAIN = (
    ctypes.byref(ctypes.c_char(letter)) for letter in (b"L", b"L", b"R", b"N")
)
_ZERO, _ONE, _MINUS_ONE = (ctypes.byref(ctypes.c_double(value)) for value in (0.0, 1.0, -1.0))
_STEP = ctypes.byref(ctypes.c_int(1))
_ROUTINES = {
    "lapack": ("dpotrf", "dpotrs", "dtrtri", "dlauum"),
    "blas": ("dtrmm", "dsyrk", "dsyr2", "dsymm"),
}


@cache
def available() -> bool:
    """Return whether SciPy publishes the routines with 32-bit integers, as they are called here."""
    try:
        names = [(library, name) for library in _ROUTINES for name in _ROUTINES[library]]
        return all("int *" in _signature(*name) for name in names)
    except (ImportError, KeyError, AttributeError):
        return False


def _capsule(library: str, name: str) -> Any:
    import importlib

    return importlib.import_module(f"scipy.linalg.cython_{library}").__pyx_capi__[name]


def _signature(library: str, name: str) -> str:
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return str(get_name(_capsule(library, name)), "ascii")


@cache
def _routine(name: str) -> Callable[..., None]:
    """Return a routine, all of whose arguments are pointers."""
    library = next(library for library, names in _ROUTINES.items() if name in names)
    signature = _signature(library, name)
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = get_pointer(_capsule(library, name), signature.encode("ascii"))
    n_arguments = signature.count(",") + 1
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_arguments)(address)


def _int(value: int) -> Any:
    return ctypes.byref(ctypes.c_int(value))


def cholesky_(K: Array) -> bool:
    r"""Replace the upper triangle of K by its factor U, :math:`K = U^\top U`.

    Returns whether K is positive definite; if it is not, its content is lost.

    Examples
    --------
    >>> import numpy as np
    >>> K = np.array([[4.0, 2.0], [2.0, 5.0]])
    >>> cholesky_(K), np.triu(K).tolist()
    (True, [[2.0, 1.0], [0.0, 2.0]])
    """
    n, info = len(K), ctypes.c_int(0)
    _routine("dpotrf")(_LOWER, _int(n), K.ctypes.data, _int(max(n, 1)), ctypes.byref(info))
    return info.value == 0


def solve_factored(U: Array, b: Array) -> Array:
    r"""Return the solution x of :math:`U^\top U x = b` for a vector b."""
    n, info, x = len(U), ctypes.c_int(0), b.copy()
    order = _int(n)
    _routine("dpotrs")(
        _LOWER, order, _STEP, U.ctypes.data, order, x.ctypes.data, order, ctypes.byref(info)
    )
    return x


def invert_factor_(U: Array) -> None:
    r"""Replace the upper triangle U of a matrix by that of :math:`(U^\top U)^{-1}`.

    Examples
    --------
    >>> import numpy as np
    >>> A = np.array([[2.0, 1.0], [0.0, 1.0]])
    >>> invert_factor_(A)
    >>> A.tolist()
    [[0.5, -0.5], [0.0, 1.0]]
    """
    n, info = len(U), ctypes.c_int(0)
    leading = _int(max(n, 1))
    _invert_triangle(U.ctypes.data, n, leading, n)
    _routine("dlauum")(_LOWER, _int(n), U.ctypes.data, leading, ctypes.byref(info))


def inverse_diagonal_(U: Array) -> Array:
    r"""Return the diagonal of :math:`(U^\top U)^{-1}`: sums of squares of the rows of U inverse.

    U is overwritten, and its diagonal blocks below the diagonal as well. This takes half of the
    time of the inverse.

    Examples
    --------
    >>> import numpy as np
    >>> inverse_diagonal_(np.array([[2.0, 1.0], [9.0, 1.0]])).tolist()
    [0.5, 1.0]
    """
    n, diagonal = len(U), np.empty(len(U))
    _invert_triangle(U.ctypes.data, n, _int(max(n, 1)), n)
    for i in range(0, n, _MIRROR_ROWS):
        panel = U[i : i + _MIRROR_ROWS, i:]
        corner = panel[:, : len(panel)]
        corner[below_diagonal(len(corner))] = 0.0
        np.einsum("ij,ij->i", panel, panel, out=diagonal[i : i + _MIRROR_ROWS])
    return diagonal


def _invert_triangle(address: int, n: int, leading: Any, stride: int) -> None:
    r"""Replace a triangular matrix by its inverse, by halves: in LAPACK's order

    .. math::

        \begin{pmatrix} P & \\ Q & R \end{pmatrix}^{-1}
        = \begin{pmatrix} P^{-1} & \\ -R^{-1} Q P^{-1} & R^{-1} \end{pmatrix} .
    """
    if n <= _LEAF:
        info = ctypes.c_int(0)
        _routine("dtrtri")(_LOWER, _PLAIN, _int(n), address, leading, ctypes.byref(info))
        return
    half = n // 2
    below = address + _DOUBLE * half  # Q
    last = below + _DOUBLE * half * stride  # R
    _invert_triangle(address, half, leading, stride)
    _invert_triangle(last, n - half, leading, stride)
    size = _int(n - half), _int(half)
    multiply = _routine("dtrmm")
    multiply(
        _LEFT, _LOWER, _PLAIN, _PLAIN, *size, _MINUS_ONE, last, leading, below, leading
    )  # fmt: skip
    multiply(_RIGHT, _LOWER, _PLAIN, _PLAIN, *size, _ONE, address, leading, below, leading)


def add_gram_(C: Array, B: Array, factor: float = 1.0, *, fresh: bool = False) -> None:
    r"""Add ``factor`` :math:`B^\top B` to the upper triangle of C, or write it if ``fresh``.

    Parameters
    ----------
    C : array of shape (n, n)
    B : array of shape (k, n)

    Examples
    --------
    >>> import numpy as np
    >>> C = np.zeros((2, 2))
    >>> add_gram_(C, np.array([[1.0, 2.0]]), -1.0)
    >>> C.tolist()
    [[-1.0, -2.0], [0.0, -4.0]]
    """
    k, n = B.shape
    leading, scale = _int(max(n, 1)), ctypes.byref(ctypes.c_double(factor))
    _routine("dsyrk")(
        _LOWER, _PLAIN, _int(n), _int(k), scale, B.ctypes.data, leading,
        _ZERO if fresh else _ONE, C.ctypes.data, leading,
    )  # fmt: skip


def subtract_outer_(C: Array, u: Array, v: Array) -> None:
    r"""Subtract :math:`\tfrac12 (u v^\top + v u^\top)` from the upper triangle of C.

    Examples
    --------
    >>> import numpy as np
    >>> C = np.zeros((2, 2))
    >>> subtract_outer_(C, np.array([1.0, 0.0]), np.array([2.0, 4.0]))
    >>> C.tolist()
    [[-2.0, -2.0], [0.0, 0.0]]
    """
    order, scale = _int(len(C)), ctypes.byref(ctypes.c_double(-0.5))
    u, v = np.ascontiguousarray(u), np.ascontiguousarray(v)
    _routine("dsyr2")(
        _LOWER, order, scale, u.ctypes.data, _STEP, v.ctypes.data, _STEP, C.ctypes.data, order
    )


def symmetric_times(M: Array, B: Array) -> Array:
    """Return M B for a symmetric M, shape (n, n), of which the upper triangle is read.

    Examples
    --------
    >>> import numpy as np
    >>> symmetric_times(np.array([[1.0, 2.0], [9.0, 3.0]]), np.eye(2)).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    B = np.ascontiguousarray(B)
    n, k = B.shape
    result = np.empty_like(B)
    order, columns = _int(n), _int(k)
    # By columns, B is its transpose: (M B)^T = B^T M.
    _routine("dsymm")(
        _RIGHT, _LOWER, columns, order, _ONE, M.ctypes.data, order, B.ctypes.data, columns,
        _ZERO, result.ctypes.data, columns,
    )  # fmt: skip
    return result


def mirror_(C: Array) -> None:
    """Copy the upper triangle of C to the lower one.

    Examples
    --------
    >>> import numpy as np
    >>> C = np.array([[1.0, 2.0], [0.0, 3.0]])
    >>> mirror_(C)
    >>> C.tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    n = len(C)
    for i in range(0, n, _MIRROR_ROWS):
        rows = slice(i, i + _MIRROR_ROWS)
        corner = C[rows, rows]
        np.copyto(corner, corner.T.copy(), where=below_diagonal(len(corner)))
        C[i + _MIRROR_ROWS :, rows] = C[rows, i + _MIRROR_ROWS :].T


@cache
def below_diagonal(n: int) -> NDArray[np.bool_]:
    """Return a mask of the entries below the diagonal of an n x n matrix; n is a few hundred."""
    return np.tri(n, k=-1, dtype=bool)
