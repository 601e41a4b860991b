r"""Part 3, the calibration: from the variance of part 2 to a calibrated predictive distribution.

Everything is learned from held-out residuals :math:`r_i` and held-out variances :math:`v_i` of part
2, through the z-scores :math:`z_i = r_i / \sqrt{v_i}`:

- ``"local"``: a local scale g(x) (:mod:`twostagegp.pipeline.calibration.local_scale`) and the
  shape of the rescaled z-scores (:mod:`twostagegp.pipeline.calibration.shape_fit`),
  :math:`y = \mu(x) + \sqrt{g(x)\, \hat\sigma^2(x)}\; Z` with Z from the shape. Both the scale
  and the tails are wider if few rows were held out.
- ``"scale"``: one factor c for all rows and a Gaussian,

  .. math::

      c = \Big( \frac{q_{0.95}(|z|)}{\Phi^{-1}(0.975)} \Big)^2 ,

  so that 95 % intervals contain 95 % of the held-out rows.

With ``"local"``, values of the target are also weighted if that lowers held-out CRPS
(:mod:`twostagegp.pipeline.calibration.value_weights`): levels, bounds and rare values.

With ``calibrate_by``, variances also get a factor per level of a column
(:mod:`twostagegp.pipeline.calibration.by_level`). It is learned after the local scale and before
the shape, or before the factor c.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from twostagegp.data.columns.levels import Levels
from twostagegp.data.rows import Merged
from twostagegp.pipeline.calibration.by_level import LevelFactors, fit_level_factors
from twostagegp.pipeline.calibration.law import Law
from twostagegp.pipeline.calibration.local_scale import LocalScale, Situation, fit_local_scale
from twostagegp.pipeline.calibration.shape import GAUSSIAN, Shape
from twostagegp.pipeline.calibration.shape_fit import learn_shape
from twostagegp.pipeline.calibration.value_weights import ValueWeights, bounds_alone
from twostagegp.pipeline.calibration.value_weights_fit import learn_value_weights
from twostagegp.pipeline.held_rows import HeldRows
from twostagegp.pipeline.mean.crossfit import assign_folds
from twostagegp.pipeline.settings import DEFAULTS, Settings, ValueSettings

if TYPE_CHECKING:
    from twostagegp.data.scaling import Prepared
    from twostagegp.pipeline.mean.stacked import StackedMean
    from twostagegp.pipeline.settings import Options
    from twostagegp.pipeline.variance import GPVariance

__all__ = [
    "Calibration",
    "calibrate",
    "calibrate_locally",
    "calibrate_scale",
    "rank_quantile",
    "scale_from_quantile",
    "weigh_values",
]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    r"""The fitted calibration.

    Attributes
    ----------
    kind : {"local", "scale", "none"}
    factor : float
        Factor of the variances without ``levels``; if it depends on x through a local scale, the
        median of all factors over the held-out rows.
    z : array of shape (n,)
        Z-scores before calibration, one per held-out row.
    weight : array of shape (n,)
        Weights of the held-out rows.
    local : LocalScale or None
        The local scale, with its numbers ``a``, ``b`` and ``c`` in ``local.combination``.
    shape : Shape
        Distribution of an observation around its mean, in units of sigma.
    shape_scores : dict
        Mean negative log density of held-out z-scores under the t distribution ("student"), the
        smoothed z-scores ("empirical") and their mixture ("mixture").
    note : str
        If the kind differs from the one asked for, the reason.
    levels : LevelFactors or None
        Factors of the variances by the levels of a column.
    values : ValueWeights or None
        Weights of the target's values, in the user's units.
    pit : array of shape (n,) or None
        Probability integral transform of the held-out rows, if values have weights.
    """

    kind: str
    factor: float
    z: Array
    weight: Array
    local: LocalScale | None = None
    shape: Shape = GAUSSIAN
    shape_scores: dict[str, float] = field(default_factory=dict)
    note: str = ""
    levels: LevelFactors | None = None
    values: ValueWeights | None = None
    pit: Array | None = None

    @property
    def heldout_factor(self) -> Array | float:
        """Factor of the variance of each held-out row."""
        if self.local is not None:
            return self.local.heldout_factor
        return self.factor * (1.0 if self.levels is None else self.levels.heldout_factor)

    @property
    def z_calibrated(self) -> Array:
        """Held-out z-scores under the calibrated variance."""
        return self.z / np.sqrt(self.heldout_factor)

    @property
    def pit_before(self) -> Array:
        """Probability integral transform of the held-out rows before calibration, shape (n,)."""
        return np.asarray(ndtr(self.z))

    @property
    def pit_after(self) -> Array:
        """Probability integral transform of the held-out rows after calibration, shape (n,)."""
        return self.shape.cdf(self.z_calibrated) if self.pit is None else self.pit

    @property
    def a(self) -> Array:
        """Weights of the models of the local scale; empty without a local scale."""
        return np.zeros(0) if self.local is None else self.local.combination.a

    @property
    def c(self) -> float:
        """Constant of the log scale."""
        return math.log(self.factor) if self.local is None else self.local.combination.c

    @property
    def law(self) -> Law:
        """Shape and weights of the values, in the user's units."""
        return Law(self.shape, self.values)

    @property
    def label(self) -> str:
        """Readable summary."""
        by_level = "" if self.levels is None else f"; factors of {self.levels.label}"
        if self.local is None:
            return f"{self.kind}, factor {self.factor:.3g}{by_level}"
        shape = self.shape.name
        if shape != "gaussian":
            shape += f" ({self.shape.degrees:.1f} degrees of freedom in the tails)"
        scale = f"local, log scale {self.local.label}, median factor {self.factor:.3g}"
        return f"{scale}; {shape}{by_level}"

    def conformal_score(self, level: float) -> float:
        r"""Return the split-conformal quantile of held-out :math:`|z|`, at rank level (n + 1)."""
        return rank_quantile(np.abs(self.z_calibrated), self.weight, level)


