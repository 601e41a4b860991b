"""The fitted part 1: mean models and their weights."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.appending import AppendedRows
from twostagegp.kernels import NamedKernel, inverse_lengthscale_shares
from twostagegp.pipeline.mean.models import MeanModel, RidgeMean
from twostagegp.search.kernel_search import KernelSearch
from twostagegp.training.candidates import Candidate

__all__ = ["StackedMean"]

Array = NDArray[np.float64]


@dataclass
class StackedMean:
    """The fitted mean: models and their weights (a single model has weight one).

    Attributes
    ----------
    models : list of mean models
    weights : array of shape (len(models),)
    heldout_residuals : array of shape (n,)
        Residual of every training row under weights fitted on other folds.
    searched : list of Candidate
        All candidates that were trained, including those that were dropped.
    search : KernelSearch or None
        The search that chose the kernel, if it was chosen by the ratio test.
    notes : list of str
        Facts for the report: pretrained weights that were used, members that were left out.
    """

    models: list[MeanModel]
    weights: Array
    heldout_residuals: Array
    searched: list[Candidate] = field(default_factory=list)
    search: KernelSearch | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Readable composition, largest weight first."""
        order = np.argsort(-self.weights)
        parts = [(self.weights[i], self.models[i].label) for i in order if self.weights[i] > 0.005]
        if len(parts) == 1:
            return parts[0][1]
        return " + ".join(f"{weight:.2f} {label}" for weight, label in parts)

    def lengthscale_shape(self) -> Array | None:
        """Return the lengthscale ratios of the ARD kernel with the largest weight, or None."""
        for i in np.argsort(-self.weights):
            model = self.models[i]
            if not isinstance(model, RidgeMean) or self.weights[i] <= 0.0:
                continue
            kernel = model.kernel
            if isinstance(kernel, NamedKernel) and kernel.ard:
                return kernel.lengthscales(model.parameters[:-1]) / kernel.typical_lengthscale()
        return None

    def relevance(self, n_features: int) -> Array:
        """Return the inverse lengthscales of the kernels, weighted as in the stack, shape (d,)."""
        share = np.zeros(n_features)
        for weight, model in zip(self.weights, self.models, strict=True):
            if isinstance(model, RidgeMean):
                share += weight * inverse_lengthscale_shares(model.kernel, model.parameters)
        return share

    def leading_ridges(self, most: int) -> list[tuple[float, RidgeMean]]:
        """Return the kernel ridges with the largest weights, and these, which sum to one."""
        order = np.argsort(-self.weights, kind="stable")
        pairs = [(float(self.weights[k]), self.models[k]) for k in order if self.weights[k] > 0.0]
        ridges = [(weight, model) for weight, model in pairs if isinstance(model, RidgeMean)][:most]
        total = sum(weight for weight, _ in ridges)
        return [(weight / total, model) for weight, model in ridges]

    def predict(self, X: Tensor) -> Tensor:
        """Return the weighted prediction at standardised inputs, shape (n,)."""
        total = X.new_zeros(X.shape[0])
        for weight, model in zip(self.weights, self.models, strict=True):
            if weight > 0.0:
                total += float(weight) * model.predict(X)
        return total

    def predict_with_disagreement(self, X: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return the prediction, and the weighted standard deviation of the models around it.

        .. math::

            \hat m = \sum_k w_k \hat m_k, \qquad d = \Big( \sum_k w_k (\hat m_k - \hat m)^2
            \Big)^{1/2}
        """
        w, each = self._each(X)
        mean = (w * each).sum(0)
        return mean, (w * (each - mean).square()).sum(0).sqrt()

    def covariance_between(self, X: Tensor) -> Tensor:
        r"""Return :math:`\sum_k w_k \delta_k \delta_k^\top`, :math:`\delta_k = \hat m_k - \hat m`;
        shape (n, n), with the squared disagreement on its diagonal.
        """
        w, each = self._each(X)
        delta = each - (w * each).sum(0)
        return (w * delta).T @ delta

    def _each(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights above zero, shape (k, 1), and their models' predictions, (k, n)."""
        kept = [k for k, weight in enumerate(self.weights) if weight > 0.0]
        each = torch.stack([self.models[k].predict(X) for k in kept])
        return torch.as_tensor(self.weights[kept]).to(each)[:, None], each

    def extended(self, appended: AppendedRows, keep_factors: bool) -> StackedMean:
        """Return the same weights over models with more rows, without models of weight zero."""
        kept = [k for k, weight in enumerate(self.weights) if weight > 0.0]
        models = [self.models[k].extended(appended, keep_factors) for k in kept]
        return replace(self, models=models, weights=self.weights[kept])

    @property
    def heldout_disagreement(self) -> Array:
        """Standard deviation of the models' held-out predictions, one per row that was held out."""
        E = np.column_stack([model.heldout_residuals for model in self.models])
        return np.sqrt((E - (E @ self.weights)[:, None]) ** 2 @ self.weights)
