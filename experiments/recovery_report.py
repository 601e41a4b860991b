"""Tables and a picture of the kernel recovery experiment, made from its records.

Every record has the scores of all kernels on one draw, so that each selection's choice, whether it
is the true kernel, and its regret in test NLPD are computed here. The selections are compared with
two references: a kernel drawn at random (its expected regret), and the true kernel, which is not
always the one that predicts best. A choice by the test NLPD itself has no regret; how often it is
the true kernel is the best that a selection by predictions could reach.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from measurements.figures import svg
from measurements.pages import Page, joined
from measurements.store import Record
from measurements.tables import MISSING, figure, markdown_table, mean_se
from twostagegp.plotting import INK, MODEL, MUTED, TRUTH

__all__ = ["SELECTIONS", "Outcome", "outcome", "picture", "report"]

#: The score that decides, and whether its largest or its smallest value wins.
SELECTIONS: Mapping[str, tuple[str, Callable[..., str]]] = {
    "misspecification": ("ratio", max),
    "misspecification, true noise": ("ratio_true", max),
    "nll": ("nll", min),
    "loo": ("loo", min),
    "heldout": ("heldout", min),
}
RANDOM, TRUE_KERNEL, HINDSIGHT = "random kernel", "true kernel", "test NLPD itself"
#: What the others are compared with, pair by pair.
_BASE = "loo"
_COLOURS = {
    "misspecification": TRUTH,
    "misspecification, true noise": "#e2a26f",
    "nll": "#0f3d66",
    "loo": MODEL,
    "heldout": "#7fb0dc",
    RANDOM: "#b9c0c8",
    TRUE_KERNEL: MUTED,
}
#: Marks of the axis of regrets, linear below 0.01 and logarithmic above.
_TICKS = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_BREAK = {"misspecification": "misspecification\n(fitted noise)",
          "misspecification, true noise": "misspecification\n(true noise)"}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What every selection chose on one draw, and what that cost.

    Attributes
    ----------
    record : dict
    kernels : list of str
        The dictionary: every kernel that has a test NLPD.
    chosen : mapping of selection to kernel
    regret : mapping of selection or reference to float
    """

    record: Record
    kernels: list[str]
    chosen: Mapping[str, str]
    regret: Mapping[str, float]

    def hit(self, by: str) -> float:
        """Return 1 if the true kernel was chosen, else 0; its probability for a random kernel."""
        if by == RANDOM:
            return 1.0 / len(self.kernels)
        return float(self.chosen[by] == self.record["truth"])


def outcome(record: Record, wanted: Callable[[str], bool] = lambda label: True) -> Outcome | None:
    """Return choices and regrets among the ``wanted`` kernels; None if no kernel can be judged."""
    table = {
        label: scores
        for label, scores in record["kernels"].items()
        if wanted(label) and scores.get("nlpd") is not None
    }
    if not table:
        return None
    nlpd = {label: float(scores["nlpd"]) for label, scores in table.items()}
    best = min(nlpd, key=lambda label: nlpd[label])
    chosen = {HINDSIGHT: best}
    for selection, (column, extreme) in SELECTIONS.items():
        values = {k: s[column] for k, s in table.items() if s.get(column) is not None}
        if values:
            chosen[selection] = extreme(values, key=lambda label: values[label])
    truth = record["truth"]
    if truth in nlpd:
        chosen[TRUE_KERNEL] = truth
    regret = {by: nlpd[label] - nlpd[best] for by, label in chosen.items()}
    regret[RANDOM] = fmean(nlpd.values()) - nlpd[best]
    return Outcome(record, list(table), chosen, regret)


def _outcomes(
    records: Iterable[Record], wanted: Callable[[str], bool] = lambda label: True
) -> list[Outcome]:
    return [found for record in records if (found := outcome(record, wanted)) is not None]


def _failures(records: Sequence[Record]) -> str:
    """Return a sentence on kernels that could not be fitted or judged; empty without any."""
    out = Counter(
        label
        for record in records
        for label, scores in record["kernels"].items()
        if scores.get("nlpd") is None or scores.get("loo") is None
    )
    if not out:
        return ""
    listed = ", ".join(f"{label} on {count}" for label, count in sorted(out.items()))
    return f"Kernels that could not be fitted: {listed} of {len(records)} draws."


