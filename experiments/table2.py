"""Table 2: RMSE, NLL and QICE of Exact-GP and of the two-stage model on the small UCI tables.

Five models on the twenty standard splits: the paper's Exact-GP and its two-stage model with the
settings as printed (docs/paper_settings.md), Exact-GP trained to the end, our default, and the
constant N(ȳ, s²), which does not use the inputs. Of kin8nm, power and naval three splits are
taken, as in :mod:`benchmarks.uci_small`; the constant, which costs nothing, has all twenty.

**The NLL column.** Eq. (2) is the joint negative log likelihood of n rows divided by n. Read here:
the n rows are the test rows of a split, the covariance is the model's joint predictive one, noise
included, and the target is standardised by the training rows. Beside it stands the NLPD, the mean
over the test rows of each one's own negative log density, which is what single predictions need.

**Peers.** Our likelihoods are held against those of the other models here and of the libraries that
``benchmarks/results/uci_small_peers.jsonl`` has (:mod:`benchmarks.uci_small_peers`).

``--from-benchmarks`` takes over what ``benchmarks/results/uci_small.jsonl`` has, with the version
and source hash that it was measured with, and fits only the rest. Those records have no joint NLL.

    python -m experiments table2 --from-benchmarks
    python -m experiments table2 --sets yacht,boston --splits 2 --jobs 2
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.models import MODELS
from benchmarks.scores import fit_facts, predictive_scores
from benchmarks.uci_tables import REFERENCES
from experiments import RESULTS
from experiments.from_benchmarks import BENCHMARKS, FIT, Source
from experiments.printed import SMALL_SETS
from experiments.table2_peers import library_records
from experiments.table2_report import CONSTANT, LABELS, picture, report
from measurements.arguments import names, positive
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.timing import Timed
from twostagegp import datasets, metrics
from twostagegp.errors import InputError

__all__ = ["MEASUREMENT", "Task", "joint_nll", "measure"]

Array = NDArray[np.float64]

SOURCE = Source("uci_small.jsonl", ("model", "set", "split"))
N_STANDARD_SPLITS = 20
QUICK_SETS, QUICK_SPLITS = ("yacht", "boston"), 2


@dataclass(frozen=True)
class Task:
    """One fit on the training rows of a split, or the benchmark's record of it."""

    model: str
    set: str
    split: int
    source: str


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sets", type=names(SMALL_SETS), help="tables; all eight by default")
    parser.add_argument("--splits", type=positive, help="number of splits")
    parser.add_argument("--models", type=names(LABELS), default=list(LABELS))
    parser.add_argument(
        "--from-benchmarks",
        action="store_true",
        help="take over the fits that benchmarks/results/uci_small.jsonl has",
    )


def tasks(given: argparse.Namespace) -> list[Task]:
    """Return the fits asked for, the large tables last."""
    sets = given.sets or (QUICK_SETS if given.quick else SMALL_SETS)
    return [
        Task(model, name, split, _source(given, model, name, split))
        for name in SMALL_SETS
        if name in sets
        for model in given.models
        for split in _splits(given, model, name)
    ]


def _splits(given: argparse.Namespace, model: str, name: str) -> Iterator[int]:
    usual = N_STANDARD_SPLITS if model == CONSTANT else REFERENCES[name].n_splits
    wanted = given.splits or (QUICK_SPLITS if given.quick else usual)
    yield from range(min(wanted, N_STANDARD_SPLITS))


def _source(given: argparse.Namespace, model: str, name: str, split: int) -> str:
    return BENCHMARKS if given.from_benchmarks and SOURCE.has((model, name, split)) else FIT


def measure(task: Task) -> Record:
    """Return the scores of one fit on the test rows of its split."""
    if task.source == BENCHMARKS:
        return SOURCE.record((task.model, task.set, task.split)) | {"source": BENCHMARKS}
    data = datasets.load(task.set)
    train, test = data.split(task.split)
    sizes: Record = {"n_train": len(train), "n_test": len(test)}
    if task.model == CONSTANT:
        return sizes | _constant_scores(data.y[test], data.y[train])
    model = MODELS[task.model](random_state=0)
    with Timed() as took:
        model.fit(data.X[train], data.y[train])
    return {
        **sizes,
        "device": model.fit_report_.device,
        **predictive_scores(model, data.X[test], data.y[test], data.y[train]),
        "joint_nll": joint_nll(model, data.X[test], data.y[test], data.y[train]),
        "fit_cpu_seconds": took.cpu,
        "fit_wall_seconds": took.wall,
        **fit_facts(model),
    }


def joint_nll(model: Any, X: Array, y: Array, y_train: Array) -> float | None:
    """Return Eq. (2) on the standardised target; None if the covariance cannot be factorised."""
    mean, cov = model.predict(X, return_cov=True)
    scale = float(np.std(y_train))
    try:
        return metrics.joint_nll(y / scale, mean / scale, cov / scale**2)
    except InputError:
        return None


def _constant_scores(y: Array, y_train: Array) -> dict[str, float]:
    """Score N(ȳ, s²) for every row: rows are independent, so the joint NLL is the NLPD."""
    mean = np.full(len(y), np.mean(y_train))
    found = metrics.evaluate(y, mean, np.full(len(y), np.std(y_train)), y_train=y_train)
    return {
        **{name: found[name] for name in ("rmse", "nlpd_standardized", "nlpd", "qice", "crps")},
        "qice_floor": found["qice_floor"],
        "coverage_95": found["coverage"],
        "interval_width_95": found["interval_width"],
        "joint_nll": found["nlpd_standardized"],
    }


def page(records: list[Record]) -> str:
    """Return the page, with the benchmark's figures of other libraries if there are any."""
    return report(records, library_records())


MEASUREMENT = Measurement(
    name="table2",
    about="Exact-GP and the two-stage model on the eight small UCI tables.",
    results=RESULTS,
    cell=Task,
    arguments=_arguments,
    cells=tasks,
    measure=measure,
    report=page,
    figure=picture,
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
