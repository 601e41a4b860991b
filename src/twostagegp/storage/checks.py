"""Whether the fields of an object fit each other.

Shapes are checked before anything is computed: compiled code does not check its arguments.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from twostagegp.errors import InputError, ModelFileError
from twostagegp.estimators.validation import check_parameters

__all__ = [
    "check_class_table",
    "check_classifier",
    "check_columns",
    "check_cv_plus",
    "check_encoder",
    "check_exact_posterior",
    "check_hyperparameters",
    "check_latents",
    "check_level_factors",
    "check_local_rows",
    "check_merged",
    "check_named_kernel",
    "check_neighbor_engine",
    "check_per_target",
    "check_prepared",
    "check_regressor",
    "check_report",
    "check_rows",
    "check_scaling",
    "check_several_posterior",
    "check_shape",
    "check_stack",
    "check_tabpfn",
    "check_target",
    "check_targets",
    "check_whitening",
]

_MOST_THREADS = 4096
_MOST_COLUMNS = 1 << 22
_FLOATS = (torch.float64, torch.float32)


def _require(holds: bool, problem: str) -> None:
    """Raise ModelFileError with a description of the problem unless a condition holds."""
    if not holds:
        raise ModelFileError(f"{problem}.")


def _are_positions(index: Any, length: int) -> bool:
    """Return whether an array holds positions in a sequence of this length."""
    whole = np.issubdtype(index.dtype, np.integer) and index.ndim == 1
    return bool(whole and (len(index) == 0 or (index.min() >= 0 and index.max() < length)))


# --- training rows -------------------------------------------------------------------------------


def check_rows(rows: Any) -> None:
    """Check that all columns have the same length, float type and device."""
    X = rows.X
    fine = X.ndim == 2 and len(X) >= 1 and X.dtype in _FLOATS
    _require(fine, f"its training rows have the shape {tuple(X.shape)} and the type {X.dtype}")
    targets = rows.t.shape[1:]
    for name in ("t", "c", "q", "extra"):
        value = getattr(rows, name)
        shapes = [X.shape[:1]]
        if name in ("t", "extra") and len(targets) == 1:  # a column per target
            shapes = [X.shape[:1] + targets] if name == "t" else [X.shape[:1], rows.t.shape]
        _require(
            value.shape in shapes and value.dtype == X.dtype and value.device == X.device,
            f"{name} has the shape {tuple(value.shape)} for {len(X)} training rows",
        )
    groups = rows.groups
    if groups is not None:
        _require(
            groups.shape == X.shape[:1] and groups.dtype == torch.int64,
            f"groups have the shape {tuple(groups.shape)} for {len(X)} training rows",
        )
    _require(bool(torch.isfinite(X).all()), "its training rows are not finite")


def check_merged(merged: Any) -> None:
    """Check merged rows and the positions of the table's rows among them."""
    m, n = len(merged.X), len(merged.inverse)
    fine = merged.X.ndim == 2 and all(
        getattr(merged, name).shape == (m,) for name in ("t", "c", "q", "extra")
    )
    fine = fine and all(getattr(merged, name).shape == (n,) for name in ("deviation", "weight"))
    fine = fine and _are_positions(merged.inverse, m)
    _require(fine, "its merged rows have fields of different lengths")


def check_scaling(scaling: Any) -> None:
    """Check that every column in use has a finite mean and a positive scale."""
    k = len(scaling.columns)
    parts = (scaling.x_mean, scaling.x_scale)
    fine = all(p.shape == (k,) and p.dtype == np.float64 and np.isfinite(p).all() for p in parts)
    fine = fine and _are_positions(scaling.columns, 1 << 40)
    _require(fine, f"its scaling does not have one mean and one scale for each of {k} columns")
    fine = bool((scaling.x_scale > 0.0).all()) and 0.0 < scaling.y_scale < np.inf
    fine = fine and bool(np.isfinite(scaling.y_mean))
    _require(fine, "its scaling has a scale that is not positive and finite")


