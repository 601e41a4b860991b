r"""Evidence behind the tails on few rows: how much a held-out z-score says about their shape.

The default is fitted to random rows of thirty-five public tables (:mod:`benchmarks.many_tables`).
Then only the shape of its predictive distribution is learned again, with other settings, and
scored on at most a thousand other rows: mean and local scale stay as they are.

    python -m benchmarks.tail_defaults
    python -m benchmarks.tail_defaults --rows 50 --draws 1 --tables yacht,wage

The data folder is named by ``TWOSTAGEGP_DATA``.
"""

from __future__ import annotations

import argparse
import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import RESULTS
from benchmarks.many_tables import TABLES, draw
from benchmarks.scores import quantile_scores
from benchmarks.table_draws import Cell, add_arguments, draws_of, over_tables
from measurements.pages import Page, joined, scored, standard_error
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import markdown_table, mean_se
from measurements.timing import use_threads
from twostagegp import TwoStageGPRegressor
from twostagegp.pipeline.calibration.shape import GAUSSIAN
from twostagegp.pipeline.calibration.shape_fit import learn_shape
from twostagegp.pipeline.settings import DEFAULTS, ShapeSettings

__all__ = ["MEASUREMENT", "VARIANTS", "Cell", "cells", "measure", "with_shape"]

ROWS, DRAWS = (50, 100, 200, 400), 3
DEFAULT = "default"
NO_SHAPE = "Gaussian, no wider scale"
#: Settings of the shape; None: the Gaussian, with the mean square of the z-scores as its variance.
VARIANTS: Mapping[str, ShapeSettings | None] = {
    DEFAULT: DEFAULTS.shape,
    **{f"information {each:g}": ShapeSettings(information=each) for each in (0.2, 0.4, 0.6, 1.0)},
    "t distribution alone": ShapeSettings(fewest=10**9),
    "mixture from 100 rows": ShapeSettings(fewest=100),
    NO_SHAPE: None,
}
SCORES = ("nlpd", "crps", "coverage_95", "coverage_99", "interval_width_95")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tables, numbers of rows and draws of a run."""
    add_arguments(parser, TABLES, ROWS, DRAWS)


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return all fits, draw by draw."""
    return draws_of(given, TABLES, DRAWS)


def with_shape(
    model: TwoStageGPRegressor, settings: ShapeSettings | None
) -> tuple[TwoStageGPRegressor, float]:
    """Return the model with a shape that is learned with other settings, and its second moment.

    The moment is that in units of the z-scores, which multiplies the variances.
    """
    (target,) = model.fitted_.targets
    calibration = target.fit.calibration
    assert calibration.local is not None
    z, weight = calibration.z_calibrated, calibration.weight
    z = z / math.sqrt(weight @ z**2 / weight.sum())
    was = math.sqrt(float(weight @ calibration.z_calibrated**2 / weight.sum()))
    if settings is None:
        shape, moment = GAUSSIAN, 1.0
    else:
        folds = np.random.default_rng(0).permutation(len(z)) % 5
        learned = learn_shape(z, weight, folds, settings=settings)
        shape, moment = learned.shape, learned.moment
    local = calibration.local.times(was**2 * moment)
    changed = replace(calibration, local=local, shape=shape)
    other = copy.copy(model)
    fit = replace(target.fit, calibration=changed)
    other.fitted_ = replace(model.fitted_, targets=(replace(target, fit=fit),))
    return other, moment


def measure(cell: Cell) -> Record:
    """Fit the default to one draw, and score it with every shape."""
    use_threads(1)
    rows = draw(cell.table, cell.rows, cell.draw)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Weights of the target's values would hide what the tails do.
        model = TwoStageGPRegressor(
            random_state=cell.draw, device="cpu", n_jobs=1, reweight_values=False
        )
        model.fit(rows.X, rows.y)
        scores = {
            name: _scores(with_shape(model, settings)[0], rows)
            for name, settings in VARIANTS.items()
        }
    return {"n_test": len(rows.y_test), "scores": scores}


def _scores(model: TwoStageGPRegressor, rows: Any) -> dict[str, float]:
    scale = float(np.std(rows.y))
    found = quantile_scores(
        rows.y_test,
        model.predict(rows.X_test),
        lambda levels: model.predict_quantiles(rows.X_test, levels),
        scale,
    )
    density = model.predict_logpdf(rows.X_test, rows.y_test)
    found["nlpd"] = -float(np.mean(density)) - math.log(scale)
    return {score: found[score] for score in SCORES}


# --- the page ------------------------------------------------------------------------------------


def _by_rows(records: list[Record]) -> str:
    found = scored(records)
    if not found:
        return ""
    header = ["rows", "shape", "NLPD change", "CRPS ratio", "95 %", "99 %", "width ratio"]
    lines = [
        _line(rows, name, [record for record in found if record["rows"] == rows])
        for rows in sorted({record["rows"] for record in found})
        for name in VARIANTS
    ]
    return joined(
        "Change of the model's own NLPD in nats, geometric means of ratios of CRPS and of the "
        "width of 95 % intervals against the default, and coverage of 95 and 99 % intervals; mean "
        "over the tables ± standard error. *Information*: how many independent z-scores each "
        "held-out one is worth.",
        markdown_table(header, lines),
    )


def _line(rows: int, name: str, records: Sequence[Record]) -> list[str]:
    def of_scores(value: Any) -> list[float]:
        return over_tables(records, lambda record: value(record["scores"]))

    def ratio(score: str) -> str:
        logs = of_scores(lambda s: math.log(s[name][score] / s[DEFAULT][score]))
        mean = math.exp(float(np.mean(logs)))
        return f"{mean:.4f} ± {mean * standard_error(logs):.4f}"

    change = of_scores(lambda s: s[name]["nlpd"] - s[DEFAULT]["nlpd"])
    coverage = [
        f"{100.0 * np.mean(of_scores(lambda s, c=c: s[name][c])):.1f}%"
        for c in ("coverage_95", "coverage_99")
    ]
    return [
        str(rows),
        name,
        mean_se(change),
        ratio("crps"),
        *coverage,
        ratio("interval_width_95"),
    ]


MEASUREMENT = Measurement(
    name="tail_defaults",
    about="Settings of the tails on few rows.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page("The tails on few rows", {"Shapes": _by_rows}),
    arguments=arguments,
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
