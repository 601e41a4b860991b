"""Fixtures of the tests of the method for large tables, by topic in ``test_neighbor_*.py``."""

import pytest
from hypothesis import settings
from neighbor_fits import Witness, table

from twostagegp import TwoStageGPRegressor
from twostagegp.engines.neighbors.index import TreeIndex
from twostagegp.kernels import gpytorch as gpytorch_kernels

# The default limit per example (200 ms) fails on a busy machine; `make test` limits whole tests.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture
def searches(monkeypatch):
    """Return a list that gets the number of points of every search for neighbours."""
    seen, query = [], TreeIndex.query

    def counted(self, points, *args):
        seen.append(len(points))
        return query(self, points, *args)

    monkeypatch.setattr(TreeIndex, "query", counted)
    return seen


@pytest.fixture
def module_calls(monkeypatch):
    """Return a list that gets the input shape of every call of a GPyTorch module."""
    seen, open_calls, dense = [], [], gpytorch_kernels.dense

    def counted(module, X, Z):
        if not open_calls:  # sums and products ask for their parts
            seen.append(tuple(X.shape))
        open_calls.append(module)
        try:
            return dense(module, X, Z)
        finally:
            open_calls.pop()

    monkeypatch.setattr(gpytorch_kernels, "dense", counted)
    return seen


@pytest.fixture
def witness(monkeypatch):
    monkeypatch.setattr(Witness, "seen", [])
    return Witness()


@pytest.fixture(scope="session")
def fitted():
    """Return a fitted model with the defaults, except for fewer kernels."""
    model = TwoStageGPRegressor("neighbors", kernels=("rbf", "laplacian"))
    return model.set_params(random_state=0).fit(*table(600, 3))


@pytest.fixture(scope="session")
def fresh():
    return table(4000, 3, seed=9)
