"""The benchmark programs: what is kept on disk, how it is shown, and one small run of each."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from benchmarks import _models, defaults, exact_speed, publish, toy, uci_small
from benchmarks._gpytorch_exact import GPyTorchExact
from benchmarks._store import JsonLines, plain, write_whole
from benchmarks._tables import MISSING, figure, markdown_table, mean_sd, mean_se, yes_no
from benchmarks._uci_tables import REFERENCES, as_printed, report
from twostagegp import datasets
from twostagegp.pipeline.settings import DEFAULTS

# --- store ---------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    return JsonLines(tmp_path / "deep" / "results.jsonl", key=("model", "split"))


def lines_of(store):
    return store.path.read_text().splitlines()


def test_store_without_a_file_is_empty(store):
    assert store.records() == {}
    assert store.done() == set()


def test_store_gives_back_what_was_appended(store):
    assert store.append({"model": "a", "split": 0, "rmse": 1.5})
    assert store.append({"model": "a", "split": 1, "rmse": 2.5})
    assert store.records()["a", 1]["rmse"] == 2.5
    assert store.done() == {("a", 0), ("a", 1)}


def test_store_skips_what_is_done_unless_told_to_replace(store):
    store.append({"model": "a", "split": 0, "rmse": 1.0})
    assert not store.append({"model": "a", "split": 0, "rmse": 2.0})
    assert store.records()["a", 0]["rmse"] == 1.0
    assert store.append({"model": "a", "split": 0, "rmse": 3.0}, replace=True)
    assert store.records()["a", 0]["rmse"] == 3.0


def test_a_failed_record_is_kept_but_not_done(store):
    store.append({"model": "a", "split": 0, "error": "boom"})
    assert store.done() == set()
    assert store.append({"model": "a", "split": 0, "rmse": 1.0})
    assert store.done() == {("a", 0)}
    assert len(lines_of(store)) == 2


@pytest.mark.parametrize("tail", ['{"model": "a", "spl', '{"model": "a", "split": 1}', "\xe4"])
def test_a_truncated_last_line_is_ignored_and_then_cut_off(store, tail):
    store.append({"model": "a", "split": 0})
    with open(store.path, "a", encoding="latin-1") as file:
        file.write(tail)
    assert store.done() == {("a", 0)}
    assert store.append({"model": "a", "split": 1, "rmse": 2.0})
    assert [json.loads(line)["split"] for line in lines_of(store)] == [0, 1]


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(store):
    store.append({"model": "a", "split": 0})
    with open(store.path, "a") as file:
        file.write("not json\n")
    with pytest.raises(ValueError, match="line 2"):
        store.records()


def _append_many(store, first):
    for split in range(first, first + 50):
        store.append({"model": "a", "split": split, "text": "x" * 500})


def test_two_writers_do_not_tear_each_others_lines(store):
    # Threads do for processes here: the lock belongs to the open file, and each append opens it.
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda first: _append_many(store, first), (0, 25)))
    assert len(lines_of(store)) == 75
    assert store.done() == {("a", split) for split in range(75)}


def test_records_are_strict_json(store):
    store.append({"model": "a", "split": np.int64(3), "x": math.nan, "y": [np.float64(1.0)]})
    assert store.records()["a", 3] == {"model": "a", "split": 3, "x": None, "y": [1.0]}
    assert plain({"x": {"y": -math.inf}}) == {"x": {"y": None}}


def test_write_whole_replaces_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "new" / "table.md"
    write_whole(path, "one")
    write_whole(path, "two")
    assert path.read_text() == "two"
    with pytest.raises(TypeError):
        write_whole(path, 3)
    assert path.read_text() == "two"
    assert list(path.parent.iterdir()) == [path]


# --- tables --------------------------------------------------------------------------------------


def test_markdown_table_is_aligned():
    assert markdown_table(["set", "RMSE"], [["yacht", "0.3"], ["a|b", ""]]) == (
        "| set   | RMSE |\n| ----- | ---- |\n| yacht | 0.3  |\n| a\\|b  |      |\n"
    )


def test_markdown_table_wants_full_rows():
    with pytest.raises(ValueError, match="2 cells"):
        markdown_table(["a", "b"], [["1"]])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.7834, "3.78"),
        (0.06951, "0.0695"),
        (1.6e-5, "1.60e-05"),
        (123.4, "123"),
        (0.0, "0"),
        (-2.754, "-2.75"),
        (None, MISSING),
        (math.inf, MISSING),
    ],
)
def test_figure(value, text):
    assert figure(value) == text


def test_spread_of_a_mean():
    assert mean_sd([1.0, 2.0, 3.0]) == "2.00 ± 1.00"
    assert mean_se([1.0, 2.0, 3.0, 2.0]) == "2.00 ± 0.41"
    assert mean_sd([1e-5, 2e-5]) == "1.50e-05 ± 7e-06"
    assert mean_sd([2.0]) == "2.00"
    assert mean_sd([]) == MISSING


def test_yes_no():
    assert [yes_no(mark) for mark in (True, False, None)] == ["yes", "**no**", MISSING]


@pytest.mark.parametrize(
    ("model", "name", "rmse", "expected"),
    [
        ("paper", "yacht", 0.57, True),
        ("paper", "yacht", 0.58, False),
        ("paper", "kin8nm", 0.0749, True),
        ("paper", "kin8nm", 0.0751, False),
        ("paper", "naval", 0.004, True),
        ("single_paper", "yacht", 1.0, True),
        ("single_paper", "yacht", 0.4, False),
        ("default", "yacht", 0.41, None),
    ],
)
def test_as_printed(model, name, rmse, expected):
    assert as_printed(model, name, rmse) is expected


def record_of(model="default", name="yacht", split=0, **changed):
    scores = {"rmse": 0.3, "nlpd_standardized": -2.8, "coverage_95": 0.95, "qice": 5.0}
    rest = {"qice_floor": 4.25, "fit_cpu_seconds": 1.0, "version": "0.1.0", "code": "abc"}
    return {"model": model, "set": name, "split": split, **scores, **rest, **changed}


def row_of(page, start):
    return next(line for line in page.splitlines() if line.startswith(start))


def test_report_without_results_lists_every_table():
    page = report([])
    assert all(f"| {name}" in page for name in REFERENCES)
    assert "No results yet" in page


def test_report_marks_goals():
    page = report([record_of(), record_of(split=1, rmse=0.34), record_of("paper", rmse=0.8)])
    assert "0.320 ± 0.028" in row_of(page, "| yacht")
    assert row_of(page, "| yacht").rstrip(" |").endswith("yes")
    assert "**no**" in row_of(page, "| yacht | paper")
    assert "Mixed" not in page


def test_report_shows_failures_and_mixed_code():
    failed = {"error": "NumericalError: boom", "rmse": None}
    page = report([record_of(), record_of(split=1, code="def", **failed)])
    assert "1 (1 failed)" in row_of(page, "| yacht")
    assert "**no**" in row_of(page, "| yacht")
    assert "yacht, split 1: NumericalError: boom" in page
    assert "Mixed states" in page


# --- arguments -----------------------------------------------------------------------------------


def parse(*arguments):
    return uci_small._parser().parse_args(arguments)


def test_default_arguments_make_the_full_run():
    given = parse()
    tasks = uci_small._tasks(given.sets, given.models, given.splits)
    assert len(tasks) == 4 * (5 * 20 + 3 * 3)
    assert given.models == ["default", "paper", "single_paper", "single"]


def test_splits_are_a_number_or_a_range():
    assert parse("--splits", "3").splits == range(3)
    assert parse("--splits", "5-7").splits == range(5, 8)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--splits", "0"),
        ("--splits", "21"),
        ("--splits", "7-5"),
        ("--splits", "5-20"),
        ("--splits", "few"),
        ("--sets", "yacht,iris"),
        ("--sets", ""),
        ("--models", "best"),
        ("--jobs", "0"),
    ],
)
def test_bad_arguments_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        parse(*arguments)
    assert arguments[0] in capsys.readouterr().err


# --- small runs ----------------------------------------------------------------------------------


@pytest.fixture
def yacht(tmp_path, monkeypatch):
    """A table of forty rows in the place of yacht, and the arguments of a run on it."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    y = X[:, 0] + np.sin(2 * X[:, 1]) + 0.1 * rng.normal(size=40)
    np.savez(tmp_path / "yacht.npz", X=X, y=y, test_0=np.arange(8), test_1=np.arange(8, 16))
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(tmp_path))
    return ["--sets", "yacht", "--models", "single", "--results", str(tmp_path / "results")]


