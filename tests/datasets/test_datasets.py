"""Reading tables: small files written here, and the real folder if TWOSTAGEGP_DATA is set."""

import os
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from twostagegp import datasets

needs_data = pytest.mark.skipif(
    not os.environ.get(datasets.FOLDER_VARIABLE), reason=f"{datasets.FOLDER_VARIABLE} is not set"
)

# Rows, columns and standard splits, as the source of each table states them.
SHAPES = {
    "yacht": (308, 6, 20),
    "boston": (506, 13, 20),
    "energy": (768, 8, 20),
    "concrete": (1030, 8, 20),
    "wine": (1599, 11, 20),
    "kin8nm": (8192, 8, 20),
    "power": (9568, 4, 20),
    "naval": (11934, 16, 20),
    "poletele": (5875, 19, 0),
    "pol": (15000, 26, 10),
    "bike": (17379, 13, 10),
    "protein": (45730, 9, 5),
    "keggdirected": (48827, 20, 10),
    "house_electric_part": (40959, 8, 0),
    "house_electric_july2010": (3285, 8, 0),
    "road3d_part": (5000, 2, 0),
    "ctslice_part": (682, 384, 0),
    "elevation": (138632, 2, 0),
    "flights": (273853, 8, 0),
    "diamonds": (53940, 9, 0),
}


def write(folder, file, n=12, d=2, **arrays):
    """Write a table; X in float32, as some of the real ones are."""
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    table = {"X": rng.normal(size=(n, d)).astype("float32"), "y": rng.normal(size=n)}
    np.savez(path, **(table | arrays))
    return path


# --- toys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "trend"), [("sine", lambda x: 3 * x), ("power", lambda x: 3 * np.abs(x) ** 1.5)]
)
def test_toy_without_noise_is_the_function(kind, trend):
    X, y = datasets.toy(n=200, noise=0.0, kind=kind)
    x = X[:, 0]
    assert X.shape == (200, 1)
    assert x.min() >= -5
    assert x.max() <= 5
    np.testing.assert_allclose(y, trend(x) + 2 * np.sin(2 * np.pi * x))


def test_toy_noise_has_its_standard_deviation():
    X, y = datasets.toy(n=20_000, noise=0.5, random_state=1)
    X_clean, f = datasets.toy(n=20_000, noise=0.0, random_state=1)
    np.testing.assert_array_equal(X, X_clean)
    assert np.std(y - f) == pytest.approx(0.5, rel=0.03)


def test_toy_is_the_same_for_the_same_seed_only():
    first, again, other = (datasets.toy(random_state=seed)[1] for seed in (0, 0, 1))
    assert first.shape == (30,)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "cosine"}, "kind must be 'sine' or 'power', got 'cosine'"),
        ({"n": 0}, "n must be at least 1"),
        ({"noise": -1.0}, "noise must not be negative"),
        ({"noise": float("nan")}, "noise must not be negative"),
    ],
)
def test_toy_explains_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        datasets.toy(**arguments)


# --- reading -------------------------------------------------------------------------------------


def test_index_splits_are_read_in_their_order(tmp_path):
    tests = {f"test_{k}": np.array([k], dtype="int32") for k in range(12)}
    write(tmp_path, "uci_small/yacht.npz", n_splits=np.int32(12), **tests)
    data = datasets.load("yacht", tmp_path)
    assert [rows.tolist() for rows in data.splits] == [[k] for k in range(12)]
    train, test = data.split(10)
    assert test.tolist() == [10]
    assert sorted([*train, *test]) == list(range(12))


def test_mask_splits_and_names_are_read(tmp_path):
    mask = np.arange(12)[:, None] % 3 == np.arange(3)
    write(tmp_path, "uci_large/bike.npz", test_mask=mask, feature_names=np.array(["hr", "temp"]))
    data = datasets.load("bike", tmp_path)
    assert data.feature_names == ("hr", "temp")
    assert len(data.splits) == 3
    assert data.split(1)[1].tolist() == [1, 4, 7, 10]


def test_groups_are_read_and_are_none_for_other_tables(tmp_path):
    write(tmp_path, "uci_large/poletele.npz", subject=np.repeat([1, 2, 3], 4))
    data = datasets.load("poletele", str(tmp_path))
    assert data.groups.tolist() == np.repeat([1, 2, 3], 4).tolist()
    assert data.feature_names == ("x0", "x1")
    assert data.X.dtype == data.y.dtype == np.float64
    assert data.splits == ()


