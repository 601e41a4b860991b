"""Accuracy on the eight small UCI tables over their standard splits.

Every fit of a model on the training rows of a split is scored on its test rows and kept at once in
``uci_small.jsonl``; ``uci_small.md`` is made from that file. What is in the file is not computed
again, so a broken run is simply started again, and splits, tables and models can be added later.
The data folder is named by ``TWOSTAGEGP_DATA``.

    python -m benchmarks.uci_small --sets yacht,boston --splits 5 --models default,paper --jobs 2
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib

import twostagegp
from benchmarks._arguments import names, positive
from benchmarks._models import MODELS, code_version
from benchmarks._scores import fit_facts, predictive_scores
from benchmarks._store import JsonLines, Record, write_whole
from benchmarks._timing import Timed, use_threads
from benchmarks._uci_tables import REFERENCES, report
from twostagegp import datasets

__all__ = ["Task", "main", "measure"]

RESULTS = Path(__file__).parent / "results"
DEFAULT_MODELS = ("default", "paper", "single_paper", "single")
N_STANDARD_SPLITS = 20


@dataclass(frozen=True)
class Task:
    """One fit: which model, on which table, on the training rows of which split."""

    model: str
    set: str
    split: int


def measure(task: Task, device: str = "auto") -> Record:
    """Fit and score; a fit that fails gives a record with its error instead of scores."""
    data = datasets.load(task.set)
    train, test = data.split(task.split)
    record: Record = {
        "model": task.model,
        "set": task.set,
        "split": task.split,
        "n_train": len(train),
        "n_test": len(test),
        "device": device,
        "version": twostagegp.__version__,
        "code": code_version(),
    }
    try:
        return record | _fit_and_score(task.model, data, train, test, device)
    except Exception as error:
        return record | {"error": f"{type(error).__name__}: {error}"}


def _fit_and_score(name: str, data: Any, train: Any, test: Any, device: str) -> Record:
    model = MODELS[name](random_state=0, device=device)
    with Timed() as took:
        model.fit(data.X[train], data.y[train])
    return {
        "device": model.fit_report_.device,  # what "auto" came to
        **predictive_scores(model, data.X[test], data.y[test], data.y[train]),
        "fit_cpu_seconds": took.cpu,
        "fit_wall_seconds": took.wall,
        **fit_facts(model),
    }


def _measure_alone(task: Task, device: str) -> Record:
    use_threads(1)
    return measure(task, device)


def _measure_all(tasks: list[Task], jobs: int, device: str) -> Iterator[Record]:
    """The records as they become ready; with several processes each has one thread."""
    if jobs == 1:
        yield from (measure(task, device) for task in tasks)
        return
    with joblib.parallel_config("loky", n_jobs=jobs, inner_max_num_threads=1):
        parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1)
        yield from parallel(joblib.delayed(_measure_alone)(task, device) for task in tasks)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, then write and print the tables; returns 1 if a fit failed."""
    given = _parser().parse_args(arguments)
    store = JsonLines(given.results / "uci_small.jsonl", key=("model", "set", "split"))
    failed = 0
    if not given.table_only:
        wanted = _tasks(given.sets, given.models, given.splits)
        _check_splits(wanted)
        done = set() if given.redo else store.done()
        tasks = [task for task in wanted if (task.model, task.set, task.split) not in done]
        print(f"{len(wanted) - len(tasks)} of {len(wanted)} fits are there already.", flush=True)
        for count, record in enumerate(_measure_all(tasks, given.jobs, given.device), start=1):
            store.append(record, replace=given.redo)
            failed += "error" in record
            print(f"[{count}/{len(tasks)}] {_line(record)}", flush=True)
    page = report(store.records().values())
    write_whole(given.results / "uci_small.md", page)
    print(page)
    return 1 if failed else 0


def _tasks(sets: list[str], models: list[str], splits: range | None) -> list[Task]:
    return [
        Task(model, name, split)
        for name in sets
        for model in models
        for split in (range(REFERENCES[name].n_splits) if splits is None else splits)
    ]


def _check_splits(tasks: list[Task]) -> None:
    """Find a missing table or split now, not after hours."""
    for name in {task.set for task in tasks}:
        datasets.load(name).split(max(task.split for task in tasks if task.set == name))


def _line(record: Record) -> str:
    head = f"{record['model']}, {record['set']}, split {record['split']}: "
    if "error" in record:
        return head + record["error"]
    return head + (
        f"RMSE {record['rmse']:.4g}, NLPD {record['nlpd_standardized']:.3f}, "
        f"coverage {record['coverage_95']:.3f}, {record['fit_cpu_seconds']:.1f} CPU s"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.uci_small", description="Accuracy on the small UCI tables."
    )
    parser.add_argument("--sets", type=names(REFERENCES), default=list(REFERENCES))
    parser.add_argument("--models", type=names(MODELS), default=list(DEFAULT_MODELS))
    parser.add_argument(
        "--splits", type=_split_range, help="N: the first N; A-B: from A to B, counted from 0"
    )
    parser.add_argument("--jobs", type=positive, default=1, help="processes of one thread each")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table-only", action="store_true", help="no fits, only the tables")
    parser.add_argument("--redo", action="store_true", help="fit again what is there already")
    return parser


def _split_range(text: str) -> range:
    first, dash, last = text.partition("-")
    try:
        chosen = range(int(first), int(last) + 1) if dash else range(int(first))
    except ValueError:
        chosen = range(0)
    if not chosen or chosen[-1] >= N_STANDARD_SPLITS:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give a number up to {N_STANDARD_SPLITS}, or A-B with B below it"
        )
    return chosen


if __name__ == "__main__":
    raise SystemExit(main())
