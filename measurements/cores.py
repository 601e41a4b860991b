"""Processor cores: restrict a process to some of them, and keep them busy with other work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

__all__ = ["CAN_RESTRICT", "busy_neighbors", "cores_in_use", "restricted_to", "usable"]

#: Whether this system can restrict a process to some of its cores; Linux can.
CAN_RESTRICT = hasattr(os, "sched_setaffinity")

#: Ends with the process that started it, even if that process is killed.
_BUSY_LOOP = """
import os, sys
parent = int(sys.argv[1])
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


def usable() -> list[int]:
    """Return the cores that this process may use, in ascending order."""
    if CAN_RESTRICT:
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cores_in_use(seconds: float = 0.5) -> float | None:
    """Return how many cores other programs use on average while this thread sleeps.

    None if the system does not say; Linux does.
    """
    before = _processor_times()
    if before is None:
        return None
    time.sleep(seconds)
    after = _processor_times() or before
    idle, total = after[0] - before[0], after[1] - before[1]
    return (os.cpu_count() or 1) * (1.0 - idle / total) if total else 0.0


def _processor_times() -> tuple[int, int] | None:
    """Return the time that all cores together were idle, and their whole time, in ticks."""
    path = Path("/proc/stat")
    if not path.exists():
        return None
    # user, nice, system, idle, iowait, irq, softirq, steal; guests are counted in the first two
    ticks = [int(number) for number in path.read_text().splitlines()[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


@contextmanager
def restricted_to(cores: Collection[int] | None) -> Iterator[None]:
    """Restrict this thread, and the processes that it starts meanwhile, to some cores.

    None changes nothing.
    """
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def busy_neighbors(cores: Collection[int]) -> Iterator[None]:
    """Run one endless loop per core, pinned to that core, in processes of their own."""
    with ExitStack() as running:
        for core in cores:
            running.enter_context(_busy_loop(core))
        yield


@contextmanager
def _busy_loop(core: int) -> Iterator[None]:
    with restricted_to([core] if CAN_RESTRICT else None):
        process = subprocess.Popen([sys.executable, "-S", "-c", _BUSY_LOOP, str(os.getpid())])
    try:
        yield
    finally:
        process.kill()
        process.wait()
