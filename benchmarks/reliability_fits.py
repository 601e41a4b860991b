"""One fit of one model to one hard table.

What a user would have got is recorded as it is: the error that was raised, how many means or
standard deviations are not finite, how many variances are zero or below (or were, by the library's
own warning, before it cut them off), and the share of new rows in their 95 % interval.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

import numpy as np

from benchmarks.hard_tables import HardTable, hard_table
from benchmarks.peers.base import Array, Fitted, Prediction
from benchmarks.reliability_models import KNOWN
from measurements.provenance import code_version
from measurements.store import Record
from measurements.timing import Timed
from twostagegp import metrics

__all__ = ["measure_table", "verdict"]

#: What a library, or NumPy taking a root for it, says when a variance came out negative.
_NEGATIVE = re.compile(r"negative variance|variances smaller than 0|invalid value .* in sqrt", re.I)
#: Longest message that is kept.
_MESSAGE = 200


def measure_table(model: str, name: str, seed: int) -> Record:
    """Fit one of :data:`~benchmarks.reliability_models.KNOWN` to a table; return what came out."""
    known, table = KNOWN[model], hard_table(name, seed)
    origin: Record = {"version": known.version(), "code": code_version() if known.ours else None}
    fit = known.load()
    with warnings.catch_warnings(record=True) as caught, Timed() as took:
        warnings.simplefilter("always")
        try:
            fitted = fit(table.X, table.y, seed)
            found = fitted.predict(table.X_new)
            interval = _interval(fitted, table.X_new, found)
        except Exception as error:
            message = " ".join(f"{type(error).__name__}: {error}".split())
            message = re.sub(
                r"/\S+/", "", message
            )  # paths of the machine that a library was built on
            return origin | {"exception": message[:_MESSAGE], "judged": table.judged}
    said = [str(warning.message) for warning in caught]
    return origin | verdict(table, found, interval, said) | {"fit_cpu": took.cpu}


def _interval(fitted: Fitted, X: Array, found: Prediction) -> Array:
    """Return the model's own 95 % interval, or that of the Gaussian."""
    own = fitted.interval(X)
    if own is not None:
        return own
    half = 1.959963984540054 * found.std
    return np.column_stack([found.mean - half, found.mean + half])


def verdict(table: HardTable, found: Prediction, interval: Array, said: Sequence[str]) -> Record:
    """Return what is wrong with predictions of the new rows, in numbers."""
    means, stds = np.isfinite(found.mean), np.isfinite(found.std)
    warned = [text for text in said if _NEGATIVE.search(text)]
    record: Record = {
        "judged": table.judged,
        "warnings": len(said),
        "not_finite": int(np.count_nonzero(~(means & stds))),
        # The root of a negative variance is NaN: such rows are counted by their warnings.
        "not_positive": int(np.count_nonzero(found.std <= 0.0)) + len(warned),
        "coverage": metrics.coverage(table.y_new, interval=interval),
    }
    if (means & stds).all():
        spread = float(np.std(table.y_new)) or 1.0
        record["rmse"] = float(np.sqrt(np.mean(((found.mean - table.y_new) / spread) ** 2)))
        record["width"] = float(np.median(interval[:, 1] - interval[:, 0])) / (3.92 * spread)
    return record
