"""Which method a table gets, and Vecchia's likelihood among them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from neighbor_fits import LARGE, SHORT_TREES, make_rows, neighbors, ridge, rms, same, table

from twostagegp.engines import choice
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.neighbors.engine import NeighborEngine
from twostagegp.kernels import NamedKernel
from twostagegp.pipeline.settings import ExactSettings, MethodSettings

# --- which method --------------------------------------------------------------------------------


def test_auto_takes_the_exact_method_for_small_tables():
    report = ridge(method="auto").fit(*table(100)).fit_report_
    assert report.method == "exact"
    assert report.method_reason == "100 distinct rows"


def patient(seconds):
    """Settings under which an exact fit may take so many seconds."""
    return replace(SHORT_TREES, method=MethodSettings(exact_seconds=seconds))


def test_auto_takes_neighbours_where_the_exact_method_would_take_too_long():
    X, y = table(100)
    seconds = choice.exact_seconds(100, torch.device("cpu"))
    model = ridge(method="auto", settings=patient(0.99 * seconds)).fit(X, y)
    assert model.fit_report_.method == "neighbors"
    assert "an exact fit of 100 distinct rows would take about" in model.fit_report_.method_reason
    same(model, ridge().fit(X, y), X, rtol=0, atol=0)
    model = ridge(method="auto", settings=patient(1.01 * seconds)).fit(X, y)
    assert model.fit_report_.method == "exact"


def test_auto_counts_distinct_rows():
    X, y = table(100)
    settings = patient(choice.exact_seconds(100, torch.device("cpu")))
    model = ridge(method="auto", settings=settings)
    model.fit(np.vstack([X, X]), np.append(y, y + 0.1))
    assert model.fit_report_.method == "exact"


def test_auto_takes_neighbours_where_memory_is_short():
    short = replace(SHORT_TREES, exact=ExactSettings(memory_bytes=1000))
    report = ridge(method="auto", settings=short).fit(*table(100)).fit_report_
    assert report.method == "neighbors"
    assert "GiB" in report.method_reason
    assert ridge(method="auto").fit(*table(100)).fit_report_.method == "exact"


@pytest.mark.parametrize("kind", ["mps", "xpu", "meta"])
def test_auto_on_a_device_of_unknown_speed(kind):
    device, cpu = torch.device(kind), torch.device("cpu")
    assert choice.exact_seconds(5000, device) == choice.exact_seconds(5000, cpu)
    assert choice.choose_method(500, device) == choice.choose_method(500, cpu)
    assert choice.choose_method(100_000, device)[0] == "neighbors"


# --- Vecchia's likelihood ------------------------------------------------------------------------


KERNEL = NamedKernel("matern32", 2, ard=True)
PARAMETERS = np.log([0.7, 1.6, 1.4, 0.15])
ORDER = torch.as_tensor(np.random.default_rng(5).permutation(40))


@pytest.mark.parametrize("name", ["rbf", "matern12", "laplacian"])
@pytest.mark.parametrize("use_prior", [True, False])
@pytest.mark.parametrize("kind", ["plain", "weights"])
def test_with_all_rows_before_it_vecchias_likelihood_is_the_exact_one(kind, use_prior, name):
    rows, kernel = make_rows(kind), NamedKernel(name, 2, ard=True)
    engine = NeighborEngine(rows, n_neighbors=40, use_prior=use_prior, order=ORDER)
    problem = engine.problem(kernel, "nll", None, torch.arange(40), PARAMETERS)
    exact = ExactEngine(rows, use_prior=use_prior).problem(kernel, "nll")
    for parameters in (PARAMETERS, PARAMETERS + np.array([0.5, -0.3, 0.2, 1.0])):
        value, gradient = problem(parameters)
        expected, slope = exact(parameters)
        assert value == pytest.approx(expected, abs=1e-8)
        np.testing.assert_allclose(gradient, slope, atol=1e-8)


def test_neighbours_come_before_their_row():
    rows = make_rows("plain")
    engine = NeighborEngine(rows, n_neighbors=6, order=ORDER)
    index = torch.tensor([3, 30, 11, int(ORDER.argmin())])
    near = engine.near_before(KERNEL, PARAMETERS[:-1], index)
    assert near.shape == (4, 6)
    Z = rows.X.numpy() / np.exp(PARAMETERS[:2])
    for i, found in zip(index.tolist(), near.tolist(), strict=True):
        before = np.flatnonzero(ORDER.numpy() < int(ORDER[i]))
        nearest = before[np.argsort(((Z[before] - Z[i]) ** 2).sum(1))][:6]
        assert [j for j in found if j >= 0] == nearest.tolist()
    assert (near[-1] == -1).all()  # the first row has no one before it


def test_a_subset_keeps_the_order_of_its_rows():
    index = np.array([4, 9, 20, 21, 33])
    part = NeighborEngine(make_rows("plain"), n_neighbors=3, order=ORDER).subset(index)
    assert torch.equal(part.order, ORDER[torch.as_tensor(index)])
    near = part.near_before(KERNEL, PARAMETERS[:-1], torch.arange(5))
    for i, found in enumerate(near.tolist()):
        known = [j for j in found if j >= 0]
        assert len(known) == min(3, int((part.order < part.order[i]).sum()))
        assert all(part.order[j] < part.order[i] for j in known)


def test_vecchia_is_another_way_to_train():
    X, y = table(300)
    new, target = table(2000, seed=9)
    near = ridge(kernels=("rbf", "matern32"), mean="search").fit(X, y)
    vecchia = ridge(kernels=("rbf", "matern32"), mean="search", method="vecchia").fit(X, y)
    labels = {row["kernel"] for row in vecchia.search_ if row["stage"] == "mean"}
    assert labels == {"rbf/nll", "matern32/nll"}
    assert np.any(vecchia.predict(new) != near.predict(new))
    assert rms(vecchia.predict(new) - target) < 1.1 * rms(near.predict(new) - target)
    low, high = vecchia.predict_interval(new).T
    assert 0.9 < np.mean((low < target) & (target < high)) < 0.98


def test_vecchia_on_a_large_table():
    X, y = table(500)
    model = neighbors(method="vecchia", settings=LARGE).fit(X, y, groups=np.arange(500) // 2)
    assert model.score(*table(500, seed=9)) > 0.8
