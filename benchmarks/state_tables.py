"""The page of two states of the source: paired comparisons of their scores and CPU seconds.

A pair is one draw of one table that both states were fitted to. Values are averaged per table
first, over its draws and numbers of rows, then over the tables, each with the same weight; standard
errors are those of the mean over tables, as the draws of one table are not independent. Ratios are
geometric means.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.states import STATES
from measurements.pages import NO_RECORDS, failures, joined, scored, standard_error
from measurements.provenance import provenance
from measurements.store import Record
from measurements.tables import MISSING, figure, markdown_table

__all__ = ["Pair", "difference", "levels", "pairs", "per_table", "ratio", "ratios", "report"]

#: How many of the worst and of the best tables are listed.
LISTED = 8
CPU = "fit_cpu_seconds"


@dataclass(frozen=True)
class Pair:
    """The records of both states for the same rows of a table."""

    before: Record
    now: Record

    @property
    def table(self) -> str:
        """The table's name."""
        return str(self.now["table"])

    @property
    def rows(self) -> int:
        """The number of training rows."""
        return int(self.now["rows"])

    def log_ratio(self, field: str) -> float | None:
        """Return log(now / before); None unless both are positive."""
        before, now = self.before.get(field), self.now.get(field)
        return math.log(now / before) if before and now and min(before, now) > 0.0 else None

    def difference(self, field: str) -> float | None:
        """Return now - before; None unless both are numbers."""
        before, now = self.before.get(field), self.now.get(field)
        return None if before is None or now is None else now - before


Value = Callable[[Pair], float | None]


def pairs(records: Iterable[Record]) -> list[Pair]:
    """Return the pairs of records without an error, ordered by rows, table and draw."""
    found: dict[tuple[int, str, int], dict[str, Record]] = defaultdict(dict)
    for r in scored(records):
        found[r["rows"], r["table"], r["draw"]][r["state"]] = r
    return [Pair(**both) for _, both in sorted(found.items()) if len(both) == len(STATES)]


def report(records: list[Record]) -> str:
    """Return the page in Markdown."""
    title, found = "# Scores and CPU seconds of two states of the source", pairs(records)
    failed = failures(records, ("state", "table", "rows", "draw"))
    if not found:
        return joined(title, NO_RECORDS, *failed)
    origins = [
        f"- {state}: {provenance([r for r in scored(records) if r['state'] == state])}"
        for state in STATES
    ]
    return joined(
        title,
        "\n".join(origins),
        f"Default settings, one thread; {len(found)} draws of {_n_tables(found)} tables were "
        "fitted with both states. Values are averaged per table first; ± is the standard error of "
        "the mean over tables.",
        "## Now against before",
        "Geometric means of now / before, and mean differences of the NLPD in nats (now − before): "
        "of the Gaussian with the model's mean and standard deviation, and of the model's own "
        "density. Below 1 and below 0 the new state is better.",
        ratios(found),
        "## Both states",
        "Before → now. RMSE and CRPS in units of the target's standard deviation; the share of "
        "outcomes inside the 80, 95 and 99 % intervals.",
        levels(found),
        "## Worst and best tables by CRPS",
        f"Of all tables and numbers of rows, the {LISTED} with the highest and the {LISTED} with "
        "the lowest ratio of the CRPS, mean over draws.",
        _extremes(found),
        *failed,
    )


def _by_rows(found: Sequence[Pair]) -> Mapping[str, list[Pair]]:
    sizes = sorted({pair.rows for pair in found})
    each = {f"{rows:,}": [pair for pair in found if pair.rows == rows] for rows in sizes}
    return {**each, "all": list(found)}


def _n_tables(found: Iterable[Pair]) -> int:
    return len({pair.table for pair in found})


def per_table(found: Iterable[Pair], value: Value) -> list[float]:
    """Return the mean of a value per table."""
    grouped: dict[str, list[float]] = defaultdict(list)
    for pair in found:
        if (number := value(pair)) is not None:
            grouped[pair.table].append(number)
    return [fmean(numbers) for numbers in grouped.values()]


def ratio(found: Iterable[Pair], field: str) -> str:
    """Return a geometric mean ± its standard error."""
    logs = per_table(found, lambda pair: pair.log_ratio(field))
    if not logs:
        return MISSING
    ratio = math.exp(fmean(logs))
    return f"{ratio:.3f} ± {ratio * standard_error(logs):.3f}"


def difference(found: Iterable[Pair], field: str) -> str:
    """Return a mean difference ± its standard error."""
    values = per_table(found, lambda pair: pair.difference(field))
    return f"{fmean(values):+.3f} ± {standard_error(values):.3f}" if values else MISSING


def ratios(found: Sequence[Pair]) -> str:
    """Return the table of now / before and now - before, per number of rows."""
    header = ["rows", "tables", "draws", "RMSE", "CRPS", "NLPD", "NLPD, own density", "CPU seconds"]
    rows = [
        [
            size,
            str(_n_tables(here)),
            str(len(here)),
            ratio(here, "rmse"),
            ratio(here, "crps"),
            difference(here, "nlpd_standardized"),
            difference(here, "nlpd_own"),
            ratio(here, CPU),
        ]
        for size, here in _by_rows(found).items()
    ]
    return markdown_table(header, rows)


def levels(found: Sequence[Pair]) -> str:
    """Return the table of both states' scores, per number of rows."""
    scores: Mapping[str, Callable[[Record], float | None]] = {
        "RMSE / sd": lambda r: r["rmse"] / r["target_sd"],
        "CRPS / sd": lambda r: r["crps"] / r["target_sd"],
        "NLPD": lambda r: r["nlpd_standardized"],
        "80 %": lambda r: r["coverage_80"],
        "95 %": lambda r: r["coverage_95"],
        "99 %": lambda r: r["coverage_99"],
        "CPU seconds per fit": lambda r: r[CPU],
    }
    rows = [
        [size, *(_before_and_now(here, score) for score in scores.values())]
        for size, here in _by_rows(found).items()
    ]
    return markdown_table(["rows", *scores], rows)


def _before_and_now(found: Sequence[Pair], score: Callable[[Record], float | None]) -> str:
    before = per_table(found, lambda pair: score(pair.before))
    now = per_table(found, lambda pair: score(pair.now))
    return f"{figure(fmean(before))} → {figure(fmean(now))}" if before and now else MISSING


def _extremes(found: Sequence[Pair]) -> str:
    grouped: dict[tuple[str, int], list[Pair]] = defaultdict(list)
    for pair in found:
        grouped[pair.table, pair.rows].append(pair)
    logs = {key: per_table(group, lambda p: p.log_ratio("crps")) for key, group in grouped.items()}
    ranked = sorted((key for key in logs if logs[key]), key=lambda key: -logs[key][0])
    shown = list(dict.fromkeys([*ranked[:LISTED], *ranked[-LISTED:]]))
    rows = []
    for table, size in shown:
        here = grouped[table, size]
        both = [_one_ratio(here, field) for field in ("crps", "rmse")]
        nlpd = per_table(here, lambda pair: pair.difference("nlpd_standardized"))
        cpu = _one_ratio(here, CPU)
        difference = f"{nlpd[0]:+.3f}" if nlpd else MISSING
        rows.append([table, f"{size:,}", str(len(here)), *both, difference, cpu])
    return markdown_table(["table", "rows", "draws", "CRPS", "RMSE", "NLPD", "CPU seconds"], rows)


def _one_ratio(found: Sequence[Pair], field: str) -> str:
    logs = per_table(found, lambda pair: pair.log_ratio(field))
    return f"{math.exp(logs[0]):.3f}" if logs else MISSING
