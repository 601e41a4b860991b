"""Time and memory of every engine against the number of rows, and what 10^9 rows would cost.

The curves are read from the results of ``exact_scale``, ``neighbors_scale`` and ``dask_scale``;
nothing is measured here. The last table is arithmetic: seconds per row, point and shard of the run
on ten million rows, multiplied. It assumes that workers do not wait for each other,
that the network keeps up, and that every scheduler task costs a millisecond.

    python -m benchmarks.scale
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import RESULTS
from measurements.pages import Page, joined, scored
from measurements.runner import Measurement, run
from measurements.store import JsonLines, Record
from measurements.tables import figure, markdown_table

__all__ = ["MEASUREMENT", "Cluster", "extrapolate", "load"]

ROWS = 1_000_000_000
#: Rows of a shard.
SHARD = 1 << 20
#: Bytes per number, columns, and metrics of the model (each has a copy of the inputs).
BYTES, COLUMNS, METRICS = 8, 8, 3
#: Seconds that Dask's scheduler spends on a task, and dollars of a core for an hour: assumptions.
TASK_SECONDS, CORE_HOUR = 1e-3, 0.05


#: The stores that are read, with their keys.
STORES = {
    "exact_scale": ("kind", "place", "model", "rows"),
    "neighbors_scale": ("device", "rows"),
    "dask_scale": ("rows", "workers"),
}


@dataclass(frozen=True)
class Cell:
    """Nothing is measured."""


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return no cells."""
    return []


def measure(cell: Cell) -> Record:
    """Satisfy the interface; never called, as there are no cells."""
    raise NotImplementedError


def load(folder: Path) -> list[Record]:
    """Return the default fits of all engines; ``benchmark`` says which store they are from."""
    found = [
        {"benchmark": name, **record}
        for name, key in STORES.items()
        for record in JsonLines(folder / f"{name}.jsonl", key).records().values()
    ]
    return [r for r in scored(found) if r.get("kind", "fit") == "fit" and _is_ours(r)]


def _is_ours(record: Record) -> bool:
    return record["benchmark"] != "exact_scale" or record["model"] == "ours"


@dataclass(frozen=True)
class Curve:
    """Points of one engine on one machine: rows, seconds per fit, seconds per prediction, GiB."""

    engine: str
    place: str
    points: tuple[tuple[int, float, float, float], ...]


def curves(records: list[Record]) -> list[Curve]:
    """Return one curve per engine and place."""
    found: dict[tuple[str, str], list[tuple[int, float, float, float]]] = {}
    for r in records:
        engine_and_place, point = POINTS[r["benchmark"]](r)
        found.setdefault(engine_and_place, []).append(point)
    return [Curve(*key, tuple(sorted(points))) for key, points in found.items()]


def _exact_point(r: Record) -> tuple[tuple[str, str], tuple[int, float, float, float]]:
    point = (r["rows"], r["fit_seconds"], r["predict_seconds"] / 1e4, _gib(r["peak_bytes"]))
    return ("exact", r["place"]), point


def _neighbor_point(r: Record) -> tuple[tuple[str, str], tuple[int, float, float, float]]:
    engine = "neighbours" if r["device"] == "cpu" else "neighbours, one kernel"
    place = f"CPU, {r['threads']} threads" if r["device"] == "cpu" else r["machine"]
    seconds = r["predict_wall"] / r["points"]
    return (engine, place), (r["rows"], r["fit_wall"], seconds, r["peak_gib"])


def _dask_point(r: Record) -> tuple[tuple[str, str], tuple[int, float, float, float]]:
    place = f"{r['workers']} workers of {r['memory']}"
    seconds = r["predict_wall"] / r["points"]
    return ("neighbours, Dask", place), (r["rows"], r["fit_wall"], seconds, r["worker_peak_gib"])


POINTS = {
    "exact_scale": _exact_point,
    "neighbors_scale": _neighbor_point,
    "dask_scale": _dask_point,
}


def _gib(size: float) -> float:
    return size / 2**30


@dataclass(frozen=True)
class Cluster:
    """Workers of one core each."""

    workers: int
    memory_gib: float
    points: int = 1_000_000


