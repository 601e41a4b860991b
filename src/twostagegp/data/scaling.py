"""From a user's table to standardised, merged rows, and back to the user's units.

Checks come first and name the value, the row and the column. Constant columns are dropped and
reported. Inputs and target are standardised with the weighted mean and standard deviation of
the training rows, after repeats have been merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from twostagegp.data.checks import (
    HUGE,
    check_choice,
    check_finite,
    check_groups,
    check_nonnegative,
    column_names,
)
from twostagegp.data.kept_columns import Columns
from twostagegp.data.rows import Merged, Rows, merge_rows
from twostagegp.errors import InputError

__all__ = [
    "HUGE",
    "Prepared",
    "Scaling",
    "check_choice",
    "check_finite",
    "check_groups",
    "check_nonnegative",
    "column_names",
    "prepare",
    "resolve_device",
    "standardise_columns",
    "to_rows",
]

Array = NDArray[np.float64]

#: A column whose spread is below this fraction of its size is rounding noise.
_CONSTANT = 1e-13
#: Standardised inputs further out than this are as far as any: every kernel is zero there, and
#: squares stay finite in float32.
FAR = 1e12
#: Rows from which "auto" takes a GPU; benchmarks.device_threshold measures where it pays.
_GPU_ROWS = 1500


@dataclass(frozen=True)
class Scaling:
    """Affine maps between the user's units and standardised ones."""

    columns: NDArray[np.int64]
    x_mean: Array
    x_scale: Array
    y_mean: float
    y_scale: float

    def inputs(self, X: Array) -> Array:
        """Keep the columns in use and standardise them, shape (n, d)."""
        with np.errstate(over="ignore"):
            Z = (X[:, self.columns] - self.x_mean) / self.x_scale
        return np.clip(Z, -FAR, FAR)


@dataclass(frozen=True)
class Prepared:
    """One target's training rows, ready for the stages."""

    rows: Rows
    merged: Merged
    scaling: Scaling
    constant_columns: list[str]
    constant_target: bool
    #: Weight in the user's units that counts as one row; not 1 where rows are mere copies.
    weight_unit: float = 1.0

    @property
    def n_rows(self) -> int:
        """Rows of the table, repeats included."""
        return len(self.merged.inverse)

    @property
    def columns(self) -> Columns | None:
        """Places of the columns in use, where constant ones were dropped."""
        if not self.constant_columns:
            return None
        kept = tuple(int(k) for k in self.scaling.columns)
        return Columns(kept, len(kept) + len(self.constant_columns))

    @property
    def n_repeated(self) -> int:
        """Rows that repeat the inputs of another row."""
        return self.n_rows - len(self.merged.c)


def resolve_device(device: str, n: int, batched: bool = False) -> torch.device:
    """The device that ``device`` names; ``"auto"`` takes a GPU for work that gains by it.

    Batches of small problems gain at any size (``batched``), one problem from some rows on.
    """
    if device == "auto":
        gpu = torch.cuda.is_available() and (batched or n >= _GPU_ROWS)
        return torch.device("cuda" if gpu else "cpu")
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device={device!r}: use 'auto', 'cpu' or 'cuda'.") from error
    if resolved.type == "cuda" and (resolved.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device={device!r}, but torch sees {torch.cuda.device_count()} CUDA device(s); "
            "use device='cpu'."
        )
    return resolved


def _weighted_moments(values: Array, weight: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each column, to the last bit whatever stands beside it.

    A matrix product rounds a column by its place in the table, which is enough to decide between
    neighbours at the same distance.
    """
    share = (weight / weight.sum())[:, None]
    mean = (share * values).sum(0)
    return mean, np.sqrt((share * (values - mean) ** 2).sum(0))


def standardise_columns(
    X: Array, weight: Array, names: Sequence[str]
) -> tuple[NDArray[np.int64], Array, Array, list[str]]:
    """Columns that vary, their means and standard deviations, and the names of the others."""
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
    """Merge, drop constant columns and standardise; everything is finite already.

    Parameters
    ----------
    X : array of shape (n, d)
    y : array of shape (n,)
    names : sequence of str
        Column names for messages.
    copies_are_one : bool
        Whether copies that agree are one row where they are most of the table (``rows.py``).
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
    # A constant target has no scale of its own: the size of the constant takes its place.
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
    return Prepared(rows, merged, scaling, constant, constant_target, unit)


def to_rows(merged: Merged, device: torch.device, dtype: torch.dtype) -> Rows:
    """Merged rows as tensors for the engines."""

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
