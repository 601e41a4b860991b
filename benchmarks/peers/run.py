"""One fit of one model on one fold, and its scores.

Scores are of the target standardised by the training rows: RMSE; NLPD, CRPS, QICE, coverage at 50,
80 and 99 %, HC- and LC-RMSE of the Gaussian with the model's mean and standard deviation; coverage
of the model's own 95 % interval where it has one, otherwise of that Gaussian's. CPU seconds add up
over the threads.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.large_sets import SETS, fold_rows, load
from benchmarks.peers import MODELS
from benchmarks.peers.base import LEVEL, Array, Fitted, Prediction
from benchmarks.uci_tables import REFERENCES
from measurements.provenance import code_version
from measurements.store import Record
from measurements.timing import Timed
from twostagegp import metrics

__all__ = ["DIVERGED", "has_diverged", "measure", "measure_fold", "peak_mib", "scores_on_new_rows"]

#: Beginning of the error message of a model whose predictions are unusable.
DIVERGED = "diverged"
#: Tables that a fold can be taken of: the larger ones and the small ones.
KNOWN_SETS = (*SETS, *REFERENCES)
#: Probabilities of the Gaussian's intervals that are scored beside the model's own.
GAUSSIAN_LEVELS = (0.50, 0.80, 0.99)

Fit = Callable[[Array, Array, int], Fitted]


def measure_fold(model: str, name: str, fold: int) -> Record:
    """Fit and score a model on a fold of a table.

    Parameters
    ----------
    model, name : str
        From :data:`benchmarks.peers.MODELS` and :data:`KNOWN_SETS`.
    fold : int
        Also the seed of the model.
    """
    data = load(name)
    train, test = fold_rows(data, fold)
    known = MODELS[model]
    scores = measure(known.load(), data.X[train], data.y[train], data.X[test], data.y[test], fold)
    return {
        "n_train": len(train),
        "n_test": len(test),
        "d": data.X.shape[1],
        "version": known.version(),
        "code": code_version() if known.ours else None,
        **scores,
    }


def has_diverged(record: Record) -> bool:
    """Return whether a model made unusable predictions; it would make them again."""
    return str(record.get("error", "")).startswith(DIVERGED)


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
        **model.facts(),
    }
    usable = np.isfinite(found.mean) & np.isfinite(found.std) & (found.std > 0.0)
    if not usable.all():
        bad = int(np.count_nonzero(~usable))
        return costs | {"error": f"{DIVERGED}: {bad} of {len(y_test)} predictions are unusable"}
    scores = _scores(model, found, X_test, y_test, y)
    return costs | scores | scores_on_new_rows(found, X_test, y_test, X, y)


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


def scores_on_new_rows(
    found: Prediction, X: Array, y: Array, X_train: Array, y_train: Array
) -> Record:
    """Return the NLPD over the test rows whose inputs occur in no training row.

    The record is empty unless there are both such rows and others. Repeated rows reward a model
    without noise: it gives their outcomes a density as high as its smallest variance allows.
    """
    seen = {row.tobytes() for row in np.ascontiguousarray(X_train)}
    new = np.array([row.tobytes() not in seen for row in np.ascontiguousarray(X)])
    if new.all() or not new.any():
        return {}
    scale = float(np.std(y_train))
    nlpd = metrics.nlpd(y[new] / scale, found.mean[new] / scale, found.std[new] / scale)
    return {"repeated_rows": int(np.count_nonzero(~new)), "nlpd_new_rows": nlpd}


def peak_mib() -> float:
    """Return the largest resident memory that this process has had, in MiB.

    Linux counts what the parent held before it started this program into ``ru_maxrss``, so the
    peak of this process is read from ``/proc`` if that exists.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024.0
    unit = 1.0 if sys.platform == "darwin" else 1024.0  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
