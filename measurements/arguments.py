"""Kinds of command line arguments that several programs take."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection

__all__ = ["names", "numbers", "positive"]


def positive(text: str) -> int:
    """Parse a positive whole number.

    Examples
    --------
    >>> positive("3")
    3
    """
    if not (text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def names(known: Collection[str]) -> Callable[[str], list[str]]:
    """Return a parser of known names with commas between them; each counts once.

    Examples
    --------
    >>> names(("bike", "pol", "protein"))("pol, bike,pol")
    ['pol', 'bike']
    """

    def chosen_names(text: str) -> list[str]:
        chosen = [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in chosen if name not in known]
        if unknown or not chosen:
            raise argparse.ArgumentTypeError(f"{text!r}: choose from {', '.join(known)}")
        return list(dict.fromkeys(chosen))

    return chosen_names


def numbers(text: str) -> list[int]:
    """Parse whole numbers from 0 on, such as those of folds; each counts once.

    Examples
    --------
    >>> numbers("0-2,5")
    [0, 1, 2, 5]
    """
    chosen: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise argparse.ArgumentTypeError(f"{text!r}: give numbers, as in 0,1 or 0-4")
        chosen += range(int(first), int(last) + 1) if dash else [int(first)]
    if not chosen:
        raise argparse.ArgumentTypeError(f"{text!r} names no number")
    return list(dict.fromkeys(chosen))
