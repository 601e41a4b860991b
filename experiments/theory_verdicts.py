"""Verdicts on the theory, computed from the records.

A :class:`Check` is one claim, the figure that decides it, and whether it holds. The claims as the
paper prints them and those put right are judged apart: all hold, some do, or none does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from experiments.theory_band import DELTAS as BAND_DELTAS
from experiments.theory_concentration import DELTAS, QUANTITIES
from experiments.theory_expected import EPSILON_DELTA
from experiments.theory_lemmas import TAIL_DELTA
from experiments.theory_ratio import DELTA, EXCESSES
from measurements.store import Record
from measurements.tables import figure

__all__ = [
    "ITEMS",
    "Check",
    "Slope",
    "cell_mean",
    "item_checks",
    "levels",
    "of",
    "quantity",
    "slope",
    "verdict",
]

#: Standard errors that a simulated mean may lie away from its formula, over hundreds of cells.
_ERRORS = 5.0
#: A fitted exponent agrees with another within three standard errors, and within this in any case.
_EXPONENT = 0.03
#: Relative error of a standard deviation from some thousand draws, over hundreds of cells.
_SPREAD = 0.05
#: A constant of a bound may seem to grow with this power of n before it counts as growing.
_FLAT = 0.05
#: Logarithm of a parameter below which it is called recovered, and slope that is called zero.
_RECOVERED, _ZERO_SLOPE = 1e-5, 1e-9
#: Relative error of a derivative against differences.
_DERIVATIVE = 1e-6
#: Share of rows with ratios up to the threshold that Algorithm 2 asks for.
_ACCEPTED = 0.95
WRONG = ("too smooth", "too long")
LOSS = QUANTITIES[0]


@dataclass(frozen=True)
class Check:
    """A claim, the figure that decides it, and whether it holds."""

    claim: str
    found: str
    holds: bool


@dataclass(frozen=True)
class Slope:
    """A fitted exponent: mean over the seeds and its standard error (0 for one seed)."""

    mean: float
    se: float

    def agrees(self, other: float) -> bool:
        """Return whether it equals another exponent within its error."""
        return abs(self.mean - other) <= max(3.0 * self.se, _EXPONENT)

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.se:.3f}"


def verdict(checks: Sequence[Check]) -> str:
    """Return in words whether all, some or none of the checks hold.

    Examples
    --------
    >>> verdict([Check("a", "", True), Check("b", "", False)])
    'holds in part (1 of 2)'
    """
    if not checks:
        return "not measured"
    held = sum(check.holds for check in checks)
    words = "holds" if held == len(checks) else "holds in part" if held else "does not hold"
    return f"{words} ({held} of {len(checks)})"


def of(records: Iterable[Record], item: str, **fields: object) -> list[Record]:
    """Return the records of an item without an error that have the given fields."""
    wanted = {"item": item} | fields
    return [r for r in records if not r.get("error") and all(r[k] == v for k, v in wanted.items())]


def cell_mean(records: Iterable[Record], field: str) -> float:
    """Return the mean of a field over the records; NaN without any."""
    values = [float(r[field]) for r in records]
    return fmean(values) if values else math.nan


def quantity(name: str, field: str) -> Callable[[Record], float]:
    """Return a function that reads a field of one concentrating quantity from a record."""
    return lambda record: float(record["quantities"][name][field])


def slope(records: Sequence[Record], value: Callable[[Record], float]) -> Slope:
    """Return the exponent of n, fitted by least squares in logarithms to each seed."""
    found = []
    for seed in sorted({r["seed"] for r in records}):
        own = [r for r in records if r["seed"] == seed]
        x, y = np.log([r["n"] for r in own]), np.log([value(r) for r in own])
        if len(set(x)) > 1:
            found.append(float(np.polyfit(x, y, 1)[0]))
    if not found:
        return Slope(math.nan, math.nan)
    se = float(np.std(found, ddof=1)) / math.sqrt(len(found)) if len(found) > 1 else 0.0
    return Slope(fmean(found), se)


def levels(records: Sequence[Record], *names: str) -> list[tuple[Any, ...]]:
    """Return the combinations of values of some fields, in order of appearance."""
    return list(dict.fromkeys(tuple(r[name] for name in names) for r in records))


# --- 1 -------------------------------------------------------------------------------------------


def _mean(records: Sequence[Record]) -> tuple[list[Check], list[Check]]:
    own = of(records, "mean")
    if not own:
        return [], []
    real = [r for r in own if r["right"] - r["printed"] > 1e-6]
    away = {
        form: max(abs(r["simulated"] - r[form]) / r["simulated_se"] for r in own)
        for form in ("right", "printed")
    }
    fit = min((r["simulated"] / (0.5 * (r["right"] + r["printed"])) for r in real), default=1.0)
    lowest_fit = min(r["printed_data_fit"] for r in own)
    counter = sorted({r["case"] for r in real if abs(r["form_slope"]) > 1e-3 and _kept(r, 0)})
    plain = [r for r in real if r["case"] != "balanced"]
    moved = min((max(abs(math.log(x)) for x in r["together"]) for r in plain), default=0.0)
    printed = [
        Check(
            "E[yᵀK⁻¹y] = Tr(K⁻¹K\\*) − mᵀK⁻¹m",
            f"simulations lie up to {away['printed']:.0f} standard errors away",
            away["printed"] <= _ERRORS,
        ),
        Check(
            "the data fit is underestimated",
            f"it is at least {fit:.2f} times that of the right mean",
            fit < 1.0,
        ),
        Check(
            "the printed MEL has a minimum",
            f"its data fit goes down to {figure(lowest_fit)} per row: "
            + ("no lower bound" if lowest_fit < 0.0 else "bounded"),
            lowest_fit >= 0.0,
        ),
        Check(
            "θ\\* is not recovered unless it is a stationary point of mᵀK⁻¹∂K K⁻¹m",
            f"recovered although not stationary: {', '.join(counter) or 'never'}",
            not counter,
        ),
        Check(
            "the conclusion: a mean taken for zero moves θ",
            f"some parameter by a factor of at least {math.exp(moved):.2f}",
            moved > _RECOVERED,
        ),
    ]
    return printed, _mean_right(own, away["right"])


def _kept(record: Record, j: int) -> bool:
    """Return whether parameter j, optimised alone, is recovered."""
    return abs(math.log(record["alone"][j])) < _RECOVERED


def _mean_right(own: list[Record], away: float) -> list[Check]:
    error = max(
        abs(a - b) / max(abs(a), 1e-3)
        for r in own
        for a, b in zip(r["slope_formula"], r["slope_differences"], strict=True)
    )
    pairs = [(r, j) for r in own for j in range(3)]
    wrong = sum((abs(r["slope_formula"][j]) < _ZERO_SLOPE) != _kept(r, j) for r, j in pairs)
    up = [r["alone"][j] for r, j in pairs if j > 0 and r["slope_formula"][j] < -_ZERO_SLOPE]
    return [
        Check(
            "E[yᵀK⁻¹y] = Tr(K⁻¹K\\*) + mᵀK⁻¹m",
            f"simulations lie at most {away:.1f} standard errors away",
            away <= _ERRORS,
        ),
        Check(
            "slope of MEL at θ\\* = −(1/2n) mᵀK⁻¹∂K K⁻¹m",
            f"differences agree to {error:.0e}",
            error <= _DERIVATIVE,
        ),
        Check(
            "a parameter is recovered exactly where that is zero",
            f"{len(pairs) - wrong} of {len(pairs)} cases",
            wrong == 0,
        ),
        Check(
            "outputscale and noise, each alone, become larger",
            f"smallest factor {min(up, default=math.nan):.5f} of {len(up)}",
            bool(up) and min(up) > 1.0,
        ),
    ]


# --- 2 -------------------------------------------------------------------------------------------


def _ratio(records: Sequence[Record]) -> tuple[list[Check], list[Check]]:
    own, limit = of(records, "ratio"), of(records, "limit")
    if not own or not limit:
        return [], []
    tau = f"{EXCESSES[0]:g}"
    met = [r for r in own if r.get("worst_where_met") is not None]
    worst = max((r["worst_where_met"] for r in met), default=math.nan)
    whole = [r[f"all_rows_{tau}"] for r in met if r["condition_met"] == 1.0]
    accepted = [1.0 - x for x in _by_cell(own, "right", f"residuals_{tau}").values()]
    told, known = (_told_apart(own, f"{kind}_{tau}") for kind in ("residuals", "exact"))
    least = min(r["noise"] for r in limit)
    passed = [r[f"residuals_{tau}"] for r in limit if r["noise"] == least and r["case"] in WRONG]
    growth = _growth(own, "lemma4_excess")
    printed = [
        Check(
            "at one x: P(Δ > 1.1) ≤ δ where the condition on n is met",
            f"at most {figure(worst)} for the worst function, δ = {DELTA:g}",
            worst <= DELTA,
        ),
        Check(
            "for all x at once",
            f"all of 1000 rows pass in {min(whole, default=math.nan):.2f} of the draws at worst",
            bool(whole) and min(whole) >= 1.0 - DELTA,
        ),
        Check(
            "the proof's bound, by Lemma 4, goes to 1 with n",
            f"its excess changes by a factor of {growth:.2f} from the fewest rows to the most",
            growth < 1.0,
        ),
        Check(
            "with residuals for the noise, the right kernel is accepted",
            f"its ratios are up to 1.1 in {min(accepted):.2f} to {max(accepted):.2f} of the rows, "
            f"against {_ACCEPTED:g}",
            min(accepted) >= _ACCEPTED,
        ),
        Check(
            "with residuals, a wrong kernel has more large ratios",
            f"in {sum(told)} of {len(told)} comparisons (with the true noise in {sum(known)})",
            all(told),
        ),
        Check(
            "with residuals and σ_ξ → 0, a wrong kernel is still seen",
            f"ratios above 1.1: {max(passed, default=math.nan):.1e} of the rows at most",
            max(passed, default=0.0) > DELTA,
        ),
    ]
    return printed, _ratio_right(own, tau)


def _ratio_right(own: list[Record], tau: str) -> list[Check]:
    away = max(
        abs(r[f"simulated_{t:g}"] - r[f"exact_{t:g}"])
        / max(r[f"simulated_se_{t:g}"], math.sqrt(r[f"exact_{t:g}"] / 4e5), 1e-9)
        for r in own
        for t in EXCESSES
    )
    bounded = [r["bound_holds"] for r in own if "bound_holds" in r]
    fall, growth = _growth(own, f"exact_{tau}"), _growth(own, "right_excess")
    return [
        Check(
            "P(Δ > 1 + τ) = Φ(b/τv) − Φ(−b/(2 + τ)v)",
            f"simulations lie at most {away:.1f} standard errors away",
            away <= _ERRORS,
        ),
        Check(
            "P(Δ > 1.1) ≤ 1 − exp(−a²/2 − a), a = ‖f‖σ̂/0.1v, at one x",
            f"in {sum(bounded)} of {len(bounded)} cells, for the worst function too",
            all(bounded),
        ),
        Check(
            "with v itself the bound goes down with n",
            f"its excess changes by a factor of {growth:.2f}",
            growth < 1.0,
        ),
        Check(
            "with the true noise, large ratios of the right kernel vanish with n",
            f"their share changes by a factor of {fall:.2f}",
            fall < 1.0,
        ),
    ]


def _by_cell(own: Sequence[Record], case: str, field: str) -> dict[tuple[int, float], float]:
    """Return the mean over the seeds of every (n, noise)."""
    mine = [r for r in own if r["case"] == case]
    return {
        (n, noise): cell_mean([r for r in mine if (r["n"], r["noise"]) == (n, noise)], field)
        for n, noise in levels(mine, "n", "noise")
    }


def _told_apart(own: Sequence[Record], field: str) -> list[bool]:
    """Return, per cell, whether a wrong kernel has a larger share than the function's own."""
    told = []
    for case in WRONG:
        right = _by_cell(own, case, f"own_{field}")
        told += [share > right[cell] for cell, share in _by_cell(own, case, field).items()]
    return told


