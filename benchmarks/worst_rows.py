"""Which test row each split predicts worst, in predicted standard deviations.

A single row can dominate the NLPD of a split; this program names it.

    python -m benchmarks.worst_rows --set energy --splits 1,8,12,16
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from measurements.tables import markdown_table
from twostagegp import TwoStageGPRegressor, datasets

__all__ = ["main", "worst_row"]


def worst_row(name: str, split: int) -> tuple[int, float]:
    """Return the number of the test row with the largest |z| of the default model, and that |z|."""
    data = datasets.load(name)
    train, test = data.split(split)
    model = TwoStageGPRegressor(random_state=0).fit(data.X[train], data.y[train])
    mean, std = model.predict(data.X[test], return_std=True)
    z = np.abs(data.y[test] - mean) / std
    return int(test[np.argmax(z)]), float(z.max())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line per split."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worst_rows")
    parser.add_argument("--set", default="energy")
    parser.add_argument("--splits", default="1,8,12,16")
    given = parser.parse_args(arguments)
    found = [(split, *worst_row(given.set, int(split))) for split in given.splits.split(",")]
    print(markdown_table(["split", "row", "|z|"], [[s, str(r), f"{z:.1f}"] for s, r, z in found]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
