r"""Hostile files for ``twostagegp.load``: hundreds of thousands of spoilt models.

Small models of every kind are saved. Each case spoils one: a value of its structure exchanged, a
piece of another model put in, shapes, types and places of arrays changed, numbers made infinite,
archives rebuilt, names that lead out of the folder, links and pipes in place of files; most of
them with right hashes. Then it is loaded and, where there is a model, predicts. What counts as a
failure: ``benchmarks._fuzz_guard``.

    python -m benchmarks.loader_fuzz --cases 100000
    python -m benchmarks.loader_fuzz --only 4711        # one case, with its traceback

Cases are drawn from their numbers; ``--first`` goes on where another run stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import twostagegp
from benchmarks._arguments import positive
from benchmarks._fuzz_runner import run_all, work
from benchmarks._loader_cases import Cases, open_stored
from benchmarks._loader_models import save_models
from benchmarks._models import code_version
from benchmarks._store import write_whole

__all__ = ["main"]

RESULTS = Path(__file__).parent / "results"


def _cases(models: Path, folder: Path, seed: int) -> Cases:
    stored = [open_stored(path) for path in sorted(models.iterdir()) if path.is_dir()]
    return Cases(stored, folder, seed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cases, write and print their counts; returns 1 where one failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loader_fuzz")
    parser.add_argument("--cases", type=positive, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run one case, and raise what it raises")
    parser.add_argument("--models", type=Path, help="folder of saved models; made otherwise")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as name:
        folder = Path(name)
        models = given.models
        if models is None:
            models = folder / "models"
            save_models(models)
        if given.only is not None:
            print(_cases(models, folder, given.seed)(given.only)[1]())
            return 0
        if given.worker:
            first, last, note = given.worker
            work(_cases(models, folder, given.seed), int(first), int(last), Path(note))
            return 0
        program = [sys.executable, "-m", "benchmarks.loader_fuzz", "--models", str(models)]
        program += ["--seed", str(given.seed)]
        counts: dict[str, Any] = run_all(program, given.cases, given.first, folder)
    counts |= {"seed": given.seed, "version": twostagegp.__version__, "code": code_version()}
    text = json.dumps(counts, indent=1, ensure_ascii=False) + "\n"
    write_whole(given.results / "loader_fuzz.json", text)
    print(text)
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