# --- synthetic draws -----------------------------------------------------------------------------


def _synthetic(records: Sequence[Record]) -> str:
    outcomes = _outcomes(r for r in records if r["part"] == "synthetic")
    if not outcomes:
        return ""
    first = outcomes[0].record
    cells = list(dict.fromkeys(o.record["cell"] for o in outcomes))
    seconds = sum(sum(o.record["seconds"].values()) for o in outcomes)
    parts = [
        f"{len(outcomes)} draws in {len(cells)} cells; {first['repeats']} repetitions of "
        f"{first['subsample']} rows; {seconds / 60.0:.1f} minutes on "
        f"{', '.join(sorted({o.record['device'] for o in outcomes}))}. "
        "Regret is in test NLPD, against the best kernel of the dictionary on the same draw; the "
        f"last column is the paired difference to the choice by `{_BASE}`. ± is a standard error.",
        _overall(outcomes, with_truth=True),
    ]
    for field, title in (("noise", "noise variance"), ("d", "columns"), ("n", "rows")):
        parts += [f"### By {title}", _by(outcomes, field, title)]
    parts += _ratio_levels(outcomes)
    parts += [
        "### What was chosen",
        "Per cent of the draws of each true kernel (all cells; in one dimension there is no "
        "laplacian).",
    ]
    for selection in (*SELECTIONS, HINDSIGHT):
        if any(selection in o.chosen for o in outcomes):
            parts += [f"By {selection}:", _confusion_table(outcomes, selection)]
    parts += ["### Every cell", "Share of right choices / mean regret."]
    return joined(*parts, _by_cell(outcomes, cells))


