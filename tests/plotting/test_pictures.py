"""Tests of pictures: their axes and labels, and comparisons with reference pictures."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib.dates import num2date
from matplotlib.figure import Figure
from matplotlib.image import imread
from reference_pictures import FOLDER, PICTURES, coarse, pixels

from twostagegp import ExactGPRegressor, TwoStageGPClassifier, plotting
from twostagegp.errors import InputError
from twostagegp.plotting.classes import confidence_bins
from twostagegp.plotting.slices import Answers, make_grid, make_slices, training_frame


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    n = 50
    table = pd.DataFrame(
        {
            "cost ($) of a metre ($)": rng.uniform(1.0, 9.0, n),
            "quarter": rng.choice(["north", "south"], n),
            "state": pd.Categorical(
                rng.choice(["poor", "good"], n), ["poor", "fair", "good"], ordered=True
            ),
            "garden": rng.random(n) < 0.5,
            "sold": pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D"),
            "took": pd.to_timedelta(rng.integers(1, 90, n), unit="D"),
        }
    )
    table.loc[[1, 2], "quarter"] = "harbour"  # too few for a column of their own
    table.loc[[3, 9, 12, 20], "quarter"] = None
    table.loc[[5, 6], "sold"] = pd.NaT
    y = table.iloc[:, 0] + 4.0 * table["garden"] + 0.1 * rng.normal(size=n)
    return table, y


@pytest.fixture(scope="module")
def model(table):
    return ExactGPRegressor(ard=True, random_state=0).fit(*table)


@pytest.fixture(scope="module")
def classifier(table):
    X, y = table
    return TwoStageGPClassifier(kernels=("rbf",), ard=False, random_state=0).fit(
        X[["garden", "took", "state"]], np.where(y > y.median(), "dear", "cheap")
    )


def _draw(axes):
    axes[0].figure.canvas.draw()  # a tick without a place, or a date out of range, fails here
    return axes


# --- the plot method -----------------------------------------------------------------------------


def test_a_model_of_one_input_is_drawn_as_a_band_with_its_training_rows():
    x = np.linspace(0.0, 1.0, 25)
    model = ExactGPRegressor(random_state=0).fit(x[:, None], np.sin(6.0 * x))
    (ax,) = _draw(model.plot(level=0.9))
    mean = ax.lines[0]
    np.testing.assert_allclose(mean.get_ydata(), model.predict(mean.get_xdata()[:, None]))
    points = next(line for line in ax.lines if line.get_label() == "training rows")
    assert sorted(points.get_xdata()) == pytest.approx(x.tolist())
    (band,) = ax.collections
    low = band.get_paths()[0].vertices[:, 1].min()
    grid = mean.get_xdata()[:, None]
    assert low == pytest.approx(model.predict_interval(grid, level=0.9)[:, 0].min())


def test_a_model_of_two_inputs_is_drawn_as_maps_of_mean_and_standard_deviation():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"long": rng.uniform(size=30), "wide": rng.uniform(size=30)})
    model = ExactGPRegressor(random_state=0).fit(X, X["long"] * X["wide"])
    left, right = _draw(model.plot())
    assert (left.get_title(), right.get_title()) == ("mean", "standard deviation")
    assert (left.get_xlabel(), left.get_ylabel()) == ("long", "wide")
    values = np.asarray(left.collections[0].get_array()).ravel()
    corner = pd.DataFrame({"long": [X["long"].min()], "wide": [X["wide"].min()]})
    # Alone and in a batch, a table without noise is predicted to some 1e-7 of its spread.
    assert values[0] == pytest.approx(model.predict(corner)[0], abs=1e-6)


def test_a_model_of_many_inputs_is_drawn_as_slices_of_the_most_important_ones(model, table):
    axes = _draw(model.plot())
    assert len(axes) == 4
    names = [ax.get_xlabel() for ax in axes]
    assert names[0].replace("\\", "") == "cost ($) of a metre ($)"
    assert "garden" in names[:2]


def test_named_features_are_drawn_by_their_own_names(model, table):
    names = ["quarter", "state", "garden", "sold", "took", table[0].columns[0]]
    axes = _draw(model.plot(features=names))
    ticks = [[tick.get_text() for tick in ax.get_xticklabels()] for ax in axes]
    assert ticks[0] == ["north", "south", "(other)", "(missing)"]
    assert ticks[1] == ["poor", "fair", "good"]
    assert ticks[2] == ["false", "true"]
    assert num2date(axes[3].lines[0].get_xdata()[0]).year == 2021
    assert "2022" in ticks[3]
    assert axes[4].get_xlabel() == "took (days)"


def test_rows_with_outcomes_are_drawn_as_predicted_against_observed(model, table):
    (ax,) = _draw(model.plot(*table, level=0.5))
    X, y = table
    ends = model.predict_interval(X, level=0.5)
    inside = int(((ends[:, 0] <= y) & (y <= ends[:, 1])).sum())
    assert f"{inside} inside their interval" in ax.get_legend_handles_labels()[1]


def test_classes_are_drawn_with_reliability_risk_and_slices(classifier, table):
    X, y = table[0][["garden", "took", "state"]], table[1]
    reliability, risk = _draw(classifier.plot(X, np.where(y > y.median(), "dear", "cheap")))
    assert reliability.get_ylabel() == "share of correct answers"
    assert risk.get_ylabel() == "error rate among them"
    (ax,) = _draw(classifier.plot(features="garden"))
    assert ax.get_ylabel() == "probability of dear"
    shown = ax.lines[0].get_ydata()
    assert shown[1] > shown[0]


def test_axes_of_the_caller_are_used_and_counted(model):
    ours = Figure().subplots(1, 2)
    assert model.plot(features=["garden", "state"], ax=ours) == list(ours)
    with pytest.raises(InputError, match="needs 1"):
        model.plot(features="garden", ax=ours)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": 1.0}, "level=1.0"),
        ({"y": [1.0]}, "y was given without X"),
        ({"target": 1}, "1 target"),
        ({"features": ["size"]}, "no column 'size'"),
    ],
)
def test_invalid_arguments_of_plot_are_explained(model, arguments, message):
    with pytest.raises(InputError, match=message):
        model.plot(**arguments)


@pytest.mark.slow
def test_neither_import_nor_pictures_use_pyplot():
    code = """
