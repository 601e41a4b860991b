"""Write the page of every measurement, and copy its tables into the README and the documentation.

A page of the documentation names what it wants between two comments,
``<!-- begin NAME: SECTION | SECTION -->`` and ``<!-- end NAME -->``; this program replaces
everything between them by the sections of ``NAME.md`` in ``benchmarks/results`` or
``experiments/results`` with these titles, or by the whole page if it names no section. No number is
typed by hand. Figures stay in the folders of results: the site takes them from there when it is
built (``docs/result_figures.py``).

    python -m measurements.publish
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from measurements.runner import Measurement
from measurements.store import write_whole

__all__ = ["MODULES", "ROOT", "fill", "main", "measurements", "pages", "sections"]

ROOT = Path(__file__).parent.parent
#: Folders of results.
RESULTS = (ROOT / "benchmarks" / "results", ROOT / "experiments" / "results")
#: Modules with a ``MEASUREMENT``.
MODULES = (
    "benchmarks.calibrated_predictions",
    "benchmarks.calibration",
    "benchmarks.calibration_defaults",
    "benchmarks.calibration_gpnn",
    "benchmarks.calibration_shift",
    "benchmarks.classifier_presets",
    "benchmarks.classifier_scale",
    "benchmarks.cli_stream",
    "benchmarks.dask_scale",
    "benchmarks.dask_search",
    "benchmarks.defaults",
    "benchmarks.device_agreement",
    "benchmarks.evaluation_floor",
    "benchmarks.everyday",
    "benchmarks.exact_scale",
    "benchmarks.exact_speed",
    "benchmarks.first_call",
    "benchmarks.function_intervals",
    "benchmarks.groups",
    "benchmarks.kernel_search",
    "benchmarks.many_columns",
    "benchmarks.neighbor_defaults",
    "benchmarks.neighbor_search",
    "benchmarks.neighbors_scale",
    "benchmarks.neighbors_speed",
    "benchmarks.outside",
    "benchmarks.quick_preset",
    "benchmarks.reliability",
    "benchmarks.scale",
    "benchmarks.small_tables",
    "benchmarks.toy",
    "benchmarks.tail_defaults",
    "benchmarks.value_defaults",
    "benchmarks.two_states_scores",
    "benchmarks.uci_large",
    "benchmarks.uci_small",
    "benchmarks.uci_small_peers",
    "benchmarks.update_drift",
    "benchmarks.update_speed",
    "experiments.ablation",
    "experiments.contours",
    "experiments.figure4",
    "experiments.foundation",
    "experiments.kernel_recovery",
    "experiments.misspecification_tests",
    "experiments.table1",
    "experiments.table2",
    "experiments.table4",
    "experiments.theory",
    "experiments.toys",
)
#: Pages whose marked places another program fills.
OTHERS = ("docs/compatibility.md",)
_MARKED = re.compile(
    r"(?P<begin><!-- begin (?P<name>\w+)(?:: (?P<wanted>.*?))? -->\n).*?"
    r"(?P<end><!-- end (?P=name) -->)",
    flags=re.DOTALL,
)


def measurements(modules: Iterable[str] = MODULES) -> Iterator[Measurement[Any]]:
    """Yield the measurements of some modules."""
    for module in modules:
        yield import_module(module).MEASUREMENT


def pages() -> list[Path]:
    """Return the pages that have marked places."""
    every = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    return [
        path
        for path in every
        if path.relative_to(ROOT).as_posix() not in OTHERS
        and _MARKED.search(path.read_text(encoding="utf-8"))
    ]


def sections(page: str) -> dict[str, str]:
    """Return the ``##`` and ``###`` sections of a page by title, without their headings.

    Examples
    --------
    >>> sections("# T\\n\\n## A\\n\\none\\n\\n### B\\n\\ntwo\\n")
    {'A': 'one', 'B': 'two'}
    """
    parts = re.split(r"^#{2,3} (.+)$", page, flags=re.MULTILINE)
    return {title: text.strip() for title, text in zip(parts[1::2], parts[2::2], strict=True)}


def fill(text: str, folder: Path, results: Sequence[Path] = RESULTS) -> str:
    """Return a page with everything between its markers replaced.

    Parameters
    ----------
    text : str
        The page.
    folder : Path
        Its folder: links to figures become relative to it.
    results : sequence of Path
        Folders of results; the first that has a page of the name is taken.
    """

    def replacement(match: re.Match[str]) -> str:
        source = next(place for place in results if (place / f"{match['name']}.md").exists())
        page = (source / f"{match['name']}.md").read_text(encoding="utf-8")
        if match["wanted"]:
            found = sections(page)
            titles = [title.strip() for title in match["wanted"].split("|")]
            body = "\n\n".join(f"**{title}.** {_after_heading(found[title])}" for title in titles)
        else:
            _, _, body = page.partition("\n")
            body = re.sub(r"^##", "###", body.strip(), flags=re.MULTILINE)
        there = os.path.relpath(source, folder)
        body = re.sub(r"\]\((\w+\.svg)\)", rf"]({there}/\1)", body)
        return f"{match['begin']}\n{body}\n\n{match['end']}"

    return _MARKED.sub(replacement, text)


def _after_heading(text: str) -> str:
    """Put a blank line before a table, which cannot begin on the line of its title."""
    return f"\n\n{text}" if text.startswith("|") else text


def main() -> int:
    """Write every page and figure of the results, then fill the documentation; returns 0."""
    for measurement in measurements():
        measurement.write()
    for path in pages():
        write_whole(path, fill(path.read_text(encoding="utf-8"), path.parent))
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
