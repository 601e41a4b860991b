r"""Learn from held-out ends of the columns how predictions go on outside the data.

Leaving out single rows shows errors of interpolation. Errors of extrapolation show where a whole
end is left out: the rows with the smallest or the largest values of a column. With the inverse
:math:`A_j = (K_j + N_j)^{-1}` of a member, :math:`\alpha = A_j t` and the rows B of an end,

.. math::

    e_B = (A_{BB})^{-1} \alpha_B , \qquad \operatorname{cov} e_B = (A_{BB})^{-1} ,

and the member without B predicts any x as :math:`k_x^\top A_j \tilde t`, where :math:`\tilde t` is
t with :math:`t_B` replaced by its held-out prediction. Nothing is factorised again.

**Shares.** The shares :math:`\theta` of the four ways to go on minimise the mean squared error
over the K ends (:func:`twostagegp.numerics.stacking.simplex_weights`). As in Laplace's rule, one
further end for each way keeps every share positive: :math:`(K \theta_l + 1) / (K + 4)`. Without any
end the mean is not continued.

**Factor.** With the variance :math:`\sigma^2` inside the data and :math:`a_b`, the mean of the
added variance of end b at c = 1,

.. math::

    \sqrt c = \frac{n_0 + \sum_b \sqrt{r_b}}{n_0 + K} , \qquad
    r_b = \frac{\operatorname{mean}_b (y - m)^2 - \sigma^2}{a_b} \in [0, r_{\max}] .

:math:`n_0` ends as expected by the members (r = 1) stand for what is known without data. Ends that
are near the rest of the rows, in the members' view, tell nothing and are not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.engines.exact.engine import ExactPosterior
from twostagegp.numerics.linalg import cholesky_inverse
from twostagegp.numerics.stacking import simplex_weights
from twostagegp.pipeline.mean.stacked import StackedMean
from twostagegp.pipeline.outside.law import (
    N_WAYS,
    Member,
    Outside,
    depth_of,
    seen_values,
    trends,
    way_to_trends,
)
from twostagegp.pipeline.settings import DEFAULTS, OutsideSettings

__all__ = [
    "End",
    "HeldOutEnd",
    "added_factor",
    "ends_of",
    "hold_out",
    "learn_outside",
    "linear_slopes",
    "trend_shares",
]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass
class End:
    """One end of a column and its rows; ``reach`` is how far it goes beyond the other rows."""

    column: int
    is_low: bool
    rows: Index
    reach: float


@dataclass
class HeldOutEnd:
    """Held-out predictions of the rows of one end.

    ``c`` are the weights of the rows, divided by their sum, and ``within`` the mean squares of the
    copies of a row around their mean t. ``way`` is :math:`\\omega`, how far the mean is moved to
    the trends.
    """

    t: Array
    c: Array
    within: Array
    mean: Array
    trends: list[Array]
    way: Array
    spread: Array

    def continuations(self) -> Array:
        """Return the four continuations, shape (4, rows)."""
        steps = [self.way * (trend - self.mean) for trend in self.trends]
        return np.stack([self.mean, *(self.mean + step for step in steps)])

    def ratio(self, theta: Array, variance: float) -> float:
        """Return the ratio r by the module's formula."""
        each = self.continuations()
        m = theta @ each
        added = self.c @ (self.spread + theta @ (each - m) ** 2)
        return float((self.c @ ((self.t - m) ** 2 + self.within) - variance) / added)


def learn_outside(
    rows: Rows,
    mean: StackedMean,
    variance: float,
    seed: int,
    settings: OutsideSettings = DEFAULTS.outside,
) -> Outside | None:
    """Return what is known about rows outside the data; None without a kernel ridge in the stack.

    Parameters
    ----------
    rows : Rows
        All distinct training rows.
    mean : StackedMean
    variance : float
        Typical variance of an observation inside the data.
    seed : int
    settings : OutsideSettings
    """
    index = np.sort(np.random.default_rng(seed).permutation(len(rows))[: settings.rows])
    some = rows.subset(index).in_double_precision()
    ridges = mean.leading_ridges(settings.members)
    if not ridges:
        return None
    posteriors = [ExactPosterior(ridge.kernel, ridge.parameters, some) for _, ridge in ridges]
    members = [
        Member.of(posterior, weight, settings.usual_share)
        for posterior, (weight, _) in zip(posteriors, ridges, strict=True)
    ]
    X, t, c, q = (each.cpu().numpy() for each in (some.X, some.t, some.c, some.q))
    ends = list(ends_of(X, mean.relevance(X.shape[1]), settings))
    slopes = linear_slopes(X, t, c)
    inverses = [cholesky_inverse(member.posterior.L).cpu().numpy() for member in members]
    seen = seen_values(rows.X, settings.seen_values)
    reach = _reach(ends, X.shape[1])
    tested = [hold_out(end, members, inverses, X, t, c, q, reach, settings) for end in ends]
    told = [test for test in tested if test.c @ test.spread > settings.least_added * variance]
    shares = trend_shares(told)
    law = Outside(
        members,
        index,
        seen,
        torch.as_tensor(slopes).to(rows.X),
        reach.to(rows.X),
        shares,
        added_factor(told, shares, variance, settings),
        added_factor(told, np.eye(N_WAYS)[0], variance, settings),
        len(told),
        settings,
    )
    return law.knowing(rows)


