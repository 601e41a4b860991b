"""The notes of a report: possible problems of a model, each with what to do about it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from twostagegp.report.wording import SLIGHT_DIFFERENCE, chance_range, number, percent, plural

__all__ = ["class_advice", "note", "regression_advice"]

#: Number of test rows below which a report warns that its figures are rough.
FEW_ROWS = 30
#: What to do about a warning of the fit, by a part of its text.
_ADVICE = {
    "The target is constant": "Check that the right column was taken as the target.",
    "No input column varies": "Check that the right columns were taken as inputs.",
    "Fewer than three distinct rows": "Fit on more rows.",
    "takes no sample_weight": "Use a mean model that takes weights, or repeat rows instead.",
}


def note(what: str, todo: str) -> dict[str, str]:
    """Return one note: a finding, and what to do about it."""
    return {"what": what, "do": todo}


def regression_advice(
    report: Any, target: Any, outside: NDArray[np.bool_], messages: list[str]
) -> list[dict[str, str]]:
    """Return the notes about the fit and the test rows of one target.

    Parameters
    ----------
    report : FitReport
        Of the target's fit.
    target : TargetPredictions
    outside : array of shape (n,)
        Test rows outside of the range of the training rows.
    messages : list of str
        Warnings that the prediction raised.
    """
    notes = [note(text, _advice_for(text)) for text in report.warnings]
    notes += _shared_advice(report, target.n, outside, messages)
    inside = int(target.inside(0.95).sum())
    share = percent(inside / target.n, 1)
    low, high = chance_range(target.n, 0.95)
    slight = abs(inside / target.n - 0.95) < SLIGHT_DIFFERENCE
    if inside < low and not slight:
        notes.append(
            note(
                f"The 95 % intervals are too narrow on these rows: {share} of the outcomes lie "
                "inside.",
                "Check whether these rows were drawn like the training rows. Rows that belong "
                "together (one patient, one day) should be held out together: "
                "fit(X, y, groups=...). CVPlusRegressor gives intervals with a guarantee.",
            )
        )
    if inside > high and not slight:
        notes.append(
            note(
                f"The 95 % intervals are wider than needed: {share} of the outcomes lie inside.",
                "This is harmless in most uses. More training rows make the intervals narrower.",
            )
        )
    bias = float(target.residual.mean())
    error = float(target.residual.std()) / np.sqrt(target.n)
    if target.n > 2 and abs(bias) > 3.0 * error > 0.0:
        side = "low" if bias > 0.0 else "high"
        notes.append(
            note(
                f"Predictions are too {side} on average, by {number(abs(bias))} "
                f"(± {number(2 * error)}).",
                "The test rows seem to differ from the training rows: compare how both were "
                "collected, and fit again with rows like these.",
            )
        )
    if report.jitter > 0.0:
        notes.append(
            note(
                f"A matrix was close to singular; {number(report.jitter)} was added to its "
                "diagonal.",
                "This is usually harmless. If predictions look rough, increase noise_floor (1e-6).",
            )
        )
    if report.dtype == "float32":
        notes.append(
            note("The model was fitted in single precision.", "Use dtype='float64' to be safe.")
        )
    return notes


def class_advice(
    report: Any, n: int, outside: NDArray[np.bool_], messages: list[str]
) -> list[dict[str, str]]:
    """Return the notes about the fit and the test rows of a classifier."""
    return _shared_advice(report, n, outside, messages)


def _shared_advice(
    report: Any, n: int, outside: NDArray[np.bool_], messages: list[str]
) -> list[dict[str, str]]:
    """Return the notes that regressors and classifiers have in common."""
    notes = [
        note(text, "Check that these values are right; fit again with rows that have them.")
        for text in messages
    ]
    if report.constant_columns:
        listed = ", ".join(report.constant_columns[:8])
        notes.append(
            note(
                f"Columns with only one distinct value were not used: {listed}"
                + ("…" if len(report.constant_columns) > 8 else "."),
                "If these columns should vary, check how the table was made.",
            )
        )
    if n < FEW_ROWS:
        notes.append(
            note(
                f"There are only {plural(n, 'test row')}: every figure on this page is rough.",
                "Hold out more rows, or repeat the split a few times.",
            )
        )
    share = float(outside.mean())
    if outside.sum() > 1 and share > 0.02:
        notes.append(
            note(
                f"{int(outside.sum())} test rows ({percent(share)}) lie outside the range of the "
                "training rows in some column.",
                "Predictions for these rows are extrapolations and less reliable. Check in the "
                "table of the least certain rows whether the model is uncertain about them.",
            )
        )
    return notes


def _advice_for(text: str) -> str:
    """Return what to do about a warning of the fit."""
    for start, advice in _ADVICE.items():
        if start in text:
            return advice
    return "See docs/troubleshooting.md."
