"""List the licences of every package that ``pip install twostagegp`` can install.

A package is needed by the core or by an extra: directly, because ``pyproject.toml`` names it, or
because another needed package names it. Names and licences are read from the metadata of installed
packages: the first of ``License-Expression``, the classifiers, ``License`` and the first line of
the licence's file that is given. Requirements that a marker excludes on this computer (another
system, another Python version) are not followed.

    python -m supply.licences --path .venv-peers/lib/python3.11/site-packages

writes ``docs/licences.md``. ``--path`` adds a folder with packages of an extra that is installed
elsewhere.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["Needed", "direct", "licence", "main", "needed", "page"]

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "licences.md"
_NOT_PERMISSIVE = re.compile(r"GPL|MPL|Mozilla|EPL|CDDL|Proprietary|not stated")
_HEAD = """# Licences

The packages that `pip install twostagegp` and each of its extras install, with the licences that
they state. **Bold** packages are named in `pyproject.toml`; the others are dependencies of these.
`twostagegp[cli]` includes `datasets` and `files`, and `dev` includes everything but `peers` and
`tabpfn`. The weights of TabPFN are no package: [dependencies](dependencies.md) has their licence.
twostagegp itself is under the MIT licence.

`python -m supply.licences` writes this page from the packages that are installed on Linux with the
CPU build of torch. The CUDA build of torch also installs the libraries in `supply/cuda.lock`, most
of them under NVIDIA's own terms.
"""


@dataclass
class Needed:
    """A package, and the parts of ``pyproject.toml`` that need it.

    ``parts`` maps ``"core"`` or the name of an extra to whether it names the package itself.
    """

    distribution: Distribution
    parts: dict[str, bool] = field(default_factory=dict)


def direct(project: Mapping[str, Any]) -> dict[str, list[Requirement]]:
    """Return the requirements of the core and of each extra, without extras of this package.

    Examples
    --------
    >>> project = {
    ...     "name": "me",
    ...     "dependencies": ["a>=1"],
    ...     "optional-dependencies": {"x": ["b"], "all": ["me[x]", "c"]},
    ... }
    >>> {part: [r.name for r in required] for part, required in direct(project).items()}
    {'core': ['a'], 'x': ['b'], 'all': ['c']}
    """
    parts = {"core": project["dependencies"], **project["optional-dependencies"]}
    required = {part: list(map(Requirement, lines)) for part, lines in parts.items()}
    return {part: [r for r in required[part] if r.name != project["name"]] for part in required}


def licence(distribution: Distribution) -> str:
    """Return the licence by the metadata, or else the title of the licence's file.

    Examples
    --------
    >>> from importlib.metadata import distribution
    >>> licence(distribution("numpy")).split()[0]
    'BSD-3-Clause'
    """
    metadata = distribution.metadata
    if expression := metadata.get("License-Expression"):
        return expression
    classifiers = metadata.get_all("Classifier") or []
    names = [c.split(" :: ")[-1] for c in classifiers if c.startswith("License ::")]
    if names and names != ["OSI Approved"]:
        return ", ".join(names)
    stated = (metadata.get("License") or "").strip()
    if stated not in ("", "UNKNOWN"):
        return stated.splitlines()[0]
    return _title(distribution) or "not stated"


def _title(distribution: Distribution) -> str:
    """Return the first line of the licence's file, or an empty string."""
    for file in distribution.files or []:
        if re.match(r"(LICEN[CS]E|COPYING)", file.name):
            text = file.read_text().strip()
            return text.splitlines()[0].strip() if text else ""
    return ""


def needed(required: Mapping[str, Sequence[Requirement]], path: Sequence[str]) -> dict[str, Needed]:
    """Return every package that the parts need, by name; exit if one is not installed."""
    found = {canonicalize_name(d.metadata["Name"]): d for d in distributions(path=list(path))}
    packages: dict[str, Needed] = {}
    for part, requirements in required.items():
        named = {canonicalize_name(requirement.name) for requirement in requirements}
        for name in sorted(_closure(requirements, found, part)):
            package = packages.setdefault(name, Needed(found[name]))
            package.parts[part] = name in named
    return packages


def _closure(
    requirements: Sequence[Requirement], found: Mapping[str, Distribution], part: str
) -> set[str]:
    seen: set[tuple[str, str]] = set()
    todo = [(canonicalize_name(r.name), extra) for r in requirements for extra in ("", *r.extras)]
    while todo:
        if (pair := todo.pop()) in seen:
            continue
        seen.add(pair)
        name, extra = pair
        if name not in found:
            raise SystemExit(f"{name}, which {part} needs, is not installed: install it, or name "
                             "the folder that has it with --path.")  # fmt: skip
        for line in found[name].requires or []:
            child = Requirement(line)
            if child.marker is None or child.marker.evaluate({"extra": extra}):
                todo += [(canonicalize_name(child.name), more) for more in ("", *child.extras)]
    return {name for name, _ in seen}


def page(packages: Mapping[str, Needed]) -> str:
    """Return the page in Markdown."""
    rows = ["| package | version read | licence | needed by |", "|---|---|---|---|"]
    for name in sorted(packages):
        package = packages[name]
        shown = f"**{name}**" if any(package.parts.values()) else name
        parts = ", ".join(f"**{part}**" if is_named else part
                          for part, is_named in package.parts.items())  # fmt: skip
        stated = licence(package.distribution).replace("|", "\\|")
        rows.append(f"| {shown} | {package.distribution.version} | {stated} | {parts} |")
    return "\n".join([_HEAD, *_summary(packages), "", "## Packages", "", *rows, ""])


def _summary(packages: Mapping[str, Needed]) -> list[str]:
    """Return a table of the number of packages per part, and those without a permissive licence."""
    rows = ["| part | number of packages | copyleft, proprietary or not stated |", "|---|---|---|"]
    parts = {part for package in packages.values() for part in package.parts}
    for part in sorted(parts, key=lambda part: (part != "core", part)):
        names = [name for name, package in packages.items() if part in package.parts]
        other = [n for n in names if _NOT_PERMISSIVE.search(licence(packages[n].distribution))]
        rows.append(f"| {part} | {len(names)} | {', '.join(sorted(other)) or 'none'} |")
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description="Write docs/licences.md.")
    parser.add_argument(
        "--path", action="append", default=[], help="a further site-packages folder"
    )
    options = parser.parse_args(arguments)
    for folder in options.path:
        if not Path(folder).is_dir():
            parser.error(f"--path {folder} is not a folder.")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    PAGE.write_text(page(needed(direct(project), [*options.path, *sys.path])), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
