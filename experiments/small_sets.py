"""Fits on the standard splits of the eight small UCI tables, as Tables 1 and 4 score them.

Which tables and splits a run takes, and every score of one fit on the test rows of its split. The
three tables with thousands of rows count one split by default: a hundred steps of an exact fit on
ten thousand rows take hours on a CPU.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.scores import fit_facts, predictive_scores
from experiments.printed import SMALL_SETS
from measurements.arguments import names, positive
from measurements.pages import mean_or_nan, scored, values
from measurements.store import Record
from measurements.tables import MISSING
from measurements.timing import Timed
from twostagegp import datasets, metrics
from twostagegp.errors import InputError

__all__ = [
    "FIVE",
    "LARGE",
    "Cells",
    "add_options",
    "fit_and_score",
    "joint_nll",
    "places",
    "printed",
]

Array = NDArray[np.float64]

LARGE = ("kin8nm", "power", "naval")
FIVE = tuple(name for name in SMALL_SETS if name not in LARGE)
N_SPLITS = 20


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--sets`` and ``--splits``."""
    parser.add_argument("--sets", type=names(SMALL_SETS), help="tables; all eight by default")
    parser.add_argument(
        "--splits",
        type=positive,
        help=f"number of splits; by default {N_SPLITS} of the five small tables, 1 of the others",
    )


def places(given: argparse.Namespace, quick: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return tables and splits, split by split: an interrupted run has some of every table.

    Parameters
    ----------
    quick : mapping
        Splits of each table that ``--quick`` takes by default.
    """
    usual = (
        quick if given.quick else {name: 1 if name in LARGE else N_SPLITS for name in SMALL_SETS}
    )
    sets = given.sets or [name for name in SMALL_SETS if name in usual]
    wanted = {name: min(given.splits or usual.get(name, 1), N_SPLITS) for name in sets}
    return [(name, k) for k in range(N_SPLITS) for name in sets if k < wanted[name]]


def fit_and_score(model: Any, name: str, split: int) -> Record:
    """Fit a model to the training rows of a split and return every score on its test rows."""
    data = datasets.load(name)
    train, test = data.split(split)
    with Timed() as took:
        model.fit(data.X[train], data.y[train])
    X, y = data.X[test], data.y[test]
    return {
        "n_train": len(train),
        "n_test": len(test),
        "device": model.fit_report_.device,
        **predictive_scores(model, X, y, data.y[train]),
        "joint_nll": joint_nll(model, X, y, float(np.std(data.y[train]))),
        "fit_cpu_seconds": took.cpu,
        "fit_wall_seconds": took.wall,
        **fit_facts(model),
        "noise": float(model.fit_report_.noise_std / np.std(data.y[train])) ** 2,
    }


def joint_nll(model: Any, X: Array, y: Array, scale: float) -> float | None:
    """Return Eq. (2) of the test rows, target standardised; None if the model cannot give it."""
    try:
        mean, cov = model.predict(X, return_cov=True)
        return metrics.joint_nll(y / scale, mean / scale, cov / scale**2)
    except InputError:
        return None


@dataclass(frozen=True)
class Cells:
    """Scored records by table and model."""

    records: Mapping[tuple[str, str], list[Record]]

    @classmethod
    def of(cls, records: Iterable[Record]) -> Cells:
        """Sort the records that have scores."""
        found: dict[tuple[str, str], list[Record]] = {}
        for record in scored(records):
            found.setdefault((record["set"], record["model"]), []).append(record)
        return cls(found)

    @property
    def sets(self) -> list[str]:
        """Tables with a record, in the paper's order."""
        return [name for name in SMALL_SETS if any(name == key[0] for key in self.records)]

    def of_model(self, name: str, model: str) -> list[Record]:
        """Return the splits of one model on one table."""
        return self.records.get((name, model), [])

    def values(self, name: str, model: str, field: str) -> list[float]:
        """Return a score over the splits."""
        return values(self.of_model(name, model), field)

    def mean(self, name: str, model: str, field: str) -> float:
        """Return the mean of a score over the splits; NaN without any."""
        return mean_or_nan(self.values(name, model, field))

    def differences(self, name: str, field: str, first: str, second: str) -> list[float]:
        """Return the first model's score less the second's, on the splits that both have."""
        one, two = (
            {r["split"]: r[field] for r in self.of_model(name, m) if r.get(field) is not None}
            for m in (first, second)
        )
        return [one[k] - two[k] for k in sorted(one.keys() & two.keys())]

    def below(self, name: str, field: str, first: str, second: str) -> bool | None:
        """Return whether the first model's mean is lower on common splits; None without any."""
        found = self.differences(name, field, first, second)
        return mean_or_nan(found) < 0.0 if found else None

    def splits(self, name: str, models: Iterable[str]) -> str:
        """Return the number of splits of the models: one number, or the fewest and the most."""
        counts = sorted({len(self.of_model(name, model)) for model in models} - {0})
        return "–".join(str(n) for n in dict.fromkeys((counts[0], counts[-1]))) if counts else "0"


def printed(mean: float, sd: float) -> str:
    """Return a figure as the paper prints it.

    Examples
    --------
    >>> printed(2.12, 1.23), printed(1555, 11990), printed(2.7e5, 1.2e6)
    ('2.12 ± 1.23', '1555 ± 11990', '2.7e+05 ± 1.2e+06')
    """
    if math.isnan(mean):
        return MISSING
    if abs(mean) >= 1e5:
        return f"{mean:.1e} ± {sd:.1e}"
    return f"{mean:.0f} ± {sd:.0f}" if abs(mean) >= 100 else f"{mean:.2f} ± {sd:.2f}"
