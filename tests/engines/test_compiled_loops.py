"""The vector loops equal the plain ones, which take their place with an untried Numba."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import njit

import twostagegp
from twostagegp.engines.neighbors.compiled import loops, plain_loops, vector_loops
from twostagegp.engines.neighbors.compiled.lanes import BLOCK, DEGREE, LANES

N, D = 7, 5


def positive_definite(rng):
    """LANES interleaved matrices with two more rows, as in a local Gaussian process."""
    A = rng.normal(size=(LANES, N, N))
    K = rng.normal(size=(N + 2, N + 2, LANES))
    K[:N, :N] = (A @ A.transpose(0, 2, 1) + N * np.eye(N)).transpose(1, 2, 0)
    return K.reshape(-1)


ROW, POINT = (N + 2) * LANES, D * LANES
#: For each loop: arguments made from random numbers; arrays are compared after the call.
CALLS = {
    "pivot": lambda rng: (positive_definite(rng), 2 * ROW, 2 * LANES),
    "eliminate": lambda rng: (positive_definite(rng), 5 * ROW, 2 * ROW, 2 * LANES),
    "eliminate_pair": lambda rng: (positive_definite(rng), 4 * ROW, ROW, 2 * ROW, 2 * LANES),
    "differences": lambda rng: (
        rng.normal(size=N * POINT), 2 * POINT, POINT, POINT, POINT,
        np.zeros(N * ROW), 2 * ROW + LANES, ROW,
    ),
    "block_distances": lambda rng: (
        rng.normal(size=3 * D * BLOCK), D * BLOCK, D, rng.normal(size=D), 8.0, np.zeros(BLOCK),
    ),
    "box_distances": lambda rng: (
        rng.normal(size=3 * D * 2 * LANES), D * 2 * LANES, D, rng.normal(size=D), np.zeros(LANES),
    ),
    "weighted_squares": lambda rng: (
        rng.normal(size=N * ROW), 4 * ROW, 4, rng.normal(size=N * POINT), 4 * POINT, POINT, LANES,
        rng.normal(size=POINT),
    ),
    "slope_weights": lambda rng: (
        rng.normal(size=N * ROW), rng.normal(size=N * ROW), 4 * ROW, 4 * LANES,
        rng.normal(size=N * LANES), rng.normal(size=N * LANES), 4 * LANES,
    ),
}  # fmt: skip


def variants(name):
    loop = getattr(vector_loops, name)
    return list(loop) if isinstance(loop, dict) else [None]


def run(loop, arguments):
    """Call a loop from compiled code, as the package does; return its result and its arrays."""

    @njit
    def call(arguments):
        return loop(*arguments)

    result = call(arguments)
    return result, [a for a in arguments if isinstance(a, np.ndarray)]


def cases():
    """Every variant of every loop; those between the first and the last are slow."""
    for name in CALLS:
        known = variants(name)
        for variant in known:
            is_between = variant not in (known[0], known[-1])
            yield pytest.param(name, variant, marks=[pytest.mark.slow] if is_between else [])


@pytest.mark.parametrize(("name", "variant"), list(cases()))
def test_vector_loops_equal_plain_loops(name, variant):
    found, expected = (
        run(
            getattr(module, name) if variant is None else getattr(module, name)[variant],
            CALLS[name](np.random.default_rng(0)),
        )
        for module in (vector_loops, plain_loops)
    )
    assert found[0] == expected[0] or found[0] == pytest.approx(expected[0], rel=1e-12)
    for one, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("degree", range(DEGREE + 1))
def test_vector_covariances_equal_plain_ones(root, degree):
    distances = np.random.default_rng(0).uniform(0.0, 60.0, size=4 * LANES)
    numbers = [0.4, 0.3, 0.2][:degree] + [0.0] * (DEGREE - degree)
    results = []
    for module in (vector_loops, plain_loops):
        K = distances.copy()
        variant = degree + (DEGREE + 1) * root
        arguments = (K, LANES, 2 * LANES, variant, 1.7, *numbers, 2.5)
        run(module.exponential_covariances, arguments)
        results.append(K)
    np.testing.assert_allclose(*results, rtol=0.0, atol=1e-11)
    assert (results[0][:LANES] == distances[:LANES]).all()


@pytest.mark.parametrize("by_distance", [False, True])
@pytest.mark.parametrize("kind", range(3))
def test_vector_slopes_equal_plain_ones(kind, by_distance):
    distances = np.random.default_rng(0).uniform(0.0, 60.0, size=4 * LANES)
    distances[LANES] = 0.0
    numbers = (1.7, 0.4, 0.3, 0.2, *((0.0, 0.0) if kind == 2 else (0.5, 0.1)), 2.5, 1.3)
    results = []
    for module in (vector_loops, plain_loops):
        arguments = (
            distances.copy(), np.zeros(4 * LANES), LANES, 2 * LANES, kind, numbers, by_distance
        )  # fmt: skip
        results.append(run(module.covariances_and_slopes, arguments)[1])
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)
    slopes, covariances = results[0]
    assert (slopes[:LANES] == distances[:LANES]).all()
    assert (covariances[:LANES] == 0.0).all()


def test_the_installed_numba_was_tried():
    import numba

    assert loops.is_tried(numba.__version__)
    assert loops.eliminate is vector_loops.eliminate


UNTRIED = """
import warnings
import numba, numpy as np, torch
numba.__version__ = "0.99.0"
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from twostagegp.engines.neighbors.compiled import loops, plain_loops
assert loops.pivot is plain_loops.pivot
assert "0.60 to 0.68, not with 0.99.0" in str(caught[-1].message), [str(w.message) for w in caught]
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.neighbors.engine import NeighborEngine
from twostagegp.kernels import make_kernel
from twostagegp.testing import example_rows
rows, kernel = example_rows("weighted"), make_kernel("matern32", 2, ard=True)
x = np.append(kernel.start(), np.log(0.1))
one = NeighborEngine(rows, 1000).condition(kernel, x)
other = ExactEngine(rows).condition(kernel, x)
torch.testing.assert_close(one.mean(rows.X), other.mean(rows.X), atol=1e-9, rtol=0)
torch.testing.assert_close(one.variance(rows.X), other.variance(rows.X), atol=1e-9, rtol=0)
"""


@pytest.mark.slow
def test_an_untried_numba_takes_the_plain_loops_and_says_so(tmp_path):
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", UNTRIED], env=env, check=True)


NOT_STORED = """
import warnings
import numpy as np
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from twostagegp.engines.neighbors.compiled import local, tree
ours = [str(each.message) for each in caught if "NUMBA_CACHE_DIR" in str(each.message)]
print(tree.__file__, len(ours))
leaf = np.empty(1, dtype=np.int64)
tree.leaf_of(np.zeros((1, 1)), np.zeros((15, 2, 1)), 3, False, leaf)
"""


def run_from_read_only_package(folder, home):
    """Import a copy of the package that cannot be written; return its path and its warnings."""
    package = Path(twostagegp.__file__).parent
    shutil.copytree(package, folder / "twostagegp", ignore=shutil.ignore_patterns("__pycache__"))
    # A file in the place of the folder: not even root can write into it.
    (folder / "twostagegp/engines/neighbors/compiled/__pycache__").touch()
    env = {**os.environ, "HOME": str(home), "PYTHONPATH": str(folder)}
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        env.pop(name, None)
    program = [sys.executable, "-c", NOT_STORED]
    done = subprocess.run(program, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    path, count = done.stdout.split()
    assert Path(path).is_relative_to(folder)
    return int(count)


@pytest.mark.skipif(sys.platform == "win32", reason="the cache folder does not depend on HOME")
def test_code_of_a_read_only_package_is_stored_in_the_users_cache_folder(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    assert run_from_read_only_package(tmp_path / "package", home) == 0
    assert list(home.glob("**/tree.leaf_of-*.nbi"))


@pytest.mark.skipif(sys.platform == "win32", reason="the cache folder does not depend on HOME")
def test_without_a_folder_to_store_code_one_warning_and_no_error(tmp_path):
    home = tmp_path / "home"
    home.touch()  # a file: no folder can be made in it
    assert run_from_read_only_package(tmp_path / "package", home) == 1
