"""Copy tables and pictures of the benchmarks and experiments into README and documentation.

A page names what it wants between two comments, ``<!-- begin NAME: SECTION | SECTION -->`` and
``<!-- end NAME -->``; this program replaces everything between them by the sections of
``NAME.md`` in ``benchmarks/results`` or ``experiments/results`` with these titles, or by the whole
page where none is named. No figure is typed by hand.

    python -m benchmarks.publish
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks._store import write_whole

__all__ = ["fill", "main", "sections"]

ROOT = Path(__file__).parent.parent
RESULTS = (ROOT / "benchmarks" / "results", ROOT / "experiments" / "results")
PAGES = (
    "README.md",
    "docs/benchmarks.md",
    "docs/calibration.md",
    "docs/command_line.md",
    "docs/dask.md",
    "docs/defaults.md",
    "docs/foundation.md",
    "docs/hostile.md",
    "docs/kernel_search.md",
    "docs/large_tables.md",
    "docs/paper.md",
    "docs/paper/theory.md",
    "docs/reliability.md",
    "docs/scale.md",
    "docs/updating.md",
)
#: Pictures of these pages, beside them in the documentation.
PICTURES = ("ablation", "contours", "figure4", "table2", "theory", "toys")
_MARKED = re.compile(
    r"(?P<begin><!-- begin (?P<name>\w+)(?:: (?P<wanted>.*?))? -->\n).*?"
    r"(?P<end><!-- end (?P=name) -->)",
    flags=re.DOTALL,
)


def sections(page: str) -> dict[str, str]:
    """The ``##`` and ``###`` sections of a page by title, without their headings.

    Examples
    --------
    >>> sections("# T\\n\\n## A\\n\\none\\n\\n### B\\n\\ntwo\\n")
    {'A': 'one', 'B': 'two'}
    """
    parts = re.split(r"^#{2,3} (.+)$", page, flags=re.MULTILINE)
    return {title: text.strip() for title, text in zip(parts[1::2], parts[2::2], strict=True)}


def fill(text: str, *results: Path) -> str:
    """A page with everything between its markers replaced from the first folder that has it."""

    def replacement(match: re.Match[str]) -> str:
        found_at = [folder / f"{match['name']}.md" for folder in results]
        page = next(path for path in found_at if path.exists()).read_text(encoding="utf-8")
        if match["wanted"]:
            found = sections(page)
            titles = [title.strip() for title in match["wanted"].split("|")]
            body = "\n\n".join(f"**{title}.** {_after_heading(found[title])}" for title in titles)
        else:
            _, _, body = page.partition("\n")
            body = re.sub(r"^##", "###", body.strip(), flags=re.MULTILINE)
        return f"{match['begin']}\n{body}\n\n{match['end']}"

    return _MARKED.sub(replacement, text)


def _after_heading(text: str) -> str:
    """A table cannot begin on the line of its title."""
    return f"\n\n{text}" if text.startswith("|") else text


def main(arguments: Sequence[str] | None = None) -> int:
    """Copy every picture and fill every page; returns 0."""
    for name in PICTURES:
        drawn = (RESULTS[1] / f"{name}.svg").read_text(encoding="utf-8")
        write_whole(ROOT / "docs" / "paper" / f"{name}.svg", drawn)
    drawn = (RESULTS[0] / "scale.svg").read_text(encoding="utf-8")
    write_whole(ROOT / "docs" / "pictures" / "scale.svg", drawn)
    for name in PAGES:
        path = ROOT / name
        write_whole(path, fill(path.read_text(encoding="utf-8"), *RESULTS))
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
