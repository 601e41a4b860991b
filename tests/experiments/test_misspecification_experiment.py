"""The experiment on level and power: its records, its report, and the rivals' formulas."""

import json
import math
import sys

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm

from experiments import misspecification_tests as experiment
from twostagegp import check_misspecification
from twostagegp.data.scaling import prepare
from twostagegp.engines.batched_problem import ProblemBatch
from twostagegp.kernels import NamedKernel
from twostagegp.search.evidence import CAUSES
from twostagegp.search.misspecification import order_of_causes

LEVEL_CELL, POWER_CELL = "rbf, d=1, n=30, noise 0.05", "a step, d=1"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(experiment, "SIMULATIONS", 19)
    monkeypatch.setattr(experiment, "PAPER_REPEATS", 2)
    monkeypatch.setattr(experiment, "ROWS", 30)


def run_main(monkeypatch, out, *arguments):
    given = ["prog", "--out", str(out), "--tables", "2", "--violations", "2", *arguments]
    monkeypatch.setattr(sys, "argv", given)
    experiment.main()


def records_of(out):
    """Records of a run; the last of a cell and part counts."""
    lines = (out / "misspecification_tests.jsonl").read_text().splitlines()
    records = map(json.loads, lines)
    return list({(record["cell"], record["part"]): record for record in records}.values())


def cell_named(name):
    (cell,) = (cell for cell in experiment.cells() if cell.name == name)
    return cell


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One cell of either kind, both parts, through the command line."""
    out = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "SIMULATIONS", 19)
        patch.setattr(experiment, "PAPER_REPEATS", 2)
        patch.setattr(experiment, "ROWS", 30)
        for only in (LEVEL_CELL, POWER_CELL):
            for part in ("bootstrap", "paper"):
                run_main(patch, out, "--only", only, "--part", part)
    return out


# --- the run -------------------------------------------------------------------------------------


def test_a_run_writes_records_and_a_report(done):
    records = records_of(done)
    found = [(r["cell"], r["part"], r["tables"], r["cause"]) for r in records]
    assert found == [
        (LEVEL_CELL, "bootstrap", 2, ""),
        (LEVEL_CELL, "paper", 2, ""),
        (POWER_CELL, "bootstrap", 2, "too smooth"),
        (POWER_CELL, "paper", 2, "too smooth"),
    ]
    text = (done / "misspecification_tests.md").read_text()
    level, power = text.split("## Nothing wrong")[1].split("## Something wrong")
    assert LEVEL_CELL in level
    assert LEVEL_CELL not in power
    assert POWER_CELL in power
    assert POWER_CELL not in level
    assert "the same 19 simulations" in text
    for heading in (*experiment.RIVALS, "ratio (p̂)", "bound (p̂)", "bootstrap"):
        assert heading in level
        assert heading in power
    paper = records[1]
    assert f"{paper['ratio']:.2f} ({paper['ratio p_hat']:.2f})" in level


def test_what_is_done_is_not_done_again(done, tmp_path, monkeypatch):
    for file in done.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    before = (tmp_path / "misspecification_tests.jsonl").read_bytes()
    calls, bootstrap_test = [], experiment.bootstrap_test
    monkeypatch.setattr(
        experiment,
        "bootstrap_test",
        lambda cell, seed, device: calls.append(seed) or bootstrap_test(cell, seed, device),
    )
    run_main(monkeypatch, tmp_path, "--only", POWER_CELL)
    assert calls == []
    assert (tmp_path / "misspecification_tests.jsonl").read_bytes() == before
    # More tables than before: the cell is done again, and its record replaced.
    run_main(monkeypatch, tmp_path, "--only", POWER_CELL, "--violations", "3")
    assert len(calls) == len(set(calls)) == 3
    records = records_of(tmp_path)
    assert len(records) == 4
    assert {(r["cell"], r["part"]): r["tables"] for r in records}[POWER_CELL, "bootstrap"] == 3


def test_the_same_tables_give_the_same_record(done, tmp_path, monkeypatch):
    run_main(monkeypatch, tmp_path, "--only", POWER_CELL)
    expected = next(
        r for r in records_of(done) if (r["cell"], r["part"]) == (POWER_CELL, "bootstrap")
    )
    (found,) = records_of(tmp_path)
    assert found == expected


def test_a_record_summarises_its_tables():
    cell = cell_named(POWER_CELL)
    quiet = dict.fromkeys(experiment.RIVALS, 1.0)
    tables = [
        {"p": 0.05, "named": ("too smooth", "heavy tails"), **quiet, "LOO z-scores": 0.01},
        {"p": 0.02, "named": ("heavy tails", "too smooth"), **quiet},
        {"p": 0.01, "named": ("heavy tails",), **quiet},
        {"p": 0.30, "named": (), **quiet},
    ]
    record = experiment.summarise(cell, tables)
    assert record["rejected"] == 0.75
    assert record["right_first"] == 0.25
    assert record["right_among"] == 0.5
    assert record["first_named"] == {"too smooth": 1, "heavy tails": 2, "": 1}
    assert record["rivals"] == {**dict.fromkeys(experiment.RIVALS, 0.0), "LOO z-scores": 0.25}
    paper = [
        {"ratio": True, "ratio p_hat": 0.9, "bound": False, "bound p_hat": 1.0},
        {"ratio": False, "ratio p_hat": 0.98, "bound": False, "bound p_hat": 0.98},
    ]
    record = experiment.summarise(cell, paper)
    assert (record["ratio"], record["bound"]) == (0.5, 0.0)
    assert (record["ratio p_hat"], record["bound p_hat"]) == pytest.approx((0.94, 0.99))


def test_a_cell_without_the_papers_tests_is_reported_with_a_dash(done):
    records = [r for r in records_of(done) if r["part"] == "bootstrap"]
    text = experiment.report(records)
    assert text.count("–") >= 4
    assert LEVEL_CELL in text
    assert POWER_CELL in text


def test_every_cell_draws_a_table():
    for cell in experiment.cells():
        X, y = experiment.draw_table(cell, 3)
        assert X.shape == (cell.n, cell.d)
        assert y.shape == (cell.n,)
        assert np.isfinite(y).all()
        again = experiment.draw_table(cell, 3)[1]
        np.testing.assert_array_equal(y, again)
        assert cell.cause == "" or cell.cause in CAUSES
    names = [cell.name for cell in experiment.cells()]
    assert len(set(names)) == len(names)


# --- the statistics ------------------------------------------------------------------------------


def test_the_bootstrap_is_that_of_check_misspecification_in_kind():
    """The same evidence of the data, whatever the order of the rows; p-values on the grid."""
    cell, seen = cell_named(POWER_CELL), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            experiment,
            "judge",
            lambda observed, simulated: seen.append((observed, simulated)) or {},
        )
        experiment.bootstrap_test(cell, 5, "cpu")
    ((observed, simulated),) = seen
    k = len(CAUSES)
    assert simulated.shape == (19, k + len(experiment.RIVALS))
    found = experiment.judge(observed, simulated)
    assert found["p"] * 20 == pytest.approx(round(found["p"] * 20))
    p, z = experiment.adjusted_p_values(observed[:k], simulated[:, :k])
    assert found["named"] == order_of_causes(p, z[0], 0.05)
    X, y = experiment.draw_table(cell, 5)
    check = check_misspecification(X, y, cell.kernel, n_repeats=19, device="cpu", random_state=0)
    assert check.noise == pytest.approx(
        fitted_noise(cell, X, y), rel=1e-2
    )  # the experiment fits what the package fits
    assert (found["p"] <= 0.05) == check.rejected


def fitted_noise(cell, X, y):
    """Noise standard deviation of the experiment's problem, in units of y."""
    from twostagegp.training.batched import fit_batch

    data = prepare(X, y, ["x0"], device=torch.device("cpu"), dtype=torch.float64)
    problem = ProblemBatch.of(
        NamedKernel(cell.kernel, cell.d), data.rows.X[None], data.rows.t[None]
    )
    return data.scaling.y_scale * math.exp(0.5 * fit_batch(problem).parameters[0, -1])


