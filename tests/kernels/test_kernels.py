"""Every kernel against its formula, its GPyTorch twin, scikit-learn and finite differences."""

from typing import ClassVar

import gpytorch.kernels as gk
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel

from twostagegp.data.kept_columns import Columns
from twostagegp.errors import InputError
from twostagegp.kernels import (
    KERNELS,
    NamedKernel,
    WrappedKernel,
    inverse_lengthscale_shares,
    is_flexible,
    make_kernel,
)
from twostagegp.kernels.gpytorch import LaplacianKernel

D = 3

each_kernel = pytest.mark.parametrize("name", KERNELS)
each_ard = pytest.mark.parametrize("ard", [False, True], ids=["isotropic", "ard"])


def inputs(n, d=D, seed=0):
    return torch.as_tensor(np.random.default_rng(seed).normal(size=(n, d)))


def some_theta(kernel, seed=1):
    """Parameters away from the start, so that nothing cancels by symmetry."""
    rng = np.random.default_rng(seed)
    return kernel.start() + rng.normal(scale=0.4, size=kernel.size)


def symmetric(n, seed=2):
    W = np.random.default_rng(seed).normal(size=(n, n))
    return torch.as_tensor(W + W.T)


def formula(name, X, Z, lengthscales, alpha, s):
    """The table of the module's docstring, entry by entry."""
    K = np.empty((len(X), len(Z)))
    for i, x in enumerate(X / lengthscales):
        for j, z in enumerate(Z / lengthscales):
            r = np.sqrt(((x - z) ** 2).sum())
            K[i, j] = {
                "rbf": s * np.exp(-(r**2) / 2),
                "matern12": s * np.exp(-r),
                "matern32": s * (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r),
                "matern52": s * (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r),
                "rq": s * (1 + r**2 / (2 * alpha)) ** -alpha,
                "laplacian": s * np.exp(-np.abs(x - z).sum()),
            }[name]
    return K


def finite_differences(of, theta, step=1e-5):
    gradient = np.empty(len(theta))
    for j in range(len(theta)):
        h = np.zeros(len(theta))
        h[j] = step
        gradient[j] = (of(theta + h) - of(theta - h)) / (2 * step)
    return gradient


def gradient_and_slopes(kernel, X, theta, W):
    """<W, dK/dtheta> in closed form, and by central differences."""
    K, saved = kernel.evaluate(X, theta)
    closed = kernel.gradient(X, theta, K, saved, W)
    return closed, finite_differences(lambda p: float((W * kernel.evaluate(X, p)[0]).sum()), theta)


# --- named kernels: values -----------------------------------------------------------------------


@each_kernel
@each_ard
def test_named_kernel_is_the_formula_of_the_docstring(name, ard):
    kernel = NamedKernel(name, D, ard)
    theta = some_theta(kernel)
    X, Z = inputs(7), inputs(5, seed=3)
    alpha = np.exp(theta[-2])
    expected = formula(
        name, X.numpy(), Z.numpy(), kernel.lengthscales(theta), alpha, np.exp(theta[-1])
    )
    np.testing.assert_allclose(kernel.cross(X, Z, theta).numpy(), expected, rtol=1e-13)


@each_kernel
@each_ard
def test_named_kernel_equals_its_gpytorch_twin(name, ard):
    kernel = NamedKernel(name, D, ard)
    theta = some_theta(kernel)
    X, Z = inputs(7), inputs(5, seed=3)
    twin = kernel.to_gpytorch(theta)
    with torch.no_grad():
        expected = twin(X, Z).to_dense().numpy()
    np.testing.assert_allclose(kernel.cross(X, Z, theta).numpy(), expected, atol=1e-10)


@each_kernel
@each_ard
@pytest.mark.parametrize("d", [1, 4, 70], ids=["one column", "differences", "matrix product"])
def test_evaluate_cross_and_diagonal_agree(name, ard, d):
    kernel = NamedKernel(name, d, ard)
    theta = some_theta(kernel)
    X = inputs(6, d)
    K, _ = kernel.evaluate(X, theta)
    # Distances by a matrix product leave about sqrt(eps) where a distance should be zero.
    atol = 1e-12 if d <= 64 else 1e-6
    torch.testing.assert_close(kernel.cross(X, X, theta), K, rtol=0.0, atol=atol)
    torch.testing.assert_close(K.diagonal(), kernel.diagonal(X, theta), rtol=0.0, atol=atol)


