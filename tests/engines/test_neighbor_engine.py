"""The neighbour engine: with all rows the exact engine, with fewer explicit refits."""

import math
import pickle

import gpytorch
import numpy as np
import pytest
import torch
from neighbor_fits import make_rows

from twostagegp.data.rows import Rows
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.neighbors.engine import IndexStore, Metric, NeighborEngine
from twostagegp.engines.neighbors.index import TreeIndex
from twostagegp.engines.neighbors.local_gp import local_density
from twostagegp.errors import MemoryBudgetError
from twostagegp.kernels import NamedKernel, WrappedKernel, make_kernel

N = 40
NOISE, SCALE, LENGTHSCALES = 0.15, 1.4, [0.7, 1.6]
PARAMETERS = np.log([*LENGTHSCALES, SCALE, NOISE])
NAMES = ["rbf", "matern12", "matern32", "matern52", "laplacian"]
KERNEL = NamedKernel("matern32", 2, ard=True)


@pytest.fixture(params=["plain", "weights"])
def rows(request):
    return make_rows(request.param)


@pytest.fixture
def queries():
    rng = np.random.default_rng(1)
    return torch.as_tensor(rng.normal(size=(13, 2)))


def refit(kernel, parameters, rows, keep, X):
    """Mean and latent variance of a GP on the kept rows."""
    gp = ExactEngine(rows.subset(keep)).condition(kernel, parameters)
    return gp.mean(X), gp.variance(X)


def close(a, b, tolerance=1e-8):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# --- all rows are neighbours ---------------------------------------------------------------------


@pytest.fixture(params=[*NAMES, "rq"])
def both(request, rows):
    """The posteriors of both engines."""
    kernel = NamedKernel(request.param, 2, ard=True)
    theta = kernel.start()
    theta[:2], theta[-1] = PARAMETERS[:2], PARAMETERS[2]
    parameters = np.append(theta, PARAMETERS[-1])
    engines = NeighborEngine(rows, n_neighbors=N), ExactEngine(rows)
    return tuple(engine.condition(kernel, parameters) for engine in engines)


def test_with_all_rows_predictions_are_exact(both, queries):
    near, exact = both
    close(near.mean(queries), exact.mean(queries))
    close(near.variance(queries), exact.variance(queries))
    close(near.covariance(queries), exact.covariance(queries))


def test_with_all_rows_held_out_predictions_are_exact(both):
    near, exact = both[0].heldout(), both[1].heldout()
    close(near.residual, exact.residual)
    close(near.slope, exact.slope)
    close(near.variance, exact.variance)


@pytest.mark.parametrize("use_prior", [True, False])
@pytest.mark.parametrize("objective", ["loo", "heldout"])
def test_with_all_rows_the_objective_and_its_gradient_are_exact(objective, use_prior, both, rows):
    kernel, parameters = both[0].kernel, both[0].parameters
    R = torch.linspace(0.1, 2.0, N, dtype=torch.float64) if objective == "heldout" else None
    engine = NeighborEngine(rows, n_neighbors=N, use_prior=use_prior)
    problem = engine.problem(kernel, objective, R, torch.arange(N), parameters)
    value, gradient = problem(parameters)
    exact = ExactEngine(rows, use_prior=use_prior).problem(kernel, objective, R)
    expected, slope = exact(parameters)
    assert value == pytest.approx(expected, abs=1e-8)
    np.testing.assert_allclose(gradient, slope, atol=1e-8)
    assert problem.evaluations == 1


def test_with_all_rows_before_it_each_rows_density_makes_the_exact_likelihood(both, rows):
    kernel, parameters = both[0].kernel, both[0].parameters
    near = torch.arange(N, dtype=torch.int32).repeat(N, 1).tril(-1)
    near[torch.ones(N, N).triu().bool()] = -1
    value, gradient = local_density(kernel, parameters, rows, torch.arange(N), near, "nll")
    exact = ExactEngine(rows, use_prior=False).problem(kernel, "nll")
    expected, slope = exact(parameters)
    assert value == pytest.approx(expected * rows.total, rel=1e-10)
    np.testing.assert_allclose(gradient, slope * rows.total, atol=1e-8)


