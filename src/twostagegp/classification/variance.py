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

from twostagegp.classification.dirichlet import Dirichlet
from twostagegp.classification.latents import Latents, dirichlet_rows, exact_engine, make_engine
from twostagegp.classification.refits import heldout_by_refits, train_from_start
from twostagegp.classification.table import ClassTable
from twostagegp.classification.views import View
from twostagegp.engines.problem import ObjectiveName
from twostagegp.kernels import Kernel, PlusConstant, Vector
from twostagegp.pipeline.settings import ClassSettings
from twostagegp.training.candidates import Candidate, fitted_only, train_with
from twostagegp.training.schedule import Training

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
) -> TrainedKernel:
    """Return the best kernel with its hyperparameters.

    Parameters
    ----------
    residuals : array of shape (h, K) or None
        Held-out residuals of the first stage at ``rows``; None for a single stage.
    rows : integer array of shape (h,)
        Distinct rows that training may use.
    """
    target = dirichlet.target(table.codes)
    centre = table.c @ target / table.c.sum()
    scale = float(np.sqrt(np.mean(table.c @ (target - centre) ** 2 / table.c.sum())))
    pick = np.arange(len(rows))
    if training is None:
        pick = np.sort(rng.permutation(len(rows))[: settings.training_rows])
    R = None
    if residuals is not None:
        R = table.tensor((residuals[pick] / scale) ** 2 * table.c[rows[pick], None])
    constant = settings.constant if residuals is None else 0.0
    candidates: list[tuple[View, Kernel, Candidate]] = []
    for view, kernel in choices:
        candidate = Candidate(PlusConstant(kernel, constant) if constant else kernel, objective)
        own = dirichlet_rows(table, view, dirichlet, centre, scale).subset(rows[pick])
        if residuals is not None:
            own = own.with_target(table.tensor(residuals[pick] / scale))
        engine = exact_engine(own, noise_floor)
        if training is None:
            steps = settings.training_steps
            candidate.train(engine, R, len(pick) == len(table), steps, 1e-3)
        else:
            train_with(engine, candidate, training, rng, R)
        candidates.append((view, kernel, candidate))
    fitted = fitted_only([candidate for _, _, candidate in candidates])
    best = min(fitted, key=lambda candidate: candidate.value)
    view, kernel = next((v, k) for v, k, candidate in candidates if candidate is best)
    assert best.parameters is not None
    tried = {f"{k.label} ({v.name})": c.value for v, k, c in candidates if not c.failure}
    return TrainedKernel(
        view, kernel, best.parameters, best.value, dirichlet, centre, scale, constant, tried
    )


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

    means, variances = heldout_by_refits(folds, train, heldout, trained.parameters)
    return means, variances
