"""Locks, licences and the package itself: what is written down agrees with ``pyproject.toml``."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import twostagegp
from supply.licences import direct, needed, page
from supply.lock import CPU, CUDA, DEV, name_and_version, read_lock, show, split

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DIRECT = direct(PROJECT)
#: Everything that the tests need; the peers of the benchmarks have an environment of their own.
TESTED = [r for part, asked in DIRECT.items() if part != "peers" for r in asked]


@pytest.fixture(scope="module")
def lock():
    return read_lock(DEV.read_text(encoding="utf-8"))


def test_the_lock_fits_every_requirement_or_make_lock_was_forgotten(lock):
    locked = {}
    for name, version in map(name_and_version, lock):
        locked.setdefault(canonicalize_name(name), set()).add(version)
    for asked in TESTED:
        versions = locked.get(canonicalize_name(asked.name), set())
        assert versions, f"{asked.name} is not locked: run make lock"
        assert all(asked.specifier.contains(v) for v in versions), f"{asked}: run make lock"
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    assert set(pins) <= set(lock)
    assert set(read_lock(CPU.read_text(encoding="utf-8"))) == {f"{pin}+cpu" for pin in pins}


def test_every_line_of_the_locks_is_pinned_and_hashed_and_names_no_address(lock):
    assert all(hashes and Requirement(line).specifier for line, hashes in lock.items())
    for path in (DEV, CUDA, CPU):
        text = path.read_text(encoding="utf-8")
        assert show(read_lock(text)) == text
        assert "://" not in text
        assert not re.search(r"^\s*-(?!-hash=sha256:)", text, flags=re.MULTILINE), (
            "an option of pip"
        )


def test_libraries_for_nvidia_cards_are_in_a_lock_of_their_own(lock):
    assert split(lock) == (lock, {})
    assert split(cuda := read_lock(CUDA.read_text(encoding="utf-8"))) == ({}, cuda)
    assert all("linux" in line for line in cuda)


def test_the_page_of_licences_lists_what_pyproject_asks_for():
    text = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \*\*([\w.-]+)\*\* \| [^|]+ \| ([^|]+) \| (.+) \|$", text, re.MULTILINE)
    listed = {
        (name, part) for name, _, parts in rows for part in re.findall(r"\*\*(.+?)\*\*", parts)
    }
    asked = {(canonicalize_name(r.name), part) for part in DIRECT for r in DIRECT[part]}
    assert listed == asked, "run python -m supply.licences"
    assert "not stated" not in [licence for _, licence, _ in rows]


def test_the_closure_of_an_extra_holds_what_its_packages_bring():
    packages = needed({"files": DIRECT["files"], "dask": DIRECT["dask"]}, sys.path)
    assert packages["safetensors"].parts == {"files": True}
    assert packages["numpy"].parts == {"files": False, "dask": False}
    assert "pandas" in packages, "by the extra dataframe of dask"
    assert "| **dask** |" in page(packages)


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(SystemExit, match="no-such-package, which core needs, is not installed"):
        needed({"core": [Requirement("no_such_package")]}, sys.path)


def test_the_minimum_constraints_are_the_lower_bounds():
    lines = (ROOT / "constraints-minimum.txt").read_text(encoding="utf-8").splitlines()[1:]
    parts = [r for part in ("core", "cli", "dask", "datasets", "files") for r in DIRECT[part]]
    lowest = {}
    for name, bound in ((r.name, s.version) for r in parts for s in r.specifier):
        lowest[name] = max(lowest.get(name, "0"), bound, key=Version)
    assert dict(map(name_and_version, lines)) == lowest


def test_the_citation_names_the_version_of_the_package():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [twostagegp.__version__]
