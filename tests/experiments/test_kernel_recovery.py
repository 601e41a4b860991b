"""The kernel recovery experiment: its scores are the search's, and its tables say what happened."""

import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments import kernel_recovery as experiment
from experiments.kernel_recovery import Draw
from experiments.recovery_report import HINDSIGHT, RANDOM, TRUE_KERNEL, confusion, outcome, report
from measurements.runner import run
from twostagegp import search_kernel
from twostagegp.datasets import DatasetNotFoundError
from twostagegp.kernels import NamedKernel

CPU = torch.device("cpu")


def small_draw(truth="matern32", d=2, n=80, noise=0.1, draw=0, subsample=50):
    """A draw whose search is small; 60 test rows."""
    name = f"{truth}, d={d}"
    return Draw("synthetic", name, truth, d, n, noise, draw, 3, subsample, test_rows=60)


def tables_and_targets(draws=2, **changed):
    """Tables of the experiment, and the X and y that ``search_kernel`` would be given."""
    tables = [experiment.synthetic_table(small_draw(draw=k, **changed)) for k in range(draws)]
    return tables, [tuple(values.numpy() for values in table.train) for table in tables]


def searched(X, y, table, sampling, monkeypatch, kernels=("rbf", "matern12")):
    """``search_kernel`` on the experiment's own subsamples."""
    monkeypatch.setattr(
        "twostagegp.search.repetitions.draw_subsamples",
        lambda *args: table.subsamples[sampling],
    )
    return search_kernel(
        X, y, kernels, early=False, n_repeats=3, subsample=50, device="cpu", random_state=0
    )


# --- the same as search_kernel -------------------------------------------------------------------


def test_subsamples_are_those_that_search_kernel_draws():
    (table,), ((X, y),) = tables_and_targets(draws=1)
    own = experiment.subsamples_of(table.rows, 50, 3, np.random.default_rng(4))
    rng = np.random.default_rng(4)  # one for both, in the same order
    for sampling in ("random", "fps"):
        search = search_kernel(
            X, y, ("rbf",), early=False, n_repeats=3, subsample=50, sampling=sampling,
            device="cpu", random_state=rng,
        )  # fmt: skip
        np.testing.assert_array_equal(own[sampling], search.index)


@pytest.mark.parametrize("sampling", ["random", "fps"])
def test_scores_at_the_same_parameters_are_those_of_search_kernel(sampling, monkeypatch):
    (table,), ((X, y),) = tables_and_targets(draws=1)
    search = searched(X, y, table, sampling, monkeypatch)
    for entry in search.entries:
        index = table.subsamples[sampling][None]
        train = experiment.gather([table], index[:, :, :40])
        test = experiment.gather([table], index[:, :, 40:])
        found = experiment.scores(
            train.problems(entry.kernel), entry.repeated.parameters, train, test
        )
        for name in ("nll", "loo", "heldout", "ratio", "noise"):
            np.testing.assert_allclose(found[name], getattr(entry.repeated, name), rtol=1e-8)


def test_one_batch_of_several_tables_agrees_with_a_search_of_each(monkeypatch):
    tables, given = tables_and_targets()
    for name in ("rbf", "matern12"):
        found = experiment.repeat(tables, NamedKernel(name, 2), "random").scores
        for i, (table, (X, y)) in enumerate(zip(tables, given, strict=True)):
            repeated = searched(X, y, table, "random", monkeypatch, (name,)).entries[0].repeated
            # Fits differ by their tolerance, 1e-5 per row, and never to the experiment's loss.
            np.testing.assert_allclose(found["nll"][i], repeated.nll, atol=2e-3)
            np.testing.assert_allclose(found["loo"][i], repeated.loo, atol=5e-3)
            np.testing.assert_allclose(found["heldout"][i], repeated.heldout, atol=2e-2)


def test_a_subsample_that_is_the_whole_table_serves_both_kinds():
    (table,), _ = tables_and_targets(draws=1, subsample=500)
    assert table.subsamples["fps"] is table.subsamples["random"]
    assert sorted(table.subsamples["random"][0]) == list(range(80))


# --- draws ---------------------------------------------------------------------------------------


def test_the_true_noise_goes_with_its_row():
    table = experiment.synthetic_table(small_draw("rbf", noise=0.5))
    X, _ = experiment.design(2, 80, 0, 3, 50, 60)
    rng = experiment.generator("targets", "rbf", 2, 80, 0.5, 0)
    f = experiment.draw_function("rbf", X, rng, CPU)
    y = f + math.sqrt(0.5) * rng.normal(size=len(f))
    without = (table.rows.t - table.noise).numpy()
    scaled = (f[:80] - y[:80].mean()) / y[:80].std()
    np.testing.assert_allclose(np.sort(without), np.sort(scaled), atol=1e-10)
    # Rows are sorted by their first column, which is enough to match them.
    np.testing.assert_allclose(without, scaled[np.argsort(X[:80, 0])], atol=1e-10)


