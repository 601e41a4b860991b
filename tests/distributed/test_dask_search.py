"""Searches on Dask workers: the scores of a local search, and clear errors."""

import json
import time
from dataclasses import replace
from importlib import import_module

import gpytorch
import numpy as np
import pytest
import torch

from benchmarks import dask_search
from measurements.runner import run
from twostagegp import TwoStageGPRegressor, check_misspecification, search_kernel
from twostagegp.data.rows import Rows
from twostagegp.errors import ClusterError, InputError, NotFittableError
from twostagegp.kernels import make_kernel
from twostagegp.pipeline.settings import SearchSettings, Settings
from twostagegp.search.dask_runner import DaskRunner, repetitions_per_task
from twostagegp.search.early_stopping import checkpoints
from twostagegp.search.repetitions import RepetitionOptions, Repetitions

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

#: So many repetitions of so few rows that a search of one kernel has two tasks.
MANY = {"n_repeats": 130, "subsample": 12}
ROUNDING = {"rtol": 1e-7, "atol": 1e-9}


@pytest.fixture(scope="module")
def client():
    """Two workers that are threads of this process, but get everything through a socket."""
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            protocol="tcp://",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def held(monkeypatch):
    """Everything large that is sent to the workers."""
    seen, send = [], DaskRunner.hold

    def counted(self, value):
        seen.append(value)
        return send(self, value)

    monkeypatch.setattr(DaskRunner, "hold", counted)
    return seen


def table(n=50, repeats=True):
    """Two columns; some inputs occur twice, with different targets."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, size=(n, 2))
    if repeats:
        X[:8] = X[8:16]
    return X, np.sin(2.0 * X[:, 0]) + 0.2 * rng.normal(size=n)


def search(kernels=("rbf", "matern12"), **options):
    settings = {"n_repeats": 10, "subsample": 30, "random_state": 0}
    return search_kernel(*table(), kernels, **(settings | options))


def assert_same_search(one, other):
    np.testing.assert_array_equal(one.index, other.index)
    assert one.best_label == other.best_label
    assert one.decided_early == other.decided_early
    columns = one.table.columns.difference(["seconds", "failure"])
    np.testing.assert_allclose(
        one.table[columns].to_numpy(float), other.table[columns].to_numpy(float), **ROUNDING
    )
    assert one.table["failure"].equals(other.table["failure"])
    for a, b in zip(one.entries, other.entries, strict=True):
        if a.repeated is not None:
            np.testing.assert_allclose(a.repeated.parameters, b.repeated.parameters, **ROUNDING)
            np.testing.assert_array_equal(a.repeated.evaluations, b.repeated.evaluations)


# --- the same numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"kernels": {"one": "rbf", "two": "rbf"}},  # never decided early
        {"early": False, "selection": "misspecification", "model": "krr"},
    ],
    ids=["several checkpoints", "kernel ridge"],
)
def test_a_search_on_workers_equals_a_local_search(client, held, options):
    options = options | MANY
    assert repetitions_per_task(10) < MANY["n_repeats"]
    local = search(**options)
    assert_same_search(local, search(**options, client=client))
    assert not local.decided_early
    rounds = 1 if "early" in options else len(checkpoints(130))
    assert len(held) == rounds
    assert sum(len(part.index) for part in held) == 130


@pytest.mark.parametrize("test", ["bootstrap", "ratio", "bound"])
def test_a_check_on_workers_equals_a_local_check(client, held, test):
    options = {"test": test, "random_state": 0} | MANY
    one = check_misspecification(*table(), "matern32", **options)
    other = check_misspecification(*table(), "matern32", **options, client=client)
    np.testing.assert_allclose(one.per_repeat, other.per_repeat, **ROUNDING)
    assert one.noise == pytest.approx(other.noise, rel=1e-7)
    assert str(one) == str(other)
    assert len(held) == 1


class Threads(gpytorch.kernels.RBFKernel):
    """A kernel of a user's that notes the threads that it is evaluated on."""

    seen: list[int] = []  # noqa: RUF012

    def forward(self, x1, x2, **options):
        self.seen.append(torch.get_num_threads())
        return super().forward(x1, x2, **options)


class Broken(gpytorch.kernels.RBFKernel):
    def forward(self, x1, x2, **options):
        if x1.shape[-2] > 2:
            raise RuntimeError("no more than two rows")
        return super().forward(x1, x2, **options)


