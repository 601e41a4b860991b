"""Replace the code of a module that is already imported.

Importing a library takes seconds and its tests milliseconds. So a changed module is not imported
anew: its text is executed beside the old one, and everything in the old module that holds code or a
number gets it from there. Functions keep their identity, so modules that imported them use the
new code.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Collection
from types import CodeType, FunctionType, ModuleType
from typing import Any

__all__ = ["transplant"]

_PLAIN = (bool, int, float, tuple, dict)


def transplant(module: ModuleType, code: CodeType, readers: Collection[str]) -> None:
    """Make a module do what ``code`` says.

    Parameters
    ----------
    readers : collection of str
        Modules whose copies of the module's numbers change too.

    Examples
    --------
    >>> module = ModuleType("example")
    >>> text = "def twice(x):\\n    return 2 * x\\n"
    >>> exec(text, module.__dict__)
    >>> twice = module.twice
    >>> transplant(module, compile(text.replace("2", "3"), "example", "exec"), [])
    >>> twice(5)
    15
    """
    fresh = ModuleType(module.__name__)
    fresh.__file__ = module.__file__ if hasattr(module, "__file__") else None
    exec(code, fresh.__dict__)
    for name, old in list(vars(module).items()):
        new = vars(fresh).get(name)
        if name.startswith("__") or new is None:
            continue
        if inspect.isclass(old) and old.__module__ == module.__name__:
            _transplant_class(old, new)
        elif _function(old) is not None:
            _transplant_function(_function(old), _function(new), module.__name__)
        elif name.upper() == name and not inspect.ismodule(old) and not isinstance(old, type):
            for reader in (module, *(sys.modules[r] for r in readers if r in sys.modules)):
                if vars(reader).get(name) is old:
                    setattr(reader, name, new)


def _transplant_class(old: type, new: type) -> None:
    for name, value in list(vars(old).items()):
        other = vars(new).get(name)
        if _function(value) is not None:
            _transplant_function(_function(value), _function(other), None)
        elif not name.startswith("__") and isinstance(value, _PLAIN):
            setattr(old, name, other)


def _function(value: Any) -> FunctionType | None:
    """Return the plain function behind a property, a cache or another wrapper; None without one."""
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, functools.cached_property):
        value = value.func
    elif isinstance(value, staticmethod | classmethod):
        value = value.__func__
    value = inspect.unwrap(value) if callable(value) else value
    return value if isinstance(value, FunctionType) else None


def _transplant_function(old: Any, new: Any, module: str | None) -> None:
    if new is None or (module is not None and old.__module__ != module):
        return
    old.__code__ = new.__code__
    old.__defaults__ = new.__defaults__
    old.__kwdefaults__ = new.__kwdefaults__
