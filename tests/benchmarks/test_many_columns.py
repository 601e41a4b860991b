"""The benchmark of small tables of many columns, and the threads of small fits."""

import json

import numpy as np
import pytest
import torch

from benchmarks import many_columns
from measurements.runner import run
from twostagegp import TwoStageGPRegressor


@pytest.mark.slow
def test_a_run_and_its_page(tmp_path):
    assert run(many_columns.MEASUREMENT, ["--quick", "--results", str(tmp_path)]) == 0
    lines = (tmp_path / "many_columns.jsonl").read_text().splitlines()
    assert {json.loads(line)["way"] for line in lines} == {"afresh", "warm"}
    assert len(lines) == 8
    page = (tmp_path / "many_columns.md").read_text()
    assert page.count("| noise  | 20 ") == 2


def test_a_fit_leaves_threads_and_subnormal_numbers_as_they_were():
    before = torch.get_num_threads()
    X = np.arange(20.0)[:, None]
    TwoStageGPRegressor(mean="rbf", variance="rbf", ard=False).fit(X, X[:, 0]).predict(X)
    assert torch.get_num_threads() == before
    assert float(torch.full((1,), 1e-310, dtype=torch.float64) * 1.0) > 0.0
