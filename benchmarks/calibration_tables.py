r"""The page on calibration, made from the records.

A figure of a table is the mean over its folds. Distributions of the same fit are compared fold by
fold: the standard error beside a difference is that of the mean of the n paired differences, sd /
√n. Coverage is pooled over the folds, every test row counting once. A goal is judged by what was
run; where that does not settle it, it stays open.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from benchmarks.calibration_fits import INPUTS, SHIFT_MODELS
from benchmarks.large_sets import SETS as LARGE
from benchmarks.large_tables import Grid
from benchmarks.scores import LEVELS
from benchmarks.uci_tables import REFERENCES as SMALL
from measurements.provenance import provenance
from measurements.store import Record
from measurements.tables import MISSING, figure, markdown_table, yes_no

__all__ = ["GPNN_PAPER", "Folds", "Goal", "goals", "report"]

TITLE = "# Calibration: one fit, three distributions\n"

#: HC-RMSE of the paper's two-stage GPNN.
GPNN_PAPER: Mapping[str, float] = {"poletele": 0.14, "bike": 0.39, "protein": 0.19}

# --- goals: on the QICE of the local calibration
#: A QICE is near its floor up to this factor, or up to so many points above it.
NEAR_FACTOR, NEAR_POINTS = 1.25, 0.4
#: Share of the sets on which it should be near, and points above the floor that none may exceed.
NEAR_SHARE, MOST_POINTS = 0.8, 1.5
# --- on coverage
#: Points that a coverage may be off, on sets with so many test rows a fold.
COVERAGE_POINTS, COVERAGE_ROWS = 2.0, 700
# --- on NLPD
NLPD_GOALS: Mapping[str, float] = {"bike": -0.65, "pol": -2.2, "protein": 0.50}
#: Larger tables on which ours should be ahead of the boosted trees.
AHEAD = 8
# --- on costs
#: Calibration over everything else of a fit, and prediction over that with one factor.
FIT_RATIO, PREDICT_RATIO = 0.5, 2.0

COVERAGES = {level: f"coverage_{100 * level:.0f}" for level in LEVELS}
CATBOOST = {"catboost_uncertainty": "uncertainty", "catboost_rmse": "RMSE"}


@dataclass(frozen=True)
class Folds:
    """The scored folds of a table."""

    name: str
    records: Sequence[Record]

    @property
    def atoms(self) -> bool:
        """Whether the target has few levels."""
        return bool(self.records[0]["atoms"])

    @property
    def small(self) -> bool:
        """Whether it is one of the small tables."""
        return self.name in SMALL

    def mean(self, field: str, kind: str | None = "local") -> float:
        """Over the folds, of a distribution's score, or of the fit's where there is no kind."""
        return fmean((r if kind is None else r[kind])[field] for r in self.records)

    def pooled(self, field: str, kind: str = "local") -> float:
        """Over the test rows of all folds."""
        rows = [r["n_test"] for r in self.records]
        return sum(n * r[kind][field] for n, r in zip(rows, self.records, strict=True)) / sum(rows)

    @property
    def change(self) -> tuple[float, float]:
        """NLPD of local less that of scale: mean and standard error, NaN of a single fold."""
        changes = [r["local"]["nlpd"] - r["scale"]["nlpd"] for r in self.records]
        if len(changes) < 2:
            return changes[0], math.nan
        return fmean(changes), stdev(changes) / math.sqrt(len(changes))

    @property
    def qice_excess(self) -> float:
        """Points of the QICE above its floor."""
        return self.mean("qice") - self.mean("qice_floor")

    @property
    def qice_near(self) -> bool:
        """Whether the QICE is near its floor."""
        floor = self.mean("qice_floor")
        return self.mean("qice") <= max(NEAR_FACTOR * floor, floor + NEAR_POINTS)

    @property
    def fit_ratio(self) -> float:
        """Seconds of the calibration over those of the rest of a fit."""
        share = self.mean("calibration_share", None)
        return share / (1.0 - share)

    @property
    def predict_ratio(self) -> float:
        """CPU seconds of a prediction over those with one factor."""
        return self.mean("predict_cpu_local", None) / self.mean("predict_cpu_scale", None)


def report(
    records: Iterable[Record],
    gpnn: Iterable[Record] = (),
    shift: Iterable[Record] = (),
    peers: Iterable[Record] = (),
) -> str:
    """The Markdown page.

    Parameters
    ----------
    records : records of the fits that are scored three times
    gpnn : records under GPNN's protocol
    shift : records of the shift
    peers : records of :mod:`benchmarks.uci_large`
    """
    everyone = [list(records), list(gpnn), list(shift)]
    scored, scored_gpnn, scored_shift = ([r for r in k if not r.get("error")] for k in everyone)
    failures = [r for kind in everyone for r in kind if r.get("error")]
    if not any(everyone):
        return f"{TITLE}\nNo results yet.\n"
    parts = [TITLE]
    if ours := [r for r in [*scored, *scored_gpnn, *scored_shift] if r.get("code")]:
        parts.append(f"{provenance(ours)}\n")
    if scored:
        parts += _of_fits(_by_set(scored), Grid(peers))
    if scored_gpnn:
        parts += ["## High certainty under GPNN's protocol\n", _GPNN_TEXT, _gpnn(scored_gpnn)]
    if scored_shift:
        parts += ["## A shift: winter to July\n", _SHIFT_TEXT, _shift(scored_shift)]
    if failures:
        parts += ["## Failed fits\n", "".join(_failure(r) for r in failures)]
    return "\n".join(parts)


def _by_set(records: Iterable[Record]) -> list[Folds]:
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        found[record["set"]].append(record)
    return [Folds(name, found[name]) for name in (*SMALL, *LARGE) if name in found]


def _of_fits(sets: list[Folds], peers: Grid) -> list[str]:
    kinds: Mapping[str, Callable[[Folds], bool]] = {
        "## Small tables\n": lambda s: s.small and not s.atoms,
        "## Larger tables\n": lambda s: not s.small and not s.atoms,
        "## Targets with few levels\n": lambda s: s.atoms,
    }
    parts = [_TABLE_TEXT]
    for title, wanted in kinds.items():
        if chosen := [s for s in sets if wanted(s)]:
            parts += [title, *([_ATOMS_TEXT] if chosen[0].atoms else []), _distributions(chosen)]
    compared = [_Duel(s, peers) for s in sets if not s.small]
    parts += ["## Goals\n", _GOALS_TEXT, _goal_table(goals(sets, compared))]
    if compared:
        parts += ["## Against boosted trees\n", _PEERS_TEXT, _peers(compared)]
    parts += ["## Width and certainty\n", _WIDTH_TEXT, _widths(sets)]
    return [*parts, "## What was learned, and what it cost\n", _COST_TEXT, _costs(sets)]


# --- one fit, three distributions ----------------------------------------------------------------

_TABLE_TEXT = (
    "Mean over the folds, target standardised; *none*, *scale* and *local* are calibrations of the "
    "same fits. NLPD is of the Gaussian with the predicted mean and standard deviation, CRPS of "
    "the model's own quantiles, QICE (percent) of its distribution function; floor: what a "
    "perfectly calibrated model scores. The difference stands with the standard error of the "
    "paired folds. Coverage: of the intervals of *local*, percent.\n"
)
_ATOMS_TEXT = (
    "More than 5 % of the rows share a value: QICE and coverage are those of a randomised PIT "
    "between the midpoints of neighbouring training values.\n"
)


def _distributions(sets: list[Folds]) -> str:
    header = ["set", "folds", "NLPD none", "scale", "local", "local − scale"]
    header += ["CRPS scale", "local", "QICE scale", "local", "floor"]
    header += [f"{100 * level:.0f} %" for level in LEVELS]
    rows = []
    for s in sets:
        rows.append(
            [
                s.name,
                str(len(s.records)),
                *(figure(s.mean("nlpd", kind)) for kind in ("none", "scale", "local")),
                _signed(*s.change),
                *(figure(s.mean("crps", kind), 4) for kind in ("scale", "local")),
                *(f"{s.mean('qice', kind):.2f}" for kind in ("scale", "local")),
                f"{s.mean('qice_floor'):.2f}",
                *(f"{100 * s.pooled(field):.1f}" for field in COVERAGES.values()),
            ]
        )
    return markdown_table(header, rows)


def _signed(mean: float, error: float) -> str:
    return f"{mean:+.3f}" if math.isnan(error) else f"{mean:+.3f} ± {error:.3f}"


# --- goals ---------------------------------------------------------------------------------------

_GOALS_TEXT = (
    "Of *local*, over the tables that were run; in brackets the table that is worst. QICE and "
    "coverage: only targets without atoms.\n"
)


@dataclass(frozen=True)
class Goal:
    """A figure, what it should be, and whether it is; None where that is open."""

    title: str
    figure: str
    wanted: str
    met: bool | None


def goals(sets: Sequence[Folds], compared: Sequence[_Duel] = ()) -> list[Goal]:
    """Every goal, judged by the tables that were run."""
    smooth = [s for s in sets if not s.atoms]
    return [
        *_qice_goals(smooth),
        _coverage_goal([s for s in smooth if _test_rows(s) >= COVERAGE_ROWS]),
        _nlpd_goal([s for s in sets if s.small]),
        *(_nlpd_figure(sets, name, goal) for name, goal in NLPD_GOALS.items()),
        _ratio_goal(sets, "fit: calibration over everything else", FIT_RATIO, _fit_ratio),
        _ratio_goal(sets, "prediction: over that with one factor", PREDICT_RATIO, _predict_ratio),
        _ahead_goal(compared),
    ]


def _qice_goals(sets: list[Folds]) -> list[Goal]:
    near = sum(s.qice_near for s in sets)
    needed = math.ceil(NEAR_SHARE * len(sets))
    worst = max(sets, key=lambda s: s.qice_excess, default=None)
    return [
        Goal(
            f"QICE at most {NEAR_FACTOR:g} × floor or floor + {NEAR_POINTS:g}",
            f"{near} of {len(sets)} sets" if sets else MISSING,
            f"≥ {needed} of {len(sets)}" if sets else MISSING,
            near >= needed if sets else None,
        ),
        Goal(
            "QICE above its floor, points",
            MISSING if worst is None else f"{worst.qice_excess:.2f} ({worst.name})",
            f"≤ {MOST_POINTS:g}",
            None if worst is None else worst.qice_excess <= MOST_POINTS,
        ),
    ]


def _test_rows(s: Folds) -> int:
    return min(r["n_test"] for r in s.records)


def _coverage_goal(sets: list[Folds]) -> Goal:
    off = {
        (s.name, level): 100.0 * (s.pooled(field) - level)
        for s in sets
        for level, field in COVERAGES.items()
    }
    title = f"coverage off its level, points, sets with ≥ {COVERAGE_ROWS} test rows a fold"
    wanted = f"≤ {COVERAGE_POINTS:g} either way"
    if not off:
        return Goal(title, MISSING, wanted, None)
    (name, level), worst = max(off.items(), key=lambda item: abs(item[1]))
    text = f"{worst:+.1f} ({name}, {100 * level:.0f} %)"
    return Goal(title, text, wanted, abs(worst) <= COVERAGE_POINTS)


def _nlpd_goal(sets: list[Folds]) -> Goal:
    title, wanted = "small tables: NLPD less that of scale", "≤ 1 SE on each"
    if not sets:
        return Goal(title, MISSING, wanted, None)
    # Of a single fold there is no standard error, and no allowance.
    excess = {s.name: s.change[0] - (0.0 if math.isnan(s.change[1]) else s.change[1]) for s in sets}
    worst = max(sets, key=lambda s: excess[s.name])
    held = sum(value <= 0.0 for value in excess.values())
    text = f"{held} of {len(sets)} sets; {_signed(*worst.change)} ({worst.name})"
    return Goal(title, text, wanted, held == len(sets))


def _nlpd_figure(sets: Sequence[Folds], name: str, goal: float) -> Goal:
    found = next((s.mean("nlpd") for s in sets if s.name == name), None)
    met = None if found is None else found <= goal
    return Goal(f"NLPD on {name}", figure(found), f"≤ {goal:g}", met)


def _fit_ratio(s: Folds) -> float:
    return s.fit_ratio


def _predict_ratio(s: Folds) -> float:
    return s.predict_ratio


def _ratio_goal(
    sets: Sequence[Folds], title: str, most: float, ratio: Callable[[Folds], float]
) -> Goal:
    if not sets:
        return Goal(title, MISSING, f"≤ {most:g}", None)
    worst = max(sets, key=ratio)
    text = f"{ratio(worst):.2f} ({worst.name})"
    return Goal(title, text, f"≤ {most:g}", ratio(worst) <= most)


def _ahead_goal(compared: Sequence[_Duel]) -> Goal:
    settled = [duel.ahead("nlpd") for duel in compared]
    wins, losses = settled.count(True), settled.count(False)
    met = True if wins >= AHEAD else False if len(LARGE) - losses < AHEAD else None
    return Goal(
        "NLPD ahead of LightGBM and of CatBoost",
        f"{wins} of {wins + losses} compared" if wins + losses else MISSING,
        f"≥ {AHEAD} of {len(LARGE)}",
        met,
    )


def _goal_table(found: Iterable[Goal]) -> str:
    rows = [[goal.title, goal.figure, goal.wanted, yes_no(goal.met)] for goal in found]
    return markdown_table(["goal", "figure", "wanted", "met"], rows)


# --- against boosted trees -----------------------------------------------------------------------

_PEERS_TEXT = (
    "On the folds that all of a row have; of CatBoost's two losses the one with the better score. "
    "CRPS: ours of our own quantiles, the others' of the Gaussian with their mean and standard "
    "deviation. The lowest is bold.\n"
)


class _Duel:
    """Our folds of a table and those of the boosted trees, on the same rows."""

    def __init__(self, ours: Folds, peers: Grid) -> None:
        self.name = ours.name
        self.ours = {r["fold"]: r["local"] for r in ours.records}
        rivals = {m: peers.cell(m, ours.name).scored for m in ("lightgbm", *CATBOOST)}
        self.rivals = {model: scored for model, scored in rivals.items() if scored}
        common = set(self.ours).intersection(*self.rivals.values())
        self.folds = sorted(common) if self.rivals else []

    def scores(self, field: str) -> dict[str, float]:
        """Mean score of ours, LightGBM and the better CatBoost, where they have one."""
        everyone = {"ours": self.ours, **self.rivals}
        found: dict[str, float] = {}
        for model, scored in everyone.items():
            values = [scored[fold].get(field) for fold in self.folds]
            if values and None not in values:
                found[model] = fmean(values)
        worse = sorted((m for m in CATBOOST if m in found), key=lambda m: found[m])[1:]
        return {model: score for model, score in found.items() if model not in worse}

    def ahead(self, field: str) -> bool | None:
        """Whether ours is the lowest; None where a rival is missing that might be lower."""
        found = self.scores(field)
        mine = found.pop("ours", None)
        if mine is None or not found:
            return None
        if any(score <= mine for score in found.values()):
            return False
        both = "lightgbm" in found and any(model in found for model in CATBOOST)
        return True if both else None


def _peers(compared: Iterable[_Duel]) -> str:
    header = ["set", "folds"]
    for title in ("NLPD", "CRPS"):
        header += [f"{title} ours", "LightGBM", "CatBoost", "ahead"]
    rows = []
    for duel in compared:
        row = [duel.name, str(len(duel.folds)) if duel.folds else MISSING]
        for field, digits in (("nlpd", 3), ("crps", 4)):
            found = duel.scores(field)
            first = min(found, key=lambda model: found[model], default=None)
            catboost = next((model for model in CATBOOST if model in found), None)
            for model in ("ours", "lightgbm", catboost):
                text = MISSING if model is None else figure(found.get(model), digits)
                text = f"**{text}**" if model is not None and model == first else text
                row.append(text + (f" ({CATBOOST[model]})" if model in CATBOOST else ""))
            row.append(first if first is not None and len(found) > 1 else MISSING)
        rows.append(row)
    return markdown_table(header, rows)


# --- width, cost ---------------------------------------------------------------------------------

_WIDTH_TEXT = (
    "Mean width of the 95 % interval and mean pinball loss (levels 0.05, 0.25, 0.5, 0.75, 0.95); "
    "RMSE over the tenth of the rows that the model is surest of (HC), and least sure of (LC).\n"
)


def _widths(sets: Iterable[Folds]) -> str:
    fields = {"width": "width_95", "pinball": "pinball", "HC": "hc_rmse", "LC": "lc_rmse"}
    header = ["set", "RMSE"]
    for title in fields:
        header += [f"{title} scale", "local"]
    rows = []
    for s in sets:
        row = [s.name, figure(s.mean("rmse", None))]
        for field in fields.values():
            row += [figure(s.mean(field, kind), 4) for kind in ("scale", "local")]
        rows.append(row)
    return markdown_table(header, rows)


_COST_TEXT = (
    "Mean weights a of the models of the local scale, and how often each shape was chosen (median "
    "degrees of freedom of its tails); CPU seconds of a fit, those of the calibration over all "
    "others; CPU seconds of 1000 predictions with mean and standard deviation.\n"
)


def _costs(sets: Iterable[Folds]) -> str:
    header = ["set", "local scale", "shape", "fit, CPU s", "calibration / rest"]
    header += ["1000 predictions, scale", "local", "ratio"]
    rows = []
    for s in sets:
        seconds = {
            kind: 1000.0 * s.mean(f"predict_cpu_{kind}", None) / s.mean("n_test", None)
            for kind in ("scale", "local")
        }
        rows.append(
            [
                s.name,
                _weights([r["learned"] for r in s.records]),
                _shapes([r["learned"] for r in s.records]),
                figure(s.mean("fit_cpu", None)),
                f"{s.fit_ratio:.2f}",
                figure(seconds["scale"]),
                figure(seconds["local"]),
                f"{s.predict_ratio:.2f}",
            ]
        )
    return markdown_table(header, rows)


def _weights(learned: list[Record]) -> str:
    """Models of the log scale with the mean of their weights, nought where one is not used."""
    total: dict[str, float] = defaultdict(float)
    for one in learned:
        for member, a in zip(one["members"], one["a"], strict=True):
            total[member] += a / len(learned)
    return " + ".join(f"{a:.2f} {member}" for member, a in total.items()) or "none"


def _shapes(learned: list[Record]) -> str:
    parts = []
    for shape, count in Counter(one["shape"] for one in learned).most_common():
        degrees = [one["degrees"] for one in learned if one["shape"] == shape]
        known = sorted(d for d in degrees if d is not None)
        tails = f" ({known[len(known) // 2]:.1f})" if known else ""
        parts.append(f"{count} {shape}{tails}")
    return ", ".join(parts)


# --- GPNN's protocol, a shift --------------------------------------------------------------------

_GPNN_TEXT = (
    "RMSE over the tenth of the rows that the model is surest of, target standardised: random "
    "splits of 7/9 and 2/9, inputs whitened by their principal components, against the paper's "
    "two-stage GPNN; and the same estimator on the columns as they are. LC: over the tenth that it "
    "is least sure of.\n"
)
_SHIFT_TEXT = (
    "Household power, fitted to four weeks of winter, tested on a tenth of their minutes that was "
    "left out and on July 2010, whose day of the year no model has seen. Coverage and mean width "
    "are of the model's own 95 % interval, the target standardised by the training rows.\n"
)


def _gpnn(records: list[Record]) -> str:
    header = ["set", "seeds", "paper"]
    for inputs in INPUTS:
        header += [f"HC {inputs}", "below", f"LC {inputs}", f"RMSE {inputs}"]
    rows = []
    for name, paper in GPNN_PAPER.items():
        own = [r for r in records if r["set"] == name]
        row = [name, str(len({r["fold"] for r in own})), f"{paper:g}"]
        for inputs in INPUTS:
            hc, lc, rmse = (
                _mean([r[field] for r in own if r["inputs"] == inputs])
                for field in ("hc_rmse", "lc_rmse", "rmse")
            )
            below = None if hc is None else hc <= paper
            row += [figure(hc), yes_no(below), figure(lc), figure(rmse)]
        if own:
            rows.append(row)
    return markdown_table(header, rows)


def _shift(records: list[Record]) -> str:
    fields = {"RMSE": "rmse", "95 % coverage": "coverage_95", "width": "width_95"}
    header = ["model"]
    for title in fields:
        header += [f"{title} winter", "July"]
    rows = []
    for model in SHIFT_MODELS:
        own = [r for r in records if r["model"] == model]
        row = [model]
        for field in fields.values():
            row += [figure(_mean([r[season][field] for r in own])) for season in ("winter", "july")]
        if own:
            rows.append(row)
    return markdown_table(header, rows)


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None


def _failure(record: Record) -> str:
    where = [str(record[f]) for f in ("model", "set", "inputs") if f in record]
    return f"- {', '.join(where)}, fold {record['fold']}: {record['error']}\n"
