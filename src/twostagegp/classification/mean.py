r"""Part 1 of a classifier: a stack of models of the latents, pooled by held-out log loss.

A kernel ridge regression of the labels, with one factorisation for all classes,

.. math::

    f(x) = k_x^\top (K + \mathrm{diag}(\sigma^2 / c))^{-1} T , \qquad T = (Y - \pi) / s ,

a constant being part of the kernel (:mod:`twostagegp.classification.latents`),

has held-out latents in closed form: :math:`T_i - \alpha_i / \kappa_i`, of a whole group :math:`T_G
- (A_{GG})^{-1} \alpha_G` (:mod:`twostagegp.numerics.objectives`). Candidates are the kernels of the
dictionary in every view of the table (:mod:`twostagegp.classification.views`). They are trained by
the sum over classes of leave-one-out densities on a few hundred rows, ranked by held-out log loss,
and the best are conditioned on all rows. Any scikit-learn classifier joins by cross-fitting, its
latents being log probabilities. In a stack there are always a logistic regression and the mean of
the single-stage Gaussian process, whose noise is that of the Dirichlet transform.

From neighbours, the same ridge is solved for every point on its k nearest rows.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.utils.validation import has_fit_parameter
from torch import Tensor

from twostagegp.classification.latents import CONSTANT, LatentEngine, LatentRows
from twostagegp.classification.local import LocalRows
from twostagegp.classification.pool import Pool, fit_pool
from twostagegp.classification.refits import by_refits, retrained
from twostagegp.classification.table import ClassTable
from twostagegp.classification.views import MANY_COLUMNS, View
from twostagegp.errors import NotFittableError, TwoStageGPError, TwoStageGPWarning
from twostagegp.kernels import Kernel, Vector, is_flexible, make_kernel
from twostagegp.kernels.catalogue import stationary_form
from twostagegp.kernels.linear import LinearKernel
from twostagegp.numerics.linalg import block_inverses, safe_cholesky
from twostagegp.numerics.objectives import one_copy_out
from twostagegp.pipeline.mean.crossfit import assign_folds
from twostagegp.runtime.finite import predict_with
from twostagegp.training.candidates import Candidate

__all__ = ["ClassMean", "Member", "Tried", "fit_class_mean", "heldout_latents", "kernel_choices"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]

_LOG = logging.getLogger("twostagegp")

#: Rows of the two rungs on which candidates are trained, and how many enter the second.
FIRST_ROWS, SECOND_ROWS, SECOND_KEEP = 300, 1000, 5
#: Ridges that are conditioned on all rows.
RIDGES = 3
#: Steps of a training without one of the folds.
REFIT_STEPS = 40
#: Noise variances tried around the trained one.
PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0)
#: Inverse penalties of the logistic regression, for columns of a common unit scale.
INVERSE_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
#: Folds of cross-fitted classifiers, and rows on which the logistic regression is tuned.
FOLDS, TUNING_ROWS = 5, 5000
#: Share of the prior in the probabilities of a cross-fitted classifier: none is zero.
PRIOR_SHARE = 1e-3
#: A model with less weight than this share of the whole is left out.
LEAST_SHARE = 0.02
#: Lower bound of a ridge's noise variance.
RIDGE_FLOOR = 1e-4
#: Entries of a (points, rows) panel during prediction.
_CHUNK_ENTRIES = 1 << 24


class Member(Protocol):
    """A model of the latents."""

    label: str
    heldout: Array

    def predict(self, X: Array) -> Array:
        """Latents at rows in the user's units, shape (n, K)."""


@dataclass(frozen=True)
class Tried:
    """A candidate and how it did."""

    label: str
    view: str
    loss: float
    rows: int
    seconds: float
    failure: str = ""


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
        Of the best ridge, or the first where there is none.
    tried : list of Tried
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
        """Pooled latents, shape (n, K)."""
        if not self.members:
            return np.broadcast_to(self.pool.bias, (len(X), len(self.pool.bias))).copy()
        return self.pool([member.predict(X) for member in self.members])


# --- ridges --------------------------------------------------------------------------------------


