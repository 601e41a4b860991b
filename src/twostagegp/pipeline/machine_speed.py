"""How fast this machine is, from two small evaluations of a training objective."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from twostagegp.data.rows import Rows
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.kernels import make_kernel

__all__ = ["MachineSpeed", "machine_speed"]

#: Rows and columns of the evaluations that are timed, and how often each is.
_FEW, _MANY, _COLUMNS, _TIMES = 16, 256, 4, 3
#: Their seconds on the machine on which the constants of ``forecast.py`` were measured.
_USUAL_FEW, _USUAL_MANY = 1.6e-4, 1.5e-3


@dataclass(frozen=True)
class MachineSpeed:
    """Seconds on one core of this machine, divided by those on the machine of the constants.

    Attributes
    ----------
    statements : float
        Of Python statements and calls, from an evaluation on a few rows.
    arithmetic : float
        Of matrices, from an evaluation on many rows, without its statements.
    """

    statements: float
    arithmetic: float


@cache
def machine_speed() -> MachineSpeed:
    """Return the speed of this machine, measured once per process in about ten milliseconds.

    The seconds are those that a core spends on this thread, so that other programs hardly change
    them.

    Examples
    --------
    >>> machine_speed().arithmetic > 0.0
    True
    """
    few, many = _seconds(_FEW), _seconds(_MANY)
    return MachineSpeed(few / _USUAL_FEW, max(many - few, 0.1 * many) / (_USUAL_MANY - _USUAL_FEW))


def _seconds(m: int) -> float:
    """Return the shortest time of an evaluation on m rows."""
    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.normal(size=(m, _COLUMNS)))
    one, zero = torch.ones(m, dtype=X.dtype), torch.zeros(m, dtype=X.dtype)
    engine = ExactEngine(Rows(X, t=X[:, 0].sin(), c=one, q=zero, extra=zero))
    problem = engine.problem(make_kernel("matern32", _COLUMNS, ard=True), "loo")
    start, best = problem.start(), np.inf
    for _ in range(_TIMES):
        begin = time.thread_time()
        problem(start)
        best = min(best, time.thread_time() - begin)
    return best
