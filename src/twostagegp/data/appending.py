r"""Append new rows to the rows of a fit, in the units of the fit.

A new row whose inputs no row of the fit has is *appended*. A new row that repeats the inputs of a
merged row (``rows.py``) *changes* that row: if a row of weight c, mean target t and sum of squares
q receives copies of total weight :math:`w`, mean :math:`\bar y` and sum of squares :math:`q_w`,

.. math::

    c' = c + w, \qquad t' = \frac{c\,t + w\,\bar y}{c'}, \qquad
    q' = q + q_w + \frac{c\,w}{c'} (t - \bar y)^2 .

Means and scales of columns and target stay those of the fit. Merged rows keep their numbers;
appended rows are numbered after them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.checks import HUGE
from twostagegp.data.rows import Merged, Rows, lexicographic_order
from twostagegp.data.scaling import Prepared, to_rows
from twostagegp.errors import InputError

__all__ = ["CONSTANT_MODEL", "AppendedRows", "append_rows"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]

#: Error message: why a constant model cannot be updated.
CONSTANT_MODEL = (
    "the model is a constant, because it was fitted to fewer than three distinct rows, to no "
    "column that varies or to a constant target. It has no hyperparameters that an update could "
    "keep. Call fit with all rows."
)


@dataclass(frozen=True)
class AppendedRows:
    """All rows of one target after an update, and which of them are new or changed.

    Attributes
    ----------
    data : Prepared
        Rows of the fit and new rows together.
    merged_row : integer array of shape (m,)
        Number of the merged row that each new row belongs to.
    n_before : int
        Number of merged rows before the update.
    """

    data: Prepared
    merged_row: Index
    n_before: int

    @property
    def changed(self) -> Index:
        """Numbers of the earlier merged rows that received new copies, sorted."""
        return np.unique(self.merged_row[self.merged_row < self.n_before])

    @property
    def changed_rows(self) -> Tensor:
        """``changed`` as a tensor on the device of the rows."""
        return torch.as_tensor(self.changed, device=self.data.rows.X.device)

    @property
    def n_appended(self) -> int:
        """Number of merged rows that the update added."""
        return len(self.data.merged.c) - self.n_before

    def with_target(self, old: Rows, values: Array) -> Rows:
        """Return all rows with another target, for example residuals.

        Parameters
        ----------
        old : Rows
            The rows before the update, with that target.
        values : array of shape (m,)
            The target at the new rows.
        """
        merged = self.data.merged
        weight = merged.weight[len(merged.weight) - len(values) :]
        t, c, q = (part.double().cpu().numpy() for part in (old.t, old.c, old.q))
        t, _, q = _pool_copies(t, c, q, self.merged_row, weight, values, self.n_appended)
        rows = self.data.rows
        return rows.with_target(torch.as_tensor(t).to(rows.X), torch.as_tensor(q).to(rows.X))


def _pool_copies(
    t: Array, c: Array, q: Array, merged_row: Index, weight: Array, values: Array, n_appended: int
) -> tuple[Array, Array, Array]:
    """Return mean target, weight and within-row sum of squares of all merged rows.

    ``t``, ``c`` and ``q`` belong to the rows before the update; ``merged_row``, ``weight`` and
    ``values`` hold the merged row, the weight and the target of each new row.
    """
    appended = np.zeros(n_appended)
    t, c, q = (np.concatenate([old, appended]) for old in (t, c, q))
    size = len(c)
    w = np.bincount(merged_row, weights=weight, minlength=size)
    received = np.flatnonzero(w)
    mean = np.zeros(size)
    mean[received] = (
        np.bincount(merged_row, weights=weight * values, minlength=size)[received] / w[received]
    )
    squares = weight * (values - mean[merged_row]) ** 2
    within = np.bincount(merged_row, weights=squares, minlength=size)
    total = c + w
    q[received] += within[received] + (c * w / total)[received] * (t - mean)[received] ** 2
    # Written as a step from the old mean, so that a copy of the same value changes no bit of it.
    t[received] = np.where(c[received] > 0.0, t[received], mean[received])
    t[received] += (w / total * (mean - t))[received]
    return t, total, q


def append_rows(
    data: Prepared,
    X: Array,
    y: Array,
    weight: Array,
    noise_var: Array | None = None,
    groups: Index | None = None,
) -> AppendedRows:
    """Return the rows of a fit together with new rows, which are given in the user's units.

    Parameters
    ----------
    data : Prepared
        The rows of the fit; not changed.
    X : array of shape (m, d)
        All columns of the encoded table; finite.
    y, weight : arrays of shape (m,)
        Weights are positive.
    noise_var : array of shape (m,), optional
    groups : integer array of shape (m,), optional
        Group numbers of the new rows. If the fit had groups, these are other groups than those of
        the fit, and without ``groups`` every new row is a group of its own. If the fit had no
        groups, they are not used.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from twostagegp.data.scaling import prepare
    >>> options = {"device": torch.device("cpu"), "dtype": torch.float64}
    >>> data = prepare(np.array([[0.0], [2.0]]), np.array([1.0, 3.0]), ["x"], **options)
    >>> appended = append_rows(data, np.array([[2.0], [4.0]]), np.array([5.0, 6.0]), np.ones(2))
    >>> appended.data.merged.c, appended.changed, appended.n_appended
    (array([1., 2., 1.]), array([1]), 1)
    >>> appended.data.merged.y * data.scaling.y_scale + data.scaling.y_mean
    array([1., 3., 5., 6.])
    """
    merged, scaling = data.merged, data.scaling
    weight = weight / data.weight_unit
    size = float(np.abs(y).max())
    if size > HUGE:
        raise InputError(f"y reaches {size:.1e}; its square would overflow. Rescale it.")
    Z, t = scaling.inputs(X), (y - scaling.y_mean) / scaling.y_scale
    extra = np.zeros(len(y)) if noise_var is None else noise_var / scaling.y_scale**2
    numbers = None
    if merged.groups is not None:
        numbers = np.arange(len(y)) if groups is None else groups
        numbers = numbers + 1 + int(merged.groups.max())
    merged_row, first = _match_rows(
        _key(merged.X, merged.extra, merged.groups), _key(Z, extra, numbers), len(merged.c)
    )
    t_all, c, q = _pool_copies(merged.t, merged.c, merged.q, merged_row, weight, t, len(first))
    n_before = len(merged.c)
    moved = merged.t - t_all[:n_before]  # exactly zero for rows that received no copy
    together = Merged(
        X=np.concatenate([merged.X, Z[first]]),
        t=t_all,
        c=c,
        q=q,
        extra=np.concatenate([merged.extra, extra[first]]),
        groups=None if numbers is None else np.concatenate([merged.groups, numbers[first]]),
        inverse=np.concatenate([merged.inverse, merged_row]),
        deviation=np.concatenate([merged.deviation + moved[merged.inverse], t - t_all[merged_row]]),
        weight=np.concatenate([merged.weight, weight]),
    )
    rows = to_rows(together, data.rows.X.device, data.rows.X.dtype)
    return AppendedRows(replace(data, rows=rows, merged=together, y=None), merged_row, n_before)


def _key(X: Array, extra: Array, groups: Index | None) -> Array:
    """Return the columns in which rows must agree to be merged, shape (n, d + 2)."""
    group = np.zeros(len(X)) if groups is None else groups.astype(np.float64)
    return np.column_stack([X, extra, group]) + 0.0  # turns -0.0 into 0.0


def _match_rows(old: Array, new: Array, n_before: int) -> tuple[Index, Index]:
    """Return the merged row of each new row, and the new rows that start an appended one."""
    candidates = np.arange(len(old))
    for known, asked in zip(old.T, new.T, strict=True):
        candidates = candidates[np.isin(known[candidates], asked)]
    both = np.vstack([old[candidates], new])
    order = lexicographic_order(both)
    ordered = both[order]
    starts = np.append(True, (ordered[1:] != ordered[:-1]).any(1))
    run = np.empty(len(both), dtype=np.int64)
    run[order] = np.cumsum(starts) - 1
    # The order is stable, so a run of equal rows begins with the row of the fit if it has one.
    leader = order[starts]
    is_new = leader >= len(candidates)
    target = np.empty(len(leader), dtype=np.int64)
    target[~is_new] = candidates[leader[~is_new]]
    target[is_new] = n_before + np.arange(np.count_nonzero(is_new))
    return target[run[len(candidates) :]], leader[is_new] - len(candidates)
