r"""Test a fitted Gaussian process by a parametric bootstrap: simulate, refit, compare.

The model is fitted to the data, giving :math:`\hat\theta`. Then B targets are drawn from the fitted
model at the same inputs, :math:`t^{(b)} \sim N(0, K_{\hat\theta} + \hat\sigma^2 I)`. Each is fitted
again, because a fit hides part of a misfit and must do so in the simulations as well, and its
evidence :math:`e_k^{(b)}` for every cause k (``evidence.py``) is recorded. The data were
standardised before the fit, and so is every draw. With the evidence of the data as number 0, the
evidence for each cause is standardised over all B + 1, and

.. math::

    m^{(b)} = \max_k \frac{e_k^{(b)} - \bar e_k}{s_k}, \qquad
    p = \frac{1 + \#\{b \ge 1 : m^{(b)} \ge m^{(0)}\}}{B + 1} .

If the model is correct, all B + 1 are exchangeable (up to the estimation of :math:`\theta`), so
that :math:`P(p \le \delta) \le \delta`. The same comparison for one cause,
:math:`\#\{m^{(b)} \ge z_k^{(0)}\}`, gives a p-value that is corrected for testing all causes;
the smallest of them is p itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.engines.batched_problem import Block, ProblemBatch
from twostagegp.errors import NotFittableError
from twostagegp.training.batched import BatchFit, curvature, fit_batch, minimise_batch

__all__ = [
    "Bootstrap",
    "Statistic",
    "adjusted_p_values",
    "draw_targets",
    "refit_draws",
    "simulate_and_refit",
]

Array = NDArray[np.float64]
Statistic = Callable[[Block, Tensor], Tensor]
Refit = Callable[[ProblemBatch, Array, Array, Statistic], tuple[BatchFit, Array]]


@dataclass(frozen=True)
class Bootstrap:
    """Statistics of the data and of the simulations.

    Attributes
    ----------
    observed : array of shape (k,)
    simulated : array of shape (B, k)
        Without simulations that could not be refitted.
    parameters : array of shape (p,)
        Fitted to the data.
    refits : BatchFit
    """

    observed: Array
    simulated: Array
    parameters: Array
    refits: BatchFit


def refit_draws(
    draws: ProblemBatch, start: Array, inverse: Array, statistic: Statistic
) -> tuple[BatchFit, Array]:
    """Refit every draw; return the fits and the statistic of each, shape (B, k).

    Parameters
    ----------
    draws : ProblemBatch
        The problems share their inputs, shape (1, n, d).
    start : array of shape (p,)
    inverse : array of shape (p, p)
        Inverse Hessian at the start.
    statistic : callable
        As in :func:`simulate_and_refit`.
    """
    refits = minimise_batch(draws, np.tile(start, (len(draws), 1)), inverse)
    return refits, _statistics(draws, refits.parameters, statistic)


def _statistics(problems: ProblemBatch, parameters: Array, statistic: Statistic) -> Array:
    parts = problems.map(
        parameters,
        np.arange(len(parameters)),
        lambda block: statistic(block, problems.X).cpu().numpy().astype(np.float64),
    )
    return np.concatenate(parts)


def simulate_and_refit(
    problem: ProblemBatch,
    statistic: Statistic,
    n_simulations: int,
    rng: np.random.Generator,
    refit: Refit = refit_draws,
) -> Bootstrap:
    """Fit one problem, draw targets from the fit, refit them, and compute all statistics.

    Parameters
    ----------
    problem : ProblemBatch
        A batch of one.
    statistic : callable
        ``statistic(block, X)`` of shape (b, k) for X of shape (1, n, d).
    refit : callable
        :func:`refit_draws`, or a function that does the same elsewhere.
    """
    fit = fit_batch(problem)
    if not np.isfinite(fit.value[0]):
        raise NotFittableError(
            f"kernel {problem.kernel.label} cannot be fitted to these rows; raise noise_floor, or "
            "choose another kernel."
        )
    draws = problem.with_targets(*draw_targets(problem, fit.parameters, n_simulations, rng))
    (parameters,) = fit.parameters
    refits, simulated = refit(draws, parameters, curvature(problem, fit.parameters), statistic)
    (observed,) = _statistics(problem, fit.parameters, statistic)
    return Bootstrap(observed, simulated[np.isfinite(refits.value)], parameters, refits)


def draw_targets(
    problem: ProblemBatch, parameters: Array, n_simulations: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor | None]:
    """Draw B targets from the fitted model.

    Parameters
    ----------
    problem : ProblemBatch
        A batch of one.
    parameters : array of shape (1, p)
    n_simulations : int
        B.
    rng : Generator

    Returns
    -------
    targets : Tensor of shape (B, n)
    within : Tensor of shape (B, n), or None
        Sums of squares within merged rows; None if no row is merged.
    """
    (block,) = problem.map(parameters, np.arange(1), lambda block: block)
    L = block.L[0]
    white = torch.as_tensor(rng.normal(size=(n_simulations, problem.n_rows)))
    targets = white.to(L) @ L.T
    if block.extras is None:
        one = torch.ones_like(problem.t)
        return _match_moments(problem.t, None, one, targets, None)
    # A row of weight c is the mean of c copies; their sum of squares is s times a chi-squared
    # variable with c - 1 degrees of freedom.
    c = block.extras.c
    shape = (0.5 * (c[0] - 1.0)).clamp(min=0.0).cpu().numpy()
    chi_squared = 2.0 * rng.gamma(shape, size=(n_simulations, problem.n_rows))
    within = torch.as_tensor(chi_squared).to(L) * (block.s * c)
    return _match_moments(problem.t, block.extras.q, c, targets, within)


def _match_moments(
    t: Tensor, q: Tensor | None, c: Tensor, targets: Tensor, within: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Give draws the mean and variance of the data, which were standardised before the fit."""

    def moments(values: Tensor, squares_within: Tensor | None) -> tuple[Tensor, Tensor]:
        mean = (c * values).sum(1, keepdim=True) / c.sum()
        squares = (c * (values - mean).square()).sum(1, keepdim=True)
        if squares_within is not None:
            squares = squares + squares_within.sum(1, keepdim=True)
        return mean, (squares / c.sum()).sqrt()

    (mean, size), (own_mean, own_size) = moments(t, q), moments(targets, within)
    scale = size / own_size
    within = None if within is None else within * scale.square()
    return mean + (targets - own_mean) * scale, within


def adjusted_p_values(observed: Array, simulated: Array) -> tuple[Array, Array]:
    """Return a p-value per statistic, corrected for testing all, and standardised statistics.

    Returns
    -------
    p : array of shape (k,)
    z : array of shape (B + 1, k)
        Row 0 is the data.

    Examples
    --------
    >>> import numpy as np
    >>> null = np.random.default_rng(0).normal(size=(99, 2))
    >>> adjusted_p_values(np.array([0.0, 5.0]), null)[0].round(2)
    array([0.72, 0.01])
    """
    # A statistic that cannot be computed for the data gets p = 1. A simulation is dropped if one
    # of the other statistics cannot be computed for it.
    computed = np.isfinite(observed)
    simulated = simulated[np.isfinite(simulated[:, computed]).all(1)]
    statistics = np.where(computed, np.vstack([observed, simulated]), 0.0)
    spread = statistics.std(0)
    z = (statistics - statistics.mean(0)) / np.where(spread > 0.0, spread, 1.0)
    largest = z[1:].max(1)
    p = (1 + (largest[:, None] >= z[0]).sum(0)) / len(z)
    return np.where(computed, p, 1.0), z
