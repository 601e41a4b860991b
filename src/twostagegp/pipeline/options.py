"""The choices of a two-stage fit, as the parts see them, and sizes that several parts share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from twostagegp.data.checks import penalty_option
from twostagegp.engines.problem import ObjectiveName
from twostagegp.kernels import kernel_list
from twostagegp.training.schedule import Training

__all__ = [
    "FULL_TRAINING_ROWS",
    "LARGEST_TRAINING_ROWS",
    "MEDIUM_ROWS",
    "SMALL_ROWS",
    "Options",
    "kernel_list",
    "penalty_option",
]

#: Below this many distinct rows candidates are trained by the likelihood only, fewer are
#: refitted, and the variance has one lengthscale.
SMALL_ROWS = 60
#: Above this many distinct rows the candidates that reach all rows are not trained there any more.
FULL_TRAINING_ROWS = 3000
#: Above this many every evaluation on all of them counts.
LARGEST_TRAINING_ROWS = 15_000
#: Up to this many distinct rows an evaluation on all of them is cheap enough for more of them.
MEDIUM_ROWS = 1200


@dataclass(frozen=True)
class Options:
    """The choices of the front door, one field a constructor parameter."""

    kernels: Sequence[Any]
    ard: bool | str
    mean: Any
    penalty: Any
    variance: Any
    variance_objective: ObjectiveName
    selection: str
    variance_selection: str
    residuals: str
    calibration: str | None
    training: Training | None
    noise_floor: float
    method: str = "exact"
    n_neighbors: int = 50
    factor_dtype: torch.dtype | None = None