def test_more_neighbours_than_rows_are_all_rows(rows, queries):
    gp = NeighborEngine(rows, n_neighbors=10 * N).condition(KERNEL, PARAMETERS)
    exact = ExactEngine(rows).condition(KERNEL, PARAMETERS)
    close(gp.mean(queries), exact.mean(queries))
    close(gp.heldout().variance, exact.heldout().variance)


def test_a_single_row_is_held_out_from_the_prior():
    rows = make_rows().subset(np.array([3]))
    held = NeighborEngine(rows).condition(KERNEL, PARAMETERS).heldout()
    close(held.residual, rows.t)
    close(held.variance, torch.tensor([SCALE + NOISE], dtype=torch.float64))


def test_a_wrapped_kernel_with_all_rows_is_exact(rows, queries):
    kernel = WrappedKernel(gpytorch.kernels.RQKernel(), 2)
    parameters = np.append(kernel.start(), math.log(NOISE))
    near = NeighborEngine(rows, n_neighbors=N).condition(kernel, parameters)
    exact = ExactEngine(rows).condition(kernel, parameters)
    close(near.mean(queries), exact.mean(queries))
    close(near.covariance(queries), exact.covariance(queries).detach())
    close(near.heldout().residual, exact.heldout().residual)


# --- groups --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "weights"])
def test_held_out_groups_equal_refits_without_the_group(kind):
    rows = make_rows(kind, grouped=True)
    held = NeighborEngine(rows, n_neighbors=N).condition(KERNEL, PARAMETERS).heldout()
    for group in rows.blocks():
        others = np.delete(np.arange(N), group)
        mean, variance = refit(KERNEL, PARAMETERS, rows, others, rows.X[group])
        close(held.residual[group], rows.t[group] - mean)
        close(held.variance[group], variance + NOISE + rows.extra[group])
    close(held.slope, torch.ones(N).double())


@pytest.mark.parametrize("kind", ["plain", "weights"])
def test_the_heldout_objective_of_groups_is_exact_with_all_rows(kind):
    rows = make_rows(kind, grouped=True)
    R = torch.linspace(0.1, 2.0, N, dtype=torch.float64)
    engine = NeighborEngine(rows, n_neighbors=N)
    value, gradient = engine.problem(KERNEL, "heldout", R, torch.arange(N), PARAMETERS)(PARAMETERS)
    expected, slope = ExactEngine(rows).problem(KERNEL, "heldout", R)(PARAMETERS)
    assert value == pytest.approx(expected, abs=1e-8)
    np.testing.assert_allclose(gradient, slope, atol=1e-8)


def test_neighbours_are_never_in_the_group_of_the_row():
    rows = make_rows(grouped=True)
    near = NeighborEngine(rows, n_neighbors=9).near_rows(KERNEL, PARAMETERS[:-1], torch.arange(N))
    assert (near >= 0).all()
    assert (rows.groups[near.long()] != rows.groups[:, None]).all()


# --- fewer neighbours ----------------------------------------------------------------------------


def nearest(rows, kernel, i, k):
    """The k nearest other rows in the kernel's own metric."""
    difference = (rows.X - rows.X[i]).abs().numpy() / LENGTHSCALES
    distance = (difference**kernel.metric).sum(1)
    distance[i] = np.inf
    return np.argsort(distance)[:k]


@pytest.mark.parametrize("name", NAMES)
def test_held_out_rows_equal_refits_on_their_nearest_others(name):
    rows, kernel = make_rows(), NamedKernel(name, 2, ard=True)
    index = torch.tensor([7, 0, 31, 12])
    held = NeighborEngine(rows, n_neighbors=6).condition(kernel, PARAMETERS).heldout(index)
    for at, i in enumerate(index.tolist()):
        near = nearest(rows, kernel, i, 6)
        mean, variance = refit(kernel, PARAMETERS, rows, near, rows.X[i : i + 1])
        close(held.residual[at : at + 1], rows.t[i] - mean)
        close(held.variance[at : at + 1], variance + NOISE)


