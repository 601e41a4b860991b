"""Table 2, Figure 4 and the ablation: pages, pictures, verdicts, and one small run of each."""

import argparse
import json
import math
import xml.etree.ElementTree as ElementTree
from functools import partial
from itertools import product

import numpy as np
import pytest

from experiments import (
    ablation,
    ablation_report,
    figure4,
    figure4_report,
    from_benchmarks,
    table2,
    table2_peers,
    table2_report,
    verdicts,
)
from experiments.printed import FIGURE4, SMALL_SETS, TABLE2
from measurements.runner import run
from twostagegp.datasets import FOLDER_VARIABLE
from twostagegp.estimators.validation import check_parameters

CODE = {"version": "0.1.0", "code": "0123456789"}


def given(experiment, *arguments):
    return experiment.MEASUREMENT.parser().parse_args(arguments)


def holds(page, beginning):
    """The verdict word of the statement that begins so."""
    rows = [line for line in page.splitlines() if line.startswith(f"| {beginning}")]
    assert len(rows) == 1, rows
    return rows[0].split("|")[2].strip()


def cells(page, heading, *first):
    """The cells of the row that begins so, below a heading."""
    below = page.split(f"# {heading}\n")[1]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in below.splitlines()]
    return next(row for row in rows if tuple(row[: len(first)]) == first)


def is_svg(text):
    return ElementTree.fromstring(text).tag.endswith("svg")


# --- what the pages share ------------------------------------------------------------------------


def test_one_exception_decides_and_a_missing_set_leaves_it_open():
    assert verdicts.on_all({}) is None
    assert verdicts.on_all({"a": True, "b": None}) is None
    assert verdicts.on_all({"a": False, "b": None}) is False
    assert verdicts.at_least({"a": True, "b": True, "c": False}, 2) is True
    assert verdicts.at_least({"a": True, "b": None, "c": False}, 2) is None
    assert verdicts.at_least({"a": True, "b": False, "c": False}, 2) is False


def test_exceptions_are_named_unless_there_is_nothing_else():
    assert verdicts.count({"a": True, "b": False}) == "1 of 2 (not b)"
    assert verdicts.count({"a": False, "b": False, "c": None}) == "0 of 2"


def test_words_of_a_verdict():
    words = [verdicts.Verdict("", holds, "").word for holds in (True, False, None)]
    assert words == ["yes", "**no**", "open"]


@pytest.mark.parametrize("module", [table2_report, figure4_report, ablation_report])
def test_a_page_of_nothing_but_failures_says_so(module):
    fields = {"model": "default", "set": "yacht", "split": 0, "seed": 0, "inputs": "plain"}
    records = [fields | CODE | {"stage1": "krr", "residuals": "insample", "error": "Boom: no"}]
    page = module.report(records)
    assert "No fits yet." in page
    assert "Boom: no" in page
    assert "![" not in page
    assert module.picture(records) is None


# --- table 2: made records -----------------------------------------------------------------------


def small_record(model, name, split=0, **scores):
    known = {"model": model, "set": name, "split": split, "source": "fit", "n_test": 50} | CODE
    usual = {"rmse": 1.0, "nlpd_standardized": 0.0, "nlpd": math.log(17.0), "qice": 3.0}
    usual |= {"qice_floor": 2.0, "coverage_95": 0.95, "interval_width_95": 4.0}
    return known | usual | scores


def small_records(
    ours=0.9, nlpd=-1.0, sets=SMALL_SETS, models=("default", "paper", "single_paper")
):
    """Two splits a set; our RMSE as a share of the printed two-stage one."""
    made = []
    for name, model, split in product(sets, models, range(2)):
        scores = {"rmse": TABLE2["Two-stage"][name].rmse + 0.001, "nlpd_standardized": 0.1 * split}
        if model == "default":
            scores["rmse"] *= ours
            scores["nlpd_standardized"] += nlpd
        made.append(small_record(model, name, split, **scores))
    return made


