"""Cores: restricting a process, and neighbours that keep cores busy."""

import os
import subprocess
import sys

import pytest

from measurements.cores import CAN_RESTRICT, busy_neighbors, cores_in_use, restricted_to, usable

pytestmark = pytest.mark.skipif(not CAN_RESTRICT, reason="this system cannot restrict a process")


def cores_of_a_child():
    program = "import os; print(len(os.sched_getaffinity(0)))"
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, check=True)
    return int(done.stdout)


def test_processes_that_are_started_meanwhile_inherit_the_restriction():
    before = usable()
    with restricted_to(before[:1]):
        assert usable() == before[:1]
        assert cores_of_a_child() == 1
    assert usable() == before


def test_no_restriction_changes_nothing():
    before = usable()
    with restricted_to(None):
        assert usable() == before


def test_neighbors_run_until_the_block_ends():
    started = []
    popen = subprocess.Popen
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            subprocess,
            "Popen",
            lambda *args, **more: started.append(popen(*args, **more)) or started[-1],
        )
        with busy_neighbors(usable()[:1]):
            (neighbor,) = started
            assert neighbor.poll() is None
            assert os.sched_getaffinity(neighbor.pid) == {usable()[0]}
    assert neighbor.poll() is not None


def test_cores_in_use_are_at_most_all():
    assert 0.0 <= cores_in_use(0.05) <= os.cpu_count()
