"""The error of the rows that the model is surest of, under the protocol of the GPNN paper.

Random splits of 7/9 and 2/9, inputs whitened by their principal components and divided by √d, as in
:mod:`benchmarks.peers.gpnn`. Our estimator standardises its columns itself, so of this
preprocessing only the rotation is left; beside it stands the fit on the plain columns.

    python -m benchmarks.calibration_gpnn --jobs 2
    python -m benchmarks.calibration_gpnn --sets bike --seeds 0
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks import RESULTS
from benchmarks.calibration import TIME_LIMIT
from benchmarks.large_sets import Rows, load
from benchmarks.peers.gpnn import Whitening
from measurements.arguments import names, numbers
from measurements.pages import Page, joined, mean_or_nan, scored
from measurements.processes import Processes
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import MISSING, figure, markdown_table, yes_no
from measurements.timing import Timed
from twostagegp import TwoStageGPRegressor, metrics

__all__ = ["INPUTS", "MEASUREMENT", "PAPER", "Cell", "gpnn_rows", "measure_split", "report"]

#: HC-RMSE of the paper's two-stage GPNN.
PAPER: Mapping[str, float] = {"poletele": 0.14, "bike": 0.39, "protein": 0.19}
#: What the estimator is given.
INPUTS = ("whitened", "plain")
TRAIN_SHARE = 7.0 / 9.0
SEEDS = range(3)


@dataclass(frozen=True)
class Cell:
    """One fit: to which table and inputs; ``fold`` is the seed of the split and of the model."""

    set: str
    fold: int
    inputs: str


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tables and seeds of a run."""
    parser.add_argument("--sets", type=names(PAPER), help="tables; all three by default")
    parser.add_argument("--seeds", type=numbers, help="numbers, as in 0,1 or 0-2")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return all fits, table by table."""
    sets = given.sets or (["poletele"] if given.quick else list(PAPER))
    seeds = given.seeds or (range(1) if given.quick else SEEDS)
    for name in sets:
        load(name)  # a missing table is reported once, not for every fit
    return [Cell(name, seed, inputs) for name in sets for seed in seeds for inputs in INPUTS]


def gpnn_rows(n: int, seed: int) -> tuple[Rows, Rows]:
    """Return training and test rows: 7/9 and 2/9 of the table at random.

    Examples
    --------
    >>> [len(rows) for rows in gpnn_rows(90, seed=0)]
    [70, 20]
    """
    order = np.random.default_rng(seed).permutation(n)
    cut = round(TRAIN_SHARE * n)
    return np.sort(order[:cut]), np.sort(order[cut:])


def measure(cell: Cell) -> Record:
    """Fit the default and score it."""
    model = TwoStageGPRegressor(method="neighbors", random_state=cell.fold)
    return measure_split(model, cell)


def measure_split(model: TwoStageGPRegressor, cell: Cell) -> Record:
    """Fit a model to a random split, to whitened or to plain inputs, and score it."""
    data = load(cell.set)
    train, test = gpnn_rows(len(data.y), cell.fold)
    whitening = Whitening.of(data.X[train], data.y[train])
    X = whitening.inputs(data.X) if cell.inputs == "whitened" else data.X
    y = whitening.target(data.y)
    with Timed() as took:
        model.fit(X[train], y[train])
    mean, std = model.predict(X[test], return_std=True)
    return {
        "n_train": len(train),
        "n_test": len(test),
        "rmse": metrics.rmse(y[test], mean),
        "nlpd": metrics.nlpd(y[test], mean, std),
        "hc_rmse": metrics.hc_rmse(y[test], mean, std, q=0.1),
        "lc_rmse": metrics.lc_rmse(y[test], mean, std, q=0.1),
        "fit_cpu": took.cpu,
    }


_TEXT = (
    "RMSE over the tenth of the rows that the model is surest of, target standardised: random "
    "splits of 7/9 and 2/9, inputs whitened by their principal components, against the paper's "
    "two-stage GPNN; and the same estimator on the columns as they are. LC: over the tenth that it "
    "is least sure of."
)


def table(records: list[Record]) -> str:
    """Return one row per table."""
    header = ["set", "seeds", "paper"]
    for inputs in INPUTS:
        header += [f"HC {inputs}", "below the paper's", f"LC {inputs}", f"RMSE {inputs}"]
    rows = []
    for name, paper in PAPER.items():
        own = [r for r in scored(records) if r["set"] == name]
        row = [name, str(len({r["fold"] for r in own})), f"{paper:g}"]
        for inputs in INPUTS:
            some = [r for r in own if r["inputs"] == inputs]
            hc, lc, rmse = (
                mean_or_nan([r[field] for r in some]) for field in ("hc_rmse", "lc_rmse", "rmse")
            )
            below = yes_no(hc <= paper) if some else MISSING
            row += [figure(hc), below, figure(lc), figure(rmse)]
        if own:
            rows.append(row)
    return markdown_table(header, rows)


report = Page(
    "Calibration: the rows that the model is surest of",
    {"High certainty under GPNN's protocol": lambda records: joined(_TEXT, table(records))},
    failed_by=("set", "fold", "inputs"),
)
MEASUREMENT = Measurement(
    name="calibration_gpnn",
    about="The rows that the model is surest of, under GPNN's protocol.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=report,
    arguments=arguments,
    strategy=Processes(TIME_LIMIT),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
