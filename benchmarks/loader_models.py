"""Small models of every kind that a file can hold, for files that are to be spoilt."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import pandas as pd
from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from twostagegp import (
    CVPlusRegressor,
    ExactGPRegressor,
    GPNNRegressor,
    TwoStageGPClassifier,
    TwoStageGPRegressor,
)

__all__ = ["MODELS", "POINTS", "save_models", "table"]

ROWS = 24
_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(ROWS, 2))
Y = np.sin(2 * X[:, 0]) + 0.2 * _RNG.normal(size=ROWS)
#: Points that plain models predict.
POINTS = _RNG.normal(size=(3, 2))


def table(rows: int = ROWS) -> pd.DataFrame:
    """Return a table with columns of every kind."""
    rng = np.random.default_rng(1)
    made = pd.DataFrame(
        {
            "size": rng.normal(size=rows),
            "used": rng.uniform(size=rows) < 0.5,
            "color": rng.choice(["red", "green", "blue"], rows),
            "grade": pd.Categorical(
                rng.choice(["low", "mid", "high"], rows), ["low", "mid", "high"], ordered=True
            ),
            "when": pd.Timestamp("2024-01-01", tz="Europe/Paris")
            + pd.to_timedelta(rng.integers(0, 700, rows), "D"),
            "lasted": pd.to_timedelta(rng.integers(1, 90, rows), "min"),
        }
    )
    made.loc[3, "size"] = np.nan
    made.loc[5, "color"] = None
    return made


def _two_stages(**options: Any) -> TwoStageGPRegressor:
    given: dict[str, Any] = {"kernels": ("rbf",), "random_state": 0, "n_jobs": 1, **options}
    return TwoStageGPRegressor(**given)


def _classifier(**options: Any) -> TwoStageGPClassifier:
    return TwoStageGPClassifier(kernels=("rbf",), random_state=0, n_jobs=1, **options)


#: Fits by name.
MODELS: dict[str, Callable[[], Any]] = {
    "columns": lambda: ExactGPRegressor("rbf", random_state=0).fit(table(), Y),
    "folds": lambda: CVPlusRegressor(
        make_pipeline(StandardScaler(), Ridge()), n_folds=2, random_state=0
    ).fit(X, Y),
    "exact": lambda: _two_stages().fit(X, Y),
    "weights": lambda: _two_stages(
        mean=["rbf", Ridge()], random_state=np.random.RandomState(3)
    ).fit(X, Y, sample_weight=1.0 + np.arange(ROWS) % 2, groups=np.arange(ROWS) // 2),
    "trees": lambda: _two_stages(
        mean=GradientBoostingRegressor(n_estimators=2), calibration="scale"
    ).fit(X, Y),
    "targets": lambda: _two_stages(mean="rbf", calibration=None).fit(X, np.column_stack([Y, -Y])),
    "module": lambda: ExactGPRegressor(
        gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(active_dims=[0]))
        + gpytorch.kernels.LinearKernel(),
        random_state=0,
    ).fit(X, Y),
    "neighbors": lambda: _two_stages(method="neighbors", n_neighbors=8, mean="rbf").fit(X, Y),
    "gpnn": lambda: GPNNRegressor(random_state=0, n_neighbors=8).fit(X, Y),
    "classes": lambda: _classifier(mean="search").fit(X, np.where(Y > 0, "ill", "well")),
    "classes, neighbors": lambda: _classifier(
        method="neighbors",
        n_neighbors=8,
        mean=["rbf", RandomForestClassifier(2, max_depth=3, random_state=0)],
    ).fit(X, (Y > 0).astype(int)),
}


def save_models(folder: Path, names: tuple[str, ...] = tuple(MODELS)) -> None:
    """Fit models and save each in a folder of its name; one of them also with its factors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            model = MODELS[name]()
            model.save(folder / name)
            if name == "exact":
                model.save(folder / "factors", include_factors=True)
