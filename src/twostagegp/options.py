"""The choices of a two-stage fit, as the parts see them, and sizes that several parts share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from twostagegp.kernels import Kernel, make_kernel
from twostagegp.training import ObjectiveName, Training

__all__ = ["FULL_TRAINING_ROWS", "MEDIUM_ROWS", "SMALL_ROWS", "Options", "kernel_list"]

#: Below this many distinct rows candidates are trained by the likelihood only, fewer are
#: refitted, and the variance has one lengthscale.
SMALL_ROWS = 60
#: Above this many distinct rows the candidates that reach all rows are not trained there any more.
FULL_TRAINING_ROWS = 3000
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
    residuals: str
    calibration: str | None
    training: Training | None
    noise_floor: float


def kernel_list(kernels: Sequence[Any], ard: bool | str, n_features: int) -> list[Kernel]:
    """Every kernel asked for, isotropic, ARD or both; one-column inputs need only one form."""
    forms = {True: (True,), False: (False,), "both": (False, True)}[ard]
    made: list[Kernel] = []
    for kernel in kernels:
        named = isinstance(kernel, str)
        for form in forms if named and n_features > 1 else forms[:1]:
            made.append(make_kernel(kernel, n_features, form))
    return made
