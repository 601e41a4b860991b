"""The paper's one-dimensional example (Figure 2) over many seeds instead of one picture.

Thirty points of y = 3x + 2 sin 2πx + N(0, 1), 80 % of them for training. The 95 % interval is
judged twice: on all thirty observed points, as the paper counts, which includes the training rows;
and on a thousand fresh points from the same distribution. The mean is judged by its RMSE to the
true function on the fresh points.

    python -m benchmarks.toy --seeds 50
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks import RESULTS
from benchmarks.models import LABELS, MODELS
from measurements.arguments import names, positive
from measurements.pages import Page, joined, scored
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import figure, markdown_table, mean_se
from measurements.timing import Timed
from twostagegp import datasets, metrics

__all__ = ["MEASUREMENT", "Cell", "measure"]

COMPARED = ("single_paper", "single", "paper", "default")
N_FRESH = 1000
#: Fresh points get seeds far from those of the thirty.
FRESH_SEED = 1_000_000


@dataclass(frozen=True)
class Cell:
    """One fit to one draw."""

    model: str
    seed: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--models`` and ``--seeds``."""
    parser.add_argument("--models", type=names(COMPARED), default=list(COMPARED))
    parser.add_argument("--seeds", type=positive, help="number of draws; 50 by default")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return every model on every draw, draw by draw."""
    seeds = given.seeds or (2 if given.quick else 50)
    return [Cell(model, seed) for seed in range(seeds) for model in given.models]


def measure(cell: Cell) -> Record:
    """Fit one model to the training part of one draw and score it."""
    X, y = datasets.toy(random_state=cell.seed)
    train = np.random.default_rng(cell.seed).permutation(len(y))[: round(0.8 * len(y))]
    X_fresh, y_fresh = datasets.toy(N_FRESH, random_state=FRESH_SEED + cell.seed)
    _, f_fresh = datasets.toy(N_FRESH, noise=0.0, random_state=FRESH_SEED + cell.seed)
    model = MODELS[cell.model](random_state=cell.seed)
    with Timed() as took:
        model.fit(X[train], y[train])
    fresh = model.predict_interval(X_fresh)
    return {
        "coverage_observed": metrics.coverage(y, interval=model.predict_interval(X)),
        "coverage_fresh": metrics.coverage(y_fresh, interval=fresh),
        "width_fresh": metrics.interval_width(y_fresh, interval=fresh),
        "rmse_f": metrics.rmse(f_fresh, model.predict(X_fresh)),
        "fit_cpu_seconds": took.cpu,
    }


#: Columns of the table by the scores that they show.
COLUMNS = {
    "coverage_observed": "coverage, 30 observed",
    "coverage_fresh": "coverage, fresh",
    "width_fresh": "width, fresh",
    "rmse_f": "RMSE to f, fresh",
    "fit_cpu_seconds": "CPU seconds per fit",
}


def table(records: Sequence[Record]) -> str:
    """Return one row per model: mean ± standard error over the seeds."""
    rows = []
    for name in COMPARED:
        own = [r for r in scored(records) if r["model"] == name]
        scores = [mean_se([r[field] for r in own]) for field in COLUMNS]
        rows.append([f"{name}: {LABELS[name]}", str(len(own)), *scores])
    words = (
        "95 % intervals; mean ± standard error over the seeds. "
        f"The noise alone needs a width of {figure(2 * 1.959964)}."
    )
    return joined(words, markdown_table(["model", "seeds", *COLUMNS.values()], rows))


MEASUREMENT = Measurement(
    name="toy",
    about="The paper's one-dimensional example.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page("The toy of Figure 2", {}, about=table, failed_by=("model", "seed")),
    arguments=arguments,
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
