"""Render a page from a template, embed its pictures, and write it atomically.

A picture is embedded as an SVG in a data URI, with a text alternative. The colours of
:mod:`twostagegp.plotting` are replaced by CSS variables that have a second value for dark mode, so
that one picture serves both colour schemes.
"""

from __future__ import annotations

import base64
import io
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from twostagegp.plotting import INK, MODEL, MUTED, TRUTH

__all__ = ["Picture", "render_page", "template_text", "write_page"]

#: For each colour of the plots: its name in the SVG, and its value in dark mode.
_DARK = {
    INK: ("ink", "#e4e8ed"),
    MODEL: ("model", "#6cb4f0"),
    MUTED: ("muted", "#98a3b0"),
    TRUTH: ("truth", "#f29a66"),
}

#: Settings of the SVG writer: text is stored as text, and ids do not change from run to run.
_SVG: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "twostagegp"}


@dataclass(frozen=True)
class Picture:
    """A picture for the page.

    Attributes
    ----------
    title : str
        Short heading.
    alt : str
        Text alternative, for readers who cannot see the picture.
    src : str
        Data URI.
    """

    title: str
    alt: str
    src: str

    @classmethod
    def from_figure(cls, figure: Figure, title: str, alt: str) -> Picture:
        """Embed a matplotlib figure.

        Examples
        --------
        >>> from matplotlib.figure import Figure
        >>> Picture.from_figure(Figure(), "Nothing", "An empty picture.").src[:26]
        'data:image/svg+xml;base64,'
        """
        code = base64.b64encode(_adaptive_svg(figure).encode()).decode("ascii")
        return cls(title, alt, f"data:image/svg+xml;base64,{code}")


def _adaptive_svg(figure: Figure) -> str:
    """Return the figure as an SVG whose colours follow the reader's colour scheme."""
    stream = io.StringIO()
    with matplotlib.rc_context(_SVG):
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    svg = stream.getvalue()
    for light, (name, _) in _DARK.items():
        svg = svg.replace(light, f"var(--{name})")
    light_rule = ";".join(f"--{name}:{light}" for light, (name, _) in _DARK.items())
    dark_rule = ";".join(f"--{name}:{dark}" for name, dark in _DARK.values())
    style = (
        f"<style>svg{{{light_rule}}}text{{font-family:system-ui,sans-serif!important}}"
        f"@media (prefers-color-scheme:dark){{svg{{{dark_rule}}}}}</style>"
    )
    return re.sub(r"(<svg[^>]*>)", lambda match: match[1] + style, svg, count=1)


def render_page(context: Mapping[str, Any], template: str = "report.html.j2") -> str:
    """Return a page from a template of this package; a missing name in the context is an error.

    Parameters
    ----------
    context : mapping of str
        The values of the names that the template uses.
    template : str
        File in ``twostagegp/report/templates``.
    """
    environment = Environment(
        loader=PackageLoader("twostagegp.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(context)


def template_text(name: str) -> str:
    """Return the unrendered text of a file in this package's template folder."""
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


def write_page(
    path: str | os.PathLike[str], context: Mapping[str, Any], template: str = "report.html.j2"
) -> Path:
    """Render a page and write it to ``path`` atomically.

    The text is written to a temporary file in the same folder, which then replaces the old file in
    one step: a reader never sees an incomplete page, and a failure leaves the old page unchanged.

    Parameters
    ----------
    path : path-like
        Missing folders are created.
    context, template
        As in :func:`render_page`.

    Returns
    -------
    path : Path
    """
    target = Path(path)
    text = render_page(context, template)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    return target
