"""Checks of constructor parameters that several estimators share."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from twostagegp.errors import InputError
from twostagegp.kernels import KERNELS
from twostagegp.training.schedule import Training

__all__ = [
    "check_noise_floor",
    "check_seed",
    "check_threads",
    "check_training",
    "is_kernel",
]


def check_seed(random_state: Any) -> np.random.RandomState:
    """Return the generator that ``random_state`` stands for."""
    try:
        return check_random_state(random_state)
    except ValueError as error:
        raise InputError(
            f"random_state={random_state!r}: use an integer, a numpy RandomState or None."
        ) from error


def check_threads(n_jobs: Any) -> None:
    """Raise InputError unless ``n_jobs`` is None, -1 or a number of threads."""
    if n_jobs is not None and (not isinstance(n_jobs, Integral) or n_jobs == 0):
        raise InputError(f"n_jobs={n_jobs!r}: use a number of threads, -1 (all) or None.")


def check_training(training: Any) -> None:
    """Raise InputError unless ``training`` is a Training or None."""
    if training is not None and not isinstance(training, Training):
        raise InputError(f"training={training!r}: use a Training(...) or None.")


def check_noise_floor(noise_floor: Any, example: str) -> None:
    """Raise InputError unless 0 < noise_floor < 1. ``example`` is quoted in the message."""
    if not (isinstance(noise_floor, Real) and 0.0 < float(noise_floor) < 1.0):
        raise InputError(
            f"noise_floor={noise_floor!r} must lie between 0 and 1, such as {example}."
        )


def is_kernel(value: Any) -> bool:
    """Return whether a value is the name of a kernel or looks like a GPyTorch kernel object."""
    if isinstance(value, str):
        return value in KERNELS
    return hasattr(value, "covar_dist") and not isinstance(value, type)
