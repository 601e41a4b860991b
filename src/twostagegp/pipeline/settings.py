"""The user's options of a fit, and every threshold that decides what it does.

:class:`Options` has a field per constructor parameter, :class:`Settings` the thresholds, each with
a comment that says its meaning or reason. Both are passed down explicitly, so a test or benchmark
that needs another value constructs another :class:`Settings`
(``TwoStageGPRegressor(settings=...)``). ``docs/defaults.md`` has the measurements behind the
values. Constants of the machine (sizes of panels, blocks and caches), which change no result beyond
rounding, are defined next to the code that uses them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from twostagegp.data.columns.levels import Levels
from twostagegp.engines.exact.settings import ExactSettings
from twostagegp.engines.problem import ObjectiveName
from twostagegp.runtime.dask_cluster import DaskSettings
from twostagegp.search.settings import SearchSettings
from twostagegp.training.ladder import rung_sizes
from twostagegp.training.rounds import Schedule
from twostagegp.training.schedule import Training

__all__ = [
    "DEFAULTS",
    "QUICK",
    "ClassSettings",
    "DaskSettings",
    "ExactSettings",
    "LevelSettings",
    "LocalScaleSettings",
    "MeanSettings",
    "MethodSettings",
    "Options",
    "OutsideSettings",
    "SampleSettings",
    "SearchSettings",
    "Settings",
    "ShapeSettings",
    "ValueSettings",
    "VarianceSettings",
]


@dataclass(frozen=True)
class MethodSettings:
    """When ``method="auto"`` chooses neighbours, and sizes of ``method="svgp"``."""

    #: Predicted seconds of an exact fit above which ``method="auto"`` chooses neighbours.
    exact_seconds: float = 60.0
    #: Inducing points of ``method="svgp"``, and random rows among which they are chosen.
    n_inducing: int = 256
    inducing_pool: int = 20_000


@dataclass(frozen=True)
class MeanSettings:
    """Part 1: training of candidates, held-out residuals and stack."""

    #: Below this many distinct rows candidates are trained by the likelihood only, fewer candidates
    #: are refitted, and the kernel of the variance has one lengthscale.
    small_rows: int = 60
    #: Above this many distinct rows only three candidates are trained on all of them.
    full_training_rows: int = 3000
    #: Above this many distinct rows the best of the three gets two evaluations on all rows instead
    #: of three.
    largest_training_rows: int = 15_000
    #: Up to this many distinct rows hyperparameters are trained again without each fold, so that
    #: held-out residuals do not depend on hyperparameters that were trained on the row.
    refit_rows: int = 600
    refit_folds: int = 10
    #: Candidates that are refitted.
    refit_keep: int = 8
    #: Rows per parameter from which hyperparameters hardly depend on a single row, so that a
    #: candidate is not refitted.
    closed_rows: int = 60
    #: Rows per parameter below which refits start from the kernel's starting values; folds of all
    #: refits, and steps of those that start so.
    afresh_rows: int = 25
    afresh_folds: int = 5
    afresh_steps: int = 60
    #: Folds, of the ``afresh_folds``, whose rows candidates are trained on first, and most
    #: evaluations that follow, on all rows and without each fold.
    early_folds: int = 2
    afresh_evaluations: int = 6
    #: Share of the target's variance below which the held-out error of one kernel shows that a
    #: table has little noise, where every row makes the lengthscales more precise. No candidate is
    #: then dropped after the first training, and up to ``little_noise_evaluations`` follow. The
    #: first training is on all rows if it would have fewer than ``first_rows`` (unless refits
    #: start afresh), and above ``refit_rows`` on twice ``first_rows``.
    little_noise: float = 0.3
    little_noise_evaluations: int = 20
    #: Fewest distinct rows from which the first training is on some of the rows only, and
    #: candidates of the mean and of the variance that are then trained on all rows.
    early_rows: int = 150
    early_keep: int = 10
    variance_keep: int = 3
    #: Rows of the first training above ``refit_rows`` distinct rows: at least so many, and so many
    #: per column, but no more than twice ``first_rows``; above ``full_training_rows`` twice. That
    #: of the variance, after which a third of the kernels goes on, is on ``first_rows`` in between.
    first_rows: int = 150
    first_rows_per_column: int = 30
    #: How many times as many rows each further training has at most, up to
    #: ``full_training_rows`` and above.
    growth: float = 2.8
    large_growth: float = 4.0
    #: Evaluations on all rows of the best candidates, best first, up to ``full_training_rows``: if
    #: the training before was on fewer than ``many_rows``, and otherwise.
    medium_steps: tuple[int, ...] = (8, 6, 6, 4, 4, 4)
    full_steps: tuple[int, ...] = (4, 3, 2, 0, 0)
    many_rows: int = 400
    #: Share of the candidates that enter each training before that, from the first on.
    medium_kept: tuple[float, ...] = (1.0, 1 / 2, 1 / 3)
    #: Training ends if a step is expected to gain less than this, in nats over all rows.
    least_gain: float = 0.3
    #: Rows on which the penalty of a trained candidate is tuned, and the equally spaced shifts of
    #: its logarithm that are tried.
    tuning_rows: int = 1000
    penalty_shifts: tuple[float, ...] = (-2.0, -1.0, 0.0, 1.0)
    #: Ridge on the stack's weights: spreads weight over candidates with nearly equal residuals.
    stack_ridge: float = 0.03
    #: Share of the stack below which TabPFN is left out: each of its predictions takes seconds.
    least_pretrained_share: float = 0.01

    def first_training(self, m: int, d: int, little_noise: bool = False) -> int:
        """Return the rows of the first training on m distinct rows, more than ``refit_rows``."""
        most = 2 * self.first_rows
        if little_noise or m > self.full_training_rows:
            return most
        return min(max(self.first_rows, self.first_rows_per_column * d), most)

    def growth_to(self, m: int) -> float:
        """Return how many times as many rows each training towards m rows has at most."""
        return self.growth if m <= self.full_training_rows else self.large_growth

    def evaluations_after_the_first(self, little_noise: bool) -> int:
        """Return the most evaluations that follow the first training, up to ``refit_rows`` rows."""
        return self.little_noise_evaluations if little_noise else self.afresh_evaluations

    def steps_on_all_rows(self, m: int, d: int, little_noise: bool = False) -> tuple[int, ...]:
        """Return the evaluations on all of m distinct rows above ``refit_rows``, best first."""
        if m > self.full_training_rows:
            # The rung before has at least a quarter of the rows, so few evaluations suffice.
            return (2 if m > self.largest_training_rows else 3, 2)
        first = self.first_training(m, d, little_noise)
        before = max(rung_sizes(m, first, self.growth_to(m)), default=0)
        return self.medium_steps if before < self.many_rows else self.full_steps


@dataclass(frozen=True)
class SampleSettings:
    """Numbers of rows, rounds and folds of the methods for large tables."""

    #: Rows that are held out: stack weights, variance and calibration are learned from these.
    rows: int = 12_000
    #: Held-out rows on which the variance is trained.
    variance_rows: int = 3000
    #: Held-out rows on which a penalty is tuned.
    tuning_rows: int = 2000
    #: Rows on which the ratio test chooses a kernel.
    search_rows: int = 20_000
    #: How hyperparameters are trained.
    schedule: Schedule = field(default_factory=Schedule)
    #: Rounds and steps per round of the variance's candidates.
    variance_rounds: int = 2
    variance_steps: int = 12
    #: Rows of a GP that is trained on a random subsample only.
    subsample_rows: int = 1000
    #: Folds of a cross-fitted regressor, as pairs (largest number of table rows, folds). For larger
    #: tables one fit without the held-out sample suffices, if the sample is at most this share of
    #: the table: about as much as one of three folds leaves out.
    crossfit_folds: tuple[tuple[int, int], ...] = ((20_000, 3),)
    most_held_out: float = 0.35
    #: Up to this many rows a regressor is then fitted to all of them, for predictions.
    regressor_refit_rows: int = 100_000
    #: Up to this many rows a regressor gets one thread.
    one_thread_rows: int = 200_000
    #: Fewest rows that boosted trees are fitted to, and (name, value) pairs of their parameters
    #: that replace those of ``pipeline/mean/crossfit.py``.
    tree_rows: int = 50
    tree_parameters: tuple[tuple[str, object], ...] = ()
    #: Most ridges of the stack: each costs a neighbour search and a solve per prediction.
    most_ridges: int = 3
    #: A ridge with a smaller stack weight is left out.
    least_ridge_weight: float = 0.03
    #: Folds over which the stack's weights are cross-fitted.
    stack_folds: int = 10


@dataclass(frozen=True)
class VarianceSettings:
    """Part 2: the variance."""

    #: The noise variance is at least this share of the squared size of the residuals.
    noise_share: float = 0.3


@dataclass(frozen=True)
class LocalScaleSettings:
    """Part 3: the local scale, which corrects the variance of part 2 as a function of x."""

    #: Fewest distinct rows from which a local scale is learned.
    fewest_rows: int = 40
    #: Whether ridges are members, and fewest distinct rows from which trees are.
    with_ridges: bool = True
    tree_rows: int = 500
    #: If the mean weight of the rows is smaller than this, the trees give every row weight one,
    #: which is three times as fast.
    least_mean_weight: float = 1.1
    #: Up to this many columns a ridge on the input columns is a member.
    smooth_columns: int = 3
    #: Distinct rows that the ridges are conditioned on, and rows that they are trained on.
    ridge_rows: int = 1000
    training_rows: int = 400
    #: Least noise variance of a ridge on log z-squares: half the variance that they have if z is
    #: Gaussian.
    least_noise: float = 0.25 * math.pi**2
    #: Nats that a unit of a costs, and nats per parameter (the members' weights and b) that the
    #: combination must gain.
    price: float = 1.0
    #: Largest weight a. It is above one because a member may itself shrink too much.
    largest_weight: float = 2.0
    #: A member with a smaller weight is left out.
    least_weight: float = 0.05
    #: Smallest b, as the number of rows that have the overall factor.
    least_rows: float = 1.0
    #: If leaving a row out moves its prediction by more than this share of the predictions'
    #: standard deviation, held-out predictions leak the row's own target, so they are not used as
    #: features; and the number of rows on which this is measured.
    most_moved: float = 0.5
    final_rows: int = 300


@dataclass(frozen=True)
class LevelSettings:
    """Part 3: factors of the variance by the levels of a column."""

    #: Most levels of a column.
    most: int = 50
    #: Degrees of freedom of the robust estimate of a level's variance: its sampling variance is 7 %
    #: above the least possible for Gaussian z-scores, and at most 12 % for t distributions of 3 to
    #: 10 degrees.
    degrees: float = 8.0
    #: How many independent z-scores each is worth.
    information: float = 0.5
    #: Scale of the half-normal prior of the standard deviation of log variances between levels.
    prior_spread: float = 1.0
    #: Smallest square of a z-score, relative to their mean.
    smallest: float = 1e-4


@dataclass(frozen=True)
class ShapeSettings:
    """Part 3: the shape of the predictive distribution."""

    #: Power of the likelihood of held-out z-scores: how many independent ones each is worth. Above
    #: zero.
    information: float = 0.3
    #: Bins of an empirical shape between its tails, and fewest rows of the last bin.
    bins: int = 100
    last_bin_rows: float = 3.0
    #: Width of a component, in distances between neighbouring bins: a smaller one would give a
    #: density with ripples.
    overlap: float = 0.75
    #: Factor of the usual bandwidth rule, which is for a density, not for quantiles.
    bandwidth: float = 0.5
    #: Rows of the t distribution that are added to the held-out ones when its share is learned: the
    #: tails of the shape are never lighter than these.
    tail_rows: float = 3.0
    #: Fewest z-scores whose own distribution is mixed with the t distribution; fewer get the t
    #: distribution alone.
    fewest: int = 30


@dataclass(frozen=True)
class ValueSettings:
    """Part 3: weights of the target's values."""

    #: Fewest held-out rows from which weights are learned, and most rows that are used.
    fewest: int = 30
    rows: int = 4000
    #: A value is a level if it has this many rows and this share of them.
    level_rows: int = 3
    level_share: float = 0.01
    #: If rows with other values have at most this share, and there are not more distinct values
    #: than this, all values are levels.
    rest_share: float = 0.05
    most_levels: int = 150
    #: Intervals between quantiles of the values that are no levels.
    intervals: int = 10
    #: Rows that the prior of an interval and of a level is worth.
    interval_prior: float = 10.0
    level_prior: float = 1.0
    #: Zero is a bound if no value is beyond it although this many rows are expected there.
    beyond_zero: float = 20.0
    #: Folds by which CRPS decides, and its least gain: relative, and in standard errors.
    folds: int = 5
    least_gain: float = 0.001
    errors: float = 1.0


