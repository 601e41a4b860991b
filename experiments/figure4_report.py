"""Page and picture of Figure 4: the errors of the surest and of the least sure tenth.

All figures are of the target standardised by the training rows, means over the seeds. Claims are
judged on the paper's own tables; parts of tables are shown separately.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.from_benchmarks import BENCHMARKS, one_each
from experiments.printed import FIGURE4
from experiments.verdicts import Verdict, at_least, count, on_all, verdicts
from measurements.figures import svg
from measurements.pages import Page, joined, mean_or_nan, scored, standard_error, values
from measurements.store import Record
from measurements.tables import MISSING, figure, markdown_table, mean_se
from twostagegp.plotting import INK, LEGEND, MODEL, MUTED, TRUTH

__all__ = ["FETCHED", "PARTS", "VARIANTS", "picture", "report"]

#: Model and inputs, in the order of the columns.
VARIANTS = (
    ("gpnn", "whitened"),
    ("paper", "whitened"),
    ("default", "whitened"),
    ("default", "plain"),
)
LABELS: Mapping[tuple[str, str], str] = {
    ("gpnn", "whitened"): "GPNN, re-run",
    ("paper", "whitened"): "two-stage GPNN, re-run",
    ("default", "whitened"): "ours",
    ("default", "plain"): "ours, plain columns",
}
GPNN, PAPER, OURS, PLAIN = VARIANTS
#: Tables of the paper that are in a data folder only where they were fetched into it.
FETCHED = ("ctslice", "road3d", "song", "house_electric")
#: Pieces of three of them.
PARTS = ("ctslice_part", "road3d_part", "house_electric_part")
#: Sets on which the paper sees a larger gap.
WANTED = 5
COMMAND = "python -m experiments figure4 --from-benchmarks"

Variant = tuple[str, str]
#: Certain and uncertain error by variant and set.
Errors = Callable[[Variant, str], tuple[float, float]]


def _of(records: Sequence[Record], variant: Variant, name: str) -> list[Record]:
    return [r for r in records if (r["model"], r["inputs"], r["set"]) == (*variant, name)]


def _mean(records: Sequence[Record], variant: Variant, name: str, field: str) -> float:
    return mean_or_nan(values(_of(records, variant, name), field))


# --- page ----------------------------------------------------------------------------------------


def report(records: Sequence[Record]) -> str:
    """Return the page; of a fit that was done twice, one record counts."""
    chosen = one_each(records, ("model", "inputs", "set", "seed"))
    fine = scored(chosen)
    taken = sum(record.get("source") == BENCHMARKS for record in fine)
    missing = [name for name in FIGURE4 if not any(r["set"] == name for r in fine)]
    words = (
        "GPNN's protocol: 7/9 of the rows to train on, 2/9 to test, inputs whitened, 50 "
        f"neighbours, every test row predicted. {taken} of these fits are the benchmark's own "
        "(`benchmarks/results/calibration_gpnn.jsonl`). HC and LC: RMSE of the tenth of the test "
        "rows with the smallest and with the largest standard deviation. ± is the standard error "
        "over the seeds. *Re-run*: the settings of Table 7, read as in docs/paper_settings.md; the "
        "GPNN that is run again is ours, written after its authors' program."
    )
    if missing:
        words += f" Not run: {', '.join(missing)}."
        if absent := [name for name in missing if name in FETCHED]:
            words += (
                f" Of these the data folder had no {_listed(absent)} when this page was made: "
                "`twostagegp.datasets.fetch` puts them there, and the same command runs them."
            )
    page = Page(
        "Figure 4: errors of certain and uncertain rows",
        {
            "What it says": lambda records: joined(
                "Of the paper's seven tables; *open*: those that are missing decide.",
                verdicts(_claims(fine)),
            ),
            "HC-RMSE and LC-RMSE": lambda records: joined(
                _error_table(fine, tuple(FIGURE4)), *_parts_section(fine)
            ),
            "All scores": lambda records: _score_table(fine),
        },
        about=lambda records: words,
        command=COMMAND,
        figure="figure4.svg",
        failed_by=("model", "inputs", "set", "seed"),
    )
    return page(chosen)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"{name}.npz" for name in names)


def _parts_section(records: Sequence[Record]) -> list[str]:
    shown = tuple(name for name in PARTS if any(r["set"] == name for r in records))
    if not shown:
        return []
    return [
        "### Parts of tables",
        "Small pieces, no random samples: not comparable with the paper's figures, and in no claim "
        "above.",
        _error_table(records, shown),
    ]


def _error_table(records: Sequence[Record], sets: Sequence[str]) -> str:
    header = ["set", "rows", "seeds"]
    for printed, variant in (("GPNN, paper", GPNN), ("two-stage, paper", PAPER)):
        header += [f"{printed}: HC", "LC", f"{LABELS[variant]}: HC", "LC"]
    for variant in (OURS, PLAIN):
        header += [f"{LABELS[variant]}: HC", "LC"]
    rows = []
    for name in sets:
        there = [r for r in records if r["set"] == name]
        if not there:
            continue
        row = [name, str(there[0]["n_train"] + there[0]["n_test"]), _seeds(there)]
        for k, variant in enumerate((GPNN, PAPER)):
            row += [*_printed(name, k), *_errors(records, variant, name)]
        rows.append([*row, *(c for v in (OURS, PLAIN) for c in _errors(records, v, name))])
    return markdown_table(header, rows)


def _seeds(records: Sequence[Record]) -> str:
    """Return the number of seeds per variant, as a range if variants differ."""
    counts = {sum((r["model"], r["inputs"]) == v for r in records) for v in VARIANTS}
    return "–".join(str(n) for n in sorted({min(counts), max(counts)}))


def _printed(name: str, k: int) -> list[str]:
    if name not in FIGURE4:
        return [MISSING, MISSING]
    return [f"{value:.2f}" for value in FIGURE4[name][2 * k : 2 * k + 2]]


def _errors(records: Sequence[Record], variant: Variant, name: str) -> list[str]:
    own = _of(records, variant, name)
    return [mean_se(values(own, field)) for field in ("hc_rmse", "lc_rmse")]


def _score_table(records: Sequence[Record]) -> str:
    fields = {
        "RMSE": "rmse",
        "NLPD": "nlpd",
        "95 % coverage": "coverage_95",
        "fit, CPU s": "fit_cpu",
    }
    rows = [
        [
            name,
            LABELS[variant],
            str(len(own)),
            *(mean_se(values(own, field)) for field in fields.values()),
            figure(_gap(_both(records, variant, name))),
        ]
        for name in (*FIGURE4, *PARTS)
        for variant in VARIANTS
        if (own := _of(records, variant, name))
    ]
    return markdown_table(["set", "model", "seeds", *fields, "LC − HC"], rows)


# --- claims --------------------------------------------------------------------------------------


def _both(records: Sequence[Record], variant: Variant, name: str) -> tuple[float, float]:
    hc, lc = (_mean(records, variant, name, field) for field in ("hc_rmse", "lc_rmse"))
    return hc, lc


def _gap(errors: tuple[float, float]) -> float:
    return errors[1] - errors[0]


def _less(first: float, second: float) -> bool | None:
    return None if math.isnan(first) or math.isnan(second) else first < second


def _claims(records: Sequence[Record]) -> list[Verdict]:
    def again(variant: Variant, name: str) -> tuple[float, float]:
        return _both(records, variant, name)

    def printed(variant: Variant, name: str) -> tuple[float, float]:
        found = FIGURE4[name]
        return (found[0], found[1]) if variant == GPNN else (found[2], found[3])

    ordered = {v: {s: _less(*again(v, s)) for s in FIGURE4} for v in VARIANTS}
    below = {
        "printed GPNN": _each(lambda s: _less(again(OURS, s)[0], printed(GPNN, s)[0])),
        "printed two-stage": _each(lambda s: _less(again(OURS, s)[0], printed(PAPER, s)[0])),
        "GPNN re-run": _each(lambda s: _less(again(OURS, s)[0], again(GPNN, s)[0])),
        "two-stage re-run": _each(lambda s: _less(again(OURS, s)[0], again(PAPER, s)[0])),
    }
    joined = {name: _all_of([judged[name] for judged in below.values()]) for name in FIGURE4}
    return [
        Verdict(
            "HC-RMSE < LC-RMSE for our default",
            on_all(ordered[OURS]),
            "; ".join(f"{LABELS[v]}: {count(judged)}" for v, judged in ordered.items()),
        ),
        Verdict(
            "Our HC-RMSE is below GPNN's and the two-stage model's, printed and re-run",
            on_all(joined),
            "; ".join(f"below {what}: {count(judged)}" for what, judged in below.items()),
        ),
        _lower_certain(again, printed),
        _larger_gap("Claim: two-stage GPNN has", PAPER, again, printed),
        _larger_gap("Our default has", OURS, again, None),
        _bike(again),
    ]


def _each(judge: Callable[[str], bool | None]) -> dict[str, bool | None]:
    return {name: judge(name) for name in FIGURE4}


def _all_of(answers: Sequence[bool | None]) -> bool | None:
    return on_all({str(k): answer for k, answer in enumerate(answers)})


def _lower_certain(again: Errors, printed: Errors) -> Verdict:
    judged, as_printed = (
        {s: _less(errors(PAPER, s)[0], errors(GPNN, s)[0]) for s in FIGURE4}
        for errors in (again, printed)
    )
    return Verdict(
        "Claim: two-stage GPNN's HC-RMSE is below GPNN's on all seven",
        on_all(judged),
        f"re-run: {count(judged)}; as printed: {count(as_printed)}",
    )


def _larger_gap(who: str, variant: Variant, again: Errors, printed: Errors | None) -> Verdict:
    """Judge whether LC − HC is larger than GPNN's; re-runs and printed figures apart."""
    judged = _each(lambda s: _less(_gap(again(GPNN, s)), _gap(again(variant, s))))
    evidence = f"re-run: {count(judged)}" if printed else count(judged)
    if printed is not None:
        as_printed = _each(lambda s: _less(_gap(printed(GPNN, s)), _gap(printed(variant, s))))
        evidence += f"; as printed: {count(as_printed)}"
    statement = f"{who} a larger LC − HC than GPNN on {WANTED} of 7"
    return Verdict(statement, at_least(judged, WANTED), evidence)


