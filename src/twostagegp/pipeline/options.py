"""The options of a two-stage fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from twostagegp.engines.problem import ObjectiveName
from twostagegp.pipeline.settings import Settings
from twostagegp.training.schedule import Training

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """The options of a two-stage fit, one field per constructor parameter of the estimator.

    ``selection`` is split into ``mean_selection`` and ``variance_selection``.
    """

    kernels: Sequence[Any]
    ard: bool | str
    mean: Any
    penalty: Any
    variance: Any
    objective: ObjectiveName
    variance_objective: ObjectiveName
    mean_selection: str
    variance_selection: str
    residuals: str
    calibration: str | None
    training: Training | None
    noise_floor: float
    method: str = "exact"
    n_neighbors: int = 50
    factor_dtype: torch.dtype | None = None
    settings: Settings = field(default_factory=Settings)

    def variance_choices(self) -> Sequence[Any]:
        """Return the kernels that the ``variance`` parameter stands for."""
        if isinstance(self.variance, str) and self.variance == "search":
            return self.kernels
        return self.variance if isinstance(self.variance, list | tuple) else [self.variance]
