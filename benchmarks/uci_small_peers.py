"""The eight small UCI tables: the libraries that a user would pick instead of this one.

The models of :mod:`benchmarks.peers` on the standard splits, scored as :mod:`benchmarks.uci_large`
scores them: the first five splits, of kin8nm, power and naval the first two. Exact Gaussian
processes of other libraries are run on the five tables that they can hold. A library starts once
and fits split after split; a fit beyond the time limit is ended and kept as such. What
``uci_small_peers.jsonl`` has is not computed again. Our own figures on the page are those of
``uci_small.jsonl`` (:mod:`benchmarks.uci_small`), of the same splits; ``--models ours_auto`` runs
our default as the peers are run, for the scores that only these records have.

    python -m benchmarks.uci_small_peers --python .venv-peers/bin/python
    python -m benchmarks.uci_small_peers --models ngboost --sets yacht --splits 0-9
    python -m benchmarks.uci_small_peers --table-only
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby

from benchmarks._arguments import names, numbers
from benchmarks._series import measure_series
from benchmarks._small_peers_tables import NAME, OURS_FILE, our_records, report
from benchmarks._store import Record
from benchmarks._uci_tables import REFERENCES
from benchmarks.peers import PEERS
from benchmarks.uci_large import Limits, Task, add_common, carry_out

__all__ = ["FOLDS", "MODELS", "main", "tasks"]

SECONDS = 300
LARGE = ("kin8nm", "power", "naval")
#: Splits that are taken of a table.
FOLDS = {name: range(2) if name in LARGE else range(5) for name in REFERENCES}
#: Of these every row costs as much as all others: not for the tables with thousands of rows.
EXACT = ("sklearn_gpr", "sklearn_matern", "gpytorch_rbf", "gpytorch_matern")
#: The quick and telling first.
MODELS = (
    *("catboost_uncertainty", "catboost_rmse", "gpytorch_matern", "gpytorch_rbf", "gpboost"),
    *("ngboost", "lightgbm", "gpnn", "muygpys", "sklearn_gpr", "sklearn_matern", "gpboost_ard"),
    "gpytorch_svgp",
)


def tasks(sets: Sequence[str], models: Sequence[str], splits: Sequence[int] | None) -> list[Task]:
    """All fits, model by model, each with the small tables first."""
    return [
        Task(model, name, split)
        for model in models
        for name in REFERENCES
        if name in sets and not (model in EXACT and name in LARGE)
        for split in (FOLDS[name] if splits is None else splits)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, then write and print the tables; returns 1 if a fit failed."""
    given = _parser().parse_args(arguments)
    wanted = tasks(given.sets, given.models, given.splits)
    ours = our_records(given.results / OURS_FILE)
    return carry_out("uci_small_peers", given, wanted, _measure, partial(_page, ours))


def _measure(wanted: Sequence[Task], limits: Limits) -> Iterator[Record]:
    for _, group in groupby(wanted, key=lambda task: task.model):
        yield from measure_series(list(group), limits)


def _page(ours: Sequence[Record], records: Iterable[Record]) -> str:
    return report(records, ours)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.uci_small_peers", description="Small tables, other libraries."
    )
    parser.add_argument("--sets", type=names(REFERENCES), default=list(REFERENCES))
    parser.add_argument("--models", type=names([*PEERS, NAME]), default=list(MODELS))
    parser.add_argument("--splits", type=numbers, help="numbers, as in 0,1 or 0-4")
    add_common(parser, SECONDS)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
