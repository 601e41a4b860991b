r"""Evidence behind the weights of the target's values: whether they pay, and with which settings.

The default is fitted to random rows of forty tables (those of :mod:`benchmarks.small_tables`).
Then only the weights of the target's values (levels, bounds, rare values) are learned again, with
other settings or not at all, and scored on at most a thousand other rows: mean, local scale and
shape stay as they are. Densities are not compared, as levels have probabilities instead.

    python -m benchmarks.value_defaults
    python -m benchmarks.value_defaults --rows 100 --draws 1 --tables wine,psid1976

The data folder is named by ``TWOSTAGEGP_DATA``.
"""

from __future__ import annotations

import argparse
import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks import RESULTS
from benchmarks.known_laws import LAWS
from benchmarks.many_tables import TABLES, draw
from benchmarks.scores import quantile_scores
from benchmarks.table_draws import Cell, add_arguments, draws_of, over_tables
from measurements.pages import Page, joined, scored, standard_error
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import markdown_table
from measurements.timing import use_threads
from twostagegp import TwoStageGPRegressor
from twostagegp.pipeline.calibration.fit import weigh_values
from twostagegp.pipeline.held_rows import HeldRows
from twostagegp.pipeline.settings import DEFAULTS, ValueSettings

__all__ = ["MEASUREMENT", "VARIANTS", "Cell", "cells", "measure", "with_values"]

ROWS, DRAWS = (50, 100, 400, 1000), 2
ALL_TABLES = (*TABLES, *LAWS)
OFF, DEFAULT = "no weights", "default"
#: Settings of the weights; None: no weights.
VARIANTS: Mapping[str, ValueSettings | None] = {
    OFF: None,
    DEFAULT: DEFAULTS.values,
    "levels without further intervals": ValueSettings(intervals=1),
    "5 intervals": ValueSettings(intervals=5),
    "20 intervals": ValueSettings(intervals=20),
    "an interval is worth 3 rows": ValueSettings(interval_prior=3.0),
    "an interval is worth 30 rows": ValueSettings(interval_prior=30.0),
    "zero is never a bound": ValueSettings(beyond_zero=math.inf),
    "zero is a bound from 5 rows": ValueSettings(beyond_zero=5.0),
    "always weighted": ValueSettings(least_gain=-math.inf, errors=-math.inf),
    "gain of 2 standard errors": ValueSettings(errors=2.0),
}
#: Scores count as at least this: on naval all predictions may be the right level.
_SMALLEST = 1e-3
SCORES = ("crps", "coverage_95", "coverage_99", "interval_width_95", "interval_score_95")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tables, numbers of rows and draws of a run."""
    add_arguments(parser, ALL_TABLES, ROWS, DRAWS)


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return all fits, draw by draw."""
    return draws_of(given, ALL_TABLES, DRAWS)


def with_values(model: TwoStageGPRegressor, settings: ValueSettings | None) -> TwoStageGPRegressor:
    """Return the model, fitted by the exact method, with weights of other settings."""
    (target,) = model.fitted_.targets
    fit, data = target.fit, target.data
    calibration = replace(fit.calibration, values=None, pit=None)
    if settings is not None:
        calibration = weigh_values(
            calibration,
            data,
            HeldRows.every(data),
            fit.mean.heldout_residuals,
            np.maximum(np.asarray(fit.variance.heldout_variance, np.float64), fit.noise_floor),
            (-math.inf, math.inf),
            0,
            settings,
        )
    other = copy.copy(model)
    changed = replace(fit, calibration=calibration)
    other.fitted_ = replace(model.fitted_, targets=(replace(target, fit=changed),))
    return other


def measure(cell: Cell) -> Record:
    """Fit the default to one draw, and score it with every weighting."""
    use_threads(1)
    rows = draw(cell.table, cell.rows, cell.draw)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = TwoStageGPRegressor(random_state=cell.draw, method="exact", device="cpu", n_jobs=1)
        model.fit(rows.X, rows.y)
        mean, scale = model.predict(rows.X_test), float(np.std(rows.y))
        scores, used = {}, {}
        for name, settings in VARIANTS.items():
            other = with_values(model, settings)
            found = quantile_scores(
                rows.y_test,
                mean,
                lambda levels, other=other: other.predict_quantiles(rows.X_test, levels),
                scale,
            )
            scores[name] = {score: found[score] for score in SCORES}
            used[name] = other.calibration_.values is not None
    return {
        "n_test": len(rows.y_test),
        "values": model.fit_report_.target_values,
        "used": used,
        "scores": scores,
    }


# --- the page ------------------------------------------------------------------------------------


def _ratio(records: Sequence[Record], name: str, score: str) -> list[float]:
    """Return the mean log ratio to no weights of each table."""

    def log(record: Record) -> float:
        own, off = (max(record["scores"][each][score], _SMALLEST) for each in (name, OFF))
        return math.log(own / off)

    return over_tables(records, log)


def _by_rows(records: list[Record]) -> str:
    found = scored(records)
    if not found:
        return ""
    header = ["rows", "weights", "used", "CRPS ratio", "largest", "interval score", "95 %", "99 %"]
    lines = [
        _line(rows, name, [record for record in found if record["rows"] == rows])
        for rows in sorted({record["rows"] for record in found})
        for name in VARIANTS
    ]
    return joined(
        "Geometric means over the tables of ratios to no weights, ± standard error; *largest*: "
        "CRPS ratio of the worst table, mean over its draws. *Used*: share of the fits that have "
        "weights. Scores below 0.001 standard deviations count as 0.001. Coverage of 95 and 99 % "
        "intervals: mean over the tables; *width*: of 95 % intervals.",
        markdown_table([*header, "width"], lines),
    )


def _line(rows: int, name: str, records: Sequence[Record]) -> list[str]:
    def ratio(score: str) -> str:
        logs = _ratio(records, name, score)
        mean = math.exp(float(np.mean(logs)))
        return f"{mean:.4f} ± {mean * standard_error(logs):.4f}"

    coverage = [
        over_tables(records, lambda r, c=c: r["scores"][name][c])  # type: ignore[misc]
        for c in ("coverage_95", "coverage_99")
    ]
    return [
        str(rows),
        name,
        f"{100.0 * np.mean([record['used'][name] for record in records]):.0f}%",
        ratio("crps"),
        f"{math.exp(max(_ratio(records, name, 'crps'))):.3f}",
        ratio("interval_score_95"),
        *(f"{100.0 * np.mean(each):.1f}%" for each in coverage),
        ratio("interval_width_95"),
    ]


def _by_table(records: list[Record]) -> str:
    found = scored(records)
    if not found:
        return ""
    lines = []
    for table in sorted({record["table"] for record in found}):
        own = [record for record in found if record["table"] == table]
        if not any(record["used"][DEFAULT] for record in own):
            continue
        most = max(own, key=lambda record: (record["used"][DEFAULT], record["rows"]))
        crps, width = (
            math.exp(float(np.mean(_ratio(own, DEFAULT, score))))
            for score in ("crps", "interval_width_95")
        )
        lines.append([table, f"{crps:.3f}", f"{width:.3f}", most["values"] or "none"])
    return joined(
        "Default weights / no weights, means over sizes and draws, for the tables where a fit uses "
        "weights; and what the fit to the most rows says.",
        markdown_table(["table", "CRPS", "width of 95 % intervals", "values"], lines),
    )


MEASUREMENT = Measurement(
    name="value_defaults",
    about="Weights of the target's values.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page("Weights of the target's values", {"Settings": _by_rows, "Tables": _by_table}),
    arguments=arguments,
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
