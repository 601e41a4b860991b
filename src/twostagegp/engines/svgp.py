r"""A sparse variational GP (SVGP, Hensman et al. 2013), by GPyTorch, for the same two stages.

The function is summarised by its values u at M inducing points Z with a Gaussian :math:`q(u)`, and

.. math::

    \mathrm{ELBO} = \sum_i \mathbb{E}_{q(f_i)} \log N(y_i; f_i, \sigma^2)
                    - \mathrm{KL}\big(q(u) \,\|\, p(u)\big)

is maximised over minibatches: :math:`q(u)` by natural gradients, everything else by Adam. Inducing
points start at a farthest point sample, hyperparameters where an exact GP on a few hundred rows
ends.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import gpytorch
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from torch import Tensor

from twostagegp.data.sampling import farthest_point_sampling
from twostagegp.kernels import Kernel, Vector

__all__ = ["SparseGP"]

Array = NDArray[np.float64]

#: Rows among which inducing points are looked for.
_POOL_ROWS = 20_000


class _Model(gpytorch.models.ApproximateGP):
    def __init__(self, Z: Tensor, covariance: Any) -> None:
        distribution = gpytorch.variational.NaturalVariationalDistribution(len(Z))
        strategy = gpytorch.variational.VariationalStrategy(
            self, Z, distribution, learn_inducing_locations=True
        )
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = covariance

    def forward(self, X: Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))


class SparseGP(RegressorMixin, BaseEstimator):
    """A zero-mean sparse variational GP on standardised numbers, as a scikit-learn regressor.

    Parameters
    ----------
    kernel : Kernel
    parameters : array
        (theta, log noise variance) to start from.
    n_inducing, batch, steps : int
        Inducing points, rows of a minibatch, minibatches.
    lr, natural_lr : float
        Rates of Adam and of the natural gradient.
    noise_floor : float
    random_state : int

    Examples
    --------
    >>> import numpy as np
    >>> from twostagegp.kernels import NamedKernel
    >>> X = np.random.default_rng(0).uniform(-2, 2, size=(300, 1))
    >>> kernel = NamedKernel("rbf", 1)
    >>> start = np.append(kernel.start(), np.log(0.01))
    >>> gp = SparseGP(kernel, start, n_inducing=20, steps=100).fit(X, np.sin(2 * X[:, 0]))
    >>> bool(np.abs(gp.predict(X) - np.sin(2 * X[:, 0])).max() < 0.1)
    True
    """

    def __init__(
        self,
        kernel: Kernel,
        parameters: Vector,
        n_inducing: int = 256,
        batch: int = 1024,
        steps: int = 400,
        lr: float = 0.02,
        natural_lr: float = 0.1,
        noise_floor: float = 1e-8,
        random_state: int | None = None,
    ) -> None:
        self.kernel = kernel
        self.parameters = parameters
        self.n_inducing = n_inducing
        self.batch = batch
        self.steps = steps
        self.lr = lr
        self.natural_lr = natural_lr
        self.noise_floor = noise_floor
        self.random_state = random_state

    def fit(self, X: Array, y: Array) -> SparseGP:
        """Fit to all rows in minibatches."""
        rng = np.random.default_rng(self.random_state)
        inputs, target = torch.as_tensor(X).double(), torch.as_tensor(y).double()
        n = len(inputs)
        pool = inputs[torch.as_tensor(rng.permutation(n)[:_POOL_ROWS])]
        chosen = farthest_point_sampling(pool.numpy(), min(self.n_inducing, len(pool)))
        covariance = self.kernel.to_gpytorch(self.parameters[:-1]).double()
        model = _Model(pool[torch.as_tensor(np.asarray(chosen))].clone(), covariance).double()
        floor = gpytorch.constraints.GreaterThan(max(self.noise_floor, 1e-8))
        likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=floor).double()
        likelihood.noise = max(math.exp(self.parameters[-1]), 2.0 * self.noise_floor, 1e-6)
        objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=n)
        natural = gpytorch.optim.NGD(model.variational_parameters(), num_data=n, lr=self.natural_lr)
        others = [*model.hyperparameters(), *likelihood.parameters()]
        adam = torch.optim.Adam(others, lr=self.lr)
        model.train()
        likelihood.train()
        with warnings.catch_warnings(), gpytorch.settings.cholesky_jitter(double_value=1e-6):
            warnings.simplefilter("ignore")  # jitter that GPyTorch adds by itself
            for step in range(self.steps):
                # Few rows are all looked at in every step, without the noise of a draw.
                drawn = rng.integers(0, n, size=self.batch) if n > self.batch else np.arange(n)
                part = torch.as_tensor(drawn)
                natural.zero_grad()
                adam.zero_grad()
                loss = -objective(model(inputs[part]), target[part])
                loss.backward()
                natural.step()
                adam.step()
                if step == (3 * self.steps) // 4:
                    for group in adam.param_groups:
                        group["lr"] *= 0.1
        self.model_ = model.eval()
        self.noise_ = float(likelihood.noise.detach())
        self.n_features_in_ = inputs.shape[1]
        return self

    def latent(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the function, each of shape (n,)."""
        means, variances = [X.new_zeros(0)], [X.new_zeros(0)]
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for part in torch.split(X.double().cpu(), 4096):
                found = self.model_(part)
                means.append(found.mean.to(X))
                variances.append(found.variance.clamp(min=0.0).to(X))
        return torch.cat(means), torch.cat(variances)

    def covariance(self, X: Tensor) -> Tensor:
        """Joint covariance of the function, shape (n, n)."""
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.as_tensor(self.model_(X.double().cpu()).covariance_matrix).to(X)

    def predict(self, X: Array) -> Array:
        """Mean of the function."""
        return self.latent(torch.as_tensor(X))[0].numpy()
