"""Cells of measurements that change one choice: one fit to one draw of a table.

Such a measurement fits the default to random rows of many tables (:mod:`benchmarks.many_tables`)
and scores variants of the fit on other rows of the same draw.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.many_tables import n_rows
from measurements.arguments import names, numbers, positive
from measurements.store import Record

__all__ = ["Cell", "add_arguments", "draws_of", "over_tables"]

#: A table is left out of a size if fewer other rows are left.
MIN_TEST_ROWS = 120
QUICK_TABLES = ("diabetes",)


@dataclass(frozen=True)
class Cell:
    """One fit to one draw of a table."""

    table: str
    rows: int
    draw: int


def add_arguments(
    parser: argparse.ArgumentParser, tables: Sequence[str], rows: Sequence[int], draws: int
) -> None:
    """Add the tables, numbers of rows and draws of a run."""
    parser.add_argument("--tables", type=names(tables), help="tables; all by default")
    parser.add_argument("--rows", type=numbers, default=list(rows), help="numbers, as in 50,100")
    parser.add_argument("--draws", type=positive, help=f"number of draws; {draws} by default")


def draws_of(given: argparse.Namespace, tables: Sequence[str], draws: int) -> list[Cell]:
    """Return all fits, draw by draw."""
    chosen = given.tables or (QUICK_TABLES if given.quick else tables)
    known = {table: n_rows(table) for table in chosen}
    return [
        Cell(table, rows, number)
        for number in range(given.draws or (1 if given.quick else draws))
        for rows in given.rows[: 1 if given.quick else None]
        for table in chosen
        if rows + MIN_TEST_ROWS <= known[table]
    ]


def over_tables(records: Sequence[Record], value: Callable[[Record], float]) -> list[float]:
    """Return the mean over the draws of each table, tables in alphabetical order."""
    tables = sorted({record["table"] for record in records})
    return [float(np.mean([value(r) for r in records if r["table"] == table])) for table in tables]
