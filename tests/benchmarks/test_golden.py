"""``benchmarks.golden``: equal predictions pass, a wrong number or a missing fit does not."""

import numpy as np
import pytest

from benchmarks import golden
from benchmarks._golden_outputs import Outcome
from benchmarks._golden_store import Store, compare

NAMES = ["single-weights", "farthest-points"]
ONLY = ["--only", ",".join(NAMES)]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    assert golden.main(["write", "--folder", str(folder), *ONLY]) == 0
    return Store(folder)


@pytest.fixture
def store(written, tmp_path):
    """A copy that a test may damage."""
    copy = Store(tmp_path)
    for name in NAMES:
        copy.write(name, written.read(name))
    return copy


def check(store):
    return golden.main(["check", "--folder", str(store.folder), *ONLY])


def test_the_same_code_gives_identical_predictions(written, capsys):
    assert check(written) == 0
    assert "2 configurations: 2 identical, 0 rounding;" in capsys.readouterr().out
    assert set(written.facts()) == set(NAMES)


def test_a_wrong_number_fails_and_is_named(store, capsys):
    wrong = store.read("single-weights")
    wrong.numbers["std"][3] += 1e-6 * wrong.unit
    store.write("single-weights", wrong)
    assert check(store) == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if "DIFFERENT" in line)
    assert line.split()[:3] == ["single-weights", "DIFFERENT", "1.0e-06"]
    assert line.endswith("std")


def test_a_missing_configuration_fails(store, capsys):
    store.remove(["farthest-points"])
    assert check(store) == 1
    assert "1 MISSING" in capsys.readouterr().out


def test_a_configuration_that_left_the_table_fails(store, capsys):
    store.write("single-weights-of-old", Outcome())
    assert check(store) == 1
    assert "not in the table of configurations" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("new", "status"),
    [
        (Outcome(2.0, {"mean": np.array([1.0, np.inf])}, {"label": "rbf"}), "identical"),
        (Outcome(2.0, {"mean": np.array([1.0 + 1e-10, np.inf])}, {"label": "rbf"}), "rounding"),
        (Outcome(2.0, {"mean": np.array([1.0 + 3e-10, np.inf])}, {"label": "rbf"}), "DIFFERENT"),
        (Outcome(2.0, {"mean": np.array([1.0, np.nan])}, {"label": "rbf"}), "DIFFERENT"),
        (Outcome(2.0, {"mean": np.array([1.0])}, {"label": "rbf"}), "DIFFERENT"),
        (Outcome(2.0, {"mean": np.array([1.0, np.inf])}, {"label": "matern32"}), "DIFFERENT"),
        (Outcome(2.0, {}, {"label": "rbf"}), "DIFFERENT"),
    ],
)
def test_differences_are_in_standard_deviations_of_the_target(new, status):
    stored = Outcome(2.0, {"mean": np.array([1.0, np.inf])}, {"label": "rbf"})
    assert compare(stored, new).status == status
