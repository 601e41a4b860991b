"""Figures 2, 3, 6, 7 and Tables 1 and 4: pages from made records, and one small run of each."""

import argparse
import json
import math
import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from experiments import contours, small_sets, table1, table4, toys
from experiments.printed import SMALL_SETS, Printed
from measurements import runner

FOLDER_VARIABLE = "TWOSTAGEGP_DATA"
REAL = os.environ.get(FOLDER_VARIABLE)
CODE = {"version": "0", "code": "made"}


def words(verdicts):
    return [verdict.word for verdict in verdicts]


def is_svg(text):
    return ElementTree.fromstring(text).tag.endswith("svg")


def section(page, title):
    return page.split(f"## {title}\n")[1].split("\n## ")[0]


def given(**options):
    return argparse.Namespace(**{"quick": False, "sets": None, "splits": None, **options})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder of small made-up tables, each with two splits."""
    root = tmp_path / "data"
    root.mkdir()
    rng = np.random.default_rng(0)
    for name, d in (("yacht", 2), ("wine", 3), ("power", 2)):
        X = rng.normal(size=(90, d))
        X[5], X[70] = X[4], X[4]  # repeats, as wine has them
        y = np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=90)
        np.savez(root / f"{name}.npz", X=X, y=y, test_0=np.arange(60, 90), test_1=np.arange(30))
    monkeypatch.setenv(FOLDER_VARIABLE, str(root))
    contours.load_fold.cache_clear()
    yield root
    contours.load_fold.cache_clear()


def run(experiment, tmp_path, *more):
    return runner.run(experiment, ["--quick", "--results", str(tmp_path / "out"), *more])


def lines(tmp_path, name):
    path = tmp_path / "out" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# --- toys ----------------------------------------------------------------------------------------


def toy_record(kind, model, seed, observed=0.95, fresh=0.95, function=0.5, **more):
    return {
        "kind": kind,
        "model": model,
        "seed": seed,
        **CODE,
        "coverage_observed": observed,
        "coverage_observed_function": function,
        "coverage_fresh": fresh,
        "width_fresh": 4.0,
        "rmse_f": 1.0,
        "fit_cpu_seconds": 0.1,
        **more,
    }


def toy_records(single, two, default=0.95, function=0.5):
    """Records of both functions; single and two are (observed, fresh)."""
    found = []
    for kind in toys.KINDS:
        for seed, wobble in ((0, -0.01), (1, 0.01)):
            found += [
                toy_record(kind, "single_paper", seed, *single, function=function + wobble),
                toy_record(kind, "paper", seed, *two),
                toy_record(kind, "default", seed, fresh=default),
                toy_record(kind, "single", seed),
            ]
    return found


def test_toys_verdicts_go_both_ways():
    kind = "sine"
    as_claimed = toys.judge(toy_records((0.5, 0.5), (0.9667, 0.95)), kind)
    assert words(as_claimed) == ["yes", "yes", "yes", "yes", "yes", "yes"]
    against = toys.judge(toy_records((0.97, 0.95), (0.9, 0.7), 0.8, function=0.8), kind)
    assert words(against) == ["**no**"] * 6
    assert words(toys.judge([], kind)) == ["open"] * 6
    assert "97.0 %" in against[0].evidence


def test_toys_page_says_what_the_verdicts_say():
    page = toys.report(toy_records((0.97, 0.95), (0.9, 0.7), 0.8))
    assert "is not typical of its own settings" in page
    assert "is the worse one of the two, and our default misses its 95 %" in page
    assert "is typical of its own settings" in toys.report(toy_records((0.5, 0.5), (0.97, 0.95)))
    mixed = toy_records((0.5, 0.5), (0.97, 0.95))
    for record in mixed:
        if record["kind"] == "power":
            record["coverage_observed"] = 0.97
    assert "typical in one figure and not typical in the other" in toys.report(mixed)


def test_toys_page_with_missing_models_and_failures():
    records = [
        toy_record("sine", "default", 0),
        {"kind": "sine", "model": "paper", "seed": 0, **CODE, "error": "ValueError: no luck"},
    ]
    page = toys.report(records)
    assert "kind sine, model paper, seed 0: ValueError: no luck" in page
    assert "## Figure 2" in page
    assert "## Figure 6" not in page
    assert toys.picture(records) is None
    failed = [{"kind": "sine", "model": "paper", "seed": 0, **CODE, "error": "gone"}]
    assert "No fits yet." in toys.report(failed)
    assert toys.picture(failed) is None


def test_toys_picture_has_a_panel_for_a_missing_model_too():
    line = np.zeros(len(toys.GRID)).tolist()
    curve = {"mean": line, "lower": [-1.0] * len(line), "upper": [1.0] * len(line)}
    assert is_svg(toys.picture([toy_record("power", "default", 0, curve=curve)]))


def test_truth_is_the_function_of_the_data():
    from twostagegp import datasets

    for kind in toys.KINDS:
        X, f = datasets.toy(20, noise=0.0, random_state=3, kind=kind)
        assert np.allclose(toys.truth(kind, X[:, 0]), f)


@pytest.mark.slow
def test_toys_run_and_resume(tmp_path, capsys):
    assert run(toys.MEASUREMENT, tmp_path, "--seeds", "1") == 0
    found = lines(tmp_path, "toys")
    assert len(found) == 2 * len(toys.COMPARED)
    for record in found:
        assert 0.5 < record["coverage_observed"] <= 1.0
        assert record["coverage_observed_function"] <= record["coverage_observed"]
        assert len(record["curve"]["mean"]) == len(toys.GRID)
    assert is_svg((tmp_path / "out" / "toys.svg").read_text(encoding="utf-8"))
    page = (tmp_path / "out" / "toys.md").read_text(encoding="utf-8")
    capsys.readouterr()
    assert run(toys.MEASUREMENT, tmp_path, "--seeds", "1") == 0
    assert "8 of 8 are stored already." in capsys.readouterr().out
    assert lines(tmp_path, "toys") == found
    assert (tmp_path / "out" / "toys.md").read_text(encoding="utf-8") == page


# --- contours ------------------------------------------------------------------------------------


def end(way, share, loss, refined=None, shift=0.0, seed=0, no_noise=9.0):
    record = {
        "kind": "optimum", "way": way, "share": share, "seed": seed, "rows": 0, **CODE, "n": 100,
        "parameters": [1.0 + shift, 0.0, -0.5], "loss_full": loss, "evaluations": 5,
        "cpu_seconds": 1.0,
    }  # fmt: skip
    if share == 100:
        return record | {"loss_no_noise": no_noise, "copies": 7}
    return record | {
        "refined": [1.0, 0.0, -0.5],
        "loss_refined": loss if refined is None else refined,
        "refine_evaluations": 4,
        "refine_cpu_seconds": 0.5,
    }


def contour_records(paper, ours, paper_refined, ours_refined, shift, no_noise):
    found = []
    for way, losses, refined in (("paper", paper, paper_refined), ("ours", ours, ours_refined)):
        for share, loss in zip(contours.SHARES, losses, strict=True):
            moved = shift if share == 10 else 0.0
            found.append(end(way, share, loss, refined, moved, no_noise=no_noise))
    return found


def test_contour_verdicts_go_both_ways():
    falling = (1.1, 1.05, 1.02, 1.0)
    fine = contour_records(falling, falling, 1.01, 1.0, 0.1, 2.0)
    assert words(contours.judge(fine)) == ["yes"] * 7
    rising = (1.02, 1.05, 1.1, 1.2)
    bad = contour_records(rising, (*rising[:3], 1.0), 1.3, 1.3, 2.0, 0.5)
    assert words(contours.judge(bad)) == ["**no**"] * 7
    assert words(contours.judge([])) == ["open"] * 7


def test_contour_page_with_missing_shares_and_failures():
    failed = {"kind": "optimum", "way": "ours", "share": 50, "seed": 3, "rows": 0, **CODE}
    records = [end("paper", 10, 1.1), end("paper", 100, 1.0), failed | {"error": "out of luck"}]
    page = contours.report(records)
    assert "kind optimum, way ours, share 50, seed 3: out of luck" in page
    assert "AdamW, 50 steps, as printed | 10 %" in page
    assert "fifty steps do reach it" in page
    assert contours.picture(records) is None
    assert "No fits yet." in contours.report([failed | {"error": "out of luck"}])


def test_a_surface_is_the_likelihood_that_training_sees():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(25, 2))
    X[3] = X[4]
    y = rng.normal(size=25)
    y = (y - y.mean()) / y.std()
    problem = contours.training_problem(X, y, "paper")
    s, noise = np.array([0.7, 2.0]), np.array([0.3, 0.05])
    found = contours.surface_loss(X, y, 0.4, s, noise)
    at = zip(s, noise, strict=True)
    wanted = [problem(np.array([0.4, math.log(a), math.log(b)]))[0] for a, b in at]
    assert np.allclose(found, wanted, rtol=1e-9)


def test_contours_run(folder, tmp_path):
    assert run(contours.MEASUREMENT, tmp_path, "--seeds", "1") == 0
    found = lines(tmp_path, "contours")
    assert {r["kind"] for r in found} == {"optimum", "surface"}
    ours = {r["share"]: r for r in found if r["kind"] == "optimum" and r["way"] == "ours"}
    assert set(ours) == set(contours.SHARES)
    assert ours[50]["loss_refined"] >= ours[100]["loss_full"] - 1e-6
    assert ours[50]["loss_refined"] <= ours[50]["loss_full"]
    assert ours[100]["copies"] == 0  # inputs repeat, targets do not
    assert is_svg((tmp_path / "out" / "contours.svg").read_text(encoding="utf-8"))
    surface = next(r for r in found if r["kind"] == "surface" and r["way"] == "ours")
    middle = surface["surfaces"]["lengthscale noise"][contours.POINTS // 2][contours.POINTS // 2]
    assert middle == pytest.approx(ours[100]["loss_full"], abs=1e-4)


# --- sets and splits -----------------------------------------------------------------------------


def test_large_tables_count_one_split_by_default():
    found = small_sets.places(given(), {})
    assert {name for name, _ in found} == set(SMALL_SETS)
    assert all(k == 0 for name, k in found if name in small_sets.LARGE)
    assert sum(name == "yacht" for name, _ in found) == 20
    quick = small_sets.places(given(quick=True), {"boston": 1, "yacht": 2})
    assert quick == [("yacht", 0), ("boston", 0), ("yacht", 1)]
    asked = small_sets.places(given(quick=True, sets=["naval"], splits=99), {"yacht": 1})
    assert asked == [("naval", k) for k in range(20)]


def test_differences_are_paired():
    records = [
        {"set": "yacht", "model": m, "split": k, "rmse": v}
        for m, k, v in (("a", 0, 1.0), ("a", 1, 2.0), ("b", 1, 5.0), ("b", 2, 9.0))
    ]
    cells = small_sets.Cells.of(records)
    assert cells.differences("yacht", "rmse", "b", "a") == [3.0]
    assert cells.splits("yacht", ("a", "b", "c")) == "2"
    assert math.isnan(cells.mean("boston", "a", "rmse"))
    assert cells.below("yacht", "rmse", "a", "b") is True
    assert cells.below("yacht", "rmse", "b", "a") is False
    assert cells.below("yacht", "rmse", "a", "c") is None


# --- tables 1 and 4 ------------------------------------------------------------------------------


def score(model, name, split=0, rmse=1.0, nlpd=0.5, seconds=1.0, **more):
    return {
        "model": model, "set": name, "split": split, **CODE, "n_train": 100, "n_test": 30,
        "device": "cpu", "rmse": rmse, "nlpd_standardized": nlpd, "nlpd": nlpd + math.log(2.0),
        "joint_nll": nlpd - 0.01, "coverage_95": 0.95, "qice": 4.0, "qice_floor": 3.0,
        "fit_cpu_seconds": seconds, "full_evaluations": 6, "kernel": "rbf", **more,
    }  # fmt: skip


def table4_records(sod, warm, sets=("yacht", "boston")):
    return [
        score(model, name, split, **scores)
        for name in sets
        for split in (0, 1)
        for model, scores in (
            ("exact", {"seconds": 4.0}),
            ("sod", sod),
            ("warm", warm),
            ("default", {"rmse": 0.5}),
        )
    ]


def test_table4_verdicts_go_both_ways():
    fine = table4_records({"rmse": 1.01}, {"rmse": 0.9, "seconds": 0.5})
    assert words(table4.judge(small_sets.Cells.of(fine))) == ["yes"] * 5
    bad = table4_records({"rmse": 2.0, "nlpd": 1.5, "seconds": 3.9}, {"rmse": 3.0, "seconds": 5.0})
    assert words(table4.judge(small_sets.Cells.of(bad))) == ["**no**"] * 5
    assert "keeps the RMSE" in table4.report(fine)
    assert "does not keep the RMSE" in table4.report(bad)
    assert "costs more than that on some set" in table4.report(bad)


def test_table4_does_not_compare_seconds_with_those_of_a_gpu():
    records = [score("exact", "naval", seconds=9.0, device="cuda:0"), score("sod", "naval")]
    cells = small_sets.Cells.of(records)
    assert math.isnan(table4.ratio(cells, "naval", "exact", "sod"))
    assert words(table4.judge(cells))[2] == "open"


def test_table4_page_with_missing_sets_and_failures():
    records = [
        score("exact", "yacht"),
        score("sod", "wine", joint_nll=None),
        {"model": "default", "set": "wine", "split": 0, **CODE, "error": "ValueError: no luck"},
    ]
    page = table4.report(records)
    assert "model default, set wine, split 0: ValueError: no luck" in page
    assert "| yacht" in section(page, "RMSE")
    assert "boston" not in section(page, "RMSE")
    assert "5.00 ± 0.83" in section(page, "QICE")
    assert is_svg(table4.picture(records))
    assert table4.picture(records[1:]) is None
    assert "No fits yet." in table4.report(records[2:])


def table1_records(aks, heldout=None, ours=None, sets=("yacht", "boston", "power", "naval")):
    return [
        score(model, name, **(scores or {}))
        for name in sets
        for model, scores in (("rbf", None), ("aks", aks), ("heldout", heldout), ("ours", ours))
    ]


def cause(name="power", eigenvalue=0.05, iterative=-0.1, repeated=0):
    return {
        "model": "cause", "set": name, "split": 0, **CODE, "n_test": 957, "n_condition": 1500,
        "repeated_inputs": repeated, "noise": 0.05, "nll_exact": 0.1,
        "eigenvalue_exact": eigenvalue, "latent_eigenvalue_exact": 0.0, "nll_gpytorch": 1e4,
        "nll_function_gpytorch": None, "eigenvalue_gpytorch": iterative,
    }  # fmt: skip


def test_table1_verdicts_go_both_ways():
    fine = table1_records({"rmse": 0.5, "nlpd": 300.0, "joint_nll": -1.0}, {"nlpd": 0.1})
    fine = small_sets.Cells.of(fine)
    assert words(table1.judge(fine, []))[:4] == ["yes", "yes", "**no**", "yes"]
    bad = small_sets.Cells.of(
        table1_records({"rmse": 2.0, "nlpd": 0.9}, {"nlpd": 0.95}, {"nlpd": 3.0})
    )
    assert words(table1.judge(bad, []))[:6] == ["**no**"] * 6
    good = small_sets.Cells.of(table1_records({"joint_nll": 2000.0}, None, {"nlpd": -1.0}))
    assert words(table1.judge(good, []))[4:6] == ["yes", "yes"]
    assert words(table1.judge(small_sets.Cells.of([]), [])) == ["open"] * 7


def test_table1_names_the_cause():
    none = small_sets.Cells.of([])
    assert words(table1.judge(none, [cause()]))[7:] == ["**no**", "**no**", "yes", "yes"]
    other = cause(eigenvalue=1e-9, iterative=0.05, repeated=3)
    assert words(table1.judge(none, [other]))[7:] == ["yes", "yes", "**no**", "yes"]
    page = table1.report([cause()])
    assert "is indefinite, so that what it gives is no likelihood at all" in page
    assert "is positive definite" in table1.report([other])
    assert table1.picture([cause()]) is None


def test_table1_knows_which_printed_deviations_are_impossible():
    found = table1.impossible_deviations()
    assert any(text.startswith("Table 1, RBF, power: 7.7") for text in found)
    assert not any("naval" in text for text in found)


def test_table1_attainable_likelihood():
    known = Printed(2.0, 0.0, 0.0, 0.0)
    assert table1.attainable(known, 4.0) == pytest.approx(math.log(0.5) + 0.5)
    assert math.isnan(table1.attainable(Printed(0.0, 0.0, 0.0, 0.0), 1.0))


def test_table1_page_with_missing_sets_and_failures():
    records = [
        score("rbf", "yacht"),
        score("aks", "wine", kernel="matern12"),
        {"model": "ours", "set": "wine", "split": 1, **CODE, "error": "ValueError: no luck"},
    ]
    page = table1.report(records)
    assert "model ours, set wine, split 1: ValueError: no luck" in page
    assert "matern12 1" in section(page, "Kernels chosen")
    assert "2.12 ± 1.23" in section(page, "RMSE")
    assert "Why likelihoods explode" not in page
    assert is_svg(table1.picture(records))


# --- real fits -----------------------------------------------------------------------------------


def test_table4_run_and_resume(folder, tmp_path, capsys):
    arguments = ("--sets", "yacht", "--splits", "1")
    assert run(table4.MEASUREMENT, tmp_path, *arguments) == 0
    found = {r["model"]: r for r in lines(tmp_path, "table4")}
    assert set(found) == set(table4.MODELS)
    for record in found.values():
        assert (record["n_train"], record["n_test"]) == (60, 30)
        assert record["rmse"] < 1.0
        assert math.isfinite(record["joint_nll"])
    assert found["exact"]["full_evaluations"] == 51
    capsys.readouterr()
    assert run(table4.MEASUREMENT, tmp_path, *arguments) == 0
    assert "4 of 4 are stored already." in capsys.readouterr().out
    assert run(table4.MEASUREMENT, tmp_path, "--sets", "boston") == 2  # no such table here


def test_table1_run(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(table1.MODELS, "aks", table1.MODELS["rbf"])  # the search has its own tests
    assert run(table1.MEASUREMENT, tmp_path, "--sets", "yacht,power", "--splits", "1") == 0
    found = {(r["set"], r["model"]): r for r in lines(tmp_path, "table1")}
    assert found["yacht", "rbf"]["kernel"] == "rbf"
    assert found["yacht", "ours"]["kernel"].endswith("-ard")
    taken = found["power", "cause"]
    # So few rows take Cholesky in GPyTorch too: both ways agree but for float32.
    assert taken["nll_gpytorch"] == pytest.approx(taken["nll_exact"], abs=1e-2)
    assert taken["eigenvalue_exact"] >= 0.99 * taken["noise"]
    page = (tmp_path / "out" / "table1.md").read_text(encoding="utf-8")
    assert "Why likelihoods explode" in page


def has_table(name):
    return REAL is not None and any(
        (Path(REAL) / place / f"{name}.npz").exists() for place in ("", "uci_small")
    )


@pytest.mark.skipif(not has_table("yacht"), reason="the yacht table is not there")
def test_yacht_comes_out_as_known():
    sod = table4.measure(table4.Task("sod", "yacht", 0))
    exact = table4.measure(table4.Task("exact", "yacht", 0))
    assert sod["n_train"] == 277
    assert 0.7 < sod["rmse"] < 1.6
    assert (sod["full_evaluations"], exact["full_evaluations"]) == (6, 51)
    ours = table1.measure(table1.Task("heldout", "yacht", 0))
    assert ours["nlpd_standardized"] < exact["nlpd_standardized"]


@pytest.mark.skipif(not has_table("wine"), reason="the wine table is not there")
def test_wine_subsamples_lead_near_the_optimum():
    contours.load_fold.cache_clear()
    record = contours.measure(contours.Task("optimum", "ours", 50, 0, 300))
    assert record["n"] == 150
    assert record["loss_refined"] <= record["loss_full"]
