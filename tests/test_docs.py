"""Every Python block of the README and of the documentation runs."""

from pathlib import Path

import pytest
from mktestdocs import check_md_file

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_python_blocks_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what an example writes goes there
    check_md_file(fpath=path, memory=True)
