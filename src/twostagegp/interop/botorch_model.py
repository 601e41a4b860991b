r"""A fitted regressor as a BoTorch model.

With the mean m, the covariance C of the function and the variance :math:`\sigma^2` of an
observation,

.. math::

    f \sim N\big( m(x), C(x, x') \big), \qquad
    y = f(x) + \varepsilon, \quad \varepsilon \sim N(0, \sigma^2(x) - C(x, x)) ,

in the user's units and differentiable in x. m, the diagonal of C and :math:`\sigma^2` are those of
``predict``, inside and outside the data; C is that of ``sample_y(noise=False)``. With
``calibration="scale"`` or ``None``, or ``local_scale=False``, C is the covariance of part 2, times
one factor. New observations condition this Gaussian process in the usual way:
:math:`C_{xx'} - C_{xn} (C_{nn} + N)^{-1} C_{nx'}`. They do not change the mean, the hyperparameters
or the calibration; to change these, fit again.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model import FantasizeMixin
from botorch.posteriors.gpytorch import GPyTorchPosterior
from gpytorch.constraints import Positive
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import GaussianLikelihood
from linear_operator.operators import DenseLinearOperator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from twostagegp.errors import InputError
from twostagegp.interop.parts import Parts, StackModule, parts_of
from twostagegp.pipeline.model import LARGEST_SHARE

__all__ = ["TwoStageBotorchModel", "as_botorch"]


#: Jitters that are tried if rounding has made a covariance indefinite, relative to the prior
#: variance.
JITTERS = (1e-12, 1e-11, 1e-10, 1e-9, 1e-8)


class Moments(NamedTuple):
    """Moments at q points.

    The covariance has shape (..., q, q); mean, noise variance and prior variance have (..., q).
    """

    mean: Tensor
    covariance: Tensor
    noise: Tensor
    prior: Tensor


class Output(torch.nn.Module):
    """Joint moments of the function and the noise of one target, in the user's units."""

    def __init__(self, parts: Parts, local_scale: bool) -> None:
        super().__init__()
        self.mean, self.gp, self.standardise = parts.mean, parts.gp, parts.standardise
        self.local = parts.local if local_scale else None
        self.function = parts.function if local_scale else None
        self.noise, self.floor, self.factor = parts.noise, parts.floor, parts.factor
        self.largest = parts.largest_latent
        self.y_mean, self.y_scale = parts.data.scaling.y_mean, parts.data.scaling.y_scale

    def forward(self, X: Tensor) -> Moments:
        Z = self.standardise(X)
        prior, squared = torch.as_tensor(self.gp.kernel(Z, diag=True)), self.y_scale**2
        if self.local is None:
            mean, C = self.mean(Z), self.factor * self.gp.covariance(Z)
            noise = torch.full_like(mean, max(self.factor * self.noise, self.floor))
            prior = self.factor * prior
        else:
            assert isinstance(self.mean, StackModule)
            mean, steps = self.mean.with_steps(Z)
            between = steps.square().sum(-1)
            latent = self.gp.variance(Z).clamp(max=self.largest)
            g = self.local(Z, mean, latent + self.noise, between)
            noise, prior = (g * self.noise).clamp(min=self.floor), g * prior
            if self.function is None:
                C = self.gp.covariance(Z) * g.sqrt().unsqueeze(-1) * g.sqrt().unsqueeze(-2)
            else:
                mean, added = self.function.continued(Z, mean, between, self.mean)
                observed = g * latent + noise + added
                C = self.function.covariance(Z, steps, added, LARGEST_SHARE * observed)
                noise = observed - C.diagonal(dim1=-2, dim2=-1)
        return Moments(
            self.y_mean + self.y_scale * mean, squared * C, squared * noise, squared * prior
        )


