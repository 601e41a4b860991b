"""Tests of the report page: its statements are true, names are escaped, and the HTML is valid."""

import itertools
import re
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from page_reader import read_page

from twostagegp import (
    CVPlusRegressor,
    ExactGPRegressor,
    GPNNRegressor,
    TwoStageGPClassifier,
    TwoStageGPRegressor,
    load,
    metrics,
)
from twostagegp.errors import InputError
from twostagegp.pipeline.calibration.law import Law
from twostagegp.pipeline.calibration.shape import GAUSSIAN
from twostagegp.plotting.slices import Answers, make_slices, shuffle_effects
from twostagegp.report import write_report
from twostagegp.report.advice import regression_advice
from twostagegp.report.fit_section import outside_training
from twostagegp.report.group_section import group_tables
from twostagegp.report.page import render_page, template_text
from twostagegp.report.predictions import TargetPredictions, predict_rows, read_rows, sample_rows
from twostagegp.report.scatter import scatter
from twostagegp.report.wording import coverage_verdict
from twostagegp.report.write import report_context

EVIL = "<script>alert('column')</script>"
LEVEL = "<img src=x onerror=alert(1)>"
TARGET = "price ($) & <b>more</b>"


def _table(n, seed):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            EVIL: rng.uniform(0.0, 10.0, n),
            "quarter": rng.choice(["north", "south", LEVEL], n),
            "state": pd.Categorical(
                rng.choice(["poor", "fair", "good"], n), ["poor", "fair", "good"], ordered=True
            ),
            "garden": rng.random(n) < 0.4,
            "sold": pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 800, n), unit="D"),
        },
        index=[f"house {i}" for i in range(n)],
    )
    price = 3.0 * table[EVIL] + 8.0 * (table["quarter"] == "north") + rng.normal(size=n)
    return table, price.rename(TARGET)


@pytest.fixture(scope="module")
def regressor():
    X, y = _table(60, 0)
    return TwoStageGPRegressor(kernels=("rbf",), ard=False, random_state=0).fit(X, y)


@pytest.fixture(scope="module")
def test_rows():
    return _table(45, 1)


@pytest.fixture(scope="module")
def context(regressor, test_rows):
    return report_context(regressor, *test_rows)


@pytest.fixture(scope="module")
def page(context):
    return render_page(context)


@pytest.fixture(scope="module")
def classifier():
    X, y = _table(60, 0)
    labels = np.where(y > y.median(), "dear", "cheap")
    return TwoStageGPClassifier(kernels=("rbf",), ard=False, random_state=0).fit(X, labels)


@pytest.fixture(scope="module")
def labels(test_rows):
    y = test_rows[1]
    return pd.Series(np.where(y > y.median(), "dear", "cheap"), index=y.index, name="how dear")


@pytest.fixture(scope="module")
def class_context(classifier, test_rows, labels):
    return report_context(classifier, test_rows[0], labels)


@pytest.fixture(scope="module")
def class_page(class_context):
    return render_page(class_context)


@pytest.fixture(params=["page", "class_page"])
def either(request):
    return request.getfixturevalue(request.param)


# --- the page is whole ---------------------------------------------------------------------------


def test_tags_are_closed_ids_are_unique_and_links_have_targets(either):
    reader = read_page(either)
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids))
    links = [a["href"][1:] for tag, a in reader.attrs if tag == "a"]
    assert links
    assert set(links) <= set(reader.ids)
    labels = [a["for"] for tag, a in reader.attrs if tag == "label"]
    assert set(labels) <= set(reader.ids)


