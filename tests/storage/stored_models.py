"""Tables and small models that the tests of saved models share."""

from pathlib import Path

import gpytorch
import numpy as np
import pandas as pd
from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from twostagegp import (
    ExactGPRegressor,
    GPNNRegressor,
    TwoStageGPClassifier,
    TwoStageGPRegressor,
)
from twostagegp.pipeline.settings import SampleSettings, SearchSettings, Settings

N, D = 60, 3
_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(N, D))
Y = np.sin(2 * X[:, 0]) + 0.3 * _RNG.normal(size=N) * (1 + X[:, 1] ** 2)
LABELS = np.where(X[:, 0] + 0.4 * _RNG.normal(size=N) > 0, "ill", "well")
GROUPS = np.arange(N) // 2
NEW = _RNG.normal(size=(23, D))


def frame(values):
    return pd.DataFrame(values, columns=["a", "b", "c"])


#: Few and small trees in the stack of neighbours, and short searches by the ratio test.
SMALL = Settings(
    sample=SampleSettings(tree_parameters=(("max_iter", 20), ("max_leaf_nodes", 7))),
    search=SearchSettings(n_repeats=4, subsample=40),
)


def short_regressor(**options):
    given = {"kernels": ("rbf", "matern32"), "random_state": 0}
    if options.get("method") in ("neighbors", "vecchia", "svgp"):
        given["settings"] = SMALL
    return TwoStageGPRegressor(**given, **options)


def short_classifier(**options):
    return TwoStageGPClassifier(kernels=("rbf", "matern32"), random_state=0, **options)


def wrapped():
    kernel = gpytorch.kernels.RBFKernel(active_dims=[0, 1]) + gpytorch.kernels.LinearKernel()
    return short_regressor(mean=kernel, variance=gpytorch.kernels.MaternKernel(nu=1.5))


REGRESSORS = {
    "exact": lambda: short_regressor().fit(X, Y),
    "scale": lambda: short_regressor(calibration="scale").fit(X, Y, sample_weight=1 + GROUPS % 3),
    "no calibration": lambda: short_regressor(calibration=None).fit(X, Y, noise_var=0.01),
    "groups": lambda: short_regressor().fit(X, Y, groups=GROUPS),
    "float32": lambda: short_regressor(dtype="float32").fit(X, Y),
    "constant": lambda: short_regressor().fit(X, np.ones(N)),
    "two targets": lambda: short_regressor(mean="rbf").fit(X, np.column_stack([Y, -2 * Y])),
    "names": lambda: short_regressor(mean="rbf").fit(frame(X), Y),
    "ridge": lambda: short_regressor(mean=["rbf", Ridge()]).fit(X, Y),
    "forest": lambda: short_regressor(
        mean=make_pipeline(StandardScaler(), GradientBoostingRegressor(n_estimators=5))
    ).fit(X, Y),
    "gpytorch": lambda: wrapped().fit(X, Y),
    "seeded": lambda: TwoStageGPRegressor(mean="rbf", random_state=np.random.RandomState(3)).fit(
        X, Y
    ),
    "paper": lambda: TwoStageGPRegressor.from_paper(random_state=0, settings=SMALL).fit(X, Y),
    "neighbors": lambda: short_regressor(method="neighbors", n_neighbors=20).fit(X, Y),
    "neighbors, groups": lambda: short_regressor(method="neighbors", calibration="scale").fit(
        X, Y, groups=GROUPS
    ),
    "neighbors, float32": lambda: short_regressor(method="neighbors", dtype="float32").fit(X, Y),
    "vecchia": lambda: short_regressor(method="vecchia").fit(X, Y),
    "svgp": lambda: short_regressor(method="svgp").fit(X, Y),
    "single stage": lambda: ExactGPRegressor(random_state=0).fit(X, Y),
    "single stage, search": lambda: ExactGPRegressor.from_paper(
        1, random_state=0, settings=SMALL
    ).fit(X, Y),
    "gpnn": lambda: GPNNRegressor(random_state=0).fit(X, Y),
    "gpnn, as published": lambda: GPNNRegressor.from_paper(random_state=0).fit(X, Y),
}
CLASSIFIERS = {
    "classes": lambda: short_classifier().fit(X, LABELS),
    "one stage": lambda: short_classifier(stages=1).fit(X, Y > 0),
    "classes, neighbors": lambda: short_classifier(method="neighbors").fit(
        X, LABELS.astype(object), groups=GROUPS
    ),
    "classes, forest": lambda: short_classifier(
        mean=["rbf", RandomForestClassifier(5, random_state=0)]
    ).fit(X, (X[:, 0] > 0).astype(int) + (X[:, 1] > 1)),
}


def folder_bytes(path):
    """Size of all files of a model."""
    return sum(entry.stat().st_size for entry in Path(path).iterdir())


def predictions(model, points=NEW):
    """All kinds of predictions of a regressor."""
    points = frame(points) if hasattr(model, "feature_names_in_") else points
    return [
        *model.predict(points, return_std=True),
        model.predict_interval(points, level=0.9),
        model.predict_quantiles(points, [0.1, 0.5, 0.8]),
        model.sample_y(points, 3, random_state=0),
        model.predict(points[:4], return_cov=True)[1],
    ]
