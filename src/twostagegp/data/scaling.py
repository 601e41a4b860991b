"""Standardise a table of finite numbers and merge its repeated rows.

Constant columns are dropped and reported. Inputs and target are standardised with the weighted
mean and standard deviation of the training rows, after repeated rows have been merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from twostagegp.data.checks import HUGE, check_groups
from twostagegp.data.kept_columns import Columns
from twostagegp.data.rows import Merged, Rows, merge_rows
from twostagegp.errors import InputError

__all__ = [
    "FARTHEST",
    "Prepared",
    "Scaling",
    "prepare",
    "standardise_columns",
    "to_rows",
]

Array = NDArray[np.float64]

#: A column whose standard deviation is below this fraction of its size is constant up to rounding.
_CONSTANT = 1e-13
#: Standardised inputs are clipped at this magnitude: every kernel is zero at such a distance, and
#: squares stay finite in float32.
FARTHEST = 1e12


@dataclass(frozen=True)
class Scaling:
    """Affine maps from the units of the table to standardised ones.

    Attributes
    ----------
    columns : integer array of shape (d,)
        Columns of the table that vary.
    x_mean, x_scale : arrays of shape (d,)
        Their means and standard deviations.
    y_mean, y_scale : float
        Mean and standard deviation of the target.
    """

    columns: NDArray[np.int64]
    x_mean: Array
    x_scale: Array
    y_mean: float
    y_scale: float

    def inputs(self, X: Array) -> Array:
        """Return the columns in use, standardised, shape (n, d)."""
        with np.errstate(over="ignore"):
            Z = (X[:, self.columns] - self.x_mean) / self.x_scale
        return np.clip(Z, -FARTHEST, FARTHEST)


@dataclass(frozen=True)
class Prepared:
    """The training rows of one target, ready for the pipeline.

    Attributes
    ----------
    rows : Rows
        Merged rows as tensors.
    merged : Merged
        The same in numpy, with the map to the rows of the table.
    scaling : Scaling
    constant_columns : list of str
        Names of the dropped columns.
    constant_target : bool
    weight_unit : float
        Weight, in the user's units, that counts as one row; other than 1 only if most of the
        table consists of copies (:attr:`~twostagegp.data.rows.Merged.mostly_copies`).
    y : array of shape (n,) or None
        Target of each row of the table as it was given, for the fit; files do not hold it.
    """

    rows: Rows
    merged: Merged
    scaling: Scaling
    constant_columns: list[str]
    constant_target: bool
    weight_unit: float = 1.0
    y: Array | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows of the table, repeats included."""
        return len(self.merged.inverse)

    @property
    def columns(self) -> Columns | None:
        """Positions of the columns in use; None if no constant column was dropped."""
        if not self.constant_columns:
            return None
        kept = tuple(int(k) for k in self.scaling.columns)
        return Columns(kept, len(kept) + len(self.constant_columns))

    @property
    def n_repeated(self) -> int:
        """Number of rows that repeat the inputs of another row."""
        return self.n_rows - len(self.merged.c)


def _weighted_moments(values: Array, weight: Array) -> tuple[Array, Array]:
    """Return mean and standard deviation of each column.

    Each column is summed on its own. In a matrix product the rounding of a column would depend on
    the other columns, and that can change which of two equally distant neighbours is taken.
    """
    share = (weight / weight.sum())[:, None]
    mean = (share * values).sum(0)
    return mean, np.sqrt((share * (values - mean) ** 2).sum(0))


def standardise_columns(
    X: Array, weight: Array, names: Sequence[str]
) -> tuple[NDArray[np.int64], Array, Array, list[str]]:
    """Return the columns that vary, their means and deviations, and the names of the others."""
    size = np.abs(X).max(0)
    if (size > HUGE).any():
        worst = int(np.argmax(size))
        raise InputError(
            f"column {names[worst]!r} reaches {size[worst]:.1e}; its square would overflow. "
            "Rescale it, or take its logarithm."
        )
    mean, scale = _weighted_moments(X, weight)
    usable = scale > np.maximum(_CONSTANT * size, 1.0 / HUGE)
    columns = np.flatnonzero(usable)
    constant = [names[int(k)] for k in np.flatnonzero(~usable)]
    return columns, mean[columns], scale[columns], constant


def prepare(
    X: Array,
    y: Array,
    names: Sequence[str],
    *,
    weight: Array | None = None,
    noise_var: Array | None = None,
    groups: NDArray[np.int64] | None = None,
    device: torch.device,
    dtype: torch.dtype,
    copies_are_one: bool = True,
) -> Prepared:
    """Return the merged, standardised rows of a table; constant columns are dropped.

    Parameters
    ----------
    X : array of shape (n, d)
        Finite, like all other arrays.
    y : array of shape (n,)
    names : sequence of str
        Column names for messages.
    weight : array of shape (n,), optional
        Counts; rows of weight zero are dropped.
    noise_var : array of shape (n,), optional
        Known noise variances.
    groups : integer array of shape (n,), optional
    device : torch.device
    dtype : torch.dtype
    copies_are_one : bool
        Whether to count agreeing copies as one row if most of the table consists of them
        (``rows.py``).
    """
    if weight is not None:
        used = weight > 0.0
        if used.sum() < 2:
            raise InputError(
                f"sample_weight is zero in all but {int(used.sum())} of {len(used)} rows; at least "
                "2 rows need a positive weight."
            )
        X, y, weight = X[used], y[used], weight[used]
        noise_var = None if noise_var is None else noise_var[used]
        groups = None if groups is None else check_groups(groups[used], int(used.sum()))
    size = float(np.abs(y).max())
    if size > HUGE:
        raise InputError(f"y reaches {size:.1e}; its square would overflow. Rescale it.")
    raw = merge_rows(X, y, weight, noise_var, groups)
    columns, x_mean, x_scale, constant = standardise_columns(raw.X, raw.c, names)
    y_mean = float(raw.c @ raw.t / raw.c.sum())
    spread = float(np.sqrt((raw.c @ (raw.t - y_mean) ** 2 + raw.q.sum()) / raw.c.sum()))
    constant_target = spread <= max(_CONSTANT * size, 1.0 / HUGE)
    # A constant target has no standard deviation: the size of the constant takes its place.
    y_scale = spread
    if constant_target:
        y_scale = size if size > 1.0 / HUGE else 1.0
    scaling = Scaling(columns, x_mean, x_scale, y_mean, y_scale)
    merged = Merged(
        X=scaling.inputs(raw.X),
        t=(raw.t - y_mean) / y_scale,
        c=raw.c,
        q=raw.q / y_scale**2,
        extra=raw.extra / y_scale**2,
        groups=raw.groups,
        inverse=raw.inverse,
        deviation=raw.deviation / y_scale,
        weight=raw.weight,
    )
    unit = 1.0
    if copies_are_one and merged.mostly_copies:
        unit = float(merged.c.mean())
        merged = merged.counted_in(unit)
    rows = to_rows(merged, device, dtype)
    return Prepared(rows, merged, scaling, constant, constant_target, unit, y)


def to_rows(merged: Merged, device: torch.device, dtype: torch.dtype) -> Rows:
    """Return merged rows as tensors for the engines."""

    def tensor(values: NDArray[Any]) -> torch.Tensor:
        return torch.as_tensor(values, dtype=dtype, device=device)

    groups = None if merged.groups is None else torch.as_tensor(merged.groups, device=device)
    return Rows(
        tensor(merged.X),
        tensor(merged.t),
        tensor(merged.c),
        tensor(merged.q),
        tensor(merged.extra),
        groups,
    )
