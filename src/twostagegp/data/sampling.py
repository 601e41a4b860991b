r"""Draw subsamples of rows: spread out evenly, spread out at random, or plainly random.

Farthest point sampling is Algorithm 4 of the paper. It starts with one row and repeatedly adds
the row that is farthest from the set S of rows chosen so far:

.. math::

    l = \arg\max_j d_j, \qquad d_j = \min_{s \in S} \|x_j - x_s\|.

When it stops, the largest remaining :math:`d_j` is the fill distance
:math:`h = \max_j \min_{s \in S} \|x_j - x_s\|`. The chosen rows are at least h apart from each
other, and no set of as many rows has a fill distance below h / 2. The paper calls this a
quasi-uniform design.

The procedure is deterministic, but repetitions need different subsamples:
:func:`random_spread` and :func:`draw_subsamples` draw those.
"""

from __future__ import annotations

from numbers import Integral

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from twostagegp.data.checks import HUGE, check_count, check_finite
from twostagegp.data.farthest_points import (
    as_tensor,
    farthest_points_numpy,
    farthest_points_torch,
)
from twostagegp.errors import InputError
from twostagegp.runtime.device import resolve_device

__all__ = ["draw_subsamples", "farthest_point_sampling", "random_spread"]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


def farthest_point_sampling(
    X: ArrayLike | Tensor,
    k: int,
    *,
    start: int | str = "mean",
    random_state: int | np.random.Generator | None = None,
    device: str | torch.device | None = None,
) -> Indices:
    r"""Return the numbers of rows that are spread out evenly, in the order they are chosen.

    Algorithm 4 of the paper. The distances start at :math:`d_j = \infty`. Every chosen row l
    lowers them, and the row with the largest distance is chosen next:

    .. math::

        d_j \leftarrow \min(d_j, \|x_j - x_l\|), \qquad l \leftarrow \arg\max_j d_j.

    Of equally distant rows the first is taken. The columns of X should be on one scale.

    Parameters
    ----------
    X : array or Tensor of shape (n, d)
        Not changed. Anything but float64 is converted to it first.
    k : int
        Number of rows. With k >= n the result is all n rows, in the order in which they would
        be chosen.
    start : "mean", "random" or int, default="mean"
        The first row: the row nearest the mean of all rows (as in the paper), a row drawn with
        ``random_state``, or the row of this number.
    random_state : int, Generator or None
        Used by ``start="random"`` only.
    device : str, torch.device or None
        Where to compute. None means the device of X, which for an array is the CPU.

    Returns
    -------
    index : integer array of shape (min(k, n),)
        Distinct row numbers. If X has fewer than k distinct rows, all distances are zero after
        the last of them, and the other rows follow in the order of the table.

    Raises
    ------
    InputError
        If X is not a table of finite numbers, or k, ``start`` or ``device`` cannot be used.

    Notes
    -----
    Time grows as n k d. Memory beyond X (in float64) is of order n, plus a bounded amount.
    Distances are computed from differences of rows, so that they are accurate for rows that are
    nearly equal. CPU and GPU add the squares in different orders, so their choices may differ if
    two rows are equally far up to rounding.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[0.0], [1.0], [2.0], [10.0]])
    >>> farthest_point_sampling(X, 3)
    array([2, 3, 0])
    >>> farthest_point_sampling(X, 2, start=1)
    array([1, 3])
    """
    table = _as_table(X)
    n = len(table)
    check_count("k", k)
    first = _first_row(start, n, random_state)
    where = table.device if isinstance(table, Tensor) else torch.device("cpu")
    if device is not None:
        where = resolve_device(str(device), n)
    if where.type == "cpu":
        return farthest_points_numpy(_as_array(table), min(int(k), n), first)
    return farthest_points_torch(as_tensor(table, where), min(int(k), n), first)


def random_spread(X: ArrayLike, k: int, rng: np.random.Generator) -> Indices:
    """Return the numbers of rows that are spread out and differ from draw to draw.

    Farthest point sampling gives the same rows every time, so the paper's 100 repetitions would
    all use one subsample. We assume that repetitions are meant to differ. So a pool of
    min(2 k, (n + k) // 2) rows is drawn without replacement, and k of them are chosen by farthest
    point sampling from a random start. The pool has at least k rows and fewer than the table, so
    that draws differ even if n is not much larger than k. Compared with plain random rows, no two
    rows are close together; but remote rows that the pool misses are missed here, too.

    Parameters
    ----------
    X : array of shape (n, d)
    k : int
        Number of rows; with k >= n the result is all n rows in random order.
    rng : numpy.random.Generator

    Returns
    -------
    index : integer array of shape (min(k, n),)
        Distinct row numbers.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(0.0, 1.0, 50)[:, None]
    >>> index = random_spread(X, 4, np.random.default_rng(0))
    >>> len(set(index.tolist()))
    4
    """
    check_count("k", k)
    return _spread(_as_array(_as_table(X)), int(k), rng)


