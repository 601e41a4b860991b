"""Many cases in processes of their own: one that dies is counted and named, and the rest goes on.

Every result is a line of a file, and before a case runs there is a line that says that it crashed.
When a process dies, the last line is true, and a new process goes on behind it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks._fuzz_guard import FAILURES, Guard, limit_address_space

__all__ = ["is_failure", "run_all", "run_cases", "work"]

#: Cases that one process runs.
SHARE = 20_000
#: Failures that are kept with their messages.
KEPT = 200
#: Address space beyond what the modules take.
MORE_MIB = 2048


Result = dict[str, Any]


def is_failure(outcome: str) -> bool:
    """Whether an outcome is one that must not be."""
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


def work(cases: Any, first: int, last: int, log: Path) -> None:
    """What a worker does: cases from first to last, their results as lines of a file."""
    guard = Guard()
    cases.warm()
    limit_address_space(MORE_MIB)
    with open(log, "w") as file:

        def tell(result: Result) -> None:
            file.write(json.dumps(result) + "\n")
            file.flush()

        run_cases(guard, cases, range(first, last), tell)


def run_all(program: Sequence[str], cases: int, first: int, folder: Path) -> dict[str, Any]:
    """Run cases in processes, one after the other.

    ``program`` is a command that takes ``--worker FIRST LAST LOG`` and calls :func:`work`.
    """
    results: dict[int, Result] = {}
    begin, log, at, end = time.perf_counter(), folder / "log", first, first + cases
    while at < end:
        worker = [*program, "--worker", str(at), str(min(at + SHARE, end)), str(log)]
        done = subprocess.run(worker, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        found = [json.loads(line) for line in log.read_text().splitlines()]
        results |= {each["case"]: each for each in found}
        if done.returncode > 0 and "Timeout (" not in done.stderr:
            raise RuntimeError(f"the program of the cases failed:\n{done.stderr[-2000:]}")
        if done.returncode:
            found[-1]["told"] = f"exit code {done.returncode}: {done.stderr[-1500:]}"
        at = found[-1]["case"] + 1
        failed = sum(is_failure(each["outcome"]) for each in results.values())
        passed = time.perf_counter() - begin
        print(f"{at - first:,} cases, {failed} failures, {passed:.0f} s", file=sys.stderr)
    return _counts(list(results.values())) | {
        "first": first,
        "seconds": round(time.perf_counter() - begin, 1),
    }


def _counts(results: Sequence[Result]) -> dict[str, Any]:
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