def heldout_latents(
    A: Tensor, alpha: Tensor, T: Tensor, c: Tensor, noise: float, blocks: list[Tensor] | None
) -> Tensor:
    """Latents of every row predicted from the others (of its group: from other groups).

    Parameters
    ----------
    A : Tensor of shape (m, m)
        Inverse of the matrix with noise.
    alpha, T : Tensors of shape (m, K)
    c : Tensor of shape (m,)
    blocks : list of index Tensors, optional
        Rows of each group.
    """
    if blocks is not None:
        return T - block_inverses(A, blocks) @ alpha
    factor, _ = one_copy_out(A.diagonal(), c, torch.full_like(c, noise))
    return T - factor[:, None] * alpha


def solve_ridge(
    rows: LatentRows, kernel: Kernel, parameters: Vector
) -> tuple[Tensor, Array, float]:
    """Coefficients of the rows and their held-out latents, both (m, K), and the jitter."""
    noise = math.exp(parameters[-1])
    K, _ = kernel.evaluate(rows.X, parameters[:-1])
    K += CONSTANT
    K.diagonal().add_(noise / rows.c)
    L, jitter = safe_cholesky(K)
    del K
    A = torch.cholesky_inverse(L)
    alpha = A @ rows.T
    latents = heldout_latents(A, alpha, rows.T, rows.c, noise, rows.blocks())
    return alpha, latents.double().cpu().numpy(), jitter


