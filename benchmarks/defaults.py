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
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks import RESULTS, variants
from benchmarks.scores import predictive_scores
from benchmarks.variants import Variant, difference, log_ratio
from measurements.arguments import names, positive
from measurements.pages import Page, joined, scored
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import markdown_table
from measurements.timing import Timed
from twostagegp import TwoStageGPRegressor, datasets

__all__ = ["MEASUREMENT", "VARIANTS", "Cell", "changes", "left_out", "measure"]

SETS = ("yacht", "boston", "energy", "concrete", "wine")
VARIANTS: Mapping[str, Variant] = {
    "default": Variant("default"),
    "mean=search": Variant("mean", {"mean": "search"}),
    "ard=False": Variant("form of the kernels", {"ard": False}),
    "ard=True": Variant("form of the kernels", {"ard": True}),
    "objective=nll": Variant("objective of the mean", {"objective": "nll"}),
    "two kernels": Variant("kernels", {"kernels": ("rbf", "laplacian")}),
    "penalty not tuned": Variant("penalty", settings={"mean.penalty_shifts": (0.0,)}),
    "little noise: never": Variant("training", settings={"mean.little_noise": 0.0}),
    "little noise below 0.1": Variant("training", settings={"mean.little_noise": 0.1}),
    "little noise: always": Variant("training", settings={"mean.little_noise": np.inf}),
    "rows grow fourfold": Variant("training", settings={"mean.growth": 4.0}),
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
#: Stored variants that can no longer be fitted, by their groups: the spread of the prior is now a
#: constant of the kernels, not a setting.
PAST: Mapping[str, str] = {"prior spread 1": "prior", "prior spread 1.7": "prior"}


@dataclass(frozen=True)
class Cell:
    """One variant on the training rows of one split."""

    variant: str
    set: str
    split: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--sets``, ``--variants`` and ``--splits``."""
    parser.add_argument("--sets", type=names(SETS), help="tables; all five by default")
    parser.add_argument("--variants", type=names(VARIANTS), help="all by default")
    parser.add_argument("--splits", type=positive, help="number of splits; 5 by default")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return every variant on every table, split by split."""
    quick = given.quick
    return [
        Cell(variant, name, split)
        for split in range(given.splits or (1 if quick else 5))
        for name in given.sets or (["yacht"] if quick else SETS)
        for variant in given.variants or (["default", "no refits"] if quick else VARIANTS)
    ]


def measure(cell: Cell) -> Record:
    """Fit a variant on 4/5 of a training part and score it on the other fifth."""
    data = datasets.load(cell.set)
    train, _ = data.split(cell.split)
    order = np.random.default_rng(cell.split).permutation(train)
    inner, held = order[len(order) // 5 :], order[: len(order) // 5]
    # Only one choice is changed; benchmarks.calibration compares the calibrations.
    parameters = {"calibration": "scale", **VARIANTS[cell.variant].arguments}
    model = TwoStageGPRegressor(random_state=0, device="cpu", **parameters)
    with Timed() as took:
        model.fit(data.X[inner], data.y[inner])
    scores = predictive_scores(model, data.X[held], data.y[held], data.y[inner])
    return {**scores, "fit_cpu_seconds": took.cpu}


# --- page ----------------------------------------------------------------------------------------


def changes(records: list[Record], score: str) -> dict[str, dict[str, float]]:
    """Return the mean change against the default by variant and table, over common splits."""
    change = log_ratio("rmse") if score == "rmse" else difference("nlpd_standardized")
    return variants.changes(
        records, lambda record, base: 100.0 * change(record, base), place=("set", "split")
    )


def left_out(table: dict[str, dict[str, float]], members: Sequence[str]) -> list[list[str]]:
    """Return, for each table, the best of ``members`` on the others and its change on this one."""
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


def _section(score: str, records: list[Record]) -> str:
    """Return the changes of every variant, then each group's choice with one table left out."""
    shown = {name: variant.group for name, variant in VARIANTS.items()} | PAST
    groups: dict[str, list[str]] = {}
    for variant, group in shown.items():
        groups.setdefault(group, []).append(variant)
    table = changes(scored(records), score)
    sets = [name for name in SETS if any(name in row for row in table.values())]
    rows = [_row(variant, table[variant], sets) for variant in shown if variant in table]
    choice = [
        [group, *row]
        for group, members in groups.items()
        if group != "default"
        for row in left_out(table, ["default", *members])
    ]
    return joined(
        markdown_table(["variant", *sets, "mean"], rows),
        f"### One table left out, chosen by {score.upper()}",
        markdown_table(["choice", "left out", "chosen on the others", "change"], choice),
    )


def _row(variant: str, row: dict[str, float], sets: Sequence[str]) -> list[str]:
    shown = [f"{row[name]:+.1f}" if name in row else "" for name in sets]
    return [variant, *shown, f"{np.mean(list(row.values())):+.1f}"]


MEASUREMENT = Measurement(
    name="defaults",
    about="One default changed at a time, judged inside training rows.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page(
        "Evidence behind the defaults",
        {
            "RMSE, change in per cent against the default": partial(_section, "rmse"),
            "NLPD, change in hundredths against the default": partial(_section, "nlpd"),
        },
        failed_by=("variant", "set", "split"),
    ),
    arguments=arguments,
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
