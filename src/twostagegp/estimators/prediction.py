r"""Answers from a fitted regressor: functions over ``model.fitted_``.

Each target has a mean :math:`\mu`, a scale :math:`\sigma` and a shape, the distribution of Z in
:math:`y = \mu + \sigma Z`. Standard deviations, intervals, quantiles, densities and samples are all
those of this one distribution. If values of the target are weighted
(:mod:`twostagegp.pipeline.calibration.value_weights`), intervals, quantiles, probabilities and
independent or joint samples are reweighted; mean and standard deviation are not.

Shapes of the results: if y had shape (n,), results have no axis for targets; if y had shape (n, p),
that axis follows the rows, and only the two ends of an interval, the quantiles or the samples come
after it. Joint covariances have shape (n, n) or (p, n, n).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from twostagegp.data.checks import is_dask
from twostagegp.data.columns.tables import new_inputs
from twostagegp.errors import InputError, MemoryBudgetError
from twostagegp.estimators import shortcuts
from twostagegp.estimators.fitted import Moments
from twostagegp.pipeline.calibration.law import Law, Laws
from twostagegp.pipeline.calibration.shape import GAUSSIAN
from twostagegp.runtime.cores import use_cores
from twostagegp.runtime.memory import available_bytes
from twostagegp.runtime.threads import no_denormals

__all__ = [
    "at_outcomes",
    "check_covariance_size",
    "check_sample_size",
    "conformal_scores",
    "covariances",
    "encoded_inputs",
    "interval",
    "mean_and_sigma",
    "moments",
    "predict",
    "quantiles",
    "samples",
    "summary",
]

Array = NDArray[np.float64]

#: Most bytes of the covariance matrices returned at once; one target: 14,142 rows.
COVARIANCE_BYTES = 1_600_000_000
#: Matrices of that size that exist at once while one is computed.
_LIVE_MATRICES = 4
#: Arrays of the size of the draws that exist at once while they are computed.
_LIVE_SAMPLES = 4
#: Up to this many rows a prediction uses one core: sharing it out would take longer.
_FEW_ROWS = 16


def check_covariance_size(n: int, p: int, most: int = COVARIANCE_BYTES) -> None:
    """Raise MemoryBudgetError if p covariances of n rows need more than ``most`` bytes.

    They may also not fill the free memory.

    Examples
    --------
    >>> check_covariance_size(3, 2, most=100)
    Traceback (most recent call last):
    ...
    twostagegp.errors.MemoryBudgetError: the joint covariance of 3 rows and 2 target(s) needs 0.0
    GiB; ask for at most 2 rows at a time, or use return_std or sample_y(joint=False).
    """
    needed = 8 * p * n * n
    free = available_bytes(torch.device("cpu"))
    most = most if free is None else min(most, free // _LIVE_MATRICES)
    if needed > most:
        raise MemoryBudgetError(
            f"the joint covariance of {n} rows and {p} target(s) needs {needed / 2**30:.1f} GiB; "
            f"ask for at most {math.isqrt(most // (8 * p))} rows at a time, or use return_std or "
            "sample_y(joint=False)."
        )


def check_sample_size(n: int, p: int, n_samples: int) -> None:
    """Raise MemoryBudgetError if the draws need more memory than is free."""
    needed = _LIVE_SAMPLES * 8 * n * p * n_samples
    available = available_bytes(torch.device("cpu"))
    if available is not None and needed > available:
        raise MemoryBudgetError(
            f"{n_samples} draws for {n} rows and {p} target(s) need {needed / 2**30:.1f} GiB, and "
            f"{available / 2**30:.1f} GiB are free; ask for fewer draws or rows at a time."
        )


def encoded_inputs(model: Any, X: Any) -> Array:
    """Return the rows of a user's table as numbers, by the rules of the fit."""
    if not hasattr(model, "fitted_"):  # scikit-learn's check takes longer
        check_is_fitted(model, "fitted_")
    if is_dask(X):
        raise InputError(
            "only predict, predict_interval and predict_quantiles take Dask collections; call "
            "X.compute() for the other methods."
        )
    return new_inputs(model, X)


def moments(model: Any, X: Any, variance: bool = True, function: bool = False) -> Moments:
    """Return mean, latent variance and sigma squared at X, each (n, p), in the user's units.

    With ``function`` the latent variance is that of the function, otherwise that of part 2.
    """
    numbers = encoded_inputs(model, X)
    few = len(numbers) <= _FEW_ROWS
    with use_cores(model.n_jobs, one_is_enough=few), no_denormals():
        return model.fitted_.moments(numbers, variance, function)


