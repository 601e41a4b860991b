"""Checks and preparations that the search and the tests share."""

from __future__ import annotations

import logging
import math
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array, check_consistent_length

from twostagegp.data.checks import check_choice, check_finite, check_nonnegative, column_names
from twostagegp.data.columns.encoder import TableEncoder
from twostagegp.data.dask_detection import is_dask
from twostagegp.data.scaling import Prepared, prepare
from twostagegp.errors import InputError
from twostagegp.runtime.device import resolve_device
from twostagegp.search.repetitions import FEWEST_ROWS

__all__ = [
    "LOG",
    "check_positive",
    "check_share",
    "prepare_table",
    "sampling_of",
]

LOG = logging.getLogger("twostagegp")


def check_share(name: str, value: Any) -> None:
    """Raise an InputError for a number that is not between 0 and 1."""
    if not (isinstance(value, Real) and 0.0 < float(value) < 1.0):
        raise InputError(f"{name}={value!r} must lie between 0 and 1, such as 0.05.")


def check_positive(name: str, value: Any, hint: str) -> None:
    """Raise an InputError for what is not a positive, finite number."""
    number = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    if not (number and 0.0 < float(value) < math.inf):
        raise InputError(f"{name}={value!r} must be a positive number; {hint}.")


def sampling_of(sampling: str, automatic: str) -> str:
    """The way of drawing rows that ``sampling`` asks for."""
    check_choice("sampling", sampling, ("auto", "fps", "random"))
    return automatic if sampling == "auto" else sampling


def _numbers(X: Any, weight: Any) -> tuple[NDArray[np.float64], list[str]]:
    """The numbers of a table and their names; a data frame by the rules of docs/tables.md."""
    if isinstance(X, pd.DataFrame):
        encoder = TableEncoder().fit(X, sample_weight=weight)
        return encoder.encode(X, quiet=True), encoder.names
    return check_array(X, dtype=np.float64, ensure_all_finite=False), column_names(X)


def prepare_table(
    X: Any,
    y: ArrayLike,
    sample_weight: ArrayLike | None,
    noise_floor: float,
    n_repeats: int,
    subsample: int,
    device: str,
    random_state: Any,
) -> tuple[Prepared, np.random.Generator]:
    """A user's table, checked, merged and standardised, and the source of randomness."""
    check_share("noise_floor", noise_floor)
    for name, given in (("X", X), ("y", y), ("sample_weight", sample_weight)):
        if is_dask(given):
            raise InputError(
                f"{name} is a Dask collection ({type(given).__name__}); subsamples are drawn from "
                f"a table in memory: draw rows first and call {name}.compute(). client= spreads "
                "the repetitions over workers."
            )
    for name, value, least in (("n_repeats", n_repeats, 2), ("subsample", subsample, FEWEST_ROWS)):
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise InputError(f"{name}={value!r}: use a whole number, at least {least}.")
    try:
        table, names = _numbers(X, sample_weight)
        target = np.asarray(y, dtype=np.float64)
        check_consistent_length(table, target)
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(f"X must be a table of numbers and y a column of them: {error}") from error
    if target.ndim != 1:
        raise InputError(f"y has shape {target.shape}, expected (n,): search one target at a time.")
    check_finite(table, "X", names)
    check_finite(target, "y")
    weight = check_nonnegative(sample_weight, len(table), "sample_weight")
    where = resolve_device(device, len(table), batched=True)
    data = prepare(table, target, names, weight=weight, device=where, dtype=torch.float64)
    if data.constant_target:
        raise InputError("y is constant; there is nothing that a kernel could explain.")
    if data.rows.X.shape[1] == 0:
        raise InputError("every column of X is constant; there is nothing to search over.")
    if len(data.rows) < FEWEST_ROWS:
        raise InputError(
            f"X has {len(data.rows)} distinct rows; at least {FEWEST_ROWS} are needed."
        )
    if isinstance(random_state, np.random.RandomState):
        random_state = int(random_state.randint(2**31 - 1))
    try:
        return data, np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"random_state={random_state!r}: use an integer, a numpy Generator or RandomState, or "
            "None."
        ) from error
