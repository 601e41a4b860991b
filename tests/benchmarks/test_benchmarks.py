"""The benchmarks of accuracy: how records are shown, and one small run of each."""

import numpy as np
import pytest

from benchmarks import defaults, exact_speed, toy, uci_small
from benchmarks.gpytorch_exact import GPyTorchExact
from benchmarks.uci_tables import REFERENCES, as_printed, report
from measurements.runner import measured, run
from measurements.store import JsonLines
from twostagegp import datasets
from twostagegp.pipeline.settings import DEFAULTS


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


def test_report_marks_goals():
    page = report([record_of(), record_of(split=1, rmse=0.34), record_of("paper", rmse=0.8)])
    assert "0.320 ± 0.028" in row_of(page, "| yacht")
    assert row_of(page, "| yacht").rstrip(" |").endswith("yes")
    assert "**no**" in row_of(page, "| yacht | paper")
    assert "Mixed" not in page


def test_report_shows_failures():
    failed = {"error": "NumericalError: boom", "rmse": None}
    page = report([record_of(), record_of(split=1, code="def", **failed)])
    assert "1 (1 failed)" in row_of(page, "| yacht")
    assert "**no**" in row_of(page, "| yacht")
    assert "set yacht, split 1: NumericalError: boom" in page


def test_report_warns_of_records_of_several_states_of_the_code():
    assert "Mixed states" in report([record_of(), record_of(split=1, code="def")])


# --- arguments -----------------------------------------------------------------------------------


def parse(*arguments):
    return uci_small.MEASUREMENT.parser().parse_args(arguments)


@pytest.fixture
def twenty_splits(tmp_path, monkeypatch):
    """Every table with twenty splits, of which each has one test row."""
    for name in REFERENCES:
        splits = {f"test_{k}": np.array([k]) for k in range(20)}
        np.savez(tmp_path / f"{name}.npz", X=np.zeros((30, 1)), y=np.zeros(30), **splits)
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(tmp_path))


def test_default_arguments_make_the_full_run(twenty_splits):
    cells = uci_small.MEASUREMENT.cells(parse())
    assert len(cells) == 4 * (5 * 20 + 3 * 3)
    assert {cell.model for cell in cells} == {"default", "paper", "single_paper", "single"}


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
    assert run(uci_small.MEASUREMENT, [*yacht, "--splits", "1"]) == 0
    first = results(tmp_path)["single", "yacht", 0]
    assert first["n_train"] == 32
    assert first["n_test"] == 8
    assert first["rmse"] < 0.7
    assert first["full_factorisations"] >= 1
    assert first["calibration_factor"] is None
    assert {f"coverage_{level}" for level in (50, 80, 95, 99)} <= set(first)

    assert run(uci_small.MEASUREMENT, [*yacht, "--splits", "2"]) == 0
    assert "1 of 2 are stored already" in capsys.readouterr().out
    both = results(tmp_path)
    assert both["single", "yacht", 0] == first
    assert len(both) == 2
    page = (tmp_path / "results" / "uci_small.md").read_text()
    assert row_of(page, "| yacht | single").split("|")[3].strip() == "2"


def test_uci_small_scores_the_default_model(yacht, tmp_path):
    assert run(uci_small.MEASUREMENT, [*yacht, "--models", "default", "--splits", "1"]) == 0
    record = results(tmp_path)["default", "yacht", 0]
    assert record["calibration_factor"] > 0
    assert record["nlpd"] - record["nlpd_standardized"] == pytest.approx(
        np.log(np.std(np.load(tmp_path / "yacht.npz")["y"][8:]))
    )


def test_uci_small_finds_a_missing_split_before_it_starts(yacht):
    with pytest.raises(IndexError, match="2 standard splits"):
        run(uci_small.MEASUREMENT, [*yacht, "--splits", "3"])


@pytest.mark.slow
def test_uci_small_gives_the_same_scores_in_several_processes(yacht, tmp_path):
    assert run(uci_small.MEASUREMENT, [*yacht, "--splits", "2"]) == 0
    alone = results(tmp_path)
    assert run(uci_small.MEASUREMENT, [*yacht, "--splits", "2", "--jobs", "2", "--redo"]) == 0
    for key, record in results(tmp_path).items():
        assert record["rmse"] == pytest.approx(alone[key]["rmse"], rel=1e-6)


def test_toy_runs(tmp_path):
    arguments = ["--seeds", "2", "--models", "single", "--results", str(tmp_path)]
    assert run(toy.MEASUREMENT, arguments) == 0
    assert "| 2 " in row_of((tmp_path / "toy.md").read_text(), "| single:")


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
    parts = {
        "small": lambda cell: exact_speed.small_fit(n=10, repeats=1),
        "concrete": lambda cell: exact_speed.against_gpytorch("tiny", small_split, repeats=1),
        "power": lambda cell: exact_speed.large_fit(small_split),
    }
    records = [
        measured(measure, exact_speed.Cell(part, repeats=1, threads=1))
        for part, measure in parts.items()
    ]
    page = exact_speed.MEASUREMENT.report(records)
    assert "GPyTorch, Cholesky" in page
    assert "full factorisations" in page
    assert "failed" not in page


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
