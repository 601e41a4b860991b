"""The evidence behind the defaults: one choice changed at a time, judged inside training parts.

A variant is the default estimator with one choice changed. It is fitted on four fifths of a split's
*training* rows and scored on the remaining fifth; the split's test rows are never touched. The page
shows, for each variant and table, the change against the default in RMSE (per cent) and in NLPD
(hundredths), and what leaving one table out would have chosen: for every table, the variant that is
best on the other tables, and how it does on the one left out.

    python -m benchmarks.defaults --splits 5 --jobs 2
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import joblib
import numpy as np

import twostagegp
from benchmarks import RESULTS, variants
from benchmarks.scores import predictive_scores
from benchmarks.variants import Variant, difference, log_ratio
from measurements.provenance import code_version, provenance
from measurements.store import JsonLines, Record, write_whole
from measurements.tables import markdown_table
from measurements.timing import Timed, use_threads
from twostagegp import (
    TwoStageGPRegressor,
    datasets,
)

__all__ = ["VARIANTS", "left_out", "main", "measure"]

SETS = ("yacht", "boston", "energy", "concrete", "wine")


VARIANTS: Mapping[str, Variant] = {
    "default": Variant("default"),
    "mean=search": Variant("mean", {"mean": "search"}),
    "ard=False": Variant("form of the kernels", {"ard": False}),
    "ard=True": Variant("form of the kernels", {"ard": True}),
    "objective=nll": Variant("objective of the mean", {"objective": "nll"}),
    "two kernels": Variant("kernels", {"kernels": ("rbf", "laplacian")}),
    "penalty not tuned": Variant("penalty", settings={"mean.penalty_shifts": (0.0,)}),
    "no refits": Variant("held-out residuals", settings={"mean.refit_rows": 0}),
    "refits to 1000 rows": Variant("held-out residuals", settings={"mean.refit_rows": 1000}),
    "5 folds": Variant("held-out residuals", settings={"mean.refit_folds": 5}),
    "stack ridge 0": Variant("stack ridge", settings={"mean.stack_ridge": 0.0}),
    "stack ridge 0.2": Variant("stack ridge", settings={"mean.stack_ridge": 0.2}),
    "variance by likelihood": Variant("objective of the variance", {"variance_objective": "nll"}),
    "residuals=insample": Variant("residuals", {"residuals": "insample"}),
    "noise share 0": Variant("noise share", settings={"variance.noise_share": 0.0}),
    "noise share 0.1": Variant("noise share", settings={"variance.noise_share": 0.1}),
    "noise share 0.6": Variant("noise share", settings={"variance.noise_share": 0.6}),
    "calibration=None": Variant("calibration", {"calibration": None}),
    "calibration at 68 %": Variant("calibration", settings={"scale_level": 0.68}),
    "calibration at 90 %": Variant("calibration", settings={"scale_level": 0.90}),
}


def measure(variant: str, name: str, split: int) -> Record:
    """Fit a variant on 4/5 of a training part and score it on the other fifth."""
    use_threads(1)
    data = datasets.load(name)
    train, _ = data.split(split)
    order = np.random.default_rng(split).permutation(train)
    inner, held = order[len(order) // 5 :], order[: len(order) // 5]
    chosen = VARIANTS[variant]
    record = {"variant": variant, "set": name, "split": split}
    record |= {"version": twostagegp.__version__, "code": code_version()}
    # One factor: the local scale of part 3 is judged by benchmarks.calibration.
    parameters = {"calibration": "scale", **chosen.arguments}
    model = TwoStageGPRegressor(random_state=0, device="cpu", **parameters)
    with Timed() as took:
        model.fit(data.X[inner], data.y[inner])
    scores = predictive_scores(model, data.X[held], data.y[held], data.y[inner])
    return record | scores | {"fit_cpu_seconds": took.cpu}


def changes(records: list[Record], score: str) -> dict[str, dict[str, float]]:
    """Mean change against the default by variant and table, over the splits both have."""
    change = log_ratio("rmse") if score == "rmse" else difference("nlpd_standardized")
    return variants.changes(
        records, lambda record, base: 100.0 * change(record, base), place=("set", "split")
    )


def left_out(table: dict[str, dict[str, float]], members: Sequence[str]) -> list[list[str]]:
    """For each table: the best of ``members`` on the others, and its change on this one."""
    rows = []
    for name in table["default"]:
        others = {
            variant: np.mean([v for key, v in table[variant].items() if key != name])
            for variant in members
            if variant in table and name in table[variant]
        }
        best = min(others, key=lambda variant: others[variant])
        rows.append([name, best, f"{table[best][name]:+.1f}"])
    return rows


def report(records: list[Record]) -> str:
    """The page: changes of every variant, then the leave-one-table-out choice of each group."""
    sets = [name for name in SETS if any(r["set"] == name for r in records)]
    parts = ["# Evidence behind the defaults", "", provenance(records), ""]
    groups: dict[str, list[str]] = {}
    for variant, chosen in VARIANTS.items():
        groups.setdefault(chosen.group, []).append(variant)
    for score, title in (
        ("rmse", "RMSE, change in per cent"),
        ("nlpd", "NLPD, change in hundredths"),
    ):
        table = changes(records, score)
        rows = [_row(variant, table[variant], sets) for variant in VARIANTS if variant in table]
        parts += [f"## {title} against the default", ""]
        parts += [markdown_table(["variant", *sets, "mean"], rows), ""]
        parts += [f"### Left one table out, chosen by {score.upper()}", ""]
        choice = [
            [group, *row]
            for group, members in groups.items()
            if group != "default"
            for row in left_out(table, ["default", *members])
        ]
        parts += [
            markdown_table(["choice", "left out", "chosen on the others", "change"], choice),
            "",
        ]
    return "\n".join(parts)


def _row(variant: str, row: dict[str, float], sets: Sequence[str]) -> list[str]:
    cells = [f"{row[name]:+.1f}" if name in row else "" for name in sets]
    return [variant, *cells, f"{np.mean(list(row.values())):+.1f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, write and print the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.defaults", description=__doc__)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table-only", action="store_true")
    given = parser.parse_args(arguments)
    store = JsonLines(given.results / "defaults.jsonl", key=("variant", "set", "split"))
    if not given.table_only:
        done = store.done()
        tasks = [
            (variant, name, split)
            for split in range(given.splits)
            for name in given.sets.split(",")
            for variant in given.variants.split(",")
            if (variant, name, split) not in done
        ]
        with joblib.parallel_config("loky", n_jobs=given.jobs, inner_max_num_threads=1):
            parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1)
            for count, record in enumerate(
                parallel(joblib.delayed(measure)(*task) for task in tasks), start=1
            ):
                store.append(record)
                print(f"[{count}/{len(tasks)}] {record['variant']}, {record['set']}", flush=True)
    page = report(list(store.records().values()))
    write_whole(given.results / "defaults.md", page)
    print(page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
