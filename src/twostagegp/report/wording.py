"""Numbers, values and verdicts as text for a report."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

__all__ = [
    "SLIGHT_DIFFERENCE",
    "cell",
    "chance_range",
    "count",
    "coverage_verdict",
    "notes_sentence",
    "number",
    "percent",
    "plural",
]


#: A difference between nominal and observed coverage below this is called slight.
SLIGHT_DIFFERENCE = 0.01


def number(value: float, digits: int = 3) -> str:
    """Return a number with ``digits`` significant digits, without an exponent if possible.

    Examples
    --------
    >>> number(1234.567), number(-0.012345), number(3.0, 4), number(float("nan"))
    ('1235', '−0.0123', '3', '–')
    >>> number(1.5e-9)
    '1.50e−9'
    """
    value = float(value)
    if not math.isfinite(value):
        return "–" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value == 0.0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if not -5 < size < 9:
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        text = f"{mantissa}e{int(exponent)}"
    elif value == round(value) and abs(value) < 1e9:
        text = f"{value:.0f}"
    else:
        text = f"{value:.{max(0, digits - 1 - size)}f}"
    whole, dot, rest = text.partition(".")
    if "e" not in text and len(whole.lstrip("-")) > 4:
        whole = f"{int(whole):,}".replace(",", "\u202f")
    return (whole + dot + rest).replace("-", "−")


def percent(share: float, digits: int = 0) -> str:
    r"""Return a share in percent; only exact values are written as 0 % or 100 %.

    Examples
    --------
    >>> percent(0.9512), percent(0.9999), percent(0.0), percent(0.001)
    ('95\xa0%', '> 99\xa0%', '0\xa0%', '< 1\xa0%')
    """
    if not math.isfinite(share):
        return "–"
    text = f"{100.0 * share:.{digits}f}"
    edge = 10.0**-digits
    if share < 1.0 and float(text) == 100.0:
        return f"> {100.0 - edge:.{digits}f}\u00a0%"
    if share > 0.0 and float(text) == 0.0:
        return f"< {edge:.{digits}f}\u00a0%"
    return f"{text}\u00a0%"


def count(n: int) -> str:
    r"""Return an integer as text, with thin spaces between groups of digits from 10,000.

    Examples
    --------
    >>> count(12), count(1234567)
    ('12', '1\u202f234\u202f567')
    """
    return f"{n:,}".replace(",", "\u202f") if n >= 10_000 else str(n)


def plural(n: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun in the singular or plural.

    Examples
    --------
    >>> plural(1, "row"), plural(3, "row"), plural(2, "class", "classes")
    ('1 row', '3 rows', '2 classes')
    """
    return f"{count(n)} {one if n == 1 else many or one + 's'}"


def cell(value: Any) -> str:
    """Return a value of the user's table as text; a missing value becomes "(missing)".

    Examples
    --------
    >>> cell(pd.Timestamp("2024-05-01")), cell(None), cell(True), cell(2.50001), cell("north")
    ('2024-05-01', '(missing)', 'true', '2.5', 'north')
    """
    if value is None or (np.ndim(value) == 0 and pd.isna(value)):
        return "(missing)"
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, int | np.integer):
        return str(int(value)).replace("-", "−")
    if isinstance(value, float | np.floating):
        text = number(float(value), 4)
        return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
    if isinstance(value, pd.Timestamp):
        midnight = value == value.normalize()
        return value.strftime("%Y-%m-%d" if midnight else "%Y-%m-%d %H:%M")
    text = str(value)
    return text if len(text) <= 60 else text[:59] + "…"


def chance_range(n: int, share: float, level: float = 0.95) -> tuple[int, int]:
    """Return the ends of the central interval, of probability ``level``, of Binomial(n, share).

    Examples
    --------
    >>> chance_range(100, 0.95)
    (90, 99)
    """
    low, high = stats.binom.interval(level, n, share)
    return int(low), int(high)


def coverage_verdict(inside: int, n: int, level: float) -> tuple[str, str]:
    """Compare the observed coverage of intervals with their level.

    Returns one of "hold", "narrow" and "wide", and a sentence. With very many rows even a
    negligible difference is significant; below one percentage point it is called slight.

    Examples
    --------
    >>> kind, text = coverage_verdict(80, 100, 0.95)
    >>> kind
    'narrow'
    """
    low, high = chance_range(n, level)
    observed = (
        f"The {percent(level)} intervals contain {count(inside)} of {plural(n, 'outcome')}, "
        f"{percent(inside / n, 1)}"
    )
    allowed = (
        f"a calibrated model would have {percent(low / n, 1)} to {percent(high / n, 1)} on so many "
        "rows"
    )
    slightly = "slightly " if abs(inside / n - level) < SLIGHT_DIFFERENCE else ""
    if inside < low:
        return "narrow", f"{observed}: they are {slightly}too narrow ({allowed})."
    if inside > high:
        return "wide", f"{observed}: they are {slightly}wider than necessary ({allowed})."
    return "hold", f"{observed}, as expected ({allowed})."


def notes_sentence(n: int) -> str:
    """Return the sentence that announces n notes.

    Examples
    --------
    >>> notes_sentence(1)
    'There is 1 note to read before using the model.'
    """
    return f"There {'is' if n == 1 else 'are'} {plural(n, 'note')} to read before using the model."
