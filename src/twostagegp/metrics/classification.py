r"""Scores of class probabilities, also available from :mod:`twostagegp.metrics`.

A classifier with uncertainty predicts a probability for every class. As for regression, the scores
answer three separate questions:

- **Are the probabilities right?** Proper scores reward calibration and sharpness together:
  :func:`log_loss` and :func:`brier`.
- **Is the confidence calibrated?** Of the predictions made with confidence 0.8, are four in five
  right? :func:`ece`.
- **Are the certain predictions the correct ones?** :func:`risk_coverage` leaves out the least
  certain rows, more and more of them, and :func:`certainty_split` compares the rows that the model
  calls certain with the others.

All scores take the same arguments. ``y`` has shape (n,) and holds labels: numbers, strings or
booleans. ``proba`` has shape (n, K), with rows that sum to 1. ``classes`` has the K labels in the
order of the columns, as in ``model.classes_``. If it is omitted, the classes are the sorted labels
of ``y``, in which each class must then occur. The predicted class is the one with the largest
probability, and the first of them in case of a tie. Lower is better unless the docstring says
otherwise.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from twostagegp.data.checks import check_choice
from twostagegp.errors import InputError
from twostagegp.metrics.checks import check_bins, check_same_length, finite_array, finite_vector

__all__ = [
    "CertaintySplit",
    "RiskCoverage",
    "brier",
    "certainty_split",
    "ece",
    "evaluate_classification",
    "log_loss",
    "risk_coverage",
]

Array = NDArray[np.float64]
Codes = NDArray[np.intp]
Flags = NDArray[np.bool_]

#: Smallest probability of which the log loss takes a logarithm: no row costs more than 36 nats.
_FLOOR = float(np.finfo(np.float64).eps)
#: Largest rounding error by which a probability may lie outside [0, 1]; it is then clipped.
_ROUNDING = 1e-6
#: Largest deviation of a row's sum from 1: half precision has a relative error of up to 5e-4.
_SUM_ROUNDING = 1e-3
#: Largest number of labels listed in a message.
_LISTED = 10


def log_loss(y: ArrayLike, proba: ArrayLike, classes: ArrayLike | None = None) -> float:
    r"""Return the mean negative log probability of the true class, in nats.

    .. math:: -\tfrac{1}{n} \sum_i \log \max(p_{i, y_i}, \varepsilon),
              \qquad \varepsilon = 2^{-52}

    The floor ε keeps the score finite if the true class was predicted with probability 0; such a
    row costs 36 nats. Equal probabilities for K classes score log K.

    Parameters
    ----------
    y : array-like of shape (n,)
        Labels.
    proba : array-like of shape (n, K)
        Predicted probabilities of the classes.
    classes : array-like of shape (K,), optional
        The label of each column; the sorted labels of y by default.

    Returns
    -------
    float

    Examples
    --------
    >>> round(log_loss(["cat", "dog"], [[0.5, 0.5], [0.75, 0.25]]), 6)  # (log 2 + log 4) / 2
    1.039721
    """
    codes, p = _check_proba(y, proba, classes)
    p_true = p[np.arange(codes.shape[0]), codes]
    return float(-np.mean(np.log(np.maximum(p_true, _FLOOR))))


def brier(y: ArrayLike, proba: ArrayLike, classes: ArrayLike | None = None) -> float:
    r"""Return the Brier score summed over all classes, between 0 and 2.

    .. math:: \tfrac{1}{n} \sum_i \sum_{k=1}^{K} \bigl( p_{ik} - \mathbf{1}[y_i = k] \bigr)^2

    For two classes it is twice the binary Brier score, which uses the error of one column only.

    Parameters
    ----------
    y, proba, classes
        As in :func:`log_loss`.

    Returns
    -------
    float

    Examples
    --------
    >>> brier([0, 1], [[0.5, 0.5], [1.0, 0.0]])  # (1/4 + 1/4 + 1 + 1) / 2
    1.25
    """
    codes, p = _check_proba(y, proba, classes)
    error = p.copy()
    error[np.arange(codes.shape[0]), codes] -= 1.0
    return float(np.mean(np.sum(error**2, axis=1)))


def ece(
    y: ArrayLike,
    proba: ArrayLike,
    classes: ArrayLike | None = None,
    n_bins: int = 15,
    strategy: str = "width",
) -> float:
    r"""Return the expected calibration error of the confidence.

    The confidence is the probability of the predicted class, :math:`c_i = \max_k p_{ik}`. The rows
    are divided into M bins by their confidence. In each bin the share of correct predictions is
    compared with the mean confidence:

    .. math:: \sum_{m=1}^{M} \frac{|B_m|}{n}
              \bigl| \operatorname{acc}(B_m) - \operatorname{conf}(B_m) \bigr|
              = \tfrac{1}{n} \sum_{m=1}^{M}
              \Bigl| \sum_{i \in B_m} \mathbf{1}[\hat y_i = y_i] - c_i \Bigr|

    It lies between 0 and 1. It does not measure sharpness: predicting the overall class frequencies
    for every row scores about 0. On a finite test set even a perfect model scores above 0, and more
    so with more bins.

    Parameters
    ----------
    y, proba, classes
        As in :func:`log_loss`.
    n_bins : int, default=15
        M, the number of bins.
    strategy : {"width", "mass"}, default="width"
        ``"width"``: the bins are ((m − 1)/M, m/M]. ``"mass"``: each bin has the same number of
        rows, except that rows of equal confidence are kept in one bin.

    Returns
    -------
    float

    Examples
    --------
    Four predictions with probability 1, three of them correct:

    >>> ece([0, 0, 0, 1], [[1.0, 0.0]] * 4)
    0.25
    """
    check_bins(n_bins)
    check_choice("strategy", strategy, ("width", "mass"))
    codes, p = _check_proba(y, proba, classes)
    confidence = p.max(axis=1)
    correct = p.argmax(axis=1) == codes
    if strategy == "width":
        ends = _equal_width_ends(n_bins)
    else:
        ends = _equal_mass_ends(confidence, n_bins)
    bins = np.searchsorted(ends, confidence, side="left")
    gaps = np.bincount(bins, weights=correct - confidence)
    return float(np.sum(np.abs(gaps)) / codes.shape[0])


@dataclass(frozen=True, eq=False)  # eq: arrays have no single truth value to compare by
class RiskCoverage:
    """Error rate of the k most certain rows, for k = 1, …, n.

    Attributes
    ----------
    coverage : ndarray of shape (n,)
        Share of the rows that are kept, k/n: 1/n, 2/n, …, 1.
    risk : ndarray of shape (n,)
        Error rate among the rows that are kept. The last value is the error rate of all rows.
    area : float
        Area under the risk–coverage curve (AURC): the mean of ``risk``.
    excess : float
        ``area`` minus the area of the same predictions in the best order, in which every correct
        one comes before every wrong one. It is 0 if the certainty of every correct prediction
        exceeds that of every wrong one.
    """

    coverage: Array = field(repr=False)
    risk: Array = field(repr=False)
    area: float
    excess: float

    def plot(self, ax: Any = None) -> Any:
        """Draw the risk against the coverage, with the best and a random order for comparison.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            New axes by default.

        Returns
        -------
        ax : matplotlib Axes

        Examples
        --------
        >>> ax = risk_coverage([0, 1], [[0.9, 0.1], [0.6, 0.4]]).plot()
        >>> ax.get_legend_handles_labels()[1]
        ['random order', 'best order', 'by certainty']
        """
        # Imported here because the scores alone do not need matplotlib.
        from matplotlib.figure import Figure

        from twostagegp.plotting import LEGEND, MODEL, MUTED, TRUTH, tidy

        if ax is None:
            ax = Figure(figsize=(5.2, 3.6), layout="constrained").subplots()
        n, rate = self.risk.shape[0], float(self.risk[-1])
        best = _best_risk(n, round(rate * n))
        ax.axhline(rate, color=MUTED, linewidth=1.0, dashes=(4, 2), label="random order")
        ax.plot(self.coverage, best, color=TRUTH, linewidth=1.0, dashes=(4, 2), label="best order")
        ax.plot(self.coverage, self.risk, color=MODEL, linewidth=1.6, label="by certainty")
        tidy(ax, "share of rows answered, most certain first", "error rate among them")
        ax.set_xlim(0.0, 1.0)
        ax.set_ylim(bottom=0.0)
        ax.legend(loc="best", **LEGEND)
        return ax


def risk_coverage(
    y: ArrayLike,
    proba: ArrayLike,
    certainty: ArrayLike | None = None,
    classes: ArrayLike | None = None,
) -> RiskCoverage:
    r"""Return the error rate of the k most certain rows for every k, and its mean (AURC).

    With the rows in decreasing order of certainty, the risk at coverage k/n and the area under the
    risk–coverage curve are

    .. math:: r_k = \tfrac{1}{k} \sum_{i=1}^{k} \mathbf{1}[\hat y_i \ne y_i], \qquad
              \operatorname{AURC} = \tfrac{1}{n} \sum_{k=1}^{n} r_k

    The order of rows with equal certainty is arbitrary, so :math:`r_k` is averaged over all their
    orders. If m rows are tied, e of them wrong, and the N more certain rows contain E errors, then

    .. math:: r_{N + j} = \frac{E + j \, e / m}{N + j}, \qquad j = 1, \dots, m

    The result therefore does not depend on the order of the rows, and with a constant certainty the
    risk is constant, equal to the error rate.

    Parameters
    ----------
    y, proba, classes
        As in :func:`log_loss`.
    certainty : array-like of shape (n,), optional
        Any number that is larger for rows that are more certain; by default the largest probability
        of each row.

    Returns
    -------
    RiskCoverage
        With ``coverage, risk, area, excess`` and ``plot()``.

    Examples
    --------
    The two most certain predictions are correct, the least certain one is wrong:

    >>> curve = risk_coverage([0, 1, 1], [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> curve.risk
    array([0.        , 0.        , 0.33333333])
    >>> curve.excess
    0.0

    A constant certainty, which does not order the rows:

    >>> risk_coverage([0, 1], [[0.9, 0.1], [0.6, 0.4]], certainty=[1.0, 1.0]).risk
    array([0.5, 0.5])
    """
    codes, p = _check_proba(y, proba, classes)
    wrong = p.argmax(axis=1) != codes
    key = p.max(axis=1) if certainty is None else finite_vector(certainty, "certainty")
    check_same_length(codes, key, "certainty")
    n = codes.shape[0]
    risk = _expected_risk(wrong, key)
    area = float(np.mean(risk))
    excess = area - float(np.mean(_best_risk(n, int(wrong.sum()))))
    return RiskCoverage(np.arange(1, n + 1) / n, risk, area, excess)


@dataclass(frozen=True)
class CertaintySplit:
    """Accuracy on the rows that a model calls certain, and on the others.

    Attributes
    ----------
    accuracy_certain, accuracy_uncertain : float
        Share of correct predictions in each group; NaN for an empty group.
    share_certain : float
        Share of the rows that are certain.
    n_certain, n_uncertain : int
        Number of rows in each group.
    """

    accuracy_certain: float
    accuracy_uncertain: float
    share_certain: float
    n_certain: int
    n_uncertain: int


def certainty_split(y: ArrayLike, predicted: ArrayLike, certain: ArrayLike) -> CertaintySplit:
    r"""Return the accuracy on the certain rows C and on the uncertain rows.

    .. math:: \frac{1}{|C|} \sum_{i \in C} \mathbf{1}[\hat y_i = y_i], \qquad
              \frac{1}{n - |C|} \sum_{i \notin C} \mathbf{1}[\hat y_i = y_i]

    Higher is better for both, and the first should exceed the second. Compare them together with
    the share of certain rows, :math:`|C| / n`: a model can always gain accuracy by calling fewer
    rows certain.

    Parameters
    ----------
    y, predicted : array-like of shape (n,)
        Labels, and predicted labels.
    certain : array-like of shape (n,), of bool
        Whether the model calls a row certain.

    Returns
    -------
    CertaintySplit
        With ``accuracy_certain, accuracy_uncertain, share_certain, n_certain, n_uncertain``.

    Examples
    --------
    >>> split = certainty_split(list("aabb"), list("aaba"), [True, True, False, False])
    >>> split.accuracy_certain, split.accuracy_uncertain, split.share_certain
    (1.0, 0.5, 0.5)
    """
    codes, labels = _check_labels(y, "y")
    predicted_codes, predicted_labels = _check_labels(predicted, "predicted")
    check_same_length(codes, predicted_codes, "predicted")
    _check_same_kind(labels, predicted_labels)
    position = {label: k for k, label in enumerate(labels)}
    # Predicted labels that do not occur in y get code -1, which equals no row's code.
    lookup = np.array([position.get(label, -1) for label in predicted_labels], dtype=np.intp)
    return _split(lookup[predicted_codes] == codes, certain)


def evaluate_classification(
    y: ArrayLike,
    proba: ArrayLike,
    classes: ArrayLike | None = None,
    certain: ArrayLike | None = None,
) -> dict[str, float]:
    """Return every score of predicted class probabilities, by name.

    Parameters
    ----------
    y, proba, classes
        As in :func:`log_loss`.
    certain : array-like of shape (n,), of bool, optional
        Whether the model calls a row certain.

    Returns
    -------
    dict of str to float
        ``accuracy`` (higher is better), ``log_loss, brier, ece`` (15 bins of equal width) and
        ``aurc``, the area of :func:`risk_coverage` by the largest probability. With ``certain``
        also the fields of :class:`CertaintySplit`.

    Examples
    --------
    >>> scores = evaluate_classification([0, 1], [[0.75, 0.25], [0.5, 0.5]], certain=[True, False])
    >>> scores["accuracy"], scores["brier"], scores["accuracy_certain"]
    (0.5, 0.3125, 1.0)
    """
    codes, p = _check_proba(y, proba, classes)
    columns = np.arange(p.shape[1])
    correct = p.argmax(axis=1) == codes
    scores: dict[str, float] = {
        "accuracy": float(np.mean(correct)),
        "log_loss": log_loss(codes, p, columns),
        "brier": brier(codes, p, columns),
        "ece": ece(codes, p, columns),
        "aurc": risk_coverage(codes, p, classes=columns).area,
    }
    if certain is not None:
        scores |= asdict(_split(correct, certain))
    return scores


def _equal_width_ends(n_bins: int) -> Array:
    """Return the upper ends of all bins of equal width but the last, shape (n_bins - 1,)."""
    return np.arange(1, n_bins) / n_bins


def _equal_mass_ends(confidence: Array, n_bins: int) -> Array:
    """Return the upper ends of all bins of equal mass but the last, shape (n_bins - 1,).

    The m-th end is the ⌈n m / M⌉-th smallest confidence.
    """
    n = confidence.shape[0]
    # Integer arithmetic, so that the ceiling is exact.
    ranks = -(-n * np.arange(1, n_bins) // n_bins)
    ends: Array = np.sort(confidence)[ranks - 1]
    return ends


def _expected_risk(wrong: Flags, certainty: Array) -> Array:
    """Return the risk at every coverage, shape (n,), averaged over all orders of tied rows."""
    n = wrong.shape[0]
    _, group, size = np.unique(-certainty, return_inverse=True, return_counts=True)
    errors = np.bincount(group, weights=wrong)
    before = np.cumsum(size) - size
    # For each rank: the group of tied rows it belongs to, and its position j in that group.
    tied = np.repeat(np.arange(size.shape[0]), size)
    rank = np.arange(1, n + 1)
    j = rank - before[tied]
    expected = (np.cumsum(errors) - errors)[tied] + j * errors[tied] / size[tied]
    risk: Array = expected / rank
    return risk


def _best_risk(n: int, n_wrong: int) -> Array:
    """Return the risk at every coverage, shape (n,), if all errors come last."""
    rank = np.arange(1, n + 1)
    return np.maximum(rank - (n - n_wrong), 0) / rank


def _split(correct: Flags, certain: ArrayLike) -> CertaintySplit:
    chosen = _check_flags(certain)
    check_same_length(correct, chosen, "certain")
    n_certain = int(chosen.sum())
    return CertaintySplit(
        accuracy_certain=_share(correct[chosen]),
        accuracy_uncertain=_share(correct[~chosen]),
        share_certain=n_certain / chosen.shape[0],
        n_certain=n_certain,
        n_uncertain=chosen.shape[0] - n_certain,
    )


def _share(flags: Flags) -> float:
    return float(np.mean(flags)) if flags.size else float("nan")


def _check_proba(y: ArrayLike, proba: ArrayLike, classes: ArrayLike | None) -> tuple[Codes, Array]:
    """Return the column of each row's class, shape (n,), and the probabilities, shape (n, K)."""
    codes, labels = _check_labels(y, "y")
    p = _check_probabilities(proba)
    check_same_length(codes, p, "proba")
    n_columns = p.shape[1]
    columns = _sorted(labels, n_columns) if classes is None else _check_classes(classes, n_columns)
    position = {label: k for k, label in enumerate(columns)}
    for code, label in enumerate(labels):
        if label not in position:
            row = int(np.argmax(codes == code))
            raise InputError(
                f"y[{row}] = {_name(label)} is not among classes {_names(columns)}; "
                "give the labels of all columns of proba, as in model.classes_"
            )
    return np.array([position[label] for label in labels], dtype=np.intp)[codes], p


def _check_probabilities(proba: ArrayLike) -> Array:
    p = finite_array(proba, "proba")
    if p.ndim == 1:
        raise InputError(
            f"proba must have shape (n, K), one column per class, got {p.shape}; "
            "for two classes give both columns: np.column_stack([1 - p, p])"
        )
    if p.ndim != 2 or p.shape[1] == 0:
        raise InputError(f"proba must have shape (n, K), one column per class, got {p.shape}")
    outside = (p < -_ROUNDING) | (p > 1.0 + _ROUNDING)
    if outside.any():
        i, k = (int(index) for index in np.argwhere(outside)[0])
        raise InputError(
            f"proba must lie between 0 and 1, but proba[{i}, {k}] = {p[i, k]}; "
            "convert scores or logits to probabilities first, for example by scipy.special.softmax"
        )
    total = p.sum(axis=1)
    off = np.abs(total - 1.0) > _SUM_ROUNDING
    if off.any():
        i = int(np.argmax(off))
        raise InputError(
            f"each row of proba must sum to 1, but row {i} sums to {total[i]:g}; "
            "add the missing column if there is one, otherwise divide each row by its sum"
        )
    return np.clip(p, 0.0, 1.0)


def _check_labels(values: ArrayLike, name: str) -> tuple[Codes, list[Hashable]]:
    """Return the code of each row's label, shape (n,), and the distinct labels it indexes."""
    # dtype=object: NumPy would otherwise convert a missing label among strings to "nan".
    array = np.asarray(values, dtype=object)
    if array.ndim != 1:
        raise InputError(f"{name} must have shape (n,), got {array.shape}")
    if array.shape[0] == 0:
        raise InputError(f"{name} is empty")
    codes, labels = pd.factorize(array)
    if (codes < 0).any():
        row = int(np.argmax(codes < 0))
        raise InputError(
            f"{name} must not have missing labels, but {name}[{row}] = {array[row]}; "
            "remove such rows"
        )
    return codes.astype(np.intp, copy=False), list(labels)


def _check_classes(classes: ArrayLike, n_columns: int) -> list[Hashable]:
    codes, labels = _check_labels(classes, "classes")
    if codes.shape[0] != n_columns:
        raise InputError(
            f"classes has {codes.shape[0]} labels, but proba has {n_columns} columns; "
            "give one label per column"
        )
    if len(labels) != n_columns:
        repeated = labels[int(np.argmax(np.bincount(codes) > 1))]
        raise InputError(
            f"classes has {_name(repeated)} more than once; give each column its own label"
        )
    return labels


def _sorted(labels: list[Hashable], n_columns: int) -> list[Hashable]:
    if len(labels) != n_columns:
        raise InputError(
            f"y holds {len(labels)} distinct labels, but proba has {n_columns} columns; "
            "give classes, the label of each column, as in model.classes_"
        )
    try:
        return sorted(labels)  # type: ignore[type-var]
    except TypeError as error:
        raise InputError(
            f"the labels {_names(labels)} of y cannot be sorted; "
            "give classes, the label of each column"
        ) from error


def _check_same_kind(labels: Sequence[Hashable], predicted: Sequence[Hashable]) -> None:
    """Raise if one side holds only strings and the other none: no prediction could be right."""
    if {isinstance(label, str) for label in labels}.isdisjoint(
        isinstance(label, str) for label in predicted
    ):
        raise InputError(
            f"one of y and predicted holds strings and the other does not: y has {_names(labels)}, "
            f"predicted has {_names(predicted)}; give both as labels, as in model.predict(X)"
        )


def _check_flags(certain: ArrayLike) -> Flags:
    values = finite_vector(certain, "certain")
    other = (values != 0.0) & (values != 1.0)
    if other.any():
        i = int(np.argmax(other))
        raise InputError(
            f"certain must hold True and False only, but certain[{i}] = {values[i]}; "
            "compare it with a threshold first, as in certainty > 0.9"
        )
    return values == 1.0


def _name(label: Hashable) -> str:
    return repr(label.item() if isinstance(label, np.generic) else label)


def _names(labels: Sequence[Hashable]) -> str:
    listed = ", ".join(_name(label) for label in labels[:_LISTED])
    return f"[{listed}, …]" if len(labels) > _LISTED else f"[{listed}]"
