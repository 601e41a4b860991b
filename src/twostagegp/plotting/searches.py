"""Pictures of a kernel search and of a misspecification test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from twostagegp.plotting import INK, LEGEND, MODEL, MUTED, TRUTH, tidy

if TYPE_CHECKING:
    from twostagegp.search.kernel_search import KernelSearch
    from twostagegp.search.misspecification import MisspecificationCheck
    from twostagegp.search.stages import SearchRecord

__all__ = ["draw_check", "draw_record", "draw_search", "draw_stage"]

_SCORES = {
    "loo": "leave-one-out density, lower is better",
    "nll": "negative log likelihood, lower is better",
    "misspecification": "share within the ratio, higher is better",
}


def _axes(ax: Any, rows: int) -> Axes:
    if ax is not None:
        assert isinstance(ax, Axes)
        return ax
    return Figure(figsize=(6.4, 1.2 + 0.42 * rows), layout="constrained").subplots()


def draw_search(search: KernelSearch, ax: Any = None) -> Axes:
    """Draw every kernel's mean score with two standard errors, the best at the top.

    Kernels that could not be fitted are listed without a score.
    """
    table = search.table
    ax = _axes(ax, len(table))
    fitted = table[table["failure"] == ""]
    place = np.arange(len(table))
    colours = [TRUTH if label == search.best_label else MODEL for label in fitted.index]
    ax.errorbar(
        fitted["score"], place[: len(fitted)], xerr=2.0 * fitted["spread"].fillna(0.0),
        fmt="none", ecolor=MUTED, capsize=3,
    )  # fmt: skip
    ax.scatter(fitted["score"], place[: len(fitted)], c=colours, zorder=3)
    for y in place[len(fitted) :]:
        ax.text(0.02, y, "could not be fitted", color=MUTED, va="center",
                transform=ax.get_yaxis_transform())  # fmt: skip
    ax.set_yticks(place, list(table.index))
    ax.set_ylim(len(table) - 0.5, -0.5)
    label = _SCORES[search.selection]
    if search.model == "krr" and search.selection == "loo":
        label = "squared leave-one-out error, lower is better"
    tidy(ax, label, "")
    done = int(table["repeats"].max())
    ax.set_title(
        f"{search.best_label} of {len(table)} kernels, {done} subsamples", color=INK, fontsize=10
    )
    return ax


def draw_record(record: SearchRecord) -> list[Axes]:
    """Draw the stages of a fit side by side: the ratio test's search, or the candidates' scores."""
    stages = list(dict.fromkeys(row["stage"] for row in record))
    most = max((sum(row["stage"] == stage for row in record) for stage in stages), default=1)
    figure = Figure(figsize=(5.2 * max(1, len(stages)), 1.4 + 0.32 * most), layout="constrained")
    axes = list(figure.subplots(1, max(1, len(stages)), squeeze=False)[0])
    for ax, stage in zip(axes, stages, strict=False):
        draw_stage(record, stage, ax)
    return axes


def draw_stage(record: SearchRecord, stage: str, ax: Any = None) -> Axes:
    """Draw one stage of a fit: the ratio test's search, or the candidates' scores."""
    search = getattr(record, stage, None)
    if search is not None:
        return draw_search(search, ax)
    rows = [row for row in record if row["stage"] == stage]
    ax = _axes(ax, len(rows))
    _draw_candidates(rows, stage, ax)
    return ax


def _draw_candidates(rows: list[dict[str, Any]], stage: str, ax: Axes) -> None:
    fitted = sorted((r for r in rows if np.isfinite(r["score"])), key=lambda r: float(r["score"]))
    place = np.arange(len(fitted))
    colours = [TRUTH if row["weight"] > 0.0 else MODEL for row in fitted]
    ax.scatter([row["score"] for row in fitted], place, c=colours)
    ax.set_yticks(place, [row["kernel"] for row in fitted], fontsize=8)
    ax.set_ylim(len(fitted) - 0.5, -0.5)
    tidy(ax, "score per row, lower is better", "")
    ax.xaxis.set_major_locator(MaxNLocator(nbins=4))
    ax.set_title(f"{stage}: {len(rows)} kernels, in use: orange", color=INK, fontsize=10)


def draw_check(check: MisspecificationCheck, ax: Any = None) -> Axes:
    """Draw the evidence for each cause and its simulations, or the shares of all repetitions."""
    if check.test == "bootstrap":
        return _draw_causes(check, _axes(ax, len(check.causes)))
    ax = _axes(ax, 4)
    shares = check.per_repeat["p_hat"].dropna()
    ax.hist(shares, bins=np.linspace(0.0, 1.0, 41), color=MODEL, alpha=0.7)
    ax.axvline(float(check.p_hat or 0.0), color=INK, label=f"mean {check.p_hat:.3f}")
    ax.axvline(
        1.0 - check.delta, color=TRUTH, linestyle="--", label=f"rejected below {1 - check.delta:g}"
    )
    tidy(ax, "share of test rows within the bound", "repetitions")
    ax.set_title(str(check), color=INK, fontsize=9)
    ax.legend(**LEGEND)
    return ax


def _draw_causes(check: MisspecificationCheck, ax: Axes) -> Axes:
    causes = check.causes
    place = np.arange(len(causes))
    limit = float(np.quantile(check.per_repeat.max(axis=1), 1.0 - check.delta))
    for y, cause in zip(place, causes.index, strict=True):
        ax.scatter(
            check.per_repeat[cause], np.full(len(check.per_repeat), y), s=8, color=MUTED, alpha=0.4,
            label="simulated" if y == 0 else None,
        )  # fmt: skip
        colour = TRUTH if cause in check.named else MODEL
        ax.scatter(
            causes.loc[cause, "evidence"], y, s=60, marker="D", color=colour,
            zorder=3, label="the data" if y == 0 else None,
        )  # fmt: skip
    ax.axvline(limit, color=TRUTH, linestyle="--", label=f"level {check.delta:g}")
    ax.set_yticks(place, list(causes.index))
    ax.set_ylim(len(causes) + 0.1, -0.5)  # the legend has a line of its own
    tidy(ax, "evidence, in standard deviations", "")
    verdict = "rejected" if check.rejected else "not rejected"
    ax.set_title(f"{check.kernel}: {verdict}, p = {check.p_value:.3f}", color=INK, fontsize=10)
    ax.legend(loc="lower center", ncols=3, **LEGEND)
    return ax
