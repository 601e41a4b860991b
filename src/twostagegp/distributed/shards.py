"""Shards: rows that stay on a worker, with a tree for every metric that the model looks in.

A shard is made of whole partitions, by one task that begins with the source; the model's rules and
units are in it already. It is a result that Dask keeps, spills to disk and, when a worker is lost,
computes again.
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
from twostagegp.distributed.found import Found, merge
from twostagegp.distributed.parts import Space
from twostagegp.distributed.source import Piece, joined
from twostagegp.engines.metric import Metric
from twostagegp.engines.neighbors.index import TreeIndex
from twostagegp.runtime.dask_cluster import single_thread

__all__ = ["SHARD_ROWS", "Plan", "Shard", "build_shard", "grouped", "look"]

Array = NDArray[np.float64]

#: Rows of a shard at most, unless a single partition has more: trees have full leaves then.
SHARD_ROWS = 2**20


@dataclass(frozen=True)
class Plan:
    """What workers look for: neighbours in some metrics, k each."""

    metrics: tuple[Metric, ...]
    k: int
    space: Space | None = None

    def inputs(self, metric: Metric, X: NDArray[np.floating]) -> torch.Tensor:
        """Inputs in which plain distances are the metric's."""
        return metric.scale(torch.from_numpy(X if self.space is None else self.space(X)))


@dataclass(frozen=True)
class Shard:
    """Distinct rows in order of their inputs, and a tree a metric.

    Attributes
    ----------
    X : array of shape (m, d)
        Standardised inputs.
    T : array of shape (m, p)
        Standardised targets, the mean of equal rows.
    c, extra : array of shape (m,), or None
        Weights and known noise variances; None where they are all one, or all zero.
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

    def nearest(self, number: int, points: torch.Tensor, k: int, bound: Array | None) -> Found:
        """Nearest rows of points in the metric of tree ``number``, at most ``bound`` away."""
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
        return Found(distance, X, T, c, extra)


def build_shard(model: Any, plan: Plan, pieces: Sequence[Piece]) -> Shard:
    """Rows of some partitions in the model's units, and their trees."""
    with single_thread():
        piece = joined([encoded(model, piece) for piece in pieces])
        if piece.weight is not None:
            piece = piece.rows(piece.weight > 0.0)
        scalings = [data.scaling for data in model.fitted_.data]
        targets = piece.y.reshape(len(piece.y), -1)
        X = piece.X[:, scalings[0].columns]
        dtype: Any = np.float32 if model.dtype == "float32" else np.float64
        if len(X) == 0:
            return Shard(X.astype(dtype), targets, None, None, ())
        merged = [merge_rows(X, column, piece.weight, piece.noise_var) for column in targets.T]
        first = merged[0]
        inputs = _standardised(first.X, scalings[0]).astype(dtype)
        T = np.column_stack([_units(m, s) for m, s in zip(merged, scalings, strict=True)])
        trees = tuple(TreeIndex(plan.inputs(m, inputs), m.manhattan) for m in plan.metrics)
        c = None if (first.c == 1.0).all() else first.c
        return Shard(inputs, T, c, first.extra if first.extra.any() else None, trees)


def encoded(model: Any, piece: Piece) -> Piece:
    """The same piece with inputs in numbers, by the rules of the fit."""
    empty = np.zeros((0, len(encoded_names(model))))
    X = new_inputs(model, piece.X) if len(piece.y) else empty
    return Piece(X, piece.y, piece.weight, piece.noise_var)


def _standardised(X: Array, scaling: Scaling) -> Array:
    own = Scaling(
        np.arange(X.shape[1]), scaling.x_mean, scaling.x_scale, scaling.y_mean, scaling.y_scale
    )
    return own.inputs(X)


def _units(merged: Merged, scaling: Scaling) -> Array:
    return (merged.t - scaling.y_mean) / scaling.y_scale


def look(
    found: tuple[Found, ...] | None, points: NDArray[np.floating], shard: Shard, plan: Plan
) -> tuple[Found, ...]:
    """Neighbours of points so far, after one more shard; one ``Found`` a metric."""
    with single_thread():
        return tuple(_looked(found, points, shard, plan, i) for i in range(len(plan.metrics)))


def _looked(
    found: tuple[Found, ...] | None,
    points: NDArray[np.floating],
    shard: Shard,
    plan: Plan,
    number: int,
) -> Found:
    before = None if found is None else found[number]
    bound = None if before is None else before.bound
    here = plan.inputs(plan.metrics[number], points)
    new = shard.nearest(number, here, plan.k, bound)
    return new if before is None else merge(before, new)


def grouped(pieces: Sequence[Any], rows: NDArray[np.int64], workers: int) -> list[list[Any]]:
    """Neighbouring partitions in groups of at most a shard's rows, and a shard a worker."""
    limit = min(SHARD_ROWS, math.ceil(int(rows.sum()) / max(workers, 1)))
    groups: list[list[Any]] = []
    size = 0
    for piece, count in zip(pieces, rows, strict=True):
        if not groups or size + count > limit:
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += int(count)
    return groups
