"""Fits that end whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["unchanged_on_error"]


@contextmanager
def unchanged_on_error(estimator: Any) -> Iterator[None]:
    """Give an estimator its attributes back where the block raises, Ctrl-C included.

    A model that was fitted before predicts as it did; one that was not is still not fitted.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> model = SimpleNamespace(fitted="before")
    >>> try:
    ...     with unchanged_on_error(model):
    ...         model.fitted, model.half = "after", True
    ...         raise KeyboardInterrupt
    ... except KeyboardInterrupt:
    ...     print(vars(model))
    {'fitted': 'before'}
    """
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise
