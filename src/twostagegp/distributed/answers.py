"""Predictions of a model whose rows are in shards, and lazy predictions for Dask collections.

The points of a partition visit one shard after the other and take their nearest rows along; when
they have seen all, the local solves run where they are, by the ordinary code. Partitions begin at
different shards, so that workers are busy together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twostagegp.distributed.cluster import gathered, one_thread
from twostagegp.distributed.found import Found
from twostagegp.distributed.parts import with_neighbors
from twostagegp.distributed.shards import ClusterRows, Plan, look
from twostagegp.distributed.source import partitions

__all__ = ["lazy_answers", "moments_at"]

Array = NDArray[np.float64]

#: Points that travel together where their number is known, and that are solved at a time.
BLOCK_ROWS = 1 << 14
#: Bytes of points that are sent to the cluster at a time.
SENT_BYTES = 4 << 20


def moments_at(
    shards: ClusterRows, X: Array, variance: bool
) -> tuple[Array, Array | None, Array | None]:
    """Mean, latent variance and sigma squared at encoded rows, each (n, p), computed now."""
    client, held = shards.held()
    parts: list[Any] = []
    size = max(1, SENT_BYTES // max(1, 8 * X.shape[1]))
    for begin in range(0, len(X), size):
        sent = X[begin : begin + size]
        blocks = [sent[i : i + BLOCK_ROWS] for i in range(0, len(sent), BLOCK_ROWS)]
        tasks = _tasks(shards, held, blocks, "_moments_at", {"variance": variance}, encoded=True)
        parts += gathered(client, tasks, "predicting")
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
    shards = model._shards
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
        tasks.append(delayed(answer)(model, part, found, plan, method, options))
    return tasks


def points_of(model: Any, part: Any, encoded: bool) -> NDArray[np.floating]:
    """Standardised inputs of a part, in the model's precision."""
    if len(part) == 0:
        columns = len(model._data[0].scaling.columns)
        return np.zeros((0, columns), np.float32 if model.dtype == "float32" else np.float64)
    X = part if encoded else model._inputs(part)
    return np.asarray(model._tensor(X, model._data[0]).numpy())


def answer(
    model: Any,
    part: Any,
    found: tuple[Found, ...] | None,
    plan: Plan | None,
    method: str,
    options: dict[str, Any],
) -> tuple[Any, ...]:
    """What the method says about one part, given its neighbours."""
    options = dict(options)
    tails = options.pop("tails", None)
    if len(part) == 0 and tails is not None:
        return tuple(np.zeros((0, *tail)) for tail in tails)
    results = []
    with one_thread():
        for begin in range(0, len(part), BLOCK_ROWS):
            here = slice(begin, begin + BLOCK_ROWS)
            rows = part.iloc[here] if isinstance(part, pd.DataFrame) else part[here]
            near = None if found is None else tuple(each.take(here) for each in found)
            result = getattr(_knowing(model, near, plan), method)(rows, **options)
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
    known._fits = [
        with_neighbors(fit, found, j, data.scaling.y_scale, plan.space)
        for j, (fit, data) in enumerate(zip(model._fits, model._data, strict=True))
    ]
    return known
