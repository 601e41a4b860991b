"""Sizes and limits of a kernel search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["DEFAULT_SEARCH", "SearchSettings"]


@dataclass(frozen=True)
class SearchSettings:
    """Sizes and limits of a kernel search; the defaults are those of searches inside a fit.

    Attributes
    ----------
    n_repeats : int
        Number of repetitions at most; 100 in the paper.
    subsample : int
        Number of rows of each subsample; 500 in the paper.
    confidence : float or None
        Stop when the ranking stays as it is with this probability; None does all repetitions.
    first_checkpoint : int
        Repetitions after which the ranking is checked for the first time; each further check
        comes after twice as many.
    max_failed_share : float
        A kernel is excluded if a larger share of its repetitions cannot be fitted.
    matrix_bytes : int
        Memory for the distance matrices that are held at the same time.
    gpu_memory_share : float
        On a GPU: the share of the free memory that they may take instead.
    client : distributed.Client or None
        The Dask client whose workers run the repetitions; None runs them in this process.
    """

    n_repeats: int = 100
    subsample: int = 500
    confidence: float | None = 0.99
    first_checkpoint: int = 8
    max_failed_share: float = 0.2
    matrix_bytes: int = 1 << 30
    gpu_memory_share: float = 0.25
    client: Any = None


#: The settings of searches inside a fit, unless others are given.
DEFAULT_SEARCH = SearchSettings()
