"""Any GPyTorch kernel as a kernel of the package: the contract, and what users may pass."""

from typing import ClassVar

import gpytorch.kernels as gk
import numpy as np
import pytest
import torch

from twostagegp.data.kept_columns import Columns
from twostagegp.errors import InputError
from twostagegp.kernels import WrappedKernel, inverse_lengthscale_shares, make_kernel
from twostagegp.kernels.gpytorch import LaplacianKernel
from twostagegp.testing import KernelContract

D = 3


def inputs(n, d=D, seed=0):
    return torch.as_tensor(np.random.default_rng(seed).normal(size=(n, d)))


def some_theta(kernel, seed=1):
    """Return parameters away from the start, so that nothing cancels by symmetry."""
    rng = np.random.default_rng(seed)
    return kernel.start() + rng.normal(scale=0.4, size=kernel.size)


def symmetric(n, seed=2):
    W = np.random.default_rng(seed).normal(size=(n, n))
    return torch.as_tensor(W + W.T)


def with_frozen_period():
    """Return a kernel with one parameter that the user has fixed."""
    module = gk.ScaleKernel(gk.PeriodicKernel())
    module.base_kernel.period_length = 0.7
    module.base_kernel.raw_period_length.requires_grad_(False)
    return module


MODULES = {
    "sum": lambda: gk.RBFKernel() + gk.LinearKernel(),
    "product": lambda: gk.ScaleKernel(gk.MaternKernel(nu=1.5)) * gk.PeriodicKernel(),
    "ard": lambda: gk.RQKernel(ard_num_dims=D),
    "laplacian": lambda: LaplacianKernel(ard_num_dims=D),
    "some columns": lambda: gk.RBFKernel(active_dims=[0, 2]) + gk.MaternKernel(active_dims=[1]),
    "scaled columns": lambda: gk.ScaleKernel(gk.RBFKernel(), active_dims=[1]),
    "frozen period": with_frozen_period,
    "polynomial": lambda: gk.PolynomialKernel(power=2),
    "nested": lambda: (
        gk.ScaleKernel(gk.ScaleKernel(gk.RBFKernel(active_dims=[2])))
        * (gk.LinearKernel() + gk.MaternKernel(nu=0.5))
    ),
}
each_module = pytest.mark.parametrize("module", MODULES.values(), ids=MODULES.keys())


class TestModules(KernelContract):
    stationary = False  # sums with a linear kernel are not
    has_prior = False

    @pytest.fixture(autouse=True, params=MODULES)
    def choose(self, request):
        self.module = MODULES[request.param]
        self.exact_distances = request.param != "nested"  # has a Matérn-1/2 part

    def make_kernel(self, n_features):
        return WrappedKernel(self.module(), n_features)


class TestColumnsOfAWiderTable(TestModules):
    """The kernel counts the columns of the user's table, of which some were dropped."""

    @pytest.fixture(autouse=True)
    def choose(self):
        self.module = lambda: gk.RBFKernel(ard_num_dims=5)

    def make_kernel(self, n_features):
        return WrappedKernel(self.module(), n_features, Columns((0, 2, 3), 5))

    def test_the_gpytorch_kernel_has_the_same_covariances(self):
        """The GPyTorch kernel takes the columns of the wider table; an export is tested apart."""

    test_gradient_equals_autograd_through_the_gpytorch_kernel = (
        test_the_gpytorch_kernel_can_be_wrapped_again
    ) = test_the_gpytorch_kernel_has_the_same_covariances


def test_the_matrix_of_a_wrapped_kernel_may_be_written_to():
    kernel = WrappedKernel(gk.RBFKernel(), D)
    X, theta = inputs(5), np.array([0.3, -0.2])
    K, saved = kernel.evaluate(X, theta)
    untouched = kernel.gradient(X, theta, K, saved, symmetric(5))
    K, saved = kernel.evaluate(X, theta)
    K.diagonal().add_(1.0)
    np.testing.assert_array_equal(kernel.gradient(X, theta, K, saved, symmetric(5)), untouched)
    assert not K.requires_grad


def test_raw_parameters_are_bounded_thirty_around_zero_and_their_start():
    module = gk.ScaleKernel(gk.RBFKernel())
    module.raw_outputscale.data.fill_(2.0)
    module.base_kernel.raw_lengthscale.data.fill_(-3.0)
    kernel = WrappedKernel(module, D)
    bounds = dict(zip(kernel.start().tolist(), kernel.bounds(), strict=True))
    assert bounds == {2.0: (-30.0, 32.0), -3.0: (-33.0, 30.0)}
    mean, precision = kernel.prior()
    np.testing.assert_array_equal(mean, kernel.start())
    np.testing.assert_array_equal(precision, [0.0, 0.0])


