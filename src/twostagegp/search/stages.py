"""The search inside a fit: one kernel for a stage, by the paper's Algorithm 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from twostagegp.data.rows import Rows
from twostagegp.kernels import Kernel
from twostagegp.search.kernel_search import Entry, KernelSearch, automatic_sampling, run_search
from twostagegp.search.repetitions import FEWEST_ROWS, PAPER_PENALTIES, Model, Settings

__all__ = ["SearchRecord", "search_stage"]

#: The paper's repetitions and rows a repetition; they end early where the ranking is clear.
_REPEATS, _SUBSAMPLE, _CONFIDENCE = 100, 500, 0.99


def search_stage(
    rows: Rows,
    kernels: Sequence[Kernel],
    model: Model,
    rng: np.random.Generator,
    *,
    penalties: Sequence[float] = PAPER_PENALTIES,
    noise_floor: float = 1e-8,
) -> KernelSearch | None:
    """Choose by the ratio test; None where there is nothing to choose or too little to test on.

    The target of ``rows`` may have any size: residuals are brought to unit size first, and the
    noise floor with them.
    """
    if len(kernels) < 2 or len(rows) < FEWEST_ROWS:
        return None
    size = float(((rows.c @ rows.t.square()) / rows.c.sum()).sqrt())
    if not size > 0.0:
        return None
    unit = Rows(rows.X, rows.t / size, rows.c, rows.q / size**2, rows.extra / size**2)
    return run_search(
        unit,
        [Entry(kernel.label, kernel, kernel) for kernel in kernels],
        Settings(model=model, penalties=penalties, noise_floor=min(noise_floor / size**2, 0.1)),
        selection="misspecification",
        n_repeats=_REPEATS,
        subsample=_SUBSAMPLE,
        sampling=automatic_sampling("misspecification"),
        confidence=_CONFIDENCE,
        y_scale=size,
        rng=rng,
    )


class SearchRecord(list[dict[str, Any]]):
    """Every kernel that a fit has tried, one row a kernel and stage.

    Attributes
    ----------
    mean, variance : KernelSearch or None
        The stage's search by the ratio test, where ``selection="misspecification"`` asked for it.
    """

    def __init__(
        self,
        rows: Sequence[dict[str, Any]],
        mean: KernelSearch | None = None,
        variance: KernelSearch | None = None,
    ) -> None:
        super().__init__(rows)
        self.mean = mean
        self.variance = variance

    @property
    def table(self) -> pd.DataFrame:
        """The rows as a data frame, by stage and score."""
        table = pd.DataFrame(list(self))
        return table.sort_values(["stage", "score"], ignore_index=True) if len(table) else table

    def plot(self) -> Any:
        """One picture a stage; returns the list of axes."""
        from twostagegp.plotting.searches import draw_record

        return draw_record(self)
