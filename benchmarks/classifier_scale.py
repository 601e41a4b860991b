r"""Time and memory of the classifier on wide features, such as those of a language model.

Features are drawn as those of a frozen encoder are spread: 384 columns of which few directions
carry most, and every row of length one,

.. math::

    x = \frac{u}{\|u\|}, \quad u = A z + 0.3\, e , \qquad z \sim N(0, I_{32}),\;
    e \sim N(0, I_{384}) , \qquad
    P(y = k \mid z) \propto \exp 2 f_k(z) ,

with :math:`f_k` a sum of a linear function and a product of two coordinates of z. The log loss of
the drawn probabilities themselves is the least that any model can reach.

A fit and as many predictions as rows run in a process of their own, whose largest memory is its
own too. On a GPU the largest memory is that of the device.

    python -m benchmarks.classifier_scale --rows 10000
    python -m benchmarks.classifier_scale --rows 10000 --device cuda
    python -m benchmarks.classifier_scale --redo
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from benchmarks import RESULTS
from benchmarks.peers.run import peak_mib
from measurements.arguments import names, positive
from measurements.errors import CannotMeasureError
from measurements.pages import Page, scored
from measurements.processes import Processes
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import figure, markdown_table
from measurements.timing import Timed
from twostagegp import TwoStageGPClassifier
from twostagegp.metrics.classification import ece, log_loss

__all__ = ["MEASUREMENT", "Cell", "draw", "measure", "report"]

Array = NDArray[np.float64]

COLUMNS, CLASSES, DIRECTIONS = 384, 3, 32
METHODS = ("exact", "neighbors")
TIME_LIMIT = 3600
QUICK_ROWS = 100


def draw(rows: int, seed: int) -> tuple[Array, NDArray[np.int64], Array]:
    """Return features of shape (rows, 384), labels, and the probabilities of the labels.

    Examples
    --------
    >>> X, y, P = draw(5, seed=0)
    >>> X.shape, y.shape, P.shape
    ((5, 384), (5,), (5, 3))
    """
    fixed = np.random.default_rng(0)  # one function for all tables
    decay = 1.0 / np.sqrt(1.0 + np.arange(DIRECTIONS))
    A = fixed.standard_normal((DIRECTIONS, COLUMNS)) * decay[:, None]
    slope = fixed.standard_normal((DIRECTIONS, CLASSES)) / np.sqrt(DIRECTIONS)
    rng = np.random.default_rng([seed, 1])
    z = rng.standard_normal((rows, DIRECTIONS))
    u = z @ A + 0.3 * rng.standard_normal((rows, COLUMNS))
    X = u / np.linalg.norm(u, axis=1, keepdims=True)
    products = np.stack([z[:, 2 * k] * z[:, 2 * k + 1] for k in range(CLASSES)], axis=1)
    P = np.asarray(softmax(2.0 * (z @ slope + products), axis=1))
    y = (P.cumsum(1) < rng.uniform(size=(rows, 1))).sum(1)
    return X, y.astype(np.int64), P


@dataclass(frozen=True)
class Cell:
    """One fit and as many predictions as rows."""

    device: str
    method: str
    rows: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the rows, methods and device of a run."""
    parser.add_argument("--rows", type=positive, help="10,000 by default")
    parser.add_argument("--methods", type=names(METHODS), default=list(METHODS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return one fit per method."""
    rows = given.rows or (QUICK_ROWS if given.quick else 10_000)
    return [Cell(given.device, method, rows) for method in given.methods]


def measure(cell: Cell) -> Record:
    """Return seconds, memory and scores of a default fit and as many predictions."""
    rows, cuda = cell.rows, cell.device == "cuda"
    if cuda and not torch.cuda.is_available():
        raise CannotMeasureError("torch sees no CUDA device")
    X, y, _ = draw(min(rows, 300), seed=2)
    made = {"method": cell.method, "device": cell.device, "random_state": 0}
    TwoStageGPClassifier(**made).fit(X, y).predict_proba(X[:50])  # first calls pay for the start
    X, y, _ = draw(rows, seed=0)
    X_test, y_test, truth = draw(rows, seed=1)
    before = peak_mib() / 1024.0
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    model = TwoStageGPClassifier(**made)
    with Timed() as fitting:
        model.fit(X, y)
    with Timed() as predicting:
        P = model.predict_proba(X_test)
    return {
        **({"machine": torch.cuda.get_device_name()} if cuda else {}),
        "columns": COLUMNS,
        "classes": CLASSES,
        "before_gib": before,
        "peak_gib": peak_mib() / 1024.0,
        "gpu_gib": torch.cuda.max_memory_allocated() / 2**30 if cuda else None,
        "fit_wall": fitting.wall,
        "fit_cpu": fitting.cpu,
        "predict_wall": predicting.wall,
        "predict_cpu": predicting.cpu,
        "mean": model.fit_report_.mean,
        "variance": model.fit_report_.variance,
        "log_loss": log_loss(y_test, P, model.classes_),
        "least_log_loss": log_loss(y_test, truth, np.arange(CLASSES)),
        "ece": ece(y_test, P, model.classes_),
    }


def table(records: list[Record]) -> str:
    """Return one row per fit."""
    header = ["machine", "threads", "method", "rows", "fit, wall s", "fit, CPU s"]
    header += ["as many predictions, wall s", "peak GiB", "of it before", "GPU GiB"]
    header += ["log loss", "least possible", "ECE", "mean"]
    lines = []
    for r in sorted(scored(records), key=lambda r: (r["device"], r["method"], r["rows"])):
        costs = [r["fit_wall"], r["fit_cpu"], r["predict_wall"], r["peak_gib"], r["before_gib"]]
        scores = [r["gpu_gib"], r["log_loss"], r["least_log_loss"], r["ece"]]
        head = [r["machine"], str(r["threads"]), r["method"], f"{r['rows']:,}"]
        lines.append([*head, *map(figure, [*costs, *scores]), r["mean"]])
    return markdown_table(header, lines)


report = Page(
    f"The classifier on {COLUMNS} columns and {CLASSES} classes",
    {"Time and memory": table},
    failed_by=("device", "method", "rows"),
)
MEASUREMENT = Measurement(
    name="classifier_scale",
    about="Time and memory of the classifier on wide features.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=report,
    arguments=arguments,
    strategy=Processes(TIME_LIMIT, threads=os.cpu_count() or 1),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
