r"""Mean models, each with predictions and one residual per held-out row.

There are three kinds: the constant and kernel ridge (this module), and any scikit-learn regressor
(``crossfit.py``). Kernel ridge with penalty :math:`\lambda` is the posterior mean of a GP with
noise variance :math:`\lambda`,

.. math::

    \hat m(x) = k_x^\top (K + \lambda I)^{-1} y ,

so every engine provides it, with held-out residuals in closed form.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.appending import AppendedRows
from twostagegp.data.rows import Merged
from twostagegp.engines.exact.engine import ExactPosterior
from twostagegp.engines.protocol import Posterior
from twostagegp.kernels import Kernel, Vector
from twostagegp.training.candidates import Candidate

__all__ = ["ConstantMean", "MeanModel", "RidgeMean"]

Array = NDArray[np.float64]


class MeanModel(Protocol):
    """The interface of a mean model that the stack and the estimators use."""

    heldout_residuals: Array

    @property
    def label(self) -> str:
        """Short name for reports."""

    def predict(self, X: Tensor) -> Tensor:
        """Return the prediction at standardised inputs, shape (n,)."""

    def extended(self, appended: AppendedRows, keep_factors: bool) -> Self:
        """Return the same model with more rows; held-out residuals stay those of the fit."""


class ConstantMean:
    r"""The weighted mean of the target.

    A held-out row is predicted by the mean of the other rows: with total weight N and
    :math:`\bar y = 0` after standardisation, :math:`e_i = y_i\, N / (N - 1)`; for a group of weight
    :math:`N_G`, :math:`e_i = y_i + \sum_{j \in G} c_j y_j / (N - N_G)`.

    Examples
    --------
    >>> import numpy as np
    >>> from twostagegp.data.rows import merge_rows
    >>> X, y = np.arange(4.0)[:, None], np.array([-3.0, -1.0, 1.0, 3.0])
    >>> ConstantMean(merge_rows(X, y)).heldout_residuals
    array([-4.        , -1.33333333,  1.33333333,  4.        ])
    """

    label = "constant"
    value: float
    heldout_residuals: Array

    def __init__(self, merged: Merged) -> None:
        y, weight = merged.y, merged.weight
        total = weight.sum()
        self.value = float(weight @ y / total)
        if merged.groups is None:
            part_weight = np.minimum(merged.c, 1.0)[merged.inverse]  # one copy
            part = part_weight * y
        else:
            _, members = np.unique(merged.groups[merged.inverse], return_inverse=True)
            members = members.reshape(-1)
            part = np.asarray(np.bincount(members, weights=weight * y)[members])
            part_weight = np.asarray(np.bincount(members, weights=weight)[members])
        rest = np.maximum(total - part_weight, np.finfo(float).tiny)
        others = np.where(total > part_weight, (weight @ y - part) / rest, 0.0)
        self.heldout_residuals = y - others

    def predict(self, X: Tensor) -> Tensor:
        """Return the same number for every row, shape (n,)."""
        return torch.full((X.shape[0],), self.value, dtype=X.dtype, device=X.device)

    def extended(self, appended: AppendedRows, keep_factors: bool) -> ConstantMean:
        """Return the mean of all rows, old and new."""
        merged, model = appended.data.merged, copy(self)
        model.value = float(merged.c @ merged.t / merged.c.sum())
        return model


class RidgeMean:
    """Kernel ridge at fixed hyperparameters, by any engine.

    Parameters
    ----------
    candidate : Candidate
        The kernel, its objective and its training.
    posterior : Posterior
        The kernel conditioned on the rows at (theta, log penalty); only its mean is used.
    heldout_residuals : array of shape (n,)
        One per row of the table that was held out.
    """

    #: The posterior with its factor after an update, which makes the next update cheap.
    _whole: Posterior | None = None
    #: The same for variances, if no update has kept one. It is not extended: an update gives the
    #: same numbers whether or not variances were predicted before.
    _for_variances: Posterior | None = None

    def __init__(
        self, candidate: Candidate, posterior: Posterior, heldout_residuals: Array
    ) -> None:
        self.candidate = candidate
        self.posterior = posterior
        self.heldout_residuals = heldout_residuals
        posterior.drop_factor()  # a mean needs no factor

    @property
    def keeps_factor(self) -> bool:
        """Whether a factor is kept, which the next update extends."""
        return self._whole is not None

    @property
    def label(self) -> str:
        """Kernel and objective."""
        return self.candidate.label

    @property
    def kernel(self) -> Kernel:
        """The covariance function."""
        return self.posterior.kernel

    @property
    def parameters(self) -> Vector:
        """Parameters (theta, log penalty)."""
        return self.posterior.parameters

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_whole", "_for_variances")
        return {name: value for name, value in self.__dict__.items() if name not in kept}

    def predict(self, X: Tensor) -> Tensor:
        """Return the posterior mean, shape (n,)."""
        return self.posterior.mean(X)

    def variance(self, X: Tensor) -> Tensor:
        """Return the posterior variance of the function, shape (n,)."""
        return self.with_factor().variance(X)

    def covariance(self, X: Tensor) -> Tensor:
        """Return the posterior covariance of the function, shape (n, n)."""
        return self.with_factor().covariance(X)

    def prior(self, X: Tensor) -> Tensor:
        """Return the prior variance of the function, shape (n,)."""
        return self.kernel.diagonal(X, self.parameters[:-1])

    @property
    def can_keep_factor(self) -> bool:
        """Whether variances need no new factorisation for each prediction."""
        return not (isinstance(self.posterior, ExactPosterior) and self.posterior.is_large)

    def with_factor(self) -> Posterior:
        """Return the posterior with its factor, which is made for the first variance.

        It is kept, unless it is so large that it is used block by block.
        """
        known = self._whole or self._for_variances
        if known is not None or not isinstance(self.posterior, ExactPosterior):
            return known or self.posterior
        whole = copy(self.posterior)
        whole.rebuild_factor()
        if not whole.is_large:
            self._for_variances = whole
        return whole

    def extended(self, appended: AppendedRows, keep_factors: bool) -> RidgeMean:
        """Condition on more rows at the same hyperparameters.

        The first update factorises all rows, since the fit has not kept the factor; with
        ``keep_factors`` later updates extend it. Pickles and files do not contain it.
        """
        known = self.posterior if self._whole is None else self._whole
        whole = known.extended(appended.data.rows, appended.changed_rows)
        model = copy(self)
        model._for_variances = None
        model._whole = whole if keep_factors else None
        model.posterior = copy(whole)
        model.posterior.drop_factor()
        return model
