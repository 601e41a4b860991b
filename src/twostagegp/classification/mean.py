"""Part 1 of a classifier: a stack of models of the latents, pooled by held-out log loss.

Members are kernel ridge regressions (:mod:`twostagegp.classification.ridges`) and any scikit-learn
classifiers (:mod:`twostagegp.classification.classifiers`). A stack always contains a logistic
regression and the mean of the single-stage Gaussian process, whose noise is that of the Dirichlet
transform. :mod:`twostagegp.classification.pool` chooses their weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from twostagegp.classification.classifiers import CrossFitted, logistic_member
from twostagegp.classification.pool import Pool, fit_pool
from twostagegp.classification.ridges import (
    Ridge,
    Tried,
    kernel_choices,
    ridge_member,
    search_ridges,
)
from twostagegp.classification.table import ClassTable
from twostagegp.classification.views import View
from twostagegp.pipeline.mean.crossfit import assign_folds

if TYPE_CHECKING:
    from twostagegp.classification.fit import ClassOptions

__all__ = ["ClassMean", "Member", "fit_class_mean"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]

_LOG = logging.getLogger("twostagegp")


class Member(Protocol):
    """A model of the latents; ``heldout`` are its latents of the held-out rows, shape (h, K)."""

    label: str
    heldout: Array

    def predict(self, X: Array) -> Array:
        """Return latents at rows in the user's units, shape (n, K)."""


@dataclass
class ClassMean:
    """The fitted stack.

    Attributes
    ----------
    members : list of Member
    pool : Pool
    heldout : array of shape (h, K)
        Pooled latents of the rows that were held out.
    view : View
        View of the best ridge; the first view of the table if there is no ridge.
    tried : list of Tried
        The kernels that were tried for the ridges.
    """

    members: list[Member]
    pool: Pool
    heldout: Array
    view: View
    tried: list[Tried] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Readable composition."""
        parts = zip(self.pool.weights, self.members, strict=True)
        return " + ".join(f"{weight:.2g} {member.label}" for weight, member in parts) or "prior"

    def predict(self, X: Array) -> Array:
        """Return the pooled latents, shape (n, K)."""
        if not self.members:
            return np.broadcast_to(self.pool.bias, (len(X), len(self.pool.bias))).copy()
        return self.pool([member.predict(X) for member in self.members])


def fit_class_mean(
    table: ClassTable,
    options: ClassOptions,
    sample: Index,
    further: Sequence[Member],
    seed: int,
    worthwhile: Callable[[Array], bool] | None = None,
) -> ClassMean | None:
    """Fit the members and pool them; None if the first of them show that it is not worthwhile.

    Parameters
    ----------
    sample : integer array of shape (h,)
        Distinct rows that are held out.
    further : sequence of Member
        Fitted models that join the stack.
    worthwhile : callable, optional
        Takes the pooled held-out latents, shape (h, K), of ``further``, the best ridge and the
        classifiers, and returns whether to go on.
    """
    rng, settings, mean = np.random.default_rng(seed), options.settings, options.mean
    wanted = list(mean) if isinstance(mean, list | tuple) else [mean]
    chosen = [each for each in wanted if not hasattr(each, "predict_proba")]
    classifiers = [each for each in wanted if hasattr(each, "predict_proba")]
    stack = wanted == ["stack"]
    folds = assign_folds(len(table), settings.folds, rng, table.groups)
    members: list[Member] = list(further)
    tried: list[Tried] = []
    ridges: list[Ridge] = []
    view = table.views[0]

    def pooled() -> ClassMean:
        return _pooled(members, table, sample, view, tried, settings.least_share)

    def add(ridge: Ridge) -> None:
        _LOG.info("%s ridge (%s) on all rows", ridge.candidate.label, ridge.view.name)
        refit_folds = folds if options.refits(len(table)) else None
        method, k = options.method, options.n_neighbors
        members.append(ridge_member(table, ridge, sample, method, k, refit_folds, settings))

    if len(view.columns) == 0:
        return pooled()
    if chosen:
        words = ("stack", "search")
        named = [each for each in chosen if not (isinstance(each, str) and each in words)]
        choices = kernel_choices(named or options.kernels, options.ard, table, settings)
        keep = settings.ridges if stack else max(1, len(named))
        ridges, tried = search_ridges(table, choices, keep, settings, rng)
        view = ridges[0].view
        add(ridges[0])
    if stack:
        members.append(logistic_member(table, view, folds, sample, settings, seed, rng))
    for model in classifiers:
        members.append(CrossFitted(model, None, table, folds, sample, settings.prior_share, seed))
    if worthwhile is not None and not worthwhile(pooled().heldout):
        return None
    for ridge in ridges[1:]:
        add(ridge)
    return pooled()


def _pooled(
    members: list[Member],
    table: ClassTable,
    sample: Index,
    view: View,
    tried: list[Tried],
    least_share: float,
) -> ClassMean:
    """Pool the members; those with less than ``least_share`` of the total weight are left out."""
    codes, weight = table.codes[sample], table.c[sample]
    groups = None if table.groups is None else table.groups[sample]
    if not members:
        prior = np.log(np.maximum(table.prior, 1e-12))
        heldout = np.broadcast_to(prior, (len(sample), table.n_classes)).copy()
        pool = Pool(np.zeros(0), prior, float(-(table.prior @ prior)))
        return ClassMean([], pool, heldout, view, tried)
    pool = fit_pool([member.heldout for member in members], codes, weight, groups)
    strength = pool.weights * [float(member.heldout.std()) for member in members]
    heavy = strength >= least_share * max(float(strength.sum()), 1e-12)
    if not heavy.all() and heavy.any():
        members = [member for member, keep in zip(members, heavy, strict=True) if keep]
        pool = fit_pool([member.heldout for member in members], codes, weight, groups)
    heldout = pool([member.heldout for member in members])
    return ClassMean(members, pool, heldout, view, tried)
