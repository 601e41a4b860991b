r"""Part 2 of a classifier: Gaussian processes with Dirichlet noise, one kernel for all classes.

Hyperparameters of the second stage maximise the density of the held-out residuals of the first
(:func:`twostagegp.numerics.objectives.heldout_variance`, summed over classes) or, with in-sample
residuals, their likelihood; those of a single stage maximise the leave-one-out density of the
targets. All are trained on a few hundred rows, unless a :class:`Training` is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.classification.dirichlet import Dirichlet
from twostagegp.classification.latents import Latents, dirichlet_rows, exact_engine, make_engine
from twostagegp.classification.refits import heldout_by_refits, train_from_start
from twostagegp.classification.table import ClassTable
from twostagegp.classification.views import View
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.problem import ObjectiveName
from twostagegp.kernels import Kernel, PlusConstant, Vector, is_flexible
from twostagegp.pipeline.settings import ClassSettings
from twostagegp.training.candidates import Candidate, fitted_only, train_with
from twostagegp.training.ladder import rung_sizes
from twostagegp.training.schedule import Training
from twostagegp.training.side_by_side import for_each

__all__ = ["TrainedKernel", "condition", "refit_latents", "train_latents"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class TrainedKernel:
    """A kernel in a view with its hyperparameters, and the transform of the labels.

    Attributes
    ----------
    centre : array of shape (K,)
        Subtracted from the targets before training.
    scale : float
        The centred targets are divided by it.
    constant : float
        Prior variance of a constant in the kernel. It is positive for a single stage, whose mean
        is used, and 0 otherwise.
    """

    view: View
    kernel: Kernel
    parameters: Vector
    value: float
    dirichlet: Dirichlet
    centre: Array
    scale: float
    constant: float = 0.0
    tried: dict[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.kernel.label} ({self.view.name})"

    @property
    def noise(self) -> float:
        """Trained noise variance, in addition to the known noise of the transform."""
        return math.exp(self.parameters[-1])

    @property
    def covariance(self) -> Kernel:
        """The kernel, plus its constant if that is positive."""
        return PlusConstant(self.kernel, self.constant) if self.constant else self.kernel


def condition(
    table: ClassTable, trained: TrainedKernel, method: str = "exact", n_neighbors: int = 50
) -> Latents:
    """Condition the latent functions on all rows of the table."""
    rows = dirichlet_rows(table, trained.view, trained.dirichlet, trained.centre, trained.scale)
    engine = make_engine(rows, trained.noise, method, n_neighbors)
    posterior = engine.condition(trained.covariance, trained.parameters)
    return Latents(trained.view, posterior, trained.centre, trained.scale)


def train_latents(
    table: ClassTable,
    choices: Sequence[tuple[View, Kernel]],
    dirichlet: Dirichlet,
    residuals: Array | None,
    rows: Index,
    training: Training | None,
    objective: ObjectiveName,
    noise_floor: float,
    settings: ClassSettings,
    rng: np.random.Generator,
    start: Vector | None = None,
) -> TrainedKernel:
    """Return the best kernel with its hyperparameters.

    Parameters
    ----------
    residuals : array of shape (h, K) or None
        Held-out residuals of the first stage at ``rows``; None for a single stage.
    rows : integer array of shape (h,)
        Distinct rows that training may use.
    start : array, optional
        Parameters that the training begins with; only for a single choice.
    """
    target = dirichlet.target(table.codes)
    centre = table.c @ target / table.c.sum()
    scale = float(np.sqrt(np.mean(table.c @ (target - centre) ** 2 / table.c.sum())))
    pick = np.arange(len(rows))
    if training is None:
        pick = rng.permutation(len(rows))[: settings.training_rows]
    R = None
    if residuals is not None:
        R = table.tensor((residuals[pick] / scale) ** 2 * table.c[rows[pick], None])
    constant = settings.constant if residuals is None else 0.0
    engines: dict[str, ExactEngine] = {}
    for view in {view.name: view for view, _ in choices}.values():
        own = dirichlet_rows(table, view, dirichlet, centre, scale).subset(rows[pick])
        if residuals is not None:
            own = own.with_target(table.tensor(residuals[pick] / scale))
        engines[view.name] = exact_engine(own, noise_floor)
    competitors = [
        _Competitor(view, kernel, engines[view.name], constant, objective, start)
        for view, kernel in choices
    ]
    if training is None:
        _compete(competitors, R, len(pick), len(pick) == len(table), settings)
    else:
        for each in competitors:
            train_with(each.engine, each.candidate, training, rng, R)
    fitted_only([each.candidate for each in competitors])  # raises an error if every one failed
    trained = [each for each in competitors if not each.candidate.failure]
    tried = {f"{each.kernel.label} ({each.view.name})": each.candidate.value for each in trained}
    # Those that were dropped after the first training have a value on fewer rows.
    best = min((each for each in trained if each.stays), key=lambda each: each.candidate.value)
    view, kernel, candidate = best.view, best.kernel, best.candidate
    assert candidate.parameters is not None
    return TrainedKernel(
        view,
        kernel,
        candidate.parameters,
        candidate.value,
        dirichlet,
        centre,
        scale,
        constant,
        tried,
    )


class _Competitor:
    """A kernel in a view, the rows of that view, and the state of its training."""

    def __init__(
        self,
        view: View,
        kernel: Kernel,
        engine: ExactEngine,
        constant: float,
        objective: ObjectiveName,
        start: Vector | None,
    ) -> None:
        self.view, self.kernel, self.engine = view, kernel, engine
        self.candidate = Candidate(
            PlusConstant(kernel, constant) if constant else kernel, objective
        )
        self.candidate.parameters = start
        self.stays = True


def _compete(
    competitors: Sequence[_Competitor],
    R: Tensor | None,
    n: int,
    is_full: bool,
    settings: ClassSettings,
) -> None:
    """Train all kernels on a part of the n rows, and the best of them on all.

    The value of a kernel with more parameters is more optimistic, and more so on fewer rows: the
    best kernel with few parameters stays as well.
    """
    alive, first = list(competitors), settings.variance_first_rows
    if rung_sizes(n, first) and len(alive) > settings.variance_keep:
        _train_each(alive, R, first, False, settings.training_steps)
        fitted_only([each.candidate for each in alive])
        fitted = [each for each in alive if not each.candidate.failure]
        ranked = sorted(fitted, key=lambda each: each.candidate.value)
        rigid = [each for each in ranked if not is_flexible(each.kernel)]
        kept = [*ranked[: settings.variance_keep], *rigid[:1]]
        for each in alive:
            each.stays = each in kept
        alive = [each for each in alive if each.stays]
    _train_each(alive, R, n, is_full, settings.training_steps)


def _train_each(
    competitors: Sequence[_Competitor], R: Tensor | None, rows: int, is_full: bool, steps: int
) -> None:
    """Train kernels on the first of their rows, side by side."""
    R_part, index = None if R is None else R[:rows], np.arange(rows)

    def train(each: _Competitor) -> None:
        part = each.engine.subset(index)
        later = each.candidate.inverse_hessian is not None
        # Continued with a known curvature, training takes few evaluations.
        each.candidate.train(part, R_part, is_full, steps // 3 if later else steps, 1e-3)

    kernels = [each.kernel for each in competitors]
    for_each(train, competitors, competitors[0].engine.rows, kernels)


def refit_latents(
    table: ClassTable,
    trained: TrainedKernel,
    noise_floor: float,
    folds: Index,
    settings: ClassSettings,
) -> tuple[Array, Array]:
    """Return held-out means and variances at hyperparameters trained without the row's fold.

    They are those of a single stage, whose hyperparameters maximise the leave-one-out density.
    """
    rows = dirichlet_rows(table, trained.view, trained.dirichlet, trained.centre, trained.scale)
    engine = exact_engine(rows, noise_floor)
    everything = np.arange(len(table))

    def train(index: Index) -> Vector | None:
        candidate = train_from_start(
            engine, trained.covariance, "loo", index, settings.training_steps
        )
        return None if candidate.failure else candidate.parameters

    def heldout(parameters: Vector) -> tuple[Array, ...]:
        return condition(table, replace(trained, parameters=parameters)).heldout(everything)

    means, variances = heldout_by_refits(
        folds, train, heldout, trained.parameters, rows, trained.kernel
    )
    return means, variances
