"""Kinds of command line arguments that several programs take."""

from __future__ import annotations

import argparse

__all__ = ["positive"]


def positive(text: str) -> int:
    """A positive whole number.

    Examples
    --------
    >>> positive("3")
    3
    """
    if not (text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)
