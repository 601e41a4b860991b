"""The protocol between the stages and whatever does the linear algebra.

An :class:`Engine` holds training rows and poses training problems over them; a
:class:`Posterior` is a Gaussian process conditioned on those rows at fixed hyperparameters.
A method that offers these few calls can serve both stages.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.engines.problem import ObjectiveName, Problem
from twostagegp.kernels import Kernel, Vector
from twostagegp.numerics.objectives import Heldout

__all__ = ["Engine", "Posterior", "Trainable"]


class Posterior(Protocol):
    """A zero-mean Gaussian process at fixed hyperparameters, conditioned on rows."""

    @property
    def parameters(self) -> Vector:
        """(theta, log noise variance)."""

    @property
    def noise(self) -> float:
        """Noise variance."""

    @property
    def jitter(self) -> float:
        """What was added to the diagonal so that the matrix could be factorised; usually 0."""

    def mean(self, X: Tensor) -> Tensor:
        """Posterior mean at X, shape (n,)."""

    def variance(self, X: Tensor) -> Tensor:
        """Latent posterior variance at X, noise not included, shape (n,)."""

    def covariance(self, X: Tensor) -> Tensor:
        """Latent posterior covariance at X, shape (n, n)."""

    def heldout(self) -> Heldout:
        """Prediction of every training row from the others (of its group from the others)."""

    def drop_factor(self) -> None:
        """Forget what only variances need, to save memory; the mean still works."""

    def extended(self, rows: Rows, changed: Tensor) -> Self:
        """The same hyperparameters conditioned on these rows, some changed, and new ones after."""


class Trainable(Protocol):
    """Rows that pose training problems: all that training a candidate needs of an engine."""

    @property
    def rows(self) -> Sized:
        """The training rows."""

    def subset(self, index: NDArray[np.int64]) -> Self:
        """The same on some of the rows."""

    def problem(self, kernel: Kernel, objective: ObjectiveName, R: Tensor | None = None) -> Problem:
        """A training problem over all rows."""


class Engine(Protocol):
    """Training rows together with a way to train on them and to condition on them."""

    @property
    def rows(self) -> Rows:
        """The training rows."""

    @property
    def noise_floor(self) -> float:
        """Lower bound of the noise variance on the standardised target."""

    def subset(self, index: NDArray[np.int64]) -> Engine:
        """The same engine on some of the rows."""

    def problem(self, kernel: Kernel, objective: ObjectiveName, R: Tensor | None = None) -> Problem:
        """A training problem over all rows of this engine."""

    def condition(self, kernel: Kernel, parameters: Vector) -> Posterior:
        """Condition on the rows at (theta, log noise variance)."""
