"""The commands, called as a user does but inside this process."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_diabetes
from typer.testing import CliRunner

import twostagegp
from twostagegp import metrics
from twostagegp.cli.app import app

QUICK = ["--option", "kernels=rbf", "--option", "calibration=scale"]


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def fails(*arguments, code=1):
    """The message of a command that fails; nothing else is said, and no traceback."""
    result = run(*arguments, code=code)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def mixed(n, seed=0):
    rng = np.random.default_rng(seed)
    days = pd.to_timedelta(rng.integers(0, 400, n), unit="D")
    table = pd.DataFrame(
        {
            "id": [f"=h{k}" if k % 10 == 0 else f"h{k}" for k in range(n)],
            "area": rng.uniform(30, 150, n).round(1),
            "quarter": rng.choice(["north", "south"], n),
            # Half of the rows look like numbers.
            "zip": np.where(np.arange(n) < n // 2, rng.choice(["A1", "B2"], n), "01067"),
            "garden": rng.random(n) < 0.5,
            "sold": (pd.Timestamp("2021-01-01") + days).strftime("%Y-%m-%d"),
        }
    )
    table.loc[::7, "area"] = np.nan
    table["price"] = 3 * table["area"].fillna(90.0) + 80 * (table["quarter"] == "north")
    table["price"] += rng.normal(size=n).round(2)
    table["dear"] = np.where(table["price"] > 300, "yes", "no")
    return table


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    mixed(48).to_csv(folder / "train.csv", index=False)
    mixed(30, seed=1).to_csv(folder / "test.csv", index=False)
    mixed(30, seed=1).drop(columns=["price", "dear"]).to_csv(folder / "new.csv", index=False)
    drop = ["--drop", "id,dear", *QUICK]
    run("fit", folder / "train.csv", "--target", "price", "-o", folder / "model", *drop)
    drop = ["--drop", "id", "--drop", "price", "--option", "kernels=rbf"]
    run("fit", folder / "train.csv", "-t", "dear", "-o", folder / "classes", *drop)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return twostagegp.load(folder / "model")


def inputs(model, seed=1):
    table = mixed(30, seed)
    table["sold"] = pd.to_datetime(table["sold"])
    return table[list(model.feature_names_in_)]


# --- fit -----------------------------------------------------------------------------------------


def test_fit_equals_the_fit_in_python(folder, model):
    table = mixed(48)
    X = table[["area", "quarter", "zip", "garden", "sold"]].copy()
    X["sold"] = pd.to_datetime(X["sold"])
    same = twostagegp.TwoStageGPRegressor(kernels=("rbf",), calibration="scale", random_state=0)
    same.fit(X, table["price"])
    np.testing.assert_allclose(model.predict(inputs(model)), same.predict(inputs(model)))
    kinds = {rule.name: rule.kind for rule in model.columns_.rules_}
    assert kinds == {
        "area": "number", "quarter": "text", "zip": "text", "garden": "boolean", "sold": "date"
    }  # fmt: skip


def test_fit_prints_what_was_fitted(folder, tmp_path):
    table = load_diabetes(as_frame=True).frame.head(40)
    table["visit"] = np.arange(40) % 8
    table["count"] = 1.0 + (np.arange(40) % 2)
    table.to_parquet(tmp_path / "d.parquet")
    arguments = ["fit", tmp_path / "d.parquet", "-t", "target", *QUICK, "--groups", "visit"]
    arguments += ["--weights", "count", "--method", "exact", "--option", "n_jobs=1"]
    result = run(*arguments, "-o", tmp_path / "m", "--json")
    printed = json.loads(result.stdout)
    assert printed["estimator"] == "TwoStageGPRegressor"
    assert printed["rows"] == 40
    assert "visit" not in printed["inputs"]
    assert "count" not in printed["inputs"]
    assert printed["report"]["method_reason"] == "asked for"
    same = twostagegp.load(tmp_path / "m")
    assert same.get_params()["kernels"] == ("rbf",)
    assert same.get_params()["random_state"] == 0
    # The held-out error is that of the fit, in the units of the target.
    spread = float(np.std(table["target"]))
    assert 0.3 * spread < printed["held_out"]["RMSE"] < 1.5 * spread
    assert "already contains a model; --force" in fails(*arguments, "-o", tmp_path / "m")
    shown = run(*arguments, "-o", tmp_path / "m", "--force")
    assert "held-out RMSE" in shown.stdout


def test_intervals_are_calibrated_by_a_column(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"site": rng.choice(["east", "west"], 80), "x": rng.uniform(size=80)})
    spread = np.where(table["site"] == "east", 0.1, 1.0)
    table["y"] = 3 * table["x"] + spread * rng.normal(size=80)
    table.to_csv(tmp_path / "t.csv", index=False)
    arguments = ["fit", tmp_path / "t.csv", "-t", "y", *QUICK, "-o", tmp_path / "m"]
    printed = json.loads(run(*arguments, "--calibrate-by", "site", "--json").stdout)
    assert [each["level"] for each in printed["report"]["levels"]] == ["east", "west"]
    shown = run(*arguments, "--calibrate-by", "site", "--force").stdout
    assert "level east" in shown
    factor = twostagegp.load(tmp_path / "m").calibration_.levels.factor
    assert factor[0] < factor[1]
    arguments = [*arguments, "--force", "--calibrate-by"]
    assert "site" in fails(*arguments, "sight")
    assert "is no input" in fails(*arguments, "y")
    assert "80 distinct values" in fails(*arguments, "x")
    classes = ["fit", tmp_path / "t.csv", "-t", "site", "-o", tmp_path / "c"]
    assert "classifier" in fails(*classes, "--calibrate-by", "x")
    assert "use --calibrate-by" in fails(*arguments[:-1], "--option", "calibrate_by=site")


def test_codes_become_categories_on_demand(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"code": rng.choice(["007", "042"], 40), "x": rng.normal(size=40)})
    table["y"] = table["x"] + (table["code"] == "007") + 0.1 * rng.normal(size=40)
    table.to_csv(tmp_path / "t.csv", index=False)
    arguments = ["fit", tmp_path / "t.csv", "-t", "y", *QUICK, "--category", "code"]
    run(*arguments, "-o", tmp_path / "m")
    model = twostagegp.load(tmp_path / "m")
    assert model.columns_.names == ["code=007", "code=042", "x"]
    run("predict", tmp_path / "m", tmp_path / "t.csv", "-o", tmp_path / "o.csv")
    expected = model.predict(table[["code", "x"]])
    np.testing.assert_allclose(pd.read_csv(tmp_path / "o.csv")["mean"], expected)


@pytest.mark.parametrize(
    ("target", "flags", "estimator"),
    [
        ([0, 1] * 20, [], "TwoStageGPRegressor"),
        ([0, 1] * 20, ["--classify", "--option", "stages=1"], "TwoStageGPClassifier"),
        ([True, False] * 20, ["--option", "stages=1"], "TwoStageGPClassifier"),
    ],
)
def test_the_type_of_the_target_decides_unless_an_option_does(tmp_path, target, flags, estimator):
    x = np.arange(40) % 2 + 0.01 * np.arange(40)
    pd.DataFrame({"x": x, "y": target}).to_csv(tmp_path / "t.csv", index=False)
    arguments = ["fit", tmp_path / "t.csv", "-t", "y", "--option", "kernels=rbf", *flags]
    printed = json.loads(run(*arguments, "-o", tmp_path / "m", "--json").stdout)
    assert printed["estimator"] == estimator
    if estimator == "TwoStageGPClassifier":
        arguments = ["evaluate", tmp_path / "m", tmp_path / "t.csv", "--json"]
        assert json.loads(run(*arguments).stdout)["scores"]["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-t", "prise"], "no column 'prise' (--target). Did you mean 'price'? Its columns: 'id',"),
        (["-t", "price", "--drop", "idd"], "no column 'idd' (--drop). Did you mean 'id'?"),
        (["-t", "price", "--groups", "g"], "no column 'g' (--groups)"),
        (["-t", "price"], "column 'id' looks like free text"),
        (["-t", "price"], "On the command line: --drop leaves a column out"),
        (["-t", "area", "--drop", "id"], "missing in 7 of 48 rows, the first is row 1"),
        (["-t", "dear", "--regress", "--drop", "id"], "must contain numbers, but contains 'yes'"),
        (["-t", "price", "--drop", "id", "--option", "kernel=rbf"], "Did you mean 'kernels'?"),
        (["-t", "price", "--drop", "id", "--option", "ard=9"], "ard=9: use True, False or 'both'"),
        (["-t", "price", "--drop", "id", "--option", "ard"], "write NAME=VALUE"),
        (["-t", "price", "--option", "random_state=1"], "use --seed"),
        (["-t", "price", "--drop", "id", "--method", "magic"], "method='magic': use 'auto'"),
        (["-t", "price", "--drop", "price"], "the target 'price' cannot be dropped"),
        (["-t", "price", "--drop", "id", "--weights", "zip"], "(--weights) must contain numbers"),
    ],
)  # fmt: skip
def test_fit_explains_invalid_arguments(folder, tmp_path, arguments, message):
    printed = fails("fit", folder / "train.csv", *arguments, "-o", tmp_path / "m")
    assert message in printed
    assert not (tmp_path / "m").exists()


def test_fit_does_not_write_into_a_folder_that_is_not_a_model(folder, tmp_path):
    (tmp_path / "thesis.tex").write_text("…")
    arguments = ["fit", folder / "train.csv", "-t", "price", "-o", tmp_path, "--force"]
    assert "something else than a model" in fails(*arguments)


def test_unexpected_errors_are_one_line_and_debug_shows_where(folder, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("twostagegp.cli.models.load", broken)
    arguments = ["predict", folder / "model", folder / "new.csv", "-o", tmp_path / "o.csv"]
    assert "unexpected ZeroDivisionError: oh. --debug shows" in fails(*arguments)
    for shown in (run(*arguments, "--debug", code=1), run("--debug", *arguments, code=1)):
        assert "Traceback" in shown.stderr


def test_wrong_usage_exits_with_code_2(folder):
    assert run("fit", folder / "train.csv", code=2).exit_code == 2
    assert run("predict", "--nonsense", code=2).exit_code == 2
    assert run("fit", "--help").exit_code == 0


# --- predict -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_predictions_do_not_depend_on_the_chunk_size(folder, tmp_path, model, rows):
    out = tmp_path / "o.csv"
    arguments = ["predict", folder / "model", folder / "new.csv", "-o", out]
    run(*arguments, "--interval", "0.5,0.95", "--quantiles", "0.05,0.5", "--chunk-rows", rows)
    got = pd.read_csv(out)
    X = inputs(model)
    mean, std = model.predict(X, return_std=True)
    expected = {"mean": mean, "std": std}
    for level in (0.5, 0.95):
        ends = model.predict_interval(X, level)
        expected |= {f"lower_{level}": ends[:, 0], f"upper_{level}": ends[:, 1]}
    expected |= dict(
        zip(["q_0.05", "q_0.5"], model.predict_quantiles(X, [0.05, 0.5]).T, strict=True)
    )
    assert got.columns.tolist() == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("ending", ["parquet", "feather"])
def test_parquet_and_feather_keep_types(folder, tmp_path, model, ending):
    table = mixed(30, seed=1)
    table["sold"] = pd.to_datetime(table["sold"])
    table["n"] = pd.array([None if k > 20 else k for k in range(30)], dtype="Int64")
    write = table.to_parquet if ending == "parquet" else table.to_feather
    write(tmp_path / f"in.{ending}")
    out = tmp_path / f"out.{ending}"
    arguments = ["predict", folder / "model", tmp_path / f"in.{ending}", "-o", out]
    printed = json.loads(run(*arguments, "--keep", "id,n", "--chunk-rows", 9, "--json").stdout)
    assert printed["rows"] == 30
    assert printed["columns"][:3] == ["id", "n", "mean"]
    got = pd.read_parquet(out) if ending == "parquet" else pd.read_feather(out)
    assert got["id"].tolist() == table["id"].tolist()
    assert got["n"].isna().sum() == 9
    np.testing.assert_allclose(got["mean"], model.predict(inputs(model)))
    run(*arguments[:3], "-o", tmp_path / "o.csv", "--keep", "n", "--chunk-rows", 25)
    assert (tmp_path / "o.csv").read_text().splitlines()[1].startswith("0,")


def test_kept_columns_are_copied_unchanged(folder, tmp_path):
    new = mixed(30, seed=1).drop(columns=["price", "dear"])
    for ending in ("csv", "parquet"):
        out = tmp_path / f"o.{ending}"
        run("predict", folder / "model", folder / "new.csv", "-o", out, "--keep-all")
    lines = (folder / "new.csv").read_text().splitlines()
    got = (tmp_path / "o.csv").read_text().splitlines()
    for before, after in zip(lines, got, strict=True):
        assert after.removeprefix("'").startswith(before + ",")
    assert got[1].startswith("'=h0,")  # a spreadsheet shows it and does not run it
    typed = pq.read_table(tmp_path / "o.parquet")
    assert typed["id"].to_pylist() == new["id"].tolist()
    assert str(typed["area"].type) == "double"
    assert typed["zip"].to_pylist()[-1] == "01067"
    out = tmp_path / "raw.csv"
    arguments = ["predict", folder / "model", folder / "new.csv", "-o", out, "--keep", "id"]
    run(*arguments, "--no-formula-guard")
    assert out.read_text().splitlines()[1].startswith("=h0,")


def test_predict_writes_classes_and_probabilities(folder, tmp_path):
    out = tmp_path / "o.csv"
    run("predict", folder / "classes", folder / "new.csv", "-o", out, "--keep", "id")
    got = pd.read_csv(out)
    assert got.columns.tolist() == ["id", "class", "certain", "p_no", "p_yes"]
    model = twostagegp.load(folder / "classes")
    X = inputs(model)
    np.testing.assert_allclose(got[["p_no", "p_yes"]], model.predict_proba(X), rtol=1e-9)
    assert got["class"].tolist() == model.predict(X).tolist()
    assert got["certain"].tolist() == model.predict_certainty(X).tolist()
    arguments = ["predict", folder / "classes", folder / "new.csv", "-o", out]
    assert "is a classifier" in fails(*arguments, "--interval", "0.9")


def test_support_is_a_column_on_demand(folder, tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.uniform(-2.0, 2.0, 50)})
    y = np.sin(2.0 * table["a"]) + 0.1 * rng.normal(size=50)
    model = twostagegp.TwoStageGPRegressor(kernels=("rbf",), random_state=0).fit(table, y)
    model.save(tmp_path / "m")
    pd.DataFrame({"a": [0.0, 1.0, 50.0]}).to_csv(tmp_path / "new.csv", index=False)
    new, out = tmp_path / "new.csv", tmp_path / "o.csv"
    run("predict", tmp_path / "m", new, "-o", out, "--support", "--quantiles", "0.5")
    got = pd.read_csv(out)
    plain = ["mean", "std", "lower_0.95", "upper_0.95", "q_0.5"]
    assert got.columns.tolist() == [*plain, "support"]
    mean, support = model.predict(pd.read_csv(new), return_support=True)
    np.testing.assert_allclose(got["support"], support, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(got["mean"], mean, rtol=1e-9)
    assert got["support"][0] == 1.0
    assert got["support"][2] < 0.1
    run("predict", tmp_path / "m", new, "-o", out)
    assert "support" not in pd.read_csv(out).columns
    arguments = ["predict", folder / "classes", folder / "new.csv", "-o", out, "--support"]
    assert "--support are for regression" in fails(*arguments)
    sure = twostagegp.CVPlusRegressor(model, n_folds=2, random_state=0).fit(table, y)
    sure.save(tmp_path / "sure")
    arguments = ["predict", tmp_path / "sure", new, "-o", out, "--support"]
    assert "CVPlusRegressor does not know the support" in fails(*arguments)


def test_columns_may_be_reordered_and_new_levels_give_a_warning(folder, tmp_path, model):
    table = mixed(30, seed=1)[["sold", "zip", "garden", "quarter", "id", "area"]]
    run("predict", folder / "model", folder / "new.csv", "-o", tmp_path / "a.csv")
    table.to_csv(tmp_path / "t.csv", index=False)
    run("predict", folder / "model", tmp_path / "t.csv", "-o", tmp_path / "b.csv")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    table.assign(quarter="harbour").to_csv(tmp_path / "t.csv", index=False)
    arguments = ["predict", folder / "model", tmp_path / "t.csv", "-o", tmp_path / "b.csv"]
    result = run(*arguments, "--chunk-rows", 4)
    assert result.stderr.count("levels not seen in fit: 'harbour'") == 1


def test_predict_explains_invalid_arguments(folder, tmp_path):
    new, out = folder / "new.csv", tmp_path / "o.csv"
    out.write_text("old")
    table = pd.read_csv(new, dtype=str)

    def message(frame, *more):
        frame.to_csv(tmp_path / "t.csv", index=False)
        return fails("predict", folder / "model", tmp_path / "t.csv", "-o", out, *more)

    printed = message(table.rename(columns={"quarter": "quartier"}))
    assert "no column 'quarter'" in printed
    assert "Did you mean 'quartier'?" in printed
    table.loc[20, "area"] = "large"
    assert "'area' contained numbers in the fit, but row 21 contains 'large'" in message(table)
    assert "has 'large' in row 21" in message(table, "--keep", "area")
    table.loc[20, "area"] = "inf"
    assert "rows 17 to 24" in message(table, "--chunk-rows", 8)
    assert "two columns 'mean'" in message(table.assign(mean="1"), "--keep", "mean")
    assert "no column 'ix' (--keep)" in message(table, "--keep", "ix")
    assert "--quantiles 2" in message(table, "--quantiles", "2")
    arguments = ["predict", folder / "model", new]
    assert "must end in one of" in fails(*arguments, "-o", tmp_path / "o.xlsx")
    assert "is the input file" in fails(*arguments, "-o", new)
    assert "is a folder" in fails(*arguments, "-o", _folder(tmp_path / "f.csv"))
    assert "is not a folder" in fails("predict", new, new, "-o", out)
    assert "does not exist" in fails("predict", tmp_path, new, "-o", out)
    assert "does not exist" in fails("predict", folder / "model", tmp_path / "x.csv", "-o", out)
    assert out.read_text() == "old"
    assert not list(tmp_path.glob(".*"))


def _folder(path):
    path.mkdir()
    return path


def test_models_fitted_to_arrays_use_columns_by_position(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    model = twostagegp.ExactGPRegressor(random_state=0).fit(X, X[:, 0])
    model.save(tmp_path / "m")
    pd.DataFrame(X, columns=["a", "b"]).to_csv(tmp_path / "t.csv", index=False)
    run("predict", tmp_path / "m", tmp_path / "t.csv", "-o", tmp_path / "o.csv")
    np.testing.assert_allclose(pd.read_csv(tmp_path / "o.csv")["mean"], model.predict(X))
    pd.DataFrame(X[:, :1], columns=["a"]).to_csv(tmp_path / "t.csv", index=False)
    printed = fails("predict", tmp_path / "m", tmp_path / "t.csv", "-o", tmp_path / "o.csv")
    assert "2 columns without names" in printed
    assert "give --target" in fails("evaluate", tmp_path / "m", tmp_path / "t.csv")


# --- evaluate, report, search, check, datasets ---------------------------------------------------


def test_evaluate_scores_the_distribution_of_the_model(folder, model):
    printed = json.loads(run("evaluate", folder / "model", folder / "test.csv", "--json").stdout)
    X, y = inputs(model), mixed(30, seed=1)["price"].to_numpy()
    mean, std = model.predict(X, return_std=True)
    scores = printed["scores"]
    assert printed["rows"] == 30
    assert scores["rmse"] == pytest.approx(metrics.rmse(y, mean))
    assert scores["nlpd"] == pytest.approx(-model.predict_logpdf(X, y).mean())
    assert scores["nlpd_gaussian"] == pytest.approx(metrics.nlpd(y, mean, std))
    assert scores["qice"] == pytest.approx(metrics.qice(pit=model.predict_cdf(X, y)))
    assert scores["qice_floor"] == pytest.approx(metrics.qice_floor(30))
    assert scores["crps"] == pytest.approx(metrics.crps(y, mean, std), rel=0.02)
    shown = run("evaluate", folder / "model", folder / "test.csv").stdout
    assert "root mean squared error" in shown


def test_evaluate_scores_class_probabilities(folder, tmp_path):
    printed = json.loads(run("evaluate", folder / "classes", folder / "test.csv", "--json").stdout)
    model = twostagegp.load(folder / "classes")
    X, y = inputs(model), mixed(30, seed=1)["dear"].to_numpy()
    assert printed["scores"]["accuracy"] == pytest.approx((model.predict(X) == y).mean())
    table = mixed(30, seed=1)
    table.loc[3, "dear"] = None
    table.to_csv(tmp_path / "t.csv", index=False)
    arguments = ["evaluate", folder / "classes", tmp_path / "t.csv"]
    assert "'dear' is missing in row 4" in fails(*arguments)
    assert json.loads(run(*arguments, "--drop-missing-target", "--json").stdout)["rows"] == 29
    table.assign(dear="perhaps").to_csv(tmp_path / "t.csv", index=False)
    assert "'perhaps' in row 1; the model knows the classes no, yes" in fails(*arguments)


@pytest.mark.slow
def test_report_writes_a_page(folder, tmp_path):
    page = tmp_path / "page.html"
    arguments = ["report", folder / "model", folder / "test.csv", "-o", page]
    printed = json.loads(run(*arguments, "--title", "Houses & more", "--json").stdout)
    assert printed == {"output": str(page), "rows": 30, "target": "price"}
    assert "Houses &amp; more" in page.read_text(encoding="utf-8")


def test_report_explains_invalid_arguments(folder, tmp_path):
    arguments = ["report", folder / "model", folder / "new.csv"]
    assert "must end in .html" in fails(*arguments, "-o", tmp_path / "page.pdf")
    printed = fails(*arguments, "-o", tmp_path / "page.html")
    assert "no column 'price' (the target of the fit)" in printed
    assert not list(tmp_path.iterdir())


def test_search_and_check_print_their_results(folder):
    table = ["--drop", "id,dear", "--target", "price", "--subsample", 40, "--json"]
    arguments = ["--kernels", "rbf,matern12", "--repeats", 3]
    found = json.loads(run("search", folder / "train.csv", *table, *arguments).stdout)
    assert {line["kernel"] for line in found["kernels"]} == {"rbf", "matern12"}
    assert found["best"] == found["kernels"][0]["kernel"]
    arguments = ["--kernel", "matern12", "--repeats", 20]
    found = json.loads(run("check", folder / "train.csv", *table, *arguments).stdout)
    assert found["kernel"] == "matern12"
    assert 0.0 < found["p_value"] <= 1.0
    table = ["--drop", "id,dear", "--target", "price", "--kernel", "magic"]
    assert "magic" in fails("check", folder / "train.csv", *table)


def test_datasets_are_listed_and_fetched(tmp_path):
    printed = json.loads(run("datasets", "list", "--json").stdout)
    assert "yacht" in [line["name"] for line in printed["tables"]]
    X, y = np.arange(12.0).reshape(6, 2), np.arange(6.0)
    (tmp_path / "uci_small").mkdir()
    np.savez(tmp_path / "uci_small" / "yacht.npz", X=X, y=y)
    out = tmp_path / "yacht.csv"
    run("datasets", "fetch", "yacht", "-o", out, "--folder", tmp_path)
    assert out.read_text().splitlines()[:2] == ["x0,x1,y", "0.0,1.0,0.0"]
    printed = fails("datasets", "fetch", "yach", "-o", out, "--folder", tmp_path)
    assert "did you mean 'yacht'" in printed


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/command_line.md"])
def test_documented_commands_run(page, tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
    commands = re.findall(r"^twostagegp (.+)$", text, flags=re.MULTILINE)
    assert len(commands) >= 3
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(["houses", "new", "test"]):
        table = mixed(60, seed).assign(street=lambda t: t["zip"] + t["quarter"])
        if page == "README.md":
            table = table.drop(columns=["id", "dear"])
        table.to_csv(f"{name}.csv", index=False)
    for command in commands:
        if "fetch" not in command and "--help" not in command:  # no connection in tests
            run(*shlex.split(command, comments=True))
