"""The page of a classifier."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np

from twostagegp.errors import InputError
from twostagegp.estimators.prediction import encoded_inputs
from twostagegp.metrics import classification as scores
from twostagegp.plotting.slices import Answers, make_slices, shuffle_effects
from twostagegp.plotting.slices.tables import as_given
from twostagegp.report.advice import class_advice, note
from twostagegp.report.cases import MOST_INPUTS, case_table
from twostagegp.report.facts import TestRows, read_rows
from twostagegp.report.fitted import made_by, outside_training, search_pictures, time_rows
from twostagegp.report.inputs import (
    effect_rows,
    ranked,
    slice_entries,
    slice_features,
    typical_words,
)
from twostagegp.report.page import Picture
from twostagegp.report.probabilities import (
    Answered,
    bin_rows,
    confidence_gap,
    confusion,
    split_rows,
    tiles,
    trust_pictures,
)
from twostagegp.report.words import cell, number, percent, plural
from twostagegp.search.stages import SearchRecord

__all__ = ["classification_context"]

CASES = 10
_CHUNK = 1 << 13


def classification_context(model: Any, X: Any, y: Any) -> dict[str, Any]:
    """Everything that the template of a classifier's page needs."""
    rows = read_rows(model, X, y, classes=True)
    strange = [label for label in np.unique(rows.y) if label not in set(model.classes_)]
    if strange:
        raise InputError(
            f"y holds {strange[0]!r}, which is not one of the {len(model.classes_)} classes of the "
            "fit; leave such rows out, or fit again with rows of that class."
        )
    answered, seconds, met = _ask(model, rows)
    answers = Answers(model)
    order = ranked(shuffle_effects(answers, rows.frame))
    outside = outside_training(model, encoded_inputs(model, as_given(model, rows.frame)))
    slices = make_slices(answers, rows.frame, slice_features(order))
    report = model.fit_report_
    advice = class_advice(report, answered.n, outside, met) + _trust(answered)
    label = "probability"
    if len(answers.names) == 1:
        label = f"probability of {cell(answers.names[0])}"
    target = {
        "id": "",
        "name": rows.targets[0],
        "headline": headline(answered, advice),
        "tiles": tiles(answered),
        "trust": trust_pictures(answered),
        "bins": bin_rows(answered),
        "split": split_rows(answered),
        "confusion": confusion(answered),
        "effects": effect_rows(order, classes=True),
        "slices": slice_entries(slices, answers, label),
        "typical": typical_words(slices[0].typical) if slices else "",
        "cases": _cases(answered, rows, order),
        "fit_words": _fit_words(report),
        "tried": _tried(model),
        "tried_pictures": _tried_pictures(model),
        "report_lines": str(report).splitlines(),
        "advice": advice,
        "times": time_rows(report.seconds, seconds, answered.n),
    }
    return {
        "kind": "classification",
        "targets": [target],
        "n_train": report.n_rows,
        "n_test": answered.n,
        "made": made_by(model, report.n_rows, answered.n),
        "estimator": type(model).__name__,
    }


def _ask(model: Any, rows: TestRows) -> tuple[Answered, float, list[str]]:
    begin = time.perf_counter()
    proba, certain = [], []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for first in range(0, len(rows.frame), _CHUNK):
            part = as_given(model, rows.frame.iloc[first : first + _CHUNK])
            proba.append(model.predict_proba(part))
            certain.append(model.predict_certainty(part))
    seconds = time.perf_counter() - begin
    answered = Answered(
        rows.y, np.asarray(model.classes_), np.concatenate(proba), np.concatenate(certain)
    )
    return answered, seconds, list(dict.fromkeys(str(each.message) for each in caught))


def headline(a: Answered, advice: list[Any]) -> list[str]:
    """The page in a few sentences."""
    right = int(a.right.sum())
    _, counts = np.unique(a.y, return_counts=True)
    words = [
        f"The model is right in {right} of {plural(a.n, 'case')} ({percent(right / a.n)}); always "
        f"answering with the most common class would be right in {percent(counts.max() / a.n)}."
    ]
    split = scores.certainty_split(a.y, a.answer, a.certain)
    if 0 < split.n_certain < a.n:
        words.append(
            f"It calls {split.n_certain} of its answers certain, and is right in "
            f"{percent(split.accuracy_certain)} of them. Among the other {split.n_uncertain}, "
            f"which are worth a second look, it is right in {percent(split.accuracy_uncertain)}."
        )
    words.append(_confidence_words(a))
    if advice:
        words.append(f"There {'is' if len(advice) == 1 else 'are'} {plural(len(advice), 'note')} "
                     "to read before using the model.")  # fmt: skip
    return words


