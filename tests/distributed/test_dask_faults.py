"""Failures of a cluster of processes: lost work is computed again, or a ClusterError is raised."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from twostagegp import TwoStageGPRegressor, check_misspecification, search_kernel
from twostagegp.errors import ClusterError

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")
psutil = pytest.importorskip("psutil")

pytestmark = pytest.mark.slow

N, CHUNK = 400, 50


def cluster(**changes):
    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    return distributed.LocalCluster(**(settings | changes))


def table():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, size=(N, 2))
    return X, np.sin(2.0 * X[:, 0]) + 0.1 * rng.normal(size=N)


def slowly(seconds):
    def read(block):
        time.sleep(seconds)
        return block

    return read


def collections(seconds):
    X, y = table()
    dX = da.from_array(X, chunks=(CHUNK, 2)).map_blocks(slowly(seconds), dtype=float)
    return dX, da.from_array(y, chunks=CHUNK)


def model():
    return TwoStageGPRegressor(
        method="neighbors", mean="rbf", ard=False, variance="rbf", n_neighbors=20, random_state=0
    )


def kill_one(client):
    """Kill one worker's process, as the operating system would."""
    pid = min(client.run(os.getpid).values())
    os.kill(pid, signal.SIGKILL)
    return pid


class KillLater(threading.Thread):
    """Kill a worker once the cluster has been busy for a while."""

    def __init__(self, client, seconds):
        super().__init__(daemon=True)
        self.pid = int(min(client.run(os.getpid).values()))
        self.seconds = seconds

    def run(self):
        time.sleep(self.seconds)
        os.kill(self.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def expected():
    X, y = table()
    return model().fit(X, y).predict(X, return_std=True)


@pytest.mark.parametrize("seconds", [0.5, 2.5])
def test_a_worker_killed_in_a_fit_changes_nothing(expected, seconds):
    X, _ = table()
    with cluster() as local, distributed.Client(local) as client:
        killer = KillLater(client, seconds)
        killer.start()
        fitted = model().fit(*collections(0.4))
        assert not killer.is_alive()
        assert not psutil.pid_exists(killer.pid)
        for one, other in zip(fitted.predict(X, return_std=True), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)


def test_a_worker_killed_before_and_in_a_prediction_changes_nothing(expected):
    X, _ = table()
    with cluster() as local, distributed.Client(local) as client:
        fitted = model().fit(*collections(0.2))
        kill_one(client)
        np.testing.assert_allclose(fitted.predict(X), expected[0], rtol=1e-9, atol=1e-10)
        points = da.from_array(X, chunks=(CHUNK, 2)).map_blocks(slowly(0.5), dtype=float)
        lazy = fitted.predict(points)
        killer = KillLater(client, 1.0)
        killer.start()
        np.testing.assert_allclose(lazy.compute(), expected[0], rtol=1e-9, atol=1e-10)
        assert not psutil.pid_exists(killer.pid)


def test_a_new_client_reads_the_source_again(expected):
    X, _ = table()
    with cluster() as local, distributed.Client(local):
        fitted = model().fit(*collections(0.0))
    with cluster(n_workers=1) as local, distributed.Client(local):
        np.testing.assert_allclose(fitted.predict(X), expected[0], rtol=1e-9, atol=1e-10)


def test_workers_out_of_memory_raise_a_cluster_error():
    def huge(block):
        held = [np.ones(2**24) for _ in range(24)]  # 3 GiB, touched
        time.sleep(5.0)
        return block * held[0][0]

    X, y = table()
    dX = da.from_array(X, chunks=(200, 2)).map_blocks(huge, dtype=float)
    fitted = model()
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        cluster(n_workers=1, memory_limit="1GiB") as local,
        distributed.Client(local) as client,
    ):
        with pytest.raises(ClusterError, match="out of memory"):
            fitted.fit(dX, da.from_array(y, chunks=200))
        assert not hasattr(fitted, "fit_report_")
        wait_until(lambda: not client.processing() or not any(client.processing().values()))


