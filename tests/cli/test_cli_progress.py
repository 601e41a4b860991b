"""What ``twostagegp fit`` shows while it runs: only a terminal gets the progress."""

import os
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo-terminals")

OPTIONS = ["--target", "y", "--option", "kernels=rbf,matern32", "--json"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    X = np.random.default_rng(0).normal(size=(200, 3))
    path = tmp_path_factory.mktemp("progress") / "table.csv"
    pd.DataFrame(X, columns=list("abc")).assign(y=np.sin(X[:, 0])).to_csv(path, index=False)
    return path


def _program(table, *more):
    output = table.with_name("model")
    program = [sys.executable, "-m", "twostagegp", "fit", str(table), *OPTIONS, *more]
    return [*program, "-o", str(output), "--force"]


def _on_a_terminal(program):
    """Run a program whose error stream is a terminal; return what it wrote to either stream."""
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    written = process.communicate()[0].decode()
    assert process.returncode == 0, (written, shown)
    return written, shown.decode()


def test_a_terminal_shows_the_share_and_the_remaining_time(table):
    written, shown = _on_a_terminal(_program(table))
    assert "fitting 200 rows and 3 columns" in shown
    shares = [int(share) for share in re.findall(r"(\d+)%", shown)]
    assert len(shares) > 1
    assert shares == sorted(shares)
    assert re.search(r"(about \d+|less than 1) s left", shown)
    assert "left" not in written
    assert written.startswith("{")


def test_a_fit_without_a_forecast_shows_no_time(table):
    _, shown = _on_a_terminal(_program(table, "--option", "mean=rbf"))
    assert "fitting 200 rows and 3 columns" in shown
    assert "left" not in shown
    assert "%" not in shown


def test_an_error_stream_that_is_no_terminal_gets_nothing(table):
    done = subprocess.run(_program(table), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
