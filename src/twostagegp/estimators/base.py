"""What every regressor of this package shares: checks, units, shapes, prediction.

A front door says how one target column is fitted (``_fit_target``) and described
(``_describe``); everything between the user's table and that, and back, is here.
"""

from __future__ import annotations

import time
import warnings
from abc import abstractmethod
from functools import partial
from numbers import Integral
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from twostagegp.data.appending import AppendedRows
from twostagegp.data.checks import check_choice, check_finite, check_groups, check_nonnegative
from twostagegp.data.columns.encoder import TableEncoder
from twostagegp.data.columns.tables import (
    MISSING,
    encoded_names,
    learn_columns,
    new_inputs,
    training_table,
)
from twostagegp.data.dask_detection import is_dask
from twostagegp.data.scaling import Prepared, prepare
from twostagegp.engines.memory import several_targets
from twostagegp.errors import InputError, TwoStageGPWarning
from twostagegp.estimators.drawable import Drawable
from twostagegp.estimators.exportable import Exportable
from twostagegp.estimators.fit_report import FitReport
from twostagegp.estimators.prediction import Predictive, check_covariance_size
from twostagegp.estimators.savable import Savable
from twostagegp.estimators.updating import Updatable
from twostagegp.estimators.validation import (
    check_noise_floor,
    check_seed,
    check_threads,
    check_training,
)
from twostagegp.kernels import KERNELS
from twostagegp.pipeline.calibration.shape import GAUSSIAN, Shape
from twostagegp.runtime.device import resolve_device
from twostagegp.runtime.finite import require_finite
from twostagegp.runtime.streaming import stream
from twostagegp.runtime.threads import limit_threads, no_denormals, show_log, threads_of_fit
from twostagegp.runtime.transaction import unchanged_on_error
from twostagegp.search.stages import SearchRecord
from twostagegp.training.schedule import Training

__all__ = ["GPEstimator", "GaussianFit", "TargetFit", "is_kernel"]

Array = NDArray[np.float64]

#: Lowest noise floor at which float32 factorisations are reliable on a standardised target.
_FLOAT32_FLOOR = 1e-4
#: Rows predicted at a time.
_CHUNK_ROWS = 1 << 16


class TargetFit(Protocol):
    """A fitted model of one target, in standardised units."""

    shape: Shape

    def predict_mean(self, X: Tensor) -> Tensor:
        """Mean, shape (n,)."""

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, variance of the function and variance of an observation, each of shape (n,)."""

    def covariance(self, X: Tensor) -> Tensor:
        """Joint covariance of observations, shape (n, n)."""

    @property
    def searches(self) -> tuple[Any, Any]:
        """Searches by the ratio test of mean and variance, None where there was none."""

    def relevance(self, n_features: int) -> Array:
        """Unnormalised weight of each column in use."""

    def extended(self, appended: AppendedRows, residuals: Array) -> Self:
        """The same hyperparameters with more rows; ``residuals``: their errors before."""


class GaussianFit:
    """What a GP with one factor on its variance answers, from its own variance and covariance."""

    factor: float
    shape = GAUSSIAN

    @property
    @abstractmethod
    def noise(self) -> float:
        """Calibrated noise variance."""

    @abstractmethod
    def predict_mean(self, X: Tensor) -> Tensor:
        """Mean, shape (n,)."""

    @abstractmethod
    def latent_variance(self, X: Tensor) -> Tensor:
        """Variance of the function before calibration, shape (n,)."""

    @abstractmethod
    def latent_covariance(self, X: Tensor) -> Tensor:
        """Covariance of the function before calibration, shape (n, n)."""

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, variance of the function and variance of an observation, each of shape (n,)."""
        latent = self.factor * self.latent_variance(X)
        return self.predict_mean(X), latent, latent + self.noise

    def covariance(self, X: Tensor) -> Tensor:
        """Joint covariance of observations, shape (n, n)."""
        C = self.factor * self.latent_covariance(X)
        C.diagonal().add_(self.noise)
        return C


