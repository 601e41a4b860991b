"""Pictures of a kernel search and of a misspecification test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from twostagegp.plotting import INK, MODEL, MUTED, TRUTH

if TYPE_CHECKING:
    from twostagegp.search.kernel_search import KernelSearch
    from twostagegp.search.misspecification import MisspecificationCheck

__all__ = ["draw_check", "draw_search"]

_SCORES = {
    "loo": "leave-one-out density a row (smaller is better)",
    "nll": "negative log likelihood a row (smaller is better)",
    "misspecification": "share within the error ratio (larger is better)",
}


def _axes(ax: Any, rows: int) -> Axes:
    if ax is not None:
        assert isinstance(ax, Axes)
        return ax
    return Figure(figsize=(6.4, 1.2 + 0.42 * rows), layout="constrained").subplots()


def draw_search(search: KernelSearch, ax: Any = None) -> Axes:
    """Every kernel's mean score with two standard errors, best on top; failures by name."""
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
        label = "mean squared leave-one-out error (smaller is better)"
    ax.set_xlabel(label, color=INK)
    done = int(table["repeats"].max())
    ax.set_title(f"{search.best_label} of {len(table)} kernels, {done} subsamples", color=INK)
    return ax


def draw_check(check: MisspecificationCheck, ax: Any = None) -> Axes:
    """Evidence for each cause against its simulations, or the shares of all repetitions."""
    if check.test == "bootstrap":
        return _draw_causes(check, _axes(ax, len(check.causes)))
    ax = _axes(ax, 4)
    shares = check.per_repeat["p_hat"].dropna()
    ax.hist(shares, bins=np.linspace(0.0, 1.0, 41), color=MODEL, alpha=0.7)
    ax.axvline(float(check.p_hat or 0.0), color=INK, label=f"mean {check.p_hat:.3f}")
    ax.axvline(
        1.0 - check.delta, color=TRUTH, linestyle="--", label=f"rejected below {1 - check.delta:g}"
    )
    ax.set_xlabel("share of test rows within the bound, one value a repetition", color=INK)
    ax.set_ylabel("repetitions", color=INK)
    ax.set_title(str(check), color=INK, fontsize=9)
    ax.legend(frameon=False, fontsize=8)
    return ax


def _draw_causes(check: MisspecificationCheck, ax: Axes) -> Axes:
    causes = check.causes
    place = np.arange(len(causes))
    limit = float(np.quantile(check.per_repeat.max(axis=1), 1.0 - check.delta))
    for y, cause in zip(place, causes.index, strict=True):
        ax.scatter(
            check.per_repeat[cause], np.full(len(check.per_repeat), y), s=8, color=MUTED, alpha=0.4,
            label="simulated from the fitted model" if y == 0 else None,
        )  # fmt: skip
        found = cause in check.named
        ax.scatter(
            causes.loc[cause, "evidence"], y, s=60, marker="D", color=TRUTH if found else MODEL,
            zorder=3, label="the data" if y == 0 else None,
        )  # fmt: skip
    ax.axvline(limit, color=TRUTH, linestyle="--", label=f"level {check.delta:g}, all causes")
    ax.set_yticks(place, list(causes.index))
    ax.set_ylim(len(causes) - 0.5, -0.5)
    ax.set_xlabel("evidence, in standard deviations of the simulations", color=INK)
    verdict = "rejected" if check.rejected else "not rejected"
    ax.set_title(f"{check.kernel}: {verdict}, p = {check.p_value:.3f}", color=INK)
    ax.legend(frameon=False, fontsize=8)
    return ax