def test_a_second_table_of_a_file_has_its_own_rows(tmp_path):
    write(
        tmp_path,
        "uci_large/house_electric_part.npz",
        X_july2010=np.ones((3, 2)),
        y_july2010=np.ones(3),
    )
    assert datasets.load("house_electric_part", tmp_path).X.shape == (12, 2)
    assert datasets.load("house_electric_july2010", tmp_path).X.shape == (3, 2)


def test_a_flat_folder_and_the_environment_variable_work(tmp_path, monkeypatch):
    write(tmp_path, "wine.npz")
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(tmp_path))
    data = datasets.load("wine")
    assert data.name == "wine"
    assert data.groups is None


def test_data_are_frozen(tmp_path):
    write(tmp_path, "wine.npz")
    data = datasets.load("wine", tmp_path)
    with pytest.raises(FrozenInstanceError):
        data.y = data.y + 1


# --- errors --------------------------------------------------------------------------------------


def test_an_unknown_name_is_refused_with_the_most_similar_ones():
    with pytest.raises(ValueError, match="unknown table 'kin8mn'; did you mean 'kin8nm'"):
        datasets.load("kin8mn")
    with pytest.raises(ValueError, match=r"unknown table 'zzz'; datasets.names\(\) lists"):
        datasets.load("zzz")


def test_without_a_folder_the_error_names_the_variable_to_set(monkeypatch):
    monkeypatch.delenv(datasets.FOLDER_VARIABLE, raising=False)
    with pytest.raises(datasets.DatasetNotFoundError, match="TWOSTAGEGP_DATA"):
        datasets.load("yacht")


def test_a_missing_file_names_the_places_tried(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        datasets.load("yacht", tmp_path)
    message = str(caught.value)
    assert str(tmp_path / "uci_small" / "yacht.npz") in message
    assert str(tmp_path / "yacht.npz") in message
    assert "TWOSTAGEGP_DATA" in message


@pytest.mark.parametrize("k", [-1, 1])
def test_a_split_that_does_not_exist_is_refused(tmp_path, k):
    write(tmp_path, "yacht.npz", test_0=np.array([0]))
    with pytest.raises(IndexError, match="does not exist: yacht has 1 standard splits"):
        datasets.load("yacht", tmp_path).split(k)


def test_a_table_without_splits_says_so(tmp_path):
    write(tmp_path, "elevation.npz")
    with pytest.raises(IndexError, match="split 0 does not exist: elevation has no standard split"):
        datasets.load("elevation", tmp_path).split(0)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": np.zeros(5)}, r"X of shape \(12, 2\) does not fit y of shape \(5,\)"),
        ({"feature_names": np.array(["a"])}, "1 feature names for 2 columns"),
        (
            {"test_mask": np.ones((5, 10), dtype=bool)},
            r"test_mask of shape \(5, 10\) does not fit 12 rows",
        ),
        ({"test_0": np.array([12])}, "test_0 has indices outside of the 12 rows"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, arrays, message):
    write(tmp_path, "pol.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        datasets.load("pol", tmp_path)


def test_a_file_without_its_groups_is_refused(tmp_path):
    write(tmp_path, "ctslice_part.npz")
    with pytest.raises(ValueError, match=r"lacks the arrays \['patient'\]"):
        datasets.load("ctslice_part", tmp_path)


# --- the real folder -----------------------------------------------------------------------------


def test_every_table_is_listed():
    assert datasets.names() == sorted(SHAPES)


@needs_data
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_real_tables_have_the_documented_sizes(name):
    try:
        data = datasets.load(name)
    except datasets.DatasetNotFoundError:
        pytest.skip(f"{name} is not in the folder")  # a folder may hold some of the tables only
    n, d, n_splits = SHAPES[name]
    assert data.X.shape == (n, d)
    assert len(data.feature_names) == d
    assert np.isfinite(data.X).all()
    assert np.isfinite(data.y).all()
    assert len(data.splits) == n_splits
    for k in range(n_splits):
        train, test = data.split(k)
        assert len(np.intersect1d(train, test)) == 0
        assert len(train) + len(test) == n
    assert (data.groups is not None) == (name in ("poletele", "ctslice_part"))