class GPEstimator(
    RegressorMixin, Predictive, Updatable, Drawable, Savable, Exportable, BaseEstimator
):
    """Base of the regressors; not for direct use."""

    training: Training | None
    noise_floor: float
    device: str
    dtype: str
    n_jobs: int | None
    random_state: Any
    verbose: int
    missing: str
    columns_: TableEncoder | None
    #: Where the rows are, of a model that was fitted to a Dask collection.
    _shards: Any = None
    #: Whether copies that agree are one row where they are most of the table (``rows.py``).
    _copies_are_one: bool = True

    @abstractmethod
    def _check_parameters(self) -> None:
        """Raise an InputError for a constructor parameter that cannot be used."""

    @abstractmethod
    def _fit_target(self, data: Prepared, seed: int) -> Any:
        """Fit one standardised target; returns a TargetFit."""

    @abstractmethod
    def _describe(self, data: Prepared, fit: Any) -> FitReport:
        """The record of one target's fit."""

    @abstractmethod
    def _publish(self, one_or_all: Any) -> None:
        """Set the public attributes particular to the front door."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.input_tags.allow_nan = self.missing == "impute"
        return tags

    def fit(
        self,
        X: Any,
        y: Any,
        groups: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        noise_var: ArrayLike | None = None,
    ) -> Any:
        """Fit the model; where it raises, the model is as it was before.

        Parameters
        ----------
        X : data frame or array-like of shape (n, d)
            A frame may hold categories, booleans, text labels, dates and gaps: docs/tables.md.
            A Dask array or data frame stays on its workers: docs/dask.md.
        y : array-like of shape (n,) or (n, p)
        groups : array-like of shape (n,), optional
            Rows with the same label are held out together wherever something is held out.
        sample_weight : array-like of shape (n,), optional
            Counts: weight 2 is the row twice, weight 0 the row not there. Where most of the weight
            is in rows above one of which no two measurements differ, only ratios matter, and copies
            are held out together: docs/how_it_works.md.
        noise_var : array-like of shape (n,) or scalar, optional
            Known noise variance of each training row, in the units of y squared, on top of the
            noise that is learned.

        Returns
        -------
        self
        """
        begin = time.perf_counter()
        with unchanged_on_error(self):
            self._check_parameters()
            self._check_shared_parameters()
            if is_dask(X) or is_dask(y):
                from twostagegp.distributed.fitting import fit_distributed

                return fit_distributed(self, X, y, groups, sample_weight, noise_var)
            self.__dict__.pop("_shards", None)
            # Finiteness is checked here, to name the row and the column.
            options = {"dtype": np.float64, "ensure_all_finite": False, "ensure_min_samples": 2}
            both = (options, {**options, "ensure_2d": False})
            table, y = training_table(self, X, y, validate_separately=both)
            check_consistent_length(table, y)
            n = len(table)
            weight = check_nonnegative(sample_weight, n, "sample_weight")
            X = learn_columns(self, X, table, weight)
            names = encoded_names(self)
            check_finite(y, "y")
            self._target_ndim = y.ndim
            targets = y.reshape(len(y), -1)
            device = resolve_device(self.device, n)
            shared: dict[str, Any] = {
                "weight": weight,
                "noise_var": check_nonnegative(noise_var, n, "noise_var"),
                "groups": check_groups(groups, n),
                "device": device,
                "dtype": torch.float64 if self.dtype == "float64" else torch.float32,
                "copies_are_one": self._copies_are_one,
            }
            seed = int(check_seed(self.random_state).randint(2**31 - 1))
            self._data, self._fits = [], []
            room = several_targets(device, targets.shape[1])
            with threads_of_fit(self.n_jobs, n), show_log(self.verbose), room:
                for column in targets.T:
                    data = prepare(X, column, names, **shared)
                    self._data.append(data)
                    self._fits.append(self._fit_target(data, seed))
            self._finish(time.perf_counter() - begin)
            return self

    def _check_shared_parameters(self) -> None:
        self._check_choice("missing", MISSING)
        self._check_choice("dtype", ("float64", "float32"))
        check_noise_floor(self.noise_floor, "1e-8")
        check_training(self.training)
        check_threads(self.n_jobs)
        if not isinstance(self.verbose, Integral):
            raise InputError(
                f"verbose={self.verbose!r}: use 0 (silent) or 1 (progress and the report)."
            )
        check_seed(self.random_state)

    @property
    def _floor(self) -> float:
        """Noise floor on the standardised target, raised where the dtype demands it."""
        return max(self.noise_floor, _FLOAT32_FLOOR if self.dtype == "float32" else 0.0)

    def _check_choice(self, name: str, choices: tuple[Any, ...]) -> None:
        check_choice(name, getattr(self, name), choices)

    def _check_kernels(self, name: str, words: tuple[str, ...] = ()) -> None:
        """Check a parameter that is a kernel, one of ``words`` or (no words) a list of kernels."""
        value = getattr(self, name)
        listed = ", ".join(repr(choice) for choice in (*words, *KERNELS))
        if words:
            several = [value]
        elif isinstance(value, list | tuple) and len(value) > 0:
            several = list(value)
        else:
            raise InputError(f"{name}={value!r}: give a non-empty list of kernels ({listed}).")
        for kernel in several:
            if not (is_kernel(kernel) or (isinstance(kernel, str) and kernel in words)):
                raise InputError(f"{name}={value!r}: use {listed}, or a GPyTorch kernel object.")

    def _finish(self, total: float) -> None:
        """Publish the parts, the report and at most one warning."""
        reports = [self._describe(d, f) for d, f in zip(self._data, self._fits, strict=True)]
        for report in reports:
            report.seconds["total"] = total
            report.encoded_columns = [] if self.columns_ is None else self.columns_.lines()

        def one_or_all(parts: list[Any]) -> Any:
            return parts[0] if self._is_1d else parts

        self.fit_report_ = one_or_all(reports)
        self.search_ = one_or_all(
            [
                SearchRecord(report.candidates + report.variance_candidates, *fit.searches)
                for report, fit in zip(reports, self._fits, strict=True)
            ]
        )
        pairs = zip(self._data, self._fits, strict=True)
        self.relevance_ = one_or_all([self._relevance(data, fit) for data, fit in pairs])
        self._publish(one_or_all)
        notes = sorted({note for report in reports for note in report.warnings})
        if notes:
            warnings.warn(" ".join(notes), TwoStageGPWarning, stacklevel=3)
        if self.verbose:
            for report in reports:
                _say(str(report))

    def _relevance(self, data: Prepared, fit: Any) -> dict[str, float]:
        names = encoded_names(self)
        share = np.zeros(len(names))
        share[data.scaling.columns] = fit.relevance(len(data.scaling.columns))
        total = share.sum()
        share = share / total if total > 0 else share
        return dict(zip(names, share.tolist(), strict=True))

    @property
    def _is_1d(self) -> bool:
        return self._target_ndim == 1

    @property
    def _shapes(self) -> list[Shape]:
        check_is_fitted(self, "fit_report_")
        return [fit.shape for fit in self._fits]

    def _inputs(self, X: Any) -> Array:
        check_is_fitted(self, "fit_report_")
        if is_dask(X):
            raise InputError(
                "of Dask collections predict, predict_interval and predict_quantiles can be "
                "asked; call X.compute() for the rest."
            )
        return new_inputs(self, X)

    def _tensor(self, X: Array, data: Prepared) -> Tensor:
        return torch.as_tensor(data.scaling.inputs(X)).to(data.rows.X)

    def _moments(self, X: Any, variance: bool) -> tuple[Array, Array | None, Array | None]:
        return self._moments_at(self._inputs(X), variance)

    def _moments_at(self, X: Array, variance: bool) -> tuple[Array, Array | None, Array | None]:
        moments = self._raw_moments_at(X, variance)
        require_finite(*moments)
        return moments

    def _raw_moments_at(self, X: Array, variance: bool) -> tuple[Array, Array | None, Array | None]:
        if self._shards is not None:
            from twostagegp.distributed.answers import moments_at

            return moments_at(self._shards, X, variance)
        n, p = len(X), len(self._fits)
        means, latents, observeds = np.empty((n, p)), np.empty((n, p)), np.empty((n, p))
        with limit_threads(self.n_jobs), no_denormals():
            for j, (data, fit) in enumerate(zip(self._data, self._fits, strict=True)):
                y_mean, y_scale = data.scaling.y_mean, data.scaling.y_scale
                parts = [slice(begin, begin + _CHUNK_ROWS) for begin in range(0, n, _CHUNK_ROWS)]
                made = (partial(data.scaling.inputs, X[part]) for part in parts)
                for part, Z in zip(parts, stream(made, data.rows.X), strict=True):
                    if not variance:
                        means[part, j] = y_mean + y_scale * _numpy(fit.predict_mean(Z))
                        continue
                    mean, latent, observed = (_numpy(moment) for moment in fit.moments(Z))
                    means[part, j] = y_mean + y_scale * mean
                    latents[part, j] = y_scale**2 * latent
                    observeds[part, j] = y_scale**2 * observed
        return (means, latents, observeds) if variance else (means, None, None)

    def _covariances(self, X: Any) -> Array:
        X = self._inputs(X)
        check_covariance_size(len(X), len(self._fits))
        covariances = []
        with limit_threads(self.n_jobs), no_denormals():
            for data, fit in zip(self._data, self._fits, strict=True):
                C = fit.covariance(self._tensor(X, data))
                covariances.append(_numpy(C) * data.scaling.y_scale**2)
        return np.stack(covariances)


def is_kernel(value: Any) -> bool:
    """Whether a value is the name of a kernel or looks like a GPyTorch kernel object."""
    if isinstance(value, str):
        return value in KERNELS
    return hasattr(value, "covar_dist") and not isinstance(value, type)


def _numpy(values: Tensor) -> Array:
    return values.double().cpu().numpy()


def _say(text: str) -> None:
    from rich.console import Console

    Console(stderr=True).print(text, markup=False, highlight=False)
