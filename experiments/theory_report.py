"""Page and picture of the theory in numbers.

A section for each item: the formula as printed and as it should be, a table, the checks, and the
verdict that follows from them (:mod:`experiments.theory_verdicts`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.theory_band import BANDS
from experiments.theory_band import DELTAS as BAND_DELTAS
from experiments.theory_concentration import DELTAS, QUANTILE, QUANTITIES
from experiments.theory_lemmas import CONTRACTIONS
from experiments.theory_mean import MEANS
from experiments.theory_model import PARAMETERS
from experiments.theory_ratio import FITS
from experiments.theory_verdicts import (
    Check,
    cell_mean,
    item_checks,
    levels,
    of,
    quantity,
    slope,
    verdict,
)
from measurements.figures import svg
from measurements.provenance import provenance
from measurements.store import Record
from measurements.tables import MISSING, figure, markdown_table, yes_no
from twostagegp.plotting import INK, LEGEND, MODEL, MUTED, TRUTH, tidy

__all__ = ["SECTIONS", "Section", "draw", "picture", "report"]


@dataclass(frozen=True)
class Section:
    """One item: title, formulas as printed and put right, words, and tables of the records."""

    item: str
    title: str
    printed: str
    right: str
    about: str
    tables: Callable[[Sequence[Record]], list[str]]


#: Alternative text of the picture.
_ALTERNATIVE = (
    "Three panels. Left: the 0.9 quantile of the deviations of loss and slopes from their "
    "expectations, against n, with lines of n^(−1/2) and n^(−3/4). Middle: the printed and the "
    "corrected β against the noise, and the β that 95 percent coverage needs. Right: coverage of "
    "both bands for noise above one, with the promised 0.99. Figures in sections 4 and 5."
)


# --- page ----------------------------------------------------------------------------------------


def report(records: Sequence[Record]) -> str:
    """Return the page in Markdown."""
    fine = _ordered([r for r in records if not r.get("error")])
    failed = [r for r in records if r.get("error")]
    judged = {s.item: item_checks(s.item, fine) for s in SECTIONS}
    parts = ["# The theory in numbers", ""]
    if fine:
        counted = provenance(fine).replace("fits", "measurements")
        parts += [f"{counted} `python -m experiments theory`", ""]
    parts += [
        "Every theorem, lemma and bound of the paper that can be computed, as it is printed and "
        "put right. A verdict counts the checks that hold; each is decided by the figure beside "
        "it. Parameters θ are the logarithms of lengthscale, outputscale σ_f² and noise variance "
        "σ_ξ²; a star marks the true ones.",
        "",
        markdown_table(
            ["", "as printed", "put right"],
            [[s.title, *(verdict(checks) for checks in judged[s.item])] for s in SECTIONS],
        ),
        f"![{_ALTERNATIVE}](theory.svg)",
        "",
        "Left: deviations of the loss and its slopes at the true θ, interval growing with n. "
        "Middle: β for functions of norm one. Right: coverage for a nearly constant function of "
        "norm 0.1 and ten rows.",
        "",
    ]
    for section in SECTIONS:
        parts += _section(section, fine, judged[section.item])
    if failed:
        parts += ["## Measurements that failed", ""]
        parts += [f"- {r['item']}, {r['case']}, n = {r['n']}: {r['error']}" for r in failed]
        parts.append("")
    return "\n".join(parts)


def _section(
    section: Section, records: Sequence[Record], judged: tuple[list[Check], list[Check]]
) -> list[str]:
    printed, right = judged
    lines = [
        f"## {section.title}",
        "",
        f"As printed: `{section.printed}`",
        "",
        f"Put right: `{section.right}`",
        "",
        section.about,
        "",
    ]
    if not printed:
        return [*lines, "Not measured yet.", ""]
    rows = [
        [where, check.claim, check.found, yes_no(check.holds)]
        for where, checks in (("as printed", printed), ("put right", right))
        for check in checks
    ]
    return [
        *lines,
        *section.tables(records),
        markdown_table(["", "claim", "found", "holds"], rows),
        f"**Verdict.** As printed: {verdict(printed)}. Put right: {verdict(right)}.",
        "",
    ]


def _ordered(records: Sequence[Record]) -> list[Record]:
    """Sort records by case and size, as several processes finish in any order."""
    cases = [*MEANS, *FITS, *_KERNELS, "growing", "infill", *BANDS, *CONTRACTIONS]
    place = {case: i for i, case in enumerate(cases)}
    return sorted(records, key=lambda r: (place.get(r["case"], -1), r["n"], r["noise"], r["seed"]))


_KERNELS = ("rbf", "matern52", "matern32", "matern12")


def _mean_tables(records: Sequence[Record]) -> list[str]:
    own = of(records, "mean")
    rows = []
    for case, n in levels(own, "case", "n"):
        r = of(own, "mean", case=case, n=n)[0]
        rows.append(
            [
                case,
                str(n),
                f"{r['simulated']:.2f} ± {r['simulated_se']:.2f}",
                f"{r['right']:.2f}",
                f"{r['printed']:.2f}",
                *(f"{figure(x)}" for x in _rounded(r["slope_formula"])),
                *(f"{x:.3f}" for x in r["alone"]),
                " / ".join(f"{x:.2f}" for x in r["together"]),
            ]
        )
    head = ["mean", "n", "E[yᵀK⁻¹y], simulated", "plus", "minus"]
    head += [f"slope, {p}" for p in PARAMETERS] + [f"{p} alone" for p in PARAMETERS] + ["together"]
    return [markdown_table(head, rows)]


def _rounded(values: Sequence[float]) -> list[float]:
    """Round sums to zero that differ from it by rounding errors only."""
    return [0.0 if abs(x) < 1e-12 else x for x in values]


def _ratio_tables(records: Sequence[Record]) -> list[str]:
    own, limit = of(records, "ratio"), of(records, "limit")
    rows = []
    for case, n, noise in levels(own, "case", "n", "noise"):
        cell = of(own, "ratio", case=case, n=n, noise=noise)
        shares = ("exact_0.1", "residuals_0.1", "exact_0.01", "residuals_0.01", "all_rows_0.1")
        cells = [f"{cell_mean(cell, name):.4f}" for name in shares]
        own_kernel = MISSING
        if "own_exact_0.1" in cell[0]:
            both = (cell_mean(cell, f"own_{name}") for name in shares[:2])
            own_kernel = " / ".join(f"{share:.3f}" for share in both)
        extra = [MISSING] * 3
        if "bound" in cell[0]:
            needed = cell_mean(cell, "rows_needed")
            extra = [f"{cell_mean(cell, 'bound'):.3f}", f"{needed:.0f}"]
            extra += [" / ".join(f"{cell_mean(cell, k):.2f}" for k in _EXCESSES)]
        rows.append([case, str(n), f"{noise:g}", *cells, own_kernel, *extra])
    head = ["kernel", "n", "noise", "Δ > 1.1", "residuals", "Δ > 1.01", "residuals", "all rows"]
    head += ["own kernel", "bound", "n needed", "excess, Lemma 3 / 4"]
    small = []
    for case, noise in levels(limit, "case", "noise"):
        cell = of(limit, "limit", case=case, noise=noise)
        names = ("exact_0.1", "residuals_0.1", "residuals_0.01")
        small.append([case, f"{noise:g}", *(f"{cell_mean(cell, k):.4f}" for k in names)])
    head_small = ["kernel", "model's noise", "Δ > 1.1", "residuals > 1.1", "residuals > 1.01"]
    return [
        markdown_table(head, rows),
        "The model's noise goes to zero, that of the data stays at 0.1; ten rows:",
        "",
        markdown_table(head_small, small),
    ]


_EXCESSES = ("right_excess", "lemma4_excess")


def _expected_tables(records: Sequence[Record]) -> list[str]:
    own = of(records, "expected")
    rows = []
    for case, n in levels(own, "case", "n"):
        cell = of(own, "expected", case=case, n=n)
        curvatures = [fmean(r["curvature"][j] for r in cell) for j in range(3)]
        numbers = ("printed_curvature", "curvature_least", "gap", "epsilon", "epsilon_printed")
        rows.append(
            [
                case,
                str(n),
                f"{max(r['slope'] for r in cell):.0e}",
                *(figure(x) for x in curvatures),
                *(figure(cell_mean(cell, name)) for name in numbers),
            ]
        )
    head = ["kernel", "n", "slope", *(f"curvature, {p}" for p in PARAMETERS)]
    head += ["lengthscale, printed", "least, together", "gap", "ε", "ε, printed"]
    return [markdown_table(head, rows)]


def _concentration_tables(records: Sequence[Record]) -> list[str]:
    own = of(records, "concentration")
    rows = []
    for (case,) in levels(own, "case"):
        mine = of(own, "concentration", case=case)
        most = max(r["n"] for r in mine)
        last = [r for r in mine if r["n"] == most]
        for q in QUANTITIES:
            rate = slope(mine, quantity(q, "quantile"))
            norm = slope(mine, quantity(q, "frobenius")).mean - 1.0
            rows.append([case, q, str(rate), f"{norm:.3f}", f"{0.5 * (norm - 1.0):.3f}"])
            for delta in DELTAS:
                at = [r["quantities"][q][f"at_{delta:g}"] for r in last]
                rows[-1] += [
                    f"{fmean(a[f'inside_{form}'] for a in at):.3f}, "
                    f"{fmean(a[form] / a['quantile'] for a in at):.1f}"
                    for form in ("right", "printed")
                ]
    head = ["interval", "quantity", "exponent", "of ‖·‖_F/n", "of √‖·‖_F/n"]
    head += [f"δ = {d:g}, {form}" for d in DELTAS for form in ("right", "printed")]
    sizes = sorted({r["n"] for r in own})
    return [
        f"Exponents of the {QUANTILE:g} quantile from n = {sizes[0]} to {sizes[-1]}, mean ± "
        "standard error over the seeds. Last columns, at the largest n: share within the bound, "
        "and the bound over the quantile that it bounds (below 1: too small).",
        "",
        markdown_table(head, rows),
    ]


def _band_tables(records: Sequence[Record]) -> list[str]:
    own = of(records, "band")
    delta = f"at_{BAND_DELTAS[0]:g}"
    rows = []
    for case, n, sd in levels(own, "case", "n", "noise"):
        cell = of(own, "band", case=case, n=n, noise=sd)
        row = [case, str(n), f"{sd:g}", figure(fmean(r[delta]["needed"] for r in cell))]
        for kind in ("printed", "corrected"):
            betas = [r[delta][kind]["beta"] for r in cell]
            widths = [b * r["median_sd"] / r["norm"] for b, r in zip(betas, cell, strict=True)]
            row += [figure(fmean(betas)), figure(fmean(widths))]
            row += [
                f"{fmean(r[f'at_{d:g}'][kind]['coverage_all_n'] for r in cell):.4f}"
                for d in BAND_DELTAS
            ]
        rows.append(row)
    head = ["function", "n", "σ_ξ", "β needed"]
    for kind in ("printed", "corrected"):
        head += [f"β, {kind}", "width / B", *(f"coverage, δ = {d:g}" for d in BAND_DELTAS)]
    return [markdown_table(head, rows)]


def _lemma_tables(records: Sequence[Record]) -> list[str]:
    rows = []
    contraction = of(records, "contraction")
    for (case,) in levels(contraction, "case"):
        mine = sorted(of(contraction, "contraction", case=case), key=lambda r: r["rows"])
        x, y = np.log([r["rows"] for r in mine]), np.log([r["variance"] for r in mine])
        local = np.diff(y) / np.diff(x)
        ends = [mine[0]["over_bound"], mine[-1]["over_bound"]]
        said = [f"{-mine[0]['power']:.3f}", *(f"{s:.3f}" for s in local[[0, -1]])]
        rows.append([case, *said, *(f"{e:.2f}" for e in ends)])
    head = ["Lemma 1", "−p", "exponent, small n", "large n", "σ̂²/(σ_ξ²/n)^p, small n", "large n"]
    lines = []
    for n, noise in levels(of(records, "tail"), "n", "noise"):
        worst = of(records, "worst_case", n=n, noise=noise)
        tail = of(records, "tail", n=n, noise=noise)
        lines.append(
            [
                str(n),
                f"{noise:g}",
                *(f"{cell_mean(worst, k):.3f}" for k in ("over_sd", "over_noise")),
                *(figure(cell_mean(tail, k)) for k in ("probability_right", "probability_printed")),
                *(
                    f"{cell_mean(tail, k):.3f}"
                    for k in ("lemma4_noise_over_right", "lemma4_over_right")
                ),
            ]
        )
    heads = ["n", "noise", "Lemma 2: error / σ̂", "error / σ_ξ", "Lemma 3: right", "printed"]
    return [
        markdown_table(head, rows),
        markdown_table([*heads, "Lemma 4: right", "printed"], lines),
    ]


SECTIONS = (
    Section(
        "mean",
        "1. Theorem 1: a mean taken for zero",
        "MEL = (1/2n)(Tr(K⁻¹[K* − mmᵀ]) + log det K); θ* a stationary point of mᵀK⁻¹∂K K⁻¹m",
        "MEL = (1/2n)(Tr(K⁻¹[K* + mmᵀ]) + log det K); mᵀK⁻¹∂K K⁻¹m = 0 at θ*",
        "Rows evenly on [0, 1], Matérn-3/2 with l = 0.2, unit outputscale and noise 0.1. The "
        "quadratic form is taken at another θ. *Alone* and *together*: factor on each parameter "
        "where MEL (with the plus) is lowest. `zero on rows` is zero at every row but not between "
        "them; `balanced` is made so that the lengthscale's slope is zero: the theorem's "
        "exceptions. For outputscale and noise there is no other, as their ∂K is positive "
        "definite.",
        _mean_tables,
    ),
    Section(
        "ratio",
        "2. Theorem 2: the error ratio",
        "Δ ≤ 1.1 for all x with probability 1 − δ if n ≥ σ_ξ²/(0.1 A ‖K_X*‖/((λ₁ + σ_ξ²)C′‖f‖))"
        "^(2m₀/(2m₀ − d))",
        "P(Δ > 1.1) ≤ 1 − exp(−a²/2 − a) at one x, a = ‖f‖ σ̂_n(x)/(0.1 v), "
        "v² = σ²(1 + ‖K_*X K⁻¹‖²)",
        "A fixed function of norm 2 (`right, flat`: 0.02), n rows evenly on [0, 1], noise of the "
        "variance shown, parameters not trained. *Too rough*: Matérn-1/2 for a function of the "
        "Matérn-5/2 space, which is in its space too; *too smooth*: RBF for one of the Matérn-1/2 "
        "space; *too long*: ten times the lengthscale. Δ columns: exact probability of a larger "
        "ratio, mean over x; *residuals*: the same with Algorithm 2's residuals, simulated; *all "
        "rows*: share of draws in which 1000 rows pass at once; *own kernel*: "
        "the first two columns on the same data with the kernel that the function comes from. "
        "*n needed*: the printed condition, with the least C′ that Lemma 1 can have; λ₁ and K_X\\* "
        "in it grow with n. *Excess*: ‖f‖σ̂/(A v) by the deviation itself and by Lemma 4's "
        "bound of it (with its missing σ_ε): that falls like n^(−1/2), faster "
        "than σ̂, so the argument gets worse with n.",
        _ratio_tables,
    ),
    Section(
        "expected",
        "3. Theorem 3: the expected loss at the true θ",
        "∂²EL/∂l² = Tr(K⁻¹K⁻¹∂K ∂K); ε = 2 max{√(2C‖K̃‖_F log(2/δ)), 2C‖K̃‖ log(2/δ)}/n",
        "∂²EL/∂θᵢ∂θⱼ = (1/2n) Tr(K⁻¹∂ᵢK K⁻¹∂ⱼK); ‖K̃‖_F² in ε, at θ and at θ*",
        "EL(θ) − EL(θ\\*) is a Kullback–Leibler divergence over n, so θ\\* is the lowest point for "
        "every n and of all parameters together, not a local minimum of each alone. *Gap*: 0.9 "
        "quantile of L(θ\\*) − L(θ) over θ that differ in one parameter; it falls like 1/n, ε no "
        "faster, so that even the printed one holds. ε is judged at each such θ, not proved for "
        "all at once. C = 4. L and ε are the appendix's, twice those of Eq. (2).",
        _expected_tables,
    ),
    Section(
        "concentration",
        "4. Concentration of the loss and its slope",
        "P(|L − EL| > t) ≤ 2 exp(−(1/C) min{n²t²/2‖K̃‖_F, nt/2‖K̃‖})",
        "P(|L − EL| > t) ≤ 2 exp(−(1/C) min{n²t²/2‖K̃‖_F², nt/2‖K̃‖}), C = 4",
        "Matérn-3/2 with l = 0.2, unit outputscale, noise 0.1; the other θ is 1.5, 0.7 and 2 times "
        "that. L is the appendix's. Rows fall into [0, 1] (`infill`) or into [0, n/8] "
        "(`growing`). The standard deviation of L − EL is √2‖K̃‖_F/n. C = 4 is a proved constant "
        "for Gaussian vectors and symmetric matrices.",
        _concentration_tables,
    ),
    Section(
        "band",
        "5. The frequentist band",
        "β = B + (1/σ_ξ)√(log det((σ̄/σ_ξ)K + σ̄I) − 2 log δ), σ̄ = max(1, σ_ξ)",
        "β = B + √(log det((λ̄/λ)K + λ̄I) − 2 log δ), λ = σ_ξ², λ̄ = max(1, λ)",
        "Functions of the RKHS (Matérn-5/2, l = 0.2) with norm B = 1, random ones and the worst "
        "one for the rows; `level` is almost constant, B = 0.1. Coverage: share of noise draws in "
        "which the band holds at 200 x and with the first 1, 2, 4, ..., n rows. *β needed*: what "
        "would cover 95 % at all x with n rows. *Width / B*: median of βσ̂/B; above 1 the band says "
        "less than |f| ≤ B does.",
        _band_tables,
    ),
    Section(
        "lemmas",
        "6. Lemmas 1 to 4",
        "1: σ_ξ > Cn^(1−2m₀/d); 2: error ≤ ‖f‖σ_ξ; 3: P(Z ≥ a) ≥ exp(−a²/2 − a), "
        "σ² = ‖K_*XK⁻¹‖² + σ_ε²; 4: σ ≥ ‖K_X*‖/(λ₁ + σ_ξ²)",
        "1: σ_ξ² > Cn^(1−2m₀/d); 2: error ≤ ‖f‖σ̂_n(x); 3: P(|Z| ≥ a) ≥ exp(−a²/2 − a), "
        "σ² = σ_ε²(‖K_*XK⁻¹‖² + 1); 4: σ ≥ σ_ε‖K_X*‖/(λ₁ + σ_ξ²)",
        "Lemma 1: p = 1 − d/2m₀; exponents of the largest σ̂² between neighbouring n; *at the "
        "edge*: noise as small as the condition on the deviation, or on the variance, allows "
        "(Matérn-1/2, d = 1). Lemma 2: largest error of a function of norm one, exact. Lemma 3: "
        "probability of |u| ≥ A(0.1)σ, promised 0.9. Lemma 4: its right side over the deviation "
        "of u.",
        _lemma_tables,
    ),
)


# --- picture -------------------------------------------------------------------------------------


def picture(records: Sequence[Record]) -> str | None:
    """Return the picture as SVG text; None if a panel would be empty."""
    fine = [r for r in records if not r.get("error")]
    needed = (("concentration", "growing"), ("band", "random"), ("band", "level"))
    if not all(of(fine, item, case=case) for item, case in needed):
        return None
    return svg(draw(fine))


def draw(records: Sequence[Record]) -> Figure:
    """Draw rates of concentration, β against the noise, and coverage above unit noise."""
    fig = Figure(figsize=(11.0, 3.8), layout="constrained")
    rates, betas, coverage = fig.subplots(1, 3)
    _draw_rates(rates, of(records, "concentration", case="growing"))
    _draw_betas(betas, of(records, "band", case="random"))
    _draw_coverage(coverage, of(records, "band", case="level"))
    for ax, place in ((rates, "lower left"), (betas, "upper right"), (coverage, "lower left")):
        ax.tick_params(which="both", labelsize=8)
        ax.legend(loc=place, **LEGEND)
    return fig


def _draw_rates(ax: Axes, own: Sequence[Record]) -> None:
    rows = sorted({r["n"] for r in own})
    for q, marker in zip(QUANTITIES[:4], "osD^", strict=True):
        means = [fmean(r["quantities"][q]["quantile"] for r in own if r["n"] == n) for n in rows]
        rate = slope(own, quantity(q, "quantile"))
        label = f"{q.split(',')[0]}: {rate.mean:.2f}"
        ax.plot(rows, means, marker, color=MODEL, markersize=4.0, label=label)
    start = max(
        fmean(r["quantities"][q]["quantile"] for r in own if r["n"] == rows[0])
        for q in QUANTITIES[:4]
    )
    x = np.array([rows[0], rows[-1]], dtype=float)
    for power, color, name in ((-0.5, INK, "n^(−1/2)"), (-0.75, TRUTH, "n^(−3/4), printed")):
        ax.plot(x, 1.15 * start * (x / x[0]) ** power, color=color, linewidth=1.0, label=name)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_ylim(bottom=0.25 * ax.get_ylim()[0])  # room for the legend
    tidy(ax, "rows n", f"{QUANTILE:g} quantile of the deviation")


def _draw_betas(ax: Axes, own: Sequence[Record]) -> None:
    most = max(r["n"] for r in own)
    delta = f"at_{BAND_DELTAS[0]:g}"
    mine = [r for r in own if r["n"] == most]
    deviations = sorted({r["noise"] for r in mine})

    cells = [[r[delta] for r in mine if r["noise"] == s] for s in deviations]
    for kind, color in (("printed", TRUTH), ("corrected", MODEL)):
        values = [fmean(at[kind]["beta"] for at in cell) for cell in cells]
        ax.plot(deviations, values, "o-", color=color, markersize=4.0, label=f"β, {kind}")
    needed = [fmean(at["needed"] for at in cell) for cell in cells]
    ax.plot(deviations, needed, "o--", color=MUTED, markersize=4.0, label="needed for 95 %")
    ax.set_xscale("log")
    ax.set_yscale("log")
    tidy(ax, f"noise deviation σ_ξ (n = {most})", "β")


def _draw_coverage(ax: Axes, own: Sequence[Record]) -> None:
    delta = BAND_DELTAS[-1]
    deviations = sorted({r["noise"] for r in own})
    for kind, color in (("printed", TRUTH), ("corrected", MODEL)):
        shares = [
            fmean(r[f"at_{delta:g}"][kind]["coverage_all_n"] for r in own if r["noise"] == s)
            for s in deviations
        ]
        ax.plot(deviations, shares, "o-", color=color, markersize=4.0, label=kind)
    ax.axhline(1.0 - delta, color=MUTED, linewidth=1.0, dashes=(4, 2), label="promised")
    ax.set_xscale("log")
    ax.set_ylim(bottom=ax.get_ylim()[0] - 0.012)  # room for the legend
    tidy(ax, "noise deviation σ_ξ", "coverage of the band")
