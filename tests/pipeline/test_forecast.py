"""Forecasts of the seconds of a fit."""

import gpytorch
import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression

from twostagegp import TwoStageGPRegressor
from twostagegp.errors import TwoStageGPWarning
from twostagegp.pipeline import forecast as module
from twostagegp.pipeline.forecast import (
    Plan,
    forecast_of_exact,
    forecast_of_neighbors,
    foretell,
)
from twostagegp.pipeline.machine_speed import MachineSpeed, machine_speed
from twostagegp.pipeline.settings import DEFAULTS, QUICK


def _table(n, d=3):
    X = np.random.default_rng(0).normal(size=(n, d))
    return X, np.sin(X[:, 0])


def _exact(m, d=5, plan=None, settings=DEFAULTS):
    return forecast_of_exact(m, d, plan or Plan(), settings).seconds


def _neighbors(n, d=5, plan=None, settings=DEFAULTS):
    return forecast_of_neighbors(n, d, plan or Plan(10), settings).seconds


def test_more_rows_columns_and_candidates_take_longer_and_cores_shorten_it():
    rows = [_exact(m) for m in (30, 200, 1000, 3000, 8000)]
    assert rows == sorted(rows)
    base = _exact(1000)
    assert _exact(1000, 50) > base
    assert _exact(1000, 5, Plan(3, 2)) < base
    assert _exact(1000, 5, Plan(cores=4)) < base
    base = _neighbors(20_000)
    assert base < _neighbors(200_000)
    assert _neighbors(20_000, 20) > base
    assert _neighbors(20_000, 5, Plan(2, 2)) < base
    assert _neighbors(20_000, 5, Plan(10, cores=4)) < base


def test_the_quick_preset_is_forecast_to_be_several_times_as_fast():
    assert _exact(350, 8, Plan(3, 2), QUICK) < 0.4 * _exact(350, 8)
    assert _neighbors(20_000, 8, Plan(2, 2), QUICK) < 0.6 * _neighbors(20_000, 8)


@pytest.mark.parametrize("m", [50, 300, 1000, 5000, 20_000])
def test_parts_add_up_and_work_costs_at_most_its_part(m):
    forecasts = [f(m, 5, Plan(), DEFAULTS) for f in (forecast_of_exact, forecast_of_neighbors)]
    for forecast, kinds in zip(forecasts, ("evaluation ridge", "batch ranking"), strict=True):
        assert list(forecast.parts) == ["mean", "variance", "calibration"]
        assert forecast.seconds == pytest.approx(sum(forecast.parts.values()))
        for kind in kinds.split():
            assert 0.0 < forecast.cost(kind, min(m, 300)) < forecast.parts["mean"]
        assert forecast.cost("unknown", 300) == 0.0


def test_the_speed_of_this_machine_is_measured_once():
    speed = machine_speed()
    assert 0.01 < speed.statements < 100.0
    assert 0.01 < speed.arithmetic < 100.0
    assert machine_speed() is speed


def test_a_machine_of_half_the_speed_is_forecast_to_take_twice_as_long(monkeypatch):
    found = []
    for slowness in (1.0, 2.0):
        monkeypatch.setattr(module, "machine_speed", lambda s=slowness: MachineSpeed(s, s))
        found.append([f(m) for m in (50, 1000, 8000) for f in (_exact, _neighbors)])
    assert found[1] == pytest.approx([2.0 * seconds for seconds in found[0]])


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


def test_kernels_of_ones_own_have_no_forecast():
    X, y = _table(40)
    model = TwoStageGPRegressor(
        random_state=0, kernels=("rbf", gpytorch.kernels.PolynomialKernel(2))
    )
    assert model.fit(X, y).fit_report_.foretold_seconds is None


def test_a_constant_target_has_no_forecast():
    X, _ = _table(40)
    with pytest.warns(TwoStageGPWarning, match="constant"):
        model = TwoStageGPRegressor(random_state=0).fit(X, np.ones(40))
    assert model.fit_report_.foretold_seconds is None


def test_a_gpu_has_no_forecast():
    assert foretell(_Options(TwoStageGPRegressor()), 100, 2, torch.device("cuda")) is None


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
