"""The benchmark of the classifier's stages and presets, and its tables."""

import json

import numpy as np
import pytest

from benchmarks import class_tables, classifier_presets
from measurements.runner import run


def test_a_run_and_its_page(tmp_path):
    arguments = ["--quick", "--rows", "40", "--results", str(tmp_path)]
    assert run(classifier_presets.MEASUREMENT, arguments) == 0
    lines = (tmp_path / "classifier_presets.jsonl").read_text().splitlines()
    assert [json.loads(line)["preset"] for line in lines] == list(classifier_presets.PRESETS)
    page = (tmp_path / "classifier_presets.md").read_text()
    assert "| two stages | " in page
    assert "+0.0000 ± 0.0000" in page


@pytest.mark.parametrize("name", class_tables.SHIPPED)
def test_draws_of_a_table_repeat_and_share_no_row(name):
    one, again = (class_tables.draw(name, 100, 1) for _ in range(2))
    assert (one.X == again.X).all()
    assert (one.codes == again.codes).all()
    _, codes = class_tables.load(name)
    assert len(one.codes) + len(one.codes_test) <= len(codes)
    assert len(np.unique(one.codes)) == len(np.unique(codes))
