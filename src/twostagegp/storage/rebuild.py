"""Objects from their fields, where filling in attributes is not enough."""

from __future__ import annotations

from typing import Any

__all__ = [
    "make_by_constructor",
    "make_checked_posterior",
    "make_column",
    "make_local_rows",
    "make_ridge",
    "make_search_record",
    "rebuild_latents",
    "rebuild_posterior",
]


def make_by_constructor(cls: Any, fields: dict[str, Any]) -> Any:
    """Call the constructor with the fields."""
    return cls(**fields)


def make_checked_posterior(cls: Any, fields: dict[str, Any]) -> Any:
    """Return a posterior whose other attributes follow from kernel, parameters and rows."""
    from twostagegp.storage.checks import check_hyperparameters

    rows = fields["rows"] if "rows" in fields else fields["engine"].rows
    check_hyperparameters(fields["kernel"], fields["parameters"], rows.X.shape[1])
    return cls(**fields)


def make_ridge(cls: Any, fields: dict[str, Any]) -> Any:
    """Return a ridge from its posterior; older files repeat what the posterior has."""
    return cls(fields["candidate"], fields["posterior"], fields["heldout_residuals"])


def make_column(cls: Any, fields: dict[str, Any]) -> Any:
    """The rule of a column, which has not warned of anything yet."""
    made = cls.__new__(cls)
    made.__dict__.update(fields, told=set())
    if "start" in fields:
        made.zone = fields["start"].tz
    return made


def make_local_rows(cls: Any, fields: dict[str, Any]) -> Any:
    """Rows of a classifier without their index, which is built when it is asked for."""
    made = cls.__new__(cls)
    made.__dict__.update(fields, _index=None)
    return made


def make_search_record(cls: Any, fields: dict[str, Any]) -> Any:
    """A list with two attributes."""
    return cls(fields["rows"], fields["mean"], fields["variance"])


def rebuild_posterior(posterior: Any) -> None:
    """One Cholesky factor."""
    posterior.rebuild_factor()


def rebuild_latents(latents: Any) -> None:
    """The inverse, and a small factor a class."""
    latents.rebuild_factors()
