"""Constructor parameters: each has a constraint, and a wrong value is named with the choices."""

import inspect
import math
import re

import gpytorch.kernels as gk
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression
from sklearn.naive_bayes import GaussianNB

from twostagegp import (
    CVPlusRegressor,
    ExactGPRegressor,
    GPNNRegressor,
    Training,
    TwoStageGPClassifier,
    TwoStageGPRegressor,
)
from twostagegp.errors import InputError
from twostagegp.estimators.validation import check_parameters
from twostagegp.kernels import KERNELS

ESTIMATORS = (
    TwoStageGPRegressor,
    ExactGPRegressor,
    GPNNRegressor,
    TwoStageGPClassifier,
    CVPlusRegressor,
)
SHARED = {
    "noise_floor": [0.0, -1.0, 1.0, np.nan, "small", True],
    "device": ["tpu", 7.5, None],
    "dtype": ["float16", np.float64],
    "training": ["adam", {"steps": 3}, 5],
    "n_jobs": ["two", 0, 1.5],
    "random_state": ["seed", 1.5],
    "verbose": ["loud", None],
    "missing": ["drop", None],
}
KERNEL_LISTS = [(), "rbf", None, ("rbf", "cubic"), (3,)]
SETTINGS = {"settings": [{}, "fast"]}
COUNTS = [0, -1, 2.5, 50.0, True, None, "many", np.array([5])]
WRONG = {
    TwoStageGPRegressor: {
        **SHARED,
        **SETTINGS,
        "method": ["magic", None],
        "kernels": KERNEL_LISTS,
        "ard": ["yes", None, 2],
        "mean": ["magic", None, 3, [], ["rbf", "magic"], RandomForestRegressor],
        "penalty": ["large", -1.0, 0.0, (), (1.0, -1.0), np.inf, None, [[1.0]]],
        "variance": ["magic", None, "constant", []],
        "variance_objective": ["magic", "loo"],
        "objective": ["magic", "heldout", None],
        "selection": ["magic", "loo", None, ("heldout",), ("heldout", "magic")],
        "residuals": ["magic", None],
        "calibration": ["magic", False],
        "calibrate_by": [1.5, True, ["kind"]],
        "reweight_values": ["yes", None, 1.5],
        "bounds": [0.0, (0,), (1, 0), (1, 1), (None, "high"), (math.nan, 1), (True, None)],
        "n_neighbors": COUNTS,
    },
    ExactGPRegressor: {
        **SHARED,
        **SETTINGS,
        "kernel": ["magic", None, 3, ["rbf"]],
        "kernels": KERNEL_LISTS,
        "ard": ["both", None],
        "objective": ["magic", "heldout"],
        "selection": ["loo", None],
    },
    GPNNRegressor: {
        **SHARED,
        "kernel": ["magic", None, 3, ["rbf"], gk.RBFKernel],
        "n_neighbors": COUNTS,
        "ard": ["both", None, 1],
        "objective": ["magic", None],
        "n_blocks": [0, 1.5, None],
        "block_rows": [2, 300.0, None],
        "preprocess": ["magic", None],
        "calibration": ["yes", True, "local"],
        "n_calibration": [1, None, 10.5],
    },
    TwoStageGPClassifier: {
        **SHARED,
        **SETTINGS,
        "stages": [3, "two", None],
        "alpha_eps": [-0.5, "big", np.inf],
        "latent_scale": [0.0, np.nan],
        "n_samples": [0, None],
        "smoothing": [1.5, 1.0, -0.1],
        "method": ["magic", "svgp"],
        "kernels": KERNEL_LISTS,
        "ard": ["maybe"],
        "mean": ["rbff", [], ["stack", "rbf"], GaussianNB],
        "variance": [GaussianNB(), []],
        "residuals": ["none"],
        "n_neighbors": COUNTS,
    },
    CVPlusRegressor: {
        "estimator": [3, LinearRegression],
        "n_folds": [1, 0, -3, 2.5, "many", True, None],
        "random_state": ["seed"],
    },
}


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_parameter_has_a_constraint_that_its_default_satisfies(estimator):
    # The private name is scikit-learn's: its tools read the constraints there.
    assert set(estimator._parameter_constraints) == set(inspect.signature(estimator).parameters)
    check_parameters(estimator())
    assert set(WRONG[estimator]) == set(inspect.signature(estimator).parameters)


@pytest.mark.parametrize(
    "model",
    [
        TwoStageGPRegressor.from_paper(),
        TwoStageGPRegressor.from_paper(method="neighbors"),
        *(ExactGPRegressor.from_paper(table=table) for table in (1, 3, 5)),
        GPNNRegressor.from_paper(),
        TwoStageGPClassifier.from_paper(),
        TwoStageGPClassifier.from_paper(stages=1),
        TwoStageGPRegressor(
            ard=np.bool_(True), mean=["rbf", LinearRegression(), gk.RBFKernel()], penalty=[1, 2.0],
            variance=["rbf"], n_neighbors=np.int32(9), noise_floor=np.float32(0.1), n_jobs=-1,
            random_state=np.random.RandomState(0), training=Training(),
        ),
    ],
    ids=lambda model: type(model).__name__,
)  # fmt: skip
def test_settings_of_the_paper_and_numbers_of_numpy_are_accepted(model):
    check_parameters(model)


@pytest.mark.parametrize(
    ("estimator", "name", "value"),
    [
        pytest.param(estimator, name, value, id=f"{estimator.__name__}-{name}-{value!r}"[:60])
        for estimator, wrong in WRONG.items()
        for name, values in wrong.items()
        for value in values
    ],
)
def test_a_wrong_parameter_is_named_with_its_value(estimator, name, value):
    model = clone(estimator()).set_params(**{name: value})
    X, y = np.arange(20.0).reshape(10, 2), np.arange(10) % 2
    with pytest.raises(InputError) as caught:
        model.fit(X, y)
    assert str(caught.value).startswith(f"{name}={value!r}")
    assert not hasattr(model, "fitted_")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "magic"}, "use 'auto', 'exact', 'neighbors', 'svgp' or 'vecchia'."),
        ({"ard": 2}, "use True, False or 'both'."),
        ({"calibration": False}, "use 'local', 'scale' or None."),
        ({"n_neighbors": 0}, "use a whole number of at least 1."),
        ({"noise_floor": 2}, "use a number in the interval (0, 1)."),
        ({"n_jobs": 0}, "use a number of threads, -1 for all or None."),
        ({"random_state": 1.5}, "use an integer, a numpy RandomState or None."),
        ({"verbose": "loud"}, "use 0 (silent) or 1 (progress and the report)."),
        ({"training": 3}, "use an object of the class Training or None."),
        ({"penalty": 0}, "use '0.01n', 'auto', a positive number or a list of positive numbers."),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_the_message_says_what_to_use(options, message):
    with pytest.raises(InputError) as caught:
        check_parameters(TwoStageGPRegressor(**options))
    assert str(caught.value).endswith(message)


def test_kernels_and_means_are_listed():
    names = re.escape(f"kernel names ({', '.join(map(repr, KERNELS))})")
    with pytest.raises(InputError, match=names):
        check_parameters(TwoStageGPRegressor(kernels=("rbff",)))
    with pytest.raises(InputError, match="a scikit-learn regressor object or a non-empty list"):
        check_parameters(TwoStageGPRegressor(mean=3))
