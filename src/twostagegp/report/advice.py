"""What a reader should know before trusting the model, and what to do about each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from twostagegp.report.words import SLIGHT, chance_range, number, percent, plural

__all__ = ["class_advice", "note", "regression_advice"]

#: Test rows below which a page says that it is guessing.
FEW_ROWS = 30
_EXPLAINED = {
    "The target is constant": "Check that the right column was taken as the target.",
    "No input column varies": "Check that the right columns were taken as inputs.",
    "Fewer than three distinct rows": "Fit on more rows.",
    "takes no sample_weight": "Use a mean model that takes weights, or repeat rows instead.",
}


def note(what: str, todo: str) -> dict[str, str]:
    """One finding and the way out."""
    return {"what": what, "do": todo}


def regression_advice(
    report: Any, one: Any, outside: NDArray[np.bool_], met: list[str]
) -> list[dict[str, str]]:
    """Findings about the fit and the test rows of one target."""
    found = [note(text, _explained(text)) for text in report.warnings]
    found += _common(report, one.n, outside, met)
    inside = int(one.inside(0.95).sum())
    low, high = chance_range(one.n, 0.95)
    slight = abs(inside / one.n - 0.95) < SLIGHT
    if inside < low and not slight:
        found.append(
            note(
                f"The 95 % intervals are too narrow on these rows: {percent(inside / one.n, 1)} "
                "of the outcomes lie inside.",
                "Were these rows drawn like the training rows? Rows that belong together (one "
                "patient, one day) should be held out together: fit(X, y, groups=...). "
                "CVPlusRegressor gives intervals with a guarantee.",
            )
        )
    if inside > high and not slight:
        found.append(
            note(
                f"The 95 % intervals are wider than needed: {percent(inside / one.n, 1)} of the "
                "outcomes lie inside.",
                "No harm in most uses. More training rows make them narrower.",
            )
        )
    bias, error = float(one.residual.mean()), float(one.residual.std()) / np.sqrt(one.n)
    if one.n > 2 and abs(bias) > 3.0 * error > 0.0:
        side = "low" if bias > 0.0 else "high"
        found.append(
            note(
                f"Predictions are too {side} on average, by {number(abs(bias))} "
                f"(± {number(2 * error)}).",
                "The test rows seem to differ from the training rows: compare how both were "
                "collected, and fit again with rows like these.",
            )
        )
    if report.jitter > 0.0:
        found.append(
            note(
                f"A matrix was close to singular; {number(report.jitter)} was added to its "
                "diagonal.",
                "Usually harmless. If predictions look rough, raise noise_floor (1e-6).",
            )
        )
    if report.dtype == "float32":
        found.append(
            note("The model was fitted in single precision.", "Use dtype='float64' to be safe.")
        )
    return found


def class_advice(
    report: Any, n: int, outside: NDArray[np.bool_], met: list[str]
) -> list[dict[str, str]]:
    """Findings about the fit and the test rows of a classifier."""
    return _common(report, n, outside, met)


def _common(
    report: Any, n: int, outside: NDArray[np.bool_], met: list[str]
) -> list[dict[str, str]]:
    found = [
        note(text, "Check that these values are right; fit again with rows that have them.")
        for text in met
    ]
    if report.constant_columns:
        listed = ", ".join(report.constant_columns[:8])
        found.append(
            note(
                f"Columns with one value only were not used: {listed}"
                + ("…" if len(report.constant_columns) > 8 else "."),
                "Nothing, unless they should vary: then check how the table was made.",
            )
        )
    if n < FEW_ROWS:
        found.append(
            note(
                f"There are only {plural(n, 'test row')}: every figure on this page is rough.",
                "Hold out more rows, or repeat the split a few times.",
            )
        )
    share = float(outside.mean())
    if outside.sum() > 1 and share > 0.02:
        found.append(
            note(
                f"{int(outside.sum())} test rows ({percent(share)}) lie outside the range of the "
                "training rows in some column.",
                "Trust predictions there less: they rest on what is known far away. The tables of "
                "uncertain cases show whether the model knows.",
            )
        )
    return found


def _explained(text: str) -> str:
    for start, advice in _EXPLAINED.items():
        if start in text:
            return advice
    return "See docs/troubleshooting.md."
