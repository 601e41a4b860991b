"""``update``: new rows for a fitted regressor, without a new fit.

Hyperparameters, weights, units, rules of columns and the calibration stay as they are; rows are
added, and factorisations are extended (docs/updating.md). The new state is computed beside the
model and assigned at the end, so that an error leaves the model as it was.
"""

from __future__ import annotations

import math
import time
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_consistent_length, column_or_1d

from twostagegp.data.appending import AppendedRows, append_rows
from twostagegp.data.checks import check_finite, check_nonnegative
from twostagegp.data.scaling import Prepared
from twostagegp.errors import InputError, TwoStageGPWarning
from twostagegp.estimators.drift import LEVEL, evidence, normal_scores, start_evidence
from twostagegp.estimators.fit_report import FitReport
from twostagegp.pipeline.calibration.shape import Shape
from twostagegp.runtime.threads import limit_threads

__all__ = ["Updatable"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]

#: A refit is due when the rows are more than so many times those of the fit.
MOST_GROWTH = 1.5


class Updatable:
    """Mixin: a regressor that takes new rows after ``fit``."""

    _data: list[Prepared]
    _fits: list[Any]
    _target_ndim: int
    n_jobs: int | None
    fit_report_: Any
    _shards: Any

    @property
    @abstractmethod
    def _shapes(self) -> list[Shape]:
        """The law of z for each target."""

    @abstractmethod
    def _inputs(self, X: Any) -> Array:
        """The numbers of rows, by the rules of the fit."""

    @abstractmethod
    def _moments_at(self, X: Array, variance: bool) -> tuple[Array, Array | None, Array | None]:
        """Mean, latent variance and sigma squared at such rows, each (n, p), in user units."""

    @abstractmethod
    def _describe(self, data: Prepared, fit: Any) -> FitReport:
        """The record of one target's fit."""

    @abstractmethod
    def _publish(self, one_or_all: Any) -> None:
        """Set the public attributes particular to the front door."""

    def update(
        self,
        X: Any,
        y: Any,
        groups: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        noise_var: ArrayLike | None = None,
    ) -> Any:
        """Add rows to the fitted model; hyperparameters stay as they are.

        The model is then that of all rows at the hyperparameters, stack weights, units and
        calibration of the fit, to rounding. A scikit-learn regressor in the mean stays as it was
        fitted. Any error leaves the model as it was.

        Parameters
        ----------
        X : data frame or array-like of shape (m, d)
            In the columns of the fit, by the rules of ``predict``.
        y : array-like of shape (m,) or (m, p)
        groups : array-like of shape (m,), optional
            Rows with the same label belong together: in the test that says whether a refit is due
            a group counts as one row. They are groups of their own, not those of the fit.
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
        begin = time.perf_counter()
        if self._shards is not None:
            raise InputError(
                "a model whose rows are on a Dask cluster cannot be updated: call fit with a "
                "collection of all rows."
            )
        rows = _checked(self._inputs(X), self._targets(y), groups, sample_weight, noise_var)
        mean, _, variance = self._moments_at(rows.X, variance=True)
        assert variance is not None
        z = (rows.y - mean) / np.sqrt(variance)
        appended: list[AppendedRows] = []
        fits: list[Any] = []
        with limit_threads(self.n_jobs):
            for j, (data, fit) in enumerate(zip(self._data, self._fits, strict=True)):
                appended.append(append_rows(data, rows.X, rows.y[:, j], *rows.rest))
                errors = (rows.y - mean)[:, j] / data.scaling.y_scale
                fits.append(fit.extended(appended[-1], errors))
        several = isinstance(self.fit_report_, list)
        before = self.fit_report_ if several else [self.fit_report_]
        seconds = time.perf_counter() - begin
        after = []
        for j, report in enumerate(before):
            scores = normal_scores(self._shapes[j], z[:, j])
            made = _recorded(report, appended[j], scores, rows.groups, seconds)
            made.jitter = self._describe(appended[j].data, fits[j]).jitter
            after.append(made)
        _warn_once(before, after)
        self._data, self._fits = [each.data for each in appended], fits
        self.fit_report_ = after if several else after[0]
        self._publish(lambda parts: parts if several else parts[0])
        return self

    def _targets(self, y: Any) -> Array:
        """Targets of new rows, shape (m, p)."""
        values = np.asarray(y, dtype=np.float64)
        p = len(self._fits)
        shape = "(m,)" if self._target_ndim == 1 else f"(m, {p})"
        fine = values.ndim == self._target_ndim and (values.ndim == 1 or values.shape[1] == p)
        if not fine:
            raise InputError(f"y has shape {values.shape}, expected {shape} as in fit.")
        check_finite(values, "y")
        return values.reshape(len(values), p)


@dataclass(frozen=True)
class _NewRows:
    """Rows of positive weight that were checked."""

    X: Array
    y: Array
    weight: Array
    noise_var: Array | None
    groups: Index | None

    @property
    def rest(self) -> tuple[Array, Array | None, Index | None]:
        """All but inputs and targets."""
        return self.weight, self.noise_var, self.groups


def _checked(
    X: Array,
    y: Array,
    groups: ArrayLike | None,
    sample_weight: ArrayLike | None,
    noise_var: ArrayLike | None,
) -> _NewRows:
    """Check what ``update`` is given, row by row; X is checked already."""
    check_consistent_length(X, y)
    m = len(X)
    weight = check_nonnegative(sample_weight, m, "sample_weight")
    weight = np.ones(m) if weight is None else weight
    known = check_nonnegative(noise_var, m, "noise_var")
    labels = _labels(groups, m)
    used = weight > 0.0
    if not used.any():
        raise InputError(f"sample_weight is zero in all {m} rows; there is nothing to add.")
    return _NewRows(
        X[used],
        y[used],
        weight[used],
        None if known is None else known[used],
        None if labels is None else labels[used],
    )


def _labels(groups: ArrayLike | None, m: int) -> Index | None:
    """Group numbers of new rows."""
    if groups is None:
        return None
    labels = column_or_1d(np.asarray(groups))
    if len(labels) != m:
        raise InputError(f"groups has {len(labels)} labels for {m} rows; give one label per row.")
    return np.unique(labels, return_inverse=True)[1].reshape(-1)


def _recorded(
    report: FitReport, appended: AppendedRows, z: Array, groups: Index | None, seconds: float
) -> FitReport:
    """The report after an update."""
    updates = report.updates
    log_S = updates[-1]["log_evidence"] if updates else start_evidence()
    log_S, log_M = evidence(log_S, len(updates) + 1, z, groups)
    rows = len(z)
    entry = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": rows,
        "repeated": rows - appended.n_appended,
        "seconds": seconds,
        "z_mean": float(z.mean()),
        "z_square": float((z**2).mean()),
        "evidence": math.exp(min(log_M, 700.0)),
        "log_evidence": log_S,
    }
    made = replace(
        report,
        n_rows=appended.data.n_rows,
        n_distinct_rows=len(appended.data.rows),
        updates=[*updates, entry],
    )
    made.refit_due = report.refit_due or _reason(made.n_rows, made.updates)
    return made


def _reason(n_rows: int, updates: Sequence[dict[str, Any]]) -> str:
    """Why a refit is due, or nothing."""
    added = sum(update["rows"] for update in updates)
    fitted = n_rows - added
    if updates[-1]["evidence"] >= 1.0 / LEVEL:
        return (
            f"the rows of the last update do not fit what was predicted for them (mean z "
            f"{updates[-1]['z_mean']:.2f}, mean z² {updates[-1]['z_square']:.2f} where 0 and 1 are "
            f"expected; evidence {updates[-1]['evidence']:.3g} of the {1.0 / LEVEL:.0f} that a "
            f"model which holds reaches with probability {LEVEL:g}). Call fit with all rows, or "
            "with the newest."
        )
    if n_rows > MOST_GROWTH * fitted:
        return (
            f"{added} rows came to {fitted} since the fit, more than half as many. Call fit with "
            "all rows."
        )
    return ""


def _warn_once(before: list[FitReport], after: list[FitReport]) -> None:
    """One warning for what has become due now."""
    news = [new.refit_due for old, new in zip(before, after, strict=True) if not old.refit_due]
    due = sorted({text for text in news if text})
    if due:
        warnings.warn(f"A refit is due: {' '.join(due)}", TwoStageGPWarning, stacklevel=3)
