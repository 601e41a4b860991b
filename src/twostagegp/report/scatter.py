"""The interactive picture of predicted against observed outcomes, drawn as SVG elements.

The coordinates are computed here, in the units of the SVG. Without JavaScript, every point shows
its row as a tooltip and the bars are the 95 % intervals. With JavaScript, a slider changes the
level of the intervals.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from twostagegp.report.predictions import TargetPredictions, sample_rows
from twostagegp.report.wording import chance_range, number, percent

__all__ = ["MOST_POINTS", "scatter"]

Array = NDArray[np.float64]

#: Largest number of points in the picture.
MOST_POINTS = 400
#: Size of the picture and of its margins: left, right, top, bottom.
WIDTH, HEIGHT = 420.0, 330.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 8.0, 8.0, 42.0
#: Levels of the slider, in percent.
LEVELS = tuple(range(50, 100))


def scatter(target: TargetPredictions, labels: list[str], level: float = 0.95) -> dict[str, Any]:
    """Return everything that the template and the script need for this picture."""
    rows = sample_rows(target.n, MOST_POINTS)
    ends = target.interval(level)
    wide = target.interval(0.99)[rows]
    x = _Axis(target.y[rows], _LEFT, WIDTH - _RIGHT)
    y = _Axis(np.concatenate([target.y[rows], _central_range(wide)]), HEIGHT - _BOTTOM, _TOP)
    inside = target.within(ends)
    observed = _rounded(target.y[rows], target.y).tolist()
    points = [
        {
            "label": labels[i],
            "x": x.position(target.y[i]),
            "y": y.position(target.mean[i]),
            "low": y.position(ends[i, 0]),
            "high": y.position(ends[i, 1]),
            "inside": bool(inside[i]),
            "text": f"row {labels[i]}: observed {number(target.y[i])}, predicted "
            f"{number(target.mean[i])}, interval {number(ends[i, 0])} to {number(ends[i, 1])}",
        }
        for i in rows
    ]
    low, high = max(x.low, y.low), min(x.high, y.high)
    every = zip(LEVELS, target.intervals([level / 100.0 for level in LEVELS]), strict=True)
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "points": points,
        "thinned": len(rows) < target.n,
        "x_ticks": x.ticks(),
        "y_ticks": y.ticks(),
        "base": HEIGHT - _BOTTOM,
        "left": _LEFT,
        "diagonal": (x.position(low), y.position(low), x.position(high), y.position(high)),
        "data": {
            "levels": [
                _level_row(target, level / 100.0, interval, rows) for level, interval in every
            ],
            "points": [
                [
                    labels[i],
                    y_i,
                    _six_digits(target.mean[i]),
                    _six_digits(target.sigma[i]),
                ]
                for i, y_i in zip(rows, observed, strict=True)
            ],
            "slope": y.slope,
            "offset": y.offset,
            "n": target.n,
        },
    }


def _level_row(
    target: TargetPredictions, level: float, interval: Array, rows: NDArray[np.int64]
) -> dict[str, Any]:
    """Return one position of the slider; ``low`` and ``high`` are the ends for each point.

    If they are the same number of sigmas for all points, it is that number.
    """
    low: float | list[float]
    high: float | list[float]
    if target.law.values is None:
        low, high = (_six_digits(end) for end in target.ends(level))
    else:
        low, high = (_rounded(ends[rows], target.y).tolist() for ends in interval.T)
    inside = int(target.within(interval).sum())
    allowed = chance_range(target.n, level)
    return {
        "level": round(100 * level),
        "low": low,
        "high": high,
        "inside": inside,
        "share": percent(inside / target.n, 1),
        "from": percent(allowed[0] / target.n, 1),
        "to": percent(allowed[1] / target.n, 1),
        "verdict": _verdict(inside, allowed),
        "half": number(float(np.median(interval[:, 1] - interval[:, 0])) / 2.0),
    }


def _verdict(inside: int, allowed: tuple[int, int]) -> str:
    if inside < allowed[0]:
        return "too narrow"
    return "wider than necessary" if inside > allowed[1] else "within what chance allows"


def _rounded(values: Array, y: Array) -> Array:
    """Return values to a millionth of the range of y, whatever their offset."""
    digits = 6 - math.floor(math.log10(max(float(np.ptp(y)), 1e-300)))
    return np.round(values, max(digits, 0))


def _six_digits(value: float) -> float:
    return float(f"{float(value):.6g}")


def _central_range(ends: Array) -> Array:
    """Return the central range of the interval ends, without the widest few."""
    return np.quantile(ends, [0.01, 0.99])


def tick_text(value: float) -> str:
    """Return the shortest text of a round number.

    Examples
    --------
    >>> tick_text(250.0), tick_text(-2e-12), tick_text(0.5)
    ('250', '−2e−12', '0.5')
    """
    text = number(value, 4)
    if "e" in text:
        return f"{value:.3g}".replace("e-0", "e-").replace("e+", "e").replace("-", "−")
    return text.rstrip("0").rstrip(".") if "." in text else text


class _Axis:
    """A linear map from values to SVG coordinates, and its ticks."""

    def __init__(self, values: Array, begin: float, end: float) -> None:
        low, high = float(np.min(values)), float(np.max(values))
        room = 0.04 * (high - low) or max(1.0, abs(low))
        self.low, self.high = low - room, high + room
        self.slope = (end - begin) / (self.high - self.low)
        self.offset = begin - self.slope * self.low

    def position(self, value: float) -> float:
        return round(self.offset + self.slope * float(value), 1)

    def ticks(self) -> list[tuple[float, str]]:
        values = MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.high)
        return [
            (self.position(value), tick_text(value))
            for value in values
            if self.low <= value <= self.high
        ]
