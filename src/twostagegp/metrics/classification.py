r"""Scores of class probabilities, offered by :mod:`twostagegp.metrics`.

A classifier with uncertainty answers with a probability for every class. Three questions are kept
apart here, as they are for regression:

- **Are the probabilities right?** Proper scores reward calibration and sharpness together:
  :func:`log_loss` and :func:`brier`.
- **Is the confidence calibrated?** Of the predictions made with confidence 0.8, are four in five
  right? :func:`ece`.
- **Does the model know where it is right?** :func:`risk_coverage` lets it abstain on the rows of
  which it is least certain, and :func:`certainty_split` compares the rows that it calls certain
  with the others.

All take the arguments alike. ``y`` has shape (n,) and holds labels: numbers, strings or truth
values. ``proba`` has shape (n, K), with rows that sum to 1. ``classes`` has the K labels in the
order of the columns, as ``model.classes_`` does; without it they are the labels in ``y``, sorted,
and then each class must occur. The predicted class has the largest probability, the first one of
several. Lower is better unless the docstring says otherwise.
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

#: Smallest probability that the log loss sees: no row costs more than 36 nats.
_FLOOR = float(np.finfo(np.float64).eps)
#: How far outside 0 and 1 rounding may take a probability; it is clipped.
_ROUNDING = 1e-6
#: How far from 1 the sum of a row may be: half precision rounds each probability by 5e-4 of it.
_SUM_ROUNDING = 1e-3
#: Labels that a message lists.
_LISTED = 10


def log_loss(y: ArrayLike, proba: ArrayLike, classes: ArrayLike | None = None) -> float:
    r"""Mean negative log probability of the true class, in nats.

    .. math:: -\tfrac{1}{n} \sum_i \log \max(p_{i, y_i}, \varepsilon),
              \qquad \varepsilon = 2^{-52}

    The floor ε keeps it finite where the true class was called impossible; such a row costs 36
    nats. Equal probabilities for K classes score log K.

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
    of_true_class = p[np.arange(codes.shape[0]), codes]
    return float(-np.mean(np.log(np.maximum(of_true_class, _FLOOR))))


