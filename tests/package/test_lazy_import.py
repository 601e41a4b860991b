"""``import twostagegp`` loads next to nothing, and every public name is there when it is used."""

import subprocess
import sys
from pathlib import Path

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
def test_every_public_name_can_be_imported(name):
    assert getattr(twostagegp, name) is not None
    assert name in dir(twostagegp)


def test_the_lazy_names_agree_with_their_modules():
    # Private: a home without a public name can be seen nowhere else.
    assert sorted(twostagegp.__all__) == sorted(twostagegp._HOMES)  # noqa: SLF001


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'TwoStageGP'"):
        twostagegp.TwoStageGP  # noqa: B018
    with pytest.raises(ImportError):
        exec("from twostagegp import TwoStageGP")


def test_star_import_has_the_estimators():
    names = {}
    exec("from twostagegp import *", names)
    assert names["TwoStageGPRegressor"] is twostagegp.TwoStageGPRegressor


@pytest.mark.slow
def test_every_module_can_be_the_first_to_be_imported():
    """Every module can be imported first, without the order of an eager package."""
    root = Path(twostagegp.__file__).parent.parent
    names = sorted(
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for path in root.glob("twostagegp/**/*.py")
        if path.name != "__main__.py"
    )
    program = (
        "import os, traceback\n"
        "import numpy, pandas, scipy.stats, sklearn.utils, torch, gpytorch, numba\n"
        f"for name in {names!r}:\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        try:\n"
        "            __import__(name)\n"
        "        except BaseException:\n"
        "            traceback.print_exc()\n"
        "            os._exit(1)\n"
        "        os._exit(0)\n"
        "    if os.waitpid(child, 0)[1]:\n"
        "        print(name, flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == [], done.stderr
    assert done.returncode == 0
