"""The sparse variational GP: what it must equal where it is exact, and its errors."""

import numpy as np
import pytest
import torch

from twostagegp.data.rows import Rows, merge_rows
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.svgp import SparseGP
from twostagegp.errors import NotFittableError
from twostagegp.kernels import NamedKernel
from twostagegp.pipeline.mean.neighbor_build import Sample
from twostagegp.pipeline.svgp import fit_sparse_variance
from twostagegp.training.ladder import Candidate

KERNEL = NamedKernel("matern52", 2)
PARAMETERS = np.append(KERNEL.start(), np.log(0.05))


def table(n=40):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, size=(n, 2))
    return X, np.sin(2.0 * X[:, 0]) + 0.2 * rng.normal(size=n)


def rows_of(X, y):
    one = torch.ones(len(y), dtype=torch.float64)
    return Rows(torch.as_tensor(X), torch.as_tensor(y), one, 0.0 * one, 0.0 * one)


def test_one_natural_step_with_every_row_inducing_is_the_exact_posterior():
    """The natural gradient of a Gaussian likelihood leads to the optimum at once (rate 1)."""
    X, y = table()
    gp = SparseGP(KERNEL, PARAMETERS, n_inducing=len(y), steps=1, lr=0.0, natural_lr=1.0)
    mean, variance = gp.fit(X, y).latent(torch.as_tensor(X[:15] + 0.1))
    exact = ExactEngine(rows_of(X, y)).condition(KERNEL, PARAMETERS)
    queries = torch.as_tensor(X[:15] + 0.1)
    torch.testing.assert_close(mean, exact.mean(queries), rtol=0.0, atol=1e-4)
    torch.testing.assert_close(variance, exact.variance(queries), rtol=0.0, atol=1e-4)
    C = gp.covariance(queries)
    torch.testing.assert_close(C.diagonal(), variance, rtol=1e-6, atol=1e-9)
    assert gp.noise_ == pytest.approx(0.05, rel=1e-6)


def test_minibatches_come_near_the_exact_posterior():
    X, y = table(120)
    gp = SparseGP(KERNEL, PARAMETERS, n_inducing=40, batch=64, steps=60, lr=0.0, random_state=0)
    mean, _ = gp.fit(X, y).latent(torch.as_tensor(X))
    exact = ExactEngine(rows_of(X, y)).condition(KERNEL, PARAMETERS).mean(torch.as_tensor(X))
    assert float((mean - exact).square().mean().sqrt()) < 0.05
    np.testing.assert_allclose(gp.predict(X), mean.numpy())


def test_no_kernel_for_the_variance_is_an_error_with_the_reason(monkeypatch):
    X, y = table()

    def fails(self, *given, **more):
        self.failure = "a matrix of ours"

    monkeypatch.setattr(Candidate, "train", fails)
    merged = merge_rows(X, y, np.ones(len(y)), None, None)
    sample = Sample(np.arange(len(y)), merged, np.arange(len(y)))
    with pytest.raises(NotFittableError, match="a matrix of ours"):
        fit_sparse_variance(rows_of(X, y), [KERNEL], 1e-8, sample, y, 0, np.random.default_rng(0))
