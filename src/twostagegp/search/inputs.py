"""Check and prepare the arguments that kernel search and misspecification tests share."""

from __future__ import annotations

import logging
import math
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array, check_consistent_length

from twostagegp.data.checks import (
    check_choice,
    check_count,
    check_finite,
    check_nonnegative,
    column_names,
    is_dask,
)
from twostagegp.data.columns.encoder import TableEncoder
from twostagegp.data.scaling import Prepared, prepare
from twostagegp.errors import InputError
from twostagegp.runtime.device import resolve_device
from twostagegp.search.repetitions import MIN_ROWS

__all__ = [
    "LOG",
    "check_between_0_and_1",
    "check_positive",
    "prepare_table",
    "resolve_sampling",
]

LOG = logging.getLogger("twostagegp")


def check_between_0_and_1(name: str, value: Any) -> None:
    """Raise InputError unless 0 < value < 1."""
    if not (isinstance(value, Real) and 0.0 < float(value) < 1.0):
        raise InputError(f"{name}={value!r} must lie between 0 and 1, such as 0.05.")


def check_positive(name: str, value: Any, hint: str) -> None:
    """Raise InputError unless the value is a positive, finite number; ``hint`` says what to use."""
    number = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    if not (number and 0.0 < float(value) < math.inf):
        raise InputError(f"{name}={value!r} must be a positive number; {hint}.")


def resolve_sampling(sampling: str, default: str) -> str:
    """Return the kind of subsamples that ``sampling`` asks for; ``"auto"`` is the default."""
    check_choice("sampling", sampling, ("auto", "fps", "random"))
    return default if sampling == "auto" else sampling


def _encode(X: Any, weight: Any) -> tuple[NDArray[np.float64], list[str]]:
    """Return a table as numbers, and their names; frames by the rules of docs/tables.md."""
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
    """Return the user's table, checked, merged and standardised, and a random generator."""
    check_between_0_and_1("noise_floor", noise_floor)
    for name, given in (("X", X), ("y", y), ("sample_weight", sample_weight)):
        if is_dask(given):
            raise InputError(
                f"{name} is a Dask collection ({type(given).__name__}), but subsamples are drawn "
                f"from a table in memory: select rows first and call {name}.compute(). client= "
                "distributes the repetitions over workers."
            )
    check_count("n_repeats", n_repeats, 2)
    check_count("subsample", subsample, MIN_ROWS)
    try:
        table, names = _encode(X, sample_weight)
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
        raise InputError("y is constant, so that there is nothing to explain by a kernel.")
    if data.rows.X.shape[1] == 0:
        raise InputError("every column of X is constant; at least one must vary.")
    if len(data.rows) < MIN_ROWS:
        raise InputError(f"X has {len(data.rows)} distinct rows; at least {MIN_ROWS} are needed.")
    if isinstance(random_state, np.random.RandomState):
        random_state = int(random_state.randint(2**31 - 1))
    try:
        return data, np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"random_state={random_state!r}: use an integer, a numpy Generator or RandomState, or "
            "None."
        ) from error