def results(tmp_path):
    return JsonLines(tmp_path / "results" / "uci_small.jsonl", ("model", "set", "split")).records()


def test_uci_small_runs_resumes_and_writes_tables(yacht, tmp_path, capsys):
    assert uci_small.main([*yacht, "--splits", "1"]) == 0
    first = results(tmp_path)["single", "yacht", 0]
    assert first["n_train"] == 32
    assert first["n_test"] == 8
    assert first["rmse"] < 0.7
    assert first["full_factorisations"] >= 1
    assert first["calibration_factor"] is None
    assert {f"coverage_{level}" for level in (50, 80, 95, 99)} <= set(first)

    assert uci_small.main([*yacht, "--splits", "2"]) == 0
    assert "1 of 2 fits are there already" in capsys.readouterr().out
    both = results(tmp_path)
    assert both["single", "yacht", 0] == first
    assert len(both) == 2
    page = (tmp_path / "results" / "uci_small.md").read_text()
    assert row_of(page, "| yacht | single").split("|")[3].strip() == "2"


def test_uci_small_scores_the_default_model(yacht, tmp_path):
    assert uci_small.main([*yacht, "--models", "default", "--splits", "1"]) == 0
    record = results(tmp_path)["default", "yacht", 0]
    assert record["calibration_factor"] > 0
    assert record["nlpd"] - record["nlpd_standardized"] == pytest.approx(
        np.log(np.std(np.load(tmp_path / "yacht.npz")["y"][8:]))
    )


