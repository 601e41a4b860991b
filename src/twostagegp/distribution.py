"""What a user can ask of a predictive distribution, given its mean and variance.

Front doors provide ``_moments`` (mean and variance in the user's units); this mixin turns them
into standard deviations, intervals, quantiles, densities and samples, with one rule of shapes:
a target of shape (n,) gives results without an output axis, a target of shape (n, p) gives
results with that axis last (before it: rows; after it only the two ends of an interval or the
quantiles). Joint covariances have shape (n, n) or (p, n, n).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm
from sklearn.utils import check_random_state

from twostagegp.errors import InputError, MemoryBudgetError

__all__ = ["Gaussian", "check_covariance_size"]

Array = NDArray[np.float64]

#: Most bytes of the covariance matrices given out at once; one target: 14,142 rows.
_COVARIANCE_BYTES = 1_600_000_000


def check_covariance_size(n: int, p: int) -> None:
    """Raise before p covariance matrices of n rows are made that would fill the memory."""
    needed = 8 * p * n * n
    if needed > _COVARIANCE_BYTES:
        raise MemoryBudgetError(
            f"the joint covariance of {n} rows and {p} target(s) needs {needed / 2**30:.1f} GiB; "
            f"ask for at most {math.isqrt(_COVARIANCE_BYTES // (8 * p))} rows at a time, or use "
            "return_std."
        )


class Gaussian:
    """Mixin: a Gaussian predictive distribution for every row."""

    @abstractmethod
    def _moments(self, X: Any, variance: bool) -> tuple[Array, Array | None, Array | None]:
        """Mean, latent variance and observation variance at X, each (n, p), in user units."""

    @abstractmethod
    def _covariances(self, X: Any) -> Array:
        """Joint covariance of observations at X, shape (p, n, n)."""

    @property
    @abstractmethod
    def _is_1d(self) -> bool:
        """Whether the target was one-dimensional."""

    def _shape(self, values: Array) -> Array:
        return values[:, 0] if self._is_1d else values

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_latent_std: bool = False,
        return_cov: bool = False,
    ) -> Any:
        """Predictive mean, and on request one measure of its uncertainty.

        Parameters
        ----------
        X : array-like of shape (n, d)
        return_std : bool
            Also the standard deviation of an *observation* at X, noise included.
        return_latent_std : bool
            Also the standard deviation of the *function* at X, without noise.
        return_cov : bool
            Also the joint covariance of observations at X, shape (n, n) or (p, n, n).

        Returns
        -------
        mean : array of shape (n,) or (n, p)
        std or cov : array, if asked for
        """
        if return_std + return_latent_std + return_cov > 1:
            raise InputError(
                "ask for one of return_std, return_latent_std and return_cov at a time."
            )
        if return_cov:
            cov = self._covariances(X)
            mean = self._shape(self._moments(X, variance=False)[0])
            return mean, cov[0] if self._is_1d else cov
        mean, latent, observed = self._moments(X, variance=return_std or return_latent_std)
        if return_std:
            assert observed is not None
            return self._shape(mean), np.sqrt(self._shape(observed))
        if return_latent_std:
            assert latent is not None
            return self._shape(mean), np.sqrt(self._shape(latent))
        return self._shape(mean)

    def predict_interval(
        self, X: Any, level: float = 0.95, method: Literal["calibrated"] = "calibrated"
    ) -> Array:
        """Central interval that holds an observation with probability ``level``.

        Returns
        -------
        interval : array of shape (n, 2) or (n, p, 2)
        """
        if method != "calibrated":
            raise InputError(f"method={method!r}: the intervals on offer are 'calibrated'.")
        if not 0.0 < level < 1.0:
            raise InputError(f"level={level!r} must lie between 0 and 1, for example 0.95.")
        return self.predict_quantiles(X, [0.5 - level / 2.0, 0.5 + level / 2.0])

    def predict_quantiles(self, X: Any, levels: ArrayLike) -> Array:
        """Quantiles of an observation at each row.

        Returns
        -------
        quantiles : array of shape (n, len(levels)) or (n, p, len(levels))
        """
        q = np.atleast_1d(np.asarray(levels, dtype=np.float64))
        if q.ndim != 1 or not ((q > 0.0) & (q < 1.0)).all():
            raise InputError(f"levels={levels!r} must be numbers between 0 and 1.")
        mean, std = self.predict(X, return_std=True)
        return mean[..., None] + std[..., None] * norm.ppf(q)

    def predict_cdf(self, X: Any, y: ArrayLike) -> Array:
        """Probability that an observation at each row of X is at most y; shape of y."""
        mean, std, y = self._at(X, y)
        return norm.cdf(y, mean, std)

    def predict_logpdf(self, X: Any, y: ArrayLike) -> Array:
        """Log density of y at each row of X, in the user's units; shape of y."""
        mean, std, y = self._at(X, y)
        return norm.logpdf(y, mean, std)

    def _at(self, X: Any, y: ArrayLike) -> tuple[Array, Array, Array]:
        mean, std = self.predict(X, return_std=True)
        y = np.asarray(y, dtype=np.float64)
        if y.shape != mean.shape:
            raise InputError(f"y has shape {y.shape}, the prediction for X {mean.shape}.")
        return mean, std, y

    def sample_y(
        self, X: Any, n_samples: int = 1, joint: bool = False, random_state: Any = 0
    ) -> Array:
        """Draw observations at X.

        Parameters
        ----------
        joint : bool
            True draws whole functions (plus noise) from the joint covariance; False draws
            every row from its own distribution.

        Returns
        -------
        samples : array of shape (n, n_samples) or (n, p, n_samples)
        """
        if n_samples < 1:
            raise InputError(f"n_samples={n_samples} must be at least 1.")
        rng = check_random_state(random_state)
        if not joint:
            mean, std = self.predict(X, return_std=True)
            draws = rng.standard_normal((*mean.shape, n_samples))
            return mean[..., None] + std[..., None] * draws
        mean, cov = self.predict(X, return_cov=True)
        columns = mean[:, None] if self._is_1d else mean
        covs = cov[None] if self._is_1d else cov
        samples = np.stack(
            [_joint_draws(m, C, n_samples, rng) for m, C in zip(columns.T, covs, strict=True)],
            axis=1,
        )
        return samples[:, 0] if self._is_1d else samples


def _joint_draws(mean: Array, cov: Array, n_samples: int, rng: Any) -> Array:
    values, vectors = np.linalg.eigh(cov)
    root = vectors * np.sqrt(np.clip(values, 0.0, None))
    return mean[:, None] + root @ rng.standard_normal((len(mean), n_samples))
