"""Errors without a fold beside errors without a row, by brute force."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from twostagegp.data.rows import merge_rows
from twostagegp.data.scaling import to_rows
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.kernels import make_kernel
from twostagegp.pipeline.mean.learning_curve import fold_error_ratio
from twostagegp.pipeline.mean.models import RidgeMean
from twostagegp.training.candidates import Candidate

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = np.sin(2 * X[:, 0]) + 0.2 * RNG.normal(size=60)
FOLDS = RNG.permutation(60) % 4


def ridges(merged, penalties=(0.1,)):
    engine = ExactEngine(to_rows(merged, torch.device("cpu"), torch.float64), 1e-8)
    kernel = make_kernel("matern32", 2, ard=False)
    made = []
    for penalty in penalties:
        parameters = np.append(kernel.start(), math.log(penalty))
        posterior = engine.condition(kernel, parameters)
        held = posterior.heldout()
        residuals = merged.unmerge(held.residual.numpy(), held.slope.numpy())
        made.append(RidgeMean(Candidate(kernel, "loo", parameters), posterior, residuals))
    return engine, made


def residual_without(engine, ridge, out):
    part = engine.subset(np.flatnonzero(~out))
    mean = part.condition(ridge.kernel, ridge.parameters).mean(engine.rows.X[torch.as_tensor(out)])
    return (engine.rows.t[torch.as_tensor(out)] - mean).numpy()


def test_the_ratio_is_that_of_residuals_without_a_row_and_without_a_fold():
    merged = merge_rows(X, Y)
    engine, made = ridges(merged)
    own = [residual_without(engine, made[0], np.arange(60) == i) for i in range(60)]
    folds = FOLDS[np.unique(merged.inverse, return_index=True)[1]]
    by_fold = [residual_without(engine, made[0], folds == k) for k in range(4)]
    expected = math.sqrt(
        np.square(np.concatenate(own)).sum() / np.square(np.concatenate(by_fold)).sum()
    )
    found = fold_error_ratio(made, engine, merged, FOLDS, least=0.1)
    assert found == pytest.approx(expected, rel=1e-9)
    assert 0.5 < found < 1.0
    assert fold_error_ratio(made, engine, merged, FOLDS, least=0.999) == 0.999


def test_the_best_ridge_decides_and_without_one_nothing_is_changed():
    merged = merge_rows(X, Y)
    engine, made = ridges(merged, (100.0, 0.1))
    best = fold_error_ratio(made[1:], engine, merged, FOLDS)
    assert fold_error_ratio(made, engine, merged, FOLDS) == best
    assert fold_error_ratio([], engine, merged, FOLDS) == 1.0


def test_groups_and_repeated_rows():
    groups = np.arange(60) // 3
    merged = merge_rows(X, Y, groups=groups)
    engine, made = ridges(merged)
    assert 0.5 < fold_error_ratio(made, engine, merged, groups % 4, least=0.1) < 1.0
    merged = merge_rows(np.repeat(X, 2, axis=0), np.repeat(Y, 2))
    engine, made = ridges(merged)
    assert 0.0 < fold_error_ratio(made, engine, merged, np.arange(120) % 4, least=0.05) <= 1.0


def test_a_table_that_cannot_be_factorised_changes_nothing():
    merged = merge_rows(X, Y)
    engine, made = ridges(merged)
    broken = replace(engine.rows, X=engine.rows.X * math.nan)
    assert fold_error_ratio(made, engine.with_rows(broken), merged, FOLDS) == 1.0
