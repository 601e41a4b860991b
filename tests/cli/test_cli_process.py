"""The program as a process: quick help, and outputs that survive signals."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from twostagegp import ExactGPRegressor
from twostagegp.cli.app import app

HEAVY = {"torch", "pandas", "sklearn", "matplotlib", "numpy", "scipy", "gpytorch", "pyarrow"}


@pytest.mark.parametrize("arguments", [["--help"], ["fit", "--help"], ["--version"]], ids=" ".join)
def test_help_loads_no_heavy_package(arguments):
    program = (
        "import sys\n"
        "from twostagegp.cli import main\n"
        f"sys.argv = ['twostagegp', *{arguments!r}]\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        f"    print('LOADED', *({HEAVY!r} & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    text, _, loaded = done.stdout.partition("LOADED")
    assert "twostagegp" in text
    assert loaded.split() == []


def test_module_answers_as_the_script_does():
    program = [sys.executable, "-m", "twostagegp", "--help"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert "Exit codes: 0 done; 1 failed" in done.stdout


def test_without_typer_the_message_names_the_extra():
    program = "import sys; sys.modules['typer'] = None; from twostagegp.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("pip install 'twostagegp[cli]'")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, a short table and one that takes minutes in chunks of five rows."""
    folder = tmp_path_factory.mktemp("signals")
    X = pd.DataFrame({"a": np.linspace(0, 1, 12)})
    ExactGPRegressor(random_state=0).fit(X, X["a"]).save(folder / "model")
    X.to_csv(folder / "short.csv", index=False)
    pd.DataFrame({"a": np.linspace(0, 1, 200_000)}).to_csv(folder / "long.csv", index=False)
    return folder


@pytest.fixture
def half_way(folder):
    """Starts a process that has written some rows, and gives the draft that it writes to."""
    started = []

    def start(output):
        program = [sys.executable, "-m", "twostagegp", "predict", "model", "long.csv"]
        program += ["-o", str(output), "--chunk-rows", "5"]
        # A job in the background ignores interrupts, and so would its children.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        process = subprocess.Popen(
            program, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        signal.signal(signal.SIGINT, before)
        started.append(process)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            drafts = list(output.parent.glob(".*.twostagegp-part"))
            if drafts and drafts[0].stat().st_size > 1000:
                return process, drafts[0]
            time.sleep(0.05)
        process.kill()
        raise AssertionError(f"nothing was written: {process.communicate()}")

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_killed_process_leaves_the_old_output(folder, half_way, tmp_path):
    output = tmp_path / "out.csv"
    output.write_bytes(b"old,output\n1,2\n")
    process, draft = half_way(output)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert output.read_bytes() == b"old,output\n1,2\n"
    assert draft.exists()  # nobody was left to remove it; the next run does
    arguments = ["predict", str(folder / "model"), str(folder / "short.csv"), "-o", str(output)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert len(pd.read_csv(output)) == 12
    assert os.listdir(tmp_path) == ["out.csv"]


@pytest.mark.slow
def test_interrupted_process_leaves_nothing_behind(half_way, tmp_path):
    output = tmp_path / "out.csv"
    output.write_bytes(b"old,output\n1,2\n")
    process, _ = half_way(output)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err == "interrupted; the output is unchanged\n"
    assert output.read_bytes() == b"old,output\n1,2\n"
    assert os.listdir(tmp_path) == ["out.csv"]


@pytest.mark.slow
def test_terminated_process_leaves_nothing_behind(half_way, tmp_path):
    process, _ = half_way(tmp_path / "out.csv")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert os.listdir(tmp_path) == []
