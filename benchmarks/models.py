"""The models that are compared, by the short names that the command line uses.

``paper``, ``single_paper`` and ``sod`` are the paper's settings as printed; ``single`` shows what
the paper's baseline could have been, had it been trained to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twostagegp import ExactGPRegressor, TwoStageGPRegressor

__all__ = ["LABELS", "MODELS"]

#: Each takes constructor parameters such as ``random_state`` and ``device``.
MODELS: Mapping[str, Callable[..., Any]] = {
    "default": TwoStageGPRegressor,
    "paper": TwoStageGPRegressor.from_paper,
    "single_paper": lambda **given: ExactGPRegressor.from_paper(table=5, **given),
    "single": lambda **given: ExactGPRegressor("rbf", ard=True, **given),
    "sod": lambda **given: ExactGPRegressor.from_paper(table=3, **given),
}

LABELS: Mapping[str, str] = {
    "default": "two-stage (ours, default)",
    "paper": "two-stage as printed",
    "single_paper": "single stage as printed",
    "single": "single stage, trained to the end",
    "sod": "single stage, subset of data, as printed",
}
