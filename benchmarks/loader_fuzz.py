r"""Hostile files for ``twostagegp.load``: hundreds of thousands of spoilt models.

Small models of every kind are saved. Each case spoils one: a value of its structure exchanged, a
piece of another model put in, shapes, types and places of arrays changed, numbers made infinite,
archives rebuilt, names that lead out of the folder, links and pipes in place of files; most of
them with right hashes. Then it is loaded and, if that works, predicts. What counts as a
failure: ``benchmarks.fuzz_guard``.

    python -m benchmarks.loader_fuzz --cases 100000
    python -m benchmarks.loader_fuzz --only 4711        # one case, with its traceback

Cases are drawn from their numbers; ``--first`` goes on where another run stopped.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.fuzz_runner import memory_folder, run_program
from benchmarks.loader_cases import Cases, open_stored
from benchmarks.loader_models import save_models

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None, models: Path | None = None) -> int:
    """Run cases, write and print their counts; returns 1 if a case failed.

    ``models`` is a folder of saved models; by default it is created.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "--models" in given:  # a worker is told where they are
        at = given.index("--models")
        models = Path(given[at + 1])
        del given[at : at + 2]
    with tempfile.TemporaryDirectory(dir=memory_folder()) as name:
        folder = Path(name)
        if models is None:
            models = folder / "models"
            save_models(models)
        there = models

        def make(seed: int) -> Cases:
            return Cases([open_stored(path) for path in sorted(there.iterdir())], folder, seed)

        return run_program("loader_fuzz", make, given, folder, ("--models", str(models)))


if __name__ == "__main__":
    raise SystemExit(main())
