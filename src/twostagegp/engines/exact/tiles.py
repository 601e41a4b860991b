"""Parts of large matrices as independent tasks, one per core at a time.

The sizes of the parts depend on the matrix only, not on the number of cores, so that every number
of cores computes the same numbers. A GPU, and a kernel whose evaluations must not run side by side,
get the whole matrix at once.
"""

from __future__ import annotations

import torch

__all__ = ["column_slices", "row_slices"]

#: Rows of a part: enough for matrix products at full speed.
_ROWS = 512
#: Parts that the columns of a right-hand side are split into, and the fewest columns of one.
_PARTS, _COLUMNS = 16, 32


def row_slices(a: int, b: int, device: torch.device, concurrent: bool = True) -> list[slice]:
    """Return slices that cover the rows a to b.

    Examples
    --------
    >>> row_slices(100, 700, torch.device("cpu"))
    [slice(100, 612, None), slice(612, 700, None)]
    """
    if device.type != "cpu" or not concurrent:
        return [slice(a, b)]
    return [slice(start, min(start + _ROWS, b)) for start in range(a, b, _ROWS)]


def column_slices(m: int, device: torch.device) -> list[slice]:
    """Return slices that cover m columns of a right-hand side.

    Examples
    --------
    >>> column_slices(40, torch.device("cpu"))
    [slice(0, 32, None), slice(32, 40, None)]
    """
    width = m if device.type != "cpu" else max(_COLUMNS, -(-m // _PARTS))
    return [slice(start, min(start + width, m)) for start in range(0, m, max(1, width))]
