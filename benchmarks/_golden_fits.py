"""The configurations of the golden fits, by name.

Only public names are used, so that the table outlives any change of the package's structure.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import torch
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LinearRegression

from benchmarks._golden_outputs import Outcome, classification, joined, regression
from benchmarks._golden_tables import (
    Table,
    classes,
    constant_target,
    frame,
    groups_of,
    noise_of,
    numbers,
    pasted,
    repeated,
    two_targets,
    weights_of,
)
from twostagegp import (
    CVPlusRegressor,
    ExactGPRegressor,
    GPNNRegressor,
    Training,
    TwoStageGPClassifier,
    TwoStageGPRegressor,
    check_misspecification,
    farthest_point_sampling,
    load,
    search_kernel,
)

__all__ = ["CONFIGURATIONS", "SLOW", "Configuration"]

Configuration = Callable[[], Outcome]

_SHARED: dict[str, Any] = {"n_jobs": 1, "random_state": 0, "device": "cpu"}
#: One kernel per stage, for configurations that are about something else.
_ONE_KERNEL: dict[str, Any] = {"mean": "rbf", "variance": "rbf", "ard": False}
_TWO_KERNELS: dict[str, Any] = {"kernels": ("rbf", "matern32"), "ard": False}


# --- models ---------------------------------------------------------------------------------------


def _exact(**options: Any) -> TwoStageGPRegressor:
    return TwoStageGPRegressor(**({"method": "exact"} | _SHARED | options))


def _neighbors(**options: Any) -> TwoStageGPRegressor:
    return TwoStageGPRegressor(**({"method": "neighbors", "n_neighbors": 30} | _SHARED | options))


def _single(kernel: Any = "rbf", **options: Any) -> ExactGPRegressor:
    return ExactGPRegressor(kernel, **(_SHARED | options))


def _gpnn(**options: Any) -> GPNNRegressor:
    return GPNNRegressor(**(_SHARED | {"n_neighbors": 30, "block_rows": 100} | options))


def _classifier(**options: Any) -> TwoStageGPClassifier:
    return TwoStageGPClassifier(**(_SHARED | options))


def _sum_kernel() -> Any:
    kernels = gpytorch.kernels
    return kernels.ScaleKernel(kernels.RBFKernel()) + kernels.ScaleKernel(kernels.LinearKernel())


def _forest() -> RandomForestRegressor:
    return RandomForestRegressor(n_estimators=10, random_state=0)


def _thirds(table: Table) -> Any:
    """Return three group labels, so that a regressor is cross-fitted in at most three folds."""
    return np.arange(len(table.X)) % 3


# --- what is done with them -----------------------------------------------------------------------


def _fit(model: Any, table: Table, **given: Callable[[Table], Any]) -> Outcome:
    """Fit and predict; ``given`` are arguments of ``fit``, made from the table."""
    model.fit(table.X, table.y, **{name: make(table) for name, make in given.items()})
    return _predictions(model, table)


def _fit_svgp(table: Table, **options: Any) -> Outcome:
    """Fit from a fixed state of torch's global generator.

    GPyTorch starts q(u) from a draw of it, which ``random_state`` does not decide.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _fit(_neighbors(method="svgp", **options), table, groups=_thirds)


def _predictions(model: Any, table: Table) -> Outcome:
    describe = classification if isinstance(model, TwoStageGPClassifier) else regression
    return describe(model, table)


def _update(model: Any, table: Table, n: int) -> Outcome:
    """Fit to the first n rows and add the others in two updates."""
    half = (len(table.X) - n) // 2
    model.fit(table.X[:n], table.y[:n])
    model.update(table.X[n : n + half], table.y[n : n + half])
    once = _predictions(model, table)
    model.update(table.X[n + half :], table.y[n + half :])
    return joined(once=once, twice=_predictions(model, table))


def _save_and_load(model: Any, table: Table) -> Outcome:
    model.fit(table.X, table.y)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        loaded = load(Path(folder) / "model")
    return joined(fitted=_predictions(model, table), loaded=_predictions(loaded, table))


def _exports(model: Any, table: Table) -> Outcome:
    """Return predictions of the models that ``to_gpytorch`` and ``to_botorch`` return."""
    model.fit(table.X, table.y)
    X = torch.as_tensor(table.X_new)
    gp = model.to_gpytorch()
    latent, observed = gp(X), gp.likelihood(gp(X))
    posterior = model.to_botorch().posterior(X, observation_noise=True)
    named = {
        "gpytorch/mean": latent.mean,
        "gpytorch/covariance": latent.covariance_matrix,
        "gpytorch/variance": observed.variance,
        "botorch/mean": posterior.mean,
        "botorch/variance": posterior.variance,
    }
    values = {name: value.detach().numpy() for name, value in named.items()}
    return Outcome(table.unit, values)