def test_kernels_of_a_user_have_one_thread_and_fail_as_in_a_local_search(client):
    kernels = {"rbf": "rbf", "own": Threads(), "broken": Broken()}
    options = {"kernels": kernels, "n_repeats": 4, "subsample": 14, "early": False}
    one = search(**options)
    Threads.seen.clear()
    other = search(**options, client=client)
    assert set(Threads.seen) == {1}
    assert_same_search(one, other)
    assert other.table.loc["broken", "failure"] == "RuntimeError: no more than two rows"
    with pytest.raises(RuntimeError, match="no more than two rows"):
        check_misspecification(*table(), Broken(), test="ratio", n_repeats=2, client=client)


class Once(gpytorch.kernels.RBFKernel):
    """A kernel that fails the first time that it is evaluated on many rows."""

    failures: list[str] = []  # noqa: RUF012

    def forward(self, x1, x2, **options):
        if x1.shape[-2] > 4 and not self.failures:
            self.failures.append("now")
            raise RuntimeError("not yet")
        return super().forward(x1, x2, **options)


def test_failed_tasks_are_retried_if_dask_is_configured_to(client):
    options = {"kernels": {"once": Once()}, "n_repeats": 2, "subsample": 10, "client": client}
    with dask.annotate(retries=2):
        assert search(**options).best_label == "once"
    assert Once.failures == ["now"]


def test_auto_is_the_client_in_use_and_none_is_this_process(client, held):
    search(n_repeats=2, client=None)
    assert held == []
    search(n_repeats=2, client="auto")
    assert len(held) == 1


def test_a_fit_of_collections_searches_on_its_workers(client, held):
    X, y = table(80, repeats=False)
    model = TwoStageGPRegressor(
        "neighbors", kernels=("rbf", "matern12"), mean="search", ard=False, n_neighbors=20,
        penalty=(1e-2, 1e-1), selection="misspecification", random_state=0,
        settings=Settings(search=SearchSettings(n_repeats=4, subsample=60)),
    )  # fmt: skip
    lazy = da.from_array(X, chunks=(40, 2)), da.from_array(y, chunks=40)
    spread = model.fit(*lazy)
    assert len(held) == 2  # one search per stage
    found, answers = spread.search_, spread.predict(X)
    local = model.fit(X, y)
    assert len(held) == 2
    assert_same_search(found.mean, local.search_.mean)
    assert_same_search(found.variance, local.search_.variance)
    np.testing.assert_allclose(answers, local.predict(X), **ROUNDING)


# --- what is sent --------------------------------------------------------------------------------