def rank_quantile(size: Array, weight: Array, level: float) -> float:
    """Return the weighted quantile of split conformal prediction, at rank level (n + 1)."""
    order = np.argsort(size)
    # With the rank among n + 1 rows the coverage is at least the nominal level. The 1e-9 is for
    # products like 0.55 * 20, whose rounding error must not move the rank from 11 to 12.
    rank = np.searchsorted(np.cumsum(weight[order]), level * (weight.sum() + 1.0) - 1e-9)
    return float(size[order][min(int(rank), len(size) - 1)])


def scale_from_quantile(z: Array, weight: Array | None = None, level: float = 0.95) -> float:
    r"""Return the factor c of the module's formula from (weighted) z-scores.

    Examples
    --------
    >>> import numpy as np
    >>> z = np.random.default_rng(0).normal(scale=2.0, size=100_000)
    >>> bool(abs(scale_from_quantile(z) - 4.0) < 0.1)
    True
    """
    weight = np.ones(len(z)) if weight is None else weight
    quantile = rank_quantile(np.abs(z), weight, level)
    return float((quantile / ndtri(0.5 + level / 2.0)) ** 2)


def calibrate_scale(z: Array, weight: Array, level: float = 0.95, note: str = "") -> Calibration:
    """Return one factor for all rows, for which intervals of this level cover held-out rows."""
    # Residuals of exactly zero must not give a variance of zero.
    factor = max(scale_from_quantile(z, weight, level), 1e-6)
    return Calibration("scale", factor, z, weight, note=note)


