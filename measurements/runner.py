"""The command line of every benchmark and experiment: measure what is missing, then write a page.

A :class:`Measurement` says which cells there are, how one is measured, and how a page and a figure
are made from the records. :func:`run` does the rest: it measures the cells whose record the results
do not have yet, stores every record as soon as it is known (:mod:`measurements.store`), and writes
page and figure whole or not at all. An interrupted run is simply started again.

``--quick`` measures a small part and keeps its results apart from the full ones, in a folder
``quick`` that git ignores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from measurements.arguments import positive
from measurements.errors import CannotMeasureError
from measurements.provenance import code_version, facts
from measurements.store import JsonLines, Record, write_whole
from measurements.timing import use_threads
from twostagegp.datasets import DatasetNotFoundError

__all__ = ["Measurement", "Workers", "measure_all", "measured", "run"]

T = TypeVar("T")


class Strategy(Protocol):
    """How the cells of a run are measured."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of this strategy to a parser."""

    def is_settled(self, record: Record, given: argparse.Namespace) -> bool:
        """Return whether measuring a failed cell again would fail again."""

    def records(
        self, measurement: Measurement[Any], cells: Sequence[Any], given: argparse.Namespace
    ) -> Iterator[Record]:
        """Measure the cells and yield their records as they become ready."""


@dataclass(frozen=True)
class Workers:
    """Cells in this process, or with ``--jobs`` in several worker processes of one thread each.

    Attributes
    ----------
    threads : int, optional
        Default of ``--threads``, the threads of this process; None: no such option, and as many
        threads as the libraries take. Only for measurements of speed.
    """

    threads: int | None = None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add ``--jobs``, or ``--threads`` for a measurement of speed."""
        if self.threads is None:
            parser.add_argument("--jobs", type=positive, default=1, help="processes of one thread")
        else:
            parser.add_argument("--threads", type=positive, default=self.threads)

    def is_settled(self, record: Record, given: argparse.Namespace) -> bool:
        """Return False: whatever failed is tried again."""
        return False

    def records(
        self, measurement: Measurement[Any], cells: Sequence[Any], given: argparse.Namespace
    ) -> Iterator[Record]:
        """Measure the cells in their order, or with several jobs as workers become free."""
        if self.threads is not None:
            use_threads(given.threads)
        jobs = 1 if self.threads is not None else given.jobs
        yield from measure_all(partial(measured, measurement.measure), cells, jobs)


@dataclass(frozen=True)
class Measurement(Generic[T]):
    """One benchmark or experiment.

    Attributes
    ----------
    name : str
        Name of its module and of its result files.
    about : str
        One line for ``--help``.
    results : Path
        Folder of the stored results.
    cell : type
        A frozen dataclass of JSON values: what one record measures.
    cells : callable
        Makes the cells that the parsed options ask for; a small part if ``given.quick``.
    measure : callable
        Makes the record of one cell. The fields of the cell, versions, source hash and machine are
        added. An exception becomes a record with ``error``. It must be a function of a module, so
        that other processes find it.
    report : callable
        Makes the Markdown page from all records, for example a :class:`~measurements.pages.Page`.
    figure : callable, optional
        Makes an SVG from all records; None if there is nothing to draw yet.
    arguments : callable
        Adds the measurement's own options to a parser.
    key : tuple of str
        Fields of the cell that identify its record; by default all. The other fields are settings
        of a run: they are stored, but a record with other settings counts as the same cell.
    load : callable, optional
        Reads the records of the page from a folder; by default those of the store. For pages that
        also show records of other measurements.
    settled : callable
        Whether a record need not be measured again; by default if it has no error.
    current : callable
        Whether a stored record is still that of the cell. If not, the cell is measured again and
        the record replaced.
    strategy : Strategy
        How the cells are measured: :class:`Workers` or
        :class:`~measurements.processes.Processes`.
    """

    name: str
    about: str
    results: Path
    cell: type[T]
    cells: Callable[[argparse.Namespace], Sequence[T]]
    measure: Callable[[T], Record]
    report: Callable[[list[Record]], str]
    figure: Callable[[list[Record]], str | None] | None = None
    arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    key: tuple[str, ...] = ()
    load: Callable[[Path], list[Record]] | None = None
    settled: Callable[[Record], bool] = lambda record: not record.get("error")
    current: Callable[[T, Record], bool] = lambda cell, record: True
    strategy: Strategy = field(default_factory=Workers)

    @property
    def module(self) -> str:
        """The module that defines the measurement, also when it runs as a program."""
        name = self.cells.__module__
        return sys.modules[name].__spec__.name if name == "__main__" else name  # type: ignore[union-attr]

    def store(self, folder: Path | None = None) -> JsonLines:
        """Return the stored records, by default those of the repository."""
        key = self.key or tuple(item.name for item in fields(self.cell))  # type: ignore[arg-type]
        return JsonLines((folder or self.results) / f"{self.name}.jsonl", key)

    def parser(self) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=self.about)
        parser.add_argument("--quick", action="store_true", help="a small part, kept apart")
        parser.add_argument("--results", type=Path, help="folder of the results")
        parser.add_argument(
            "--redo",
            nargs="?",
            const="all",
            choices=("all", "stale"),
            help="measure stored cells again; stale: only those of other source code",
        )
        parser.add_argument("--table-only", action="store_true", help="only page and figure")
        self.strategy.add_arguments(parser)
        self.arguments(parser)
        return parser

    def records(self, folder: Path | None = None) -> list[Record]:
        """Return the records that page and figure are made from."""
        folder = folder or self.results
        return self.load(folder) if self.load else list(self.store(folder).records().values())

    def write(self, folder: Path | None = None) -> str:
        """Write page and figure of the stored records; returns the page."""
        folder = folder or self.results
        records = self.records(folder)
        page = self.report(records)
        drawn = self.figure(records) if self.figure is not None else None
        if drawn is not None:
            write_whole(folder / f"{self.name}.svg", drawn)
        write_whole(folder / f"{self.name}.md", page)
        return page


def run(measurement: Measurement[Any], arguments: Sequence[str] | None = None) -> int:
    """Run a measurement from the command line.

    Returns
    -------
    int
        0; 1 if a cell failed; 2 if a table is missing in the data folder.
    """
    given = measurement.parser().parse_args(arguments)
    folder = given.results or measurement.results / ("quick" if given.quick else "")
    store, failed = measurement.store(folder), 0
    if not given.table_only:
        try:
            failed = _measure_missing(measurement, store, given)
        except DatasetNotFoundError as error:
            print(error, file=sys.stderr)
            return 2
    if not measurement.records(folder):
        print(f"{measurement.name}: there are no results yet", file=sys.stderr)
        return 1
    print(measurement.write(folder))
    return 1 if failed else 0


def measured(measure: Callable[[T], Record], cell: T) -> Record:
    """Return the record of a cell, with its origin; an exception becomes the record's error."""
    record: Record = {**asdict(cell), **facts()}  # type: ignore[call-overload]
    try:
        return record | measure(cell)
    except DatasetNotFoundError:
        raise
    except CannotMeasureError as error:
        return record | {"error": str(error), "not_stored": True}
    except Exception as error:
        return record | {"error": f"{type(error).__name__}: {error}"}


