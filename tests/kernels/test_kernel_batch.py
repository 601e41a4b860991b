"""GPyTorch kernels with one parameter vector for all problems: one call, the same numbers."""

import pickle

import gpytorch.kernels as gk
import numpy as np
import pytest
import torch

from twostagegp.data.kept_columns import Columns
from twostagegp.kernels import KERNELS, NamedKernel, WrappedKernel, make_kernel
from twostagegp.kernels.batched import kernel_batch, take
from twostagegp.kernels.gpytorch import LaplacianKernel

B, N, D = 5, 6, 3


class Pairwise(gk.Kernel):
    """A kernel as users write them: it knows two tables of points, and no batches of them."""

    has_lengthscale = True

    def forward(self, x1, x2, diag=False, **params):
        squares = (x1.unsqueeze(1) - x2.unsqueeze(0)).square().sum(-1)
        K = torch.exp(-squares / self.lengthscale**2)
        return K.diagonal() if diag else K


class Crowded(gk.Kernel):
    """The right shape for a batch, but problems that see each other."""

    has_lengthscale = True

    def forward(self, x1, x2, diag=False, **params):
        mean = x1.reshape(-1, x1.shape[-1]).mean(0)
        z1, z2 = (x1 - mean) / self.lengthscale, (x2 - mean) / self.lengthscale
        return (z1 * z2).sum(-1) if diag else z1 @ z2.transpose(-1, -2)


MODULES = {
    "rbf": gk.RBFKernel,
    "rbf-ard": lambda: gk.RBFKernel(ard_num_dims=D),
    "matern12-ard": lambda: gk.MaternKernel(nu=0.5, ard_num_dims=D),
    "matern52": gk.MaternKernel,
    "laplacian": lambda: LaplacianKernel(ard_num_dims=D),
    "sum": lambda: gk.RBFKernel() + gk.ScaleKernel(gk.LinearKernel()),
    "product": lambda: gk.ScaleKernel(gk.RQKernel()) * gk.PeriodicKernel(),
    "some columns": lambda: gk.RBFKernel(active_dims=[0, 2]) + gk.MaternKernel(active_dims=[1]),
    "scaled columns": lambda: gk.ScaleKernel(gk.RBFKernel(), active_dims=[1]),
    "polynomial": lambda: gk.PolynomialKernel(power=2),
}
BATCHED = [
    pytest.param(WrappedKernel(module(), D), id=name) for name, module in MODULES.items()
] + [
    pytest.param(WrappedKernel(gk.RBFKernel(ard_num_dims=5), D, Columns((0, 2, 3), 5)), id="places")
]
OTHERS = [
    pytest.param(WrappedKernel(module, D), id=type(module).__name__)
    for module in (Pairwise(), Crowded())
]
NAMED = [
    pytest.param(NamedKernel(name, D, ard), id=f"{name}-{ard}")
    for name in KERNELS
    for ard in (False, True)
]


def inputs(size=B, seed=0):
    return torch.as_tensor(np.random.default_rng(seed).normal(size=(size, N, D)))


def weights():
    W = np.random.default_rng(2).normal(size=(B, N, N))
    return torch.as_tensor(W + W.transpose(0, 2, 1))


def some_theta(kernel):
    return kernel.start() + np.random.default_rng(1).normal(scale=0.4, size=kernel.size)


