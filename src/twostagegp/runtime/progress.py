r"""How far a job is, and about how long it will still take.

A job has *parts*, each with the seconds that a forecast gives it. Finished work, for instance
evaluations of a training objective on so many rows, counts with the seconds that the same forecast
gives such work, at most those of its part; a part that has ended counts as a whole. With the total
:math:`T` and the seconds :math:`W` of the finished work, the share :math:`W / T` is done. The pace
is what the finished work took, relative to the forecast,

.. math::

    p = \frac{t + T / 10}{W + T / 10} , \qquad \text{left} = (T - W)\, p ,

after :math:`t` seconds. The tenth is the weight of the forecast itself: the first finished work
says little about the rest.

The job that runs is held in a context variable, which the tasks of ``runtime/cores.py`` inherit. It
is for people only: nothing reads it to decide something. A job without a forecast says nothing,
and so does a job inside another one, whose remaining time would be mistaken for that of the whole.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["Progress", "advance", "current", "end_part", "track", "watch"]

#: Weight of the forecast's own pace, as a share of the total.
_FORECAST_WEIGHT = 0.1
#: Until the next finished work, the remaining time falls to this share of what it was.
_LEAST_SHARE_LEFT = 0.1


class Progress:
    """The finished and the expected work of one job; safe to use from several threads.

    Parameters
    ----------
    clock : callable
        Returns the time in seconds.

    Examples
    --------
    >>> progress = Progress(clock=lambda: 0.0)
    >>> progress.share, progress.words()
    (None, '')
    >>> progress.expect({"mean": 30.0, "variance": 10.0}, lambda kind, rows: 0.01 * rows)
    >>> progress.add("evaluation", 10, 100)
    >>> progress.share
    0.25
    >>> progress.end_part("mean")
    >>> progress.share
    0.75
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.started = self._is_inner = False
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs, self._job = 1, 0
        self._expected: dict[str, float] = {}
        self._done: dict[str, float] = {}
        self._ended: set[str] = set()
        self._cost: Callable[[str, float], float] = lambda kind, rows: 0.0
        self._share: float | None = None
        self._begin = self._noted = self._left = 0.0

    def start(self, jobs: int = 1, is_inner: bool = False) -> None:
        """Begin a job that consists of this many equal ones, for instance one per target."""
        self.started, self._jobs, self._is_inner = True, jobs, is_inner

    def expect(self, parts: Mapping[str, float], cost: Callable[[str, float], float]) -> None:
        """Give the forecast of the next of the equal jobs.

        Parameters
        ----------
        parts : mapping
            Seconds of each part, in the order in which they run.
        cost : callable
            Takes a kind of work and a number of rows; returns the seconds of one unit of it.
        """
        if self._is_inner or sum(parts.values()) <= 0.0:
            return
        with self._lock:
            if self._share is None:
                self._begin = self._clock()
            else:
                self._job = min(self._job + 1, self._jobs - 1)
            self._expected, self._cost = dict(parts), cost
            self._done, self._ended = dict.fromkeys(parts, 0.0), set()
            self._note()

    def add(self, kind: str, count: float, rows: float) -> None:
        """Count finished work: ``count`` units of a kind, on so many rows each."""
        with self._lock:
            part = next((name for name in self._expected if name not in self._ended), None)
            if part is not None:
                done = self._done[part] + count * self._cost(kind, rows)
                self._done[part] = min(done, self._expected[part])
                self._note()

    def end_part(self, part: str) -> None:
        """Count a part as a whole; one that was not expected is ignored."""
        with self._lock:
            if part in self._expected:
                self._done[part] = self._expected[part]
                self._ended.add(part)
                self._note()

    def end(self) -> None:
        """Count everything as done."""
        with self._lock:
            if self._share is not None:
                self._share, self._left = 1.0, 0.0

    def _note(self) -> None:
        """Compute the share and the remaining time at this moment."""
        one = sum(self._expected.values())
        total, done = self._jobs * one, self._job * one + sum(self._done.values())
        self._noted = self._clock()
        weight = _FORECAST_WEIGHT * total
        pace = (self._noted - self._begin + weight) / (done + weight)
        self._left = (total - done) * pace
        self._share = max(self._share or 0.0, done / total)

    @property
    def share(self) -> float | None:
        """The share of the work that is done, from 0 to 1, or None without a forecast."""
        return self._share

    @property
    def seconds_left(self) -> float | None:
        """About how long it will still take, or None without a forecast."""
        with self._lock:
            if self._share is None:
                return None
            since = self._clock() - self._noted
            return max(self._left - since, _LEAST_SHARE_LEFT * self._left)

    def words(self) -> str:
        """Return the remaining time in words, or an empty text without a forecast.

        Examples
        --------
        >>> progress = Progress(clock=lambda: 0.0)
        >>> progress.expect({"mean": 37.6}, lambda kind, rows: 0.0)
        >>> progress.words()
        'about 40 s left'
        """
        left = self.seconds_left
        return "" if left is None else f"{_duration(left)} left"


def _duration(seconds: float) -> str:
    """Return a duration to as many digits as an estimate deserves.

    Examples
    --------
    >>> [_duration(seconds) for seconds in (0.3, 7.2, 37.6, 200.0, 20_000.0)]
    ['less than 1 s', 'about 7 s', 'about 40 s', 'about 3 min', 'about 5.6 h']
    """
    if seconds < 0.95:
        return "less than 1 s"
    if seconds < 20.0:
        return f"about {seconds:.0f} s"
    if seconds < 90.0:
        return f"about {5 * round(seconds / 5)} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400.0 else f"about {seconds / 3600:.1f} h"


_CURRENT: ContextVar[Progress | None] = ContextVar("twostagegp_progress", default=None)


def current() -> Progress | None:
    """Return the progress of the job that runs, or None outside of jobs."""
    return _CURRENT.get()


def advance(kind: str, count: float, rows: float) -> None:
    """Count finished work of the job that runs, if any (:meth:`Progress.add`)."""
    if (progress := current()) is not None:
        progress.add(kind, count, rows)


def end_part(part: str) -> None:
    """Count a part of the job that runs as a whole, if any."""
    if (progress := current()) is not None:
        progress.end_part(part)


@contextmanager
def watch() -> Iterator[Progress]:
    """Return the progress of the first job that will run in this block, to be shown.

    Examples
    --------
    >>> with watch() as seen, track() as progress:
    ...     seen is progress
    True
    """
    progress = Progress()
    token = _CURRENT.set(progress)
    try:
        yield progress
    finally:
        _CURRENT.reset(token)


@contextmanager
def track(jobs: int = 1) -> Iterator[Progress]:
    """Run a job that consists of this many equal ones; it has no forecast before ``expect``."""
    outer = _CURRENT.get()
    progress = outer if outer is not None and not outer.started else Progress()
    progress.start(jobs, is_inner=outer is not None and progress is not outer)
    token = _CURRENT.set(progress)
    try:
        yield progress
        progress.end()
    finally:
        _CURRENT.reset(token)
