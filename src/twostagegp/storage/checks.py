"""Whether the fields of a part fit each other.

Shapes are checked before anything is computed from them: compiled code trusts its arguments.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from twostagegp.errors import ModelFileError
from twostagegp.estimators.validation import check_parameters

__all__ = [
    "check_class_table",
    "check_classifier",
    "check_columns",
    "check_cv_plus",
    "check_encoder",
    "check_exact_posterior",
    "check_hyperparameters",
    "check_local_rows",
    "check_merged",
    "check_named_kernel",
    "check_neighbor_engine",
    "check_prepared",
    "check_regressor",
    "check_report",
    "check_rows",
    "check_scaling",
    "check_shape",
    "check_stack",
    "check_targets",
    "check_whitening",
]

_MOST_THREADS = 4096
_MOST_COLUMNS = 1 << 22
_FLOATS = (torch.float64, torch.float32)


def _require(fine: bool, what: str) -> None:
    if not fine:
        raise ModelFileError(what)


def check_rows(rows: Any) -> None:
    """Rows of one length, one float type and one device."""
    X = rows.X
    fine = X.ndim == 2 and len(X) >= 1 and X.dtype in _FLOATS
    _require(fine, f"rows of shape {tuple(X.shape)}, {X.dtype}")
    for name in ("t", "c", "q", "extra"):
        value = getattr(rows, name)
        _require(
            value.shape == X.shape[:1] and value.dtype == X.dtype and value.device == X.device,
            f"rows with {name} of shape {tuple(value.shape)} for {len(X)} rows",
        )
    groups = rows.groups
    if groups is not None:
        _require(
            groups.shape == X.shape[:1] and groups.dtype == torch.int64,
            f"groups of shape {tuple(groups.shape)} for {len(X)} rows",
        )
    _require(bool(torch.isfinite(X).all()), "inputs that are not finite")


def check_merged(merged: Any) -> None:
    """Merged rows, and the rows of the table that they stand for."""
    m, n = len(merged.X), len(merged.inverse)
    fine = merged.X.ndim == 2 and all(
        getattr(merged, name).shape == (m,) for name in ("t", "c", "q", "extra")
    )
    fine = fine and all(getattr(merged, name).shape == (n,) for name in ("deviation", "weight"))
    fine = fine and _indexes(merged.inverse, m)
    _require(fine, "merged rows that do not fit each other")


def _indexes(index: Any, length: int) -> bool:
    whole = np.issubdtype(index.dtype, np.integer) and index.ndim == 1
    return bool(whole and (len(index) == 0 or (index.min() >= 0 and index.max() < length)))


def check_scaling(scaling: Any) -> None:
    """One mean and one scale a column in use."""
    k = len(scaling.columns)
    parts = (scaling.x_mean, scaling.x_scale)
    fine = all(p.shape == (k,) and p.dtype == np.float64 and np.isfinite(p).all() for p in parts)
    _require(fine and _indexes(scaling.columns, 1 << 40), "a scaling of other columns")
    fine = bool((scaling.x_scale > 0.0).all()) and 0.0 < scaling.y_scale < np.inf
    _require(fine and bool(np.isfinite(scaling.y_mean)), "a scaling that is none")


def check_whitening(whitening: Any) -> None:
    """A square matrix for these columns."""
    d = whitening.mean.shape[-1] if whitening.mean.ndim == 1 else -1
    fine = whitening.matrix.shape == (d, d) and whitening.matrix.dtype == whitening.mean.dtype
    _require(fine and whitening.mean.dtype in _FLOATS, "a whitening of other columns")


def check_prepared(data: Any) -> None:
    """Rows in the columns of the scaling."""
    fine = data.rows.X.shape[1] == len(data.scaling.columns)
    _require(fine, f"rows of {data.rows.X.shape[1]} columns for {len(data.scaling.columns)}")


def check_named_kernel(kernel: Any) -> None:
    """A name that there is, with the metric it has."""
    from twostagegp.kernels.catalogue import CATALOGUE

    _require(kernel.name in CATALOGUE, f"a kernel {kernel.name!r}")
    _require(kernel.metric == CATALOGUE[kernel.name].metric, "a kernel's metric")
    _require(kernel.n_features >= 1, f"a kernel of {kernel.n_features} columns")
    if kernel.shape is not None:
        fine = kernel.shape.shape == (kernel.n_features,) and kernel.shape.dtype == np.float64
        _require(fine, "a kernel with lengthscales of other columns")


def check_columns(columns: Any) -> None:
    """Places inside of the table."""
    fine = all(type(k) is int and 0 <= k < columns.width for k in columns.kept)
    _require(fine and columns.width <= 1 << 24, "columns outside of the table")


def check_hyperparameters(kernel: Any, parameters: Any, n_features: int) -> None:
    """Hyperparameters of this kernel and a noise, for rows of these columns."""
    fine = parameters.shape == (kernel.size + 1,) and parameters.dtype == np.float64
    _require(fine, f"{parameters.shape} hyperparameters for {kernel.size} of the kernel")
    _require(kernel.n_features == n_features, "a kernel of other columns than the rows")
    _require(bool(np.isfinite(parameters).all()), "hyperparameters that are not finite")


def check_exact_posterior(posterior: Any) -> None:
    """A solution, and a factor if there is one, of these rows."""
    m, d = posterior.rows.X.shape
    check_hyperparameters(posterior.kernel, posterior.parameters, d)
    _require(posterior.alpha.shape == (m,), "a solution of other rows")
    factor = posterior.__dict__.get("_factor")
    _require(factor is None or factor.shape == (m, m), "a factor of other rows")


def check_neighbor_engine(engine: Any) -> None:
    """An index over the same inputs, and neighbours that are some."""
    own, indexed = engine.rows, engine.store.rows
    _require(own.X.shape == indexed.X.shape, "an index of other rows")
    _require(own.X.dtype == indexed.X.dtype, "an index of another precision")
    _require(1 <= engine.n_neighbors <= 1 << 24, f"{engine.n_neighbors} neighbours")
    _require(engine.order is None or engine.order.shape == (len(own),), "an order of other rows")


def check_class_table(table: Any) -> None:
    """Rows of one length with classes that there are."""
    m = len(table.codes)
    fine = table.X.ndim == 2 and len(table.X) == m and table.c.shape == (m,)
    fine = fine and table.X.dtype == np.float64 and _indexes(table.codes, table.n_classes)
    fine = fine and 2 <= table.n_classes <= 1 << 20
    groups = table.groups
    fine = fine and (groups is None or (groups.shape == (m,) and groups.dtype == np.int64))
    _require(fine, "a table whose rows do not fit each other")
    for view in table.views:
        k = len(view.columns)
        fine = _indexes(view.columns, table.X.shape[1]) and view.centre.shape == (k,)
        _require(fine, "a view of other columns")


def check_local_rows(rows: Any) -> None:
    """As many neighbours as there are rows at most."""
    fine = 1 <= rows.k <= len(rows.table) and rows.c.shape == (len(rows.table),)
    fine = fine and rows.theta.shape == (rows.kernel.size,)
    fine = fine and rows.kernel.n_features == len(rows.view.columns)
    _require(fine, "neighbours of other rows")


def check_report(report: Any) -> None:
    """Updates that the next one can go on from."""
    from twostagegp.estimators.drift import start_evidence

    for update in report.updates:
        fine = isinstance(update, dict) and type(update.get("rows")) is int
        fine = fine and isinstance(update.get("when"), str)
        log_S: Any = update.get("log_evidence") if fine else None
        fine = isinstance(log_S, list) and len(log_S) == len(start_evidence())
        fine = fine and all(isinstance(value, float) for value in log_S)
        _require(fine, "an update without its figures")


def check_shape(shape: Any) -> None:
    """A law of probability: quantiles are searched for, and of what is none there are none."""
    parts = (shape.centres, shape.widths, shape.shares)
    fine = all(p.dtype == np.float64 and p.shape == (len(shape.centres),) for p in parts)
    fine = fine and all(bool(np.isfinite(p).all()) for p in parts) and len(shape.centres) >= 1
    _require(fine, "a shape whose components do not fit each other")
    fine = bool((shape.widths > 0.0).all() and (shape.shares >= 0.0).all())
    fine = fine and abs(float(shape.shares.sum()) - 1.0) < 1e-6
    fine = fine and 0.0 <= shape.tail <= 1.0 and (shape.tail == 0.0 or shape.degrees > 2.0)
    _require(fine and abs(shape.mean) < 1.0, "a shape that is no law of probability")
    _require(shape.name in ("gaussian", "student", "empirical"), f"a shape {shape.name[:40]!r}")


def check_stack(stack: Any) -> None:
    """One weight a model."""
    weights = stack.weights
    fine = weights.shape == (len(stack.models),) and weights.dtype == np.float64
    _require(fine and bool(np.isfinite(weights).all()), "a stack with other weights than models")


def check_regressor(model: Any) -> None:
    """Parameters that a fit would take, and columns that are in the table."""
    check_parameters(model)
    _check_threads(model)
    for data in model.fitted_.data:
        _require(_indexes(data.scaling.columns, _n_encoded(model)), "columns outside of the table")
    _check_names(model)


def check_targets(fitted: Any) -> None:
    """One target at least, and only one if predictions have no axis for targets."""
    fine = all(type(target).__name__ == "FittedTarget" for target in fitted.targets)
    count = len(fitted.targets)
    _require(fine and count >= 1 and (count == 1 or not fitted.is_1d), "targets without a fit")


def check_classifier(model: Any) -> None:
    """Parameters that a fit would take, and probabilities of as many classes as there are."""
    check_parameters(model)
    _check_threads(model)
    K = len(model.classes_)
    table, draws = model.fitted_.table, model.fitted_.draws
    _require(model.classes_.ndim == 1 and table.n_classes == K, "other classes")
    _require(draws.ndim == 2 and draws.shape[1] == K, "draws of other classes")
    fine = draws.dtype == np.float64 and bool(np.isfinite(draws).all())
    _require(fine and len(draws) >= 1, "draws that are not finite")
    _require(table.X.shape[1] == _n_encoded(model), "other columns")
    _check_names(model)


def check_cv_plus(model: Any) -> None:
    """A fold and a score of every row."""
    fine = model.folds_.shape == model.scores_.shape == (len(model.scores_),)
    _require(fine and _indexes(model.folds_, len(model.estimators_)), "folds without an estimator")
    _check_names(model)


def _check_threads(model: Any) -> None:
    jobs = model.n_jobs
    _require(jobs is None or abs(jobs) <= _MOST_THREADS, f"a model for {jobs} threads")


def check_encoder(encoder: Any) -> None:
    """One rule a column of the user's table, with as many fillings as numbers."""
    from twostagegp.data.columns.categories import CategoryColumn
    from twostagegp.data.columns.numbers import NumericColumn

    _require(len(encoder.rules_) == encoder.n_features_in_, "rules of other columns")
    for rule in encoder.rules_:
        if isinstance(rule, NumericColumn):
            _require(rule.fill.shape == (len(rule.parts),), "a column with other fillings")
        else:
            _require(isinstance(rule, CategoryColumn), "a rule that is none")
    _check_names(encoder)


def _n_encoded(model: Any) -> int:
    """Columns that the model sees."""
    encoder = model.columns_
    if encoder is None:
        return int(model.n_features_in_)
    _require(encoder.n_features_in_ == model.n_features_in_, "rules of other columns")
    return len(encoder.names)


def _check_names(model: Any) -> None:
    d = model.n_features_in_
    _require(1 <= d <= _MOST_COLUMNS, f"a table of {d} columns")
    names = getattr(model, "feature_names_in_", None)
    _require(names is None or names.shape == (model.n_features_in_,), "names of other columns")
