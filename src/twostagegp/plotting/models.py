"""The ``plot`` method of the estimators: a band, two maps, slices, or predictions and outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from sklearn.utils.validation import check_is_fitted

from twostagegp.errors import InputError
from twostagegp.plotting.classes import plot_class_reliability, plot_risk_coverage
from twostagegp.plotting.inputs import plot_maps, plot_slice, row_positions
from twostagegp.plotting.regression import plot_observed
from twostagegp.plotting.slices.answers import Answers
from twostagegp.plotting.slices.effects import shuffle_effects
from twostagegp.plotting.slices.grids import make_grid
from twostagegp.plotting.slices.slice import grid_rows, make_slices
from twostagegp.plotting.slices.tables import (
    as_given,
    column_kinds,
    column_rules,
    model_frame,
    training_frame,
    typical_row,
)
from twostagegp.plotting.style import INK, LEGEND, new_axes, plain

__all__ = ["plot_model"]

#: Number of slices drawn by default, of points of a fine line, and of values per axis of a map.
SLICES, FINE, SIDE = 4, 241, 45
#: Largest number of rows that are drawn as points.
MOST_POINTS = 1000
#: Number of draws from which the standard deviation of a probability is computed.
_DRAWS = 100


def plot_model(
    model: Any,
    X: Any = None,
    y: Any = None,
    *,
    features: str | Sequence[str] | None = None,
    level: float = 0.95,
    target: int = 0,
    ax: Any = None,
) -> list[Axes]:
    """Draw a fitted model; the ``plot`` method of the estimators documents the parameters."""
    check_is_fitted(model, "fit_report_")
    if not 0.0 < level < 1.0:
        raise InputError(f"level={level!r} must lie between 0 and 1, for example 0.95.")
    if y is not None and X is None:
        raise InputError("y was given without X; call plot(X, y) with the rows of these outcomes.")
    answers = Answers(model, level)
    column = _column(answers, target)
    given = X is not None
    outcome: Any
    if given:
        frame, outcome = model_frame(model, X), None if y is None else np.asarray(y)
    else:
        frame, outcome = training_frame(model)
    if len(frame) == 0 or (outcome is not None and len(outcome) != len(frame)):
        raise InputError(
            f"X has {len(frame)} rows and y has {np.size(outcome)}; give one outcome per row."
        )
    if features is not None:
        names = [features] if isinstance(features, str) else list(features)
        return _slices(answers, frame, names, column, ax)
    if frame.shape[1] == 1:
        return _one_input(answers, frame, outcome, column, given, ax)
    if frame.shape[1] == 2:
        return _two_inputs(answers, frame, target, ax)
    if given and outcome is not None:
        return _against_outcomes(model, frame, outcome, level, target, ax)
    effects = shuffle_effects(answers, frame)
    size = {name: float(np.max(e if column is None else e[column])) for name, e in effects.items()}
    best = sorted(size, key=lambda name: -size[name])[:SLICES]
    return _slices(answers, frame, best, column, ax)


def _column(answers: Answers, target: int) -> int | None:
    """Return which column of the predictions to draw, or None for all classes."""
    if answers.classes is not None:
        return None
    if not 0 <= target < len(answers.names):
        raise InputError(
            f"target={target!r}, but the model has {len(answers.names)} target(s), numbered from 0."
        )
    return target


def _label(answers: Answers) -> str:
    if answers.classes is None:
        return "predicted"
    if len(answers.names) == 1:
        return f"probability of {plain(answers.names[0], 24)}"
    return "probability"


def _slices(
    answers: Answers, frame: pd.DataFrame, names: list[str], column: int | None, ax: Any
) -> list[Axes]:
    slices = make_slices(answers, frame, names)
    if not slices:
        raise InputError(
            f"the features {', '.join(map(repr, names))} have only missing values, so that there "
            "is nothing to draw; choose other features."
        )
    axes = new_axes(len(slices), ax)
    for one, each in zip(slices, axes, strict=True):
        plot_slice(each, one, _label(answers), column)
    return axes


def _one_input(
    answers: Answers, frame: pd.DataFrame, y: Any, column: int | None, given: bool, ax: Any
) -> list[Axes]:
    """Draw the prediction over the range of the rows, and the rows themselves."""
    name = str(frame.columns[0])
    slices = make_slices(answers, frame, [name], FINE)
    if not slices:
        raise InputError(f"{name!r} has only missing values, so that there is nothing to draw.")
    axes = new_axes(1, ax)
    plot_slice(axes[0], slices[0], _label(answers), column)
    if y is None or answers.classes is not None:
        return axes
    at = row_positions(slices[0].grid, frame[name])
    values = np.asarray(y, dtype=np.float64).reshape(len(frame), -1)[:, column or 0]
    rows = np.random.default_rng(0).permutation(len(at))[:MOST_POINTS]
    label = "rows" if given else "training rows"
    axes[0].plot(at[rows], values[rows], "o", color=INK, markersize=3.0, label=label)
    axes[0].legend(loc="best", **LEGEND)
    return axes


def _two_inputs(answers: Answers, frame: pd.DataFrame, target: int, ax: Any) -> list[Axes]:
    """Draw maps of the mean and the standard deviation over both columns."""
    model = answers.model
    kinds, rules = column_kinds(model), column_rules(model)
    first, second = (
        make_grid(str(name), frame[name], kinds[name], rules[name], SIDE) for name in frame.columns
    )
    if not first.values or not second.values:
        raise InputError("a column with only missing values cannot be drawn.")
    pairs = [(a, b) for b in second.values for a in first.values]
    names = list(frame.columns)
    varied = {names[0]: [a for a, _ in pairs], names[1]: [b for _, b in pairs]}
    rows = as_given(model, grid_rows(frame, typical_row(frame, kinds), varied))
    shape = len(second.values), len(first.values)
    middle, spread, titles = _surface(answers, rows, target)
    axes = new_axes(2, ax)
    some = np.random.default_rng(0).permutation(len(frame))[:MOST_POINTS]
    points = (
        row_positions(first, frame[names[0]])[some],
        row_positions(second, frame[names[1]])[some],
    )
    plot_maps(axes, first, second, middle.reshape(shape), spread.reshape(shape), points, titles)
    return axes


def _surface(answers: Answers, rows: Any, target: int) -> tuple[Any, Any, tuple[str, str]]:
    """Return the mean, the standard deviation and the titles of the two maps."""
    model = answers.model
    if answers.classes is None:
        mean, std = (np.asarray(each) for each in model.predict(rows, return_std=True))
        column = (slice(None),) if mean.ndim == 1 else (slice(None), target)
        return mean[column], std[column], ("mean", "standard deviation")
    draws = model.sample_proba(rows, n_samples=_DRAWS, random_state=0)
    proba = model.predict_proba(rows)
    if len(answers.names) == 1:
        return proba[:, 1], draws[..., 1].std(0), (_label(answers), "its standard deviation")
    best = proba.argmax(1)
    spread = draws[:, np.arange(len(best)), best].std(0)
    return proba.max(1), spread, ("probability of the predicted class", "its standard deviation")


def _against_outcomes(
    model: Any, frame: pd.DataFrame, y: Any, level: float, target: int, ax: Any
) -> list[Axes]:
    rows = as_given(model, frame)
    if hasattr(model, "classes_"):
        proba = model.predict_proba(rows)
        axes = new_axes(2, ax)
        bins = int(np.clip(len(frame) // 15, 2, 10))
        plot_class_reliability(axes[0], y, proba, model.classes_, bins)
        plot_risk_coverage(axes[1], y, proba, classes=model.classes_)
        return axes
    some = np.sort(np.random.default_rng(0).permutation(len(frame))[:MOST_POINTS])
    rows = as_given(model, frame.iloc[some])
    values = np.asarray(y, dtype=np.float64).reshape(len(frame), -1)[some, target]
    mean = np.asarray(model.predict(rows)).reshape(len(some), -1)[:, target]
    ends = np.asarray(model.predict_interval(rows, level=level)).reshape(len(some), -1, 2)
    axes = new_axes(1, ax)
    plot_observed(axes[0], values, mean, ends[:, target])
    return axes
