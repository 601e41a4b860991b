r"""Subsamples of the rows: spread out evenly, spread out at random, or plainly random.

Farthest point sampling is Algorithm 4 of the paper. From a first row it adds, again and
again, the row that is farthest from those chosen so far, S:

.. math::

    l = \arg\max_j d_j, \qquad d_j = \min_{s \in S} \|x_j - x_s\|.

When it stops, the largest :math:`d_j` that is left is the fill distance
:math:`h = \max_j \min_{s \in S} \|x_j - x_s\|`. Two things are known of it. The chosen rows are
at least h apart from each other, and no set of as many rows has a fill distance below h / 2.
This is what the paper calls a quasi-uniform design.

The procedure has nothing random in it, and repetitions need subsamples that differ. That is
what :func:`random_spread` and :func:`draw_subsamples` are for.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from twostagegp.data.checks import check_finite
from twostagegp.data.scaling import resolve_device
from twostagegp.errors import InputError

__all__ = ["draw_subsamples", "farthest_point_sampling", "random_spread"]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

#: Entries of X whose differences are formed at a time: 1 MiB, which the cache of one core holds.
_CHUNK = 2**17
#: The same on a GPU, where it bounds the memory (128 MiB) and few launches are what counts.
_GPU_CHUNK = 2**24
#: Tables of up to this many entries (8 MiB) are copied column by column, which is faster.
_COPIED = 2**20
#: Largest magnitude whose square, summed over all columns, is far from overflow.
_HUGE = 1e100


def farthest_point_sampling(
    X: ArrayLike | Tensor,
    k: int,
    *,
    start: int | str = "mean",
    random_state: int | np.random.Generator | None = None,
    device: str | torch.device | None = None,
) -> Indices:
    r"""Rows of X that are spread out evenly, in the order in which they are chosen.

    Algorithm 4 of the paper. With the distances :math:`d_j = \infty` at the start, every chosen
    row l lowers them, and the largest of them is the next row:

    .. math::

        d_j \leftarrow \min(d_j, \|x_j - x_l\|), \qquad l \leftarrow \arg\max_j d_j.

    Of rows that are equally far the first is taken. The columns of X should be on one scale.

    Parameters
    ----------
    X : array or Tensor of shape (n, d)
        Not changed. Anything but float64 is converted to it first.
    k : int
        How many rows. With k >= n the result is all n rows, in the order in which they would be
        chosen.
    start : "mean", "random" or int, default="mean"
        The first row: the one nearest the mean of all rows (as in the paper), one drawn with
        ``random_state``, or the row of this number.
    random_state : int, Generator or None
        Only ``start="random"`` uses it.
    device : str, torch.device or None
        Where to compute. None is the device of X, which for an array is the CPU.

    Returns
    -------
    index : integer array of shape (min(k, n),)
        Row numbers, none of them twice. Once every distance is zero, because X has fewer than k
        distinct rows, the other rows follow in the order of the table.

    Raises
    ------
    InputError
        If X is not a table of finite numbers, or k, ``start`` or ``device`` cannot be used.

    Notes
    -----
    Time grows as n k d. Memory beyond X (in float64) is of order n, plus a bounded amount.
    Distances come from differences of rows, so that they are right for rows that are nearly
    equal. CPU and GPU add the squares in different orders: where two rows are equally far up to
    rounding, their choices may differ.

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
    _check_count(k, "k")
    first = _first_row(start, n, random_state)
    where = table.device if isinstance(table, Tensor) else torch.device("cpu")
    if device is not None:
        where = resolve_device(str(device), n)
    if where.type == "cpu":
        return _choose_on_cpu(_as_array(table), min(int(k), n), first)
    return _choose_on_gpu(_as_tensor(table, where), min(int(k), n), first)


def random_spread(X: ArrayLike, k: int, rng: np.random.Generator) -> Indices:
    """Rows of X that are spread out and yet differ from draw to draw.

    Farthest point sampling gives the same rows every time. The 100 repetitions that the paper
    makes of it would all see one subsample, and their mean would be a single number. Our reading
    is that repetitions are meant to differ. So a pool of min(2 k, (n + k) // 2) rows is drawn
    without replacement, and k of them are chosen by farthest point sampling from a random start.
    The pool is at least k rows, and less than the whole table, which leaves room to differ even
    where n is not much larger than k. What is gained over plain random rows is mostly that no two
    are close together; a far corner of the table that the pool misses is missed here, too.

    Parameters
    ----------
    X : array of shape (n, d)
    k : int
        How many rows; with k >= n the result is all n rows in random order.
    rng : numpy.random.Generator

    Returns
    -------
    index : integer array of shape (min(k, n),)
        Row numbers of X, none of them twice.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(0.0, 1.0, 50)[:, None]
    >>> index = random_spread(X, 4, np.random.default_rng(0))
    >>> len(set(index.tolist()))
    4
    """
    _check_count(k, "k")
    return _spread(_as_array(_as_table(X)), int(k), rng)