def test_ratio_with_the_true_noise_is_the_papers_formula():
    (table,), _ = tables_and_targets(draws=1)
    kernel = NamedKernel("matern32", 2)
    index = table.subsamples["fps"][:1]
    train = experiment.gather([table], index[None, :, :40])
    test = experiment.gather([table], index[None, :, 40:])
    parameters = np.array([[math.log(0.7), 0.0, math.log(0.1)]])
    found = experiment.scores(train.problems(kernel), parameters, train, test)
    theta = parameters[0, :-1]
    K = kernel.evaluate(train.X[0], theta)[0].numpy() + 0.1 * np.eye(40)
    cross = kernel.cross(test.X[0], train.X[0], theta).numpy()
    error = np.abs(cross @ np.linalg.solve(K, train.t[0].numpy()) - test.t[0].numpy())
    noise = cross @ np.linalg.solve(K, train.noise[0].numpy()) - test.noise[0].numpy()
    assert found["ratio_true"][0] == pytest.approx(np.mean(error <= 1.1 * np.abs(noise)))


def test_inputs_have_unit_spread_and_are_common_to_all_truths():
    X, _ = experiment.design(2, 80, 0, 3, 50, 60)
    assert np.abs(X).max() <= math.sqrt(3.0)
    assert X.std() == pytest.approx(1.0, abs=0.1)
    other = experiment.synthetic_table(small_draw("matern12", noise=0.5))
    table = experiment.synthetic_table(small_draw("rbf"))
    assert torch.equal(table.rows.X, other.rows.X)
    assert not torch.allclose(table.rows.t, other.rows.t)


@pytest.mark.parametrize("truth", experiment.KERNELS)
def test_draws_have_the_covariance_of_the_truth(truth):
    kernel = NamedKernel(truth, 2)
    length = 0.5 * kernel.typical_lengthscale()
    X = np.array([[0.0, 0.0], [length, 0.0]])
    rng = np.random.default_rng(0)
    draws = np.array([experiment.draw_function(truth, X, rng, CPU) for _ in range(4000)])
    expected = kernel.cross(*(torch.tensor(X[i : i + 1]) for i in (0, 1)),
                            np.array([math.log(length), 0.0])).item()  # fmt: skip
    np.testing.assert_allclose(np.cov(draws.T), [[1.0, expected], [expected, 1.0]], atol=0.08)


# --- starts and judgement ------------------------------------------------------------------------


def test_two_starts_where_the_noise_of_the_optima_differs():
    low, high = [0.0, 0.0, -4.0], [1.0, 0.0, -1.0]
    optima = np.array([[low, low, low], [low, high, high]])
    starts = experiment.Starts.of(optima, np.eye(3))
    assert starts.two.tolist() == [False, True]
    assert starts.first.tolist() == [low, low]
    assert starts.second[1].tolist() == high


def test_the_true_kernel_predicts_nearly_as_well_as_the_noise_allows():
    table = experiment.synthetic_table(small_draw("rbf", 1, 200, 0.01))
    repeats = experiment.repeat([table], NamedKernel("rbf", 1), "random")
    nlpd, evaluations, converged = experiment.judge(
        [table], NamedKernel("rbf", 1), repeats.found, together=1
    )
    ideal = 0.5 + math.log(float(table.noise.std())) + 0.5 * math.log(2.0 * math.pi)
    assert nlpd[0] == pytest.approx(ideal, abs=0.25)
    assert converged == 1.0
    assert evaluations > 1.0


def test_tables_judged_together_or_one_by_one_are_the_same():
    tables, _ = tables_and_targets()
    kernel = NamedKernel("matern52", 2)
    found = experiment.repeat(tables, kernel, "random").found
    together = experiment.judge(tables, kernel, found, together=2)[0]
    alone = experiment.judge(tables, kernel, found, together=1)[0]
    np.testing.assert_allclose(together, alone, rtol=1e-6)


# --- tables of the report ------------------------------------------------------------------------


def record(truth="rbf", part="synthetic", draw=0, **kernels):
    return {
        "part": part, "cell": "a cell", "truth": truth, "d": 1, "n": 500, "noise": 0.1,
        "draw": draw, "repeats": 24, "subsample": 500, "device": "cpu", "version": "0",
        "code": "0", "seconds": {"search": 1.0}, "kernels": kernels,
    }  # fmt: skip


def scores(nlpd, nll=0.0, loo=0.0, heldout=0.0, ratio=0.8, ratio_true=0.9):
    return {"nlpd": nlpd, "nll": nll, "loo": loo, "heldout": heldout, "ratio": ratio,
            "ratio_true": ratio_true}  # fmt: skip


