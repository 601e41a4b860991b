"""The models of :mod:`benchmarks.neighbors_speed`: ours and three other libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.peers import PEERS
from benchmarks.peers.base import Array, Fitted
from benchmarks.peers.ours import Ours, fitter
from twostagegp import GPNNRegressor

__all__ = ["CONTESTANTS", "LOCAL", "WARM_POINTS", "WARM_ROWS", "Contestant"]

NEIGHBOURS = 50
#: Rows of the fit, and points of the prediction, that come before the clock runs.
WARM_ROWS, WARM_POINTS = 600, 64
#: The second part of the benchmark, by the name that the command line uses.
LOCAL = "local_solves"

Fit = Callable[[Array, Array, int], Fitted]


@dataclass(frozen=True)
class Contestant:
    """A model of the first part.

    Attributes
    ----------
    label : str
    neighbours : str
        How many a prediction is made from.
    fit : callable
        ``fit(X, y, seed)``, returns a :class:`~benchmarks.peers.base.Fitted`.
    peer : str, optional
        Its name in :data:`benchmarks.peers.PEERS`; None: ours.
    """

    label: str
    neighbours: str
    fit: Fit
    peer: str | None = None


def _bare(ard: bool) -> Fit:
    def fit(X: Array, y: Array, seed: int) -> Fitted:
        model = GPNNRegressor(
            kernel="matern32",
            n_neighbors=NEIGHBOURS,
            objective="neighbors",
            ard=ard,
            preprocess="standardize",
            random_state=seed,
        )
        return Ours(model.fit(X, y), float(np.std(y)))

    return fit


def _peer(name: str) -> Fit:
    def fit(X: Array, y: Array, seed: int) -> Fitted:
        return PEERS[name].load()(X, y, seed)

    return fit


def _gpboost_50(X: Array, y: Array, seed: int) -> Fitted:
    """Fit with 50 neighbours and predict from 50; its default would be twice as many."""
    fit = PEERS["gpboost"].load()
    from benchmarks.peers import gpboost_gp

    gpboost_gp.NUM_NEIGHBORS = NEIGHBOURS
    found: Any = fit(X, y, seed)
    found.model.set_prediction_data(num_neighbors_pred=NEIGHBOURS)
    return found


CONTESTANTS: Mapping[str, Contestant] = {
    "default": Contestant("twostagegp, default of method='neighbors'", "50", fitter("ours")),
    "bare_ard": Contestant("twostagegp, one kernel, one lengthscale per column", "50", _bare(True)),
    "bare_iso": Contestant("twostagegp, one kernel, one lengthscale", "50", _bare(False)),
    "gpnn": Contestant("GPNN, point by point as its program does", "50", _peer("gpnn"), "gpnn"),
    "muygpys": Contestant("MuyGPyS, one lengthscale", "50", _peer("muygpys"), "muygpys"),
    "gpboost": Contestant("GPBoost, one range", "20, 40 to predict", _peer("gpboost"), "gpboost"),
    "gpboost_50": Contestant("GPBoost, one range", "50", _gpboost_50, "gpboost"),
}