def test_held_out_copies_equal_refits_with_the_other_copies_of_the_row():
    rows = make_rows("weights")
    held = NeighborEngine(rows, n_neighbors=6).condition(KERNEL, PARAMETERS).heldout()
    for i in torch.nonzero(rows.c > 1.0)[:, 0].tolist():
        near = np.append(nearest(rows, KERNEL, i, 6), i)
        twins = rows.subset(near)
        twins.c[-1] -= 1.0
        gp = ExactEngine(twins).condition(KERNEL, PARAMETERS)
        x, s = rows.X[i : i + 1], NOISE + rows.extra[i]
        close(held.variance[i], gp.variance(x)[0] + s)
        for deviation in (0.0, 0.3):
            twins.t[-1] = rows.t[i] - deviation / (rows.c[i] - 1.0)
            mean = ExactEngine(twins).condition(KERNEL, PARAMETERS).mean(x)[0]
            residual = held.residual[i] + held.slope[i] * deviation
            close(residual, rows.t[i] + deviation - mean)


def test_heldout_is_that_of_all_rows_in_order(rows):
    gp = NeighborEngine(rows, n_neighbors=6).condition(KERNEL, PARAMETERS)
    some = gp.heldout(torch.tensor([5, 2]))
    assert torch.equal(gp.heldout().residual[[5, 2]], some.residual)
    assert torch.equal(gp.heldout().variance[[5, 2]], some.variance)


def test_a_problem_over_some_rows_is_the_mean_density_of_them(rows):
    engine = NeighborEngine(rows, n_neighbors=6, use_prior=False)
    batch = torch.tensor([3, 14, 8, 30, 21])
    value, _ = engine.problem(KERNEL, "loo", None, batch, PARAMETERS)(PARAMETERS)
    held, some = engine.condition(KERNEL, PARAMETERS).heldout(batch), rows.subset(batch)
    squares = held.sum_of_squares(some) / held.variance
    total = 0.5 * (squares + some.c * (2.0 * math.pi * held.variance).log()).sum()
    assert value == pytest.approx(float(total / some.c.sum()), rel=1e-12)


