"""What every experiment of the paper shares: a command line, resumable fits, a page and a picture.

An :class:`Experiment` says which tasks there are, how one is measured, and how a page and a picture
are made from the records. :func:`run` does the rest: it measures what the results do not have yet,
in several processes of one thread each, keeps every record as soon as it is known
(:mod:`benchmarks._store`), and writes page and picture whole or not at all.

``--quick`` takes few seeds and the small tables, and keeps its results apart from the full ones in
a folder ``quick`` that git does not know.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import joblib
import matplotlib as mpl

import twostagegp
from benchmarks._arguments import positive
from benchmarks._models import code_version
from benchmarks._store import JsonLines, Record, write_whole
from benchmarks._timing import use_threads
from twostagegp.datasets import DatasetNotFoundError

__all__ = ["RESULTS", "Experiment", "add_common", "measure_all", "run", "svg"]

RESULTS = Path(__file__).parent / "results"
T = TypeVar("T")


@dataclass(frozen=True)
class Experiment(Generic[T]):
    """One table or figure.

    Attributes
    ----------
    name : str
        Of the result files, and for ``python -m experiments NAME``.
    about : str
        One line.
    arguments : callable
        Adds the experiment's own options to a parser.
    tasks : callable
        The tasks that the parsed options ask for: frozen dataclasses of JSON values, which can be
        pickled. Quick or not is ``given.quick``.
    measure : callable
        A record (scores, choices) of a task; the fields of the task, version and source hash are
        added. It is a function of a module, so that other processes find it. An exception becomes
        a record with ``error``.
    report : callable
        The Markdown page from all records.
    picture : callable or None
        An SVG from all records; None where there is nothing to draw yet.
    needs_data : bool
        Whether tables of the data folder are read.
    """

    name: str
    about: str
    arguments: Callable[[argparse.ArgumentParser], None]
    tasks: Callable[[argparse.Namespace], Sequence[T]]
    measure: Callable[[T], Record]
    report: Callable[[list[Record]], str]
    picture: Callable[[list[Record]], str | None] | None = None
    needs_data: bool = True

    def parser(self) -> argparse.ArgumentParser:
        """The command line."""
        parser = argparse.ArgumentParser(
            prog=f"python -m experiments {self.name}", description=self.about
        )
        add_common(parser)
        self.arguments(parser)
        return parser


def add_common(parser: argparse.ArgumentParser) -> None:
    """The options that every experiment has."""
    parser.add_argument("--quick", action="store_true", help="few seeds, small tables")
    parser.add_argument("--jobs", type=positive, default=1, help="processes of one thread each")
    parser.add_argument("--results", type=Path, help="folder of the results")
    parser.add_argument("--redo", action="store_true", help="compute again what is there already")
    parser.add_argument("--table-only", action="store_true", help="nothing but page and picture")


def svg(figure: Any) -> str:
    """A matplotlib figure as text that does not change from run to run."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "twostagegp", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, bbox_inches="tight")
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    return "\n".join(lines) + "\n"


def run(experiment: Experiment[Any], arguments: Sequence[str] | None = None) -> int:
    """Carry an experiment out; 0, or 1 if a fit failed, 2 if the data folder has no such table."""
    given = experiment.parser().parse_args(arguments)
    folder = given.results or (RESULTS / "quick" if given.quick else RESULTS)
    tasks = list(experiment.tasks(given))
    store = JsonLines(folder / f"{experiment.name}.jsonl", key=_fields(tasks))
    failed = 0
    if not given.table_only:
        try:
            failed = _work(experiment, store, tasks, given)
        except DatasetNotFoundError as error:
            print(error, file=sys.stderr)
            return 2
    records = list(store.records().values())
    if not records:
        print(f"{experiment.name}: there are no results yet", file=sys.stderr)
        return 1
    page = experiment.report(records)
    drawn = experiment.picture(records) if experiment.picture is not None else None
    if drawn is not None:
        write_whole(folder / f"{experiment.name}.svg", drawn)
    write_whole(folder / f"{experiment.name}.md", page)
    print(page)
    return 1 if failed else 0


def _fields(tasks: Sequence[Any]) -> tuple[str, ...]:
    if not tasks or not is_dataclass(tasks[0]):
        raise ValueError("an experiment needs tasks that are dataclasses")
    return tuple(field.name for field in fields(tasks[0]))


def _measured(measure: Callable[[Any], Record], task: Any) -> Record:
    record: Record = {
        **asdict(task),
        "version": twostagegp.__version__,
        "code": code_version(),
    }
    try:
        return record | measure(task)
    except DatasetNotFoundError:
        raise
    except Exception as error:
        return record | {"error": f"{type(error).__name__}: {error}"}


def measure_all(measure: Callable[[T], Record], tasks: Iterable[T], jobs: int) -> Iterator[Record]:
    """The records as they become ready; with several processes each has one thread."""
    if jobs == 1:
        yield from map(measure, tasks)
        return
    with joblib.parallel_config("loky", n_jobs=jobs, inner_max_num_threads=1):
        parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1)
        yield from parallel(joblib.delayed(_on_one_thread)(measure, task) for task in tasks)


def _on_one_thread(measure: Callable[[T], Record], task: T) -> Record:
    use_threads(1)
    return measure(task)


def _work(
    experiment: Experiment[Any], store: JsonLines, wanted: list[Any], given: argparse.Namespace
) -> int:
    """Measure what is missing; returns the number of tasks that failed."""
    done = set() if given.redo else store.done()
    tasks = [task for task in wanted if tuple(asdict(task).values()) not in done]
    print(f"{experiment.name}: {len(wanted) - len(tasks)} of {len(wanted)} are there already.")
    failed = 0
    records = measure_all(partial(_measured, experiment.measure), tasks, given.jobs)
    for count, record in enumerate(records, start=1):
        store.append(record, replace=given.redo)
        failed += "error" in record
        said = record.get("error", "")
        what = ", ".join(str(record[name]) for name in store.key)
        print(f"[{count}/{len(tasks)}] {what} {said}", flush=True)
    return failed