def _cv_plus(model: Any, table: Table) -> Outcome:
    model.fit(table.X, table.y)
    values = {
        "mean": model.predict(table.X_new),
        "interval": model.predict_interval(table.X_new, level=0.9),
        "scores": model.scores_,
        "folds": model.folds_,
    }
    return Outcome(table.unit, values)


def _on_dask(model: Any, table: Table) -> Outcome:
    """Fit and predict Dask arrays on a cluster of one thread in this process."""
    import dask.array as da
    import distributed

    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None,
        silence_logs=logging.ERROR,
    )  # fmt: skip
    with cluster, distributed.Client(cluster):
        rows = len(table.X) // 3
        model.fit(da.from_array(table.X, chunks=(rows, 2)), da.from_array(table.y, chunks=rows))
        made = regression(model, table)
        X_new = da.from_array(table.X_new, chunks=(8, 3))
        mean, std = model.predict(X_new, return_std=True)
        made.numbers |= {"lazy/mean": mean.compute(), "lazy/std": std.compute()}
    return made


def _searched(table: Table, **options: Any) -> Outcome:
    settings = {"n_repeats": 12, "subsample": 80, "random_state": 0, "n_jobs": 1, "device": "cpu"}
    search = search_kernel(table.X, table.y, **(settings | options))
    columns = [name for name in search.table.columns if name not in ("seconds", "failure")]
    values = {name: search.table[name].to_numpy() for name in columns}
    text = {"best": search.best_label, "order": " ".join(map(str, search.table.index))}
    return Outcome(table.unit, values | {"index": search.index}, text)


def _checked(table: Table, **options: Any) -> Outcome:
    settings = {"n_repeats": 12, "subsample": 80, "random_state": 0, "n_jobs": 1, "device": "cpu"}
    check = check_misspecification(table.X, table.y, "rbf", **(settings | options))
    values = {f"repeat_{name}": check.per_repeat[name].to_numpy() for name in check.per_repeat}
    values |= {f"cause_{name}": check.causes[name].to_numpy() for name in check.causes}
    values["noise_std"] = np.array(check.noise)
    return Outcome(table.unit, values, {"verdict": str(check)})


def _farthest_points(n: int) -> Outcome:
    X = numbers(n).X
    values = {
        "from_mean": farthest_point_sampling(X, 40),
        "from_random": farthest_point_sampling(X, 40, start="random", random_state=0),
        "all": farthest_point_sampling(X, n),
    }
    return Outcome(1.0, values)


# --- the table ------------------------------------------------------------------------------------

_STEPS = Training(optimizer="adam", steps=15, lr=0.1, subsample=60, refine_steps=5, refine_lr=0.05)
_FEW_STEPS = Training(optimizer="lbfgs", steps=2)

_EXACT: dict[str, Configuration] = {
    "exact": lambda: _fit(_exact(), numbers(150)),
    "exact-40": lambda: _fit(_exact(), numbers(40)),
    "exact-620": lambda: _fit(_exact(), numbers(620)),
    "exact-auto-method": lambda: _fit(_exact(method="auto"), numbers(70)),
    "exact-weights": lambda: _fit(_exact(), numbers(120), sample_weight=weights_of),
    "exact-40-weights": lambda: _fit(_exact(), numbers(40), sample_weight=weights_of),
    "exact-800-weights": lambda: _fit(  # 607 rows have a weight above 0
        _exact(**_ONE_KERNEL), numbers(800), sample_weight=weights_of
    ),
    "exact-groups": lambda: _fit(_exact(), numbers(120), groups=groups_of),
    "exact-40-groups": lambda: _fit(_exact(), numbers(40), groups=groups_of),
    "exact-620-groups": lambda: _fit(_exact(**_ONE_KERNEL), numbers(620), groups=groups_of),
    "exact-repeated": lambda: _fit(_exact(), repeated(120)),
    "exact-pasted": lambda: _fit(_exact(), pasted(70)),
    "exact-noise-var": lambda: _fit(_exact(), numbers(100), noise_var=noise_of),
    "exact-all-arguments": lambda: _fit(
        _exact(**_TWO_KERNELS),
        repeated(120),
        sample_weight=weights_of,
        groups=groups_of,
        noise_var=noise_of,
    ),
    "exact-two-targets": lambda: _fit(_exact(**_TWO_KERNELS), two_targets(90)),
    "exact-frame": lambda: _fit(_exact(**_TWO_KERNELS), frame(120)),
    "exact-gpytorch": lambda: _fit(
        _exact(kernels=("rbf", _sum_kernel()), ard=False, variance=_sum_kernel()), numbers(70)
    ),
    "exact-gpytorch-mean": lambda: _fit(_exact(mean=_sum_kernel(), variance="rbf"), numbers(70)),
    "exact-forest": lambda: _fit(_exact(mean=_forest()), numbers(120)),
    "exact-mean-list": lambda: _fit(
        _exact(mean=["rbf", _forest(), LinearRegression()], variance="matern52"), numbers(90)
    ),
    "exact-constant-mean": lambda: _fit(_exact(mean="constant"), numbers(120)),
    "exact-misspecification": lambda: _fit(
        _exact(mean="search", selection="misspecification", **_TWO_KERNELS), numbers(100)
    ),
    "exact-nll": lambda: _fit(_exact(objective="nll", variance_objective="nll"), numbers(90)),
    "exact-scale": lambda: _fit(_exact(calibration="scale", **_TWO_KERNELS), numbers(100)),
    "exact-uncalibrated": lambda: _fit(
        _exact(calibration=None, residuals="insample", **_TWO_KERNELS), numbers(100)
    ),
    "exact-penalty-grid": lambda: _fit(_exact(penalty=(1e-3, 1e-2, 1e-1)), numbers(120)),
    "exact-penalty-0.01n": lambda: _fit(_exact(penalty="0.01n", mean="search"), numbers(120)),
    "exact-float32": lambda: _fit(_exact(dtype="float32", **_TWO_KERNELS), numbers(120)),
    "exact-paper": lambda: _fit(TwoStageGPRegressor.from_paper(**_SHARED), numbers(150)),
    "exact-training": lambda: _fit(_exact(training=_STEPS, **_TWO_KERNELS), numbers(150)),
    "exact-constant-target": lambda: _fit(_exact(), constant_target(60)),
    "exact-update": lambda: _update(_exact(**_TWO_KERNELS), repeated(120), 90),
    "exact-save": lambda: _save_and_load(_exact(mean=["rbf", _forest()]), frame(90)),
    "exact-exports": lambda: _exports(_exact(**_TWO_KERNELS), repeated(90)),
}