@dataclass(frozen=True)
class OutsideSettings:
    """Rows outside the data: what is added to mean and variance there."""

    #: Distinct rows that the members are conditioned on, and number of members; 0 adds nothing
    #: anywhere.
    rows: int = 300
    members: int = 3
    #: Random training rows of which those deeper outside than ``least_depth`` are added to these,
    #: until they are twice as many: small clusters of rows are inside.
    checked_rows: int = 20_000
    least_depth: float = 0.02
    #: Share of the held-out rows that are inside the data.
    usual_share: float = 0.99
    #: Depth around which trends take over from the mean: far below it the mean is not continued.
    half_depth: float = 0.1
    #: Largest excess of a member that enters the variance, in units of the target's variance.
    largest_variance: float = 4.0
    #: Columns of which ends are held out, fewest distinct values of such a column, and shares of
    #: the rows in an end.
    columns: int = 4
    distinct_values: int = 8
    sizes: tuple[float, ...] = (1 / 6, 1 / 3)
    #: An end of which the members expect less additional variance, relative to the variance inside,
    #: is not used.
    least_added: float = 0.5
    #: Ends that the members' own variance is worth, and largest ratio of an end.
    expected_ends: float = 2.0
    largest_ratio: float = 20.0
    #: Values of a column that are kept.
    seen_values: int = 1000