def test_goals_of_table2_both_ways():
    good = table2_report.report(small_records(ours=0.9, nlpd=-1.0))
    assert holds(good, "Goal: our RMSE is not above") == "yes"
    assert holds(good, "Goal: our NLPD is the best") == "yes"
    bad = table2_report.report(small_records(ours=1.1, nlpd=+1.0))
    assert holds(bad, "Goal: our RMSE is not above") == "**no**"
    assert holds(bad, "Goal: it is below") == "**no**"
    assert holds(bad, "Goal: our NLPD is the best") == "**no**"


def test_a_printed_rmse_of_two_decimals_is_compared_at_two_decimals():
    records = [r for r in small_records() if r["set"] != "concrete"]
    for rmse, word in ((3.784, "yes"), (3.786, "**no**")):
        page = table2_report.report([*records, small_record("default", "concrete", rmse=rmse)])
        assert holds(page, "Goal: our RMSE is not above") == word


def test_an_nlpd_within_one_standard_error_of_the_best_peer_leads():
    gaps = (-0.1, 0.3)  # mean 0.1, standard error 0.2
    records = small_records(nlpd=0.0)
    for record in records:
        if record["model"] == "default":
            record["nlpd_standardized"] += gaps[record["split"]]
    assert holds(table2_report.report(records), "Goal: our NLPD is the best") == "yes"
    for record in records:
        if record["model"] == "default":
            record["nlpd_standardized"] += 0.15
    assert holds(table2_report.report(records), "Goal: our NLPD is the best") == "**no**"


def library(model, nlpd, sets=SMALL_SETS, splits=(0,)):
    """Records of a library, as the benchmark's are read."""
    return [
        {"model": model, "set": name, "split": k, "nlpd_standardized": nlpd, "version": "lib 1.2"}
        for name in sets
        for k in splits
    ]


def test_a_library_that_is_better_is_a_peer_and_is_named():
    records = small_records(nlpd=-1.0)  # ours: -1.0 and -0.9
    for nlpd, word in ((-0.5, "yes"), (-1.1, "**no**")):
        page = table2_report.report(records, library("ngboost", nlpd))
        assert holds(page, "Goal: our NLPD is the best") == word
    assert "against 4 peers, 1 of them of other libraries" in page
    assert "yacht: ngboost; boston: ngboost" in page
    assert "ngboost (NGBoost, Normal; lib 1.2)" in page
    best = cells(page, "Likelihood", "yacht")[-1]
    assert best == "-1.100 (ngboost; ours -1.000 on its 1 splits)"
    assert cells(page, "NLPD against every peer", "ngboost")[1] == "**+0.100** (1)"


def test_a_library_is_compared_on_the_splits_that_both_have():
    # Over all its splits the library's mean is lower; on the two that we have it is not.
    records = small_records(nlpd=-1.0)
    far = [r | {"nlpd_standardized": -9.0} for r in library("gpnn", 0.0, splits=(2, 3))]
    page = table2_report.report(records, [*library("gpnn", -0.9, splits=(0, 1)), *far])
    assert holds(page, "Goal: our NLPD is the best") == "yes"
    assert cells(page, "NLPD against every peer", "gpnn")[1] == "-0.050 ± 0.050 (2)"
    assert cells(page, "Likelihood", "yacht")[-1] == "-0.900 (gpnn)"


def test_a_library_on_two_sets_decides_only_these():
    records = small_records(nlpd=-1.0)
    page = table2_report.report(records, library("gpnn", -5.0, sets=("yacht", "wine")))
    assert holds(page, "Goal: our NLPD is the best") == "yes"
    assert "6 of 8 (not yacht, wine)" in page
    assert cells(page, "NLPD against every peer", "gpnn")[2] == "–"


def test_without_libraries_the_page_says_so():
    page = table2_report.report(small_records())
    assert "against 3 peers, 0 of them of other libraries" in page
    assert "No other library has been run" in page


def test_sets_that_are_missing_leave_a_verdict_open():
    page = table2_report.report(small_records(sets=("yacht", "boston")))
    assert holds(page, "Goal: our RMSE is not above") == "open"
    assert holds(page, "Goal: it is below") == "open"
    assert holds(page, "Power's printed QICE") == "open"
    assert holds(page, "Wine's printed QICE") == "open"
    assert cells(page, "RMSE", "naval")[-1] == "0"
    assert is_svg(table2_report.picture(small_records(sets=("yacht", "boston"))))