_LARGE_TABLES: dict[str, Configuration] = {
    "neighbors": lambda: _fit(_neighbors(), numbers(700)),
    "neighbors-weights": lambda: _fit(
        _neighbors(**_TWO_KERNELS), numbers(400), sample_weight=weights_of
    ),
    "neighbors-groups": lambda: _fit(_neighbors(**_TWO_KERNELS), numbers(400), groups=groups_of),
    "neighbors-repeated": lambda: _fit(_neighbors(**_TWO_KERNELS), repeated(400)),
    "neighbors-noise-var": lambda: _fit(
        _neighbors(**_TWO_KERNELS), numbers(400), noise_var=noise_of
    ),
    "neighbors-two-targets": lambda: _fit(_neighbors(**_ONE_KERNEL), two_targets(400)),
    "neighbors-frame": lambda: _fit(_neighbors(**_ONE_KERNEL), frame(400)),
    "neighbors-gpytorch": lambda: _fit(
        _neighbors(mean=_sum_kernel(), variance="rbf", ard=False), numbers(300)
    ),
    "neighbors-forest": lambda: _fit(_neighbors(mean=_forest(), variance="rbf"), numbers(400)),
    "neighbors-nll": lambda: _fit(
        _neighbors(objective="nll", variance_objective="nll", **_TWO_KERNELS), numbers(400)
    ),
    "neighbors-misspecification": lambda: _fit(
        _neighbors(mean="search", selection="misspecification", **_TWO_KERNELS), numbers(120)
    ),
    "neighbors-scale": lambda: _fit(_neighbors(calibration="scale", **_ONE_KERNEL), numbers(400)),
    "neighbors-paper": lambda: _fit(
        TwoStageGPRegressor.from_paper(method="neighbors", **_SHARED), numbers(120)
    ),
    "neighbors-training": lambda: _fit(
        _neighbors(training=Training(optimizer="adam", steps=15), **_ONE_KERNEL), numbers(400)
    ),
    "neighbors-update": lambda: _update(_neighbors(**_ONE_KERNEL), repeated(400), 300),
    "neighbors-save": lambda: _save_and_load(_neighbors(**_ONE_KERNEL), numbers(300)),
    "neighbors-dask": lambda: _on_dask(_neighbors(**_ONE_KERNEL), repeated(450)),
    "vecchia": lambda: _fit(_neighbors(method="vecchia", **_TWO_KERNELS), numbers(400)),
    "svgp": lambda: _fit_svgp(numbers(40), calibration="scale", **_ONE_KERNEL),
    "svgp-variance": lambda: _fit_svgp(numbers(40), mean="constant", variance="rbf"),
}

