r"""The local scale: a factor g(x) that corrects the variance of part 2.

Held-out residuals r and variances :math:`\hat\sigma^2` of part 2 give :math:`z^2 = r^2 /
\hat\sigma^2`. Its logarithm is a noisy log scale (the noise variance is :math:`\pi^2/2` if r is
Gaussian). It is regressed on features of a row that do not depend on the row's target:

.. math::

    \phi(x) = \big( x,\; \hat m(x),\; \log \hat\sigma^2(x),\; \log d(x) \big) ,

with the disagreement d of the stack's members (the weighted standard deviation of their
predictions). If held-out predictions differ from those of the final model by about as much as they
differ from row to row, they leak the row's own target, so they are not used as features: for
example, the held-out constant is the mean of all *other* targets, from which the row's target
follows. The mean and the disagreement are then left out (:attr:`Situation.uses_mean`).

The regression models are kernel ridges and boosted trees, each with held-out predictions
:math:`\hat s_j`. The variance becomes

.. math::

    \sigma^2(x) = \hat\sigma^2(x)\, g(x), \qquad
    g(x) = e^{\sum_j a_j \hat s_j(x) + c} + b , \quad a_j \ge 0,\; b \ge \bar z^2 / n .

a, b and c maximise the held-out Gaussian density of the residuals, with a penalty per unit of a; if
the gain over one factor for all rows is not worth the parameters, a = 0. The uncertainty of
:math:`\hat s` enters twice. Weights a < 1 shrink it, which also corrects for its mean error. And b
is the variance of rows for which :math:`\hat s` is wrong: a share :math:`p` of rows with the
overall factor :math:`\bar z^2` adds :math:`b = p\, \bar z^2` to the variance of any row. From n
rows it cannot be known that this share is below 1/n.

Where the variance of part 2 is larger than at every held-out row, the data contain no information
about the scale; there a smaller g rises towards :math:`\bar z^2`.

Predictions take NumPy arrays, or tensors on any device, and return what they were given: the same
formulas serve a CPU, where NumPy is faster for a single row, and a GPU, which no number leaves.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.engines.exact.engine import ExactEngine, ExactPosterior
from twostagegp.errors import NotFittableError, TwoStageGPError
from twostagegp.kernels import NamedKernel
from twostagegp.pipeline.mean.crossfit import RegressorMean
from twostagegp.pipeline.settings import DEFAULTS, LocalScaleSettings
from twostagegp.training.candidates import Candidate

__all__ = [
    "Combination",
    "LocalScale",
    "Situation",
    "combine",
    "fit_local_scale",
    "log_squares",
    "scale_members",
]

Array = NDArray[np.float64]
#: Numbers of a prediction: an array, or a float64 tensor on any device.
Numbers = Any

_LOG = logging.getLogger("twostagegp")
_CPU = torch.device("cpu")

#: Added to z-squares before the logarithm, so that a residual of zero is not a scale of zero.
SMALLEST_SQUARE = 1e-4
#: Minus the mean of the logarithm of a chi-squared variable with one degree of freedom.
LOG_CHI = 1.2703628454614782
#: Smallest disagreement and standard deviation, relative to the target's standard deviation.
TINY = 1e-6
#: Derived features of a ridge are clipped at this many standard deviations of the training rows.
FARTHEST = 4.0


def _functions_for(values: Numbers) -> Any:
    """Return the module with functions of such numbers: torch or NumPy."""
    return torch if isinstance(values, Tensor) else np


@dataclass(frozen=True)
class Situation:
    r"""Features of rows that do not depend on their targets: :math:`\phi` of the module's formula.

    Attributes
    ----------
    X : array or Tensor of shape (n, d)
        Standardised inputs.
    mean, variance, disagreement : arrays or Tensors of shape (n,)
        Prediction, variance of part 2 with noise, and standard deviation over the stack's members.
    uses_mean : bool
        Whether the mean and the disagreement are among the features.
    """

    X: Numbers
    mean: Numbers
    variance: Numbers
    disagreement: Numbers
    uses_mean: bool = True

    @cached_property
    def log_variance(self) -> Numbers:
        """Logarithm of the variance of part 2."""
        return _functions_for(self.variance).log(self.variance.clip(TINY**2))

    @cached_property
    def derived(self) -> Numbers:
        """All features but the inputs, shape (n, 3), or (n, 1) without mean and disagreement."""
        if not self.uses_mean:
            return self.log_variance[:, None]
        functions = _functions_for(self.disagreement)
        disagreement = functions.log(self.disagreement.clip(TINY))
        return functions.column_stack([self.mean, self.log_variance, disagreement])

    def take(self, index: NDArray[np.int64]) -> Situation:
        """Return the features of some of the rows."""
        return Situation(
            self.X[index],
            self.mean[index],
            self.variance[index],
            self.disagreement[index],
            self.uses_mean,
        )


@dataclass(frozen=True)
class Cases:
    """Training cases of the models of the log scale, with folds that imitate new rows.

    A new row may have the same inputs as rows of the table. If those were held out, their residuals
    are informative about the new row; the probability of this is the share of distinct rows that
    were held out. The cross-fit reproduces it: for a random share of that size of the distinct
    rows, a row is left out while other rows with the same inputs stay; for the rest, all rows with
    the same inputs are left out together. Copies with equal inputs and equal target are one case
    with their total weight, or two halves if that is more than one, so that a row of weight two is
    treated as two rows.

    Attributes
    ----------
    first : integer array of shape (k,)
        One row of the table for each case.
    of_row : integer array of shape (n,)
        One case for each row of the table.
    half : integer array of shape (k,)
        The other half of each case, or the case itself if it is not divided.
    weight : array of shape (k,)
    folds : integer array of shape (k,)
    groups : integer array of shape (k,) or None
    """

    first: NDArray[np.int64]
    of_row: NDArray[np.int64]
    half: NDArray[np.int64]
    weight: Array
    folds: NDArray[np.int64]
    groups: NDArray[np.int64] | None

    @classmethod
    def of(
        cls,
        z: Array,
        weight: Array,
        inverse: NDArray[np.int64],
        folds: NDArray[np.int64],
        groups: NDArray[np.int64] | None,
        share: float,
        rng: np.random.Generator,
    ) -> Cases:
        """Return the cases of n rows.

        ``inverse`` are the numbers of their distinct rows, to which ``folds`` and ``groups``
        belong; ``share`` is the share of distinct rows that were held out.
        """
        order = np.lexsort((z, inverse))
        new = np.ones(len(z), dtype=bool)
        new[1:] = (np.diff(inverse[order]) != 0) | (np.diff(z[order]) != 0.0)
        of_row = np.empty(len(z), dtype=np.int64)
        of_row[order] = np.cumsum(new) - 1
        first = order[new]
        total = np.bincount(of_row, weights=weight)
        k = len(first)
        double = np.flatnonzero(total > 1.0)
        half = np.arange(k + len(double))
        half[double], half[k:] = k + np.arange(len(double)), double
        both = np.concatenate([np.arange(k), double])
        distinct = inverse[first][both]
        own = folds[distinct]
        if groups is None and folds.max() > 0:
            alone = rng.random(len(folds)) < share
            single = rng.permutation(len(both)) % (folds.max() + 1)
            own = np.where(alone[distinct], single, own)
        split = np.where(total > 1.0, 0.5, 1.0)
        return cls(
            first[both],
            of_row,
            half,
            (split * total)[both],
            own,
            None if groups is None else groups[distinct],
        )

    def to_rows(self, values: Array) -> Array:
        """Return values of the rows from those of the cases, as the mean of the two halves."""
        return 0.5 * (values + values[self.half])[self.of_row]


def log_squares(z: Array) -> Array:
    """Return noisy log scales, with expectation near zero if z is standard normal.

    Examples
    --------
    >>> import numpy as np
    >>> z = np.random.default_rng(0).normal(size=100_000)
    >>> bool(abs(log_squares(z).mean()) < 0.05)
    True
    """
    return np.log(z**2 + SMALLEST_SQUARE) + LOG_CHI


class Member(Protocol):
    """A model of the log scale."""

    label: str
    heldout: Array

    def predict(self, situation: Situation) -> Numbers:
        """Return the log scale of new rows, shape (n,), as numbers of the situation's kind."""


