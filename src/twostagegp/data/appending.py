r"""Rows that come to a fitted table, in the units of the fit.

A new row either has inputs that no row of the fit has, and is *appended*, or it is one more copy of
a merged row (``rows.py``), which then is *changed*: with the weight :math:`w`, mean :math:`\bar y`
and sum of squares :math:`q_w` of what comes to a row of weight c, mean t and sum of squares q,

.. math::

    c' = c + w, \qquad t' = \frac{c\,t + w\,\bar y}{c'}, \qquad
    q' = q + q_w + \frac{c\,w}{c'} (t - \bar y)^2 .

Means and scales of columns and target stay those of the fit. Merged rows keep their numbers; rows
that are appended come after them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.checks import HUGE
from twostagegp.data.rows import Merged, Rows, lexicographic
from twostagegp.data.scaling import Prepared, to_rows
from twostagegp.errors import InputError

__all__ = ["NOTHING_TO_KEEP", "Growth", "grow"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]

#: Why a model that is a constant cannot grow.
NOTHING_TO_KEEP = (
    "the model is a constant, fitted to fewer than three distinct rows, no column that varies or a "
    "constant target: there are no hyperparameters that an update could keep. Call fit with all "
    "rows."
)


@dataclass(frozen=True)
class Growth:
    """All rows of a target, and where the new ones went.

    Attributes
    ----------
    data : Prepared
        Rows of the fit and new ones together.
    place : integer array of shape (m,)
        Merged row of each new row.
    before : int
        Merged rows before.
    """

    data: Prepared
    place: Index
    before: int

    @property
    def changed(self) -> Index:
        """Merged rows from before that have new copies, in order."""
        return np.unique(self.place[self.place < self.before])

    @property
    def changed_rows(self) -> Tensor:
        """The same where the rows are."""
        return torch.as_tensor(self.changed, device=self.data.rows.X.device)

    @property
    def appended(self) -> int:
        """Merged rows that there are more."""
        return len(self.data.merged.c) - self.before

    def with_target(self, old: Rows, values: Array) -> Rows:
        """All rows with another target, ``old`` before, ``values`` at the new rows."""
        merged = self.data.merged
        weight = merged.weight[len(merged.weight) - len(values) :]
        t, c, q = (part.double().cpu().numpy() for part in (old.t, old.c, old.q))
        t, _, q = _pooled(t, c, q, self.place, weight, values, self.appended)
        rows = self.data.rows
        return rows.with_target(torch.as_tensor(t).to(rows.X), torch.as_tensor(q).to(rows.X))


def _pooled(
    t: Array, c: Array, q: Array, place: Index, weight: Array, values: Array, appended: int
) -> tuple[Array, Array, Array]:
    """Mean target, weight and within-row sum of squares of all merged rows.

    ``t``, ``c`` and ``q`` are those of the rows before; ``place``, ``weight`` and ``values`` say
    where a new row goes, its weight and its target.
    """
    none = np.zeros(appended)
    t, c, q = (np.concatenate([old, none]) for old in (t, c, q))
    size = len(c)
    w = np.bincount(place, weights=weight, minlength=size)
    got = np.flatnonzero(w)
    mean = np.zeros(size)
    mean[got] = np.bincount(place, weights=weight * values, minlength=size)[got] / w[got]
    within = np.bincount(place, weights=weight * (values - mean[place]) ** 2, minlength=size)
    total = c + w
    q[got] += within[got] + (c * w / total)[got] * (t - mean)[got] ** 2
    # As a step from the old mean: a copy of the same value moves nothing.
    t[got] = np.where(c[got] > 0.0, t[got], mean[got])
    t[got] += (w / total * (mean - t))[got]
    return t, total, q


def grow(
    data: Prepared,
    X: Array,
    y: Array,
    weight: Array,
    noise_var: Array | None = None,
    groups: Index | None = None,
) -> Growth:
    """All rows of a target: those of the fit, and new ones in the user's units.

    Parameters
    ----------
    data : Prepared
        Not changed.
    X : array of shape (m, d)
        All columns that the model sees; finite.
    y, weight : arrays of shape (m,)
        Weights are positive.
    noise_var : array of shape (m,), optional
    groups : integer array of shape (m,), optional
        Group numbers among the new rows. Where the fit had groups they are new ones, and without
        them every row is one; where it had none they are not used.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from twostagegp.data.scaling import prepare
    >>> options = {"device": torch.device("cpu"), "dtype": torch.float64}
    >>> data = prepare(np.array([[0.0], [2.0]]), np.array([1.0, 3.0]), ["x"], **options)
    >>> growth = grow(data, np.array([[2.0], [4.0]]), np.array([5.0, 6.0]), np.ones(2))
    >>> growth.data.merged.c, growth.changed, growth.appended
    (array([1., 2., 1.]), array([1]), 1)
    >>> growth.data.merged.y * data.scaling.y_scale + data.scaling.y_mean
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
    place, first = _places(
        _key(merged.X, merged.extra, merged.groups), _key(Z, extra, numbers), len(merged.c)
    )
    t_all, c, q = _pooled(merged.t, merged.c, merged.q, place, weight, t, len(first))
    before = len(merged.c)
    moved = merged.t - t_all[:before]  # exactly zero but for changed rows
    grown = Merged(
        X=np.concatenate([merged.X, Z[first]]),
        t=t_all,
        c=c,
        q=q,
        extra=np.concatenate([merged.extra, extra[first]]),
        groups=None if numbers is None else np.concatenate([merged.groups, numbers[first]]),
        inverse=np.concatenate([merged.inverse, place]),
        deviation=np.concatenate([merged.deviation + moved[merged.inverse], t - t_all[place]]),
        weight=np.concatenate([merged.weight, weight]),
    )
    rows = to_rows(grown, data.rows.X.device, data.rows.X.dtype)
    return Growth(replace(data, rows=rows, merged=grown), place, before)


def _key(X: Array, extra: Array, groups: Index | None) -> Array:
    group = np.zeros(len(X)) if groups is None else groups.astype(np.float64)
    return np.column_stack([X, extra, group]) + 0.0  # -0.0 is 0.0


def _places(old: Array, new: Array, before: int) -> tuple[Index, Index]:
    """Merged row of each new row, and the new rows that are the first of an appended one."""
    like = np.arange(len(old))
    for known, asked in zip(old.T, new.T, strict=True):
        like = like[np.isin(known[like], asked)]
    both = np.vstack([old[like], new])
    order = lexicographic(both)
    ordered = both[order]
    starts = np.append(True, (ordered[1:] != ordered[:-1]).any(1))
    run = np.empty(len(both), dtype=np.int64)
    run[order] = np.cumsum(starts) - 1
    leader = order[starts]  # the order is stable: a row of the fit leads, where there is one
    is_new = leader >= len(like)
    target = np.empty(len(leader), dtype=np.int64)
    target[~is_new] = like[leader[~is_new]]
    target[is_new] = before + np.arange(np.count_nonzero(is_new))
    return target[run[len(like) :]], leader[is_new] - len(like)
