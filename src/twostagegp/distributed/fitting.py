"""Fit to Dask collections: hyperparameters from a sample of rows, predictions from all rows.

A random sample of rows is sent to the client and fitted there with the code of local fits: it
determines rules of columns, units, stack, variance and calibration. Then every worker makes shards
of its rows, and predictions use all of them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from twostagegp.distributed.partitions import delayed_partitions, draw_sample
from twostagegp.distributed.predicting import ShardedRows
from twostagegp.distributed.row_shards import NeighborPlan, build_shard, group_partitions
from twostagegp.distributed.rowless_model import (
    neighbor_metrics,
    neighbor_posteriors,
    projection_of,
    without_rows,
)
from twostagegp.errors import InputError, TwoStageGPWarning
from twostagegp.estimators.fitted import FittedRegression
from twostagegp.pipeline.settings import DEFAULTS, Settings
from twostagegp.runtime.dask_cluster import DaskSettings, current_client

__all__ = ["fit_distributed"]


def fit_distributed(
    estimator: Any,
    fit_sample: Callable[..., Any],
    X: Any,
    y: Any,
    groups: Any,
    sample_weight: Any,
    noise_var: Any,
) -> Any:
    """Fit an estimator to Dask collections; an error leaves it unchanged.

    Parameters
    ----------
    estimator : TwoStageGPRegressor or GPNNRegressor
    fit_sample : callable
        ``fit_sample(local, X, y, sample_weight=, noise_var=, copies_are_one=)`` fits a copy of the
        estimator to rows in memory.
    X, y, groups, sample_weight, noise_var
        As in ``fit``; ``groups`` must be None.
    """
    begin = time.perf_counter()
    settings: DaskSettings = _settings(estimator).dask
    local = _local_copy(estimator, groups)
    partitions, lengths = delayed_partitions(X, y, sample_weight, noise_var)
    client = current_client()
    seed = int(check_random_state(estimator.random_state).randint(2**31 - 1))
    sample, rows = draw_sample(client, partitions, lengths, settings.sample_rows, seed)
    drawn = time.perf_counter()
    given = {"sample_weight": sample.weight, "noise_var": sample.noise_var}
    with _searches_on_workers(local, client):
        # A shard does not know the copies in other shards, so every copy counts as a measurement.
        fit_sample(local, sample.X, sample.y, **given, copies_are_one=False)
    fitted = time.perf_counter()
    _warn_of_copies(local)
    shards = _shard_rows(local, partitions, rows, client, settings)
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


def _settings(estimator: Any) -> Settings:
    settings: Settings | None = getattr(estimator, "settings", None)
    return DEFAULTS if settings is None else settings


@contextmanager
def _searches_on_workers(local: Any, client: Any) -> Iterator[None]:
    """Let the kernel searches of a fit run on the workers of a client."""
    if not hasattr(local, "settings"):  # an estimator without kernel search
        yield
        return
    given, settings = local.settings, _settings(local)
    local.settings = replace(settings, search=replace(settings.search, client=client))
    yield
    local.settings = given  # the model is sent to workers, which a client cannot be


def _local_copy(estimator: Any, groups: Any) -> Any:
    """Return a copy that fits the sample; raise InputError if a cluster cannot be used."""
    name = type(estimator).__name__
    if not hasattr(estimator, "n_neighbors"):
        raise InputError(
            f"{name} needs all rows in one place; TwoStageGPRegressor and GPNNRegressor accept "
            "Dask collections."
        )
    method = getattr(estimator, "method", "neighbors")
    if method not in ("auto", "neighbors", "vecchia"):
        raise InputError(
            f"method={method!r} needs all rows in one place; use 'neighbors' for a Dask collection."
        )
    if groups is not None:
        raise InputError("groups cannot be used with Dask collections; fit without them.")
    if estimator.device not in ("auto", "cpu"):
        raise InputError(f"device={estimator.device!r}: workers compute on the CPU; use 'cpu'.")
    local = copy(estimator)
    local.device = "cpu"
    if method == "auto":
        local.method = "neighbors"
    return local


def _warn_of_copies(local: Any) -> None:
    """Warn if most of the sample is copies that agree, since each counts as a measurement."""
    if any(data.merged.mostly_copies for data in local.fitted_.data):
        warnings.warn(
            "more than half of the weight of the sampled rows is in copies with the same target, "
            "or in sample_weight above 1. In a Dask collection each copy counts as a measurement, "
            "so that intervals may be far too narrow. Drop the copies first, for example with "
            "drop_duplicates() of the data frame, divide sample_weight by its largest value, or "
            "fit to a table in memory.",
            TwoStageGPWarning,
            stacklevel=4,
        )


def _shard_rows(
    local: Any, partitions: list[Any], rows: Any, client: Any, settings: DaskSettings
) -> ShardedRows:
    """Replace the rows of a fitted model by shards on the workers, and return these."""
    from dask.delayed import delayed

    fitted: FittedRegression = local.fitted_
    fits = fitted.fits
    projection = next((projection_of(fit) for fit in fits), None)
    k = max(
        (part.engine.n_neighbors for fit in fits for part in neighbor_posteriors(fit)), default=1
    )
    plan = NeighborPlan(tuple(neighbor_metrics(fits)), int(min(k, rows.sum())), projection)
    targets = [replace(target, fit=without_rows(target.fit)) for target in fitted.targets]
    local.fitted_ = replace(fitted, targets=tuple(targets))
    sent = model_for_workers(local)
    model, wanted = delayed(sent, traverse=False), delayed(plan, traverse=False)
    build = delayed(build_shard)
    workers = sum(client.nthreads().values())
    groups = group_partitions(partitions, rows, workers, settings.shard_rows)
    lazy = [build(model, wanted, group) for group in groups]
    shards = ShardedRows(sent, plan, lazy, settings)
    if plan.metrics:
        shards.held()
    local.fitted_ = replace(local.fitted_, remote=shards)
    return shards


def model_for_workers(model: Any) -> Any:
    """Return a copy of a fitted model without training rows and reports, to send to workers."""
    light = copy(model)
    no_rows = np.zeros(0, dtype=np.int64)
    targets = []
    for target in model.fitted_.targets:
        data = target.data
        slim = replace(data, rows=data.rows.subset(no_rows), merged=data.merged.subset(no_rows))
        targets.append(replace(target, data=slim))
    light.fitted_ = replace(model.fitted_, targets=tuple(targets))
    light.fit_report_ = None
    return light
