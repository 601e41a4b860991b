"""The paper's one-dimensional example (Figure 2), over many seeds instead of one picture.

Thirty points of y = 3x + 2 sin 2πx + N(0, 1), 80 % of them for training. The 95 % interval is
judged twice: on all thirty observed points, as the paper counts, where those that the model was
trained on flatter it; and on a thousand fresh points from the same distribution, where it has to
hold. The mean is judged by its RMSE to the true function on the fresh points.

    python -m benchmarks.toy --seeds 50
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import twostagegp
from benchmarks._models import LABELS, MODELS, code_version, provenance
from benchmarks._store import JsonLines, Record, write_whole
from benchmarks._tables import figure, markdown_table, mean_se
from benchmarks._timing import Timed
from twostagegp import datasets, metrics

__all__ = ["main", "measure", "report"]

RESULTS = Path(__file__).parent / "results"
COMPARED = ("single_paper", "single", "paper", "default")
N_FRESH = 1000
#: Fresh points get seeds far from those of the thirty.
FRESH_SEED = 1_000_000


def measure(name: str, seed: int) -> Record:
    """Fit one model to the training part of one draw and score it."""
    record: Record = {
        "model": name,
        "seed": seed,
        "version": twostagegp.__version__,
        "code": code_version(),
    }
    X, y = datasets.toy(random_state=seed)
    train = np.random.default_rng(seed).permutation(len(y))[: round(0.8 * len(y))]
    X_fresh, y_fresh = datasets.toy(N_FRESH, random_state=FRESH_SEED + seed)
    _, f_fresh = datasets.toy(N_FRESH, noise=0.0, random_state=FRESH_SEED + seed)
    model = MODELS[name](random_state=seed)
    try:
        with Timed() as took:
            model.fit(X[train], y[train])
        fresh = model.predict_interval(X_fresh)
        return record | {
            "coverage_observed": metrics.coverage(y, interval=model.predict_interval(X)),
            "coverage_fresh": metrics.coverage(y_fresh, interval=fresh),
            "width_fresh": metrics.interval_width(y_fresh, interval=fresh),
            "rmse_f": metrics.rmse(f_fresh, model.predict(X_fresh)),
            "fit_cpu_seconds": took.cpu,
        }
    except Exception as error:
        return record | {"error": f"{type(error).__name__}: {error}"}


def report(records: list[Record]) -> str:
    """The table as a Markdown page."""
    header = ["model", "seeds", "coverage, 30 observed", "coverage, fresh", "width, fresh"]
    rows, n_failed = [], sum(bool(r.get("error")) for r in records)
    for name in COMPARED:
        mine = [r for r in records if r["model"] == name and not r.get("error")]
        fields = ("coverage_observed", "coverage_fresh", "width_fresh", "rmse_f", "fit_cpu_seconds")
        cells = [mean_se([r[field] for r in mine]) for field in fields]
        rows.append([f"{name}: {LABELS[name]}", str(len(mine)), *cells])
    return "\n".join(
        [
            "# The toy of Figure 2\n",
            provenance(records) if records else "No results yet.",
            f"\n{n_failed} failed fits. 95 % intervals; mean ± se over the seeds. The noise alone "
            f"needs a width of {figure(2 * 1.959964)}.\n",
            markdown_table([*header, "RMSE to f, fresh", "CPU s a fit"], rows),
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, then write and print the table; returns 1 if a fit failed."""
    given = _parser().parse_args(arguments)
    store = JsonLines(given.results / "toy.jsonl", key=("model", "seed"))
    failed = 0
    if not given.table_only:
        done = set() if given.redo else store.done()
        for seed in range(given.seeds):
            for name in COMPARED:
                if (name, seed) not in done:
                    record = measure(name, seed)
                    failed += "error" in record
                    store.append(record, replace=given.redo)
    page = report(list(store.records().values()))
    write_whole(given.results / "toy.md", page)
    print(page)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.toy", description="The paper's one-dimensional example."
    )
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table-only", action="store_true", help="no fits, only the table")
    parser.add_argument("--redo", action="store_true", help="fit again what is there already")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
