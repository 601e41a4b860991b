"""Recognise Dask collections by the module of their type, without importing Dask."""

from __future__ import annotations

from typing import Any

__all__ = ["is_dask"]


def is_dask(value: Any) -> bool:
    """Return whether a value is a Dask array, data frame, series or other Dask collection.

    Examples
    --------
    >>> import numpy as np
    >>> is_dask(np.zeros(3))
    False
    """
    packages = {cls.__module__.partition(".")[0] for cls in type(value).__mro__}
    return "dask" in packages or "dask_expr" in packages