def test_a_failed_fit_counts_for_nothing_and_is_listed():
    failed = {**small_record("paper", "yacht", 7), "error": "Boom: no"}
    page = table2_report.report([*small_records(), failed])
    assert "model paper, set yacht, split 7: Boom: no" in page
    assert "48 fits." in page


@pytest.mark.parametrize(("qice", "word"), [(13.2125, "yes"), (12.0, "**no**")])
def test_the_constant_is_held_against_the_qice_of_wine(qice, word):
    record = small_record("constant", "wine", qice=qice)
    assert holds(table2_report.report([record]), "Wine's printed QICE") == word


@pytest.mark.parametrize(("qice", "word"), [(15.6, "yes"), (6.5, "**no**")])
def test_the_qice_of_power_seen_again_or_not(qice, word):
    page = table2_report.report([small_record("paper", "power", qice=qice)])
    assert holds(page, "Power's printed QICE") == word
    assert "17 times too narrow and score" in page  # RMSE 1, standard deviation 1/17 in mixed units


@pytest.mark.parametrize(("nlpd", "word"), [(500.0, "yes"), (0.1, "**no**")])
def test_a_very_large_nll_seen_again_or_not(nlpd, word):
    records = [
        small_record("single_paper", name, nlpd_standardized=nlpd) for name in ("power", "naval")
    ]
    page = table2_report.report(records)
    assert holds(page, "Claim: Exact-GP's NLL is very large") == word


def test_two_stage_against_exact_gp_is_judged_by_the_re_run():
    better, worse = ({"rmse": 0.5, "qice": 2.0}, {"rmse": 2.0, "qice": 9.0})
    for scores, word in ((better, "yes"), (worse, "**no**")):
        records = [small_record("single_paper", name) for name in SMALL_SETS]
        records += [small_record("paper", name, **scores) for name in SMALL_SETS]
        page = table2_report.report(records)
        for score in ("RMSE", "QICE"):
            assert (
                holds(page, f"Claim: two-stage outperforms Exact-GP on most sets, by {score}")
                == word
            )


def test_joint_nll_stands_with_the_number_of_its_splits():
    records = [
        small_record("paper", "yacht", k, joint_nll=v) for k, v in enumerate((1.0, 2.0, None))
    ]
    assert cells(table2_report.report(records), "Likelihood", "yacht")[5] == "1.50 ± 0.50 (2)"


@pytest.mark.parametrize(("shift", "word"), [(0.0, "yes"), (9.0, "**no**")])
def test_the_printed_nll_seen_again_or_not(shift, word):
    records = [
        small_record(model, name, joint_nll=row.nll + shift * (row.nll_sd + 0.005))
        for column, model in table2_report.COLUMNS.items()
        for name, row in TABLE2[column].items()
    ]
    assert holds(table2_report.report(records), "The printed NLL is the joint") == word


def test_qice_of_a_gaussian_that_is_too_narrow_agrees_with_a_draw():
    z = np.random.default_rng(0).normal(scale=3.0, size=200_000)
    shares = np.histogram(z, [-np.inf, *table2_report.ndtri(np.arange(1, 10) / 10), np.inf])[0]
    drawn = 100.0 * np.mean(np.abs(shares / len(z) - 0.1))
    assert table2_report.qice_of_narrow(3.0) == pytest.approx(drawn, abs=0.05)


