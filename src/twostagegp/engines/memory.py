"""How much memory exact fits, updates and joint covariances take, foreseen before it is taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from twostagegp.engines.exact.blocked import blocked_bytes
from twostagegp.engines.exact.large import group_bytes
from twostagegp.engines.exact.settings import EXACT_DEFAULTS, ExactSettings
from twostagegp.errors import MemoryBudgetError

__all__ = [
    "can_grow",
    "can_keep_factors",
    "check_covariance_memory",
    "check_dense_memory",
    "covariance_bytes",
    "dense_bytes",
    "exact_bytes",
    "memory_of_targets",
    "plan_factor",
    "several_targets",
]

#: Panels of (queries, rows) numbers alive at a time during prediction.
_LIVE_PANELS = 5
#: Matrices of a joint covariance alive at a time: the prior's, its distances and temporaries (four
#: were measured), and one to spare.
_COVARIANCES = 5
#: n x n matrices alive at the worst moment of one training step: K, its distances, the
#: matrix with noise, L, the inverse, W and two temporaries.
_LIVE_MATRICES = 8
#: The same when a conditioned model grows: K, its distances, a factor and a temporary.
_GROWING_MATRICES = 4


def dense_bytes(n: int, itemsize: int = 8) -> int:
    """Peak bytes of one training step that holds all its matrices.

    Examples
    --------
    >>> dense_bytes(10_000) // 10**6  # MB
    6400
    """
    return _LIVE_MATRICES * n * n * itemsize


def check_dense_memory(
    n: int, device: torch.device, itemsize: int = 8, settings: ExactSettings = EXACT_DEFAULTS
) -> None:
    """Raise before a training that holds all its matrices is begun without room for them."""
    needed, available = dense_bytes(n, itemsize), settings.free_bytes(device)
    if available is not None and needed > available:
        most = math.isqrt(available // dense_bytes(1, itemsize))
        raise _too_large(n, device, needed, available, most)


def _too_large(
    n: int, device: torch.device, needed: int, available: int, most: int, others: int = 0
) -> MemoryBudgetError:
    targets = f" and {others + 1} targets" if others else ""
    return MemoryBudgetError(
        f"an exact fit of {n} distinct rows{targets} needs about {needed / 2**30:.1f} GiB, and "
        f"{available / 2**30:.1f} GiB are free on {device}. Use "
        "TwoStageGPRegressor(method='neighbors') or GPNNRegressor, or fit "
        + ("fewer targets at a time, or " if others else "")
        + f"a random subset of at most {most} rows."
    )


def exact_bytes(
    n: int,
    device: torch.device,
    itemsize: int = 8,
    groups: Sequence[int] = (),
    settings: ExactSettings = EXACT_DEFAULTS,
) -> int:
    """Peak bytes of an exact fit to n distinct rows, and of predictions from it.

    ``groups`` are the numbers of rows of the groups that are held out together, where there are
    any: few and large ones take matrices of their own.

    Examples
    --------
    >>> exact_bytes(4_000, torch.device("cpu")) // 10**6  # MB
    1024
    >>> exact_bytes(20_000, torch.device("cpu")) // 10**6
    4183
    """
    if n <= settings.blocked_rows:
        return dense_bytes(n, itemsize)
    panels = _LIVE_PANELS * settings.prediction_entries(device) * max(itemsize, 8)
    predicting = n * n * itemsize + panels
    training = blocked_bytes(n, device, itemsize, settings) + group_bytes(n, groups, itemsize)
    return max(training, predicting)


def plan_factor(
    n: int,
    device: torch.device,
    dtype: torch.dtype,
    groups: Sequence[int] = (),
    settings: ExactSettings = EXACT_DEFAULTS,
) -> torch.dtype:
    """The precision in which a factor of n distinct rows fits; an error where none does.

    That of the rows where there is memory for it, otherwise float32 for more than
    ``settings.blocked_rows`` rows. To be asked before an exact fit is begun.
    """
    available, others = memory_of_targets(device, settings)
    options = [dtype]
    if dtype == torch.float64 and n > settings.blocked_rows:
        options.append(torch.float32)

    def needed(rows: int, itemsize: int, groups: Sequence[int]) -> int:
        return (
            exact_bytes(rows, device, itemsize, groups, settings) + others * rows * rows * itemsize
        )

    for option in options:
        if available is None or needed(n, option.itemsize, groups) <= available:
            return option
    assert available is not None
    itemsize = options[-1].itemsize

    def of_some(rows: int) -> int:
        """The same of a random subset: of every group its share."""
        some = [max(1, g * rows // n) for g in groups]
        return needed(rows, itemsize, some)

    total, most = needed(n, itemsize, groups), _most_rows(available, of_some)
    raise _too_large(n, device, total, available, most, others)


#: Memory that was free before the first of several targets, and targets beside the one at hand.
_TARGETS: ContextVar[tuple[int, int] | None] = ContextVar("_TARGETS", default=None)


@contextmanager
def several_targets(
    device: torch.device, p: int, settings: ExactSettings = EXACT_DEFAULTS
) -> Iterator[None]:
    """Within, a fit of one target leaves room for the factors of all p.

    Memory is measured once, at the beginning, so that every target gets the same answer.
    """
    available = settings.free_bytes(device) if p > 1 else None
    token = _TARGETS.set(None if available is None else (available, p - 1))
    try:
        yield
    finally:
        _TARGETS.reset(token)


def memory_of_targets(device: torch.device, settings: ExactSettings) -> tuple[int | None, int]:
    """Free memory, and how many factors of other targets have to fit into it as well."""
    known = _TARGETS.get()
    return (settings.free_bytes(device), 0) if known is None else known


def _most_rows(available: int, needed: Callable[[int], int]) -> int:
    """The largest number of rows for which that suffices."""
    few, many = 1, math.isqrt(available) + 1
    while many - few > 1:
        middle = (few + many) // 2
        fits = needed(middle) <= available
        few, many = (middle, many) if fits else (few, middle)
    return few


def covariance_bytes(
    q: int,
    n: int,
    device: torch.device,
    itemsize: int = 8,
    settings: ExactSettings = EXACT_DEFAULTS,
) -> int:
    """Peak bytes of the joint covariance of q points, from a factor of n rows.

    Examples
    --------
    >>> covariance_bytes(1_000, 50_000, torch.device("cpu")) // 10**6  # MB
    1071
    """
    panels = min(settings.prediction_entries(device), q * n)
    return q * n * itemsize + 8 * max(_LIVE_PANELS * panels, _COVARIANCES * q * q)


def check_covariance_memory(
    q: int, n: int, device: torch.device, itemsize: int, settings: ExactSettings = EXACT_DEFAULTS
) -> None:
    """Raise before a joint covariance is begun without room for it where the model is."""

    def needed(points: int) -> int:
        return covariance_bytes(points, n, device, itemsize, settings)

    available = settings.free_bytes(device)
    if available is not None and needed(q) > available:
        most = _most_rows(available, needed)
        raise MemoryBudgetError(
            f"the joint covariance of {q} rows given {n} training rows needs about "
            f"{needed(q) / 2**30:.1f} GiB, and {available / 2**30:.1f} GiB are free on {device}; "
            f"ask for at most {most} rows at a time, or use return_std."
        )


def can_keep_factors(
    n: int,
    factors: int,
    device: torch.device,
    itemsize: int = 8,
    before: int = 0,
    settings: ExactSettings = EXACT_DEFAULTS,
) -> bool:
    """Whether a model that grows to n distinct rows can keep the factors of all its kernels.

    Raises before a growth is begun for which there is no memory even with one factor at a time.
    ``before`` is the number of distinct rows that the model has.
    """
    available = settings.free_bytes(device)
    if available is None or _growing_bytes(n, factors, itemsize) <= available:
        return True

    def needed(rows: int) -> int:
        # Of many rows a factor that cannot grow is made anew, in float32 if need be.
        return (
            _growing_bytes(rows, 1, itemsize)
            if rows <= settings.blocked_rows
            else exact_bytes(rows, device, torch.float32.itemsize, (), settings)
        )

    if needed(n) <= available:
        return False
    most = _most_rows(available, needed)
    fewer = f"Add at most {most - before} rows" if most > before else "Free memory"
    raise MemoryBudgetError(
        f"an update to {n} distinct rows needs about {needed(n) / 2**30:.1f} GiB, and "
        f"{available / 2**30:.1f} GiB are free on {device}: enough for {most} distinct rows, and "
        f"the model has {before}. {fewer}, or fit TwoStageGPRegressor(method='neighbors') or "
        "GPNNRegressor to all of them."
    )


def _growing_bytes(n: int, factors: int, itemsize: int) -> int:
    """Peak bytes of a growth from old factors to n rows, with so many factors kept."""
    return (_GROWING_MATRICES + factors) * n * n * itemsize


def can_grow(
    n: int, device: torch.device, itemsize: int, settings: ExactSettings = EXACT_DEFAULTS
) -> bool:
    """Whether there is room for the matrices from which a grown factor of n rows comes."""
    available = settings.free_bytes(device) if n > settings.blocked_rows else None
    return available is None or _growing_bytes(n, 1, itemsize) <= available
