r"""The page on calibration, made from the records.

A figure of a table is the mean over its folds. Distributions of the same fit are compared fold by
fold: the standard error beside a difference is that of the mean of the n paired differences, sd /
√n. Coverage is pooled over the folds, every test row counting once. A goal is judged by what was
run; if that does not settle it, it stays open.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from benchmarks.large_sets import SETS as LARGE
from benchmarks.large_tables import Grid
from benchmarks.scores import LEVELS
from benchmarks.uci_tables import REFERENCES as SMALL
from measurements.pages import Page, joined, scored
from measurements.store import Record
from measurements.tables import MISSING, figure, markdown_table, yes_no

__all__ = ["Folds", "Goal", "goals", "report"]

# --- goals: on the QICE of the local calibration
#: A QICE is near its floor up to this factor, or up to so many points above it.
NEAR_FACTOR, NEAR_POINTS = 1.25, 0.4
#: Share of the sets on which it should be near, and the most points above the floor on any set.
NEAR_SHARE, MOST_POINTS = 0.8, 1.5
# --- on coverage
#: Points that a coverage may be off, on sets with so many test rows per fold.
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
        """Return the mean over the folds of a distribution's score; the fit's if kind is None."""
        return fmean((r if kind is None else r[kind])[field] for r in self.records)

    def pooled(self, field: str, kind: str = "local") -> float:
        """Return the mean over the test rows of all folds."""
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


def report(records: Iterable[Record], peers: Iterable[Record] = ()) -> str:
    """Return the Markdown page.

    Parameters
    ----------
    records : records of the fits that are scored three times
    peers : records of :mod:`benchmarks.uci_large`
    """
    grid = Grid(peers)
    page = Page(
        "Calibration: one fit, three distributions",
        {
            "Small tables": _tables_of(lambda s: s.small and not s.atoms),
            "Larger tables": _tables_of(lambda s: not s.small and not s.atoms),
            "Targets with few levels": _tables_of(lambda s: s.atoms, _ATOMS_TEXT),
            "Goals": lambda found: _goals(_by_set(found), grid),
            "Against boosted trees": lambda found: _against_trees(_by_set(found), grid),
            "Width and certainty": lambda found: joined(_WIDTH_TEXT, _widths(_by_set(found))),
            "What was learned, and what it cost": lambda found: joined(
                _COST_TEXT, _costs(_by_set(found))
            ),
        },
        about=lambda found: _TABLE_TEXT if scored(found) else "",
        failed_by=("set", "fold"),
    )
    return page(records)


def _by_set(records: Iterable[Record]) -> list[Folds]:
    found: dict[str, list[Record]] = defaultdict(list)
    for record in scored(records):
        found[record["set"]].append(record)
    return [Folds(name, found[name]) for name in (*SMALL, *LARGE) if name in found]


def _tables_of(wanted: Callable[[Folds], bool], text: str = "") -> Callable[[list[Record]], str]:
    """Return the section of some tables; it is empty if none of them was run."""

    def section(records: list[Record]) -> str:
        chosen = [s for s in _by_set(records) if wanted(s)]
        return joined(text, _distributions(chosen)) if chosen else ""

    return section


def _duels(sets: Iterable[Folds], peers: Grid) -> list[_Duel]:
    return [_Duel(s, peers) for s in sets if not s.small]


def _goals(sets: list[Folds], peers: Grid) -> str:
    return joined(_GOALS_TEXT, _goal_table(goals(sets, _duels(sets, peers))))


def _against_trees(sets: list[Folds], peers: Grid) -> str:
    compared = _duels(sets, peers)
    return joined(_PEERS_TEXT, _peers(compared)) if compared else ""


# --- one fit, three distributions ----------------------------------------------------------------

_TABLE_TEXT = (
    "Mean over the folds, target standardised; *none*, *scale* and *local* are calibrations of the "
    "same fits. NLPD is of the Gaussian with the predicted mean and standard deviation, CRPS of "
    "the model's own quantiles, QICE (percent) of its distribution function; floor: the "
    "expected QICE of a perfectly calibrated model. The difference is shown with the standard "
    "error of the paired folds. Coverage: of the intervals of *local*, percent."
)
_ATOMS_TEXT = (
    "More than 5 % of the rows share a value: QICE and coverage are those of a randomised PIT "
    "between the midpoints of neighbouring training values."
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
    "For the calibration *local*, over the tables that were run; in brackets the worst table. QICE "
    "and coverage: only targets without atoms."
)


@dataclass(frozen=True)
class Goal:
    """A figure, what it should be, and whether it is; None if that is not settled."""

    title: str
    figure: str
    wanted: str
    met: bool | None


def goals(sets: Sequence[Folds], compared: Sequence[_Duel] = ()) -> list[Goal]:
    """Return every goal, judged by the tables that were run."""
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
    title = f"coverage off its level, points, sets with ≥ {COVERAGE_ROWS} test rows per fold"
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
    # A single fold has no standard error, so there is no allowance.
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
    "On the folds that all models of a row have; CatBoost with the better of its two losses. "
    "CRPS: ours of our own quantiles, the others' of the Gaussian with their mean and standard "
    "deviation. The lowest is bold."
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
        """Return the mean scores of ours, LightGBM and the better CatBoost, if they have one."""
        everyone = {"ours": self.ours, **self.rivals}
        found: dict[str, float] = {}
        for model, by_fold in everyone.items():
            values = [by_fold[fold].get(field) for fold in self.folds]
            if values and None not in values:
                found[model] = fmean(values)
        worse = sorted((m for m in CATBOOST if m in found), key=lambda m: found[m])[1:]
        return {model: score for model, score in found.items() if model not in worse}

    def ahead(self, field: str) -> bool | None:
        """Return whether ours is the lowest; None if a rival is missing that might be lower."""
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
    "RMSE over the tenth of the rows that the model is surest of (HC), and least sure of (LC)."
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
    "degrees of freedom of its tails); CPU seconds per fit, and of the calibration relative "
    "to the rest of the fit; CPU seconds of 1000 predictions with mean and standard deviation."
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
    """Return the models of the log scale with their mean weights, 0 if one is not used."""
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