def brier(y: ArrayLike, proba: ArrayLike, classes: ArrayLike | None = None) -> float:
    r"""Brier score of all classes: between 0 and 2.

    .. math:: \tfrac{1}{n} \sum_i \sum_{k=1}^{K} \bigl( p_{ik} - \mathbf{1}[y_i = k] \bigr)^2

    For two classes it is twice the binary score, which counts the error of one column only.

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
    r"""Expected calibration error of the confidence, the probability of the predicted class.

    The confidences :math:`c_i = \max_k p_{ik}` are sorted into M bins. In each of them the share
    of correct predictions is compared with the mean confidence:

    .. math:: \sum_{m=1}^{M} \frac{|B_m|}{n}
              \bigl| \operatorname{acc}(B_m) - \operatorname{conf}(B_m) \bigr|
              = \tfrac{1}{n} \sum_{m=1}^{M}
              \Bigl| \sum_{i \in B_m} \mathbf{1}[\hat y_i = y_i] - c_i \Bigr|

    It is between 0 and 1. It says nothing about sharpness: the shares of the classes, predicted
    for every row, score about 0. A finite test set gives a perfect model a value above 0, the more
    so the more bins there are.

    Parameters
    ----------
    y : array-like of shape (n,)
        Labels.
    proba : array-like of shape (n, K)
        Predicted probabilities of the classes.
    classes : array-like of shape (K,), optional
        The label of each column; the sorted labels of y by default.
    n_bins : int, default=15
        M, the number of bins.
    strategy : {"width", "mass"}, default="width"
        ``"width"``: the bins are ((m − 1)/M, m/M]. ``"mass"``: each has as many rows as the next,
        but for rows of equal confidence, which stay together.

    Returns
    -------
    float

    Examples
    --------
    Certain of four rows, right about three of them:

    >>> ece([0, 0, 0, 1], [[1.0, 0.0]] * 4)
    0.25
    """
    check_bins(n_bins)
    check_choice("strategy", strategy, ("width", "mass"))
    codes, p = _check_proba(y, proba, classes)
    confidence = p.max(axis=1)
    correct = p.argmax(axis=1) == codes
    ends = _ends_of_width(n_bins) if strategy == "width" else _ends_of_mass(confidence, n_bins)
    bins = np.searchsorted(ends, confidence, side="left")
    gaps = np.bincount(bins, weights=correct - confidence)
    return float(np.sum(np.abs(gaps)) / codes.shape[0])


@dataclass(frozen=True, eq=False)  # eq: arrays have no single truth value to compare by
class RiskCoverage:
    """Error rate of the most certain rows, for every number of them.

    Attributes
    ----------
    coverage : ndarray of shape (n,)
        Share of the rows that are answered: 1/n, 2/n, …, 1.
    risk : ndarray of shape (n,)
        Error rate among them. The last one is that of all rows.
    area : float
        Area under the curve, AURC: the mean of ``risk``.
    excess : float
        ``area`` less that of the same predictions in the best order, in which every correct one
        comes before every wrong one. It is 0 for a certainty that knows all errors.
    """

    coverage: Array = field(repr=False)
    risk: Array = field(repr=False)
    area: float
    excess: float

    def plot(self, ax: Any = None) -> Any:
        """Draw the risk against the coverage, between the best order and a random one.

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
        # Not above: the scores alone need no matplotlib.
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
    r"""Error rate of the most certain rows, for every number of them, and its area (AURC).

    With the rows in decreasing order of certainty, the risk at coverage k/n and the area are

    .. math:: r_k = \tfrac{1}{k} \sum_{i=1}^{k} \mathbf{1}[\hat y_i \ne y_i], \qquad
              \operatorname{AURC} = \tfrac{1}{n} \sum_{k=1}^{n} r_k

    Rows of equal certainty have no order, so :math:`r_k` is its mean over all orders of them.
    Where E errors are among the N rows that come first, and e among the m tied ones,

    .. math:: r_{N + j} = \frac{E + j \, e / m}{N + j}, \qquad j = 1, \dots, m

    The order in which the rows are given never matters, and a constant certainty has a constant
    risk, the error rate.

    Parameters
    ----------
    y : array-like of shape (n,)
        Labels.
    proba : array-like of shape (n, K)
        Predicted probabilities of the classes.
    certainty : array-like of shape (n,), optional
        Any number that is larger for a row that is more certain; the largest probability of the
        row by default.
    classes : array-like of shape (K,), optional
        The label of each column; the sorted labels of y by default.

    Returns
    -------
    RiskCoverage
        With ``coverage, risk, area, excess`` and ``plot()``.

    Examples
    --------
    Right where it is certain, wrong where it is not:

    >>> curve = risk_coverage([0, 1, 1], [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> curve.risk
    array([0.        , 0.        , 0.33333333])
    >>> curve.excess
    0.0

    A certainty that tells nothing:

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
    """Accuracy of the rows that a model calls certain, and of the others.

    Attributes
    ----------
    accuracy_certain, accuracy_uncertain : float
        Share of correct predictions in each group; NaN for a group without rows.
    share_certain : float
        Share of the rows that are certain.
    n_certain, n_uncertain : int
        Rows of each group.
    """

    accuracy_certain: float
    accuracy_uncertain: float
    share_certain: float
    n_certain: int
    n_uncertain: int


def certainty_split(y: ArrayLike, predicted: ArrayLike, certain: ArrayLike) -> CertaintySplit:
    r"""Accuracy of the certain rows C and of the uncertain ones, side by side.

    .. math:: \frac{1}{|C|} \sum_{i \in C} \mathbf{1}[\hat y_i = y_i], \qquad
              \frac{1}{n - |C|} \sum_{i \notin C} \mathbf{1}[\hat y_i = y_i]

    Higher is better for both, and the first should exceed the second. They mean something only
    beside the share of certain rows, :math:`|C| / n`.

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
    # Labels that never occur in y have code -1, and so are never right.
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
    y : array-like of shape (n,)
        Labels.
    proba : array-like of shape (n, K)
        Predicted probabilities of the classes.
    classes : array-like of shape (K,), optional
        The label of each column; the sorted labels of y by default.
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


