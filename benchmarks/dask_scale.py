r"""A Parquet folder whose shards need more than a worker's memory, on a small Dask cluster.

Rows are those of ``benchmarks.neighbors_scale``, written part by part into a temporary folder. A
``LocalCluster`` of two processes with one thread and 2 GiB each fits the default
:class:`~twostagegp.TwoStageGPRegressor`; then points are read from Parquet, and their means
and standard deviations written to Parquet. A second, smaller folder shows that with the same
hyperparameters the predictions equal those of a model with all rows in one place.

    python -m benchmarks.dask_scale
    python -m benchmarks.dask_scale --rows 1000000 --redo
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from benchmarks import RESULTS
from benchmarks.neighbors_scale import COLUMNS, NOISE, draw, function
from measurements.arguments import positive
from measurements.pages import Page, joined, scored
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import figure, markdown_table
from measurements.timing import Timed
from twostagegp import TwoStageGPRegressor, metrics
from twostagegp.data.rows import Rows, merge_rows
from twostagegp.distributed.rowless_model import with_posteriors
from twostagegp.engines.neighbors.engine import NeighborEngine, NeighborPosterior
from twostagegp.estimators.prediction import encoded_inputs

__all__ = ["MEASUREMENT", "Cell", "in_memory", "measure", "write_parts"]

Array = NDArray[np.float64]

POINT_ROWS = 10_000
NAMES = [f"x{k}" for k in range(COLUMNS)]


@dataclass(frozen=True)
class Cell:
    """One cluster and its folders.

    Attributes
    ----------
    rows, points, part_rows : int
        Rows of the large folder, points that are predicted, and rows per file.
    equal_rows : int
        Rows of the folder that is also fitted in one place.
    workers : int
    memory : str
        Memory limit of a worker.
    """

    rows: int
    points: int
    part_rows: int
    equal_rows: int
    workers: int
    memory: str


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the fields of the cell."""
    parser.add_argument("--rows", type=positive, help="10 million by default")
    parser.add_argument("--points", type=positive, help="100,000 by default")
    parser.add_argument("--equal-rows", type=positive, help="200,000 by default")
    parser.add_argument("--part-rows", type=positive, default=500_000)
    parser.add_argument("--workers", type=positive, default=2)
    parser.add_argument("--memory", default="2GiB", help="memory limit of a worker")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return the one cluster that the options describe."""
    rows, points, equal = (3000, 200, 2400) if given.quick else (10_000_000, 100_000, 200_000)
    rows, points = given.rows or rows, given.points or points
    equal = given.equal_rows or equal
    return [Cell(rows, points, given.part_rows, equal, given.workers, given.memory)]


@contextmanager
def _cluster(workers: int, memory: str) -> Any:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            memory_limit=memory,
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def write_parts(folder: Path, rows: int, part_rows: int, seed: int) -> None:
    """Write rows of ``neighbors_scale.draw`` to a Parquet folder; each file has its own seed."""
    folder.mkdir(parents=True)
    for number, begin in enumerate(range(0, rows, part_rows)):
        X, y = draw(min(part_rows, rows - begin), seed=seed + number)
        frame = pd.DataFrame(X, columns=NAMES).assign(y=y)
        frame.to_parquet(folder / f"part-{number:05d}.parquet", index=False)


def measure(cell: Cell) -> Record:
    """Fit both folders, each on a cluster of its own."""
    record: Record = {"load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Timed() as writing:
            write_parts(folder / "rows", cell.rows, cell.part_rows, seed=1000)
            write_parts(folder / "points", cell.points, POINT_ROWS, seed=500)
            write_parts(folder / "equal", cell.equal_rows, cell.equal_rows // 4, seed=900)
        record["write_wall"] = writing.wall
        record["folder_gib"] = sum(p.stat().st_size for p in folder.rglob("*.parquet")) / 2**30
        with _cluster(cell.workers, cell.memory) as client:
            before = set(client.scheduler_info(n_workers=-1)["workers"])
            record |= _large(folder)
            peaks = client.run(_peak_gib)
            record["worker_peak_gib"] = max(peaks.values())
            record["workers_lost"] = len(before - set(peaks))
        record["client_peak_gib"] = _peak_gib()
        with _cluster(cell.workers, cell.memory):
            record |= _equal(folder)
    return record


def _large(folder: Path) -> Record:
    """Fit, then predict from Parquet to Parquet."""
    import dask.dataframe as dd

    table = dd.read_parquet(folder / "rows")
    model = TwoStageGPRegressor(random_state=0)
    with Timed() as fitting:
        model.fit(table[NAMES], table["y"])
    points = dd.read_parquet(folder / "points")
    with Timed() as predicting:
        mean, std = model.predict(points[NAMES], return_std=True)
        points.assign(mean=mean, std=std).to_parquet(folder / "answers")
    read = pd.read_parquet(folder / "answers")
    f = function(read[NAMES].to_numpy())
    scored = [read[name].to_numpy() for name in ("y", "mean", "std")]
    return {
        "fit_wall": fitting.wall,
        "fit_seconds": dict(model.fit_report_.seconds),
        "shards": len(model.fitted_.remote.lazy),
        "metrics": len(model.fitted_.remote.plan.metrics),
        "mean": model.fit_report_.mean,
        "predict_wall": predicting.wall,
        "answers": len(read),
        "rmse": float(np.sqrt(np.mean((read["mean"] - f) ** 2))),
        "coverage_95": float(metrics.coverage(*scored, level=0.95)),
        "nlpd": float(metrics.nlpd(*scored)),
    }


def _equal(folder: Path) -> Record:
    """Return the largest difference from the same model with all rows in one place."""
    import dask.dataframe as dd

    table = dd.read_parquet(folder / "equal")
    model = TwoStageGPRegressor(random_state=0).fit(table[NAMES], table["y"])
    frame = table.compute()
    points = pd.read_parquet(folder / "points")[NAMES].iloc[:10_000]
    local = in_memory(model, frame[NAMES], frame["y"].to_numpy())
    mean, std = model.predict(points, return_std=True)
    own_mean, own_std = local.predict(points, return_std=True)
    return {
        "equal_points": len(points),
        "largest_difference": float(np.abs(mean - own_mean).max()),
        "largest_difference_std": float(np.abs(std - own_std).max()),
    }


def in_memory(model: Any, X: Any, y: Array) -> Any:
    """Return the same model with these rows in one place, in the units of the sample."""
    local = copy(model)
    numbers = encoded_inputs(model, X)
    targets = np.asarray(y, dtype=np.float64).reshape(len(numbers), -1)
    made = []
    for target, column in zip(model.fitted_.targets, targets.T, strict=True):
        fit, scaling = target.fit, target.data.scaling
        merged = merge_rows(numbers[:, scaling.columns], column)
        own = replace(scaling, columns=np.arange(len(scaling.columns)))
        Z = torch.as_tensor(own.inputs(merged.X))
        whitening = getattr(fit, "whitening", None)
        Z = Z if whitening is None else whitening(Z)
        t = torch.as_tensor((merged.t - scaling.y_mean) / scaling.y_scale)
        c = torch.as_tensor(merged.c)
        rows = Rows(Z, t, c, 0.0 * c, 0.0 * c)
        made.append(replace(target, fit=with_posteriors(fit, _Conditioned(rows))))
    local.fitted_ = replace(model.fitted_, targets=tuple(made), remote=None)
    return local


class _Conditioned:
    """Let posteriors on the same rows share their trees."""

    def __init__(self, rows: Rows) -> None:
        self.engine = NeighborEngine(rows)

    def __call__(self, part: NeighborPosterior) -> NeighborPosterior:
        engine = replace(
            self.engine,
            n_neighbors=part.engine.n_neighbors,
            noise_floor=part.engine.noise_floor,
        )
        return NeighborPosterior(part.kernel, part.parameters, engine)


def _peak_gib() -> float:
    """Return the largest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