def test_only_the_rows_of_the_repetitions_are_sent():
    X = torch.randn(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one, zero = torch.ones(200).double(), torch.zeros(200).double()
    whole = Repetitions(Rows(X, X[:, 0], one, zero, zero), 20, "random", np.random.default_rng(0))
    whole.draw(6)
    part = whole.restricted_to(whole.index[2:5])
    assert len(part.rows) == len(np.unique(whole.index[2:5])) < 61
    np.testing.assert_array_equal(part.rows.X[part.index], X[whole.index[2:5]])
    kernel, settings = make_kernel("rbf", 2), RepetitionOptions()
    starts = whole.starts(kernel, settings)
    expected = whole.run(kernel, settings).parameters[2:5]
    got = part.run(kernel, settings, starts=starts).parameters
    np.testing.assert_allclose(got, expected, **ROUNDING)


def test_nothing_stays_on_the_workers(client):
    before = set(client.futures)  # a model that was fitted here may still have its shards
    search(n_repeats=4, client=client)
    end = time.monotonic() + 30.0
    while not set(client.futures) <= before:
        assert time.monotonic() < end, "futures are still held after 30 seconds"
        time.sleep(0.05)


def test_wide_tables_are_sent_without_a_warning(client):
    X = np.random.default_rng(0).normal(size=(40, 40_000))  # 13 MB, where Dask warns from 10
    options = {"n_repeats": 2, "subsample": 40, "model": "krr", "early": False}
    found = search_kernel(X, X[:, 0] + X[:, 1], ("rbf",), **options, client=client)
    assert len(found.index) == 2


# --- refusals and interrupts ---------------------------------------------------------------------


def test_clients_that_cannot_be_used_are_refused():
    with pytest.raises(InputError, match=r"client=3: use a distributed\.Client, 'auto' or None"):
        search(client=3)
    with pytest.raises(InputError, match=r"device='cuda' with client=: workers compute on the CPU"):
        search(client="auto", device="cuda")


def test_collections_are_not_computed_silently():
    X, y = table()
    with pytest.raises(InputError, match=r"X is a Dask collection \(Array\).*X\.compute\(\)"):
        search_kernel(da.from_array(X), y)
    with pytest.raises(InputError, match="y is a Dask collection"):
        check_misspecification(X, da.from_array(y))


def test_a_closed_client_is_refused():
    with (
        distributed.LocalCluster(
            n_workers=0, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as closed,
    ):
        pass
    with pytest.raises(ClusterError, match="is closed; connect a new one"):
        search(client=closed)


class Unsendable(gpytorch.kernels.RBFKernel):
    def __reduce__(self):
        raise TypeError("tied to this process")

    def __deepcopy__(self, memo):
        return Unsendable()


def test_a_kernel_that_cannot_be_sent_is_named(client):
    with pytest.raises(InputError, match=r"kernel .* cannot be sent .*tied to this process"):
        search(kernels=("rbf", Unsendable()), client=client)


class Unloadable(gpytorch.kernels.RBFKernel):
    """A kernel of a module that the workers do not have."""

    def __reduce__(self):
        return import_module, ("not_a_module",)

    def __deepcopy__(self, memo):
        return Unloadable()


def test_a_kernel_that_workers_cannot_load_ends_the_search(client):
    with pytest.raises(ClusterError, match=r"cannot load a kernel \(ModuleNotFoundError"):
        search(kernels=("rbf", Unloadable()), client=client)


def test_an_interrupt_cancels_all_tasks(client, monkeypatch):
    cancelled, gather = [], client.gather

    def interrupted(futures):
        gather(futures[:1])
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "gather", interrupted)
    monkeypatch.setattr(client, "cancel", cancelled.append)
    with pytest.raises(KeyboardInterrupt):
        search(early=False, client=client, **MANY)
    first_kernel, all_tasks = cancelled
    assert len(first_kernel) == 2  # 130 repetitions, 100 per task
    assert len(all_tasks) == 1 + 2 * (1 + 2)  # data; per kernel one task of pilots and two of fits


def test_if_no_kernel_can_be_fitted_the_error_gives_the_reasons(client):
    with pytest.raises(NotFittableError, match="broken: RuntimeError: no more than two rows"):
        search(kernels={"broken": Broken()}, client=client)


# --- the benchmark -------------------------------------------------------------------------------


def test_the_benchmark_finds_differences():
    one = search(n_repeats=2, early=False)
    assert dask_search.largest_difference(one, one) == 0.0
    assert dask_search.largest_difference(one, replace(one, index=one.index + 1)) == np.inf
    repeated = replace(one.entries[1].repeated, loo=one.entries[1].repeated.loo + 0.25)
    entries = [one.entries[0], replace(one.entries[1], repeated=repeated)]
    difference = dask_search.largest_difference(one, replace(one, entries=entries))
    assert difference == pytest.approx(0.25)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_in_one_of_two_searches_is_a_difference(value):
    one = search(n_repeats=2, early=False)
    repeated = replace(one.entries[1].repeated, loo=one.entries[1].repeated.loo.copy())
    repeated.loo[0] = value
    other = replace(one, entries=[one.entries[0], replace(one.entries[1], repeated=repeated)])
    assert dask_search.largest_difference(one, other) == np.inf
    assert dask_search.largest_difference(other, one) == np.inf
    assert dask_search.largest_difference(other, other) == 0.0


@pytest.mark.slow
def test_the_benchmark_runs_and_its_page_has_the_figures(tmp_path):
    sizes = {"rows": 200, "repeats": 4, "subsample": 40, "rounds": 1}
    given = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    assert run(dask_search.MEASUREMENT, [*given, "--results", str(tmp_path)]) == 0
    page = (tmp_path / "dask_search.md").read_text()
    assert "| Dask, 2 worker(s) " in page
    record = json.loads((tmp_path / "dask_search.jsonl").read_text())
    assert [way["difference"] < 1e-7 for way in record["ways"]] == [True] * 4
