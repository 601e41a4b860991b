"""Small figures for a page, each with the words for a reader who cannot see it."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from twostagegp.report.page import Picture

__all__ = ["axes", "picture"]


def axes(width: float = 3.8, height: float = 3.0) -> Any:
    """Axes on a new figure of the size that pages use."""
    return Figure(figsize=(width, height), layout="constrained").subplots()


def picture(ax: Any, title: str, alt: str) -> Picture:
    """The figure of some axes as a picture of the page."""
    return Picture.from_figure(ax.figure, title, alt)
