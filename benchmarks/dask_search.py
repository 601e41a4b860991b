r"""The kernel search here and on Dask workers: seconds, and whether the results are the same.

A table of ``benchmarks.neighbors_scale`` is searched with all repetitions in this process, with one
thread and with as many as there are workers, and on ``LocalCluster``s of one and of several
processes with one thread each. The ways take turns, so that other programs on the machine disturb
all alike, and the fastest round of each counts. CPU seconds are those of the client and of the
workers together.

    python -m benchmarks.dask_search --redo
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks import RESULTS
from benchmarks.neighbors_scale import COLUMNS, draw
from measurements.arguments import positive
from measurements.pages import joined, scored
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import figure, markdown_table
from measurements.timing import Timed
from twostagegp import search_kernel
from twostagegp.search.kernel_search import KernelSearch

__all__ = ["MEASUREMENT", "Cell", "largest_difference", "measure"]

KERNELS = ("rbf", "matern32")


@dataclass(frozen=True)
class Cell:
    """One search in all ways.

    Attributes
    ----------
    rows, repeats, subsample : int
        Of the search.
    workers : int
        Of the larger cluster.
    rounds : int
        Times that each way is timed.
    """

    rows: int
    repeats: int
    subsample: int
    workers: int
    rounds: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the fields of the cell."""
    parser.add_argument("--rows", type=positive, help="2000 by default")
    parser.add_argument("--repeats", type=positive, help="100 by default")
    parser.add_argument("--subsample", type=positive, help="500 by default")
    parser.add_argument("--workers", type=positive, default=2, help="of the larger cluster")
    parser.add_argument("--rounds", type=positive, help="3 by default")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return the one search that the options describe."""
    default = Cell(200, 4, 40, 2, 1) if given.quick else Cell(2000, 100, 500, 2, 3)
    return [
        Cell(
            given.rows or default.rows,
            given.repeats or default.repeats,
            given.subsample or default.subsample,
            given.workers,
            given.rounds or default.rounds,
        )
    ]


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


def measure(cell: Cell) -> Record:
    """Time all ways in turn, on clusters that stay."""
    table = draw(cell.rows, seed=0)
    record: Record = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    search = partial(
        search_kernel, *table, KERNELS, early=False, subsample=cell.subsample, random_state=0
    )
    with ExitStack() as stack:
        ways: dict[str, tuple[Record, Any]] = {}
        for threads in sorted({1, cell.workers}):
            ways[f"this process, {threads} thread(s)"] = {"n_jobs": threads}, None
        for workers in sorted({1, cell.workers}):
            client = stack.enter_context(_cluster(workers))
            ways[f"Dask, {workers} worker(s)"] = {"client": client}, client
        for options, _ in ways.values():
            search(n_repeats=4, **options)  # loads the libraries
        took: dict[str, list[Record]] = {name: [] for name in ways}
        results: dict[str, KernelSearch] = {}
        for _ in range(cell.rounds):
            for name, (options, client) in ways.items():
                timed = partial(search, n_repeats=cell.repeats, **options)
                results[name], seconds = _timed(timed, client)
                took[name].append(seconds)
    first = next(iter(results.values()))
    record["ways"] = [
        {"way": name, "took": took[name], "difference": largest_difference(first, result)}
        for name, result in results.items()
    ]
    record["n_train"] = first.n_train
    return record


def _timed(search: Callable[[], KernelSearch], client: Any) -> tuple[KernelSearch, Record]:
    before = _worker_seconds(client)
    with Timed() as timed:
        result = search()
    return result, {"wall": timed.wall, "cpu": timed.cpu + _worker_seconds(client) - before}


def _worker_seconds(client: Any) -> float:
    return 0.0 if client is None else sum(client.run(time.process_time).values())


def largest_difference(one: KernelSearch, other: KernelSearch) -> float:
    """Return the largest difference of any score or parameter, over repetitions and kernels."""
    if not np.array_equal(one.index, other.index):
        return float("inf")
    largest = 0.0
    for a, b in zip(one.entries, other.entries, strict=True):
        assert a.repeated is not None
        assert b.repeated is not None
        for name in ("nll", "loo", "heldout", "ratio", "parameters"):
            ours, theirs = getattr(a.repeated, name), getattr(b.repeated, name)
            with np.errstate(invalid="ignore"):  # infinity minus infinity: the two are equal
                gap = np.where(_same(ours, theirs), 0.0, np.abs(ours - theirs))
            # A NaN on one side only counts as an infinite difference.
            largest = max(largest, float(np.where(np.isnan(gap), np.inf, gap).max(initial=0.0)))
    return largest


def _same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return where two arrays are equal; NaN is equal to NaN, and infinity to itself."""
    return (a == b) | (np.isnan(a) & np.isnan(b))


# --- page ----------------------------------------------------------------------------------------


def report(records: list[Record]) -> str:
    """Return the page: a note on the machine and a table per record."""
    parts = [joined(_note(record), _table(record)) for record in scored(records)]
    return joined("# The kernel search on Dask workers", *parts)


def _note(r: Record) -> str:
    return (
        f"twostagegp {r['version']} (source {r['code']}), torch {r['torch']}, {r['machine']} with "
        f"{r['cores']} cores, load {r['load']:.1f} at the start. {r['rows']:,} rows of {COLUMNS} "
        f"columns, {len(KERNELS)} kernels, {r['repeats']} repetitions, {r['subsample']} rows each, "
        f"{r['n_train']} of them trained on. One thread per worker, client and workers on the same "
        f"machine; rounds in which all took turns: {r['rounds']}, the fastest counts, the slowest "
        "beside it. *Difference*: the largest of any score or parameter from the first line."
    )


def _table(record: Record) -> str:
    header = ["where", "seconds", "slowest", "CPU seconds", "seconds, relative", "CPU, relative"]
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


MEASUREMENT = Measurement(
    name="dask_search",
    about="The kernel search here and on Dask workers.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=report,
    arguments=arguments,
    key=("rows", "repeats", "subsample", "workers"),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
