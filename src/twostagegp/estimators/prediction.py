r"""What a user can ask of a predictive distribution, given its mean, variance and shape.

Front doors provide ``_moments`` (mean and variance in the user's units) and ``_shapes`` (the law of
:math:`Z` in :math:`y = \mu + \sigma Z`, one a target); this mixin turns them into standard
deviations, intervals, quantiles, densities and samples, all of one distribution, with one rule of
shapes:
a target of shape (n,) gives results without an output axis, a target of shape (n, p)
gives results with that axis last (before it: rows; after it only the two ends of an interval or the
quantiles). Joint covariances have shape (n, n) or (p, n, n).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr
from sklearn.utils import check_random_state

from twostagegp.data.dask_detection import is_dask
from twostagegp.errors import InputError, MemoryBudgetError
from twostagegp.pipeline.calibration.shape import Shape
from twostagegp.runtime.memory import available_bytes

__all__ = ["Predictive", "check_covariance_size"]

Array = NDArray[np.float64]

#: Most bytes of the covariance matrices given out at once; one target: 14,142 rows.
_COVARIANCE_BYTES = 1_600_000_000
#: Matrices of that size that are there at once while one is made.
_LIVE_MATRICES = 4
#: Arrays of the size of the draws that are there at once while they are made.
_LIVE_SAMPLES = 4


def check_covariance_size(n: int, p: int) -> None:
    """Raise before p covariance matrices of n rows are made that would fill the memory."""
    needed = 8 * p * n * n
    free = available_bytes(torch.device("cpu"))
    most = _COVARIANCE_BYTES if free is None else min(_COVARIANCE_BYTES, free // _LIVE_MATRICES)
    if needed > most:
        raise MemoryBudgetError(
            f"the joint covariance of {n} rows and {p} target(s) needs {needed / 2**30:.1f} GiB; "
            f"ask for at most {math.isqrt(most // (8 * p))} rows at a time, or use "
            "return_std."
        )


def check_sample_size(n: int, p: int, n_samples: int) -> None:
    """Raise before more draws are made than there is memory for."""
    needed = _LIVE_SAMPLES * 8 * n * p * n_samples
    available = available_bytes(torch.device("cpu"))
    if available is not None and needed > available:
        raise MemoryBudgetError(
            f"{n_samples} draws for {n} rows and {p} target(s) need {needed / 2**30:.1f} GiB, and "
            f"{available / 2**30:.1f} GiB are free; ask for fewer draws or rows at a time."
        )


class Predictive:
    """Mixin: a predictive distribution for every row."""

    @abstractmethod
    def _moments(self, X: Any, variance: bool) -> tuple[Array, Array | None, Array | None]:
        """Mean, latent variance and sigma squared at X, each (n, p), in user units."""

    @abstractmethod
    def _covariances(self, X: Any) -> Array:
        """Joint covariance of observations at X, shape (p, n, n)."""

    @property
    @abstractmethod
    def _shapes(self) -> list[Shape]:
        """The law of Z for each target."""

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
            Of a Dask array or data frame the results are lazy Dask arrays: docs/dask.md.
        return_std : bool
            Also the standard deviation of an *observation* at X, noise included: that of the same
            distribution that quantiles, densities and samples are of.
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
        if is_dask(X):
            if return_cov:
                raise InputError("return_cov needs all rows in one place: call X.compute() first.")
            several = return_std or return_latent_std
            options = {"return_std": return_std, "return_latent_std": return_latent_std}
            return self._lazy(X, "predict", [()] * (1 + several), options)
        if return_cov:
            cov = self._covariances(X)
            mean = self._shape(self._moments(X, variance=False)[0])
            stds = np.array([shape.std for shape in self._shapes])
            cov = cov * (stds**2)[:, None, None]
            return mean, cov[0] if self._is_1d else cov
        mean, latent, observed = self._moments(X, variance=return_std or return_latent_std)
        if latent is None or observed is None:
            return self._shape(mean)
        std = np.sqrt(observed) * [shape.std for shape in self._shapes]
        if return_latent_std:
            # A law that is off centre has less spread than sigma; the function has no more.
            std = np.minimum(np.sqrt(latent), std)
        return self._shape(mean), self._shape(std)

    def predict_interval(
        self,
        X: Any,
        level: float = 0.95,
        method: Literal["calibrated", "conformal"] = "calibrated",
    ) -> Array:
        """Central interval that holds an observation with probability ``level``.

        Parameters
        ----------
        X : array-like of shape (n, d)
        level : float
        method : {"calibrated", "conformal"}
            ``"calibrated"``: between two quantiles of the predictive distribution.
            ``"conformal"``: the mean plus and minus the standard deviation times the conformal
            quantile of the held-out z-scores. These are left out one at a time at hyperparameters
            that have seen all rows, so that the coverage is *approximate*;
            :class:`~twostagegp.CVPlusRegressor` refits everything and has a guarantee.

        Returns
        -------
        interval : array of shape (n, 2) or (n, p, 2)
        """
        if method not in ("calibrated", "conformal"):
            raise InputError(
                f"method={method!r}: the intervals on offer are 'calibrated' and 'conformal'."
            )
        if not 0.0 < level < 1.0:
            raise InputError(f"level={level!r} must lie between 0 and 1, for example 0.95.")
        if is_dask(X):
            return self._lazy(X, "predict_interval", [(2,)], {"level": level, "method": method})
        if method == "conformal":
            mean, sigma = self._mean_and_sigma(X)
            half = sigma * self._conformal_scores(level)
            return np.stack([self._shape(mean - half), self._shape(mean + half)], axis=-1)
        return self.predict_quantiles(X, [0.5 - level / 2.0, 0.5 + level / 2.0])

    def _conformal_scores(self, level: float) -> list[float]:
        """Conformal quantile of each target's held-out z-scores."""
        raise InputError(
            f"method='conformal' needs held-out rows, which {type(self).__name__} has none of; use "
            "TwoStageGPRegressor, or wrap this estimator in CVPlusRegressor."
        )

    def predict_quantiles(self, X: Any, levels: ArrayLike) -> Array:
        """Quantiles of an observation at each row; they never cross.

        Returns
        -------
        quantiles : array of shape (n, len(levels)) or (n, p, len(levels))
        """
        q = np.atleast_1d(np.asarray(levels, dtype=np.float64))
        if q.ndim != 1 or not ((q > 0.0) & (q < 1.0)).all():
            raise InputError(f"levels={levels!r} must be numbers between 0 and 1.")
        if is_dask(X):
            return self._lazy(X, "predict_quantiles", [(len(q),)], {"levels": q})
        return self._summary(X, q)[2]

    def _lazy(
        self, X: Any, method: str, tails: list[tuple[int, ...]], options: dict[str, Any]
    ) -> Any:
        """Lazy results of a method for a Dask collection; ``tails``: their axes after p."""
        from twostagegp.distributed.answers import lazy_answers

        targets = () if self._is_1d else (len(self._shapes),)
        return lazy_answers(self, X, method, [(*targets, *tail) for tail in tails], options)

    def _summary(self, X: Any, levels: Array) -> tuple[Array, Array, Array]:
        """Mean, standard deviation and quantiles of an observation, at the cost of one of them."""
        mean, sigma = self._mean_and_sigma(X)
        std = sigma * [shape.std for shape in self._shapes]
        z = np.stack([shape.ppf(levels) for shape in self._shapes])
        quantiles = mean[..., None] + sigma[..., None] * z
        return (
            self._shape(mean),
            self._shape(std),
            quantiles[:, 0] if self._is_1d else quantiles,
        )

    def predict_cdf(self, X: Any, y: ArrayLike) -> Array:
        """Probability that an observation at each row of X is at most y; shape of y."""
        return self._of_z(X, y, lambda shape, z, sigma: shape.cdf(z))

    def predict_logpdf(self, X: Any, y: ArrayLike) -> Array:
        """Log density of y at each row of X, in the user's units; shape of y."""
        return self._of_z(X, y, lambda shape, z, sigma: shape.logpdf(z) - np.log(sigma))

    def _mean_and_sigma(self, X: Any) -> tuple[Array, Array]:
        """Both of shape (n, p)."""
        mean, _, observed = self._moments(X, variance=True)
        assert observed is not None
        return mean, np.sqrt(observed)

    def _of_z(self, X: Any, y: ArrayLike, of: Callable[[Shape, Array, Array], Array]) -> Array:
        """A function of z = (y - mean) / sigma and sigma for every row and target."""
        mean, sigma = self._mean_and_sigma(X)
        y = np.asarray(y, dtype=np.float64)
        if y.shape != self._shape(mean).shape:
            raise InputError(
                f"y has shape {y.shape}, the prediction for X {self._shape(mean).shape}."
            )
        z = (y.reshape(mean.shape) - mean) / sigma
        columns = zip(self._shapes, z.T, sigma.T, strict=True)
        return self._shape(np.stack([of(*column) for column in columns], axis=1))

    def sample_y(
        self, X: Any, n_samples: int = 1, joint: bool = False, random_state: Any = 0
    ) -> Array:
        """Draw observations at X.

        Parameters
        ----------
        joint : bool
            True draws whole functions (plus noise): dependence from the joint covariance, every
            row's own distribution as its margin. False draws every row alone.

        Returns
        -------
        samples : array of shape (n, n_samples) or (n, p, n_samples)
        """
        if n_samples < 1:
            raise InputError(f"n_samples={n_samples} must be at least 1.")
        rng = check_random_state(random_state)
        rows = X.shape[0] if hasattr(X, "shape") else len(X)
        check_sample_size(rows, len(self._shapes), n_samples)
        if not joint:
            mean, sigma = self._mean_and_sigma(X)
            z = [shape.sample((len(mean), n_samples), rng) for shape in self._shapes]
            samples = mean[..., None] + sigma[..., None] * np.stack(z, axis=1)
            return samples[:, 0] if self._is_1d else samples
        covs = self._covariances(X)
        mean = self._moments(X, variance=False)[0]
        columns = zip(mean.T, covs, self._shapes, strict=True)
        samples = np.stack(
            [_joint_draws(m, C, shape, n_samples, rng) for m, C, shape in columns], axis=1
        )
        return samples[:, 0] if self._is_1d else samples


def _joint_draws(mean: Array, cov: Array, shape: Shape, n_samples: int, rng: Any) -> Array:
    """Gaussian draws whose margins are then given their shape; dependence stays as it is."""
    values, vectors = np.linalg.eigh(cov)
    root = vectors * np.sqrt(np.clip(values, 0.0, None))
    draws = root @ rng.standard_normal((len(mean), n_samples))
    if shape.name == "gaussian":
        return mean[:, None] + draws
    sigma = np.sqrt(np.diag(cov))[:, None]
    levels = np.clip(ndtr(draws / sigma), 1e-12, 1.0 - 1e-12)
    return mean[:, None] + sigma * shape.ppf(levels)
