r"""Hostile tables for the command line: hundreds of thousands of spoilt CSV and Parquet files.

Each case spoils a small table and reads it as ``twostagegp fit`` does (whole) or as ``twostagegp
predict`` does (in chunks, in the types of a model). It may end in a table or in an error of ours;
what counts as a failure: ``benchmarks.fuzz_guard``.

    python -m benchmarks.reader_fuzz --cases 100000
    python -m benchmarks.reader_fuzz --only 4711        # one case, with its traceback
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.fuzz_runner import memory_folder, run_program
from benchmarks.reader_cases import ReaderCases
from twostagegp.data.columns import TableEncoder

__all__ = ["fitted_rules", "main"]


def fitted_rules() -> list[object]:
    """Return column rules for a number, a category and a date, as a fitted model has them."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame(
        {
            "area": rng.normal(size=30),
            "color": rng.choice(["red", "green", "blue"], 30),
            "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 99, 30), "D"),
        }
    )
    return list(TableEncoder().fit(table, rng.normal(size=30)).rules_)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cases, write and print their counts; returns 1 if a case failed."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as name:
        folder = Path(name)
        return run_program(
            "reader_fuzz", lambda seed: ReaderCases(fitted_rules(), folder, seed), arguments, folder
        )


if __name__ == "__main__":
    raise SystemExit(main())
