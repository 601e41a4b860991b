"""The page of a regressor: one set of sections for each target."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from twostagegp import metrics, plotting
from twostagegp.estimators.prediction import encoded_inputs
from twostagegp.plotting.inputs import name_axis, row_places
from twostagegp.plotting.slices import Answers, make_grid, make_slices, shuffle_effects
from twostagegp.plotting.slices.tables import as_given, column_kinds, column_rules
from twostagegp.plotting.style import plain
from twostagegp.report.advice import regression_advice
from twostagegp.report.cases import MOST_INPUTS, regression_cases
from twostagegp.report.facts import Predicted, TestRows, predict_rows, read_rows, thin
from twostagegp.report.figures import axes, picture
from twostagegp.report.fitted import (
    fit_words,
    kernel_check,
    made_by,
    outside_training,
    search_pictures,
    search_table,
    time_rows,
)
from twostagegp.report.inputs import (
    effect_rows,
    ranked,
    slice_entries,
    slice_features,
    typical_words,
)
from twostagegp.report.page import Picture
from twostagegp.report.scatter import scatter
from twostagegp.report.words import chance_range, coverage_words, number, percent, plural

__all__ = ["regression_context"]

#: Rows of each table of cases, points of a picture of residuals, rows of the table of levels.
CASES, RESIDUAL_POINTS = 8, 800
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)


def regression_context(model: Any, X: Any, y: Any) -> dict[str, Any]:
    """Everything that the template of a regressor's page needs."""
    rows = read_rows(model, X, y, classes=False)
    predicted, seconds, met = predict_rows(model, rows)
    answers = Answers(model)
    effects = shuffle_effects(answers, rows.frame)
    outside = outside_training(model, encoded_inputs(model, as_given(model, rows.frame)))
    several = len(predicted) > 1
    reports = [model.fit_report_] if model.fitted_.is_1d else model.fit_report_
    searches = [model.search_] if model.fitted_.is_1d else model.search_
    targets = []
    for j, one in enumerate(predicted):
        report = reports[j]
        order = ranked(effects, j)
        advice = regression_advice(report, one, outside, met)
        check_text, check_pictures = kernel_check(model, j)
        targets.append(
            {
                "id": f"t{j + 1}-" if several else "",
                "name": one.name,
                "headline": headline(model, j, one, advice),
                "tiles": tiles(one),
                "scatter": scatter(one, rows.labels),
                "levels": level_table(one),
                "calibration": calibration_pictures(one),
                "calibration_words": calibration_words(one),
                "effects": effect_rows(order, classes=False),
                **_slices(answers, rows, order, one.name, j),
                "cases": _cases(one, rows, order),
                "residuals": residual_pictures(model, one, rows, order),
                "fit_words": fit_words(report, searches[j]),
                "search_pictures": search_pictures(searches[j]),
                "searches": [
                    {"stage": stage, "rows": search_table(searches[j], stage)}
                    for stage in dict.fromkeys(row["stage"] for row in searches[j])
                ],
                "check_text": check_text,
                "check_pictures": check_pictures,
                "report_lines": str(report).splitlines(),
                "advice": advice,
                "times": time_rows(report.seconds, seconds, one.n),
            }
        )
    first = reports[0]
    return {
        "kind": "regression",
        "targets": targets,
        "n_train": first.n_rows,
        "n_test": len(rows.frame),
        "made": made_by(model, first.n_rows, len(rows.frame)),
        "estimator": type(model).__name__,
    }


def headline(model: Any, j: int, one: Predicted, advice: list[Any]) -> list[str]:
    """The page in three or four sentences."""
    error = np.abs(one.residual)
    half, most = float(np.median(error)), float(np.quantile(error, 0.9))
    scaling = model.fitted_.data[j].scaling
    alone = float(np.median(np.abs(one.y - scaling.y_mean)))
    words = [
        f"Half of the predictions of {one.name} are off by less than {number(half)}, nine in ten "
        f"by less than {number(most)} (in the units of {one.name}); outcomes range from "
        f"{number(one.y.min())} to {number(one.y.max())}."
    ]
    if alone > 0.0:
        gain = 1.0 - half / alone
        words.append(
            f"Always answering with the average of the training rows would be off by "
            f"{number(alone)}: the model's typical error is {percent(abs(gain))} "
            f"{'smaller' if gain >= 0.0 else 'larger'}."
        )
    words.append(coverage_words(int(one.inside(0.95).sum()), one.n, 0.95)[1])
    if advice:
        words.append(f"There {'is' if len(advice) == 1 else 'are'} {plural(len(advice), 'note')} "
                     "to read before using the model.")  # fmt: skip
    return words


def tiles(one: Predicted) -> list[dict[str, str]]:
    """A few large numbers."""
    inside = one.inside(0.95)
    width = float(np.median(np.diff(one.interval(0.95), axis=1))) / 2.0
    spread = float(np.var(one.y))
    explained = 1.0 - float(np.mean(one.residual**2)) / spread if spread > 0.0 else float("nan")
    return [
        {
            "value": number(float(np.median(np.abs(one.residual)))),
            "label": "typical error (median)",
        },
        {"value": number(metrics.rmse(one.y, one.mean)), "label": "root mean squared error"},
        {"value": f"± {number(width)}", "label": "typical 95 % interval"},
        {"value": percent(float(inside.mean()), 1), "label": "of outcomes in their 95 % interval"},
        {"value": percent(explained) if explained > 0 else number(explained, 2),
         "label": "of the variance explained (R²)"},
    ]  # fmt: skip