def _bike(again: Errors) -> Verdict:
    hc, lc = again(GPNN, "bike")
    return Verdict(
        "Claim: GPNN on bike has HC > LC",
        _less(lc, hc),
        f"re-run {figure(hc)} and {figure(lc)}; printed {FIGURE4['bike'][0]:.2f} and "
        f"{FIGURE4['bike'][1]:.2f}",
    )


# --- picture -------------------------------------------------------------------------------------

_COLOURS = {GPNN: MUTED, PAPER: TRUTH, OURS: MODEL}
_TITLES = {GPNN: "GPNN", PAPER: "two-stage GPNN", OURS: "ours"}


def picture(records: Sequence[Record]) -> str | None:
    """Draw bars of both errors by set and model; None without results."""
    fine = scored(one_each(records, ("model", "inputs", "set", "seed")))
    drawn = [r for r in fine if (r["model"], r["inputs"]) in _COLOURS]
    sets = [name for name in (*FIGURE4, *PARTS) if any(r["set"] == name for r in drawn)]
    if not sets:
        return None
    fig = Figure(figsize=(2.2 + 1.5 * len(sets), 3.6), layout="constrained")
    ax = fig.subplots()
    for k, variant in enumerate(_COLOURS):
        _bars(ax, drawn, variant, sets, k)
    titles = [name.replace("_part", "\n(a part)") for name in sets]
    ax.set_xticks(range(len(sets)), titles)
    ax.set_ylabel("RMSE, standardised target", color=INK)
    ax.spines[["top", "right"]].set_visible(False)
    fig.legend(loc="outside lower center", ncols=4, **LEGEND)
    return svg(fig)


