"""Accuracy on the eight small UCI tables over their standard splits.

Every fit of a model on the training rows of a split is scored on its test rows. The data folder is
named by ``TWOSTAGEGP_DATA``.

    python -m benchmarks.uci_small --sets yacht,boston --splits 5 --models default,paper --jobs 2
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from benchmarks import RESULTS
from benchmarks.models import MODELS
from benchmarks.scores import fit_facts, predictive_scores
from benchmarks.uci_tables import REFERENCES, report
from measurements.arguments import names
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.timing import Timed
from twostagegp import datasets

__all__ = ["MEASUREMENT", "Cell", "measure"]

DEFAULT_MODELS = ("default", "paper", "single_paper", "single")
N_STANDARD_SPLITS = 20
QUICK_SETS = ("yacht",)


@dataclass(frozen=True)
class Cell:
    """One fit: a model, a table, the training rows of a split, and a device."""

    model: str
    set: str
    split: int
    device: str = "auto"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tables, models, splits and the device of a run."""
    parser.add_argument("--sets", type=names(REFERENCES), help="tables; all eight by default")
    parser.add_argument("--models", type=names(MODELS), default=list(DEFAULT_MODELS))
    parser.add_argument(
        "--splits", type=_split_range, help="N: the first N; A-B: from A to B, counted from 0"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return all fits, table by table; a missing table or split is an error before any fit."""
    found = [
        Cell(model, name, split, given.device)
        for name in given.sets or (QUICK_SETS if given.quick else REFERENCES)
        for model in given.models
        for split in given.splits or range(1 if given.quick else REFERENCES[name].n_splits)
    ]
    for name in {cell.set for cell in found}:
        datasets.load(name).split(max(cell.split for cell in found if cell.set == name))
    return found


def measure(cell: Cell) -> Record:
    """Fit one model to the training rows of a split and score it on the test rows."""
    data = datasets.load(cell.set)
    train, test = data.split(cell.split)
    model = MODELS[cell.model](random_state=0, device=cell.device)
    with Timed() as took:
        model.fit(data.X[train], data.y[train])
    return {
        "n_train": len(train),
        "n_test": len(test),
        "device": model.fit_report_.device,  # the device that "auto" chose
        **predictive_scores(model, data.X[test], data.y[test], data.y[train]),
        "fit_cpu_seconds": took.cpu,
        "fit_wall_seconds": took.wall,
        **fit_facts(model),
    }


def _split_range(text: str) -> range:
    first, dash, last = text.partition("-")
    try:
        chosen = range(int(first), int(last) + 1) if dash else range(int(first))
    except ValueError:
        chosen = range(0)
    if not chosen or chosen[-1] >= N_STANDARD_SPLITS:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give a number up to {N_STANDARD_SPLITS}, or A-B with B below it"
        )
    return chosen


MEASUREMENT = Measurement(
    name="uci_small",
    about="Accuracy on the small UCI tables.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=report,
    arguments=arguments,
    key=("model", "set", "split"),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
