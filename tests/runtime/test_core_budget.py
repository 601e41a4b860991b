"""One budget of cores: pools of threads, tasks side by side, and how they end."""

import multiprocessing
import os
import subprocess
import sys
import threading
import time

import joblib
import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from twostagegp import TwoStageGPRegressor
from twostagegp.errors import InputError
from twostagegp.runtime import cores
from twostagegp.runtime.cores import available_cores, raise_if_stopped, spread, use_cores


def _pools():
    return [pool["num_threads"] for pool in threadpool_info()]


def _table(n=200, d=3):
    X = np.random.default_rng(0).normal(size=(n, d))
    return X, np.sin(X[:, 0]) + 0.1 * X[:, 1]


@pytest.fixture
def four_cores(monkeypatch):
    """A machine of four cores."""
    monkeypatch.setattr(joblib, "cpu_count", lambda *args, **options: 4)


def test_every_pool_has_one_thread_inside_and_its_own_number_after():
    import sklearn.ensemble  # noqa: F401  its OpenMP library is one of the pools

    before, torch_before = _pools(), torch.get_num_threads()
    with use_cores(2):
        assert set(_pools()) == {1}
        assert torch.get_num_threads() == 1
        with use_cores(1):
            assert available_cores() == 1
        assert set(_pools()) == {1}
    assert _pools() == before
    assert torch.get_num_threads() == torch_before


@pytest.mark.parametrize(
    ("n_jobs", "granted"), [(None, 4), (1, 1), (3, 3), (100, 4), (-1, 4), (-2, 3), (-9, 1)]
)
def test_numbers_of_cores(four_cores, n_jobs, granted):
    with use_cores(n_jobs) as cores_here:
        assert cores_here == available_cores() == granted


@pytest.mark.parametrize("n_jobs", [0, 1.5, "2"])
def test_other_values_are_refused(n_jobs):
    with pytest.raises(InputError, match="n_jobs="), use_cores(n_jobs):
        pass


def test_a_fit_inside_a_fit_shares_its_cores(four_cores):
    with use_cores(2), use_cores(-1) as inner:
        assert inner == 2
    with use_cores(2):
        assert spread(lambda _: available_cores(), [0, 1]) == [1, 1]


def test_results_come_in_order_and_on_several_threads(four_cores):
    barrier = threading.Barrier(3, timeout=20)

    def work(i):
        barrier.wait()  # passes only if three tasks run at the same time
        return i, threading.get_ident()

    with use_cores(None):
        found = spread(work, range(3))
        assert [i for i, _ in found] == [0, 1, 2]
        assert len({thread for _, thread in found}) == 3
        assert (
            spread(lambda i: threading.get_ident(), range(3), most=1) == [threading.get_ident()] * 3
        )


def test_an_error_ends_the_other_tasks(four_cores):
    began, ended = threading.Event(), []

    def work(i):
        if i == 0:
            began.wait(10)
            raise ValueError("task 0 failed")
        began.set()
        try:
            for _ in range(1000):
                raise_if_stopped()
                time.sleep(0.01)
        finally:
            ended.append(i)

    begin = time.perf_counter()
    with use_cores(2), pytest.raises(ValueError, match="task 0 failed"):
        spread(work, [0, 1, 2, 3])
    assert time.perf_counter() - begin < 5.0  # each task would take ten seconds
    assert ended == [1]


def test_concurrent_calls_restore_the_number_of_blas_threads():
    before = _pools()
    inside = threading.Barrier(2, timeout=20)

    def call():
        with use_cores(1):
            inside.wait()

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _pools() == before


def _cores_of_default():
    with use_cores(None) as granted:
        return granted


def test_workers_of_joblib_get_one_core(four_cores):
    found = joblib.Parallel(2, backend="threading")(
        joblib.delayed(_cores_of_default)() for _ in range(2)
    )
    assert found == [1, 1]
    assert _cores_of_default() == 4


def test_daemon_processes_get_one_core(four_cores, monkeypatch):
    process = type("Process", (), {"daemon": True})()
    monkeypatch.setattr(multiprocessing, "current_process", lambda: process)
    assert _cores_of_default() == 1


def test_the_same_model_for_any_number_of_cores(four_cores):
    X, y = _table(350)  # enough rows for trainings side by side
    models = [TwoStageGPRegressor(random_state=0, n_jobs=n).fit(X, y) for n in (1, 2, 4)]
    first, *others = [model.predict_interval(X) for model in models]
    for other in others:
        np.testing.assert_array_equal(other, first)


def test_an_interrupted_fit_on_several_cores_ends_and_leaves_the_model(four_cores, monkeypatch):
    X, y = _table(350)
    model = TwoStageGPRegressor(random_state=0, n_jobs=2).fit(X, y)
    before, running = model.predict(X[:3]), set(threading.enumerate())

    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cores, "wait", interrupted)
    begin = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[:300], y[:300])
    assert time.perf_counter() - begin < 2.0
    monkeypatch.undo()
    np.testing.assert_array_equal(model.predict(X[:3]), before)
    left = [t for t in threading.enumerate() if t not in running and not t.daemon]
    assert not left  # threads of other libraries may have been running before


def test_the_first_call_of_a_process_limits_libraries_that_it_loads():
    program = (
        "from twostagegp.runtime.cores import use_cores\n"
        "with use_cores(1):\n"
        "    from twostagegp.numerics import lapack\n"
        "    assert lapack.available()\n"
        "    from threadpoolctl import threadpool_info\n"
        "    print({pool['num_threads'] for pool in threadpool_info()})\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.endswith("NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.strip() == "{1}"
