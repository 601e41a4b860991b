"""Compare the speed of two states of the source, in one run on one machine.

    git worktree add ../before COMMIT
    python -m benchmarks.two_states --before ../before/src --rounds 5

Every job runs in a process of its own, once with each state in every round, so that a slow moment
of the machine meets both. A job is done once before it is timed: modules are imported and compiled
functions loaded then. Seconds are those of the CPU, all threads together, which other programs on
the machine hardly change. The table shows their median per state, and the median over the rounds of
their ratio. Jobs use only what both states offer: the estimators with their defaults.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.states import add_arguments, python_path, sources

__all__ = ["JOBS", "compare", "main"]

Array = NDArray[np.float64]


def _table(n: int, d: int = 6, seed: int = 0) -> tuple[Array, Array]:
    """Return n rows of a smooth function with noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, size=(n, d))
    y = np.sin(3.0 * X[:, 0]) + X[:, 1] ** 2 + X[:, 2] * X[:, 3] + 0.1 * rng.normal(size=n)
    return X, y


def _fit(method: str, n: int, threads: int, d: int = 6) -> Callable[[], Any]:
    from twostagegp import TwoStageGPRegressor

    X, y = _table(n, d)
    options = {"method": method, "random_state": 0, "n_jobs": threads, "device": "cpu"}
    return lambda: TwoStageGPRegressor(**options).fit(X, y)


def _predict(method: str, n: int, threads: int) -> Callable[[], Any]:
    model, (X, _) = _fit(method, n, threads)(), _table(20_000, seed=1)
    return lambda: model.predict_interval(X)


def _search(n: int, threads: int) -> Callable[[], Any]:
    from twostagegp import search_kernel

    X, y = _table(n)
    options = {"random_state": 0, "n_jobs": threads, "device": "cpu"}
    return lambda: search_kernel(X, y, selection="misspecification", n_repeats=20, **options)


def _classes(method: str, n: int, threads: int) -> Callable[[], Any]:
    from twostagegp import TwoStageGPClassifier

    X, y = _table(n)
    labels = np.digitize(y, np.quantile(y, [0.3, 0.7]))
    options = {"method": method, "random_state": 0, "n_jobs": threads, "device": "cpu"}
    return lambda: TwoStageGPClassifier(**options).fit(X, labels).predict_proba(X)


#: What is timed, by name: a function of the number of threads that returns the job.
JOBS: dict[str, Callable[[int], Callable[[], Any]]] = {
    "exact fit, 300 rows": lambda threads: _fit("exact", 300, threads),
    "exact fit, 1,000 rows": lambda threads: _fit("exact", 1000, threads),
    "exact fit, 1,353 rows of 5 columns": lambda threads: _fit("exact", 1353, threads, 5),
    "exact prediction, 20,000 intervals from 1,000 rows": lambda threads: _predict(
        "exact", 1000, threads
    ),
    "neighbour fit, 10,000 rows": lambda threads: _fit("neighbors", 10_000, threads),
    "neighbour fit, 41,000 rows of 9 columns": lambda threads: _fit(
        "neighbors", 41_000, threads, 9
    ),
    "neighbour prediction, 20,000 intervals from 10,000 rows": lambda threads: _predict(
        "neighbors", 10_000, threads
    ),
    "kernel search, 20 subsamples of 1,000 rows": lambda threads: _search(1000, threads),
    "exact classifier, 500 rows": lambda threads: _classes("exact", 500, threads),
    "neighbour classifier, 1,000 rows": lambda threads: _classes("neighbors", 1000, threads),
}


def _seconds(job: str, source: Path, threads: int) -> float:
    """Return the CPU seconds of one job with one state, measured in a process of its own."""
    environment = os.environ | {"PYTHONPATH": python_path(source)}
    command = [sys.executable, "-m", "benchmarks.two_states", "--job", job]
    done = subprocess.run(
        [*command, "--threads", str(threads)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    if not Path(answer["source"]).is_relative_to(source):
        raise RuntimeError(f"the process imported {answer['source']}, not {source}")
    return float(answer["seconds"])


def _run(job: str, threads: int) -> None:
    """Do a job twice and print the CPU seconds of the second time."""
    import time
    import warnings

    import twostagegp

    warnings.simplefilter("ignore")
    work = JOBS[job](threads)
    work()
    begin = time.process_time()
    work()
    seconds = time.process_time() - begin
    print(json.dumps({"seconds": seconds, "source": str(Path(twostagegp.__file__).resolve())}))


def compare(before: Path, now: Path, jobs: Sequence[str], rounds: int, threads: int) -> str:
    """Return the table of the seconds of every job with both states."""
    lines = [
        "| job | CPU seconds before | CPU seconds now | now / before |",
        "|---|---:|---:|---:|",
    ]
    for job in jobs:
        pairs = [
            (_seconds(job, before, threads), _seconds(job, now, threads)) for _ in range(rounds)
        ]
        first, second = (statistics.median(times) for times in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        lines.append(f"| {job} | {first:.3g} | {second:.3g} | {ratio:.2f} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison, or one job of it."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    add_arguments(parser)
    parser.add_argument("--only", default="", help="jobs whose name contains this")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of a fit")
    parser.add_argument("--job", choices=JOBS, help="do this job in this process")
    given = parser.parse_args(arguments)
    if given.job is not None:
        _run(given.job, given.threads)
        return
    found = sources(given)
    jobs = [job for job in JOBS if given.only in job]
    print(compare(found["before"], found["now"], jobs, given.rounds, given.threads))


if __name__ == "__main__":
    main()
