"""Figures as SVG."""

from __future__ import annotations

import io
from typing import Any

__all__ = ["svg"]


def svg(figure: Any) -> str:
    """Return a matplotlib figure as SVG text that is the same in every run."""
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "twostagegp", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, bbox_inches="tight")
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    return "\n".join(lines) + "\n"