def calibrate_locally(
    situation: Situation,
    z: Array,
    merged: Merged,
    share: float,
    ratios: Array | None,
    noise: float,
    noise_floor: float,
    seed: int,
    settings: Settings = DEFAULTS,
    device: torch.device | None = None,
    levels: Levels | None = None,
) -> Calibration:
    """Fit a local scale, factors by level and a shape.

    Parameters
    ----------
    situation : Situation
        Features of the n held-out rows, from held-out predictions and variances.
    z : array of shape (n,)
        Held-out z-scores.
    merged : Merged
        The held-out rows.
    share : float
        Share of the table's distinct rows that was held out.
    ratios : array of shape (d,), optional
        Ratios of the mean's lengthscales.
    noise : float
        Noise variance of part 2.
    noise_floor : float
        Lower bound of the noise variance of every row.
    settings : Settings
    device : torch.device, optional
        Device of the fit; the CPU by default.
    levels : Levels, optional
        Levels of a column within which intervals should hold.
    """
    weight = merged.weight
    if not (z != 0.0).any():
        return calibrate_scale(z, weight, settings.scale_level, "no residual to learn from")
    rng = np.random.default_rng(seed)
    n_folds = next(k for rows, k in settings.calibration_folds if len(merged.c) <= rows)
    folds = assign_folds(len(merged.c), n_folds, rng, merged.groups)
    local = fit_local_scale(
        situation,
        z,
        weight,
        merged.inverse,
        folds,
        merged.groups,
        share,
        ratios,
        seed,
        settings.local_scale,
        device or torch.device("cpu"),
    )
    v = situation.variance

    def above_the_floor(g: Array) -> Array:
        return (g * np.maximum(v - noise, 0.0) + np.maximum(g * noise, noise_floor)) / v

    by_level = None
    if levels is not None:
        common = z / np.sqrt(above_the_floor(local.heldout_factor))
        by_level = _factors_by_level(levels, common, merged, settings)
        local = _with_levels(local, by_level, z, weight)
    factors = above_the_floor(local.heldout_factor)
    # The mean square is one unless the noise floor has raised variances; then it is below one.
    on_floor = float(weight @ (z**2 / factors) / weight.sum()) < 0.999
    learned = learn_shape(
        z / np.sqrt(factors), weight, folds[merged.inverse], on_floor, settings.shape
    )
    local = local.times(learned.moment)
    local = replace(local, heldout_factor=above_the_floor(local.heldout_factor))
    factor = rank_quantile(local.heldout_factor, weight, 0.5)
    return Calibration(
        "local", factor, z, weight, local, learned.shape, learned.scores, levels=by_level
    )


def _factors_by_level(levels: Levels, z: Array, merged: Merged, settings: Settings) -> LevelFactors:
    of_row = levels.numbers(merged.X)[merged.inverse]
    groups = None if merged.groups is None else merged.groups[merged.inverse]
    return fit_level_factors(levels, z, merged.weight, of_row, groups, settings.levels)


def _with_levels(local: LocalScale, by_level: LevelFactors, z: Array, weight: Array) -> LocalScale:
    """Return a local scale for which z-scores have mean square one with the factors by level.

    Its ``heldout_factor`` contains these factors.
    """
    g = local.heldout_factor * by_level.heldout_factor
    rest = float(weight @ (z**2 / g) / weight.sum())
    return replace(local.times(rest), heldout_factor=rest * g)


def calibrate(
    data: Prepared,
    held_rows: HeldRows,
    mean: StackedMean,
    variance: GPVariance,
    options: Options,
    seed: int,
) -> Calibration:
    """Fit part 3 to the rows that were held out."""
    held = np.maximum(np.asarray(variance.heldout_variance, np.float64), options.noise_floor)
    calibration = _without_values(data, held_rows, mean, variance, held, options, seed)
    if calibration.local is None or not options.reweight_values:
        return replace(calibration, values=bounds_alone(*options.bounds))
    return weigh_values(
        calibration,
        data,
        held_rows,
        mean.heldout_residuals,
        held,
        options.bounds,
        seed,
        options.settings.values,
    )


