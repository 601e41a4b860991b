"""Every Python block of the README and of the documentation runs."""

from pathlib import Path

import pytest
from mktestdocs import check_md_file

ROOT = Path(__file__).parent.parent
#: What pages need besides the core packages.
NEEDS = {
    "bayesian_optimisation.md": ("botorch",),
    "dask.md": ("dask", "distributed"),
    "optuna.md": ("botorch", "optuna"),
}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_python_blocks_run(path, tmp_path, monkeypatch):
    for package in NEEDS.get(path.name, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)  # what an example writes goes there
    check_md_file(fpath=path, memory=True)
