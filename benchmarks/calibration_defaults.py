r"""The evidence behind the constants of the calibration: one of them changed at a time.

The default estimator is fitted once to a place, and its held-out rows are calibrated again by every
variant, so that variants differ in nothing but their calibration. A place is drawn from *training*
rows of a table alone; none of its standard test rows takes part:

- yacht, boston, energy, concrete and wine: the training part of a standard split, a fifth of it
  held out;
- twelve other tables: 1000 of the training rows of fold 0, and 2000 others held out.

For every table the mean over its places of the difference to the default is taken, then the mean
over tables; a variant counts as worse on a table where the difference is above two standard errors.
NLPD is that of the Gaussian with the predicted moments; CRPS is that of the distribution itself, in
per cent of the default's.

Every fit runs with one thread and is kept at once in ``calibration_defaults.jsonl``; what is there
is not computed again. Needs ``TWOSTAGEGP_DATA``.

    python -m benchmarks.calibration_defaults --jobs 2
    python -m benchmarks.calibration_defaults --sets yacht,bike --places 2
    python -m benchmarks.calibration_defaults --table-only
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

import twostagegp
from benchmarks import RESULTS
from benchmarks.calibration_fits import ATOM_SHARE, distribution_scores, largest_atom
from benchmarks.large_sets import SETS as LARGE
from benchmarks.large_sets import Rows, fold_rows, load
from benchmarks.uci_tables import REFERENCES as SMALL
from benchmarks.variants import DEFAULT, Variant, changed_settings
from measurements.arguments import names, positive
from measurements.provenance import code_version, provenance
from measurements.store import JsonLines, Record, plain, write_whole
from measurements.tables import markdown_table
from measurements.timing import use_threads
from twostagegp import TwoStageGPRegressor
from twostagegp.datasets import RegressionData
from twostagegp.pipeline.calibration.fit import calibrate
from twostagegp.pipeline.held_rows import HeldRows
from twostagegp.pipeline.settings import DEFAULTS

__all__ = ["VARIANTS", "main", "measure", "place_rows", "report"]

TITLE = "# Evidence behind the constants of the calibration\n"
SETS = (*SMALL, *LARGE)
#: Tables up to this size are used whole.
WHOLE_ROWS = 2000
PART_ROWS, HELD_ROWS, HELD_SHARE = 1000, 2000, 0.2
PLACES = 10
HELD_SEED = 20240301
SCORES = ("nlpd", "crps", "qice", "coverage_50", "coverage_95")


def _local(group: str, **changed: Any) -> Variant:
    return Variant(group, settings={f"local_scale.{name}": v for name, v in changed.items()})


def _shape(group: str, **changed: Any) -> Variant:
    return Variant(group, settings={f"shape.{name}": v for name, v in changed.items()})


def _only(name: str) -> Variant:
    return _shape("shape", names=(name,))


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
    "gaussian": _only("gaussian"),
    "student": _only("student"),
    "empirical": _only("empirical"),
    "shape by the mean score": _shape("choice of the shape", standard_errors=0.0),
    "shape by 2 standard errors": _shape("choice of the shape", standard_errors=2.0),
    "half the bandwidth": _shape("smoothing", bandwidth=0.5 * DEFAULTS.shape.bandwidth),
    "twice the bandwidth": _shape("smoothing", bandwidth=2.0 * DEFAULTS.shape.bandwidth),
    "tail of 1 row": _shape("tail", tail_rows=1.0),
    "tail of 20 rows": _shape("tail", tail_rows=20.0),
}


# --- one fit -------------------------------------------------------------------------------------


def place_rows(data: RegressionData, place: int) -> tuple[Rows, Rows]:
    """Rows to fit and rows to score, both from the training rows of a fold.

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


def measure(name: str, place: int) -> Record:
    """Fit the default to a place and score all variants; what it raises becomes its error."""
    use_threads(1)
    data = load(name)
    fitted, held = place_rows(data, place)
    record: Record = {
        "set": name,
        "place": place,
        "n_train": len(fitted),
        "n_held": len(held),
        "version": twostagegp.__version__,
        "code": code_version(),
    }
    try:
        return record | {"scores": _scores(data, fitted, held, place)}
    except Exception as error:
        return record | {"error": f"{type(error).__name__}: {error}"}