@each_kernel
def test_equal_lengthscales_make_ard_the_isotropic_kernel(name):
    isotropic, ard = NamedKernel(name, D), NamedKernel(name, D, ard=True)
    theta = some_theta(isotropic)
    repeated = np.concatenate([np.full(D, theta[0]), theta[1:]])
    X = inputs(6)
    torch.testing.assert_close(ard.evaluate(X, repeated)[0], isotropic.evaluate(X, theta)[0])


def test_classical_laplacian_is_sklearns_with_gamma_one_over_d():
    X, kernel = inputs(8), NamedKernel("laplacian", D)
    expected = laplacian_kernel(X.numpy(), gamma=1 / D)
    np.testing.assert_allclose(kernel.cross(X, X, kernel.classical()), expected, rtol=1e-12)


def test_classical_rbf_is_sklearns_with_gamma_one_over_d():
    X, kernel = inputs(8), NamedKernel("rbf", D)
    expected = rbf_kernel(X.numpy(), gamma=1 / D)
    np.testing.assert_allclose(kernel.cross(X, X, kernel.classical()), expected, rtol=1e-12)


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(KERNELS),
    ard=st.booleans(),
    seed=st.integers(0, 2**16),
    n=st.integers(1, 12),
    d=st.integers(1, 4),
    spread=st.floats(0.1, 2.0),
)
def test_gram_matrices_are_positive_semidefinite(name, ard, seed, n, d, spread):
    kernel = NamedKernel(name, d, ard)
    rng = np.random.default_rng(seed)
    theta = kernel.start() + rng.normal(scale=spread, size=kernel.size)
    K, _ = kernel.evaluate(inputs(n, d, seed), theta)
    assert torch.linalg.eigvalsh(K).min() >= -1e-12 * n * np.exp(theta[-1])


def test_float32_inputs_give_a_float32_matrix():
    kernel = NamedKernel("matern52", D, ard=True)
    theta = some_theta(kernel)
    X = inputs(6)
    K, _ = kernel.evaluate(X.float(), theta)
    assert K.dtype == torch.float32
    torch.testing.assert_close(K.double(), kernel.evaluate(X, theta)[0], rtol=0.0, atol=1e-5)


# --- named kernels: derivatives ------------------------------------------------------------------


@each_kernel
@each_ard
@pytest.mark.parametrize("d", [1, D])
def test_named_gradient_equals_finite_differences(name, ard, d):
    kernel = NamedKernel(name, d, ard)
    X = inputs(8, d)
    X[5] = X[2]  # a distance of zero
    closed, slopes = gradient_and_slopes(kernel, X, some_theta(kernel), symmetric(8))
    np.testing.assert_allclose(closed, slopes, rtol=1e-7, atol=1e-7)


@each_kernel
@each_ard
def test_named_gradient_equals_autograd_through_gpytorch(name, ard):
    kernel = NamedKernel(name, D, ard)
    theta = some_theta(kernel)
    X, W = inputs(8), symmetric(8)
    W.diagonal().zero_()  # GPyTorch's distances of a row to itself are not exactly zero
    K, saved = kernel.evaluate(X, theta)
    closed = kernel.gradient(X, theta, K, saved, W)

    module = kernel.to_gpytorch(theta)
    (module(X).to_dense() * W).sum().backward()
    base = module.base_kernel
    # raw parameter u, positive value softplus(u): d/dlog(value) = d/du * value / sigmoid(u).
    by_log = [
        (raw.grad * value / torch.sigmoid(raw)).detach().reshape(-1)
        for raw, value in [
            (base.raw_lengthscale, base.lengthscale),
            *([(base.raw_alpha, base.alpha)] if name == "rq" else []),
            (module.raw_outputscale, module.outputscale),
        ]
    ]
    np.testing.assert_allclose(closed, torch.cat(by_log).numpy(), rtol=1e-9, atol=1e-9)


@each_kernel
@each_ard
def test_gradient_with_distances_from_a_matrix_product_equals_finite_differences(name, ard):
    kernel = NamedKernel(name, 70, ard)
    closed, slopes = gradient_and_slopes(kernel, inputs(6, 70), some_theta(kernel), symmetric(6))
    np.testing.assert_allclose(closed, slopes, rtol=1e-6, atol=1e-6)


def test_nearly_equal_rows_do_not_spoil_the_matern12_gradient():
    kernel = NamedKernel("matern12", D, ard=True)
    X = inputs(6)
    X[5] = X[2] + 1e-9
    closed, slopes = gradient_and_slopes(kernel, X, some_theta(kernel), symmetric(6))
    np.testing.assert_allclose(closed, slopes, rtol=1e-5, atol=1e-5)


# --- named kernels: parameters -------------------------------------------------------------------


