"""The section on the fit: its record in sentences, the kernel search, and a test of the kernel."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import twostagegp
from twostagegp.errors import TwoStageGPError
from twostagegp.estimators.fit_report import FitReport
from twostagegp.estimators.fitted import FittedClasses
from twostagegp.kernels.catalogue import CATALOGUE
from twostagegp.plotting.searches import draw_stage
from twostagegp.report.figures import axes, picture
from twostagegp.report.page import Picture
from twostagegp.report.wording import number, percent, plural
from twostagegp.search.misspecification import check_misspecification

__all__ = [
    "changed_settings",
    "fit_sentences",
    "kernel_check",
    "outside_training",
    "provenance",
    "search_pictures",
    "search_table",
    "timing_rows",
]

#: Number of rows and of simulations for the test of the leading kernel.
_TEST_ROWS, _TEST_REPEATS = 200, 60
_STAGES = {"gp": "Gaussian process"}
_DESCRIPTIONS = {name: form.description for name, form in CATALOGUE.items()}
_DESCRIPTIONS["linear"] = "a straight line"


def fit_sentences(report: Any, search: Iterable[dict[str, Any]]) -> list[str]:
    """Return sentences that describe each part of a fitted regressor."""
    rows = list(search)
    mean = [row for row in rows if row["stage"] in ("mean", "gp")]
    used = sorted((row for row in mean if row["weight"] > 0.005), key=lambda row: -row["weight"])
    sentences = [
        f"The training table had {plural(report.n_rows, 'row')} and "
        f"{plural(report.n_features, 'column')} in use. Method: {report.method} "
        f"({report.method_reason})."
    ]
    if used:
        lead = used[0]
        text = f"The mean is {report.mean}. "
        kind = describe_kernel(lead["kernel"])
        if len(mean) > 1:
            text += (
                f"{len(mean)} kernels (kinds of functions) were compared by their scores on "
                f"held-out training rows; {lead['kernel']} has the largest weight "
                f"({percent(lead['weight'])})"
            )
        else:
            text += f"One kernel (kind of functions) was tried, {lead['kernel']}"
        sentences.append(text + (f", which assumes that the outcome is {kind}." if kind else "."))
    else:
        sentences.append(f"The mean is {report.mean}.")
    sentences.append(f"Variance of the predictions: {report.variance}.")
    if report.calibration != "none":
        sentences.append(f"Calibration on held-out training rows: {report.calibration}.")
    if report.target_values:
        sentences.append(f"Values of the target: {report.target_values}.")
    if math.isfinite(report.noise_std):
        sentences.append(
            f"Noise, the part that no model of these columns can predict: about ± "
            f"{number(2.0 * report.noise_std)} around the true mean, for 95 of 100 outcomes."
        )
    return sentences


def describe_kernel(label: str) -> str:
    """Return what a kernel assumes about the outcome, or "" if there is no description.

    Examples
    --------
    >>> describe_kernel("matern12-ard/loo")
    'rough, with jumps from row to row'
    """
    return _DESCRIPTIONS.get(label.partition("/")[0].partition("-")[0], "")


def search_table(search: Iterable[dict[str, Any]], stage: str) -> list[dict[str, Any]]:
    """Return the table rows of one stage, sorted by decreasing weight, then by score."""
    rows = sorted(
        (row for row in search if row["stage"] == stage),
        key=lambda row: (-row["weight"], row["score"]),
    )
    return [
        {
            "kernel": row["kernel"].removesuffix("/heldout"),
            "score": number(row["score"]) if math.isfinite(row["score"]) else "failed",
            "weight": f"{row['weight']:.2f}" if row["weight"] > 0.0 else "–",
            "noise": number(row["noise_variance"]),
            "chosen": row["weight"] >= 0.005,
        }
        for row in rows
    ]


def search_pictures(search: Any, x_label: str | None = None) -> list[Picture]:
    """Return one picture per stage of the kernels that were tried."""
    if not len(search) or not any(math.isfinite(row["score"]) for row in search):
        return []
    stages = list(dict.fromkeys(row["stage"] for row in search))
    pictures = []
    for stage in stages:
        rows = [row for row in search if row["stage"] == stage and math.isfinite(row["score"])]
        if len(rows) < 2:
            continue
        ax = axes(3.9, min(6.0, 1.2 + 0.22 * max(8, len(rows))))
        draw_stage(search, stage, ax)
        ax.set_title("")  # the page has a heading
        if x_label is not None:
            ax.set_xlabel(x_label)
        best = sorted(rows, key=lambda row: float(row["score"]))
        scores = "; ".join(f"{row['kernel']} {number(row['score'])}" for row in best[:8])
        tried = f"Kernels tried for the {_STAGES.get(stage, stage)}"
        alt = f"{tried} with their scores, best first: {scores}."
        pictures.append(picture(ax, f"{tried} (in use: orange)", alt))
    return pictures


def kernel_check(model: Any, j: int) -> tuple[str, list[Picture]]:
    """Test the leading kernel on training rows; return a sentence and a picture of the evidence.

    Both are empty if the model uses no kernel of this package, or if there are too few rows.
    """
    data, name = model.fitted_.data[j], _leading_kernel(model, j)
    if name is None or data.constant_target or len(data.rows) < 30:
        return "", []
    kernel, _, form = name.partition("-")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check = check_misspecification(
                data.merged.X, data.merged.t, kernel, ard=form == "ard", n_repeats=_TEST_REPEATS,
                subsample=_TEST_ROWS, sample_weight=data.merged.c, random_state=0,
            )  # fmt: skip
    except TwoStageGPError:
        return "", []
    ax = axes(3.9, 3.0)
    check.plot(ax)
    evidence = "; ".join(f"{cause} {row.evidence:.1f}" for cause, row in check.causes.iterrows())
    rows = min(_TEST_ROWS, len(data.rows))
    verdict = (
        f"is rejected (p = {check.p_value:.3f}): {check.diagnosis}"
        if check.rejected
        else f"is not rejected (p = {check.p_value:.3f}): {check.diagnosis}"
    )
    text = (
        f"Would a single Gaussian process with the leading kernel, {name}, explain "
        f"{plural(rows, 'training row')}? Compared with {_TEST_REPEATS} simulations of it, this "
        f"hypothesis {verdict}."
    )
    alt = f"Evidence against {name} in standard deviations of its simulations: {evidence}."
    return text, [picture(ax, "Does one kernel suffice?", alt)]


def _leading_kernel(model: Any, j: int) -> str | None:
    report = model.fit_report_ if model.fitted_.is_1d else model.fit_report_[j]
    rows = [row for row in report.candidates if row["weight"] > 0.0]
    for row in sorted(rows, key=lambda row: -row["weight"]):
        label = str(row["kernel"]).partition("/")[0]
        name, _, form = label.partition("-")
        if name in CATALOGUE and form in ("", "ard"):
            return label
    return None


def outside_training(model: Any, numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which test rows have a value far outside the range of the training rows, shape (n,).

    A new row from the same distribution lies outside the range of n training rows in one of d
    columns with probability up to 2d / (n + 1). If the share of rows outside does not exceed this,
    no row is flagged.
    """
    if isinstance(model.fitted_, FittedClasses):
        known, Z = np.asarray(model.fitted_.table.X), numbers
    else:
        data = model.fitted_.data[0]
        known, Z = data.merged.X, data.scaling.inputs(numbers)
    none = np.zeros(len(Z), dtype=bool)
    if known.shape[1] == 0:
        return none
    low, high = known.min(0), known.max(0)
    room = 0.05 * (high - low)
    flags: NDArray[np.bool_] = ((low - room > Z) | (high + room < Z)).any(1)
    usual = 2.0 * known.shape[1] / (len(known) + 1.0)
    return flags if flags.mean() > usual else none