def draw_subsamples(
    X: ArrayLike, size: int, n_repeats: int, sampling: str, rng: np.random.Generator
) -> Indices:
    """Return the row numbers of several subsamples of X, each in random order.

    The order is random so that the first part of a subsample can be the training rows and the
    rest the test rows. :func:`random_spread` chooses rows that are far apart first, so that in its
    order the two parts would differ in distribution.

    Parameters
    ----------
    X : array of shape (n, d)
    size : int
        Number of rows of each subsample; with size >= n each holds all n rows.
    n_repeats : int
        Number of subsamples.
    sampling : "fps" or "random"
        :func:`random_spread`, or plain random subsets without replacement.
    rng : numpy.random.Generator
        Every subsample is drawn with a child generator of its own, so that subsample r does not
        depend on ``n_repeats``. A second call with the same generator gives other subsamples.

    Returns
    -------
    index : integer array of shape (n_repeats, min(size, n))

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(0.0, 1.0, 50)[:, None]
    >>> few = draw_subsamples(X, 5, 2, "fps", np.random.default_rng(0))
    >>> more = draw_subsamples(X, 5, 3, "fps", np.random.default_rng(0))
    >>> more.shape, bool((more[:2] == few).all())
    ((3, 5), True)
    """
    check_count("size", size)
    check_count("n_repeats", n_repeats)
    if sampling not in ("fps", "random"):
        raise InputError(f"sampling={sampling!r}: use 'fps' or 'random'.")
    table = _as_array(_as_table(X))
    n, size = len(table), min(int(size), len(table))
    index = np.empty((int(n_repeats), size), dtype=np.int64)
    for row, child in zip(index, rng.spawn(len(index)), strict=True):
        if sampling == "fps":
            row[:] = child.permutation(_spread(table, size, child))
        else:
            row[:] = child.choice(n, size, replace=False)
    return index


def _spread(X: Array, k: int, rng: np.random.Generator) -> Indices:
    n = len(X)
    if n <= k:
        return rng.permutation(n)
    pool = rng.choice(n, min(2 * k, (n + k) // 2), replace=False)
    return pool[farthest_points_numpy(X[pool], k, int(rng.integers(len(pool))))]


def _as_table(X: ArrayLike | Tensor) -> Array | Tensor:
    """Return X in float64 on its own device; raise InputError if it cannot be used."""
    table: Array | Tensor
    if isinstance(X, Tensor):
        given, is_complex = tuple(X.shape), X.is_complex()
    else:
        X = np.asarray(X)
        given, is_complex = X.shape, np.iscomplexobj(X)
    if len(given) != 2 or 0 in given:
        raise InputError(
            f"X has shape {given}, expected (n, d) with at least one row and one column. "
            "Reshape a single column with X.reshape(-1, 1)."
        )
    if is_complex:
        raise InputError("X is complex; give real numbers, for example the parts as two columns.")
    if isinstance(X, Tensor):
        table = X.detach().to(torch.float64)
    else:
        try:
            table = np.asarray(X, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"X has entries that are not numbers: {error}. Encode them."
            ) from error
    # NaN propagates to minimum and maximum, so that no mask of n x d entries is needed.
    low, high = float(table.min()), float(table.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        check_finite(_as_array(table), "X")
    if max(-low, high) > HUGE:
        raise InputError(
            f"X reaches {max(-low, high):.1e}; its square would overflow. Rescale its columns."
        )
    return table


def _as_array(table: Array | Tensor) -> Array:
    return table.cpu().numpy() if isinstance(table, Tensor) else table


def _first_row(
    start: int | str, n: int, random_state: int | np.random.Generator | None
) -> int | None:
    """Return the number of the first row; None means the row nearest the mean."""
    if isinstance(start, str) and start == "mean":
        return None
    if isinstance(start, str) and start == "random":
        return int(np.random.default_rng(random_state).integers(n))
    if isinstance(start, Integral) and not isinstance(start, bool) and 0 <= start < n:
        return int(start)
    raise InputError(f"start={start!r}: use 'mean', 'random' or a row number from 0 to {n - 1}.")
