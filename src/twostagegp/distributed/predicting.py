"""Predict with a model whose rows are in shards, and predict lazily for Dask collections.

The points of a partition are sent from shard to shard and collect their nearest rows. After the
last shard the local solves run on its worker, with the code of local models. Partitions begin at
different shards, so that all workers are busy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twostagegp.data.columns.tables import new_inputs
from twostagegp.distributed.neighbor_lists import NeighborLists
from twostagegp.distributed.partitions import split_collection
from twostagegp.distributed.row_shards import NeighborPlan, search_shard
from twostagegp.distributed.rowless_model import with_neighbors
from twostagegp.estimators.fitted import Moments
from twostagegp.runtime.dask_cluster import (
    DEFAULT_DASK,
    DaskSettings,
    compute_here,
    compute_on_workers,
    current_client,
    single_thread,
)
from twostagegp.runtime.threads import no_denormals

__all__ = ["ShardedRows", "lazy_predictions"]

Array = NDArray[np.float64]


def _order_by_worker(client: Any, held: list[Any]) -> list[Any]:
    """Return shards ordered by worker, so that points are rarely sent between workers."""
    from distributed import futures_of

    homes = client.who_has(futures_of(held))
    return sorted(held, key=lambda shard: sorted(homes.get(shard.key, ())))


class ShardedRows:
    """The training rows of a fitted model, in shards on the workers of a cluster.

    Parameters
    ----------
    model : estimator
        The fitted model without rows, as it is sent to workers.
    plan : NeighborPlan
    lazy : list of Delayed
        The task of each shard, which begins with the source.
    settings : DaskSettings
    """

    def __init__(
        self,
        model: Any,
        plan: NeighborPlan,
        lazy: list[Any],
        settings: DaskSettings = DEFAULT_DASK,
    ) -> None:
        self.model, self.plan, self.lazy, self.settings = model, plan, lazy, settings
        self._held: list[Any] = []
        self._client: Any = None

    def __getstate__(self) -> dict[str, Any]:
        names = ("model", "plan", "lazy", "settings")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def held(self) -> tuple[Any, list[Any]]:
        """Return the client in use and its shards; with a new client, the source is read again."""
        client = current_client()
        if client is not self._client:
            held = compute_on_workers(client, self.lazy, "making the shards")
            self._held = _order_by_worker(client, held)
            self._client = client
        return client, self._held

    def moments(self, X: Array, variance: bool, function: bool = False) -> Moments:
        """Return mean, latent variance and sigma squared at encoded rows, each (n, p)."""
        client, held = self.held()
        parts: list[Any] = []
        size = max(1, self.settings.sent_bytes // max(1, 8 * X.shape[1]))
        step = self.settings.block_rows
        for begin in range(0, len(X), size):
            sent = X[begin : begin + size]
            blocks = [sent[i : i + step] for i in range(0, len(sent), step)]
            options = {"variance": variance, "function": function}
            call = MethodCall("moments", options, step, of_fitted_state=True)
            tasks = _prediction_tasks(self, held, blocks, call)
            parts += compute_here(client, tasks, "predicting")
        if not variance:
            return np.concatenate([part[0] for part in parts]), None, None
        mean, latent, observed = (np.concatenate(column) for column in zip(*parts, strict=True))
        return mean, latent, observed


@dataclass(frozen=True)
class MethodCall:
    """A method that workers call for each part of the points.

    Attributes
    ----------
    name : str
    options : dict
        Its keyword arguments.
    block_rows : int
        Number of points per call.
    of_fitted_state : bool
        Whether it is a method of ``model.fitted_``, whose points are encoded already, and not of
        the model.
    tails : tuple of tuples, or None
        Shape of each result without the axis of points; None if it is not needed.
    """

    name: str
    options: dict[str, Any]
    block_rows: int
    of_fitted_state: bool
    tails: tuple[tuple[int, ...], ...] | None = None


def lazy_predictions(
    model: Any, X: Any, method: str, tails: Sequence[tuple[int, ...]], options: dict[str, Any]
) -> Any:
    """Return the results of a method of the model for a Dask collection, as lazy Dask arrays.

    Parameters
    ----------
    model : fitted estimator
    X : Dask array or data frame
    method : str
        Name of the method.
    tails : sequence of tuples
        Shape of each of its results without the axis of points.
    options : dict
        Other arguments of the method.

    Returns
    -------
    Dask array, or tuple of them if there are several ``tails``
    """
    import dask.array as da
    from dask.delayed import delayed

    sizes: Any = X.chunks[0] if hasattr(X, "chunks") else (math.nan,)
    known = not math.isnan(sum(sizes))
    shards = model.fitted_.remote
    block_rows = (DEFAULT_DASK if shards is None else shards.settings).block_rows
    if known:
        X = X.rechunk({0: _split_chunks(sizes, block_rows)})
    parts = split_collection(X, "X")
    counts = X.chunks[0] if known else [math.nan] * len(parts)
    held = [] if shards is None else shards.held()[1]
    call = MethodCall(method, options, block_rows, False, tuple(tails))
    tasks = _prediction_tasks(shards or model, held, parts, call)
    # A second dependency keeps Dask from fusing the prediction with the selection of a result: it
    # would do so for each result, and predict twice.
    own = delayed(tuple(tails), traverse=False)
    select = delayed(select_result)
    arrays = []
    for number, tail in enumerate(tails):
        blocks = [
            da.from_delayed(select(task, number, own), (count, *tail), dtype=np.float64)
            for task, count in zip(tasks, counts, strict=True)
        ]
        whole = da.concatenate(blocks, allow_unknown_chunksizes=True)
        arrays.append(whole.rechunk({0: sizes}) if known else whole)
    return tuple(arrays) if len(arrays) > 1 else arrays[0]


def _split_chunks(sizes: Sequence[int], block_rows: int) -> tuple[int, ...]:
    """Return the sizes of chunks after splitting those above ``block_rows`` into equal parts."""
    parts: list[int] = []
    for size in sizes:
        count = max(1, math.ceil(size / block_rows))
        parts += [size // count + (i < size % count) for i in range(count)]
    return tuple(parts)


def _prediction_tasks(
    rows: Any, held: Sequence[Any], parts: Sequence[Any], call: MethodCall
) -> list[Any]:
    """Return one task per part; ``rows`` are shards, or a model that has its rows with it."""
    from dask.delayed import delayed

    is_sharded = isinstance(rows, ShardedRows)
    model = delayed(rows.model if is_sharded else rows, traverse=False)
    plan = delayed(rows.plan if is_sharded else None, traverse=False)
    method = delayed(call, traverse=False)
    tasks = []
    for number, part in enumerate(parts):
        part = delayed(part, traverse=False)
        found = None
        if is_sharded and rows.plan.metrics:
            points = delayed(standardised_points)(model, part, call.of_fitted_state)
            turn = number % len(held)
            for shard in [*held[turn:], *held[:turn]]:
                found = delayed(search_shard)(found, points, shard, plan)
        tasks.append(delayed(predict_part)(model, part, found, plan, method))
    return tasks


def standardised_points(model: Any, part: Any, encoded: bool) -> NDArray[np.floating]:
    """Return the standardised inputs of a part, in the model's precision (a task)."""
    first = model.fitted_.targets[0]
    if len(part) == 0:
        columns = len(first.data.scaling.columns)
        return np.zeros((0, columns), np.float32 if model.dtype == "float32" else np.float64)
    X = part if encoded else new_inputs(model, part)
    return np.asarray(first.standardized(X).numpy())


