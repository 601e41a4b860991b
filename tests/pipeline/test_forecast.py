"""Forecasts of the seconds of a fit."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression

from twostagegp import TwoStageGPRegressor
from twostagegp.pipeline import forecast
from twostagegp.pipeline.forecast import Plan, matrix_rate, seconds_of_exact, seconds_of_neighbors
from twostagegp.pipeline.settings import DEFAULTS, QUICK


def _table(n, d=3):
    X = np.random.default_rng(0).normal(size=(n, d))
    return X, np.sin(X[:, 0])


def test_more_rows_columns_and_candidates_take_longer_and_cores_shorten_it():
    rows = [seconds_of_exact(m, 5, Plan(), DEFAULTS) for m in (30, 200, 1000, 3000, 8000)]
    assert rows == sorted(rows)
    base = seconds_of_exact(1000, 5, Plan(), DEFAULTS)
    assert seconds_of_exact(1000, 50, Plan(), DEFAULTS) > base
    assert seconds_of_exact(1000, 5, Plan(3, 2), DEFAULTS) < base
    assert seconds_of_exact(1000, 5, Plan(cores=4), DEFAULTS) < base
    assert seconds_of_neighbors(20_000, 5, Plan()) < seconds_of_neighbors(200_000, 5, Plan())


def test_the_quick_preset_is_forecast_to_be_several_times_as_fast():
    assert seconds_of_exact(350, 8, Plan(3, 2), QUICK) < 0.4 * seconds_of_exact(
        350, 8, Plan(), DEFAULTS
    )


def test_the_rate_of_this_machine_is_measured_once():
    assert 1e8 < matrix_rate() < 1e13
    assert matrix_rate() == matrix_rate()


def test_the_report_says_what_was_foretold():
    X, y = _table(60)
    report = TwoStageGPRegressor(random_state=0, kernels=("rbf",)).fit(X, y).fit_report_
    assert 0.0 < report.foretold_seconds < 60.0
    assert f"({report.foretold_seconds:.1f} foretold)" in str(report)


@pytest.mark.parametrize("options", [{"mean": LinearRegression()}, {"penalty": 0.1, "mean": "rbf"}])
def test_other_means_have_no_forecast(options):
    X, y = _table(40)
    report = TwoStageGPRegressor(random_state=0, kernels=("rbf",), **options).fit(X, y).fit_report_
    assert report.foretold_seconds is None
    assert "foretold" not in str(report)


def test_a_gpu_has_no_forecast():
    assert forecast.foretold_seconds.__doc__
    options = TwoStageGPRegressor()
    assert forecast.foretold_seconds(_Options(options), 100, 2, torch.device("cuda")) is None


class _Options:
    """The options of a default fit, as far as a forecast reads them."""

    def __init__(self, model):
        self.mean, self.training, self.penalty = model.mean, model.training, model.penalty


def test_quick_is_a_preset_whose_parameters_can_be_replaced():
    model = TwoStageGPRegressor.quick(random_state=0, kernels=("rbf",))
    assert model.kernels == ("rbf",)
    assert model.settings is QUICK
    X, y = _table(200)
    model.fit(X, y)
    assert {row["kernel"] for row in model.search_.rows} == {
        "rbf/loo", "rbf-ard/loo", "rbf-ard/nll", "matern52-shaped/heldout", "matern52-ard/heldout",
    }  # fmt: skip
    assert np.sqrt(np.mean((model.predict(X) - y) ** 2)) < 0.05