def level_table(one: Predicted) -> list[dict[str, Any]]:
    """Coverage and width at a few levels, with what chance allows."""
    rows = []
    for level in LEVELS:
        inside = int(one.inside(level).sum())
        low, high = chance_range(one.n, level)
        width = float(np.median(np.diff(one.interval(level), axis=1))) / 2.0
        rows.append(
            {
                "level": percent(level),
                "share": percent(inside / one.n, 1),
                "low": percent(low / one.n, 1),
                "high": percent(high / one.n, 1),
                "verdict": {"hold": "holds", "narrow": "too narrow", "wide": "wider than needed"}[
                    coverage_words(inside, one.n, level)[0]
                ],
                "width": f"± {number(width)}",
            }
        )
    return rows


def calibration_words(one: Predicted) -> str:
    """What the two pictures say, by a test of uniformity."""
    test = stats.kstest(one.pit, "uniform")
    p, gap = float(test.pvalue), percent(float(test.statistic), 1)
    if p >= 0.05:
        return (
            "A calibrated model's values are spread evenly; these are as even as chance would have "
            f"them (Kolmogorov–Smirnov test, p = {p:.2f}, largest gap {gap})."
        )
    tail = float(np.mean((one.pit < 0.05) | (one.pit > 0.95)))
    shift = float(one.pit.mean()) - 0.5
    if tail > 0.12:
        why = "too many outcomes lie near the ends: the model is too sure of itself"
    elif tail < 0.08 and abs(shift) < 0.05:
        why = "too few outcomes lie near the ends: the model is less sure than it could be"
    else:
        why = f"outcomes are mostly {'above' if shift > 0 else 'below'} the middle prediction"
    return (
        "A calibrated model's values are spread evenly; these are not (Kolmogorov–Smirnov test, "
        f"p = {number(p, 2)}, largest gap {gap}): {why}."
    )


def calibration_pictures(one: Predicted) -> list[Picture]:
    """PIT histogram and reliability curve."""
    shares = np.histogram(one.pit, bins=10, range=(0.0, 1.0))[0] / one.n
    ax = axes()
    plotting.plot_pit(ax, one.pit)
    first = picture(
        ax,
        "Where outcomes fall in their prediction (PIT)",
        f"Histogram of the predicted probability of a smaller outcome for {one.n} test rows in ten "
        f"bins; they hold {percent(shares.min())} to {percent(shares.max())} of the rows, 10 % "
        "would be even. A band shows what chance allows.",
    )
    ax = axes()
    plotting.plot_reliability(ax, one.pit)
    said = ", ".join(
        f"{percent(float(one.inside(level).mean()))} at {percent(level)}" for level in LEVELS
    )
    second = picture(
        ax,
        "Share of outcomes inside, level by level",
        f"Share of {one.n} outcomes inside their interval against its nominal level: {said}; with "
        "the band in which a calibrated model would lie.",
    )
    return [first, second]


def _slices(
    answers: Answers, rows: TestRows, order: list[tuple[str, float]], name: str, j: int
) -> dict[str, Any]:
    slices = make_slices(answers, rows.frame, slice_features(order))
    label = "predicted" if name == "the target" else f"predicted {plain(name, 24)}"
    return {
        "slices": slice_entries(slices, answers, label, j),
        "typical": typical_words(slices[0].typical) if slices else "",
    }


def _cases(one: Predicted, rows: TestRows, order: list[tuple[str, float]]) -> list[dict[str, Any]]:
    by_width = np.argsort(one.sigma, kind="stable")
    inputs = rows.frame[[name for name, _ in order]]
    rest = f"; the {MOST_INPUTS} most important inputs" if inputs.shape[1] > MOST_INPUTS else ""
    k = min(CASES, one.n)
    return [
        regression_cases(
            one, rows.labels, inputs, by_width[::-1][:k],
            f"The {k} least certain test rows, widest interval first{rest}.",
        ),
        regression_cases(
            one, rows.labels, inputs, by_width[:k],
            f"The {k} most certain test rows, narrowest interval first{rest}.",
        ),
    ]  # fmt: skip


def residual_pictures(
    model: Any, one: Predicted, rows: TestRows, order: list[tuple[str, float]]
) -> list[Picture]:
    """What is left over, against the prediction and against the most important input."""
    some = thin(one.n, RESIDUAL_POINTS)
    ax = axes()
    plotting.plot_residuals(ax, one.mean[some], one.residual[some], one.std[some])
    error = np.abs(one.residual)
    varied = one.n > 2 and np.ptp(one.mean) > 0.0 and np.ptp(error) > 0.0
    slope = stats.spearmanr(one.mean, error).statistic if varied else np.nan
    pictures = [
        picture(
            ax,
            "Against the prediction",
            f"Observed less predicted against the prediction for {len(some)} test rows, with bars "
            "of two predicted standard deviations; rank correlation of prediction and size of the "
            f"error {number(slope, 2)}.",
        )
    ]
    if not order:
        return pictures
    name = order[0][0]
    kind = column_kinds(model)[name]
    series = rows.frame[name].iloc[some]
    grid = make_grid(name, series, kind, column_rules(model)[name])
    at = row_places(grid, series)
    known = np.isfinite(at)
    if not known.any():
        return pictures
    ax = axes()
    left = one.residual[some][known]
    plotting.plot_residuals(ax, at[known], left, one.std[some][known], plain(name))
    name_axis(ax, grid)
    alt = (
        f"Observed less predicted against {name}, the input that matters most, for "
        f"{int(known.sum())} test rows."
    )
    return [*pictures, picture(ax, f"Against {name}", alt)]
