"""A classifier's predictions for the test rows, and the sections on its probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from twostagegp import plotting
from twostagegp.metrics import classification as scores
from twostagegp.plotting.classes import confidence_bins
from twostagegp.report.figures import axes, picture
from twostagegp.report.page import Picture
from twostagegp.report.wording import cell, number, percent

__all__ = [
    "ClassPredictions",
    "bin_rows",
    "confidence_gap",
    "confusion",
    "split_rows",
    "tiles",
    "trust_pictures",
]

#: Largest number of classes for which the confusion matrix is shown.
MOST_CLASSES = 12


@dataclass(frozen=True)
class ClassPredictions:
    """Labels, predicted probabilities and certainty flags of the test rows."""

    y: NDArray[Any]
    classes: NDArray[Any]
    proba: NDArray[np.float64]
    certain: NDArray[np.bool_]

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def answer(self) -> NDArray[Any]:
        return np.asarray(self.classes[self.proba.argmax(1)])

    @property
    def confidence(self) -> NDArray[np.float64]:
        top: NDArray[np.float64] = self.proba.max(1)
        return top

    @property
    def right(self) -> NDArray[np.bool_]:
        return np.asarray(self.answer == self.y)


def confidence_gap(a: ClassPredictions) -> tuple[float, float]:
    """Return the mean confidence minus the accuracy, and its standard error under calibration."""
    c = a.confidence
    return float(c.mean() - a.right.mean()), float(np.sqrt((c * (1.0 - c)).sum()) / a.n)


def tiles(a: ClassPredictions) -> list[dict[str, str]]:
    """Return the scores that are shown in large type at the top."""
    score = scores.evaluate_classification(a.y, a.proba, a.classes, a.certain)
    return [
        {"value": percent(score["accuracy"], 1), "label": "of answers right (accuracy)"},
        {"value": number(score["log_loss"]), "label": "log loss, lower is better"},
        {"value": percent(score["ece"], 1), "label": "calibration error (ECE, 15 bins)"},
        {"value": percent(score["share_certain"]), "label": "of answers called certain"},
        {"value": number(score["aurc"]), "label": "area under the risk–coverage curve"},
    ]


def bin_rows(a: ClassPredictions) -> list[dict[str, str]]:
    """Return the reliability diagram as a table."""
    rows = []
    for each in confidence_bins(a.confidence, a.right, _n_bins(a)):
        share, low, high = each["accuracy"], each["low"], each["high"]
        rows.append(
            {
                "confidence": percent(each["confidence"], 1),
                "rows": str(int(each["rows"])),
                "right": percent(share),
                "low": percent(low),
                "high": percent(high),
                "verdict": _bin_verdict(share, low, high),
            }
        )
    return rows


def _bin_verdict(share: float, low: float, high: float) -> str:
    if low - 1e-9 <= share <= high + 1e-9:
        return "as expected"
    return "overconfident" if share < low else "underconfident"


def _n_bins(a: ClassPredictions) -> int:
    return int(np.clip(a.n // 15, 2, 10))


def trust_pictures(a: ClassPredictions) -> list[Picture]:
    """Return the reliability diagram and the risk–coverage curve."""
    bins = confidence_bins(a.confidence, a.right, _n_bins(a))
    ax = axes()
    plotting.plot_class_reliability(ax, a.y, a.proba, a.classes, _n_bins(a))
    listed = "; ".join(
        f"{percent(b['confidence'])} predicted, {percent(b['accuracy'])} right" for b in bins
    )
    first = picture(
        ax,
        "Are the probabilities right?",
        f"Share of correct answers against the probability of the predicted class: {listed}. Grey "
        "bars show what chance allows.",
    )
    curve = scores.risk_coverage(a.y, a.proba, classes=a.classes)
    ax = axes()
    curve.plot(ax)
    half = float(curve.risk[max(0, a.n // 2 - 1)])
    second = picture(
        ax,
        "Error rate if the least certain rows are left out",
        f"Error rate against the share of rows kept, most certain first: {percent(half, 1)} for "
        f"half of the rows, {percent(float(curve.risk[-1]), 1)} for all.",
    )
    return [first, second]


def split_rows(a: ClassPredictions) -> list[dict[str, str]]:
    """Return the table of certain, uncertain and all answers with their accuracy."""
    rows = []
    for name, flags in (
        ("certain", a.certain),
        ("uncertain", ~a.certain),
        ("all", a.certain | True),
    ):
        n = int(flags.sum())
        right = int(a.right[flags].sum())
        low, high = _wilson(right, n)
        rows.append(
            {
                "name": name,
                "rows": str(n),
                "right": percent(right / n, 1) if n else "–",
                "range": f"{percent(low)} to {percent(high)}" if n else "–",
            }
        )
    return rows


def _wilson(right: int, n: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share."""
    if n == 0:
        return float("nan"), float("nan")
    interval = stats.binomtest(right, n).proportion_ci(0.95, method="wilson")
    return float(interval.low), float(interval.high)


def confusion(a: ClassPredictions) -> dict[str, Any] | None:
    """Return the confusion matrix, or None if there are too many classes to show it."""
    if len(a.classes) > MOST_CLASSES:
        return None
    n_classes = len(a.classes)
    code = {label: k for k, label in enumerate(a.classes)}
    counts = np.zeros((n_classes, n_classes), dtype=np.int64)
    np.add.at(counts, ([code[label] for label in a.y], a.proba.argmax(1)), 1)
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return {
        "classes": [cell(label) for label in a.classes],
        "rows": [
            {
                "name": cell(a.classes[i]),
                "cells": [
                    {"count": int(counts[i, j]), "share": percent(share[i, j]),
                     "depth": round(float(share[i, j]) * 40), "right": i == j}
                    for j in range(n_classes)
                ],
            }
            for i in range(n_classes)
        ],
    }  # fmt: skip
