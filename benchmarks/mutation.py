"""Would the tests notice? Small faults are put into the numerical core, one at a time.

Every mutant (``_mutants.py``) is one wrong operator, number or dropped step in one module. It is
*killed* where a test of that module fails, and *survives* where none does. Only tests of at most a
second count (four for compiled code), twice that a mutant, and only those of the module's own test
file and the examples in its docstrings: what some long fit would notice is not easily found again.
A survivor is a missing test, dead code, or a fault that changes nothing; the file of reasons,
``results/mutation_reasons.json``, says of each which.

    python -m benchmarks.mutation                      # every module that has no result yet
    python -m benchmarks.mutation --modules stack,rows --mutants 60
    python -m benchmarks.mutation --again              # what survived, after tests were added
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks._arguments import names, positive
from benchmarks._mutants import Source
from benchmarks._mutation_runs import Core, Limits, examine
from benchmarks._store import JsonLines, Record, write_whole
from benchmarks._tables import markdown_table

__all__ = ["CORES", "main", "record", "report", "unexplained"]

RESULTS = Path(__file__).parent / "results"
_SOLVES = (
    "dense_solve or density_equals or gradient_equals or factor or entries or missing or jitter"
)
_TARGETS = "transform or smooth or latent_of or softmax or draw or points or classes or dirichlet"
#: Modules of the core, and their test files.
CORES = {
    core.name: core
    for core in (
        Core("linalg", ("linalg",)),
        Core("objectives", ("objectives",)),
        Core("rows", ("rows",)),
        Core("kernels", ("kernels", "kernel_batch")),
        Core("kernel_batch", ("kernel_batch",)),
        Core("training", ("training",)),
        Core("local_gp", ("local_gp",), f"{_SOLVES} or error or local_predict", longest=4.0),
        Core("stack", ("stack",)),
        Core("crossfit", ("crossfit",)),
        Core(
            "calibration",
            ("calibration",),
            "TestParts or TestRecord",
        ),
        Core(
            "shape",
            ("shape",),
            "TestLaw or TestMakers or definition or pinball or thirty or shape.",
        ),
        Core(
            "conformal",
            ("conformal",),
            "TestDefinition or TestEstimator or Small or Sees or twostagegp.estimators.cv_plus",
        ),
        Core("sampling", ("sampling",)),
        Core("metrics", ("metrics",)),
        Core("classification.dirichlet", ("classification_parts",), _TARGETS),
        Core("classification.probability", ("classification_parts",), _TARGETS),
    )
}
#: What most tests import.
_USED = (
    "twostagegp.estimators.regressor",
    "twostagegp.pipeline.mean.neighbor_build",
    "twostagegp.search.stages",
)
#: Outcomes that leave a fault unnoticed.
UNNOTICED = ("survived", "unreached")


def record(core: Core, outcomes: Mapping[str, str]) -> Record:
    """What is kept of a module: how many, and which ones nobody noticed."""
    tally = Counter(outcomes.values())
    possible = len(Source(core.path.read_text(encoding="utf-8")).mutants)
    return {
        "module": core.name,
        "possible": possible,
        "tried": len(outcomes),
        "killed": tally["killed"],
        "timeout": tally["timeout"],
        "survivors": [name for name, outcome in outcomes.items() if outcome in UNNOTICED],
    }


def again(core: Core, before: Record, limits: Limits) -> Record:
    """A module's record after its survivors, as far as they still exist, were tried once more."""
    outcomes = examine(core, limits, set(before["survivors"]))
    tally = Counter(outcomes.values())
    gone = len(before["survivors"]) - len(outcomes)
    new = record(core, outcomes)
    return {
        **new,
        "tried": before["tried"] - gone,
        "killed": before["killed"] + tally["killed"],
        "timeout": before["timeout"] + tally["timeout"],
    }


def unexplained(records: Sequence[Record], reasons: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Survivors without a reason."""
    return [
        f"{record['module']}: {name}"
        for record in records
        for name in record["survivors"]
        if not reasons.get(record["module"], {}).get(name)
    ]


def report(records: Sequence[Record], reasons: Mapping[str, Mapping[str, str]]) -> str:
    """The page: a table of the modules, and the survivors with their reasons."""
    header = ("module", "possible", "tried", "killed", "by time", "survived")
    columns = ("possible", "tried", "killed", "timeout")
    rows = [[r["module"], *(str(r[c]) for c in columns), str(len(r["survivors"]))] for r in records]
    total = [str(sum(r[c] for r in records)) for c in columns]
    rows.append(["all", *total, str(sum(len(r["survivors"]) for r in records))])
    parts = ["# Mutants\n", "## Modules\n", markdown_table(header, rows), "## Survivors\n"]
    for r in records:
        why = reasons.get(r["module"], {})
        grouped: dict[str, list[str]] = {}
        for name in r["survivors"]:
            grouped.setdefault(why.get(name, "not explained yet"), []).append(name)
        if grouped:
            parts.append(f"### {r['module']}\n")
        for reason, survivors in grouped.items():
            lines = [f"  - `{name}`" for name in survivors]
            parts.append("\n".join([f"- {reason}", *lines]) + "\n")
    return "\n".join(parts)


def read_reasons(path: Path) -> dict[str, dict[str, str]]:
    """Reasons by module and mutant."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def main(arguments: Sequence[str] | None = None) -> int:
    """Try mutants, keep the results and write the table; returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.mutation")
    parser.add_argument("--modules", type=names(CORES), default=list(CORES))
    parser.add_argument("--mutants", type=positive, default=None, help="at most so many a module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="only what survived before")
    parser.add_argument("--anew", action="store_true", help="modules that have results, too")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args(arguments)
    store = JsonLines(args.results / "mutation.jsonl", ("module",))
    limits = Limits(args.mutants, args.seed)
    for name in args.modules:
        there = store.records().get((name,))
        for used in (f"twostagegp.{name}", *_USED):  # once, for all that is forked from here
            importlib.import_module(used)
        if args.again and there is not None:
            store.append(again(CORES[name], there, limits), replace=True)
        elif not args.again and (there is None or args.anew):
            store.append(record(CORES[name], examine(CORES[name], limits)), replace=True)
    found = store.records()
    records = [found[(name,)] for name in CORES if (name,) in found]
    page = report(records, read_reasons(args.results / "mutation_reasons.json"))
    write_whole(args.results / "mutation.md", page)
    print(page.partition("## Survivors")[0])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
