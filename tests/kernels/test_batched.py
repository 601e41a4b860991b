"""GPyTorch kernels with one parameter vector for all problems: one call, the same numbers."""

import pickle

import gpytorch.kernels as gk
import numpy as np
import pytest
import torch

from twostagegp.data.kept_columns import Columns
from twostagegp.kernels import NamedKernel, WrappedKernel, make_kernel
from twostagegp.kernels.batched import kernel_batch, take
from twostagegp.kernels.gpytorch import LaplacianKernel
from twostagegp.testing import KernelContract

B, N, D = 5, 6, 3


class Pairwise(gk.Kernel):
    """A kernel as users write them: it handles two tables of points, but no batches of them."""

    has_lengthscale = True

    def forward(self, x1, x2, diag=False, **params):
        squares = (x1.unsqueeze(1) - x2.unsqueeze(0)).square().sum(-1)
        K = torch.exp(-squares / self.lengthscale**2)
        return K.diagonal() if diag else K


class Crowded(gk.Kernel):
    """A kernel of the right shape for a batch, whose problems depend on each other."""

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


def inputs(size=B, seed=0):
    return torch.as_tensor(np.random.default_rng(seed).normal(size=(size, N, D)))


def weights():
    W = np.random.default_rng(2).normal(size=(B, N, N))
    return torch.as_tensor(W + W.transpose(0, 2, 1))


def some_theta(kernel):
    return kernel.start() + np.random.default_rng(1).normal(scale=0.4, size=kernel.size)


class TestModulesInBatches(KernelContract):
    """The contract compares batches with one problem at a time."""

    stationary = False
    has_prior = False

    @pytest.fixture(autouse=True, params=[*MODULES, "Pairwise"])
    def choose(self, request):
        self.module = Pairwise if request.param == "Pairwise" else MODULES[request.param]
        self.exact_distances = request.param != "matern12-ard"

    def make_kernel(self, n_features):
        return WrappedKernel(self.module(), n_features)


def test_problems_of_a_kernel_that_knows_no_batches_do_not_see_each_other():
    kernel = WrappedKernel(Crowded(), D)
    X, theta = inputs(), some_theta(kernel)
    K, _ = kernel_batch(kernel, X).evaluate(slice(None), torch.as_tensor(theta)[None])
    for b in range(B):
        torch.testing.assert_close(K[b], kernel.evaluate(X[b], theta)[0])


@pytest.mark.parametrize("kernel", BATCHED)
def test_problems_that_share_their_parameters_are_one_call(kernel, module_calls):
    assert kernel.takes_batches
    module_calls.clear()
    theta = torch.as_tensor(some_theta(kernel))[None]
    batch = kernel_batch(kernel, inputs())
    K, saved = batch.evaluate(slice(1, 4), theta)
    batch.gradient(theta, K, saved, weights()[1:4])
    width = D if kernel.columns is None else kernel.columns.width
    assert module_calls == [(3, N, width)]
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
