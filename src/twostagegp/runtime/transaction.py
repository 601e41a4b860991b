"""Fits that leave the estimator unchanged if they fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["unchanged_on_error"]


@contextmanager
def unchanged_on_error(estimator: Any) -> Iterator[None]:
    """Restore the attributes of an estimator if the block raises, also for KeyboardInterrupt.

    An estimator that was fitted before keeps its fit; one that was not remains unfitted.

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