class TwoStageBotorchModel(GPyTorchModel, FantasizeMixin):
    """A fitted regressor as a BoTorch model, returned by :meth:`TwoStageGPRegressor.to_botorch`.

    ``condition_on_observations`` and ``fantasize`` return models that are conditioned on added
    rows.

    Parameters
    ----------
    outputs : list of Output
    train_inputs : Tensor of shape (n, d)
    train_targets : Tensor of shape (n,) or (p, n)
    """

    def __init__(
        self, outputs: list[Output], train_inputs: Tensor, train_targets: Tensor | None
    ) -> None:
        super().__init__()
        self.outputs = torch.nn.ModuleList(outputs)
        self.train_inputs = (train_inputs,)
        self.train_targets = train_targets
        self.likelihood = _median_noise_likelihood(outputs).to(train_inputs.device)
        #: Added rows: inputs (..., k, d), targets (..., k, p) and noise (..., k, p); or None.
        self._added_rows: tuple[Tensor, Tensor, Tensor] | None = None
        self.requires_grad_(False)
        self.eval()

    @property
    def num_outputs(self) -> int:
        """Number of targets."""
        return len(self.outputs)

    @property
    def batch_shape(self) -> torch.Size:
        """Batch shape of the rows that the model was conditioned on; empty without such rows."""
        if self._added_rows is None:
            return torch.Size()
        X, Y, _ = self._added_rows
        return torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2])

    def forward(self, X: Tensor) -> MultivariateNormal:
        """Return the joint distribution of the function at X."""
        return self.posterior(X).distribution

    def posterior(  # type: ignore[override]
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Return the joint distribution at the q points of every batch.

        Parameters
        ----------
        X : Tensor of shape (..., q, d)
        output_indices : list of int, optional
        observation_noise : bool or Tensor of shape (..., q, p)
            True adds the noise of the model; a tensor gives the noise variances to add.
        posterior_transform : PosteriorTransform, optional

        Returns
        -------
        GPyTorchPosterior
        """
        self._check_columns(X)
        which = list(range(self.num_outputs)) if output_indices is None else output_indices
        normals = [self._normal(k, X, observation_noise) for k in which]
        normal = normals[0]
        if len(normals) > 1:
            normal = MultitaskMultivariateNormal.from_independent_mvns(normals)
        posterior = GPyTorchPosterior(normal)
        if posterior_transform is None:
            return posterior
        return posterior_transform(posterior=posterior, X=X)

    def _normal(self, k: int, X: Tensor, observation_noise: bool | Tensor) -> MultivariateNormal:
        mean, C, noise, prior = self._moments(k, X)
        if isinstance(observation_noise, Tensor):
            given = observation_noise[..., k if observation_noise.shape[-1] > 1 else 0]
            C = C + torch.diag_embed(given.to(C).expand(mean.shape))
        elif observation_noise:
            C = C + torch.diag_embed(noise.expand(mean.shape))
        # GPyTorch would factorise a plain tensor immediately, without jitter.
        return MultivariateNormal(mean, DenseLinearOperator(_with_jitter(C, prior)))

    def _moments(self, k: int, X: Tensor) -> Moments:
        output = self.outputs[k]
        if self._added_rows is None:
            return output(X)
        inputs, Y, given = (part.to(X.device) for part in self._added_rows)
        q, batch = X.shape[-2], torch.broadcast_shapes(X.shape[:-2], inputs.shape[:-2])
        inputs = inputs.to(X)
        both = [part.expand(*batch, *part.shape[-2:]) for part in (X, inputs)]
        mean, C, noise, prior = output(torch.cat(both, dim=-2))
        extra = torch.where(torch.isnan(given[..., k]), noise[..., q:], given[..., k])
        S = C[..., q:, q:] + torch.diag_embed(extra)
        L = torch.as_tensor(psd_safe_cholesky(S))
        V = torch.linalg.solve_triangular(L, C[..., q:, :q], upper=False)
        error = (Y[..., k] - mean[..., q:]).unsqueeze(-1)
        u = torch.linalg.solve_triangular(L, error, upper=False)
        conditioned = mean[..., :q] + (V.mT @ u).squeeze(-1)
        C = C[..., :q, :q] - V.mT @ V
        rest = (part[..., :q].expand(conditioned.shape) for part in (noise, prior))
        return Moments(conditioned, C.expand(*conditioned.shape, q), *rest)

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> TwoStageBotorchModel:
        """Return this model conditioned on added rows.

        Parameters
        ----------
        X : Tensor of shape (..., k, d)
        Y : Tensor of shape (..., k, p)
            It may have more batch dimensions than X, for example one for fantasies.
        noise : Tensor of the shape of Y, optional
            Known noise variances; by default those of the model.
        """
        self._check_columns(X)
        if Y.shape[-1] != self.num_outputs or Y.shape[-2] != X.shape[-2]:
            raise InputError(
                f"Y has shape {tuple(Y.shape)}; for X of shape {tuple(X.shape)} it must end in "
                f"({X.shape[-2]}, {self.num_outputs}), with one column per target."
            )
        given = torch.full_like(Y, torch.nan) if noise is None else noise.expand(Y.shape)
        new = (X, Y, given)
        if self._added_rows is not None:
            new = tuple(  # type: ignore[assignment]
                _concatenate_rows(old, part)
                for old, part in zip(self._added_rows, new, strict=True)
            )
        model = copy.copy(self)
        # The shallow copy shares parameters and submodules with this model.
        model._added_rows = new  # noqa: SLF001 (a copy of this model)
        return model

    def subset_output(self, idcs: list[int]) -> TwoStageBotorchModel:
        """Return the model of some of the targets."""
        outputs: list[Any] = [self.outputs[k] for k in idcs]
        targets = self.train_targets
        if targets is not None and self.num_outputs > 1:
            targets = targets[idcs] if len(idcs) > 1 else targets[idcs[0]]
        model = TwoStageBotorchModel(outputs, self.train_inputs[0], targets)
        if self._added_rows is not None:
            X, Y, given = self._added_rows
            model._added_rows = (X, Y[..., idcs], given[..., idcs])
        return model

    def _check_columns(self, X: Tensor) -> None:
        width = self.train_inputs[0].shape[-1]
        if X.ndim < 2 or X.shape[-1] != width:
            raise InputError(
                f"X must have shape (..., q, {width}) with the columns of the fit, got "
                f"{tuple(X.shape)}. For a data frame, these are the columns of "
                "model.columns_.transform(X)."
            )


def _with_jitter(C: Tensor, prior: Tensor) -> Tensor:
    """Return C, with the smallest jitter on its diagonal for which it can be factorised."""
    A, added = C, C.new_zeros(C.shape[:-2])
    for jitter in JITTERS:
        _, failed = torch.linalg.cholesky_ex(A.detach())
        if not bool(failed.any()):
            break
        added = torch.where(failed > 0, jitter, added)
        A = C + torch.diag_embed(added.unsqueeze(-1) * prior.detach())
    return A


def _concatenate_rows(old: Tensor, new: Tensor) -> Tensor:
    """Return both sets of rows, with broadcast batch dimensions."""
    batch = torch.broadcast_shapes(old.shape[:-2], new.shape[:-2])
    parts = [part.expand(*batch, *part.shape[-2:]) for part in (old, new)]
    return torch.cat(parts, dim=-2)


def _median_noise_likelihood(outputs: list[Output]) -> GaussianLikelihood:
    """Return a likelihood with the median noise, for code that reads the noise from it."""
    positive = Positive(transform=torch.exp, inv_transform=torch.log)
    noises = [max(o.factor * o.noise, o.floor) * o.y_scale**2 for o in outputs]
    shape = torch.Size() if len(outputs) == 1 else torch.Size([len(outputs)])
    likelihood = GaussianLikelihood(noise_constraint=positive, batch_shape=shape).double()
    likelihood.noise = torch.tensor(noises, dtype=torch.float64).reshape(*shape, 1)
    return likelihood


def as_botorch(estimator: Any, local_scale: bool = True) -> TwoStageBotorchModel:
    """Return a fitted regressor as a BoTorch model."""
    if not isinstance(local_scale, bool):
        raise InputError(f"local_scale={local_scale!r}: use True or False.")
    all_parts = parts_of(estimator)
    outputs = [Output(parts, local_scale) for parts in all_parts]
    X = all_parts[0].train_inputs
    targets = [
        parts.data.scaling.y_mean
        + parts.data.scaling.y_scale * torch.as_tensor(parts.data.merged.t).to(X)
        for parts in all_parts
    ]
    return TwoStageBotorchModel(
        outputs, X, targets[0] if len(targets) == 1 else torch.stack(targets)
    )
