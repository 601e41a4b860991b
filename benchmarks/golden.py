"""Golden fits: predictions of many configurations, to compare before and after a change of code.

``write`` stores the predictions of every configuration, ``check`` makes them again. A configuration
is *identical* if every number is equal to the last bit, *rounding* if differences are at most 1e-10
of the target's standard deviation, and *DIFFERENT* otherwise, or if another kernel, weight or label
was chosen. ``check`` ends with the exit code 1 unless all are identical or rounding; configurations
that are missing count as failures. Compare on one machine only: last bits depend on it.

They also depend on whether Numba compiled a function in this process or read it from its cache. A
process that had to compile something is therefore given up, and a new one reads from the cache.

    python -m benchmarks.golden write
    python -m benchmarks.golden check
    python -m benchmarks.golden check --only neighbors,single-groups
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from numba.core import event
from threadpoolctl import threadpool_limits

from benchmarks._golden_fits import CONFIGURATIONS, SLOW
from benchmarks._golden_outputs import Outcome
from benchmarks._golden_store import Comparison, Store, compare, facts
from measurements.arguments import positive

__all__ = ["main"]

FOLDER = Path(__file__).parent.parent / "build" / "golden"
#: Read when the libraries are loaded: with several threads sums are made in any order.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)


@dataclass(frozen=True)
class Run:
    """What came of one configuration: an outcome, or the error that it raised.

    ``from_cache`` is False if this process has compiled something: the run does not count.
    """

    name: str
    seconds: float
    outcome: Outcome | None = None
    error: str = ""
    from_cache: bool = True


@cache
def _compilations() -> list[object]:
    """Return Numba's compilations here since the first call; cached functions have none."""
    listener = event.RecordingListener()
    event.register("numba:compile", listener)
    return listener.buffer


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def run(name: str) -> Run:
    """Fit and predict one configuration with one thread, without warnings."""
    if _compilations():
        return Run(name, 0.0, from_cache=False)
    begin = time.perf_counter()
    with _one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outcome = {**CONFIGURATIONS, **SLOW}[name]()
        except Exception as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            return Run(name, time.perf_counter() - begin, error=text)
    return Run(name, time.perf_counter() - begin, outcome, from_cache=not _compilations())


def _runs(names: Sequence[str], jobs: int) -> Iterator[Run]:
    """Yield each run as soon as it is known; a run that compiled is repeated in a new process."""
    left, here, failed_rounds = list(names), jobs == 1, 0
    while left:
        again = []
        for made in map(run, left) if here else _elsewhere(left, jobs):
            if made.from_cache:
                yield made
            else:
                again.append(made.name)
        failed_rounds = failed_rounds + 1 if len(again) == len(left) else 0
        if failed_rounds > 2:
            raise RuntimeError(
                "Numba cannot store what it compiles: set NUMBA_CACHE_DIR to a folder that can be "
                "written."
            )
        left, here = again, False


def _elsewhere(names: Sequence[str], jobs: int) -> Iterator[Run]:
    """Yield runs in new processes, in the order of the names."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=fresh) as pool:
        yield from pool.map(run, names)


def _line(name: str, status: str, seconds: float, found: Comparison | None = None) -> str:
    figure = "" if found is None else f"{found.largest:.1e}"
    where = "" if found is None or found.status == "identical" else f"  {found.where}"
    return f"{name:<28} {status:<10} {figure:>8} {seconds:6.1f} s{where}"


def _write(store: Store, names: Sequence[str], jobs: int) -> int:
    """Store the outcomes; returns the number of configurations that failed."""
    written = []
    for made in _runs(names, jobs):
        if made.outcome is None:
            print(_line(made.name, "ERROR", made.seconds), made.error, flush=True)
            continue
        store.write(made.name, made.outcome)
        written.append(made.name)
        print(_line(made.name, "written", made.seconds), flush=True)
    store.write_facts(written, facts())
    return len(names) - len(written)


def _check(store: Store, names: Sequence[str], jobs: int) -> Mapping[str, int]:
    """Compare with the stored outcomes; returns how many configurations had each status."""
    stored, count = set(store.names()), dict.fromkeys(("identical", "rounding"), 0)
    here = [name for name in names if name in stored and (name in CONFIGURATIONS or name in SLOW)]
    for name in names:
        if name not in here:
            what = "not in the table of configurations" if name in stored else "not stored"
            count["MISSING"] = count.get("MISSING", 0) + 1
            print(_line(name, "MISSING", 0.0), what, flush=True)
    for made in _runs(here, jobs):
        if made.outcome is None:
            status = "ERROR"
            print(_line(made.name, status, made.seconds), made.error, flush=True)
        else:
            found = compare(store.read(made.name), made.outcome)
            status = found.status
            print(_line(made.name, status, made.seconds, found), flush=True)
        count[status] = count.get(status, 0) + 1
    return count


def _chosen(names: Sequence[str], only: str) -> list[str]:
    """Return the names that contain one of the texts; all names if no text is given."""
    parts = [part.strip() for part in only.split(",") if part.strip()]
    return [name for name in names if not parts or any(part in name for part in parts)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("write", "check"))
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where outcomes are stored")
    parser.add_argument("--only", default="", help="names, or parts of names, with commas between")
    parser.add_argument("--slow", action="store_true", help="also those that take half a minute")
    parser.add_argument("--jobs", type=positive, default=1, help="processes, of one thread each")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    given = _parser().parse_args(arguments)
    store, begin = Store(given.folder), time.perf_counter()
    table = [*CONFIGURATIONS, *(SLOW if given.slow else ())]
    unknown = [name for name in store.names() if name not in CONFIGURATIONS and name not in SLOW]
    names = _chosen(table if given.action == "write" else table + unknown, given.only)
    if not names:
        print(f"--only {given.only}: no configuration has such a name")
        return 1
    if given.action == "write":
        if not given.only:
            store.remove(unknown)
        failed = _write(store, names, given.jobs)
        summary = f"{len(names) - failed} written to {given.folder}, {failed} failed"
    else:
        _say_facts(store, names)
        count = _check(store, names, given.jobs)
        failed = len(names) - count["identical"] - count["rounding"]
        summary = ", ".join(f"{number} {status}" for status, number in count.items())
    print(f"{len(names)} configurations: {summary}; {time.perf_counter() - begin:.0f} s")
    return int(failed > 0)


def _say_facts(store: Store, names: Sequence[str]) -> None:
    """Print the commits of the stored outcomes, and what else has changed since then."""
    known, now = store.facts(), facts()
    old = [known[name] for name in names if name in known]
    print(f"stored at {', '.join(sorted({each['commit'] for each in old})) or 'no commit'}")
    for key in now.keys() - {"commit", "source"}:
        others = sorted({each[key] for each in old} - {now[key]})
        if others:
            print(f"stored with {key} {', '.join(others)}, now {now[key]}: last bits may differ")


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        command = [sys.executable, "-m", "benchmarks.golden", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | ONE_THREAD)
    sys.exit(main())
