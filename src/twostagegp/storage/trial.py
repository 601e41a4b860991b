"""A first prediction of a loaded model, which finds parts that do not fit each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from twostagegp.errors import ModelFileError
from twostagegp.estimators.prediction import summary

__all__ = ["check_predictions"]


def check_predictions(model: Any) -> None:
    """Raise ModelFileError unless a model predicts three rows, with finite results.

    Three, because arrays of a wrong shape often work for one row.
    """
    encoder = getattr(getattr(model, "estimator_", model), "columns_", None)
    rows = _rows(model, encoder)
    if hasattr(model, "predict_proba"):
        answers = [model.predict_proba(rows)]
        shape: tuple[int, ...] = (3, len(model.classes_))
    elif hasattr(model, "estimators_"):  # the estimators of the folds are used for intervals only
        answers, shape = [model.predict(rows), model.predict_interval(rows, 0.5)[:, 0]], (3,)
    else:
        mean, std, quantiles = summary(model, rows, np.array([0.1, 0.9]))
        answers = [mean, std, quantiles[..., 0], quantiles[..., 1]]
        shape = (3, *mean.shape[1:])
    if encoder is not None:
        for rule in encoder.rules_:
            rule.told.clear()  # warnings about these rows do not count as given
    if not all(each.shape == shape and np.isfinite(each).all() for each in answers):
        raise ModelFileError("its predictions have another shape or are not finite.")


def _rows(model: Any, encoder: Any) -> Any:
    """Return three rows like those that a model was fitted to."""
    if encoder is not None and not encoder.plain:
        return encoder.inverse_transform(np.zeros((3, len(encoder.names))))
    numbers = np.repeat([[0.0], [1.0], [-1.0]], model.n_features_in_, axis=1)
    names = getattr(model, "feature_names_in_", None)
    return numbers if names is None else pd.DataFrame(numbers, columns=names)
