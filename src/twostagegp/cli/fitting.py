"""The rows and the model of ``twostagegp fit``, and the facts that it prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twostagegp import metrics
from twostagegp.cli.column_types import infer_dates
from twostagegp.cli.options import nearest
from twostagegp.cli.source import Source
from twostagegp.errors import InputError
from twostagegp.estimators.classifier import TwoStageGPClassifier
from twostagegp.estimators.regressor import TwoStageGPRegressor

__all__ = [
    "TrainingRows",
    "calibration_option",
    "column_hints",
    "held_out_scores",
    "make_model",
    "numeric_target",
    "report_of",
    "rows_for_fit",
    "without_gaps",
]


@dataclass(frozen=True)
class TrainingRows:
    """The arguments of ``fit``.

    Attributes
    ----------
    X : DataFrame
    y : array of shape (n,)
    classify : bool
    extra : dict
        Groups and weights.
    dates : list of str
        Text columns that were read as dates.
    """

    X: pd.DataFrame
    y: NDArray[Any]
    classify: bool
    extra: dict[str, Any] = field(default_factory=dict)
    dates: list[str] = field(default_factory=list)


def rows_for_fit(
    source: Source,
    target: str,
    *,
    groups: str | None = None,
    weights: str | None = None,
    drop: Sequence[str] = (),
    category: Sequence[str] = (),
    drop_gaps: bool = False,
    classify: bool | None = None,
) -> TrainingRows:
    """Read a file and split it into inputs, target, groups and weights."""
    source.require([target], "--target")
    for name, what in ((groups, "--groups"), (weights, "--weights")):
        if name is not None:
            source.require([name], what)
    source.require(drop, "--drop")
    source.require(category, "--category")
    if target in drop:
        raise InputError(f"the target {target!r} cannot be dropped.")
    not_inputs = {target, groups, weights, *drop}
    inputs = [name for name in source.names if name not in not_inputs]
    if not inputs:
        raise InputError(f"{source.path} has no input column left to predict {target!r} from.")
    row_columns = [name for name in (groups, weights) if name is not None]
    wanted = list(dict.fromkeys([*inputs, target, *row_columns]))
    frame = source.read(wanted, as_text=[name for name in category if name in wanted])
    frame = without_gaps(frame, target, source, drop_gaps)
    X = frame[inputs].copy()
    for name in category:
        if name in X.columns:
            X[name] = X[name].astype("category")
    dates = infer_dates(X)
    y = frame[target]
    classes = _holds_classes(y) if classify is None else classify
    extra: dict[str, Any] = {}
    if groups is not None:
        extra["groups"] = _group_labels(frame[groups], source)
    if weights is not None:
        extra["sample_weight"] = numeric_target(frame[weights], source, "--weights")
    labels = _labels(y) if classes else numeric_target(y, source, "--target")
    return TrainingRows(X, labels, classes, extra, dates)


def without_gaps(frame: pd.DataFrame, target: str, source: Source, drop_gaps: bool) -> pd.DataFrame:
    """Return the rows with a target; raise if some have none and ``drop_gaps`` is False."""
    gaps = frame[target].isna()
    if not gaps.any():
        return frame
    if not drop_gaps:
        raise InputError(
            f"{source.path}: the target {target!r} is missing in {int(gaps.sum()):,} of "
            f"{len(frame):,} rows, the first is row {int(gaps.to_numpy().argmax()) + 1}. "
            "--drop-missing-target leaves such rows out."
        )
    if gaps.all():
        raise InputError(f"{source.path}: the target {target!r} is missing in every row.")
    return frame.loc[~gaps].reset_index(drop=True)


def _holds_classes(y: pd.Series) -> bool:
    kinds = pd.api.types
    if isinstance(y.dtype, pd.CategoricalDtype) or kinds.is_bool_dtype(y.dtype):
        return True
    return not kinds.is_numeric_dtype(y.dtype)


def _labels(y: pd.Series) -> NDArray[Any]:
    """Return class labels as an array of one type."""
    values = y.astype(object).to_numpy()
    kinds = {type(value) for value in values}
    if kinds <= {bool, np.bool_}:
        return values.astype(bool)
    if all(issubclass(kind, int | float | np.number) for kind in kinds):
        numbers = values.astype(np.float64)
        whole = bool((numbers == np.rint(numbers)).all())
        return numbers.astype(np.int64) if whole else numbers
    return np.array([str(value) for value in values])


def numeric_target(y: pd.Series, source: Source, option: str) -> NDArray[Any]:
    """Return a column as float64, or raise InputError with the first other value."""
    try:
        if pd.api.types.is_datetime64_any_dtype(y.dtype):
            raise ValueError
        return y.to_numpy(dtype=np.float64, na_value=np.nan)
    except (ValueError, TypeError):
        seen = next(value for value in y if not isinstance(value, int | float))
        hint = " --classify treats it as classes." if option == "--target" else ""
        raise InputError(
            f"{source.path}: column {y.name!r} ({option}) must contain numbers, but contains "
            f"{seen!r}.{hint}"
        ) from None


def _group_labels(series: pd.Series, source: Source) -> NDArray[Any]:
    if series.isna().any():
        row = int(series.isna().to_numpy().argmax()) + 1
        raise InputError(f"{source.path}: column {series.name!r} (--groups) is empty in row {row}.")
    return np.array([str(value) for value in series])


def make_model(classify: bool, method: str, seed: int, options: Mapping[str, Any]) -> Any:
    """Return an estimator after checking the parameter names; ``fit`` checks their values."""
    kind: Any = TwoStageGPClassifier if classify else TwoStageGPRegressor
    known = sorted(kind().get_params())
    for name in options:
        if name not in known:
            raise InputError(
                f"--option {name}=…: {kind.__name__} has no parameter {name!r}."
                f"{nearest(name, known)} It has {', '.join(known)}."
            )
    return kind(**{"method": method, "random_state": seed, **options})


def calibration_option(
    calibrate_by: str | None, data: TrainingRows, source: Source
) -> dict[str, Any]:
    """Return the parameter of the estimator that ``--calibrate-by`` stands for."""
    if calibrate_by is None:
        return {}
    if data.classify:
        raise InputError("--calibrate-by is about intervals; a classifier has none.")
    source.require([calibrate_by], "--calibrate-by")
    if calibrate_by not in data.X.columns:
        raise InputError(
            f"--calibrate-by {calibrate_by}: this column is no input, but the target, dropped, or "
            "that of --groups or --weights. Name an input column."
        )
    return {"calibrate_by": calibrate_by}


@contextmanager
def column_hints() -> Iterator[None]:
    """Add to errors about a column which options of the command line may help."""
    try:
        yield
    except InputError as error:
        if not str(error).startswith("column "):
            raise
        raise InputError(
            f"{error} On the command line: --drop leaves a column out, --category treats it as "
            "categories."
        ) from error


def report_of(model: Any) -> dict[str, Any]:
    """Return the fields of the fit report that apply, without the lists of all candidates."""
    report = model.fit_report_.to_dict().items()
    return {name: value for name, value in report if value is not None and "candidates" not in name}


def held_out_scores(model: Any) -> dict[str, float]:
    """Return scores of training rows that were held out during the fit, in the user's units.

    The model was chosen and calibrated by these scores, so new rows will be predicted a little
    worse.
    """
    if hasattr(model, "predict_proba"):
        return {"log loss": float(model.fit_report_.log_loss)}
    calibration, weight = model.calibration_, model.calibration_.weight
    scores: dict[str, float] = {}
    residuals = np.asarray(getattr(model.mean_, "heldout_residuals", ()), dtype=np.float64)
    if len(residuals) == len(weight) and len(weight):
        scale = model.fitted_.data[0].scaling.y_scale
        scores["RMSE"] = float(scale * np.sqrt(weight @ residuals**2 / weight.sum()))
    if len(weight) and calibration.kind != "none":
        pit = np.clip(calibration.pit_after, 0.0, 1.0)
        inside = (pit >= 0.025) & (pit <= 0.975)
        scores["coverage of 95 % intervals"] = float(weight @ inside / weight.sum())
        scores["QICE %"] = metrics.qice(pit=pit)
        scores["QICE % of a perfect model"] = metrics.qice_floor(len(pit))
    return scores
