"""The content of a regressor's report: one set of sections per target."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from twostagegp import metrics, plotting
from twostagegp.estimators.prediction import encoded_inputs
from twostagegp.plotting.inputs import name_axis, row_positions
from twostagegp.plotting.slices import Answers, make_grid, make_slices, shuffle_effects
from twostagegp.plotting.slices.tables import as_given, column_kinds, column_rules
from twostagegp.plotting.style import plain
from twostagegp.report.advice import regression_advice
from twostagegp.report.cases import MOST_INPUTS, regression_cases
from twostagegp.report.figures import axes, picture
from twostagegp.report.fit_section import (
    fit_sentences,
    kernel_check,
    outside_training,
    provenance,
    search_pictures,
    search_table,
    timing_rows,
)
from twostagegp.report.group_section import group_tables
from twostagegp.report.input_section import (
    effect_rows,
    rank_by_effect,
    slice_entries,
    slice_features,
    typical_text,
)
from twostagegp.report.page import Picture
from twostagegp.report.predictions import (
    TargetPredictions,
    TestRows,
    predict_rows,
    read_rows,
    sample_rows,
)
from twostagegp.report.scatter import scatter
from twostagegp.report.wording import (
    chance_range,
    coverage_verdict,
    notes_sentence,
    number,
    percent,
)

__all__ = ["regression_context"]

#: Number of rows in each table of cases, and largest number of points in a picture of residuals.
CASES, RESIDUAL_POINTS = 8, 800
#: Levels of the intervals in the table of coverages.
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)


def regression_context(model: Any, X: Any, y: Any) -> dict[str, Any]:
    """Return everything that the template of a regressor's page needs."""
    rows = read_rows(model, X, y, classes=False)
    predicted, seconds, messages = predict_rows(model, rows)
    answers = Answers(model)
    effects = shuffle_effects(answers, rows.frame)
    outside = outside_training(model, encoded_inputs(model, as_given(model, rows.frame)))
    several = len(predicted) > 1
    reports = [model.fit_report_] if model.fitted_.is_1d else model.fit_report_
    searches = [model.search_] if model.fitted_.is_1d else model.search_
    targets = []
    for j, target in enumerate(predicted):
        report = reports[j]
        order = rank_by_effect(effects, j)
        advice = regression_advice(report, target, outside, messages)
        check_text, check_pictures = kernel_check(model, j)
        targets.append(
            {
                "id": f"t{j + 1}-" if several else "",
                "name": target.name,
                "headline": headline(model, j, target, advice),
                "tiles": tiles(target),
                "scatter": scatter(target, rows.labels),
                "levels": level_table(target),
                "calibration": calibration_pictures(target),
                "calibration_text": calibration_text(target),
                "groups": group_tables(model, target, rows, order),
                "effects": effect_rows(order, classes=False),
                **_slices(answers, rows, order, target.name, j),
                "cases": _cases(target, rows, order),
                "residuals": residual_pictures(model, target, rows, order),
                "fit_sentences": fit_sentences(report, searches[j]),
                "search_pictures": search_pictures(searches[j]),
                "searches": [
                    {"stage": stage, "rows": search_table(searches[j], stage)}
                    for stage in dict.fromkeys(row["stage"] for row in searches[j])
                ],
                "check_text": check_text,
                "check_pictures": check_pictures,
                "report_lines": str(report).splitlines(),
                "advice": advice,
                "times": timing_rows(report, seconds, target.n),
            }
        )
    first = reports[0]
    return {
        "kind": "regression",
        "targets": targets,
        "n_train": first.n_rows,
        "n_test": len(rows.frame),
        "made": provenance(model, first.n_rows, len(rows.frame)),
        "estimator": type(model).__name__,
    }


def headline(model: Any, j: int, target: TargetPredictions, advice: list[Any]) -> list[str]:
    """Return the most important results in three or four sentences."""
    error = np.abs(target.residual)
    half, most = float(np.median(error)), float(np.quantile(error, 0.9))
    scaling = model.fitted_.data[j].scaling
    baseline = float(np.median(np.abs(target.y - scaling.y_mean)))
    sentences = [
        f"Half of the predictions of {target.name} are off by less than {number(half)}, nine in "
        f"ten by less than {number(most)} (in the units of {target.name}); outcomes range from "
        f"{number(target.y.min())} to {number(target.y.max())}."
    ]
    if baseline > 0.0:
        gain = 1.0 - half / baseline
        sentences.append(
            f"The average of the training rows, as the prediction for every row, would be off by "
            f"{number(baseline)}: the model's typical error is {percent(abs(gain))} "
            f"{'smaller' if gain >= 0.0 else 'larger'}."
        )
    sentences.append(coverage_verdict(int(target.inside(0.95).sum()), target.n, 0.95)[1])
    if advice:
        sentences.append(notes_sentence(len(advice)))
    return sentences


def tiles(target: TargetPredictions) -> list[dict[str, str]]:
    """Return the scores that are shown in large type at the top."""
    inside = target.inside(0.95)
    width = float(np.median(np.diff(target.interval(0.95), axis=1))) / 2.0
    spread = float(np.var(target.y))
    explained = 1.0 - float(np.mean(target.residual**2)) / spread if spread > 0.0 else float("nan")
    return [
        {
            "value": number(float(np.median(np.abs(target.residual)))),
            "label": "typical error (median)",
        },
        {"value": number(metrics.rmse(target.y, target.mean)), "label": "root mean squared error"},
        {"value": f"± {number(width)}", "label": "typical 95 % interval"},
        {"value": percent(float(inside.mean()), 1), "label": "of outcomes in their 95 % interval"},
        {"value": percent(explained) if explained > 0 else number(explained, 2),
         "label": "of the variance explained (R²)"},
    ]  # fmt: skip


