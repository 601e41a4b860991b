"""The named kernels: the contract, and each kernel against its formula and scikit-learn."""

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
    inverse_lengthscale_shares,
    is_flexible,
    make_kernel,
)
from twostagegp.testing import KernelContract

D = 3
SHAPE = np.array([0.5, 1.0, 4.0])

#: The table of the docstring of ``catalogue.py``: rho for a row u of scaled differences. A new
#: kernel needs an entry here, and no other test.
FORMULAS = {
    "rbf": lambda u, alpha: np.exp(-(u @ u) / 2),
    "matern12": lambda u, alpha: np.exp(-norm(u)),
    "matern32": lambda u, alpha: (1 + np.sqrt(3) * norm(u)) * np.exp(-np.sqrt(3) * norm(u)),
    "matern52": lambda u, alpha: (
        (1 + np.sqrt(5) * norm(u) + 5 * (u @ u) / 3) * np.exp(-np.sqrt(5) * norm(u))
    ),
    "rq": lambda u, alpha: (1 + (u @ u) / (2 * alpha)) ** -alpha,
    "laplacian": lambda u, alpha: np.exp(-np.abs(u).sum()),
}

each_kernel = pytest.mark.parametrize("name", KERNELS)
each_ard = pytest.mark.parametrize("ard", [False, True], ids=["isotropic", "ard"])


def norm(u):
    return np.sqrt(u @ u)


def inputs(n, d=D, seed=0):
    return torch.as_tensor(np.random.default_rng(seed).normal(size=(n, d)))


def some_theta(kernel, seed=1):
    """Return parameters away from the start, so that nothing cancels by symmetry."""
    rng = np.random.default_rng(seed)
    return kernel.start() + rng.normal(scale=0.4, size=kernel.size)


def formula(name, X, Z, lengthscales, alpha, s):
    """Return the covariances of two tables, entry by entry."""
    rows, others = X / lengthscales, Z / lengthscales
    return np.array([[s * FORMULAS[name](x - z, alpha) for z in others] for x in rows])


# --- the contract --------------------------------------------------------------------------------


class NamedContract(KernelContract):
    """Every entry of the catalogue; 70 columns take distances from a matrix product."""

    @pytest.fixture(autouse=True, params=KERNELS)
    def choose(self, request):
        self.name = request.param


class TestIsotropic(NamedContract):
    columns = (1, D, 70)

    def make_kernel(self, n_features):
        return NamedKernel(self.name, n_features)


class TestARD(NamedContract):
    columns = (1, D, 70)

    def make_kernel(self, n_features):
        return NamedKernel(self.name, n_features, ard=True)


class TestFixedRatios(NamedContract):
    def make_kernel(self, n_features):
        return NamedKernel(self.name, n_features, ard=True, shape=SHAPE)


# --- values --------------------------------------------------------------------------------------


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


def test_nearly_equal_rows_do_not_spoil_the_matern12_gradient():
    kernel = NamedKernel("matern12", D, ard=True)
    X = inputs(6)
    X[5] = X[2] + 1e-9
    theta, W = some_theta(kernel), np.random.default_rng(2).normal(size=(6, 6))
    W = torch.as_tensor(W + W.T)
    K, saved = kernel.evaluate(X, theta)
    slopes = [
        (W * (kernel.evaluate(X, theta + h)[0] - kernel.evaluate(X, theta - h)[0])).sum() / 2e-5
        for h in 1e-5 * np.eye(kernel.size)
    ]
    closed = kernel.gradient(X, theta, K, saved, W)
    np.testing.assert_allclose(closed, slopes, rtol=1e-5, atol=1e-5)


# --- parameters ----------------------------------------------------------------------------------


@each_kernel
@each_ard
def test_start_and_classical_lie_strictly_inside_the_bounds(name, ard):
    kernel = NamedKernel(name, D, ard)
    lower, upper = np.array(kernel.bounds()).T
    for theta in (kernel.start(), kernel.classical()):
        assert theta.shape == (kernel.size,)
        assert np.all(lower < theta)
        assert np.all(theta < upper)


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


def test_a_kernel_is_flexible_from_four_parameters_on():
    assert not is_flexible(make_kernel("rq", D))
    assert not is_flexible(make_kernel("rbf", 2, ard=True))
    assert is_flexible(make_kernel("rq", 2, ard=True))


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


def test_named_kernels_need_no_places():
    kernel = make_kernel("rbf", 2, True, Columns((1, 3), 5))
    torch.testing.assert_close(
        kernel.cross(inputs(4, 2), inputs(3, 2), kernel.start()),
        NamedKernel("rbf", 2, True).cross(inputs(4, 2), inputs(3, 2), kernel.start()),
    )


def test_an_unknown_name_is_named_with_the_known_ones():
    with pytest.raises(InputError, match=r"'gauss'.*rbf, matern12"):
        make_kernel("gauss", D)