@dataclass(frozen=True)
class ClassSettings:
    """Thresholds of classification."""

    #: Distinct rows above which ``method="auto"`` chooses neighbours: on a CPU, on a GPU, and on a
    #: CPU for tables as wide as embeddings, whose neighbours are far away and slow to find.
    exact_rows: int = 6000
    exact_rows_gpu: int = 30_000
    exact_rows_wide: int = 12_000
    #: A table with more columns may be an embedding: it is scaled in several ways and has no
    #: lengthscale per column.
    many_columns: int = 30
    #: Distinct rows that are held out by the neighbour method.
    sample_rows: int = 5000
    #: Prior variance of the constant in the kernels of a mean, for targets of unit variance.
    constant: float = 10.0
    #: Rows of the first and of the second training of ridges, number of ridges that enter the
    #: second, and number that are conditioned on all rows.
    first_rows: int = 300
    second_rows: int = 1000
    first_keep: int = 5
    ridges: int = 3
    #: Noise variances of a ridge that are tried, relative to the trained one, and the smallest
    #: noise variance.
    penalties: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
    ridge_floor: float = 1e-4
    #: Distinct rows up to which the hyperparameters of flexible kernels are trained again without
    #: each fold, the number of folds, and the optimiser steps of such a training of a ridge.
    refit_rows: int = 600
    refit_folds: int = 5
    refit_steps: int = 40
    #: Folds of cross-fitted classifiers.
    folds: int = 5
    #: Rows on which the logistic regression is tuned, and the inverse penalties that are tried, for
    #: columns of a common unit scale.
    logistic_rows: int = 5000
    inverse_penalties: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
    #: Share of the prior that is mixed into the probabilities of a cross-fitted classifier, so that
    #: all are positive.
    prior_share: float = 1e-3
    #: A member with a smaller share of the stack is left out.
    least_share: float = 0.02
    #: Rows on which the kernels of part 2 are trained, and optimiser steps.
    training_rows: int = 600
    training_steps: int = 30
    #: Rows of a first training of these kernels, and number of kernels that stay after it.
    variance_first_rows: int = 200
    variance_keep: int = 3
    #: Standard errors by which two stages must lower the log loss with ``stages="auto"``.
    stage_errors: float = 1.0
    #: Values of ``alpha_eps`` that are tried, and rows on which one is chosen.
    alphas: tuple[float, ...] = (0.01, 0.05, 0.2, 0.5)
    choice_rows: int = 800
    #: Factors of the latent variances that are tried, rows on which one is chosen, and standard
    #: errors of the log loss that a larger factor may cost.
    variance_factors: tuple[float, ...] = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    scale_rows: int = 4000
    standard_errors: float = 1.0