def check_whitening(whitening: Any) -> None:
    """Check that the matrix is square, with one row per column of the table."""
    d = whitening.mean.shape[-1] if whitening.mean.ndim == 1 else -1
    fine = whitening.matrix.shape == (d, d) and whitening.matrix.dtype == whitening.mean.dtype
    fine = fine and whitening.mean.dtype in _FLOATS
    _require(fine, f"its whitening has a matrix of the shape {tuple(whitening.matrix.shape)}")


def check_prepared(data: Any) -> None:
    """Check that rows and scaling have the same number of columns."""
    found, expected = data.rows.X.shape[1], len(data.scaling.columns)
    _require(found == expected, f"its training rows have {found} columns instead of {expected}")


def check_columns(columns: Any) -> None:
    """Check that the positions are inside the table."""
    fine = all(0 <= k < columns.width for k in columns.kept) and columns.width <= 1 << 24
    _require(fine, f"a kernel uses columns outside of a table with {columns.width} columns")


# --- kernels and posteriors ----------------------------------------------------------------------


def check_named_kernel(kernel: Any) -> None:
    """Check that the name is in the catalogue and that the other fields belong to it."""
    from twostagegp.kernels.catalogue import CATALOGUE

    _require(kernel.name in CATALOGUE, f"there is no kernel {kernel.name[:40]!r}")
    metric = CATALOGUE[kernel.name].metric
    _require(kernel.metric == metric, f"a kernel {kernel.name} has the metric {kernel.metric}")
    _require(kernel.n_features >= 1, f"a kernel has {kernel.n_features} columns")
    if kernel.shape is not None:
        fine = kernel.shape.shape == (kernel.n_features,) and kernel.shape.dtype == np.float64
        _require(fine, "a kernel does not have one ratio of lengthscales per column")


def check_hyperparameters(kernel: Any, parameters: Any, n_features: int) -> None:
    """Check the hyperparameters of a kernel and the noise, for rows with this many columns."""
    fine = parameters.shape == (kernel.size + 1,) and parameters.dtype == np.float64
    expected = f"({kernel.size + 1},)"
    _require(fine, f"hyperparameters have the shape {parameters.shape} instead of {expected}")
    fine = kernel.n_features == n_features
    _require(fine, f"a kernel of {kernel.n_features} columns has rows of {n_features} columns")
    _require(bool(np.isfinite(parameters).all()), "hyperparameters are not finite")


def check_exact_posterior(posterior: Any) -> None:
    """Check that the solution, and the factor if it is there, have the size of the rows."""
    m, d = posterior.rows.X.shape
    check_hyperparameters(posterior.kernel, posterior.parameters, d)
    fine = posterior.alpha.shape == posterior.rows.t.shape
    _require(fine, f"a solution does not have one number per {m} rows and target")
    factor = vars(posterior).get("_factor")
    _require(factor is None or factor.shape == (m, m), f"a factor is not one of {m} rows")


def check_several_posterior(posterior: Any) -> None:
    """Check a posterior of several targets, and its inverse and factors if they are there."""
    m, d = posterior.rows.X.shape
    check_hyperparameters(posterior.kernel, posterior.parameters, d)
    fine = posterior.rows.extra.ndim == 2 and posterior.alpha.shape == posterior.rows.t.shape
    _require(fine, f"a solution does not have one number per {m} rows and target")
    A, factors = (vars(posterior).get(name) for name in ("_A", "_factors"))
    _require(A is None or A.shape == (m, m), f"an inverse is not one of {m} rows")
    sizes = [len(less) for less in posterior.less_noise]
    fine = factors is None or [L.shape for L in factors] == [(size, size) for size in sizes]
    _require(fine and (A is None) == (factors is None), "factors are not those of the targets")


def check_per_target(posterior: Any) -> None:
    """Check that there is one posterior per target, over the same rows."""
    rows, K = posterior.rows, posterior.rows.t.shape[1:]
    fine = len(K) == 1 and len(posterior.posteriors) == K[0] >= 1
    fine = fine and all(each.rows.X.shape == rows.X.shape for each in posterior.posteriors)
    _require(fine, "it does not have one posterior per target")


