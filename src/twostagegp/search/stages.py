"""Kernel search inside a fit: choose one kernel per stage by the paper's Algorithm 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from twostagegp.data.rows import Rows
from twostagegp.kernels import Kernel
from twostagegp.search.kernel_search import Entry, KernelSearch, default_sampling, run_search
from twostagegp.search.repetitions import MIN_ROWS, PAPER_PENALTIES, Model, RepetitionOptions
from twostagegp.search.settings import DEFAULT_SEARCH, SearchSettings

__all__ = ["SearchRecord", "search_stage"]


def search_stage(
    rows: Rows,
    kernels: Sequence[Kernel],
    model: Model,
    rng: np.random.Generator,
    *,
    penalties: Sequence[float] = PAPER_PENALTIES,
    noise_floor: float = 1e-8,
    settings: SearchSettings = DEFAULT_SEARCH,
) -> KernelSearch | None:
    """Choose a kernel by the ratio test; return None with one kernel or too few rows.

    Parameters
    ----------
    rows : Rows
        The target may have any size: it is scaled to unit mean square first, and the noise floor
        with it.
    kernels : sequence of Kernel
    model : {"gp", "krr"}
    rng : Generator
    penalties : sequence of float
        Grid of ridge penalties of ``model="krr"``.
    noise_floor : float
        In units of the target squared.
    settings : SearchSettings
    """
    if len(kernels) < 2 or len(rows) < MIN_ROWS:
        return None
    size = float(((rows.c @ rows.t.square()) / rows.c.sum()).sqrt())
    if not size > 0.0:
        return None
    options = RepetitionOptions(
        model=model, penalties=penalties, noise_floor=min(noise_floor / size**2, 0.1)
    )
    unit = Rows(rows.X, rows.t / size, rows.c, rows.q / size**2, rows.extra / size**2)
    return run_search(
        unit,
        [Entry(kernel.label, kernel, kernel) for kernel in kernels],
        options,
        settings,
        selection="misspecification",
        sampling=default_sampling("misspecification"),
        y_scale=size,
        rng=rng,
    )


class SearchRecord(list[dict[str, Any]]):
    """Every kernel that a fit has tried, one row per kernel and stage: ``model.search_``.

    A row is a dict. All rows have ``stage``, ``kernel``, ``score`` (smaller is better), ``weight``
    (0 if the kernel is not in use) and ``failure``; rows of regressors also ``noise_variance``,
    ``evaluations``, ``full_evaluations``, ``gradient_norm`` and ``seconds``; rows of a classifier's
    mean ``seconds`` and ``rows``, the number of rows that the kernel was trained on.

    Attributes
    ----------
    mean, variance : KernelSearch or None
        The stage's search by the ratio test; None unless ``selection="misspecification"``.
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
    def rows(self) -> list[dict[str, Any]]:
        """The rows as a plain list."""
        return list(self)

    @property
    def table(self) -> pd.DataFrame:
        """The rows as a data frame, sorted by stage and score."""
        table = pd.DataFrame(list(self))
        return table.sort_values(["stage", "score"], ignore_index=True) if len(table) else table

    def plot(self) -> Any:
        """Draw one picture per stage and return the list of axes."""
        # The one import of a higher layer, and lazy: results can be drawn without a function call.
        from twostagegp.plotting.searches import draw_record

        return draw_record(self)