def _growth(own: Sequence[Record], field: str) -> float:
    """Return the largest factor, over the noises, from the fewest rows to the most."""
    cells = _by_cell(own, "right", field)
    rows = sorted({n for n, _ in cells})
    noises = {noise for _, noise in cells}
    return max(cells[rows[-1], s] / cells[rows[0], s] for s in noises)


# --- 3 -------------------------------------------------------------------------------------------


def _expected(records: Sequence[Record]) -> tuple[list[Check], list[Check]]:
    own = of(records, "expected")
    if not own:
        return [], []
    at_truth, some = (max(r[name] for r in own) for name in ("slope", "slope_some_rows"))
    ratios = [r["printed_curvature"] / r["curvature"][0] for r in own]
    least = min(min(r["curvature"]) for r in own)
    case_two = [r["case_two_printed"] for r in own]
    beyond = max(r["beyond_printed"] for r in own)
    printed = [
        Check("θ\\* is stationary for every n", f"slope at most {at_truth:.0e}", at_truth < 1e-12),
        Check("and on a subsample", f"slope at most {some:.0e}", some < 1e-12),
        Check("every curvature is positive", f"least {figure(least)}", least > 0.0),
        Check(
            "case 2: slope away from σ_ξ\\*, printed with σ_ξ\\* below",
            f"{min(case_two):.2f} to {max(case_two):.2f} times the right one at 1.5 σ_ξ\\*",
            max(abs(x - 1.0) for x in case_two) <= _DERIVATIVE,
        ),
        Check(
            "case 3: curvature = Tr(K⁻¹K⁻¹∂K ∂K)",
            f"{min(ratios):.2f} to {max(ratios):.2f} times the right one",
            max(abs(x - 1.0) for x in ratios) <= _DERIVATIVE,
        ),
        Check(
            "ε-minimum with the printed ε",
            f"beyond ε in {beyond:.3f} of the draws at most, δ = {EPSILON_DELTA:g}",
            beyond <= EPSILON_DELTA,
        ),
    ]
    return printed, _expected_right(own)


