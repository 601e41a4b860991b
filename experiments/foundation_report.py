"""Tables and picture of the experiment on foundation features.

Means stand with their standard error over the seeds. A goal compares two models on the seeds that
both have, by the paired differences of their scores.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from matplotlib.figure import Figure

from measurements.figures import svg
from measurements.pages import NO_RECORDS, failures, joined
from measurements.provenance import provenance
from measurements.store import Record
from measurements.tables import MISSING, figure, markdown_table, mean_se, yes_no
from twostagegp.plotting import INK, LEGEND, MODEL, MUTED, TRUTH

__all__ = ["GOALS", "Difference", "Goal", "difference", "draw", "picture", "report"]

LABELS = {
    "mc_dropout": "MC dropout",
    "logistic": "logistic regression",
    "single": "single stage",
    "two_stage": "two-stage",
    "paper": "two-stage, paper's settings",
}
SETS = ("breakhis", "oct", "ade", "abstracts", "chemprot")
#: Fields and headings of the main table.
COLUMNS = {
    "accuracy": "accuracy",
    "log_loss": "log loss",
    "brier": "Brier",
    "ece": "ECE",
    "aurc": "AURC",
    "accuracy_certain": "accuracy, certain",
    "accuracy_uncertain": "uncertain",
    "share_certain": "share certain",
    "fit_cpu_seconds": "fit, CPU s",
    "predict_cpu_seconds": "predict, CPU s",
}
#: Choices that are listed for a model on a set; the records have the others.
MOST_CHOICES = 3
#: Models of the picture and their colours.
DRAWN = {"mc_dropout": MUTED, "single": MODEL, "two_stage": TRUTH}


@dataclass(frozen=True)
class Difference:
    """Paired differences of a score: their mean, its standard error (NaN for one), their number."""

    mean: float
    se: float
    n: int

    def __str__(self) -> str:
        spread = f" ± {self.se:.4f}" if math.isfinite(self.se) else ""
        return f"{self.mean:+.4f}{spread}"


@dataclass(frozen=True)
class Goal:
    """What the two-stage model's score, less another model's, should be."""

    score: str
    other: str
    label: str
    met: Callable[[Difference], bool]


def _not_worse(d: Difference) -> bool:
    return d.mean <= 0.0


def _below(d: Difference) -> bool:
    return d.mean < 0.0


def _within_error(d: Difference) -> bool:
    return d.mean >= -(d.se if math.isfinite(d.se) else 0.0)


GOALS = (
    Goal("log_loss", "single", "log loss − single stage's ≤ 0", _not_worse),
    Goal("aurc", "single", "AURC − single stage's ≤ 0", _not_worse),
    Goal("log_loss", "mc_dropout", "log loss − MC dropout's < 0", _below),
    Goal("ece", "mc_dropout", "ECE − MC dropout's < 0", _below),
    Goal("accuracy", "logistic", "accuracy − logistic regression's ≥ −SE", _within_error),
)


def difference(
    records: Sequence[Record], set_name: str, score: str, first: str, second: str
) -> Difference | None:
    """Return the first model's score less the second's on common seeds; None without any."""
    values = [
        {r["seed"]: r[score] for r in records if (r["set"], r["model"]) == (set_name, model)}
        for model in (first, second)
    ]
    common = sorted(values[0].keys() & values[1].keys())
    if not common:
        return None
    differences = [values[0][seed] - values[1][seed] for seed in common]
    return Difference(fmean(differences), _standard_error(differences), len(common))


def _standard_error(values: Sequence[float]) -> float:
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def _fine(records: Sequence[Record]) -> list[Record]:
    """Return the records without an error, by set, model and seed."""
    sets, models = list(SETS), list(LABELS)
    fine = [r for r in records if not r.get("error")]
    return sorted(fine, key=lambda r: (sets.index(r["set"]), models.index(r["model"]), r["seed"]))


def _names(records: Sequence[Record], field: str) -> list[str]:
    return list(dict.fromkeys(r[field] for r in records))


def _of(records: Sequence[Record], set_name: str, model: str) -> list[Record]:
    return [r for r in records if (r["set"], r["model"]) == (set_name, model)]


def _values(records: Sequence[Record], score: str) -> list[float]:
    """Return a score over the seeds, without the seeds for which it is not defined."""
    return [r[score] for r in records if r.get(score) is not None]


# --- page ----------------------------------------------------------------------------------------


def of_page(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Return the records with the fewest training rows at most, and those with more."""
    fewest = min((r["rows"] for r in records), default=0)
    page = [r for r in records if r["rows"] == fewest]
    return page, [r for r in records if r["rows"] > fewest]


