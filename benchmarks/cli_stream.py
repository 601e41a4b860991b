r"""Memory and speed of ``twostagegp predict`` on files of any length.

A model of 500 rows (three numbers and a category; one kernel, exact) is fitted by the command line
itself; then it predicts files of several lengths, CSV in, Parquet or CSV out. Every run is a
process of its own, whose largest resident memory the operating system counts. The
benchmark shows whether memory stays the same when the file grows.

    python -m benchmarks.cli_stream --rows 200000,5000000
    python -m benchmarks.cli_stream --rows 200000 --output csv --redo

The model is small so that the stream is measured rather than the model: one exact kernel with one
lengthscale per column for the mean, one for the variance, one calibration factor.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks import RESULTS
from measurements.arguments import positive
from measurements.pages import Page, scored
from measurements.processes import THREAD_VARIABLES
from measurements.runner import Measurement, Workers, run
from measurements.store import Record
from measurements.tables import figure, markdown_table

__all__ = ["MEASUREMENT", "Cell", "measure", "write_rows"]

TRAINING_ROWS = 500
MODEL = ["method=exact", "kernels=rbf", "mean=rbf", "ard=true", "variance=rbf", "calibration=scale"]


@dataclass(frozen=True)
class Cell:
    """One file that is predicted.

    Attributes
    ----------
    rows : int
    output : str
        Format of the predictions.
    chunk_rows : int
        Rows that are read at a time.
    threads : int
        Threads of the process that predicts.
    """

    rows: int
    output: str
    chunk_rows: int
    threads: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the files of a run."""
    parser.add_argument("--rows", type=_numbers, help="200000 and 5000000 by default")
    parser.add_argument("--output", choices=("parquet", "csv", "feather"), default="parquet")
    parser.add_argument("--chunk-rows", type=positive, default=20_000)


def _numbers(text: str) -> list[int]:
    return [positive(part.strip()) for part in text.split(",")]


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return one file per number of rows."""
    rows = given.rows or ([50, 100] if given.quick else [200_000, 5_000_000])
    return [Cell(n, given.output, given.chunk_rows, given.threads) for n in rows]


def write_rows(path: Path, rows: int, seed: int, with_target: bool, block: int = 250_000) -> None:
    """Write a CSV file of random rows, ``block`` rows at a time."""
    rng = np.random.default_rng(seed)
    for begin in range(0, rows, block):
        n = min(block, rows - begin)
        table = pd.DataFrame(rng.uniform(-2.0, 2.0, (n, 3)).round(4), columns=["a", "b", "c"])
        table["kind"] = rng.choice(["red", "green", "blue"], n)
        if with_target:
            mean = np.sin(2.0 * table["a"]) + 0.5 * table["b"] + (table["kind"] == "red")
            table["y"] = mean + 0.1 * rng.normal(size=n)
        table.to_csv(path, mode="a", header=begin == 0, index=False)


def measure(cell: Cell) -> Record:
    """Fit the model, then predict a new file in a process of its own."""
    environment = dict(os.environ, **dict.fromkeys(THREAD_VARIABLES, str(cell.threads)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _fit(folder)
        source, output = folder / "new.csv", folder / f"predicted.{cell.output}"
        write_rows(source, cell.rows, seed=1, with_target=False)
        command = ["predict", str(folder / "model"), str(source), "--output", str(output)]
        program = _program([*command, "--chunk-rows", str(cell.chunk_rows)])
        begin = time.perf_counter()
        child = subprocess.Popen(program, stdout=subprocess.DEVNULL, env=environment)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - begin
        if child.returncode:
            raise RuntimeError(f"twostagegp predict ended with exit code {child.returncode}")
        unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
        return {
            "seconds": wall,
            "cpu": used.ru_utime + used.ru_stime,
            "rows_a_second": cell.rows / wall,
            "peak_mib": used.ru_maxrss * unit / 2**20,
            "input_mib": source.stat().st_size / 2**20,
            "output_mib": output.stat().st_size / 2**20,
        }


def _program(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "twostagegp", *arguments]


def _fit(folder: Path) -> None:
    write_rows(folder / "training.csv", TRAINING_ROWS, seed=0, with_target=True)
    options = [part for option in MODEL[1:] for part in ("--option", option)]
    command = ["fit", str(folder / "training.csv"), "--target", "y", "--method", "exact", *options]
    command += ["--output", str(folder / "model")]
    subprocess.run(_program(command), check=True, stdout=subprocess.DEVNULL)


def _table(records: list[Record]) -> str:
    header = ["rows", "input MiB", "output", "output MiB", "rows at a time", "seconds"]
    header += ["CPU seconds", "rows per second", "rows per CPU second", "peak MiB", "machine"]
    lines = []
    for r in sorted(scored(records), key=lambda r: (r["output"], r["chunk_rows"], r["rows"])):
        shown = [f"{r['rows']:,}", figure(r["input_mib"]), r["output"], figure(r["output_mib"])]
        shown += [f"{r['chunk_rows']:,}", figure(r["seconds"]), figure(r["cpu"])]
        shown += [f"{r['rows_a_second']:,.0f}", f"{r['rows'] / r['cpu']:,.0f}"]
        lines.append([*shown, figure(r["peak_mib"]), r["machine"], str(r["threads"])])
    return markdown_table([*header, "threads"], lines)


MEASUREMENT = Measurement(
    name="cli_stream",
    about="Memory and speed of twostagegp predict on long files.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page(
        "Long files through `twostagegp predict`",
        {"Time and memory": _table},
        about=lambda records: f"A model of {TRAINING_ROWS} rows, {', '.join(MODEL)}.",
        failed_by=("rows", "output", "chunk_rows"),
        counted="files",
    ),
    arguments=arguments,
    key=("rows", "output", "chunk_rows"),
    strategy=Workers(threads=1),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
