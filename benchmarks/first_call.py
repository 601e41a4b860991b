"""CPU seconds of imports, first fits and first predictions in fresh processes.

    python -m benchmarks.first_call --rounds 5 --redo

A round starts one process after the other: torch and scikit-learn alone, the import of the
regressor, and programs that import it, fit it once and predict once, by the exact method and by
neighbours. The program with neighbours runs twice: first with an empty folder for compiled code
(``NUMBA_CACHE_DIR``), then with the folder that the first run has filled. Before these, a process
that is not measured imports all modules, so that their bytecode is stored, as an installer does.
Seconds are those of the CPU for the whole process, all threads together, as the operating system
counts them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from benchmarks import RESULTS
from measurements.arguments import positive
from measurements.pages import Page, scored
from measurements.processes import THREAD_VARIABLES
from measurements.runner import Measurement, Workers, run
from measurements.store import Record
from measurements.tables import figure, markdown_table

__all__ = ["MEASUREMENT", "Cell", "cpu_seconds", "measure"]

LIBRARIES = "import torch, sklearn.base"
OURS = "from twostagegp import TwoStageGPRegressor"
EVERY_MODULE = f"{OURS}; import sklearn.ensemble, twostagegp.engines.neighbors.compiled.local"
FIRST_FIT = """
import numpy as np
from twostagegp import TwoStageGPRegressor
rng = np.random.default_rng(0)
X = rng.uniform(-1.0, 1.0, size=({rows}, 8))
y = np.sin(3.0 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size={rows})
model = TwoStageGPRegressor(method="{method}", random_state=0, n_jobs={threads}, device="cpu")
model.fit(X, y).predict_interval(X[:100])
"""

#: What the fields of a record are, in the order of the table.
STEPS = {
    "libraries": f"`{LIBRARIES}`",
    "ours": f"`{OURS}`",
    "exact": "import, first exact fit, first prediction",
    "neighbors_cold": "import, first neighbour fit and prediction, nothing compiled before",
    "neighbors_warm": "the same with stored compiled code",
}


@dataclass(frozen=True)
class Cell:
    """One round.

    Attributes
    ----------
    round : int
    exact_rows, neighbor_rows : int
        Rows of the tables.
    threads : int
        Threads of each process.
    """

    round: int
    exact_rows: int
    neighbor_rows: int
    threads: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the number of rounds."""
    parser.add_argument("--rounds", type=positive, help="5 by default")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return one cell per round."""
    rows = (30, 100) if given.quick else (200, 5000)
    rounds = given.rounds or (1 if given.quick else 5)
    return [Cell(number, *rows, given.threads) for number in range(rounds)]


def cpu_seconds(program: str, environment: Mapping[str, str]) -> float:
    """Return the CPU seconds of a fresh interpreter that runs a program."""
    child = subprocess.Popen([sys.executable, "-c", program], env=dict(environment))
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"the program ended with exit code {child.returncode}: {program}")
    return used.ru_utime + used.ru_stime


def measure(cell: Cell) -> Record:
    """Run every program once, each in a process of its own."""
    exact = FIRST_FIT.format(rows=cell.exact_rows, method="exact", threads=cell.threads)
    neighbors = FIRST_FIT.format(rows=cell.neighbor_rows, method="neighbors", threads=cell.threads)
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, **dict.fromkeys(THREAD_VARIABLES, str(cell.threads)))
        environment["NUMBA_CACHE_DIR"] = folder
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        cpu_seconds(EVERY_MODULE, environment)
        programs = (LIBRARIES, OURS, exact, neighbors, neighbors)
        return {
            name: cpu_seconds(program, environment)
            for name, program in zip(STEPS, programs, strict=True)
        }


def _table(records: list[Record]) -> str:
    fine = scored(records)
    lines = []
    for name, words in STEPS.items():
        ratios = [median(r[name] / r[other] for r in fine) for other in ("libraries", "ours")]
        seconds = figure(median(r[name] for r in fine))
        lines.append([words, seconds, *(f"{ratio:.2f}" for ratio in ratios)])
    header = ["process", "CPU seconds", "/ torch and scikit-learn", "/ our import"]
    return markdown_table(header, lines)


def _about(records: list[Record]) -> str:
    fine = scored(records)
    if not fine:
        return ""
    r = fine[0]
    return (
        f"Tables of 8 columns: {r['exact_rows']:,} rows (exact) and {r['neighbor_rows']:,} "
        f"(neighbours); 100 intervals are predicted. Medians of {len(fine)} rounds, "
        f"{r['threads']} thread(s) per process; ratios are medians of the ratios within a round. "
        f"Goals: our import takes at most 1.15 times that of torch and scikit-learn, and the "
        f"process with the first exact fit at most twice our import."
    )


MEASUREMENT = Measurement(
    name="first_call",
    about="CPU seconds of imports, first fits and first predictions in fresh processes.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page(
        "The first call in a process",
        {"CPU seconds of fresh processes": _table},
        about=_about,
        failed_by=("round",),
        counted="rounds",
    ),
    arguments=arguments,
    key=("round",),
    strategy=Workers(threads=1),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
