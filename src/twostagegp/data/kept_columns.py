"""Which columns of the user's table the inputs of a model are."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Columns"]


@dataclass(frozen=True)
class Columns:
    """Which columns of the user's table the inputs are, where constant ones were dropped.

    Attributes
    ----------
    kept : tuple of int
    width : int
        Columns of the table.
    """

    kept: tuple[int, ...]
    width: int

    def expand(self, X: Tensor) -> Tensor:
        """The inputs in their places, zero in the others, shape (..., n, width)."""
        table = X.new_zeros(*X.shape[:-1], self.width)
        table[..., list(self.kept)] = X
        return table