def level_table(target: TargetPredictions) -> list[dict[str, Any]]:
    """Return coverage and width at a few levels, with the range that chance allows."""
    rows = []
    for level in LEVELS:
        inside = int(target.inside(level).sum())
        low, high = chance_range(target.n, level)
        width = float(np.median(np.diff(target.interval(level), axis=1))) / 2.0
        rows.append(
            {
                "level": percent(level),
                "share": percent(inside / target.n, 1),
                "low": percent(low / target.n, 1),
                "high": percent(high / target.n, 1),
                "verdict": {
                    "hold": "as expected",
                    "narrow": "too narrow",
                    "wide": "wider than necessary",
                }[coverage_verdict(inside, target.n, level)[0]],
                "width": f"± {number(width)}",
            }
        )
    return rows


def calibration_text(target: TargetPredictions) -> str:
    """Return the result of a test that the PIT values are uniformly distributed."""
    test = stats.kstest(target.pit, "uniform")
    p, gap = float(test.pvalue), percent(float(test.statistic), 1)
    if p >= 0.05:
        return (
            "For a calibrated model the PIT values are uniformly distributed. These are consistent "
            f"with that (Kolmogorov–Smirnov test, p = {p:.2f}, largest difference {gap})."
        )
    tail = float(np.mean((target.pit < 0.05) | (target.pit > 0.95)))
    shift = float(target.pit.mean()) - 0.5
    if tail > 0.12:
        why = "too many outcomes lie in the tails: the model is overconfident"
    elif tail < 0.08 and abs(shift) < 0.05:
        why = "too few outcomes lie in the tails: the model is underconfident"
    else:
        why = f"outcomes lie mostly {'above' if shift > 0 else 'below'} the predicted median"
    return (
        "For a calibrated model the PIT values are uniformly distributed. These are not "
        f"(Kolmogorov–Smirnov test, p = {number(p, 2)}, largest difference {gap}): {why}."
    )


def calibration_pictures(target: TargetPredictions) -> list[Picture]:
    """Return the PIT histogram and the reliability curve."""
    shares = np.histogram(target.pit, bins=10, range=(0.0, 1.0))[0] / target.n
    ax = axes()
    plotting.plot_pit(ax, target.pit)
    first = picture(
        ax,
        "Predicted probability of a smaller outcome (PIT)",
        f"Histogram of the predicted probability of a smaller outcome for {target.n} test rows in "
        f"ten bins; each bin holds {percent(shares.min())} to {percent(shares.max())} of the rows, "
        "10 % is expected. A band shows what chance allows.",
    )
    ax = axes()
    plotting.plot_reliability(ax, target.pit)
    listed = ", ".join(
        f"{percent(float(target.inside(level).mean()))} at {percent(level)}" for level in LEVELS
    )
    second = picture(
        ax,
        "Share of outcomes inside, by level",
        f"Share of {target.n} outcomes inside their interval against its nominal level: {listed}; "
        "with the band in which a calibrated model would lie.",
    )
    return [first, second]


def _slices(
    answers: Answers, rows: TestRows, order: list[tuple[str, float]], name: str, j: int
) -> dict[str, Any]:
    slices = make_slices(answers, rows.frame, slice_features(order))
    label = "predicted" if name == "the target" else f"predicted {plain(name, 24)}"
    return {
        "slices": slice_entries(slices, answers, label, j),
        "typical": typical_text(slices[0].typical) if slices else "",
    }


def _cases(
    target: TargetPredictions, rows: TestRows, order: list[tuple[str, float]]
) -> list[dict[str, Any]]:
    by_width = np.argsort(target.sigma, kind="stable")
    inputs = rows.frame[[name for name, _ in order]]
    rest = f"; the {MOST_INPUTS} most important inputs" if inputs.shape[1] > MOST_INPUTS else ""
    k = min(CASES, target.n)
    return [
        regression_cases(
            target, rows.labels, inputs, by_width[::-1][:k],
            f"The {k} least certain test rows, widest interval first{rest}.",
        ),
        regression_cases(
            target, rows.labels, inputs, by_width[:k],
            f"The {k} most certain test rows, narrowest interval first{rest}.",
        ),
    ]  # fmt: skip


def residual_pictures(
    model: Any, target: TargetPredictions, rows: TestRows, order: list[tuple[str, float]]
) -> list[Picture]:
    """Return pictures of the residuals against the prediction and the most important input."""
    some = sample_rows(target.n, RESIDUAL_POINTS)
    ax = axes()
    plotting.plot_residuals(ax, target.mean[some], target.residual[some], target.std[some])
    error = np.abs(target.residual)
    varied = target.n > 2 and np.ptp(target.mean) > 0.0 and np.ptp(error) > 0.0
    slope = stats.spearmanr(target.mean, error).statistic if varied else np.nan
    pictures = [
        picture(
            ax,
            "Against the prediction",
            f"Observed minus predicted against the prediction for {len(some)} test rows, with bars "
            "of two predicted standard deviations; rank correlation of the prediction and the "
            f"absolute error: {number(slope, 2)}.",
        )
    ]
    if not order:
        return pictures
    name = order[0][0]
    kind = column_kinds(model)[name]
    series = rows.frame[name].iloc[some]
    grid = make_grid(name, series, kind, column_rules(model)[name])
    at = row_positions(grid, series)
    known = np.isfinite(at)
    if not known.any():
        return pictures
    ax = axes()
    left = target.residual[some][known]
    plotting.plot_residuals(ax, at[known], left, target.std[some][known], plain(name))
    name_axis(ax, grid)
    alt = (
        f"Observed minus predicted against {name}, the most important input, for "
        f"{int(known.sum())} test rows."
    )
    return [*pictures, picture(ax, f"Against {name}", alt)]
