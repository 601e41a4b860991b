r"""How long a fit will take: the evaluations that are expected, times what each costs here.

An exact fit evaluates training objectives on growing numbers of rows (``methods/exact.py``) and
conditions the survivors on all rows. An evaluation on m rows and d columns takes about

.. math::

    t(m, d) = t_0 + \frac{a\, m^3}{\rho\, m / (m + m_0)} + m^2 (b + c\, d) ,

with the rate :math:`\rho` of matrix products, which is measured once per process in a few
milliseconds, and constants measured on one core (``python -m benchmarks.everyday`` compares
forecasts with fits). A forecast is for people: it decides nothing, so that a busy machine does not
change a result.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from twostagegp.engines.choice import exact_seconds
from twostagegp.kernels import make_kernel
from twostagegp.pipeline.mean.refits import depends_on_rows, trains_afresh
from twostagegp.pipeline.settings import MeanSettings, Options, Settings
from twostagegp.runtime.cores import available_cores

__all__ = ["Plan", "foretold_seconds", "matrix_rate", "seconds_of_exact", "seconds_of_neighbors"]

#: Seconds of Python statements per evaluation; rows at which matrices run at half of their rate.
_STATEMENTS, _HALF_RATE_ROWS = 3.5e-4, 60.0
#: Operations per cubed row of an evaluation and of a conditioning with held-out predictions.
_EVALUATION, _CONDITIONING = 1.9, 1.2
#: Seconds per entry of a matrix, and per entry and column, for the rate that is usual on a core.
_ENTRY, _ENTRY_COLUMN, _USUAL_RATE = 2.5e-9, 1.5e-10, 5e10
#: Evaluations of a candidate that starts from its starting values, of the mean and the variance.
_FROM_START, _VARIANCE_FROM_START = 22.0, 15.0
#: Seconds of the calibration: at least, and per row up to so many rows.
_CALIBRATION, _CALIBRATION_ROW, _CALIBRATION_ROWS = 0.1, 2.5e-4, 12_000
#: Neighbour method: seconds for any table, per candidate and column, and per row.
_NEIGHBORS, _NEIGHBORS_COLUMN, _NEIGHBORS_ROW = 6.0, 0.3, 2.5e-4


@dataclass(frozen=True)
class Plan:
    """What a fit is made of: candidates of the mean and of the variance, and the cores."""

    mean_candidates: int = 15
    variance_candidates: int = 10
    cores: int = 1


def foretold_seconds(options: Options, m: int, d: int, device: torch.device) -> float | None:
    """Return the seconds that a fit with these options will take, or None if it has no forecast.

    Forecasts exist for stacks and searches of named kernels on a CPU.
    """
    usual = options.mean in ("stack", "search") if isinstance(options.mean, str) else False
    if not usual or options.training is not None or options.penalty != "auto":
        return None
    if device.type != "cpu" or m < 3 or d == 0:
        return None
    forms = 2 if options.ard == "both" and d > 1 else 1
    objectives = 1 if options.objective == "nll" or options.mean == "search" else 2
    k, v = len(options.kernels), len(options.variance_choices())
    # Only kernels with a lengthscale per column are trained by the likelihood as well.
    several = k * (forms + (objectives - 1) * (options.ard is not False and d > 1))
    plan = Plan(several, v * forms, available_cores())
    if options.method == "exact":
        return seconds_of_exact(m, d, plan, options.settings)
    return seconds_of_neighbors(m, d, plan) if options.method == "neighbors" else None


@cache
def matrix_rate() -> float:
    """Return the operations per second of a matrix product on one core, measured once."""
    A, best = np.random.default_rng(0).normal(size=(256, 256)), np.inf
    for _ in range(5):
        begin = time.perf_counter()
        A @ A
        best = min(best, time.perf_counter() - begin)
    return 2.0 * 256**3 / best


def _seconds_of_one(m: float, d: int, operations: float) -> float:
    """Return the seconds of one evaluation (or conditioning) on m rows and d columns."""
    rate = matrix_rate()
    speed = _USUAL_RATE / rate
    matrices = operations * m**3 / (rate * m / (m + _HALF_RATE_ROWS))
    return speed * _STATEMENTS + matrices + speed * m * m * (_ENTRY + _ENTRY_COLUMN * d)


def _evaluations(
    m: int, d: int, plan: Plan, settings: MeanSettings
) -> Iterator[tuple[float, float]]:
    """Yield (number, rows) of the evaluations of a fit to m rows."""
    k, v = plan.mean_candidates, plan.variance_candidates
    early = k * _FROM_START, v * _VARIANCE_FROM_START
    if m < settings.early_rows:
        yield early[0] + early[1], m
        yield from _refits(m, d, min(k, settings.refit_keep), settings)
        return
    if m <= settings.refit_rows:
        share = settings.early_folds / settings.afresh_folds
        yield sum(early), share * m
        steps = settings.afresh_evaluations
        yield min(k, settings.early_keep) * steps + min(v, settings.variance_keep) * steps, m
        yield from _refits(m, d, min(k, settings.refit_keep), settings)
        return
    rows = settings.first_rows * (1 if m <= settings.full_training_rows else 2)
    yield sum(early), rows
    while (rows := 3 * rows) <= m / 1.8:
        yield 6.0 * (2.0 * k / 3.0 + v / 3.0), rows
    full = 7.0 if m > settings.full_training_rows else float(sum(settings.medium_steps))
    yield full + 3.0, m


def _refits(m: int, d: int, k: int, settings: MeanSettings) -> Iterator[tuple[float, float]]:
    """Yield (number, rows) of the evaluations without each fold, of k candidates."""
    folds, flexible = settings.afresh_folds, make_kernel("rbf", d, ard=True)
    if not depends_on_rows(flexible, m, settings.closed_rows):
        return
    if not trains_afresh(flexible, m, settings.afresh_rows):
        yield 1.2 * k * folds, m * (folds - 1) / folds
    elif m < settings.early_rows:
        yield 0.6 * k * folds * _FROM_START, m * (folds - 1) / folds
    else:
        yield 0.6 * k * _FROM_START, m * settings.early_folds / folds
        yield 0.6 * k * folds * settings.afresh_evaluations, m * (folds - 1) / folds


def seconds_of_exact(m: int, d: int, plan: Plan, settings: Settings) -> float:
    """Return roughly the seconds of an exact fit to m distinct rows on a CPU.

    Examples
    --------
    >>> small, large = (seconds_of_exact(m, 5, Plan(), Settings()) for m in (300, 3000))
    >>> 0.1 < small < large
    True
    """
    mean = settings.mean
    if m > settings.exact.blocked_rows:
        large = exact_seconds(m, torch.device("cpu"), settings.exact)
        return large * _USUAL_RATE / matrix_rate() / plan.cores**0.8
    parts = [(c, r, _EVALUATION) for c, r in _evaluations(m, d, plan, mean)]
    survivors = min(plan.mean_candidates, mean.refit_keep)
    parts.append((4.0 * survivors, min(m, mean.tuning_rows), _CONDITIONING))
    again = 0.6 * mean.afresh_folds + 1 if m <= mean.refit_rows else 2
    parts.append((again * survivors, m, _CONDITIONING))
    seconds = sum(count * _seconds_of_one(rows, d, cost) for count, rows, cost in parts)
    seconds /= min(plan.cores, survivors) ** 0.8
    calibration = _CALIBRATION + _CALIBRATION_ROW * min(m, _CALIBRATION_ROWS)
    return seconds + calibration * _USUAL_RATE / matrix_rate()


def seconds_of_neighbors(n: int, d: int, plan: Plan) -> float:
    """Return roughly the seconds of a fit by nearest neighbours to n rows."""
    work = _NEIGHBORS + _NEIGHBORS_COLUMN * d + _NEIGHBORS_ROW * n
    return work * _USUAL_RATE / matrix_rate() / plan.cores**0.5
