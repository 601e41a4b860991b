"""The page and the picture of few training rows.

Values are averaged per table first, over its draws, then over the tables, each with the same
weight; standard errors are those of the mean over tables. Comparisons are pairs of fits to the same
draw (:class:`benchmarks.state_tables.Pair`).
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median
from typing import Any

from benchmarks.known_laws import LAWS
from benchmarks.many_tables import TABLES
from benchmarks.scores import COVERED
from benchmarks.small_models import MODELS, OURS, OURS_TABPFN, TABPFN
from benchmarks.state_tables import Pair, difference, per_table, ratio
from measurements.pages import NO_RECORDS, joined, scored, values
from measurements.provenance import provenance
from measurements.store import Record
from measurements.tables import MISSING, figure, markdown_table

__all__ = ["against", "log_ratios", "mean_over_tables", "pairs", "picture", "report"]

PICTURE = "small_tables.svg"
#: A table counts as one of false promises if its 95 % intervals cover less than this.
TOO_LOW = 0.90
CPU = "fit_cpu_seconds"


def report(records: list[Record]) -> str:
    """Return the page in Markdown."""
    title, fine = "# Few training rows", scored(records)
    failed = _failures(records)
    if not fine:
        return joined(title, NO_RECORDS, failed)
    ours = [r for r in fine if r["model"] == OURS]
    return joined(
        title,
        f"Ours: {provenance(ours) if ours else NO_RECORDS} Other libraries: "
        f"{len(fine) - len(ours):,} fits.",
        "Default settings, one thread, random training rows, at most 1,000 test rows. Scores are "
        "in units of the standard deviation of the table's target. Values are averaged per table "
        "first, then over tables; ± is the standard error of the mean over tables.",
        f"![Coverage and CRPS on the public tables by training rows]({PICTURE})",
        *_in_short(_public(fine)),
        "## Models",
        _model_list(fine),
        "## Coverage",
        "Share of the outcomes inside central intervals, mean over the public tables; the last "
        f"columns are the tables whose 95 % intervals cover less than {100 * TOO_LOW:.0f} %, and "
        "the lowest coverage of a table. Fifty rows cannot vouch for a conformal interval of more "
        "than 96 %: it ends at the outermost residual.",
        _coverage(_public(fine)),
        "## Against other libraries",
        "Ours against the library's on the public tables, for the draws that both were fitted to: "
        "geometric means of ours / theirs, below 1 ours is better (width: ours are narrower); "
        "differences of the NLPD in nats, below 0 ours is better: of the Gaussian with the model's "
        "mean and standard deviation, and of the model's own density; medians over tables beside "
        "two of them, as a table without noise weighs much in a mean. Where ours has levels of the "
        "target, its own density is a probability there and cannot be compared with the "
        "others'. *Wins*: tables with a lower "
        "CRPS of ours.",
        _comparison(_public(fine)),
        *_with_tabpfn(_public(fine)),
        "## Coverage on generated tables",
        "As above, for the tables whose law is known.",
        _coverage(_generated(fine)),
        "## Against other libraries on generated tables",
        "As above, for the tables whose law is known.",
        _comparison(_generated(fine)),
        "## CRPS by table",
        "Geometric mean of ours / theirs over draws and sizes, in brackets the number of fits.",
        _by_table(fine),
        "## Coverage of our 95 % intervals by table",
        "Mean over draws, by training rows; the last five tables are generated.",
        _own_coverage(ours),
        "## CPU seconds",
        "Of a fit, mean over tables, by training rows.",
        _seconds(fine),
        failed,
    )


def mean_over_tables(records: Iterable[Record], field: str) -> float | None:
    """Return the mean over tables of a score's mean over draws; None without records."""
    means = list(_table_means(records, field).values())
    return fmean(means) if means else None


def _table_means(records: Iterable[Record], field: str) -> dict[str, float]:
    grouped: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if record.get(field) is not None:
            grouped[record["table"]].append(record[field])
    return {table: fmean(numbers) for table, numbers in grouped.items()}


def pairs(records: Iterable[Record], peer: str, ours: str = OURS) -> list[Pair]:
    """Return ours and a peer's records of the same draws; ``now`` is ours."""
    found: dict[tuple[str, int, int], dict[str, Record]] = defaultdict(dict)
    for r in scored(records):
        if r["model"] in (ours, peer):
            found[r["table"], r["rows"], r["draw"]][r["model"]] = r
    return [
        Pair(before=both[peer], now=both[ours])
        for _, both in sorted(found.items())
        if len(both) == 2
    ]


def log_ratios(found: Iterable[Pair], field: str) -> list[float]:
    """Return the mean log of ours / theirs per table."""
    return per_table(found, lambda pair: pair.log_ratio(field))


def _public(records: Sequence[Record]) -> list[Record]:
    return [r for r in records if r["table"] not in LAWS]


def _generated(records: Sequence[Record]) -> list[Record]:
    return [r for r in records if r["table"] in LAWS]


