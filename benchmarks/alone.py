"""One fit in a process of its own, for the benchmarks that :mod:`measurements` does not run yet."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from measurements.processes import THREAD_VARIABLES, TIME_LIMIT
from measurements.store import Record
from twostagegp.datasets import FOLDER_VARIABLE

__all__ = ["TIME_LIMIT", "Limits", "Task", "ending", "kill", "last_words", "measure_alone", "start"]

ROOT = Path(__file__).parent.parent
DEFAULT_SECONDS = 1200


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


def measure_alone(task: Task, limits: Limits, program: Sequence[str]) -> Record:
    """The record of a fit in a process of its own, whatever becomes of that process.

    Parameters
    ----------
    task : Task
    limits : Limits
    program : sequence of str
        Arguments of the interpreter.
    """
    known = {"model": task.model, "set": task.set, "fold": task.fold}
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        process = start(program, limits, complaints)
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