def check_neighbor_engine(engine: Any) -> None:
    """Check that the index is over the same rows, and the number of neighbours."""
    own, indexed = engine.rows.X, engine.store.rows.X
    fine = own.shape == indexed.shape and own.dtype == indexed.dtype
    _require(fine, "an index of neighbours is over other rows")
    _require(1 <= engine.n_neighbors <= 1 << 24, f"it uses {engine.n_neighbors} neighbours")
    fine = engine.order is None or engine.order.shape == (len(own),)
    _require(fine, "an order does not have one position per row")


# --- parts of a regressor ------------------------------------------------------------------------


def check_stack(stack: Any) -> None:
    """Check that there is one finite weight per model."""
    weights = stack.weights
    fine = weights.shape == (len(stack.models),) and weights.dtype == np.float64
    fine = fine and bool(np.isfinite(weights).all())
    _require(fine, f"a stack does not have one weight for each of its {len(stack.models)} models")


def check_tabpfn(mean: Any) -> None:
    """Check the training rows, and that the weights of the fit are on this computer."""
    X, y = mean.X_, mean.y_
    fine = X.ndim == 2 and X.shape[0] >= 1 and y.shape == X.shape[:1]
    fine = fine and X.dtype == y.dtype == np.float64 and X.shape[1] == mean.n_features_in_
    _require(fine, "the training rows of TabPFN have other shapes than its targets")
    _require(bool(np.isfinite(X).all() and np.isfinite(y).all()), "rows of TabPFN are not finite")
    problem = mean.beyond_limits(*X.shape)
    _require(not problem, problem)
    is_name = mean.file_ not in ("", ".", "..") and not set(mean.file_) & set("/\\:")
    _require(is_name, f"{mean.file_[:60]!r} is not the name of a file of weights")
    try:
        mean.ready(stored=True)
    except InputError as error:
        raise ModelFileError(str(error)) from error


def check_outside(outside: Any) -> None:
    """Check that trends have one number per column, shares sum to one and the factor is finite."""
    d = outside.slopes.shape[0] if outside.slopes.ndim == 1 else -1
    fine = outside.reach.shape == (2, d) and len(outside.members) >= 1
    fine = fine and outside.seen.ndim == 2 and outside.seen.shape[0] == d
    fine = fine and outside.seen.shape[1] >= 2 and outside.index.ndim == 1
    fine = fine and all(m.posterior.rows.X.shape[1] == d for m in outside.members)
    _require(fine, "what it knows about rows outside the data does not fit together")
    shares = outside.shares
    fine = shares.shape == (4,) and bool((shares >= 0.0).all()) and abs(shares.sum() - 1.0) < 1e-6
    fine = fine and 0.0 <= outside.factor < math.inf and 0.0 <= outside.plain_factor < math.inf
    _require(fine, "shares or factor outside the data are not non-negative numbers")


def check_outside_member(member: Any) -> None:
    """Check that weight, scale and usual variance are finite and not negative."""
    numbers = (member.weight, member.scale, member.usual)
    fine = all(0.0 <= number < math.inf for number in numbers)
    _require(fine, "a member outside the data has a weight, scale or variance that is not finite")


def check_shape(shape: Any) -> None:
    """Check that this is a distribution; otherwise the search for quantiles would not end."""
    parts = (shape.centres, shape.widths, shape.shares)
    fine = all(p.dtype == np.float64 and p.shape == (len(shape.centres),) for p in parts)
    fine = fine and all(bool(np.isfinite(p).all()) for p in parts) and len(shape.centres) >= 1
    _require(fine, "the components of a shape are not finite or differ in number")
    fine = bool((shape.widths > 0.0).all() and (shape.shares >= 0.0).all())
    fine = fine and abs(float(shape.shares.sum()) - 1.0) < 1e-6
    fine = fine and 0.0 <= shape.tail <= 1.0 and (shape.tail == 0.0 or shape.degrees > 2.0)
    fine = fine and (shape.spread is None or 0.0 < shape.spread < math.inf)
    _require(fine and abs(shape.mean) < 1.0, "a shape is not a probability distribution")
    known = ("gaussian", "student", "empirical")
    _require(shape.name in known, f"a shape has the name {shape.name[:40]!r}")


