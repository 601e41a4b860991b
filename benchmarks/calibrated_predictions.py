"""What the calibration adds to the time of a prediction, on a CPU and on a GPU.

    python -m benchmarks.calibrated_predictions --device cpu
    python -m benchmarks.calibrated_predictions --device cuda

The default model and the same model with ``calibration=None`` are fitted, on one core of the
processor, to the same rows of a generated table whose noise changes with an input, so that the
local scale has ridges and trees. Their means are equal. Then both predict the same points with
standard deviations, in turn, five times.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import RESULTS
from benchmarks.neighbors_scale import COLUMNS, function
from measurements.arguments import numbers, positive
from measurements.errors import CannotMeasureError
from measurements.pages import Page, joined
from measurements.processes import Processes
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import figure, markdown_table, yes_no
from measurements.timing import Timed
from twostagegp import TwoStageGPRegressor

__all__ = ["MEASUREMENT", "Cell", "cells", "measure"]

Array = NDArray[np.float64]

#: Rows by method; the exact method predicts from all of them.
ROWS = {"exact": (1_000, 5_000), "neighbors": (20_000, 100_000)}
POINTS = {"cpu": 20_000, "cuda": 200_000}
ROUNDS = 5
#: Most time of calibrated predictions on a GPU, as a multiple of uncalibrated ones.
GOAL = 1.3


@dataclass(frozen=True)
class Cell:
    """One fit of each model."""

    device: str
    method: str
    rows: int
    points: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the device, the numbers of rows and the number of predictions."""
    parser.add_argument("--device", choices=tuple(POINTS), default="cpu")
    parser.add_argument("--rows", type=numbers, help=f"default: {ROWS}")
    parser.add_argument("--points", type=positive, help=f"predictions (default: {POINTS})")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return every method and number of rows on the device."""
    known = {"exact": (200,), "neighbors": (300,)} if given.quick else ROWS
    points = given.points or (500 if given.quick else POINTS[given.device])
    return [
        Cell(given.device, method, rows, points)
        for method, sizes in known.items()
        for rows in sizes
        if given.rows is None or rows in given.rows
    ]


def _table(rows: int, seed: int) -> tuple[Array, Array]:
    """Return inputs and a target whose noise grows sixfold along the last input."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(rows, COLUMNS))
    return X, function(X) + (0.1 + 0.5 * X[:, -1]) * rng.standard_normal(rows)


def measure(cell: Cell) -> Record:
    """Fit both models and time their predictions in turn."""
    if cell.device == "cuda" and not torch.cuda.is_available():
        raise CannotMeasureError("torch sees no CUDA device")
    (X, y), (X_new, _) = _table(cell.rows, seed=0), _table(cell.points, seed=1)
    models = {
        name: TwoStageGPRegressor(
            method=cell.method,
            device=cell.device,
            n_jobs=1,
            random_state=0,
            calibration=calibration,
        ).fit(X, y)
        for name, calibration in (("calibrated", "local"), ("uncalibrated", None))
    }
    seconds: dict[str, list[float]] = {name: [] for name in models}
    means = {}
    for number in range(ROUNDS + 1):  # the first round compiles and fills caches
        for name, model in models.items():
            with Timed() as took:
                means[name], _ = model.predict(X_new, return_std=True)
            if number:
                seconds[name].append(took.wall)
    name = torch.cuda.get_device_name() if cell.device == "cuda" else "CPU"
    # Outside the data the calibrated model continues the mean.
    near = models["calibrated"].predict(X_new, return_support=True)[1] == 1.0
    return {
        "machine": name,
        "same_mean": bool(np.allclose(means["calibrated"][near], means["uncalibrated"][near])),
        "calibration": models["calibrated"].fit_report_.calibration,
        **{key: statistics.median(times) for key, times in seconds.items()},
        "ratio": statistics.median(
            a / b for a, b in zip(seconds["calibrated"], seconds["uncalibrated"], strict=True)
        ),
    }


def _section(records: list[Record]) -> str:
    header = ["device", "method", "rows", "points", "calibrated, s", "uncalibrated, s"]
    header += ["ratio", f"at most {GOAL}", "calibration"]
    lines = [
        [
            r["machine"],
            r["method"],
            f"{r['rows']:,}",
            f"{r['points']:,}",
            figure(r["calibrated"]),
            figure(r["uncalibrated"]),
            figure(r["ratio"]),
            yes_no(r["ratio"] <= GOAL if r["device"] == "cuda" else None),
            r["calibration"],
        ]
        for r in records
    ]
    note = f"Medians of {ROUNDS} predictions of all points; *ratio* is the median within a round."
    return joined(note, markdown_table(header, lines))


MEASUREMENT = Measurement(
    name="calibrated_predictions",
    about="What the calibration adds to the time of a prediction.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page(
        "Calibrated and uncalibrated predictions",
        {"Seconds of predictions with standard deviations": _section},
        failed_by=("device", "method", "rows"),
    ),
    arguments=arguments,
    strategy=Processes(1200, threads=None),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
