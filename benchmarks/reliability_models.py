"""The models of :mod:`benchmarks.reliability`, with their descriptions on its page."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.peers import MODELS as PEERS_AND_OURS
from benchmarks.peers import Model

__all__ = ["KNOWN", "LABELS"]

_AS_IS = {
    "sklearn_raw": Model("", "scikit-learn", "as_documented:fit_sklearn"),
    "gpytorch_raw": Model("", "gpytorch", "as_documented:fit_gpytorch"),
}
KNOWN: Mapping[str, Model] = {**PEERS_AND_OURS, **_AS_IS}

#: Those that are run by default, ours first.
LABELS: Mapping[str, str] = {
    "ours_auto": "`TwoStageGPRegressor()`",
    "sklearn_raw": "scikit-learn `GaussianProcessRegressor`, constant × Matérn 3/2 + white noise, "
    "all defaults, the table as it is",
    "gpytorch_raw": "GPyTorch `ExactGP`, the regression tutorial's model and loop (float32, scaled "
    "RBF, 50 steps of Adam), the table as it is",
    "sklearn_matern": "scikit-learn on standardised columns and target, constant × Matérn 5/2 with "
    "one lengthscale per column + white noise, wider bounds, one restart",
    "gpytorch_matern": "GPyTorch on standardised columns and target, scaled Matérn 5/2 with one "
    "lengthscale per column, float64, 150 steps of Adam",
    "gpboost": "GPBoost `GPModel` on standardised columns and target, Matérn 3/2, Vecchia with 20 "
    "neighbours",
    "muygpys": "MuyGPyS on standardised columns and target, Matérn 3/2, 50 neighbours, "
    "`Bayes_optimize`",
}