def _expected_right(own: list[Record]) -> list[Check]:
    error = max(r["curvature_error"] for r in own)
    joint, divergence = (min(r[k] for r in own) for k in ("curvature_least", "divergence_least"))
    two = max(abs(r["case_two_right"] - 1.0) for r in own)
    beyond = max(r["beyond"] for r in own)
    loose = [r["epsilon"] / r["gap"] for r in own]
    return [
        Check("case 2 with σ_ξ below", f"differences agree to {two:.0e}", two <= _DERIVATIVE),
        Check(
            "curvature = (1/2n) Tr(K⁻¹∂K K⁻¹∂K)",
            f"differences agree to {error:.0e}",
            error <= _DERIVATIVE,
        ),
        Check(
            "it is positive definite in all parameters together",
            f"least eigenvalue {figure(joint)}",
            joint > 0.0,
        ),
        Check(
            "EL(θ) ≥ EL(θ\\*) for every θ",
            f"least difference {figure(divergence)} over random θ",
            divergence >= 0.0,
        ),
        Check(
            "ε-minimum with the right ε",
            f"beyond ε in {beyond:.3f} of the draws; ε is {min(loose):.0f} to {max(loose):.0f} "
            "times the gap",
            beyond <= EPSILON_DELTA,
        ),
    ]


