r"""Memory and speed of ``twostagegp predict`` on files of any length.

A model of 500 rows (three numbers and a category; one kernel, exact) is fitted by the command line
itself; then files of so many rows are predicted by it, CSV in, Parquet or CSV out. Every run is a
process of its own, whose largest resident memory the operating system counts. What is asked: does
memory stay the same when the file grows?

    python -m benchmarks.cli_stream --rows 200000,5000000
    python -m benchmarks.cli_stream --rows 200000 --output csv

The model is small so that the stream is measured rather than the model: one exact kernel with one
lengthscale a column for the mean, one for the variance, one calibration factor.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

import twostagegp
from benchmarks import RESULTS
from measurements.arguments import positive
from measurements.provenance import code_version
from measurements.store import JsonLines, Record, write_whole
from measurements.tables import figure, markdown_table

__all__ = ["main", "measure", "report", "write_rows"]

TRAINING_ROWS = 500
MODEL = ["method=exact", "kernels=rbf", "mean=rbf", "ard=true", "variance=rbf", "calibration=scale"]


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


def measure(folder: Path, rows: int, ending: str, chunk_rows: int) -> Record:
    """Predict a new file of so many rows in a process of its own."""
    source, output = folder / f"{rows}.csv", folder / f"predicted.{ending}"
    write_rows(source, rows, seed=1, with_target=False)
    size = source.stat().st_size
    begin = time.perf_counter()
    command = ["predict", str(folder / "model"), str(source), "--output", str(output)]
    program = _program([*command, "--chunk-rows", str(chunk_rows)])
    child = subprocess.Popen(program, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - begin
    record: Record = {"seconds": wall, "cpu": used.ru_utime + used.ru_stime}
    if child.returncode:
        record["error"] = f"exit code {child.returncode}"
        return record
    source.unlink()
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return record | {
        "rows_a_second": rows / wall,
        "peak_mib": used.ru_maxrss * unit / 2**20,
        "input_mib": size / 2**20,
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, keep the results, then write and print the page; returns 1 if a run failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cli_stream",
        description="Memory and speed of twostagegp predict on long files.",
    )
    parser.add_argument("--rows", type=_numbers, default=[200_000, 5_000_000])
    parser.add_argument("--output", choices=("parquet", "csv", "feather"), default="parquet")
    parser.add_argument("--chunk-rows", type=positive, default=20_000)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table-only", action="store_true", help="no runs, only the page")
    given = parser.parse_args(arguments)
    store = JsonLines(given.results / "cli_stream.jsonl", key=("rows", "output", "chunk_rows"))
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not given.table_only:
            _fit(folder)
        for rows in [] if given.table_only else given.rows:
            record: Record = {
                "rows": rows,
                "output": given.output,
                "chunk_rows": given.chunk_rows,
                "version": twostagegp.__version__,
                "code": code_version(),
                "machine": platform.machine(),
                "threads": os.environ.get("OMP_NUM_THREADS", str(os.cpu_count())),
            }
            record |= measure(folder, rows, given.output, given.chunk_rows)
            failed += "error" in record
            store.append(record, replace=True)
    page = report(list(store.records().values()))
    write_whole(given.results / "cli_stream.md", page)
    print(page)
    return 1 if failed else 0


def _numbers(text: str) -> list[int]:
    return [positive(part.strip()) for part in text.split(",")]


def report(records: list[Record]) -> str:
    """The Markdown page."""
    parts = ["# Long files through `twostagegp predict`\n"]
    usable = [record for record in records if "error" not in record]
    if not usable:
        return "\n".join([*parts, "No results yet.\n"])
    states = sorted({f"{r['version']} (source {r['code']})" for r in usable})
    parts += [
        f"twostagegp {', '.join(states)}; a model of {TRAINING_ROWS} rows, {', '.join(MODEL)}.\n",
        "## Time and memory\n",
        _table(usable),
    ]
    return "\n".join(parts)


def _table(records: list[Record]) -> str:
    header = ["rows", "input MiB", "output", "output MiB", "rows at a time", "seconds", "CPU s"]
    header += ["rows a second", "a CPU second", "peak MiB", "machine", "threads"]
    lines = []
    for r in sorted(records, key=lambda r: (r["output"], r["chunk_rows"], r["rows"])):
        cells = [f"{r['rows']:,}", figure(r["input_mib"]), r["output"], figure(r["output_mib"])]
        cells += [f"{r['chunk_rows']:,}", figure(r["seconds"]), figure(r["cpu"])]
        cells += [f"{r['rows_a_second']:,.0f}", f"{r['rows'] / r['cpu']:,.0f}"]
        cells.append(figure(r["peak_mib"]))
        lines.append([*cells, r["machine"], r["threads"]])
    return markdown_table(header, lines)


if __name__ == "__main__":
    raise SystemExit(main())
