"""The interface between the pipeline and a method.

The pipeline (mean, variance, calibration) is written once. A :class:`Method` determines which
engine does the linear algebra, which rows are held out, how candidates are trained and which
further members join the stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.engines.protocol import Engine, Posterior
from twostagegp.kernels import Kernel
from twostagegp.pipeline.held_rows import HeldRows
from twostagegp.training.candidates import Candidate

if TYPE_CHECKING:
    from twostagegp.pipeline.mean.stacked import StackedMean

__all__ = ["CrossfitPlan", "Method"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class CrossfitPlan:
    """How a scikit-learn regressor gets its held-out residuals.

    Attributes
    ----------
    order : integer array of shape (n,)
        Order of the table's rows in its training data.
    folds : integer array of shape (n,)
        Fold of each row of the table; -1: never held out.
    refit : bool
        Whether a final model is fitted to all rows.
    threads : int or None
        Number of OpenMP threads that it may use; None does not change the setting.
    """

    order: Index
    folds: Index
    refit: bool = True
    threads: int | None = None

    def with_folds(self, most: int) -> CrossfitPlan:
        """Return a plan with at most so many folds, each a union of folds of this one.

        Examples
        --------
        >>> plan = CrossfitPlan(np.arange(5), np.array([0, 1, 2, 3, -1]))
        >>> plan.with_folds(2).folds.tolist()
        [0, 1, 0, 1, -1]
        """
        return replace(self, folds=np.where(self.folds < 0, -1, self.folds % max(1, most)))


class Method(Protocol):
    """The engine of a fit and the choices that depend on it."""

    @property
    def engine(self) -> Engine:
        """The engine of the mean."""

    @property
    def held(self) -> HeldRows:
        """The rows that are held out."""

    @property
    def mean_rng(self) -> np.random.Generator:
        """Random numbers of part 1."""

    @property
    def variance_rng(self) -> np.random.Generator:
        """Random numbers of part 2."""

    @property
    def n_refits(self) -> int:
        """Number of fits without a fold, made for held-out residuals."""

    @property
    def conditionings(self) -> int:
        """Number of factorisations of all rows outside training."""

    def candidates(self, kernels: Sequence[Kernel], single: bool) -> list[Candidate]:
        """Return the candidates of a mean that is one of these kernels (``single``) or a stack."""

    def train(self, candidates: list[Candidate]) -> list[Candidate]:
        """Train candidates of the mean; return those that may join the stack."""

    def tuning(self) -> tuple[Engine, Tensor | None]:
        """Return the engine and rows on which the penalties of trained candidates are tuned."""

    def heldout_residuals(self, candidate: Candidate, posterior: Posterior) -> Array:
        """Return the held-out residuals of a trained candidate, shape (n,)."""

    def search_rows(self) -> Rows:
        """Return the rows on which the ratio test chooses a kernel of the mean."""

    def rows_per_prediction(self) -> float:
        """Return the number of rows that a prediction uses: the n of the penalty ``"0.01n"``."""

    def crossfit_plan(self) -> CrossfitPlan:
        """Return how a regressor is cross-fitted."""

    def further_members(self) -> list[Any]:
        """Return regressors that join every stack."""

    def stack_folds(self) -> Index:
        """Return the fold of every held-out row of the table, for cross-fitted stack weights."""

    def prune(self, models: list[Any]) -> list[Any]:
        """Return the models of the stack that are worth the cost of their predictions."""

    def variance_kernels(self, mean: StackedMean) -> list[Kernel]:
        """Return the kernels that part 2 chooses from."""

    def variance_engine(self, rows: Rows, noise_floor: float) -> Engine:
        """Return the engine of part 2; ``rows`` are held-out rows with residuals as target."""

    def train_variance(
        self, engine: Engine, candidates: list[Candidate], rows: Rows, R: Tensor
    ) -> list[Candidate]:
        """Train candidates of part 2 on residuals; return those that could be trained."""
