"""Page and picture of the ablation.

Sixteen variants: stage 1, residuals, calibration. They are compared with our default on the same
splits, never mean with mean over different ones. Over sets the NLPD is summarised by the median: a
mean model that interpolates its rows leaves no residuals, and one such set would dominate every
mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from statistics import fmean, median

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.verdicts import Judged, Verdict, count, on_all, verdicts
from measurements.figures import svg
from measurements.pages import Page, joined, scored, standard_error
from measurements.store import Record
from measurements.tables import MISSING, figure, markdown_table, mean_se
from twostagegp.plotting import INK, LEGEND, MODEL, MUTED, TRUTH

__all__ = ["CALIBRATIONS", "RESIDUALS", "SETS", "STAGES", "picture", "report"]

SETS = ("yacht", "boston", "energy", "concrete", "wine", "kin8nm_2000", "bike_2000")
STAGES: Mapping[str, str] = {
    "krr": "kernel ridge (paper's)",
    "stack": "our stack",
    "trees": "boosted trees",
    "net": "neural network",
}
RESIDUALS: Mapping[str, str] = {"insample": "in-sample", "heldout": "held-out"}
CALIBRATIONS: Mapping[str, str] = {"none": "none", "local": "default"}
#: What the paper has, and what we have.
PAPER, DEFAULT = ("krr", "insample", "none"), ("stack", "heldout", "local")
#: How far the mean coverage of a calibrated model may be from its level.
COVERAGE_POINTS = 0.02
COMMAND = "python -m experiments ablation"

#: Stage 1, residuals, calibration.
Variant = tuple[str, str, str]
VARIANTS: tuple[Variant, ...] = tuple(product(STAGES, RESIDUALS, CALIBRATIONS))
#: Scores by variant and set, by split.
Scores = Mapping[tuple[Variant, str], Mapping[int, Mapping[str, float]]]


def _scores(records: Iterable[Record]) -> Scores:
    found: dict[tuple[Variant, str], dict[int, Mapping[str, float]]] = {}
    for record in scored(records):
        for kind in CALIBRATIONS:
            variant = (record["stage1"], record["residuals"], kind)
            found.setdefault((variant, record["set"]), {})[record["split"]] = record[kind]
    return found


def _values(scores: Scores, variant: Variant, name: str, field: str) -> list[float]:
    there = scores.get((variant, name), {})
    return [there[k][field] for k in sorted(there) if there[k].get(field) is not None]


def _pairs(
    scores: Scores, first: Variant, second: Variant, name: str, field: str
) -> list[tuple[float, float]]:
    """Return pairs of a score of two variants on the splits that both have."""
    a, b = scores.get((first, name), {}), scores.get((second, name), {})
    found = ((a[k].get(field), b[k].get(field)) for k in sorted(a.keys() & b.keys()))
    return [(x, y) for x, y in found if x is not None and y is not None]


def _gap(scores: Scores, first: Variant, second: Variant, name: str, field: str) -> float:
    """Return the mean difference on the splits that both have; NaN without any."""
    pairs = _pairs(scores, first, second, name, field)
    return fmean(x - y for x, y in pairs) if pairs else math.nan


def _known_sets(one: Callable[[str], float]) -> list[float]:
    """Return a figure of every set that has it."""
    return [value for name in SETS if not math.isnan(value := one(name))]


def _over_sets(one: Callable[[str], float]) -> float:
    """Return the mean over the sets that have a figure."""
    known = _known_sets(one)
    return fmean(known) if known else math.nan


def _mean_of(scores: Scores, variant: Variant, field: str) -> float:
    def one(name: str) -> float:
        numbers = _values(scores, variant, name, field)
        return fmean(numbers) if numbers else math.nan

    return _over_sets(one)


# --- page ----------------------------------------------------------------------------------------


def _about(records: list[Record]) -> str:
    return (
        "The paper has no such table. NLPD, RMSE and CRPS are of the target standardised by the "
        "training rows, QICE in percent. Every variant is compared with our default (our stack, "
        "held-out residuals, default calibration) on the same splits; over sets, NLPD is the "
        "median, the other scores the mean. One fit gives the scores with and without "
        "calibration. kin8nm_2000 and bike_2000: 2000 random training rows. "
        f"{_splits(_scores(records))}"
    )


def _over_all_sets(records: list[Record]) -> str:
    return joined(
        "RMSE and CRPS as ratios to the default's (geometric means), NLPD as a difference from "
        "it (median); coverage of the 95 % interval, its mean distance from 0.95, and QICE "
        "less its floor.",
        _summary(_scores(records)),
    )


def _rmse_by_set(records: list[Record]) -> str:
    same = [v for v in VARIANTS if v[1:] == DEFAULT[1:]]
    return joined(
        "Residuals and calibration do not change the mean.",
        _by_set(_scores(records), "rmse", same),
    )


def _score_by_set(field: str, records: list[Record]) -> str:
    return _by_set(_scores(records), field, VARIANTS)


def _qice_by_set(records: list[Record]) -> str:
    scores = _scores(records)
    floors = [figure(_floor(scores, name)) for name in SETS]
    return _by_set(scores, "qice", VARIANTS, ["floor", "", "", *floors])


report = Page(
    "Ablation: first stage, residuals, calibration",
    {
        "What it says": lambda records: verdicts(_findings(_scores(records))),
        "Over all sets": _over_all_sets,
        "RMSE by set": _rmse_by_set,
        "NLPD by set": partial(_score_by_set, "nlpd"),
        "95 % coverage by set": partial(_score_by_set, "coverage_95"),
        "CRPS by set": partial(_score_by_set, "crps"),
        "QICE by set": _qice_by_set,
    },
    about=_about,
    command=COMMAND,
    figure="ablation.svg",
    failed_by=("stage1", "residuals", "set", "split"),
)


def _splits(scores: Scores) -> str:
    """Return a sentence on the number of splits per set."""
    counts = sorted({len(by_split) for by_split in scores.values()})
    if not counts:
        return ""
    said = f"Splits per set: {'–'.join(map(str, dict.fromkeys((counts[0], counts[-1]))))}."
    if counts[0] == 1:
        said += " With one split there is no standard error, and a verdict rests on that split."
    return said


def _titles(variant: Variant) -> list[str]:
    return [STAGES[variant[0]], RESIDUALS[variant[1]], CALIBRATIONS[variant[2]]]


def _floor(scores: Scores, name: str) -> float:
    found = [v for variant in VARIANTS for v in _values(scores, variant, name, "qice_floor")]
    return fmean(found) if found else math.nan


def _summary(scores: Scores) -> str:
    rows = []
    for variant in VARIANTS:
        rows.append(
            [
                *_titles(variant),
                figure(_ratio(scores, variant, "rmse")),
                _signed(_nlpd_gap(scores, variant, DEFAULT)),
                figure(_mean_of(scores, variant, "coverage_95")),
                figure(_off(scores, variant)),
                _signed(_above_floor(scores, variant)),
                figure(_ratio(scores, variant, "crps")),
                str(sum(bool(scores.get((variant, name))) for name in SETS)),
            ]
        )
    header = ["stage 1", "residuals", "calibration", "RMSE", "NLPD", "coverage", "off 0.95 by"]
    return markdown_table([*header, "QICE − floor", "CRPS", "sets"], rows)


def _signed(value: float) -> str:
    return MISSING if math.isnan(value) else f"{value:+.3f}"


def _ratio(scores: Scores, variant: Variant, field: str) -> float:
    """Return the geometric mean over sets and splits of a score over the default's."""

    def one(name: str) -> float:
        pairs = _pairs(scores, variant, DEFAULT, name, field)
        return fmean(math.log(x / y) for x, y in pairs) if pairs else math.nan

    return math.exp(_over_sets(one))