def extrapolate(measured: Record, cluster: Cluster, rows: int = ROWS) -> dict[str, float]:
    """Return seconds, memory and dollars of a fit and of predictions, from one measured run.

    Examples
    --------
    >>> run = {
    ...     "rows": 10,
    ...     "workers": 2,
    ...     "points": 5,
    ...     "shards": 1,
    ...     "predict_wall": 4.0,
    ...     "fit_seconds": {"sample": 1.0, "shards": 3.0, "total": 10.0},
    ... }
    >>> round(extrapolate(run, Cluster(2, 1.0, points=5), rows=20)["shards"], 6)
    6.0
    """
    parts, W = measured["fit_seconds"], measured["workers"]
    per_row = {name: parts[name] * W / measured["rows"] for name in ("sample", "shards")}
    client = parts["total"] - parts["sample"] - parts["shards"]
    visit = measured["predict_wall"] * W / (measured["points"] * measured["shards"])
    shards = math.ceil(rows / SHARD)
    seconds = {name: cost * rows / cluster.workers for name, cost in per_row.items()}
    fit = seconds["sample"] + client + seconds["shards"]
    # A partition visits one shard after the other: as many partitions as workers keep all busy.
    solving = visit * cluster.points * shards / cluster.workers
    scheduling = TASK_SECONDS * cluster.workers * shards
    predict = max(solving, scheduling)
    memory = rows * BYTES * COLUMNS * (1 + METRICS) / 2**30
    return {
        **seconds,
        "client": client,
        "fit": fit,
        "solving": solving,
        "scheduling": scheduling,
        "predict": predict,
        "memory_gib": memory,
        "share_of_memory": memory / (cluster.workers * cluster.memory_gib),
        "dollars": (fit + predict) * cluster.workers / 3600.0 * CORE_HOUR,
    }


# --- page ----------------------------------------------------------------------------------------


def _curves(records: list[Record]) -> str:
    head = ["engine", "on", "rows", "fit, s", "microseconds per prediction", "peak GiB"]
    lines = [
        [curve.engine, curve.place, f"{n:,}", figure(fit), figure(1e6 * one), figure(gib)]
        for curve in curves(records)
        for n, fit, one, gib in curve.points
    ]
    return markdown_table(head, lines)


def _growth(records: list[Record]) -> str:
    """Return the exponents of growth between neighbouring numbers of rows."""
    lines = []
    for curve in curves(records):
        for small, large in pairwise(curve.points):
            ratio = math.log(large[0] / small[0])
            exponents = [math.log(large[i] / small[i]) / ratio for i in (1, 2, 3)]
            between = f"{small[0]:,} to {large[0]:,}"
            lines.append([curve.engine, curve.place, between, *[f"{e:.2f}" for e in exponents]])
    return markdown_table(["engine", "on", "rows", "fit", "prediction", "memory"], lines)


def _extrapolation(records: list[Record]) -> str:
    runs = [r for r in records if r["benchmark"] == "dask_scale"]
    if not runs:
        return ""
    measured = max(runs, key=lambda r: r["rows"])
    head = ["workers of one core", "GiB each", "rows' memory, GiB", "share of the memory",
            "sample, s", "on the client, s", "shards, s", "fit, s",
            "1,000,000 predictions: solving, s", "scheduling, s", "dollars"]  # fmt: skip
    lines = []
    for cluster in (Cluster(64, 8.0), Cluster(256, 4.0), Cluster(1024, 4.0)):
        cost = extrapolate(measured, cluster)
        seconds = ["sample", "client", "shards", "fit", "solving", "scheduling"]
        lines.append([
            str(cluster.workers), f"{cluster.memory_gib:g}", figure(cost["memory_gib"]),
            f"{cost['share_of_memory']:.0%}", *[f"{cost[name]:,.0f}" for name in seconds],
            f"{cost['dollars']:,.0f}",
        ])  # fmt: skip
    words = (
        f"**Arithmetic, not a measurement**: seconds of the run on {measured['rows']:,} rows with "
        f"{measured['workers']} workers, {COLUMNS} columns, {METRICS} metrics, multiplied; "
        f"{TASK_SECONDS * 1e3:g} ms per task of the scheduler and {CORE_HOUR} dollars per "
        "core and hour are assumed."
    )
    return joined(words, markdown_table(head, lines))


def draw(records: list[Record]) -> str:
    """Draw seconds and memory against rows, on logarithmic axes, as SVG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from measurements.figures import svg

    fig: Any = Figure(figsize=(9.0, 3.6))
    axes = fig.subplots(1, 2)
    colours = mpl.colormaps["tab10"].colors
    for k, curve in enumerate(curves(records)):
        rows = [point[0] for point in curve.points]
        label = f"{curve.engine} ({curve.place})"
        axes[0].loglog(rows, [p[1] for p in curve.points], "o-", color=colours[k], label=label)
        axes[1].loglog(rows, [p[3] for p in curve.points], "o-", color=colours[k])
    for axis, title in zip(axes, ("fit, seconds", "peak memory, GiB"), strict=True):
        axis.set_xlabel("rows")
        axis.set_title(title, loc="left", fontsize=10)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    fig.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    fig.subplots_adjust(bottom=0.34)
    return svg(fig)


MEASUREMENT = Measurement(
    name="scale",
    about="Time and memory of every engine against the number of rows.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page(
        "Time and memory against the number of rows",
        {"Curves": _curves, "Growth of all": _growth, "A thousand million rows": _extrapolation},
    ),
    figure=draw,
    load=load,
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
