"""``update``: add rows to a fitted regressor without a new fit.

Hyperparameters, weights, units, rules of columns and the calibration stay as they are; rows are
added, and factorisations are extended (docs/updating.md). The new state is computed next to the old
one and replaces it at the end, so an error leaves the model as it was.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from twostagegp.data.appending import AppendedRows, append_rows
from twostagegp.data.checks import check_finite, check_nonnegative
from twostagegp.errors import InputError, TwoStageGPWarning
from twostagegp.estimators.drift import LEVEL, evidence, normal_scores, start_evidence
from twostagegp.estimators.fit_report import FitReport
from twostagegp.estimators.fitted import FittedRegression, FittedTarget
from twostagegp.estimators.prediction import encoded_inputs
from twostagegp.estimators.reporting import largest_jitter
from twostagegp.runtime.cores import use_cores
from twostagegp.runtime.threads import no_denormals

__all__ = ["update"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]

#: A refit is due when there are more rows than this many times those of the fit.
MOST_GROWTH = 1.5


def update(
    model: Any,
    X: Any,
    y: Any,
    groups: ArrayLike | None,
    sample_weight: ArrayLike | None,
    noise_var: ArrayLike | None,
) -> None:
    """Add rows to a fitted regressor; see :meth:`TwoStageGPRegressor.update`."""
    begin = time.perf_counter()
    check_is_fitted(model, "fitted_")
    fitted: FittedRegression = model.fitted_
    if fitted.remote is not None:
        raise InputError(
            "a model whose rows are on a Dask cluster cannot be updated: call fit with a "
            "collection of all rows."
        )
    numbers, targets = encoded_inputs(model, X), _targets(y, fitted)
    rows = _checked(numbers, targets, groups, sample_weight, noise_var)
    with use_cores(model.n_jobs):
        with no_denormals():
            mean, _, variance = fitted.moments(rows.X)
        assert variance is not None
        z = (rows.y - mean) / np.sqrt(variance)
        appended: list[AppendedRows] = []
        extended: list[FittedTarget] = []
        for j, target in enumerate(fitted.targets):
            appended.append(append_rows(target.data, rows.X, rows.y[:, j], *rows.rest))
            errors = (rows.y - mean)[:, j] / target.data.scaling.y_scale
            fit = target.fit.extended(appended[-1], errors)
            extended.append(FittedTarget(appended[-1].data, fit))
    before = model.fit_report_ if isinstance(model.fit_report_, list) else [model.fit_report_]
    seconds = time.perf_counter() - begin
    after = []
    for j, report in enumerate(before):
        scores = normal_scores(fitted.shapes[j], z[:, j])
        made = _recorded(report, appended[j], scores, rows.groups, seconds)
        made.jitter = largest_jitter(extended[j].fit)
        after.append(made)
    _warn_once(before, after)
    model.fitted_ = replace(fitted, targets=tuple(extended))
    model.fit_report_ = fitted.per_target(after)


def _targets(y: Any, fitted: FittedRegression) -> Array:
    """Return the targets of new rows, shape (m, p)."""
    values = np.asarray(y, dtype=np.float64)
    p = len(fitted.targets)
    shape = "(m,)" if fitted.is_1d else f"(m, {p})"
    fine = values.ndim == 1 if fitted.is_1d else values.ndim == 2 and values.shape[1] == p
    if not fine:
        raise InputError(f"y has shape {values.shape}, expected {shape} as in fit.")
    check_finite(values, "y")
    return values.reshape(len(values), p)


@dataclass(frozen=True)
class _NewRows:
    """Checked new rows of positive weight."""

    X: Array
    y: Array
    weight: Array
    noise_var: Array | None
    groups: Index | None

    @property
    def rest(self) -> tuple[Array, Array | None, Index | None]:
        """Weights, known noise variances and groups."""
        return self.weight, self.noise_var, self.groups


def _checked(
    X: Array,
    y: Array,
    groups: ArrayLike | None,
    sample_weight: ArrayLike | None,
    noise_var: ArrayLike | None,
) -> _NewRows:
    """Check the arguments of ``update`` and drop rows of weight 0; X is checked already."""
    check_consistent_length(X, y)
    m = len(X)
    weight = check_nonnegative(sample_weight, m, "sample_weight")
    weight = np.ones(m) if weight is None else weight
    known = check_nonnegative(noise_var, m, "noise_var")
    labels = _labels(groups, m)
    used = weight > 0.0
    if not used.any():
        raise InputError(f"sample_weight is zero in all {m} rows; there are no rows to add.")
    return _NewRows(
        X[used],
        y[used],
        weight[used],
        None if known is None else known[used],
        None if labels is None else labels[used],
    )


def _labels(groups: ArrayLike | None, m: int) -> Index | None:
    """Return the group numbers of new rows."""
    if groups is None:
        return None
    labels = column_or_1d(np.asarray(groups))
    if len(labels) != m:
        raise InputError(f"groups has {len(labels)} labels for {m} rows; give one label per row.")
    return np.unique(labels, return_inverse=True)[1].reshape(-1)


def _recorded(
    report: FitReport, appended: AppendedRows, z: Array, groups: Index | None, seconds: float
) -> FitReport:
    """Return the report after an update."""
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
    """Return why a refit is due, or an empty text."""
    added = sum(update["rows"] for update in updates)
    fitted = n_rows - added
    if updates[-1]["evidence"] >= 1.0 / LEVEL:
        return (
            f"the rows of the last update do not fit what was predicted for them (mean z "
            f"{updates[-1]['z_mean']:.2f} and mean z² {updates[-1]['z_square']:.2f}, expected 0 "
            f"and 1; evidence {updates[-1]['evidence']:.3g}, and a model that still holds reaches "
            f"{1.0 / LEVEL:.0f} with probability {LEVEL:g} at most). Call fit with all rows, or "
            "with the newest."
        )
    if n_rows > MOST_GROWTH * fitted:
        return (
            f"{added} rows were added to the {fitted} rows of the fit, more than half as many. "
            "Call fit with all rows."
        )
    return ""


def _warn_once(before: list[FitReport], after: list[FitReport]) -> None:
    """Warn once about the refits that have become due in this update."""
    news = [new.refit_due for old, new in zip(before, after, strict=True) if not old.refit_due]
    due = sorted({text for text in news if text})
    if due:
        warnings.warn(f"A refit is due: {' '.join(due)}", TwoStageGPWarning, stacklevel=4)
