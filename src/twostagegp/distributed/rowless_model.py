"""Separate a fitted neighbour model from its training rows, and give it neighbours again.

Predictions of a neighbour model need its hyperparameters, weights and calibration, which are
small, and the nearest rows of every point. Here the model is stripped of its training rows, so that
it can be sent to workers, and is given the neighbours of some points, so that it predicts for these
points with the code of local models.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.distributed.neighbor_lists import NeighborLists
from twostagegp.engines.metric import Metric
from twostagegp.engines.neighbors.engine import (
    IndexStore,
    NeighborEngine,
    NeighborPosterior,
)
from twostagegp.errors import InputError

__all__ = [
    "Projection",
    "neighbor_metrics",
    "neighbor_posteriors",
    "projection_of",
    "with_neighbors",
    "with_posteriors",
    "without_rows",
]

Array = NDArray[np.float64]

_ROWS_ON_WORKERS = (
    "this needs the training rows in one place, but those of a model that was fitted to a Dask "
    "collection are on the workers. Fit to a pandas or numpy table, or use predict, "
    "predict_interval or predict_quantiles."
)


class KnownNeighbors(IndexStore):
    """An index that knows the neighbours of certain points and cannot search for others.

    Parameters
    ----------
    rows : Rows
    near : integer Tensor of shape (m, k), optional
        Nearest rows of the m points to be predicted; -1 marks a missing neighbour.
    """

    def __init__(self, rows: Rows, near: Tensor | None = None) -> None:
        super().__init__(rows)
        self.found = near

    def __getstate__(self) -> dict[str, Any]:
        return {"rows": self.rows, "found": self.found}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__init__(state["rows"])
        self.found = state["found"]

    def index(self, metric: Metric) -> Any:
        raise InputError(_ROWS_ON_WORKERS)

    def extended(self, rows: Rows) -> IndexStore:
        raise InputError(_ROWS_ON_WORKERS)

    def near(self, metric: Metric, points: Tensor, k: int) -> Tensor:
        if self.found is None or len(self.found) != len(points):
            raise InputError(_ROWS_ON_WORKERS)
        return self.found


@dataclass(frozen=True)
class Projection:
    """A linear map of standardised inputs to the space in which distances are measured.

    Computed column by column, not as a product of matrices, so that the images of equal rows are
    equal to the last bit.
    """

    mean: Array
    matrix: Array

    def __call__(self, X: NDArray[np.floating]) -> NDArray[np.floating]:
        Z = np.zeros((len(X), self.matrix.shape[1]), dtype=X.dtype)
        for column, mean, weights in zip(X.T, self.mean, self.matrix, strict=True):
            Z += (column - mean)[:, None] * weights
        return Z


def projection_of(fit: Any) -> Projection | None:
    """Return the projection of a fit with whitened inputs; None for other fits."""
    whitening = getattr(fit, "whitening", None)
    if whitening is None:
        return None
    return Projection(
        whitening.mean.double().cpu().numpy(), whitening.matrix.double().cpu().numpy()
    )


def neighbor_posteriors(fit: Any) -> list[NeighborPosterior]:
    """Return the neighbour posteriors that predictions of one target use."""
    own = getattr(fit, "posterior", None)
    if own is not None:
        return [own]
    if not hasattr(fit, "mean"):
        return []
    used = [m for m, w in zip(fit.mean.models, fit.mean.weights, strict=True) if w > 0.0]
    parts = [getattr(part, "posterior", None) for part in (*used, fit.variance)]
    return [part for part in parts if isinstance(part, NeighborPosterior)]


def neighbor_metrics(fits: list[Any]) -> list[Metric]:
    """Return the distinct metrics in which predictions search for neighbours."""
    return list(dict.fromkeys(part.metric for fit in fits for part in neighbor_posteriors(fit)))


def with_posteriors(fit: Any, make: Callable[[NeighborPosterior], NeighborPosterior]) -> Any:
    """Return the fit with every neighbour posterior replaced by ``make(posterior)``."""
    if getattr(fit, "posterior", None) is not None:
        return replace(fit, posterior=make(fit.posterior))
    if not hasattr(fit, "mean"):
        return fit
    models = []
    for model in fit.mean.models:
        model = copy(model)
        if isinstance(getattr(model, "posterior", None), NeighborPosterior):
            model.posterior = make(model.posterior)
        models.append(model)
    variance = fit.variance
    if isinstance(getattr(variance, "posterior", None), NeighborPosterior):
        variance = replace(variance, posterior=make(variance.posterior))
    return replace(fit, mean=replace(fit.mean, models=models), variance=variance)


def _conditioned(part: NeighborPosterior, rows: Rows, near: Tensor | None) -> NeighborPosterior:
    known = part.engine
    engine = NeighborEngine(
        rows,
        known.n_neighbors,
        known.noise_floor,
        known.use_prior,
        None,
        KnownNeighbors(rows, near),
    )
    return NeighborPosterior(part.kernel, part.parameters, engine)


def without_rows(fit: Any) -> Any:
    """Return the fit without training rows.

    Its mean is not continued outside the data, which would need neighbours of further points; its
    variance grows there all the same.
    """

    def make(part: NeighborPosterior) -> NeighborPosterior:
        return _conditioned(part, part.rows.subset(np.zeros(0, dtype=np.int64)), None)

    fit = with_posteriors(fit, make)
    outside = getattr(fit, "outside", None)
    return fit if outside is None else replace(fit, outside=outside.without_trends())


def with_neighbors(
    fit: Any,
    found: dict[Metric, NeighborLists],
    target: int,
    y_scale: float,
    projection: Projection | None,
) -> Any:
    """Return the fit with the neighbours of some points as its rows.

    It predicts for these points only.

    Parameters
    ----------
    fit : fitted model of one target
    found : dict
        Neighbours of the points in each metric.
    target : int
        Number of the target.
    y_scale : float
        Units of that target.
    projection : Projection or None
    """
    rows = {metric: _as_rows(near, target, y_scale, projection) for metric, near in found.items()}
    return with_posteriors(fit, lambda part: _conditioned(part, *rows[part.metric]))


def _as_rows(
    found: NeighborLists, target: int, y_scale: float, projection: Projection | None
) -> tuple[Rows, Tensor]:
    """Return neighbours as rows, query by query, and the row numbers of each query, (m, k)."""
    m, k = found.distance.shape
    X = found.X.reshape(m * k, -1)
    X = X if projection is None else projection(X)
    dtype = torch.float32 if X.dtype == np.float32 else torch.float64

    def tensor(values: NDArray[np.floating]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(dtype)

    there = found.c.reshape(-1) > 0.0
    rows = Rows(
        X=tensor(X),
        t=tensor(found.T[:, :, target].reshape(-1)),
        c=tensor(np.where(there, found.c.reshape(-1), 1.0)),
        q=torch.zeros(m * k, dtype=dtype),
        extra=tensor(found.extra.reshape(-1) / y_scale**2),
    )
    near = np.where(there, np.arange(m * k), -1).reshape(m, k).astype(np.int32)
    return rows, torch.from_numpy(near)
