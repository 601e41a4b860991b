"""The one picture that is drawn as elements of the page, so that a point can be asked about.

Places are worked out here, in the units of the SVG; without a script every point still shows its
row as a tooltip, and the bars are those of the 95 % interval. With one, a slider moves the ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from twostagegp.report.facts import Predicted, thin
from twostagegp.report.words import chance_range, number, percent

__all__ = ["MOST_POINTS", "scatter"]

Array = NDArray[np.float64]

#: Points in the picture.
MOST_POINTS = 400
#: Size of the picture and of its margins: left, right, top, bottom.
WIDTH, HEIGHT = 420.0, 330.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 8.0, 8.0, 42.0
#: Levels of the slider, in percent.
LEVELS = tuple(range(50, 100))


def scatter(one: Predicted, labels: list[str], level: float = 0.95) -> dict[str, Any]:
    """Everything that the template and the script need for predicted against observed."""
    rows = thin(one.n, MOST_POINTS)
    ends = one.interval(level)
    wide = one.interval(0.99)[rows]
    x = _Axis(one.y[rows], _LEFT, WIDTH - _RIGHT)
    y = _Axis(np.concatenate([one.y[rows], _core(wide)]), HEIGHT - _BOTTOM, _TOP)
    inside = one.inside(level)
    points = [
        {
            "label": labels[i],
            "x": x.place(one.y[i]),
            "y": y.place(one.mean[i]),
            "low": y.place(ends[i, 0]),
            "high": y.place(ends[i, 1]),
            "inside": bool(inside[i]),
            "text": f"row {labels[i]}: observed {number(one.y[i])}, predicted "
            f"{number(one.mean[i])}, interval {number(ends[i, 0])} to {number(ends[i, 1])}",
        }
        for i in rows
    ]
    low, high = max(x.low, y.low), min(x.high, y.high)
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "points": points,
        "thinned": len(rows) < one.n,
        "x_ticks": x.ticks(),
        "y_ticks": y.ticks(),
        "base": HEIGHT - _BOTTOM,
        "left": _LEFT,
        "diagonal": (x.place(low), y.place(low), x.place(high), y.place(high)),
        "data": {
            "levels": [_level_row(one, level / 100.0) for level in LEVELS],
            "points": [
                [labels[i], _short(one.y[i]), _short(one.mean[i]), _short(one.sigma[i])]
                for i in rows
            ],
            "slope": y.slope,
            "offset": y.offset,
            "n": one.n,
        },
    }


def _level_row(one: Predicted, level: float) -> dict[str, Any]:
    low, high = one.ends(level)
    inside = int(one.inside(level).sum())
    allowed = chance_range(one.n, level)
    return {
        "level": round(100 * level),
        "low": _short(low),
        "high": _short(high),
        "inside": inside,
        "share": percent(inside / one.n, 1),
        "from": percent(allowed[0] / one.n, 1),
        "to": percent(allowed[1] / one.n, 1),
        "verdict": _verdict(inside, allowed),
        "half": number(float(np.median(one.sigma)) * (high - low) / 2.0),
    }


def _verdict(inside: int, allowed: tuple[int, int]) -> str:
    if inside < allowed[0]:
        return "too narrow"
    return "wider than needed" if inside > allowed[1] else "within what chance allows"


def _short(value: float) -> float:
    return float(f"{float(value):.6g}")


def _core(ends: Array) -> Array:
    """Ends without the widest few, which would press all others together."""
    return np.quantile(ends, [0.01, 0.99])


def tick_text(value: float) -> str:
    """A round number, as short as it can be.

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
    """A linear map from values to places, and its ticks."""

    def __init__(self, values: Array, begin: float, end: float) -> None:
        low, high = float(np.min(values)), float(np.max(values))
        room = 0.04 * (high - low) or max(1.0, abs(low))
        self.low, self.high = low - room, high + room
        self.slope = (end - begin) / (self.high - self.low)
        self.offset = begin - self.slope * self.low

    def place(self, value: float) -> float:
        return round(self.offset + self.slope * float(value), 1)

    def ticks(self) -> list[tuple[float, str]]:
        found = MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.high)
        return [
            (self.place(value), tick_text(value))
            for value in found
            if self.low <= value <= self.high
        ]
