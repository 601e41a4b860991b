"""Cells measured in processes of their own, each cell with a time limit.

A process per cell, or per group of cells, has its own memory peak, threads and random state, and a
fit that hangs or is killed takes no other fit with it. The process prints one record per line. When
the next line takes longer than the time limit, the process is ended, the cell is stored as one that
ran out of time, and another process measures the cells behind it; a process that dies is treated
likewise.

    python -m measurements.processes benchmarks.uci_large '{"model": "ours", ...}' ...

is what such a process runs.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib import import_module
from itertools import groupby
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any, TextIO

from measurements.arguments import positive
from measurements.cores import restricted_to, usable
from measurements.runner import Measurement, measured
from measurements.store import Record, plain
from measurements.timing import use_threads
from twostagegp.datasets import FOLDER_VARIABLE, DatasetNotFoundError

__all__ = ["TIME_LIMIT", "Limits", "Processes", "answer", "main", "measure_group"]

ROOT = Path(__file__).parent.parent
#: The error of a cell that ran out of time.
TIME_LIMIT = "time limit"
#: Every library reads one of these for the number of threads that it may use.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Limits:
    """What a process is given.

    Attributes
    ----------
    seconds : int
        Wall-clock seconds per cell; those of the first cell include the start of the process.
    threads : int or None
        None: as many as the libraries take by themselves.
    python : str
        The interpreter.
    cores : int, optional
        How many cores the process may use: the first ones that this process may use. By default
        all of them.
    environment : mapping
        Further environment variables.
    """

    seconds: int
    threads: int | None = 1
    python: str = sys.executable
    cores: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Processes:
    """Cells in processes of their own.

    Attributes
    ----------
    seconds : int
        Default of ``--time-limit``, in seconds per cell.
    threads : int or None
        Default of ``--threads``; None: no such option, and ``limits`` may set the threads.
    group : callable, optional
        Consecutive cells with the same value share a process, for fits that take less time than
        the start of a library. By default every cell has its own.
    other_python : callable
        Whether the interpreter of ``--python`` measures a cell: by default every cell.
    settled : callable
        Whether a record with an error, other than the time limit, need not be measured again.
    limits : callable
        From the first cell of a group, the arguments and the limits that they give to the limits
        of the group's process.
    """

    seconds: int
    threads: int | None = 1
    group: Callable[[Any], Any] | None = None
    other_python: Callable[[Any], bool] = lambda cell: True
    settled: Callable[[Record], bool] = lambda record: False
    limits: Callable[[Any, argparse.Namespace, Limits], Limits] = lambda cell, given, limits: limits

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add ``--time-limit``, ``--threads``, ``--python`` and ``--jobs``."""
        add = parser.add_argument
        add("--time-limit", type=positive, default=self.seconds, help="seconds per fit")
        if self.threads is not None:
            add("--threads", type=positive, default=self.threads, help="threads per fit")
        add("--python", default=sys.executable, help="interpreter that has other libraries")
        add("--jobs", type=positive, default=1, help="processes at a time")

    def is_settled(self, record: Record, given: argparse.Namespace) -> bool:
        """Return whether the cell had at least as much time as it would be given now."""
        if record.get("error") == TIME_LIMIT:
            return record.get("time_limit", 0) >= given.time_limit
        return self.settled(record)

    def records(
        self, measurement: Measurement[Any], cells: Sequence[Any], given: argparse.Namespace
    ) -> Iterator[Record]:
        """Measure group by group; with several jobs, groups are measured at the same time."""
        groups = self._groups(cells)
        if given.jobs == 1:
            for group in groups:
                yield from measure_group(measurement, group, self._limits(group[0], given))
            return
        found: SimpleQueue[Record | None] = SimpleQueue()
        stop = Event()

        def work(group: list[Any]) -> None:
            limits = self._limits(group[0], given)
            try:
                for record in measure_group(measurement, group, limits, stop):
                    found.put(record)
            finally:
                found.put(None)

        with ThreadPoolExecutor(given.jobs) as pool:
            waiting = [pool.submit(work, group) for group in groups]
            try:
                ended = 0
                while ended < len(groups):
                    record = found.get()
                    if record is None:
                        ended += 1
                    else:
                        yield record
                for future in waiting:
                    future.result()
            finally:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)

    def _groups(self, cells: Sequence[Any]) -> list[list[Any]]:
        if self.group is None:
            return [[cell] for cell in cells]
        return [list(group) for _, group in groupby(cells, key=self.group)]

    def _limits(self, cell: Any, given: argparse.Namespace) -> Limits:
        python = given.python if self.other_python(cell) else sys.executable
        threads = None if self.threads is None else given.threads
        return self.limits(cell, given, Limits(given.time_limit, threads, python))


