"""A fitted model apart from its rows: what travels, and how rows are given back to it.

Predictions of a neighbour model need its hyperparameters, weights and calibration, and of every
point the nearest rows. The first are small; here they are taken apart from the rows, and put
together again with the neighbours of some points, so that all that comes after the search is the
ordinary code.
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
from twostagegp.distributed.found import Found
from twostagegp.engines.metric import Metric
from twostagegp.engines.neighbors.engine import (
    IndexStore,
    NeighborEngine,
    NeighborPosterior,
)
from twostagegp.errors import InputError

__all__ = [
    "Space",
    "metrics_of",
    "posteriors",
    "space_of",
    "with_neighbors",
    "with_posteriors",
    "without_rows",
]

Array = NDArray[np.float64]

_ELSEWHERE = (
    "this needs the training rows in one place, and those of a model that was fitted to a Dask "
    "collection are on the workers. Fit to a pandas or numpy table, or ask for predict, "
    "predict_interval or predict_quantiles."
)


class FoundStore(IndexStore):
    """Neighbours that are known, of the points that they are known for; none without ``near``."""

    def __init__(self, rows: Rows, near: Tensor | None = None) -> None:
        super().__init__(rows)
        self.found = near

    def __getstate__(self) -> dict[str, Any]:
        return {"rows": self.rows, "found": self.found}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__init__(state["rows"])
        self.found = state["found"]

    def index(self, metric: Metric) -> Any:
        raise InputError(_ELSEWHERE)

    def extended(self, rows: Rows) -> IndexStore:
        raise InputError(_ELSEWHERE)

    def near(self, metric: Metric, points: Tensor, k: int) -> Tensor:
        if self.found is None or len(self.found) != len(points):
            raise InputError(_ELSEWHERE)
        return self.found


@dataclass(frozen=True)
class Space:
    """Where neighbours are near: standardised inputs, or linear combinations of them.

    Column after column, not as a product of matrices: equal rows stay equal to the last bit.
    """

    mean: Array
    matrix: Array

    def __call__(self, X: NDArray[np.floating]) -> NDArray[np.floating]:
        Z = np.zeros((len(X), self.matrix.shape[1]), dtype=X.dtype)
        for column, mean, weights in zip(X.T, self.mean, self.matrix, strict=True):
            Z += (column - mean)[:, None] * weights
        return Z


def space_of(fit: Any) -> Space | None:
    """The space of a fit that has one of its own."""
    whitening = getattr(fit, "whitening", None)
    if whitening is None:
        return None
    return Space(whitening.mean.double().cpu().numpy(), whitening.matrix.double().cpu().numpy())


def posteriors(fit: Any) -> list[NeighborPosterior]:
    """The neighbour posteriors of one target's fit."""
    own = getattr(fit, "posterior", None)
    if own is not None:
        return [own]
    if not hasattr(fit, "mean"):
        return []
    used = [m for m, w in zip(fit.mean.models, fit.mean.weights, strict=True) if w > 0.0]
    parts = [getattr(part, "posterior", None) for part in (*used, fit.variance)]
    return [part for part in parts if isinstance(part, NeighborPosterior)]


def metrics_of(fits: list[Any]) -> list[Metric]:
    """Metrics in which predictions look for neighbours, each once."""
    return list(dict.fromkeys(part.metric for fit in fits for part in posteriors(fit)))


def with_posteriors(fit: Any, make: Callable[[NeighborPosterior], NeighborPosterior]) -> Any:
    """The same fit with other posteriors."""
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
        rows, known.n_neighbors, known.noise_floor, known.use_prior, None, FoundStore(rows, near)
    )
    return NeighborPosterior(part.kernel, part.parameters, engine)


def without_rows(fit: Any) -> Any:
    """The same fit, with no rows to be near."""

    def make(part: NeighborPosterior) -> NeighborPosterior:
        return _conditioned(part, part.rows.subset(np.zeros(0, dtype=np.int64)), None)

    return with_posteriors(fit, make)


def with_neighbors(
    fit: Any, found: dict[Metric, Found], target: int, y_scale: float, space: Space | None
) -> Any:
    """The same fit, for the points that neighbours were found for.

    Parameters
    ----------
    found : dict
        Neighbours in each metric.
    target : int
        Which of the targets the fit is of.
    y_scale : float
        Units of that target.
    """
    rows = {metric: _as_rows(near, target, y_scale, space) for metric, near in found.items()}
    return with_posteriors(fit, lambda part: _conditioned(part, *rows[part.metric]))


def _as_rows(found: Found, target: int, y_scale: float, space: Space | None) -> tuple[Rows, Tensor]:
    """Neighbours as rows, query by query, and who is whose."""
    m, k = found.distance.shape
    X = found.X.reshape(m * k, -1)
    X = X if space is None else space(X)
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
