"""The innermost loops of the package: vector instructions, or plain loops for an untried Numba.

``vector_loops.py`` uses Numba's internals, which may change with any version. To allow a new
version, run ``tests/engines`` with it and raise the upper bound of :data:`TRIED`.
"""

from __future__ import annotations

import warnings
from typing import Any

import numba

from twostagegp.errors import TwoStageGPWarning

__all__ = [
    "TRIED",
    "block_distances",
    "box_distances",
    "covariances_and_slopes",
    "differences",
    "eliminate",
    "eliminate_pair",
    "exponential_covariances",
    "is_tried",
    "pivot",
    "slope_weights",
    "weighted_squares",
]

#: Oldest and newest Numba (major, minor) with which the vector loops were tested.
TRIED = ((0, 60), (0, 68))


def is_tried(version: str) -> bool:
    """Return whether the vector loops were tested with a version of Numba.

    Examples
    --------
    >>> is_tried("0.68.1"), is_tried("0.59.0"), is_tried("1.0.0rc1")
    (True, False, False)
    """
    major, minor = version.split(".")[:2]
    return TRIED[0] <= (int(major), int(minor)) <= TRIED[1]


_loops: Any
if is_tried(numba.__version__):
    from twostagegp.engines.neighbors.compiled import vector_loops as _loops
else:
    from twostagegp.engines.neighbors.compiled import plain_loops as _loops

    oldest, newest = (".".join(map(str, version)) for version in TRIED)
    warnings.warn(
        f"the fast loops of the neighbour method were tested with Numba {oldest} to {newest}, not "
        f"with {numba.__version__}: slower loops take their place, with the same results up to "
        f"rounding. Install a Numba version of this range for the fast loops.",
        TwoStageGPWarning,
        stacklevel=2,
    )

block_distances = _loops.block_distances
box_distances = _loops.box_distances
covariances_and_slopes = _loops.covariances_and_slopes
differences = _loops.differences
eliminate = _loops.eliminate
eliminate_pair = _loops.eliminate_pair
exponential_covariances = _loops.exponential_covariances
pivot = _loops.pivot
slope_weights = _loops.slope_weights
weighted_squares = _loops.weighted_squares
