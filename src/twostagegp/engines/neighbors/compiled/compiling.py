"""Compile a function with Numba, and store the machine code for later processes.

Numba stores it in the folder ``NUMBA_CACHE_DIR`` if that variable is set, otherwise next to the
source, and if that folder is read-only, in the user's cache folder. If none of them can be written,
Numba refuses to compile; here the function is then compiled anew in every process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

from numba import njit

from twostagegp.engines.neighbors.compiled.lanes import OPTIONS
from twostagegp.errors import TwoStageGPWarning

__all__ = ["compiled"]


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function at its first call; store the machine code if a folder can be written."""
    try:
        return njit(**OPTIONS)(function)
    except RuntimeError as error:
        if "cannot cache function" not in str(error):
            raise
        _warn_once()
        return njit(**{**OPTIONS, "cache": False})(function)


@cache
def _warn_once() -> None:
    warnings.warn(
        "the compiled loops of the neighbour method cannot be stored: neither the folder of the "
        "package nor the user's cache folder can be written. Every process compiles them again, "
        "which takes 10 to 20 seconds. Set the environment variable NUMBA_CACHE_DIR to a folder "
        "that can be written.",
        TwoStageGPWarning,
        stacklevel=3,
    )