@pytest.mark.parametrize("kernel", BATCHED + OTHERS + NAMED)
def test_one_parameter_vector_stands_for_all_problems(kernel):
    X, W, theta = inputs(), weights(), some_theta(kernel)
    shared = torch.as_tensor(theta)[None]
    batch = kernel_batch(kernel, X)
    K, saved = batch.evaluate(slice(None), shared)
    gradient = batch.gradient(shared, K, saved, W)
    assert gradient.shape == (1, kernel.size)
    # GPyTorch's distance of a point from itself is the root of a rounding error, and a Matérn-1/2
    # kernel shows it.
    module = getattr(kernel, "module", None)
    base = getattr(module, "base_kernel", None)
    tolerance = 1e-6 if getattr(base, "nu", None) == 0.5 else 1e-10
    total = np.zeros(kernel.size)
    for b in range(B):
        single, single_saved = kernel.evaluate(X[b], theta)
        torch.testing.assert_close(K[b], single, rtol=tolerance, atol=tolerance)
        total += kernel.gradient(X[b], theta, single, single_saved, W[b])
    np.testing.assert_allclose(gradient[0].numpy(), total, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kernel", BATCHED)
def test_problems_that_share_their_parameters_are_one_call(kernel, module_calls):
    assert kernel.takes_batches
    module_calls.clear()
    theta = torch.as_tensor(some_theta(kernel))[None]
    batch = kernel_batch(kernel, inputs())
    K, saved = batch.evaluate(slice(1, 4), theta)
    batch.gradient(theta, K, saved, weights()[1:4])
    assert module_calls == [(3, N, D)]
    assert not K.requires_grad


@pytest.mark.parametrize("kernel", OTHERS)
def test_a_kernel_that_knows_no_batches_is_called_problem_by_problem(kernel, module_calls):
    assert not kernel.takes_batches
    module_calls.clear()
    theta = torch.as_tensor(some_theta(kernel))[None]
    kernel_batch(kernel, inputs()).evaluate(slice(None), theta)
    assert module_calls == [(N, D)] * B


def test_whether_a_kernel_takes_batches_is_tried_once(module_calls):
    kernel = make_kernel(gk.RBFKernel(), D)
    theta = kernel.start() + 1.0
    kernel.evaluate(inputs()[0], theta)
    assert kernel.takes_batches
    module_calls.clear()
    again = pickle.loads(pickle.dumps(kernel))
    assert again.takes_batches
    assert kernel.takes_batches
    assert module_calls == []


def test_named_kernels_do_not_claim_to_take_batches():
    assert not NamedKernel("rbf", D).takes_batches


def test_a_warning_on_the_way_is_not_shown():
    class Loud(gk.RBFKernel):
        def forward(self, x1, x2, diag=False, **params):
            if x1.ndim > 2:
                import warnings

                warnings.warn("a batch", UserWarning, stacklevel=1)
            return super().forward(x1, x2, diag=diag, **params)

    assert WrappedKernel(Loud(), D).takes_batches


OWN = [
    pytest.param(kernel, id=kernel.label)
    for kernel in (
        NamedKernel("rq", D),
        NamedKernel("rbf", D, ard=True),
        NamedKernel("matern32", D, shape=np.array([0.5, 1.0, 3.0])),
        WrappedKernel(gk.RBFKernel() + gk.LinearKernel(), D),
    )
]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("kernel", OWN)
def test_every_problem_has_its_own_parameters(kernel, size):
    rng = np.random.default_rng(3)
    X, Z, W = inputs(size), inputs(size, seed=4)[:, :4], weights()[:size]
    theta = torch.as_tensor(kernel.start() + rng.normal(scale=0.4, size=(size, kernel.size)))
    batch = kernel_batch(kernel, X)
    K, saved = batch.evaluate(slice(None), theta)
    gradient = batch.gradient(theta, K, saved, W)
    cross, diagonal = batch.cross(X, Z, theta), batch.diagonal(Z, theta)
    for b, own in enumerate(theta.numpy()):
        single, single_saved = kernel.evaluate(X[b], own)
        torch.testing.assert_close(K[b], single)
        slope = kernel.gradient(X[b], own, single, single_saved, W[b])
        np.testing.assert_allclose(gradient[b].numpy(), slope, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(cross[b], kernel.cross(X[b], Z[b], own))
        torch.testing.assert_close(diagonal[b], kernel.diagonal(Z[b], own))


@pytest.mark.parametrize("kernel", OWN)
def test_inputs_that_all_problems_share(kernel):
    rng = np.random.default_rng(3)
    X, Z = inputs(1), inputs(1, seed=4)[:, :4]
    theta = torch.as_tensor(kernel.start() + rng.normal(scale=0.4, size=(3, kernel.size)))
    batch = kernel_batch(kernel, X)
    cross, diagonal = batch.cross(X, Z, theta), batch.diagonal(Z, theta)
    assert diagonal.shape == (3, 4)
    for b, own in enumerate(theta.numpy()):
        torch.testing.assert_close(cross[b], kernel.cross(X[0], Z[0], own))
        torch.testing.assert_close(diagonal[b], kernel.diagonal(Z[0], own))


def test_two_problems_of_shared_parameters_are_one_call(module_calls):
    kernel = WrappedKernel(gk.RBFKernel(), D)
    assert kernel.takes_batches
    module_calls.clear()
    kernel_batch(kernel, inputs(2)).evaluate(slice(None), torch.as_tensor(kernel.start())[None])
    assert module_calls == [(2, N, D)]


def test_problems_are_taken_by_number_unless_there_is_one_for_all():
    single_row = torch.arange(3.0)[:, None]  # three problems of one row each
    assert take(single_row, slice(1, 3)).tolist() == [[1.0], [2.0]]
    pair = torch.arange(4.0).reshape(2, 2)
    assert take(pair, torch.tensor([1])).tolist() == [[2.0, 3.0]]
    assert take(pair[:1], torch.tensor([0, 0])).tolist() == [[0.0, 1.0]]
