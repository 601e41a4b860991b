"""Which packages are loaded by importing the estimators, and by the first fit.

scikit-learn itself loads pandas and parts of SciPy, and its trees load rich. So imports are
compared with those of torch and scikit-learn alone, and a fit with those of scikit-learn's trees.
"""

import json
import subprocess
import sys

import pytest

import twostagegp

#: Estimators, and functions that take a table.
NAMES = sorted(set(twostagegp.__all__) - {"foundation", "plotting", "report"})
#: Packages that neither an exact fit nor its predictions need.
OTHERS = {"numba", "llvmlite", "gpytorch", "linear_operator", "matplotlib", "jinja2", "dask"}

PACKAGES = """
import json, sys
known, answer = set(), []
def packages():
    parts = [name.split(".") for name in sys.modules]
    return {".".join(part[: 2 if part[0] == "sklearn" else 1]) for part in parts}
"""
FIT = """
import numpy as np
rng = np.random.default_rng(0)
X = rng.uniform(-1.0, 1.0, size=(200, 8))
y = np.sin(3.0 * X[:, 0]) + 0.1 * rng.normal(size=200)
model = twostagegp.TwoStageGPRegressor(random_state=0).fit(X, y)
assert model.fit_report_.method == "exact"
model.predict(X, return_std=True)
model.predict_interval(X)
"""


def packages_after(*steps):
    """Run the steps in one fresh process; return the packages that each step has loaded.

    The parts of scikit-learn (``sklearn.ensemble``) count as packages of their own.
    """
    program = PACKAGES
    for step in steps:
        program += f"{step}\nanswer.append(sorted(packages() - known)); known |= packages()\n"
    program += "print(json.dumps(answer))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [set(names) - sys.stdlib_module_names for names in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def loaded():
    """Return the packages of torch and scikit-learn, of our imports, of the trees and of a fit."""
    ours = f"import twostagegp; [getattr(twostagegp, name) for name in {NAMES!r}]"
    trees = "import sklearn.ensemble"
    return packages_after("import torch, sklearn.base", ours, trees, FIT)


def test_import_loads_nothing_besides_torch_and_scikit_learn(loaded):
    assert {"torch", "sklearn.base"} <= loaded[0]
    assert loaded[1] == {"twostagegp"}


def test_first_fit_and_prediction_load_only_the_trees_of_scikit_learn(loaded):
    assert "sklearn.ensemble" in loaded[2]
    assert not OTHERS & (loaded[1] | loaded[3])
    assert not {name for name in loaded[3] if name.startswith("sklearn")}
