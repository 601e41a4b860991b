r"""The kernel search here and on Dask workers: seconds, and whether the results are the same.

A table of ``benchmarks.neighbors_scale`` is searched with all repetitions in this process, with one
thread and with as many as there are workers, and on ``LocalCluster``s of one and of several
processes with one thread each. The ways take turns, so that other programs on the machine disturb
all alike, and the fastest round of each counts. CPU seconds are those of the client and of the
workers together.

    python -m benchmarks.dask_search
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import twostagegp
from benchmarks import RESULTS
from benchmarks.neighbors_scale import COLUMNS, draw
from measurements.arguments import positive
from measurements.provenance import code_version
from measurements.store import JsonLines, Record, plain, write_whole
from measurements.tables import figure, markdown_table
from measurements.timing import Timed
from twostagegp import search_kernel
from twostagegp.search.kernel_search import KernelSearch

__all__ = ["largest_difference", "main", "measure", "report"]

KERNELS = ("rbf", "matern32")
ROWS, REPEATS, SUBSAMPLE, WORKERS, ROUNDS = 2000, 100, 500, 2, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, keep the result, then write and print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=positive, default=ROWS)
    parser.add_argument("--repeats", type=positive, default=REPEATS)
    parser.add_argument("--subsample", type=positive, default=SUBSAMPLE)
    parser.add_argument("--workers", type=positive, default=WORKERS, help="of the larger cluster")
    parser.add_argument("--rounds", type=positive, default=ROUNDS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table-only", action="store_true")
    given = parser.parse_args(arguments)
    key = ("rows", "repeats", "subsample", "workers")
    store = JsonLines(given.results / "dask_search.jsonl", key=key)
    if not given.table_only:
        store.append(plain(measure(given)), replace=True)
    page = report(list(store.records().values()))
    write_whole(given.results / "dask_search.md", page)
    print(page)
    return 0


@contextmanager
def _cluster(workers: int) -> Any:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def measure(given: argparse.Namespace) -> Record:
    """All ways in turn, on clusters that stay."""
    table = draw(given.rows, seed=0)
    record: Record = {
        "version": twostagegp.__version__,
        "code": code_version(),
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "rows": given.rows,
        "repeats": given.repeats,
        "subsample": given.subsample,
        "workers": given.workers,
        "rounds": given.rounds,
    }
    search = partial(
        search_kernel, *table, KERNELS, early=False, subsample=given.subsample, random_state=0
    )
    with ExitStack() as stack:
        ways: dict[str, tuple[Record, Any]] = {}
        for threads in sorted({1, given.workers}):
            ways[f"this process, {threads} thread(s)"] = {"n_jobs": threads}, None
        for workers in sorted({1, given.workers}):
            client = stack.enter_context(_cluster(workers))
            ways[f"Dask, {workers} worker(s)"] = {"client": client}, client
        for options, _ in ways.values():
            search(n_repeats=4, **options)  # loads the libraries
        took: dict[str, list[Record]] = {name: [] for name in ways}
        results: dict[str, KernelSearch] = {}
        for _ in range(given.rounds):
            for name, (options, client) in ways.items():
                run = partial(search, n_repeats=given.repeats, **options)
                results[name], seconds = _timed(run, client)
                took[name].append(seconds)
    first = next(iter(results.values()))
    record["ways"] = [
        {"way": name, "took": took[name], "difference": largest_difference(first, result)}
        for name, result in results.items()
    ]
    record["n_train"] = first.n_train
    return record


def _timed(run: Callable[[], KernelSearch], client: Any) -> tuple[KernelSearch, Record]:
    before = _worker_seconds(client)
    with Timed() as timed:
        result = run()
    return result, {"wall": timed.wall, "cpu": timed.cpu + _worker_seconds(client) - before}


def _worker_seconds(client: Any) -> float:
    return 0.0 if client is None else sum(client.run(time.process_time).values())


def largest_difference(one: KernelSearch, other: KernelSearch) -> float:
    """Largest absolute difference of a score or parameter of any repetition of any kernel."""
    if not np.array_equal(one.index, other.index):
        return float("inf")
    largest = 0.0
    for a, b in zip(one.entries, other.entries, strict=True):
        assert a.repeated is not None
        assert b.repeated is not None
        for name in ("nll", "loo", "heldout", "ratio", "parameters"):
            ours, theirs = getattr(a.repeated, name), getattr(b.repeated, name)
            with np.errstate(invalid="ignore"):  # infinity less infinity, which are the same
                gap = np.where(_same(ours, theirs), 0.0, np.abs(ours - theirs))
            # What is not a number on one side only is as far away as can be.
            largest = max(largest, float(np.where(np.isnan(gap), np.inf, gap).max(initial=0.0)))
    return largest


def _same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where two arrays are equal; NaN is equal to NaN, and infinity to itself."""
    return (a == b) | (np.isnan(a) & np.isnan(b))


# --- the page ------------------------------------------------------------------------------------


def report(records: list[Record]) -> str:
    """The Markdown page."""
    head = "# The kernel search on Dask workers\n"
    parts = [f"{_note(record)}\n\n{_table(record)}" for record in records]
    return "\n".join([head, *(parts or ["No results yet.\n"])])


def _note(r: Record) -> str:
    return (
        f"twostagegp {r['version']} (source {r['code']}), torch {r['torch']}, {r['machine']} with "
        f"{r['cores']} cores, load {r['load']:.1f} at the start. {r['rows']:,} rows of {COLUMNS} "
        f"columns, {len(KERNELS)} kernels, {r['repeats']} repetitions, {r['subsample']} rows each, "
        f"{r['n_train']} of them trained on. One thread a worker, client and workers on the same "
        f"machine; rounds in which all took turns: {r['rounds']}, the fastest counts, the slowest "
        "beside it. *Difference*: the largest of any score or parameter from the first line."
    )


def _table(record: Record) -> str:
    header = ["where", "wall s", "slowest", "CPU s", "wall, relative", "CPU, relative"]
    rows, base = [], None
    for way in record["ways"]:
        wall = min(seconds["wall"] for seconds in way["took"])
        cpu = min(seconds["cpu"] for seconds in way["took"])
        base = (wall, cpu) if base is None else base
        rows.append(
            [
                way["way"],
                figure(wall),
                figure(max(seconds["wall"] for seconds in way["took"])),
                figure(cpu),
                figure(wall / base[0]),
                figure(cpu / base[1]),
                f"{way['difference']:.1e}",
            ]
        )
    return markdown_table([*header, "difference"], rows)


if __name__ == "__main__":
    raise SystemExit(main())