# --- 4 -------------------------------------------------------------------------------------------


def _concentration(records: Sequence[Record]) -> tuple[list[Check], list[Check]]:
    own = of(records, "concentration")
    growing = of(own, "concentration", case="growing")
    if not growing:
        return [], []
    rates = {q: slope(growing, quantity(q, "quantile")) for q in QUANTITIES}
    c = slope(growing, lambda r: r["quantities"][LOSS][f"at_{DELTAS[0]:g}"]["c_needed"])
    span = f"{min(s.mean for s in rates.values()):.3f} to {max(s.mean for s in rates.values()):.3f}"
    bare = {d: _inside(own, d, "without_c", [LOSS]) for d in DELTAS}
    printed = [
        Check(
            "rate n^(−3/4)",
            f"fitted exponents {span}",
            all(s.agrees(-0.75) for s in rates.values()),
        ),
        _inside_check(own, "printed", "bounds of the corollaries, ‖·‖_F without square"),
        Check(
            "one C for every n",
            f"the C that is needed grows like n^{c.mean:.2f}",
            c.mean <= _FLAT,
        ),
        Check(
            "at θ\\*, |L − EL| < √(2 log(2/δ)/n), without C",
            _shares(bare),
            all(share >= 1.0 - d for d, share in bare.items()),
        ),
    ]
    right = [
        Check(
            "rate n^(−1/2) where the interval grows with n",
            f"fitted exponents {span}",
            all(s.agrees(-0.5) for s in rates.values()),
        ),
        _spread_check(own),
        _inside_check(own, "right", "bounds of the corollaries, ‖·‖_F² and C = 4"),
    ]
    return printed, right


