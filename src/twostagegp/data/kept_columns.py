"""Positions of a model's inputs in the encoded table, from which constant columns are dropped."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Columns"]


@dataclass(frozen=True)
class Columns:
    """Positions of the inputs in the encoded table, where constant columns were dropped.

    Attributes
    ----------
    kept : tuple of int
        Position of each input.
    width : int
        Number of columns of the table.
    """

    kept: tuple[int, ...]
    width: int

    def expand(self, X: Tensor) -> Tensor:
        """Return the inputs at their positions and zeros elsewhere, shape (..., n, width)."""
        table = X.new_zeros(*X.shape[:-1], self.width)
        table[..., list(self.kept)] = X
        return table