@dataclass(frozen=True)
class Settings:
    """All thresholds of a fit, by part.

    Examples
    --------
    >>> Settings().sample.rows
    12000
    >>> Settings(sample=SampleSettings(rows=500)).sample.rows
    500
    """

    method: MethodSettings = field(default_factory=MethodSettings)
    #: The exact engine: sizes and memory.
    exact: ExactSettings = field(default_factory=ExactSettings)
    mean: MeanSettings = field(default_factory=MeanSettings)
    sample: SampleSettings = field(default_factory=SampleSettings)
    variance: VarianceSettings = field(default_factory=VarianceSettings)
    local_scale: LocalScaleSettings = field(default_factory=LocalScaleSettings)
    levels: LevelSettings = field(default_factory=LevelSettings)
    shape: ShapeSettings = field(default_factory=ShapeSettings)
    values: ValueSettings = field(default_factory=ValueSettings)
    #: Predictions outside the data.
    outside: OutsideSettings = field(default_factory=OutsideSettings)
    classes: ClassSettings = field(default_factory=ClassSettings)
    #: Kernel searches by the ratio test.
    search: SearchSettings = field(default_factory=SearchSettings)
    #: Fits to Dask collections.
    dask: DaskSettings = field(default_factory=DaskSettings)
    #: Level at which ``calibration="scale"`` gives intervals their nominal coverage of held-out
    #: rows.
    scale_level: float = 0.95
    #: Folds over which the local scale and the shapes are cross-fitted, as pairs (largest number of
    #: distinct rows, folds).
    calibration_folds: tuple[tuple[int, int], ...] = ((6000, 5), (2**62, 3))