@each_kernel
@each_ard
def test_start_and_classical_lie_strictly_inside_the_bounds(name, ard):
    kernel = NamedKernel(name, D, ard)
    lower, upper = np.array(kernel.bounds()).T
    for theta in (kernel.start(), kernel.classical()):
        assert theta.shape == (kernel.size,)
        assert np.all(lower < theta)
        assert np.all(theta < upper)


@each_kernel
@each_ard
def test_prior_is_proper_and_has_an_entry_for_each_parameter(name, ard):
    kernel = NamedKernel(name, D, ard)
    mean, precision = kernel.prior()
    assert mean.shape == precision.shape == (kernel.size,)
    assert np.all(precision > 0)


@each_ard
@each_kernel
def test_start_bounds_and_prior_are_the_stated_numbers(name, ard):
    kernel = NamedKernel(name, 4, ard)
    count = 4 if ard else 1
    typical = np.log(4.0 if name == "laplacian" else 2.0)
    tail = [0.0, 0.0] if name == "rq" else [0.0]
    np.testing.assert_allclose(kernel.start(), [typical] * count + tail)
    bounds = [(typical - 7, typical + 7)] * count
    bounds += [tuple(np.log([1e-2, 1e3]))] * (name == "rq") + [tuple(np.log([1e-4, 1e5]))]
    np.testing.assert_allclose(kernel.bounds(), bounds)
    mean, precision = kernel.prior()
    np.testing.assert_allclose(mean, [typical + 1] * count + tail)
    np.testing.assert_allclose(precision, [1 / 16] * (kernel.size - 1) + [1 / 64])
    classical = typical - (np.log(2) / 2 if name == "rbf" else 0.0)
    np.testing.assert_allclose(kernel.classical(), [classical] * count + tail)
    assert kernel.lengthscale_slots == count


def test_a_table_without_columns_has_a_lengthscale_of_one():
    assert NamedKernel("rbf", 0).start().tolist() == [0.0, 0.0]


SHAPE = np.array([0.5, 1.0, 4.0])


@each_kernel
def test_lengthscales_of_fixed_ratios_are_the_formula_with_one_parameter(name):
    kernel = NamedKernel(name, D, ard=True, shape=SHAPE)
    assert (kernel.label, kernel.ard, kernel.lengthscale_slots) == (f"{name}-shaped", False, 1)
    theta, X, Z = some_theta(kernel), inputs(7), inputs(5, seed=3)
    scales = np.exp(theta[0]) * SHAPE
    np.testing.assert_allclose(kernel.lengthscales(theta), scales)
    alpha, s = np.exp(theta[-2]), np.exp(theta[-1])
    expected = formula(name, X.numpy(), Z.numpy(), scales, alpha, s)
    np.testing.assert_allclose(kernel.cross(X, Z, theta).numpy(), expected, rtol=1e-13)
    closed, slopes = gradient_and_slopes(kernel, X, theta, symmetric(7))
    np.testing.assert_allclose(closed, slopes, rtol=1e-7, atol=1e-7)


def test_a_kernel_is_flexible_from_four_parameters_on():
    assert not is_flexible(make_kernel("rq", D))
    assert not is_flexible(make_kernel("rbf", 2, ard=True))
    assert is_flexible(make_kernel("rq", 2, ard=True))


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


def test_lengthscales_are_one_a_column():
    theta = np.log([2.0, 1.0])
    np.testing.assert_allclose(NamedKernel("rbf", D).lengthscales(theta), [2.0, 2.0, 2.0])


def test_label_tells_ard_from_isotropic():
    assert NamedKernel("rbf", D, ard=True).label == "rbf-ard"
    assert NamedKernel("rbf", D).label == "rbf"


def test_ard_of_one_column_is_isotropic():
    assert NamedKernel("rbf", 1, ard=True).label == "rbf"


def test_shares_are_inverse_lengthscales_that_sum_to_one():
    kernel = NamedKernel("rbf", 2, ard=True)
    shares = inverse_lengthscale_shares(kernel, np.log([1.0, 3.0, 1.0, 0.1]))
    np.testing.assert_allclose(shares, [0.75, 0.25])


def test_a_kernel_without_lengthscales_has_no_shares():
    kernel = WrappedKernel(gk.LinearKernel(), 2)
    assert inverse_lengthscale_shares(kernel, np.append(kernel.start(), 0.0)) == 0.0


# --- GPyTorch kernels ----------------------------------------------------------------------------

