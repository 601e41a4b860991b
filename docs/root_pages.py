"""Show documents of the repository's root on the site.

A page that holds only ``<!-- from: NAME.md -->`` shows that document; MkDocs loads this file as a
hook. Links of the document are relative to the root and are rewritten to be relative to ``docs``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

__all__ = ["on_page_markdown", "relative_to_docs"]

ROOT = Path(__file__).parent.parent
#: Documents of the root that have a page on the site.
_PAGES = {"ARCHITECTURE.md": "architecture.md", "CONTRIBUTING.md": "contributing.md"}


def relative_to_docs(text: str) -> str:
    """Rewrite the links of a document of the root; a link without a page becomes plain text.

    Examples
    --------
    >>> relative_to_docs("[a](docs/a.md), [b](CONTRIBUTING.md), [c](CHANGELOG.md), [d](https://d)")
    '[a](a.md), [b](contributing.md), c, [d](https://d)'
    """

    def link(found: re.Match[str]) -> str:
        shown, target = found.groups()
        if "://" in target or target.startswith("#"):
            return found.group()
        if target.startswith("docs/"):
            return f"[{shown}]({target.removeprefix('docs/')})"
        return f"[{shown}]({_PAGES[target]})" if target in _PAGES else shown

    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", link, text)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the text of a page that names a document of the root."""
    found = re.fullmatch(r"\s*<!-- from: (\w+\.md) -->\s*", markdown)
    if found is None:
        return markdown
    return relative_to_docs((ROOT / found[1]).read_text(encoding="utf-8"))