def report(records: Sequence[Record]) -> str:
    """Return the page: the fits with the fewest training rows, then those with more."""
    own, more_rows = of_page(records)
    fine = _fine(own)
    blocks = ["# Classifiers on foundation features"]
    if not fine:
        blocks.append(NO_RECORDS)
    else:
        devices = ", ".join(sorted({r["device"] for r in fine}))
        blocks += [
            f"{provenance(fine)} At most {fine[0]['rows']} training rows. Devices: {devices}. "
            "Seed 0 is the split that comes with the data, the others are random ones of the same "
            "groups. ± is a standard error over the seeds.",
            "## Goals",
            "The score of the two-stage model less another's, on the same splits: the mean of the "
            "paired differences ± their standard error. A goal is judged by the mean; that of "
            "accuracy allows for one standard error of the difference. It is met if it is met on "
            "every set.",
            _goals(fine),
            *_sets(fine),
            *_scores(fine),
        ]
        if any(r["model"] in DRAWN for r in fine):
            blocks += [
                "## Certain and uncertain rows",
                "Accuracy of the rows that a model calls certain (full) and of the others (light). "
                "Above a pair of bars: the share of rows that are certain, in percent.",
                "![Accuracy of certain and uncertain rows](foundation.svg)",
            ]
        blocks += ["## What was chosen", _chosen(fine)]
    blocks += _with_more_rows(_fine(more_rows))
    return joined(*blocks, *failures(own, ("set", "model", "seed")))


def _with_more_rows(records: Sequence[Record]) -> list[str]:
    """Return goals and scores of the fits on more training rows; nothing without any."""
    if not records:
        return []
    rows = ", ".join(str(n) for n in sorted({r["rows"] for r in records}))
    partial = {r["set"] for r in records if r["n_train"] >= r["rows"]}
    whole = [name for name in _names(records, "set") if name not in partial]
    all_rows = f", which is all of them in {_listed(whole)}" if whole else ""
    devices = {LABELS[r["model"]]: r["device"] for r in records}
    places = ", ".join(f"{model} on {device}" for model, device in devices.items())
    return [
        "## With more training rows",
        f"{provenance(list(records))} At most {rows} training rows instead{all_rows}: {places}. "
        "The same goals and scores.",
        _goals(records),
        _score_table(records),
        _fit_seconds(records),
    ]


def _fit_seconds(records: Sequence[Record]) -> str:
    by_model = {
        LABELS[model]: [r["fit_wall_seconds"] for r in records if r["model"] == model]
        for model in _names(records, "model")
    }
    said = [f"{label} {mean_se(seconds)}" for label, seconds in by_model.items()]
    return f"Seconds of a fit by the clock, other fits running beside it: {', '.join(said)}."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _goals(records: Sequence[Record]) -> str:
    sets = _names(records, "set")
    rows = []
    for goal in GOALS:
        found = {s: difference(records, s, goal.score, "two_stage", goal.other) for s in sets}
        judged = {s: goal.met(d) for s, d in found.items() if d is not None}
        cells = [
            MISSING if d is None else f"{d}{'' if judged[s] else ' **no**'}"
            for s, d in found.items()
        ]
        met: bool | None = all(judged.values())
        if met and len(judged) < len(sets):
            met = None  # a missing comparison may still fail
        rows.append([goal.label, *cells, f"{sum(judged.values())} of {len(judged)}", yes_no(met)])
    return markdown_table(["goal", *sets, "sets", "met"], rows)


def _sets(records: Sequence[Record]) -> list[str]:
    rows = []
    for name in _names(records, "set"):
        own = [r for r in records if r["set"] == name]
        full = [r for r in own if r["model"] != "paper"] or own
        by_seed = {r["seed"]: r for r in full}.values()
        rows.append(
            [
                name,
                str(len(by_seed)),
                str(full[0]["n_features"]),
                _span([r["n_classes"] for r in by_seed]),
                _span([r["n_train"] for r in by_seed]),
                _span([r["n_test"] for r in by_seed]),
                str(sum(r["n_unseen"] for r in by_seed)),
                str(sum(r["n_shared"] for r in by_seed)),
            ]
        )
    head = ["set", "seeds", "features", "classes", "train", "test", "unseen class", "shared group"]
    return [
        "## Sets",
        "*Unseen class*: test rows, over all seeds, of a class that no training row has. They are "
        "wrong for every model and cost 36 nats of log loss each. *Shared group*: test rows whose "
        "group has training rows too, which only the data's own split can have.",
        markdown_table(head, rows),
    ]


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}–{high}"


