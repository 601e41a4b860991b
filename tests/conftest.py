"""Fixtures of the tests of the method for large tables, by topic in ``test_neighbor_*.py``."""

import pytest
from hypothesis import settings
from neighbor_fits import TREES, Witness, table

from twostagegp import TwoStageGPRegressor
from twostagegp.engines.neighbors.index import TreeIndex
from twostagegp.kernels import WrappedKernel
from twostagegp.pipeline.mean import neighbor_build as neighbor_stages
from twostagegp.search.settings import SearchSettings
from twostagegp.search.stages import search_stage
from twostagegp.training.neighbor_schedule import Schedule

# The default limit per example (200 ms) fails on a busy machine; `make test` limits whole tests.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture
def short_trees(monkeypatch):
    """Trees that do not take long where rows repeat and nothing ends the boosting."""
    trees = TREES(100).set_params(max_iter=30, max_leaf_nodes=15)
    monkeypatch.setattr(neighbor_stages, "boosted_trees", lambda n: trees)


@pytest.fixture
def large(monkeypatch):
    """Sizes at which a few hundred rows are a large table."""
    monkeypatch.setattr(neighbor_stages, "SAMPLE_ROWS", 150)
    monkeypatch.setattr(neighbor_stages, "VARIANCE_ROWS", 100)
    monkeypatch.setattr(neighbor_stages, "CROSSFIT_FOLDS", {50: 5, 100: 3})
    monkeypatch.setattr(neighbor_stages, "REFIT_ROWS", 550)
    small = Schedule(warm_rows=60, pool=400, first=60, second=120, unseen=80, keep=2)
    monkeypatch.setattr(neighbor_stages, "Schedule", lambda: small)


@pytest.fixture
def short_search(monkeypatch):
    monkeypatch.setitem(search_stage.__kwdefaults__, "settings", SearchSettings(4, 60))


@pytest.fixture
def searches(monkeypatch):
    """The number of points of every search for neighbours."""
    seen, query = [], TreeIndex.query

    def counted(self, points, *args):
        seen.append(len(points))
        return query(self, points, *args)

    monkeypatch.setattr(TreeIndex, "query", counted)
    return seen


@pytest.fixture
def module_calls(monkeypatch):
    """Shapes of the inputs of every call of a GPyTorch module."""
    seen, dense = [], WrappedKernel._dense

    def counted(self, X, Z):
        seen.append(tuple(X.shape))
        return dense(self, X, Z)

    monkeypatch.setattr(WrappedKernel, "_dense", counted)
    return seen


@pytest.fixture
def witness(monkeypatch):
    monkeypatch.setattr(Witness, "seen", [])
    return Witness()


@pytest.fixture(scope="session")
def fitted():
    """The defaults, but for fewer kernels."""
    assert neighbor_stages.boosted_trees is TREES
    model = TwoStageGPRegressor("neighbors", kernels=("rbf", "matern32", "laplacian"))
    return model.set_params(random_state=0).fit(*table(600, 3))


@pytest.fixture(scope="session")
def fresh():
    return table(4000, 3, seed=9)
