"""Figure 4: UA-RMSE of GPNN and of the two-stage model from nearest neighbours.

HC-RMSE is the error of the tenth of the test rows that a model is surest of, LC-RMSE that of the
tenth that it is least sure of. The protocol is GPNN's: 7/9 of the rows to train on and 2/9 to test,
at random; inputs whitened by their principal components and divided by √d; target standardised;
50 neighbours. All test rows are predicted.

- ``gpnn``: the baseline with the settings of Table 7.
- ``paper``: the two-stage model with those settings, ``from_paper(method="neighbors")``.
- ``default``: ours, on the whitened inputs and on the plain columns.

Four of the paper's seven tables are large files that have to be fetched: ``ctslice``,
``road3d``, ``song`` and ``house_electric`` run if :func:`twostagegp.datasets.fetch` has put them
into the data folder. Small pieces of three of them come under names that end in ``_part``; their
figures cannot be compared with the paper's.

``--from-benchmarks`` takes over the default's fits that ``calibration_gpnn.jsonl`` of the
benchmarks has.

    python -m experiments figure4 --from-benchmarks
    python -m experiments figure4 --sets poletele,bike --seeds 1
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.calibration_gpnn import gpnn_rows
from benchmarks.peers.gpnn import Whitening
from experiments import RESULTS
from experiments.figure4_report import FETCHED, PARTS, VARIANTS, picture, report
from experiments.from_benchmarks import BENCHMARKS, FIT, Source
from experiments.printed import FIGURE4
from measurements.arguments import names, positive
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.timing import Timed
from twostagegp import GPNNRegressor, TwoStageGPRegressor, datasets, metrics
from twostagegp.datasets import FOLDER_VARIABLE

__all__ = ["MEASUREMENT", "Task", "measure"]

SOURCE = Source("calibration_gpnn.jsonl", ("set", "fold", "inputs"))
SEEDS = 3
QUICK_SETS = ("poletele",)
#: Share of the test rows at either end of the certainty.
SHARE = 0.1

MODELS: Mapping[str, Callable[[int], Any]] = {
    "gpnn": lambda seed: GPNNRegressor.from_paper(random_state=seed),
    "paper": lambda seed: TwoStageGPRegressor.from_paper(method="neighbors", random_state=seed),
    "default": lambda seed: TwoStageGPRegressor(method="neighbors", random_state=seed),
}


@dataclass(frozen=True)
class Task:
    """One fit under GPNN's protocol, or the benchmark's record of it."""

    model: str
    inputs: str
    set: str
    seed: int
    source: str


def _arguments(parser: argparse.ArgumentParser) -> None:
    known = [*FIGURE4, *PARTS]
    parser.add_argument("--sets", type=names(known), help="tables; by default all at hand")
    parser.add_argument("--seeds", type=positive, help=f"random splits; {SEEDS} by default")
    parser.add_argument("--models", type=names(MODELS), default=list(MODELS))
    parser.add_argument(
        "--from-benchmarks",
        action="store_true",
        help="take over the default's fits of benchmarks/results/calibration_gpnn.jsonl",
    )


def tasks(given: argparse.Namespace) -> list[Task]:
    """Return the fits asked for; without ``--sets``, tables not yet fetched are left out."""
    sets = given.sets
    if sets is None:
        sets = QUICK_SETS if given.quick else [s for s in (*FIGURE4, *PARTS) if _expected(s)]
    seeds = given.seeds or (1 if given.quick else SEEDS)
    return [
        Task(model, inputs, name, seed, _source(given, model, inputs, name, seed))
        for name in sets
        for seed in range(seeds)
        for model, inputs in VARIANTS
        if model in given.models and not (given.quick and inputs == "plain")
    ]


def _source(given: argparse.Namespace, model: str, inputs: str, name: str, seed: int) -> str:
    has = model == "default" and SOURCE.has((name, seed, inputs))
    return BENCHMARKS if given.from_benchmarks and has else FIT


def _expected(name: str) -> bool:
    """Return False for a table that has to be fetched and was not; True for all others."""
    folder = os.environ.get(FOLDER_VARIABLE)
    places = [Path(folder) / part / f"{name}.npz" for part in ("uci_large", "")] if folder else []
    return name not in FETCHED or any(path.is_file() for path in places)


def measure(task: Task) -> Record:
    """Return the scores of one fit, the target standardised by the training rows."""
    if task.source == BENCHMARKS:
        return SOURCE.record((task.set, task.seed, task.inputs)) | {"source": BENCHMARKS}
    data = datasets.load(task.set)
    train, test = gpnn_rows(len(data.y), task.seed)
    whitening = Whitening.of(data.X[train], data.y[train])
    X = whitening.inputs(data.X) if task.inputs == "whitened" else data.X
    y = whitening.target(data.y)
    model = MODELS[task.model](task.seed)
    with Timed() as fitting:
        model.fit(X[train], y[train])
    with Timed() as predicting:
        mean, std = model.predict(X[test], return_std=True)
    return {
        "n_train": len(train),
        "n_test": len(test),
        "columns": X.shape[1],
        "rmse": metrics.rmse(y[test], mean),
        "nlpd": metrics.nlpd(y[test], mean, std),
        "hc_rmse": metrics.hc_rmse(y[test], mean, std, q=SHARE),
        "lc_rmse": metrics.lc_rmse(y[test], mean, std, q=SHARE),
        "coverage_95": metrics.coverage(y[test], interval=model.predict_interval(X[test])),
        "fit_cpu": fitting.cpu,
        "predict_cpu": predicting.cpu,
        "mean": model.fit_report_.mean,
        "variance": model.fit_report_.variance,
    }


MEASUREMENT = Measurement(
    name="figure4",
    about="UA-RMSE of GPNN and of the two-stage model from nearest neighbours.",
    results=RESULTS,
    cell=Task,
    arguments=_arguments,
    cells=tasks,
    measure=measure,
    report=report,
    figure=picture,
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
