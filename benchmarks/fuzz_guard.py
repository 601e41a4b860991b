"""What a hostile file must not do, watched while it is read.

A case is a function that reads something hostile. It may end in an error of ours or in a result.
Anything else counts as a failure: another kind of exception, more than two seconds of processor
time, more than 256 MiB of resident memory beyond what there was before the case, a claim on more
memory than the process may take, a file opened for writing, a program started, code run that is not
of an installed module.

If such a claim ends in our :class:`~twostagegp.errors.MemoryBudgetError`, the message is right, but
it comes only after an allocation has failed. That is no failure, as some sizes cannot be read from
a file beforehand; it is counted separately, as "refused late".
"""

from __future__ import annotations

import faulthandler
import math
import os
import resource
import signal
import sys
import sysconfig
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from twostagegp.errors import MemoryBudgetError, TwoStageGPError

__all__ = ["CPU_SECONDS", "FAILURES", "GROWTH_MIB", "LATE", "Guard", "limit_address_space"]

#: Processor time that a case may take.
CPU_SECONDS = 2.0
#: Resident memory that a case may take, at its peak, beyond what there was before it.
GROWTH_MIB = 256
#: After so many seconds a case is interrupted; if that does not help, the process ends.
BREAK_SECONDS, END_SECONDS = 20, 90
#: Name of the outcome of an error of ours that was raised only after a failed allocation.
LATE = "refused late"
#: Names of outcomes that are failures; exceptions have their type behind a colon.
FAILURES = ("exception", "slow", "memory", "side effect", "not finite", "crash")

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NEVER = (
    "os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen", "socket.connect",
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod",
    "pickle.find_class", "shutil.", "ctypes.dlopen",
)  # fmt: skip
_ROOTS = tuple(
    str(Path(root).resolve())
    for root in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(sys.modules["twostagegp"].__file__ or "").parent),
    }
)


class _TooLong(BaseException):
    """Not an Exception, so that no reader of files can catch it."""


class Guard:
    """Runs cases and names their outcomes.

    Create one per process: Python's audit hooks cannot be removed.

    Parameters
    ----------
    programs : collection of str
        Paths of Python programs that a case may start.

    Attributes
    ----------
    growth_mib : float
        Resident memory that a case may take, at its peak, beyond what there was before it.
    break_seconds : float
        After so many seconds a case is interrupted.
    """

    def __init__(self, programs: Collection[str] = ()) -> None:
        self.growth_mib: float = GROWTH_MIB
        self.break_seconds: float = BREAK_SECONDS
        self.seen: list[str] = []
        self.programs = set(programs)
        self._watching = False
        self._armed = -math.inf
        sys.addaudithook(self._audit)

    def close(self) -> None:
        """Stop ending the process when a case hangs."""
        faulthandler.cancel_dump_traceback_later()
        self._armed = -math.inf

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._watching:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int) or not isinstance(flags, int):
                return  # an open descriptor, such as a pipe
            if flags & _WRITING and str(path) != os.devnull:
                self.seen.append(f"open for writing: {path!r}")
        elif event == "exec":
            name = getattr(arguments[0], "co_filename", "?")
            if not (name.startswith(("<frozen", "<attrs", "<__array_function__")) or _known(name)):
                self.seen.append(f"exec: {name}")
        elif event == "subprocess.Popen" and self.programs.intersection(arguments[1]):
            return
        elif event.startswith(_NEVER):
            self.seen.append(f"{event} {str(arguments)[:80]}")

    def run(self, case: Callable[[], str]) -> tuple[str, str]:
        """Run a case; return the name of its outcome and, for a failure, a message.

        ``case`` returns the name of its outcome, or raises.
        """
        self.seen.clear()
        before, begin = _reset_peak_mib(), time.process_time()
        try:
            with self._watched():
                outcome, told = case(), ""
        except _TooLong:
            outcome, told = "slow", f"broken off after {self.break_seconds} s"
        except TwoStageGPError as error:
            outcome, told = "refused", f"{type(error).__name__}: {error}"
            if _took_memory(error):
                outcome = LATE if isinstance(error, MemoryBudgetError) else "memory"
        except Exception as error:
            outcome, told = f"exception: {type(error).__name__}", str(error)[:300]
            if _took_memory(error):
                outcome = "memory"
        seconds, growth = time.process_time() - begin, _peak_mib() - before
        if self.seen:
            return "side effect", "; ".join(self.seen[:3])
        if growth > self.growth_mib:
            return "memory", f"{growth:.0f} MiB more"
        if seconds > CPU_SECONDS:
            return "slow", told or f"{seconds:.1f} s"
        return outcome, told

    @contextmanager
    def _watched(self) -> Iterator[None]:
        def stop(number: int, frame: Any) -> None:
            raise _TooLong

        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, self.break_seconds)
        if time.monotonic() - self._armed > self.break_seconds:  # a thread each time is too slow
            self._armed = time.monotonic()
            faulthandler.dump_traceback_later(END_SECONDS, exit=True, file=sys.__stderr__)
        compiled = sys.dont_write_bytecode
        sys.dont_write_bytecode = True  # a module that is imported for the first time
        self._watching = True
        try:
            yield
        finally:
            self._watching = False
            sys.dont_write_bytecode = compiled
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _known(name: str) -> bool:
    return name.startswith(_ROOTS) or str(Path(name).resolve()).startswith(_ROOTS)


def _reset_peak_mib() -> float:
    """Reset the peak of the resident memory and return the memory at this moment.

    If the system cannot reset the peak, the old peak is returned: then only a case that takes more
    memory than all cases before it is found.
    """
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        return _status_mib("VmRSS")
    except OSError:
        return _peak_mib()


def _peak_mib() -> float:
    try:
        return _status_mib("VmHWM")
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def _status_mib(name: str) -> float:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) / 1024
    raise OSError(f"/proc/self/status does not say {name}")


def _took_memory(error: BaseException | None) -> bool:
    """Return whether the error comes from a failed allocation, not from a check made before it."""
    while error is not None:
        if isinstance(error, MemoryError) and not isinstance(error, TwoStageGPError):
            return True
        if isinstance(error, RuntimeError) and "allocate" in str(error):  # torch
            return True
        error = error.__cause__ or error.__context__
    return False


def limit_address_space(more_mib: int) -> None:
    """Let this process take so much more than it has now."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (more_mib << 20), resource.RLIM_INFINITY))
