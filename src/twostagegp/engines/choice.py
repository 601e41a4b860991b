"""Which engine a table gets when the user leaves it open."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from twostagegp.engines.exact.blocked import BLOCKED_ROWS
from twostagegp.engines.memory import exact_bytes, memory_of_targets

__all__ = ["METHODS", "choose_method", "exact_seconds"]

METHODS = ("exact", "neighbors", "vecchia", "svgp")

#: Factorisations of all rows that a two-stage fit amounts to, training and conditioning together:
#: with all matrices at hand (benchmarks.exact_speed), and with one (benchmarks.exact_scale).
_FACTORISATIONS, _FACTORISATIONS_OF_LARGE = 85.0, 24.0
#: Seconds a row that the latter spends on the search and on calibration.
_SECONDS_A_ROW = {"cpu": 4e-3, "cuda": 4e-4}
#: Double-precision operations a second that are assumed: a CPU core or two, and a GPU. Constants,
#: so that the choice does not depend on what else the machine is doing. Nothing is known of other
#: devices: they are no faster than a CPU, so that neighbours take over rather too soon than never.
_RATES = {"cpu": 4e10, "cuda": 4e13}


def exact_seconds(n: int, device: torch.device, blocked_rows: int = BLOCKED_ROWS) -> float:
    """Return the rough seconds of an exact two-stage fit on n distinct rows.

    Examples
    --------
    >>> import torch
    >>> exact_seconds(1000, torch.device("cpu")) < 1.0 < exact_seconds(10_000, torch.device("cpu"))
    True
    """
    kind = device.type if device.type in _RATES else "cpu"
    one = n**3 / 3.0 / _RATES[kind]
    if n <= blocked_rows:
        return _FACTORISATIONS * one
    return _FACTORISATIONS_OF_LARGE * one + _SECONDS_A_ROW[kind] * n


def choose_method(
    n: int,
    device: torch.device,
    itemsize: int = 8,
    groups: Sequence[int] = (),
    most_seconds: float = 60.0,
    blocked_rows: int = BLOCKED_ROWS,
) -> tuple[str, str]:
    """Return the method for n distinct rows in groups of these sizes, and the reason.

    The exact method gives way where it would take more than ``most_seconds`` or more memory than
    there is.

    Examples
    --------
    >>> import torch
    >>> choose_method(500, torch.device("cpu"))
    ('exact', '500 distinct rows: about 0 s')
    >>> choose_method(50_000, torch.device("cpu"))[0]
    'neighbors'
    """
    available, others = memory_of_targets(device)
    needed = exact_bytes(n, device, itemsize, groups, blocked_rows) + others * n * n * itemsize
    if available is not None and needed > available:
        return "neighbors", (
            f"an exact fit of {n} distinct rows would need {needed / 2**30:.0f} GiB of "
            f"{available / 2**30:.0f}"
        )
    seconds = exact_seconds(n, device, blocked_rows)
    if seconds > most_seconds:
        return "neighbors", f"an exact fit of {n} distinct rows would take about {seconds:.0f} s"
    return "exact", f"{n} distinct rows: about {seconds:.0f} s"