def _spread_check(own: Sequence[Record]) -> Check:
    """Check that the simulated standard deviation is that of the formula, in both designs."""
    ratios = []
    for case, n in levels(own, "case", "n"):
        for q in QUANTITIES:
            found = [r["quantities"][q] for r in of(own, "concentration", case=case, n=n)]
            parts = (x["sd"] * n / (math.sqrt(2.0) * x["frobenius"]) for x in found)
            ratios.append(fmean(parts))
    return Check(
        "standard deviation √2‖·‖_F/n, on a fixed interval too",
        f"simulated over formula: {min(ratios):.3f} to {max(ratios):.3f}",
        max(abs(x - 1.0) for x in ratios) <= _SPREAD,
    )


def _inside(own: Sequence[Record], delta: float, form: str, quantities: Sequence[str]) -> float:
    """Return the smallest share within a bound, over sizes, designs and quantities (seed means)."""
    return min(
        fmean(
            r["quantities"][q][f"at_{delta:g}"][f"inside_{form}"]
            for r in of(own, "concentration", case=case, n=n)
        )
        for case, n in levels(own, "case", "n")
        for q in quantities
    )


def _inside_check(own: Sequence[Record], form: str, claim: str) -> Check:
    found = {d: _inside(own, d, form, QUANTITIES) for d in DELTAS}
    return Check(claim, _shares(found), all(share >= 1.0 - d for d, share in found.items()))


def _shares(found: dict[float, float]) -> str:
    said = (f"{share:.3f} (promised {1.0 - d:g})" for d, share in found.items())
    return "least share within: " + ", ".join(said)


# --- 5 -------------------------------------------------------------------------------------------


def _band(records: Sequence[Record]) -> tuple[list[Check], list[Check]]:
    own = of(records, "band")
    if not own:
        return [], []
    return _band_checks(own, "printed"), _band_checks(own, "corrected")


def _band_checks(own: list[Record], kind: str) -> list[Check]:
    least = {}
    for delta in BAND_DELTAS:
        cells = (
            of(own, "band", case=c, n=n, noise=s) for c, n, s in levels(own, "case", "n", "noise")
        )
        least[delta] = min(
            fmean(r[f"at_{delta:g}"][kind]["coverage_all_n"] for r in cell) for cell in cells
        )
    small = [r for r in own if r["case"] == "random" and r["noise"] <= 0.1]
    x = np.log([r["noise"] for r in small])
    y = np.log([r[f"at_{BAND_DELTAS[0]:g}"][kind]["beta"] for r in small])
    power = float(np.polyfit(x, y, 1)[0]) if len(set(x)) > 1 else math.nan
    listed = ", ".join(f"{share:.3f} (promised {1.0 - d:g})" for d, share in least.items())
    return [
        Check(
            "the band holds at all x and n with probability 1 − δ",
            f"least coverage {listed}",
            all(share >= 1.0 - d for d, share in least.items()),
        ),
        Check(
            "β stays in bounds as the noise falls (slower than σ_ξ^(−1/2))",
            f"β goes like σ_ξ^{power:.2f}",
            power > -0.5,
        ),
    ]


# --- 6 -------------------------------------------------------------------------------------------


def _lemmas(records: Sequence[Record]) -> tuple[list[Check], list[Check]]:
    contraction = of(records, "contraction")
    worst, tail = of(records, "worst_case"), of(records, "tail")
    spectrum = {r["case"]: r["log10_spread"] for r in of(records, "spectrum")}
    if not (contraction and worst and tail and "rbf" in spectrum):
        return [], []
    rates = _rate_checks(contraction)
    largest = {k: max(r[k] for r in worst) for k in worst[0] if "over" in k}
    least = {k: min(r[k] for r in tail) for k in tail[0] if k.startswith(("one", "two", "prob"))}
    lemma4 = {k: max(r[k] for r in tail) for k in tail[0] if k.startswith("lemma4")}
    printed = [
        rates["fixed"],
        rates["deviation"],
        Check(
            "C2 holds for the RBF kernel",
            f"its two constants are 10^{spectrum['rbf']:.0f} apart for frequencies up to 30 alone",
            spectrum["rbf"] < 10.0,
        ),
        Check(
            "Lemma 2: error ≤ ‖f‖ σ_ξ",
            f"up to {largest['over_noise']:.1f} times that",
            largest["over_noise"] <= 1.0,
        ),
        *_tail_checks_printed(least, lemma4),
    ]
    right = [
        rates["fixed"],
        rates["variance"],
        Check(
            "Lemma 2: error ≤ ‖f‖ σ̂_n(x)",
            f"at most {largest['over_sd']:.3f} times that",
            largest["over_sd"] <= 1.0,
        ),
        Check(
            "the worst function has the largest error",
            f"random functions reach {largest['drawn_over_largest']:.3f} of it",
            largest["drawn_over_largest"] <= 1.0 + 1e-9,
        ),
        *_tail_checks_right(least, lemma4),
    ]
    return printed, right