def check_value_weights(values: Any) -> None:
    """Check that edges increase and that there is one log weight per interval and level."""
    E, L = len(values.edges), len(values.levels)
    parts = (values.edges, values.cells, values.log_between, values.log_at)
    expected = ((E,), (L, 2), (E + 1,), (L,))
    fine = all(
        part.shape == shape and part.dtype == np.float64
        for part, shape in zip(parts, expected, strict=True)
    )
    shapes = ", ".join(str(part.shape) for part in parts)
    _require(
        fine,
        f"the target's values have {E} edges and {L} levels, but edges, cells, weights of "
        f"intervals and weights of levels have the shapes {shapes}",
    )
    fine = bool(np.isfinite(values.edges).all() and (np.diff(values.edges) > 0.0).all())
    fine = fine and _are_positions(values.levels, E) and bool((np.diff(values.levels) > 0).all())
    fine = fine and bool((values.cells[:, 0] < values.cells[:, 1]).all())
    _require(fine, "edges or levels of the target's values do not increase")
    fine = bool(np.isfinite(values.log_at).all() and (values.log_between < 700.0).all())
    fine = fine and bool((values.log_at < 700.0).all() and np.isfinite(values.log_between).any())
    fine = fine and values.low < values.high
    _require(
        fine,
        "the target's values have log weights that are not finite or too large, or the bounds "
        f"{values.low} and {values.high}, of which the first must be smaller",
    )


def check_level_factors(by_level: Any) -> None:
    """Check that there is one positive factor per level, and a level for each held-out row."""
    levels = by_level.levels
    L, k = len(levels.labels), len(levels.positions)
    fine = L >= 1 and _are_positions(levels.positions, _MOST_COLUMNS)
    fine = fine and levels.codes.shape == (L, k) and levels.codes.dtype == np.float64
    fine = fine and bool(np.isfinite(levels.codes).all())
    _require(fine, f"a column does not have one code for each of its {L} levels")
    parts = (by_level.factor, by_level.own, by_level.rows)
    fine = all(part.shape == (L,) and part.dtype == np.float64 for part in parts)
    fine = fine and bool(np.isfinite(by_level.factor).all() and (by_level.factor > 0.0).all())
    _require(fine, f"a calibration does not have one positive factor for each of {L} levels")
    _require(_are_positions(by_level.of_row, L), "a held-out row is in no level")


def check_target(target: Any) -> None:
    """Check that the column by whose levels intervals are calibrated is among the inputs."""
    levels = getattr(getattr(target.fit, "calibration", None), "levels", None)
    if levels is not None:
        d = len(target.data.scaling.columns)
        fine = _are_positions(levels.levels.positions, d)
        _require(fine, f"intervals are calibrated by a column that is not among {d} inputs")


def check_targets(fitted: Any) -> None:
    """Check that there is a target, and only one if predictions have no axis for targets."""
    count = len(fitted.targets)
    _require(count >= 1 and (count == 1 or not fitted.is_1d), f"it has {count} targets")


def check_report(report: Any) -> None:
    """Check that the next update can continue from the updates of the report."""
    from twostagegp.estimators.drift import start_evidence

    for update in report.updates:
        evidence: Any = update.get("log_evidence")
        fine = type(update.get("rows")) is int and isinstance(update.get("when"), str)
        fine = fine and isinstance(evidence, list) and len(evidence) == len(start_evidence())
        fine = fine and all(isinstance(value, float) for value in evidence)
        _require(fine, "its report has an update without its figures")


# --- parts of a classifier -----------------------------------------------------------------------


def check_class_table(table: Any) -> None:
    """Check that all columns have the same length and that codes are those of classes."""
    m = len(table.codes)
    fine = table.X.ndim == 2 and len(table.X) == m and table.c.shape == (m,)
    fine = fine and table.X.dtype == np.float64 and _are_positions(table.codes, table.n_classes)
    fine = fine and 2 <= table.n_classes <= 1 << 20
    groups = table.groups
    fine = fine and (groups is None or (groups.shape == (m,) and groups.dtype == np.int64))
    _require(fine, "its training rows have fields of different lengths or unknown classes")
    for view in table.views:
        k = len(view.columns)
        fine = _are_positions(view.columns, table.X.shape[1]) and view.centre.shape == (k,)
        _require(fine, "a view has columns that are not in the table")


