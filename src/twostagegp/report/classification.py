"""The content of a classifier's report."""

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
from twostagegp.report.class_sections import (
    ClassPredictions,
    bin_rows,
    confidence_gap,
    confusion,
    split_rows,
    tiles,
    trust_pictures,
)
from twostagegp.report.fit_section import outside_training, provenance, search_pictures, timing_rows
from twostagegp.report.input_section import (
    effect_rows,
    rank_by_effect,
    slice_entries,
    slice_features,
    typical_text,
)
from twostagegp.report.page import Picture
from twostagegp.report.predictions import TestRows, read_rows
from twostagegp.report.wording import cell, notes_sentence, number, percent, plural
from twostagegp.search.stages import SearchRecord

__all__ = ["classification_context"]

#: Number of rows in each table of cases.
CASES = 10
#: Number of test rows predicted at a time.
_CHUNK = 1 << 13


def classification_context(model: Any, X: Any, y: Any) -> dict[str, Any]:
    """Return everything that the template of a classifier's page needs."""
    rows = read_rows(model, X, y, classes=True)
    unknown = [label for label in np.unique(rows.y) if label not in set(model.classes_)]
    if unknown:
        raise InputError(
            f"y holds {unknown[0]!r}, which is not one of the {len(model.classes_)} classes of the "
            "fit; remove such rows, or fit again with rows of that class."
        )
    answered, seconds, messages = _predict(model, rows)
    answers = Answers(model)
    order = rank_by_effect(shuffle_effects(answers, rows.frame))
    outside = outside_training(model, encoded_inputs(model, as_given(model, rows.frame)))
    slices = make_slices(answers, rows.frame, slice_features(order))
    report = model.fit_report_
    advice = class_advice(report, answered.n, outside, messages) + _confidence_advice(answered)
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
        "typical": typical_text(slices[0].typical) if slices else "",
        "cases": _cases(answered, rows, order),
        "fit_sentences": _fit_sentences(report),
        "tried": _kernel_rows(model),
        "tried_pictures": _kernel_pictures(model),
        "report_lines": str(report).splitlines(),
        "advice": advice,
        "times": timing_rows(report, seconds, answered.n),
    }
    return {
        "kind": "classification",
        "targets": [target],
        "n_train": report.n_rows,
        "n_test": answered.n,
        "made": provenance(model, report.n_rows, answered.n),
        "estimator": type(model).__name__,
    }


def _predict(model: Any, rows: TestRows) -> tuple[ClassPredictions, float, list[str]]:
    begin = time.perf_counter()
    proba, certain = [], []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for first in range(0, len(rows.frame), _CHUNK):
            part = as_given(model, rows.frame.iloc[first : first + _CHUNK])
            proba.append(model.predict_proba(part))
            certain.append(model.predict_certainty(part))
    seconds = time.perf_counter() - begin
    answered = ClassPredictions(
        rows.y, np.asarray(model.classes_), np.concatenate(proba), np.concatenate(certain)
    )
    return answered, seconds, list(dict.fromkeys(str(each.message) for each in caught))


def headline(a: ClassPredictions, advice: list[Any]) -> list[str]:
    """Return the most important results in a few sentences."""
    right = int(a.right.sum())
    _, counts = np.unique(a.y, return_counts=True)
    sentences = [
        f"The model is right in {right} of {plural(a.n, 'case')} ({percent(right / a.n)}); always "
        f"answering with the most common class would be right in {percent(counts.max() / a.n)}."
    ]
    split = scores.certainty_split(a.y, a.answer, a.certain)
    if 0 < split.n_certain < a.n:
        sentences.append(
            f"It calls {split.n_certain} of its answers certain, and is right in "
            f"{percent(split.accuracy_certain)} of them. Among the other {split.n_uncertain}, "
            f"which are worth a second look, it is right in {percent(split.accuracy_uncertain)}."
        )
    sentences.append(_confidence_sentence(a))
    if advice:
        sentences.append(notes_sentence(len(advice)))
    return sentences


def _confidence_sentence(a: ClassPredictions) -> str:
    gap, error = confidence_gap(a)
    comparison = (
        f"On average it gives its answers a probability of {percent(float(a.confidence.mean()))}, "
        f"and {percent(float(a.right.mean()))} are right"
    )
    if gap > 2.0 * error:
        return f"{comparison}: it is overconfident."
    if gap < -2.0 * error:
        return f"{comparison}: it is underconfident."
    return f"{comparison}: the difference is within what chance allows (± {percent(2.0 * error)})."


def _confidence_advice(a: ClassPredictions) -> list[dict[str, str]]:
    """Return a note if the probabilities are too high."""
    gap, error = confidence_gap(a)
    if gap > 2.0 * error:
        return [
            note(
                f"The probabilities are too high by {percent(gap)} on average on these rows.",
                "Check whether these rows were drawn like the training rows. Rows that belong "
                "together should be held out together: fit(X, y, groups=...).",
            )
        ]
    return []


def _cases(
    a: ClassPredictions, rows: TestRows, order: list[tuple[str, float]]
) -> list[dict[str, Any]]:
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


def _fit_sentences(report: Any) -> list[str]:
    return [
        f"The training table had {plural(report.n_rows, 'row')}, "
        f"{plural(report.n_features, 'column')} in use and "
        f"{plural(report.n_classes, 'class', 'classes')}. Method: {report.method} "
        f"({report.method_reason}).",
        f"Mean of the latent functions: {report.mean}. The weights are those with the best log "
        "loss on held-out training rows.",
        f"Variance of the latent functions: {report.variance}.",
        f"Calibration on held-out training rows: {report.calibration}. Held-out log loss: "
        f"{number(report.log_loss)}.",
    ]


def _kernel_rows(model: Any) -> list[dict[str, str]]:
    """Return the table of the kernels that were tried, by held-out log loss."""
    rows = sorted(_mean_rows(model), key=lambda row: (not np.isfinite(row["score"]), row["score"]))
    return [
        {
            "kernel": row["kernel"],
            "loss": number(row["score"]) if np.isfinite(row["score"]) else "failed",
            "seconds": f"{row['seconds']:.2f}",
        }
        for row in rows[:15]
    ]


def _kernel_pictures(model: Any) -> list[Picture]:
    """Return a picture of the same table if at least two kernels were fitted.

    Kernels that the model uses are drawn in the second colour.
    """
    rows = SearchRecord(_mean_rows(model))
    return search_pictures(rows, "log loss of held-out rows, lower is better")


def _mean_rows(model: Any) -> list[dict[str, Any]]:
    """Return the kernels of the mean, without the suffix of the plain scaling in their labels."""
    return [
        {**row, "kernel": row["kernel"].removesuffix(" (columns)")}
        for row in model.search_
        if row["stage"] == "mean"
    ]
