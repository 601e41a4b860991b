"""The protocol between the pipeline and the engines, which do the linear algebra.

An :class:`Engine` holds training rows, poses training problems over them and conditions on them; a
:class:`Posterior` is a Gaussian process at fixed hyperparameters, conditioned on those rows. Every
engine offers all of this and passes the tests of :class:`twostagegp.testing.EngineContract`.
``docs/extending.md`` shows how to write one.
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
from twostagegp.numerics.held_out import Heldout

__all__ = ["Engine", "Heldout", "Posterior", "Trainable"]


class Posterior(Protocol):
    """A zero-mean Gaussian process at fixed hyperparameters, conditioned on rows."""

    @property
    def kernel(self) -> Kernel:
        """The covariance function."""

    @property
    def parameters(self) -> Vector:
        """(theta, log noise variance)."""

    @property
    def rows(self) -> Rows:
        """The rows that it is conditioned on."""

    @property
    def noise(self) -> float:
        """Noise variance."""

    @property
    def jitter(self) -> float:
        """Number added to the diagonal so that the matrix could be factorised; usually 0."""

    def mean(self, X: Tensor) -> Tensor:
        """Return the posterior mean at X, shape (n,)."""

    def variance(self, X: Tensor) -> Tensor:
        """Return the latent posterior variance at X, without noise, shape (n,)."""

    def covariance(self, X: Tensor) -> Tensor:
        """Return the latent posterior covariance at X, shape (n, n)."""

    def heldout(self, index: Tensor | None = None) -> Heldout:
        """Predict training rows from the other rows; if rows have groups, from the other groups.

        ``index`` are the rows to predict, all by default.
        """

    def drop_factor(self) -> None:
        """Free the memory that only variances need; afterwards only the mean can be predicted."""

    def extended(self, rows: Rows, changed: Tensor) -> Self:
        """Condition on more rows at the same hyperparameters.

        ``rows`` are the old rows in their order and new ones after them; ``changed`` are the
        numbers of the old rows whose weight or target has changed.
        """


class Trainable(Protocol):
    """The part of an engine that training a candidate needs: rows and training problems."""

    @property
    def rows(self) -> Sized:
        """The training rows."""

    def subset(self, index: NDArray[np.int64]) -> Self:
        """Return the same engine on some of the rows."""

    def problem(self, kernel: Kernel, objective: ObjectiveName, R: Tensor | None = None) -> Problem:
        """Return a training problem over all rows, a function of (theta, log noise variance)."""


class Engine(Protocol):
    """Training rows together with a way to train on them and to condition on them."""

    @property
    def rows(self) -> Rows:
        """The training rows."""

    @property
    def noise_floor(self) -> float:
        """Lower bound of the noise variance on the standardised target."""

    def subset(self, index: NDArray[np.int64]) -> Self:
        """Return the same engine on some of the rows."""

    def with_rows(self, rows: Rows) -> Self:
        """Return the same engine on other rows, for example with residuals as their target."""

    def with_noise_floor(self, noise_floor: float) -> Self:
        """Return the same engine with another lower bound of the noise variance."""

    def condition(self, kernel: Kernel, parameters: Vector) -> Posterior:
        """Condition on the rows at (theta, log noise variance)."""

    def problem(
        self,
        kernel: Kernel,
        objective: ObjectiveName,
        R: Tensor | None = None,
        batch: Tensor | None = None,
        start: Vector | None = None,
    ) -> Problem:
        """Return a training problem, a function of (theta, log noise variance).

        Parameters
        ----------
        kernel : Kernel
        objective : {"nll", "loo", "heldout"}
            Negative log likelihood, leave-one-out density, or density of given residuals under
            the held-out variances (:mod:`twostagegp.numerics.objectives`).
        R : Tensor of shape (b,), optional
            Sums of squares of the residuals of each row of the batch, for ``"heldout"``.
        batch : integer Tensor of shape (b,), optional
            Rows whose density counts, all by default. An engine decides which rows these are
            predicted from: the exact engine uses the batch itself, the neighbour engine all rows.
        start : array, optional
            Parameters near which the problem will be evaluated; the kernel's own starting values
            by default. Neighbours and inducing points are chosen for its lengthscales.
        """