def _ends_of_width(n_bins: int) -> Array:
    """Return the upper ends of all bins but the last, shape (n_bins - 1,)."""
    return np.arange(1, n_bins) / n_bins


def _ends_of_mass(confidence: Array, n_bins: int) -> Array:
    """Return the same for bins of equal mass: the ⌈n m / M⌉-th smallest confidences."""
    n = confidence.shape[0]
    # Integers: the ceiling must not suffer from rounding.
    ranks = -(-n * np.arange(1, n_bins) // n_bins)
    ends: Array = np.sort(confidence)[ranks - 1]
    return ends


def _expected_risk(wrong: Flags, certainty: Array) -> Array:
    """Return the risk at every coverage, shape (n,), the mean over all orders of tied rows."""
    n = wrong.shape[0]
    _, group, size = np.unique(-certainty, return_inverse=True, return_counts=True)
    errors = np.bincount(group, weights=wrong)
    before = np.cumsum(size) - size
    # Of each rank: the group it lies in, and its place j in there.
    at = np.repeat(np.arange(size.shape[0]), size)
    rank = np.arange(1, n + 1)
    j = rank - before[at]
    expected = (np.cumsum(errors) - errors)[at] + j * errors[at] / size[at]
    risk: Array = expected / rank
    return risk


def _best_risk(n: int, n_wrong: int) -> Array:
    """Return the risk at every coverage, shape (n,), where all errors come last."""
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
            f"proba must have shape (n, K), a column for each class, got {p.shape}; "
            "for two classes give both columns: np.column_stack([1 - p, p])"
        )
    if p.ndim != 2 or p.shape[1] == 0:
        raise InputError(f"proba must have shape (n, K), a column for each class, got {p.shape}")
    outside = (p < -_ROUNDING) | (p > 1.0 + _ROUNDING)
    if outside.any():
        i, k = (int(at) for at in np.argwhere(outside)[0])
        raise InputError(
            f"proba must lie between 0 and 1, but proba[{i}, {k}] = {p[i, k]}; "
            "turn scores or logits into probabilities first, as scipy.special.softmax does"
        )
    total = p.sum(axis=1)
    off = np.abs(total - 1.0) > _SUM_ROUNDING
    if off.any():
        i = int(np.argmax(off))
        raise InputError(
            f"each row of proba must sum to 1, but row {i} sums to {total[i]:g}; "
            "if a column is missing add it, otherwise divide each row by its sum"
        )
    return np.clip(p, 0.0, 1.0)


def _check_labels(values: ArrayLike, name: str) -> tuple[Codes, list[Hashable]]:
    """Return the place of each label among the different ones, shape (n,), and those."""
    # Objects: NumPy would make the string "nan" of a missing label among strings.
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
            "leave such rows out"
        )
    return codes.astype(np.intp, copy=False), list(labels)


def _check_classes(classes: ArrayLike, n_columns: int) -> list[Hashable]:
    codes, labels = _check_labels(classes, "classes")
    if codes.shape[0] != n_columns:
        raise InputError(
            f"classes has {codes.shape[0]} labels, but proba has {n_columns} columns; "
            "give one label for each column"
        )
    if len(labels) != n_columns:
        twice = labels[int(np.argmax(np.bincount(codes) > 1))]
        raise InputError(f"classes has {_name(twice)} more than once; each column needs its own")
    return labels


def _sorted(labels: list[Hashable], n_columns: int) -> list[Hashable]:
    if len(labels) != n_columns:
        raise InputError(
            f"y holds {len(labels)} different labels, but proba has {n_columns} columns; "
            "give classes=, the label of each column, as in model.classes_"
        )
    try:
        return sorted(labels)  # type: ignore[type-var]
    except TypeError as error:
        raise InputError(
            f"the labels {_names(labels)} of y cannot be sorted; "
            "give classes=, the label of each column"
        ) from error


def _check_same_kind(labels: Sequence[Hashable], predicted: Sequence[Hashable]) -> None:
    """Raise where no prediction could be right, as numbers never equal strings."""
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
