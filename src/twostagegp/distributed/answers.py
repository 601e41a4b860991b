"""Predictions of a model whose rows are in shards, and lazy predictions for Dask collections.

The points of a partition visit one shard after the other and take their nearest rows along; when
they have seen all, the local solves run where they are, by the ordinary code. Partitions begin at
different shards, so that workers are busy together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twostagegp.data.columns.tables import new_inputs
from twostagegp.distributed.found import Found
from twostagegp.distributed.parts import with_neighbors
from twostagegp.distributed.shards import Plan, look
from twostagegp.distributed.source import partitions
from twostagegp.estimators.fitted import Moments
from twostagegp.runtime.dask_cluster import (
    compute_here,
    compute_on_workers,
    current_client,
    single_thread,
)
from twostagegp.runtime.threads import no_denormals

__all__ = ["ClusterRows", "lazy_answers"]

Array = NDArray[np.float64]

#: Points that travel together where their number is known, and that are solved at a time.
BLOCK_ROWS = 1 << 14
#: Bytes of points that are sent to the cluster at a time.
SENT_BYTES = 4 << 20


def _by_worker(client: Any, held: list[Any]) -> list[Any]:
    """Shards of the same worker one after the other: points then move as rarely as can be."""
    from distributed import futures_of

    homes = client.who_has(futures_of(held))
    return sorted(held, key=lambda shard: sorted(homes.get(shard.key, ())))


class ClusterRows:
    """The shards of a fitted model: where they come from, and where they are now.

    Parameters
    ----------
    model : estimator
        The fitted model without rows, as workers get it.
    plan : Plan
    lazy : list of Delayed
        One a shard, from the source.
    """

    def __init__(self, model: Any, plan: Plan, lazy: list[Any]) -> None:
        self.model, self.plan, self.lazy = model, plan, lazy
        self._held: list[Any] = []
        self._client: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model, "plan": self.plan, "lazy": self.lazy}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["model"], state["plan"], state["lazy"])  # type: ignore[misc]

    def held(self) -> tuple[Any, list[Any]]:
        """The client in use and its shards; a new client reads the source once more."""
        client = current_client()
        if client is not self._client:
            self._held = _by_worker(
                client, compute_on_workers(client, self.lazy, "making the shards")
            )
            self._client = client
        return client, self._held

    def moments(self, X: Array, variance: bool) -> Moments:
        """Return mean, latent variance and sigma squared at encoded rows, each (n, p)."""
        client, held = self.held()
        parts: list[Any] = []
        size = max(1, SENT_BYTES // max(1, 8 * X.shape[1]))
        for begin in range(0, len(X), size):
            sent = X[begin : begin + size]
            blocks = [sent[i : i + BLOCK_ROWS] for i in range(0, len(sent), BLOCK_ROWS)]
            options = {"variance": variance}
            tasks = _tasks(self, held, blocks, "moments", options, encoded=True)
            parts += compute_here(client, tasks, "predicting")
        if not variance:
            return np.concatenate([part[0] for part in parts]), None, None
        mean, latent, observed = (np.concatenate(column) for column in zip(*parts, strict=True))
        return mean, latent, observed


def lazy_answers(
    model: Any, X: Any, method: str, tails: Sequence[tuple[int, ...]], options: dict[str, Any]
) -> Any:
    """What a method of the model says about a Dask collection, as lazy Dask arrays.

    Parameters
    ----------
    model : fitted estimator
    X : Dask array or data frame
    method : str
        Name of the method.
    tails : sequence of tuples
        Shape of a row of each of its results.
    options : dict
        Other arguments of the method.

    Returns
    -------
    Dask array, or tuple of them where there are several ``tails``
    """
    import dask.array as da
    from dask.delayed import delayed

    sizes: Any = X.chunks[0] if hasattr(X, "chunks") else (math.nan,)
    known = not math.isnan(sum(sizes))
    if known:
        X = X.rechunk({0: _halved(sizes)})
    parts = partitions(X, "X")
    counts = X.chunks[0] if known else [math.nan] * len(parts)
    shards = model.fitted_.remote
    held = [] if shards is None else shards.held()[1]
    options = options | {"tails": list(tails)}
    tasks = _tasks(shards or model, held, parts, method, options, encoded=False)
    # With a second dependency a task stays one of its own: Dask would join answering and picking,
    # for each result apart, and answer twice.
    own = delayed(tuple(tails), traverse=False)
    arrays = []
    for number, tail in enumerate(tails):
        blocks = [
            da.from_delayed(delayed(pick)(task, number, own), (count, *tail), dtype=np.float64)
            for task, count in zip(tasks, counts, strict=True)
        ]
        whole = da.concatenate(blocks, allow_unknown_chunksizes=True)
        arrays.append(whole.rechunk({0: sizes}) if known else whole)
    return tuple(arrays) if len(arrays) > 1 else arrays[0]


def _halved(sizes: Sequence[int]) -> tuple[int, ...]:
    """The same chunks, large ones cut."""
    cut: list[int] = []
    for size in sizes:
        count = max(1, math.ceil(size / BLOCK_ROWS))
        cut += [size // count + (i < size % count) for i in range(count)]
    return tuple(cut)


def _tasks(
    rows: Any,
    held: Sequence[Any],
    parts: Sequence[Any],
    method: str,
    options: dict[str, Any],
    encoded: bool,
) -> list[Any]:
    """One task a part; ``rows`` are shards, or a model that has its rows with it."""
    from dask.delayed import delayed

    is_spread = isinstance(rows, ClusterRows)
    model = delayed(rows.model if is_spread else rows, traverse=False)
    plan = delayed(rows.plan if is_spread else None, traverse=False)
    tasks = []
    for number, part in enumerate(parts):
        part = delayed(part, traverse=False)
        found = None
        if is_spread and rows.plan.metrics:
            points = delayed(points_of)(model, part, encoded)
            turn = number % len(held)
            for shard in [*held[turn:], *held[:turn]]:
                found = delayed(look)(found, points, shard, plan)
        tasks.append(delayed(answer)(model, part, found, plan, method, options, encoded))
    return tasks


def points_of(model: Any, part: Any, encoded: bool) -> NDArray[np.floating]:
    """Return the standardised inputs of a part, in the model's precision."""
    first = model.fitted_.targets[0]
    if len(part) == 0:
        columns = len(first.data.scaling.columns)
        return np.zeros((0, columns), np.float32 if model.dtype == "float32" else np.float64)
    X = part if encoded else new_inputs(model, part)
    return np.asarray(first.standardized(X).numpy())


