r"""How long a fit will take: the work that is expected, times what it costs here.

The work of a fit is a list of items (:class:`Work`). An exact fit evaluates training objectives on
growing numbers of rows (``methods/exact.py``) and makes ridges of the survivors. An evaluation on m
rows and d columns takes about

.. math::

    t(m, d) = t_0 + \frac{a\, m^3}{\rho\, m / (m + m_0)} + m^2 (b + c\, d) ,

with constants measured on one core of one machine (``python -m benchmarks.everyday`` compares
forecasts with fits). How fast the machine at hand is, is measured once per process
(``machine_speed.py``). Several cores share the part of the work that can be shared. The neighbour
method (``methods/sampled.py``) evaluates objectives on batches of rows, at a cost per row, and fits
boosted trees.

A forecast is for people: the report and the remaining time of a fit that runs
(``runtime/progress.py``). It decides nothing, so that a busy machine does not change a result:
``method="auto"`` uses ``engines/choice.py``, which assumes a rate instead of measuring it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from twostagegp.engines.choice import exact_seconds
from twostagegp.kernels import make_kernel
from twostagegp.pipeline.machine_speed import machine_speed
from twostagegp.pipeline.mean.refits import depends_on_rows, trains_afresh
from twostagegp.pipeline.settings import MeanSettings, Options, Settings
from twostagegp.runtime.cores import available_cores
from twostagegp.training.ladder import rung_sizes

__all__ = [
    "Forecast",
    "Plan",
    "Work",
    "forecast_of_exact",
    "forecast_of_neighbors",
    "foretell",
]

#: Seconds of Python statements per evaluation; operations per second of large matrices, and rows at
#: which they run at half of this rate.
_STATEMENTS, _RATE, _HALF_RATE_ROWS = 4e-4, 6e10, 60.0
#: Operations per cubed row of an evaluation and of a conditioning with held-out predictions, and
#: the share of the former above the rows up to which all matrices are held in memory.
_EVALUATION, _CONDITIONING, _BLOCKED = 1.9, 1.2, 0.3
#: Seconds per entry of a matrix, and per entry and column.
_ENTRY, _ENTRY_COLUMN = 2.1e-9, 1.25e-10
#: Shares of an exact fit, of one whose matrices are worked on in blocks, and of a fit by neighbours
#: that run on all cores.
_SHARED, _SHARED_BLOCKED, _SHARED_NEIGHBORS = 0.5, 0.7, 0.6
#: Evaluations of a candidate that starts from its starting values, of the mean and the variance.
_FROM_START, _VARIANCE_FROM_START = 22.0, 15.0
#: Probability that a table has little noise (``MeanSettings.little_noise``), which is not known
#: before a fit, and the share of the evaluations after the first training that it then uses.
_LITTLE_NOISE, _USED = 0.5, 0.4
#: Penalties of a survivor that are usually tried: the trained one and its neighbours.
_PENALTIES = 3
#: Seconds of the calibration: at least, and per row up to so many rows.
_CALIBRATION, _CALIBRATION_ROW, _CALIBRATION_ROWS = 0.042, 2.5e-4, 2500
#: Neighbour method, seconds: per row of an evaluation on a batch, also per column; per held-out row
#: of a ridge, also per column.
_BATCH, _BATCH_COLUMN, _RIDGE, _RIDGE_COLUMN = 8.4e-6, 2.1e-7, 8.4e-6, 8.4e-7
#: Evaluations per candidate on the first and on the second batch: at least, and per column.
_FIRST_BATCH, _SECOND_BATCH = (4.0, 0.5), (1.0, 0.8)
#: Evaluations on as many rows that take as long as the ranking of one candidate.
_RANKING = 2.0
#: Seconds of a fit of boosted trees: at least, and per row and column.
_TREES, _TREES_ENTRY = 0.21, 1.25e-6
#: Seconds of a fit that works in blocks, relative to the estimate of ``engines/choice.py``.
_BLOCKED_FIT = 0.84


@dataclass(frozen=True)
class Plan:
    """What a fit is made of: candidates of the mean and of the variance, and the cores."""

    mean_candidates: int = 15
    variance_candidates: int = 10
    cores: int = 1


class Work(NamedTuple):
    """An item of the work of a fit: so many units of a kind, on so many rows each.

    ``part`` is ``"mean"``, ``"variance"`` or ``"calibration"``. ``kind`` is ``"evaluation"`` (of a
    training objective on all pairs of the rows), ``"batch"`` (of one on the rows' neighbours),
    ``"ranking"`` (of a candidate by its errors on rows outside the batch), ``"ridge"`` (penalty,
    conditioning and held-out residuals of a survivor), ``"regressor"`` (boosted trees with their
    held-out predictions) or ``"calibration"``.
    """

    part: str
    kind: str
    units: float
    rows: float


@dataclass(frozen=True)
class Forecast:
    """The seconds that a fit is expected to take.

    Attributes
    ----------
    parts : mapping
        Seconds of mean, variance and calibration, in this order.
    cost : callable
        Takes a kind of :class:`Work` and a number of rows; returns the seconds of one unit.
    """

    parts: Mapping[str, float]
    cost: Callable[[str, float], float]

    @property
    def seconds(self) -> float:
        """The seconds of the whole fit."""
        return sum(self.parts.values())

    @classmethod
    def of(cls, work: Iterable[Work], cost: Callable[[str, float], float]) -> Forecast:
        """Return the forecast of a list of work.

        Examples
        --------
        >>> work = [Work("mean", "evaluation", 10, 100), Work("variance", "evaluation", 5, 100)]
        >>> Forecast.of(work, lambda kind, rows: 0.01 * rows).parts
        {'mean': 10.0, 'variance': 5.0, 'calibration': 0.0}
        """
        parts = dict.fromkeys(("mean", "variance", "calibration"), 0.0)
        for item in work:
            parts[item.part] += item.units * cost(item.kind, item.rows)
        return cls(parts, cost)

    def scaled_to(self, seconds: float) -> Forecast:
        """Return the same parts and costs, multiplied so that the whole takes these seconds."""
        factor, cost = seconds / self.seconds, self.cost
        parts = {part: factor * value for part, value in self.parts.items()}
        return Forecast(parts, lambda kind, rows: factor * cost(kind, rows))


def foretell(options: Options, m: int, d: int, device: torch.device) -> Forecast | None:
    """Return the forecast of a fit with these options, or None if there is none.

    Forecasts exist for stacks and searches of named kernels on a CPU.
    """
    usual = options.mean in ("stack", "search") if isinstance(options.mean, str) else False
    if not usual or options.training is not None or options.penalty != "auto":
        return None
    if device.type != "cpu" or m < 3 or d == 0:
        return None
    if not all(isinstance(name, str) for name in [*options.kernels, *options.variance_choices()]):
        return None
    settings, exact = options.settings, options.method == "exact"
    forms = 2 if options.ard == "both" and d > 1 else 1
    few = m < settings.mean.small_rows
    one = few or options.objective == "nll" or options.mean == "search"
    # Only kernels with a lengthscale per column are trained by the likelihood as well, and only by
    # the exact method.
    again = exact and not one and options.ard is not False and d > 1
    k, v = len(options.kernels), len(options.variance_choices())
    plan = Plan(k * (forms + again), v if few else v * forms, available_cores())
    if exact:
        return forecast_of_exact(m, d, plan, settings)
    return forecast_of_neighbors(m, d, plan, settings) if options.method == "neighbors" else None


def _share_of_time(cores: int, shared: float) -> float:
    """Return the time on several cores, divided by that on one, if a share of it runs on all.

    Examples
    --------
    >>> _share_of_time(1, 0.5), _share_of_time(4, 0.5)
    (1.0, 0.625)
    """
    return 1.0 - shared + shared / cores


def _seconds_of_one(m: float, d: int, operations: float) -> float:
    """Return the seconds of one evaluation (or conditioning) on m rows and d columns."""
    matrices = operations * m**3 / (_RATE * m / (m + _HALF_RATE_ROWS))
    entries = m * m * (_ENTRY + _ENTRY_COLUMN * d)
    speed = machine_speed()
    return speed.statements * _STATEMENTS + speed.arithmetic * (matrices + entries)


def _seconds_of_calibration(rows: float) -> float:
    """Return the seconds of the calibration, of which little runs on several cores."""
    seconds = _CALIBRATION + _CALIBRATION_ROW * min(rows, _CALIBRATION_ROWS)
    return seconds * machine_speed().statements


# --- exact ---------------------------------------------------------------------------------------


def _work_of_exact(m: int, d: int, plan: Plan, settings: MeanSettings) -> Iterator[Work]:
    """Yield the work of an exact fit to m rows."""
    k, v = plan.mean_candidates, plan.variance_candidates
    first: float = m
    if m > settings.refit_rows:
        first = settings.first_training(m, d)
    elif m >= settings.early_rows:
        first = m * settings.early_folds / settings.afresh_folds
    yield Work("mean", "evaluation", k * _FROM_START, first)
    medium = settings.refit_rows < m <= settings.full_training_rows
    first_of_variance = settings.first_rows if medium else first
    yield Work("variance", "evaluation", v * _VARIANCE_FROM_START, first_of_variance)
    if settings.early_rows <= m <= settings.refit_rows:
        few, many = (settings.evaluations_after_the_first(little) for little in (False, True))
        noisy = (1.0 - _LITTLE_NOISE) * min(k, settings.early_keep) * few
        yield Work("mean", "evaluation", noisy + _LITTLE_NOISE * k * _USED * many, m)
        yield Work("variance", "evaluation", min(v, settings.variance_keep) * few, m)
    if m <= settings.refit_rows:
        yield from _refits(m, d, _survivors(m, d, k, settings), settings)
    else:
        kept = settings.medium_kept[1] if medium else 2.0 / 3.0
        for rows in rung_sizes(m, int(first), settings.growth_to(m))[1:]:
            yield Work("mean", "evaluation", 6.0 * kept * k, rows)
        for rows in rung_sizes(m, int(first_of_variance), settings.growth_to(m))[1:]:
            yield Work("variance", "evaluation", 6.0 * v / 3.0, rows)
        yield Work("mean", "evaluation", sum(settings.steps_on_all_rows(m, d)[:k]), m)
        yield Work("variance", "evaluation", 2.0 if medium else 3.0, m)
    yield Work("mean", "ridge", _survivors(m, d, k, settings), m)
    yield Work("calibration", "calibration", 1.0, m)


def _survivors(m: int, d: int, k: int, settings: MeanSettings) -> int:
    """Return how many of k candidates become ridges."""
    if m <= settings.refit_rows:
        return min(k, settings.refit_keep // (1 if m >= settings.small_rows else 2))
    return min(k, max(3, len(settings.steps_on_all_rows(m, d))))


def _refits(m: int, d: int, k: int, settings: MeanSettings) -> Iterator[Work]:
    """Yield the evaluations without each fold, of k candidates."""
    folds, flexible = settings.afresh_folds, make_kernel("rbf", d, ard=True)
    if not depends_on_rows(flexible, m, settings.closed_rows):
        return
    most = m * (folds - 1) / folds
    if not trains_afresh(flexible, m, settings.afresh_rows):
        yield Work("mean", "evaluation", 1.2 * k * folds, most)
        return
    if m < settings.early_rows:
        yield Work("mean", "evaluation", 0.6 * k * folds * _FROM_START, most)
        return
    yield Work("mean", "evaluation", 0.6 * k * _FROM_START, m * settings.early_folds / folds)
    few, many = (settings.evaluations_after_the_first(little) for little in (False, True))
    steps = (1.0 - _LITTLE_NOISE) * few + _LITTLE_NOISE * _USED * many
    yield Work("mean", "evaluation", 0.6 * k * folds * steps, most)


def forecast_of_exact(m: int, d: int, plan: Plan, settings: Settings) -> Forecast:
    """Return the forecast of an exact fit to m distinct rows on a CPU.

    Examples
    --------
    >>> small, large = (forecast_of_exact(m, 5, Plan(), Settings()) for m in (300, 3000))
    >>> 0.1 < small.seconds < large.seconds
    True
    """
    mean, blocked = settings.mean, settings.exact.blocked_rows
    cores = _share_of_time(plan.cores, _SHARED)
    conditionings = 0.6 * mean.afresh_folds + 1 if m <= mean.refit_rows else 1

    def cost(kind: str, rows: float) -> float:
        if kind == "calibration":
            return _seconds_of_calibration(rows)
        if kind == "evaluation":
            share = 1.0 if rows <= blocked else _BLOCKED
            return share * _seconds_of_one(rows, d, _EVALUATION) * cores
        if kind != "ridge":
            return 0.0
        tuning = _seconds_of_one(min(rows, mean.tuning_rows), d, _CONDITIONING)
        one = _seconds_of_one(rows, d, _CONDITIONING)
        return (_PENALTIES * tuning + conditionings * one) * cores

    forecast = Forecast.of(_work_of_exact(m, d, plan, mean), cost)
    if m <= blocked:
        return forecast
    large = _BLOCKED_FIT * exact_seconds(m, torch.device("cpu"), settings.exact)
    cores = _share_of_time(plan.cores, _SHARED_BLOCKED)
    return forecast.scaled_to(large * machine_speed().arithmetic * cores)


# --- neighbours ----------------------------------------------------------------------------------


def _work_of_neighbors(n: int, d: int, plan: Plan, settings: Settings) -> Iterator[Work]:
    """Yield the work of a fit by nearest neighbours to n rows."""
    sample, k = settings.sample, plan.mean_candidates
    schedule, held = sample.schedule, min(n, sample.rows)
    warm, keep = min(n, schedule.warm_rows), min(k, schedule.keep)
    least, per_column = _FIRST_BATCH
    first = min(least + per_column * d, schedule.first_rounds * schedule.steps)
    least, per_column = _SECOND_BATCH
    second = min(least + per_column * d, schedule.rounds * schedule.steps)
    yield Work("mean", "evaluation", k * _FROM_START, warm)
    yield Work("mean", "batch", k * first, min(n, schedule.first))
    yield Work("mean", "ranking", k, min(n, schedule.unseen))
    yield Work("mean", "batch", keep * second, min(n, schedule.second))
    yield Work("mean", "ridge", keep, held)
    yield Work("mean", "regressor", 1.0, n)
    # The variance has one form of each kernel, in the metric of the mean.
    v = max(1, plan.variance_candidates // 2)
    yield Work("variance", "evaluation", v * _VARIANCE_FROM_START, warm)
    yield Work("variance", "batch", v * sample.variance_rounds, min(held, sample.variance_rows))
    yield Work("calibration", "calibration", 1.0, held)


def forecast_of_neighbors(n: int, d: int, plan: Plan, settings: Settings) -> Forecast:
    """Return the forecast of a fit by nearest neighbours to n rows on a CPU.

    Examples
    --------
    >>> some, many = (forecast_of_neighbors(n, 5, Plan(), Settings()) for n in (5000, 500_000))
    >>> 1.0 < some.seconds < many.seconds
    True
    """
    sample = settings.sample
    speed = machine_speed().statements * _share_of_time(plan.cores, _SHARED_NEIGHBORS)
    folds = next((k for rows, k in sample.crossfit_folds if n <= rows), 1)

    def cost(kind: str, rows: float) -> float:
        if kind == "calibration":
            return _seconds_of_calibration(rows)
        if kind == "evaluation":
            return _seconds_of_one(rows, d, _EVALUATION)
        if kind in ("batch", "ranking"):
            evaluations = _RANKING if kind == "ranking" else 1.0
            return speed * evaluations * rows * (_BATCH + _BATCH_COLUMN * d)
        if kind == "ridge":
            return speed * min(rows, sample.rows) * (_RIDGE + _RIDGE_COLUMN * d)
        if kind == "regressor":
            return speed * (folds + 1) * (_TREES + _TREES_ENTRY * rows * d)
        return 0.0

    return Forecast.of(_work_of_neighbors(n, d, plan, settings), cost)
