"""Tests of a module with a fault in it, each time in a fresh process.

One process imports the libraries and collects the tests, and every run is a fork of it that puts
the fault in place. A first run without a fault notes which lines of the module each test reaches
and how long it takes; a mutant then needs only the tests that reach it, the quickest first, until
one fails.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
import pytest

from benchmarks._mutants import Mutant, Source, sample
from benchmarks._transplant import transplant

__all__ = ["Core", "Limits", "examine"]

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Core:
    """A module and the files of its tests; the examples in its docstrings are tests, too.

    ``select`` is an expression of pytest's ``-k``, for files with many long fits. Tests of more
    than ``longest`` seconds of the processor do not count, nor more than twice that a mutant.
    """

    name: str
    tests: tuple[str, ...]
    select: str = ""
    longest: float = 1.0

    @property
    def path(self) -> Path:
        return ROOT / "src" / "twostagegp" / f"{self.name.replace('.', '/')}.py"

    @property
    def files(self) -> list[str]:
        return [
            *(str(path) for t in self.tests for path in ROOT.glob(f"tests/*/test_{t}.py")),
            str(self.path),
        ]


@dataclass(frozen=True)
class Limits:
    """What is tried.

    Attributes
    ----------
    mutants : int or None
        Of a module, chosen by ``seed``; None for all.
    """

    mutants: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Case:
    """One test: the lines of the module that it reaches, and its seconds with its fixtures."""

    item: Any
    lines: frozenset[int]
    seconds: float


class _TooLongError(Exception):
    """Ends a test that is too long to count."""


class _Recorder:
    """Pytest plugin: lines of one file and seconds, by test and by fixture.

    Seconds are those of the processor. A test that takes more than ``limit`` is stopped.
    """

    def __init__(self, path: Path, limit: float) -> None:
        self.path, self.limit = str(path), limit
        self.stopped: set[str] = set()
        self.lines: dict[str, set[int]] = defaultdict(set)
        self.seconds: dict[str, float] = defaultdict(float)
        self.parts: dict[str, list[str]] = {}
        self.current = [""]

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != self.path:
            return None
        self.lines[self.current[-1]].add(frame.f_lineno)
        return self._trace

    @contextmanager
    def _noting(self, key: str) -> Iterator[None]:
        self.current.append(key)
        begin = time.process_time()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(None)
            self.seconds[key] += time.process_time() - begin
            self.current.pop()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Iterator[None]:
        definitions = item._fixtureinfo.name2fixturedefs if hasattr(item, "_fixtureinfo") else {}
        self.parts[item.nodeid] = [_key(d) for found in definitions.values() for d in found]
        with self._noting(item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        def stop(number: int, frame: FrameType | None) -> None:
            self.stopped.add(item.nodeid)
            raise _TooLongError

        signal.signal(signal.SIGPROF, stop)
        signal.setitimer(signal.ITIMER_PROF, self.limit)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Iterator[None]:
        if call.excinfo is not None and call.excinfo.errisinstance(_TooLongError):
            self.stopped.add(item.nodeid)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        with self._noting(_key(fixturedef)):
            return (yield)

    def cases(self) -> dict[str, tuple[list[int], float]]:
        found = {}
        for name, parts in self.parts.items():
            if name in self.stopped:
                continue
            lines = set(self.lines[name]).union(*(self.lines[part] for part in parts))
            seconds = self.seconds[name] + sum(self.seconds[part] for part in parts)
            found[name] = (sorted(lines), seconds)
        return found


def _key(fixture: Any) -> str:
    return f"fixture {fixture.baseid} {fixture.argname}"


def _forked(work: Callable[[], int], limit: float, waiting: float = 20.0) -> int | None:
    """Exit status of ``work`` in a process of its own, None where it took too long.

    It may take ``limit`` seconds of the processor, and ``waiting`` times that by the clock.
    """
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit), resource.RLIM_INFINITY))
            status = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    end = time.monotonic() + waiting * limit
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return None if code == -signal.SIGXCPU else code
        time.sleep(0.005)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _run(session: Any, items: Sequence[Any]) -> int:
    """1 as soon as a test fails, 0 where none does."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return 1
    return 0


