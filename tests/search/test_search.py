"""The kernel search: its ranking, its early decision, and kernels that cannot be fitted."""

import logging
import math
import threading
from dataclasses import replace

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from twostagegp import search_kernel
from twostagegp.data.scaling import prepare
from twostagegp.engines.problem import Problem
from twostagegp.errors import InputError, NotFittableError
from twostagegp.numerics import objectives
from twostagegp.numerics.objectives import Factored
from twostagegp.plotting import MODEL, TRUTH
from twostagegp.search.early_stopping import checkpoints, probability_of_rank_change
from twostagegp.search.repetitions import Repetitions
from twostagegp.training.optimise import minimise

COLUMNS = ["score", "spread", "p_hat", "heldout", "noise", "repeats", "seconds", "failure"]


def smooth(n=70, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, size=(n, 1))
    return X, np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=n)


def rough(n=80, seed=0):
    """Return a path of an Ornstein-Uhlenbeck process, almost without noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, size=(n, 1))
    K = np.exp(-np.abs(X - X.T)) + 1e-4 * np.eye(n)
    return X, np.linalg.cholesky(K) @ rng.normal(size=n)


def search(data=None, kernels=("rbf", "matern12"), **options):
    X, y = smooth() if data is None else data
    return search_kernel(X, y, kernels, **{"n_repeats": 6, "random_state": 0, **options})


def scores_of(result, label):
    entry = next(entry for entry in result.entries if entry.label == label)
    return {
        "loo": entry.repeated.loo,
        "nll": entry.repeated.nll,
        "misspecification": entry.repeated.ratio,
    }[result.selection]


# --- the ranking ---------------------------------------------------------------------------------


@pytest.mark.parametrize("selection", ["loo", "nll"])
@pytest.mark.parametrize(
    ("data", "ranking"),
    [(smooth, ["rbf", "matern32", "matern12"]), (rough, ["matern12", "matern32", "rbf"])],
)
def test_the_search_finds_the_smoothness_of_the_function(data, ranking, selection):
    result = search(data(), ("matern32", "rbf", "matern12"), selection=selection, n_repeats=10)
    assert list(result.table.index) == ranking
    assert result.best == result.best_label == ranking[0]
    assert result.best_entry.label == ranking[0]


def test_the_papers_test_finds_the_rough_kernel_without_noise():
    result = search(rough(), ("rbf", "matern12"), selection="misspecification", n_repeats=10)
    assert result.best == "matern12"
    assert result.table["score"].is_monotonic_decreasing
    assert result.table["score"].tolist() == result.table["p_hat"].tolist()


def test_kernel_ridge_is_searched_by_its_leave_one_out_error():
    result = search(rough(), ("rbf", "matern12"), model="krr")
    assert result.best == "matern12"
    assert result.table["score"].iloc[0] < result.table["score"].iloc[1]
    assert all(np.isnan(entry.repeated.nll).all() for entry in result.entries)


def test_one_lengthscale_per_column_wins_if_a_column_is_irrelevant():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(80, 3))
    y = np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=80)
    result = search((X, y), ("rbf",), ard="both")
    assert list(result.table.index) == ["rbf-ard", "rbf"]
    assert (result.best, result.best_label) == ("rbf", "rbf-ard")
    assert result.best_entry.kernel.ard
    assert result.best_ard is True


@pytest.mark.parametrize("ard", [False, True])
def test_best_ard_says_whether_the_winner_has_one_lengthscale_per_column(ard):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(40, 2))
    y = np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=40)
    result = search((X, y), {"mine-ard": "rbf"}, ard=ard, n_repeats=2)
    assert result.best_ard is ard  # whatever its label
    module = gpytorch.kernels.RBFKernel(ard_num_dims=2)
    assert search((X, y), [module], ard=ard, n_repeats=2).best_ard is False


def test_a_table_of_one_column_has_one_form_per_kernel():
    assert list(search(kernels=("rbf",), ard="both").table.index) == ["rbf"]


# --- the table -----------------------------------------------------------------------------------


@pytest.mark.parametrize("selection", ["loo", "nll", "misspecification"])
def test_the_table_follows_from_the_repetitions(selection):
    kernels = ("rbf", "matern12", "matern32")
    result = search(kernels=kernels, selection=selection, n_repeats=7, early=False)
    table = result.table
    assert list(table.columns) == COLUMNS
    assert table.index.name == "kernel"
    assert set(table.index) == set(kernels)
    for label, row in table.iterrows():
        scores = scores_of(result, label)
        assert len(scores) == row["repeats"] == 7
        assert row["score"] == pytest.approx(scores.mean())
        assert row["spread"] == pytest.approx(scores.std(ddof=1) / math.sqrt(7))
        repeated = next(e.repeated for e in result.entries if e.label == label)
        assert row["p_hat"] == pytest.approx(repeated.ratio.mean())
        assert row["heldout"] == pytest.approx(repeated.heldout.mean())
        y_scale = smooth()[1].std()
        assert row["noise"] == pytest.approx(y_scale * np.median(repeated.noise))
        assert row["failure"] == ""
    best_first = table["score"].tolist()
    assert best_first == sorted(best_first, reverse=selection == "misspecification")
    assert all(label in str(result) for label in kernels)


def test_subsamples_are_common_to_all_kernels_and_split_in_two():
    result = search(subsample=30, n_repeats=5, early=False)
    assert result.index.shape == (5, 30)
    assert result.n_train == 24
    assert all(len(set(rows)) == 30 for rows in result.index.tolist())
    assert len({tuple(sorted(rows)) for rows in result.index.tolist()}) == 5


def test_the_papers_test_uses_spread_subsamples_and_densities_random_ones():
    options = {"subsample": 20, "n_repeats": 3}
    drawn = {
        (selection, sampling): search(selection=selection, sampling=sampling, **options).index
        for selection in ("loo", "misspecification")
        for sampling in ("auto", "fps", "random")
    }
    for selection, automatic in (("loo", "random"), ("misspecification", "fps")):
        other = {"random": "fps", "fps": "random"}[automatic]
        np.testing.assert_array_equal(drawn[selection, "auto"], drawn[selection, automatic])
        assert not np.array_equal(drawn[selection, "auto"], drawn[selection, other])


# --- dictionaries --------------------------------------------------------------------------------


def composition():
    parts = gpytorch.kernels.RBFKernel() + gpytorch.kernels.PeriodicKernel()
    return gpytorch.kernels.ScaleKernel(parts)


def test_a_mapping_gives_labels():
    module = gpytorch.kernels.MaternKernel(nu=0.5)
    result = search(rough(), {"wavy": "rbf", "mine": module}, n_repeats=4)
    assert list(result.table.index) == ["mine", "wavy"]
    assert result.best is module
    assert result.best_label == "mine"


def test_labels_that_occur_twice_are_numbered():
    result = search(kernels=["rbf", "rbf", gpytorch.kernels.RBFKernel()], n_repeats=3)
    assert set(result.table.index) == {"rbf", "rbf #2", "RBFKernel"}


def test_labels_of_ard_forms_get_a_suffix():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    result = search((X, X[:, 0] + 0.1 * rng.normal(size=40)), {"a": "rbf"}, ard="both", n_repeats=3)
    assert set(result.table.index) == {"a", "a-ard"}


def test_a_gpytorch_kernel_has_the_score_of_the_named_one():
    module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    result = search(kernels=["rbf", module], n_repeats=4)
    assert (result.table["failure"] == "").all()
    # The named kernel has a weak prior, which the other does not.
    np.testing.assert_allclose(*result.table["score"], atol=0.02)
    np.testing.assert_allclose(*result.table["noise"], rtol=0.05)


def test_sums_and_products_are_searched_and_not_changed():
    module = composition()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    X = np.linspace(0.0, 8.0, 40)[:, None]
    y = np.sin(2 * np.pi * X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=40)
    product = gpytorch.kernels.RBFKernel() * gpytorch.kernels.LinearKernel()
    result = search((X, y), {"sum": module, "product": product, "rbf": "rbf"}, n_repeats=2)
    assert (result.table["failure"] == "").all()
    assert (result.table["repeats"] == 2).all()
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def with_a_constant_column(n=70, seed=0):
    """Return a column of ones, the signal, and an irrelevant column."""
    rng = np.random.default_rng(seed)
    signal, noise = rng.uniform(-2, 2, size=(2, n))
    X = np.column_stack([np.ones(n), signal, noise])
    return X, np.sin(3 * signal) + 0.1 * rng.normal(size=n)


def test_active_dims_count_the_columns_of_the_users_table():
    X, y = with_a_constant_column()
    kernel = gpytorch.kernels.RBFKernel
    wide = search((X, y), {k: kernel(active_dims=[k]) for k in (1, 2)}, n_repeats=2)
    narrow = search((X[:, 1:], y), {k + 1: kernel(active_dims=[k]) for k in (0, 1)}, n_repeats=2)
    assert wide.best_label == "1"
    assert_same(wide, narrow, rtol=1e-10)
    assert wide.table.loc["1", "noise"] < 0.2
    assert wide.table.loc["2", "noise"] > 0.4


def test_ard_num_dims_counts_the_columns_of_the_users_table():
    X, y = with_a_constant_column()
    kernels = [gpytorch.kernels.RBFKernel(ard_num_dims=3)]
    wide = search((X, y), kernels, n_repeats=2)
    narrow = search((X[:, 1:], y), [gpytorch.kernels.RBFKernel(ard_num_dims=2)], n_repeats=2)
    assert (wide.table["failure"] == "").all()
    np.testing.assert_allclose(wide.table["score"], narrow.table["score"], atol=1e-3)
    # Two would be right for the columns that vary, but not for the table.
    wrong = {"wrong": gpytorch.kernels.RBFKernel(ard_num_dims=2), "rbf": "rbf"}
    assert "ard_num_dims" in search((X, y), wrong, n_repeats=2).table.loc["wrong", "failure"]


# --- kernels that fail ---------------------------------------------------------------------------


class Failing(gpytorch.kernels.Kernel):
    """A kernel that works for two rows, with which it is tried, and not for a whole table."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, x1, x2, diag=False, **params):
        if x1.shape[-2] > 2 and self.error is not None:
            raise self.error
        if diag:
            return torch.ones_like(x1[..., 0])
        K = torch.exp(-(x1 - x2.mT).abs())
        return K if x1.shape[-2] <= 2 else K * math.nan


