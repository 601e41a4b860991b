"""The same results on a GPU as on the CPU; run with ``pytest -m gpu`` where there is one."""

import gpytorch
import numpy as np
import pytest
import torch

from twostagegp import TwoStageGPRegressor, check_misspecification, search_kernel
from twostagegp.batch_training import fit_batch
from twostagegp.kernels import KERNELS, NamedKernel, WrappedKernel
from twostagegp.problem_batch import Extras, ProblemBatch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

B, N, D = 7, 40, 3


def batch(kernel, device, merged=False):
    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.normal(size=(B, N, D)), device=device)
    t = torch.sin(2.0 * X[:, :, 0]) + 0.1 * torch.as_tensor(rng.normal(size=(B, N)), device=device)
    extras = None
    if merged:
        c = torch.as_tensor(rng.integers(1, 4, size=(B, N)), dtype=torch.float64, device=device)
        extras = Extras(c, 0.01 * (c - 1.0), torch.full_like(c, 0.02))
    return ProblemBatch.of(kernel, X, t, extras=extras)


def named(name, ard):
    return NamedKernel(name, D, ard=ard)


@pytest.mark.parametrize("merged", [False, True], ids=["plain", "merged"])
@pytest.mark.parametrize("ard", [False, True], ids=["isotropic", "ard"])
@pytest.mark.parametrize("name", KERNELS)
def test_values_and_gradients_of_a_batch(name, ard, merged):
    kernel = named(name, ard)
    on_cpu, on_gpu = batch(kernel, "cpu", merged), batch(kernel, "cuda", merged)
    everyone = np.arange(B)
    for some in (everyone, everyone[::-1].copy(), np.array([0, 0, 5])):
        x = on_cpu.starts()[: len(some)]
        expected, found = on_cpu(x, some), on_gpu(x, some)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-9)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-7, atol=1e-10)


def test_a_gpytorch_kernel_in_a_batch():
    kernel = WrappedKernel(gpytorch.kernels.RBFKernel() + gpytorch.kernels.LinearKernel(), D)
    values = [batch(kernel, device)(batch(kernel, device).starts(), np.arange(B))[0]
              for device in ("cpu", "cuda")]  # fmt: skip
    np.testing.assert_allclose(values[1], values[0], rtol=1e-9)


def test_optima_of_a_batch():
    fits = [fit_batch(batch(named("matern32", True), device)).value for device in ("cpu", "cuda")]
    np.testing.assert_allclose(fits[1], fits[0], atol=1e-4)


def table(n=150):
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, size=(n, 2))
    X[:10] = X[10:20]  # repeats, so that rows are merged
    return X, np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=n)


@pytest.mark.parametrize("model", ["gp", "krr"])
def test_a_search(model):
    kernels = ("rbf", "matern12", "laplacian")
    options = {"model": model, "n_repeats": 10, "random_state": 0}
    tables = [search_kernel(*table(), kernels, device=d, **options).table for d in ("cpu", "cuda")]
    np.testing.assert_allclose(tables[1]["score"], tables[0]["score"], atol=1e-3)
    np.testing.assert_allclose(tables[1]["p_hat"], tables[0]["p_hat"], atol=0.02)


@pytest.mark.parametrize("test", ["bootstrap", "ratio", "bound"])
def test_a_misspecification_test(test):
    options = {"test": test, "n_repeats": 30, "random_state": 0}
    checks = [check_misspecification(*table(), "rbf", device=d, **options) for d in ("cpu", "cuda")]
    assert checks[0].rejected == checks[1].rejected
    assert checks[1].noise == pytest.approx(checks[0].noise, rel=0.02)


def test_a_search_inside_a_fit():
    means = [
        TwoStageGPRegressor.from_paper(selection="misspecification", device=d, random_state=0)
        .fit(*table())
        .predict(table()[0])
        for d in ("cpu", "cuda")
    ]
    np.testing.assert_allclose(means[1], means[0], atol=1e-3)