# --- page ----------------------------------------------------------------------------------------


def _tables(records: list[Record]) -> str:
    found = _by_rows(records)
    note = (
        f"torch {found[-1]['torch']}, {found[-1]['machine']}; one thread per worker. {COLUMNS} "
        f"columns, noise of standard deviation {NOISE:g}; RMSE against the function itself. Points "
        "are read from Parquet, means and standard deviations written to Parquet."
    )
    equal = "A folder on the cluster against the same hyperparameters with all rows in one place:"
    return joined(note, _table(records), equal, _equality(records))


def _by_rows(records: list[Record]) -> list[Record]:
    return sorted(scored(records), key=lambda record: record["rows"])


def _table(records: list[Record]) -> str:
    header = ["rows", "workers", "Parquet GiB", "shards", "fit s", "sample", "on the client"]
    header += ["shards s", "predictions", "predict s", "worker peak GiB", "client peak GiB"]
    header += ["workers lost", "RMSE", "95 % coverage"]
    lines = []
    for r in _by_rows(records):
        seconds = r["fit_seconds"]
        client = r["fit_wall"] - seconds["sample"] - seconds["shards"]
        lines.append(
            [
                f"{r['rows']:,}",
                f"{r['workers']} of {r['memory']}",
                figure(r["folder_gib"]),
                f"{r['shards']}",
                figure(r["fit_wall"]),
                figure(seconds["sample"]),
                figure(client),
                figure(seconds["shards"]),
                f"{r['answers']:,}",
                figure(r["predict_wall"]),
                figure(r["worker_peak_gib"]),
                figure(r["client_peak_gib"]),
                f"{r['workers_lost']}",
                figure(r["rmse"]),
                f"{r['coverage_95']:.1%}",
            ]
        )
    return markdown_table(header, lines)


def _equality(records: list[Record]) -> str:
    header = ["rows in one place", "points", "largest difference of a mean", "of a std"]
    lines = [
        [
            f"{r['equal_rows']:,}",
            f"{r['equal_points']:,}",
            f"{r['largest_difference']:.1e}",
            f"{r['largest_difference_std']:.1e}",
        ]
        for r in _by_rows(records)
    ]
    return markdown_table(header, lines)


MEASUREMENT = Measurement(
    name="dask_scale",
    about="A Parquet folder whose shards need more than a worker's memory.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page(
        "A Parquet folder on a Dask cluster",
        {},
        about=lambda records: _tables(records) if scored(records) else "",
        failed_by=("rows", "workers", "memory"),
        counted="runs",
    ),
    arguments=arguments,
    key=("rows", "workers", "memory"),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
