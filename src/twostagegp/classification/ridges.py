r"""Kernel ridge regressions of the labels, as members of a classifier's mean.

With one factorisation for all classes,

.. math::

    f(x) = k_x^\top (K + \mathrm{diag}(\sigma^2 / c))^{-1} T , \qquad T = (Y - \pi) / s ,

with a constant in the kernel, one-hot labels Y, class frequencies :math:`\pi` and the root mean
square s of :math:`Y - \pi`. Held-out latents have a closed form
(:mod:`twostagegp.numerics.held_out`). Candidates are all kernels of the dictionary in every view of
the table (:mod:`twostagegp.classification.views`). They are trained by the mean over classes of
leave-one-out densities on a few hundred rows and ranked by held-out log loss.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twostagegp.classification.latents import Latents, exact_engine, label_rows, make_engine
from twostagegp.classification.pool import fit_pool
from twostagegp.classification.refits import heldout_by_refits, train_from_start
from twostagegp.classification.table import ClassTable
from twostagegp.classification.views import View
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.errors import TwoStageGPError
from twostagegp.kernels import Kernel, PlusConstant, Vector, is_flexible, make_kernel
from twostagegp.kernels.linear import LinearKernel
from twostagegp.pipeline.settings import ClassSettings
from twostagegp.training.candidates import Candidate, fitted_only
from twostagegp.training.side_by_side import for_each

__all__ = ["GPMember", "Ridge", "Tried", "kernel_choices", "ridge_member", "search_ridges"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Tried:
    """A candidate that was tried: its held-out log loss, rows, seconds and failure."""

    label: str
    view: str
    loss: float
    rows: int
    seconds: float
    failure: str = ""


@dataclass
class Ridge:
    """A candidate ridge: a kernel in a view, its training and its held-out log loss."""

    view: View
    kernel: Kernel
    candidate: Candidate
    loss: float = math.inf

    @classmethod
    def of(cls, view: View, kernel: Kernel, constant: float) -> Ridge:
        """Return an untrained candidate."""
        return cls(view, kernel, Candidate(PlusConstant(kernel, constant), "loo"))

    @property
    def parameters(self) -> Vector:
        """Parameters (theta, log noise variance) at the best penalty."""
        assert self.candidate.parameters is not None
        return self.candidate.with_penalty(self.candidate.parameters)


@dataclass
class GPMember:
    """The mean of Gaussian processes over all classes, as a member of the stack."""

    label: str
    latents: Latents
    heldout: Array

    def predict(self, X: Array) -> Array:
        """Return latents at rows in the user's units, shape (n, K)."""
        return self.latents.predict(X)


def kernel_choices(
    kernels: Sequence[Any], ard: bool | str, table: ClassTable, settings: ClassSettings
) -> list[tuple[View, Kernel]]:
    """Return every kernel in every view.

    With ``ard="both"`` only narrow tables get kernels with one lengthscale per column. If there is
    more than one kernel, wide tables get no kernels of the L1 distance, which is slow on many
    columns, and a linear kernel in addition.
    """
    choices: list[tuple[View, Kernel]] = []
    d = len(table.views[0].columns)
    wide = d > settings.many_columns
    for view in table.views:
        for kernel in kernels:
            named = isinstance(kernel, str)
            if named and make_kernel(kernel, d).manhattan and wide and len(kernels) > 1:
                continue
            forms = [False]
            if named and view.name == "columns" and d > 1 and not (wide and ard == "both"):
                forms = {True: [True], False: [False], "both": [False, True]}[ard]
            choices += [(view, make_kernel(kernel, d, form)) for form in forms]
        if wide and len(kernels) > 1:
            choices.append((view, LinearKernel(d)))
    return choices


def search_ridges(
    table: ClassTable,
    choices: Sequence[tuple[View, Kernel]],
    keep: int,
    settings: ClassSettings,
    rng: np.random.Generator,
) -> tuple[list[Ridge], list[Tried]]:
    """Train candidates on some rows; return the best ``keep``, best first, and all that was tried.

    A first training on few rows selects the candidates of a second one on more rows.
    """
    order = rng.permutation(len(table))
    alive = [Ridge.of(view, kernel, settings.constant) for view, kernel in choices]
    tried: list[Tried] = []
    engines = {view.name: _engine(table, view, settings) for view, _ in choices}
    first = (settings.first_rows, max(keep, settings.first_keep))
    for rows, kept in (first, (settings.second_rows, keep)):
        index = np.sort(order[:rows])

        def train(ridge: Ridge, index: Index = index) -> Tried:
            begin = time.perf_counter()
            engine, candidate = engines[ridge.view.name].subset(index), ridge.candidate
            candidate.train(engine, None, len(index) == len(table), 25, 1e-3)
            if not candidate.failure:
                try:
                    _tune(engine, ridge, table.codes[index], table.c[index], settings)
                except TwoStageGPError as error:
                    candidate.failure = str(error)
            name, seconds = ridge.view.name, time.perf_counter() - begin
            label, failure = ridge.kernel.label, candidate.failure
            return Tried(label, name, ridge.loss, len(index), seconds, failure)

        kernels, some = [ridge.kernel for ridge in alive], next(iter(engines.values()))
        tried += for_each(train, alive, some.subset(index).rows, kernels)
        fitted_only([ridge.candidate for ridge in alive])  # raises an error if every one failed
        alive = [ridge for ridge in alive if not ridge.candidate.failure]
        alive = _best_of_each_kind(alive, kept)
        if len(index) == len(table):
            break
    return alive[:keep], tried