# --- taking over what a benchmark has ------------------------------------------------------------


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A folder of benchmark records, and a function that fills it."""
    folder = tmp_path / "benchmark"
    folder.mkdir()
    monkeypatch.setattr(from_benchmarks, "FOLDER", folder)

    def write(file, records):
        (folder / file).write_text("".join(json.dumps(record) + "\n" for record in records))

    return write


def of_benchmark(model="default", split=0, **more):
    record = small_record(model, "yacht", split, code="fedcba9876")
    del record["source"]
    return record | more


def test_benchmark_records_are_taken_over_with_their_own_provenance(store, tmp_path, monkeypatch):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)  # nothing is fitted, nothing is read
    store("uci_small.jsonl", [of_benchmark(rmse=9.0), of_benchmark(rmse=0.25)])
    arguments = ["--from-benchmarks", "--sets", "yacht", "--splits", "1", "--models", "default"]
    arguments += ["--results", str(tmp_path / "out")]
    assert run(table2.MEASUREMENT, arguments) == 0
    (line,) = (tmp_path / "out" / "table2.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert (record["source"], record["code"], record["rmse"]) == ("benchmarks", "fedcba9876", 0.25)
    page = (tmp_path / "out" / "table2.md").read_text()
    assert "1 of these fits are the benchmark's own" in page
    assert "source fedcba9876" in page


def test_what_the_benchmark_lacks_or_failed_at_is_fitted(store):
    store("uci_small.jsonl", [of_benchmark(), of_benchmark(split=1, error="Boom: no")])
    arguments = ["--sets", "yacht", "--splits", "3", "--models", "default"]
    found = table2.tasks(given(table2, "--from-benchmarks", *arguments))
    assert [task.source for task in found] == ["benchmarks", "fit", "fit"]
    assert {task.source for task in table2.tasks(given(table2, *arguments))} == {"fit"}


def test_without_benchmark_files_everything_is_fitted(store):
    found = table2.tasks(given(table2, "--from-benchmarks", "--sets", "yacht"))
    assert {task.source for task in found} == {"fit"}


def test_libraries_are_read_from_the_benchmark_where_it_has_them(store):
    assert table2_peers.library_records() == []
    fine = {"model": "gpnn", "set": "yacht", "fold": 3, "nlpd": -0.5, "version": "gpytorch 1"}
    failed = {"model": "gpnn", "set": "yacht", "fold": 4, "error": "time limit"}
    store("uci_small_peers.jsonl", [fine, failed, fine | {"model": "ours"}])
    (record,) = table2_peers.library_records()
    assert (record["model"], record["split"], record["nlpd_standardized"]) == ("gpnn", 3, -0.5)
    assert "gpnn (GPNN" in table2.page([small_record("default", "yacht", 3)])


def test_our_own_fit_is_shown_before_the_benchmarks(store):
    both = [small_record("paper", "yacht", rmse=2.0), small_record("paper", "yacht", rmse=3.0)]
    both[1]["source"] = "benchmarks"
    for records in (both, both[::-1]):
        (chosen,) = from_benchmarks.one_each(records, ("model", "set", "split"))
        assert chosen["rmse"] == 2.0
    (chosen,) = from_benchmarks.one_each(
        [both[0] | {"error": "Boom"}, both[1]], ("model", "set", "split")
    )
    assert chosen["rmse"] == 3.0


def test_figure4_takes_over_the_fits_of_the_default_only(store):
    record = {"set": "bike", "fold": 0, "inputs": "whitened", "hc_rmse": 0.02, **CODE}
    store("calibration_gpnn.jsonl", [record])
    found = figure4.tasks(given(figure4, "--from-benchmarks", "--sets", "bike", "--seeds", "1"))
    taken = [task for task in found if task.source == "benchmarks"]
    assert [(task.model, task.inputs) for task in taken] == [("default", "whitened")]
    assert figure4.measure(taken[0])["hc_rmse"] == 0.02


# --- figure 4: made records ----------------------------------------------------------------------


def ua_record(variant, name, hc, lc, seed=0):
    known = {"model": variant[0], "inputs": variant[1], "set": name, "seed": seed, "source": "fit"}
    scores = {"rmse": 0.5, "nlpd": 0.1, "hc_rmse": hc, "lc_rmse": lc, "fit_cpu": 3.0}
    return known | CODE | {"n_train": 70, "n_test": 20} | scores


def ua_records(ours=(0.001, 0.9), sets=tuple(FIGURE4)):
    made = []
    for name in sets:
        printed = FIGURE4.get(name, (0.1, 0.2, 0.1, 0.2))
        made += [
            ua_record(figure4_report.GPNN, name, *printed[:2]),
            ua_record(figure4_report.PAPER, name, *printed[2:]),
            ua_record(figure4_report.OURS, name, *ours),
        ]
    return made


def test_claims_of_figure4_hold_on_the_printed_figures():
    page = figure4_report.report(ua_records())
    assert holds(page, "HC-RMSE < LC-RMSE") == "yes"
    assert holds(page, "Our HC-RMSE is below") == "yes"
    assert holds(page, "Claim: two-stage GPNN's HC-RMSE") == "**no**"  # two of the bars are equal
    assert holds(page, "Claim: two-stage GPNN has a larger") == "yes"
    assert holds(page, "Our default has a larger") == "yes"
    assert holds(page, "Claim: GPNN on bike") == "yes"


def test_claims_of_figure4_the_other_way():
    records = ua_records(ours=(0.9, 0.8))
    for record in records:
        if (record["model"], record["set"]) == ("gpnn", "bike"):
            record["hc_rmse"] = 0.01
    page = figure4_report.report(records)
    assert holds(page, "HC-RMSE < LC-RMSE") == "**no**"
    assert holds(page, "Our HC-RMSE is below") == "**no**"
    assert holds(page, "Our default has a larger") == "**no**"
    assert holds(page, "Claim: GPNN on bike") == "**no**"


def test_parts_of_tables_stand_apart_and_missing_tables_are_named():
    records = ua_records(sets=("bike", "ctslice_part"))
    page = figure4_report.report(records)
    assert "Not run: poletele, protein, ctslice, road3d, song, house_electric." in page
    assert "no ctslice.npz, road3d.npz, song.npz, house_electric.npz" in page
    assert holds(page, "HC-RMSE < LC-RMSE") == "open"
    assert "ours: 1 of 1" in page  # bike alone
    assert cells(page, "Parts of tables", "ctslice_part")[3:5] == ["–", "–"]
    drawn = figure4_report.picture(records)
    assert is_svg(drawn)


def test_a_page_of_all_seven_tables_misses_none():
    assert "Not run" not in figure4_report.report(ua_records())


def test_seeds_differ_between_the_models():
    records = [
        *ua_records(sets=("bike",)),
        ua_record(figure4_report.OURS, "bike", 0.1, 0.2, seed=1),
    ]
    assert cells(figure4_report.report(records), "HC-RMSE and LC-RMSE", "bike")[2] == "0–2"


# --- ablation: made records ----------------------------------------------------------------------


def ablation_records(insample=1.0, uncalibrated=0.5, sets=ablation_report.SETS, covered=0.95):
    """NLPD of stage 1 plus what in-sample residuals and a missing calibration cost."""
    made = []
    for stage, residuals, name, split in product(
        ablation_report.STAGES, ablation_report.RESIDUALS, sets, range(2)
    ):
        worse = 0.0 if stage == "stack" else 0.3
        base = worse + (insample if residuals == "insample" else 0.0)
        usual = {"rmse": 0.2 + worse, "qice": 3.0, "qice_floor": 2.0, "crps": 0.1}
        narrow = 0.3 * insample if residuals == "insample" else 0.0
        made.append(
            {"stage1": stage, "residuals": residuals, "set": name, "split": split}
            | CODE
            | {
                "none": {**usual, "nlpd": base + uncalibrated, "coverage_95": covered - narrow},
                "local": {**usual, "nlpd": base + 0.01 * split, "coverage_95": covered},
            }
        )
    return made


STATEMENTS = (
    "Without calibration, 95 % intervals cover less",
    "Without calibration, held-out residuals have",
    "Calibration alone repairs",
    "With calibration, held-out residuals still",
    "On held-out residuals, calibration lowers",
    "Our stack has the lowest RMSE",
    "Our default has the lowest NLPD",
)


def test_findings_of_the_ablation_both_ways():
    page = ablation_report.report(ablation_records())
    assert [holds(page, text) for text in STATEMENTS] == ["yes"] * 7
    records = ablation_records(insample=-1.0, uncalibrated=-0.5, covered=0.8)
    for record in records:
        if record["stage1"] == "stack":
            record["local"]["rmse"] = 9.0
    page = ablation_report.report(records)
    assert [holds(page, text) for text in STATEMENTS] == ["**no**"] * 7


def test_ablation_with_missing_sets_and_stages():
    records = [r for r in ablation_records(sets=("yacht",)) if r["stage1"] != "net"]
    records.append({**records[0], "stage1": "net", "error": "Boom: no"})
    page = ablation_report.report(records)
    assert holds(page, "Without calibration, held-out residuals have") == "open"
    assert holds(page, "Our stack has the lowest RMSE") == "open"
    assert "stage1 net, residuals insample, set yacht, split 0: Boom: no" in page
    assert is_svg(ablation_report.picture(records))


def test_variants_are_compared_on_the_same_splits():
    records = [r for r in ablation_records(sets=("yacht",)) if r["stage1"] in ("krr", "stack")]
    kept = [r for r in records if r["stage1"] == "stack" or r["split"] == 0]
    for record in kept:
        if (record["stage1"], record["split"]) == ("stack", 1):
            record["local"]["nlpd"] = 100.0  # where the ridge has no record
    page = ablation_report.report(kept)
    row = cells(page, "Over all sets", "kernel ridge (paper's)", "held-out", "default")
    assert row[4] == "+0.300"


def test_one_set_that_has_no_residuals_left_does_not_decide_the_summary():
    records = ablation_records()
    for record in records:
        if (record["stage1"], record["residuals"], record["set"]) == ("krr", "insample", "wine"):
            record["none"]["nlpd"] = 1e6
    page = ablation_report.report(records)
    row = cells(page, "Over all sets", "kernel ridge (paper's)", "in-sample", "none")
    assert float(row[4]) < 2.0


def test_the_page_says_that_there_is_a_single_split():
    records = ablation_records()
    assert "Splits per set: 2.\n" in ablation_report.report(records)
    single = ablation_report.report([r for r in records if r["split"] == 0])
    assert "Splits per set: 1. With one split there is no standard error" in single


# --- pictures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "records"),
    [
        pytest.param(table2_report, small_records(), marks=pytest.mark.slow),
        (figure4_report, ua_records()),
        pytest.param(ablation_report, ablation_records(), marks=pytest.mark.slow),
    ],
)
def test_pictures_are_the_same_every_time(module, records):
    drawn = module.picture(records)
    assert is_svg(drawn)
    assert drawn == module.picture(records)


# --- tasks ---------------------------------------------------------------------------------------


def test_quick_takes_few_small_tables(monkeypatch, tmp_path):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    sets = {
        module.__name__.rpartition(".")[2]: {t.set for t in module.tasks(given(module, "--quick"))}
        for module in (table2, figure4, ablation)
    }
    assert sets == {"table2": {"yacht", "boston"}, "figure4": {"poletele"}, "ablation": {"yacht"}}
    assert len(figure4.tasks(given(figure4, "--quick"))) == 3


def test_large_tables_have_three_splits_and_the_constant_has_twenty():
    found = table2.tasks(given(table2, "--sets", "power", "--models", "default,constant"))
    assert sum(task.model == "default" for task in found) == 3
    assert sum(task.model == "constant" for task in found) == 20


def test_large_files_run_where_they_are(monkeypatch, tmp_path):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    np.savez(tmp_path / "song.npz", X=np.zeros((4, 2)), y=np.zeros(4))
    found = {task.set for task in figure4.tasks(given(figure4))}
    assert "song" in found
    assert not found & {"ctslice", "road3d", "house_electric"}


@pytest.mark.parametrize(
    ("module", "name"), [(table2, "yacht"), (figure4, "song"), (ablation, "yacht")]
)
def test_a_named_table_that_is_not_there_ends_with_status_two(module, name, tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert run(module.MEASUREMENT, ["--sets", name, "--results", str(tmp_path / "out")]) == 2


# --- one small run of each -----------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder of tiny tables."""
    root = tmp_path / "data"
    for part in ("uci_small", "uci_large"):
        (root / part).mkdir(parents=True)
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(90, 2))
    y = np.sin(5.0 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=90)
    tests = {f"test_{k}": np.arange(10 * k, 10 * k + 10) for k in range(9)}
    for name in ("yacht", "kin8nm"):
        np.savez(root / "uci_small" / f"{name}.npz", X=X, y=y, **tests)
    np.savez(root / "uci_large" / "song.npz", X=X, y=y)
    monkeypatch.setenv(FOLDER_VARIABLE, str(root))
    return root


