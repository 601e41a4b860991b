r"""The evidence behind the defaults of the neighbour method: one choice changed at a time.

A variant is ``TwoStageGPRegressor(method="neighbors", calibration="scale")`` with one choice
changed. Of each of the nine larger tables it sees the *training* rows of fold 0 alone: a tenth of
them, at most 10,000, are held out once, the variant is fitted to the others and scored on these.
The test rows of fold 0 take no part; those of the other folds do, as they are training rows of fold
0. So of the folds of :mod:`benchmarks.uci_large` only fold 0 is independent of these choices.

A variant v is compared with the default on the same tables s = 1, …, S that both have:

.. math::

    \Big( \prod_s \frac{\mathrm{RMSE}_s(v)}{\mathrm{RMSE}_s(\mathrm{default})} \Big)^{1/S} ,
    \qquad
    \frac1S \sum_s \big( \mathrm{NLPD}_s(v) - \mathrm{NLPD}_s(\mathrm{default}) \big) ,

the NLPD being that of the Gaussian with the predicted moments, the target standardised. CPU seconds
per fit and predictions per CPU second are compared as the RMSE is. The worst table is the one with
the largest ratio, or difference.

Every fit runs in a process of its own with one thread. The data folder is named by
``TWOSTAGEGP_DATA``.

    python -m benchmarks.neighbor_defaults --jobs 2
    python -m benchmarks.neighbor_defaults --sets bike,pol --variants "default,two ridges"
    python -m benchmarks.neighbor_defaults --table-only
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks import RESULTS
from benchmarks.large_sets import SETS, Rows, fold_rows, load
from benchmarks.peers.base import Array
from benchmarks.peers.ours import Ours
from benchmarks.peers.run import measure as fit_and_score
from benchmarks.variants import DEFAULT, Variant, changes, difference, log_ratio
from measurements.arguments import names
from measurements.pages import Page, joined, scored
from measurements.processes import Processes
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import MISSING, figure, markdown_table
from twostagegp import TwoStageGPRegressor
from twostagegp.datasets import RegressionData
from twostagegp.pipeline.mean.crossfit import boosted_trees
from twostagegp.training.rounds import Schedule

__all__ = ["MEASUREMENT", "VARIANTS", "Cell", "OfRows", "inner_rows", "measure_variant", "report"]

FOLD = 0
#: Held out of the training rows: this share of them, and no more than so many.
HELD_SHARE, HELD_ROWS = 0.1, 10_000
HELD_SEED = 20240229
#: Seconds after which a fit is given up.
TIME_LIMIT = 3600
#: Rows of the fit, and points of the prediction, that come before the clock runs.
WARM_ROWS, WARM_POINTS = 300, 64
QUICK_VARIANTS = (DEFAULT, "one ridge")


@dataclass(frozen=True)
class OfRows:
    """A constructor parameter that depends on the number of training rows."""

    make: Callable[[int], Any]


def _sample(group: str, **changed: Any) -> Variant:
    return Variant(group, settings={f"sample.{name}": value for name, value in changed.items()})


def _trees(**changed: Any) -> Variant:
    """Return a variant of the stack's trees with other settings, for any number of rows."""
    return _sample("trees", tree_parameters=tuple(changed.items()))


def _schedule(factor: float, *fields: str) -> Variant:
    """Return a variant with some numbers of :class:`Schedule` times a factor, rounded up."""
    changed = {name: math.ceil(factor * getattr(Schedule(), name)) for name in fields}
    return _sample("training", schedule=Schedule(**changed))


VARIANTS: Mapping[str, Variant] = {
    DEFAULT: Variant(DEFAULT),
    "30 neighbours": Variant("neighbours", {"n_neighbors": 30}),
    "100 neighbours": Variant("neighbours", {"n_neighbors": 100}),
    "one ridge": _sample("ridges", most_ridges=1),
    "two ridges": _sample("ridges", most_ridges=2),
    "five ridges": _sample("ridges", most_ridges=5),
    # No table has so many rows.
    "without trees": _sample("trees", tree_rows=sys.maxsize),
    "trees alone": Variant("trees", {"mean": OfRows(lambda n: boosted_trees())}),
    "31 leaves": _trees(max_leaf_nodes=31),
    # Measured when the default was 0.05; today it is the default.
    "learning rate 0.1": _trees(learning_rate=0.1),
    "learning rate 0.05": _trees(learning_rate=0.05, max_iter=1000),
    "five folds": _sample("trees", crossfit_folds=((20_000, 5), (40_000, 3))),
    "sample of 6000": _sample("held-out rows", rows=6000),
    "variance from 1000": _sample("held-out rows", variance_rows=1000),
    "half the batch rows": _schedule(0.5, "first", "second"),
    "twice the batch rows": _schedule(2.0, "first", "second"),
    "half the rounds": _schedule(0.5, "rounds"),
    "twice the rounds": _schedule(2.0, "rounds"),
    "half the steps": _schedule(0.5, "steps"),
    "twice the steps": _schedule(2.0, "steps"),
    "neighbours not refreshed": _sample(
        "training", schedule=Schedule(first_rounds=1, rounds=1), variance_rounds=1
    ),
}


# --- one fit -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One variant on one table."""

    variant: str
    set: str


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tables and variants of a run."""
    parser.add_argument("--sets", type=names(SETS), help="tables; all nine by default")
    parser.add_argument("--variants", type=names(VARIANTS), help="all by default")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return every variant on every table, table by table."""
    sets = given.sets or (["bike"] if given.quick else list(SETS))
    variants = given.variants or (QUICK_VARIANTS if given.quick else list(VARIANTS))
    for name in sets:
        load(name)  # a missing table is reported once, not for every fit
    return [Cell(variant, name) for name in sets for variant in variants]


