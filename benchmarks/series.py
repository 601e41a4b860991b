"""Fits of one model in one process, each with a time limit of its own.

A module writes one line per fit. Whoever waits longer than the limit for the next
line ends the process, keeps the fit as one that ran out of time, and starts another process behind
it; a process that dies is treated likewise. So what one fit does, no other fit pays for.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from threading import Thread

from benchmarks.alone import TIME_LIMIT, Limits, Task, ending, kill, last_words, start
from measurements.store import Record

__all__ = ["measure_series"]


def measure_series(tasks: Sequence[Task], limits: Limits, module: str) -> Iterator[Record]:
    """The records of the tasks, all of one model, in their order.

    Parameters
    ----------
    tasks : sequence of Task
    limits : Limits
        The seconds are those of one fit; the first one's include the start.
    module : str
        The module that runs them: it takes a model and places, ``set:fold``.
    """
    waiting = list(tasks)
    while waiting:
        done = 0
        for record in _of_one_process(waiting, limits, _program(waiting, module)):
            yield record | {"time_limit": limits.seconds}
            done += 1
        waiting = waiting[done:]


def _program(tasks: Sequence[Task], module: str) -> list[str]:
    places = [f"{task.set}:{task.fold}" for task in tasks]
    return ["-m", module, tasks[0].model, *places]


def _of_one_process(
    tasks: Sequence[Task], limits: Limits, program: Sequence[str]
) -> Iterator[Record]:
    """At least one record: of all tasks, or up to the first that could not be done."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        process = start(program, limits, complaints)
        reader, lines = _reader(process)
        try:
            for task in tasks:
                known = {"model": task.model, "set": task.set, "fold": task.fold}
                try:
                    line = lines.get(timeout=limits.seconds)
                except Empty:
                    yield known | {"error": TIME_LIMIT}
                    return
                if not line:
                    how = ending(process.wait())
                    yield known | {"error": f"{how}: {last_words(complaints)}"}
                    return
                yield json.loads(line)
        finally:
            kill(process)  # also when nobody asks for the rest
            reader.join()
            process.wait()


def _reader(process: subprocess.Popen[str]) -> tuple[Thread, SimpleQueue[str]]:
    """A thread that passes the lines on, and an empty one behind the last."""
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
