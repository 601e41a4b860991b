"""Whether a table is a Dask collection, told from the name of its type: Dask is not imported."""

from __future__ import annotations

from typing import Any

__all__ = ["is_dask"]


def is_dask(value: Any) -> bool:
    """Whether this is a Dask array, data frame or series (or another collection of Dask's).

    Examples
    --------
    >>> import numpy as np
    >>> is_dask(np.zeros(3))
    False
    """
    packages = {cls.__module__.partition(".")[0] for cls in type(value).__mro__}
    return "dask" in packages or "dask_expr" in packages
