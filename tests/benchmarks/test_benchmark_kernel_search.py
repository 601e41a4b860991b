from functools import partial

import numpy as np
import pytest
import torch

from benchmarks import gpytorch_exact, kernel_search
from benchmarks.kernel_search import Plan, Standardised, nll_per_row
from benchmarks.search_tables import KERNELS, report
from measurements.runner import measured
from twostagegp.engines import batched_problem as problem_batch


@pytest.fixture(scope="module")
def table():
    """Sixty rows, three of them given twice."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = 5.0 + np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=60)
    return np.concatenate([X, X[:3]]), np.concatenate([y, y[:3] + 0.1])


SMALL = Plan(repeats=3, subsample=40, runs=1, loop_repeats=1)


@pytest.fixture(scope="module")
def record(table):
    return measured(partial(kernel_search.measure_table, table=table), SMALL)


@pytest.mark.parametrize("name", KERNELS)
def test_the_likelihood_is_that_of_the_search(table, name):
    search = kernel_search.search(SMALL, table, early=False)
    rows = Standardised.of(table, "cpu")
    (entry,) = [entry for entry in search.entries if entry.label == name]
    sizes = set()
    for repeat, index in enumerate(search.index):
        X, t = rows.behind(index[: search.n_train])
        value = nll_per_row(name, entry.repeated.parameters[repeat], X, t)
        assert value == pytest.approx(entry.repeated.nll[repeat], abs=1e-9)
        sizes.add(len(t))
    assert max(sizes) > search.n_train  # some of the rows are there twice


@pytest.mark.parametrize("name", KERNELS)
def test_the_likelihood_is_that_of_the_loop(table, name):
    rows = Standardised.of(table, "cpu")
    model = gpytorch_exact.train(rows.X, rows.t, kernel_search.gpytorch_kernel(name), steps=3)
    parameters = kernel_search.log_parameters(model)
    with torch.no_grad():
        theirs = model.likelihood(model(rows.X)).log_prob(rows.t) / len(rows.t)
    assert nll_per_row(name, parameters, rows.X, rows.t) == pytest.approx(-float(theirs), abs=1e-9)


def test_the_loop_trained_to_the_end_is_no_worse(record):
    for fit in record["loop"]["fits"]:
        assert fit["nll"]["end"] <= fit["nll"]["loop"] + 1e-9


def test_the_search_is_no_worse_than_the_loop(record):
    for fit in record["loop"]["fits"]:
        assert fit["nll"]["ours"] <= fit["nll"]["loop"] + 1e-3


def test_loop_time_is_extrapolated_from_the_fastest():
    fits = [
        {"kernel": name, "wall_seconds": seconds}
        for name in KERNELS
        for seconds in (1.0, 2.0, 30.0)
    ]
    assert kernel_search.extrapolated_seconds(fits, "wall_seconds", 100) == pytest.approx(300.0)
    slowest = kernel_search.extrapolated_seconds(fits, "wall_seconds", 100, max)
    assert slowest == pytest.approx(9000.0)


def test_parts_add_up_and_stopwatches_are_taken_out(record):
    facts = record["breakdown"]
    assert sum(facts["seconds"].values()) == pytest.approx(facts["wall_seconds"])
    assert all(seconds > 0 for seconds in facts["seconds"].values())
    # At least one evaluation and one scoring of every problem.
    assert facts["matrices"] >= 2 * len(KERNELS) * SMALL.repeats
    assert problem_batch.kernel_batch.__module__ == "twostagegp.kernels.batched"
    assert problem_batch.batch_cholesky.__module__ == "twostagegp.numerics.linalg"


def test_page_of_both_devices(record):
    gpu = {key: value for key, value in record.items() if key != "loop"}
    gpu |= {"device": "cuda", "peak_gib": 1.5}
    page = report([record, gpu])
    rows = [line for line in page.splitlines() if line.startswith("| cuda")]
    assert any("< 3 s" in row for row in rows)
    assert "extrapolated" in page
    assert "1.50 GiB" in page
    assert "≥ 20×" in page
    assert report([gpu]).count("## ") == 2  # nothing to compare with


@pytest.mark.gpu
def test_measured_on_a_gpu(table):
    plan = Plan("cuda", 3, 40, runs=1, loop_repeats=1)
    record = measured(partial(kernel_search.measure_table, table=table), plan)
    assert record["peak_gib"] > 0
    assert "ours − to the end" in report([record])
