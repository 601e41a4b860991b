"""The user's table, given in any form, as a data frame with the column names of the fit.

A fitted model stores its training rows as numbers. :func:`training_frame` decodes them by the rules
of the columns, so that pictures can show dates as dates and category levels by their names.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twostagegp.data.checks import seen_columns
from twostagegp.data.columns.categories import OTHER, CategoryColumn
from twostagegp.data.columns.encoder import TableEncoder
from twostagegp.data.columns.tables import encoded_names
from twostagegp.errors import InputError
from twostagegp.estimators.fitted import FittedClasses

__all__ = [
    "as_given",
    "column_kinds",
    "column_rules",
    "model_frame",
    "training_frame",
    "typical_row",
]

Array = NDArray[np.float64]

#: Kinds of columns whose values have no order, or are too few to draw a line.
NAMED_KINDS = ("category", "text", "boolean", "ordered category")


def model_frame(model: Any, X: Any) -> pd.DataFrame:
    """Return a table as a data frame whose columns have the names of the fit.

    Examples
    --------
    >>> import numpy as np
    >>> from twostagegp import ExactGPRegressor
    >>> model = ExactGPRegressor().fit(np.arange(6.0).reshape(3, 2), [0.0, 1.0, 2.0])
    >>> list(model_frame(model, [[1.0, 2.0]]).columns)
    ['x0', 'x1']
    """
    names = seen_columns(model)
    if isinstance(X, pd.DataFrame):
        if getattr(model, "feature_names_in_", None) is None:
            X = X.set_axis(names, axis=1) if X.shape[1] == len(names) else X
        return X
    array = np.asarray(X)
    if array.ndim != 2 or array.shape[1] != len(names):
        raise InputError(
            f"X must have the {len(names)} columns of the fit, got shape {array.shape}."
        )
    return pd.DataFrame(array, columns=names).infer_objects()


def as_given(model: Any, frame: pd.DataFrame) -> Any:
    """Return the frame as it is if the model was fitted to a frame, otherwise as an array."""
    named = getattr(model, "feature_names_in_", None) is not None
    return frame if named else frame.to_numpy()


def column_kinds(model: Any) -> dict[str, str]:
    """Return the kind of every column: that of its rule, or "number" if it has none."""
    encoder: TableEncoder | None = model.columns_
    if encoder is None:
        return dict.fromkeys(seen_columns(model), "number")
    return {name: rule.kind for name, rule in zip(seen_columns(model), encoder.rules_, strict=True)}


def column_rules(model: Any) -> dict[str, Any]:
    """Return the rule of every column, or None for each if the model has no rules."""
    names = seen_columns(model)
    encoder: TableEncoder | None = model.columns_
    return (
        dict.fromkeys(names) if encoder is None else dict(zip(names, encoder.rules_, strict=True))
    )


def training_frame(model: Any) -> tuple[pd.DataFrame, NDArray[Any]]:
    """Return the distinct training rows in the user's columns and units, and their targets.

    Returns
    -------
    X : DataFrame of m distinct rows
        A column that was dropped because it is constant has a placeholder value, which does not
        affect predictions.
    y : array of shape (m,) or (m, p), or of m labels
        The mean over rows with equal inputs.

    Examples
    --------
    >>> import numpy as np
    >>> from twostagegp import ExactGPRegressor
    >>> model = ExactGPRegressor().fit(np.array([[1.0], [2.0], [4.0]]), [0.0, 1.0, 2.0])
    >>> X, y = training_frame(model)
    >>> X["x0"].round(6).tolist(), y.round(6).tolist()
    ([1.0, 2.0, 4.0], [0.0, 1.0, 2.0])
    """
    if isinstance(model.fitted_, FittedClasses):
        table = model.fitted_.table
        numbers, y = np.asarray(table.X), model.classes_[table.codes]
    else:
        numbers, y = _regression_rows(model)
    encoder: TableEncoder | None = model.columns_
    if encoder is None:
        return pd.DataFrame(numbers, columns=seen_columns(model)), y
    frame = encoder.inverse_transform(numbers)
    frame.columns = pd.Index(seen_columns(model))
    for name, kind in column_kinds(model).items():
        if kind in ("date", "duration"):  # days are not exact to the nanosecond
            frame[name] = frame[name].dt.round("ms")
    for name, rule in column_rules(model).items():
        if isinstance(rule, CategoryColumn) and rule.pooled:  # one level represents all pooled ones
            values = frame[name].astype(object)
            frame[name] = values.where(values != OTHER, rule.pooled[0])
    return frame, y


def _regression_rows(model: Any) -> tuple[Array, Array]:
    first, *_ = prepared = model.fitted_.data
    scaling = first.scaling
    numbers = _placeholders(model, len(first.merged.X))
    numbers[:, scaling.columns] = first.merged.X * scaling.x_scale + scaling.x_mean
    targets = np.column_stack(
        [data.scaling.y_mean + data.scaling.y_scale * data.merged.t for data in prepared]
    )
    return numbers, model.fitted_.without_axis(targets)


def _placeholders(model: Any, n: int) -> Array:
    """Return n rows of values for constant columns: the level, the median, or zero."""
    encoder: TableEncoder | None = model.columns_
    if encoder is None:
        return np.zeros((n, len(encoded_names(model))))
    parts: list[float] = []
    for rule in encoder.rules_:
        if isinstance(rule, CategoryColumn):
            parts += [1.0] + [0.0] * (len(rule.names) - 1) if rule.names else []
        else:
            parts += [*rule.fill.tolist(), *[0.0] * (len(rule.names) - len(rule.fill))]
    return np.tile(np.array(parts), (n, 1))


def typical_row(frame: pd.DataFrame, kinds: dict[str, str]) -> dict[str, Any]:
    """Return one value per column: the median of numbers, the most common level, the middle date.

    Missing values are ignored; a column with only missing values has the value None.

    Examples
    --------
    >>> frame = pd.DataFrame({"size": [1.0, 9.0, 2.0], "color": ["red", "blue", "red"]})
    >>> typical_row(frame, {"size": "number", "color": "text"})
    {'size': 2.0, 'color': 'red'}
    """
    row: dict[str, Any] = {}
    for name, kind in kinds.items():
        known = frame[name].dropna()
        if len(known) == 0:
            row[name] = None
        elif kind == "number":
            row[name] = float(np.median(known.to_numpy(dtype=np.float64)))
        elif kind in NAMED_KINDS:
            counts = known.value_counts(sort=False)
            row[name] = counts.index[int(np.argmax(counts.to_numpy()))]
        else:
            row[name] = known.sort_values().iloc[(len(known) - 1) // 2]
    return row