def test_a_problem_keeps_its_neighbours(rows, monkeypatch):
    engine = NeighborEngine(rows, n_neighbors=6)
    problem = engine.problem(KERNEL, "loo", None, torch.arange(5), PARAMETERS)
    monkeypatch.setattr(TreeIndex, "query", None)
    moved = PARAMETERS + np.array([0.5, -0.5, 0.0, 0.0])
    step = 1e-5 * np.eye(4)
    slopes = [(problem(moved + h)[0] - problem(moved - h)[0]) / 2e-5 for h in step]
    np.testing.assert_allclose(problem(moved)[1], slopes, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", [*NAMES, "rq"])
@pytest.mark.parametrize("place", [1e3, 1e6, 1e12])
def test_far_from_all_rows_the_prior_returns(place, name):
    kernel = NamedKernel(name, 2)
    parameters = np.append(kernel.start(), math.log(NOISE))
    parameters[-2] = math.log(SCALE)
    gp = NeighborEngine(make_rows(), n_neighbors=8).condition(kernel, parameters)
    far = torch.full((1, 2), place, dtype=torch.float64)
    tolerance = 1e-4 if name == "rq" else 1e-12  # a heavy tail
    assert float(gp.mean(far)) == pytest.approx(0.0, abs=tolerance)
    assert float(gp.variance(far)) == pytest.approx(SCALE, rel=tolerance)


def test_no_queries_give_no_predictions():
    gp = NeighborEngine(make_rows()).condition(KERNEL, PARAMETERS)
    nothing = torch.zeros(0, 2, dtype=torch.float64)
    assert gp.mean(nothing).shape == gp.variance(nothing).shape == (0,)


def test_prediction_does_not_depend_on_the_other_points(queries):
    gp = NeighborEngine(make_rows(), n_neighbors=6).condition(KERNEL, PARAMETERS)
    parts = torch.cat([gp.mean(part) for part in torch.split(queries, 4)])
    assert torch.equal(parts, gp.mean(queries))


# --- joint covariance ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("k", [1, 6])
def test_covariance_is_symmetric_and_positive_with_the_variances_on_its_diagonal(name, k, queries):
    kernel = NamedKernel(name, 2, ard=True)
    gp = NeighborEngine(make_rows("weights"), n_neighbors=k).condition(kernel, PARAMETERS)
    C = gp.covariance(queries)
    close(C, C.T, 1e-14)
    assert torch.equal(C.diagonal(), gp.variance(queries))
    assert torch.linalg.eigvalsh(C).min() > -1e-12


@pytest.mark.parametrize("noise", [1e-8, 1e-14])
def test_correlations_are_at_most_one_with_almost_no_noise(noise):
    X = torch.linspace(0, 1, 200, dtype=torch.float64)[:, None]
    one = torch.ones(200, dtype=torch.float64)
    engine = NeighborEngine(Rows(X, X[:, 0], one, 0 * one, 0 * one), n_neighbors=5)
    gp = engine.condition(NamedKernel("rbf", 1), np.log([0.5, 1.0, noise]))
    C, v = gp.covariance(X), gp.variance(X)
    assert (C.abs() <= (v[:, None] * v).sqrt() + 1e-12).all()


def test_a_covariance_of_too_many_rows_raises(queries):
    gp = NeighborEngine(make_rows(), n_neighbors=6).condition(KERNEL, PARAMETERS)
    union = len(torch.unique(gp.engine.store.near(gp.metric, queries, 6)))
    gp.joint_rows = union
    gp.covariance(queries)
    gp.joint_rows = union - 1
    with pytest.raises(MemoryBudgetError, match=f"13 points depends on {union} training rows"):
        gp.covariance(queries)


# --- metrics and their indexes -------------------------------------------------------------------


def test_a_common_factor_of_the_lengthscales_does_not_change_the_metric():
    def metric(scales, name="rbf", shape=None):
        kernel = NamedKernel(name, 2, ard=len(scales) == 2, shape=shape)
        return Metric.of(kernel, np.log([*scales, SCALE]), 2)

    assert metric([0.7, 2.1]) == metric([0.1, 0.3]) == metric([0.5], shape=np.array([1.0, 3.0]))
    assert metric([0.7]) == metric([3.0]) == metric([2.0, 2.0], "matern12")
    assert metric([0.7, 2.1]).inverse == (1.0, pytest.approx(1.0 / 3.0))
    others = [metric([0.7, 2.2]), metric([0.7, 2.1], "laplacian"), metric([1.0])]
    assert metric([0.7, 2.1]) not in others


def test_the_change_of_a_metric_is_that_of_the_ratios():
    def metric(scales):
        return Metric.of(KERNEL, np.log([*scales, SCALE]), 2)

    assert metric([0.7, 2.1]).change(metric([0.1, 0.3])) == pytest.approx(0.0, abs=1e-9)
    assert metric([0.7, 2.1]).change(metric([0.7, 1.4])) == pytest.approx(math.log(1.5))
    assert metric([0.1, 1.0]).change(metric([1.0, 0.1])) == pytest.approx(2.0 * math.log(10.0))
    assert metric([0.7, 1.4]).change(metric([0.7, 2.1])) == pytest.approx(math.log(1.5))


def test_without_lengthscales_all_columns_count_equally():
    kernel = make_kernel(gpytorch.kernels.LinearKernel(), 3)
    assert Metric.of(kernel, kernel.start(), 3) == Metric((1.0, 1.0, 1.0), manhattan=False)


def test_the_same_points_are_searched_once(queries, searches):
    engine = NeighborEngine(make_rows(), n_neighbors=6)
    gp = engine.condition(KERNEL, PARAMETERS)
    gp.mean(queries), gp.variance(queries), gp.covariance(queries)
    scaled = PARAMETERS + np.log([2.0, 2.0, 1.0, 1.0])
    engine.with_noise_floor(1e-3).condition(NamedKernel("rbf", 2, ard=True), scaled).mean(queries)
    assert len(searches) == 1


def test_other_points_another_metric_or_another_size_start_a_new_search(queries, searches):
    engine = NeighborEngine(make_rows(), n_neighbors=6)
    gp = engine.condition(KERNEL, PARAMETERS)
    mean = gp.mean(queries)
    assert torch.equal(gp.mean(queries.clone()), mean)
    assert len(searches) == 2
    gp.mean(queries)
    before = len(searches)
    engine.condition(NamedKernel("laplacian", 2, ard=True), PARAMETERS).mean(queries)
    engine.store.near(gp.metric, queries, 7)
    assert len(searches) == before + 2


def test_alternating_metrics_on_the_same_points_are_each_searched_once(queries, searches):
    engine = NeighborEngine(make_rows(), n_neighbors=6)
    for _ in range(3):
        for name in ("rbf", "laplacian"):
            engine.condition(NamedKernel(name, 2, ard=True), PARAMETERS).mean(queries)
    assert len(searches) == 2


def test_a_store_keeps_the_indexes_that_were_used_last():
    store = IndexStore(make_rows())
    metrics = [Metric((1.0, 0.1 * i), manhattan=False) for i in range(IndexStore.kept + 2)]
    built = []
    for metric in metrics:
        built.append(store.index(metric))
        assert store.index(metrics[0]) is built[0]
    for i in (0, *range(3, len(metrics))):
        assert store.index(metrics[i]) is built[i]
    for i in (1, 2):
        assert store.index(metrics[i]) is not built[i]


def test_rows_whose_neighbours_are_known_are_not_searched_again(monkeypatch):
    asked = []
    search = TreeIndex.query
    monkeypatch.setattr(
        TreeIndex, "query", lambda self, X, *rest: asked.append(len(X)) or search(self, X, *rest)
    )
    rows, metric = make_rows(), Metric((1.0, 0.5), manhattan=False)
    store, fresh = IndexStore(rows), IndexStore(rows)
    some, more = torch.tensor([7, 3, 3, 20]), torch.tensor([3, 9, 20, 1])
    store.near_rows(metric, some, 5)
    found = store.near_rows(metric, more, 5)
    assert asked == [3, 2]
    assert torch.equal(found, fresh.near_rows(metric, more, 5))
    assert torch.equal(store.near_rows(metric, some, 5), fresh.near_rows(metric, some, 5))
    assert store.near_rows(metric, more, 4).shape == (4, 4)


def test_a_store_keeps_the_neighbours_that_were_used_last(monkeypatch):
    asked = []
    search = TreeIndex.query
    monkeypatch.setattr(
        TreeIndex, "query", lambda self, X, *rest: asked.append(len(X)) or search(self, X, *rest)
    )
    monkeypatch.setattr(IndexStore, "kept_rows", 25)
    store = IndexStore(make_rows())
    metrics = [Metric((1.0, 0.1 * i), manhattan=False) for i in range(3)]
    for i in (0, 1, 2, 1, 0):  # neighbours of two metrics fit into the store
        store.near_rows(metrics[i], torch.arange(10), 5)
    assert asked == [10, 10, 10, 10]
    store.near_rows(metrics[0], torch.arange(40), 5)  # these are kept, and no others
    store.near_rows(metrics[0], torch.arange(40), 5)
    store.near_rows(metrics[1], torch.arange(10), 5)
    assert asked == [10, 10, 10, 10, 30, 10]


def test_a_subset_searches_its_own_rows(queries):
    engine = NeighborEngine(make_rows(), n_neighbors=6, noise_floor=1e-3, use_prior=False)
    engine.condition(KERNEL, PARAMETERS).mean(queries)
    part = engine.subset(np.arange(0, N, 2))
    assert (part.n_neighbors, part.noise_floor, part.use_prior) == (6, 1e-3, False)
    alone = NeighborEngine(part.rows, n_neighbors=6)
    assert torch.equal(
        part.condition(KERNEL, PARAMETERS).mean(queries),
        alone.condition(KERNEL, PARAMETERS).mean(queries),
    )


@pytest.mark.parametrize("used", [False, True])
def test_a_pickled_posterior_predicts_the_same(used, queries):
    gp = NeighborEngine(make_rows("weights"), n_neighbors=6).condition(KERNEL, PARAMETERS)
    if used:
        gp.covariance(queries)
    again = pickle.loads(pickle.dumps(gp))
    assert torch.equal(again.mean(queries), gp.mean(queries))
    assert torch.equal(again.covariance(queries), gp.covariance(queries))
    assert torch.equal(again.heldout().variance, gp.heldout().variance)