def test_uci_small_keeps_the_error_of_a_failed_fit_and_tries_again(yacht, tmp_path, monkeypatch):
    def broken(**given):
        raise RuntimeError("boom")

    with monkeypatch.context() as patch:
        patch.setattr(uci_small, "MODELS", {"single": broken})
        assert uci_small.main([*yacht, "--splits", "1"]) == 1
    assert results(tmp_path)["single", "yacht", 0]["error"] == "RuntimeError: boom"
    assert uci_small.main([*yacht, "--splits", "1"]) == 0
    assert "error" not in results(tmp_path)["single", "yacht", 0]


def test_uci_small_table_only_needs_no_data(yacht, tmp_path, monkeypatch):
    monkeypatch.delenv(datasets.FOLDER_VARIABLE)
    assert uci_small.main([*yacht, "--table-only"]) == 0
    assert results(tmp_path) == {}
    assert "No results yet" in (tmp_path / "results" / "uci_small.md").read_text()


def test_uci_small_finds_a_missing_split_before_it_starts(yacht):
    with pytest.raises(IndexError, match="2 standard splits"):
        uci_small.main([*yacht, "--splits", "3"])


@pytest.mark.slow
def test_uci_small_gives_the_same_scores_in_several_processes(yacht, tmp_path):
    assert uci_small.main([*yacht, "--splits", "2"]) == 0
    alone = results(tmp_path)
    assert uci_small.main([*yacht, "--splits", "2", "--jobs", "2", "--redo"]) == 0
    for key, record in results(tmp_path).items():
        assert record["rmse"] == pytest.approx(alone[key]["rmse"], rel=1e-6)


def test_toy_runs_and_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr(toy, "COMPARED", ("single",))
    assert toy.main(["--seeds", "2", "--results", str(tmp_path)]) == 0
    page = (tmp_path / "toy.md").read_text()
    assert "| 2 " in row_of(page, "| single")
    content = (tmp_path / "toy.jsonl").read_text()
    assert toy.main(["--seeds", "2", "--results", str(tmp_path)]) == 0
    assert (tmp_path / "toy.jsonl").read_text() == content


