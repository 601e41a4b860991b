"""The page of :mod:`benchmarks.everyday`: seconds and scores by rows, cores and single rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from benchmarks.peers import MODELS, OURS
from measurements.pages import NO_RECORDS, failures, joined, scored, values
from measurements.provenance import provenance
from measurements.store import Record
from measurements.tables import MISSING, figure, markdown_table

__all__ = ["MOST_ROWS", "NAME", "report"]

#: Our default by the name that it has among the models.
NAME = "ours_auto"
#: Up to so many cores in use by other programs a machine counts as idle.
IDLE = 0.2
#: The most rows that an exact Gaussian process of another library is given.
MOST_ROWS: Mapping[str, int] = {
    "sklearn_gpr": 2_000,
    "sklearn_matern": 2_000,
    "gpytorch_rbf": 5_000,
    "gpytorch_matern": 5_000,
}
#: Why it is not given more.
REASONS: Mapping[str, str] = {
    "sklearn_gpr": "it holds one n × n matrix per parameter and restarts its search",
    "sklearn_matern": "it holds one n × n matrix per parameter and restarts its search",
    "gpytorch_rbf": "it factorises an n × n matrix in each of its 150 steps",
    "gpytorch_matern": "it factorises an n × n matrix in each of its 150 steps",
}
LABELS: Mapping[str, str] = {
    NAME: "twostagegp",
    "sklearn_gpr": "scikit-learn GPR",
    "gpytorch_matern": "GPyTorch exact",
    "gpboost": "GPBoost",
    "lightgbm": "LightGBM, conformal",
    "catboost_uncertainty": "CatBoost",
}


def report(records: list[Record]) -> str:
    """Return the page in Markdown."""
    fine, title = scored(records), "# Tables of everyday sizes"
    ours = [r for r in fine if r["model"] in OURS]
    sections: list[str] = []
    for name, body in SECTIONS.items():
        text = body([r for r in records if r["part"] == name])
        sections += [text] if text else []
    return joined(
        title,
        provenance(ours) if ours else NO_RECORDS,
        _other_load(fine),
        _model_list(fine),
        *sections,
        *failures(records, ("part", "model", "set", "rows", "draw", "cores")),
    )


def _other_load(records: Sequence[Record]) -> str:
    """Return a warning if the machine was not idle when something was measured."""
    used = values(records, "cores_in_use")
    disturbed = sum(number > IDLE for number in used)
    if not disturbed:
        return ""
    return (
        f"**The machine was not idle**: before {disturbed} of {len(used)} measurements other "
        f"programs used more than {IDLE:g} cores, at most {max(used):.1f}."
    )


def _model_list(records: Sequence[Record]) -> str:
    used = [model for model in MODELS if any(r["model"] == model for r in records)]
    lines = []
    for model in used:
        packages = sorted({str(r["package"]) for r in records if r["model"] == model} - {"None"})
        version = "" if model in OURS or not packages else f" ({', '.join(packages)})"
        lines.append(f"- {_label(model)}: {MODELS[model].label}{version}")
    return "\n".join(lines)


def _label(model: str) -> str:
    return LABELS.get(model, model)


# --- fits ----------------------------------------------------------------------------------------


class _Fits:
    """The records of the fits, by table, rows and model."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = list(records)
        self.sets = list(dict.fromkeys(r["set"] for r in self.records))
        self.rows = sorted({r["rows"] for r in self.records})
        self.models = [m for m in MODELS if any(r["model"] == m for r in self.records)]
        self.threads = sorted({r["cores"] for r in self.records})

    def of(
        self, model: str, name: str, rows: int, threads: int | None = None, failed: bool = False
    ) -> list[Record]:
        """Return the records of a model on a table: those with scores, or the failed ones."""
        return [
            r
            for r in self.records
            if (r["model"], r["set"], r["rows"]) == (model, name, rows)
            and threads in (None, r["cores"])
            and bool(r.get("error")) is failed
        ]

    def mean(
        self, value: str, model: str, name: str, rows: int, threads: int | None = None
    ) -> float | None:
        """Return the mean of a field over the draws; None if no record has it."""
        numbers = values(map(_with_totals, self.of(model, name, rows, threads)), value)
        return fmean(numbers) if numbers else None


def _with_totals(record: Record) -> Record:
    """Return a record with the seconds of fit and prediction together."""
    both = {k: record[f"fit_{k}"] + record[f"predict_{k}"] for k in ("wall", "cpu")}
    return {**record, **both}


def _fit_sections(records: list[Record]) -> str:
    fits = _Fits(records)
    if not scored(fits.records):
        return ""
    blocks = [_summary(fits)]
    for name in fits.sets:
        blocks += [f"## Fits to {name}", _set_table(fits, name)]
    return joined(
        *blocks,
        _not_run(fits),
    )


