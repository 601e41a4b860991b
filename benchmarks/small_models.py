"""The models of :mod:`benchmarks.small_tables`: settings for few rows, tables of any kind.

Those of :mod:`benchmarks.peers` that need no other settings are used as they are; boosting ends by
cross-validation, as a tenth of fifty rows cannot end it. A library that reads categories and gaps
gets the data frame, others get numbers (:mod:`benchmarks.peers.encoding`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.peers import MODELS as KNOWN
from benchmarks.peers import Model
from benchmarks.peers.base import Array, Fitted
from benchmarks.peers.encoding import Gaps, encoded

__all__ = ["MODELS", "OURS", "OURS_TABPFN", "TABPFN", "SmallModel"]

#: Our default, by the name that it has in the other benchmarks.
OURS = "ours_auto"
#: Models that need the file of TabPFN's weights: the library itself, and our stack with it.
TABPFN, OURS_TABPFN = "tabpfn", "ours_tabpfn"


@dataclass(frozen=True)
class SmallModel:
    """A model for few rows.

    Attributes
    ----------
    name : str
        Its name on the page.
    model : Model
        What it is and where it is found.
    gaps : {"median", "nan"}, optional
        How gaps are encoded; None: the model reads data frames.
    most_rows : int, optional
        The most training rows that it is given, as its cost grows with their cube.
    """

    name: str
    model: Model
    gaps: Gaps | None = None
    most_rows: int | None = None

    def load(self) -> Callable[[Any, Array, int], Fitted]:
        """Return the function that fits; raise NotInstalledError if its package is missing."""
        fit = self.model.load()
        return fit if self.gaps is None else encoded(fit, self.gaps)


MODELS: Mapping[str, SmallModel] = {
    OURS: SmallModel("twostagegp", KNOWN[OURS]),
    "sklearn_gpr": SmallModel(
        "scikit-learn GPR",
        Model(
            "exact Gaussian process, Matérn 5/2, one lengthscale per column, white noise, on up to "
            "400 rows",
            "scikit-learn",
            "sklearn_gpr:fit_matern",
        ),
        "median",
        400,
    ),
    "gpboost": SmallModel(
        "GPBoost",
        Model("exact Gaussian process, isotropic Matérn 3/2", "gpboost", "gpboost_gp:fit_exact"),
        "median",
    ),
    "gpboost_ard": SmallModel(
        "GPBoost, ARD",
        Model(
            "the same with one lengthscale per column, on up to 400 rows",
            "gpboost",
            "gpboost_gp:fit_exact_ard",
        ),
        "median",
        400,
    ),
    "catboost": SmallModel(
        "CatBoost",
        Model(
            "loss RMSEWithUncertainty, one model per fold of five",
            "catboost",
            "catboost_trees:fit_few_rows",
        ),
    ),
    "ngboost": SmallModel(
        "NGBoost",
        Model("Normal, one model per fold of five", "ngboost", "ngboost_normal:fit_few_rows"),
        "median",
    ),
    "lightgbm": SmallModel(
        "LightGBM, conformal",
        Model("cross-conformal with five folds", "lightgbm", "lightgbm_cross:fit"),
        "nan",
    ),
    "quantile_forest": SmallModel(
        "quantile forest",
        Model("100 trees", "quantile-forest", "quantile_trees:fit"),
        "median",
    ),
    TABPFN: SmallModel("TabPFN v2", Model("8 members, no fine-tuning", "tabpfn", "tabpfn_v2:fit")),
    OURS_TABPFN: SmallModel(
        "twostagegp with TabPFN v2",
        Model('`mean=["stack", "tabpfn"]`', "twostagegp", "tabpfn_v2:fit_stack"),
    ),
}
