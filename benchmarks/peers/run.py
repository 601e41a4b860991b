"""One fit of one model on one fold, in a process of its own; the record is printed as JSON.

A process a fit, so that memory is that of the model, threads and random states are nobody else's,
and a model that hangs or is killed takes nothing with it. Whatever a library prints goes to the
error stream: on the output stream there is the record and nothing else.

    python -m benchmarks.peers.run lightgbm bike 0
    python -m benchmarks.peers.run gpnn protein 0 --rows 2000

Scores are of the target standardised by the training rows: RMSE; NLPD, CRPS, QICE, coverage at 50,
80 and 99 %, HC- and LC-RMSE of the Gaussian with the model's mean and standard deviation; coverage
of the model's own 95 % interval where it has one, otherwise of that Gaussian's. CPU seconds add up
over the threads.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks._arguments import positive
from benchmarks._large_sets import SETS, fold_rows, load
from benchmarks._models import code_version
from benchmarks._store import Record, plain
from benchmarks._timing import Timed, use_threads
from benchmarks._uci_tables import REFERENCES
from benchmarks.peers import MODELS
from benchmarks.peers.base import LEVEL, Array, Fitted, NotInstalledError, Prediction, threads
from twostagegp import metrics

__all__ = ["DIVERGED", "KNOWN_SETS", "answer", "answers", "main", "measure", "measure_fold"]

#: How the error of a model begins whose predictions cannot be used.
DIVERGED = "diverged"
#: Tables that a fold can be taken of: the larger ones and the small ones.
KNOWN_SETS = (*SETS, *REFERENCES)
#: Probabilities of the Gaussian's intervals that are scored beside the model's own.
GAUSSIAN_LEVELS = (0.50, 0.80, 0.99)

Fit = Callable[[Array, Array, int], Fitted]


def measure_fold(model: str, name: str, fold: int, rows: int | None = None) -> Record:
    """Fit and score a model on a fold of a table; whatever it raises becomes the record's error.

    Parameters
    ----------
    model, name : str
        From :data:`benchmarks.peers.MODELS` and :data:`KNOWN_SETS`.
    fold : int
        Also the seed of the model.
    rows : int, optional
        Take only so many of the training rows: to try a model out.
    """
    data = load(name)
    train, test = fold_rows(data, fold)
    if rows is not None:
        train = np.random.default_rng(0).permutation(train)[:rows]
    known = MODELS[model]
    record: Record = {
        "model": model,
        "set": name,
        "fold": fold,
        "n_train": len(train),
        "n_test": len(test),
        "d": data.X.shape[1],
        "threads": threads(),
        "version": known.version(),
        **({"code": code_version()} if known.ours else {}),
    }
    try:
        fit = known.load()
        scores = measure(fit, data.X[train], data.y[train], data.X[test], data.y[test], fold)
    except NotInstalledError as error:
        return record | {"error": str(error)}
    except Exception as error:
        return record | {"error": f"{type(error).__name__}: {error}"}
    return record | scores


def measure(fit: Fit, X: Array, y: Array, X_test: Array, y_test: Array, seed: int) -> Record:
    """Fit, predict, score: what it cost and how good it is."""
    before = peak_mib()
    with Timed() as fitting:
        model = fit(X, y, seed)
    with Timed() as predicting:
        found = model.predict(X_test)
    costs: Record = {
        "fit_cpu": fitting.cpu,
        "fit_wall": fitting.wall,
        "predict_cpu": predicting.cpu,
        "predict_wall": predicting.wall,
        "predictions_a_second": len(y_test) / max(predicting.cpu, 1e-9),
        "peak_mib": peak_mib(),
        "before_mib": before,
    }
    usable = np.isfinite(found.mean) & np.isfinite(found.std) & (found.std > 0.0)
    if not usable.all():
        bad = int(np.count_nonzero(~usable))
        return costs | {"error": f"{DIVERGED}: {bad} of {len(y_test)} predictions are unusable"}
    scores = _scores(model, found, X_test, y_test, y)
    return costs | scores | _on_new_rows(found, X_test, y_test, X, y)


def _scores(model: Fitted, found: Prediction, X: Array, y: Array, y_train: Array) -> Record:
    interval = model.interval(X)
    centre, scale = float(np.mean(y_train)), float(np.std(y_train))
    target, mean, std = (y - centre) / scale, (found.mean - centre) / scale, found.std / scale
    own = None if interval is None else (interval - centre) / scale
    return {
        "rmse": metrics.rmse(target, mean),
        "nlpd": metrics.nlpd(target, mean, std),
        "crps": metrics.crps(target, mean, std),
        "qice": metrics.qice(target, mean, std),
        "qice_floor": metrics.qice_floor(len(y)),
        "coverage_95": metrics.coverage(target, mean, std, level=LEVEL)
        if own is None
        else metrics.coverage(target, interval=own),
        "own_interval": own is not None,
        **{
            f"coverage_{100 * level:.0f}": metrics.coverage(target, mean, std, level=level)
            for level in GAUSSIAN_LEVELS
        },
        "hc_rmse": metrics.hc_rmse(target, mean, std, q=0.1),
        "lc_rmse": metrics.lc_rmse(target, mean, std, q=0.1),
        **model.own_scores(X, y),
    }


def _on_new_rows(found: Prediction, X: Array, y: Array, X_train: Array, y_train: Array) -> Record:
    """The NLPD without the test rows whose inputs a training row has; nothing where none has.

    A table of repeats rewards a model without noise, which gives the outcome of a repeated row a
    density as high as its smallest variance allows.
    """
    seen = {row.tobytes() for row in np.ascontiguousarray(X_train)}
    new = np.array([row.tobytes() not in seen for row in np.ascontiguousarray(X)])
    if new.all() or not new.any():
        return {}
    scale = float(np.std(y_train))
    nlpd = metrics.nlpd(y[new] / scale, found.mean[new] / scale, found.std[new] / scale)
    return {"repeated_rows": int(np.count_nonzero(~new)), "nlpd_new_rows": nlpd}


def peak_mib() -> float:
    """The largest resident memory that this process has had, in MiB.

    Linux counts what the parent held before it started this program into ``ru_maxrss``, so the
    figure of the address space itself is read where the system tells it.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024.0
    unit = 1.0 if sys.platform == "darwin" else 1024.0  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the record of one fit."""
    given = _parser().parse_args(arguments)
    return answer(lambda: measure_fold(given.model, given.set, given.fold, given.rows))


def answer(make: Callable[[], Record]) -> int:
    """Print a record, and nothing that was printed while it was made; returns 0."""
    return answers(make() for _ in range(1))


def answers(records: Iterable[Record]) -> int:
    """Print each record as it is made, and nothing else that is printed meanwhile; returns 0."""
    output = os.dup(1)
    os.dup2(2, 1)  # libraries in C print to file 1 too
    use_threads(threads())
    with os.fdopen(output, "w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(plain(record), ensure_ascii=False, allow_nan=False) + "\n")
            file.flush()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.run", description="One fit of one model on one fold."
    )
    parser.add_argument("model", choices=list(MODELS))
    parser.add_argument("set", choices=KNOWN_SETS)
    parser.add_argument("fold", type=int)
    parser.add_argument("--rows", type=positive, help="only so many training rows")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