@pytest.fixture
def small_split():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 2))
    y = 3 + np.sin(X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=50)
    return X[:40], y[:40], X[40:], y[40:]


def test_the_peer_learns(small_split):
    X, y, X_test, y_test = small_split
    mean, std = GPyTorchExact().fit(X, y).predict(X_test)
    assert np.sqrt(np.mean((mean - y_test) ** 2)) < 0.5 * np.std(y_test)
    assert (std > 0).all()


@pytest.mark.slow
def test_exact_speed_page(small_split):
    facts = {
        "version": "0.1.0",
        "code": "abc",
        "torch": "2",
        "machine": "here",
        "threads": 1,
        "repeats": 1,
        "small": exact_speed.small_fit(n=10, repeats=1),
        "gpytorch": [exact_speed.against_gpytorch("tiny", small_split, repeats=1)],
        "power": exact_speed.large_fit(small_split),
    }
    page = exact_speed.report(facts)
    assert "GPyTorch, Cholesky" in page
    assert "full factorisations" in page
    json.dumps(plain(facts), allow_nan=False)


def test_code_version_is_short_and_stable():
    assert _models.code_version() == _models.code_version()
    assert len(_models.code_version()) == 10


# --- defaults ------------------------------------------------------------------------------------


def _default_records():
    scores = {"a": {"x": 1.0, "y": 2.0}, "b": {"x": 0.9, "y": 2.4}}
    names = {"a": "default", "b": "no refits"}
    return [
        {
            "variant": names[key],
            "set": table,
            "split": 0,
            "rmse": rmse,
            "nlpd_standardized": rmse,
            "version": "0",
            "code": "0",
        }
        for key, row in scores.items()
        for table, rmse in row.items()
    ]


def test_changes_are_against_the_default_of_the_same_split():
    table = defaults.changes(_default_records(), "nlpd")
    assert table["default"] == {"x": 0.0, "y": 0.0}
    assert table["no refits"]["x"] == pytest.approx(-10.0)
    assert table["no refits"]["y"] == pytest.approx(40.0)


def test_the_choice_for_a_table_is_made_on_the_others():
    table = defaults.changes(_default_records(), "nlpd")
    rows = {row[0]: row[1:] for row in defaults.left_out(table, ["default", "no refits"])}
    assert rows["x"] == ["default", "+0.0"]  # best on y
    assert rows["y"] == ["no refits", "+40.0"]  # best on x, and wrong here


def test_every_variant_differs_from_the_default():
    for name, variant in defaults.VARIANTS.items():
        assert (name == "default") == (not variant.arguments)
        if variant.settings:
            assert variant.arguments["settings"] != DEFAULTS, name


# --- publish -------------------------------------------------------------------------------------


def test_marked_places_are_filled_again_and_again(tmp_path):
    (tmp_path / "speed.md").write_text("# Speed\n\n## A\n\n| x |\n\n## B\n\nwords\n")
    page = "before\n<!-- begin speed: B -->\nold\n<!-- end speed -->\nafter\n"
    once = publish.fill(page, tmp_path)
    assert "words" in once
    assert "old" not in once
    assert "| x |" not in once
    assert publish.fill(once, tmp_path) == once
    whole = publish.fill("<!-- begin speed -->\n<!-- end speed -->", tmp_path)
    assert "### A" in whole
    assert "# Speed" not in whole.replace("### ", "")


def test_published_pages_hold_what_the_results_say():
    for name in publish.PAGES:
        text = (publish.ROOT / name).read_text(encoding="utf-8")
        assert publish.fill(text, *publish.RESULTS) == text, (
            f"run python -m benchmarks.publish ({name})"
        )
    for name in publish.PICTURES:
        drawn = publish.RESULTS[1] / f"{name}.svg"
        copied = publish.ROOT / "docs" / "paper" / f"{name}.svg"
        assert copied.read_text(encoding="utf-8") == drawn.read_text(encoding="utf-8"), name
    copied = publish.ROOT / "docs" / "pictures" / "scale.svg"
    drawn = publish.RESULTS[0] / "scale.svg"
    assert copied.read_text(encoding="utf-8") == drawn.read_text(encoding="utf-8")