class ScaleRidge:
    """A GP on log z-squares, with the inputs or the derived features as columns.

    Parameters
    ----------
    label : str
    situation : Situation
        Features of the cases.
    t : array of shape (m,)
        Log z-squares of the cases.
    on_inputs : bool
        Whether to use the inputs instead of the features derived from them.
    shape : array of shape (d,), optional
        Ratios of the inputs' lengthscales.
    order : integer array of shape (m,)
        A random order in which cases of a group are adjacent; the first ones are used.
    groups : integer array of shape (m,), optional
    device : torch.device
        Device of the training.
    """

    label: str
    on_inputs: bool
    posterior: ExactPosterior
    heldout: Array
    _centre: float | Array
    _spread: float | Array
    _t_mean: float
    _t_spread: float

    def __init__(
        self,
        label: str,
        situation: Situation,
        t: Array,
        on_inputs: bool,
        shape: Array | None,
        order: NDArray[np.int64],
        groups: NDArray[np.int64] | None,
        settings: LocalScaleSettings = DEFAULTS.local_scale,
        device: torch.device = _CPU,
    ) -> None:
        self.label, self.on_inputs = label, on_inputs
        F = situation.X if on_inputs else situation.derived
        self._centre = 0.0 if on_inputs else F.mean(axis=0)
        self._spread = 1.0 if on_inputs else np.maximum(F.std(axis=0), TINY)
        self._t_mean, self._t_spread = float(t.mean()), max(float(t.std()), TINY)
        Z = self._scaled(F)
        used = order[: settings.ridge_rows]
        if groups is not None and len(used) < len(order):
            # A group of which only some cases would be used must not be used at all.
            used = used[groups[used] != groups[order[len(used)]]]
            if len(used) == 0:
                raise NotFittableError(f"a group has more than {settings.ridge_rows} rows")
        used = np.sort(used)
        ratios = shape if on_inputs else None
        kernel = NamedKernel("matern32", Z.shape[1], ard=not on_inputs, shape=ratios)
        rows = _plain_rows(
            Z[used],
            (t[used] - self._t_mean) / self._t_spread,
            None if groups is None else groups[used],
        )
        # Log z-squares are noisy: a ridge with little noise would fit that noise.
        floor = min(settings.least_noise / self._t_spread**2, 0.9)
        engine = ExactEngine(rows, noise_floor=floor)
        candidate = Candidate(kernel, "nll")
        part = np.flatnonzero(np.isin(used, order[: settings.training_rows]))
        training = engine.subset(part).to(device)
        candidate.train(training, None, is_full=False, steps=30, tolerance=1e-3)
        if candidate.parameters is None or candidate.failure:
            raise TwoStageGPError(candidate.failure)
        posterior = engine.condition(kernel, candidate.parameters)
        assert isinstance(posterior, ExactPosterior)  # one target
        self.posterior = posterior
        self.heldout = self.predict(situation)
        left_out = rows.t - self.posterior.heldout().residual
        self.heldout[used] = self._t_mean + self._t_spread * left_out.numpy()
        self.posterior.drop_factor()

    @property
    def feature_scaling(self) -> tuple[Array, Array]:
        """Mean and standard deviation of each feature; 0 and 1 if the features are the inputs."""
        return np.asarray(self._centre), np.asarray(self._spread)

    @property
    def target_scaling(self) -> tuple[float, float]:
        """Mean and standard deviation of the log z-squares."""
        return self._t_mean, self._t_spread

    def _scaled(self, F: Numbers) -> Numbers:
        centre: Numbers = self._centre
        spread: Numbers = self._spread
        if isinstance(F, Tensor):
            centre, spread = F.new_tensor(centre), F.new_tensor(spread)
        Z = (F - centre) / spread
        if self.on_inputs:
            return Z
        # A column that was constant in training is not used, even if it varies in new rows.
        return _functions_for(F).where(spread > TINY, Z.clip(-FARTHEST, FARTHEST), 0.0)

    def predict(self, situation: Situation) -> Numbers:
        Z = self._scaled(situation.X if self.on_inputs else situation.derived)
        queries = torch.as_tensor(Z, dtype=torch.float64)
        mean: Numbers = self.posterior_on(queries.device).mean(queries)
        return self._t_mean + self._t_spread * (mean if isinstance(Z, Tensor) else mean.numpy())

    @cached_property
    def _posteriors(self) -> dict[torch.device, ExactPosterior]:
        """Copies of the posterior on other devices; pickles and files do not contain them."""
        return {}

    def posterior_on(self, device: torch.device) -> ExactPosterior:
        """Return the posterior on a device; it is moved there at the first call."""
        if device == self.posterior.rows.X.device:
            return self.posterior
        if device not in self._posteriors:
            self._posteriors[device] = self.posterior.to(device)
        return self._posteriors[device]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_posteriors"}


