r"""Coverage of intervals within groups of rows.

Intervals may contain 95 % of all outcomes and still fail a group: too narrow in one, too wide in
another. If intervals hold in a group of :math:`n_g` rows, the number of outcomes inside is
Binomial(:math:`n_g`, level), so a share of the groups lies outside of any band by chance. The band
of each group is therefore widened such that *all* G groups lie inside theirs with probability
``confidence`` at least. Groups have no row in common, so their counts are independent and each band
has the probability :math:`\text{confidence}^{1/G}` (Šidák's correction).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from twostagegp.errors import InputError
from twostagegp.metrics.checks import check_interval, check_same_length

__all__ = ["GroupCoverage", "coverage_by_group"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class GroupCoverage:
    """Coverage of intervals in each of G groups.

    Attributes
    ----------
    groups : list
        Labels, sorted if they can be; a missing label is a group of its own.
    rows : integer array of shape (G,)
        Number of rows of each group.
    coverage : array of shape (G,)
        Share of the group's outcomes that are inside their interval.
    low, high : arrays of shape (G,)
        The band of coverages that chance allows if the intervals hold in every group.
    level : float
        Nominal coverage.
    """

    groups: list[Any]
    rows: NDArray[np.int64]
    coverage: Array
    low: Array
    high: Array
    level: float

    @property
    def outside(self) -> NDArray[np.bool_]:
        """Whether the coverage of each group lies outside of its band, shape (G,)."""
        # Ends are counts divided by rows like the coverage, so that equal counts are equal here.
        flags: NDArray[np.bool_] = (self.coverage < self.low) | (self.coverage > self.high)
        return flags

    @property
    def worst(self) -> float:
        """Smallest coverage of a group."""
        return float(self.coverage.min())

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per group.

        Examples
        --------
        >>> found = coverage_by_group([0, 5], [-1, -1], [1, 1], ["a", "b"], level=0.8)
        >>> found.to_frame()
               rows  coverage  low  high  outside
        group
        a         1       1.0  0.0   1.0    False
        b         1       0.0  0.0   1.0    False
        """
        columns = {
            "rows": self.rows,
            "coverage": self.coverage,
            "low": self.low,
            "high": self.high,
            "outside": self.outside,
        }
        return pd.DataFrame(columns, index=pd.Index(self.groups, name="group"))


def coverage_by_group(
    y: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike | None = None,
    groups: Any = None,
    level: float = 0.95,
    *,
    confidence: float = 0.95,
) -> GroupCoverage:
    r"""Return the coverage of intervals in each group, and the band that chance allows.

    .. math:: \frac{1}{n_g} \sum_{i \in g} \mathbf{1}[\, l_i \le y_i \le u_i \,]

    The band is the central interval of Binomial(:math:`n_g`, level), exact, of probability
    :math:`\text{confidence}^{1/G}` at least for G groups: if the intervals hold in every group, all
    coverages lie in their bands with probability ``confidence`` at least.

    Parameters
    ----------
    y : array-like of shape (n,)
        Outcomes.
    lower : array-like of shape (n,) or (n, 2)
        Lower ends; or both ends, as :meth:`TwoStageGPRegressor.predict_interval` returns them.
    upper : array-like of shape (n,), optional
        Upper ends, unless ``lower`` has both.
    groups : array-like of shape (n,)
        One label per row, such as a column of a data frame.
    level : float, default=0.95
        Nominal coverage of the intervals.
    confidence : float, default=0.95
        Probability of all bands together.

    Examples
    --------
    >>> import numpy as np
    >>> z = np.random.default_rng(0).normal(size=2000) * np.repeat([0.5, 1.3], 1000)
    >>> ends = np.tile([-1.96, 1.96], (2000, 1))
    >>> coverage_by_group(z, ends, groups=np.zeros(2000)).coverage.round(3).tolist()
    [0.927]
    >>> found = coverage_by_group(z, ends, groups=np.repeat(["calm", "wild"], 1000))
    >>> found.coverage.round(3).tolist(), found.outside.tolist()
    ([1.0, 0.854], [True, True])
    """
    for name, value in (("level", level), ("confidence", confidence)):
        if not 0.0 < value < 1.0:
            raise InputError(f"{name} must lie strictly between 0 and 1, got {value}")
    if groups is None:
        raise InputError("groups is missing; give one label per row, such as groups=X['region']")
    y_, low, high = check_interval(y, _both_ends(lower, upper))
    codes, labels = _codes(groups)
    check_same_length(y_, codes, "groups")
    rows = np.bincount(codes, minlength=len(labels))
    inside = np.bincount(codes, weights=(low <= y_) & (y_ <= high), minlength=len(labels))
    each = confidence ** (1.0 / len(labels))
    least, most = stats.binom.interval(each, rows, level)
    return GroupCoverage(labels, rows, inside / rows, least / rows, most / rows, level)


def _both_ends(lower: ArrayLike, upper: ArrayLike | None) -> ArrayLike:
    if upper is None:
        return lower
    low, high = np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64)
    if low.ndim != 1 or low.shape != high.shape:
        raise InputError(
            f"lower and upper must have the same shape (n,), got {low.shape} and {high.shape}; "
            "or give both ends as one array of shape (n, 2) and no upper"
        )
    return np.column_stack([low, high])


def _codes(groups: Any) -> tuple[NDArray[np.intp], list[Any]]:
    """Return a group number for each row, and the label of each group that has rows."""
    series = groups if isinstance(groups, pd.Series) else pd.Series(np.asarray(groups))
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.cat.remove_unused_categories()
    try:
        codes, labels = pd.factorize(series, sort=True, use_na_sentinel=False)
    except TypeError:  # labels of several types have no order
        codes, labels = pd.factorize(series, use_na_sentinel=False)
    return np.asarray(codes, dtype=np.intp), list(labels)
