"""Show figures of the results on the site.

Figures exist once, in ``benchmarks/results`` and ``experiments/results``, and pages link to them
there, so that the links also work in the repository. MkDocs loads this file as a hook: it adds the
figures to the site as ``figures/NAME.svg`` and rewrites the links.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

__all__ = ["linked_to_site", "on_files", "on_page_markdown"]

ROOT = Path(__file__).parent.parent
FOLDERS = ("benchmarks/results", "experiments/results")


def linked_to_site(text: str, page: str) -> str:
    """Return a page whose links to figures of the results point to the figures of the site.

    Examples
    --------
    >>> linked_to_site("![a](../../experiments/results/a.svg)", "paper/theory.md")
    '![a](../figures/a.svg)'
    """
    there = posixpath.relpath("figures", posixpath.dirname(page))
    folders = "|".join(FOLDERS)
    return re.sub(rf"\]\((?:\.\./)+(?:{folders})/(\w+\.svg)\)", rf"]({there}/\1)", text)


def on_files(files: Any, config: Any) -> None:
    """Add the figures to the files of the site."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).glob("*.svg")):
            files.append(File.generated(config, f"figures/{path.name}", abs_src_path=str(path)))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page."""
    return linked_to_site(markdown, page.file.src_uri)
