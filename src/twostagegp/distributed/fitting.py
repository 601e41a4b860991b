"""``fit`` on Dask collections: hyperparameters from a sample, rows in shards.

A random sample of rows comes to the client and is fitted there by the ordinary code: rules of
columns, units, stack, variance and calibration are the sample's. Then every worker makes shards of
the rows that it has, and predictions see all of them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from twostagegp.distributed.answers import ClusterRows
from twostagegp.distributed.parts import metrics_of, posteriors, space_of, without_rows
from twostagegp.distributed.shards import Plan, build_shard, grouped
from twostagegp.distributed.source import draw_sample, pieces
from twostagegp.errors import InputError, TwoStageGPWarning
from twostagegp.estimators.fitted import FittedRegression
from twostagegp.runtime.dask_cluster import current_client
from twostagegp.search.runners import searches_on

__all__ = ["SAMPLE_ROWS", "fit_distributed"]

#: Rows that come to the client: as many as training looks for neighbours among in one place.
SAMPLE_ROWS = 100_000


def fit_distributed(
    estimator: Any,
    fit_sample: Callable[..., Any],
    X: Any,
    y: Any,
    groups: Any,
    sample_weight: Any,
    noise_var: Any,
) -> Any:
    """Fit an estimator to Dask collections; an error leaves it as it was.

    ``fit_sample(local, X, y, sample_weight=, noise_var=, copies_are_one=)`` fits a copy of the
    estimator to rows in memory.
    """
    begin = time.perf_counter()
    local = _for_sample(estimator, groups)
    made, lengths = pieces(X, y, sample_weight, noise_var)
    client = current_client()
    seed = int(check_random_state(estimator.random_state).randint(2**31 - 1))
    sample, rows = draw_sample(client, made, lengths, SAMPLE_ROWS, seed)
    drawn = time.perf_counter()
    given = {"sample_weight": sample.weight, "noise_var": sample.noise_var}
    with searches_on(client):
        # Shards do not know the copies in other shards: every copy counts, as a measurement.
        fit_sample(local, sample.X, sample.y, **given, copies_are_one=False)
    fitted = time.perf_counter()
    _warn_of_copies(local)
    shards = _take_rows(local, made, rows, client)
    done = time.perf_counter()
    reports = local.fit_report_ if isinstance(local.fit_report_, list) else [local.fit_report_]
    for report in reports:
        report.method_reason = (
            f"{rows.sum()} rows in {len(shards.lazy)} shards on a Dask cluster; "
            f"hyperparameters, units and calibration from {len(sample.y)} of them"
        )
        report.seconds |= {
            "sample": drawn - begin,
            "shards": done - fitted,
            "total": done - begin,
        }
    parameters = estimator.get_params(deep=False)
    learned = {name: value for name, value in vars(local).items() if name not in parameters}
    vars(estimator).update(learned)
    return estimator


def _for_sample(estimator: Any, groups: Any) -> Any:
    """A copy that fits the sample; what a cluster cannot do is refused."""
    name = type(estimator).__name__
    if not hasattr(estimator, "n_neighbors"):
        raise InputError(
            f"{name} needs all rows in one place; TwoStageGPRegressor and GPNNRegressor take Dask "
            "collections."
        )
    method = getattr(estimator, "method", "neighbors")
    if method not in ("auto", "neighbors", "vecchia"):
        raise InputError(
            f"method={method!r} needs all rows in one place; use 'neighbors' for a Dask collection."
        )
    if groups is not None:
        raise InputError("groups are not held out together in a Dask collection; fit without them.")
    if estimator.device not in ("auto", "cpu"):
        raise InputError(f"device={estimator.device!r}: workers compute on the CPU; use 'cpu'.")
    local = copy(estimator)
    local.device = "cpu"
    if method == "auto":
        local.method = "neighbors"
    return local


def _warn_of_copies(local: Any) -> None:
    """Say so where most of the sample is copies that agree: each counts as a measurement."""
    if any(data.merged.mostly_copies for data in local.fitted_.data):
        warnings.warn(
            "more than half of the weight of the rows that were looked at is in copies with the "
            "same target, or in sample_weight above 1. In a Dask collection each counts as a "
            "measurement of its own, so that intervals may be far too narrow. Drop the copies "
            "first, e.g. with drop_duplicates() of the data frame, divide sample_weight by its "
            "largest value, or fit the rows in one place.",
            TwoStageGPWarning,
            stacklevel=4,
        )


def _take_rows(local: Any, made: list[Any], rows: Any, client: Any) -> ClusterRows:
    """Take the rows out of a fitted model, and put the shards in their place."""
    from dask.delayed import delayed

    fitted: FittedRegression = local.fitted_
    fits = fitted.fits
    space = next((space_of(fit) for fit in fits), None)
    k = max((part.engine.n_neighbors for fit in fits for part in posteriors(fit)), default=1)
    plan = Plan(tuple(metrics_of(fits)), int(min(k, rows.sum())), space)
    targets = [replace(target, fit=without_rows(target.fit)) for target in fitted.targets]
    local.fitted_ = replace(fitted, targets=tuple(targets))
    shipped = traveller(local)
    model, wanted = delayed(shipped, traverse=False), delayed(plan, traverse=False)
    build = delayed(build_shard)
    workers = sum(client.nthreads().values())
    lazy = [build(model, wanted, group) for group in grouped(made, rows, workers)]
    shards = ClusterRows(shipped, plan, lazy)
    if plan.metrics:
        shards.held()
    local.fitted_ = replace(local.fitted_, remote=shards)
    return shards


def traveller(model: Any) -> Any:
    """Return a fitted model as it goes to the workers: no rows, no record of the fit."""
    light = copy(model)
    none = np.zeros(0, dtype=np.int64)
    targets = []
    for target in model.fitted_.targets:
        data = target.data
        slim = replace(data, rows=data.rows.subset(none), merged=data.merged.subset(none))
        targets.append(replace(target, data=slim))
    light.fitted_ = replace(model.fitted_, targets=tuple(targets))
    light.fit_report_ = light.search_ = None
    return light