def _confidence_words(a: Answered) -> str:
    gap, error = confidence_gap(a)
    said = (
        f"On average it gives its answer a probability of {percent(float(a.confidence.mean()))}, "
        f"and {percent(float(a.right.mean()))} are right"
    )
    if gap > 2.0 * error:
        return f"{said}: it is too sure of itself."
    if gap < -2.0 * error:
        return f"{said}: it is less sure than it could be."
    return f"{said}: within what chance allows (± {percent(2.0 * error)}), the probabilities hold."


def _trust(a: Answered) -> list[dict[str, str]]:
    gap, error = confidence_gap(a)
    if gap > 2.0 * error:
        return [
            note(
                f"The probabilities are too high by {percent(gap)} on average on these rows.",
                "Were these rows drawn like the training rows? Rows that belong together should "
                "be held out together: fit(X, y, groups=...).",
            )
        ]
    return []


def _cases(a: Answered, rows: TestRows, order: list[tuple[str, float]]) -> list[dict[str, Any]]:
    by_confidence = np.argsort(a.confidence, kind="stable")
    wrong = by_confidence[::-1][~a.right[by_confidence[::-1]]]
    inputs = rows.frame[[name for name, _ in order]]
    rest = f"; the {MOST_INPUTS} most important inputs" if inputs.shape[1] > MOST_INPUTS else ""
    groups = [
        (by_confidence[:CASES], "least certain test rows, least certain first"),
        (by_confidence[::-1][:CASES], "most certain test rows, most certain first"),
        (wrong[:CASES], "wrong answers that the model was most sure of"),
    ]
    heads = ("row", "answer", "its probability", "truth")
    tables = []
    for which, text in groups:
        if len(which) == 0:
            continue
        facts = [
            [
                (rows.labels[i], None),
                (cell(a.answer[i]), None),
                (percent(a.confidence[i]), float(a.confidence[i])),
                (cell(a.y[i]) + ("" if a.right[i] else " (wrong)"), None),
            ]
            for i in which
        ]
        caption = f"The {len(which)} {text}{rest}."
        tables.append(case_table(caption, heads, facts, inputs.iloc[which]))
    return tables


def _fit_words(report: Any) -> list[str]:
    return [
        f"The training table had {plural(report.n_rows, 'row')}, "
        f"{plural(report.n_features, 'column')} in use and "
        f"{plural(report.n_classes, 'class', 'classes')}. Method: {report.method} "
        f"({report.method_reason}).",
        f"What is most probable comes from: {report.mean}. The weights are those that gave "
        "held-out training rows the best log loss.",
        f"How sure the model is comes from: {report.variance}.",
        f"Calibration on held-out training rows: {report.calibration}. Held-out log loss: "
        f"{number(report.log_loss)}.",
    ]


def _tried(model: Any) -> list[dict[str, str]]:
    """Kernels that were tried, by held-out log loss."""
    rows = sorted(_mean_rows(model), key=lambda row: (not np.isfinite(row["score"]), row["score"]))
    return [
        {
            "kernel": row["kernel"],
            "loss": number(row["score"]) if np.isfinite(row["score"]) else "failed",
            "seconds": f"{row['seconds']:.2f}",
        }
        for row in rows[:15]
    ]


def _tried_pictures(model: Any) -> list[Picture]:
    """The same as a picture, where there was a choice; kernels in use in the second colour."""
    rows = SearchRecord(_mean_rows(model))
    return search_pictures(rows, "log loss of held-out rows, less is better")


def _mean_rows(model: Any) -> list[dict[str, Any]]:
    """Kernels of the mean, with the suffix of the plain scaling removed from their labels."""
    return [
        {**row, "kernel": row["kernel"].removesuffix(" (columns)")}
        for row in model.search_
        if row["stage"] == "mean"
    ]