def _tail_checks_printed(least: dict[str, float], lemma4: dict[str, float]) -> list[Check]:
    return [
        Check(
            "Lemma 3's step: P(Z ≥ a) ≥ exp(−a²/2 − a) for a ≥ 0",
            f"{least['one_sided_least']:.2f} of it at worst; true from a = "
            f"{least['one_sided_from']:.2f} on",
            least["one_sided_least"] >= 1.0,
        ),
        Check(
            "Lemma 3 with σ² = ‖K_\\*XK⁻¹‖² + σ_ε²",
            f"probability {figure(least['probability_printed'])}, promised {1 - TAIL_DELTA:g}",
            least["probability_printed"] >= 1.0 - TAIL_DELTA,
        ),
        Check(
            "Lemma 4: σ\\* ≥ ‖K_X\\*‖/(λ₁ + σ_ξ²)",
            f"the right side is up to {lemma4['lemma4_over_right']:.1f} times the deviation",
            lemma4["lemma4_over_right"] <= 1.0,
        ),
    ]


def _tail_checks_right(least: dict[str, float], lemma4: dict[str, float]) -> list[Check]:
    tail, probability = least["two_sided_least"], least["probability_right"]
    return [
        Check(
            "Lemma 3: P(|Z| ≥ a) ≥ exp(−a²/2 − a)",
            f"at least {tail:.2f} times that; probability {figure(probability)} with "
            "σ² = σ_ε²(1 + ‖K_\\*XK⁻¹‖²)",
            tail >= 1.0 and probability >= 1.0 - TAIL_DELTA,
        ),
        Check(
            "Lemma 4 with σ_ε on the right",
            f"at most {lemma4['lemma4_noise_over_right']:.2f} of the deviation",
            lemma4["lemma4_noise_over_right"] <= 1.0,
        ),
    ]


def _rate_checks(contraction: Sequence[Record]) -> dict[str, Check]:
    """Check Lemma 1 at fixed noise, and at the edge of its condition in both readings."""
    cases = list(dict.fromkeys(str(r["case"]) for r in contraction))
    fixed = max(_last_growth(contraction, c) for c in cases if "edge" not in c)
    edges = {kind: _last_growth(contraction, f"{kind} at the edge") for kind in _EDGES}
    checks = {
        kind: Check(
            f"Lemma 1's condition: {_EDGES[kind]}",
            f"at its edge σ̂² / (σ_ξ²/n)^p grows like n^{growth:.2f}",
            growth <= _FLAT,
        )
        for kind, growth in edges.items()
    }
    checks["fixed"] = Check(
        "Lemma 1 at fixed noise: σ̂² < C′(σ_ξ²/n)^p",
        f"σ̂² / (σ_ξ²/n)^p grows like n^{fixed:.3f} at most, at the largest n",
        fixed <= _FLAT,
    )
    return checks


_EDGES = {"deviation": "σ_ξ > C n^(1 − 2m₀/d)", "variance": "σ_ξ² > C n^(1 − 2m₀/d)"}


def _last_growth(records: Sequence[Record], case: str) -> float:
    """Return the exponent of σ̂² over its bound between the two largest n."""
    last = sorted(of(records, "contraction", case=case), key=lambda r: r["rows"])[-2:]
    x, y = np.log([r["rows"] for r in last]), np.log([r["over_bound"] for r in last])
    return float((y[-1] - y[0]) / (x[-1] - x[0])) if len(last) == 2 else math.nan


#: Checks of each item, as printed and put right.
ITEMS: dict[str, Callable[[Sequence[Record]], tuple[list[Check], list[Check]]]] = {
    "mean": _mean,
    "ratio": _ratio,
    "expected": _expected,
    "concentration": _concentration,
    "band": _band,
    "lemmas": _lemmas,
}


def item_checks(item: str, records: Sequence[Record]) -> tuple[list[Check], list[Check]]:
    """Return the checks of an item, as printed and corrected."""
    return ITEMS[item](records)
