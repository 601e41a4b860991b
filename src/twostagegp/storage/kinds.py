"""Kinds of values that a file holds, and whether a value is what an annotation says.

Elements of lists, tuples and dictionaries are compared too. An annotation that is not understood
here matches no value, so that a mistake refuses a file instead of letting a value pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator

from twostagegp.storage.registry import PARTS, ROLES, Part

__all__ = ["find_part", "kind_of", "matches"]

#: Kinds of values that are of exactly this type.
_EXACT: dict[Any, str] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    NoneType: "none",
    list: "list",
    tuple: "tuple",
    dict: "dict",
}
#: Kinds of values of a type or a type derived from it.
_DERIVED: dict[Any, str] = {
    np.ndarray: "array",
    torch.Tensor: "tensor",
    torch.device: "device",
    torch.dtype: "dtype",
    pd.DataFrame: "frame",
    pd.Timestamp: "time",
    np.random.RandomState: "random_state",
    np.bool_: "bool",
    np.integer: "int",
    np.floating: "float",
}
#: Kinds that an annotation accepts.
_ACCEPTED: dict[Any, tuple[str, ...]] = {
    **{cls: (kind,) for cls, kind in (_DERIVED | _EXACT).items()},
    float: ("int", "float"),
    Sequence: ("list", "tuple"),
    torch.nn.Module: ("kernel",),
}


def find_part(value: Any) -> Part | None:
    """Return the entry of an object's class; None for derived classes and other namesakes."""
    part = PARTS.get(type(value).__name__)
    return part if part is not None and type(value).__module__ == part.module else None


def kind_of(value: Any) -> str:
    """Return the name of a registered class or of a kind of value; ``"?"`` if it has neither."""
    if type(value) in _EXACT:
        return _EXACT[type(value)]
    part = find_part(value)
    if part is not None:
        return part.name
    for cls, kind in _DERIVED.items():
        if isinstance(value, cls):
            return kind
    if hasattr(value, "covar_dist") and isinstance(value, torch.nn.Module):
        return "kernel"
    return "sklearn" if isinstance(value, BaseEstimator) else "?"


def matches(value: Any, annotation: Any) -> bool:
    """Return whether a value may stand in a field with this annotation.

    Examples
    --------
    >>> matches([1, 2.5], list[float]), matches([1, "a"], list[float]), matches(True, int)
    (True, False, False)
    """
    if annotation is Any or annotation is object:
        return True
    arguments = get_args(annotation)
    base = get_origin(annotation) or annotation
    if type(base).__name__ == "TypeAliasType":  # NDArray[...] from NumPy 2.5 on
        return matches(value, base.__value__)
    if base in (Union, UnionType):
        return any(matches(value, each) for each in arguments)
    if base is Literal:
        return any(type(value) is type(each) and value == each for each in arguments)
    base = NoneType if base is None else base
    if base in _ACCEPTED:
        return kind_of(value) in _ACCEPTED[base] and _elements_match(value, base, arguments)
    if not isinstance(base, type):
        return False
    path = f"{base.__module__}.{base.__qualname__}".removeprefix("twostagegp.")
    if path in ROLES:
        return kind_of(value) in ROLES[path]
    return find_part(value) is not None and base in type(value).__mro__


def _elements_match(value: Any, base: Any, arguments: tuple[Any, ...]) -> bool:
    if not arguments or not isinstance(value, list | tuple | dict):
        return True
    if isinstance(value, dict):
        key, content = arguments
        return all(matches(k, key) and matches(v, content) for k, v in value.items())
    if base is tuple and arguments[-1] is not ...:
        return len(value) == len(arguments) and all(map(matches, value, arguments))
    return all(matches(each, arguments[0]) for each in value)
