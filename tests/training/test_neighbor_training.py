"""Training on neighbours: they are found again if the metric changes, for every kind of kernel."""

import gpytorch.kernels as gk
import numpy as np
import pytest
import torch

from twostagegp.data.rows import Rows
from twostagegp.engines.neighbors.engine import Metric, NeighborEngine
from twostagegp.kernels import make_kernel
from twostagegp.training.candidates import Candidate
from twostagegp.training.rounds import train_on_batch

D = 3


@pytest.fixture
def engine():
    """Only the first of three columns matters."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, D))
    y = np.sin(3.0 * X[:, 0]) + 0.1 * rng.normal(size=200)
    one = np.ones(200)
    return NeighborEngine(
        Rows(*(torch.as_tensor(v) for v in (X, y, one, 0 * one, 0 * one))), n_neighbors=10
    )


@pytest.fixture
def problems(monkeypatch):
    """Every training problem."""
    seen, problem = [], NeighborEngine.problem

    def recorded(self, *args):
        seen.append(problem(self, *args))
        return seen[-1]

    monkeypatch.setattr(NeighborEngine, "problem", recorded)
    return seen


def train(engine, kernel, ard=False, rounds=3):
    candidate = Candidate(make_kernel(kernel, D, ard), "loo")
    candidate.parameters = np.append(candidate.kernel.start(), np.log(0.05))
    train_on_batch(engine, candidate, torch.arange(60), rounds, 8)
    assert candidate.failure == ""
    return candidate


@pytest.mark.parametrize(
    ("kernel", "ard"),
    [
        ("rbf", True),
        (gk.ScaleKernel(gk.RBFKernel(ard_num_dims=D)), False),
        (gk.MaternKernel(nu=1.5, ard_num_dims=D), False),
    ],
    ids=["named", "gpytorch", "gpytorch without a scale"],
)
def test_neighbours_are_found_again_in_the_metric_that_was_learned(kernel, ard, engine, problems):
    candidate = train(engine, kernel, ard)
    metrics = [problem.metric for problem in problems]
    assert len(metrics) == 3
    assert metrics[0].inverse == (1.0, 1.0, 1.0)
    assert max(metrics[1].inverse[1:]) < 0.9
    learned = Metric.of(candidate.kernel, candidate.parameters[:-1], D)
    np.testing.assert_allclose(metrics[2].inverse, learned.inverse, atol=0.2)
    assert learned.inverse[0] == 1.0


@pytest.mark.parametrize(
    "kernel",
    ["rbf", gk.RBFKernel(), gk.LinearKernel(), gk.RBFKernel() + gk.MaternKernel()],
    ids=["named", "one lengthscale", "none", "several metrics"],
)
def test_an_unchanged_metric_is_not_searched_again(kernel, engine, problems):
    train(engine, kernel)
    assert len(problems) == 1


def test_named_and_wrapped_kernels_pose_the_same_problem(engine, problems):
    named = make_kernel("rbf", D, ard=True)
    theta = named.start()
    wrapped = make_kernel(named.to_gpytorch(theta), D)
    batch, found = torch.arange(60), []
    for kernel, start in ((named, theta), (wrapped, wrapped.start())):
        problem = NeighborEngine(engine.rows, 10, use_prior=False).problem(
            kernel, "loo", None, batch, np.append(start, np.log(0.05))
        )
        found.append(problem(np.append(start, np.log(0.05)))[0])
    assert found[0] == pytest.approx(found[1], rel=1e-6)
    assert problems[0].metric == problems[1].metric
