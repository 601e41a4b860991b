"""Every mean model satisfies the same contract, and the contract finds residuals that leak."""

import math

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression

from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.neighbors.engine import NeighborEngine
from twostagegp.kernels import make_kernel
from twostagegp.pipeline.mean.crossfit import RegressorMean, assign_folds
from twostagegp.pipeline.mean.models import ConstantMean, RidgeMean
from twostagegp.testing import MeanModelContract
from twostagegp.training.candidates import Candidate


def ridge(engine, merged):
    """Kernel ridge by an engine, with closed-form held-out residuals."""
    kernel = make_kernel("matern32", 2, ard=True)
    parameters = np.append(kernel.start(), math.log(0.1))
    posterior = engine.condition(kernel, parameters)
    held = posterior.heldout()
    residuals = merged.unmerge(held.residual.numpy(), held.slope.numpy())
    return RidgeMean(Candidate(kernel, "loo", parameters), posterior, residuals)


class TestConstant(MeanModelContract):
    def make_model(self, data):
        return ConstantMean(data.merged)


class TestExactRidge(MeanModelContract):
    def make_model(self, data):
        return ridge(ExactEngine(data.rows, 1e-8), data.merged)


class TestNeighborRidge(MeanModelContract):
    def make_model(self, data):
        return ridge(NeighborEngine(data.rows, 15, 1e-8), data.merged)


def cross_fitted(regressor, data):
    """A regressor with residuals of five folds."""
    merged, rng = data.merged, np.random.default_rng(0)
    groups = None if merged.groups is None else merged.groups[merged.inverse]
    folds = assign_folds(data.n_rows, 5, rng, groups)
    X = merged.X[merged.inverse]
    return RegressorMean(regressor, X, merged.y, merged.weight, folds, random_state=0)


class TestLinearRegression(MeanModelContract):
    def make_model(self, data):
        return cross_fitted(LinearRegression(), data)


class TestBoostedTrees(MeanModelContract):
    uses_weights = False  # bins depend on the number of rows

    def make_model(self, data):
        return cross_fitted(HistGradientBoostingRegressor(max_iter=20), data)


class Leaking(ConstantMean):
    """A model whose residuals are in-sample."""

    def __init__(self, merged):
        super().__init__(merged)
        self.heldout_residuals = merged.y - self.value


class TestLeakingModel:
    """The contract finds a model whose residuals are not held out."""

    class Contract(MeanModelContract):
        __test__ = False

        def make_model(self, data):
            return Leaking(data.merged)

    def test_the_contract_detects_in_sample_residuals(self):
        with pytest.raises(AssertionError, match="row 0"):
            self.Contract().test_held_out_predictions_do_not_depend_on_the_target_of_their_row()