def _nlpd_gap(scores: Scores, first: Variant, second: Variant) -> float:
    """Return the median over the sets of the mean difference on the same splits."""
    known = _known_sets(lambda name: _gap(scores, first, second, name, "nlpd"))
    return median(known) if known else math.nan


def _off(scores: Scores, variant: Variant) -> float:
    """Return the mean over sets of the distance of the mean coverage from its level."""

    def one(name: str) -> float:
        numbers = _values(scores, variant, name, "coverage_95")
        return abs(fmean(numbers) - 0.95) if numbers else math.nan

    return _over_sets(one)


def _above_floor(scores: Scores, variant: Variant) -> float:
    def one(name: str) -> float:
        numbers = _values(scores, variant, name, "qice")
        return fmean(numbers) - _floor(scores, name) if numbers else math.nan

    return _over_sets(one)


def _by_set(
    scores: Scores, field: str, variants: Sequence[Variant], last: list[str] | None = None
) -> str:
    rows = [
        [*_titles(v), *(mean_se(_values(scores, v, name, field)) for name in SETS)]
        for v in variants
    ]
    rows += [last] if last else []
    return markdown_table(["stage 1", "residuals", "calibration", *SETS], rows)


# --- findings ------------------------------------------------------------------------------------


def _findings(scores: Scores) -> list[Verdict]:
    return [
        _narrow(scores),
        _by_stage(
            scores,
            "Without calibration, held-out residuals have the lower NLPD, whatever stage 1 is",
            ("heldout", "none"),
            ("insample", "none"),
        ),
        _repaired(scores),
        _by_stage(
            scores,
            "With calibration, held-out residuals still have the lower NLPD, whatever stage 1 is",
            ("heldout", "local"),
            ("insample", "local"),
        ),
        _by_stage(
            scores,
            "On held-out residuals, calibration lowers the NLPD, whatever stage 1 is",
            ("heldout", "local"),
            ("heldout", "none"),
        ),
        _best_mean(scores),
        _best_nlpd(scores),
    ]


