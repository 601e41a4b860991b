"""Every score of a fitted regressor on test rows, as one flat record.

The scores use the model's own intervals, quantiles and distribution function, not a Gaussian with
its mean and standard deviation, so that a model whose distribution is not Gaussian is judged by its
own. Only the NLPD is that of the Gaussian with the model's mean and standard deviation, so that
narrow spikes of a density gain nothing; ``nlpd_own`` is that of the model's density.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from measurements.timing import Timed
from twostagegp import metrics

__all__ = ["fit_facts", "interval_score", "predictive_scores", "quantile_scores"]

Array = NDArray[np.float64]

LEVELS = (0.50, 0.80, 0.95, 0.99)
#: The same and 90 %, for scores of models of every kind.
COVERED = (0.50, 0.80, 0.90, 0.95, 0.99)
#: Levels whose pinball losses make up CRPS.
FINE = (np.arange(999) + 0.5) / 999.0


def predictive_scores(model: Any, X: Array, y: Array, y_train: Array) -> dict[str, float]:
    """Return scores on the test rows; ``nlpd_standardized`` is for a target of unit training sd."""
    with Timed() as took:
        mean, std = model.predict(X, return_std=True)
    nlpd = metrics.nlpd(y, mean, std)
    ends = [0.5 + side * level / 2.0 for level in LEVELS for side in (-1.0, 1.0)]
    quantiles = model.predict_quantiles(X, ends)
    intervals = {level: quantiles[:, 2 * j : 2 * j + 2] for j, level in enumerate(LEVELS)}
    return {
        "rmse": metrics.rmse(y, mean),
        "nlpd_standardized": nlpd - math.log(float(np.std(y_train))),
        "nlpd": nlpd,
        "nlpd_own": -float(np.mean(model.predict_logpdf(X, y))),
        **{
            f"coverage_{100 * level:.0f}": metrics.coverage(y, interval=interval)
            for level, interval in intervals.items()
        },
        "interval_width_95": metrics.interval_width(y, interval=intervals[0.95]),
        "qice": metrics.qice(pit=model.predict_pit(X, y)),
        "qice_floor": metrics.qice_floor(len(y)),
        "crps": metrics.crps_from_quantiles(y, model.predict_quantiles(X, FINE), FINE),
        "hc_rmse": metrics.hc_rmse(y, mean, std),
        "lc_rmse": metrics.lc_rmse(y, mean, std),
        "predict_seconds": took.wall,
    }


def quantile_scores(
    y: Array, mean: Array, quantiles: Callable[[Array], Array], scale: float
) -> dict[str, float]:
    """Return scores that every model has that predicts a mean and quantiles, in units of ``scale``.

    RMSE; CRPS from 999 quantiles; coverage of five central intervals; interval score and mean width
    of that at 95 %.
    """
    levels = np.concatenate([[0.5 - level / 2.0, 0.5 + level / 2.0] for level in COVERED])
    ends = quantiles(levels)
    intervals = {level: ends[:, 2 * j : 2 * j + 2] for j, level in enumerate(COVERED)}
    return {
        "rmse": metrics.rmse(y, mean) / scale,
        "crps": metrics.crps_from_quantiles(y, quantiles(FINE), FINE) / scale,
        **{
            f"coverage_{100 * level:.0f}": metrics.coverage(y, interval=interval)
            for level, interval in intervals.items()
        },
        "interval_score_95": interval_score(y, intervals[0.95], 0.95) / scale,
        "interval_width_95": metrics.interval_width(y, interval=intervals[0.95]) / scale,
    }


def interval_score(y: Array, interval: Array, level: float) -> float:
    r"""Return the mean interval score, a proper score of a central interval.

    .. math:: \frac{1}{n} \sum_i \Bigl( u_i - l_i + \frac{2}{\alpha} (l_i - y_i)_+
              + \frac{2}{\alpha} (y_i - u_i)_+ \Bigr), \qquad \alpha = 1 - \text{level}

    It is 4 / α times the mean pinball loss of both ends.

    Examples
    --------
    >>> round(interval_score(np.array([0.5, 1.2]), np.array([[0.0, 1.0], [0.0, 1.0]]), 0.9), 9)
    3.0
    """
    tail = (1.0 - level) / 2.0
    return 2.0 / tail * metrics.pinball(y, interval, [tail, 1.0 - tail])


def fit_facts(model: Any) -> dict[str, Any]:
    """Return what the fit chose and what it cost, from the model's own report."""
    report = model.fit_report_
    calibration = getattr(model, "calibration_", None)
    factor = None if calibration is None or calibration.kind == "none" else calibration.factor
    return {
        "mean": report.mean,
        "variance": report.variance,
        "calibration_factor": factor,
        "evaluations": report.evaluations,
        "full_evaluations": report.full_evaluations,
        "full_factorisations": report.full_factorizations,
    }
