"""The page of :mod:`benchmarks.reliability`: how often each model failed, how, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

from benchmarks.hard_tables import TABLES
from benchmarks.reliability_models import LABELS
from measurements.pages import joined
from measurements.provenance import provenance
from measurements.store import Record
from measurements.tables import figure, markdown_table

__all__ = ["LOW", "OUTCOMES", "failed", "report"]

#: Coverage of a 95 % interval below this counts as a failure.
LOW = 0.8


def ended(record: Record) -> str | None:
    """Return how the process of a fit was ended; older records say so under another name."""
    return record.get("error") or record.get("ended")


#: A fit may fail in several of these ways; after an exception or a forced end only that counts.
OUTCOMES: Mapping[str, Callable[[Record], bool]] = {
    "exception": lambda r: "exception" in r,
    "ended by force": lambda r: bool(ended(r)),
    "NaN or infinite": lambda r: r.get("not_finite", 0) > 0,
    "variance ≤ 0": lambda r: r.get("not_positive", 0) > 0,
    f"coverage < {LOW:.0%}": lambda r: (
        r.get("judged", False) and "coverage" in r and (r["coverage"] or 0.0) < LOW
    ),
}


def report(records: Sequence[Record]) -> str:
    """Return the Markdown page of the tables that were run."""
    records = [r for r in records if r["set"] in TABLES]
    models = [name for name in LABELS if any(r["model"] == name for r in records)]
    models += sorted({r["model"] for r in records} - set(models))
    by_model = {name: [r for r in records if r["model"] == name] for name in models}
    return joined(
        "# Hard tables",
        _about(records),
        "## Failures",
        _failures(by_model),
        "## Failures by table",
        _by_table(by_model),
        "## What was raised",
        _messages(by_model),
    )


def _about(records: Sequence[Record]) -> str:
    tables = {r["set"] for r in records}
    ours = [r for r in records if r.get("code")]
    versions = sorted({r["version"] for r in records if r.get("version") and not r.get("code")})
    return (
        f"{len(records)} fits, {len(tables)} tables, {len({r['fold'] for r in records})} seeds. "
        f"Ours: {provenance(ours) if ours else 'none'} Theirs: {', '.join(versions) or 'none'}."
    )


def failed(record: Record) -> bool:
    """Return whether a fit went wrong in any way."""
    return any(is_so(record) for is_so in OUTCOMES.values())


def _failures(by_model: Mapping[str, Sequence[Record]]) -> str:
    header = ["model", "fits", *OUTCOMES, "any", "mean coverage", "median width"]
    header += ["CPU seconds per fit"]
    rows = []
    for name, records in by_model.items():
        judged = [r["coverage"] or 0.0 for r in records if r.get("judged") and "coverage" in r]
        width = [r["width"] for r in records if r.get("judged") and r.get("width") is not None]
        seconds = [r["fit_cpu"] for r in records if "fit_cpu" in r]
        rows.append(
            [
                name,
                str(len(records)),
                *(str(sum(is_so(r) for r in records)) for is_so in OUTCOMES.values()),
                str(sum(failed(r) for r in records)),
                figure(fmean(judged)) if judged else "–",
                figure(median(width)) if width else "–",
                figure(fmean(seconds)) if seconds else "–",
            ]
        )
    labels = "\n".join(f"- `{name}`: {LABELS.get(name, name)}" for name in by_model)
    return joined(markdown_table(header, rows), labels)


def _by_table(by_model: Mapping[str, Sequence[Record]]) -> str:
    """Return the tables on which some model failed: in how many fits, and how."""
    names = list(dict.fromkeys(r["set"] for records in by_model.values() for r in records))
    rows = []
    for name in names:
        cells = [_cell([r for r in records if r["set"] == name]) for records in by_model.values()]
        if any(cells):
            rows.append([name, *cells])
    return markdown_table(["table", *by_model], rows)


_SHORT = dict(zip(OUTCOMES, ("raised", "ended", "NaN", "var ≤ 0", "coverage"), strict=True))


def _cell(records: Sequence[Record]) -> str:
    counts = {way: sum(is_so(r) for r in records) for way, is_so in OUTCOMES.items()}
    words = []
    for way, count in counts.items():
        if count:
            low = ""
            if way.startswith("coverage"):
                low = f" {min(r['coverage'] or 0.0 for r in records if 'coverage' in r):.2f}"
            words.append(f"{_SHORT[way]}{low} ×{count}")
    return ", ".join(words)


def _messages(by_model: Mapping[str, Sequence[Record]]) -> str:
    lines = []
    for name, records in by_model.items():
        said = Counter(r.get("exception") or ended(r) for r in records)
        del said[None]
        lines += [f"- `{name}`, {count} times: {text}" for text, count in said.most_common(8)]
    return "\n".join(lines) or "Nothing."