def _sizes(records: Iterable[Record]) -> list[int]:
    return sorted({int(r["rows"]) for r in records})


def _models(records: Sequence[Record]) -> list[str]:
    return [model for model in MODELS if any(r["model"] == model for r in records)]


def _groups(records: Sequence[Record]) -> Iterable[tuple[int, str, list[Record]]]:
    """Yield size, model and records, where there are any."""
    for rows in _sizes(records):
        for model in _models(records):
            here = [r for r in records if r["rows"] == rows and r["model"] == model]
            if here:
                yield rows, model, here


def _model_list(records: Sequence[Record]) -> str:
    lines = []
    for model in _models(records):
        here = [r for r in records if r["model"] == model]
        packages = ", ".join(sorted({str(r["package"]) for r in here}))
        known = MODELS[model]
        lines.append(f"- **{known.name}** ({packages}): {known.model.label}; {len(here):,} fits")
    return "\n".join(lines)


def _coverage(records: Sequence[Record]) -> str:
    levels = [f"{100 * level:.0f}" for level in COVERED]
    header = ["rows", "model", "tables", *(f"{level} %" for level in levels)]
    header += [f"below {100 * TOO_LOW:.0f} %", "lowest"]
    lines = []
    for rows, model, here in _groups(records):
        tables = _table_means(here, "coverage_95")
        low = sum(value < TOO_LOW for value in tables.values())
        worst = min(tables, key=lambda name: tables[name])
        lines.append(
            [
                f"{rows:,}",
                MODELS[model].name,
                str(len(tables)),
                *(_percent(mean_over_tables(here, f"coverage_{level}")) for level in levels),
                str(low),
                f"{_percent(tables[worst])} ({worst})",
            ]
        )
    return markdown_table(header, lines) if lines else NO_RECORDS


def _percent(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:.1f}"


def against(found: Sequence[Pair]) -> list[str]:
    """Return the columns of a comparison: ratios, medians, wins and differences."""
    logs = log_ratios(found, "crps")
    nlpd = per_table(found, lambda pair: pair.difference("nlpd"))
    return [
        str(len(logs)),
        str(len(found)),
        ratio(found, "rmse"),
        ratio(found, "crps"),
        f"{math.exp(median(logs)):.3f}" if logs else MISSING,
        f"{sum(value < 0.0 for value in logs)} of {len(logs)}",
        difference(found, "nlpd"),
        f"{median(nlpd):+.3f}" if nlpd else MISSING,
        difference(found, "nlpd_own"),
        ratio(found, "interval_score_95"),
        ratio(found, "interval_width_95"),
        ratio(found, CPU),
    ]


def _comparison(records: Sequence[Record]) -> str:
    found = _against(records, OURS, [m for m in _models(records) if m not in (OURS, OURS_TABPFN)])
    return found or "No draw has fits of ours and of a library."


def _in_short(records: Sequence[Record]) -> list[str]:
    """Return a small table of all sizes together, for the first page."""
    lines = []
    for model in _models(records):
        found = pairs(records, model)
        logs = log_ratios(found, "crps")
        if model in (OURS, OURS_TABPFN) or not logs:
            continue
        wins = sum(value < 0.0 for value in logs)
        middle = f"{math.exp(median(logs)):.3f}"
        lines.append(
            [
                MODELS[model].name,
                str(len(found)),
                ratio(found, "crps"),
                middle,
                f"{wins} of {len(logs)}",
                ratio(found, "rmse"),
                ratio(found, "interval_score_95"),
            ]
        )
    if not lines:
        return []
    text = (
        "Ours / theirs on the public tables, 50 to 1,000 training rows, default settings: "
        "geometric means over tables, below 1 ours is better. *Wins*: tables with a lower CRPS of "
        "ours."
    )
    header = ["against", "draws", "CRPS", "median", "wins", "RMSE", "interval score (95 %)"]
    return ["## In short", text, markdown_table(header, lines)]


def _with_tabpfn(records: Sequence[Record]) -> list[str]:
    """Return the section on our stack with TabPFN as a member, if it was run."""
    found = _against(records, OURS_TABPFN, [OURS, TABPFN])
    if not found:
        return []
    text = (
        '`mean=["stack", "tabpfn"]` against our default and against TabPFN itself, as above; below '
        "1 the stack with TabPFN is better."
    )
    return ["## With TabPFN in the stack", text, found]


def _against(records: Sequence[Record], ours: str, others: Sequence[str]) -> str:
    """Return the table that compares a model of ours with others; empty without common draws."""
    header = ["rows", "library", "tables", "draws", "RMSE", "CRPS", "median", "wins"]
    header += ["NLPD", "median", "NLPD, own density", "interval score", "width", "CPU seconds"]
    lines = []
    for size in [*_sizes(records), None]:
        for model in others:
            found = [p for p in pairs(records, model, ours) if size in (None, p.rows)]
            if found:
                rows = "all" if size is None else f"{size:,}"
                lines.append([rows, MODELS[model].name, *against(found)])
    return markdown_table(header, lines) if lines else ""