def _engine(table: ClassTable, view: View, settings: ClassSettings) -> ExactEngine:
    return exact_engine(label_rows(table, view), settings.ridge_floor)


def _tune(
    engine: ExactEngine, ridge: Ridge, codes: Index, weight: Array, settings: ClassSettings
) -> None:
    """Choose the penalty of a ridge by held-out log loss on the engine's rows."""
    rows, candidate = engine.rows, ridge.candidate
    assert candidate.parameters is not None
    groups = None if rows.groups is None else rows.groups.cpu().numpy()
    best, shift = math.inf, 0.0
    for factor in settings.penalties:
        noise = max(factor * math.exp(candidate.parameters[-1]), settings.ridge_floor)
        parameters = np.append(candidate.parameters[:-1], math.log(noise))
        held = engine.condition(candidate.kernel, parameters).heldout()
        latents = (rows.t - held.residual).double().cpu().numpy()
        pool = fit_pool([latents], codes, weight, groups)
        if pool.loss < best:
            best, shift = pool.loss, math.log(noise) - candidate.parameters[-1]
    ridge.loss, candidate.penalty_shift = best, shift


def _best_of_each_kind(ridges: Sequence[Ridge], keep: int) -> list[Ridge]:
    """Return the best ``keep`` ridges, best first; if ``keep`` > 1, with the best of each kind.

    Kinds are linear kernels, and stationary kernels with one lengthscale and with many. The loss of
    a kernel with more parameters is more optimistic, so losses compare kernels of one kind best.
    """
    ranked = sorted(ridges, key=lambda ridge: ridge.loss)
    if keep > 1:
        kinds: dict[tuple[bool, bool], Ridge] = {}
        for ridge in ranked:
            kind = isinstance(ridge.kernel, LinearKernel), is_flexible(ridge.kernel)
            kinds.setdefault(kind, ridge)
        first = list(kinds.values())
        ranked = [*first, *(ridge for ridge in ranked if ridge not in first)]
    return sorted(ranked[:keep], key=lambda ridge: ridge.loss)


def ridge_member(
    table: ClassTable,
    ridge: Ridge,
    sample: Index,
    method: str,
    n_neighbors: int,
    refit_folds: Index | None,
    settings: ClassSettings,
) -> GPMember:
    """Condition a ridge on all rows.

    Parameters
    ----------
    sample : integer array of shape (h,)
        Rows that are held out.
    refit_folds : integer array of shape (m,), optional
        Folds without which the hyperparameters of flexible kernels are trained again.
    """
    rows = label_rows(table, ridge.view)
    engine = make_engine(rows, settings.ridge_floor, method, n_neighbors)
    posterior = engine.condition(ridge.candidate.kernel, ridge.parameters)
    latents = Latents(ridge.view, posterior, np.zeros(table.n_classes), 1.0)
    heldout, _ = latents.heldout(sample)
    if refit_folds is not None and is_flexible(ridge.kernel):
        heldout = _refit(table, ridge, refit_folds, settings)
    latents.drop_variance()
    return GPMember(f"{ridge.kernel.label} ridge ({ridge.view.name})", latents, heldout)


def _refit(table: ClassTable, ridge: Ridge, folds: Index, settings: ClassSettings) -> Array:
    """Return held-out latents of a ridge at hyperparameters trained without the row's fold."""
    engine = _engine(table, ridge.view, settings)
    kernel = ridge.candidate.kernel

    def train(index: Index) -> Vector | None:
        again = Ridge(
            ridge.view,
            ridge.kernel,
            train_from_start(engine, kernel, "loo", index, settings.refit_steps),
        )
        if again.candidate.failure or again.candidate.parameters is None:
            return None
        part = engine.subset(index)
        try:
            _tune(part, again, table.codes[index], table.c[index], settings)
        except TwoStageGPError:
            return None
        return again.parameters

    def heldout(parameters: Vector) -> tuple[Array, ...]:
        held = engine.condition(kernel, parameters).heldout()
        return ((engine.rows.t - held.residual).double().cpu().numpy(),)

    return heldout_by_refits(folds, train, heldout, ridge.parameters, engine.rows, kernel)[0]
