"""Checks of constructor parameters that several estimators share."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from twostagegp.errors import InputError
from twostagegp.training.schedule import Training

__all__ = [
    "check_noise_floor",
    "check_seed",
    "check_threads",
    "check_training",
]


def check_seed(random_state: Any) -> np.random.RandomState:
    """The generator that ``random_state`` stands for."""
    try:
        return check_random_state(random_state)
    except ValueError as error:
        raise InputError(
            f"random_state={random_state!r}: use an integer, a numpy RandomState or None."
        ) from error


def check_threads(n_jobs: Any) -> None:
    """Raise where ``n_jobs`` is no number of threads."""
    if n_jobs is not None and (not isinstance(n_jobs, Integral) or n_jobs == 0):
        raise InputError(f"n_jobs={n_jobs!r}: use a number of threads, -1 (all) or None.")


def check_training(training: Any) -> None:
    """Raise where ``training`` is neither a schedule nor None."""
    if training is not None and not isinstance(training, Training):
        raise InputError(f"training={training!r}: use a Training(...) or None.")


def check_noise_floor(noise_floor: Any, such: str) -> None:
    """Raise where a noise floor, relative to a variance of one, is none; ``such`` is one."""
    if not (isinstance(noise_floor, Real) and 0.0 < float(noise_floor) < 1.0):
        raise InputError(f"noise_floor={noise_floor!r} must lie between 0 and 1, such as {such}.")
