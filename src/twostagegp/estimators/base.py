"""The base of the regressors: from the user's table to the fitted state, and back.

A regressor says how one standardised target is fitted (``_fit_target``) and described
(``_describe``). Checks, units, several targets, devices and threads are handled here. Predictions
are computed by the functions of ``prediction``, updates by ``updating``; pictures, files, exports
and Dask are reached through ``shortcuts``.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from os import PathLike
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_consistent_length, check_random_state

from twostagegp.data.checks import check_finite, check_groups, check_nonnegative, is_dask
from twostagegp.data.columns.encoder import TableEncoder
from twostagegp.data.columns.tables import (
    encoded_names,
    learn_columns,
    training_table,
)
from twostagegp.data.scaling import Prepared, prepare
from twostagegp.engines.memory import several_targets
from twostagegp.estimators import prediction, shortcuts, updating
from twostagegp.estimators.fit_report import FitReport
from twostagegp.estimators.fitted import FittedRegression, FittedTarget
from twostagegp.estimators.reporting import announce
from twostagegp.estimators.validation import check_parameters, raised_noise_floor
from twostagegp.pipeline.calibration.law import Laws
from twostagegp.pipeline.settings import DEFAULTS, Settings
from twostagegp.runtime.cores import use_cores
from twostagegp.runtime.device import resolve_device
from twostagegp.runtime.progress import track
from twostagegp.runtime.threads import no_denormals, show_log
from twostagegp.runtime.transaction import unchanged_on_error
from twostagegp.search.stages import SearchRecord
from twostagegp.training.schedule import Training

__all__ = ["BaseGPRegressor"]

Array = NDArray[np.float64]


class BaseGPRegressor(RegressorMixin, BaseEstimator):
    """Base class of the regressors; not for direct use."""

    training: Training | None
    noise_floor: float
    device: str
    dtype: str
    n_jobs: int | None
    random_state: Any
    verbose: int
    missing: str
    n_features_in_: int
    feature_names_in_: NDArray[Any]
    columns_: TableEncoder | None
    fitted_: FittedRegression
    fit_report_: FitReport | list[FitReport]

    # --- what a regressor defines ----------------------------------------------------------------

    #: What each parameter of ``__init__`` may be; checked in ``fit``.
    _parameter_constraints: ClassVar[dict[str, list[Any]]]

    @property
    def _settings(self) -> Settings:
        """The thresholds of a fit; the defaults for a class without the parameter ``settings``."""
        return getattr(self, "settings", None) or DEFAULTS

    def _check_combinations(self) -> None:
        """Raise InputError for parameters that contradict each other."""

    @abstractmethod
    def _fit_target(self, data: Prepared, seed: int) -> Any:
        """Fit one standardised target and return a TargetFit."""

    @abstractmethod
    def _describe(self, data: Prepared, fit: Any) -> FitReport:
        """Return the record of the fit of one target."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.input_tags.allow_nan = self.missing == "impute"
        return tags

    # --- fit -------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        groups: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        noise_var: ArrayLike | None = None,
    ) -> Any:
        """Fit the model; an error leaves the model as it was before.

        Parameters
        ----------
        X : data frame or array-like of shape (n, d)
            A frame may hold categories, booleans, text labels, dates and gaps: docs/tables.md.
            A Dask array or data frame stays on its workers: docs/dask.md.
        y : array-like of shape (n,) or (n, p)
        groups : array-like of shape (n,), optional
            Rows with the same label are held out together wherever something is held out.
        sample_weight : array-like of shape (n,), optional
            Counts: a row of weight 2 counts as two equal rows, a row of weight 0 is left out. If
            most of the weight is in rows of weight above one, and no two measurements of such a
            row differ, only ratios matter and copies are held out together: docs/how_it_works.md.
        noise_var : array-like of shape (n,) or scalar, optional
            Known noise variance of each training row, in the units of y squared, in addition to
            the noise that is learned.

        Returns
        -------
        self
        """
        with unchanged_on_error(self):
            check_parameters(self)
            self._check_combinations()
            given = {"groups": groups, "sample_weight": sample_weight, "noise_var": noise_var}
            if is_dask(X) or is_dask(y):
                # Shards do not know the copies that others have: every copy counts.
                return shortcuts.fit_dask(self, BaseGPRegressor._fit_table, X, y, **given)
            return self._fit_table(X, y, **given, copies_are_one=True)

    def _fit_table(
        self,
        X: Any,
        y: Any,
        groups: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        noise_var: ArrayLike | None = None,
        *,
        copies_are_one: bool,
    ) -> Any:
        """Fit to a table in memory; ``copies_are_one`` is that of :func:`prepare`."""
        begin = time.perf_counter()
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
        columns = y.reshape(n, -1).T
        device = resolve_device(self.device, n)
        shared: dict[str, Any] = {
            "weight": weight,
            "noise_var": check_nonnegative(noise_var, n, "noise_var"),
            "groups": check_groups(groups, n),
            "device": device,
            "dtype": torch.float64 if self.dtype == "float64" else torch.float32,
            "copies_are_one": copies_are_one,
        }
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        targets = []
        room = several_targets(device, len(columns), self._settings.exact)
        log, progress = show_log(self.verbose), track(len(columns))
        with use_cores(self.n_jobs), no_denormals(), log, progress, room:
            for column in columns:
                data = prepare(X, column, names, **shared)
                targets.append(FittedTarget(data, self._fit_target(data, seed)))
        self.fitted_ = FittedRegression(tuple(targets), is_1d=y.ndim == 1)
        self._report(time.perf_counter() - begin)
        return self

    def _report(self, total: float) -> None:
        """Set ``fit_report_``, give at most one warning, and print the report on request."""
        reports = [self._describe(each.data, each.fit) for each in self.fitted_.targets]
        foretold = [each.foretold_seconds for each in reports if each.foretold_seconds is not None]
        for report in reports:
            report.seconds["total"] = total
            report.foretold_seconds = sum(foretold) if foretold else None
            report.encoded_columns = [] if self.columns_ is None else self.columns_.lines()
        self.fit_report_ = self.fitted_.per_target(reports)
        announce(reports, self.verbose, stacklevel=5)

    @property
    def search_(self) -> Any:
        """Every candidate kernel of both stages: a SearchRecord, or a list with one per target."""
        fits, found = self.fitted_.fits, self.fit_report_
        reports = found if isinstance(found, list) else [found]
        return self.fitted_.per_target(
            [
                SearchRecord(report.candidates + report.variance_candidates, *fit.searches)
                for report, fit in zip(reports, fits, strict=True)
            ]
        )

    def update(
        self,
        X: Any,
        y: Any,
        groups: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        noise_var: ArrayLike | None = None,
    ) -> Any:
        """Add rows to the fitted model; hyperparameters stay as they are.

        The result is the model of all rows at the hyperparameters, stack weights, units and
        calibration of the fit, to rounding. A scikit-learn regressor in the mean stays as it was
        fitted. Any error leaves the model as it was.

        Parameters
        ----------
        X : data frame or array-like of shape (m, d)
            In the columns of the fit, by the rules of ``predict``.
        y : array-like of shape (m,) or (m, p)
        groups : array-like of shape (m,), optional
            Rows with the same label belong together: in the test that says whether a refit is due
            a group counts as one row. Labels are not compared with those of the fit.
        sample_weight : array-like of shape (m,), optional
            Counts, as in ``fit``.
        noise_var : array-like of shape (m,) or scalar, optional
            Known noise variances, as in ``fit``.

        Returns
        -------
        self

        Warns
        -----
        TwoStageGPWarning
            Once, when a refit becomes due; ``fit_report_.refit_due`` says why.

        Examples
        --------
        >>> import numpy as np
        >>> from twostagegp import ExactGPRegressor
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> y = np.sin(6 * X[:, 0])
        >>> gp = ExactGPRegressor(random_state=0).fit(X[:15], y[:15])
        >>> gp = gp.update(X[15:], y[15:])
        >>> bool(np.abs(gp.predict(X) - y).max() < 0.01), gp.fit_report_.n_rows
        (True, 20)
        """
        updating.update(self, X, y, groups, sample_weight, noise_var)
        return self

    @property
    def relevance_(self) -> Any:
        """Share of each input column in the mean's inverse lengthscales, by name."""
        names = encoded_names(self)
        shares = []
        for target in self.fitted_.targets:
            columns = target.data.scaling.columns
            share = np.zeros(len(names))
            share[columns] = target.fit.relevance(len(columns))
            total = share.sum()
            share = share / total if total > 0 else share
            shares.append(dict(zip(names, share.tolist(), strict=True)))
        return self.fitted_.per_target(shares)

    # --- predictions -----------------------------------------------------------------------------

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_latent_std: bool = False,
        return_cov: bool = False,
        return_noise_std: bool = False,
        return_support: bool = False,
    ) -> Any:
        """Return the predictive mean, and on request one measure of its uncertainty.

        Parameters
        ----------
        X : data frame or array-like of shape (n, d)
            For a Dask array or data frame the results are lazy Dask arrays: docs/dask.md.
        return_std : bool
            Also return the standard deviation of an *observation* at X, noise included. It is the
            standard deviation of the distribution behind quantiles, densities and samples, before
            values of the target are weighted (docs/calibration.md).
        return_latent_std : bool
            Also return the standard deviation of the *function* at X, without noise: how far the
            true function may lie from the mean, since the data are few. It shrinks with more rows.
        return_cov : bool
            Also return the joint covariance of observations at X, shape (n, n) or (p, n, n).
        return_noise_std : bool
            Also return the standard deviation of the *noise* at X, which does not shrink with more
            rows. Squares add up: std² = latent_std² + noise_std².
        return_support : bool
            Also return how well training rows support the prediction: 1 where the model knows the
            function as well as at its training rows, down to 0 far away from all of them. It
            depends on X and on the trained kernels. Below 1, intervals are wider, and the mean is
            continued outside the data as far as held-out ends of the columns tell how. It is 1
            everywhere for models without a kernel ridge in the mean, and with
            ``calibration=None`` or ``"scale"``.

        Returns
        -------
        mean : array of shape (n,) or (n, p)
        std, cov or support : array, if asked for
        """
        return prediction.predict(
            self,
            X,
            return_std,
            return_latent_std,
            return_cov,
            return_noise_std,
            return_support,
        )

    def predict_interval(
        self,
        X: Any,
        level: float = 0.95,
        method: Literal["calibrated", "conformal"] = "calibrated",
        *,
        noise: bool = True,
    ) -> Array:
        """Return the central interval that holds an observation with probability ``level``.

        Parameters
        ----------
        X : data frame or array-like of shape (n, d)
        level : float
        method : {"calibrated", "conformal"}
            ``"calibrated"``: between two quantiles of the predictive distribution.
            ``"conformal"``: the mean plus and minus the standard deviation times the conformal
            quantile of the held-out z-scores. Rows are left out one at a time, but the
            hyperparameters have seen all rows, so the coverage is *approximate*;
            :class:`~twostagegp.CVPlusRegressor` refits everything and has a guarantee.
        noise : bool
            False returns the interval of the function, without the noise of an observation.

        Returns
        -------
        interval : array of shape (n, 2) or (n, p, 2)
        """
        return prediction.interval(self, X, level, method, noise)

    def predict_quantiles(self, X: Any, levels: ArrayLike) -> Array:
        """Return quantiles of an observation at each row; they never cross.

        Returns
        -------
        quantiles : array of shape (n, len(levels)) or (n, p, len(levels))
        """
        return prediction.quantiles(self, X, levels)

    def predict_cdf(self, X: Any, y: ArrayLike) -> Array:
        """Return the probability that an observation at each row of X is at most y; shape of y."""
        return prediction.at_outcomes(self, X, y, Laws.cdf)

    def predict_pit(self, X: Any, y: ArrayLike) -> Array:
        """Return the probability integral transform of y at each row of X; shape of y.

        If the distributions are right, these numbers are uniform between 0 and 1. It is
        ``predict_cdf``, except where the target has levels, which have positive probabilities:
        there it is a random number between the probabilities of values below y and of values up to
        y, which depends on the row only unless several rows have the same prediction.
        """
        return prediction.at_outcomes(self, X, y, Laws.pit)

    def predict_logpdf(self, X: Any, y: ArrayLike) -> Array:
        """Return the log density of y at each row of X, in the user's units; shape of y.

        For a value that is a level of the target (docs/calibration.md) it is the logarithm of its
        probability.
        """
        return prediction.at_outcomes(self, X, y, Laws.logpdf)

    def sample_y(
        self,
        X: Any,
        n_samples: int = 1,
        random_state: Any = 0,
        *,
        joint: bool = True,
        noise: bool = True,
    ) -> Array:
        """Draw observations at X, jointly as in scikit-learn's GaussianProcessRegressor.

        Parameters
        ----------
        X : data frame or array-like of shape (n, d)
        n_samples : int
            Number of draws.
        random_state : int, RandomState or None
            The same number gives the same draws in every call.
        joint : bool
            True draws all rows together: a function plus noise, correlated as in the joint
            covariance (``return_cov``), with the calibrated distribution of each row as its margin.
            This takes memory and time for n × n matrices. False draws each row independently, from
            the same distributions; use it for many rows.
        noise : bool
            False draws functions, without the noise of an observation.

        Returns
        -------
        samples : array of shape (n, n_samples) or (n, p, n_samples)
        """
        return prediction.samples(self, X, n_samples, random_state, joint, noise)

    # --- shortcuts -------------------------------------------------------------------------------

    def plot(
        self,
        X: Any = None,
        y: Any = None,
        *,
        features: str | Sequence[str] | None = None,
        level: float = 0.95,
        target: int = 0,
        ax: Any = None,
    ) -> Any:
        """Draw the predictions of the fitted model, in the user's columns and units.

        One input: the prediction with its band, and the rows. Two inputs: maps of the mean and of
        the standard deviation. More: predicted against observed if X and y are given, otherwise
        slices along the four inputs that matter most, the others at typical values.

        Parameters
        ----------
        X : data frame or array-like of shape (n, d), optional
            Rows that give the range of the pictures; the training rows by default.
        y : array-like of shape (n,), optional
            Outcomes of X.
        features : str or sequence of str, optional
            Draw slices along these columns.
        level : float
            Probability of the bands.
        target : int
            Which target to draw if there are several.
        ax : Axes or sequence of Axes, optional
            Where to draw; a new figure by default. pyplot is not used:
            ``model.plot()[0].figure.savefig("model.png")`` keeps a picture.

        Returns
        -------
        list of matplotlib Axes
        """
        return shortcuts.plot(self, X, y, features, level, target, ax)

    def save(self, path: str | PathLike[str], *, include_factors: bool = False) -> None:
        """Write the fitted model into a folder; :func:`twostagegp.load` reads it back.

        Needs ``pip install 'twostagegp[files]'``. What the folder contains, and which models are
        refused: docs/files.md.

        Parameters
        ----------
        path : path of the folder
            It is created if necessary. A model that is already there is replaced in one step,
            once the new one has been written completely.
        include_factors : bool
            Also store factorised matrices of n × n numbers, instead of computing them again in
            :func:`twostagegp.load`.
        """
        shortcuts.save(self, path, include_factors)

    # --- parameters ------------------------------------------------------------------------------

    @property
    def _floor(self) -> float:
        """Noise floor on the standardised target, raised for float32."""
        return raised_noise_floor(self.noise_floor, self.dtype)
