"""Many fits in one process, fits in threads at once, and fits in processes of every kind."""

import gc
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import joblib
import numpy as np
import pytest

from twostagegp import ExactGPRegressor, GPNNRegressor, TwoStageGPClassifier, TwoStageGPRegressor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * RNG.normal(size=40)
NEW = RNG.normal(size=(7, 2))


def answer(seed):
    """Return the predictions of a small fit with a choice of kernels."""
    rows = np.random.default_rng(seed).permutation(40)[:30]
    model = ExactGPRegressor("search" if seed % 4 == 0 else "rbf", random_state=seed)
    model.set_params(kernels=("rbf", "matern32"))
    return np.concatenate(model.fit(X[rows], Y[rows]).predict(NEW, return_std=True))


def two_stage_answer(seed):
    rows = np.random.default_rng(seed).permutation(40)[:30]
    kind = (
        TwoStageGPRegressor(kernels=("rbf",), random_state=seed),
        GPNNRegressor(n_neighbors=10, random_state=seed),
        TwoStageGPRegressor(
            kernels=("rbf",), method="neighbors", n_neighbors=10, random_state=seed
        ),
    )[seed % 3]
    return np.concatenate(kind.fit(X[rows], Y[rows]).predict(NEW, return_std=True))


@pytest.fixture(scope="module")
def serial():
    return [answer(seed) for seed in range(8)]


def test_eight_threads_at_once_give_what_one_gives(serial):
    with ThreadPoolExecutor(8) as pool:
        for expected, found in zip(serial, pool.map(answer, range(8)), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::twostagegp.errors.TwoStageGPWarning")
def test_eight_threads_at_once_give_what_one_gives_with_two_stages():
    expected = [two_stage_answer(seed) for seed in range(16)]
    with ThreadPoolExecutor(8) as pool:
        for one, other in zip(expected, pool.map(two_stage_answer, range(16)), strict=True):
            np.testing.assert_array_equal(other, one)


def test_one_model_predicts_in_eight_threads_at_once(serial):
    model = ExactGPRegressor("rbf", random_state=0).fit(X, Y)
    points = np.random.default_rng(1).normal(size=(8, 50, 2))
    expected = [model.predict(each, return_std=True) for each in points]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda each: model.predict(each, return_std=True), points))
    np.testing.assert_array_equal(found, expected)


def check_workers(way, serial, timeout):
    context = multiprocessing.get_context(way)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        answers = pool.map(answer, range(8), timeout=timeout)
        for expected, found in zip(serial, answers, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.skipif(os.name != "posix", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_workers_give_what_this_process_gives(serial):
    check_workers("fork", serial, timeout=120)


@pytest.mark.slow
def test_spawned_workers_give_what_this_process_gives(serial):
    check_workers("spawn", serial, timeout=300)


@pytest.mark.slow
def test_loky_workers_give_what_this_process_gives(serial):
    found = joblib.Parallel(n_jobs=2, backend="loky")(
        joblib.delayed(answer)(seed) for seed in range(8)
    )
    np.testing.assert_array_equal(found, serial)
    joblib.externals.loky.get_reusable_executor().shutdown()


def _resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")


def grown(fits, warm):
    """Return the growth of resident memory in MiB over fits of every kind, after a warm-up."""
    for k in range(warm):
        _one(k)
    gc.collect()
    before = _resident_mib()
    for k in range(fits):
        _one(k)
    gc.collect()
    return _resident_mib() - before


def _one(k):
    rows = np.random.default_rng(k).normal(size=(60, 3))
    y = np.sin(rows[:, 0])
    kinds = (
        lambda: TwoStageGPRegressor(kernels=("rbf",), random_state=k).fit(rows, y),
        lambda: ExactGPRegressor("rbf", random_state=k).fit(rows, y),
        lambda: GPNNRegressor(n_neighbors=10, random_state=k).fit(rows, y),
        lambda: TwoStageGPClassifier(kernels=("rbf",), mean="search", random_state=k).fit(
            rows, y > 0
        ),
    )
    kinds[k % 4]().predict(rows)


@linux
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::twostagegp.errors.TwoStageGPWarning")
def test_two_hundred_fits_leave_memory_as_it_was(capsys):
    growth = grown(200, warm=40)
    with capsys.disabled():
        sys.stdout.write(f"\nresident memory grew by {growth:.1f} MiB over 200 fits\n")
    assert growth < 40.0
