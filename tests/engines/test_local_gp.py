"""Many small GPs at once against one dense solve after the other."""

import math
from dataclasses import replace

import gpytorch
import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm

from twostagegp.data.rows import Rows
from twostagegp.engines.neighbors.compiled import lanes, local
from twostagegp.engines.neighbors.local_gp import (
    LocalSizes,
    is_compiled,
    local_density,
    local_predict,
    one_factor_predict,
    torch_density,
    torch_predict,
)
from twostagegp.errors import NumericalError
from twostagegp.kernels import NamedKernel, WrappedKernel, make_kernel
from twostagegp.kernels.catalogue import CATALOGUE

D = 5
NOISE = 0.2
SHAPE = np.array([0.5, 1.0, 2.0, 1.5, 0.8])


def wrapped():
    kernels = gpytorch.kernels
    base = kernels.ScaleKernel(kernels.MaternKernel(nu=2.5, ard_num_dims=D))
    return make_kernel(base + kernels.ScaleKernel(kernels.LinearKernel()), D)


def kernel_of(name, form="ard"):
    if name == "gpytorch":
        return wrapped()
    return NamedKernel(name, D, ard=form == "ard", shape=SHAPE if form == "shape" else None)


def parameters_of(kernel, noise=NOISE):
    theta = kernel.start() + 0.1 * np.sin(np.arange(kernel.size))
    return np.append(theta, math.log(noise))


COMPILED = [name for name, form in CATALOGUE.items() if form.compiled is not None]
ALL = [*COMPILED, "rq", "gpytorch"]
FORMS = [(name, form) for name in COMPILED for form in ("ard", "isotropic", "shape")]
CASES = [*FORMS, ("rq", "ard"), ("rq", "isotropic"), ("gpytorch", "")]