def test_headings_are_in_order(either):
    levels = [int(tag[1]) for tag in read_page(either).tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_every_picture_has_an_alternative_text_and_every_table_a_caption(either):
    reader = read_page(either)
    assert all(len(image["alt"]) > 30 for image in reader.images)
    drawn = [a for tag, a in reader.attrs if tag == "svg" and "role" in a]
    assert all(len(a["aria-label"]) > 30 for a in drawn)
    assert reader.tags.count("caption") == reader.tags.count("table")
    assert all("scope" in a for tag, a in reader.attrs if tag == "th")


def test_nothing_is_loaded_from_elsewhere(either):
    reader = read_page(either)
    assert not re.search(r"(?:https?:)?//[a-z]", either)
    assert all(image["src"].startswith("data:image/svg+xml;base64,") for image in reader.images)
    assert not {"link", "iframe", "object", "embed"} & set(reader.tags)
    policy = next(a["content"] for t, a in reader.attrs if t == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy


def test_names_from_the_users_table_are_escaped(either):
    reader = read_page(either)
    assert "<script>alert" not in either
    assert "onerror=alert(1)>" not in either.replace("onerror=alert(1)&gt;", "")
    assert [a for tag, a in reader.attrs if tag == "img" and "onerror" in a] == []
    scripts = [a for tag, a in reader.attrs if tag == "script"]
    assert all(a in ({}, {"type": "application/json"}) for a in scripts)
    assert sum(a == {} for a in scripts) == 1
    assert "&lt;script&gt;alert(&#39;column&#39;)" in either


def test_page_without_a_script_hides_only_what_needs_one(either):
    reader = read_page(either)
    hidden = [(tag, a) for tag, a in reader.attrs if "hidden" in a]
    assert all(tag == "p" and ("data-script" in a or a["class"] == "control") for tag, a in hidden)


# --- colours -------------------------------------------------------------------------------------


def _luminance(colour):
    channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one, two):
    low, high = sorted([_luminance(one), _luminance(two)])
    return (high + 0.05) / (low + 0.05)


def test_text_has_enough_contrast_in_both_colour_schemes():
    schemes = re.findall(r":root \{(.*?)\}", template_text("report.css"), flags=re.S)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", scheme))
        for text in ("ink", "soft", "accent", "truth", "good"):
            for ground in ("paper", "panel"):
                assert _contrast(colours[text], colours[ground]) >= 4.5, (text, ground)


# --- what it says --------------------------------------------------------------------------------


def test_headline_and_levels_are_those_of_the_predictions(regressor, test_rows, context):
    X, y = test_rows
    target = context["targets"][0]
    error = np.abs(y.to_numpy() - regressor.predict(X))
    assert f"off by less than {np.median(error):.3g}"[:20] in target["headline"][0]
    for row, level in zip(target["levels"], (0.5, 0.8, 0.9, 0.95, 0.99), strict=True):
        ends = regressor.predict_interval(X, level=level)
        inside = np.mean((ends[:, 0] <= y) & (y <= ends[:, 1]))
        assert row["share"] == f"{100 * inside:.1f}\u00a0%"
    ends = regressor.predict_interval(X, level=0.95)
    found = target["scatter"]
    inside = [point["inside"] for point in found["points"]]
    assert inside == ((ends[:, 0] <= y) & (y <= ends[:, 1])).tolist()
    level = found["data"]["levels"][45]
    assert (level["level"], level["inside"]) == (95, sum(inside))


def test_coverage_by_group_is_that_of_the_metric(regressor, test_rows, context, page):
    X, y = test_rows
    tables = {table["column"]: table for table in context["targets"][0]["groups"]}
    assert set(tables) == {"quarter", "state", "garden"}
    found = metrics.coverage_by_group(y, regressor.predict_interval(X), groups=X["state"])
    assert [row["group"] for row in tables["state"]["rows"]] == ["poor", "fair", "good"]
    assert [row["rows"] for row in tables["state"]["rows"]] == [str(n) for n in found.rows]
    first = tables["state"]["rows"][0]
    assert first["share"].startswith(f"{100 * found.coverage[0]:.1f}") or found.coverage[0] == 1.0
    outside = [row["verdict"] != "as expected" for row in tables["state"]["rows"]]
    assert outside == found.outside.tolist()
    assert "Coverage by group" in page
    assert LEVEL in [row["group"] for row in tables["quarter"]["rows"]]
    assert LEVEL not in page


def test_the_calibrated_column_comes_first_and_rare_levels_are_one_group(test_rows):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"x": rng.uniform(size=120), "site": rng.integers(0, 20, 120)})
    X["flag"] = rng.random(120) < 0.5
    y = X["x"] + np.where(X["site"] < 10, 0.1, 1.0) * rng.normal(size=120)
    model = TwoStageGPRegressor(
        kernels=("rbf",), variance="rbf", ard=False, random_state=0, calibrate_by="site"
    ).fit(X[:80], y[:80])
    groups = report_context(model, X[80:], y[80:])["targets"][0]["groups"]
    assert [table["column"] for table in groups] == ["site", "flag"]
    assert len(groups[0]["rows"]) == 12
    assert groups[0]["rows"][-1]["group"] == "(rarer levels)"
    assert sum(int(row["rows"]) for row in groups[0]["rows"]) == 40
    assert [row["group"] for row in groups[1]["rows"]] == ["false", "true"]
    narrow = replace(_target(model, X, y), sigma=np.full(120, 0.01))
    rows = read_rows(model, X, y, classes=False)
    by_site, by_flag = group_tables(model, narrow, rows, [("flag", 1.0), ("x", 1.0)])
    assert "was calibrated by this column" in by_site["text"]
    assert "Fit with calibrate_by='flag'" in by_flag["text"]


