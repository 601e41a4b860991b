"""The linear kernel."""

import numpy as np
import torch

from twostagegp.kernels.linear import LinearKernel
from twostagegp.testing import KernelContract


class TestLinear(KernelContract):
    columns = (1, 3, 70)
    stationary = False

    def make_kernel(self, n_features):
        return LinearKernel(n_features)


def test_it_is_the_mean_product_of_the_columns():
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(4, 3)), rng.normal(size=(2, 3))
    found = LinearKernel(3).cross(torch.as_tensor(X), torch.as_tensor(Z), np.log([2.0]))
    np.testing.assert_allclose(found.numpy(), 2.0 * X @ Z.T / 3.0, rtol=1e-14)
