"""Locks, licences, workflows and counts agree with ``pyproject.toml`` and with the source."""

import json
import re
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import twostagegp
from supply.compat import TESTS as TRIED
from supply.coverage_gate import main as check_coverage
from supply.licences import direct, needed, page
from supply.lock import CPU, CUDA, DEV, name_and_version, read_lock, show, split
from supply.passed_files import files_passed
from supply.structure import constants, private_accesses

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DIRECT = direct(PROJECT)
#: Everything that the tests need; the peers of the benchmarks and TabPFN, which holds scikit-learn
#: and pandas back, have environments of their own.
TESTED = [r for part, asked in DIRECT.items() if part not in ("peers", "tabpfn") for r in asked]


@pytest.fixture(scope="module")
def lock():
    return read_lock(DEV.read_text(encoding="utf-8"))


def test_the_lock_satisfies_every_requirement(lock):
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


def test_libraries_for_nvidia_cards_are_in_a_separate_lock(lock):
    assert split(lock) == (lock, {})
    assert split(cuda := read_lock(CUDA.read_text(encoding="utf-8"))) == ({}, cuda)
    assert all("linux" in line for line in cuda)


def test_the_page_of_licences_lists_every_package_of_pyproject():
    text = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \*\*([\w.-]+)\*\* \| [^|]+ \| ([^|]+) \| (.+) \|$", text, re.MULTILINE)
    listed = {
        (name, part) for name, _, parts in rows for part in re.findall(r"\*\*(.+?)\*\*", parts)
    }
    asked = {(canonicalize_name(r.name), part) for part in DIRECT for r in DIRECT[part]}
    assert listed == asked, "run python -m supply.licences"
    assert "not stated" not in [licence for _, licence, _ in rows]


def test_the_closure_of_an_extra_includes_the_dependencies_of_its_packages():
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


def test_the_tests_of_make_check_and_of_other_environments_exist():
    listed = (ROOT / "tests" / "check.txt").read_text(encoding="utf-8").splitlines()
    names = [*listed, *(f"tests/{name}" for name in TRIED)]
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_the_citation_names_the_version_of_the_package():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [twostagegp.__version__]


def test_the_workflow_runs_every_python_version_of_the_classifiers():
    yaml = pytest.importorskip("yaml")
    text = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    run = yaml.safe_load(text)["jobs"]["test"]["strategy"]["matrix"]["python"]
    named = [c.rsplit(" ", 1)[-1] for c in PROJECT["classifiers"] if "Python :: 3." in c]
    assert run == named


def coverage_report(covered):
    counts = {"num_statements": 100, "covered_lines": covered}
    counts |= {"num_branches": 100, "covered_branches": covered}
    return {"files": {"src/twostagegp/errors.py": {"summary": counts}}}


def test_the_coverage_gate_fails_below_and_passes_at_its_level(tmp_path):
    report = tmp_path / "coverage.json"
    report.write_text(json.dumps(coverage_report(90)), encoding="utf-8")
    check_coverage([str(report), "--lines", "90", "--branches", "90"])
    with pytest.raises(SystemExit, match=r"90\.00 % of the branches; the gate is 90\.1 %"):
        check_coverage([str(report), "--lines", "90", "--branches", "90.1"])


def test_constants_are_numbers_in_capitals_at_the_top_of_a_module():
    source = """
    FEW, MANY = 3, 1 << 30
    _SHARE: float = 0.5
    STEPS = {1: 2.0, 3: -4.0}
    NAMES = ("a", "b")
    COMPUTED = len(NAMES)
    FLAG = True
    lower = 1
    class Settings:
        ROWS = 3
    """
    assert constants(textwrap.dedent(source)) == ["FEW", "MANY", "_SHARE", "STEPS"]


def test_private_accesses_are_counted_across_packages_only():
    sources = {
        "a/x.py": "class A:\n    def __init__(self): self._n = 1\ndef _help(): ...\n",
        "a/y.py": "a._n",
        "b/z.py": "from a.x import _help\na._n\nself._n\ntorch._C\n__name__\na.__dict__",
        "c/own.py": "class C:\n    _n: int = 0\n\nC()._n",
    }
    assert private_accesses(sources) == ["b/z.py:1 _help", "b/z.py:2 _n"]


def test_the_files_that_a_call_passes_through_are_those_where_a_function_runs():
    passed = files_passed(lambda: name_and_version("zipp==4.1"), ROOT / "supply")
    assert passed == ["lock.py"]