def test_a_kernel_without_lengthscales_has_no_shares():
    kernel = WrappedKernel(gk.LinearKernel(), 2)
    assert inverse_lengthscale_shares(kernel, np.append(kernel.start(), 0.0)) == 0.0


def test_a_sum_with_a_linear_kernel_is_exact_where_the_gram_matrix_is_singular():
    # GPyTorch itself factorises the rbf part here, adds jitter and warns.
    module = gk.ScaleKernel(gk.RBFKernel()) + gk.LinearKernel()
    kernel = WrappedKernel(module, 1)
    X = torch.linspace(0, 1, 40, dtype=torch.float64)[:, None]
    K, _ = kernel.evaluate(X, kernel.start())
    scale = np.log(2.0)  # softplus(0), which every parameter starts with
    rbf = scale * np.exp(-((X - X.T).numpy() ** 2) / (2 * scale**2))
    np.testing.assert_allclose(K.numpy(), rbf + scale * (X @ X.T).numpy(), rtol=1e-12)


@each_module
def test_wrapped_theta_survives_the_way_to_gpytorch_and_back(module):
    kernel = WrappedKernel(module(), D)
    theta = some_theta(kernel)
    again = WrappedKernel(kernel.to_gpytorch(theta), D)
    np.testing.assert_array_equal(again.start(), theta)


def count_outputscales(kernel):
    return sum(isinstance(part, gk.ScaleKernel) for part in kernel.module.modules())


def test_an_outputscale_is_added_where_there_is_none():
    assert count_outputscales(WrappedKernel(gk.RBFKernel() + gk.LinearKernel(), D)) == 1


def test_no_outputscale_is_added_where_there_is_one():
    module = gk.ScaleKernel(gk.MaternKernel()) * gk.PeriodicKernel()
    assert count_outputscales(WrappedKernel(module, D)) == 1


def test_wrapped_kernel_never_changes_the_users_module():
    module = gk.RBFKernel()
    kernel = WrappedKernel(module, D)
    kernel.evaluate(inputs(4), kernel.start() + 3.0)
    assert float(module.raw_lengthscale.detach()) == 0.0
    assert module.raw_lengthscale.dtype == torch.float32


def test_a_parameter_that_the_user_has_frozen_stays():
    kernel = WrappedKernel(with_frozen_period(), 1)
    kept = kernel.to_gpytorch(some_theta(kernel)).base_kernel.period_length
    assert float(kept.detach()) == pytest.approx(0.7, rel=1e-6)


def test_labels_of_sums_and_products():
    assert make_kernel(gk.RBFKernel() + gk.LinearKernel(), D).label == "(RBFKernel + LinearKernel)"
    product = gk.ScaleKernel(gk.MaternKernel()) * gk.PeriodicKernel()
    assert make_kernel(product, D).label == "(MaternKernel * PeriodicKernel)"


def test_an_export_leaves_a_wrapped_module_alone_in_which_another_thread_may_predict():
    kernel = WrappedKernel(gk.RBFKernel(), D)
    theta, X = some_theta(kernel), torch.zeros(2, D)  # float32
    kernel.cross(X, X, theta)
    kernel.to_gpytorch(theta + 1.0)
    kernel.lengthscales(theta + 2.0)
    assert {p.dtype for p in kernel.module.parameters()} == {torch.float32}
    np.testing.assert_allclose(kernel.start(), theta, rtol=1e-6)


@pytest.mark.parametrize("columns", [1, 2])
def test_wrong_ard_num_dims_is_named(columns):
    with pytest.raises(InputError, match=f"RBFKernel.* on {columns} input columns.*ard_num_dims"):
        make_kernel(gk.RBFKernel(ard_num_dims=5), columns)


def test_inputs_are_put_into_their_places():
    table = Columns((1, 3), 5).expand(inputs(4, 2))
    assert table.shape == (4, 5)
    torch.testing.assert_close(table[:, [1, 3]], inputs(4, 2))
    assert not table[:, [0, 2, 4]].any()