def predict_part(
    model: Any,
    part: Any,
    found: tuple[NeighborLists, ...] | None,
    plan: NeighborPlan | None,
    call: MethodCall,
) -> tuple[Any, ...]:
    """Return the results of a method for one part of the points, given its neighbours (a task)."""
    if len(part) == 0 and call.tails is not None:
        return tuple(np.zeros((0, *tail)) for tail in call.tails)
    results = []
    with single_thread(), no_denormals():
        for begin in range(0, len(part), call.block_rows):
            block = slice(begin, begin + call.block_rows)
            rows = part.iloc[block] if isinstance(part, pd.DataFrame) else part[block]
            near = None if found is None else tuple(each.take(block) for each in found)
            known = _with_known_neighbors(model, near, plan)
            owner = known.fitted_ if call.of_fitted_state else known
            result = getattr(owner, call.name)(rows, **call.options)
            results.append(result if isinstance(result, tuple) else (result,))
    return tuple(
        None if column[0] is None else np.concatenate(column)
        for column in zip(*results, strict=True)
    )


def select_result(results: tuple[Any, ...], number: int, tails: Any) -> Any:
    """Return one of the results of a part (a task)."""
    return results[number]


def _with_known_neighbors(
    model: Any, near: tuple[NeighborLists, ...] | None, plan: NeighborPlan | None
) -> Any:
    """Return the model with the neighbours of the points that it will predict."""
    if near is None or plan is None:
        return model
    known = copy(model)
    found = dict(zip(plan.metrics, near, strict=True))
    targets = []
    for j, target in enumerate(model.fitted_.targets):
        y_scale = target.data.scaling.y_scale
        fit = with_neighbors(target.fit, found, j, y_scale, plan.projection)
        targets.append(replace(target, fit=fit))
    known.fitted_ = replace(model.fitted_, targets=tuple(targets))
    return known
