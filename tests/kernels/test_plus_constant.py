"""A kernel plus a constant."""

import pytest

from twostagegp.kernels import PlusConstant, make_kernel
from twostagegp.kernels.linear import LinearKernel
from twostagegp.testing import KernelContract


class TestStationaryPlusConstant(KernelContract):
    @pytest.fixture(autouse=True, params=["rq", "laplacian"])
    def choose(self, request):
        self.name = request.param

    def make_kernel(self, n_features):
        return PlusConstant(make_kernel(self.name, n_features, ard=True), 2.5)


class TestLinearPlusConstant(KernelContract):
    stationary = False

    def make_kernel(self, n_features):
        return PlusConstant(LinearKernel(n_features), 2.5)
