"""``import twostagegp`` loads next to nothing, and every public name is there when it is used."""

import subprocess
import sys

import pytest

import twostagegp

HEAVY = {"torch", "pandas", "sklearn", "scipy", "matplotlib", "gpytorch", "numpy", "numba"}


def loaded_after(program):
    lines = f"{program}\nimport sys\nprint(*({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_import_loads_no_heavy_package():
    assert loaded_after("import twostagegp; twostagegp.__version__; dir(twostagegp)") == []


def test_errors_load_no_heavy_package():
    assert loaded_after("from twostagegp import TwoStageGPError; import twostagegp.errors") == []


@pytest.mark.parametrize("name", [n for n in twostagegp.__all__ if n != "foundation"])
def test_every_public_name_is_there(name):
    assert getattr(twostagegp, name) is not None
    assert name in dir(twostagegp)


def test_names_and_homes_agree():
    assert sorted(twostagegp.__all__) == sorted(twostagegp._HOMES)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'TwoStageGP'"):
        twostagegp.TwoStageGP  # noqa: B018
    with pytest.raises(ImportError):
        exec("from twostagegp import TwoStageGP")


def test_star_import_has_the_estimators():
    names = {}
    exec("from twostagegp import *", names)
    assert names["TwoStageGPRegressor"] is twostagegp.TwoStageGPRegressor