def _target(model, X, y):
    (one,), _, _ = predict_rows(model, read_rows(model, X, y, classes=False))
    return one


def test_scores_of_classes_are_those_of_the_metrics(classifier, test_rows, labels, class_context):
    target = class_context["targets"][0]
    proba = classifier.predict_proba(test_rows[0])
    scores = metrics.evaluate_classification(labels, proba, classifier.classes_)
    values = [tile["value"] for tile in target["tiles"]]
    assert values[0] == f"{100 * scores['accuracy']:.1f}\u00a0%"
    assert values[2] == f"{100 * scores['ece']:.1f}\u00a0%"
    counts = [[cell["count"] for cell in row["cells"]] for row in target["confusion"]["rows"]]
    answer = classifier.predict(test_rows[0])
    expected = pd.crosstab(labels.to_numpy(), answer).reindex(
        index=classifier.classes_, columns=classifier.classes_, fill_value=0
    )
    assert counts == expected.to_numpy().tolist()
    least = target["cases"][0]["rows"][0]
    assert least[0][0] == str(labels.index[proba.max(1).argmin()])


def test_least_certain_case_is_the_widest_interval(regressor, test_rows, context):
    X, _ = test_rows
    table = context["targets"][0]["cases"][0]
    width = np.diff(regressor.predict_interval(X), axis=1)[:, 0]
    row = table["rows"][0]
    assert row[0][0] == X.index[width.argmax()]
    assert row[1][1] == pytest.approx(width.max() / 2)
    sold = table["heads"].index("sold")
    assert row[sold][0] == X["sold"].iloc[width.argmax()].strftime("%Y-%m-%d")


def test_page_of_a_loaded_model_is_the_same_page(regressor, test_rows, page, tmp_path):
    regressor.save(tmp_path / "model")
    path = write_report(load(tmp_path / "model"), *test_rows, tmp_path / "new" / "page.html")
    timed = r"<th scope=\"row\">predictions for .*?</td>"
    assert re.sub(timed, "", path.read_text("utf-8")) == re.sub(timed, "", page)


@pytest.mark.slow
def test_loaded_classifier_has_the_same_page_and_pictures(
    classifier, test_rows, labels, class_page, tmp_path
):
    classifier.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    path = write_report(loaded, test_rows[0], labels, tmp_path / "page.html")
    timed = r"<th scope=\"row\">predictions for .*?</td>"
    assert re.sub(timed, "", path.read_text("utf-8")) == re.sub(timed, "", class_page)
    assert len(loaded.plot()) == len(classifier.plot()) == 4


def _advice(model, X, y):
    rows = read_rows(model, X, y, classes=False)
    (one,), _, met = predict_rows(model, rows)
    return regression_advice(model.fit_report_, one, np.zeros(len(X), dtype=bool), met)


