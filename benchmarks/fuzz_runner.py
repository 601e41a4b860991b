"""Many cases in processes of their own: one that dies is counted and named, and the rest goes on.

Every result is a line of a file. Before a case runs, a line says that it crashed, and another line
after it gives its outcome. So if a process dies, the last line is right, and another process
continues with the next case.

This is not a :class:`~measurements.runner.Measurement`: there are hundreds of thousands of cases,
each too short for a record of its own, and a case that kills its process is a result, not a failed
measurement. Only the counts are stored.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import twostagegp
from benchmarks import RESULTS
from benchmarks.fuzz_guard import FAILURES, LATE, Guard, limit_address_space
from measurements.arguments import positive
from measurements.provenance import code_version
from measurements.store import write_whole
from measurements.tables import markdown_table

__all__ = [
    "count",
    "is_failure",
    "memory_folder",
    "page",
    "read_log",
    "run_cases",
    "run_program",
    "write_results",
]

#: Cases that one process runs.
SHARE = 20_000
#: Failures that are kept with their messages.
KEPT = 200
#: Address space beyond what the modules take.
MORE_MIB = 2048


Result = dict[str, Any]


def is_failure(outcome: str) -> bool:
    """Return whether an outcome counts as a failure."""
    return outcome.split(":")[0] in FAILURES


def run_cases(
    guard: Guard,
    case: Callable[[int], tuple[str, Callable[[], str]]],
    numbers: Iterable[int],
    tell: Callable[[Result], None],
) -> None:
    """Run some cases here.

    Parameters
    ----------
    guard : Guard
    case : callable
        From the number of a case to its kind and to what is to be run.
    numbers : iterable of int
    tell : callable
        Given every result: before the case runs, with the outcome ``"crash"``, and after it.
    """
    for number in numbers:
        kind, ready = case(number)
        tell({"case": number, "kind": kind, "outcome": "crash", "told": ""})
        outcome, told = guard.run(ready)
        told = told[:300] if is_failure(outcome) else ""
        tell({"case": number, "kind": kind, "outcome": outcome, "told": told})


def _work(cases: Any, first: int, last: int, log: Path) -> None:
    """Run the cases from first to last in a worker; write their results as lines of a file."""
    guard = Guard(getattr(cases, "programs", ()))
    cases.warm()
    limit_address_space(MORE_MIB)
    with open(log, "w") as file:

        def tell(result: Result) -> None:
            file.write(json.dumps(result) + "\n")
            file.flush()

        run_cases(guard, cases, range(first, last), tell)


def _run_all(
    program: Sequence[str], cases: int, first: int, folder: Path, keep: Callable[[Any], None]
) -> dict[str, Any]:
    """Run cases in processes, one after the other.

    ``program`` is a command that takes ``--worker FIRST LAST LOG`` and calls :func:`_work`;
    ``keep`` is given the counts after each process, so that an interrupted run has some.
    """
    results: dict[int, Result] = {}
    counts: dict[str, Any] = {}
    begin, log, at, end = time.perf_counter(), folder / "log", first, first + cases
    while at < end:
        worker = [*program, "--worker", str(at), str(min(at + SHARE, end)), str(log)]
        done = subprocess.run(worker, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode > 0 and "Timeout (" not in done.stderr:
            raise RuntimeError(f"the program of the cases failed:\n{done.stderr[-2000:]}")
        found = read_log(log)
        if done.returncode:
            found[-1]["told"] = f"exit code {done.returncode}: {done.stderr[-1500:]}"
        results |= {each["case"]: each for each in found}
        at = found[-1]["case"] + 1
        counts = count(list(results.values())) | {
            "first": first,
            "seconds": round(time.perf_counter() - begin, 1),
        }
        keep(counts)
        told = f"{counts['cases']:,} cases, {counts['failed']} failures, {counts['seconds']:.0f} s"
        print(told, file=sys.stderr)
    return counts


def read_log(path: Path) -> list[Result]:
    """Return the results of a worker: the last one of each case."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return list({each["case"]: each for each in found}.values())


def count(results: Sequence[Result]) -> dict[str, Any]:
    """Return the counts of outcomes by kind, and the first failures."""
    by_kind: dict[str, Counter[str]] = {}
    for each in results:
        by_kind.setdefault(each["kind"], Counter())[each["outcome"]] += 1
    failures = [each for each in results if is_failure(each["outcome"])]
    return {
        "cases": len(results),
        "failed": len(failures),
        "outcomes": {kind: dict(sorted(by_kind[kind].items())) for kind in sorted(by_kind)},
        "failures": failures[:KEPT],
    }


def memory_folder() -> str | None:
    """Return a folder in memory, or None without one; half a million files are written there."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


def run_program(
    name: str,
    make: Callable[[int], Any],
    arguments: Sequence[str] | None,
    folder: Path,
    passed: Sequence[str] = (),
) -> int:
    """Run a fuzzing program: parse options, start workers, write and print the counts.

    Parameters
    ----------
    name : str
        Of the module, and of the file of results.
    make : callable
        From a seed to the cases.
    arguments : sequence of str, optional
    folder : Path
        For what workers write.
    passed : sequence of str
        Arguments that workers are given too.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--cases", type=positive, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run one case, and raise what it raises")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    if given.only is not None:
        print(make(given.seed)(given.only)[1]())
        return 0
    if given.worker:
        first, last, log = given.worker
        _work(make(given.seed), int(first), int(last), Path(log))
        return 0
    program = [sys.executable, "-m", f"benchmarks.{name}", "--seed", str(given.seed), *passed]
    state = {"seed": given.seed, "version": twostagegp.__version__, "code": code_version()}
    counts = _run_all(
        program,
        given.cases,
        given.first,
        folder,
        lambda counts: write_results(given.results, name, counts | state),
    )
    print((given.results / f"{name}.md").read_text(encoding="utf-8"))
    return 1 if counts["failed"] else 0


def write_results(folder: Path, name: str, counts: dict[str, Any]) -> None:
    """Write the counts as JSON, and a page with their table."""
    write_whole(folder / f"{name}.json", json.dumps(counts, indent=1, ensure_ascii=False) + "\n")
    write_whole(folder / f"{name}.md", page(name, counts))


def page(name: str, counts: dict[str, Any]) -> str:
    """Return the Markdown page of some counts."""
    lines = []
    for kind, by in counts["outcomes"].items():
        failed = sum(n for outcome, n in by.items() if is_failure(outcome))
        total, refused, late = sum(by.values()), by.get("refused", 0), by.get(LATE, 0)
        read = total - refused - late - failed
        lines.append([kind, *(f"{n:,}" for n in (total, refused, late, read, failed))])
    table = markdown_table(["spoilt", "cases", "refused", LATE, "read", "failures"], lines)
    return (
        f"# Counts of `benchmarks.{name}`\n\n"
        f"twostagegp {counts['version']} (source {counts['code']}), seed {counts['seed']}, cases "
        f"{counts['first']:,} to {counts['first'] + counts['cases'] - 1:,}: {counts['cases']:,} "
        f"cases, {counts['failed']:,} failures, {counts['seconds']:,.0f} s.\n\n"
        f"## Cases\n\n{table}\n"
    )