def _score_table(records: Sequence[Record]) -> str:
    rows = []
    for name in _names(records, "set"):
        for model in _names([r for r in records if r["set"] == name], "model"):
            own = _of(records, name, model)
            cells = [mean_se(_values(own, score)) for score in COLUMNS]
            rows.append([name, LABELS[model], str(len(own)), *cells])
    return markdown_table(["set", "model", "seeds", *COLUMNS.values()], rows)


def _scores(records: Sequence[Record]) -> list[str]:
    note = ""
    if any(r["model"] == "paper" for r in records):
        most = max(r["n_train"] for r in records if r["model"] == "paper")
        note = f" The paper's settings see {most} training rows at most."
    return [
        "## Scores",
        "Log loss in nats; ECE in 15 bins; AURC by the largest probability. Rows are certain by a "
        "paired t-test of the two leading classes over 100 sampled probabilities, at level 0.05; "
        "logistic regression has no samples. Seconds of a fit include every choice." + note,
        _score_table(records),
    ]


def _chosen(records: Sequence[Record]) -> str:
    rows = []
    for name in _names(records, "set"):
        for model in _names([r for r in records if r["set"] == name], "model"):
            own = _of(records, name, model)
            counts = Counter(_choice(r["chosen"]) for r in own).most_common()
            listed = "; ".join(f"{text} ({count})" for text, count in counts[:MOST_CHOICES])
            if len(counts) > MOST_CHOICES:
                listed += f"; {sum(count for _, count in counts[MOST_CHOICES:])} others"
            held = mean_se(_values([r["chosen"] for r in own], "heldout_log_loss"))
            rows.append([name, LABELS[model], held, listed])
    head = ["set", "model", "held-out log loss", "chosen (seeds)"]
    return markdown_table(head, rows)


def _choice(chosen: Record) -> str:
    left_out = ("heldout_log_loss", "calibration", "converged")
    words = []
    for key, value in chosen.items():
        if key not in left_out:
            said = figure(value) if isinstance(value, float) else str(value)
            words.append(f"{key} {said}")
    if not chosen.get("converged", True):
        words.append("not converged")
    return ", ".join(words)


# --- picture -------------------------------------------------------------------------------------


def picture(records: Sequence[Record]) -> str | None:
    """Return the picture of the page's fits as SVG; None if there is nothing to draw."""
    shown = [r for r in _fine(of_page(records)[0]) if r["model"] in DRAWN]
    return svg(draw(shown)) if shown else None


def draw(records: Sequence[Record]) -> Figure:
    """Draw the accuracy of certain and of uncertain rows, side by side for each model, by set."""
    sets, models = _names(records, "set"), [m for m in DRAWN if m in _names(records, "model")]
    fig = Figure(figsize=(2.2 + 1.9 * len(sets), 3.8), layout="constrained")
    ax = fig.subplots()
    width = 0.84 / (2 * len(models))
    tops: list[float] = []
    for k, model in enumerate(models):
        for j, kind in enumerate(("certain", "uncertain")):
            place = np.arange(len(sets)) + (2 * k + j - len(models) + 0.5) * width
            values = [_values(_of(records, s, model), f"accuracy_{kind}") for s in sets]
            means = [fmean(v) if v else math.nan for v in values]
            errors = [_standard_error(v) if len(v) > 1 else 0.0 for v in values]
            ax.bar(place, means, 0.94 * width, color=DRAWN[model], alpha=1.0 if j == 0 else 0.45,
                   label=f"{LABELS[model]}, {kind}", yerr=errors,
                   error_kw={"ecolor": INK, "elinewidth": 0.8})  # fmt: skip
            tops += [m + e for m, e in zip(means, errors, strict=True) if math.isfinite(m)]
        for i, name in enumerate(sets):
            shares = _values(_of(records, name, model), "share_certain")
            if shares:
                ax.text(i + (2 * k + 1 - len(models)) * width, 1.03, f"{100 * fmean(shares):.0f}",
                        ha="center", va="bottom", fontsize=8, color=DRAWN[model])  # fmt: skip
    ax.set_ylim(0.0, max(1.1, *tops))
    ax.set_yticks(np.linspace(0.0, 1.0, 6))
    ax.set_xticks(range(len(sets)), sets)
    ax.set_ylabel("accuracy", color=INK)
    ax.spines[["top", "right"]].set_visible(False)
    fig.legend(loc="outside lower center", ncols=len(models), **LEGEND)
    return fig