def measure_group(
    measurement: Measurement[Any],
    cells: Sequence[Any],
    limits: Limits,
    stop: Event | None = None,
) -> Iterator[Record]:
    """Measure cells in one process, and in another one behind each cell that ended it.

    Parameters
    ----------
    measurement : Measurement
    cells : sequence of cells
    limits : Limits
    stop : Event, optional
        Ends the process and the records once it is set.
    """
    waiting, stop = list(cells), stop or Event()
    while waiting and not stop.is_set():
        done = 0
        for record in _one_process(measurement, waiting, limits, stop):
            yield record | {"time_limit": limits.seconds, "threads": limits.threads}
            done += 1
        waiting = waiting[done:]


def _one_process(
    measurement: Measurement[Any], cells: Sequence[Any], limits: Limits, stop: Event
) -> Iterator[Record]:
    """Yield the records of all cells, or up to the first cell that could not be measured."""
    described = [json.dumps(plain(asdict(cell))) for cell in cells]
    program = ["-m", "measurements.processes", measurement.module, *described]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        process = _start(program, limits, complaints)
        reader, lines = _reader(process)
        try:
            for cell in cells:
                line = _next_line(lines, limits.seconds, stop)
                if stop.is_set():
                    return
                if line is None:
                    yield asdict(cell) | {"error": TIME_LIMIT}
                    return
                if not line:
                    how = _ending(process.wait())
                    yield asdict(cell) | {"error": f"{how}: {_last_line(complaints)}"}
                    return
                yield json.loads(line)
        finally:
            if process.poll() is None:  # also after Ctrl-C, and whatever it started
                os.killpg(process.pid, signal.SIGKILL)
            reader.join()
            process.wait()


def _start(arguments: Sequence[str], limits: Limits, complaints: TextIO) -> subprocess.Popen[str]:
    """Start a process in its own group that answers on its output stream."""
    environment = {k: v for k, v in os.environ.items() if k not in THREAD_VARIABLES}
    if limits.threads is not None:
        environment |= dict.fromkeys(THREAD_VARIABLES, str(limits.threads))
    environment |= limits.environment
    if folder := environment.get(FOLDER_VARIABLE):
        environment[FOLDER_VARIABLE] = str(Path(folder).absolute())
    with restricted_to(None if limits.cores is None else usable()[: limits.cores]):
        return subprocess.Popen(
            [limits.python, *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            start_new_session=True,
        )


def _reader(process: subprocess.Popen[str]) -> tuple[Thread, SimpleQueue[str]]:
    """Start a thread that passes lines on, and an empty one behind the last."""
    lines: SimpleQueue[str] = SimpleQueue()
    output = process.stdout
    assert output is not None

    def read() -> None:
        with output:
            for line in output:
                lines.put(line)
        lines.put("")

    thread = Thread(target=read, daemon=True)
    thread.start()
    return thread, lines


def _next_line(lines: SimpleQueue[str], seconds: float, stop: Event) -> str | None:
    """Wait for a line; None if it takes longer than ``seconds``, or once ``stop`` is set."""
    end = time.monotonic() + seconds
    while not stop.is_set() and (left := end - time.monotonic()) > 0:
        try:
            return lines.get(timeout=min(left, 1.0))
        except Empty:
            continue
    return None


def _last_line(complaints: TextIO) -> str:
    complaints.seek(0)
    return (complaints.read().strip().splitlines() or ["no message"])[-1]


def _ending(status: int) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


# --- in the process ------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Print one record per cell, as soon as it is known; returns 0."""
    module, *described = arguments
    measurement: Measurement[Any] = import_module(module).MEASUREMENT
    cells = [measurement.cell(**json.loads(text)) for text in described]
    return answer(_answered(measurement, cell) for cell in cells)


def _answered(measurement: Measurement[Any], cell: Any) -> Record:
    try:
        return measured(measurement.measure, cell)
    except DatasetNotFoundError as error:
        return asdict(cell) | {"error": str(error), "not_stored": True}


def answer(records: Iterable[Record]) -> int:
    """Print each record as it is made, and nothing else that is printed meanwhile; returns 0."""
    output = os.dup(1)
    os.dup2(2, 1)  # libraries in C print to file 1 too
    if threads := os.environ.get(THREAD_VARIABLES[0]):
        use_threads(int(threads))
    with os.fdopen(output, "w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(plain(record), ensure_ascii=False, allow_nan=False) + "\n")
            file.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
