"""Fits to hard tables: every engine, every selection, both precisions, numbers and classes.

A short form runs in the default suite; ``make torture`` runs every table with options in turn.
"""

import numpy as np
import pytest
from invariants import check_classifier, check_regressor, check_same_again, fit_quietly, usable

from benchmarks.hard_tables import TABLES, classes, hard_table
from twostagegp import (
    ExactGPRegressor,
    GPNNRegressor,
    TwoStageGPClassifier,
    TwoStageGPRegressor,
)

#: What is tried on the tables in turn.
REGRESSORS = {
    "default": TwoStageGPRegressor(),
    "one kernel": TwoStageGPRegressor(mean="matern32", variance="rbf", ard=False),
    "likelihood": TwoStageGPRegressor(objective="nll"),
    "float32": TwoStageGPRegressor(dtype="float32"),
    "scale": TwoStageGPRegressor(mean="search", calibration="scale", ard=True),
    "uncalibrated": TwoStageGPRegressor(calibration=None, variance_objective="nll"),
    "neighbors": TwoStageGPRegressor("neighbors", mean="matern52", n_neighbors=10),
    "neighbors float32": TwoStageGPRegressor(
        "neighbors", mean=["rbf", "laplacian"], dtype="float32"
    ),
    "neighbors likelihood": TwoStageGPRegressor(
        "neighbors", mean="search", objective="nll", n_neighbors=15
    ),
    "vecchia": TwoStageGPRegressor("vecchia", mean="search", n_neighbors=10),
    "exact gp": ExactGPRegressor("search", kernels=("rbf", "matern12", "rq"), ard=True),
    "exact gp float32": ExactGPRegressor("matern52", dtype="float32"),
    "exact gp loo": ExactGPRegressor("laplacian", objective="loo"),
    "gpnn": GPNNRegressor(),
    "penalties": TwoStageGPRegressor(mean="search", penalty=(1e-5, 1e-2, 1.0)),
}
#: The long ones, on a few tables each.
SLOW_REGRESSORS = {
    "misspecification": TwoStageGPRegressor(mean="search", selection="misspecification"),
    "paper": TwoStageGPRegressor.from_paper(),
    "paper neighbors": TwoStageGPRegressor.from_paper(method="neighbors"),
    "trees": TwoStageGPRegressor("neighbors"),
    "svgp": TwoStageGPRegressor("svgp", mean="search", kernels=("rbf", "matern32")),
}
CLASSIFIERS = {
    "default": (TwoStageGPClassifier(), 2),
    "three classes": (TwoStageGPClassifier(), 3),
    "one stage": (TwoStageGPClassifier(stages=1), 3),
    "neighbors": (TwoStageGPClassifier(method="neighbors", n_neighbors=15), 2),
    "float32": (TwoStageGPClassifier(dtype="float32"), 2),
}
NAMES = list(TABLES)


def fresh(model, seed=0):
    return type(model)(**{**model.get_params(deep=False), "random_state": seed})


def tolerance(model, name):
    """Return the allowed rounding error of an option; see docs/reliability.md."""
    if model.dtype == "float32":
        return 0.05
    return 1e-5 if name.startswith("no noise") else 1e-6


def in_turn(options, tables, times):
    """Return each table with several of the options, each option on as many tables."""
    keys = list(options)
    return [
        (name, keys[(i * times + j) % len(keys)])
        for i, name in enumerate(tables)
        for j in range(times)
    ]


# --- the default suite ---------------------------------------------------------------------------

SHORT = [
    ("rows 3", "default"),
    ("rows 12", "float32"),
    ("columns 60, rows 25", "one kernel"),
    ("units 1e-12 and 1e+12", "neighbors"),
    ("inputs unknown: 1e+30", "exact gp float32"),
    ("near twins at 1e-14 disagree", "exact gp"),
    ("near twins at 1e-09", "vecchia"),
    ("places 3", "gpnn"),
    ("far cluster at 1e+06", "exact gp loo"),
    ("no noise: line", "default"),
    ("no noise: step", "neighbors float32"),
    ("target times 1e-30", "likelihood"),
    ("target of two values", "penalties"),
    ("one outlier of 1e+09", "one kernel"),
    ("all targets but one equal", "uncalibrated"),
]


@pytest.mark.parametrize(("name", "option"), SHORT)
def test_a_fit_holds(name, option):
    model = fresh(REGRESSORS[option])
    check_regressor(model, hard_table(name), tolerance(model, name))


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("near twins at 1e-12", "one stage"),
        ("rare event", "neighbors"),
    ],
)
def test_a_classifier_holds(name, option):
    model, n_classes = CLASSIFIERS[option]
    table = hard_table(name)
    check_classifier(fresh(model), table, classes(table, n_classes)[0])


def test_the_same_seed_gives_the_same_bits():
    check_same_again(lambda: fresh(REGRESSORS["one kernel"]), hard_table("cubed inputs"))


# --- the long form -------------------------------------------------------------------------------


@pytest.mark.torture
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("name", "option"), in_turn(REGRESSORS, NAMES, 2))
def test_every_table_with_options_in_turn(name, option, seed):
    shifted = list(REGRESSORS)[(list(REGRESSORS).index(option) + 7 * seed) % len(REGRESSORS)]
    model = fresh(REGRESSORS[shifted], seed)
    check_regressor(model, hard_table(name, seed), tolerance(model, name))


@pytest.mark.torture
@pytest.mark.parametrize(("name", "option"), in_turn(SLOW_REGRESSORS, NAMES[::3], 1))
def test_long_options_on_some_tables(name, option):
    model = fresh(SLOW_REGRESSORS[option])
    check_regressor(
        model, hard_table(name, 3), 1e-3 if option == "svgp" else tolerance(model, name)
    )


@pytest.mark.torture
@pytest.mark.parametrize(("name", "option"), in_turn(CLASSIFIERS, NAMES, 1))
def test_every_table_as_classes(name, option):
    model, n_classes = CLASSIFIERS[option]
    table = hard_table(name, 4)
    labels, _ = classes(table, n_classes)
    if len(np.unique(labels)) < 2:
        pytest.skip("one class")
    check_classifier(fresh(model), table, labels)


@pytest.mark.torture
@pytest.mark.parametrize(("name", "option"), in_turn(REGRESSORS, NAMES[1::4], 1))
def test_the_same_seed_gives_the_same_bits_with_every_option(name, option):
    check_same_again(lambda: fresh(REGRESSORS[option]), hard_table(name, 5))


@pytest.mark.torture
def test_more_noise_never_narrows_intervals_on_average():
    """Intervals grow on almost all tables with noise of three deviations of the target added."""
    grown = {}
    for name in NAMES[::4]:
        table = hard_table(name, 6)
        if not usable(table) or len(table.y) < 20:
            continue
        noise = 3.0 * np.std(table.y) * np.random.default_rng(0).normal(size=len(table.y))
        widths = []
        for y in (table.y, table.y + noise):
            model = fit_quietly(fresh(REGRESSORS["one kernel"]), table.X, y)
            low, high = model.predict_interval(table.X_new).T
            widths.append(np.median(high - low))
        grown[name] = widths[1] / widths[0]
    assert np.mean(np.log(list(grown.values()))) > 0.0
    assert not [name for name, ratio in grown.items() if ratio < 1.0], grown