class Table:
    """Rows with several copies, weights below one and known noise; neighbours, some missing."""

    def __init__(self, n=40, m=11, k=7, seed=0):
        rng = np.random.default_rng(seed)
        weights = rng.choice([0.4, 1.0, 2.0, 3.0], size=n)
        self.copies = [rng.normal(size=max(1, int(c))) for c in weights]
        self.rows = Rows(
            X=torch.as_tensor(rng.normal(size=(n, D))),
            t=torch.as_tensor([y.mean() for y in self.copies]),
            c=torch.as_tensor(weights),
            q=torch.as_tensor([y.var() * len(y) for y in self.copies]),
            extra=torch.as_tensor(rng.choice([0.0, 0.3], size=n)),
        )
        self.batch = torch.as_tensor(rng.permutation(n)[:m])
        near = [rng.permutation(np.delete(np.arange(n), i))[:k] for i in self.batch.tolist()]
        self.near = torch.as_tensor(np.array(near), dtype=torch.int32)
        self.near[m // 8, -2:] = -1
        self.near[m - 1, 0] = -1
        self.points = torch.as_tensor(rng.normal(size=(m, D)))
        self.R = torch.as_tensor(rng.uniform(0.1, 3.0, size=m))


@pytest.fixture
def table():
    return Table()


@pytest.fixture
def threads():
    """Sets the number of torch's threads, for this test only."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def condition(kernel, theta, X, t, noises, point):
    """Mean and latent variance of one point, by the textbook formula."""

    def k(A, B):
        return kernel.cross(A, B, theta).detach().numpy()

    K, kx = k(X, X) + np.diag(noises), k(X, point)[:, 0]
    return kx @ np.linalg.solve(K, t), k(point, point)[0, 0] - kx @ np.linalg.solve(K, kx)


def loop(kernel, parameters, rows, near, points):
    """Means and variances, one point after the other."""
    noises = ((math.exp(parameters[-1]) + rows.extra) / rows.c).numpy()
    results = []
    for i, p in zip(near.long().numpy(), points, strict=True):
        i = i[i >= 0]
        results.append(
            condition(kernel, parameters[:-1], rows.X[i], rows.t[i].numpy(), noises[i], p[None])
        )
    return np.array(results).T


def assert_same(result, expected, tolerance=1e-10):
    for a, b in zip(result, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# --- predictions ---------------------------------------------------------------------------------


def test_named_kernels_are_compiled_and_others_are_not(table):
    assert all(is_compiled(kernel_of(name), table.rows) for name in COMPILED)
    assert not any(is_compiled(kernel_of(name), table.rows) for name in ("rq", "gpytorch"))


@pytest.mark.parametrize(("name", "form"), CASES)
def test_prediction_equals_a_dense_solve_for_each_point(name, form, table):
    kernel = kernel_of(name, form)
    parameters = parameters_of(kernel)
    expected = loop(kernel, parameters, table.rows, table.near, table.points)
    assert_same(local_predict(kernel, parameters, table.rows, table.near, table.points), expected)


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_and_torch_predictions_are_equal(name, table):
    kernel = kernel_of(name)
    arguments = kernel, parameters_of(kernel), table.rows, table.near, table.points
    assert_same(local_predict(*arguments), torch_predict(*arguments))


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 9, 39])
@pytest.mark.parametrize("m", [1, 7, 8, 9, 17])
def test_any_number_of_points_and_neighbours_is_accepted(m, k):
    table = Table(m=m, k=39)
    near, kernel = table.near[:, :k].contiguous(), kernel_of("matern32")
    parameters = parameters_of(kernel)
    expected = loop(kernel, parameters, table.rows, near, table.points)
    assert_same(local_predict(kernel, parameters, table.rows, near, table.points), expected)


@pytest.mark.parametrize("d", [1, 3, 4])
def test_any_number_of_columns_is_accepted(d, table):
    rows = replace(table.rows, X=table.rows.X[:, :d])
    kernel, points = NamedKernel("matern52", d, ard=True), table.points[:, :d]
    parameters = parameters_of(kernel)
    expected = loop(kernel, parameters, rows, table.near, points)
    assert_same(local_predict(kernel, parameters, rows, table.near, points), expected)


@pytest.mark.parametrize("name", ALL)
def test_missing_neighbours_give_a_smaller_system(name, table):
    kernel, near = kernel_of(name), table.near[2:6]
    parameters, points = parameters_of(kernel), table.points[2:6]
    fewer = torch.tensor([0, 2, 3, 6])
    holes = near.clone()
    holes[:, [1, 4, 5]] = -1
    assert_same(
        local_predict(kernel, parameters, table.rows, holes, points),
        local_predict(kernel, parameters, table.rows, near[:, fewer], points),
        1e-13,
    )


@pytest.mark.parametrize("name", ALL)
def test_without_any_neighbour_the_prior_is_predicted(name, table):
    kernel = kernel_of(name)
    parameters = parameters_of(kernel)
    nobody = torch.full((11, 7), -1, dtype=torch.int32)
    mean, variance = local_predict(kernel, parameters, table.rows, nobody, table.points)
    assert (mean == 0.0).all()
    torch.testing.assert_close(variance, kernel.diagonal(table.points, parameters[:-1]))


@pytest.mark.parametrize("name", ALL)
def test_equal_neighbours_without_noise_get_jitter(name, table):
    rows = table.rows
    rows.X[1:4] = rows.X[0]
    rows.extra.zero_()
    near = torch.arange(7, dtype=torch.int32).repeat(3, 1)
    near[0] += 10
    kernel, points = kernel_of(name), table.points[:3]
    parameters = parameters_of(kernel, noise=1e-30)
    mean, variance = local_predict(kernel, parameters, rows, near, points)
    assert mean.isfinite().all()
    assert (variance >= 0.0).all()
    assert (variance <= kernel.diagonal(points, parameters[:-1])).all()


@pytest.mark.parametrize("name", ALL)
def test_a_point_that_fails_does_not_change_the_others(name, table):
    rows = table.rows
    rows.X[1:4] = rows.X[0]
    rows.extra.zero_()
    near, kernel = table.near.clone().clamp(min=10), kernel_of(name)
    near[near < 12] = -1
    near[4] = torch.arange(7)
    parameters = parameters_of(kernel, noise=1e-30)
    others = torch.arange(11) != 4
    everyone = local_predict(kernel, parameters, rows, near, table.points)
    assert_same(
        [v[others] for v in everyone],
        local_predict(kernel, parameters, rows, near[others], table.points[others]),
        1e-12,
    )


@pytest.mark.parametrize(("name", "form"), [("rbf", "ard"), ("rq", "isotropic"), ("gpytorch", "")])
def test_one_factor_per_point_equals_a_dense_solve(name, form, table):
    # GPUs compute this way; other devices can as well.
    kernel, complete = kernel_of(name, form), (table.near >= 0).all(1)
    near, points = table.near[complete], table.points[complete]
    arguments = kernel, parameters_of(kernel), table.rows, near, points
    assert_same(one_factor_predict(*arguments), loop(*arguments))


@pytest.mark.parametrize("name", ["rbf", "gpytorch"])
def test_a_factor_that_fails_is_computed_again_with_jitter(name, table):
    rows = table.rows
    rows.X[1:4] = rows.X[0]
    rows.extra.zero_()
    near = torch.arange(7, dtype=torch.int32).repeat(3, 1)
    near[[0, 2]] += 10
    kernel = kernel_of(name)
    arguments = kernel, parameters_of(kernel, noise=1e-30), rows, near, table.points[:3]
    assert one_factor_predict(*arguments)[1].isnan().tolist() == [False, True, False]
    fast = torch_predict(*arguments, one_factor=True)
    safe = torch_predict(*arguments, one_factor=False)
    for one, other in zip(fast, safe, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one[[0, 2]], other[[0, 2]], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(one[1], other[1])


def test_a_block_holds_as_many_points_as_its_entries_allow():
    sizes, cpu = LocalSizes(block_entries=640, graph_entries=128), torch.device("cpu")
    assert sizes.block(kernel_of("rbf"), cpu, 7) == 10  # of (7 + 1)^2 entries each
    assert sizes.block(kernel_of("gpytorch"), cpu, 7) == 2
    assert sizes.block(kernel_of("rbf"), cpu, 100) == 1


def test_variance_is_never_negative(table):
    kernel, rows = kernel_of("rbf", "isotropic"), table.rows
    rows.extra.zero_()
    near = torch.arange(7, dtype=torch.int32).repeat(7, 1)
    parameters = np.log([2.0, 1.0, 1e-18])
    assert (local_predict(kernel, parameters, rows, near, rows.X[:7])[1] >= 0.0).all()


@pytest.mark.parametrize("name", ALL)
def test_no_points_give_no_predictions(name, table):
    kernel = kernel_of(name)
    nothing, nobody = table.points[:0], table.near[:0]
    mean, variance = local_predict(kernel, parameters_of(kernel), table.rows, nobody, nothing)
    assert mean.shape == variance.shape == (0,)


def test_predictions_do_not_depend_on_slices_and_threads(threads):
    table, kernel = Table(n=100, m=90), kernel_of("matern52")
    arguments = kernel, parameters_of(kernel), table.rows, table.near, table.points
    mean, variance = local_predict(*arguments)
    threads(2)
    for size in (1, 5, 64):
        again = local_predict(*arguments, LocalSizes(slice_points=size))
        assert torch.equal(again[0], mean)
        assert torch.equal(again[1], variance)


@pytest.mark.parametrize("name", COMPILED)
def test_few_points_give_the_same_numbers_as_many(name):
    table, kernel = Table(n=100, m=90), kernel_of(name)
    near = table.near.clone()
    near[3, -2:] = -1  # missing neighbours
    arguments = kernel, parameters_of(kernel), table.rows
    mean, variance = local_predict(*arguments, near, table.points)
    for k in range(6):
        assert 4 * near[k].numel() < len(table.rows)
        own = local_predict(*arguments, near[k : k + 1], table.points[k : k + 1])
        assert torch.equal(own[0], mean[k : k + 1])
        assert torch.equal(own[1], variance[k : k + 1])


def test_predictions_do_not_depend_on_the_block_size(table):
    kernel = kernel_of("rq")
    arguments = kernel, parameters_of(kernel), table.rows, table.near, table.points
    expected = local_predict(*arguments)
    sizes = LocalSizes(block_entries=3 * 64)
    assert_same(local_predict(*arguments, sizes), expected, 1e-13)


def test_a_gpytorch_kernel_is_called_once_per_block(table, module_calls):
    kernel = wrapped()
    assert kernel.takes_batches
    for size in (11, 4):
        sizes = LocalSizes(graph_entries=size * 64)
        blocks = [(11, 8, D)] if size == 11 else [(4, 8, D), (4, 8, D), (3, 8, D)]
        module_calls.clear()
        local_predict(kernel, parameters_of(kernel), table.rows, table.near, table.points, sizes)
        assert module_calls == blocks
        module_calls.clear()
        density(kernel, parameters_of(kernel), table, sizes=sizes)
        assert module_calls == blocks


@pytest.mark.parametrize("objective", local.MODES)
def test_a_block_of_a_gpytorch_kernel_equals_its_points_one_by_one(table, objective):
    class OneByOne(WrappedKernel):
        takes_batches = False

    together = wrapped()
    alone = OneByOne(together.module, D)
    parameters = parameters_of(together)
    arguments = parameters, table.rows, table.near, table.points
    assert_same(local_predict(together, *arguments), local_predict(alone, *arguments), 1e-10)
    value, gradient = density(together, parameters, table, objective)
    expected, slope = density(alone, parameters, table, objective)
    assert value == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient, slope, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["rq", "gpytorch"])
def test_an_unknown_device_gets_blocks_of_a_cpu(name):
    meta, cpu = (LocalSizes().block(kernel_of(name), torch.device(x), 50) for x in ("meta", "cpu"))
    assert meta == cpu > 100


# --- densities -----------------------------------------------------------------------------------


def held_out(kernel, parameters, table, i, near):
    """(value, mean, variance) of every copy of row i, from its neighbours and its other copies."""
    rows, s = table.rows, math.exp(parameters[-1]) + table.rows.extra.numpy()
    near = near[near >= 0]
    for j, y in enumerate(table.copies[i]):
        twins = np.delete(table.copies[i], j)
        X = torch.cat([rows.X[near], rows.X[i].expand(len(twins), -1)])
        t = np.append(rows.t[near].numpy(), twins)
        noises = np.append(s[near] / rows.c[near].numpy(), np.full(len(twins), s[i]))
        mean, variance = condition(kernel, parameters[:-1], X, t, noises, rows.X[i][None])
        yield y, mean, variance + s[i]


def likelihood(kernel, parameters, table, i, near):
    """Log density of all copies of row i at once, from its neighbours."""
    rows, noise = table.rows, math.exp(parameters[-1])
    near = near[near >= 0]
    noises = ((noise + rows.extra) / rows.c).numpy()[near]
    mean, variance = condition(
        kernel, parameters[:-1], rows.X[near], rows.t[near].numpy(), noises, rows.X[i][None]
    )
    y, c, s = table.copies[i], float(rows.c[i]), noise + float(rows.extra[i])
    if c < 1.0:  # the factor N(y; f, s)^c is N(y; f, s/c) times a constant in f
        constant = c * norm(0, math.sqrt(s)).logpdf(0) - norm(0, math.sqrt(s / c)).logpdf(0)
        return norm(mean, math.sqrt(variance + s / c)).logpdf(y[0]) + constant
    covariance = variance + s * np.eye(len(y))
    return multivariate_normal(np.full(len(y), mean), covariance).logpdf(y)


def plain_density(kernel, parameters, table, objective):
    total = 0.0
    for i, near, R in zip(table.batch.tolist(), table.near.long().numpy(), table.R, strict=True):
        if objective == "nll":
            total -= likelihood(kernel, parameters, table, i, near)
            continue
        c = float(table.rows.c[i])
        for y, mean, variance in held_out(kernel, parameters, table, i, near):
            if objective == "heldout":  # each copy has its share of the squares
                constant = 0.5 * math.log(2.0 * math.pi * variance)
                total += min(c, 1.0) * constant + 0.5 * float(R) / max(c, 1.0) / variance
            else:
                total -= min(c, 1.0) * norm(mean, math.sqrt(variance)).logpdf(y)
    return total


def density(kernel, parameters, table, objective="loo", of=local_density, **options):
    R = table.R if objective == "heldout" else None
    return of(kernel, parameters, table.rows, table.batch, table.near, objective, R, **options)


def finite_differences(of, x, step=1e-5):
    steps = step * np.eye(len(x))
    return np.array([(of(x + h) - of(x - h)) / (2.0 * step) for h in steps])


each_objective = pytest.mark.parametrize("objective", local.MODES)


@each_objective
@pytest.mark.parametrize(("name", "form"), CASES)
def test_density_equals_a_plain_loop_over_copies(name, form, objective, table):
    kernel = kernel_of(name, form)
    parameters = parameters_of(kernel)
    value, _ = density(kernel, parameters, table, objective)
    expected = plain_density(kernel, parameters, table, objective)
    assert value == pytest.approx(expected, rel=1e-10)


@each_objective
@pytest.mark.parametrize(("name", "form"), CASES)
def test_gradient_equals_finite_differences(name, form, objective, table):
    kernel = kernel_of(name, form)
    parameters = parameters_of(kernel)
    _, gradient = density(kernel, parameters, table, objective)
    expected = finite_differences(lambda p: density(kernel, p, table, objective)[0], parameters)
    assert gradient.shape == parameters.shape
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6 * abs(expected).max())


@each_objective
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_compiled_and_torch_densities_are_equal(name, form, objective, table):
    kernel = kernel_of(name, form)
    arguments = kernel, parameters_of(kernel), table, objective
    value, gradient = density(*arguments)
    expected, slope = density(*arguments, of=torch_density)
    assert value == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient, slope, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", COMPILED)
def test_gradient_is_finite_if_neighbours_are_equal(name, table):
    table.rows.X[table.near[0, 1].long()] = table.rows.X[table.near[0, 0].long()]
    table.rows.X[table.near[0, 2].long()] = table.rows.X[table.batch[0]]
    kernel = kernel_of(name)
    parameters = parameters_of(kernel)
    _, gradient = density(kernel, parameters, table)
    expected = finite_differences(lambda p: density(kernel, p, table)[0], parameters)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6 * abs(expected).max())


@each_objective
def test_the_sum_is_the_same_to_the_last_bit_for_any_threads(objective, threads):
    table, kernel = Table(n=700, m=600, k=5), kernel_of("matern32")
    results = []
    for count in (1, 2, 2):
        threads(count)
        results.append(density(kernel, parameters_of(kernel), table, objective))
    for value, gradient in results[1:]:
        assert value == results[0][0]
        assert np.array_equal(gradient, results[0][1])


@pytest.mark.parametrize("name", ["rbf", "gpytorch"])
def test_density_is_the_sum_over_its_rows(name, table):
    kernel = kernel_of(name)
    parameters = parameters_of(kernel)
    parts = [
        local_density(kernel, parameters, table.rows, table.batch[i], table.near[i])
        for i in (slice(0, 4), slice(4, 11))
    ]
    value, gradient = density(kernel, parameters, table)
    assert value == pytest.approx(parts[0][0] + parts[1][0], rel=1e-12)
    np.testing.assert_allclose(gradient, parts[0][1] + parts[1][1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("grouped", [False, True], ids=["weight one", "groups"])
@pytest.mark.parametrize("name", ["rbf", "rq", "gpytorch"])
def test_density_equals_that_of_all_copies_if_a_row_is_left_out_whole(name, grouped, table):
    kernel, n = kernel_of(name), len(table.rows)
    c = torch.full((n,), 3.0 if grouped else 1.0, dtype=torch.float64)
    q = torch.linspace(0.1, 2.0, n, dtype=torch.float64)  # of copies that differ
    rows = replace(table.rows, c=c, q=q, groups=torch.arange(n) if grouped else None)
    parameters, own = parameters_of(kernel), table.batch
    mean, variance = local_predict(kernel, parameters, rows, table.near, rows.X[own])
    V = variance + NOISE + rows.extra[own]
    Q = c[own] * (rows.t[own] - mean).square() + q[own]
    expected = 0.5 * (Q / V + c[own] * (V.log() + math.log(2 * math.pi))).sum()
    value, _ = local_density(kernel, parameters, rows, own, table.near)
    assert value == pytest.approx(float(expected), rel=1e-10)


def test_density_raises_if_the_matrix_cannot_be_factorised(table):
    rows, kernel = table.rows, kernel_of("rbf")
    rows.X[1:8] = rows.X[0]
    rows.extra.zero_()
    near = torch.arange(1, 8, dtype=torch.int32)[None]
    with pytest.raises(NumericalError, match="not positive definite"):
        local_density(kernel, parameters_of(kernel, 1e-30), rows, torch.tensor([20]), near)


# --- the exponential -----------------------------------------------------------------------------


def exponential(x):
    """exp(-x) as the compiled loops compute it: many values at once."""
    return covariances(x, "laplacian")


def covariances(x, name):
    """Covariances of distances, which come in whole vectors."""
    whole = -(-x.size // lanes.LANES) * lanes.LANES
    K = np.append(x, np.zeros(whole - x.size))
    form = CATALOGUE[name]
    kernel = local.CompiledKernel.of(form.compiled, form.metric)
    local.covariances(K, 0, whole, kernel, 1.0)
    return K[: x.size]


def test_the_exponential_is_accurate():
    x = np.linspace(0.0, 40.0, 100_001)
    np.testing.assert_allclose(exponential(x), np.exp(-x), rtol=1e-13, atol=0.0)
    assert exponential(np.zeros(1)) == 1.0


def test_the_exponential_is_the_same_one_by_one():
    x = np.linspace(0.0, 60.0, 1001)
    one_by_one = [local.exp_minus(value) for value in x]
    np.testing.assert_allclose(exponential(x), one_by_one, rtol=1e-15, atol=0.0)


def test_the_exponential_never_leaves_the_normal_numbers():
    x = np.append(np.logspace(-300, 300, 10_001), [0.0, math.inf])
    y = exponential(x)
    assert (np.diff(exponential(np.sort(x))) <= 0.0).all()
    assert ((y >= np.finfo(float).tiny) & (y <= 1.0)).all()
    assert y[x > 45.0].max() < 1e-19


@pytest.mark.parametrize("name", COMPILED)
def test_covariances_go_to_zero_at_any_large_distance(name):
    distance = np.logspace(1.9, 150, 1000)
    K = covariances(distance if name == "laplacian" else distance**2, name)
    assert (K >= 0.0).all()
    assert K.max() < 1e-15
