"""The ``to_gpytorch`` and ``to_botorch`` methods of the regressors."""

from __future__ import annotations

from typing import Any

__all__ = ["Exportable"]


class Exportable:
    """Gives a regressor its ways to GPyTorch and to BoTorch."""

    def to_gpytorch(self) -> Any:
        """The fitted model as a GPyTorch ``ExactGP`` in eval mode, in the units of X and y.

        ``gp(X)`` is the distribution of the function and ``gp.likelihood(gp(X))`` that of an
        observation; both can be differentiated in X. X has the columns of the fit; of a model
        that was fitted to a data frame they are the encoded ones, ``model.columns_.transform(X)``.

        The mean module is the fitted mean, the covariance that of the variance stage, and the
        training targets are what the mean says at the training rows, so that the posterior mean
        is the fitted mean and the posterior variance that of part 2. A factor of
        ``calibration="scale"`` is part of kernel and noise. The local scale g(x) of
        ``calibration="local"`` is not: multiply variances by ``gp.local_factor(X)``, or use
        :meth:`to_botorch`, which has it. The shape of the distribution is left out always, since a
        GP is Gaussian; ``model.predict_quantiles`` has it.

        Only for the exact method. Returns a list, one a target, where y had several columns.

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
        from twostagegp.interop.gpytorch_model import as_gpytorch

        return as_gpytorch(self)

    def to_botorch(self, local_scale: bool = True) -> Any:
        """The fitted model as a BoTorch ``Model``, for Bayesian optimisation.

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
        from twostagegp.interop.packages import require_botorch

        require_botorch()
        from twostagegp.interop.botorch_model import as_botorch

        return as_botorch(self, local_scale)
