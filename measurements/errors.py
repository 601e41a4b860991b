"""Errors of measurements."""

from __future__ import annotations

__all__ = ["CannotMeasureError"]


class CannotMeasureError(Exception):
    """A cell cannot be measured here, for example because a package is missing.

    Its record is not stored: it would say something about this installation only.
    """