# --- searches ------------------------------------------------------------------------------------


def search(**options):
    settings = {"n_repeats": 40, "subsample": 350, "early": False, "random_state": 0}
    return search_kernel(*table(), ("rbf", "matern12"), **(settings | options))


def assert_same_bits(one, other):
    np.testing.assert_array_equal(one.index, other.index)
    for a, b in zip(one.entries, other.entries, strict=True):
        np.testing.assert_array_equal(a.repeated.parameters, b.repeated.parameters)
        np.testing.assert_array_equal(a.repeated.loo, b.repeated.loo)


def test_searches_do_not_depend_on_the_number_of_workers_or_the_loss_of_one():
    one = search(n_jobs=1)
    assert one.n_train > 256  # from there on a problem is computed alone wherever it is
    check = {"n_repeats": 20, "subsample": 280, "random_state": 0}
    own = check_misspecification(*table(), **check)
    with cluster(n_workers=1) as local, distributed.Client(local) as client:
        assert_same_bits(one, search(client=client))
    with cluster() as local, distributed.Client(local) as client:
        np.testing.assert_array_equal(
            check_misspecification(*table(), **check, client="auto").per_repeat, own.per_repeat
        )
        killer = KillLater(client, 1.0)
        killer.start()
        found = search(client=client)
        assert not killer.is_alive()
        assert not psutil.pid_exists(killer.pid)
        assert_same_bits(one, found)


SCHEDULER = """
    import time
    from distributed import LocalCluster
    if __name__ == "__main__":
        cluster = LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0")
        print(cluster.scheduler_address, flush=True)
        time.sleep(120)
"""


@pytest.mark.parametrize(
    "job",
    [
        lambda client: model().fit(*collections(1.0)),
        lambda client: search(n_repeats=1000, client=client),
    ],
    ids=["fit", "search"],
)
def test_a_lost_scheduler_raises_a_cluster_error(tmp_path, job):
    program = tmp_path / "scheduler.py"
    program.write_text(textwrap.dedent(SCHEDULER))
    process = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True)
    children = []
    try:
        address = process.stdout.readline().strip()
        children = psutil.Process(process.pid).children(recursive=True)
        short = {"distributed.comm.timeouts.connect": "3s"}
        with dask.config.set(short), distributed.Client(address, timeout="10s") as client:
            assert client.status == "running"
            killer = threading.Timer(2.0, process.kill)
            killer.start()
            with pytest.raises(ClusterError, match="cluster was lost"):
                job(client)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        for child in children:
            if child.is_running():
                child.kill()


CTRL_C = """
    import sys, time
    import dask.array as da
    import numpy as np
    from twostagegp import TwoStageGPRegressor, search_kernel

    def read(block):
        time.sleep(1.0)
        return block

    if __name__ == "__main__":
        X = np.random.default_rng(0).normal(size=(400, 2))
        dX = da.from_array(X, chunks=(20, 2)).map_blocks(read, dtype=float)
        print("fitting", flush=True)
        if sys.argv[1] == "fit":
            TwoStageGPRegressor(mean="rbf").fit(dX, da.from_array(X[:, 0], chunks=20))
        else:
            search_kernel(X, X[:, 0], n_repeats=10_000, early=False, client="auto")
"""


@pytest.mark.parametrize("job", ["fit", "search"])
def test_ctrl_c_ends_a_fit_and_the_cluster_that_it_started(tmp_path, job):
    program = tmp_path / "fit.py"
    program.write_text(textwrap.dedent(CTRL_C))
    process = subprocess.Popen(
        [sys.executable, program, job], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline().strip() == "fitting"
        parent = psutil.Process(process.pid)
        wait_until(lambda: len(parent.children(recursive=True)) >= 2)
        time.sleep(5.0)
        children = parent.children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode != 0
        assert "KeyboardInterrupt" in errors
        wait_until(lambda: not any(child.is_running() for child in children))
    finally:
        process.kill()
        process.wait()


def wait_until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)
