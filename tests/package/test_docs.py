"""Every Python block runs, the site builds without a warning, every public name is in it."""

import os
import re
import subprocess
import sys
from inspect import ismodule
from pathlib import Path

import pytest
from mktestdocs import check_md_file

import twostagegp
from twostagegp import metrics

ROOT = Path(__file__).parents[2]
#: What pages need besides the core packages.
NEEDS = {
    "bayesian_optimisation.md": ("botorch",),
    "dask.md": ("dask", "distributed"),
    "optuna.md": ("botorch", "optuna"),
}
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("**/*.md"))]
#: Pages whose blocks take longest.
LONG = ("calibration.md", "triage.md")
#: Pages that the default suite runs with smaller tables: what stands there, and what is run.
SHORTER = {
    "README.md": {
        ", random_state=0)\nmodel": ", train_size=90, test_size=60, random_state=0)\nmodel"
    },
    "docs/classification.md": {"train_size=200": "train_size=80"},
    "docs/large_tables.md": {"2000": "600", "1800": "500"},
    "docs/files.md": {"size=(300, 8)": "size=(100, 8)"},
}


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def page(path):
    """Return a test case with the page's name."""
    is_slow = path.name in LONG or name_of(path) in SHORTER
    marks = [pytest.mark.slow] if is_slow else []
    return pytest.param(path, id=name_of(path), marks=marks)


@pytest.mark.parametrize("name", SHORTER)
def test_python_blocks_run_with_smaller_tables(name, tmp_path, monkeypatch):
    text = (ROOT / name).read_text(encoding="utf-8")
    for before, after in SHORTER[name].items():
        assert before in text
        text = text.replace(before, after)
    (tmp_path / "page.md").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    check_md_file(fpath=tmp_path / "page.md", memory=True)


@pytest.mark.parametrize("path", [page(path) for path in PAGES])
def test_python_blocks_run(path, tmp_path, monkeypatch):
    for package in NEEDS.get(path.name, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)  # what an example writes goes there
    check_md_file(fpath=path, memory=True)


def test_every_file_that_the_architecture_names_exists():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./]+/[\w.]*)`", text))
    places = (ROOT, ROOT / "src" / "twostagegp")
    assert [name for name in named if not any((p / name).exists() for p in places)] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    return folder


def test_every_public_name_has_a_place_in_the_reference(site):
    pages = "".join(page.read_text(encoding="utf-8") for page in site.glob("api/*/index.html"))
    anchors = {anchor.rsplit(".", 1)[-1] for anchor in re.findall(r'id="([\w.]+)"', pages)}
    modules = {name for name in twostagegp.__all__ if ismodule(getattr(twostagegp, name))}
    names = set(twostagegp.__all__) - modules - {"__version__"}
    names |= set(metrics.__all__) | {"ImageEncoder", "TextEncoder"}
    assert names <= anchors


def test_formulas_are_drawn_and_no_markup_of_docstrings_is_left(site):
    page = (site / "api" / "metrics" / "index.html").read_text(encoding="utf-8")
    assert page.count("<math") > 15
    for page in site.glob("api/*/index.html"):
        text = page.read_text(encoding="utf-8")
        assert ".. math::" not in text, page
        assert not re.search(r":(func|class|mod|meth|attr|data|math):", text), page


def test_the_site_loads_nothing_from_other_hosts(site):
    for page in site.glob("**/*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|link|img)[^>]+(?:src|href)="(?:https?:)?//', text), page
