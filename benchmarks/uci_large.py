"""Nine larger tables: our estimators against the libraries that a user would pick instead.

Every fit runs in a process of its own (:mod:`benchmarks.peers.run`), is ended when it takes longer
than the time limit, and is kept at once in ``uci_large.jsonl``; ``uci_large.md`` is made from that
file. What is in the file is not computed again, so a broken run is simply started again. A model
that raises, is killed, runs out of time or predicts what is not a number is kept as such. The data
folder is named by ``TWOSTAGEGP_DATA``.

    python -m benchmarks.uci_large --sets bike,pol --models lightgbm,gpboost --folds 0
    python -m benchmarks.uci_large --models ours
    python -m benchmarks.uci_large --table-only

By default ours run on every fold, the peers on the first two, above 100,000 rows on the first. The
peers' packages are those of ``pip install "twostagegp[peers]"``; as they want other versions of
some dependencies than this package is developed with, give them an environment of their own and
name its interpreter with ``--python``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from benchmarks._arguments import names, positive
from benchmarks._arguments import numbers as _folds
from benchmarks._large_sets import MANY_ROWS, SETS, load, n_folds
from benchmarks._large_tables import report
from benchmarks._store import JsonLines, Record, write_whole
from benchmarks.peers import MODELS, OURS, PEERS, SMALL_ONLY
from benchmarks.peers.base import NOT_INSTALLED
from benchmarks.peers.run import DIVERGED
from twostagegp.datasets import FOLDER_VARIABLE

__all__ = [
    "Limits",
    "Task",
    "add_common",
    "carry_out",
    "ending",
    "kill",
    "last_words",
    "main",
    "measure_alone",
    "settled",
    "start",
]

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
DEFAULT_MODELS = ("ours", *(name for name in PEERS if name not in SMALL_ONLY))
PEER_FOLDS = 2
TIME_LIMIT = "time limit"
DEFAULT_SECONDS = 1200
#: Every library asks one of these how many threads it may use.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Task:
    """One fit: which model, on which table, on the training rows of which fold."""

    model: str
    set: str
    fold: int

    @property
    def key(self) -> tuple[str, str, int]:
        """As in the store."""
        return self.model, self.set, self.fold


@dataclass(frozen=True)
class Limits:
    """What a fit is given.

    Attributes
    ----------
    seconds : int
        Wall-clock time for starting, fitting, predicting and scoring together.
    threads : int
    python : str
        The interpreter that has the packages.
    """

    seconds: int = DEFAULT_SECONDS
    threads: int = 1
    python: str = sys.executable


def measure_alone(task: Task, limits: Limits, program: Sequence[str] = ()) -> Record:
    """The record of a fit in a process of its own, whatever becomes of that process.

    Parameters
    ----------
    task : Task
    limits : Limits
    program : sequence of str, optional
        Arguments of the interpreter instead of those that run the task; for tests.
    """
    arguments = program or (
        "-m",
        "benchmarks.peers.run",
        task.model,
        task.set,
        str(task.fold),
    )
    known = {"model": task.model, "set": task.set, "fold": task.fold}
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        process = start(arguments, limits, complaints)
        try:
            answer, _ = process.communicate(timeout=limits.seconds)
        except subprocess.TimeoutExpired:
            return known | {"error": TIME_LIMIT, "time_limit": limits.seconds}
        finally:
            kill(process)  # also on Ctrl-C: nobody else would
            process.communicate()
        said = last_words(complaints)
    took = {"process_wall": time.perf_counter() - began, "time_limit": limits.seconds}
    try:
        return json.loads(answer) | took
    except json.JSONDecodeError:
        return known | took | {"error": f"{ending(process.returncode)}: {said}"}


def start(arguments: Sequence[str], limits: Limits, complaints: TextIO) -> subprocess.Popen[str]:
    """A process in a group of its own that answers on its output stream."""
    environment = dict(os.environ, **dict.fromkeys(THREAD_VARIABLES, str(limits.threads)))
    if folder := environment.get(FOLDER_VARIABLE):
        environment[FOLDER_VARIABLE] = str(Path(folder).absolute())
    return subprocess.Popen(
        [limits.python, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=complaints,
        text=True,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[str]) -> None:
    """End the process and whatever it started, if it is still there."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def last_words(complaints: TextIO) -> str:
    """The last line that a process wrote to its error stream."""
    complaints.seek(0)
    return (complaints.read().strip().splitlines() or ["nothing was said"])[-1]