RUNS = {
    "table2": (table2, "--sets yacht --splits 1 --models constant,single_paper", 2),
    "figure4": (figure4, "--sets song --seeds 1 --models gpnn", 1),
    "ablation": (ablation, "--sets yacht --splits 1 --stages krr", 2),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_small_run_and_its_resumption(name, folder, tmp_path, capsys):
    module, words, n = RUNS[name]
    arguments = [*words.split(), "--results", str(tmp_path / "out")]
    assert run(module.MEASUREMENT, arguments) == 0
    kept = (tmp_path / "out" / f"{name}.jsonl").read_text()
    records = [json.loads(line) for line in kept.splitlines()]
    assert len(records) == n
    assert not any("error" in record for record in records)
    assert is_svg((tmp_path / "out" / f"{name}.svg").read_text()) is True
    capsys.readouterr()
    assert run(module.MEASUREMENT, arguments) == 0
    assert f"{n} of {n} are stored already" in capsys.readouterr().out
    assert (tmp_path / "out" / f"{name}.jsonl").read_text() == kept


def test_joint_nll_of_a_fit_and_of_the_constant(folder):
    fitted = table2.measure(table2.Task("single_paper", "yacht", 0, "fit"))
    assert math.isfinite(fitted["joint_nll"])
    assert fitted["joint_nll"] != fitted["nlpd_standardized"]
    constant = table2.measure(table2.Task("constant", "yacht", 0, "fit"))
    assert constant["joint_nll"] == constant["nlpd_standardized"]
    assert constant["rmse"] > fitted["rmse"]


def test_a_covariance_that_cannot_be_factorised_has_no_joint_nll():
    class Singular:
        def predict(self, X, return_cov):
            return np.zeros(2), np.ones((2, 2)) - 2.0

    assert table2.joint_nll(Singular(), np.zeros((2, 1)), np.zeros(2), np.array([0.0, 1.0])) is None


def test_a_failed_fit_is_kept_and_tried_again(folder, tmp_path, monkeypatch):
    def broken(**given):
        raise ValueError("no such thing")

    arguments = ["--sets", "yacht", "--splits", "1", "--models", "single_paper", "--results"]
    arguments.append(str(tmp_path / "out"))
    with monkeypatch.context() as patch:
        patch.setattr(table2, "MODELS", {"single_paper": broken})
        assert run(table2.MEASUREMENT, arguments) == 1
    assert "ValueError: no such thing" in (tmp_path / "out" / "table2.md").read_text()
    assert run(table2.MEASUREMENT, arguments) == 0
    assert "failed" not in (tmp_path / "out" / "table2.md").read_text()


def test_the_two_calibrations_of_a_fit_share_their_mean(folder):
    record = ablation.measure(ablation.Task("trees", "heldout", "yacht", 0))
    assert record["none"]["rmse"] == record["local"]["rmse"]
    assert record["none"]["nlpd"] != record["local"]["nlpd"]


def test_a_subsample_has_so_many_training_rows_and_all_test_rows(folder):
    take = partial(ablation.training_and_test_rows, "kin8nm_2000", rows=30)
    X, _, X_test, _ = take(1)
    assert (len(X), len(X_test)) == (30, 10)
    first, again = take(1)[0], take(2)[0]
    assert np.array_equal(X, first)
    assert not np.array_equal(X, again)


@pytest.mark.parametrize("stage", ablation.PARAMETERS)
def test_every_first_stage_is_one_that_the_estimator_takes(stage):
    check_parameters(ablation.TwoStageGPRegressor(**ablation.PARAMETERS[stage]()))


def test_options_are_checked():
    for module in (table2, figure4, ablation):
        with pytest.raises(SystemExit):
            given(module, "--sets", "nowhere")
    assert isinstance(given(ablation), argparse.Namespace)
