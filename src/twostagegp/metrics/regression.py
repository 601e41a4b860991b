r"""Scores of predictive distributions of a number.

:mod:`twostagegp.metrics` explains which score answers which question, and how the arguments are
given.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, special, stats

from twostagegp.errors import InputError
from twostagegp.metrics.checks import (
    check_bins,
    check_interval,
    check_same_length,
    finite_array,
    finite_vector,
)

__all__ = [
    "coverage",
    "crps",
    "crps_from_quantiles",
    "evaluate",
    "hc_rmse",
    "interval_width",
    "joint_nll",
    "lc_rmse",
    "nlpd",
    "pinball",
    "qice",
    "qice_floor",
    "randomized_pit",
    "rmse",
]

Array = NDArray[np.float64]

LOG_2PI = float(np.log(2.0 * np.pi))

# The levels at which `evaluate` scores the quantiles: the two ends of the 90 % interval, the
# quartiles and the median.
PINBALL_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


def rmse(y: ArrayLike, mean: ArrayLike) -> float:
    r"""Return the root mean squared error of the predicted means.

    .. math:: \sqrt{\tfrac{1}{n} \sum_i (y_i - m_i)^2}

    Parameters
    ----------
    y, mean : array-like of shape (n,)
        Outcomes and predicted means.

    Examples
    --------
    >>> rmse([0.0, 0.0], [3.0, 4.0])
    3.5355339059327378
    """
    y_, mean_ = _check_pair(y, mean)
    return float(np.sqrt(np.mean((y_ - mean_) ** 2)))


def nlpd(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    r"""Return the Gaussian negative log predictive density, the mean over the rows, in nats.

    .. math:: \tfrac{1}{n} \sum_i \tfrac12 z_i^2 + \log s_i + \tfrac12 \log 2\pi,
              \qquad z_i = (y_i - m_i) / s_i

    It depends on the units: multiplying y by a > 0 adds log a. Compare models on the same target
    only.

    Parameters
    ----------
    y, mean, std : array-like of shape (n,)
        Outcomes, predicted means and predicted standard deviations.

    Examples
    --------
    >>> round(nlpd([0.0], [0.0], [1.0]), 6)
    0.918939
    """
    y_, mean_, std_ = _check_gaussian(y, mean, std)
    z = (y_ - mean_) / std_
    return float(np.mean(0.5 * z**2 + np.log(std_)) + 0.5 * LOG_2PI)


def joint_nll(y: ArrayLike, mean: ArrayLike, cov: ArrayLike) -> float:
    r"""Return the joint Gaussian negative log likelihood divided by n, the paper's Eq. (2).

    .. math:: \tfrac{1}{2n} \bigl( (y - m)^\top C^{-1} (y - m) + \log\det C + n \log 2\pi \bigr)

    With a diagonal C it equals :func:`nlpd`. It is meant for replicating the paper; to judge
    predictions of single rows, use :func:`nlpd`.

    Parameters
    ----------
    y, mean : array-like of shape (n,)
        Outcomes and predicted means.
    cov : array-like of shape (n, n)
        Predicted covariance of the outcomes, noise included.

    Examples
    --------
    >>> round(joint_nll([1.0, 0.0], [0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]]), 6)
    1.180351
    """
    y_, mean_ = _check_pair(y, mean)
    C = finite_array(cov, "cov")
    n = y_.shape[0]
    if C.shape != (n, n):
        raise InputError(f"cov must have shape ({n}, {n}) to go with y, got {C.shape}")
    if not np.allclose(C, C.T, rtol=1e-8, atol=1e-10 * float(np.abs(C).max())):
        raise InputError("cov must be symmetric")
    try:
        L = linalg.cholesky(C, lower=True)
    except linalg.LinAlgError as error:
        raise InputError(f"cov must be positive definite: {error}") from error
    whitened = linalg.solve_triangular(L, y_ - mean_, lower=True)
    half_logdet = np.log(np.diag(L)).sum()
    return float((0.5 * whitened @ whitened + half_logdet) / n + 0.5 * LOG_2PI)


def qice(
    y: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    std: ArrayLike | None = None,
    n_bins: int = 10,
    *,
    pit: ArrayLike | None = None,
) -> float:
    r"""Return the quantile interval coverage error, in percent.

    The predictive distribution of each row is divided into M bins of equal probability; r_m is the
    share of the outcomes that fall into the m-th bin of their own distribution.

    .. math:: \frac{100}{M} \sum_{m=1}^{M} \bigl| r_m - \tfrac{1}{M} \bigr|

    The expected score of a calibrated model is :func:`qice_floor`, not 0. The worst score is
    200 (M − 1) / M², which is 18 for ten bins.

    Parameters
    ----------
    y, mean, std : array-like of shape (n,), optional
        Outcomes, predicted means and standard deviations of a Gaussian predictive distribution.
    n_bins : int, default=10
        M, the number of bins.
    pit : array-like of shape (n,), optional
        Probability integral transform: the predictive distribution function at the outcome,
        F_i(y_i). Give it instead of mean and std if the distribution is not Gaussian.

    Examples
    --------
    Two outcomes, both in the lowest of two bins:

    >>> qice([-1.0, -2.0], [0.0, 0.0], [1.0, 1.0], n_bins=2)
    50.0
    >>> qice(pit=[0.1, 0.6], n_bins=2)
    0.0
    """
    check_bins(n_bins)
    if pit is None:
        if y is None or mean is None or std is None:
            raise InputError("give y, mean and std, or pit")
        y_, mean_, std_ = _check_gaussian(y, mean, std)
        u: Array = special.ndtr((y_ - mean_) / std_)
    else:
        if mean is not None or std is not None:
            raise InputError("give either mean and std, or pit, not both")
        u = _check_pit(pit)
        if y is not None:
            check_same_length(finite_vector(y, "y"), u, "pit")
    # A PIT of exactly 1 belongs to the last bin; without the minimum it would get index n_bins.
    bins = np.minimum((u * n_bins).astype(np.intp), n_bins - 1)
    shares = np.bincount(bins, minlength=n_bins) / u.shape[0]
    return float(100.0 * np.mean(np.abs(shares - 1.0 / n_bins)))


def qice_floor(n: int, n_bins: int = 10) -> float:
    r"""Return the expected QICE of a perfectly calibrated model on n test rows, in percent.

    Each bin's count is B ~ Binomial(n, 1/M), so the floor is 100 E|B/n − 1/M|. De Moivre's closed
    form of the binomial mean absolute deviation gives it exactly:

    .. math:: \frac{100}{n}\, 2 \nu (1 - p) \binom{n}{\nu} p^\nu (1 - p)^{n - \nu},
              \qquad p = 1/M, \quad \nu = \lfloor np \rfloor + 1

    Parameters
    ----------
    n : int
        Number of test rows.
    n_bins : int, default=10
        M, the number of bins.

    Examples
    --------
    >>> [round(qice_floor(n), 2) for n in (31, 51, 103, 819)]
    [4.25, 3.33, 2.37, 0.84]
    """
    check_bins(n_bins)
    if n < 1:
        raise InputError(f"n must be at least 1, got {n}")
    p = 1.0 / n_bins
    nu = n // n_bins + 1  # integer division: the floor of n * p must be exact
    return float(100.0 * 2.0 * nu * (1.0 - p) * stats.binom.pmf(nu, n, p) / n)


def randomized_pit(
    lower: ArrayLike, upper: ArrayLike, random_state: int | np.random.Generator = 0
) -> Array:
    r"""Return the randomised probability integral transform of a target with few distinct values.

    .. math:: u_i = F_i(a_i) + v_i \, \bigl( F_i(b_i) - F_i(a_i) \bigr),
              \qquad v_i \sim U(0, 1)

    An observed value may represent a whole cell from a to b, for example all numbers that are
    rounded to it. Under a continuous predictive distribution F it occurs with probability
    F(b) − F(a). For a calibrated model the u are uniformly distributed, which the values of F at
    the observed values are not. Pass them to :func:`qice` as ``pit``. A row lies inside the central
    interval of probability p if abs(u − 1/2) ≤ p/2.

    Parameters
    ----------
    lower, upper : array-like of shape (n,)
        The predictive distribution function at the lower and at the upper end of the cell of each
        outcome, F_i(a_i) and F_i(b_i): 0 for a cell without a lower end, 1 for one without an
        upper end.
    random_state : int or Generator, default=0
        Seed of the draws.

    Returns
    -------
    u : ndarray of shape (n,)

    Examples
    --------
    A fair coin, predicted with probability 1/2:

    >>> heads = np.random.default_rng(1).random(10_000) < 0.5
    >>> u = randomized_pit(np.where(heads, 0.5, 0.0), np.where(heads, 1.0, 0.5))
    >>> qice(pit=u) < 2 * qice_floor(10_000)
    True
    """
    low, high = _check_pit(lower, "lower"), _check_pit(upper, "upper")
    if high.shape != low.shape:
        raise InputError(f"upper has {high.shape[0]} rows, but lower has {low.shape[0]}")
    if np.any(low > high):
        i = int(np.argmax(low > high))
        raise InputError(f"lower[{i}] = {low[i]} exceeds upper[{i}] = {high[i]}")
    draws = np.random.default_rng(random_state).random(low.shape[0])
    # Rounding of the product must not lead outside of the cell.
    return np.clip(low + draws * (high - low), low, high)


def coverage(
    y: ArrayLike,
    mean: ArrayLike | None = None,
    std: ArrayLike | None = None,
    level: float = 0.95,
    *,
    interval: ArrayLike | None = None,
) -> float:
    r"""Return the share of the outcomes inside their interval; it should be close to ``level``.

    .. math:: \tfrac{1}{n} \sum_i \mathbf{1}[\, l_i \le y_i \le u_i \,]

    Parameters
    ----------
    y : array-like of shape (n,)
        Outcomes.
    mean, std : array-like of shape (n,), optional
        Means and standard deviations of a Gaussian predictive distribution, whose central interval
        is used.
    level : float, default=0.95
        Probability of the central interval; used with mean and std only.
    interval : array-like of shape (n, 2), optional
        Lower and upper ends, instead of mean and std.

    Examples
    --------
    >>> coverage([0.0, 1.9, 3.0, 0.5], [0, 0, 0, 0], [1, 1, 1, 1])
    0.75
    >>> coverage([0.0, 2.0], interval=[[-1, 1], [-1, 1]])
    0.5
    """
    y_, lower, upper = _check_bounds(y, mean, std, level, interval)
    return float(np.mean((lower <= y_) & (y_ <= upper)))


def interval_width(
    y: ArrayLike,
    mean: ArrayLike | None = None,
    std: ArrayLike | None = None,
    level: float = 0.95,
    *,
    interval: ArrayLike | None = None,
) -> float:
    r"""Return the mean width of the intervals, which should be read together with their coverage.

    .. math:: \tfrac{1}{n} \sum_i (u_i - l_i)

    Parameters
    ----------
    y, mean, std, level, interval
        As in :func:`coverage`, so that both can be called in the same way; the outcomes y are
        checked but not used.

    Examples
    --------
    >>> round(interval_width([0.0], [0.0], [1.0]), 4)
    3.9199
    >>> interval_width([0.0, 2.0], interval=[[-1, 1], [-1, 3]])
    3.0
    """
    _, lower, upper = _check_bounds(y, mean, std, level, interval)
    return float(np.mean(upper - lower))


def crps(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    r"""Return the continuous ranked probability score of Gaussian predictions, in the units of y.

    .. math:: \tfrac{1}{n} \sum_i \int (F_i(t) - \mathbf{1}[t \ge y_i])^2 \, dt
              = \tfrac{1}{n} \sum_i s_i \bigl( z_i (2\Phi(z_i) - 1) + 2\varphi(z_i)
                - \pi^{-1/2} \bigr)

    It grows only linearly with the distance of an outcome, :func:`nlpd` quadratically. As the std
    tends to 0, it tends to the absolute error.

    Parameters
    ----------
    y, mean, std : array-like of shape (n,)
        Outcomes, predicted means and predicted standard deviations.

    Examples
    --------
    >>> round(crps([0.0], [0.0], [1.0]), 6)
    0.233695
    """
    y_, mean_, std_ = _check_gaussian(y, mean, std)
    z = (y_ - mean_) / std_
    phi = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
    per_row = std_ * (z * (2.0 * special.ndtr(z) - 1.0) + 2.0 * phi - 1.0 / np.sqrt(np.pi))
    return float(np.mean(per_row))


def crps_from_quantiles(y: ArrayLike, quantiles: ArrayLike, levels: ArrayLike) -> float:
    r"""Return the continuous ranked probability score of any distribution, from its quantiles.

    .. math:: \tfrac{1}{n} \sum_i 2 \int_0^1 \rho_\tau \bigl( y_i - F_i^{-1}(\tau) \bigr) \, d\tau
              \approx 2 \cdot \operatorname{pinball}, \qquad
              \tau_k = \frac{k - 1/2}{K}, \quad k = 1, \dots, K

    with the pinball loss ρ of :func:`pinball`. K levels leave out the outermost part of the tails:
    for a Gaussian and 999 levels, this changes the score by less than a thousandth of the standard
    deviation.

    Parameters
    ----------
    y : array-like of shape (n,)
        Outcomes.
    quantiles : array-like of shape (n, K)
        Predicted quantiles.
    levels : array-like of shape (K,)
        The levels of the quantiles: the midpoints of K equal parts of the unit interval, in
        increasing order.

    Examples
    --------
    >>> levels = (np.arange(999) + 0.5) / 999
    >>> quantiles = special.ndtri(levels)[np.newaxis]
    >>> abs(crps_from_quantiles([0.3], quantiles, levels) - crps([0.3], [0.0], [1.0])) < 1e-3
    True
    """
    tau = np.atleast_1d(finite_array(levels, "levels"))
    midpoints = (np.arange(tau.size) + 0.5) / tau.size
    # With any other levels, the sum would weight some parts of the distribution more than others.
    if tau.ndim != 1 or not np.allclose(tau, midpoints, rtol=0.0, atol=1e-3 / tau.size):
        raise InputError(
            f"levels must be the midpoints (k - 1/2) / K of K equal parts of the unit interval, "
            f"here {_example(midpoints)}; got {_example(tau)}"
        )
    return 2.0 * pinball(y, quantiles, tau)


def pinball(y: ArrayLike, quantiles: ArrayLike, levels: ArrayLike) -> float:
    r"""Return the pinball loss of predicted quantiles, averaged over the rows and the levels.

    .. math:: \tfrac{1}{nk} \sum_{i,j} \max\bigl( \tau_j (y_i - q_{ij}),
              (\tau_j - 1)(y_i - q_{ij}) \bigr)

    Parameters
    ----------
    y : array-like of shape (n,)
        Outcomes.
    quantiles : array-like of shape (n, k), or (n,) for one level
        Predicted quantiles.
    levels : array-like of shape (k,), or float
        Their levels τ, each strictly between 0 and 1.

    Examples
    --------
    >>> pinball([1.0], [[0.0, 3.0]], [0.25, 0.75])
    0.375
    """
    y_ = finite_vector(y, "y")
    tau = np.atleast_1d(finite_array(levels, "levels"))
    if tau.ndim != 1 or not np.all((tau > 0.0) & (tau < 1.0)):
        raise InputError(f"levels must lie strictly between 0 and 1, got {tau.tolist()}")
    q = finite_array(quantiles, "quantiles")
    q = q[:, np.newaxis] if q.ndim == 1 else q
    if q.shape != (y_.shape[0], tau.shape[0]):
        raise InputError(
            f"quantiles must have shape ({y_.shape[0]}, {tau.shape[0]}), one row per outcome and "
            f"one column per level; got {q.shape}"
        )
    error = y_[:, np.newaxis] - q
    return float(np.mean(np.maximum(tau * error, (tau - 1.0) * error)))


def hc_rmse(y: ArrayLike, mean: ArrayLike, std: ArrayLike, q: float = 0.1) -> float:
    r"""Return the high-certainty RMSE: over the rows whose std is at most its q quantile.

    .. math:: \sqrt{\operatorname{mean} \{ (y_i - m_i)^2 : s_i \le \hat s_q \}}

    The quantile is taken over the given std; all rows tied with it are included.

    Parameters
    ----------
    y, mean, std : array-like of shape (n,)
        Outcomes, predicted means and predicted standard deviations.
    q : float, default=0.1
        Share of the rows, strictly between 0 and 1.

    Examples
    --------
    >>> hc_rmse([1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [0.1, 0.2, 0.3], q=0.1)
    1.0
    """
    y_, mean_, std_ = _check_gaussian(y, mean, std)
    return _rmse_of_lowest_keys(y_ - mean_, std_, q)


def lc_rmse(y: ArrayLike, mean: ArrayLike, std: ArrayLike, q: float = 0.1) -> float:
    r"""Return the low-certainty RMSE: over the rows whose std is at least its 1 − q quantile.

    .. math:: \sqrt{\operatorname{mean} \{ (y_i - m_i)^2 : s_i \ge \hat s_{1-q} \}}

    The paper prints a strict inequality, which selects no row if every std is the same. Here ties
    are included, so that a constant std gives HC = LC = RMSE. A low value is not better on its own:
    what counts is that it exceeds :func:`hc_rmse`.

    Parameters
    ----------
    y, mean, std : array-like of shape (n,)
        Outcomes, predicted means and predicted standard deviations.
    q : float, default=0.1
        Share of the rows, strictly between 0 and 1.

    Examples
    --------
    >>> lc_rmse([1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [0.1, 0.2, 0.3], q=0.1)
    3.0
    """
    y_, mean_, std_ = _check_gaussian(y, mean, std)
    return _rmse_of_lowest_keys(y_ - mean_, -std_, q)


def evaluate(
    y: ArrayLike, mean: ArrayLike, std: ArrayLike, *, y_train: ArrayLike | None = None
) -> dict[str, float]:
    """Return every score of a Gaussian predictive distribution, by name.

    Parameters
    ----------
    y, mean, std : array-like of shape (n,)
        Outcomes, predicted means and predicted standard deviations.
    y_train : array-like of shape (m,), optional
        The training target. If given, ``"nlpd_standardized"`` is the NLPD of the target divided
        by its standard deviation s (with divisor m): ``nlpd - log(s)``, comparable between tables.

    Returns
    -------
    dict of str to float
        ``rmse, nlpd, nlpd_standardized (with y_train), crps, pinball`` (mean over the levels
        0.05, 0.25, 0.5, 0.75, 0.95), ``qice, qice_floor`` (percent, ten bins),
        ``coverage, interval_width`` (at 95 %), ``hc_rmse, lc_rmse`` (q = 0.1).
        :func:`joint_nll` is not included, as it needs the covariance.

    Examples
    --------
    >>> scores = evaluate([0.0, 1.0], [0.0, 0.0], [1.0, 1.0], y_train=[-2.0, 2.0])
    >>> scores["coverage"]
    1.0
    >>> round(scores["nlpd"] - scores["nlpd_standardized"], 6)  # log 2
    0.693147
    """
    y_, mean_, std_ = _check_gaussian(y, mean, std)
    scores = {"rmse": rmse(y_, mean_), "nlpd": nlpd(y_, mean_, std_)}
    if y_train is not None:
        scores["nlpd_standardized"] = scores["nlpd"] - float(np.log(_train_scale(y_train)))
    levels = np.asarray(PINBALL_LEVELS)
    quantiles = mean_[:, np.newaxis] + std_[:, np.newaxis] * special.ndtri(levels)
    scores["crps"] = crps(y_, mean_, std_)
    scores["pinball"] = pinball(y_, quantiles, levels)
    scores["qice"] = qice(y_, mean_, std_)
    scores["qice_floor"] = qice_floor(y_.shape[0])
    scores["coverage"] = coverage(y_, mean_, std_)
    scores["interval_width"] = interval_width(y_, mean_, std_)
    scores["hc_rmse"] = hc_rmse(y_, mean_, std_)
    scores["lc_rmse"] = lc_rmse(y_, mean_, std_)
    return scores


def _train_scale(y_train: ArrayLike) -> float:
    scale = float(np.std(finite_vector(y_train, "y_train")))
    if scale == 0.0:
        raise InputError(
            "y_train is constant, so that the target cannot be standardised with it; "
            "leave y_train out"
        )
    return scale


def _example(values: Array) -> str:
    """Return the first few values as text for a message."""
    listed = ", ".join(f"{value:g}" for value in values.ravel()[:3])
    return f"[{listed}, …]" if values.size > 3 else f"[{listed}]"


def _rmse_of_lowest_keys(error: Array, key: Array, q: float) -> float:
    """Return the RMSE of the errors whose key is at most the q quantile of the keys."""
    if not 0.0 < q < 1.0:
        raise InputError(f"q must lie strictly between 0 and 1, got {q}")
    chosen = error[key <= np.quantile(key, q)]
    return float(np.sqrt(np.mean(chosen**2)))


def _check_bounds(
    y: ArrayLike,
    mean: ArrayLike | None,
    std: ArrayLike | None,
    level: float,
    interval: ArrayLike | None,
) -> tuple[Array, Array, Array]:
    """Return y and the lower and upper ends, from mean and std or from the intervals."""
    if interval is not None:
        if mean is not None or std is not None:
            raise InputError("give either mean and std, or interval, not both")
        return check_interval(y, interval)
    if mean is None or std is None:
        raise InputError("give both mean and std, or interval")
    if not 0.0 < level < 1.0:
        raise InputError(f"level must lie strictly between 0 and 1, got {level}")
    y_, mean_, std_ = _check_gaussian(y, mean, std)
    half = float(special.ndtri(0.5 + 0.5 * level)) * std_
    return y_, mean_ - half, mean_ + half


def _check_gaussian(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> tuple[Array, Array, Array]:
    y_, mean_ = _check_pair(y, mean)
    std_ = finite_vector(std, "std")
    check_same_length(y_, std_, "std")
    if np.any(std_ <= 0.0):
        i = int(np.argmax(std_ <= 0.0))
        raise InputError(f"std must be positive, but std[{i}] = {std_[i]}")
    return y_, mean_, std_


def _check_pair(y: ArrayLike, mean: ArrayLike) -> tuple[Array, Array]:
    y_, mean_ = finite_vector(y, "y"), finite_vector(mean, "mean")
    check_same_length(y_, mean_, "mean")
    return y_, mean_


def _check_pit(pit: ArrayLike, name: str = "pit") -> Array:
    u = finite_vector(pit, name)
    outside = (u < 0.0) | (u > 1.0)
    if np.any(outside):
        i = int(np.argmax(outside))
        raise InputError(f"{name} must lie between 0 and 1, but {name}[{i}] = {u[i]}")
    return u
