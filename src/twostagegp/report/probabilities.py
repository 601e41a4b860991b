"""What a classifier says about the test rows, and how its probabilities hold."""

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
from twostagegp.report.words import cell, number, percent

__all__ = [
    "Answered",
    "bin_rows",
    "confidence_gap",
    "confusion",
    "split_rows",
    "tiles",
    "trust_pictures",
]

#: Classes up to which the table of confusions is shown.
MOST_CLASSES = 12


@dataclass(frozen=True)
class Answered:
    """What a classifier says about the test rows."""

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


def confidence_gap(a: Answered) -> tuple[float, float]:
    """Mean confidence less accuracy, and its standard error where confidences are right."""
    c = a.confidence
    return float(c.mean() - a.right.mean()), float(np.sqrt((c * (1.0 - c)).sum()) / a.n)


def tiles(a: Answered) -> list[dict[str, str]]:
    """A few large numbers."""
    found = scores.evaluate_classification(a.y, a.proba, a.classes, a.certain)
    return [
        {"value": percent(found["accuracy"], 1), "label": "of answers right (accuracy)"},
        {"value": number(found["log_loss"]), "label": "log loss, less is better"},
        {"value": percent(found["ece"], 1), "label": "calibration error (ECE, 15 bins)"},
        {"value": percent(found["share_certain"]), "label": "of answers called certain"},
        {"value": number(found["aurc"]), "label": "area under risk–coverage"},
    ]


def bin_rows(a: Answered) -> list[dict[str, str]]:
    """The reliability diagram as a table."""
    rows = []
    for each in confidence_bins(a.confidence, a.right, _n_bins(a)):
        share, low, high = each["accuracy"], each["low"], each["high"]
        inside = low - 1e-9 <= share <= high + 1e-9
        rows.append(
            {
                "said": percent(each["confidence"], 1),
                "rows": str(int(each["rows"])),
                "right": percent(share),
                "low": percent(low),
                "high": percent(high),
                "verdict": "holds" if inside else ("too sure" if share < low else "too cautious"),
            }
        )
    return rows


def _n_bins(a: Answered) -> int:
    return int(np.clip(a.n // 15, 2, 10))


def trust_pictures(a: Answered) -> list[Picture]:
    """Reliability diagram and risk–coverage curve."""
    bins = confidence_bins(a.confidence, a.right, _n_bins(a))
    ax = axes()
    plotting.plot_class_reliability(ax, a.y, a.proba, a.classes, _n_bins(a))
    said = "; ".join(
        f"{percent(b['confidence'])} said, {percent(b['accuracy'])} right" for b in bins
    )
    first = picture(
        ax,
        "Do the probabilities hold?",
        f"Share of correct answers against the probability of the predicted class: {said}. Grey "
        "bars show what chance allows.",
    )
    curve = scores.risk_coverage(a.y, a.proba, classes=a.classes)
    ax = axes()
    curve.plot(ax)
    half = float(curve.risk[max(0, a.n // 2 - 1)])
    second = picture(
        ax,
        "Errors, if the least certain are left out",
        f"Error rate against the share of rows answered, most certain first: {percent(half, 1)} at "
        f"half of the rows, {percent(float(curve.risk[-1]), 1)} at all.",
    )
    return [first, second]


def split_rows(a: Answered) -> list[dict[str, str]]:
    """Certain and uncertain answers side by side."""
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
    """A 95 % interval of a share."""
    if n == 0:
        return float("nan"), float("nan")
    found = stats.binomtest(right, n).proportion_ci(0.95, method="wilson")
    return float(found.low), float(found.high)


def confusion(a: Answered) -> dict[str, Any] | None:
    """How often each class was taken for which; None where there are too many classes."""
    if len(a.classes) > MOST_CLASSES:
        return None
    place = {label: k for k, label in enumerate(a.classes)}
    counts = np.zeros((len(place), len(place)), dtype=np.int64)
    np.add.at(counts, ([place[t] for t in a.y], a.proba.argmax(1)), 1)
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return {
        "classes": [cell(label) for label in a.classes],
        "rows": [
            {
                "name": cell(a.classes[i]),
                "cells": [
                    {"count": int(counts[i, j]), "share": percent(share[i, j]),
                     "depth": round(float(share[i, j]) * 40), "right": i == j}
                    for j in range(len(place))
                ],
            }
            for i in range(len(place))
        ],
    }  # fmt: skip
