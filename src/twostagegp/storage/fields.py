"""The fields of a class that a file holds, read from the annotations of the class.

A dataclass has its fields. Another class has the annotations of its body that have no value there;
a class that is made again by its constructor has the parameters of the constructor. An estimator
has its parameters, of which any value is stored, and the annotated attributes that ``fit`` sets,
whose names end in ``_``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, ClassVar, get_origin, get_type_hints

__all__ = ["Field", "annotated_fields", "constructor_fields", "estimator_fields"]

#: Finds a class by its name if a module imports it for type checkers only.
FindClass = Callable[[str], Any]


@dataclass(frozen=True)
class Field:
    """What a field may hold.

    Attributes
    ----------
    annotation : type
        The annotation, with names resolved.
    default : callable or None
        Makes the value of a field that an older file does not have; None if there is no default.
    """

    annotation: Any
    default: Callable[[], Any] | None = None


def annotated_fields(cls: Any, find: FindClass) -> dict[str, Field]:
    """Return the fields of a dataclass, or the annotations of a class that have no value in it."""
    hints = _hints(cls, find)
    if is_dataclass(cls):
        return {each.name: Field(hints[each.name], _default(each)) for each in fields(cls)}
    return {
        name: Field(hint)
        for name, hint in hints.items()
        if get_origin(hint) is not ClassVar and not hasattr(cls, name)
    }


def constructor_fields(cls: Any, find: FindClass) -> dict[str, Field]:
    """Return the parameters of the constructor."""
    hints = _hints(cls.__init__, find)
    return {name: Field(hints[name]) for name in inspect.signature(cls).parameters}


def estimator_fields(cls: Any, find: FindClass) -> dict[str, Field]:
    """Return the parameters of an estimator and the attributes that ``fit`` sets."""
    parameters = {
        name: Field(Any, _constant(parameter.default, inspect.Parameter.empty))
        for name, parameter in inspect.signature(cls).parameters.items()
    }
    attributes = annotated_fields(cls, find)
    return parameters | {name: attributes[name] for name in attributes if name.endswith("_")}


def _hints(annotated: Any, find: FindClass) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while True:
        try:
            return get_type_hints(annotated, localns=found or None)
        except NameError as error:  # a name that the module imports for type checkers only
            found[str(error.name)] = find(str(error.name))


def _default(field: Any) -> Callable[[], Any] | None:
    if field.default_factory is not MISSING:
        return field.default_factory
    return _constant(field.default, MISSING)


def _constant(value: Any, absent: Any) -> Callable[[], Any] | None:
    return None if value is absent else lambda: value