def test_values_unknown_to_the_fit_become_a_note(test_rows):
    X, y = _table(60, 0)
    model = ExactGPRegressor().fit(X, y)
    strange = test_rows[0].assign(quarter="nowhere")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # on the page, and not on the screen
        advice = _advice(model, strange, test_rows[1])
    assert any("nowhere" in item["what"] for item in advice)
    assert all(item["do"] for item in advice)


def test_biased_and_overconfident_predictions_become_notes(regressor, test_rows):
    X, y = test_rows
    said = " ".join(item["what"] for item in _advice(regressor, X, y + 40.0))
    assert "too narrow" in said
    assert "too low on average" in said


def test_coverage_is_judged_by_what_chance_allows():
    kinds = [coverage_verdict(inside, 100, 0.95)[0] for inside in (89, 90, 95, 99, 100)]
    assert kinds == ["narrow", "hold", "hold", "hold", "wide"]
    assert "slightly too narrow" in coverage_verdict(94_600, 100_000, 0.95)[1]


def test_rows_outside_the_training_range_are_flagged_only_if_more_than_expected():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    model = ExactGPRegressor().fit(X, X[:, 0])
    assert not outside_training(model, rng.normal(size=(30, 2))).any()
    far = X + np.where(np.arange(40)[:, None] < 15, 50.0, 0.0)
    assert outside_training(model, far).sum() == 15


# --- any model, any rows -------------------------------------------------------------------------


@pytest.mark.slow
def test_each_target_has_its_own_sections(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 1))
    Y = pd.DataFrame({"height": X[:, 0], "width": -X[:, 0] + 0.1 * rng.normal(size=40)})
    model = ExactGPRegressor().fit(X[:25], Y[:25])
    html = write_report(model, X[25:], Y[25:], tmp_path / "page.html").read_text("utf-8")
    reader = read_page(html)
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids))
    assert {"t1-short", "t2-short"} <= set(reader.ids)
    levels = [int(tag[1]) for tag in reader.tags if re.fullmatch("h[1-6]", tag)]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


