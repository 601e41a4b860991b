"""The table of a classification: distinct rows, class numbers, views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.classification.views import View, make_views
from twostagegp.data.checks import check_groups
from twostagegp.data.rows import merge_rows
from twostagegp.errors import InputError

__all__ = ["ClassTable", "make_table"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class ClassTable:
    """Distinct rows of a table.

    Attributes
    ----------
    X : array of shape (m, d)
        Inputs in the user's units.
    codes : integer array of shape (m,)
        Class number of each row.
    n_classes : int
    c : array of shape (m,)
        Weight of each row: the number of table rows that it stands for.
    groups : integer array of shape (m,) or None
    views : sequence of View
    constant_columns : list of str
    device : torch.device
    dtype : torch.dtype
    n_rows : int
        Rows of the table, repeats included.
    """

    X: Array
    codes: Index
    n_classes: int
    c: Array
    groups: Index | None
    views: Sequence[View]
    constant_columns: list[str]
    device: torch.device
    dtype: torch.dtype
    n_rows: int

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def prior(self) -> Array:
        """Share of each class, shape (K,)."""
        return np.bincount(self.codes, weights=self.c, minlength=self.n_classes) / self.c.sum()

    @cached_property
    def own(self) -> Array:
        """One-hot labels, shape (m, K)."""
        return np.eye(self.n_classes)[self.codes]

    @property
    def target_scale(self) -> float:
        """Root mean square, over rows and classes, of one-hot labels minus their prior."""
        return float(np.sqrt(np.mean(self.prior * (1.0 - self.prior))))

    @cached_property
    def _inputs(self) -> dict[str, Tensor]:
        return {}

    def inputs(self, view: View) -> Tensor:
        """Return the rows in one of the views, shape (m, d)."""
        if view.name not in self._inputs:
            self._inputs[view.name] = self.tensor(view(self.X))
        return self._inputs[view.name]

    def tensor(self, values: Array) -> Tensor:
        return torch.as_tensor(values, dtype=self.dtype, device=self.device)

    @cached_property
    def group_tensor(self) -> Tensor | None:
        return None if self.groups is None else torch.as_tensor(self.groups, device=self.device)

    def subset(self, index: Index) -> ClassTable:
        """Return the table of some of the distinct rows, with the same views."""
        groups = None
        if self.groups is not None:
            _, groups = np.unique(self.groups[index], return_inverse=True)
        return replace(
            self,
            X=self.X[index],
            codes=self.codes[index],
            c=self.c[index],
            groups=groups,
            n_rows=len(index),
        )

    def __getstate__(self) -> dict[str, object]:
        state = self.__dict__.copy()
        for name in ("_inputs", "group_tensor"):
            state.pop(name, None)  # computed again when needed
        return state


def make_table(
    X: Array,
    codes: Index,
    n_classes: int,
    names: Sequence[str],
    weight: Array | None,
    groups: Index | None,
    device: torch.device,
    dtype: torch.dtype,
    many_columns: int = 30,
) -> ClassTable:
    """Merge rows that are equal in inputs, class and group, and make the views."""
    if weight is not None:
        used = weight > 0.0
        if not used.any():
            raise InputError("sample_weight is zero in all rows.")
        X, codes, weight = X[used], codes[used], weight[used]
        groups = None if groups is None else check_groups(groups[used], int(used.sum()))
    there = np.bincount(codes, minlength=n_classes) > 0
    if there.sum() < 2:
        raise InputError(
            f"y has {int(there.sum())} class(es) among the rows of positive weight; at least two "
            "classes are needed."
        )
    merged = merge_rows(X, codes.astype(np.float64), weight, codes.astype(np.float64), groups)
    views, constant = make_views(merged.X, merged.c, names, many_columns)
    return ClassTable(
        merged.X,
        merged.t.astype(np.int64),
        n_classes,
        merged.c,
        merged.groups,
        views,
        constant,
        device,
        dtype,
        len(X),
    )