def _summary(fits: _Fits) -> str:
    """Return every other model divided by ours, geometric means over the tables."""
    peers = [model for model in fits.models if model != NAME]
    threads = [f"{n} thread{'s' * (n > 1)}" for n in fits.threads]
    header = ["rows", "model", "tables", *(f"s, {n}" for n in threads)]
    header += [*(f"CPU s, {n}" for n in threads), "CRPS", "NLPD"]
    lines = []
    for rows in fits.rows:
        for peer in peers:
            both = [s for s in fits.sets if fits.of(peer, s, rows) and fits.of(NAME, s, rows)]
            ratios = [
                _ratio(fits, field, peer, both, rows, n)
                for field in ("wall", "cpu")
                for n in fits.threads
            ]
            if both:
                crps = _ratio(fits, "crps", peer, both, rows)
                nlpd = _difference(fits, "nlpd", peer, both, rows)
                lines.append([f"{rows:,}", _label(peer), str(len(both)), *ratios, crps, nlpd])
    if not lines:
        return ""
    words = (
        "The other library's figure divided by ours, geometric mean over the tables: seconds and "
        "CPU seconds of a fit and 1,000 predictions, CRPS; for the NLPD, the mean difference, "
        "theirs − ours. Above 1, and above 0, ours is faster or more accurate."
    )
    return joined("## Other libraries against ours", words, markdown_table(header, lines))


def _paired(
    fits: _Fits, field: str, peer: str, sets: Sequence[str], rows: int, threads: int | None
) -> list[tuple[float, float]]:
    found = []
    for name in sets:
        theirs = fits.mean(field, peer, name, rows, threads)
        ours = fits.mean(field, NAME, name, rows, threads)
        if theirs is not None and ours is not None:
            found.append((theirs, ours))
    return found


def _ratio(
    fits: _Fits, field: str, peer: str, sets: Sequence[str], rows: int, threads: int | None = None
) -> str:
    both = [(a, b) for a, b in _paired(fits, field, peer, sets, rows, threads) if min(a, b) > 0.0]
    return figure(math.exp(fmean(math.log(a / b) for a, b in both))) if both else MISSING


def _difference(fits: _Fits, field: str, peer: str, sets: Sequence[str], rows: int) -> str:
    both = _paired(fits, field, peer, sets, rows, None)
    return f"{fmean(a - b for a, b in both):+.3f}" if both else MISSING


def _set_table(fits: _Fits, name: str) -> str:
    columns = {"fit, s": "fit_wall", "1,000 predictions, s": "predict_wall", "CPU s": "cpu"}
    header = ["rows", "model", "draws"]
    header += [f"{title} ({n})" for n in fits.threads for title in columns]
    lines = []
    for rows in fits.rows:
        models = [m for m in fits.models if _has(fits, m, name, rows)]
        best = {
            field: min(
                (v for m in models if (v := fits.mean(field, m, name, rows)) is not None),
                default=None,
            )
            for field in ("nlpd", "crps")
        }
        for model in models:
            draws = {r["draw"] for r in fits.of(model, name, rows)}
            seconds = [
                _seconds(fits, field, model, name, rows, n)
                for n in fits.threads
                for field in columns.values()
            ]
            scores = [_score(fits.mean(f, model, name, rows), best[f]) for f in best]
            lines.append([f"{rows:,}", _label(model), str(len(draws)), *seconds, *scores])
    words = (
        "Default settings; in brackets the number of threads, and of cores that the process may "
        "use. *CPU s*: of fit and predictions together. NLPD and CRPS of the Gaussian with the "
        "model's mean and standard deviation, target standardised; mean over the draws, the best "
        "in bold."
    )
    return joined(words, markdown_table([*header, "NLPD", "CRPS"], lines))


def _has(fits: _Fits, model: str, name: str, rows: int) -> bool:
    """Return whether a table shows a line: also for a model that failed or was not run there."""
    ran = fits.of(model, name, rows) or fits.of(model, name, rows, failed=True)
    return bool(ran) or (
        rows > MOST_ROWS.get(model, rows) and any(fits.of(m, name, rows) for m in fits.models)
    )


def _seconds(fits: _Fits, field: str, model: str, name: str, rows: int, threads: int) -> str:
    mean = fits.mean(field, model, name, rows, threads)
    if mean is not None:
        return figure(mean)
    failed = fits.of(model, name, rows, threads, failed=True)
    if not failed or field != "fit_wall":
        return MISSING
    error = str(failed[0]["error"])
    return next((word for word in ("time limit", "diverged") if error.startswith(word)), "failed")


def _score(mean: float | None, best: float | None) -> str:
    return f"**{figure(mean)}**" if mean is not None and mean == best else figure(mean)


