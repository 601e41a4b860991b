"""The choices of a two-stage fit, as the parts see them, and sizes that several parts share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from twostagegp.data.kept_columns import Columns
from twostagegp.engines.problem import ObjectiveName
from twostagegp.errors import InputError
from twostagegp.kernels import Kernel, make_kernel
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


def penalty_option(penalty: Any, words: tuple[str, ...]) -> str | tuple[float, ...]:
    """A ``penalty`` parameter as one of ``words`` or a grid of numbers.

    Examples
    --------
    >>> penalty_option(0.1, ("auto",))
    (0.1,)
    """
    if isinstance(penalty, str) and penalty in words:
        return penalty
    listed = ", ".join(repr(word) for word in words)
    message = f"penalty={penalty!r}: use {listed}, a positive number, or a grid of them."
    if isinstance(penalty, str):
        raise InputError(message)
    try:
        grid = np.atleast_1d(np.asarray(penalty, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise InputError(message) from error
    if grid.ndim != 1 or grid.size == 0 or not (np.isfinite(grid) & (grid > 0.0)).all():
        raise InputError(message)
    return tuple(grid.tolist())


def kernel_list(
    kernels: Sequence[Any], ard: bool | str, n_features: int, columns: Columns | None = None
) -> list[Kernel]:
    """Every kernel asked for, isotropic, ARD or both; one-column inputs need only one form."""
    forms = {True: (True,), False: (False,), "both": (False, True)}[ard]
    made: list[Kernel] = []
    for kernel in kernels:
        named = isinstance(kernel, str)
        for form in forms if named and n_features > 1 else forms[:1]:
            made.append(make_kernel(kernel, n_features, form, columns))
    return made