class ExactRidge:
    """A kernel ridge regression of all classes on all rows."""

    view: View
    kernel: Kernel
    parameters: Vector
    label: str
    table: ClassTable
    jitter: float
    alpha: Tensor
    heldout: Array

    def __init__(
        self, view: View, kernel: Kernel, parameters: Vector, table: ClassTable, sample: Index
    ) -> None:
        self.view, self.kernel, self.parameters = view, kernel, parameters
        self.label = f"{kernel.label} ridge ({view.name})"
        self.table = table
        self.alpha, heldout, self.jitter = solve_ridge(ridge_rows(table, view), kernel, parameters)
        self.heldout = heldout[sample]

    def predict(self, X: Array) -> Array:
        Z = self.table.inputs(self.view)
        size = max(1, _CHUNK_ENTRIES // len(Z))
        points = self.table.tensor(self.view(X))
        parts = [
            (self.kernel.cross(part, Z, self.parameters[:-1]) + CONSTANT) @ self.alpha
            for part in torch.split(points, size)
        ]
        return torch.cat(parts).double().cpu().numpy()


class NeighborRidge:
    """The same ridge, solved for every point on its nearest rows."""

    view: View
    kernel: Kernel
    parameters: Vector
    label: str
    rows: LocalRows
    noise: float
    T: Tensor
    heldout: Array

    def __init__(
        self,
        view: View,
        kernel: Kernel,
        parameters: Vector,
        table: ClassTable,
        sample: Index,
        n_neighbors: int,
    ) -> None:
        self.label = f"{kernel.label} ridge ({view.name})"
        self.view, self.parameters = view, parameters
        self.kernel = kernel
        self.rows = LocalRows(table, view, kernel, parameters[:-1], n_neighbors, CONSTANT)
        self.noise = math.exp(parameters[-1])
        self.T = ridge_rows(table, view).T
        self.heldout = self._numpy(self.rows.heldout_means(sample, self.noise, self.T))

    def predict(self, X: Array) -> Array:
        return self._numpy(self.rows.means(X, self.noise, self.T))

    @staticmethod
    def _numpy(values: Tensor) -> Array:
        return values.double().cpu().numpy()


def ridge_rows(table: ClassTable, view: View) -> LatentRows:
    """Labels less their prior, in units of their spread; one noise for all classes."""
    T = table.tensor((table.own - table.prior) / table.target_scale)
    extra = torch.zeros(len(table), 1, dtype=table.dtype, device=table.device)
    return LatentRows(table.inputs(view), T, table.tensor(table.c), extra, table.group_tensor)


def kernel_choices(
    kernels: Sequence[Any], ard: bool | str, table: ClassTable
) -> list[tuple[View, Kernel]]:
    """Every kernel in every view.

    One lengthscale per column is for narrow tables. Kernels of the L1 distance, which is slow on
    many columns, are left out of wide tables; a linear kernel joins there.
    """
    choices: list[tuple[View, Kernel]] = []
    d = len(table.views[0].columns)
    wide = d > MANY_COLUMNS
    for view in table.views:
        for kernel in kernels:
            named = isinstance(kernel, str)
            if named and stationary_form(kernel).metric == 1 and wide and len(kernels) > 1:
                continue
            forms = [False]
            if named and view.name == "columns" and d > 1 and not (wide and ard == "both"):
                forms = {True: [True], False: [False], "both": [False, True]}[ard]
            choices += [(view, make_kernel(kernel, d, form)) for form in forms]
        if wide and len(kernels) > 1:
            choices.append((view, LinearKernel(d)))
    return choices


@dataclass
class _Ridge:
    """A candidate ridge."""

    view: View
    candidate: Candidate
    loss: float = math.inf


def _rung_loss(engine: LatentEngine, ridge: _Ridge, codes: Index, weight: Array) -> None:
    """Held-out log loss on the rows of a rung, at the best of some penalties."""
    rows, candidate = engine.latents, ridge.candidate
    assert candidate.parameters is not None
    K, _ = candidate.kernel.evaluate(rows.X, candidate.parameters[:-1])
    K += CONSTANT
    diagonal = K.diagonal().clone()
    blocks = rows.blocks()
    groups = None if rows.groups is None else rows.groups.cpu().numpy()
    best, shift = math.inf, 0.0
    for factor in PENALTIES:
        noise = max(factor * math.exp(candidate.parameters[-1]), RIDGE_FLOOR)
        K.diagonal().copy_(diagonal + noise / rows.c)
        L, _ = safe_cholesky(K)
        A = torch.cholesky_inverse(L)
        latents = heldout_latents(A, A @ rows.T, rows.T, rows.c, noise, blocks)
        pool = fit_pool([latents.double().cpu().numpy()], codes, weight, groups)
        if pool.loss < best:
            best, shift = pool.loss, math.log(noise) - candidate.parameters[-1]
    ridge.loss, candidate.penalty_shift = best, shift


def _search_ridges(
    table: ClassTable,
    choices: Sequence[tuple[View, Kernel]],
    keep: int,
    rng: np.random.Generator,
) -> tuple[list[_Ridge], list[Tried]]:
    """Train candidates on some rows; the best ``keep``, best first, and what was tried."""
    order = rng.permutation(len(table))
    alive = [_Ridge(view, Candidate(kernel, "loo")) for view, kernel in choices]
    tried: list[Tried] = []
    engines = {
        view.name: LatentEngine(ridge_rows(table, view), RIDGE_FLOOR, CONSTANT)
        for view, _ in choices
    }
    last = (SECOND_ROWS, keep)
    for rows, kept in ((FIRST_ROWS, max(keep, SECOND_KEEP)), last):
        index = np.sort(order[:rows])
        begin = time.perf_counter()
        for ridge in alive:
            engine = engines[ridge.view.name].subset(index)
            candidate = ridge.candidate
            candidate.train(engine, None, len(index) == len(table), 25, 1e-3)
            if candidate.failure or candidate.parameters is None:
                continue
            try:
                _rung_loss(engine, ridge, table.codes[index], table.c[index])
            except TwoStageGPError as error:
                candidate.failure = str(error)
            now = time.perf_counter()
            label, failure = candidate.kernel.label, candidate.failure
            seconds = now - begin
            tried.append(Tried(label, ridge.view.name, ridge.loss, len(index), seconds, failure))
            begin = now
        alive = [ridge for ridge in alive if not ridge.candidate.failure]
        if not alive:
            raise NotFittableError("no kernel could be fitted")
        alive = _best_of_both(alive, kept)
        if len(index) == len(table):
            break
    return alive[:keep], tried


def _best_of_both(ridges: Sequence[_Ridge], keep: int) -> list[_Ridge]:
    """The best ridges, best first; among more than one the best of each kind.

    Kinds are linear kernels, and stationary ones with one lengthscale and with many: losses of
    kernels with more parameters are the more optimistic ones.
    """
    ranked = sorted(ridges, key=lambda ridge: ridge.loss)
    if keep > 1:
        kinds: dict[tuple[bool, bool], _Ridge] = {}
        for ridge in ranked:
            kernel = ridge.candidate.kernel
            kind = isinstance(kernel, LinearKernel), is_flexible(kernel)
            kinds.setdefault(kind, ridge)
        first = list(kinds.values())
        ranked = [*first, *(ridge for ridge in ranked if ridge not in first)]
    return sorted(ranked[:keep], key=lambda ridge: ridge.loss)


def _refit_ridge(table: ClassTable, ridge: _Ridge, parameters: Vector, folds: Index) -> Array:
    """Held-out latents of a ridge with the hyperparameters trained again without each fold."""
    rows = ridge_rows(table, ridge.view)
    engine = LatentEngine(rows, RIDGE_FLOOR, CONSTANT)
    kernel = ridge.candidate.kernel

    def train(index: Index) -> Vector | None:
        again = _Ridge(ridge.view, retrained(engine, kernel, "loo", index, REFIT_STEPS))
        candidate = again.candidate
        if candidate.failure or candidate.parameters is None:
            return None
        try:
            _rung_loss(engine.subset(index), again, table.codes[index], table.c[index])
        except TwoStageGPError:
            return None
        return candidate.with_penalty(candidate.parameters)

    return by_refits(folds, train, lambda p: solve_ridge(rows, kernel, p)[1:2], parameters)[0]


# --- classifiers ---------------------------------------------------------------------------------


class Classifier(Protocol):
    """A scikit-learn classifier, or an object with the same interface."""

    classes_: NDArray[Any]

    def predict_proba(self, X: Any) -> Any:
        """Return one probability per row and class."""


class CrossFitted:
    """Any scikit-learn classifier, with log probabilities of rows that it has not seen."""

    view: View | None
    label: str
    prior: Array
    takes_weights: bool
    heldout: Array
    model: Classifier | None

    def __init__(
        self, model: Any, view: View | None, table: ClassTable, folds: Index, sample: Index
    ) -> None:
        self.view = view
        self.label = type(model).__name__
        self.prior = table.prior
        self.takes_weights = has_fit_parameter(model, "sample_weight")
        if not self.takes_weights and not (table.c == 1.0).all():
            warnings.warn(
                f"{self.label} takes no sample_weight: it counted every distinct row once.",
                TwoStageGPWarning,
                stacklevel=2,
            )
        X = self._columns(table.X)
        self.heldout = np.empty((len(table), table.n_classes))
        for fold in np.unique(folds):
            out = folds == fold
            self.model = self._fit(model, X[~out], table.codes[~out], table.c[~out])
            self.heldout[out] = self._log_probability(X[out])
        self.heldout = self.heldout[sample]
        self.model = self._fit(model, X, table.codes, table.c)

    def _columns(self, X: Array) -> Array:
        return X if self.view is None else self.view(X)

    def _fit(self, model: Any, X: Array, codes: Index, weight: Array) -> Any:
        if len(np.unique(codes)) < 2:
            return None  # a fold without one of two classes teaches nothing
        weights = {}
        if self.takes_weights and not (weight == 1.0).all():
            weights = {"sample_weight": weight}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return clone(model).fit(X, codes, **weights)

    def _log_probability(self, X: Array) -> Array:
        P = np.zeros((len(X), len(self.prior)))
        if self.model is not None:
            own = predict_with(self.model, X, "predict_proba")
            P[:, self.model.classes_.astype(np.int64)] = own
        P = (1.0 - PRIOR_SHARE) * P + PRIOR_SHARE * self.prior
        return np.log(np.maximum(P / P.sum(1, keepdims=True), 1e-300))

    def predict(self, X: Array) -> Array:
        return self._log_probability(self._columns(X))


def logistic_member(
    table: ClassTable, view: View, folds: Index, sample: Index, rng: np.random.Generator
) -> CrossFitted:
    """A logistic regression whose penalty has the smallest held-out log loss."""
    some = np.sort(rng.permutation(len(table))[:TUNING_ROWS])
    Z, codes, weight = view(table.X[some]), table.codes[some], table.c[some]
    scale = 1.0 / Z.shape[1]
    losses = np.zeros(len(INVERSE_PENALTIES))
    for fold in np.unique(folds[some]):
        out = folds[some] == fold
        if len(np.unique(codes[~out])) < 2:
            continue
        model = LogisticRegression(warm_start=True, max_iter=100, tol=1e-3)
        for j, C in enumerate(INVERSE_PENALTIES):
            model.set_params(C=C * MANY_COLUMNS * scale)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model.fit(Z[~out], codes[~out], sample_weight=weight[~out])
            P = np.zeros((int(out.sum()), table.n_classes))
            P[:, model.classes_] = model.predict_proba(Z[out])
            P = (1.0 - PRIOR_SHARE) * P + PRIOR_SHARE * table.prior
            own = np.maximum(P[np.arange(len(P)), codes[out]], 1e-300)
            losses[j] -= float(weight[out] @ np.log(own))
    C = INVERSE_PENALTIES[int(np.argmin(losses))] * MANY_COLUMNS * scale
    member = CrossFitted(
        LogisticRegression(C=C, max_iter=300, tol=1e-4), view, table, folds, sample
    )
    member.label = f"logistic regression ({view.name})"
    return member


# --- the stack -----------------------------------------------------------------------------------


def fit_class_mean(
    table: ClassTable,
    mean: Any,
    kernels: Sequence[Any],
    ard: bool | str,
    method: str,
    n_neighbors: int,
    sample: Index,
    further: Sequence[Member],
    refit: bool,
    seed: int,
) -> ClassMean:
    """Fit the members and pool them.

    Parameters
    ----------
    mean : "stack", "search", kernel, classifier, or list of kernels and classifiers
    method : {"exact", "neighbors"}
    sample : integer array of shape (h,)
        Distinct rows that are predicted from others.
    further : sequence of Member
        Models that are fitted already and join.
    refit : bool
        Whether ridges of many parameters are trained again without each fold.
    """
    rng = np.random.default_rng(seed)
    wanted = list(mean) if isinstance(mean, list | tuple) else [mean]
    chosen = [each for each in wanted if not hasattr(each, "predict_proba")]
    classifiers = [each for each in wanted if hasattr(each, "predict_proba")]
    stack = wanted == ["stack"]
    folds = assign_folds(len(table), FOLDS, rng, table.groups)
    members: list[Any] = list(further)
    tried: list[Tried] = []
    view = table.views[0]
    if chosen and len(table.views[0].columns) > 0:
        words = ("stack", "search")
        named = [each for each in chosen if not (isinstance(each, str) and each in words)]
        choices = kernel_choices(named or kernels, ard, table)
        keep = RIDGES if stack else max(1, len(named))
        ridges, tried = _search_ridges(table, choices, keep, rng)
        view = ridges[0].view
        for ridge in ridges:
            _LOG.info("%s ridge (%s) on all rows", ridge.candidate.label, ridge.view.name)
            assert ridge.candidate.parameters is not None
            parameters = ridge.candidate.with_penalty(ridge.candidate.parameters)
            given = (ridge.view, ridge.candidate.kernel, parameters, table, sample)
            if method != "exact":
                members.append(NeighborRidge(*given, n_neighbors))
                continue
            made = ExactRidge(*given)
            if refit and is_flexible(made.kernel):
                made.heldout = _refit_ridge(table, ridge, parameters, folds)
            members.append(made)
    if len(table.views[0].columns) > 0:
        if stack:
            members.append(logistic_member(table, view, folds, sample, rng))
        members += [CrossFitted(model, None, table, folds, sample) for model in classifiers]
    return _pooled(members, table, sample, view, tried)


def _pooled(
    members: list[Any], table: ClassTable, sample: Index, view: View, tried: list[Tried]
) -> ClassMean:
    codes, weight = table.codes[sample], table.c[sample]
    groups = None if table.groups is None else table.groups[sample]
    prior = np.log(np.maximum(table.prior, 1e-12))
    nothing = Pool(np.zeros(0), prior, float(-(table.prior @ prior)))
    if not members:
        heldout = np.broadcast_to(prior, (len(sample), table.n_classes)).copy()
        return ClassMean([], nothing, heldout, view, tried)
    pool = fit_pool([member.heldout for member in members], codes, weight, groups)
    strength = pool.weights * [float(member.heldout.std()) for member in members]
    heavy = strength >= LEAST_SHARE * max(float(strength.sum()), 1e-12)
    if not heavy.all() and heavy.any():
        members = [member for member, keep in zip(members, heavy, strict=True) if keep]
        pool = fit_pool([member.heldout for member in members], codes, weight, groups)
    heldout = pool([member.heldout for member in members])
    return ClassMean(members, pool, heldout, view, tried)
