"""The libraries that a user would pick instead, each behind the same small interface.

A peer is a module here with a function ``fit(X, y, seed)`` that returns a
:class:`~benchmarks.peers.base.Fitted`. Its settings are constants at the top of the module: the
best practice that its own documentation describes, the same for every table and not tuned to test
scores. :data:`PEERS` lists them by the names that the command line uses; a module is imported only
when its peer runs, so that none of the packages is needed for the others.

:data:`OURS` lists the estimators of this package in the same way. They run through the same
subprocess (:mod:`benchmarks.peers.run`), are timed by the same clock and scored by the same
function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.peers.base import Array, Fitted, NotInstalledError

__all__ = ["MODELS", "OURS", "PEERS", "SMALL_ONLY", "Model"]


@dataclass(frozen=True)
class Model:
    """Where a model is found.

    Attributes
    ----------
    label : str
        Description in the list of models on the page.
    package : str
        The distribution whose version is recorded.
    where : str
        ``module:function`` inside :mod:`benchmarks.peers`; of ours ``ours:name``.
    ours : bool
    """

    label: str
    package: str
    where: str
    ours: bool = False

    def load(self) -> Callable[[Array, Array, int], Fitted]:
        """Return the function that fits; raise NotInstalledError if its package is missing."""
        module, _, function = self.where.partition(":")
        try:
            found: Any = import_module(f"benchmarks.peers.{module}")
        except ModuleNotFoundError as error:
            raise NotInstalledError(error.name) from error
        return found.fitter(function) if self.ours else getattr(found, function)

    def version(self) -> str | None:
        """Return the installed version, after the package's name unless ours; None if missing."""
        try:
            found = version(self.package)
        except PackageNotFoundError:
            return None
        return found if self.ours else f"{self.package} {found}"


OURS: Mapping[str, Model] = {
    name: Model(label, "twostagegp", f"ours:{name}", ours=True)
    for name, label in {
        "ours": "two-stage on nearest neighbours",
        "ours_auto": "two-stage, the method chosen by the estimator",
        "ours_paper": "two-stage on nearest neighbours, the paper's settings",
        "ours_svgp": "two-stage on inducing points",
        "ours_vecchia": "two-stage with a Vecchia approximation",
        "ours_gpnn": "GPNN as this package has it",
    }.items()
}

PEERS: Mapping[str, Model] = {
    "lightgbm": Model(
        "LightGBM, early stopping, conformal intervals of local width",
        "lightgbm",
        "lightgbm_conformal:fit",
    ),
    "catboost_rmse": Model(
        "CatBoost, loss RMSE, one width for all rows", "catboost", "catboost_trees:fit_rmse"
    ),
    "catboost_uncertainty": Model(
        "CatBoost, loss RMSEWithUncertainty", "catboost", "catboost_trees:fit_uncertainty"
    ),
    "ngboost": Model("NGBoost, Normal", "ngboost", "ngboost_normal:fit"),
    "muygpys": Model("MuyGPyS, isotropic Matérn 3/2, 50 neighbours", "muygpys", "muygpys:fit"),
    "gpboost": Model(
        "GPBoost, Vecchia with 20 neighbours, isotropic Matérn 3/2", "gpboost", "gpboost_gp:fit"
    ),
    "gpboost_ard": Model(
        "GPBoost, the same with one lengthscale per column", "gpboost", "gpboost_gp:fit_ard"
    ),
    "gpnn": Model("GPNN of Allison et al. 2023, 50 neighbours", "gpytorch", "gpnn:fit"),
    "gpytorch_svgp": Model(
        "GPyTorch SVGP, 500 inducing points, Matérn 5/2", "gpytorch", "gpytorch_svgp:fit"
    ),
    "gpytorch_rbf": Model(
        "GPyTorch exact GP, RBF, one lengthscale per column", "gpytorch", "gpytorch_exact:fit_rbf"
    ),
    "gpytorch_matern": Model(
        "GPyTorch exact GP, Matérn 5/2, one lengthscale per column",
        "gpytorch",
        "gpytorch_exact:fit_matern",
    ),
    "sklearn_gpr": Model(
        "scikit-learn GaussianProcessRegressor on up to 2000 rows, RBF",
        "scikit-learn",
        "sklearn_gpr:fit",
    ),
    "sklearn_matern": Model("the same, Matérn 5/2", "scikit-learn", "sklearn_gpr:fit_matern"),
}

#: For tables of up to some thousand rows only.
SMALL_ONLY = ("gpytorch_rbf", "gpytorch_matern", "sklearn_matern")

MODELS: Mapping[str, Model] = {**OURS, **PEERS}