class _Examination:
    """Pytest plugin: in place of the tests, the tests of every mutant."""

    def __init__(self, core: Core, limits: Limits, names: Collection[str] | None) -> None:
        self.core, self.limits = core, limits
        self.source = Source(core.path.read_text(encoding="utf-8"))
        mutants = self.source.mutants
        self.chosen = (
            sample(mutants, limits.mutants, limits.seed)
            if names is None
            else [m for m in mutants if m.name in names]
        )
        self.outcomes: dict[str, str] = {}
        self.progress = os.fdopen(os.dup(2), "w")

    def pytest_runtestloop(self, session: Any) -> bool:
        cases = self._survey(session)
        tally: Counter[str] = Counter()
        for mutant in self.chosen:
            outcome = self._outcome(session, cases, mutant)
            self.outcomes[mutant.name] = outcome
            tally[outcome] += 1
        print(f"{self.core.name}: {dict(tally)}", file=self.progress, flush=True)
        return True

    def _survey(self, session: Any) -> list[Case]:
        with tempfile.TemporaryDirectory() as folder:
            note = Path(folder) / "cases.json"

            def work() -> int:
                recorder = _Recorder(self.core.path, 3.0 * self.core.longest)
                session.config.pluginmanager.register(recorder)
                for item, following in zip(session.items, [*session.items[1:], None], strict=True):
                    before = session.testsfailed
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                    if session.testsfailed > before and item.nodeid not in recorder.stopped:
                        return 1
                note.write_text(json.dumps(recorder.cases()), encoding="utf-8")
                return 0

            status = _forked(work, limit=600.0)
            if status != 0:
                raise RuntimeError(f"{self.core.name}: tests end with {status} without any fault")
            found = json.loads(note.read_text(encoding="utf-8"))
        return [
            Case(item, frozenset(found[item.nodeid][0]), found[item.nodeid][1])
            for item in session.items
            if item.nodeid in found
        ]

    def _reaching(self, cases: Sequence[Case], mutant: Mutant) -> list[Case]:
        """The quickest first; all tests for what is not in a function."""
        lines = range(mutant.first, mutant.last + 1)
        found = [c for c in cases if mutant.first == 0 or not c.lines.isdisjoint(lines)]
        chosen, spent = [], 0.0
        for case in sorted(found, key=lambda case: case.seconds):
            spent += case.seconds
            if case.seconds <= self.core.longest and spent <= 2.0 * self.core.longest:
                chosen.append(case)
        return chosen

    def _outcome(self, session: Any, cases: Sequence[Case], mutant: Mutant) -> str:
        reaching = self._reaching(cases, mutant)
        if not reaching:
            return "unreached"
        code = self.source.compiled(mutant, str(self.core.path))
        readers = [m for m in list(sys.modules) if m.startswith(("twostagegp", "test_"))]

        def work() -> int:
            try:
                transplant(importlib.import_module(f"twostagegp.{self.core.name}"), code, readers)
            except Exception:  # a module that cannot be imported fails every test
                return 1
            return _run(session, [case.item for case in reaching])

        status = _forked(work, limit=5.0 + 3.0 * sum(case.seconds for case in reaching))
        return "timeout" if status is None else "survived" if status == 0 else "killed"


def examine(core: Core, limits: Limits, names: Collection[str] | None = None) -> dict[str, str]:
    """Outcome of every mutant that was tried, by name.

    Outcomes are ``"killed"``, ``"survived"``, ``"timeout"`` and ``"unreached"``: no test that is
    quick enough comes by. With ``names`` only these mutants are tried.
    """
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "outcomes.json"

        def work() -> int:
            examination = _Examination(core, limits, names)
            log = os.open(Path(folder) / "log.txt", os.O_WRONLY | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            status = _pytest(core, examination)
            note.write_text(json.dumps(examination.outcomes), encoding="utf-8")
            return status

        status = _forked(work, limit=3.0 * 3600.0)
        if status != 0:
            log = (Path(folder) / "log.txt").read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"{core.name}: pytest ended with {status}\n{log[-2000:]}")
        return dict(json.loads(note.read_text(encoding="utf-8")))


def _pytest(core: Core, plugin: object) -> int:
    quick = (hypothesis.Phase.explicit, hypothesis.Phase.generate)  # a failure is enough
    hypothesis.settings.register_profile(
        "mutation", database=None, derandomize=True, deadline=None, phases=quick
    )
    hypothesis.settings.load_profile("mutation")
    options = [
        *("-q", "--tb=no", "--capture=no", "-p", "no:cacheprovider", "-p", "no:xdist"),
        *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
    ]
    arguments = [*options, f"--rootdir={ROOT}", "-k", core.select, *core.files]
    return int(pytest.main(arguments, plugins=[plugin]))
