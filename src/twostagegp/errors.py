"""The errors and warnings of this package, with one base class each.

A message says what happened, which value was given, and what to do about it. Each error also
inherits from the built-in exception that callers would expect.
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
    """A computation failed: a matrix could not be factorised, or a prediction is not finite."""


class NotFittableError(TwoStageGPError, RuntimeError):
    """No candidate of a search or a stack could be fitted."""


class MemoryBudgetError(TwoStageGPError, MemoryError):
    """The request needs more memory than is available; raised before the memory is allocated."""


class ClusterError(TwoStageGPError, RuntimeError):
    """A Dask cluster was lost, or its workers died."""


class ModelFileError(TwoStageGPError, ValueError):
    """A model cannot be saved, or a file does not contain a valid model."""


class TwoStageGPWarning(UserWarning):
    """The warning that summarises the problems of a fit; details are in ``fit_report_``."""
