"""Time and memory of every engine against the number of rows, and what 10^9 rows would cost.

The curves are read from the results of ``exact_scale``, ``neighbors_scale`` and ``dask_scale``;
nothing is measured here. The last table is arithmetic: seconds a row, a point and a shard as the
run on ten million rows had them, multiplied. It assumes that workers do not wait for each other,
that the network keeps up, and that every scheduler task costs a millisecond.

    python -m benchmarks.scale
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import RESULTS
from measurements.store import JsonLines, Record, write_whole
from measurements.tables import figure, markdown_table

__all__ = ["Cluster", "extrapolate", "main", "report"]

ROWS = 1_000_000_000
#: Rows of a shard.
SHARD = 1 << 20
#: Bytes a number, columns, and metrics of the model (each has a copy of the inputs).
BYTES, COLUMNS, METRICS = 8, 8, 3
#: Seconds that Dask's scheduler spends on a task, and dollars of a core for an hour: assumptions.
TASK_SECONDS, CORE_HOUR = 1e-3, 0.05


@dataclass(frozen=True)
class Curve:
    """Points of one engine on one machine: rows, seconds of a fit, seconds a prediction, GiB."""

    engine: str
    place: str
    points: tuple[tuple[int, float, float, float], ...]


def curves(folder: Path) -> list[Curve]:
    """All that has been measured."""
    found: dict[tuple[str, str], list[tuple[int, float, float, float]]] = {}
    for r in _records(folder / "exact_scale.jsonl", ("kind", "place", "model", "rows")):
        if r["kind"] == "fit" and r["model"] == "ours" and not r.get("error"):
            point = (r["rows"], r["fit_seconds"], r["predict_seconds"] / 1e4, _gib(r["peak_bytes"]))
            found.setdefault(("exact", r["place"]), []).append(point)
    for r in _records(folder / "neighbors_scale.jsonl", ("device", "rows")):
        engine = "neighbours" if r["device"] == "cpu" else "neighbours, one kernel"
        place = f"CPU, {r['threads']} threads" if r["device"] == "cpu" else r["machine"]
        point = (r["rows"], r["fit_wall"], r["predict_wall"] / r["points"], r["peak_gib"])
        found.setdefault((engine, place), []).append(point)
    for r in _records(folder / "dask_scale.jsonl", ("rows", "workers")):
        place = f"{r['workers']} workers of {r['memory']}"
        point = (r["rows"], r["fit_wall"], r["predict_wall"] / r["points"], r["worker_peak_gib"])
        found.setdefault(("neighbours, Dask", place), []).append(point)
    return [Curve(*key, tuple(sorted(points))) for key, points in found.items()]


def _records(path: Path, key: tuple[str, ...]) -> list[Record]:
    return list(JsonLines(path, key).records().values())


def _gib(size: float) -> float:
    return size / 2**30


@dataclass(frozen=True)
class Cluster:
    """Workers of one core each."""

    workers: int
    memory_gib: float
    points: int = 1_000_000


def extrapolate(measured: Record, cluster: Cluster, rows: int = ROWS) -> dict[str, float]:
    """Seconds, memory and dollars of a fit and of predictions, from one measured run.

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


def report(folder: Path) -> str:
    """The Markdown page."""
    known = curves(folder)
    parts = ["# Time and memory against the number of rows", "", "## Curves", ""]
    head = ["engine", "on", "rows", "fit, s", "microseconds a prediction", "peak GiB"]
    lines, growth = [], []
    for curve in known:
        for n, fit, one, gib in curve.points:
            numbers = [figure(fit), figure(1e6 * one), figure(gib)]
            lines.append([curve.engine, curve.place, f"{n:,}", *numbers])
        for small, large in pairwise(curve.points):
            ratio = math.log(large[0] / small[0])
            exponents = [math.log(large[i] / small[i]) / ratio for i in (1, 2, 3)]
            between = f"{small[0]:,} to {large[0]:,}"
            row = [curve.engine, curve.place, between, *[f"{e:.2f}" for e in exponents]]
            growth.append(row)
    parts += [markdown_table(head, lines), "", "## Growth of all", ""]
    parts += [markdown_table(["engine", "on", "rows", "fit", "prediction", "memory"], growth), ""]
    parts += ["## A thousand million rows", "", _extrapolation(folder), ""]
    return "\n".join(parts)


def _extrapolation(folder: Path) -> str:
    runs = _records(folder / "dask_scale.jsonl", ("rows", "workers"))
    measured = max(runs, key=lambda r: r["rows"])
    head = ["workers, a core each", "GiB each", "rows' memory, GiB", "share of the memory",
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
        f"{TASK_SECONDS * 1e3:g} ms a task of the scheduler and {CORE_HOUR} dollars a core and "
        "hour are assumed.\n\n"
    )
    return words + markdown_table(head, lines)


def draw(known: list[Curve]) -> str:
    """Seconds and memory against rows, on logarithmic axes, as SVG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from measurements.figures import svg

    fig: Any = Figure(figsize=(9.0, 3.6))
    axes = fig.subplots(1, 2)
    colours = mpl.colormaps["tab10"].colors
    for k, curve in enumerate(known):
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Write and print the page, and draw the curves."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    folder = parser.parse_args(arguments).results
    page = report(folder)
    write_whole(folder / "scale.md", page)
    write_whole(folder / "scale.svg", draw(curves(folder)))
    print(page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