def check_latents(latents: Any) -> None:
    """Check that the latent functions have the columns of their view and one centre per class."""
    rows = latents.posterior.rows
    fine = rows.t.ndim == 2 and latents.centre.shape == rows.t.shape[1:]
    fine = fine and rows.X.shape[1] == len(latents.view.columns)
    _require(fine, "latent functions do not fit their view or their classes")


def check_local_rows(rows: Any) -> None:
    """Check the number of neighbours, and that kernel and rows have the same columns."""
    fine = 1 <= rows.k <= len(rows.table) and rows.c.shape == (len(rows.table),)
    fine = fine and rows.theta.shape == (rows.kernel.size,)
    fine = fine and rows.kernel.n_features == len(rows.view.columns)
    _require(fine, "an index of neighbours is over other rows or columns")


# --- estimators ----------------------------------------------------------------------------------


def check_regressor(model: Any) -> None:
    """Check the parameters as ``fit`` does, and that columns in use are in the table."""
    check_parameters(model)
    _check_threads(model)
    for data in model.fitted_.data:
        fine = _are_positions(data.scaling.columns, _n_encoded(model))
        _require(fine, "it uses columns that are not in the table")
    _check_names(model)


def check_classifier(model: Any) -> None:
    """Check the parameters as ``fit`` does, and that all parts have the same classes."""
    check_parameters(model)
    _check_threads(model)
    K = len(model.classes_)
    table, draws = model.fitted_.table, model.fitted_.draws
    fine = model.classes_.ndim == 1 and table.n_classes == K
    _require(fine, f"its training rows have {table.n_classes} classes instead of {K}")
    fine = draws.ndim == 2 and draws.shape[1] == K and len(draws) >= 1
    _require(fine, f"its draws have the shape {draws.shape} for {K} classes")
    fine = draws.dtype == np.float64 and bool(np.isfinite(draws).all())
    _require(fine, "its draws are not finite")
    found, expected = table.X.shape[1], _n_encoded(model)
    _require(found == expected, f"its training rows have {found} columns instead of {expected}")
    _check_names(model)


def check_cv_plus(model: Any) -> None:
    """Check that every row has a score and a fold with an estimator."""
    fine = model.folds_.shape == model.scores_.shape == (len(model.scores_),)
    fine = fine and _are_positions(model.folds_, len(model.estimators_))
    _require(fine, "its rows are in folds without an estimator")
    _check_names(model)


def check_encoder(encoder: Any) -> None:
    """Check that every column has a rule, with one replacement per numeric column."""
    from twostagegp.data.columns.numbers import NumericColumn

    fine = len(encoder.rules_) == encoder.n_features_in_
    _require(fine, f"it has {len(encoder.rules_)} rules for {encoder.n_features_in_} columns")
    for rule in encoder.rules_:
        if isinstance(rule, NumericColumn):
            fine = rule.fill.shape == (len(rule.parts),)
            _require(fine, f"the column {rule.name[:40]!r} has other replacements than numbers")
    _check_names(encoder)


def _check_threads(model: Any) -> None:
    jobs = model.n_jobs
    _require(jobs is None or abs(jobs) <= _MOST_THREADS, f"n_jobs is {jobs}")


def _n_encoded(model: Any) -> int:
    """Return the number of columns after the rules of the table have been applied."""
    encoder = model.columns_
    if encoder is None:
        return int(model.n_features_in_)
    found, expected = encoder.n_features_in_, model.n_features_in_
    _require(found == expected, f"its rules are for {found} columns instead of {expected}")
    return len(encoder.names)


def _check_names(model: Any) -> None:
    d = model.n_features_in_
    _require(1 <= d <= _MOST_COLUMNS, f"its table has {d} columns")
    names = getattr(model, "feature_names_in_", None)
    fine = names is None or names.shape == (d,)
    _require(fine, f"it does not have one name for each of {d} columns")
