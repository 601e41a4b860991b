"""Curves of time and memory: what the pages say is what the records say."""

import json

import numpy as np
import pytest
import torch

from benchmarks import device_agreement, exact_scale, scale
from benchmarks.exact_scale_peers import GPyTorchOnDevice
from measurements.runner import run
from twostagegp import datasets

CPU = torch.device("cpu")


def linear_table(n):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 8))
    return X, X[:, 0] + 0.1 * rng.normal(size=n)


@pytest.fixture
def flights(tmp_path, monkeypatch):
    """A made table in place of ``flights``, with 300 rows beside the test rows."""
    X, y = linear_table(exact_scale.QUERIES + 300)
    np.savez(tmp_path / "flights.npz", X=X, y=y)
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(tmp_path))


def test_algebra_and_derivatives_are_measured_against_float64(flights):
    algebra = exact_scale.measure_algebra(200, "float32", CPU, 1.0)
    assert algebra["solution_error"] < 1e-8
    assert algebra["residual_error"] < 1e-3
    assert algebra["factor_seconds"] > 0.0
    derivatives = exact_scale.measure_derivatives(150, "nll", CPU, 1.0)
    assert 0.0 < derivatives["in_standard_errors"] < 10.0


def test_a_peer_stops_at_its_cap():
    (X, X_new), (y, y_new) = (np.split(part, [80]) for part in linear_table(130))
    peer = GPyTorchOnDevice("cholesky", "cpu", cap=0.0).fit(X, y)
    assert peer.steps == 0
    mean, std = GPyTorchOnDevice("cholesky", "cpu", cap=60.0).fit(X, y).predict(X_new)
    assert (std > 0.0).all()
    assert abs(mean - y_new).mean() < 0.3


def fit_record(n, **more):
    known = {
        "kind": "fit", "place": "GPU", "device": "cuda", "model": "ours", "rows": n, "rate": 1e12,
        "version": "1", "code": "x", "fit_seconds": n / 1e3, "predict_seconds": 1.0,
        "peak_bytes": n**2, "rmse": 1.0, "nlpd": 1.0, "coverage": 0.95, "arithmetic": 1e12,
        "predicted_bytes": n**2,
    }  # fmt: skip
    return known | more


def test_the_page_has_goals_shares_growth_and_failures():
    failed = {"error": "OutOfMemoryError: no", "model": "cholesky"}
    page = exact_scale.MEASUREMENT.report(
        [fit_record(10_000), fit_record(20_000), fit_record(50_000, **failed)]
    )
    assert "| 9%   " in page  # 1 s of arithmetic in 10 + 1 s
    assert "10,000 to 20,000 | 1.00                | 2.00" in page
    assert "OutOfMemoryError" in page


def test_an_extrapolation_multiplies_what_was_measured(tmp_path):
    measured = {
        "rows": 10**7, "workers": 2, "points": 10**5, "shards": 10, "predict_wall": 300.0,
        "memory": "2GiB", "fit_wall": 200.0, "worker_peak_gib": 1.0, "version": "1", "code": "x",
        "fit_seconds": {"sample": 20.0, "shards": 120.0, "total": 200.0},
    }  # fmt: skip
    cost = scale.extrapolate(measured, scale.Cluster(workers=200, memory_gib=2.0), rows=10**9)
    assert cost["sample"] == pytest.approx(20.0)  # a hundredfold table, a hundredfold cluster
    assert cost["client"] == pytest.approx(60.0)
    assert cost["solving"] == pytest.approx(300.0 * 10 * 954 / 10 / 100)
    for name in ("exact_scale", "neighbors_scale"):
        (tmp_path / f"{name}.jsonl").write_text("")
    (tmp_path / "dask_scale.jsonl").write_text(json.dumps(measured) + "\n")
    (tmp_path / "exact_scale.jsonl").write_text(json.dumps(fit_record(10_000)) + "\n")
    assert run(scale.MEASUREMENT, ["--results", str(tmp_path)]) == 0
    page = (tmp_path / "scale.md").read_text()
    assert "Arithmetic, not a measurement" in page
    assert (tmp_path / "scale.svg").read_text().startswith("<?xml")


def test_a_device_agrees_with_itself(tmp_path):
    given = ["--device", "cpu", "--cases", "2", "--results", str(tmp_path)]
    assert run(device_agreement.MEASUREMENT, given) == 0
    lines = (tmp_path / "device_agreement.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert not any("error" in record for record in records)
    worst = max(
        value
        for record in records
        for of_engine in record["differences"].values()
        for value in of_engine.values()
    )
    assert worst == 0.0
    assert "2 random cases" in (tmp_path / "device_agreement.md").read_text()
