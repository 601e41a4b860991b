"""The rows that are held out: stack weights, variance and calibration are learned from these.

The exact method holds out every row. On large tables a random sample is enough, since a prediction
needs inputs, targets and hyperparameters but never the residuals of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.rows import Merged, Rows
from twostagegp.data.scaling import Prepared
from twostagegp.engines.protocol import Posterior
from twostagegp.numerics.held_out import Heldout

__all__ = ["HeldRows"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class HeldRows:
    """Distinct rows that are held out, and the rows of the table that they stand for.

    Attributes
    ----------
    index : integer array of shape (m,)
        Numbers of the distinct rows that are held out.
    merged : Merged
        These rows.
    table_rows : integer array of shape (n,)
        Numbers of the table's rows that they stand for.
    is_all : bool
        Whether all rows are held out.
    """

    index: NDArray[np.int64]
    merged: Merged
    table_rows: NDArray[np.int64]
    is_all: bool

    @classmethod
    def every(cls, data: Prepared) -> HeldRows:
        """Hold out every row."""
        return cls(np.arange(len(data.rows)), data.merged, np.arange(data.n_rows), True)

    @classmethod
    def draw(cls, data: Prepared, count: int, rng: np.random.Generator) -> HeldRows:
        """Draw ``count`` distinct rows at random, or take all if there are fewer."""
        index = np.sort(rng.permutation(len(data.rows))[:count])
        return cls(index, data.merged.subset(index), data.merged.rows_of(index), False)

    def tensor(self, device: torch.device) -> Tensor:
        """Return ``index`` on a device."""
        return torch.as_tensor(self.index, device=device)

    def rows(self, rows: Rows) -> Rows:
        """Return the held-out rows among all distinct rows."""
        return rows if self.is_all else rows.subset(self.index)

    def heldout(self, posterior: Posterior) -> Heldout:
        """Return the held-out predictions of these rows."""
        index = None if self.is_all else self.tensor(posterior.rows.X.device)
        return posterior.heldout(index)

    def residuals(self, posterior: Posterior) -> Array:
        """Return the held-out residuals of the table's rows, shape (n,)."""
        return self.unmerged(self.heldout(posterior))

    def unmerged(self, held: Heldout) -> Array:
        """Return residuals of the table's rows from those of distinct rows, shape (n,)."""
        residual, slope = (v.double().cpu().numpy() for v in (held.residual, held.slope))
        return self.merged.unmerge(residual, slope)