def ending(status: int) -> str:
    """How a process ended, in words."""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def settled(record: Record, limits: Limits) -> bool:
    """Whether running a record's fit again would be a waste.

    A model that diverged does so again, and one that ran out of time needs more of it; anything
    else that failed is tried again.
    """
    error = record.get("error")
    if error == TIME_LIMIT:
        return record.get("time_limit", 0) >= limits.seconds
    return not error or error.startswith(DIVERGED)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, then write and print the tables; returns 1 if a fit failed."""
    given = _parser().parse_args(arguments)
    wanted = [] if given.table_only else _tasks(given.sets, given.models, given.folds)

    def measure(tasks: Sequence[Task], limits: Limits) -> Iterator[Record]:
        return (measure_alone(task, limits) for task in tasks)

    return carry_out("uci_large", given, wanted, measure, report)


def carry_out(
    name: str,
    given: argparse.Namespace,
    wanted: Sequence[Task],
    measure: Callable[[Sequence[Task], Limits], Iterable[Record]],
    page: Callable[[Iterable[Record]], str],
) -> int:
    """Measure what the results do not have yet, then write and print the page; 1 if a fit failed.

    Parameters
    ----------
    name : str
        Of the files in the folder of results.
    given : argparse.Namespace
        With the options of :func:`add_common`.
    wanted : sequence of Task
    measure : callable
        The records of tasks, one after the other.
    page : callable
        Markdown from all records.
    """
    store = JsonLines(given.results / f"{name}.jsonl", key=("model", "set", "fold"))
    failed = 0
    if not given.table_only:
        limits = Limits(given.time_limit, given.threads, given.python)
        there = {} if given.redo else store.records()
        done = {key for key, record in there.items() if settled(record, limits)}
        tasks = [task for task in wanted if task.key not in done]
        print(f"{len(wanted) - len(tasks)} of {len(wanted)} fits are there already.", flush=True)
        for count, record in enumerate(measure(tasks, limits), start=1):
            failed += "error" in record
            # A missing package says nothing about the model.
            if not str(record.get("error", "")).startswith(NOT_INSTALLED):
                store.append(record, replace=given.redo)
            print(f"[{count}/{len(tasks)}] {_line(record)}", flush=True)
            write_whole(given.results / f"{name}.md", page(store.records().values()))
    text = page(store.records().values())
    write_whole(given.results / f"{name}.md", text)
    print(text)
    return 1 if failed else 0


def _tasks(sets: list[str], models: list[str], folds: list[int] | None) -> list[Task]:
    """All fits, table by table; folds that a table does not have are left out."""
    tasks = []
    for name in sets:
        data = load(name)
        for model in models:
            has = n_folds(data)
            chosen = folds if folds is not None else _default_folds(model, len(data.y), has)
            tasks += [Task(model, name, fold) for fold in chosen if fold < has]
    return tasks


def _default_folds(model: str, n: int, has: int) -> list[int]:
    if model in OURS:
        return list(range(has))
    return [0] if n > MANY_ROWS else list(range(PEER_FOLDS))


def _line(record: Record) -> str:
    head = f"{record['model']}, {record['set']}, fold {record['fold']}: "
    if "error" in record:
        return head + record["error"]
    return head + (
        f"RMSE {record['rmse']:.4f}, NLPD {record['nlpd']:.3f}, "
        f"coverage {record['coverage_95']:.3f}, QICE {record['qice']:.2f}, "
        f"fit {record['fit_cpu']:.1f} CPU s, {record['predictions_a_second']:.0f} predictions/s, "
        f"{record['peak_mib']:.0f} MiB"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.uci_large", description="Nine larger tables, against peers."
    )
    parser.add_argument("--sets", type=names(SETS), default=list(SETS))
    parser.add_argument("--models", type=names(MODELS), default=list(DEFAULT_MODELS))
    parser.add_argument("--folds", type=_folds, help="numbers, as in 0,1 or 0-4")
    add_common(parser, DEFAULT_SECONDS)
    return parser


def add_common(parser: argparse.ArgumentParser, seconds: int) -> None:
    """The options of :func:`carry_out`."""
    parser.add_argument("--time-limit", type=positive, default=seconds, help="seconds a fit")
    parser.add_argument("--threads", type=positive, default=1, help="threads of a fit")
    parser.add_argument("--python", default=sys.executable, help="interpreter that runs the fits")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table-only", action="store_true", help="no fits, only the tables")
    parser.add_argument("--redo", action="store_true", help="fit again what is there already")


if __name__ == "__main__":
    raise SystemExit(main())