def _references(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the selections and references that these outcomes have, in order."""
    order = (*SELECTIONS, RANDOM, TRUE_KERNEL, HINDSIGHT)
    return [by for by in order if any(by in o.regret for o in outcomes)]


def _overall(outcomes: Sequence[Outcome], with_truth: bool) -> str:
    rows = []
    for by in _references(outcomes):
        having = [o for o in outcomes if by in o.regret]
        regret = [o.regret[by] for o in having]
        pairs = [o.regret[by] - o.regret[_BASE] for o in having if _BASE in o.regret]
        against = MISSING if by == _BASE else _signed(pairs)
        right = figure(fmean(o.hit(by) for o in having)) if with_truth else _share_best(having, by)
        rows.append([by, right, _regret(regret), f"{max(regret):.3f}", against])
    what = "right kernel" if with_truth else "best kernel"
    return markdown_table(
        ["choice by", what, "mean regret", "worst", f"minus that of {_BASE}"], rows
    )


def _share_best(outcomes: Sequence[Outcome], by: str) -> str:
    """Return how often the kernel that is best in hindsight was chosen."""
    if by == RANDOM:
        return figure(fmean(1.0 / len(o.kernels) for o in outcomes))
    return figure(fmean(float(o.chosen[by] == o.chosen[HINDSIGHT]) for o in outcomes))


def _regret(values: Sequence[float]) -> str:
    """Return mean ± standard error with four decimals, as the goal is a regret of 0.01."""
    if len(values) < 2:
        return f"{fmean(values):.4f}" if values else MISSING
    return f"{fmean(values):.4f} ± {stdev(values) / math.sqrt(len(values)):.4f}"


def _signed(values: Sequence[float]) -> str:
    text = _regret(values)
    return text if text == MISSING or text.startswith("-") else f"+{text}"


def _by(outcomes: Sequence[Outcome], field: str, title: str) -> str:
    values = sorted({o.record[field] for o in outcomes})
    rows = []
    for by in _references(outcomes):
        row = [by]
        for value in values:
            having = [o for o in outcomes if o.record[field] == value and by in o.regret]
            hits, regrets = [o.hit(by) for o in having], [o.regret[by] for o in having]
            row += [figure(fmean(hits)), _regret(regrets)] if having else [MISSING, MISSING]
        rows.append(row)
    header = [x for value in values for x in (f"right, {title} {value:g}", f"regret, {value:g}")]
    return markdown_table(["choice by", *header], rows)


def _ratio_levels(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the mean share p̂ for right and wrong kernels, with both kinds of noise."""
    rows = []
    for noise in sorted({o.record["noise"] for o in outcomes}):
        row = [f"{noise:g}"]
        for column in ("ratio", "ratio_true"):
            for right in (True, False):
                shares = [
                    float(scores[column])
                    for o in outcomes
                    if o.record["noise"] == noise
                    for label, scores in o.record["kernels"].items()
                    if (label == o.record["truth"]) == right and scores.get(column) is not None
                ]
                row.append(mean_se(shares))
        rows.append(row)
    header = ["noise variance", "right kernel", "wrong kernels"]
    header += ["right kernel, true noise", "wrong kernels, true noise"]
    return [
        "### The ratio test's share p̂",
        "The test does not reject if p̂ is at least 0.95.",
        markdown_table(header, rows),
    ]


def confusion(
    outcomes: Sequence[Outcome], selection: str
) -> tuple[list[str], np.ndarray[Any, np.dtype[np.int64]]]:
    """Return the names, and how often each (row) was taken for which (column)."""
    names = list(dict.fromkeys(label for o in outcomes for label in o.kernels))
    order = _dictionary_order(names)
    counts = np.zeros((len(order), len(order)), dtype=np.int64)
    for o in outcomes:
        if selection in o.chosen:
            counts[order.index(o.record["truth"]), order.index(o.chosen[selection])] += 1
    return order, counts


def _dictionary_order(names: Iterable[str]) -> list[str]:
    """Return the kernels, smooth ones first."""
    order = ("rbf", "matern52", "matern32", "matern12", "laplacian")
    return sorted(names, key=lambda name: order.index(name.removesuffix("-ard")))


def _confusion_table(outcomes: Sequence[Outcome], selection: str) -> str:
    names, counts = confusion(outcomes, selection)
    rows = [
        [name, *(f"{100.0 * c / max(row.sum(), 1):.0f}" for c in row), str(row.sum())]
        for name, row in zip(names, counts, strict=True)
    ]
    return markdown_table(["truth \\ chosen", *names, "draws"], rows)


def _by_cell(outcomes: Sequence[Outcome], cells: Sequence[str]) -> str:
    by_names = [by for by in _references(outcomes) if by not in (RANDOM, HINDSIGHT)]
    rows = []
    for cell in cells:
        own = [o for o in outcomes if o.record["cell"] == cell]
        row = [cell, str(len(own))]
        for by in by_names:
            having = [o for o in own if by in o.regret]
            if having:
                hit = fmean(o.hit(by) for o in having)
                row.append(f"{hit:.2f} / {fmean(o.regret[by] for o in having):.3f}")
            else:
                row.append(MISSING)
        rows.append(row)
    return markdown_table(["cell", "draws", *by_names], rows)


# --- real tables ---------------------------------------------------------------------------------


def _real(records: Sequence[Record]) -> str:
    real = [r for r in records if r["part"] == "real"]
    parts = []
    for title, wanted in (
        ("Isotropic and ARD kernels", lambda label: True),
        ("Isotropic kernels only", lambda label: not label.endswith("-ard")),
    ):
        outcomes = _outcomes(real, wanted)
        if outcomes:
            parts += [f"### {title}", _overall(outcomes, with_truth=False)]
            parts += ["Mean regret by table:", _by_set(outcomes)]
    return joined(*parts)


def _by_set(outcomes: Sequence[Outcome]) -> str:
    by_names = [by for by in _references(outcomes) if by != HINDSIGHT]
    rows = []
    for name in dict.fromkeys(o.record["cell"] for o in outcomes):
        own = [o for o in outcomes if o.record["cell"] == name]
        best = Counter(o.chosen[HINDSIGHT] for o in own).most_common()
        row = [name, str(len(own))]
        for by in by_names:
            values = [o.regret[by] for o in own if by in o.regret]
            choices = Counter(o.chosen[by] for o in own if by in o.chosen).most_common(1)
            picked = f" ({choices[0][0]})" if choices else ""
            row.append(f"{fmean(values):.3f}{picked}" if values else MISSING)
        rows.append([*row, ", ".join(f"{label} {count}" for label, count in best)])
    return markdown_table(["table", "splits", *by_names, "best in hindsight"], rows)


report = Page(
    "Does a kernel search find the kernel?",
    {"Draws from known kernels": _synthetic, "Real tables": _real},
    about=_failures,
    counted="draws and splits",
)


# --- picture -------------------------------------------------------------------------------------


def picture(records: Sequence[Record]) -> str:
    """Return the picture as SVG."""
    return svg(draw(records))


def draw(records: Sequence[Record]) -> Figure:
    """Draw confusion matrices above, mean regrets below."""
    synthetic = _outcomes(r for r in records if r["part"] == "synthetic")
    real = _outcomes(r for r in records if r["part"] == "real")
    fig = Figure(figsize=(15.0, 8.0 if synthetic else 4.5), layout="constrained")
    rows = fig.subfigures(2 if synthetic else 1, 1, squeeze=False)[:, 0]
    if synthetic:
        shown = [by for by in SELECTIONS if any(by in o.chosen for o in synthetic)]
        for ax, selection in zip(rows[0].subplots(1, len(shown), squeeze=False)[0], shown,
                                 strict=True):  # fmt: skip
            _draw_confusion(ax, synthetic, selection)
            ax.set_ylabel("truth" if selection == shown[0] else "", color=INK)
    panels: list[tuple[list[Outcome], str, str]] = []
    if synthetic:
        panels.append((synthetic, "noise", "noise variance"))
    if real:
        panels.append((real, "cell", "real tables"))
    axes = rows[-1].subplots(1, len(panels), squeeze=False)[0]
    for ax, (outcomes, field, title) in zip(axes, panels, strict=True):
        _draw_regret(ax, outcomes, field, title)
    handles, labels = axes[0].get_legend_handles_labels()
    rows[-1].legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False,
                    fontsize=9, labelcolor=INK)  # fmt: skip
    return fig


