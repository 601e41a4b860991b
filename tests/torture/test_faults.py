"""Full disks, folders that cannot be written, kills at any moment, and limits of memory."""

import errno
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import twostagegp
from twostagegp import ExactGPRegressor
from twostagegp.cli.app import app
from twostagegp.errors import MemoryBudgetError
from twostagegp.estimators.prediction import check_sample_size
from twostagegp.runtime.memory import available_bytes

posix = pytest.mark.skipif(os.name != "posix", reason="limits and signals of POSIX")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 2))
Y = np.sin(X[:, 0])


@pytest.fixture(scope="module")
def model():
    return ExactGPRegressor("rbf", random_state=0).fit(X, Y)


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


# --- disks ---------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("there", [False, True])
def test_a_disk_that_is_full_leaves_the_old_model_and_no_rest(model, tmp_path, there):
    """The limit of a file's size is real: the kernel refuses the bytes beyond it."""
    path = tmp_path / "model"
    if there:
        model.save(path)
    before = names(path) if there else []
    other = ExactGPRegressor("matern32", random_state=0).fit(X, Y)
    kept = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            other.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, kept)
    assert caught.value.errno == errno.EFBIG
    assert names(tmp_path) == (["model"] if there else [])
    if there:
        assert names(path) == before
        np.testing.assert_array_equal(twostagegp.load(path).predict(X), model.predict(X))


def test_no_space_left_leaves_the_old_model(model, tmp_path, monkeypatch):
    path = tmp_path / "model"
    model.save(path)
    before = names(path)

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        ExactGPRegressor("matern32", random_state=0).fit(X, Y).save(path)
    monkeypatch.undo()
    assert names(path) == before
    np.testing.assert_array_equal(twostagegp.load(path).predict(X), model.predict(X))


@posix
@pytest.mark.skipif(os.name == "posix" and os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_said(model, tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError):
            model.save(tmp_path / "model")
    finally:
        tmp_path.chmod(0o700)
    assert names(tmp_path) == []


@posix
def test_a_place_where_nothing_can_be_written_is_said(model):
    """Writing to a place that cannot be written to, even by root."""
    for path in ("/proc/model", "/dev/null/model"):
        with pytest.raises(OSError, match=r"/proc|/dev/null"):
            model.save(path)


# --- kills ---------------------------------------------------------------------------------------


def _work(what, models, folder, pipe):
    """Do the same work again and again until the process is killed."""
    os.chdir(folder)
    arguments = ["predict", models[0], "table.csv", "-o", "out.csv", "--chunk-rows", "50"]
    loaded = [twostagegp.load(path) for path in models]
    pipe.send("ready")
    while True:
        if what == "predict":
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 0, result.output
        elif what == "fit":
            ExactGPRegressor("rbf", random_state=0).fit(X, Y).save("model")
        else:
            for model in loaded:
                model.save("model")


@pytest.fixture(scope="module")
def two(model, tmp_path_factory):
    """Return two models and a table for processes that are killed."""
    folder = tmp_path_factory.mktemp("two")
    model.save(folder / "first")
    ExactGPRegressor("matern32", random_state=0).fit(X, 5 + Y).save(folder / "second")
    return folder


def kill_at_random(what, two, folder, kills, seed):
    """Start, wait a random moment, kill; after each kill everything must be whole."""
    draw, context = random.Random(seed), multiprocessing.get_context("fork")
    pd.DataFrame(np.tile(X, (20, 1))).to_csv(folder / "table.csv", index=False)
    models = [str(two / name) for name in ("first", "second")]
    known = [twostagegp.load(path).predict(X) for path in models]
    twostagegp.load(models[0]).save(folder / "model")
    (folder / "out.csv").write_text("old")
    for _ in range(kills):
        pipe, other = context.Pipe()
        process = context.Process(target=_work, args=(what, models, folder, other))
        process.start()
        assert pipe.poll(120)
        assert pipe.recv() == "ready"
        time.sleep(draw.uniform(0.0, 0.6))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        loaded = twostagegp.load(folder / "model").predict(X)
        assert any(np.allclose(loaded, each) for each in known)
        text = (folder / "out.csv").read_text()
        assert text == "old" or (len(text.splitlines()) == 601 and text.endswith("\n"))


@posix
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("what", ["save", "fit", "predict"])
@pytest.mark.parametrize("kills", [1, pytest.param(17, marks=pytest.mark.slow)])
def test_a_kill_at_any_moment_leaves_whole_files(two, tmp_path, what, kills):
    kill_at_random(what, two, tmp_path, kills, seed=kills)
    twostagegp.load(two / "first").save(tmp_path / "model")  # and clears up after the killed
    assert len(names(tmp_path / "model")) == 3
    arguments = ["predict", two / "first", tmp_path / "table.csv", "-o", tmp_path / "out.csv"]
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    assert names(tmp_path) == ["model", "out.csv", "table.csv"]


# --- memory --------------------------------------------------------------------------------------


@pytest.fixture
def little_memory():
    """Limit the memory of this process to 300 MiB more than it has."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_AS and /proc")


@linux
def test_a_limit_of_the_process_counts_as_memory(little_memory):
    import torch

    assert available_bytes(torch.device("cpu")) <= 300 << 20


@linux
def test_an_exact_fit_beyond_the_limit_is_an_error_of_ours(little_memory):
    rows = np.random.default_rng(0).normal(size=(4000, 2))  # 8 matrices of 122 MiB
    with pytest.raises(MemoryBudgetError, match="an exact fit of 4000 distinct rows needs"):
        ExactGPRegressor("rbf").fit(rows, rows[:, 0])


@linux
def test_draws_beyond_the_limit_are_an_error_of_ours(model, little_memory):
    with pytest.raises(MemoryBudgetError, match="50000000 draws for 30 rows"):
        model.sample_y(X, 50_000_000)
    assert model.sample_y(X, 1000).shape == (30, 1000)


@linux
def test_a_covariance_beyond_the_limit_is_an_error_of_ours(model, little_memory):
    with pytest.raises(MemoryBudgetError, match="joint covariance of 9000 rows"):
        model.predict(np.zeros((9000, 2)), return_cov=True)


@linux
def test_a_model_whose_files_are_beyond_the_limit_is_an_error_of_ours(
    model, tmp_path, little_memory
):
    model.save(tmp_path / "model")
    arrays = next((tmp_path / "model").glob("arrays-*"))
    from benchmarks.loader_cases import Cases, open_stored

    stored = open_stored(tmp_path / "model")
    stored.manifest["files"]["arrays"]["bytes"] = 1 << 30
    with open(arrays, "r+b") as file:
        file.truncate(1 << 30)  # of holes
    cases = Cases([stored], tmp_path, seed=0)
    cases.folder = tmp_path / "model"
    cases.sign(stored.manifest)
    with pytest.raises(MemoryBudgetError, match=r"1\.0 GiB"):
        twostagegp.load(tmp_path / "model")


def test_draws_that_fit_are_not_refused():
    check_sample_size(10, 1, 1000)
