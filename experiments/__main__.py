"""Every table and figure of the paper by one command.

python -m experiments all --quick
python -m experiments table2 --sets yacht,boston --jobs 2
python -m experiments list
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module

from measurements.runner import run

__all__ = ["EXPERIMENTS", "main"]

#: Modules in the paper's order.
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
Program = Callable[[Sequence[str]], int]


def _program(name: str, arguments: Sequence[str]) -> int:
    return run(import_module(f"experiments.{name}").MEASUREMENT, arguments)


#: The experiments by name, each a function of command line arguments.
PROGRAMS: Mapping[str, Program] = {name: partial(_program, name) for name in EXPERIMENTS}


def main(
    arguments: Sequence[str] | None = None, experiments: Mapping[str, Program] = PROGRAMS
) -> int:
    """Run one experiment or all of them; returns the worst exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        description="Every table and figure of the paper.",
        epilog="Further options go to the experiment: python -m experiments table2 --help",
    )
    parser.add_argument("name", choices=[*experiments, "all", "list"])
    given, rest = parser.parse_known_args(arguments)
    if given.name == "list":
        for name in experiments:
            print(f"{name:12s} {_about(name)}")
        return 0
    if given.name != "all":
        return experiments[given.name](rest)
    worst, lines = 0, []
    for name, program in experiments.items():
        print(f"\n=== {name} ===", flush=True)
        begin = time.perf_counter()
        status = program(rest)
        said = {0: "done", 1: "some fits failed", 2: "no data"}.get(status, f"status {status}")
        lines.append(f"{name:12s} {said:20s} {time.perf_counter() - begin:7.1f} s")
        worst = max(worst, status)
    print("\n" + "\n".join(lines))
    return worst


def _about(name: str) -> str:
    doc = import_module(f"experiments.{name}").__doc__ or ""
    return doc.strip().splitlines()[0]


if __name__ == "__main__":
    sys.exit(main())
