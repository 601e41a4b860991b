r"""The evidence behind the defaults of the neighbour method: one choice changed at a time.

A variant is ``TwoStageGPRegressor(method="neighbors", calibration="scale")`` with one choice
changed. Of each of the nine larger tables it sees the *training* rows of fold 0 alone: a tenth of
them, at most 10,000, are held out once, the variant is fitted to the others and scored on these.
The test rows of fold 0 take no part; those of the other folds do, as they are training rows of fold
0. Of the folds of :mod:`benchmarks.uci_large` only fold 0 is untouched by what is chosen here.

A variant v is compared with the default on the same tables s = 1, …, S that both have:

.. math::

    \Big( \prod_s \frac{\mathrm{RMSE}_s(v)}{\mathrm{RMSE}_s(\mathrm{default})} \Big)^{1/S} ,
    \qquad
    \frac1S \sum_s \big( \mathrm{NLPD}_s(v) - \mathrm{NLPD}_s(\mathrm{default}) \big) ,

the NLPD being that of the Gaussian with the predicted moments, the target standardised. CPU seconds
of a fit and predictions a CPU second are compared as the RMSE is. The worst table is the one with
the largest ratio, or difference.

Every fit runs in a process of its own with one thread, its constants are changed in that process
only, and it is kept at once in ``neighbor_defaults.jsonl``; ``neighbor_defaults.md`` is made from
that file. What is in the file is not computed again, so a broken run is simply started again; after
Ctrl-C the fits that are under way still end and are kept. Needs ``TWOSTAGEGP_DATA``.

    python -m benchmarks.neighbor_defaults --jobs 2
    python -m benchmarks.neighbor_defaults --sets bike,pol --variants "default,two ridges"
    python -m benchmarks.neighbor_defaults --table-only
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

import twostagegp
from benchmarks import RESULTS
from benchmarks.alone import Limits, Task, measure_alone
from benchmarks.large_sets import SETS, Rows, fold_rows, load
from benchmarks.peers.base import Array
from benchmarks.peers.ours import Ours
from benchmarks.peers.run import measure as fit_and_score
from benchmarks.variants import DEFAULT, Variant, changes, difference, log_ratio
from measurements.arguments import names, positive
from measurements.provenance import code_version, provenance
from measurements.store import JsonLines, Record, plain, write_whole
from measurements.tables import MISSING, figure, markdown_table
from measurements.timing import use_threads
from twostagegp import TwoStageGPRegressor
from twostagegp.datasets import RegressionData
from twostagegp.pipeline.mean.crossfit import boosted_trees
from twostagegp.pipeline.settings import DEFAULTS
from twostagegp.training.rounds import Schedule

__all__ = ["VARIANTS", "OfRows", "inner_rows", "main", "measure", "report"]

TITLE = "# Evidence behind the defaults of the neighbour method\n"
FOLD = 0
#: Held out of the training rows: this share of them, and no more than so many.
HELD_SHARE, HELD_ROWS = 0.1, 10_000
HELD_SEED = 20240229
#: Seconds after which a fit is given up.
TIME_LIMIT = 3600
#: Rows of the fit, and points of the prediction, that come before the clock runs.
WARM_ROWS, WARM_POINTS = 300, 64


@dataclass(frozen=True)
class OfRows:
    """A constructor parameter that depends on the number of training rows."""

    make: Callable[[int], Any]


def _trees_of(n: int) -> Any:
    return boosted_trees(n > DEFAULTS.sample.one_thread_rows)


def _sample(group: str, **changed: Any) -> Variant:
    return Variant(group, settings={f"sample.{name}": value for name, value in changed.items()})


def _trees(**changed: Any) -> Variant:
    """The stack's trees, however many rows they are for, with other settings."""
    return _sample("trees", tree_parameters=tuple(changed.items()))


def _schedule(factor: float, *fields: str) -> Variant:
    """Training with some numbers of :class:`Schedule` times a factor, rounded up."""
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
    "trees alone": Variant("trees", {"mean": OfRows(_trees_of)}),
    "31 leaves": _trees(max_leaf_nodes=31),
    "learning rate 0.1": _trees(learning_rate=0.1),
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


def inner_rows(data: RegressionData) -> tuple[Rows, Rows]:
    """Rows to fit and rows to score, both from the training rows of fold 0.

    Examples
    --------
    >>> data = RegressionData("tiny", np.zeros((100, 1)), np.zeros(100), ("x0",), (), None)
    >>> [len(rows) for rows in inner_rows(data)]
    [81, 9]
    """
    train, _ = fold_rows(data, FOLD)
    order = np.random.default_rng(HELD_SEED).permutation(train)
    n = min(int(HELD_SHARE * len(order)), HELD_ROWS)
    return np.sort(order[n:]), np.sort(order[:n])


def measure(variant: str, data: RegressionData) -> Record:
    """Fit a variant and score it; whatever it raises becomes the record's error."""
    inner, held = inner_rows(data)
    X, y = data.X[inner], data.y[inner]
    chosen, facts = VARIANTS[variant], {}
    record: Record = {
        "variant": variant,
        "set": data.name,
        "n_train": len(inner),
        "n_held": len(held),
        "d": data.X.shape[1],
        "version": twostagegp.__version__,
        "code": code_version(),
    }

    def fit(X: Array, y: Array, seed: int) -> Ours:
        model = _estimator(chosen, len(y), seed).fit(X, y)
        facts["mean"] = model.fit_report_.mean
        return Ours(model, float(np.std(y)))

    try:
        _warm_up(X, y)
        scores = fit_and_score(fit, X, y, data.X[held], data.y[held], 0)
    except Exception as error:
        return record | {"error": f"{type(error).__name__}: {error}"}
    return record | facts | scores