def ends_of(
    X: Array, relevance: Array, settings: OutsideSettings = DEFAULTS.outside
) -> Iterator[End]:
    """Yield both ends of the most relevant columns, in several sizes.

    Rows with equal values stay together, so a column with few distinct values has no ends.

    Examples
    --------
    >>> X = np.arange(12.0)[:, None]
    >>> [(end.rows.tolist(), end.reach) for end in ends_of(X, np.ones(1))][:2]
    [([0, 1], 2.0), ([10, 11], 2.0)]
    """
    n, columns = len(X), 0
    for j in np.argsort(-relevance, kind="stable"):
        x = X[:, j]
        order = np.sort(x)
        if columns == settings.columns or len(np.unique(order)) < settings.distinct_values:
            continue
        columns += 1
        for size in settings.sizes:
            count = max(2, round(size * n))
            low, high = order[count - 1], order[n - count]
            for is_low, out in ((True, x <= low), (False, x >= high)):
                if 2 * out.sum() > n:
                    continue
                rest = x[~out]
                reach = rest.min() - x.min() if is_low else x.max() - rest.max()
                yield End(int(j), is_low, np.flatnonzero(out), float(reach))


def linear_slopes(X: Array, t: Array, c: Array) -> Array:
    r"""Return the coefficients of a ridge regression with a penalty of one row, shape (d,).

    For more columns than rows it is solved in its dual form.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 1000)
    >>> linear_slopes(x[:, None], 3 * x + 1, np.ones(1000)).round(2)
    array([2.99])
    """
    root = np.sqrt(c)
    A, b = root[:, None] * (X - c @ X / c.sum()), root * (t - c @ t / c.sum())
    if X.shape[1] <= len(X):
        return np.asarray(np.linalg.solve(A.T @ A + np.eye(X.shape[1]), A.T @ b))
    return np.asarray(A.T @ np.linalg.solve(A @ A.T + np.eye(len(X)), b))


def hold_out(
    end: End,
    members: list[Member],
    inverses: list[Array],
    X: Array,
    t: Array,
    c: Array,
    q: Array,
    reach: Tensor,
    settings: OutsideSettings = DEFAULTS.outside,
) -> HeldOutEnd:
    """Return predictions of the rows of an end from all other rows."""
    out = end.rows
    rest = np.setdiff1d(np.arange(len(X)), out)
    each, excesses, priors, solved = [], [], [], []
    for member, A in zip(members, inverses, strict=True):
        S = np.linalg.inv(A[np.ix_(out, out)])
        replaced = t.copy()
        replaced[out] -= S @ (A[out] @ t)
        rows = member.posterior.rows
        noise = (member.posterior.noise + rows.extra[out].cpu().numpy()) / c[out]
        each.append(replaced[out])
        excesses.append(member.excess(torch.as_tensor(np.diag(S) - noise)))
        priors.append(member.prior(rows.X[out]).cpu())
        solved.append(torch.as_tensor(A @ replaced))

    def predict(Z: Tensor) -> Tensor:
        mean = torch.zeros(len(Z), dtype=torch.float64)
        for member, alpha in zip(members, solved, strict=True):
            p = member.posterior
            cross = p.kernel.cross(Z.to(p.rows.X), p.rows.X, p.parameters[:-1])
            mean += member.weight * (cross.cpu() @ alpha)
        return mean

    seen = seen_values(torch.as_tensor(X[rest]), len(rest))
    slopes = torch.as_tensor(linear_slopes(X[rest], t[rest], c[rest]))
    moved = trends(torch.as_tensor(X[out]), seen, reach, slopes, predict)
    w = np.array([member.weight for member in members])
    mean = w @ np.array(each)
    between = w @ (np.array(each) - mean) ** 2
    rho = depth_of(members, excesses, priors).numpy()
    excess = torch.stack(excesses).clamp(max=settings.largest_variance)
    spread = w @ excess.numpy() + rho * between
    share, within = c[out] / c[out].sum(), q[out] / c[out]
    way = way_to_trends(rho, settings.half_depth)
    return HeldOutEnd(t[out], share, within, mean, [m.numpy() for m in moved], way, spread)


def trend_shares(tested: list[HeldOutEnd]) -> Array:
    """Return the shares of the four ways to go on by the module's formula."""
    K = len(tested)
    if K == 0:
        return np.eye(N_WAYS)[0]
    E = np.vstack([(test.t - test.continuations()).T for test in tested])
    weight = np.concatenate([test.c for test in tested])
    return np.asarray((K * simplex_weights(E, weight) + 1.0) / (K + N_WAYS))


def added_factor(
    tested: list[HeldOutEnd], theta: Array, variance: float, settings: OutsideSettings
) -> float:
    """Return the factor of the added variance by the module's formula; one without any end."""
    if not tested:
        return 1.0
    ratios = np.array([test.ratio(theta, variance) for test in tested])
    roots = np.sqrt(np.clip(ratios, 0.0, settings.largest_ratio))
    known = settings.expected_ends
    return float((known + roots.sum()) / (known + len(tested))) ** 2


def _reach(ends: list[End], n_columns: int) -> Tensor:
    """Return the largest reach of the held-out ends below and above each column, shape (2, d)."""
    reach = torch.zeros(2, n_columns, dtype=torch.float64)
    for end in ends:
        side = 0 if end.is_low else 1
        reach[side, end.column] = max(float(reach[side, end.column]), end.reach)
    return reach