def test_the_rivals_are_their_formulas():
    rng = np.random.default_rng(0)
    X, t = rng.normal(size=(3, 25, 2)), rng.normal(size=(3, 25))
    kernel = NamedKernel("matern32", 2)
    problems = ProblemBatch.of(kernel, torch.as_tensor(X), torch.as_tensor(t))
    parameters = np.column_stack(
        [kernel.start() + rng.normal(scale=0.3, size=(3, kernel.size)), np.log([0.05, 0.2, 1.0])]
    )
    (block,) = problems.map(parameters, np.arange(3), lambda block: block)
    found = experiment.rivals(block).numpy()
    for b in range(3):
        x, noise = torch.as_tensor(X[b]), math.exp(parameters[b, -1])
        K = kernel.cross(x, x, parameters[b, :-1]).numpy()
        C = K + noise * np.eye(25)
        white = np.sort(np.linalg.solve(np.linalg.cholesky(C), t[b]))
        whitened = np.abs(norm.cdf(white) - (np.arange(25) + 0.5) / 25).max()
        z, ratio = np.empty(25), np.empty(25)
        residual = t[b] - K @ np.linalg.solve(C, t[b])
        for i in range(25):
            rest = np.arange(25) != i
            w = np.linalg.solve(C[rest][:, rest], C[rest, i])
            error = t[b, i] - w @ t[b, rest]
            z[i] = error / math.sqrt(C[i, i] - w @ C[rest, i])
            ratio[i] = abs(error) / abs(w @ residual[rest] - residual[i])
        distance = np.linalg.norm(X[b][:, None] - X[b], axis=2) + 1e9 * np.eye(25)
        neighbour = np.mean(z * z[distance.argmin(1)])
        expected = [whitened, np.mean(z**2), neighbour, np.mean(ratio <= 1.1)]
        np.testing.assert_allclose(found[b], expected, rtol=1e-7)


def test_the_p_value_of_a_rival_looks_at_both_sides():
    simulated = np.arange(1.0, 20.0)
    assert experiment.two_sided_p(100.0, simulated) == pytest.approx(1 / 20)
    assert experiment.two_sided_p(-100.0, simulated) == pytest.approx(1 / 20)
    assert experiment.two_sided_p(10.0, simulated) == 1.0
    p = [
        experiment.two_sided_p(row[0], row[1:])
        for row in np.random.default_rng(0).normal(size=(400, 20))
    ]
    # 34 or more of 400 would have a probability below 1/500 at a level of 5 %.
    assert 8 <= sum(value <= 0.05 for value in p) <= 33


@pytest.mark.parametrize("n", [40, 200, 500])
def test_the_band_holds_99_percent_of_a_test_of_that_level(n):
    low, high = experiment.band(n)
    inside = binom.cdf(round(high * n), n, 0.05) - binom.cdf(round(low * n) - 1, n, 0.05)
    assert inside >= 0.99
    narrower = binom.cdf(round(high * n) - 1, n, 0.05) - binom.cdf(round(low * n), n, 0.05)
    assert narrower < 0.99
    assert low <= 0.05 <= high


def test_the_band_of_500_tables():
    assert experiment.band(500) == (0.026, 0.076)
