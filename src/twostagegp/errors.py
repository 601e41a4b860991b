"""Everything that this package raises or warns about, under two base classes.

A message says what happened, which value was seen, and what to do about it.
Each error also inherits from the built-in that callers already catch.
"""

from __future__ import annotations

__all__ = [
    "ClusterError",
    "InputError",
    "MemoryBudgetError",
    "ModelFileError",
    "NotFittableError",
    "NumericalError",
    "TwoStageGPError",
    "TwoStageGPWarning",
]


class TwoStageGPError(Exception):
    """Base class of every error raised by this package."""


class InputError(TwoStageGPError, ValueError):
    """The data or a parameter cannot be used as given."""


class NumericalError(TwoStageGPError, ArithmeticError):
    """A matrix could not be factorised, even with the largest jitter allowed."""


class NotFittableError(TwoStageGPError, RuntimeError):
    """No candidate of a search or a stack could be fitted."""


class MemoryBudgetError(TwoStageGPError, MemoryError):
    """The request needs more memory than there is; raised before any is taken."""


class ClusterError(TwoStageGPError, RuntimeError):
    """A Dask cluster was lost, or its workers died."""


class ModelFileError(TwoStageGPError, ValueError):
    """A model cannot be saved as it is, or a file does not hold one."""


class TwoStageGPWarning(UserWarning):
    """The one summarising warning that a fit may give; details are in ``fit_report_``."""