def support(model: Any, X: Any) -> Array:
    """Return how near training rows are, from one down to zero, shape (n, p)."""
    numbers = encoded_inputs(model, X)
    with use_cores(model.n_jobs, one_is_enough=len(numbers) <= _FEW_ROWS), no_denormals():
        return np.asarray(model.fitted_.support(numbers))


def mean_and_sigma(model: Any, X: Any) -> tuple[Array, Array]:
    """Return mean and sigma at X, each of shape (n, p)."""
    mean, _, observed = moments(model, X)
    assert observed is not None
    return mean, np.sqrt(observed)


def covariances(model: Any, X: Any, noise: bool = True) -> Array:
    """Return the joint covariance of mean + sigma Z, or of the function, at X; (p, n, n)."""
    numbers = encoded_inputs(model, X)
    check_covariance_size(len(numbers), len(model.fitted_.targets))
    with use_cores(model.n_jobs), no_denormals():
        return model.fitted_.covariances(numbers, noise)


def predict(
    model: Any,
    X: Any,
    return_std: bool,
    return_latent_std: bool,
    return_cov: bool,
    return_noise_std: bool,
    return_support: bool,
) -> Any:
    """Return what :meth:`TwoStageGPRegressor.predict` returns."""
    one_part = return_latent_std or return_noise_std
    if return_std + return_latent_std + return_noise_std + return_cov + return_support > 1:
        raise InputError(
            "ask for one of return_std, return_latent_std, return_noise_std, return_cov and "
            "return_support at a time."
        )
    if is_dask(X):
        if return_cov:
            raise InputError("return_cov needs all rows in one place: call X.compute() first.")
        several = return_std or one_part or return_support
        options = {
            "return_std": return_std,
            "return_latent_std": return_latent_std,
            "return_noise_std": return_noise_std,
            "return_support": return_support,
        }
        return _lazy(model, X, "predict", [()] * (1 + several), options)
    if return_cov:
        cov = covariances(model, X)
        fitted = model.fitted_
        mean = fitted.without_axis(moments(model, X, variance=False)[0])
        stds = np.array([shape.std for shape in fitted.shapes])
        cov = cov * (stds**2)[:, None, None]
        return mean, cov[0] if fitted.is_1d else cov
    mean, latent, observed = moments(model, X, return_std or one_part, function=one_part)
    fitted = model.fitted_
    if return_support:
        return fitted.without_axis(mean), fitted.without_axis(support(model, X))
    if latent is None or observed is None:
        return fitted.without_axis(mean)
    std = np.sqrt(observed) * [shape.std for shape in fitted.shapes]
    if one_part:
        # A distribution that is off centre has less spread than sigma; the function has no more.
        function = np.minimum(np.sqrt(latent), std)
        std = function if return_latent_std else np.sqrt(std**2 - function**2)
    return fitted.without_axis(mean), fitted.without_axis(std)


def interval(model: Any, X: Any, level: float, method: str, noise: bool = True) -> Array:
    """Return what :meth:`TwoStageGPRegressor.predict_interval` returns."""
    if method not in ("calibrated", "conformal"):
        raise InputError(f"method={method!r}: use 'calibrated' or 'conformal'.")
    if not 0.0 < level < 1.0:
        raise InputError(f"level={level!r} must lie between 0 and 1, for example 0.95.")
    if not noise and method != "calibrated":
        raise InputError("method='conformal' is for observations; leave it out with noise=False.")
    if is_dask(X):
        options = {"level": level, "method": method, "noise": noise}
        return _lazy(model, X, "predict_interval", [(2,)], options)
    if not noise:
        mean, std = predict(model, X, False, True, False, False, False)
        half = ndtri(0.5 + level / 2.0) * std
        return np.stack([mean - half, mean + half], axis=-1)
    if method == "calibrated":
        return summary(model, X, np.array([0.5 - level / 2.0, 0.5 + level / 2.0]))[2]
    mean, sigma = mean_and_sigma(model, X)
    half = sigma * conformal_scores(model, level)
    ends = np.stack([mean - half, mean + half], axis=-1)
    for j, law in enumerate(model.fitted_.laws):
        ends[:, j] = law.within_bounds(ends[:, j])
    return model.fitted_.without_axis(ends)


def conformal_scores(model: Any, level: float) -> list[float]:
    """Return the conformal quantile of the held-out z-scores of each target."""
    scores = []
    for fit in model.fitted_.fits:
        if fit.calibration is None:
            raise InputError(
                f"method='conformal' needs the z-scores of held-out rows, and "
                f"{type(model).__name__} holds no rows out; use TwoStageGPRegressor, or wrap this "
                "estimator in CVPlusRegressor."
            )
        scores.append(fit.calibration.conformal_score(level))
    return scores