def weigh_values(
    calibration: Calibration,
    data: Prepared,
    held_rows: HeldRows,
    residuals: Array,
    heldout_variance: Array,
    bounds: tuple[float, float],
    seed: int,
    settings: ValueSettings,
) -> Calibration:
    """Return the calibration with weights of the target's values, if they pay.

    They are learned from the held-out rows, whose distinct rows have the variances
    ``heldout_variance`` of part 2.
    """
    merged, scaling = held_rows.merged, data.scaling
    assert data.y is not None
    y = data.y[held_rows.table_rows]
    predicted = scaling.y_mean + scaling.y_scale * (merged.y - residuals)
    sigma = np.sqrt(heldout_variance[merged.inverse] * calibration.heldout_factor)
    sigma *= scaling.y_scale
    folds = assign_folds(len(merged.c), settings.folds, np.random.default_rng(seed), merged.groups)
    values = learn_value_weights(
        y,
        predicted,
        sigma,
        merged.weight,
        folds[merged.inverse],
        calibration.shape,
        bounds,
        seed,
        settings,
    )
    if values is None:
        return calibration
    pit = Law(calibration.shape, values).at(predicted, sigma).pit(values.within_bounds(y))
    return replace(calibration, values=values, pit=pit)


def _without_values(
    data: Prepared,
    held_rows: HeldRows,
    mean: StackedMean,
    variance: GPVariance,
    heldout_variance: Array,
    options: Options,
    seed: int,
) -> Calibration:
    """Fit scale and shape; ``heldout_variance`` of the distinct rows is above the noise floor."""
    settings, merged = options.settings, held_rows.merged
    residuals = mean.heldout_residuals
    v = heldout_variance[merged.inverse]
    z = residuals / np.sqrt(v)
    if options.calibration is None:
        return Calibration("none", 1.0, z, merged.weight)
    levels = options.levels
    if options.calibration == "scale":
        if levels is None:
            return calibrate_scale(z, merged.weight, settings.scale_level)
        by_level = _factors_by_level(levels, z, merged, settings)
        within = z / np.sqrt(by_level.heldout_factor)
        scale = calibrate_scale(within, merged.weight, settings.scale_level)
        return replace(scale, z=z, levels=by_level)
    predicted = merged.y - residuals
    m = len(held_rows.index)
    some = np.random.default_rng(seed).permutation(m)[: settings.local_scale.final_rows]
    index = torch.as_tensor(held_rows.index[some], device=data.rows.X.device)
    final = mean.predict(data.rows.X[index]).double().cpu().numpy()
    situation = Situation(
        merged.X[merged.inverse],
        predicted,
        v,
        mean.heldout_disagreement,
        _can_use_predictions(predicted, merged, some, final, settings.local_scale.most_moved),
    )
    share = m / len(data.rows)
    return calibrate_locally(
        situation,
        z,
        merged,
        share,
        mean.lengthscale_shape(),
        float(variance.noise),
        options.noise_floor,
        seed,
        settings,
        data.rows.X.device,
        levels,
    )


def _can_use_predictions(
    heldout: Array, merged: Merged, some: NDArray[np.int64], final: Array, most_moved: float
) -> bool:
    """Return whether held-out predictions may be features of the local scale.

    They may if leaving a row out moves its prediction by no more than the share ``most_moved`` of
    the predictions' standard deviation. ``final`` are predictions of the final model for ``some``
    of the distinct rows.
    """
    weight, m = merged.weight, len(merged.c)
    by_row = np.bincount(merged.inverse, weights=weight * heldout, minlength=m) / merged.c
    share = merged.c[some] / merged.c[some].sum()
    moved = float(np.sqrt(share @ (by_row[some] - final) ** 2))
    centred = heldout - weight @ heldout / weight.sum()
    return moved <= most_moved * float(np.sqrt(weight @ centred**2 / weight.sum()))