def timing_rows(report: FitReport, predict: float, n: int) -> list[dict[str, str]]:
    """Return the seconds of each part of the fit and of the predictions of this page.

    A fit with a forecast has one more row, with the seconds that were foretold.
    """
    seconds = report.seconds
    rows = [
        {"part": f"fit: {part}", "seconds": f"{value:.2f}"}
        for part, value in seconds.items()
        if part != "total"
    ]
    if "total" in seconds:
        rows.append({"part": "fit, total", "seconds": f"{seconds['total']:.2f}"})
    if report.foretold_seconds is not None:
        foretold = f"{report.foretold_seconds:.2f}"
        rows.append({"part": "fit, total, as foretold before it", "seconds": foretold})
    rows.append({"part": f"predictions for {plural(n, 'test row')}", "seconds": f"{predict:.2f}"})
    return rows


def changed_settings(model: Any) -> str:
    """Return the constructor call with the parameters that differ from their defaults."""
    text = " ".join(repr(model).split())
    return text if len(text) <= 400 else text[:399] + "…"


def provenance(model: Any, n_train: int, n_test: int) -> list[tuple[str, str]]:
    """Return what is needed to reproduce the page: version, parameters, seed and sizes."""
    seed = model.random_state
    return [
        ("Package", f"twostagegp {twostagegp.__version__}"),
        ("Model", changed_settings(model)),
        ("Seed", "none given (another fit will differ slightly)" if seed is None else str(seed)),
        ("Training rows", str(n_train)),
        ("Test rows", str(n_test)),
        (
            "Pictures",
            "drawn from at most 400 test rows (800 for residuals), a random sample with seed 0 if "
            "there are more; all numbers in the text use every row",
        ),
    ]
