"""Estimates of the memory of exact fits, updates and joint covariances, checked beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from twostagegp.engines.exact.blocked import blocked_bytes
from twostagegp.engines.exact.large import group_bytes
from twostagegp.engines.exact.settings import CHUNKS_AT_A_TIME, EXACT_DEFAULTS, ExactSettings
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

#: Arrays of shape (queries, rows) in memory at a time during prediction.
_LIVE_PANELS = 5
#: Most q x q matrices in memory while a joint covariance is computed: the prior's, its distances
#: and temporaries (four were measured), and one in reserve.
_COVARIANCES = 5
#: Most n x n matrices in memory during one training step: K, its distances, the matrix with noise,
#: L, the inverse, W and two temporaries.
_LIVE_MATRICES = 8
#: Most n x n matrices in memory while a factor is extended: K, its distances, a factor and a
#: temporary.
_GROWING_MATRICES = 4


def dense_bytes(n: int, itemsize: int = 8) -> int:
    """Return the peak bytes of one training step that holds all its matrices.

    Examples
    --------
    >>> dense_bytes(10_000) // 10**6  # MB
    6400
    """
    return _LIVE_MATRICES * n * n * itemsize


def check_dense_memory(
    n: int, device: torch.device, itemsize: int = 8, settings: ExactSettings = EXACT_DEFAULTS
) -> None:
    """Raise MemoryBudgetError if a training step that holds all its matrices does not fit."""
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
    """Return the peak bytes of an exact fit to n distinct rows, and of predictions from it.

    ``groups`` are the sizes of the groups of rows that are held out together; it is empty without
    groups. Large groups need additional matrices.

    Examples
    --------
    >>> exact_bytes(4_000, torch.device("cpu")) // 10**6  # MB
    1024
    >>> exact_bytes(20_000, torch.device("cpu")) // 10**6
    4183
    """
    if n <= settings.blocked_rows:
        return dense_bytes(n, itemsize)
    panels = _LIVE_PANELS * _prediction_entries(device, settings) * max(itemsize, 8)
    predicting = n * n * itemsize + panels
    training = blocked_bytes(n, device, itemsize, settings) + group_bytes(n, groups, itemsize)
    return max(training, predicting)


def _prediction_entries(device: torch.device, settings: ExactSettings) -> int:
    """Return the entries of all panels that predictions hold at a time, above ``blocked_rows``."""
    at_a_time = CHUNKS_AT_A_TIME if device.type == "cpu" else 1
    return at_a_time * settings.prediction_entries(device)


def plan_factor(
    n: int,
    device: torch.device,
    dtype: torch.dtype,
    groups: Sequence[int] = (),
    settings: ExactSettings = EXACT_DEFAULTS,
) -> torch.dtype:
    """Return the dtype in which a factor of n distinct rows fits into memory.

    It is that of the rows if there is enough memory, otherwise float32 for more than
    ``settings.blocked_rows`` rows. Raises MemoryBudgetError if neither fits. Called before an exact
    fit begins.
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

    def needed_by_subset(rows: int) -> int:
        """Return the bytes that a random subset needs, in which groups shrink in proportion."""
        some = [max(1, g * rows // n) for g in groups]
        return needed(rows, itemsize, some)

    total, most = needed(n, itemsize, groups), _most_rows(available, needed_by_subset)
    raise _too_large(n, device, total, available, most, others)


#: Memory that was free before the first of several targets, and the number of other targets.
_TARGETS: ContextVar[tuple[int, int] | None] = ContextVar("_TARGETS", default=None)


@contextmanager
def several_targets(
    device: torch.device, p: int, settings: ExactSettings = EXACT_DEFAULTS
) -> Iterator[None]:
    """Reserve memory for the factors of all p targets while each of them is fitted.

    Free memory is measured once, at the beginning, so that all targets use the same precision.
    """
    available = settings.free_bytes(device) if p > 1 else None
    token = _TARGETS.set(None if available is None else (available, p - 1))
    try:
        yield
    finally:
        _TARGETS.reset(token)


def memory_of_targets(device: torch.device, settings: ExactSettings) -> tuple[int | None, int]:
    """Return the free memory, and how many factors of other targets have to fit into it too."""
    known = _TARGETS.get()
    return (settings.free_bytes(device), 0) if known is None else known


def _most_rows(available: int, needed: Callable[[int], int]) -> int:
    """Return the largest number of rows for which ``needed(rows) <= available``."""
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
    """Return the peak bytes of the joint covariance of q points, from a factor of n rows.

    Examples
    --------
    >>> covariance_bytes(1_000, 50_000, torch.device("cpu")) // 10**6  # MB
    1071
    """
    panels = min(_prediction_entries(device, settings), q * n)
    return q * n * itemsize + 8 * max(_LIVE_PANELS * panels, _COVARIANCES * q * q)


def check_covariance_memory(
    q: int, n: int, device: torch.device, itemsize: int, settings: ExactSettings = EXACT_DEFAULTS
) -> None:
    """Raise MemoryBudgetError if a joint covariance does not fit on the model's device."""

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
    """Return whether a model extended to n distinct rows can keep the factors of all its kernels.

    Raises MemoryBudgetError if the update does not fit even with one factor at a time. ``before``
    is the number of distinct rows before the update.
    """
    available = settings.free_bytes(device)
    if available is None or _growing_bytes(n, factors, itemsize) <= available:
        return True

    def needed(rows: int) -> int:
        # Above blocked_rows a factor that cannot be extended is recomputed, in float32 if needed.
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
    """Return the peak bytes of extending factors to n rows while ``factors`` of them are kept."""
    return (_GROWING_MATRICES + factors) * n * n * itemsize


def can_grow(
    n: int, device: torch.device, itemsize: int, settings: ExactSettings = EXACT_DEFAULTS
) -> bool:
    """Return whether there is memory for the matrices that extend a factor to n rows."""
    available = settings.free_bytes(device) if n > settings.blocked_rows else None
    return available is None or _growing_bytes(n, 1, itemsize) <= available