@pytest.mark.parametrize(
    ("model", "n", "constant"),
    [
        pytest.param(GPNNRegressor(random_state=0), 12, False, marks=pytest.mark.slow),
        (ExactGPRegressor(), 1, False),
        pytest.param(ExactGPRegressor(), 12, True, marks=pytest.mark.slow),
    ],
    ids=["neighbours", "one test row", "constant target"],
)
def test_a_report_can_be_written_for_unusual_models_and_rows(tmp_path, model, n, constant):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(32, 1))
    y = np.ones(32) if constant else X[:, 0] + 0.1 * rng.normal(size=32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a constant target is warned about in fit
        model.fit(X[:20], y[:20])
    html = write_report(model, X[20 : 20 + n], y[20 : 20 + n], tmp_path / "p.html").read_text()
    assert read_page(html).open == []
    assert "nan" not in re.sub(r"<script.*?</script>|src=\"[^\"]*\"", "", html, flags=re.S).lower()


def test_the_scatter_picture_shows_a_sample_of_many_rows():
    y = np.random.default_rng(0).normal(size=5000)
    one = TargetPredictions("y", y, np.zeros(5000), np.ones(5000), Law(GAUSSIAN))
    found = scatter(one, [str(i) for i in range(5000)])
    assert found["thinned"]
    assert len(found["points"]) == len(found["data"]["points"]) == 400
    inside = int((np.abs(y) <= 1.959964).sum())
    assert found["data"]["levels"][45]["inside"] == inside  # figures use every row


def test_the_slider_has_the_ends_of_each_point_if_values_are_weighted():
    y = np.round(np.random.default_rng(0).normal(size=300))
    model = TwoStageGPRegressor.quick(random_state=0).fit(np.arange(300.0)[:, None], y)
    law = model.fitted_.targets[0].law
    assert law.values is not None
    one = TargetPredictions("y", y, np.zeros(300), np.ones(300), law)
    for row, level in zip(scatter(one, [""] * 300)["data"]["levels"], range(50, 100), strict=True):
        interval = one.interval(level / 100.0)
        np.testing.assert_allclose(row["low"], interval[:, 0], atol=1e-5)
        np.testing.assert_allclose(row["high"], interval[:, 1], atol=1e-5)


@pytest.mark.slow
def test_page_of_many_rows_is_small(regressor, tmp_path):
    X, y = _table(3000, 2)
    path = write_report(regressor, X, y, tmp_path / "page.html")
    assert path.stat().st_size < 1_500_000
    html = path.read_text(encoding="utf-8")
    assert html.count('class="point"') == 400
    assert "a random sample of 400 of the 3000 rows" in html


def test_sampled_rows_are_distinct_and_reproducible():
    assert sample_rows(5, 10).tolist() == [0, 1, 2, 3, 4]
    rows = sample_rows(1000, 100)
    assert len(set(rows.tolist())) == 100
    assert rows.tolist() == sample_rows(1000, 100).tolist()


def test_reports_refuse_unsupported_models_and_invalid_rows(
    regressor, classifier, test_rows, labels, tmp_path
):
    X, y = test_rows
    path = tmp_path / "page.html"
    with pytest.raises(InputError, match="CVPlusRegressor"):
        write_report(CVPlusRegressor(), X, y, path)
    with pytest.raises(InputError, match="45 rows and y has 44"):
        write_report(regressor, X, y[:-1], path)
    with pytest.raises(InputError, match="'unheard'"):
        write_report(classifier, X, labels.replace("dear", "unheard"), path)
    with pytest.raises(InputError, match="NaN"):
        write_report(regressor, X, y.where(y > y.min()), path)
    assert list(tmp_path.iterdir()) == []


# --- slices --------------------------------------------------------------------------------------


def test_slice_is_the_prediction_at_typical_values(regressor, test_rows):
    X, _ = test_rows
    one, two = make_slices(Answers(regressor, 0.8), X, [EVIL, "quarter"])
    assert one.grid.positions[[0, -1]].tolist() == [X[EVIL].min(), X[EVIL].max()]
    row = X.iloc[[0]].assign(
        quarter=X["quarter"].mode()[0],
        state=pd.Categorical(["fair"], ["poor", "fair", "good"], ordered=True),
    )
    row["state"] = pd.Categorical([X["state"].mode()[0]], X["state"].cat.categories, ordered=True)
    row["garden"] = bool(X["garden"].mode()[0])
    row["sold"] = X["sold"].sort_values().iloc[22]
    row[EVIL] = one.grid.values[7]
    np.testing.assert_allclose(one.middle[7, 0], regressor.predict(row)[0])
    np.testing.assert_allclose(one.band[7, 0], regressor.predict_interval(row, level=0.8)[0])
    assert two.grid.labels == [LEVEL, "north", "south"]
    row[EVIL] = X[EVIL].median()
    row["quarter"] = "south"
    np.testing.assert_allclose(two.middle[2, 0], regressor.predict(row)[0])


def test_shuffling_finds_the_columns_that_matter(regressor, test_rows):
    effects = shuffle_effects(Answers(regressor), test_rows[0])
    order = sorted(effects, key=lambda name: -effects[name][0])
    assert order[:2] == [EVIL, "quarter"]


def test_unknown_feature_is_named(regressor, test_rows):
    with pytest.raises(InputError, match="no column 'size'"):
        make_slices(Answers(regressor), test_rows[0], ["size"])


# --- times ---------------------------------------------------------------------------------------


def test_seconds_stand_beside_those_that_were_foretold(regressor, context, class_context):
    rows = {row["part"]: row["seconds"] for row in context["targets"][0]["times"]}
    report = regressor.fit_report_
    assert rows["fit, total"] == f"{report.seconds['total']:.2f}"
    assert rows["fit, total, as foretold before it"] == f"{report.foretold_seconds:.2f}"
    # Classifiers have no forecast.
    assert not any("foretold" in row["part"] for row in class_context["targets"][0]["times"])