def _known(value: float, holds: bool) -> bool | None:
    return None if math.isnan(value) else holds


def _narrow(scores: Scores) -> Verdict:
    """Compare the coverage of in-sample and held-out residuals, without calibration."""
    pairs = {
        title: [_mean_of(scores, (stage, r, "none"), "coverage_95") for r in RESIDUALS]
        for stage, title in STAGES.items()
    }
    judged: Judged = {t: _known(sum(p), p[0] < p[1]) for t, p in pairs.items()}
    listed = "; ".join(f"{t}: {figure(p[0])} against {figure(p[1])}" for t, p in pairs.items())
    return Verdict(
        "Without calibration, 95 % intervals cover less with in-sample than with held-out "
        "residuals, whatever stage 1 is",
        on_all(judged),
        listed,
    )


def _repaired(scores: Scores) -> Verdict:
    off = {t: _off(scores, (stage, "insample", "local")) for stage, t in STAGES.items()}
    judged: Judged = {t: _known(value, value <= COVERAGE_POINTS) for t, value in off.items()}
    return Verdict(
        "Calibration alone repairs the coverage of in-sample residuals: off by at most "
        f"{100 * COVERAGE_POINTS:g} points in the mean over sets",
        on_all(judged),
        "; ".join(f"{t}: {100 * value:.1f} points" for t, value in off.items()),
    )


def _by_stage(
    scores: Scores, statement: str, first: tuple[str, str], second: tuple[str, str]
) -> Verdict:
    """Judge a claim by the NLPD difference for each stage 1, as the median over the sets."""
    gaps = {
        title: _nlpd_gap(scores, (stage, *first), (stage, *second))
        for stage, title in STAGES.items()
    }
    judged: Judged = {t: _known(gap, gap < 0.0) for t, gap in gaps.items()}
    listed = "; ".join(f"{t}: {_signed(gap)}" for t, gap in gaps.items())
    return Verdict(statement, on_all(judged), listed)


def _best_mean(scores: Scores) -> Verdict:
    """Compare our stack with the others by RMSE, set by set."""
    others = [(stage, *DEFAULT[1:]) for stage in STAGES if stage != DEFAULT[0]]
    judged: dict[str, bool | None] = {}
    for name in SETS:
        gaps = [_gap(scores, DEFAULT, other, name, "rmse") for other in others]
        judged[name] = _known(sum(gaps), max(gaps) <= 0.0)
    return Verdict(
        "Our stack has the lowest RMSE of the four on every set", on_all(judged), count(judged)
    )


