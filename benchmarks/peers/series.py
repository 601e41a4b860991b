"""Several fits of one model, one after the other in one process; a line of JSON for each.

On a table of some hundred rows the libraries take longer to load than to fit. Each record is
written as soon as it is known, so that whoever started the process can end it when a fit takes too
long and go on behind that fit. A place is a table and its folds.

    python -m benchmarks.peers.series ngboost yacht:0-4 boston:0,2
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks._arguments import numbers
from benchmarks.peers import MODELS
from benchmarks.peers.run import KNOWN_SETS, answers, measure_fold

__all__ = ["main", "place"]


def place(text: str) -> tuple[str, list[int]]:
    """A table and its folds.

    Examples
    --------
    >>> place("yacht:0-2,7")
    ('yacht', [0, 1, 2, 7])
    """
    name, _, folds = text.partition(":")
    if name not in KNOWN_SETS:
        raise argparse.ArgumentTypeError(f"{name!r}: choose from {', '.join(KNOWN_SETS)}")
    return name, numbers(folds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the records of all fits."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.series", description="Several fits of one model."
    )
    parser.add_argument("model", choices=list(MODELS))
    parser.add_argument("places", nargs="+", type=place, metavar="SET:FOLDS")
    given = parser.parse_args(arguments)
    return answers(
        measure_fold(given.model, name, fold) for name, folds in given.places for fold in folds
    )


if __name__ == "__main__":
    raise SystemExit(main())