def _not_run(fits: _Fits) -> str:
    lines = [
        f"- {_label(m)}: not run above {most:,} rows, as {REASONS[m]}."
        for m, most in MOST_ROWS.items()
        if m in fits.models and max(fits.rows) > most
    ]
    return joined(f"{MISSING} means not run:", "\n".join(lines)) if lines else ""


# --- cores ---------------------------------------------------------------------------------------


def _cores_section(records: list[Record]) -> str:
    fine = scored(records)
    blocks = []
    for machine in sorted({r["machine_cores"] for r in fine}):
        own = [r for r in fine if r["machine_cores"] == machine]
        blocks += [f"On a machine with {machine} cores:", _cores_table(own)]
    if not blocks:
        return ""
    words = (
        "Our default with its default number of threads, in a process that may use only so many "
        "cores; the generated table. *Idle*: no other work of this benchmark. *Busy*: one process "
        "per core runs an endless loop on that core, so that a single thread gets half a core and "
        "takes twice as long."
    )
    return joined("## By cores", words, *blocks)


def _cores_table(records: Sequence[Record]) -> str:
    header = ["rows", "method", "cores", "fit, s", "CPU s", "fit, s / that on one core"]
    header += ["busy: fit, s", "busy: CPU s", "busy / idle"]
    lines = []
    for rows in sorted({r["rows"] for r in records}):
        here = [r for r in records if r["rows"] == rows]
        one = _mean(here, "fit_wall", 1, busy=False)
        for cores in sorted({r["cores"] for r in here}):
            idle, busy = (_mean(here, "fit_wall", cores, busy=state) for state in (False, True))
            cpu = [figure(_mean(here, "fit_cpu", cores, busy=state)) for state in (False, True)]
            method = ", ".join(sorted({str(r["method"]) for r in here if r["cores"] == cores}))
            lines.append(
                [
                    *(f"{rows:,}", method, str(cores), figure(idle), cpu[0]),
                    *(_quotient(idle, one), figure(busy), cpu[1], _quotient(busy, idle)),
                ]
            )
    return markdown_table(header, lines)


def _mean(records: Iterable[Record], field: str, cores: int, busy: bool) -> float | None:
    numbers = [r[field] for r in records if (r["cores"], r["busy"]) == (cores, busy)]
    return fmean(numbers) if numbers else None


def _quotient(a: float | None, b: float | None) -> str:
    return MISSING if a is None or not b else figure(a / b)


# --- single rows ---------------------------------------------------------------------------------


def _latency_section(records: list[Record]) -> str:
    header = ["rows", "model", "method", "call", "p50, ms", "p99, ms"]
    header += ["busy: p50, ms", "busy: p99, ms"]
    lines = [
        [
            *(f"{r['rows']:,}", _label(r["model"]), r.get("method") or MISSING, call),
            *(figure(number) for state in ("idle_ms", "busy_ms") for number in r[state][call]),
        ]
        for r in sorted(scored(records), key=lambda r: r["rows"])
        for call in r["idle_ms"]
    ]
    if not lines:
        return ""
    calls = ", ".join(str(n) for n in sorted({r["calls"] for r in scored(records)}))
    words = (
        f"Milliseconds per call for a single row, median and 99th percentile of {calls} calls in "
        "a row. *Busy*: one process runs an endless loop on each core of the machine."
    )
    return joined("## One row at a time", words, markdown_table(header, lines))


# --- predicted seconds ---------------------------------------------------------------------------


def _foretold_section(records: list[Record]) -> str:
    known = [r for r in scored(records) if r.get("foretold_seconds")]
    if not known:
        return ""
    header = ["rows", "table", "method", "threads", "fits", "predicted, s", "took, s"]
    lines = []
    keys = sorted({(r["rows"], r["set"], str(r["method"]), r["cores"]) for r in known})
    for key in keys:
        here = [r for r in known if (r["rows"], r["set"], str(r["method"]), r["cores"]) == key]
        rows, name, method, threads = key
        fields = ("foretold_seconds", "fit_wall", "fit_cpu")
        foretold, took, cpu = (fmean(r[field] for r in here) for field in fields)
        counts = [str(threads), str(len(here))]
        line = [f"{rows:,}", name, method, *counts, figure(foretold), figure(took)]
        lines.append([*line, figure(took / foretold), figure(cpu)])
    words = (
        "Seconds that `fit_report_` predicted before the fit, which assumes that the cores are "
        "free, and those that it took, with its CPU seconds; means over the draws."
    )
    table = markdown_table([*header, "took / predicted", "CPU, s"], lines)
    return joined("## Predicted seconds of a fit", words, table)


def _fits_and_foretold(records: list[Record]) -> str:
    ours = [r for r in records if r["model"] == NAME]
    return joined(_fit_sections(records), _foretold_section(ours))


SECTIONS: Mapping[str, Callable[[list[Record]], str]] = {
    "fits": _fits_and_foretold,
    "cores": _cores_section,
    "latency": _latency_section,
}
