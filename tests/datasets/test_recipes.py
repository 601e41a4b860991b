"""Recipes of the public tables, on small files in the formats of the sources."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest

from twostagegp import datasets
from twostagegp.datasets.recipes import RECIPES, prepare

RNG = np.random.default_rng(1)


def text(rows, sep=",", header=None, end="\n"):
    lines = [] if header is None else [header]
    return end.join([*lines, *(sep.join(map(str, row)) for row in rows), ""]).encode()


def table(n, d, y, first=False):
    """Return X, y and rows of random numbers; y is the last column, or the first."""
    X = np.round(RNG.normal(size=(n, d)), 4)
    target = np.round(RNG.uniform(*y, size=n), 3)
    rows = [[t, *x] if first else [*x, t] for x, t in zip(X.tolist(), target.tolist(), strict=True)]
    return X, target, rows


BIKE_HEADER = (
    "instant,dteday,season,yr,mnth,hr,holiday,weekday,workingday,weathersit,temp,atemp,hum,"
    "windspeed,casual,registered,cnt"
)
POLETELE_HEADER = (
    "subject#,age,sex,test_time,motor_UPDRS,total_UPDRS,Jitter(%),Jitter(Abs),Jitter:RAP,"
    "Jitter:PPQ5,Jitter:DDP,Shimmer,Shimmer(dB),Shimmer:APQ3,Shimmer:APQ5,Shimmer:APQ11,"
    "Shimmer:DDA,NHR,HNR,RPDE,DFA,PPE"
)
CONCRETE_HEADER = (
    "Cement,Blast Furnace Slag,Fly Ash,Water,Superplasticizer,Coarse Aggregate,Fine Aggregate,Age,"
    "Concrete compressive strength"
)
WINE_HEADER = (
    '"fixed acidity";"volatile acidity";"citric acid";"residual sugar";"chlorides";'
    '"free sulfur dioxide";"total sulfur dioxide";"density";"pH";"sulphates";"alcohol";"quality"'
)
HOUSE_HEADER = (
    "Date;Time;Global_active_power;Global_reactive_power;Voltage;Global_intensity;Sub_metering_1;"
    "Sub_metering_2;Sub_metering_3"
)


def raw_yacht():
    X, y, rows = table(9, 6, (0.01, 62))
    # The source separates some cells by two blanks, and ends in an empty line.
    return text(rows, " ").replace(b" 0", b"  0") + b" \n", X, y, {}


def raw_energy():
    X, y, rows = table(9, 8, (6.1, 43))
    return text([[*row, 1.5] for row in rows], header="X1,X2,X3,X4,X5,X6,X7,X8,Y1,Y2"), X, y, {}


def raw_concrete():
    X, y, rows = table(9, 8, (3, 82))
    return text(rows, header=CONCRETE_HEADER), X, y, {}


def raw_wine():
    X, y, rows = table(9, 11, (3, 8))
    return text(rows, ";", WINE_HEADER, end="\r\n"), X, y, {}


def raw_power():
    X, y, rows = table(9, 4, (421, 495))
    return text(rows, header="AT,V,AP,RH,PE"), X, y, {}


def raw_naval():
    X, y, rows = table(9, 16, (0.95, 1))
    lines = [["", *(f"{value:.7e}" for value in [*row, 0.98]), ""] for row in rows]
    return text(lines, "   "), X, y, {}


def raw_protein():
    X, y, rows = table(9, 9, (0, 20.9), first=True)
    header = "RMSD," + ",".join(f"F{j}" for j in range(1, 10))
    return text(rows, header=header), X, y, {}


def raw_bike():
    X, y, _ = table(9, 12, (1, 977))
    days = [f"2011-{month:02d}-{29 - month:02d}" for month in range(1, 10)]
    rows = [
        [i, day, *x, 7, 8, t]
        for i, (day, x, t) in enumerate(zip(days, X.tolist(), y.tolist(), strict=True), 1)
    ]
    X = np.column_stack([[int(day[-2:]) for day in days], X])
    return text(rows, header=BIKE_HEADER), X, y, {}


def raw_poletele():
    X, y, _ = table(9, 19, (7, 54))
    subject = np.repeat([1, 2, 42], 3)
    rows = [
        [s, x[0], x[1], 5.6431, x[2], t, *x[3:]]
        for s, x, t in zip(subject.tolist(), X.tolist(), y.tolist(), strict=True)
    ]
    return text(rows, header=POLETELE_HEADER), X, y, {"subject": subject}


def raw_ctslice():
    X, y, rows = table(9, 384, (2, 97))
    patient = np.repeat([0, 3, 96], 3)
    header = "patientId," + ",".join(f"value{j}" for j in range(384)) + ",reference"
    rows = [[p, *row] for p, row in zip(patient.tolist(), rows, strict=True)]
    return text(rows, header=header), X, y, {"patient": patient}


def raw_road3d():
    X, y, rows = table(9, 2, (-8, 134))
    # Above 2^53, where a float cannot hold every integer.
    road = np.array([144552912, 144552912, 9007199254740993] * 3)
    rows = [[r, *row] for r, row in zip(road.tolist(), rows, strict=True)]
    return text(rows), X, y, {"road": road}


def raw_song():
    X, _, rows = table(9, 90, (1922, 2011), first=True)
    years = np.arange(1990.0, 1999.0)
    rows = [[int(year), *row[1:]] for year, row in zip(years, rows, strict=True)]
    return text(rows), X, years, {"test_0": np.array([7, 8])}


def raw_house_electric():
    """Return a file with two missing minutes; 2/1 is 2 January, 31/12/2008 is day 366."""
    rows = [
        ["16/12/2006", "17:24:00", 4.216, 0.418, 234.84, 18.4, 0, 1, 17],
        ["21/12/2006", "11:23:00", "?", "?", "?", "?", "?", "?", ""],
        ["2/1/2007", "00:00:00", 0.5, 0.1, 240.0, 2.0, 0, 0, 0],
        ["28/4/2007", "00:21:00", "?", "?", "?", "?", "?", "?", ""],
        ["31/12/2008", "23:59:00", 1.0, 0.0, 241.5, 4.2, 1, 2, 3],
    ]
    wh = 1000 / 60
    X = [
        [0.418 * wh, 234.84, 18.4, 0, 1, 17, 350 / 365, (17 * 60 + 24) / 1440],
        [0.1 * wh, 240.0, 2.0, 0, 0, 0, 2 / 365, 0.0],
        [0.0, 241.5, 4.2, 1, 2, 3, 366 / 365, 1439 / 1440],
    ]
    y = [4.216 * wh - 18, 0.5 * wh, wh - 6]
    return text(rows, ";", HOUSE_HEADER, end="\r\n"), np.array(X), np.array(y), {}


RAW = {
    name.removeprefix("raw_"): maker for name, maker in list(globals().items()) if "raw_" in name
}


def small(name, n, **changes):
    """Return the recipe of a table for a file of n rows."""
    changes |= {"test_from": 7} if name == "song" else {}
    return replace(RECIPES[name], n=n, **changes)


def test_every_recipe_has_a_small_file():
    assert sorted(RAW) == datasets.fetchable() == sorted(RECIPES)


@pytest.mark.parametrize("name", sorted(RAW))
def test_a_file_becomes_the_table(name):
    content, X, y, others = RAW[name]()
    recipe = small(name, len(y))
    arrays = prepare(recipe, io.BytesIO(content))
    np.testing.assert_allclose(arrays["X"], X, rtol=1e-14, atol=0)
    np.testing.assert_allclose(arrays["y"], y, rtol=1e-14, atol=0)
    assert len(set(arrays["feature_names"])) == recipe.d
    assert arrays.keys() == {"X", "y", "feature_names", *others}
    for key, expected in others.items():
        np.testing.assert_array_equal(arrays[key], expected)


@pytest.mark.parametrize("name", sorted(RAW))
@pytest.mark.parametrize(
    "how", ["row", "column", "longer", "words", "nothing", "binary", "missing"]
)
def test_a_file_that_differs_from_the_documentation_is_refused(name, how):
    content, _, y, _ = RAW[name]()
    lines = content.decode().strip("\r\n ").splitlines()
    sep = ";" if ";" in lines[-1] else "," if "," in lines[-1] else " "
    if how == "row":
        lines = lines[:-1]
    elif how == "column":
        lines = [sep.join(line.strip().split(sep)[:-1]).strip() for line in lines]
    elif how == "longer":
        lines = [lines[0], *(f"{line.rstrip()}{sep}1" for line in lines[1:])]
    elif how == "words":
        lines[-1] = lines[-1].replace("0", "x")
    elif how == "nothing":
        lines = []
    elif how == "missing":
        cells = lines[-1].split(None if sep == " " else sep)
        lines[-1] = sep.join([cells[0], "NA", *cells[2:]])
    content = "\n".join(lines).encode() if how != "binary" else RNG.bytes(200_000)
    with pytest.raises(ValueError, match=r"expected|missing"):
        prepare(small(name, len(y)), io.BytesIO(content))


@pytest.mark.parametrize("name", ["wine", "road3d"])
def test_a_target_outside_of_its_range_is_refused(name):
    content, _, y, _ = RAW[name]()
    recipe = small(name, len(y), y_range=(-1, 1))
    with pytest.raises(ValueError, match=r"the target ranges from .* expected was -1 to 1"):
        prepare(recipe, io.BytesIO(content))


def test_other_column_names_are_refused():
    content, _, y, _ = raw_power()
    with pytest.raises(ValueError, match=r"the columns are \['AT', 'V', 'AP', 'HR', 'PE'\]"):
        prepare(small("power", len(y)), io.BytesIO(content.replace(b"RH", b"HR")))


def test_numbers_keep_their_digits():
    values = ["0.1234567890123456789", "8.9e-308", "123456789.123456789", "1e22"]
    content = text([[*values, 430]], header="AT,V,AP,RH,PE")
    X = prepare(small("power", 1), io.BytesIO(content))["X"]
    # Older versions of pandas are wrong in the last digit.
    np.testing.assert_allclose(X[0], [float(value) for value in values], rtol=4e-16, atol=0)


def test_sources_are_encrypted_and_files_and_checksums_differ():
    recipes = RECIPES.values()
    assert all(recipe.url.startswith("https://archive.ics.uci.edu/") for recipe in recipes)
    assert len({recipe.file for recipe in recipes}) == len(recipes)
    known = [recipe.sha256 for recipe in recipes if recipe.sha256]
    assert len(known) == len(set(known)) == 9
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in known)
