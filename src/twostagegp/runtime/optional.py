"""Import of optional dependencies, which are installed by extras of this package."""

from __future__ import annotations

import importlib
from typing import Any

from twostagegp.errors import InputError

__all__ = ["require"]


def require(module: str, extra: str) -> Any:
    """Import a module, or raise InputError naming the extra that installs it.

    Parameters
    ----------
    module : str
    extra : str
        Name of the extra in ``pyproject.toml``, such as ``"foundation"``.

    Examples
    --------
    >>> require("json", "files").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"the module {module!r} cannot be imported ({error}). "
            f"Install it with: pip install 'twostagegp[{extra}]'"
        ) from error