def _scores(data: RegressionData, fitted: Rows, held: Rows, place: int) -> Record:
    X, y = data.X[fitted], data.y[fitted]
    model = TwoStageGPRegressor(method="exact", device="cpu", random_state=place).fit(X, y)
    rows, fit = model.fitted_.data[0], model.fitted_.fits[0]
    seed = int(check_random_state(place).randint(2**31 - 1))  # the seed of that fit
    atoms = largest_atom(data.y) > ATOM_SHARE
    scores = {}
    for name, variant in VARIANTS.items():
        options = SimpleNamespace(
            calibration="local",
            noise_floor=fit.noise_floor,
            settings=changed_settings(variant.settings),
        )
        every = HeldRows.every(rows)
        fit.calibration = calibrate(rows, every, fit.mean, fit.variance, options, seed)
        moments = model.predict(data.X[held], return_std=True)
        each = distribution_scores(model, moments, data.X[held], data.y[held], y, atoms, place)
        scores[name] = {score: each[score] for score in SCORES}
    return scores


# --- all fits ------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, then write and print the page; returns 1 if a fit failed."""
    given = _parser().parse_args(arguments)
    store = JsonLines(given.results / "calibration_defaults.jsonl", key=("set", "place"))
    page = given.results / "calibration_defaults.md"
    failed = 0
    if not given.table_only:
        done = store.done()
        wanted = [(name, place) for place in range(given.places) for name in given.sets]
        tasks = [task for task in wanted if task not in done]
        print(f"{len(wanted) - len(tasks)} of {len(wanted)} fits are there already.", flush=True)
        for name in dict.fromkeys(name for name, _ in tasks):
            load(name)  # a table that is missing should say so once, not in every fit
        workers = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(given.jobs, mp_context=workers) as pool:
            waiting = [pool.submit(measure, *task) for task in tasks]
            for count, future in enumerate(as_completed(waiting), start=1):
                record = plain(future.result())
                store.append(record)
                failed += "error" in record
                said = record.get("error", "done")
                print(f"[{count}/{len(tasks)}] {record['set']} {record['place']}: {said}")
    text = report(list(store.records().values()))
    write_whole(page, text)
    print(text)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calibration_defaults",
        description="The evidence behind the constants of the calibration.",
    )
    parser.add_argument("--sets", type=names(SETS), default=list(SETS))
    parser.add_argument("--places", type=positive, default=PLACES, help="places a table")
    parser.add_argument("--jobs", type=positive, default=1, help="fits at once, a thread each")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table-only", action="store_true", help="no fits, only the page")
    return parser


# --- the page ------------------------------------------------------------------------------------


def report(records: list[Record]) -> str:
    """The Markdown page: every variant against the default."""
    usable = [r for r in records if not r.get("error")]
    if not usable:
        return f"{TITLE}\nNo results yet.\n"
    tables = len({r["set"] for r in usable})
    text = (
        f"Mean over {tables} tables of the difference to the default, on rows held out of training "
        "rows. In brackets: tables on which a variant is better, and on which it is worse, by more "
        "than two standard errors. QICE in points; coverage: mean over the tables.\n"
    )
    parts = [TITLE, f"{provenance(usable)}\n", "## Change against the default\n", text]
    parts.append(_summary(usable))
    parts += ["## NLPD by table\n", _by_table(usable, "nlpd")]
    parts += ["## CRPS by table, per cent\n", _by_table(usable, "crps")]
    failures = [f"- {r['set']}, {r['place']}: {r['error']}\n" for r in records if r.get("error")]
    if failures:
        parts += ["## Failures\n", "".join(failures)]
    return "\n".join(parts)


def _difference(record: Record, variant: str, score: str) -> float:
    own, base = record["scores"][variant][score], record["scores"][DEFAULT][score]
    return float(100.0 * (own / base - 1.0) if score == "crps" else own - base)


def _changes(records: list[Record], variant: str, score: str) -> dict[str, tuple[float, float]]:
    """Mean difference and its standard error by table."""
    found: dict[str, tuple[float, float]] = {}
    for name in SETS:
        d = [_difference(r, variant, score) for r in records if r["set"] == name]
        if d:
            error = float(np.std(d, ddof=1) / np.sqrt(len(d))) if len(d) > 1 else np.inf
            found[name] = fmean(d), error
    return found


def _summary(records: list[Record]) -> str:
    rows = []
    for variant, described in VARIANTS.items():
        cells = [described.group, variant]
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
        for variant in VARIANTS
        if variant != DEFAULT
    ]
    return markdown_table(["variant", *there], rows)


if __name__ == "__main__":
    raise SystemExit(main())
