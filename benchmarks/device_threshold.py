"""From how many rows on a GPU pays: the wall-clock seconds of default fits on both devices.

python -m benchmarks.device_threshold --rows 250,500,1000,2000,4000
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import RESULTS
from measurements.provenance import code_version
from measurements.store import write_whole
from measurements.tables import figure, markdown_table
from twostagegp import TwoStageGPRegressor, datasets

__all__ = ["main"]


def _seconds(rows: int, device: str) -> float:
    data = datasets.load("kin8nm")
    train, _ = data.split(0)
    model = TwoStageGPRegressor(random_state=0, device=device)
    begin = time.perf_counter()
    model.fit(data.X[train[:rows]], data.y[train[:rows]])
    return time.perf_counter() - begin


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write and print the table; needs a CUDA device."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device_threshold")
    parser.add_argument("--rows", default="250,500,1000,2000,4000")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("torch sees no CUDA device")
    _seconds(100, "cuda")  # the first use of a GPU pays for its start
    results = []
    for rows in (int(text) for text in given.rows.split(",")):
        record = {"rows": rows, "cpu": _seconds(rows, "cpu"), "cuda": _seconds(rows, "cuda")}
        results.append(record)
        print(record, flush=True)
    facts = {
        "gpu": torch.cuda.get_device_name(),
        "cpu_threads": torch.get_num_threads(),
        "code": code_version(),
        "results": results,
    }
    table = markdown_table(
        ["rows of kin8nm", "CPU s", "GPU s", "CPU / GPU"],
        [
            [str(r["rows"]), figure(r["cpu"]), figure(r["cuda"]), figure(r["cpu"] / r["cuda"])]
            for r in results
        ],
    )
    head = f"{facts['gpu']} against {facts['cpu_threads']} CPU threads, default fits, wall clock."
    write_whole(given.results / "device_threshold.json", json.dumps(facts, indent=1) + "\n")
    write_whole(given.results / "device_threshold.md", f"# When a GPU pays\n\n{head}\n\n{table}\n")
    print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
