"""Objects made from their fields."""

from __future__ import annotations

from typing import Any

from twostagegp.storage.checks import check_hyperparameters

__all__ = ["call_constructor", "condition", "make_column", "set_attributes"]


def set_attributes(cls: Any, fields: dict[str, Any]) -> Any:
    """Return an object with these attributes, without calling its constructor."""
    made = cls.__new__(cls)
    made.__dict__.update(fields)
    return made


def call_constructor(cls: Any, fields: dict[str, Any]) -> Any:
    """Return what the constructor makes of the fields."""
    return cls(**fields)


def condition(cls: Any, fields: dict[str, Any]) -> Any:
    """Return a posterior from its rows, after a check that the hyperparameters fit them."""
    rows = fields["rows"] if "rows" in fields else fields["engine"].rows
    check_hyperparameters(fields["kernel"], fields["parameters"], rows.X.shape[1])
    return cls(**fields)


def make_column(cls: Any, fields: dict[str, Any]) -> Any:
    """Return the rule of a column, which has not warned of any value yet."""
    made = set_attributes(cls, {**fields, "told": set()})
    if "start" in fields:
        made.zone = fields["start"].tz
    return made
