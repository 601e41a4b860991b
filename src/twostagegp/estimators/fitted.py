"""The fitted state of a model: what ``model.fitted_`` holds after ``fit``.

Estimators answer from it, and other packages (reports, pictures, exports, files, Dask) read a
fitted model through it and through the public attributes only. A regressor has one
:class:`FittedTarget` per column of y, in standardised units; :class:`FittedRegression` puts their
predictions together in the user's units. A classifier has a :class:`FittedClasses`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.appending import AppendedRows
from twostagegp.data.scaling import Prepared
from twostagegp.pipeline.calibration.fit import Calibration
from twostagegp.pipeline.calibration.law import Law
from twostagegp.pipeline.calibration.shape import Shape
from twostagegp.runtime.prediction_checks import require_finite
from twostagegp.runtime.streaming import stream

if TYPE_CHECKING:  # regressors do not need them
    from twostagegp.classification.fit import ClassFit
    from twostagegp.classification.table import ClassTable

__all__ = [
    "FittedClasses",
    "FittedRegression",
    "FittedTarget",
    "Moments",
    "RemoteRows",
    "TargetFit",
]

Array = NDArray[np.float64]
#: Mean, variance of the function and variance of an observation, each of shape (n, p).
Moments = tuple[Array, Array | None, Array | None]
Value = TypeVar("Value")


class TargetFit(Protocol):
    """A fitted model of one target, in standardised units."""

    @property
    def shape(self) -> Shape:
        """Distribution of an observation around its mean, in units of sigma."""

    @property
    def calibration(self) -> Calibration | None:
        """Held-out z-scores and what was learned from them; None without held-out rows."""

    @property
    def searches(self) -> tuple[Any, Any]:
        """Searches by the ratio test for mean and variance; None for a stage without one."""

    def predict_mean(self, X: Tensor) -> Tensor:
        """Return the mean, shape (n,)."""

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean, latent variance of part 2 and variance of an observation, each (n,)."""

    def covariance(self, X: Tensor) -> Tensor:
        """Return the joint covariance of observations, shape (n, n)."""

    def moments_of_function(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same with the variance of the function around the mean, without noise."""

    def function_covariance(self, X: Tensor) -> Tensor:
        """Return the joint covariance of the function, shape (n, n)."""

    def support(self, X: Tensor) -> Tensor:
        """Return one where training rows are near, down to zero where none is, shape (n,)."""

    def relevance(self, n_features: int) -> Array:
        """Return the unnormalised weight of each column in use."""

    def extended(self, appended: AppendedRows, residuals: Array) -> Self:
        """Return the same hyperparameters with more rows.

        ``residuals`` are the errors of the predictions for the new rows, made without them.
        """


class RemoteRows(Protocol):
    """Training rows that stay on the workers of a cluster."""

    def moments(self, X: Array, variance: bool, function: bool) -> Moments:
        """Return the moments at encoded rows, in the user's units."""


@dataclass(frozen=True)
class FittedTarget:
    """One column of y: its prepared training rows and its fitted model.

    Attributes
    ----------
    data : Prepared
        Merged and standardised training rows, and the scaling back to the user's units.
    fit : TargetFit
        For example a :class:`~twostagegp.pipeline.fit.TwoStageFit`.
    """

    data: Prepared
    fit: TargetFit

    @property
    def law(self) -> Law:
        """Shape and weights of the values of an observation, in the user's units."""
        calibration = self.fit.calibration
        return Law(self.fit.shape) if calibration is None else calibration.law

    def standardized(self, X: Array) -> Tensor:
        """Return encoded inputs as the fit expects them: columns in use, standardised."""
        return torch.as_tensor(self.data.scaling.inputs(X)).to(self.data.rows.X)


@dataclass(frozen=True)
class FittedRegression:
    """A fitted regressor.

    Attributes
    ----------
    targets : tuple of FittedTarget
        One per column of y.
    is_1d : bool
        Whether y had shape (n,); predictions then have no axis for targets.
    remote : RemoteRows or None
        Where the training rows are if the model was fitted to a Dask collection.

    Examples
    --------
    >>> import numpy as np
    >>> from twostagegp import ExactGPRegressor
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> model = ExactGPRegressor("rbf", random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> (target,) = model.fitted_.targets
    >>> target.data.n_rows, target.fit.posterior.kernel.label
    (20, 'rbf')
    """

    targets: tuple[FittedTarget, ...]
    is_1d: bool
    remote: RemoteRows | None = None

    @property
    def data(self) -> list[Prepared]:
        """Prepared training rows of each target."""
        return [target.data for target in self.targets]

    @property
    def fits(self) -> list[Any]:
        """Fitted model of each target."""
        return [target.fit for target in self.targets]

    @property
    def shapes(self) -> list[Shape]:
        """Distribution of Z in y = mean + sigma Z, of each target."""
        return [target.fit.shape for target in self.targets]

    @property
    def laws(self) -> list[Law]:
        """Shape and weights of the values of each target, in the user's units."""
        return [target.law for target in self.targets]

    def per_target(self, values: Sequence[Value]) -> Any:
        """Return the only value if y had shape (n,), the list of values otherwise."""
        return values[0] if self.is_1d else list(values)

    def without_axis(self, values: Array) -> Array:
        """Return values of shape (n, p, ...) without the axis of targets if y had shape (n,)."""
        return values[:, 0] if self.is_1d else values

    def moments(
        self,
        X: Array,
        variance: bool = True,
        function: bool = False,
        chunk_rows: int = 1 << 16,
    ) -> Moments:
        """Return the mean and the variances at encoded rows, in the user's units.

        Parameters
        ----------
        X : array of shape (n, columns of the encoded table)
        variance : bool
            False saves the work for the variances, which are then None.
        function : bool
            Whether ``latent`` is the calibrated variance of the function, which takes more work,
            and not that of part 2, of which ``observed`` is made.
        chunk_rows : int
            Rows that are predicted at a time.

        Returns
        -------
        mean, latent, observed : arrays of shape (n, p)
            ``latent`` is the variance of the function, ``observed`` includes the noise.

        Raises
        ------
        NumericalError
            If a number is not finite.
        """
        if self.remote is not None:
            moments: Moments = self.remote.moments(X, variance, function)
        else:
            moments = self._local_moments(X, variance, function, chunk_rows)
        require_finite(*moments)
        return moments

    def _local_moments(self, X: Array, variance: bool, function: bool, chunk_rows: int) -> Moments:
        n, p = len(X), len(self.targets)
        means, latents, observeds = np.empty((n, p)), np.empty((n, p)), np.empty((n, p))
        for j, target in enumerate(self.targets):
            scaling = target.data.scaling
            y_mean, y_scale = scaling.y_mean, scaling.y_scale
            parts = [slice(begin, begin + chunk_rows) for begin in range(0, n, chunk_rows)]
            made = (partial(scaling.inputs, X[part]) for part in parts)
            for part, Z in zip(parts, stream(made, target.data.rows.X), strict=True):
                if not variance:
                    means[part, j] = y_mean + y_scale * _numpy(target.fit.predict_mean(Z))
                    continue
                fit = target.fit
                moments = fit.moments_of_function(Z) if function else fit.moments(Z)
                mean, latent, observed = (_numpy(moment) for moment in moments)
                means[part, j] = y_mean + y_scale * mean
                latents[part, j] = y_scale**2 * latent
                observeds[part, j] = y_scale**2 * observed
        return (means, latents, observeds) if variance else (means, None, None)

    def support(self, X: Array, chunk_rows: int = 1 << 16) -> Array:
        """Return how near training rows are, from one down to zero, at encoded rows; (n, p)."""
        made = np.ones((len(X), len(self.targets)))
        for j, target in enumerate(self.targets):
            for begin in range(0, len(X), chunk_rows):
                part = slice(begin, begin + chunk_rows)
                made[part, j] = _numpy(target.fit.support(target.standardized(X[part])))
        return made

    def covariances(self, X: Array, noise: bool = True) -> Array:
        """Return the joint covariance of observations at encoded rows, shape (p, n, n).

        ``noise=False`` returns that of the function.
        """
        made = []
        for target in self.targets:
            Z, fit = target.standardized(X), target.fit
            C = fit.covariance(Z) if noise else fit.function_covariance(Z)
            made.append(_numpy(C) * target.data.scaling.y_scale**2)
        return np.stack(made)


@dataclass(frozen=True)
class FittedClasses:
    """A fitted classifier.

    Attributes
    ----------
    fit : ClassFit
        The fitted parts: mean, latents and scale.
    draws : array of shape (n_samples, K)
        Standard normal draws behind a probability, the same for all rows and all calls.
    """

    fit: ClassFit
    draws: Array

    @property
    def table(self) -> ClassTable:
        """Distinct training rows with their classes."""
        return self.fit.table

    def moments(self, X: Array, chunk_rows: int = 1 << 14) -> Iterator[tuple[Array, Array]]:
        """Yield mean and variance of the latents, each (rows, K), chunk by chunk."""
        for begin in range(0, len(X), chunk_rows):
            moments = self.fit.moments(X[begin : begin + chunk_rows])
            require_finite(*moments)
            yield moments


def _numpy(values: Tensor) -> Array:
    return values.double().cpu().numpy()
