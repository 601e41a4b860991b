"""Few training rows: tables of known law, encodings, quantiles, one small run, the page."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from benchmarks import known_laws, many_tables, small_tables
from benchmarks.peers.base import Fitted, Prediction
from benchmarks.peers.encoding import encoded, encoder
from benchmarks.peers.folds import FOLDS, Mixture, folds
from benchmarks.scores import FINE, interval_score, quantile_scores
from benchmarks.small_models import MODELS, OURS, OURS_TABPFN, TABPFN
from benchmarks.small_pages import mean_over_tables, picture, report
from benchmarks.small_tables import NEED_WEIGHTS
from measurements.runner import run
from twostagegp import metrics


def parse(*arguments):
    return small_tables.MEASUREMENT.parser().parse_args(arguments)


# --- tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", known_laws.LAWS)
def test_a_generated_table_is_the_same_in_every_call_and_is_drawn_from_as_others_are(name):
    X, y = known_laws.generate(name)
    assert np.array_equal(y, known_laws.generate(name)[1])
    found = many_tables.draw(name, 50, 0, 100)
    assert (found.X.shape, found.y_test.shape) == ((50, X.shape[1]), (100,))


def test_the_noise_is_that_of_the_formula():
    noise = {}
    for name in ("heteroscedastic", "heavy_tailed", "skewed"):
        X, y = known_laws.generate(name)
        wave = np.sin(2.0 * np.pi * X[:, 0])
        noise[name] = y - wave - 4.0 * (X[:, 1] - 0.5) ** 2 - X[:, 2] * X[:, 3]
        standard = noise[name] / (0.05 + 0.6 * X[:, 0])
        if name == "heteroscedastic":
            assert standard.std() == pytest.approx(1.0, abs=0.03)
    assert np.median(np.abs(noise["heavy_tailed"])) == pytest.approx(0.2 * 0.765, abs=0.01)
    assert noise["skewed"].min() > -0.3
    assert noise["skewed"].mean() == pytest.approx(0.0, abs=0.02)


# --- cells ---------------------------------------------------------------------------------------


def test_cells_leave_out_tables_without_test_rows_and_sizes_that_a_model_cannot_hold():
    given = parse("--tables", "diabetes,skewed", "--models", f"{OURS},sklearn_gpr", "--draws", "1")
    found = small_tables.cells(given)
    assert {c.rows for c in found if c.table == "diabetes"} == {50, 100, 200}  # of 442 rows
    assert {c.rows for c in found if c.model == "sklearn_gpr"} == {50, 100, 200, 400}
    assert {c.rows for c in found if (c.model, c.table) == (OURS, "skewed")} == {
        *small_tables.SIZES
    }


def test_tabpfn_is_left_out_without_its_weights(tmp_path, capsys):
    models = ",".join(NEED_WEIGHTS)
    arguments = ["--tables", "skewed", "--models", models, "--draws", "1", "--sizes", "50"]
    assert small_tables.cells(parse(*arguments)) == []
    assert "TabPFN is left out: --tabpfn-weights FILE is not given" in capsys.readouterr().err
    there = tmp_path / "weights.ckpt"
    assert small_tables.cells(parse(*arguments, "--tabpfn-weights", str(there))) == []
    there.touch()
    assert len(small_tables.cells(parse(*arguments, "--tabpfn-weights", str(there)))) == 2


def test_only_our_records_go_stale_with_the_source():
    current = small_tables.MEASUREMENT.current
    assert current(small_tables.Cell("gpboost", "skewed", 50, 0), {"code": "old"})
    assert not current(small_tables.Cell(OURS, "skewed", 50, 0), {"code": "old"})


# --- scores --------------------------------------------------------------------------------------


def test_scores_of_a_gaussian_by_its_quantiles_are_those_of_the_formulas():
    from scipy.special import ndtri

    rng = np.random.default_rng(0)
    y, mean, std = rng.normal(size=300), np.zeros(300), np.full(300, 1.2)
    found = quantile_scores(y, mean, lambda levels: mean[:, None] + std[:, None] * ndtri(levels), 2)
    assert found["rmse"] == pytest.approx(metrics.rmse(y, mean) / 2)
    assert found["crps"] == pytest.approx(metrics.crps(y, mean, std) / 2, abs=1e-3)
    for level in (0.5, 0.8, 0.9, 0.95, 0.99):
        assert found[f"coverage_{100 * level:.0f}"] == metrics.coverage(y, mean, std, level)
    assert found["interval_width_95"] == pytest.approx(1.2 * 3.9199 / 2, abs=1e-4)


def test_interval_score_by_its_definition():
    rng = np.random.default_rng(1)
    y, ends = rng.normal(size=50), np.sort(rng.normal(size=(50, 2)), axis=1)
    low, high = ends.T
    below, above = np.maximum(low - y, 0.0), np.maximum(y - high, 0.0)
    expected = np.mean(high - low + 2.0 / 0.05 * (below + above))
    assert interval_score(y, ends, 0.95) == pytest.approx(expected)


# --- peers ---------------------------------------------------------------------------------------


def test_gaps_and_categories_become_numbers():
    X = pd.DataFrame(
        {"a": [1.0, None, 4.0], "kind": ["u", None, "w"], "two": ["x", "y", "x"], "same": [1, 1, 1]}
    )
    found = encoder(X, "median")(X)
    assert np.array_equal(
        found, [[1, 0, 0, 1, 0, 0], [2.5, 1, 1, 0, 0, 1], [4, 0, 0, 0, 1, 0]]
    )  # a and its gap, kind as missing, u, w, two as y
    new = X.assign(kind="other", a=np.nan)
    assert np.array_equal(encoder(X, "median")(new)[0], [2.5, 1, 0, 0, 0, 0])
    assert np.isnan(encoder(X, "nan")(X)[1, 0])


def test_encoded_numbers_keep_their_values_and_lose_constant_columns():
    X = np.array([[1.0, 7.0], [2.0, 7.0]])
    assert np.array_equal(encoder(X, "median")(np.array([[5.0, 8.0]])), [[5.0]])


class Known(Fitted):
    def __init__(self, mean, std):
        self.mean, self.std = mean, std

    def predict(self, X):
        return Prediction(np.full(len(X), self.mean), np.full(len(X), self.std))


def test_a_mixture_has_the_moments_of_its_parts():
    found = Mixture([Known(0.0, 1.0), Known(2.0, 3.0)]).predict(np.zeros((1, 1)))
    assert (found.mean[0], found.std[0] ** 2) == (1.0, pytest.approx(5.0 + 1.0))


def test_folds_hold_every_row_once():
    y = np.arange(23.0)
    parts = list(folds(y[:, None], y, 0))
    assert len(parts) == FOLDS
    assert sorted(np.concatenate([part.y_validation for part in parts])) == list(y)
    assert all(not set(part.y) & set(part.y_validation) for part in parts)


def test_an_encoded_model_is_asked_for_encoded_rows():
    fit = encoded(lambda X, y, seed: Known(y.mean(), X.std()), "median")
    frame = pd.DataFrame({"kind": ["a", "b", "a", "b"]})
    model = fit(frame, np.arange(4.0), 0)
    assert model.quantiles(frame, np.array([0.5]))[0, 0] == 1.5
    assert model.has_std


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in MODELS if name not in (OURS, *NEED_WEIGHTS)])
def test_every_peer_fits_a_data_frame(name, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    try:
        fit = MODELS[name].load()
    except Exception as error:
        pytest.skip(str(error))
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"x": rng.normal(size=160), "kind": rng.choice(["a", "b", "c"], size=160)})
    y = X["x"].to_numpy() + (X["kind"] == "a") + 0.2 * rng.normal(size=160)
    X.loc[::9, "x"] = np.nan
    train, test = X.iloc[:80], X.iloc[80:].reset_index(drop=True)
    model = fit(train, y[:80], 0)
    found = quantile_scores(
        y[80:], model.predict(test).mean, lambda levels: model.quantiles(test, levels), y.std()
    )
    assert found["rmse"] < 0.75
    assert 0.8 < found["coverage_95"] <= 1.0


def test_cross_conformal_quantiles_are_ranks_of_the_residuals():
    pytest.importorskip("lightgbm")
    from benchmarks.peers.lightgbm_cross import _ranks

    assert _ranks(np.array([0.025, 0.5, 0.975]), 99).tolist() == [1, 49, 97]
    assert _ranks(np.array([0.001, 0.999]), 99).tolist() == [0, 98]  # 99 rows cannot vouch for it


# --- one run -------------------------------------------------------------------------------------


def test_a_quick_run_of_generated_tables_is_stored_and_not_done_twice(tmp_path, capsys):
    arguments = ["--quick", "--tables", "skewed", "--sizes", "50", "--results", str(tmp_path)]
    assert run(small_tables.MEASUREMENT, arguments) == 0
    lines = (tmp_path / "small_tables.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["model"] for record in records] == [OURS, "sklearn_gpr"]
    assert all(0.2 < record["rmse"] < 1.0 and record["n_test"] == 1000 for record in records)
    assert (tmp_path / "small_tables.svg").read_text().startswith("<?xml")
    capsys.readouterr()
    assert run(small_tables.MEASUREMENT, arguments) == 0
    assert "2 of 2 are stored already" in capsys.readouterr().out


# --- page ----------------------------------------------------------------------------------------


def record(model, table="yacht", rows=50, draw=0, **changed):
    found = {"model": model, "table": table, "rows": rows, "draw": draw, "package": "lib 1"}
    found |= {"rmse": 0.4, "crps": 0.2, "nlpd": 0.5, "nlpd_own": 0.4, "interval_score_95": 2.0}
    found |= {f"coverage_{level}": level / 100 for level in (50, 80, 90, 95, 99)}
    found |= {"interval_width_95": 1.5, "fit_cpu_seconds": 1.0, "version": "0.1", "code": "abc"}
    return found | changed


def line_of(page, title, start):
    section = page.split(f"## {title}\n")[1].split("\n## ")[0]
    line = next(line for line in section.splitlines() if line.startswith(start))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_page_of_nothing_and_of_failures():
    assert "No fits yet" in report([])
    failed = [record("gpboost", draw=draw, error="diverged: 3 of 90") for draw in (0, 1)]
    assert "- GPBoost: diverged: … of …: yacht 2" in report(failed)
    assert picture([]) is None


def test_tables_have_the_same_weight_whatever_their_draws():
    made = [record(OURS, draw=draw, coverage_95=0.8) for draw in range(3)]
    made.append(record(OURS, "wine", coverage_95=1.0))
    assert mean_over_tables(made, "coverage_95") == pytest.approx(0.9)
    assert mean_over_tables(made, "no score") is None
    cells = line_of(report(made), "Coverage", "| 50 ")
    assert cells[:3] == ["50", "twostagegp", "2"]
    assert cells[6:] == ["90.0", "99.0", "1", "80.0 (yacht)"]


def test_comparison_pairs_draws_and_leaves_the_density_to_those_who_have_one():
    made = [record(OURS), record("gpboost", crps=0.4, nlpd=0.7), record("gpboost", draw=1)]
    made += [record(OURS, "wine"), record("gpboost", "wine", crps=0.1, nlpd=0.7)]
    made.append(record("lightgbm", nlpd=None, nlpd_own=None))
    page = report(made)
    cells = line_of(page, "Against other libraries", "| 50   | GPBoost")
    error = math.log(2.0)  # of the mean of log 0.5 and log 2
    assert cells[2:7] == ["2", "2", "1.000 ± 0.000", f"1.000 ± {error:.3f}", "1.000"]
    assert cells[7:10] == ["1 of 2", "-0.200 ± 0.000", "-0.200"]
    assert line_of(page, "Against other libraries", "| 50   | LightGBM")[8:11] == ["–"] * 3
    assert line_of(page, "CRPS by table", "| yacht")[1] == "0.500 (1)"


def test_our_stack_with_tabpfn_has_a_section_of_its_own():
    made = [record(OURS), record(TABPFN, crps=0.4), record(OURS_TABPFN, crps=0.1)]
    page = report(made)
    assert line_of(page, "With TabPFN in the stack", "| 50   | twostagegp")[5][:5] == "0.500"
    assert line_of(page, "With TabPFN in the stack", "| 50   | TabPFN v2")[5][:5] == "0.250"
    assert "twostagegp with" not in page.split("## Against other libraries")[1].split("\n## ")[0]
    assert "With TabPFN in the stack" not in report(made[:2])


def test_generated_tables_are_counted_apart():
    made = [record(OURS), record(OURS, "skewed", coverage_95=0.7)]
    page = report(made)
    assert line_of(page, "Coverage", "| 50 ")[6] == "95.0"
    assert line_of(page, "Coverage on generated tables", "| 50 ")[6] == "70.0"


def test_levels_of_the_crps_are_midpoints():
    assert np.allclose(np.diff(FINE), 1.0 / 999.0)