def test_choices_and_regrets_of_a_draw():
    found = outcome(
        record(
            rbf=scores(1.0, nll=0.3, loo=0.2, ratio=0.7),
            matern52=scores(0.9, nll=0.2, loo=0.3, ratio=0.8),
            matern12=scores(1.5, nll=0.4, loo=0.4, ratio=0.9, heldout=-1.0),
        )
    )
    assert found.chosen["nll"] == "matern52"
    assert found.chosen["loo"] == "rbf"
    assert found.chosen["misspecification"] == found.chosen["heldout"] == "matern12"
    assert found.chosen[HINDSIGHT] == "matern52"
    assert found.regret["nll"] == 0.0
    assert found.regret["loo"] == found.regret[TRUE_KERNEL] == pytest.approx(0.1)
    assert found.regret["misspecification"] == pytest.approx(0.6)
    assert found.regret[RANDOM] == pytest.approx((0.1 + 0.0 + 0.6) / 3)
    assert found.hit("loo") == 1.0
    assert found.hit(RANDOM) == pytest.approx(1 / 3)


def test_a_kernel_that_failed_is_neither_chosen_nor_the_best():
    failed = {"failure": "not positive definite"}
    found = outcome(record(rbf=failed, matern12=scores(1.0) | {"ratio": None}))
    assert found.kernels == ["matern12"]
    assert "misspecification" not in found.chosen
    assert TRUE_KERNEL not in found.chosen
    assert outcome(record(rbf=failed)) is None
    page = report([record(rbf=failed, matern12=scores(1.0)), record(rbf=scores(1.0), draw=1)])
    assert "could not be fitted: rbf on 1" in page


def test_confusion_counts_truth_by_choice():
    draws = [
        record("rbf", rbf=scores(0.0, loo=0.0), matern12=scores(0.1, loo=1.0)),
        record("matern12", draw=1, rbf=scores(0.0, loo=0.0), matern12=scores(0.1, loo=1.0)),
    ]
    names, counts = confusion([outcome(r) for r in draws], "loo")
    assert names == ["rbf", "matern12"]
    assert counts.tolist() == [[1, 0], [1, 0]]


# --- the program ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_stores_draws_and_measures_only_the_missing_ones(tmp_path):
    draws = [small_draw(truth, d=1, draw=k) for truth in ("rbf", "matern12") for k in (0, 1)]

    def run_draws(wanted):
        measurement = replace(experiment.MEASUREMENT, cells=lambda given: wanted)
        assert run(measurement, ["--results", str(tmp_path)]) == 0
        return (tmp_path / "kernel_recovery.jsonl").read_text().splitlines()

    lines = run_draws([draws[0], draws[2]])
    assert len(lines) == 2
    after = run_draws(draws)
    assert after[:2] == lines
    assert len(after) == 4
    page = (tmp_path / "kernel_recovery.md").read_text()
    assert "4 draws in 2 cells" in page
    assert "laplacian |" not in page
    picture = ElementTree.parse(tmp_path / "kernel_recovery.svg")
    assert picture.getroot().tag.endswith("svg")


def test_a_time_limit_ends_a_run_between_cells(tmp_path, capsys):
    given = ["--quick", "--part", "synthetic", "--limit", "0", "--results", str(tmp_path)]
    assert run(experiment.MEASUREMENT, [*given, "--device", "cpu"]) == 1
    assert "Stopped after 0 s" in capsys.readouterr().out


def test_real_tables_with_repeated_rows(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 2))
    X[:10] = X[10:20]
    y = np.sin(2.0 * X[:, 0]) + 0.1 * rng.normal(size=90)
    mask = np.zeros((90, 2), dtype=bool)
    mask[70:80, 0] = mask[80:, 1] = True
    np.savez(tmp_path / "yacht.npz", X=X, y=y, test_mask=mask)
    monkeypatch.setenv("TWOSTAGEGP_DATA", str(tmp_path))
    draws = [Draw("real", "yacht", None, 2, 80, None, split, 3, 50) for split in (0, 1)]
    measurement = replace(experiment.MEASUREMENT, cells=lambda given: draws)
    assert run(measurement, ["--results", str(tmp_path)]) == 0
    page = (tmp_path / "kernel_recovery.md").read_text()
    assert "Isotropic and ARD kernels" in page
    assert "| yacht | 2 " in page
    assert "true noise" not in page


def test_missing_real_tables_are_an_error_only_if_asked_for(tmp_path, monkeypatch):
    monkeypatch.delenv("TWOSTAGEGP_DATA", raising=False)
    parse = experiment.MEASUREMENT.parser().parse_args
    with pytest.raises(DatasetNotFoundError):
        experiment.cells(parse(["--quick", "--device", "cpu", "--part", "real"]))
    found = experiment.cells(parse(["--quick", "--device", "cpu"]))
    assert {draw.part for draw in found} == {"synthetic"}


def test_the_full_plan_has_the_cells_that_were_promised():
    draws = experiment.synthetic_draws(experiment.FULL, "cpu")
    assert len({draw.cell for draw in draws}) == (4 + 5 + 5) * 2 * 3
    assert len({(draw.cell, draw.draw) for draw in draws}) == len(draws)
    assert [kernel.label for kernel in draws[0].kernels()] == list(experiment.KERNELS[:4])
