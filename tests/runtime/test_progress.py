"""The share of a job that is done, and its remaining time."""

import threading
from itertools import pairwise

import numpy as np
import pytest

from twostagegp.runtime.progress import Progress, advance, current, end_part, track, watch


class Clock:
    """A clock that the test sets."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def _seconds(kind, rows):
    return {"evaluation": 0.01, "ridge": 0.1}.get(kind, 0.0) * rows


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def progress(clock):
    """60 s of mean, 30 s of variance and 10 s of calibration."""
    progress = Progress(clock)
    progress.expect({"mean": 60.0, "variance": 30.0, "calibration": 10.0}, _seconds)
    return progress


def test_share_is_the_finished_work_over_the_expected_work(progress):
    assert progress.share == 0.0
    progress.add("evaluation", 10, 100)  # 10 s
    assert progress.share == pytest.approx(0.1)
    progress.add("ridge", 2, 100)  # 20 s
    assert progress.share == pytest.approx(0.3)
    progress.add("something else", 1000, 1000)
    assert progress.share == pytest.approx(0.3)


def test_more_work_than_expected_ends_at_the_end_of_its_part(progress):
    progress.add("evaluation", 1e6, 100)
    assert progress.share == pytest.approx(0.6)
    progress.end_part("mean")
    progress.add("evaluation", 1e6, 100)
    assert progress.share == pytest.approx(0.9)


def test_less_work_than_expected_is_made_up_for_at_the_end_of_its_part(progress):
    progress.add("evaluation", 1, 100)
    progress.end_part("mean")
    assert progress.share == pytest.approx(0.6)


def test_share_never_falls_and_ends_at_one(progress, clock):
    rng = np.random.default_rng(0)
    shares = [progress.share]
    for part in ("mean", "an unknown part", "variance", "calibration"):
        for _ in range(20):
            clock.now += rng.exponential()
            progress.add("evaluation", rng.integers(20), rng.integers(50))
            shares.append(progress.share)
        progress.end_part(part)
        shares.append(progress.share)
    assert shares == sorted(shares)
    assert len(set(shares)) > 20
    assert shares[-1] == 1.0
    assert progress.seconds_left == 0.0


@pytest.mark.parametrize("slowness", [0.5, 1.0, 3.0])
def test_remaining_time_follows_the_pace_of_the_finished_work(progress, clock, slowness):
    for _ in range(5):
        clock.now += 10.0 * slowness
        progress.add("evaluation", 10, 100)
    pace = (50.0 * slowness + 10.0) / (50.0 + 10.0)
    assert progress.seconds_left == pytest.approx(50.0 * pace)


def test_remaining_time_falls_while_the_machine_keeps_its_pace(progress, clock):
    left = [progress.seconds_left]
    for _ in range(12):
        clock.now += 2.0
        left.append(progress.seconds_left)  # nothing has been finished meanwhile
        clock.now += 3.0
        progress.add("evaluation", 5, 100)
        left.append(progress.seconds_left)
    assert left[0] == pytest.approx(100.0)
    assert all(later < earlier for earlier, later in pairwise(left))
    assert left[-1] == pytest.approx(40.0)


def test_overdue_work_leaves_a_tenth(progress, clock):
    clock.now += 1e4
    assert progress.seconds_left == pytest.approx(10.0)


def test_each_of_several_equal_jobs_counts_the_same(clock):
    progress = Progress(clock)
    progress.start(jobs=4)
    for number in range(4):
        progress.expect({"mean": 5.0}, _seconds)
        assert progress.share == pytest.approx(number / 4)
        progress.end_part("mean")
        assert progress.share == pytest.approx((number + 1) / 4)


def test_without_a_forecast_nothing_is_known():
    with track() as progress:
        advance("evaluation", 5, 100)
        end_part("mean")
        progress.expect({"mean": 0.0}, _seconds)
        assert (progress.share, progress.seconds_left, progress.words()) == (None, None, "")
    assert progress.share is None
    assert current() is None
    advance("evaluation", 5, 100)
    end_part("mean")


def test_a_job_inside_a_job_says_nothing():
    with track() as outer, track() as inner:
        inner.expect({"mean": 10.0}, _seconds)
        assert inner is current()
        assert inner.words() == outer.words() == ""
    outer.expect({"mean": 10.0}, _seconds)
    with track():
        advance("evaluation", 1, 100)
    assert outer.share == 0.0


def test_a_job_ends_complete():
    with watch() as seen, track() as progress:
        progress.expect({"mean": 10.0, "variance": 5.0}, _seconds)
    assert seen.share == 1.0


def test_an_interrupted_job_stays_incomplete():
    def interrupted():
        with track() as progress:
            progress.expect({"mean": 10.0}, _seconds)
            raise KeyboardInterrupt

    with watch() as seen:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert seen.share == 0.0
    assert current() is None


def test_threads_lose_no_work(progress):
    def work():
        for _ in range(500):
            progress.add("evaluation", 1, 1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert progress.share == pytest.approx(0.4)
