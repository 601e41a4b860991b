"""Import of the packages of ``twostagegp[files]``."""

from __future__ import annotations

import importlib
from typing import Any

from twostagegp.errors import InputError

__all__ = ["require"]


def require(module: str) -> Any:
    """A module of an optional package."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"the module {module!r} cannot be imported ({error}). "
            "Install it with: pip install 'twostagegp[files]'"
        ) from error