@pytest.mark.parametrize(
    ("module", "narrow"),
    [
        (lambda: gk.RBFKernel(active_dims=[3]), lambda: gk.RBFKernel(active_dims=[1])),
        (
            lambda: gk.RBFKernel(active_dims=[1]) * gk.MaternKernel(active_dims=[3]),
            lambda: gk.RBFKernel(active_dims=[0]) * gk.MaternKernel(active_dims=[1]),
        ),
        (
            lambda: gk.MaternKernel(nu=1.5, ard_num_dims=2, active_dims=[1, 3]),
            lambda: gk.MaternKernel(nu=1.5, ard_num_dims=2),
        ),
        (gk.LinearKernel, gk.LinearKernel),
    ],
    ids=["one column", "a product", "ard", "all columns"],
)
def test_a_kernel_object_counts_the_columns_of_the_users_table(module, narrow):
    X, Z = inputs(5, 2), inputs(3, 2, seed=4)
    placed = make_kernel(module(), 2, columns=Columns((1, 3), 5))
    plain = make_kernel(narrow(), 2)
    theta, W = some_theta(plain), symmetric(5)
    assert placed.size == plain.size
    torch.testing.assert_close(placed.cross(X, Z, theta), plain.cross(X, Z, theta))
    torch.testing.assert_close(placed.diagonal(X, theta), plain.diagonal(X, theta))
    gradients = []
    for kernel in (placed, plain):
        K, saved = kernel.evaluate(X, theta)
        gradients.append(kernel.gradient(X, theta, K, saved, W))
    np.testing.assert_allclose(*gradients)


def test_lengthscales_are_those_of_the_columns_in_use():
    kernel = make_kernel(gk.RBFKernel(ard_num_dims=5), 2, columns=Columns((1, 3), 5))
    module = kernel.to_gpytorch(kernel.start())
    module.base_kernel.lengthscale = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    kernel = make_kernel(module, 2, columns=Columns((1, 3), 5))
    np.testing.assert_allclose(kernel.lengthscales(kernel.start()), [2.0, 4.0], rtol=1e-6)


def test_ard_num_dims_of_the_columns_in_use_is_refused():
    with pytest.raises(InputError, match="ard_num_dims"):
        make_kernel(gk.RBFKernel(ard_num_dims=2), 2, columns=Columns((1, 3), 5))


def test_a_batch_shape_is_refused():
    with pytest.raises(InputError, match=r"\(4, 2, 2\).*batch shape"):
        make_kernel(gk.RBFKernel(batch_shape=torch.Size([4])), D)


def test_a_batch_of_outputscales_is_refused():
    with pytest.raises(InputError, match=r"\(2, 2, 2\).*batch shape"):
        make_kernel(gk.ScaleKernel(gk.RBFKernel(), batch_shape=torch.Size([2])), D)


@pytest.mark.parametrize("value", [3, None, np.array([1.0])], ids=["int", "None", "array"])
def test_something_else_is_named_with_its_type(value):
    with pytest.raises(InputError, match=f"not {type(value).__name__} "):
        make_kernel(value, D)


@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_laplacian_module_passes_gradcheck(check):
    kernel = LaplacianKernel(ard_num_dims=2).double()
    X, Z = inputs(2, 2), inputs(1, 2, seed=3)

    def of(raw, x):
        return torch.func.functional_call(kernel, {"raw_lengthscale": raw}, (x, Z)).to_dense()

    raw = kernel.raw_lengthscale.detach().clone().requires_grad_()
    assert check(of, (raw, X.requires_grad_()))


def test_laplacian_module_on_the_diagonal():
    kernel = LaplacianKernel().double()
    X, Z = inputs(4), inputs(4, seed=3)
    with torch.no_grad():
        torch.testing.assert_close(kernel(X, Z, diag=True), kernel(X, Z).to_dense().diagonal())


@pytest.mark.parametrize("equal", [False, True], ids=["two tables", "one table twice"])
def test_the_graph_of_a_gpytorch_kernel_is_held_a_strip_at_a_time(equal, module_calls):
    """A whole graph is a hundred matrices and more."""

    class Strips(WrappedKernel):
        graph_entries: ClassVar = {"cpu": 60}

    module = gk.ScaleKernel(gk.RBFKernel() * gk.PeriodicKernel() + gk.MaternKernel(nu=0.5))
    X = inputs(23)
    Z = X.clone() if equal else inputs(17, seed=3)
    theta = some_theta(WrappedKernel(module, D))
    W, V = symmetric(23), torch.rand(23, len(Z)).double()

    def results(kernel):
        K, saved = kernel.evaluate(X, theta)
        slope = kernel.gradient(X, theta, K, saved, W)
        return K, slope, kernel.cross(X, Z, theta), kernel.cross_gradient(X, Z, theta, V)

    expected, strips = results(WrappedKernel(module, D)), Strips(module, D)
    module_calls.clear()
    found = results(strips)
    assert max(rows for rows, _ in module_calls) <= 8  # beside at least 7
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(found[0].diagonal(), expected[0].diagonal(), rtol=0.0, atol=1e-14)