def _draw_confusion(ax: Axes, outcomes: Sequence[Outcome], selection: str) -> None:
    names, counts = confusion(outcomes, selection)
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    ax.imshow(share, cmap="Blues", vmin=0.0, vmax=1.0)
    for i, j in np.ndindex(share.shape):
        dark = share[i, j] > 0.55
        ax.text(j, i, f"{100.0 * share[i, j]:.0f}", ha="center", va="center", fontsize=9,
                color="white" if dark else INK)  # fmt: skip
    ax.set_xticks(range(len(names)), names, rotation=40, ha="right", fontsize=8)
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.set_xlabel("chosen", color=INK)
    right = fmean(o.hit(selection) for o in outcomes if selection in o.chosen)
    name = _BREAK.get(selection, selection)
    ax.set_title(f"{name}\n{100.0 * right:.0f} % right", color=INK, fontsize=10)


def _draw_regret(ax: Axes, outcomes: Sequence[Outcome], field: str, title: str) -> None:
    """Draw the mean regret in groups of bars on a logarithmic axis, with standard errors."""
    groups: list[Any] = list(dict.fromkeys(o.record[field] for o in outcomes))
    groups = groups if isinstance(groups[0], str) else sorted(groups)
    names = [by for by in _references(outcomes) if by != HINDSIGHT]
    width = 0.84 / len(names)
    for k, by in enumerate(names):
        means, errors = [], []
        for group in [None, *groups]:
            values = [
                o.regret[by]
                for o in outcomes
                if by in o.regret and (group is None or o.record[field] == group)
            ]
            means.append(fmean(values) if values else math.nan)
            errors.append(stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0)
        place = np.arange(len(means)) + (k - 0.5 * (len(names) - 1)) * width
        ax.bar(place, means, width, color=_COLOURS[by], label=by, yerr=errors,
               error_kw={"ecolor": INK, "elinewidth": 0.8})  # fmt: skip
    ax.axhline(0.01, color=MUTED, linestyle="--", linewidth=0.9)
    ax.set_yscale("symlog", linthresh=0.01)
    top = ax.get_ylim()[1]
    ax.set_ylim(0.0, top)
    ticks = [tick for tick in _TICKS if tick <= top]
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.yaxis.set_minor_locator(NullLocator())
    labels = [g if isinstance(g, str) else f"{title} {g:g}" for g in groups]
    ax.set_xticks(range(len(labels) + 1), ["all", *labels], fontsize=9)
    ax.set_ylabel("mean regret in test NLPD", color=INK)
    ax.set_title("draws from known kernels" if field == "noise" else title, color=INK)
    ax.spines[["top", "right"]].set_visible(False)
