"""Exports of a fitted regressor to GPyTorch and BoTorch.

Only regressors that can have an exact GP behind them have these methods: a prediction from
neighbours has no single GP that could be handed over.
"""

from __future__ import annotations

from typing import Any

from twostagegp.estimators import shortcuts

__all__ = ["GPyTorchExports"]


class GPyTorchExports:
    """``to_gpytorch`` and ``to_botorch``."""

    def to_gpytorch(self) -> Any:
        """Return the fitted model as a GPyTorch ``ExactGP`` in eval mode, in units of X and y.

        ``gp(X)`` is the distribution of the function and ``gp.likelihood(gp(X))`` that of an
        observation; both can be differentiated in X. X has the columns of the fit; if the model
        was fitted to a data frame, the encoded columns, ``model.columns_.transform(X)``.

        The mean module is the fitted mean, the covariance that of the variance stage, and the
        training targets are the fitted mean at the training rows, so that the posterior mean is
        the fitted mean and the posterior variance that of part 2. A factor of
        ``calibration="scale"`` is part of kernel and noise. The local scale g(x) of
        ``calibration="local"`` is not: multiply variances by ``gp.local_factor(X)``, or use
        :meth:`to_botorch`, which includes it. The shape of the distribution is always left out,
        since a GP is Gaussian; ``model.predict_quantiles`` includes it.

        Only for the exact method. Returns a list, one GP per target, if y had several columns.

        Examples
        --------
        >>> import numpy as np, torch
        >>> from twostagegp import ExactGPRegressor
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> model = ExactGPRegressor("rbf", random_state=0).fit(X, np.sin(6 * X[:, 0]))
        >>> gp = model.to_gpytorch()
        >>> new = torch.tensor([[0.33]], dtype=torch.float64)
        >>> bool(np.allclose(gp(new).mean.numpy(), model.predict([[0.33]])))
        True
        """
        return shortcuts.to_gpytorch(self)

    def to_botorch(self, local_scale: bool = True) -> Any:
        """Return the fitted model as a BoTorch ``Model``, for Bayesian optimisation.

        Needs ``pip install 'twostagegp[botorch]'``. ``posterior(X)`` is a ``GPyTorchPosterior``,
        joint over the q points of each batch and differentiable in X, with the mean and the latent
        variance of ``predict``; ``observation_noise=True`` adds the noise. Columns are those of
        :meth:`to_gpytorch`. Only for the exact method.

        Parameters
        ----------
        local_scale : bool
            Scale variances by the local scale of ``calibration="local"``, as ``predict`` does.
            False multiplies all of them by its median, ``model.calibration_.factor``.

        Examples
        --------
        >>> import numpy as np, torch
        >>> from twostagegp import ExactGPRegressor
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> model = ExactGPRegressor("rbf", random_state=0).fit(X, np.sin(6 * X[:, 0]))
        >>> posterior = model.to_botorch().posterior(torch.rand(5, 3, 1, dtype=torch.float64))
        >>> posterior.mean.shape  # 5 batches of 3 points, 1 output
        torch.Size([5, 3, 1])
        """
        return shortcuts.to_botorch(self, local_scale)