class TheirOwnError(Exception):
    """An error that no other code handles."""


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("no such luck"),
        ValueError("no such luck"),
        ZeroDivisionError("no such luck"),
        IndexError("no such luck"),
        AttributeError("no such luck"),
        KeyError("no such luck"),
        NotImplementedError("no such luck"),
        OSError("no such luck"),
        AssertionError("no such luck"),
        TheirOwnError("no such luck"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_kernel_that_raises_does_not_end_the_search(error):
    result = search(kernels=[Failing(error), "rbf", "matern12"], n_repeats=4)
    table = result.table
    assert result.best == "rbf"
    assert table.index[-1] == "Failing"
    assert type(error).__name__ in table.loc["Failing", "failure"]
    assert "no such luck" in table.loc["Failing", "failure"]
    assert np.isnan(table.loc["Failing", "score"])
    assert table["failure"].tolist()[:2] == ["", ""]


def test_a_kernel_that_gives_nan_does_not_end_the_search():
    result = search(kernels=[Failing(None), "rbf"], n_repeats=4)
    assert result.best == "rbf"
    assert "cannot be factorised" in result.table.loc["Failing", "failure"]


def test_a_kernel_that_cannot_be_built_does_not_end_the_search():
    module = gpytorch.kernels.RBFKernel(ard_num_dims=5)
    result = search(kernels={"too wide": module, "rbf": "rbf"}, n_repeats=4)
    assert result.best == "rbf"
    assert "1 input columns" in result.table.loc["too wide", "failure"]
    assert next(e for e in result.entries if e.label == "too wide").kernel is None


def test_if_every_kernel_fails_all_reasons_are_given():
    kernels = {"one": Failing(ValueError("first reason")), "two": Failing(RuntimeError("second"))}
    with pytest.raises(NotFittableError, match="one: ValueError: first reason; two: RuntimeErr"):
        search(kernels=kernels, n_repeats=4)


def test_a_kernel_that_fails_later_is_excluded_and_the_others_go_on(monkeypatch):
    run = Repetitions.run

    def fails_later(self, kernel, settings, first=0):
        if kernel.label == "rbf" and first:
            raise RuntimeError("not again")
        return run(self, kernel, settings, first)

    monkeypatch.setattr(Repetitions, "run", fails_later)
    kernels = ("matern32", "rbf", "matern52")
    result = search(kernels=kernels, n_repeats=16, confidence=1 - 1e-12)
    assert result.best in ("matern32", "matern52")
    assert result.table.index[-1] == "rbf"
    assert result.table.loc["rbf", "failure"] == "RuntimeError: not again"
    assert result.table["repeats"].tolist() == [16, 16, 8]


def test_a_kernel_is_excluded_if_many_repetitions_cannot_be_fitted(monkeypatch):
    run = Repetitions.run

    def some_missing(self, kernel, settings, first=0):
        repeated = run(self, kernel, settings, first)
        missing = {"rbf": 2, "matern12": 1}[kernel.label]
        for values in (repeated.loo, repeated.nll, repeated.ratio, repeated.heldout):
            values[:missing] = math.nan
        return repeated

    monkeypatch.setattr(Repetitions, "run", some_missing)
    result = search(n_repeats=8)
    assert result.best == "matern12"
    assert result.table.loc["rbf", "failure"] == "25% of the repetitions could not be fitted"
    assert result.table.loc["matern12", "failure"] == ""
    kept = scores_of(result, "matern12")[1:]
    assert result.table.loc["matern12", "score"] == pytest.approx(kept.mean())


def test_scores_are_means_over_the_repetitions_that_every_fitted_kernel_has(monkeypatch):
    run = Repetitions.run

    def one_missing(self, kernel, settings, first=0):
        repeated = run(self, kernel, settings, first)
        if kernel.label == "rbf":  # not fitted on a subsample that is easy for the others
            for values in (repeated.loo, repeated.nll, repeated.ratio, repeated.heldout):
                values[2] = math.nan
        else:
            repeated.loo[2] = -100.0
        if kernel.label == "matern52":  # excluded, so its failed repetitions do not count
            repeated.loo[:3] = repeated.ratio[:3] = math.nan
        return repeated

    monkeypatch.setattr(Repetitions, "run", one_missing)
    result = search(kernels=("matern12", "rbf", "matern52"), n_repeats=8)
    assert result.best == "rbf"
    common = np.arange(8) != 2
    for label in ("rbf", "matern12"):
        scores = scores_of(result, label)[common]
        assert result.table.loc[label, "score"] == pytest.approx(scores.mean())
        spread = scores.std(ddof=1) / math.sqrt(7)
        assert result.table.loc[label, "spread"] == pytest.approx(spread)
        assert result.table.loc[label, "repeats"] == 8
    assert result.table.index[-1] == "matern52"
    own = scores_of(result, "matern52")[3:]
    assert result.table.loc["matern52", "score"] == pytest.approx(own.mean())


# --- early decision ------------------------------------------------------------------------------


def test_an_early_decision_equals_that_of_the_full_search():
    kernels = ("matern12", "rbf", "matern32")
    options = {"data": rough(), "kernels": kernels, "n_repeats": 40, "selection": "nll"}
    early, full = search(**options), search(**options, early=False)
    assert early.decided_early
    assert not full.decided_early
    assert len(full.index) == 40
    assert len(early.index) in checkpoints(40)[:-1]
    assert list(early.table.index) == list(full.table.index)
    np.testing.assert_array_equal(early.index, full.index[: len(early.index)])
    for label in kernels:
        some = scores_of(early, label)
        np.testing.assert_allclose(some, scores_of(full, label)[: len(some)], atol=1e-2)
    assert (early.table["repeats"] == len(early.index)).all()
    assert (full.table["repeats"] == 40).all()


def test_two_equal_kernels_are_not_decided_early():
    kernels = {"one": "rbf", "two": "rbf"}
    result = search(kernels=kernels, n_repeats=20)
    assert not result.decided_early
    assert (result.table["repeats"] == 20).all()


def test_more_confidence_needs_more_repetitions():
    options = {"data": smooth(), "kernels": ("rbf", "matern32"), "n_repeats": 64}
    lax, strict = (search(**options, confidence=c) for c in (0.5, 1 - 1e-13))
    assert len(lax.index) < len(strict.index)


@pytest.mark.parametrize(
    ("n_repeats", "expected"),
    [(2, [2]), (8, [8]), (9, [8, 9]), (40, [8, 16, 32, 40]), (64, [8, 16, 32, 64])],
)
def test_checkpoints_double_and_end_with_all(n_repeats, expected):
    assert checkpoints(n_repeats) == expected


def simulated_change(difference, n_repeats, rng, draws=200_000):
    """Return the share of continuations in which the mean difference changes its sign.

    Variance and mean of the differences are drawn from their distribution given the first ones
    (normal differences, the usual vague prior), then the repetitions that are missing.
    """
    r = len(difference)
    variance = difference.var(ddof=1) * (r - 1) / rng.chisquare(r - 1, draws)
    mean = rng.normal(difference.mean(), np.sqrt(variance / r))
    rest = rng.normal(mean, np.sqrt(variance / (n_repeats - r)))
    total = r * difference.mean() + (n_repeats - r) * rest
    return np.mean(np.sign(total) != np.sign(difference.mean()))


@pytest.mark.parametrize(("r", "n_repeats"), [(4, 8), (8, 100), (16, 20)])
def test_the_probability_of_a_change_is_that_of_simulated_repetitions(r, n_repeats):
    rng = np.random.default_rng(r)
    base = rng.normal(scale=3.0, size=r)  # common to all kernels: only differences count
    gaps = np.array([0.0, 0.2, 0.3])
    scores = base + gaps[:, None] + rng.normal(scale=0.5, size=(3, r))
    scores = scores[np.argsort(scores.mean(1))]
    expected = sum(simulated_change(d, n_repeats, rng) for d in np.diff(scores, axis=0))
    assert expected > 0.002
    assert probability_of_rank_change(scores, n_repeats) == pytest.approx(expected, abs=0.004)


def test_the_probability_does_not_depend_on_order_units_or_sign():
    scores = np.random.default_rng(0).normal(size=(4, 9))
    expected = probability_of_rank_change(scores, 30)
    for same in (scores[[2, 0, 3, 1]], scores[:, ::-1], 5.0 + 2.0 * scores, -scores):
        assert probability_of_rank_change(same, 30) == pytest.approx(expected)


def test_rankings_that_are_decided_rarely_change():
    rng = np.random.default_rng(0)
    certain = changed = 0
    for _ in range(400):
        scores = rng.normal(size=(2, 40)) + np.array([[0.0], [0.5]])
        if probability_of_rank_change(scores[:, :16], 40) <= 0.05:
            certain += 1
            changed += np.diff(scores[:, :16].mean(1)) * np.diff(scores.mean(1)) < 0
    assert certain > 50
    assert changed <= 0.05 * certain


def test_nothing_changes_after_the_last_repetition_or_with_one_kernel():
    scores = np.random.default_rng(0).normal(size=(3, 10))
    assert probability_of_rank_change(scores, 10) == 0.0
    assert probability_of_rank_change(scores[:1], 100) == 0.0


@pytest.mark.parametrize("r", [0, 1])
def test_fewer_than_two_common_repetitions_do_not_decide(r):
    assert probability_of_rank_change(np.arange(2.0)[:, None] * np.ones((2, r)), 20) == 1.0
    assert probability_of_rank_change(np.ones((1, r)), 20) == 0.0


def test_equal_scores_may_change_and_constant_gaps_cannot():
    equal = np.ones((2, 8))
    assert probability_of_rank_change(equal, 20) == pytest.approx(0.5)
    assert probability_of_rank_change(equal + np.array([[0.0], [1.0]]), 20) == 0.0


# --- the same result -----------------------------------------------------------------------------


def assert_same(first, second, **tolerance):
    columns = ["score", "spread", "p_hat", "heldout", "repeats"]
    assert list(first.table.index) == list(second.table.index)
    np.testing.assert_allclose(
        first.table[columns].astype(float), second.table[columns].astype(float), **tolerance
    )


def test_the_seed_determines_the_search():
    first, again, other = search(), search(), search(random_state=1)
    assert_same(first, again, rtol=1e-10)
    np.testing.assert_array_equal(first.index, again.index)
    assert not np.array_equal(first.index, other.index)


def test_a_generator_is_accepted_as_random_state():
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(search(random_state=rng).index, search().index)


def test_a_numpy_random_state_is_accepted():
    first, again, other = (
        search(random_state=np.random.RandomState(seed)).index for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    state = np.random.RandomState(0)
    indices = [search(random_state=state).index for _ in range(2)]
    np.testing.assert_array_equal(indices[0], first)
    assert not np.array_equal(*indices)  # it moves on, as in scikit-learn


@pytest.mark.parametrize("selection", ["loo", "nll"])
def test_the_search_does_not_depend_on_units_and_sign_of_the_target(selection):
    X, y = smooth()
    first = search(selection=selection)
    second = search((X, 100.0 - 7.0 * y), selection=selection)
    assert_same(first, second, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(second.table["noise"], 7.0 * first.table["noise"], rtol=1e-5)


def test_the_search_does_not_depend_on_units_of_the_inputs():
    X, y = smooth()
    assert_same(search(), search((1e3 * X + 5.0, y)), rtol=1e-6, atol=1e-6)


def test_the_search_does_not_depend_on_the_order_of_the_rows():
    X, y = smooth()
    order = np.random.default_rng(0).permutation(len(X))
    assert_same(search(), search((X[order], y[order])), rtol=1e-8, atol=1e-8)


def test_weights_are_counts():
    X, y = repeated_table()
    weight = np.random.default_rng(0).integers(0, 3, size=len(y))
    copies = np.repeat(np.arange(len(y)), weight)
    weighted = search((X, y), sample_weight=weight)
    assert_same(weighted, search((X[copies], y[copies])), rtol=1e-8, atol=1e-8)
    once = search((X[weight > 0], y[weight > 0]))
    assert not np.allclose(weighted.table["score"], once.table["score"], rtol=1e-3)


@pytest.mark.parametrize(
    "options",
    [{}, {"selection": "nll"}, {"selection": "misspecification"}, {"model": "krr"}],
    ids=str,
)
def test_a_table_with_every_row_twice_has_the_scores_of_the_table(options):
    X, y = smooth()
    single = search((X, y), ("rbf", "matern12", "laplacian"), **options)
    order = np.random.default_rng(0).permutation(2 * len(y))
    double = search(
        (np.tile(X, (2, 1))[order], np.tile(y, 2)[order]), ("rbf", "matern12", "laplacian"),
        **options,
    )  # fmt: skip
    assert_same(single, double, rtol=0.0, atol=1e-8)
    np.testing.assert_array_equal(single.index, double.index)


def test_weights_above_one_of_single_rows_do_not_change_the_scores():
    X, y = smooth()
    assert_same(search(), search((X, y), sample_weight=np.full(len(y), 4.0)), rtol=0, atol=1e-8)


def test_data_frames_are_accepted():
    X, y = smooth()
    frame = pd.DataFrame(X, columns=["depth"])
    assert_same(search(), search((frame, pd.Series(y, index=frame.index[::-1]))), rtol=1e-10)


def test_the_result_does_not_depend_on_n_jobs_which_is_restored():
    before = torch.get_num_threads()
    assert_same(search(n_jobs=1), search(n_jobs=2), rtol=1e-6, atol=1e-8)
    assert torch.get_num_threads() == before


# --- repeated rows -------------------------------------------------------------------------------


def repeated_table(n=40, seed=0):
    """Return a table in which most rows occur several times with different targets, shuffled."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    row = rng.permutation(np.repeat(np.arange(n), rng.choice([1, 2, 3], size=n)))
    return X[row], np.sin(2 * X[row, 0]) + 0.3 * rng.normal(size=len(row))


@pytest.mark.parametrize("weighted", [False, True], ids=["repeated", "repeated and weighted"])
@pytest.mark.parametrize("subsample", [25, 500])
@pytest.mark.parametrize("ard", [False, True], ids=["isotropic", "ard"])
def test_scores_of_a_table_with_repeated_rows_are_those_of_its_merged_rows(
    ard, subsample, weighted
):
    X, y = repeated_table()
    rng = np.random.default_rng(1)
    weight = rng.choice([0.0, 0.5, 1.0, 2.0], size=len(y)) if weighted else np.ones(len(y))
    result = search(
        (X, y), ("rbf", "matern12"), ard=ard, subsample=subsample, n_repeats=3, early=False,
        sample_weight=weight if weighted else None,
    )  # fmt: skip
    used = weight > 0.0
    X, y, weight = X[used], y[used], weight[used]
    rows = merged_and_standardised(X, y, weight)
    assert {1.0, 2.0} <= set(rows.c.tolist())
    assert (rows.q > 0.0).any()
    if weighted:
        assert ((rows.c > 1.0) & (rows.q == 0.0)).any()
    # A row that only repeats itself counts once.
    rows = replace(rows, c=torch.where((rows.c > 1.0) & (rows.q == 0.0), 1.0, rows.c))
    for entry in result.entries:
        for r in range(3):
            part = rows.subset(result.index[r, : result.n_train])
            parameters = entry.repeated.parameters[r]
            s = math.exp(parameters[-1]) + part.extra
            K = entry.kernel.evaluate(part.X, parameters[:-1])[0]
            L = torch.linalg.cholesky(K + torch.diag(s / part.c))
            A = torch.cholesky_inverse(L)
            f = Factored(L, A, A @ part.t)
            nll = objectives.nll(f, part, s).value / part.total
            loo = objectives.loo_density(f, part, s).value / part.total
            assert entry.repeated.nll[r] == pytest.approx(nll, abs=1e-8)
            assert entry.repeated.loo[r] == pytest.approx(loo, abs=1e-8)


def merged_and_standardised(X, y, weight):
    """Return the table as the search sees it: unit columns and target, distinct rows in order."""
    data = prepare(X, y, None, weight=weight, device=torch.device("cpu"), dtype=torch.float64)
    # Only that copies are merged is taken from the package; what they are is checked here.
    rows = data.rows
    assert rows.total == pytest.approx(weight.sum())
    assert len(rows) == len(np.unique(X, axis=0))
    mean = np.average(y, weights=weight)
    variance = np.average((y - mean) ** 2, weights=weight)
    squares = float((rows.c * rows.t**2 + rows.q).sum()) * data.scaling.y_scale**2
    assert squares == pytest.approx(weight.sum() * variance)
    return rows


def test_repeated_rows_are_fitted_with_all_their_copies():
    """The fitted parameters are an optimum of the likelihood of all copies."""
    X, y = repeated_table()
    result = search((X, y), ("rbf",), n_repeats=2, early=False)
    rows = merged_and_standardised(X, y, np.ones(len(y)))
    (entry,) = result.entries
    for r in range(2):
        part = rows.subset(result.index[r, : result.n_train])
        problem = Problem(entry.kernel, part, "nll")
        tight = minimise(problem, entry.repeated.parameters[r], steps=300, tolerance=1e-10)
        assert problem(entry.repeated.parameters[r])[0] < tight.value + 1e-4


# --- interruption and progress -------------------------------------------------------------------


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_an_interrupt_ends_the_search_and_its_threads(n_jobs, monkeypatch):
    run, calls = Repetitions.run, []

    def interrupted(self, kernel, settings, first=0):
        calls.append(kernel.label)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run(self, kernel, settings, first)

    monkeypatch.setattr(Repetitions, "run", interrupted)
    threads, alive = torch.get_num_threads(), set(threading.enumerate())
    handlers = list(logging.getLogger("twostagegp").handlers)
    with pytest.raises(KeyboardInterrupt):
        search(kernels=("rbf", "matern12", "matern32"), n_jobs=n_jobs, verbose=1)
    assert calls == ["rbf", "matern12"]
    assert torch.get_num_threads() == threads
    assert set(threading.enumerate()) == alive
    assert logging.getLogger("twostagegp").handlers == handlers


def test_verbose_shows_progress(capsys):
    search(n_repeats=4)
    assert capsys.readouterr().err == ""
    search(n_repeats=4, verbose=1)
    shown = capsys.readouterr().err
    assert "rbf: 4 of 4 repetitions" in shown
    assert "matern12: 4 of 4 repetitions" in shown


def test_an_early_decision_is_announced(caplog):
    with caplog.at_level(logging.INFO, logger="twostagegp"):
        result = search(rough(), selection="nll", n_repeats=40)
    assert f"the ranking is decided after {len(result.index)} repetitions" in caplog.text


# --- pictures ------------------------------------------------------------------------------------


def test_scores_are_drawn_with_the_best_on_top():
    result = search(kernels=("matern12", "rbf", "matern32"))
    ax = result.plot()
    assert [tick.get_text() for tick in ax.get_yticklabels()] == list(result.table.index)
    dots = ax.collections[-1]
    np.testing.assert_allclose(dots.get_offsets()[:, 0], result.table["score"])
    np.testing.assert_allclose(dots.get_offsets()[:, 1], [0, 1, 2])
    colours = [to_hex(colour) for colour in dots.get_facecolors()]
    assert colours == [to_hex(TRUTH), to_hex(MODEL), to_hex(MODEL)]
    assert "rbf of 3 kernels, 6 subsamples" in ax.get_title()
    assert "leave-one-out density" in ax.get_xlabel()


def test_a_failed_kernel_is_listed_in_the_picture():
    result = search(kernels=[Failing(ValueError("no")), "rbf"])
    given = Figure().subplots()
    ax = result.plot(ax=given)
    assert ax is given
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["rbf", "Failing"]
    assert len(ax.collections[-1].get_offsets()) == 1
    assert [text.get_text() for text in ax.texts] == ["could not be fitted"]


def test_the_axis_names_the_score():
    expected = {
        "leave-one-out density": {},
        "leave-one-out error": {"model": "krr"},
        "likelihood": {"selection": "nll"},
        "share": {"selection": "misspecification"},
    }
    for words, options in expected.items():
        label = search(n_repeats=2, **options).plot().get_xlabel()
        assert words in label
        assert not any(other in label for other in expected if other != words)


# --- what cannot be searched ---------------------------------------------------------------------


def with_nan(values, row):
    values = np.array(values)
    values[row] = math.nan
    return values


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernels": "rbf"}, "kernels='rbf': use a non-empty sequence"),
        ({"kernels": ()}, r"kernels=\(\)"),
        ({"kernels": {}}, r"kernels=\{\}"),
        ({"kernels": 3}, "kernels=3"),
        ({"kernels": ("rbf", "cubic")}, "unknown kernel 'cubic'"),
        ({"kernels": ("rbf", 7)}, "not int 7"),
        ({"selection": "aic"}, "selection='aic' is not one of 'loo', 'nll', 'misspecification'"),
        ({"model": "svm"}, "model='svm'"),
        ({"model": "krr", "selection": "nll"}, "kernel ridge has no likelihood"),
        ({"model": "krr", "penalty": [0.1, -1.0]}, r"penalty=\[0.1, -1.0\]"),
        ({"ard": "some"}, "ard='some'"),
        ({"early": "yes"}, "early='yes'"),
        ({"confidence": 1.0}, "confidence=1.0 must lie between 0 and 1"),
        ({"sampling": "sobol"}, "sampling='sobol'"),
        ({"threshold": 0.0}, "threshold=0.0"),
        ({"threshold": math.nan}, "threshold=nan"),
        ({"threshold": True}, "threshold=True must be a positive number"),
        ({"threshold": np.bool_(True)}, "threshold=.*True.* must be a positive number"),
        ({"threshold": math.inf}, "threshold=inf"),
        ({"threshold": "wide"}, "threshold='wide' must be a positive number"),
        ({"n_jobs": 0}, "n_jobs=0"),
        ({"n_jobs": 1.5}, "n_jobs=1.5"),
        ({"n_jobs": "all"}, "n_jobs='all': use a number of threads"),
        ({"n_repeats": 1}, "n_repeats=1 must be a whole number of at least 2"),
        ({"n_repeats": True}, "n_repeats=True"),
        ({"subsample": 5}, "subsample=5 must be a whole number of at least 10"),
        ({"noise_floor": -1.0}, "noise_floor=-1.0"),
        ({"random_state": "seed"}, "random_state='seed'"),
        ({"device": "abacus"}, "device='abacus'"),
        ({"sample_weight": np.full(70, math.inf)}, "sample_weight contains infinity"),
    ],
    ids=str,
)
def test_invalid_parameters_are_named(options, message):
    with pytest.raises(InputError, match=message):
        search(**options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y: (with_nan(X, 3), y), "X contains NaN: 1 of 70 values, the first in row 3"),
        (
            lambda X, y: (pd.DataFrame(X * math.inf, columns=["depth"]), y),
            "the first in row 0, column 'depth'",
        ),
        (lambda X, y: (X, with_nan(y, 5)), "y contains NaN: 1 of 70 values, the first in row 5"),
        (lambda X, y: (X, y * math.inf), "y contains infinity"),
        (lambda X, y: (X, y[:, None]), r"y has shape \(70, 1\), expected \(n,\)"),
        (lambda X, y: (X[:, 0], y), "X must be a table of numbers"),
        (lambda X, y: (X, y[:69]), r"inconsistent numbers of samples: \[70, 69\]"),
        (lambda X, y: (X, ["a"] * 70), "y a column of them"),
        (lambda X, y: (X[:9], y[:9]), "X has 9 distinct rows; at least 10 are needed"),
        (lambda X, y: (np.repeat(X[:7], 10, 0), y), "X has 7 distinct rows"),
        (lambda X, y: (X, np.full(70, 3.0)), "y is constant"),
        (lambda X, y: (np.ones_like(X), y), "every column of X is constant"),
        (lambda X, y: (1e200 * X, y), "column 'x0' reaches"),
    ],
    ids=[
        "nan in X", "infinity in a data frame", "nan in y", "infinite y", "2-d y", "1-d X",
        "unequal lengths", "words", "few rows",
        "few distinct rows", "constant y", "constant X", "huge X",
    ],
)  # fmt: skip
def test_invalid_data_are_named(change, message):
    with pytest.raises(InputError, match=message):
        search(change(*smooth()))
