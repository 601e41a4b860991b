"""The experiment on level and power: its records, its report, and the formulas of the rivals."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm

from experiments import misspecification_tests as experiment
from experiments.misspecification_tests import Cell
from measurements.runner import run
from twostagegp import check_misspecification
from twostagegp.data.scaling import prepare
from twostagegp.engines.batched_problem import ProblemBatch
from twostagegp.kernels import NamedKernel
from twostagegp.search.bootstrap import adjusted_p_values
from twostagegp.search.evidence import CAUSES
from twostagegp.search.misspecification import order_of_causes

LEVEL_CELL, POWER_CELL = "rbf, d=1, n=300, noise 0.05", "a step, d=1"
#: A cell of either kind, both parts, with few and small tables.
CELLS = [
    Cell(name, part, tables=2, rows=30, draws=19 if part == "bootstrap" else 2)
    for name in (LEVEL_CELL, POWER_CELL)
    for part in ("bootstrap", "paper")
]


def run_cells(out, cells):
    measurement = replace(experiment.MEASUREMENT, cells=lambda given: cells)
    assert run(measurement, ["--results", str(out)]) == 0
    lines = (out / "misspecification_tests.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def kind_named(name, n=30):
    (kind,) = (kind for kind in experiment.kinds() if kind.name == name)
    return replace(kind, n=n)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    return run_cells(out, CELLS), (out / "misspecification_tests.md").read_text()


# --- the run -------------------------------------------------------------------------------------


def test_a_run_writes_records_and_a_report(done):
    records, text = done
    found = [(r["cell"], r["part"], r["tables"], r["cause"]) for r in records]
    assert found == [
        (LEVEL_CELL, "bootstrap", 2, ""),
        (LEVEL_CELL, "paper", 2, ""),
        (POWER_CELL, "bootstrap", 2, "too smooth"),
        (POWER_CELL, "paper", 2, "too smooth"),
    ]
    level, power = text.split("## Nothing wrong")[1].split("## Something wrong")
    assert LEVEL_CELL in level
    assert LEVEL_CELL not in power
    assert POWER_CELL in power
    assert POWER_CELL not in level
    for heading in (*experiment.RIVALS, "ratio (p̂)", "bound (p̂)", "bootstrap"):
        assert heading in level
        assert heading in power
    paper = records[1]
    assert f"{paper['ratio']:.2f} ({paper['ratio p_hat']:.2f})" in level


def test_the_same_tables_give_the_same_record(done, tmp_path):
    (found,) = run_cells(tmp_path, CELLS[2:3])
    assert found == done[0][2]


def test_a_record_summarises_its_tables():
    kind = kind_named(POWER_CELL)
    quiet = dict.fromkeys(experiment.RIVALS, 1.0)
    tables = [
        {"p": 0.05, "named": ("too smooth", "heavy tails"), **quiet, "LOO z-scores": 0.01},
        {"p": 0.02, "named": ("heavy tails", "too smooth"), **quiet},
        {"p": 0.01, "named": ("heavy tails",), **quiet},
        {"p": 0.30, "named": (), **quiet},
    ]
    record = experiment.summarise(kind, tables)
    assert record["rejected"] == 0.75
    assert record["right_first"] == 0.25
    assert record["right_among"] == 0.5
    assert record["first_named"] == {"too smooth": 1, "heavy tails": 2, "": 1}
    assert record["rivals"] == {**dict.fromkeys(experiment.RIVALS, 0.0), "LOO z-scores": 0.25}
    paper = [
        {"ratio": True, "ratio p_hat": 0.9, "bound": False, "bound p_hat": 1.0},
        {"ratio": False, "ratio p_hat": 0.98, "bound": False, "bound p_hat": 0.98},
    ]
    record = experiment.summarise(kind, paper)
    assert (record["ratio"], record["bound"]) == (0.5, 0.0)
    assert (record["ratio p_hat"], record["bound p_hat"]) == pytest.approx((0.94, 0.99))


def test_a_cell_without_the_papers_tests_is_reported_with_a_dash(done):
    records = [r for r in done[0] if r["part"] == "bootstrap"]
    text = experiment.MEASUREMENT.report(records)
    assert text.count("–") >= 4
    assert LEVEL_CELL in text
    assert POWER_CELL in text


def test_every_kind_draws_a_table():
    for kind in experiment.kinds():
        X, y = experiment.draw_table(kind, 3)
        assert X.shape == (kind.n, kind.d)
        assert y.shape == (kind.n,)
        assert np.isfinite(y).all()
        again = experiment.draw_table(kind, 3)[1]
        np.testing.assert_array_equal(y, again)
        assert kind.cause == "" or kind.cause in CAUSES
    names = [kind.name for kind in experiment.kinds()]
    assert len(set(names)) == len(names)


# --- the statistics ------------------------------------------------------------------------------


def test_the_bootstrap_is_that_of_check_misspecification_in_kind():
    """The same evidence of the data, whatever the order of the rows; p-values on the grid."""
    kind = kind_named(POWER_CELL)
    observed, simulated = experiment.bootstrap_statistics(kind, 5, "cpu", simulations=19)
    k = len(CAUSES)
    assert simulated.shape == (19, k + len(experiment.RIVALS))
    found = experiment.judge(observed, simulated)
    assert found["p"] * 20 == pytest.approx(round(found["p"] * 20))
    p, z = adjusted_p_values(observed[:k], simulated[:, :k])
    assert found["named"] == order_of_causes(p, z[0], 0.05)
    X, y = experiment.draw_table(kind, 5)
    check = check_misspecification(X, y, kind.kernel, n_repeats=19, device="cpu", random_state=0)
    assert check.noise == pytest.approx(
        fitted_noise(kind, X, y), rel=1e-2
    )  # the experiment fits what the package fits
    assert (found["p"] <= 0.05) == check.rejected


def fitted_noise(kind, X, y):
    """Noise standard deviation of the experiment's problem, in units of y."""
    from twostagegp.training.batched import fit_batch

    data = prepare(X, y, ["x0"], device=torch.device("cpu"), dtype=torch.float64)
    problem = ProblemBatch.of(
        NamedKernel(kind.kernel, kind.d), data.rows.X[None], data.rows.t[None]
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