def _estimator(variant: Variant, n: int, seed: int) -> TwoStageGPRegressor:
    given = {
        name: value.make(n) if isinstance(value, OfRows) else value
        for name, value in variant.arguments.items()
    }
    return TwoStageGPRegressor(
        method="neighbors", calibration="scale", device="cpu", random_state=seed, **given
    )


def _warm_up(X: Array, y: Array) -> None:
    """Load compiled code before the clock runs: the same seconds in all would hide differences."""
    model = _estimator(VARIANTS[DEFAULT], WARM_ROWS, seed=0)
    model.fit(X[:WARM_ROWS], y[:WARM_ROWS]).predict(X[:WARM_POINTS], return_std=True)


def _measure_alone(variant: str, name: str) -> Record:
    """The record of one fit, from a process of its own."""
    program = ["-m", "benchmarks.neighbor_defaults", "--alone", variant, name]
    record = measure_alone(Task("ours", name, FOLD), Limits(TIME_LIMIT), program)
    return record | {"variant": variant, "set": name}


def _answer(variant: str, name: str) -> int:
    """What that process does: print the record."""
    use_threads(1)
    print(json.dumps(plain(measure(variant, load(name))), ensure_ascii=False, allow_nan=False))
    return 0


# --- all fits ------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, then write and print the page; returns 1 if a fit failed."""
    given = _parser().parse_args(arguments)
    if given.alone is not None:
        return _answer(*given.alone)
    store = JsonLines(given.results / "neighbor_defaults.jsonl", key=("variant", "set"))
    page = given.results / "neighbor_defaults.md"
    failed = 0
    if not given.table_only:
        done = store.done()
        wanted = [(variant, name) for name in given.sets for variant in given.variants]
        tasks = [task for task in wanted if task not in done]
        print(f"{len(wanted) - len(tasks)} of {len(wanted)} fits are there already.", flush=True)
        for name in dict.fromkeys(name for _, name in tasks):
            load(name)  # a table that is missing should say so once, not in every fit
        for count, record in enumerate(_run(tasks, given.jobs, store), start=1):
            failed += "error" in record
            print(f"[{count}/{len(tasks)}] {_line(record)}", flush=True)
            write_whole(page, report(list(store.records().values())))
    text = report(list(store.records().values()))
    write_whole(page, text)
    print(text)
    return 1 if failed else 0


def _run(tasks: Sequence[tuple[str, str]], jobs: int, store: JsonLines) -> Iterator[Record]:
    """Records as they come; a thread a job, which only waits for its process."""

    def keep(variant: str, name: str) -> Record:
        record = _measure_alone(variant, name)
        store.append(record)  # here: also when nobody asks for records any more
        return record

    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(keep, *task) for task in tasks]
        try:
            for future in as_completed(waiting):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _line(record: Record) -> str:
    head = f"{record['variant']}, {record['set']}: "
    if "error" in record:
        return f"{head}{record['error']}"
    return head + (
        f"RMSE {record['rmse']:.4f}, NLPD {record['nlpd']:.3f}, "
        f"coverage {record['coverage_95']:.3f}, fit {record['fit_cpu']:.1f} CPU s, "
        f"{record['predictions_a_second']:.0f} predictions/s"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.neighbor_defaults",
        description="The evidence behind the defaults of the neighbour method.",
    )
    parser.add_argument("--sets", type=names(SETS), default=list(SETS))
    parser.add_argument("--variants", type=names(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--jobs", type=positive, default=1, help="fits at once, a thread each")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table-only", action="store_true", help="no fits, only the page")
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    return parser


# --- the page ------------------------------------------------------------------------------------


def report(records: list[Record]) -> str:
    """The Markdown page: every variant against the default, then scores by table."""
    usable = [r for r in records if not r.get("error")]
    failures = [r for r in records if r.get("error")]
    if not records:
        return f"{TITLE}\nNo results yet.\n"
    parts = [TITLE]
    if usable:
        parts += [f"{provenance(usable)}\n", "## Change against the default\n"]
        parts += [_summary_text(), _summary(usable)]
        for score, title in (("rmse", "RMSE"), ("nlpd", "NLPD")):
            parts += [f"## {title} by table\n", _by_table(usable, score)]
    if failures:
        lines = (f"- {r['variant']}, {r['set']}: {r['error']}\n" for r in failures)
        parts += ["## Failures\n", "".join(lines)]
    return "\n".join(parts)


def _summary_text() -> str:
    return (
        "On rows held out of the training rows of fold 0, over the tables that a variant and the "
        "default both have. RMSE, CPU seconds of a fit and predictions a CPU second: geometric "
        "mean of the ratios; NLPD (Gaussian, target standardised): mean of the differences; "
        "coverage: mean over the tables.\n"
    )


def _summary(records: list[Record]) -> str:
    rmse, nlpd = changes(records, log_ratio("rmse")), changes(records, difference("nlpd"))
    fit = changes(records, log_ratio("fit_cpu"))
    speed = changes(records, log_ratio("predictions_a_second"))
    header = ["choice", "variant", "tables", "RMSE", "worst table", "NLPD", "worst table"]
    header += ["95 % coverage", "fit CPU", "predictions/s"]
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
    """Geometric mean of ratios whose logarithms are given."""
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


if __name__ == "__main__":
    raise SystemExit(main())