#: The settings of estimators that are given none.
DEFAULTS = Settings()
#: The settings of ``TwoStageGPRegressor.quick()`` and ``TwoStageGPClassifier.quick()``: fewer rows,
#: evaluations and folds, and a calibration without trees.
QUICK = Settings(
    mean=MeanSettings(
        refit_folds=5,
        early_keep=3,
        variance_keep=1,
        medium_steps=(4, 3, 2),
        full_steps=(4, 3, 2),
        tuning_rows=300,
    ),
    sample=SampleSettings(
        rows=4000,
        variance_rows=1000,
        tuning_rows=1000,
        schedule=Schedule(second=1000, unseen=1000, first_rounds=1, rounds=2, steps=5),
        variance_rounds=1,
        variance_steps=6,
        crossfit_folds=((20_000, 2),),
        tree_parameters=(("learning_rate", 0.2), ("max_iter", 200)),
        most_ridges=1,
    ),
    local_scale=LocalScaleSettings(tree_rows=2**62, training_rows=300),
    classes=ClassSettings(
        refit_folds=3, training_rows=200, training_steps=15, alphas=(0.05, 0.2), choice_rows=300
    ),
)


@dataclass(frozen=True)
class Options:
    """The options of a two-stage fit, one field per constructor parameter of the estimator.

    ``selection`` is split into ``mean_selection`` and ``variance_selection``; ``levels`` are those
    of the column ``calibrate_by``, an end of ``bounds`` without a bound is infinite.
    """

    kernels: Sequence[Any]
    ard: bool | str
    mean: Any
    penalty: Any
    variance: Any
    objective: ObjectiveName
    variance_objective: ObjectiveName
    mean_selection: str
    variance_selection: str
    residuals: str
    calibration: str | None
    training: Training | None
    noise_floor: float
    levels: Levels | None = None
    reweight_values: bool = True
    bounds: tuple[float, float] = (-math.inf, math.inf)
    method: str = "exact"
    n_neighbors: int = 50
    factor_dtype: torch.dtype | None = None
    settings: Settings = field(default_factory=Settings)

    def variance_choices(self) -> Sequence[Any]:
        """Return the kernels that the ``variance`` parameter stands for."""
        if isinstance(self.variance, str) and self.variance == "search":
            return self.kernels
        return self.variance if isinstance(self.variance, list | tuple) else [self.variance]
