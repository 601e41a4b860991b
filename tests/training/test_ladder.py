"""The ladder: numbers of rows, and trainings that start at another objective's optimum."""

import numpy as np
import pytest
import torch

from twostagegp.data.rows import Rows
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.kernels import make_kernel
from twostagegp.training.candidates import Candidate, rank_by_unseen_error
from twostagegp.training.ladder import Ladder, Rung, climb, rung_sizes


@pytest.mark.parametrize("n", [100, 540, 700, 1353, 5000, 100_000])
@pytest.mark.parametrize("first", [150, 300])
@pytest.mark.parametrize("growth", [2.8, 4.0])
def test_rows_grow_by_one_factor_that_is_not_too_large(n, first, growth):
    sizes = rung_sizes(n, first, growth)
    if n < 1.8 * first:
        assert sizes == []
        return
    ratios = np.divide([*sizes[1:], n], sizes)
    assert sizes[0] == first
    assert ratios.max() <= growth + 0.02
    assert np.ptp(ratios) < 0.02
    # With one rung fewer, the factor would have been too large.
    assert len(sizes) == 1 or (n / first) ** (1.0 / (len(sizes) - 1)) > growth


def test_without_a_first_training_there_is_one_rung():
    assert rung_sizes(1000, 0) == []


@pytest.fixture(scope="module")
def engine():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + 0.3 * rng.normal(size=200)
    one = np.ones(200)
    return ExactEngine(Rows(*(torch.as_tensor(v) for v in (X, y, one, 0 * one, 0 * one))))


def _climbed(engine, share_optima, kernels=None):
    kernels = kernels or [make_kernel("rbf", 3, True), make_kernel("matern32", 3, True)]
    candidates = [Candidate(kernel, name) for name in ("loo", "nll") for kernel in kernels]
    ladder = Ladder((Rung(200, 4, 60, 1e-5),))
    climb(
        engine, candidates, ladder, rank_by_unseen_error, np.arange(200), share_optima=share_optima
    )
    return candidates


def test_a_training_goes_downhill_from_a_shared_optimum_and_costs_less(engine):
    alone, shared = _climbed(engine, False), _climbed(engine, True)
    for loo, nll in zip(shared[:2], shared[2:], strict=True):
        assert loo.value < engine.problem(loo.kernel, "loo")(nll.parameters)[0]
    evaluations = [sum(c.evaluations for c in found[:2]) for found in (alone, shared)]
    assert evaluations[1] < evaluations[0]
    for one, other in zip(alone[2:], shared[2:], strict=True):
        np.testing.assert_array_equal(one.parameters, other.parameters)


def test_a_kernel_whose_likelihood_fails_is_trained_from_its_starting_values(engine, monkeypatch):
    train = Candidate.train

    def failing(self, *args):
        if self.objective == "nll" and self.kernel.name == "rbf":
            self.failure = "no factor"
        else:
            train(self, *args)

    alone = _climbed(engine, False)
    monkeypatch.setattr(Candidate, "train", failing)
    shared = _climbed(engine, True)
    np.testing.assert_array_equal(shared[0].parameters, alone[0].parameters)
    assert shared[0].failure == ""
