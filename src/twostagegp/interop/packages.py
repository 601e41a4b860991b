"""Import of the package of ``twostagegp[botorch]``."""

from __future__ import annotations

import importlib

from twostagegp.errors import InputError

__all__ = ["require_botorch"]


def require_botorch() -> None:
    """Raise an :class:`InputError` with the way out where BoTorch cannot be imported."""
    try:
        importlib.import_module("botorch")
    except ImportError as error:
        raise InputError(
            f"to_botorch needs BoTorch, which cannot be imported ({error}). "
            "Install it with: pip install 'twostagegp[botorch]'"
        ) from error
