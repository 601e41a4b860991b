"""Parts of classifiers that older files hold, made into those of the present version.

Before classifiers stood on the engines, they had ridges, latent functions and neighbours of their
own. Files of that time hold the hyperparameters and the training rows, from which the present parts
are computed when the file is loaded. The classes here only name the fields of those files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.classification.latents import Latents, label_rows, make_engine
from twostagegp.classification.ridges import GPMember
from twostagegp.classification.table import ClassTable
from twostagegp.classification.variance import TrainedKernel, condition
from twostagegp.classification.views import View
from twostagegp.kernels import Kernel, PlusConstant, Vector
from twostagegp.storage.checks import check_hyperparameters

__all__ = [
    "ExactLatents",
    "ExactRidge",
    "LocalLatents",
    "LocalRows",
    "NeighborRidge",
    "make_latents",
    "make_ridge",
]

#: The prior variance of the constant in the kernels of ridges at that time.
_CONSTANT = 10.0


@dataclass
class LocalRows:
    """Rows among which neighbours were found."""

    table: ClassTable
    view: View
    kernel: Kernel
    theta: Vector
    k: int
    constant: float
    c: Tensor


@dataclass
class ExactRidge:
    """A kernel ridge regression on all rows."""

    view: View
    kernel: Kernel
    parameters: Vector
    label: str
    table: ClassTable
    jitter: float
    alpha: Tensor
    heldout: NDArray[Any]


@dataclass
class NeighborRidge:
    """A kernel ridge regression on the nearest rows."""

    view: View
    kernel: Kernel
    parameters: Vector
    label: str
    rows: LocalRows
    noise: float
    T: Tensor
    heldout: NDArray[Any]


@dataclass
class ExactLatents:
    """Latent functions conditioned on all rows."""

    table: ClassTable
    trained: TrainedKernel
    jitter: float
    members: list[Tensor]
    T: Tensor
    alpha: Tensor
    A: Tensor | None = None
    factors: list[Tensor] | None = None


@dataclass
class LocalLatents:
    """Latent functions conditioned on the nearest rows."""

    table: ClassTable
    trained: TrainedKernel
    rows: LocalRows
    noise: Tensor
    T: Tensor


def make_ridge(cls: Any, fields: dict[str, Any]) -> GPMember:
    """Return the member of the stack that a ridge has become."""
    old = cls(**fields)
    exact = isinstance(old, ExactRidge)
    table = old.table if exact else old.rows.table
    check_hyperparameters(old.kernel, old.parameters, len(old.view.columns))
    rows = label_rows(table, old.view)
    engine = make_engine(rows, 1e-8, "exact" if exact else "neighbors", 1 if exact else old.rows.k)
    posterior = engine.condition(PlusConstant(old.kernel, _CONSTANT), old.parameters)
    latents = Latents(old.view, posterior, np.zeros(table.n_classes), 1.0)
    latents.drop_variance()
    return GPMember(old.label, latents, old.heldout)


def make_latents(cls: Any, fields: dict[str, Any]) -> Latents:
    """Return the latent functions, conditioned anew."""
    old = cls(**fields)
    trained = old.trained
    check_hyperparameters(trained.kernel, trained.parameters, len(trained.view.columns))
    if isinstance(old, ExactLatents):
        return condition(old.table, trained)
    return condition(old.table, trained, "neighbors", old.rows.k)
