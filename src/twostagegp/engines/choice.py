"""The choice of ``method="auto"``: exact, or neighbours if an exact fit would cost too much."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from twostagegp.engines.exact.settings import EXACT_DEFAULTS, ExactSettings
from twostagegp.engines.memory import exact_bytes, memory_of_targets

__all__ = ["choose_method", "exact_seconds"]

#: Factorisations of all rows that take as long as a two-stage fit, training and conditioning
#: together: with all matrices in memory (benchmarks.exact_speed), and with one of them
#: (benchmarks.exact_scale).
_FACTORISATIONS, _FACTORISATIONS_OF_LARGE = 85.0, 24.0
#: Seconds per row that the latter spends on the search and on calibration.
_SECONDS_PER_ROW = {"cpu": 4e-3, "cuda": 4e-4}
#: Double-precision operations per second that are assumed, for one or two CPU cores and for a GPU.
#: Constants, so that the choice does not depend on the load of the machine. Any other device counts
#: as a CPU: neighbours then take over too early rather than too late.
_RATES = {"cpu": 4e10, "cuda": 4e13}


def exact_seconds(n: int, device: torch.device, settings: ExactSettings = EXACT_DEFAULTS) -> float:
    """Return roughly how many seconds an exact two-stage fit of n distinct rows takes.

    Examples
    --------
    >>> import torch
    >>> exact_seconds(1000, torch.device("cpu")) < 1.0 < exact_seconds(10_000, torch.device("cpu"))
    True
    """
    kind = device.type if device.type in _RATES else "cpu"
    one = n**3 / 3.0 / _RATES[kind]
    if n <= settings.blocked_rows:
        return _FACTORISATIONS * one
    return _FACTORISATIONS_OF_LARGE * one + _SECONDS_PER_ROW[kind] * n


def choose_method(
    n: int,
    device: torch.device,
    itemsize: int = 8,
    groups: Sequence[int] = (),
    most_seconds: float = 60.0,
    settings: ExactSettings = EXACT_DEFAULTS,
) -> tuple[str, str]:
    """Return the method for n distinct rows in groups of these sizes, and the reason.

    The method is ``"neighbors"`` if an exact fit would take more than ``most_seconds`` or more
    memory than is available, else ``"exact"``.

    Examples
    --------
    >>> import torch
    >>> choose_method(500, torch.device("cpu"))
    ('exact', '500 distinct rows')
    >>> choose_method(50_000, torch.device("cpu"))[0]
    'neighbors'
    """
    available, others = memory_of_targets(device, settings)
    needed = exact_bytes(n, device, itemsize, groups, settings) + others * n * n * itemsize
    if available is not None and needed > available:
        return "neighbors", (
            f"an exact fit of {n} distinct rows would need {needed / 2**30:.0f} GiB of "
            f"{available / 2**30:.0f}"
        )
    seconds = exact_seconds(n, device, settings)
    if seconds > most_seconds:
        return "neighbors", f"an exact fit of {n} distinct rows would take about {seconds:.0f} s"
    return "exact", f"{n} distinct rows"
