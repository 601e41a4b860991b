"""Small figures for a report, each with a text alternative."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from twostagegp.report.page import Picture

__all__ = ["axes", "picture"]


def axes(width: float = 3.8, height: float = 3.0) -> Any:
    """Return axes on a new figure of the size used in reports."""
    return Figure(figsize=(width, height), layout="constrained").subplots()


def picture(ax: Any, title: str, alt: str) -> Picture:
    """Return the figure of the axes as a picture for the page."""
    return Picture.from_figure(ax.figure, title, alt)
