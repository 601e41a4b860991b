"""Every table and figure of the paper by one command.

python -m experiments all --quick
python -m experiments table2 --sets yacht,boston --jobs 2
python -m experiments list
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from experiments._runner import Experiment, run

__all__ = ["EXPERIMENTS", "load", "main"]

#: Modules with an ``EXPERIMENT``, in the paper's order.
EXPERIMENTS = (
    "toys",
    "theory",
    "table1",
    "contours",
    "table2",
    "figure4",
    "table4",
    "ablation",
    "foundation",
)
#: These have a program of their own.
_OWN_PROGRAM = ("foundation",)


def load(name: str) -> Experiment[Any]:
    """The experiment of a module."""
    found: Experiment[Any] = import_module(f"experiments.{name}").EXPERIMENT
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one experiment or all of them; the worst exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        description="Every table and figure of the paper.",
        epilog="Further options go to the experiment: python -m experiments table2 --help",
    )
    parser.add_argument("name", choices=[*EXPERIMENTS, "all", "list"])
    given, rest = parser.parse_known_args(arguments)
    if given.name == "list":
        for name in EXPERIMENTS:
            print(f"{name:12s} {_about(name)}")
        return 0
    if given.name != "all":
        return _one(given.name, rest)
    worst, lines = 0, []
    for name in EXPERIMENTS:
        print(f"\n=== {name} ===", flush=True)
        begin = time.perf_counter()
        status = _one(name, rest)
        said = {0: "done", 1: "some fits failed", 2: "no data"}.get(status, f"status {status}")
        lines.append(f"{name:12s} {said:20s} {time.perf_counter() - begin:7.1f} s")
        worst = max(worst, status)
    print("\n" + "\n".join(lines))
    return worst


def _one(name: str, rest: Sequence[str]) -> int:
    if name in _OWN_PROGRAM:
        status: int = import_module(f"experiments.{name}").main(rest)
        return status
    return run(load(name), rest)


def _about(name: str) -> str:
    doc = import_module(f"experiments.{name}").__doc__ or ""
    return doc.strip().splitlines()[0]


if __name__ == "__main__":
    sys.exit(main())