def answer(
    model: Any,
    part: Any,
    found: tuple[Found, ...] | None,
    plan: Plan | None,
    method: str,
    options: dict[str, Any],
    encoded: bool,
) -> tuple[Any, ...]:
    """Return what the method says about one part, given its neighbours.

    It is a method of the model, or of its fitted state for ``encoded`` rows.
    """
    options = dict(options)
    tails = options.pop("tails", None)
    if len(part) == 0 and tails is not None:
        return tuple(np.zeros((0, *tail)) for tail in tails)
    results = []
    with single_thread(), no_denormals():
        for begin in range(0, len(part), BLOCK_ROWS):
            here = slice(begin, begin + BLOCK_ROWS)
            rows = part.iloc[here] if isinstance(part, pd.DataFrame) else part[here]
            near = None if found is None else tuple(each.take(here) for each in found)
            known = _knowing(model, near, plan)
            result = getattr(known.fitted_ if encoded else known, method)(rows, **options)
            results.append(result if isinstance(result, tuple) else (result,))
    return tuple(
        None if column[0] is None else np.concatenate(column)
        for column in zip(*results, strict=True)
    )


def pick(results: tuple[Any, ...], number: int, tails: Any) -> Any:
    """One of the results of a part."""
    return results[number]


def _knowing(model: Any, near: tuple[Found, ...] | None, plan: Plan | None) -> Any:
    """The model with the neighbours of the points that it is asked about."""
    if near is None or plan is None:
        return model
    known = copy(model)
    found = dict(zip(plan.metrics, near, strict=True))
    targets = []
    for j, target in enumerate(model.fitted_.targets):
        y_scale = target.data.scaling.y_scale
        fit = with_neighbors(target.fit, found, j, y_scale, plan.space)
        targets.append(replace(target, fit=fit))
    known.fitted_ = replace(model.fitted_, targets=tuple(targets))
    return known
