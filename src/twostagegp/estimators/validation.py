"""Checks of constructor parameters.

Every estimator lists what its parameters may be in ``_parameter_constraints``, next to
``__init__``, with the constraints of scikit-learn and those below. :func:`check_parameters` raises
an InputError that says which value was given and what to use instead.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, Options, StrOptions, make_constraint

from twostagegp.data.checks import penalty_option
from twostagegp.data.columns.tables import MISSING
from twostagegp.errors import InputError
from twostagegp.kernels import KERNELS
from twostagegp.training.schedule import Training

__all__ = [
    "KERNEL",
    "KERNELS_LIST",
    "PENALTY",
    "SHARED_CONSTRAINTS",
    "SOME_KERNELS",
    "Where",
    "at_least",
    "check_parameters",
    "is_kernel",
    "raised_noise_floor",
]


class Where(Options):
    """A constraint in words, for a condition that scikit-learn has no class for.

    It inherits from ``Options`` because scikit-learn accepts constraints of its own classes only.

    Parameters
    ----------
    words : str
        The alternatives, each to follow "use".
    holds : callable
        From the value to whether it may be used.
    """

    def __init__(self, *words: str, holds: Callable[[Any], bool]) -> None:
        super().__init__(object, set())
        self.words, self.holds = words, holds

    def is_satisfied_by(self, val: Any) -> bool:
        """Return whether a value may be used."""
        return self.holds(val)

    def __str__(self) -> str:
        return " or ".join(self.words)


def at_least(least: int) -> Interval:
    """Return the constraint of whole numbers from ``least`` on."""
    return Interval(Integral, least, None, closed="left")


def is_kernel(value: Any) -> bool:
    """Return whether a value is the name of a kernel or looks like a GPyTorch kernel object."""
    if isinstance(value, str):
        return value in KERNELS
    return hasattr(value, "covar_dist") and not isinstance(value, type)


def _is_penalty(value: Any) -> bool:
    try:
        penalty_option(value, ())
    except InputError:
        return False
    return True


def _is_device(value: Any) -> bool:
    return isinstance(value, str | torch.device)


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral)


def _is_thread_count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and value != 0


def _is_kernels_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(is_kernel, value))


_NAMES = ", ".join(repr(name) for name in KERNELS)
KERNEL = Where(f"a kernel name ({_NAMES})", "a GPyTorch kernel object", holds=is_kernel)
KERNELS_LIST = Where(
    f"a non-empty list of kernel names ({_NAMES}) and GPyTorch kernel objects",
    holds=_is_kernels_list,
)
SOME_KERNELS = Where("a non-empty list of kernels", holds=_is_kernels_list)
PENALTY = Where("a positive number", "a list of positive numbers", holds=_is_penalty)

#: Parameters that all estimators have in common.
SHARED_CONSTRAINTS: dict[str, list[Any]] = {
    "training": [Training, None],
    "noise_floor": [Interval(Real, 0, 1, closed="neither")],
    "device": [Where("'auto'", "'cpu'", "'cuda'", holds=_is_device)],
    "dtype": [StrOptions({"float64", "float32"})],
    "n_jobs": [Where("a number of threads", "-1 for all", holds=_is_thread_count), None],
    "random_state": ["random_state"],
    "verbose": [Where("0 (silent)", "1 (progress and the report)", holds=_is_integer)],
    "missing": [StrOptions(set(MISSING))],
}


def check_parameters(estimator: Any) -> None:
    """Raise InputError for a parameter that does not satisfy the estimator's constraints.

    Examples
    --------
    >>> from twostagegp import TwoStageGPRegressor
    >>> check_parameters(TwoStageGPRegressor(n_neighbors=0))
    Traceback (most recent call last):
    ...
    twostagegp.errors.InputError: n_neighbors=0: use a whole number of at least 1.
    >>> check_parameters(TwoStageGPRegressor(ard="yes"))
    Traceback (most recent call last):
    ...
    twostagegp.errors.InputError: ard='yes': use True, False or 'both'.
    """
    for name, allowed in type(estimator)._parameter_constraints.items():
        value = getattr(estimator, name)
        if not any(_satisfies(value, each) for each in allowed):
            words = [word for each in allowed for word in _words(each)]
            *most, last = words
            listed = f"{', '.join(most)} or {last}" if most else last
            raise InputError(f"{name}={value!r}: use {listed}.")


def raised_noise_floor(noise_floor: float, dtype: str) -> float:
    """Return the noise floor on a standardised target, at least 1e-4 for float32.

    Below that, float32 factorisations are not reliable.
    """
    return max(noise_floor, 1e-4) if dtype == "float32" else noise_floor


def _satisfies(value: Any, constraint: Any) -> bool:
    if isinstance(value, bool | np.bool_) and isinstance(constraint, Interval):
        return False  # True is no number here
    return bool(make_constraint(constraint).is_satisfied_by(value))


def _words(constraint: Any) -> list[str]:
    """Return the alternatives of a constraint, each to follow "use"."""
    if constraint is None:
        return ["None"]
    if isinstance(constraint, str) and constraint == "boolean":
        return ["True", "False"]
    if isinstance(constraint, str) and constraint == "random_state":
        return ["an integer", "a numpy RandomState", "None"]
    if isinstance(constraint, StrOptions):
        return sorted(repr(option) for option in constraint.options)
    if isinstance(constraint, Where):
        return list(constraint.words)
    if isinstance(constraint, type):
        return [f"an object of the class {constraint.__name__}"]
    if isinstance(constraint, Interval):
        return [_interval_words(constraint)]
    return [str(constraint)]


def _interval_words(interval: Interval) -> str:
    if interval.type is Integral and interval.right is None:
        return f"a whole number of at least {interval.left}"
    first = "[" if interval.closed in ("left", "both") else "("
    last = "]" if interval.closed in ("right", "both") else ")"
    most = "infinity" if interval.right is None else interval.right
    return f"a number in the interval {first}{interval.left}, {most}{last}"
