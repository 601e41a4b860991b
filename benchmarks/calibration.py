"""What the calibration does: one fit, three distributions, on seventeen tables.

Every fit of the default estimator is scored with its own local scale and shape, with one factor for
all rows, and uncalibrated (:mod:`benchmarks.calibration_fits`); the page ``calibration.md`` holds
the figures against goals, and against the boosted trees whose records are in ``uci_large.jsonl``.
Two further experiments stand on the same page: the error of the rows that the model is surest of,
under the protocol of the GPNN paper, and what a shift from winter to summer does to intervals.

    python -m benchmarks.calibration --jobs 2
    python -m benchmarks.calibration --sets yacht,poletele --folds 0-2
    python -m benchmarks.calibration --protocol gpnn
    python -m benchmarks.calibration --shift --python PEERS/bin/python
    python -m benchmarks.calibration --table-only

Each fit runs in a process of its own with one thread and is kept at once, in
``calibration.jsonl``, ``calibration_gpnn.jsonl`` or ``calibration_shift.jsonl``. What is in the
file is not computed again, so a broken run is simply started again; after Ctrl-C the fits that are
under way still end and are kept. ``--python`` names the interpreter of an environment with the
peers' packages, as in :mod:`benchmarks.uci_large`. Needs ``TWOSTAGEGP_DATA``.

By default the eight small tables run on their standard splits (three of kin8nm, power and naval)
with the exact method, the nine larger ones on folds 0 to 2 from neighbours.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import RESULTS
from benchmarks.alone import Limits, measure_alone
from benchmarks.alone import Task as PeerTask
from benchmarks.calibration_fits import (
    INPUTS,
    JULY,
    SHIFT_MODELS,
    WINTER,
    measure,
    measure_gpnn,
    measure_shift,
)
from benchmarks.calibration_tables import GPNN_PAPER, report
from benchmarks.large_sets import SETS as LARGE
from benchmarks.large_sets import load, n_folds
from benchmarks.peers import PEERS
from benchmarks.peers.base import NOT_INSTALLED
from benchmarks.uci_tables import REFERENCES as SMALL
from measurements.arguments import names, numbers, positive
from measurements.processes import answer
from measurements.store import JsonLines, Record, write_whole

__all__ = ["EXPERIMENTS", "Experiment", "main"]

#: Folds of a larger table, and seeds of GPNN's protocol.
FOLDS = range(3)
#: Seconds after which a fit is given up: an exact one of ten thousand rows takes long.
TIME_LIMIT = 4 * 3600

#: Values of the key of a record.
Task = tuple[str | int, ...]


@dataclass(frozen=True)
class Experiment:
    """One of the three.

    Attributes
    ----------
    file : str
        Where its records are kept.
    key : tuple of str
        The fields that tell them apart, which are also the arguments of ``measure``.
    measure : callable
    """

    file: str
    key: tuple[str, ...]
    measure: Callable[..., Record]

    def store(self, folder: Path) -> JsonLines:
        """Its records in a folder."""
        return JsonLines(folder / self.file, key=self.key)


def _measure_set(name: str, fold: int) -> Record:
    return measure(name, fold, "exact" if name in SMALL else "neighbors")


EXPERIMENTS: Mapping[str, Experiment] = {
    "sets": Experiment("calibration.jsonl", ("set", "fold"), _measure_set),
    "gpnn": Experiment("calibration_gpnn.jsonl", ("set", "fold", "inputs"), measure_gpnn),
    "shift": Experiment("calibration_shift.jsonl", ("model", "fold"), measure_shift),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, then write and print the page; returns 1 if a fit failed."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.alone is not None:
        which, *values = given.alone
        task = [int(value) if value.isdigit() else value for value in values]
        return answer(EXPERIMENTS[which].measure(*task) for _ in range(1))
    which = "shift" if given.shift else given.protocol or "sets"
    failed = 0 if given.table_only else _run_missing(which, _tasks(which, given, parser), given)
    page = _write_page(given.results)
    print(page)
    return 1 if failed else 0


def _tasks(which: str, given: argparse.Namespace, parser: argparse.ArgumentParser) -> list[Task]:
    """All fits of an experiment; folds that a table does not have are left out."""
    if which == "shift":
        if given.sets is not None:
            parser.error("--shift has tables of its own")
        load(JULY)  # a table that is missing should say so once, not in every fit
        has = n_folds(load(WINTER))
        folds = [0] if given.folds is None else given.folds
        return [(model, fold) for model in SHIFT_MODELS for fold in folds if fold < has]
    known = list(GPNN_PAPER) if which == "gpnn" else [*SMALL, *LARGE]
    sets = known if given.sets is None else given.sets
    if unknown := [name for name in sets if name not in known]:
        parser.error(f"{', '.join(unknown)}: choose from {', '.join(known)}")
    tasks: list[Task] = []
    for name in sets:
        data = load(name)
        if which == "gpnn":
            seeds = FOLDS if given.folds is None else given.folds
            tasks += [(name, seed, inputs) for seed in seeds for inputs in INPUTS]
            continue
        usual = range(SMALL[name].n_splits) if name in SMALL else FOLDS
        folds = usual if given.folds is None else given.folds
        tasks += [(name, fold) for fold in folds if fold < n_folds(data)]
    return tasks


def _run_missing(which: str, wanted: list[Task], given: argparse.Namespace) -> int:
    """Run the fits that are not there; returns how many failed."""
    store = EXPERIMENTS[which].store(given.results)
    done = set() if given.redo else store.done()
    tasks = [task for task in wanted if task not in done]
    print(f"{len(wanted) - len(tasks)} of {len(wanted)} fits are there already.", flush=True)
    failed = 0
    for count, record in enumerate(_run(which, tasks, store, given), start=1):
        failed += "error" in record
        print(f"[{count}/{len(tasks)}] {_line(EXPERIMENTS[which], record)}", flush=True)
        _write_page(given.results)
    return failed


def _run(
    which: str, tasks: Sequence[Task], store: JsonLines, given: argparse.Namespace
) -> Iterator[Record]:
    """Records as they come; a thread a job, which only waits for its process."""

    def keep(task: Task) -> Record:
        record = _measure_alone(which, task, given)
        # A missing package says nothing about the model.
        if not str(record.get("error", "")).startswith(NOT_INSTALLED):
            store.append(record, replace=given.redo)  # also when nobody asks for records any more
        return record

    with ThreadPoolExecutor(given.jobs) as pool:
        waiting = [pool.submit(keep, task) for task in tasks]
        try:
            for future in as_completed(waiting):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _measure_alone(which: str, task: Task, given: argparse.Namespace) -> Record:
    """The record of one fit, from a process of its own."""
    known: dict[str, Any] = dict(zip(EXPERIMENTS[which].key, task, strict=True))
    python = given.python if known.get("model") in PEERS else sys.executable
    program = ["-m", "benchmarks.calibration", "--alone", which, *map(str, task)]
    described = PeerTask(known.get("model", "ours"), known.get("set", WINTER), known["fold"])
    limits = Limits(given.time_limit, threads=1, python=python)
    return measure_alone(described, limits, program) | known


def _write_page(folder: Path) -> str:
    found = {name: e.store(folder).records().values() for name, e in EXPERIMENTS.items()}
    peers = JsonLines(folder / "uci_large.jsonl", key=("model", "set", "fold"))
    page = report(found["sets"], found["gpnn"], found["shift"], peers.records().values())
    write_whole(folder / "calibration.md", page)
    return page


def _line(experiment: Experiment, record: Record) -> str:
    head = ", ".join(f"{field} {record[field]}" for field in experiment.key) + ": "
    if "error" in record:
        return head + str(record["error"])
    if "winter" in record:
        seasons = (
            f"{season} RMSE {record[season]['rmse']:.4f}, "
            f"coverage {record[season]['coverage_95']:.3f}, width {record[season]['width_95']:.3f}"
            for season in ("winter", "july")
        )
        return head + "; ".join(seasons)
    if "local" not in record:
        return head + f"RMSE {record['rmse']:.4f}, HC-RMSE {record['hc_rmse']:.4f}"
    scores = (
        f"{title} {record['scale'][field]:.3f} → {record['local'][field]:.3f}"
        for title, field in (("NLPD", "nlpd"), ("QICE", "qice"), ("coverage", "coverage_95"))
    )
    share = record["calibration_share"]
    return head + f"{', '.join(scores)}, fit {record['fit_cpu']:.1f} CPU s, {share:.0%} calibration"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calibration", description="What the calibration does."
    )
    parser.add_argument("--sets", type=names([*SMALL, *LARGE]), help="tables; all by default")
    parser.add_argument("--folds", type=numbers, help="folds or seeds, as in 0,1 or 0-2")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--protocol", choices=["gpnn"], help="random splits, whitened inputs")
    which.add_argument("--shift", action="store_true", help="from winter to July, with peers")
    parser.add_argument("--jobs", type=positive, default=1, help="fits at once, a thread each")
    parser.add_argument("--time-limit", type=positive, default=TIME_LIMIT, help="seconds a fit")
    parser.add_argument("--python", default=sys.executable, help="interpreter that runs the peers")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table-only", action="store_true", help="no fits, only the page")
    parser.add_argument("--redo", action="store_true", help="fit again what is there already")
    parser.add_argument("--alone", nargs="+", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
