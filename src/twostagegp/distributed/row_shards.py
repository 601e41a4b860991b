"""Shards: training rows that stay on a worker, with one search tree per metric of the model.

A shard is made of whole partitions by one task that starts from the source. Its rows are encoded
and standardised by the rules of the model. It is the result of a task, which Dask keeps, spills to
disk and computes again when a worker is lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from twostagegp.data.columns.tables import encoded_names, new_inputs
from twostagegp.data.rows import Merged, merge_rows
from twostagegp.data.scaling import Scaling
from twostagegp.distributed.neighbor_lists import NeighborLists, merge_neighbors
from twostagegp.distributed.partitions import Partition, join_partitions
from twostagegp.distributed.rowless_model import Projection
from twostagegp.engines.metric import Metric
from twostagegp.engines.neighbors.index import TreeIndex
from twostagegp.runtime.dask_cluster import single_thread

__all__ = ["NeighborPlan", "Shard", "build_shard", "group_partitions", "search_shard"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class NeighborPlan:
    """What workers search for: the k nearest rows in each of some metrics.

    Attributes
    ----------
    metrics : tuple of Metric
    k : int
    projection : Projection or None
        Map of the inputs to the space of the metrics; None leaves them as they are.
    """

    metrics: tuple[Metric, ...]
    k: int
    projection: Projection | None = None

    def inputs(self, metric: Metric, X: NDArray[np.floating]) -> torch.Tensor:
        """Return inputs scaled so that plain distances are those of the metric."""
        return metric.scale(torch.from_numpy(X if self.projection is None else self.projection(X)))


@dataclass(frozen=True)
class Shard:
    """Distinct rows in lexicographic order of their inputs, and one tree per metric.

    Attributes
    ----------
    X : array of shape (m, d)
        Standardised inputs.
    T : array of shape (m, p)
        Standardised targets, averaged over equal rows.
    c, extra : array of shape (m,), or None
        Weights and known noise variances; None if all weights are one, or all variances zero.
    trees : tuple of TreeIndex
    """

    X: NDArray[np.floating]
    T: Array
    c: Array | None
    extra: Array | None
    trees: tuple[TreeIndex, ...]

    def __sizeof__(self) -> int:
        arrays: list[NDArray[Any] | None] = [self.X, self.T, self.c, self.extra]
        for tree in self.trees:
            arrays += [tree.order, tree.ends, tree.boxes, tree.leaf_boxes, tree.leaves]
        return sum(array.nbytes for array in arrays if array is not None)

    def __len__(self) -> int:
        return len(self.X)

    def nearest(
        self, number: int, points: torch.Tensor, k: int, bound: Array | None
    ) -> NeighborLists:
        """Return the k nearest rows in the metric of tree ``number``, at most ``bound`` away."""
        m = len(points)
        if len(self) == 0:
            row, distance = np.full((m, k), -1), np.full((m, k), math.inf)
            X = np.zeros((m, k, self.X.shape[1]), self.X.dtype)
            T = np.zeros((m, k, self.T.shape[1]))
        else:
            row, distance = self.trees[number].query_within(points, k, bound)
            X, T = self.X[row], self.T[row]
        there = row >= 0
        c = there.astype(np.float64)
        if self.c is not None:
            c = np.where(there, self.c[row], 0.0)
        extra = np.zeros((m, k)) if self.extra is None else self.extra[row]
        return NeighborLists(distance, X, T, c, extra)


def build_shard(model: Any, plan: NeighborPlan, partitions: Sequence[Partition]) -> Shard:
    """Return the shard of some partitions, encoded and standardised by the model (a task)."""
    with single_thread():
        partition = join_partitions(
            [encode_partition(model, partition) for partition in partitions]
        )
        if partition.weight is not None:
            partition = partition.rows(partition.weight > 0.0)
        scalings = [data.scaling for data in model.fitted_.data]
        targets = partition.y.reshape(len(partition.y), -1)
        X = partition.X[:, scalings[0].columns]
        dtype: Any = np.float32 if model.dtype == "float32" else np.float64
        if len(X) == 0:
            return Shard(X.astype(dtype), targets, None, None, ())
        merged = [
            merge_rows(X, column, partition.weight, partition.noise_var) for column in targets.T
        ]
        first = merged[0]
        inputs = _standardise(first.X, scalings[0]).astype(dtype)
        T = np.column_stack(
            [_standardise_target(m, s) for m, s in zip(merged, scalings, strict=True)]
        )
        trees = tuple(TreeIndex(plan.inputs(m, inputs), m.manhattan) for m in plan.metrics)
        c = None if (first.c == 1.0).all() else first.c
        return Shard(inputs, T, c, first.extra if first.extra.any() else None, trees)


def encode_partition(model: Any, partition: Partition) -> Partition:
    """Return a partition with its inputs as numbers, by the rules of the fit."""
    empty = np.zeros((0, len(encoded_names(model))))
    X = new_inputs(model, partition.X) if len(partition.y) else empty
    return Partition(X, partition.y, partition.weight, partition.noise_var)


def _standardise(X: Array, scaling: Scaling) -> Array:
    own = Scaling(
        np.arange(X.shape[1]), scaling.x_mean, scaling.x_scale, scaling.y_mean, scaling.y_scale
    )
    return own.inputs(X)


def _standardise_target(merged: Merged, scaling: Scaling) -> Array:
    return (merged.t - scaling.y_mean) / scaling.y_scale


def search_shard(
    found: tuple[NeighborLists, ...] | None,
    points: NDArray[np.floating],
    shard: Shard,
    plan: NeighborPlan,
) -> tuple[NeighborLists, ...]:
    """Return the nearest rows of points after searching one more shard (a task).

    Parameters
    ----------
    found : tuple of NeighborLists or None
        Result of the shards before, one per metric.
    points : array of shape (m, d)
        Standardised inputs.
    shard : Shard
    plan : NeighborPlan
    """
    with single_thread():
        return tuple(
            _search_metric(found, points, shard, plan, i) for i in range(len(plan.metrics))
        )


def _search_metric(
    found: tuple[NeighborLists, ...] | None,
    points: NDArray[np.floating],
    shard: Shard,
    plan: NeighborPlan,
    number: int,
) -> NeighborLists:
    before = None if found is None else found[number]
    bound = None if before is None else before.bound
    here = plan.inputs(plan.metrics[number], points)
    new = shard.nearest(number, here, plan.k, bound)
    return new if before is None else merge_neighbors(before, new)


def group_partitions(
    partitions: Sequence[Any], rows: NDArray[np.int64], workers: int, shard_rows: int
) -> list[list[Any]]:
    """Return groups of adjacent partitions, each of which becomes a shard.

    There are at least as many groups as workers if there are enough partitions, and a group has at
    most ``shard_rows`` rows unless it is a single partition.
    """
    limit = min(shard_rows, math.ceil(int(rows.sum()) / max(workers, 1)))
    groups: list[list[Any]] = []
    size = 0
    for partition, count in zip(partitions, rows, strict=True):
        if not groups or size + count > limit:
            groups.append([])
            size = 0
        groups[-1].append(partition)
        size += int(count)
    return groups
