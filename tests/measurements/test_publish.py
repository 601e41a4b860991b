"""No number of a page is typed by hand: pages are those that the stored records give."""

import pytest

from measurements import publish


def test_marked_places_are_filled_again_and_again(tmp_path):
    (tmp_path / "speed.md").write_text("# Speed\n\n## A\n\n| x |\n\n## B\n\nwords\n")
    page = "before\n<!-- begin speed: B -->\nold\n<!-- end speed -->\nafter\n"
    once = publish.fill(page, tmp_path, [tmp_path])
    assert "words" in once
    assert "old" not in once
    assert "| x |" not in once
    assert publish.fill(once, tmp_path, [tmp_path]) == once
    whole = publish.fill("<!-- begin speed -->\n<!-- end speed -->", tmp_path, [tmp_path])
    assert "### A" in whole
    assert "# Speed" not in whole.replace("### ", "")


def test_links_to_figures_lead_to_the_results(tmp_path):
    results, docs = tmp_path / "results", tmp_path / "docs" / "deep"
    results.mkdir()
    (results / "speed.md").write_text("# Speed\n\n![how](speed.svg)\n")
    page = publish.fill("<!-- begin speed -->\n<!-- end speed -->", docs, [results])
    assert "![how](../../results/speed.svg)" in page


@pytest.mark.parametrize("module", publish.MODULES)
def test_the_page_of_a_measurement_is_that_of_its_records(module):
    (measurement,) = publish.measurements([module])
    stored = (measurement.results / f"{measurement.name}.md").read_text(encoding="utf-8")
    assert measurement.report(measurement.records()) == stored, "run python -m measurements.publish"


def test_published_pages_hold_what_the_results_say():
    for path in publish.pages():
        text = path.read_text(encoding="utf-8")
        assert publish.fill(text, path.parent) == text, (
            f"run python -m measurements.publish: {path}"
        )