def measure_all(measure: Callable[[T], Record], cells: Iterable[T], jobs: int) -> Iterator[Record]:
    """Yield the records as they become ready; with several processes each has one thread."""
    if jobs == 1:
        yield from map(measure, cells)
        return
    import joblib

    with joblib.parallel_config("loky", n_jobs=jobs, inner_max_num_threads=1):
        parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1)
        yield from parallel(joblib.delayed(_on_one_thread)(measure, cell) for cell in cells)


def _on_one_thread(measure: Callable[[T], Record], cell: T) -> Record:
    use_threads(1)
    return measure(cell)


def _measure_missing(
    measurement: Measurement[Any], store: JsonLines, given: argparse.Namespace
) -> int:
    """Measure the cells that the store does not have; returns how many failed."""
    wanted, stored = list(measurement.cells(given)), store.records()
    cells = [
        cell
        for cell in wanted
        if (record := stored.get(store.key_of(asdict(cell)))) is None
        or not measurement.current(cell, record)
        or not _is_done(measurement, record, given)
    ]
    print(f"{measurement.name}: {len(wanted) - len(cells)} of {len(wanted)} are stored already.")
    failed = 0
    records = measurement.strategy.records(measurement, cells, given)
    for count, record in enumerate(records, start=1):
        if not record.pop("not_stored", False):
            replace = given.redo is not None or store.key_of(record) in stored
            store.append(record, replace=replace)
        failed += not measurement.settled(record)
        what = ", ".join(f"{name} {record[name]}" for name in store.key)
        print(f"[{count}/{len(cells)}] {what}: {record.get('error', 'done')}", flush=True)
    return failed


def _is_done(measurement: Measurement[Any], record: Record, given: argparse.Namespace) -> bool:
    if given.redo == "all" or (given.redo == "stale" and record.get("code") != code_version()):
        return False
    return measurement.settled(record) or measurement.strategy.is_settled(record, given)