def _bars(
    ax: Axes, records: Sequence[Record], variant: Variant, sets: Sequence[str], k: int
) -> None:
    """Draw two bars per set, certain full and uncertain light; ticks mark the paper's bars."""
    width = 0.84 / (2 * len(_COLOURS))
    for j, (kind, field) in enumerate((("certain", "hc_rmse"), ("uncertain", "lc_rmse"))):
        place = np.arange(len(sets)) + (2 * k + j - len(_COLOURS) + 0.5) * width
        numbers = [values(_of(records, variant, name), field) for name in sets]
        means = [mean_or_nan(v) for v in numbers]
        ax.bar(place, means, 0.92 * width, color=_COLOURS[variant], alpha=1.0 if j == 0 else 0.45,
               yerr=[standard_error(v) for v in numbers], label=f"{_TITLES[variant]}, {kind}",
               error_kw={"ecolor": INK, "elinewidth": 0.8})  # fmt: skip
        column = None if variant == OURS else 2 * k + j
        for x, name, mean in zip(place, sets, means, strict=True):
            printed = FIGURE4[name][column] if column is not None and name in FIGURE4 else math.nan
            _mark(ax, x, mean, printed, 0.5 * width)


def _mark(ax: Axes, x: float, mean: float, printed: float, half: float) -> None:
    """Write the figure of a bar, and draw a line where the paper's bar ends; NaN is left out."""
    if not math.isnan(printed):
        there = ax.get_legend_handles_labels()[1]
        label = "" if "as printed" in there else "as printed"
        ax.plot([x - half, x + half], [printed] * 2, color=INK, linewidth=1.6, label=label)
    if not math.isnan(mean):
        # Above the line where the two would meet.
        top = printed if mean <= printed < mean + 0.05 else mean
        ax.annotate(f"{mean:.2f}", (x, top), (0.0, 2.5), textcoords="offset points",
                    ha="center", va="bottom", fontsize=6, color=INK)  # fmt: skip
