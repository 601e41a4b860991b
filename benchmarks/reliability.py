"""How often a fit to a hard table goes wrong: ours and the libraries a user would pick instead.

Every model is fitted to every table of :mod:`benchmarks.hard_tables` with several seeds:
scikit-learn and GPyTorch on the table as it is, as in their first examples, and all peers with the
settings of :mod:`benchmarks.peers`, columns and target standardised for them. A library starts once
and fits table after table; a fit beyond the time limit is ended and counted, and so is a process
that dies. What ``reliability.jsonl`` has is not computed again.

    python -m benchmarks.reliability --python .venv-peers/bin/python
    python -m benchmarks.reliability --models ours_auto --seeds 0
    python -m benchmarks.reliability --table-only
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks import RESULTS
from benchmarks.alone import Limits, Task
from benchmarks.hard_tables import TABLES
from benchmarks.peers.base import NOT_INSTALLED
from benchmarks.reliability_models import KNOWN, LABELS
from benchmarks.reliability_tables import report
from benchmarks.series import measure_series
from measurements.arguments import names, numbers, positive
from measurements.store import JsonLines, Record, write_whole

__all__ = ["main", "run"]

SECONDS = 60
SEEDS = (0, 1, 2)
NAME = "reliability"


def run(tasks: Sequence[Task], limits: Limits) -> Iterator[Record]:
    """Records of the tasks, all of one model; an end by force is an outcome like any other."""
    for record in measure_series(tasks, limits, module="benchmarks.reliability_fits"):
        if "error" in record and not record["error"].startswith(NOT_INSTALLED):
            record["ended"] = record.pop("error")
        yield record


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, then write and print the tables; returns 0."""
    given = _parser().parse_args(arguments)
    store = JsonLines(given.results / f"{NAME}.jsonl", key=("model", "set", "fold"))
    if not given.table_only:
        limits = Limits(given.time_limit, given.threads, given.python)
        done = set() if given.redo else store.done()
        for model in given.models:
            wanted = [Task(model, name, seed) for seed in given.seeds for name in given.tables]
            _measure([task for task in wanted if task.key not in done], limits, store, given.redo)
    text = report(_known(store.records().values()))
    write_whole(given.results / f"{NAME}.md", text)
    print(text)
    return 0


def _measure(tasks: Sequence[Task], limits: Limits, store: JsonLines, redo: bool) -> None:
    for count, record in enumerate(run(tasks, limits), start=1):
        if "error" in record:
            print(f"{record['model']}: {record['error']}")
            return
        store.append(record, replace=redo)
        print(f"[{count}/{len(tasks)}] {_line(record)}", flush=True)


def _known(records: Iterable[Record]) -> list[Record]:
    """Records of tables that there are, and without errors."""
    return [r for r in records if r["set"] in TABLES and "error" not in r]


def _line(record: Record) -> str:
    head = f"{record['model']}, {record['set']}, seed {record['fold']}: "
    for word in ("exception", "ended"):
        if word in record:
            return head + record[word]
    return head + (
        f"{record['not_finite']} not finite, {record['not_positive']} not positive, "
        f"coverage {record['coverage'] or 0.0:.3f}, {record['fit_cpu']:.1f} CPU s"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reliability", description="Hard tables, ours and peers."
    )
    parser.add_argument("--models", type=names(KNOWN), default=list(LABELS))
    parser.add_argument("--tables", type=_tables, default=list(TABLES), help="part of their names")
    parser.add_argument("--seeds", type=numbers, default=list(SEEDS), help="as in 0,1 or 0-4")
    parser.add_argument("--time-limit", type=positive, default=SECONDS, help="seconds a fit")
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--python", default=sys.executable, help="interpreter that runs the fits")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table-only", action="store_true", help="no fits, only the tables")
    parser.add_argument("--redo", action="store_true", help="fit again what is there already")
    return parser


def _tables(text: str) -> list[str]:
    """All tables whose name has this part."""
    found = [name for name in TABLES if text in name]
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is in no name; list them with hard_tables")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