_SINGLE_STAGE: dict[str, Configuration] = {
    "single": lambda: _fit(_single(), numbers(150)),
    "single-search": lambda: _fit(_single("search", ard=True, objective="loo"), numbers(700)),
    "single-groups": lambda: _fit(_single(objective="loo"), numbers(150), groups=groups_of),
    "single-weights": lambda: _fit(
        _single(), repeated(150), sample_weight=weights_of, noise_var=noise_of
    ),
    "single-gpytorch": lambda: _fit(_single(_sum_kernel()), numbers(100)),
    "single-paper": lambda: _fit(ExactGPRegressor.from_paper(**_SHARED), numbers(150)),
    "single-paper-table1": lambda: _fit(
        ExactGPRegressor.from_paper(table=1, **_SHARED), numbers(100)
    ),
    "single-paper-table3": lambda: _fit(
        ExactGPRegressor.from_paper(table=3, **_SHARED), numbers(250)
    ),
    "single-update": lambda: _update(_single(), repeated(150), 120),
    "single-exports": lambda: _exports(_single(), numbers(100)),
    "gpnn": lambda: _fit(_gpnn(), numbers(500)),
    "gpnn-neighbors": lambda: _fit(_gpnn(objective="neighbors"), numbers(500)),
    "gpnn-standardise": lambda: _fit(
        _gpnn(preprocess="standardize", calibration=None, ard=True), numbers(500)
    ),
    "gpnn-groups": lambda: _fit(_gpnn(), repeated(400), groups=groups_of, sample_weight=weights_of),
    "gpnn-update": lambda: _update(_gpnn(), repeated(400), 300),
    "cv-plus": lambda: _cv_plus(
        CVPlusRegressor(_single(), n_folds=5, random_state=0), numbers(100)
    ),
    "cv-plus-forest": lambda: _cv_plus(
        CVPlusRegressor(_forest(), n_folds=4, random_state=0), frame(100)
    ),
}

_CLASSIFIERS: dict[str, Configuration] = {
    "classifier-2": lambda: _fit(_classifier(), classes(150, 2)),
    "classifier-3": lambda: _fit(_classifier(), classes(150, 3)),
    "classifier-620": lambda: _fit(_classifier(mean="rbf", variance="rbf"), classes(620, 2)),
    "classifier-groups": lambda: _fit(
        _classifier(**_TWO_KERNELS), classes(120, 2), groups=groups_of
    ),
    "classifier-weights": lambda: _fit(
        _classifier(**_TWO_KERNELS), classes(120, 3), sample_weight=weights_of
    ),
    "classifier-1-stage": lambda: _fit(_classifier(stages=1, **_TWO_KERNELS), classes(120, 3)),
    "classifier-paper": lambda: _fit(TwoStageGPClassifier.from_paper(**_SHARED), classes(80, 2)),
    "classifier-neighbors": lambda: _fit(
        _classifier(method="neighbors", n_neighbors=40, **_TWO_KERNELS), classes(300, 3)
    ),
    "classifier-forest": lambda: _fit(
        _classifier(mean=RandomForestClassifier(n_estimators=10, random_state=0), variance="rbf"),
        classes(120, 3),
    ),
    "classifier-frame": lambda: _fit(_classifier(**_TWO_KERNELS), _labelled_frame(120)),
    "classifier-save": lambda: _save_and_load(_classifier(**_TWO_KERNELS), classes(100, 3)),
}

_BLOCKED: dict[str, Configuration] = {  # above 4,000 distinct rows matrices are made in blocks
    "blocked-single": lambda: _fit(_single(training=_FEW_STEPS), numbers(4100)),
}

_FUNCTIONS: dict[str, Configuration] = {
    "search": lambda: _searched(numbers(300)),
    "search-misspecification": lambda: _searched(numbers(300), selection="misspecification"),
    "search-krr": lambda: _searched(numbers(300), model="krr", ard="both"),
    "check-bootstrap": lambda: _checked(numbers(200), n_repeats=20),
    "check-ratio": lambda: _checked(numbers(200), test="ratio"),
    "check-ratio-krr": lambda: _checked(numbers(200), test="ratio", model="krr"),
    "check-bound": lambda: _checked(numbers(200), test="bound", rkhs_bound="estimate"),
    "farthest-points": lambda: _farthest_points(300),
}


def _labelled_frame(n: int) -> Table:
    table, labels = frame(n), classes(n, 2)
    return Table(table.X, labels.y, table.X_new, labels.y_new)


#: Run with every call.
CONFIGURATIONS: Mapping[str, Configuration] = {
    **_EXACT,
    **_LARGE_TABLES,
    **_SINGLE_STAGE,
    **_BLOCKED,
    **_CLASSIFIERS,
    **_FUNCTIONS,
}

#: Run with ``--slow`` only: half a minute and more each.
SLOW: Mapping[str, Configuration] = {
    "slow-blocked-exact": lambda: _fit(
        _exact(training=_FEW_STEPS, calibration="scale", **_ONE_KERNEL), numbers(4100)
    ),
    "slow-svgp": lambda: _fit_svgp(numbers(60), **_ONE_KERNEL),
}