import sys, numpy as np, twostagegp
assert "matplotlib" not in sys.modules
model = twostagegp.ExactGPRegressor().fit(np.arange(8.0)[:, None], np.arange(8.0))
model.plot()
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


# --- rows and grids ------------------------------------------------------------------------------


def test_training_rows_are_returned_in_the_users_units(model, table):
    X, y = table
    frame, outcome = training_frame(model)
    assert len(frame) == len(X)
    order = np.argsort(frame.iloc[:, 0].to_numpy())
    expected = X.iloc[np.argsort(X.iloc[:, 0].to_numpy())].reset_index(drop=True)
    found = frame.iloc[order].reset_index(drop=True)
    np.testing.assert_allclose(found.iloc[:, 0], expected.iloc[:, 0])
    assert found["garden"].tolist() == expected["garden"].tolist()
    assert found["state"].astype(str).tolist() == expected["state"].astype(str).tolist()
    known = expected["sold"].notna()
    assert (found["sold"][known] == expected["sold"][known]).all()
    assert (found["took"] == expected["took"]).all()
    np.testing.assert_allclose(np.sort(outcome), np.sort(y))


def test_dates_of_a_slice_keep_the_day_of_the_week(model, table):
    (one,) = make_slices(Answers(model), table[0], ["sold"])
    assert len({value.day_of_week for value in one.grid.values}) == 1


def test_few_distinct_numbers_become_named_levels():
    grid = make_grid("rooms", pd.Series([1.0, 2.0, 2.0, 4.0]), "number")
    assert grid.labels == ["1", "2", "4"]


def test_bins_of_confidence_hold_all_rows_and_ties_stay_together():
    rng = np.random.default_rng(0)
    confidence = np.round(rng.uniform(0.5, 1.0, 300), 1)
    correct = rng.uniform(size=300) < confidence
    bins = confidence_bins(confidence, correct, 10)
    assert sum(each["rows"] for each in bins) == 300
    assert sum(each["rows"] * each["accuracy"] for each in bins) == pytest.approx(correct.sum())
    assert len(bins) <= len(np.unique(confidence))


def test_wrong_shapes_of_class_pictures_are_named():
    ax = Figure().subplots()
    with pytest.raises(InputError, match=r"must have shape \(2, 3\)"):
        plotting.plot_class_reliability(ax, [0, 1], [[0.5, 0.5]] * 2, classes=[0, 1, 2])
    with pytest.raises(InputError, match="2 classes"):
        plotting.plot_confusion(ax, [[1]], ["a", "b"])


# --- appearance ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_equal_the_reference_pictures(name):
    now = pixels(PICTURES[name]())
    kept = imread(FOLDER / f"{name}.png")[..., :3].mean(-1)
    assert now.shape == kept.shape
    difference = np.abs(coarse(now) - coarse(kept))
    assert difference.mean() < 0.01, "python tests/reference_pictures.py draws them anew"


def test_the_comparison_distinguishes_different_pictures():
    kept = {name: coarse(imread(FOLDER / f"{name}.png")[..., :3].mean(-1)) for name in PICTURES}
    kept.pop("maps")  # of another size
    names = list(kept)
    gaps = [np.abs(kept[a] - kept[b]).mean() for i, a in enumerate(names) for b in names[i + 1 :]]
    assert min(gaps) > 0.02