def draw_subsamples(
    X: ArrayLike, size: int, n_repeats: int, sampling: str, rng: np.random.Generator
) -> Indices:
    """Row numbers of several subsamples of X, each in random order.

    The order is random so that the first part of a subsample can be the training rows and the
    rest the test rows. In the order in which :func:`random_spread` chooses, early rows are
    farther apart than late ones, and the two parts would not be alike.

    Parameters
    ----------
    X : array of shape (n, d)
    size : int
        Rows of each subsample; with size >= n each holds all n rows.
    n_repeats : int
    sampling : "fps" or "random"
        :func:`random_spread`, or plain random subsets without replacement.
    rng : numpy.random.Generator
        Every repetition has its own child of it: repetition r is the same however many are
        asked for. A second call with the same generator draws anew.

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
    _check_count(size, "size")
    _check_count(n_repeats, "n_repeats")
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
    return pool[_choose_on_cpu(X[pool], k, int(rng.integers(len(pool))))]


def _choose_on_cpu(X: Array, k: int, first: int | None) -> Indices:
    """Farthest point sampling in numpy; ``first=None`` starts at the row nearest the mean."""
    n, d = X.shape
    table = np.asfortranarray(X) if X.size <= _COPIED else X
    rows = min(n, max(1, _CHUNK // d))
    difference = np.empty_like(table[:rows])  # in the memory order of the table
    square = np.empty(rows)

    def approach(point: Array) -> None:
        for begin in range(0, n, rows):
            near = nearest[begin : begin + rows]
            delta, distance = difference[: len(near)], square[: len(near)]
            np.subtract(table[begin : begin + rows], point, out=delta)
            np.einsum("ij,ij->i", delta, delta, out=distance)
            np.minimum(near, distance, out=near)

    # Squared distance to the nearest chosen row. A chosen row has -1, which no minimum raises
    # and which is below the zeros of its repeats: the maximum never finds it again.
    nearest = np.full(n, np.inf)
    if first is None:
        approach(table.mean(0))
        first = int(nearest.argmin())
        nearest.fill(np.inf)
    index = np.empty(k, dtype=np.int64)
    index[0] = first
    for i in range(1, k):
        last = index[i - 1]
        nearest[last] = -1.0
        approach(table[last].copy())
        index[i] = nearest.argmax()
    return index


def _choose_on_gpu(X: Tensor, k: int, first: int | None) -> Indices:
    """The same in torch. Row numbers stay on the device, so that no step waits for the host."""
    n, d = X.shape
    rows = max(1, _GPU_CHUNK // d)

    def approach(point: Tensor) -> None:
        for begin in range(0, n, rows):
            near = nearest[begin : begin + rows]
            distance = (X[begin : begin + rows] - point).square_().sum(1)
            torch.minimum(near, distance, out=near)

    nearest = torch.full((n,), torch.inf, dtype=X.dtype, device=X.device)
    if first is None:
        approach(X.mean(0))
        last = nearest.argmin(0, keepdim=True)
        nearest.fill_(torch.inf)
    else:
        last = torch.tensor([first], device=X.device)
    index = torch.empty(k, dtype=torch.int64, device=X.device)
    index[:1] = last
    for i in range(1, k):
        nearest.index_fill_(0, last, -1.0)
        approach(X.index_select(0, last))
        last = nearest.argmax(0, keepdim=True)
        index[i : i + 1] = last
    return index.cpu().numpy()


def _as_table(X: ArrayLike | Tensor) -> Array | Tensor:
    """X in float64, on its own device, checked."""
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
    # Two numbers tell whether all is well: NaN passes through both. No mask of n x d is needed.
    low, high = float(table.min()), float(table.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        check_finite(_as_array(table), "X")
    if max(-low, high) > _HUGE:
        raise InputError(
            f"X reaches {max(-low, high):.1e}; its square would overflow. Rescale its columns."
        )
    return table


def _as_array(table: Array | Tensor) -> Array:
    return table.cpu().numpy() if isinstance(table, Tensor) else table


def _as_tensor(table: Array | Tensor, device: torch.device) -> Tensor:
    if isinstance(table, Tensor):
        return table.to(device)
    # torch.tensor copies, and so takes read-only arrays without a warning; no negative strides.
    return torch.tensor(np.ascontiguousarray(table), device=device)


def _check_count(value: Any, name: str) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name}={value!r}: use a whole number, at least 1.")


def _first_row(
    start: int | str, n: int, random_state: int | np.random.Generator | None
) -> int | None:
    """Number of the first row, or None where it is the one nearest the mean."""
    if isinstance(start, str) and start == "mean":
        return None
    if isinstance(start, str) and start == "random":
        return int(np.random.default_rng(random_state).integers(n))
    if isinstance(start, Integral) and not isinstance(start, bool) and 0 <= start < n:
        return int(start)
    raise InputError(f"start={start!r}: use 'mean', 'random' or a row number from 0 to {n - 1}.")
