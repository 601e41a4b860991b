"""Every engine satisfies the same contract."""

import numpy as np
import pytest
import torch

from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.exact.settings import ExactSettings
from twostagegp.engines.neighbors.engine import NeighborEngine
from twostagegp.engines.svgp import SparseEngine
from twostagegp.errors import InputError
from twostagegp.kernels import make_kernel
from twostagegp.testing import EngineContract, example_rows


class TestExact(EngineContract):
    def make_engine(self, rows, noise_floor):
        return ExactEngine(rows, noise_floor)


class TestBlocked(EngineContract):
    """One matrix in blocks; its derivatives are estimated, so they are tested elsewhere."""

    exact_gradients = False  # test_large_exact.py compares the estimate with all matrices

    def make_engine(self, rows, noise_floor):
        return ExactEngine(rows, noise_floor, settings=ExactSettings(blocked_rows=10))


class TestNeighborsOfAllRows(EngineContract):
    objectives = ("loo", "heldout")

    def make_engine(self, rows, noise_floor):
        return NeighborEngine(rows, 1000, noise_floor)


class TestFewNeighbors(EngineContract):
    objectives = ("loo", "heldout")
    uses_all_rows = False

    def make_engine(self, rows, noise_floor):
        return NeighborEngine(rows, 6, noise_floor)


class TestVecchia(EngineContract):
    uses_all_rows = False

    def make_engine(self, rows, noise_floor):
        order = torch.as_tensor(np.random.default_rng(3).permutation(len(rows)))
        return NeighborEngine(rows, 6, noise_floor, order=order)


class TestInducingPointsAtAllRows(EngineContract):
    extends_exactly = False  # the inducing points stay those of the fit

    def make_engine(self, rows, noise_floor):
        return SparseEngine(rows, 1000, noise_floor)


class TestFewInducingPoints(EngineContract):
    uses_all_rows = False
    extends_exactly = False

    def make_engine(self, rows, noise_floor):
        return SparseEngine(rows, 8, noise_floor)


def test_the_likelihood_of_neighbours_without_an_order_raises_before_any_work():
    engine = NeighborEngine(example_rows(), 6)
    with pytest.raises(InputError, match="order"):
        engine.problem(make_kernel("rbf", 2), "nll")


def test_inducing_points_follow_the_metric():
    rows = example_rows(n=200)
    engine, kernel = SparseEngine(rows, 20), make_kernel("rbf", 2, ard=True)
    flat = np.array([0.0, 3.0, 0.0, np.log(0.1)])
    problem = engine.problem(kernel, "nll", None, None, np.array([0.0, 0.0, 0.0, np.log(0.1)]))
    assert problem.is_stale(flat)
    again = engine.problem(kernel, "nll", None, None, flat)
    assert not again.is_stale(flat)
    assert not torch.equal(problem.Z, again.Z)
    # Points are spread out in the first column, and little in the unimportant second one.
    assert again.Z[:, 0].std() > 1.2 * rows.X[:, 0].std()


def test_the_bound_is_below_the_likelihood_and_tightens():
    rows, kernel = example_rows(n=120), make_kernel("matern32", 2)
    x = np.array([0.0, 0.0, np.log(0.1)])
    exact = ExactEngine(rows, use_prior=False).problem(kernel, "nll")(x)[0]
    bounds = [
        SparseEngine(rows, m, use_prior=False).problem(kernel, "nll")(x)[0] for m in (5, 30, 200)
    ]
    assert bounds[0] > bounds[1] > exact
    assert bounds[2] == pytest.approx(exact, abs=1e-8)
