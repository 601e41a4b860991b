"""The remaining time of a fit, in the log of ``verbose=1``."""

import logging
import re

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from twostagegp import TwoStageGPRegressor
from twostagegp.pipeline.settings import SampleSettings, Settings
from twostagegp.runtime.progress import watch
from twostagegp.training.rounds import Schedule

#: A line of the log ends with it.
LEFT = re.compile(r"; (about \d+ (s|min)|less than 1 s) left$")
SMALL = Schedule(warm_rows=60, first=80, second=100, unseen=50)


def _table(n, targets=1):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    Y = np.sin(X[:, :1] + np.arange(targets)) + 0.1 * rng.normal(size=(n, targets))
    return X, Y[:, 0] if targets == 1 else Y


def _lines(captured):
    return [line for line in captured.err.splitlines() if re.match(r"\d\d:\d\d:\d\d ", line)]


class Shares(logging.Handler):
    """Reads the share that is done whenever a line is logged."""

    def __init__(self, progress):
        super().__init__()
        self.progress, self.seen = progress, []

    def emit(self, record):
        if self.progress.share is not None:
            self.seen.append(self.progress.share)


@pytest.fixture
def shares():
    """Fit a model and return the shares of its progress."""
    log = logging.getLogger("twostagegp")
    level = log.level

    def fit(model, X, y):
        with watch() as progress:
            handler = Shares(progress)
            log.addHandler(handler)
            log.setLevel(logging.INFO)
            try:
                model.fit(X, y)
            finally:
                log.removeHandler(handler)
                log.setLevel(level)
        return [*handler.seen, progress.share]

    return fit


def test_every_line_of_the_log_ends_with_the_remaining_time(capsys):
    X, y = _table(160)
    TwoStageGPRegressor(kernels=("rbf", "matern32"), random_state=0, verbose=1).fit(X, y)
    lines = _lines(capsys.readouterr())
    assert any("step 2 of 2" in line for line in lines)
    assert all(LEFT.search(line) for line in lines), lines


def test_nothing_is_printed_without_verbose(capfd):
    X, y = _table(60)
    TwoStageGPRegressor(kernels=("rbf",), random_state=0).fit(X, y)
    assert capfd.readouterr() == ("", "")


def test_a_fit_without_a_forecast_says_nothing_about_time(capsys):
    X, y = _table(50)
    options = {"kernels": ("rbf",), "calibration": "scale", "random_state": 0, "verbose": 1}
    TwoStageGPRegressor(mean=LinearRegression(), **options).fit(X, y)
    inner = TwoStageGPRegressor(kernels=("rbf",), calibration="scale", random_state=0)
    TwoStageGPRegressor(mean=inner, **options).fit(X, y)
    lines = _lines(capsys.readouterr())
    assert sum("step 1 of 1" in line for line in lines) > 2
    assert not any("left" in line for line in lines)


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize(
    ("options", "n"),
    [({}, 80), ({}, 180), ({}, 700), ({"method": "neighbors"}, 300)],
    ids=["80", "180", "700", "neighbors"],
)
def test_share_of_a_fit_grows_to_one(shares, options, n, n_jobs):
    settings = Settings(sample=SampleSettings(rows=150, schedule=SMALL))
    kernels = ("rbf", "matern32")
    model = TwoStageGPRegressor(
        kernels=kernels, random_state=0, n_jobs=n_jobs, settings=settings, **options
    )
    found = shares(model, *_table(n))
    assert found == sorted(found)
    assert found[0] == 0.0
    assert found[-1] == 1.0
    # Work inside the parts is counted, not only their ends.
    assert len(set(found)) >= 6


def test_each_of_two_targets_is_half_of_the_fit(shares):
    model = TwoStageGPRegressor(kernels=("rbf",), random_state=0, calibration="scale")
    found = shares(model, *_table(60, targets=2))
    assert found == sorted(found)
    assert 0.5 in found
    assert found[-1] == 1.0
    one, other = model.fit_report_
    assert one.foretold_seconds == other.foretold_seconds > 0.0


def test_watching_changes_no_prediction(shares):
    X, y = _table(100)
    model = TwoStageGPRegressor(kernels=("rbf",), random_state=0)
    alone = model.fit(X, y).predict(X)
    shares(model, X, y)
    assert (model.predict(X) == alone).all()
