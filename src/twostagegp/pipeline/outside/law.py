r"""The predictive distribution far from the training rows.

Part 2 is a Gaussian process on held-out residuals, which are errors of interpolation. It cannot
know the errors far from the rows, where the mean returns to the average of the target. The mean
itself can: a kernel ridge :math:`\hat m_j` of the stack is the mean of a Gaussian process, whose
posterior variance :math:`v_j(x)` grows from the rows to the variance of the whole function. With
:math:`s_j^2`, the mean of :math:`e^2 / v` over held-out rows, and :math:`u_j`, the scaled variance
:math:`s_j^2 v_j` that 99 % of the held-out rows do not exceed, the **excess** is

.. math::

    e_j(x) = \max(s_j^2 v_j(x) - u_j, 0) .

It is zero for 99 of 100 new rows that are like the training rows; their predictions are those of
the three parts. The **depth**

.. math::

    \rho(x) = \frac{\sum_j w_j\, e_j(x) / (s_j^2 k_j(x, x) - u_j)}{\sum_j w_j} \in [0, 1] ,

with sums over the members for which :math:`s_j^2 k_j(x, x) > u_j` (the others do not distinguish
inside and outside), says how far x lies outside. ``return_support`` is :math:`1 - \rho`.

**Mean.** There are four ways to go on: the mean :math:`\hat m(x)` itself, and three trends
(:func:`trends`). *Held* is the mean at :math:`\bar x`, which is x with every column moved to the
nearest value that was seen, if it lies beyond the range of these or in a wide gap between them.
*Linear* goes on from there by a linear regression of all rows, and *secant* by the difference of
the mean between :math:`\bar x` and one step back from it; both for at most twice the distance over
which they were tested. The weight :math:`\omega` of the trends is
zero inside and one far outside, and a half at the depth :math:`\rho_0 / (1 + 2 \rho_0)`. With
shares :math:`\theta_l` that sum to one,

.. math::

    t_l(x) = \hat m(x) + \omega(x)\, (\text{trend}_l(x) - \hat m(x)) , \qquad
    \omega(x) = \frac{(1 + \rho_0)\, \rho(x)}{\rho(x) + \rho_0} , \qquad
    m(x) = \sum_l \theta_l t_l(x) .

**Variance.** With the disagreement d of the stack's members, the variance grows by

.. math::

    c\, \Big( \sum_j w_j \min(e_j(x), 4) + \rho(x)\, d^2(x)
    + \sum_l \theta_l (t_l(x) - m(x))^2 \Big) .

The bound 4 is in units of the target's variance: a kernel of large prior variance and long
lengthscale explains the rows as well as one that is no larger than the target.
:math:`\theta` and c are learned from held-out ends of the columns
(:mod:`twostagegp.pipeline.outside.learn`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.engines.exact.engine import ExactPosterior
from twostagegp.pipeline.settings import OutsideSettings

__all__ = [
    "N_WAYS",
    "Continued",
    "Member",
    "Outside",
    "depth_of",
    "nearest_seen",
    "seen_values",
    "trends",
    "way_to_trends",
]

#: Ways to go on outside: the mean itself and three trends.
N_WAYS = 4

#: Smallest difference between prior and usual variance, as a share of the prior variance, of a
#: member that distinguishes inside and outside.
_LEAST_ROOM = 1e-3
#: Smallest divisor.
_TINY = 1e-12
#: Width of a gap between values that is outside, as a share of the range of its column.
_WIDE_GAP = 0.25


@dataclass
class Member:
    """A kernel ridge of the stack, as a Gaussian process on some of the rows.

    Attributes
    ----------
    posterior : ExactPosterior
    weight : float
        Weight w among the members.
    scale : float
        Mean of squared held-out errors divided by their variances.
    usual : float
        Scaled variance u of the function that few held-out rows exceed.
    """

    posterior: ExactPosterior
    weight: float
    scale: float
    usual: float

    @classmethod
    def of(cls, posterior: ExactPosterior, weight: float, usual_share: float) -> Member:
        """Return the member with its scale and usual variance."""
        rows, held = posterior.rows, posterior.heldout()
        scale = float(rows.c @ (held.residual.square() / held.variance)) / rows.total
        latent = (held.variance - posterior.noise - rows.extra).clamp(min=0.0)
        return cls(posterior, weight, scale, scale * float(torch.quantile(latent, usual_share)))

    def excess(self, variance: Tensor) -> Tensor:
        """Return how far the scaled variance of the function is above the usual one."""
        return (self.scale * variance - self.usual).clamp(min=0.0)

    def largest_excess(self, prior: Tensor) -> Tensor:
        """Return the excess at rows of this prior variance without any row nearby.

        It is 0 for a member that does not distinguish inside and outside: its usual variance is
        nearly the scaled prior variance.
        """
        room = self.scale * prior - self.usual
        return torch.where(room > _LEAST_ROOM * self.scale * prior, room, torch.zeros_like(room))

    def variance(self, X: Tensor) -> Tensor:
        """Return the posterior variance of the function, shape (n,)."""
        return self.posterior.variance(self._own(X)).to(X)

    def prior(self, X: Tensor) -> Tensor:
        """Return the prior variance of the function, shape (n,)."""
        posterior = self.posterior
        return posterior.kernel.diagonal(self._own(X), posterior.parameters[:-1]).to(X)

    def covariance(self, X: Tensor) -> Tensor:
        """Return the posterior covariance of the function, shape (n, n)."""
        return self.posterior.covariance(self._own(X)).to(X)

    def _own(self, X: Tensor) -> Tensor:
        """Return X in the precision of the member, which is double."""
        return X.to(self.posterior.rows.X)


@dataclass
class Continued:
    """The mean outside and what the variance grows by, at n rows.

    ``added`` is the sum of ``c * (excess + between)`` and the squares of ``steps``, whose rows
    are :math:`\\sqrt{c\\, \\theta_l}\\, (t_l - m)`, shape (4, n).
    """

    mean: Tensor
    spread: Tensor
    steps: Tensor

    @property
    def added(self) -> Tensor:
        """Variance that is added, shape (n,)."""
        return self.spread + self.steps.square().sum(0)


@dataclass
class Outside:
    """What was learned about rows outside the data.

    Attributes
    ----------
    members : list of Member
    index : integer array
        Numbers of the distinct rows that the members are conditioned on.
    seen : Tensor of shape (d, k)
        Values of each column, sorted; a column of fewer values repeats its largest.
    slopes : Tensor of shape (d,)
        Coefficients of the linear trend.
    reach : Tensor of shape (2, d)
        How far below the smallest and above the largest value of each column trends were tested.
    shares : array of shape (4,)
        Shares of the mean itself, and of the trends held, linear and secant.
    factor : float
        Factor c of the added variance.
    plain_factor : float
        The same if the mean is not continued.
    n_ends : int
        Number of held-out ends from which shares and factor were learned.
    settings : OutsideSettings
    """

    members: list[Member]
    index: NDArray[np.int64]
    seen: Tensor
    slopes: Tensor
    reach: Tensor
    shares: NDArray[np.float64]
    factor: float
    plain_factor: float
    n_ends: int
    settings: OutsideSettings

    def depth(self, X: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the depth, shape (n,), and the excess of every member."""
        excesses = [member.excess(member.variance(X)) for member in self.members]
        if not any(bool(excess.any()) for excess in excesses):
            return X.new_zeros(len(X)), excesses
        priors = [member.prior(X) for member in self.members]
        return depth_of(self.members, excesses, priors), excesses

    def in_double_precision(self) -> Outside:
        """Return the same numbers for inputs of double precision."""
        seen, slopes, reach = (each.double() for each in (self.seen, self.slopes, self.reach))
        return replace(self, seen=seen, slopes=slopes, reach=reach)

    def continued(
        self,
        X: Tensor,
        mean: Tensor,
        between: Tensor,
        predict: Callable[[Tensor], Tensor],
        rho: Tensor,
        excesses: list[Tensor],
    ) -> Continued:
        """Return mean and added variance by the module's formula.

        Parameters
        ----------
        X : Tensor of shape (..., d)
        mean, between : Tensors of shape (...)
            Prediction of the stack at X, and variance between its models.
        predict : callable
            Prediction of the stack at any rows.
        rho, excesses
            As returned by :meth:`depth`.
        """
        c, theta = self.factor, torch.as_tensor(self.shares).to(X)
        steps = torch.zeros(len(theta), *mean.shape).to(mean)
        if self.has_trends:
            each = trends(X, self.seen, self.reach, self.slopes, predict)
            way = way_to_trends(rho, self.settings.half_depth)
            steps = way * torch.stack([steps[0], *(trend - mean for trend in each)])
        moved = torch.tensordot(theta, steps, 1)
        most = self.settings.largest_variance
        excess = sum(
            (m.weight * e.clamp(max=most) for m, e in zip(self.members, excesses, strict=True)),
            torch.zeros_like(mean),
        )
        spread = c * (excess + rho * between)
        roots = (c * theta).sqrt().reshape(-1, *[1] * mean.ndim)
        return Continued(mean + moved, spread, roots * (steps - moved))

    @property
    def has_trends(self) -> bool:
        """Whether the mean is continued outside the data."""
        return bool(self.shares[1:].any())

    def without_trends(self) -> Outside:
        """Return what is known for predictions whose mean is not continued."""
        return replace(self, shares=np.eye(N_WAYS)[0], factor=self.plain_factor)

    def moments(
        self,
        X: Tensor,
        mean: Tensor,
        between: Tensor,
        predict: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Return the mean and the added variance, each of shape (n,).

        The arguments are those of :meth:`continued`.
        """
        rho, excesses = self.depth(X)
        added, far = torch.zeros_like(mean), rho > 0.0
        if not bool(far.any()):
            return mean, added
        excesses = [excess[far] for excess in excesses]
        result = self.continued(X[far], mean[far], between[far], predict, rho[far], excesses)
        mean = mean.clone()
        mean[far], added[far] = result.mean, result.added
        return mean, added

    def covariance(
        self,
        X: Tensor,
        mean: Tensor,
        between: Tensor,
        predict: Callable[[Tensor], Tensor],
    ) -> Tensor:
        r"""Return the covariance that is added, shape (n, n); its diagonal is the added variance.

        Excesses are as correlated as the posterior of their member. Each trend is one unknown
        function, so its steps are fully correlated.
        """
        rho, excesses = self.depth(X)
        far = torch.nonzero(rho > 0.0)[:, 0]
        C = X.new_zeros(len(X), len(X))
        if not len(far):
            return C
        at_far, excesses = X[far], [excess[far] for excess in excesses]
        result = self.continued(at_far, mean[far], between[far], predict, rho[far], excesses)
        covariances = [member.covariance(at_far) for member in self.members]
        C[far[:, None], far] = self.joint(result, excesses, covariances)
        return C

    def joint(self, result: Continued, excesses: list[Tensor], covariances: list[Tensor]) -> Tensor:
        """Return the added covariance, shape (..., q, q), from those of the members."""
        F = torch.zeros_like(covariances[0])
        for member, excess, C in zip(self.members, excesses, covariances, strict=True):
            variance = C.diagonal(dim1=-2, dim2=-1).clamp(min=_TINY)
            size = _root(member.weight * excess / variance)
            F = F + C * size.unsqueeze(-1) * size.unsqueeze(-2)
        diagonal = F.diagonal(dim1=-2, dim2=-1).clamp(min=_TINY)
        root = _root(result.spread / diagonal)
        steps = result.steps.movedim(0, -1)
        return F * root.unsqueeze(-1) * root.unsqueeze(-2) + steps @ steps.mT

    def extended(self, rows: Rows, n_before: int) -> Outside:
        """Return the same shares and factor with new rows among the data.

        Parameters
        ----------
        rows : Rows
            All rows; those of the fit come first.
        n_before : int
            Number of distinct rows before. The members get the new rows, and if these are too
            many, rows chosen as in a fit.
        """
        known = torch.cat([self.seen.T, rows.X[n_before:]])
        seen = seen_values(known, self.settings.seen_values)
        index = np.concatenate([self.index, np.arange(n_before, len(rows))])
        if len(index) <= 3 * self.settings.rows:
            return replace(self.conditioned(rows, index), seen=seen)
        drawn = np.random.default_rng(0).permutation(len(rows))[: self.settings.rows]
        return replace(self.conditioned(rows, np.sort(drawn)).knowing(rows), seen=seen)

    def conditioned(self, rows: Rows, index: NDArray[np.int64]) -> Outside:
        """Return the same with members that are conditioned on rows of these numbers."""
        some = rows.subset(index).in_double_precision()
        members = [
            replace(m, posterior=ExactPosterior(m.posterior.kernel, m.posterior.parameters, some))
            for m in self.members
        ]
        return replace(self, members=members, index=index)

    def knowing(self, rows: Rows) -> Outside:
        """Return the same with members that know sparse regions of the training rows.

        Some hundred random rows miss small clusters, whose rows would be outside. Training rows
        that are, the farthest first, are added until none is left or there are twice as many.
        """
        law, most = self, 2 * self.settings.rows
        order = np.random.default_rng(0).permutation(len(rows))[: self.settings.checked_rows]
        while len(law.index) < most and len(order):
            depth = law.depth(rows.subset(order).X)[0].cpu().numpy()
            far = np.flatnonzero(depth > self.settings.least_depth)
            first = far[np.argsort(-depth[far], kind="stable")][: most // 10]
            added = order[first][: most - len(law.index)]
            order = np.setdiff1d(order[far], added)  # more rows make no row more distant
            if len(added):
                law = law.conditioned(rows, np.union1d(law.index, added))
        return law


def depth_of(members: list[Member], excesses: list[Tensor], priors: list[Tensor]) -> Tensor:
    """Return the depth from excess and prior variance of every member, by the module's formula."""
    rho, known = torch.zeros_like(excesses[0]), torch.zeros_like(excesses[0])
    for member, excess, prior in zip(members, excesses, priors, strict=True):
        largest = member.largest_excess(prior)
        tells = largest > 0.0
        rho = rho + torch.where(tells, member.weight * excess / largest.clamp(min=_TINY), 0.0)
        known = known + member.weight * tells
    return (rho / known.clamp(min=_TINY)).clamp(max=1.0)


def way_to_trends(rho: Any, half_depth: float) -> Any:
    r"""Return :math:`\omega` of the module's formula for an array or Tensor of depths.

    Examples
    --------
    >>> float(way_to_trends(1.0, 0.1)), round(float(way_to_trends(0.1 / 1.2, 0.1)), 3)
    (1.0, 0.5)
    """
    return (1.0 + half_depth) * rho / (rho + half_depth)


def trends(
    X: Tensor,
    seen: Tensor,
    reach: Tensor,
    slopes: Tensor,
    predict: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return the trends held, linear and secant, each of shape (...).

    Let :math:`\bar x` be x moved to values that were seen (:func:`nearest_seen`), and
    :math:`\delta` the way from there to x, cut off at twice the ``reach`` r beyond the range of
    each column. Columns without a held-out end (:math:`r_j = 0`) are left out of
    :math:`\tau = \max_j |\delta_j| / r_j` and of the step :math:`\delta / \tau`.

    .. math::

        \text{held} = \hat m(\bar x), \quad
        \text{linear} = \text{held} + \delta^\top b, \quad
        \text{secant} = \text{held} + \min(\tau, 2)
        \big( \hat m(\bar x) - \hat m(\bar x - \delta / \tau) \big) .

    Parameters
    ----------
    X : Tensor of shape (..., d)
    seen, reach, slopes
        As in :class:`Outside`; b are the slopes.
    predict : callable
        The mean :math:`\hat m` at any rows.

    Examples
    --------
    >>> x, seen = torch.tensor([[2.5]]), torch.tensor([[-1.0, 0.0, 1.0]])
    >>> reach, slopes = torch.tensor([[1.0], [1.0]]), torch.tensor([0.5])
    >>> [float(each) for each in trends(x, seen, reach, slopes, lambda Z: Z[:, 0] ** 2)]
    [1.0, 1.75, 2.5]
    """
    nearest = nearest_seen(X, seen)
    held = predict(nearest)
    low, high = seen[:, 0] - 2.0 * reach[0], seen[:, -1] + 2.0 * reach[1]
    delta = X.clamp(low, high) - nearest
    r = torch.where(delta > 0.0, reach[1], reach[0])
    tested = r > 0.0
    tau = torch.where(tested, delta.abs() / r.clamp(min=_TINY), 0.0).amax(-1)
    step = torch.where(tested, delta, 0.0) / tau.clamp(min=_TINY).unsqueeze(-1)
    secant = held + tau.clamp(max=2.0) * (held - predict(nearest - step))
    return held, held + delta @ slopes, secant


def _root(values: Tensor) -> Tensor:
    """Return square roots, with a gradient of zero at zero."""
    positive = values.clamp(min=torch.finfo(values.dtype).tiny)
    return torch.where(values > 0.0, positive.sqrt(), torch.zeros_like(values))


def seen_values(X: Tensor, most: int) -> Tensor:
    """Return the distinct values of every column, at most so many, evenly by rank.

    Returns
    -------
    Tensor of shape (d, k)
        Sorted; a column of fewer values repeats its largest.

    Examples
    --------
    >>> seen_values(torch.tensor([[3.0, 0.0], [1.0, 0.0], [2.0, 0.0]]), most=2)
    tensor([[1., 3.],
            [0., 0.]])
    """
    columns = []
    for column in X.T:
        values = torch.unique(column)
        if len(values) > most:
            kept = torch.linspace(0, len(values) - 1, most, device=X.device).round().long()
            values = values[kept]
        columns.append(values)
    longest = max(2, max(len(values) for values in columns))
    return torch.stack(
        [torch.cat([values, values[-1:].expand(longest - len(values))]) for values in columns]
    )


def nearest_seen(X: Tensor, seen: Tensor) -> Tensor:
    """Return X with numbers outside of the values that were seen moved to the nearest of these.

    Outside is what lies beyond the smallest and the largest value of a column, and in a gap wider
    than a quarter of the distance between these. Other numbers stay, so that the result is
    continuous except in the middle of such gaps.

    Parameters
    ----------
    X : Tensor of shape (..., d)
    seen : Tensor of shape (d, k)
        Sorted values of each column.

    Examples
    --------
    >>> seen = torch.tensor([[0.0, 0.5, 1.0, 4.0]])
    >>> nearest_seen(torch.tensor([[-2.0], [0.7], [1.4], [9.0]]), seen)[:, 0]
    tensor([0.0000, 0.7000, 1.0000, 4.0000])
    """
    at = X.detach().reshape(-1, X.shape[-1]).T.contiguous()
    above = torch.searchsorted(seen, at).clamp(1, seen.shape[1] - 1)
    low, high = seen.gather(1, above - 1), seen.gather(1, above)
    nearest = torch.where(at - low < high - at, low, high)
    first, last = seen[:, :1], seen[:, -1:]
    outside = (at < first) | (at > last) | (high - low > _WIDE_GAP * (last - first))
    moved = nearest.T.reshape(X.shape)
    return torch.where(outside.T.reshape(X.shape), moved, X).contiguous()
