r"""The whole fit of one target, on standardised numbers: mean, variance, calibration.

Each part is trained on the errors of the part before it on held-out rows:

    rows -> candidates -> stack -> held-out residuals -> variance -> held-out z -> calibration

The exact method and those for large tables differ in the engine, the rows that are held out and how
candidates are trained. A :class:`~twostagegp.pipeline.methods.protocol.Method`, which each part is
given, makes these choices. Units, several targets and the scikit-learn interface are handled by the
estimators, not here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from twostagegp.data.scaling import Prepared
from twostagegp.pipeline.calibration.fit import Calibration, calibrate
from twostagegp.pipeline.calibration.value_weights import bounds_alone
from twostagegp.pipeline.mean.build import fit_mean
from twostagegp.pipeline.mean.models import ConstantMean
from twostagegp.pipeline.mean.stacked import StackedMean
from twostagegp.pipeline.methods.exact import ExactMethod
from twostagegp.pipeline.methods.protocol import Method
from twostagegp.pipeline.methods.sampled import SAMPLED, SampledMethod
from twostagegp.pipeline.model import TwoStageFit
from twostagegp.pipeline.outside.law import Outside
from twostagegp.pipeline.outside.learn import learn_outside
from twostagegp.pipeline.settings import Options
from twostagegp.pipeline.variance import ConstantVariance, fit_variance
from twostagegp.runtime.progress import end_part

__all__ = ["METHODS", "fit_two_stage"]

#: Values of ``method`` besides "auto".
METHODS = ("exact", *SAMPLED)

_LOG = logging.getLogger("twostagegp")


def fit_two_stage(data: Prepared, options: Options, seed: int) -> TwoStageFit:
    """Fit the three parts to one standardised target."""
    m, d = len(data.rows), data.rows.X.shape[1]
    if m < 3 or d == 0 or data.constant_target:
        return _constant_parts(data, options)
    clock = _Clock()
    make = ExactMethod if options.method == "exact" else SampledMethod
    method: Method = make(data, options, seed)
    _LOG.info("mean: %d rows, %d distinct, %d columns", data.n_rows, m, d)
    with clock("mean"):
        mean = fit_mean(data, method, options, seed)
        residuals = mean.heldout_residuals
        if options.residuals == "insample":
            residuals = _insample_residuals(data, method, mean)
    _LOG.info("mean is %s; now the variance", mean.label)
    with clock("variance"):
        variance = fit_variance(data, method, mean, residuals, options)
    _LOG.info("variance is %s; now the calibration", variance.label)
    with clock("calibration"):
        calibration = calibrate(data, method.held, mean, variance, options, seed)
        outside = None
        if calibration.local is not None:
            outside = _outside(data, method, mean, residuals, options, seed)
    return TwoStageFit(
        mean,
        variance,
        calibration,
        clock.seconds,
        method.n_refits,
        options.noise_floor,
        method.conditionings,
        outside=outside,
    )


def _outside(
    data: Prepared,
    method: Method,
    mean: StackedMean,
    residuals: NDArray[np.float64],
    options: Options,
    seed: int,
) -> Outside | None:
    """Return what is added to the predictions of the three parts outside the data."""
    weight = method.held.merged.weight
    inside = float(weight @ residuals**2 / weight.sum())
    return learn_outside(data.rows, mean, inside, seed, options.settings.outside)


def _insample_residuals(data: Prepared, method: Method, mean: StackedMean) -> NDArray[np.float64]:
    """Return the paper's residuals, of the final mean on its own training rows, shape (n,)."""
    merged, rows = method.held.merged, method.held.rows(data.rows)
    fitted = mean.predict(rows.X).double().cpu().numpy()
    return np.asarray(merged.y - fitted[merged.inverse])


def _constant_parts(data: Prepared, options: Options) -> TwoStageFit:
    """Fit a constant and one variance.

    This is for tables with too few distinct rows, no column in use or a constant target.
    """
    model = ConstantMean(data.merged)
    residuals = model.heldout_residuals
    weight = data.merged.weight
    noise = max(float(weight @ residuals**2 / weight.sum()), options.noise_floor)
    variance = ConstantVariance(noise, len(data.rows))
    note = "too few distinct rows, no column in use or a constant target"
    values = bounds_alone(*options.bounds)
    z = residuals / np.sqrt(noise)
    calibration = Calibration("none", 1.0, z, weight, note=note, values=values)
    mean = StackedMean([model], np.ones(1), residuals)
    return TwoStageFit(mean, variance, calibration, {}, 0, options.noise_floor)


class _Clock:
    """Measures the seconds of each part, and tells the progress that it has ended."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[part] = time.perf_counter() - begin
        end_part(part)
