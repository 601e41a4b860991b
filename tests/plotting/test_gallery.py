"""Every script of the gallery draws, and its picture is in the documentation."""

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SCRIPTS = sorted((DOCS / "gallery").glob("*.py"))
QUICK = ("kernel_search", "maps")


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, id=script.stem, marks=() if script.stem in QUICK else pytest.mark.slow)
        for script in SCRIPTS
    ],
)
def test_each_gallery_script_draws_the_picture_in_the_documentation(script, tmp_path):
    figure = runpy.run_path(str(script))["draw"]()
    assert len(figure.axes) >= 1
    figure.savefig(tmp_path / "picture.png")
    shown = [file.name for file in (DOCS / "pictures").glob(f"{script.stem}.*")]
    assert len(shown) == 1
    pages = [page.read_text(encoding="utf-8") for page in DOCS.glob("*.md")]
    assert any(f"pictures/{shown[0]}" in page for page in pages)


def test_pictures_of_the_documentation_are_small():
    sizes = {file.name: file.stat().st_size for file in (DOCS / "pictures").iterdir()}
    assert max(sizes.values()) < 200_000