def _plain_rows(X: Array, t: Array, groups: NDArray[np.int64] | None) -> Rows:
    zero = torch.zeros(len(t), dtype=torch.float64)
    return Rows(
        torch.as_tensor(X, dtype=torch.float64),
        torch.as_tensor(t),
        torch.ones_like(zero),
        zero,
        zero,
        None if groups is None else torch.as_tensor(groups),
    )


class ScaleTrees:
    """Boosted trees on log z-squares, with inputs and derived features as columns."""

    label = "trees"
    model: RegressorMean
    heldout: Array

    def __init__(
        self,
        situation: Situation,
        t: Array,
        weight: Array,
        folds: NDArray[np.int64],
        seed: int,
        settings: LocalScaleSettings = DEFAULTS.local_scale,
    ) -> None:
        from sklearn.ensemble import HistGradientBoostingRegressor

        m = len(t)
        regressor = HistGradientBoostingRegressor(
            learning_rate=0.1,
            max_iter=150,
            max_leaf_nodes=15,
            min_samples_leaf=max(5, min(40, m // 20)),
            l2_regularization=5.0,
            early_stopping=True,
            n_iter_no_change=10,
            validation_fraction=0.15,
        )
        if weight.mean() < settings.least_mean_weight:
            weight = np.ones(m)
        # On so few rows, threads that wait for each other cost more time than they save.
        with threadpool_limits(1, user_api="openmp"):
            self.model = RegressorMean(regressor, self._columns(situation), t, weight, folds, seed)
        self.heldout = t - self.model.heldout_residuals

    @staticmethod
    def _columns(situation: Situation) -> Numbers:
        return _functions_for(situation.X).column_stack([situation.X, situation.derived])

    def predict(self, situation: Situation) -> Numbers:
        columns = self._columns(situation)
        if isinstance(columns, Tensor):
            return self.model.predict_on_device(columns)
        return self.model.predict_array(columns)


@dataclass(frozen=True)
class Combination:
    r"""The numbers in :math:`g = e^{S a + c} + b`."""

    a: Array
    b: float
    c: float

    def times(self, factor: float) -> Combination:
        """Return the combination whose g is ``factor`` times the g of this one."""
        return Combination(self.a, factor * self.b, self.c + math.log(factor))

    def factor(self, S: Numbers) -> Numbers:
        """Return g at predicted log scales S of shape (n, J), an array or a tensor like S."""
        a = S.new_tensor(self.a) if isinstance(S, Tensor) else self.a
        return _functions_for(S).exp((S @ a + self.c).clip(-40.0, 40.0)) + self.b


def combine(
    S: Array,
    squares: Array,
    weight: Array,
    settings: LocalScaleSettings = DEFAULTS.local_scale,
) -> Combination:
    r"""Return the a, b and c with the largest held-out density.

    With :math:`g_i = e^{S_i a + c} + b` they minimise, over :math:`0 \le a \le 2` and
    :math:`b \ge \bar z^2 / n`,

    .. math::

        \frac12 \sum_i w_i \Big( \log g_i + \frac{z_i^2}{g_i} \Big) + \sum_j a_j .

    Parameters
    ----------
    S : array of shape (n, J)
        Held-out predictions of the rows' log scales, one column per member.
    squares, weight : arrays of shape (n,)
        z-squares and weights of the rows.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> S = rng.normal(size=(5000, 1))
    >>> z = np.exp(0.4 * S[:, 0]) * rng.normal(size=5000)
    >>> combine(S, z**2, np.ones(5000)).a.round(1).tolist()
    [0.8]
    >>> combine(S, rng.normal(size=5000) ** 2, np.ones(5000)).a.tolist()
    [0.0]
    """
    J = S.shape[1]
    N = float(weight.sum())
    overall = max(float(weight @ squares / N), SMALLEST_SQUARE**2)
    constant = Combination(np.zeros(J), 0.0, math.log(overall))
    if J == 0:
        return constant

    def objective(p: Array) -> tuple[float, Array]:
        e = np.exp(np.clip(S @ p[:J] + p[J], -40.0, 40.0))
        b = overall * math.exp(p[J + 1])
        g = e + b
        by_log_g = 0.5 * weight * (1.0 - squares / g)
        by_exponent = by_log_g * e / g
        value = 0.5 * float(weight @ (np.log(g) + squares / g)) + settings.price * float(
            p[:J].sum()
        )
        gradient = np.concatenate(
            [
                S.T @ by_exponent + settings.price,
                [by_exponent.sum(), float((by_log_g * b / g).sum())],
            ]
        )
        return value / N, gradient / N

    least = math.log(min(settings.least_rows / N, 0.5))
    bounds = [(0.0, settings.largest_weight)] * J + [(None, None), (least, 0.0)]
    found = []
    for each, share in ((0.7 / J, 0.02), (0.1 / J, 0.2)):
        start = np.concatenate([np.full(J, each), [math.log(overall), max(math.log(share), least)]])
        found.append(minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds))
    best = min(found, key=lambda result: float(result.fun))
    as_constant = 0.5 * (math.log(overall) + 1.0)
    if not N * (as_constant - float(best.fun)) > settings.price * (J + 1):
        return constant
    return Combination(
        best.x[:J].copy(), overall * math.exp(float(best.x[J + 1])), float(best.x[J])
    )


@dataclass(frozen=True)
class LocalScale:
    """A fitted local scale.

    Attributes
    ----------
    members : sequence of models
        One for each weight in ``combination.a``.
    combination : Combination
    heldout_factor : array of shape (n,)
        g at the held-out rows, from held-out predictions of the members; of a fitted model, times
        the factors by level, and at least the noise floor.
    overall : float
        Mean of the z-squares: the factor for all rows together.
    largest : float
        Largest log variance of part 2 at a held-out row.
    uses_mean : bool
        Whether the mean and the disagreement are among the features.
    """

    members: Sequence[Member]
    combination: Combination
    heldout_factor: Array
    overall: float
    largest: float
    uses_mean: bool

    @property
    def label(self) -> str:
        """Readable composition."""
        parts = zip(self.combination.a, self.members, strict=True)
        return " + ".join(f"{a:.2f} {member.label}" for a, member in parts) or "none"

    def times(self, factor: float) -> LocalScale:
        """Return the local scale whose g is ``factor`` times the g of this one, at all rows."""
        return replace(
            self,
            combination=self.combination.times(factor),
            heldout_factor=factor * self.heldout_factor,
            overall=factor * self.overall,
        )

    def factor(self, situation: Situation) -> Numbers:
        """Return g at new rows, shape (n,), an array or a tensor like those of the situation."""
        functions = _functions_for(situation.X)
        situation = replace(situation, uses_mean=self.uses_mean)
        columns = [member.predict(situation) for member in self.members]
        no_columns = situation.X[:, :0]
        S = functions.column_stack([no_columns, *columns])
        g = self.combination.factor(S)
        beyond = -functions.expm1(-(situation.log_variance - self.largest).clip(0.0))
        return g + beyond * (self.overall - g).clip(0.0)


def fit_local_scale(
    situation: Situation,
    z: Array,
    weight: Array,
    inverse: NDArray[np.int64],
    folds: NDArray[np.int64],
    groups: NDArray[np.int64] | None,
    share: float,
    shape: Array | None,
    seed: int,
    settings: LocalScaleSettings = DEFAULTS.local_scale,
    device: torch.device = _CPU,
) -> LocalScale:
    """Fit a local scale to held-out rows.

    Parameters
    ----------
    situation : Situation
        Features of the n held-out rows of the table, from held-out predictions and variances.
    z, weight : arrays of shape (n,)
        Held-out z-scores and weights.
    inverse : integer array of shape (n,)
        Number of the distinct row of each row.
    folds, groups : integer arrays of shape (m,)
        Fold and group of each distinct row.
    share : float
        Share of the table's distinct rows that were held out.
    shape : array of shape (d,), optional
        Ratios of the mean's lengthscales.
    settings : LocalScaleSettings
    device : torch.device
        Device on which ridges are trained.
    """
    rng = np.random.default_rng(seed)
    members: list[Member] = []
    S = np.zeros((len(z), 0))
    if len(folds) >= settings.fewest_rows:
        cases = Cases.of(z, weight, inverse, folds, groups, share, rng)
        members = scale_members(situation, z, cases, shape, seed, rng, settings, device)
        S = np.column_stack([S, *(cases.to_rows(member.heldout) for member in members)])
    combination = combine(S, z**2, weight, settings)
    while (light := (combination.a < settings.least_weight)).any():
        members = [member for member, drop in zip(members, light, strict=True) if not drop]
        S = S[:, ~light]
        combination = combine(S, z**2, weight, settings)
    heldout_factor = combination.factor(S)
    # b is added for every row, so that the mean square of z under g may be below one; this factor
    # makes it one.
    rest = float(weight @ (z**2 / heldout_factor) / weight.sum())
    if rest > 0.0:
        combination, heldout_factor = combination.times(rest), rest * heldout_factor
    return LocalScale(
        members,
        combination,
        heldout_factor,
        float(weight @ z**2 / weight.sum()),
        float(situation.log_variance.max()),
        situation.uses_mean,
    )


def scale_members(
    situation: Situation,
    z: Array,
    cases: Cases,
    shape: Array | None,
    seed: int,
    rng: np.random.Generator,
    settings: LocalScaleSettings,
    device: torch.device,
) -> list[Member]:
    """Return the models of the log scale; one that cannot be fitted is left out."""
    situation, t = situation.take(cases.first), log_squares(z[cases.first])
    k, d = situation.X.shape
    with_trees = k >= settings.tree_rows and len(np.unique(cases.folds)) > 1
    order = rng.permutation(k)
    if cases.groups is not None:
        position = rng.permutation(int(cases.groups.max()) + 1)
        order = np.argsort(position[cases.groups], kind="stable")
    else:
        # Two halves are one row: the ridge uses only the first of them.
        order = order[order <= cases.half[order]]
    members: list[Member] = []
    on_inputs = [False] + [True] * (d <= settings.smooth_columns or not with_trees)
    for inputs in on_inputs if settings.with_ridges else ():
        derived = "mean, variance and disagreement" if situation.uses_mean else "variance"
        label = f"ridge on {'inputs' if inputs else derived}"
        try:
            groups = cases.groups
            ridge = ScaleRidge(label, situation, t, inputs, shape, order, groups, settings, device)
        except TwoStageGPError as error:
            _LOG.info("%s of the log scale failed: %s", label, error)
            continue
        first = np.minimum(np.arange(k), cases.half)
        ridge.heldout = ridge.heldout[first]
        members.append(ridge)
    if with_trees:
        members.append(ScaleTrees(situation, t, cases.weight, cases.folds, seed, settings))
    return members
