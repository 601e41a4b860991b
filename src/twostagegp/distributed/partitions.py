"""Split Dask collections into partitions, and draw a random sample of their rows.

A :class:`Partition` holds the inputs, targets, weights and known noise variances of one partition;
it is made by a worker. For the sample the lengths of the partitions are counted first, from the
targets alone. The number of sampled rows per partition is drawn from the multivariate
hypergeometric distribution, so that every set of rows is equally likely, and the workers draw these
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twostagegp.data.checks import check_finite, check_nonnegative, is_dask
from twostagegp.errors import InputError
from twostagegp.runtime.dask_cluster import compute_here

__all__ = ["Partition", "delayed_partitions", "draw_sample", "join_partitions", "split_collection"]

Array = NDArray[np.float64]

#: numpy draws from the multivariate hypergeometric distribution below this number of rows only.
_HYPERGEOMETRIC_ROWS = 10**9


@dataclass(frozen=True)
class Partition:
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
    def checked(cls, number: int, X: Any, y: Any, weight: Any, noise_var: Any) -> Partition:
        """Return partition ``number``; raise InputError if its parts do not fit each other."""
        targets = np.asarray(y, dtype=np.float64)
        if len(X) != len(targets):
            raise InputError(
                f"partition {number}: X has {len(X)} rows and y {len(targets)}; both must be "
                "divided at the same rows."
            )
        check_finite(targets, f"y, partition {number},")
        n = len(targets)
        return cls(
            X,
            targets,
            check_nonnegative(weight, n, f"sample_weight, partition {number},"),
            check_nonnegative(noise_var, n, f"noise_var, partition {number},"),
        )

    def sample(self, count: int, seed: tuple[int, int]) -> Partition:
        """Return ``count`` random rows, in their order."""
        chosen = np.random.default_rng(seed).choice(len(self.y), size=count, replace=False)
        return self.rows(np.sort(chosen))

    def rows(self, index: Any) -> Partition:
        """Return the rows of an index or a slice."""
        X = self.X.iloc[index] if isinstance(self.X, pd.DataFrame) else np.asarray(self.X)[index]
        weight = None if self.weight is None else self.weight[index]
        noise_var = None if self.noise_var is None else self.noise_var[index]
        return Partition(X, self.y[index], weight, noise_var)


def split_collection(values: Any, name: str) -> list[Any]:
    """Return the partitions of a collection as delayed tables."""
    if not hasattr(values, "to_delayed") or not hasattr(values, "ndim"):
        raise InputError(
            f"{name} is a {type(values).__name__}; use a Dask array, data frame or series."
        )
    if hasattr(values, "numblocks"):
        if values.ndim == 2 and values.numblocks[1] > 1:
            values = values.rechunk({1: -1})
        return list(values.to_delayed().ravel())
    if hasattr(values, "simplify"):
        # Reads only the columns that are used; a full optimisation would also fuse partitions.
        values = values.simplify()
    return list(values.to_delayed(optimize_graph=False))


def delayed_partitions(
    X: Any, y: Any, weight: Any = None, noise_var: Any = None
) -> tuple[list[Any], list[Any]]:
    """Return the delayed partitions of collections divided at the same rows, and their lengths."""
    from dask.delayed import delayed

    given = {"X": X, "y": y, "sample_weight": weight, "noise_var": noise_var}
    columns: dict[str, Sequence[Any]] = {}
    for name, values in given.items():
        if is_dask(values):
            columns[name] = split_collection(_rechunk_like(values, X), name)
        elif name in ("X", "y") or np.ndim(values) > 0:
            raise InputError(
                f"{name} is a {type(values).__name__} beside a Dask collection; make it a Dask "
                "collection that is divided at the same rows (dask.array.from_array), or compute "
                "the others."
            )
    count = len(columns["X"])
    for name, parts in columns.items():
        if len(parts) != count:
            raise InputError(
                f"X has {count} partitions and {name} {len(parts)}; both must be divided at the "
                "same rows: take them from one data frame, or rechunk."
            )
    for name in ("sample_weight", "noise_var"):
        columns.setdefault(name, [given[name]] * count)
    make = delayed(Partition.checked, pure=True)
    rows = zip(*(columns[name] for name in given), strict=True)
    made = [make(number, *parts) for number, parts in enumerate(rows)]
    return made, [delayed(len)(part) for part in columns["y"]]


def _rechunk_like(values: Any, X: Any) -> Any:
    """Return an array of known chunks with the chunks of X; other values as they are."""
    chunks = getattr(X, "chunks", None)
    own = getattr(values, "chunks", None)
    if chunks is None or own is None or own[0] == chunks[0]:
        return values
    if np.isnan(sum(own[0])) or np.isnan(sum(chunks[0])) or sum(own[0]) != sum(chunks[0]):
        return values
    return values.rechunk({0: chunks[0]})


def draw_sample(
    client: Any, made: Sequence[Any], lengths: Sequence[Any], count: int, seed: int
) -> tuple[Partition, NDArray[np.int64]]:
    """Return at most ``count`` random rows of all partitions, and the length of each partition."""
    from dask.delayed import delayed

    rows = np.array(compute_here(client, lengths, "counting the rows"), dtype=np.int64)
    if rows.sum() < 2:
        raise InputError(f"Found array with {rows.sum()} sample(s) while a minimum of 2 is needed.")
    shares = _rows_per_partition(rows, count, np.random.default_rng(seed))
    draw = delayed(Partition.sample)
    drawn = [
        draw(partition, int(share), (seed, number))
        for number, (partition, share) in enumerate(zip(made, shares, strict=True))
        if share > 0
    ]
    return join_partitions(compute_here(client, drawn, "drawing the sample")), rows


def _rows_per_partition(
    rows: NDArray[np.int64], count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw the number of sampled rows of each partition."""
    total = int(rows.sum())
    if total <= count:
        return rows
    if total < _HYPERGEOMETRIC_ROWS:
        return rng.multivariate_hypergeometric(rows, count, method="marginals")
    return np.minimum(rng.multinomial(count, rows / total), rows)


def join_partitions(parts: Sequence[Partition]) -> Partition:
    """Return several partitions as one."""
    first = parts[0]
    if isinstance(first.X, pd.DataFrame):
        X: Any = pd.concat([part.X for part in parts], ignore_index=True)
    else:
        X = np.concatenate([np.asarray(part.X) for part in parts])

    def column(name: str) -> Any:
        if getattr(first, name) is None:
            return None
        return np.concatenate([getattr(part, name) for part in parts])

    return Partition(X, column("y"), column("weight"), column("noise_var"))
