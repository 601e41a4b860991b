r"""The evidence behind the constants of the calibration: one of them changed at a time.

The default estimator is fitted once to a place, and its held-out rows are calibrated again by every
variant, so that variants differ only in their calibration. A place is drawn from *training*
rows of a table alone; its standard test rows are never used:

- yacht, boston, energy, concrete and wine: the training part of a standard split, a fifth of it
  held out;
- twelve other tables: 1000 of the training rows of fold 0, and 2000 others held out.

For every table the mean over its places of the difference to the default is taken, then the mean
over tables; a variant counts as worse on a table where the difference is above two standard errors.
NLPD is that of the Gaussian with the predicted moments; CRPS is that of the distribution itself, in
per cent of the default's.

Every fit runs with one thread. The data folder is named by ``TWOSTAGEGP_DATA``.

    python -m benchmarks.calibration_defaults --jobs 2
    python -m benchmarks.calibration_defaults --sets yacht,bike --places 2
    python -m benchmarks.calibration_defaults --table-only
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from benchmarks import RESULTS
from benchmarks.calibration_fits import ATOM_SHARE, distribution_scores, largest_atom
from benchmarks.large_sets import SETS as LARGE
from benchmarks.large_sets import Rows, fold_rows, load
from benchmarks.uci_tables import REFERENCES as SMALL
from benchmarks.variants import DEFAULT, Variant, changed_settings
from measurements.arguments import names, positive
from measurements.pages import Page, joined, scored
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import markdown_table
from measurements.timing import use_threads
from twostagegp import TwoStageGPRegressor
from twostagegp.datasets import RegressionData
from twostagegp.pipeline.calibration.fit import calibrate
from twostagegp.pipeline.held_rows import HeldRows
from twostagegp.pipeline.settings import DEFAULTS

__all__ = ["MEASUREMENT", "VARIANTS", "Cell", "measure", "place_rows", "report", "variant_scores"]

SETS = (*SMALL, *LARGE)
#: Tables up to this size are used whole.
WHOLE_ROWS = 2000
PART_ROWS, HELD_ROWS, HELD_SHARE = 1000, 2000, 0.2
PLACES = 10
HELD_SEED = 20240301
#: Group of stored variants that the present version does not have.
EARLIER = "no longer a choice"
SCORES = ("nlpd", "crps", "qice", "coverage_50", "coverage_95")


def _local(group: str, **changed: Any) -> Variant:
    return Variant(group, settings={f"local_scale.{name}": v for name, v in changed.items()})


def _shape(group: str, **changed: Any) -> Variant:
    return Variant(group, settings={f"shape.{name}": v for name, v in changed.items()})


VARIANTS: Mapping[str, Variant] = {
    DEFAULT: Variant(DEFAULT),
    "no local scale": _local("members", fewest_rows=sys.maxsize),
    "no trees": _local("members", tree_rows=sys.maxsize),
    "no ridge": _local("members", with_ridges=False),
    "ridge on inputs always": _local("members", smooth_columns=sys.maxsize),
    "ridge of 300 rows": _local("members", ridge_rows=300, training_rows=300),
    "b of 0.1 rows": _local("least b", least_rows=0.1),
    "b of 1 row": _local("least b", least_rows=1.0),
    "b of 3 rows": _local("least b", least_rows=3.0),
    "b of 10 rows": _local("least b", least_rows=10.0),
    "a costs nothing": _local("price of a", price=0.0),
    "a costs 3 nats": _local("price of a", price=3.0),
    "a up to 1": _local("bound of a", largest_weight=1.0),
    "information 0.2": _shape("information", information=0.2),
    "information 1": _shape("information", information=1.0),
    "t distribution alone": _shape("mixture", fewest=sys.maxsize),
    "mixture from 10 rows": _shape("mixture", fewest=10),
    "mixture from 100 rows": _shape("mixture", fewest=100),
    "half the bandwidth": _shape("smoothing", bandwidth=0.5 * DEFAULTS.shape.bandwidth),
    "twice the bandwidth": _shape("smoothing", bandwidth=2.0 * DEFAULTS.shape.bandwidth),
    "tail of 1 row": _shape("tail", tail_rows=1.0),
    "tail of 10 rows": _shape("tail", tail_rows=10.0),
}


# --- one fit -------------------------------------------------------------------------------------


def place_rows(data: RegressionData, place: int) -> tuple[Rows, Rows]:
    """Return rows to fit and rows to score, both from the training rows of a fold.

    Examples
    --------
    >>> data = RegressionData("tiny", np.zeros((100, 1)), np.zeros(100), ("x0",), (), None)
    >>> [len(rows) for rows in place_rows(data, 3)]
    [72, 18]
    """
    whole = len(data.y) <= WHOLE_ROWS
    train, _ = fold_rows(data, place if whole and data.splits else 0)
    order = np.random.default_rng(HELD_SEED + place).permutation(train)
    held = int(HELD_SHARE * len(order)) if whole else HELD_ROWS
    fitted = order[held:] if whole else order[held : held + PART_ROWS]
    return np.sort(fitted), np.sort(order[:held])


@dataclass(frozen=True)
class Cell:
    """One fit: to which place of which table."""

    set: str
    place: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tables and the number of places of a run."""
    parser.add_argument("--sets", type=names(SETS), help="tables; all by default")
    parser.add_argument("--places", type=positive, help=f"places per table; {PLACES} by default")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return the places of all tables, the first place of each table first."""
    places = given.places or (1 if given.quick else PLACES)
    sets = given.sets or (["yacht"] if given.quick else list(SETS))
    return [Cell(name, place) for place in range(places) for name in sets]


def measure(cell: Cell) -> Record:
    """Fit the default to a place and score all variants."""
    use_threads(1)
    data = load(cell.set)
    fitted, held = place_rows(data, cell.place)
    scores = variant_scores(VARIANTS, data, fitted, held, cell.place)
    return {"n_train": len(fitted), "n_held": len(held), "scores": scores}


def variant_scores(
    variants: Mapping[str, Variant], data: RegressionData, fitted: Rows, held: Rows, seed: int
) -> Record:
    """Fit the default to some rows, calibrate it by each variant, and score it on others.

    Parameters
    ----------
    variants : mapping from names to variants
    data : RegressionData
    fitted, held : arrays of row numbers
        Rows to fit and rows to score.
    seed : int
    """
    X, y = data.X[fitted], data.y[fitted]
    model = TwoStageGPRegressor(method="exact", device="cpu", random_state=seed).fit(X, y)
    rows, fit = model.fitted_.data[0], model.fitted_.fits[0]
    fit_seed = int(check_random_state(seed).randint(2**31 - 1))  # as the estimator draws it
    atoms = largest_atom(data.y) > ATOM_SHARE
    scores = {}
    for name, variant in variants.items():
        options = SimpleNamespace(
            calibration="local",
            noise_floor=fit.noise_floor,
            levels=None,
            reweight_values=False,
            bounds=(-math.inf, math.inf),
            settings=changed_settings(variant.settings),
        )
        every = HeldRows.every(rows)
        fit.calibration = calibrate(rows, every, fit.mean, fit.variance, options, fit_seed)
        moments = model.predict(data.X[held], return_std=True)
        each = distribution_scores(model, moments, data.X[held], data.y[held], y, atoms, seed)
        scores[name] = {score: each[score] for score in SCORES}
    return scores


# --- the page ------------------------------------------------------------------------------------


def _change_section(records: list[Record]) -> str:
    tables = len({r["set"] for r in records})
    text = (
        f"Mean over {tables} tables of the difference to the default, on rows held out of training "
        "rows. In brackets: tables on which a variant is better, and on which it is worse, by more "
        "than two standard errors. QICE in points; coverage: mean over the tables."
    )
    return joined(text, _summary(records))


def _difference(record: Record, variant: str, score: str) -> float:
    own, base = record["scores"][variant][score], record["scores"][DEFAULT][score]
    return float(100.0 * (own / base - 1.0) if score == "crps" else own - base)


def _changes(records: list[Record], variant: str, score: str) -> dict[str, tuple[float, float]]:
    """Return the mean difference and its standard error by table."""
    found: dict[str, tuple[float, float]] = {}
    for name in SETS:
        d = [_difference(r, variant, score) for r in records if r["set"] == name]
        if d:
            error = float(np.std(d, ddof=1) / np.sqrt(len(d))) if len(d) > 1 else np.inf
            found[name] = fmean(d), error
    return found


def _variants(records: list[Record]) -> list[str]:
    """Return the variants that every record has; those of earlier versions come last."""
    stored = [list(r["scores"]) for r in records]
    everywhere = [name for name in stored[0] if all(name in names for names in stored)]
    return sorted(everywhere, key=lambda name: name not in VARIANTS)


def _summary(records: list[Record]) -> str:
    rows = []
    for variant in _variants(records):
        cells = [VARIANTS[variant].group if variant in VARIANTS else EARLIER, variant]
        show: Mapping[str, Callable[[float], str]] = {
            "nlpd": lambda d: f"{d:+.4f}",
            "crps": lambda d: f"{d:+.2f} %",
            "qice": lambda d: f"{d:+.2f}",
        }
        for score, written in show.items():
            by_table = _changes(records, variant, score)
            better = sum(mean < -2.0 * error for mean, error in by_table.values())
            worse = sum(mean > 2.0 * error for mean, error in by_table.values())
            mean = fmean(mean for mean, _ in by_table.values())
            cells.append(f"{written(mean)} ({better}, {worse})")
        for score in ("coverage_50", "coverage_95"):
            by_set = [
                fmean(r["scores"][variant][score] for r in records if r["set"] == name)
                for name in {r["set"] for r in records}
            ]
            cells.append(f"{fmean(by_set):.1%}")
        rows.append(cells)
    return markdown_table(
        ["constant", "variant", "NLPD", "CRPS", "QICE", "50 % coverage", "95 % coverage"], rows
    )


def _by_table(records: list[Record], score: str) -> str:
    there = [name for name in SETS if any(r["set"] == name for r in records)]
    rows = [
        [variant, *(f"{mean:+.3f}" for mean, _ in _changes(records, variant, score).values())]
        for variant in _variants(records)
        if variant != DEFAULT
    ]
    return markdown_table(["variant", *there], rows)


report = Page(
    "Evidence behind the constants of the calibration",
    {
        "Change against the default": lambda records: _change_section(scored(records)),
        "NLPD by table": lambda records: _by_table(scored(records), "nlpd"),
        "CRPS by table, per cent": lambda records: _by_table(scored(records), "crps"),
    },
    failed_by=("set", "place"),
)
MEASUREMENT = Measurement(
    name="calibration_defaults",
    about="The evidence behind the constants of the calibration.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=report,
    arguments=arguments,
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