def _by_table(records: Sequence[Record]) -> str:
    peers = [model for model in _models(records) if model != OURS]
    found = {model: pairs(records, model) for model in peers}
    lines = []
    for table in _tables(records):
        cells = []
        for model in peers:
            here = [pair for pair in found[model] if pair.table == table]
            logs = log_ratios(here, "crps")
            cells.append(f"{math.exp(logs[0]):.3f} ({len(here)})" if logs else MISSING)
        if any(cell != MISSING for cell in cells):
            lines.append([table, *cells])
    names = [MODELS[model].name for model in peers]
    return markdown_table(["table", *names], lines) if lines else NO_RECORDS


def _tables(records: Iterable[Record]) -> list[str]:
    there = {r["table"] for r in records}
    return [table for table in (*TABLES, *LAWS) if table in there]


def _own_coverage(ours: Sequence[Record]) -> str:
    if not ours:
        return NO_RECORDS
    sizes = _sizes(ours)
    lines = [
        [table, *(_percent(mean_over_tables(here, "coverage_95")) for here in by_size)]
        for table in _tables(ours)
        for by_size in [
            [[r for r in ours if (r["table"], r["rows"]) == (table, rows)] for rows in sizes]
        ]
    ]
    return markdown_table(["table", *(f"{rows:,}" for rows in sizes)], lines)


def _seconds(records: Sequence[Record]) -> str:
    sizes = _sizes(records)
    lines = [
        [
            MODELS[model].name,
            *(
                figure(
                    mean_over_tables(
                        [r for r in records if (r["model"], r["rows"]) == (model, rows)], CPU
                    )
                )
                for rows in sizes
            ),
        ]
        for model in _models(records)
    ]
    return markdown_table(["model", *(f"{rows:,}" for rows in sizes)], lines)


def _failures(records: Iterable[Record]) -> str:
    """Return a section with the number of failed fits by model, error and table."""
    found: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.get("error"):
            kind = re.sub(r"[\d.]+", "…", str(record["error"]))
            found[record["model"], kind].append(record)
    lines = [
        f"- {MODELS[model].name}: {kind}: {_counts(failed)}"
        for (model, kind), failed in sorted(found.items())
    ]
    return joined("## Fits that failed", "\n".join(lines)) if lines else ""


def _counts(records: Iterable[Record]) -> str:
    return ", ".join(f"{name} {n}" for name, n in Counter(r["table"] for r in records).items())


# --- picture -------------------------------------------------------------------------------------


def picture(records: list[Record]) -> str | None:
    """Draw coverage and the ratio of the CRPS on the public tables against rows, as SVG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from measurements.figures import svg

    fine = scored(records)
    fine = _public(fine) or fine
    if not fine:
        return None
    drawn: Any = Figure(figsize=(11.0, 3.8))
    axes = drawn.subplots(1, 3)
    colours = mpl.colormaps["tab10"].colors
    panels: list[tuple[str, float, Callable[[str, int], float | None]]] = [
        ("coverage of 95 % intervals", 0.95, lambda m, n: _mean_of(fine, m, n, "coverage_95")),
        ("coverage of 99 % intervals", 0.99, lambda m, n: _mean_of(fine, m, n, "coverage_99")),
        ("CRPS, ours / theirs", 1.0, lambda m, n: _crps_ratio(fine, m, n)),
    ]
    for axis, (title, ideal, value) in zip(axes, panels, strict=True):
        axis.axhline(ideal, color="0.5", linewidth=1.0, linestyle="--")
        for k, model in enumerate(MODELS):
            points = [(rows, found) for rows in _sizes(fine) if (found := value(model, rows))]
            if points:
                width = 2.4 if model == OURS else 1.2
                axis.plot(*zip(*points, strict=True), "o-", color=colours[k], linewidth=width,
                          markersize=3.5, label=MODELS[model].name)  # fmt: skip
        axis.set_xscale("log")
        axis.set_xticks(_sizes(fine), [f"{rows:,}" for rows in _sizes(fine)])
        axis.minorticks_off()
        axis.set_xlabel("training rows")
        axis.set_title(title, loc="left", fontsize=10)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    drawn.subplots_adjust(bottom=0.3, wspace=0.25)
    return svg(drawn)


def _mean_of(records: Sequence[Record], model: str, rows: int, field: str) -> float | None:
    here = [r for r in records if (r["model"], r["rows"]) == (model, rows)]
    return mean_over_tables(here, field) if values(here, field) else None


def _crps_ratio(records: Sequence[Record], model: str, rows: int) -> float | None:
    if model == OURS:
        return None
    logs = log_ratios([p for p in pairs(records, model) if p.rows == rows], "crps")
    return math.exp(fmean(logs)) if logs else None
