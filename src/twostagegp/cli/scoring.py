"""Scores of a saved model on a file, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from twostagegp import metrics
from twostagegp.cli.models import SavedModel
from twostagegp.cli.output import Progress
from twostagegp.cli.source import Source
from twostagegp.errors import InputError
from twostagegp.estimators.prediction import summary

__all__ = ["all_rows", "score_file", "target_of"]

#: Rows at a time; each row has one quantile per level of the CRPS.
_ROWS = 5000
#: Levels of the quantiles whose mean pinball loss is the CRPS.
_LEVELS = (np.arange(999) + 0.5) / 999.0


def target_of(saved: SavedModel, source: Source, given: str | None) -> str:
    """Return the name of the column with the outcomes."""
    name = given or saved.target
    if name is None:
        raise InputError(f"{saved.path} does not store the name of its target; give --target.")
    source.require([name], "--target" if given else "the target of the fit")
    return name


def score_file(
    saved: SavedModel, source: Source, target: str, drop_gaps: bool, tell: Progress
) -> tuple[int, dict[str, float]]:
    """Return the number of rows, and the scores by name."""
    parts: list[dict[str, Any]] = []
    rows = 0
    of = _class_part if saved.is_classifier else _part
    for X, y, done in _scored_rows(saved, source, target, drop_gaps):
        parts.append(of(saved.model, X, y))
        rows += len(y)
        tell(done, rows)
    joined = {
        name: np.concatenate([part[name] for part in parts]) for name in parts[0] if name != "crps"
    }
    if saved.is_classifier:
        return rows, metrics.evaluate_classification(
            joined["y"], joined["P"], saved.model.classes_, joined["certain"]
        )
    return rows, _scores(joined, parts)


def all_rows(
    saved: SavedModel, source: Source, target: str, drop_gaps: bool
) -> tuple[Any, pd.Series]:
    """Return the inputs and outcomes of a whole file."""
    parts = list(_scored_rows(saved, source, target, drop_gaps))
    inputs = [X for X, _, _ in parts]
    framed = isinstance(inputs[0], pd.DataFrame)
    X = pd.concat(inputs, ignore_index=True) if framed else np.concatenate(inputs)
    return X, pd.Series(np.concatenate([y for _, y, _ in parts]), name=target)


def _scored_rows(
    saved: SavedModel, source: Source, target: str, drop_gaps: bool
) -> Iterator[tuple[Any, Any, float]]:
    """Yield inputs and outcomes of a chunk, and the share of the file that has been read."""
    rows = 0
    for chunk in saved.rows(source, _ROWS, rest=[target]):
        X, column = chunk.X, chunk.rest[target]
        gaps = column.isna().to_numpy()
        if gaps.any() and not drop_gaps:
            raise InputError(
                f"{source.path}: the target {target!r} is missing in row "
                f"{chunk.first + int(gaps.argmax()) + 1}. --drop-missing-target leaves such "
                "rows out."
            )
        if gaps.all():
            continue
        y = saved.outcomes(column[~gaps], chunk.first, source.decimal)
        rows += len(y)
        yield X.loc[~gaps] if isinstance(X, pd.DataFrame) else X[~gaps], y, chunk.done
    if not rows:
        raise InputError(f"{source.path}: the target {target!r} is missing in every row.")


def _class_part(model: Any, X: Any, y: Any) -> dict[str, Any]:
    return {"y": y, "P": model.predict_proba(X), "certain": model.predict_certainty(X)}


def _part(model: Any, X: Any, y: Any) -> dict[str, Any]:
    if not hasattr(model, "predict_quantiles"):  # CVPlusRegressor
        return {"y": y, "mean": model.predict(X), "ends": model.predict_interval(X, 0.95)}
    five = metrics.PINBALL_LEVELS
    mean, std, quantiles = summary(model, X, np.array([0.025, 0.975, *five, *_LEVELS]))
    return {
        "y": y,
        "mean": mean,
        "std": std,
        "ends": quantiles[:, :2],
        "quantiles": quantiles[:, 2 : 2 + len(five)],
        "pit": model.predict_pit(X, y),
        "density": model.predict_logpdf(X, y),
        "crps": metrics.crps_from_quantiles(y, quantiles[:, 2 + len(five) :], _LEVELS),
    }


def _scores(joined: dict[str, Any], parts: list[dict[str, Any]]) -> dict[str, float]:
    """Return the scores of a regressor, of its predictive distribution if it has one."""
    y, ends = joined["y"], joined["ends"]
    own = {
        "coverage": metrics.coverage(y, interval=ends),
        "interval_width": metrics.interval_width(y, interval=ends),
    }
    if "std" not in joined:
        return {"rmse": metrics.rmse(y, joined["mean"]), **own}
    scores = metrics.evaluate(y, joined["mean"], joined["std"])
    gaussian = scores.pop("nlpd")
    scores |= own
    scores["pinball"] = metrics.pinball(y, joined["quantiles"], metrics.PINBALL_LEVELS)
    scores["qice"] = metrics.qice(pit=joined["pit"])
    rows = [len(part["y"]) for part in parts]
    scores["crps"] = float(np.average([part["crps"] for part in parts], weights=rows))
    first = {"rmse": scores.pop("rmse"), "nlpd": -float(joined["density"].mean())}
    return {**first, "nlpd_gaussian": gaussian, **scores}