def measure(cell: Cell) -> Record:
    """Fit a variant to a table and score it."""
    data = load(cell.set)
    _warm_up(data)
    return measure_variant(VARIANTS[cell.variant], data)


def measure_variant(variant: Variant, data: RegressionData) -> Record:
    """Fit a variant to the inner rows of a table and score it on those held out."""
    inner, held = inner_rows(data)
    facts: Record = {}

    def fit(X: Array, y: Array, seed: int) -> Ours:
        model = _estimator(variant, len(y), seed).fit(X, y)
        facts["mean"] = model.fit_report_.mean
        return Ours(model, float(np.std(y)))

    X, y = data.X[inner], data.y[inner]
    scores = fit_and_score(fit, X, y, data.X[held], data.y[held], 0)
    sizes = {"n_train": len(inner), "n_held": len(held), "d": data.X.shape[1]}
    return sizes | facts | scores


def inner_rows(data: RegressionData, most: int = HELD_ROWS) -> tuple[Rows, Rows]:
    """Return rows to fit and rows to score, both from the training rows of fold 0.

    Parameters
    ----------
    data : RegressionData
    most : int
        Most rows that are held out.

    Examples
    --------
    >>> data = RegressionData("tiny", np.zeros((100, 1)), np.zeros(100), ("x0",), (), None)
    >>> [len(rows) for rows in inner_rows(data)]
    [81, 9]
    """
    train, _ = fold_rows(data, FOLD)
    order = np.random.default_rng(HELD_SEED).permutation(train)
    n = min(int(HELD_SHARE * len(order)), most)
    return np.sort(order[n:]), np.sort(order[:n])


def _estimator(variant: Variant, n: int, seed: int) -> TwoStageGPRegressor:
    given = {
        name: value.make(n) if isinstance(value, OfRows) else value
        for name, value in variant.arguments.items()
    }
    return TwoStageGPRegressor(
        method="neighbors", calibration="scale", device="cpu", random_state=seed, **given
    )


def _warm_up(data: RegressionData) -> None:
    """Load compiled code before the clock runs: the same seconds in all would hide differences."""
    inner, _ = inner_rows(data)
    X, y = data.X[inner[:WARM_ROWS]], data.y[inner[:WARM_ROWS]]
    model = _estimator(VARIANTS[DEFAULT], WARM_ROWS, seed=0)
    model.fit(X, y).predict(X[:WARM_POINTS], return_std=True)


# --- the page ------------------------------------------------------------------------------------

_SUMMARY = (
    "On rows held out of the training rows of fold 0, over the tables that a variant and the "
    "default both have. RMSE, CPU seconds per fit and predictions per CPU second: geometric "
    "mean of the ratios; NLPD (Gaussian, target standardised): mean of the differences; "
    "coverage: mean over the tables."
)


def _summary(records: list[Record]) -> str:
    rmse, nlpd = changes(records, log_ratio("rmse")), changes(records, difference("nlpd"))
    fit = changes(records, log_ratio("fit_cpu"))
    speed = changes(records, log_ratio("predictions_a_second"))
    header = ["choice", "variant", "tables", "RMSE", "worst table", "NLPD", "worst table"]
    header += ["95 % coverage", "CPU seconds per fit", "predictions per CPU second"]
    rows = []
    for variant in _in_order(records):
        if variant not in rmse:
            continue  # nothing to compare with
        compared = [r for r in records if r["variant"] == variant and r["set"] in rmse[variant]]
        rows.append(
            [
                VARIANTS[variant].group,
                variant,
                str(len(compared)),
                _ratio(rmse[variant].values()),
                _worst(variant, rmse[variant], lambda change: f"{math.exp(change):.3f}"),
                f"{fmean(nlpd[variant].values()):+.3f}",
                _worst(variant, nlpd[variant], lambda change: f"{change:+.3f}"),
                f"{fmean(r['coverage_95'] for r in compared):.1%}",
                _ratio(fit[variant].values(), 2),
                _ratio(speed[variant].values(), 2),
            ]
        )
    return markdown_table(header, rows)


def _ratio(logs: Collection[float], decimals: int = 3) -> str:
    """Return the geometric mean of ratios whose logarithms are given."""
    return f"{math.exp(fmean(logs)):.{decimals}f}"


def _worst(variant: str, row: Mapping[str, float], show: Callable[[float], str]) -> str:
    if variant == DEFAULT:
        return MISSING
    name = max(row, key=lambda name: row[name])
    return f"{name} {show(row[name])}"


def _by_table(records: list[Record], score: str) -> str:
    found = {(r["variant"], r["set"]): r[score] for r in records}
    sets = [name for name in SETS if any(key[1] == name for key in found)]
    rows = [
        [variant, *(figure(found.get((variant, name)), 4) for name in sets)]
        for variant in _in_order(records)
    ]
    return markdown_table(["variant", *sets], rows)


def _in_order(records: list[Record]) -> list[str]:
    there = {r["variant"] for r in records}
    return [variant for variant in VARIANTS if variant in there]


report = Page(
    "Evidence behind the defaults of the neighbour method",
    {
        "Change against the default": lambda records: joined(_SUMMARY, _summary(scored(records))),
        "RMSE by table": lambda records: _by_table(scored(records), "rmse"),
        "NLPD by table": lambda records: _by_table(scored(records), "nlpd"),
    },
    failed_by=("variant", "set"),
)
MEASUREMENT = Measurement(
    name="neighbor_defaults",
    about="The evidence behind the defaults of the neighbour method.",
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
