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
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

import twostagegp
from benchmarks import RESULTS
from benchmarks.alone import Limits, Task, measure_alone
from benchmarks.peers.run import peak_mib
from measurements.arguments import names, positive
from measurements.provenance import code_version
from measurements.store import JsonLines, Record, plain, write_whole
from measurements.tables import figure, markdown_table
from measurements.timing import Timed, use_threads
from twostagegp import TwoStageGPClassifier
from twostagegp.metrics.classification import ece, log_loss

__all__ = ["draw", "main", "measure", "report"]

Array = NDArray[np.float64]

COLUMNS, CLASSES, DIRECTIONS = 384, 3, 32
METHODS = ("exact", "neighbors")
TIME_LIMIT = 3600


def draw(rows: int, seed: int) -> tuple[Array, NDArray[np.int64], Array]:
    """Features of shape (rows, 384), labels, and the probabilities that they were drawn with.

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


def measure(rows: int, method: str, device: str) -> Record:
    """A default fit and as many predictions: seconds, memory and scores."""
    X, y, _ = draw(min(rows, 300), seed=2)
    made = {"method": method, "device": device, "random_state": 0}
    TwoStageGPClassifier(**made).fit(X, y).predict_proba(X[:50])  # first calls pay for the start
    X, y, _ = draw(rows, seed=0)
    X_test, y_test, truth = draw(rows, seed=1)
    before = peak_mib() / 1024.0
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    model = TwoStageGPClassifier(**made)
    with Timed() as fitting:
        model.fit(X, y)
    with Timed() as predicting:
        P = model.predict_proba(X_test)
    return {
        "columns": COLUMNS,
        "classes": CLASSES,
        "before_gib": before,
        "peak_gib": peak_mib() / 1024.0,
        "gpu_gib": torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None,
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, keep the results, then write and print the page; returns 1 if a fit failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.classifier_scale",
        description="Time and memory of the classifier on wide features.",
    )
    parser.add_argument("--rows", type=positive, default=10_000)
    parser.add_argument("--methods", type=names(METHODS), default=list(METHODS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=positive, default=os.cpu_count() or 1)
    parser.add_argument("--time-limit", type=positive, default=TIME_LIMIT)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table-only", action="store_true", help="no fits, only the page")
    parser.add_argument("--alone", choices=METHODS, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device")
    if given.alone is not None:
        return _answer(given)
    store = JsonLines(given.results / "classifier_scale.jsonl", key=("device", "method", "rows"))
    failed = 0
    for method in [] if given.table_only else given.methods:
        record = _measure_alone(method, given)
        failed += "error" in record
        store.append(record, replace=True)
    page = report(list(store.records().values()))
    write_whole(given.results / "classifier_scale.md", page)
    print(page)
    return 1 if failed else 0


def _measure_alone(method: str, given: argparse.Namespace) -> Record:
    program = ["-m", "benchmarks.classifier_scale", "--alone", method, "--rows", str(given.rows)]
    program += ["--device", given.device, "--threads", str(given.threads)]
    limits = Limits(given.time_limit, given.threads, sys.executable)
    record = measure_alone(Task("classifier", "drawn", 0), limits, program)
    return record | {"device": given.device, "method": method, "rows": given.rows}


def _answer(given: argparse.Namespace) -> int:
    """What the process of one method does: print the record."""
    use_threads(given.threads)
    cuda = given.device == "cuda"
    record: Record = {
        "version": twostagegp.__version__,
        "code": code_version(),
        "torch": torch.__version__,
        "machine": torch.cuda.get_device_name() if cuda else platform.machine(),
        "threads": given.threads,
    }
    try:
        record |= measure(given.rows, given.alone, given.device)
    except Exception as error:
        record["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(plain(record), allow_nan=False))
    return 0


def report(records: list[Record]) -> str:
    """The Markdown page."""
    parts = [f"# The classifier on {COLUMNS} columns and {CLASSES} classes\n"]
    usable = [r for r in records if "error" not in r]
    if not usable:
        parts.append("No results yet.\n")
    else:
        states = sorted({f"{r['version']} (source {r['code']})" for r in usable})
        parts += [f"twostagegp {', '.join(states)}.\n", "## Time and memory\n", _table(usable)]
    failures = [r for r in records if "error" in r]
    if failures:
        lines = (f"- {r['device']}, {r['method']}, {r['rows']:,}: {r['error']}\n" for r in failures)
        parts += ["## Failures\n", "".join(lines)]
    return "\n".join(parts)


def _table(records: list[Record]) -> str:
    header = ["machine", "threads", "method", "rows", "fit wall s", "fit CPU s"]
    header += ["as many predictions, wall s", "peak GiB", "of it before", "GPU GiB"]
    header += ["log loss", "least possible", "ECE", "mean"]
    lines = []
    for r in sorted(records, key=lambda r: (r["device"], r["method"], r["rows"])):
        cells = [r["fit_wall"], r["fit_cpu"], r["predict_wall"], r["peak_gib"], r["before_gib"]]
        scores = [r["log_loss"], r["least_log_loss"], r["ece"]]
        gpu = "–" if r["gpu_gib"] is None else figure(r["gpu_gib"])
        head = [r["machine"], str(r["threads"]), r["method"], f"{r['rows']:,}"]
        lines.append([*head, *map(figure, cells), gpu, *map(figure, scores), r["mean"]])
    return markdown_table(header, lines)


if __name__ == "__main__":
    raise SystemExit(main())