def _best_nlpd(scores: Scores) -> Verdict:
    """Compare our default with each of the fifteen others by paired differences."""
    judged: dict[str, bool | None] = {}
    for name in SETS:
        answers = [_not_behind(scores, v, name) for v in VARIANTS if v != DEFAULT]
        judged[name] = None if None in answers else all(answers)
    return Verdict(
        "Our default has the lowest NLPD of the sixteen, or is within one standard error of it, "
        "on every set",
        on_all(judged),
        count(judged),
    )


def _not_behind(scores: Scores, other: Variant, name: str) -> bool | None:
    gaps = [x - y for x, y in _pairs(scores, DEFAULT, other, name, "nlpd")]
    return fmean(gaps) <= standard_error(gaps) if gaps else None


# --- picture -------------------------------------------------------------------------------------


def picture(records: Sequence[Record]) -> str | None:
    """Draw NLPD against the default's, and coverage, by variant; None without results."""
    scores = _scores(records)
    if not scores:
        return None
    fig = Figure(figsize=(9.5, 5.6), layout="constrained")
    left, right = fig.subplots(1, 2, sharey=True)
    _draw(left, lambda v, s: _gap(scores, v, DEFAULT, s, "nlpd"))
    _draw(right, lambda v, s: _mean_in(scores, v, s))
    left.set_xscale("symlog", linthresh=0.1)
    ticks = {-1: "−1", 0: "0", 0.1: "0.1", 1: "1", 10: "10", 1e3: "10³", 1e6: "10⁶"}
    shown = [tick for tick in ticks if left.get_xlim()[0] <= tick <= left.get_xlim()[1]]
    left.set_xticks(shown, [ticks[tick] for tick in shown])
    left.axvline(0.0, color=INK, linewidth=0.8)
    left.set_xlabel("NLPD − our default's", color=INK)
    right.axvline(0.95, color=INK, linewidth=0.8)
    right.set_xlabel("coverage of the 95 % interval", color=INK)
    titles = [f"{RESIDUALS[v[1]]}, {_word(v)}" for v in VARIANTS]
    left.set_yticks(_places(), titles)
    left.set_ylim(max(_places()) + 0.7, -0.7)
    size = len(RESIDUALS) * len(CALIBRATIONS)
    for k, title in enumerate(STAGES.values()):
        right.text(1.02, _places()[k * size] + 1.5, title, transform=right.get_yaxis_transform(),
                   va="center", fontsize=9, color=INK)  # fmt: skip
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", color=MUTED, alpha=0.2, linewidth=0.6)
        ax.set_axisbelow(True)
    handles, labels = left.get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=len(labels), **LEGEND)
    return svg(fig)


def _word(variant: Variant) -> str:
    return "calibrated" if variant[2] == "local" else "not calibrated"


def _places() -> list[float]:
    """Return the positions of the rows: four per first stage, then a gap."""
    size = len(RESIDUALS) * len(CALIBRATIONS)
    return [i + 0.6 * (i // size) for i in range(len(VARIANTS))]


def _mean_in(scores: Scores, variant: Variant, name: str) -> float:
    numbers = _values(scores, variant, name, "coverage_95")
    return fmean(numbers) if numbers else math.nan


def _draw(ax: Axes, value: Callable[[Variant, str], float]) -> None:
    """Draw one small dot per set, and a large one at their median."""
    for place, variant in zip(_places(), VARIANTS, strict=True):
        known = np.array([v for name in SETS if not math.isnan(v := value(variant, name))])
        if not len(known):
            continue
        heldout = variant[1] == "heldout"
        label = f"{RESIDUALS[variant[1]]} residuals, median over sets"
        there = ax.get_legend_handles_labels()[1]
        ax.plot(known, np.full(len(known), place), "o", color=MUTED, markersize=3, alpha=0.7,
                label="" if "one set" in there else "one set")  # fmt: skip
        ax.plot(np.median(known), place, "D", color=MODEL if heldout else TRUTH, markersize=7,
                fillstyle="full" if variant[2] == "local" else "none",
                label="" if label in there or variant[2] != "local" else label)  # fmt: skip