MODULES = {
    "sum": lambda: gk.RBFKernel() + gk.LinearKernel(),
    "product": lambda: gk.ScaleKernel(gk.MaternKernel(nu=1.5)) * gk.PeriodicKernel(),
    "ard": lambda: gk.RQKernel(ard_num_dims=D),
    "laplacian": lambda: LaplacianKernel(ard_num_dims=D),
    "some columns": lambda: gk.RBFKernel(active_dims=[0, 2]) + gk.MaternKernel(active_dims=[1]),
    "scaled columns": lambda: gk.ScaleKernel(gk.RBFKernel(), active_dims=[1]),
    "nested": lambda: (
        gk.ScaleKernel(gk.ScaleKernel(gk.RBFKernel(active_dims=[2])))
        * (gk.LinearKernel() + gk.MaternKernel(nu=0.5))
    ),
}
each_module = pytest.mark.parametrize("module", MODULES.values(), ids=MODULES.keys())


@each_module
def test_wrapped_kernel_evaluates_as_the_module(module):
    kernel = WrappedKernel(module(), D)
    X, Z = inputs(6), inputs(4, seed=3)
    with torch.no_grad():
        expected = kernel.to_gpytorch(kernel.start())(X, Z).to_dense()
    torch.testing.assert_close(kernel.cross(X, Z, kernel.start()), expected)


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
def test_wrapped_evaluate_cross_and_diagonal_agree(module):
    kernel = WrappedKernel(module(), D)
    theta, X = some_theta(kernel), inputs(6)
    K, _ = kernel.evaluate(X, theta)
    torch.testing.assert_close(kernel.cross(X, X, theta), K)
    torch.testing.assert_close(kernel.diagonal(X, theta), K.diagonal())


@each_module
def test_wrapped_gradient_equals_finite_differences(module):
    kernel = WrappedKernel(module(), D)
    closed, slopes = gradient_and_slopes(kernel, inputs(7), some_theta(kernel), symmetric(7))
    np.testing.assert_allclose(closed, slopes, rtol=1e-6, atol=1e-7)


@each_module
def test_wrapped_theta_survives_the_way_to_gpytorch_and_back(module):
    kernel = WrappedKernel(module(), D)
    theta = some_theta(kernel)
    again = WrappedKernel(kernel.to_gpytorch(theta), D)
    np.testing.assert_array_equal(again.start(), theta)


@each_kernel
@each_ard
def test_named_kernel_wrapped_is_the_same_covariance(name, ard):
    named = NamedKernel(name, D, ard)
    theta, X, Z = some_theta(named), inputs(6), inputs(4, seed=3)
    wrapped = WrappedKernel(named.to_gpytorch(theta), D)
    torch.testing.assert_close(
        wrapped.cross(X, Z, wrapped.start()), named.cross(X, Z, theta), rtol=0.0, atol=1e-10
    )


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
    module = gk.ScaleKernel(gk.PeriodicKernel())
    module.base_kernel.period_length = 0.7
    module.base_kernel.raw_period_length.requires_grad_(False)
    kernel = WrappedKernel(module, 1)
    theta = some_theta(kernel)
    closed, slopes = gradient_and_slopes(kernel, inputs(5, 1), theta, symmetric(5))
    np.testing.assert_allclose(closed, slopes, rtol=1e-6, atol=1e-7)
    kept = kernel.to_gpytorch(theta).base_kernel.period_length
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


def test_named_kernels_need_no_places():
    kernel = make_kernel("rbf", 2, True, Columns((1, 3), 5))
    torch.testing.assert_close(
        kernel.cross(inputs(4, 2), inputs(3, 2), kernel.start()),
        NamedKernel("rbf", 2, True).cross(inputs(4, 2), inputs(3, 2), kernel.start()),
    )


def test_a_batch_shape_is_refused():
    with pytest.raises(InputError, match=r"\(4, 2, 2\).*batch shape"):
        make_kernel(gk.RBFKernel(batch_shape=torch.Size([4])), D)


def test_a_batch_of_outputscales_is_refused():
    with pytest.raises(InputError, match=r"\(2, 2, 2\).*batch shape"):
        make_kernel(gk.ScaleKernel(gk.RBFKernel(), batch_shape=torch.Size([2])), D)


def test_an_unknown_name_is_named_with_the_known_ones():
    with pytest.raises(InputError, match=r"'gauss'.*rbf, matern12"):
        make_kernel("gauss", D)


@pytest.mark.parametrize("value", [3, None, np.array([1.0])], ids=["int", "None", "array"])
def test_something_else_is_named_with_its_type(value):
    with pytest.raises(InputError, match=f"not {type(value).__name__} "):
        make_kernel(value, D)


@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_laplacian_module_passes_gradcheck(check):
    kernel = LaplacianKernel(ard_num_dims=2).double()
    X, Z = inputs(3, 2), inputs(2, 2, seed=3)

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
