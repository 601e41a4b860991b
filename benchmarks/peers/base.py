"""The interface of a fitted peer, and what several of them need."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from measurements.errors import CannotMeasureError

__all__ = [
    "LEVEL",
    "NOT_INSTALLED",
    "Array",
    "Fitted",
    "NotInstalledError",
    "Prediction",
    "Scaling",
    "Split",
    "as_float64",
    "threads",
]

Array = NDArray[np.float64]

#: Probability of the interval that is scored.
LEVEL = 0.95

#: Rows that a peer with early stopping keeps back from its own training rows.
VALIDATION_SHARE = 0.1


#: How the error of a model begins whose package is missing.
NOT_INSTALLED = "not installed"


class NotInstalledError(CannotMeasureError):
    """The package of a peer is missing; such a failure is not shown in a table."""

    def __init__(self, package: str | None) -> None:
        super().__init__(f"{NOT_INSTALLED}: {package}")


@dataclass(frozen=True)
class Prediction:
    """Mean and standard deviation of an observation, in the units of the target."""

    mean: Array
    std: Array


class Fitted(ABC):
    """A fitted model.

    Attributes
    ----------
    has_std : bool
        Whether it predicts a standard deviation; if not, that of its predictions is NaN and the
        quantiles are all that it says of its uncertainty.
    """

    has_std: bool = True

    @abstractmethod
    def predict(self, X: Array) -> Prediction:
        """Return mean and standard deviation; this call is timed."""

    def interval(self, X: Array) -> Array | None:
        """Return the model's 95 % interval, shape (n, 2); None for the Gaussian's. Not timed."""
        return None

    def quantiles(self, X: Array, levels: Array) -> Array:
        """Return quantiles, shape (n, levels); by default the Gaussian's. Not timed."""
        found = self.predict(X)
        return found.mean[:, None] + found.std[:, None] * ndtri(np.asarray(levels))

    def own_scores(self, X: Array, y: Array) -> dict[str, float]:
        """Return scores of the model's own distribution if it is not Gaussian. Not timed.

        ``nlpd_own`` is that of a target of unit standard deviation in the training rows.
        """
        return {}

    def facts(self) -> dict[str, Any]:
        """Return what the model itself reports of its fit."""
        return {}

    def calls(self) -> Mapping[str, Callable[[Array], object]]:
        """Return the library's own calls for new rows, by the names that a user knows."""
        return {"mean and standard deviation": self.predict}


@dataclass(frozen=True)
class Scaling:
    """Columns and target with mean 0 and standard deviation 1 on the training rows.

    Examples
    --------
    >>> scaling = Scaling.of(np.array([[0.0], [2.0]]), np.array([1.0, 5.0]))
    >>> scaling.inputs(np.array([[2.0]])), scaling.target(np.array([5.0]))
    (array([[1.]]), array([1.]))
    """

    X_mean: Array
    X_scale: Array
    y_mean: float
    y_scale: float

    @classmethod
    def of(cls, X: Array, y: Array) -> Scaling:
        """Measure the scaling on the training rows; a constant column is left as it is."""
        X_scale, y_scale = X.std(axis=0), float(y.std())
        X_scale[X_scale == 0.0] = 1.0
        return cls(X.mean(axis=0), X_scale, float(y.mean()), y_scale or 1.0)

    def inputs(self, X: Array) -> Array:
        """Return inputs in standard units."""
        return (X - self.X_mean) / self.X_scale

    def target(self, y: Array) -> Array:
        """Return a target in standard units."""
        return (y - self.y_mean) / self.y_scale

    def prediction(self, mean: Array, variance: Array) -> Prediction:
        """Return a prediction in the user's units, given one in standard units."""
        std = self.y_scale * np.sqrt(as_float64(variance))
        return Prediction(self.y_mean + self.y_scale * as_float64(mean), std)


@dataclass(frozen=True)
class Split:
    """Training rows of a peer that keeps some back for early stopping."""

    X: Array
    y: Array
    X_validation: Array
    y_validation: Array

    @classmethod
    def of(cls, X: Array, y: Array, seed: int) -> Split:
        """Keep back a random tenth."""
        order = np.random.default_rng(seed).permutation(len(y))
        n = max(1, round(VALIDATION_SHARE * len(y)))
        return cls(X[order[n:]], y[order[n:]], X[order[:n]], y[order[:n]])


def as_float64(values: NDArray[np.generic]) -> Array:
    """Return a flat array in float64."""
    return np.asarray(values, dtype=np.float64).reshape(-1)


def threads() -> int:
    """Return the number of threads for libraries that do not read OpenMP's setting."""
    return int(os.environ.get("OMP_NUM_THREADS", "1"))
