"""Dask collections partition by partition, and a random sample of their rows.

A *piece* is one partition's inputs, targets, weights and known noise variances; pieces are made by
the workers. Lengths come first, from the targets alone; they say how many rows of the sample each
partition gives (the multivariate hypergeometric law, so that every set of rows is as likely as any
other), and the worker draws those rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twostagegp.data.checks import check_finite, check_nonnegative
from twostagegp.data.dask_detection import is_dask
from twostagegp.errors import InputError
from twostagegp.runtime.dask_cluster import compute_here

__all__ = ["Piece", "draw_sample", "partitions", "pieces"]

Array = NDArray[np.float64]

#: numpy's law for the sample's shares of the partitions works below so many rows.
_LAW_ROWS = 10**9


@dataclass(frozen=True)
class Piece:
    """Rows of one partition, or of several.

    Attributes
    ----------
    X : array of shape (n, d) or data frame
    y : array of shape (n,) or (n, p)
    weight, noise_var : array of shape (n,), or None
    """

    X: Any
    y: Array
    weight: Array | None = None
    noise_var: Array | None = None

    @classmethod
    def of(cls, number: int, X: Any, y: Any, weight: Any, noise_var: Any) -> Piece:
        """Check the parts of partition ``number``."""
        targets = np.asarray(y, dtype=np.float64)
        if len(X) != len(targets):
            raise InputError(
                f"partition {number}: X has {len(X)} rows and y {len(targets)}; both must be cut "
                "at the same rows."
            )
        check_finite(targets, f"y, partition {number},")
        n = len(targets)
        return cls(
            X,
            targets,
            check_nonnegative(weight, n, f"sample_weight, partition {number},"),
            check_nonnegative(noise_var, n, f"noise_var, partition {number},"),
        )

    def some(self, count: int, seed: tuple[int, int]) -> Piece:
        """Random rows, in their order."""
        chosen = np.random.default_rng(seed).choice(len(self.y), size=count, replace=False)
        return self.rows(np.sort(chosen))

    def rows(self, index: Any) -> Piece:
        """The rows of an index or a slice."""
        X = self.X.iloc[index] if isinstance(self.X, pd.DataFrame) else np.asarray(self.X)[index]
        weight = None if self.weight is None else self.weight[index]
        noise_var = None if self.noise_var is None else self.noise_var[index]
        return Piece(X, self.y[index], weight, noise_var)


def partitions(values: Any, name: str) -> list[Any]:
    """A collection's partitions as delayed tables."""
    if not hasattr(values, "to_delayed") or not hasattr(values, "ndim"):
        raise InputError(
            f"{name} is a {type(values).__name__}; use a Dask array, data frame or series."
        )
    if hasattr(values, "numblocks"):
        if values.ndim == 2 and values.numblocks[1] > 1:
            values = values.rechunk({1: -1})
        return list(values.to_delayed().ravel())
    if hasattr(values, "simplify"):
        # Reads the columns that are needed; a full optimisation would also join partitions.
        values = values.simplify()
    return list(values.to_delayed(optimize_graph=False))


def pieces(
    X: Any, y: Any, weight: Any = None, noise_var: Any = None
) -> tuple[list[Any], list[Any]]:
    """Delayed pieces of collections that are cut at the same rows, and their delayed lengths."""
    from dask.delayed import delayed

    given = {"X": X, "y": y, "sample_weight": weight, "noise_var": noise_var}
    columns: dict[str, Sequence[Any]] = {}
    for name, values in given.items():
        if is_dask(values):
            columns[name] = partitions(_cut_like(values, X), name)
        elif name in ("X", "y") or np.ndim(values) > 0:
            raise InputError(
                f"{name} is a {type(values).__name__} beside a Dask collection; make it one too, "
                "cut at the same rows (dask.array.from_array), or compute the others."
            )
    count = len(columns["X"])
    for name, parts in columns.items():
        if len(parts) != count:
            raise InputError(
                f"X has {count} partitions and {name} {len(parts)}; both must be cut at the same "
                "rows: take them from one data frame, or rechunk."
            )
    for name in ("sample_weight", "noise_var"):
        columns.setdefault(name, [given[name]] * count)
    make = delayed(Piece.of, pure=True)
    rows = zip(*(columns[name] for name in given), strict=True)
    made = [make(number, *parts) for number, parts in enumerate(rows)]
    return made, [delayed(len)(part) for part in columns["y"]]


def _cut_like(values: Any, X: Any) -> Any:
    """Arrays of known chunks can be cut again."""
    chunks = getattr(X, "chunks", None)
    own = getattr(values, "chunks", None)
    if chunks is None or own is None or own[0] == chunks[0]:
        return values
    if np.isnan(sum(own[0])) or np.isnan(sum(chunks[0])) or sum(own[0]) != sum(chunks[0]):
        return values
    return values.rechunk({0: chunks[0]})


def draw_sample(
    client: Any, made: Sequence[Any], lengths: Sequence[Any], count: int, seed: int
) -> tuple[Piece, NDArray[np.int64]]:
    """Random rows of all partitions, at most ``count``, and the rows of each partition."""
    from dask.delayed import delayed

    rows = np.array(compute_here(client, lengths, "counting the rows"), dtype=np.int64)
    if rows.sum() < 2:
        raise InputError(f"Found array with {rows.sum()} sample(s) while a minimum of 2 is needed.")
    shares = _shares(rows, count, np.random.default_rng(seed))
    draw = delayed(Piece.some)
    drawn = [
        draw(piece, int(share), (seed, number))
        for number, (piece, share) in enumerate(zip(made, shares, strict=True))
        if share > 0
    ]
    return joined(compute_here(client, drawn, "drawing the sample")), rows


def _shares(rows: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """How many rows of the sample come from each partition."""
    total = int(rows.sum())
    if total <= count:
        return rows
    if total < _LAW_ROWS:
        return rng.multivariate_hypergeometric(rows, count, method="marginals")
    return np.minimum(rng.multinomial(count, rows / total), rows)


def joined(parts: Sequence[Piece]) -> Piece:
    """Several pieces as one."""
    first = parts[0]
    if isinstance(first.X, pd.DataFrame):
        X: Any = pd.concat([part.X for part in parts], ignore_index=True)
    else:
        X = np.concatenate([np.asarray(part.X) for part in parts])

    def column(name: str) -> Any:
        if getattr(first, name) is None:
            return None
        return np.concatenate([getattr(part, name) for part in parts])

    return Piece(X, column("y"), column("weight"), column("noise_var"))