def quantiles(model: Any, X: Any, levels: ArrayLike) -> Array:
    """Return what :meth:`TwoStageGPRegressor.predict_quantiles` returns."""
    q = np.atleast_1d(np.asarray(levels, dtype=np.float64))
    if q.ndim != 1 or not ((q > 0.0) & (q < 1.0)).all():
        raise InputError(f"levels={levels!r} must be numbers between 0 and 1.")
    if is_dask(X):
        return _lazy(model, X, "predict_quantiles", [(len(q),)], {"levels": q})
    return summary(model, X, q)[2]


def summary(model: Any, X: Any, levels: Array) -> tuple[Array, Array, Array]:
    """Return mean, standard deviation and quantiles of an observation, from one prediction."""
    mean, sigma = mean_and_sigma(model, X)
    fitted = model.fitted_
    std = sigma * [shape.std for shape in fitted.shapes]
    columns = zip(fitted.laws, mean.T, sigma.T, strict=True)
    made = np.stack([law.at(m, s).quantiles(levels) for law, m, s in columns], axis=1)
    return fitted.without_axis(mean), fitted.without_axis(std), fitted.without_axis(made)


def at_outcomes(model: Any, X: Any, y: ArrayLike, of: Callable[[Laws, Array], Array]) -> Array:
    """Return ``of(laws, y)`` with the distributions of each target, in the shape of y."""
    mean, sigma = mean_and_sigma(model, X)
    fitted = model.fitted_
    y = np.asarray(y, dtype=np.float64)
    expected = fitted.without_axis(mean).shape
    if y.shape != expected:
        raise InputError(f"y has shape {y.shape}, the prediction for X {expected}.")
    columns = zip(fitted.laws, mean.T, sigma.T, y.reshape(mean.shape).T, strict=True)
    made = [of(law.at(m, s), outcome) for law, m, s, outcome in columns]
    return fitted.without_axis(np.stack(made, axis=1))


def samples(
    model: Any, X: Any, n_samples: int, random_state: Any, joint: bool, noise: bool = True
) -> Array:
    """Return what :meth:`TwoStageGPRegressor.sample_y` returns."""
    if n_samples < 1:
        raise InputError(f"n_samples={n_samples} must be at least 1.")
    check_is_fitted(model, "fitted_")
    fitted = model.fitted_
    rng = check_random_state(random_state)
    rows = X.shape[0] if hasattr(X, "shape") else len(X)
    check_sample_size(rows, len(fitted.targets), n_samples)
    laws = fitted.laws if noise else [Law(GAUSSIAN)] * len(fitted.targets)
    if not joint:
        mean, latent, observed = moments(model, X, function=not noise)
        assert latent is not None
        assert observed is not None
        sigma = np.sqrt(observed if noise else latent)
        columns = zip(laws, mean.T, sigma.T, strict=True)
        draws = [law.at(m, s).samples(n_samples, rng) for law, m, s in columns]
        return fitted.without_axis(np.stack(draws, axis=1))
    covs = covariances(model, X, noise)
    mean = moments(model, X, variance=False)[0]
    parts = zip(mean.T, covs, laws, strict=True)
    made = [_joint_draws(m, C, law, n_samples, rng) for m, C, law in parts]
    return fitted.without_axis(np.stack(made, axis=1))


def _joint_draws(mean: Array, cov: Array, law: Law, n_samples: int, rng: Any) -> Array:
    """Return Gaussian draws whose margins are then given their distribution; (n, n_samples)."""
    values, vectors = np.linalg.eigh(cov)
    root = vectors * np.sqrt(np.clip(values, 0.0, None))
    draws = root @ rng.standard_normal((len(mean), n_samples))
    if law.shape.name == "gaussian" and law.values is None:
        return mean[:, None] + draws
    sigma = np.sqrt(np.diag(cov))
    levels = np.clip(ndtr(draws / sigma[:, None]), 1e-12, 1.0 - 1e-12)
    return law.at(mean, sigma).inverse_cdf(levels)


def _lazy(
    model: Any, X: Any, method: str, tails: list[tuple[int, ...]], options: dict[str, Any]
) -> Any:
    """Return lazy results of a method for a Dask collection; ``tails``: their axes after p."""
    check_is_fitted(model, "fitted_")
    fitted = model.fitted_
    targets = () if fitted.is_1d else (len(fitted.targets),)
    return shortcuts.predict_dask(model, X, method, [(*targets, *tail) for tail in tails], options)
