"""Which search for neighbours is the right one, by rows, columns and norm.

Microseconds per query (50 neighbours, without the row itself; queries are rows) and seconds to
build an index, for the tree and the blocks of distances of this package, SciPy's cKDTree and, if it
is installed, faiss (float32, so that its rows may differ). Inputs are *uniform*, the worst case of
every tree, and *correlated*: four hidden directions and a little noise, as columns of a real table
often are. All rows found are compared with those of the tree. The tree is also asked to look at a
few leaves only: how fast it is then, and how many of the right rows it finds.

On more than 10,000 rows each search is first tried on a tenth of them. A search that would take
more than a minute, judged by that, is left out; one that is slow gets fewer queries, and the record
says how many.

    python -m benchmarks.neighbor_search
    python -m benchmarks.neighbor_search --rows 10000 --columns 2,8 --norms L2
    python -m benchmarks.neighbor_search --redo
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from benchmarks import RESULTS
from measurements.arguments import names, numbers, positive
from measurements.pages import NO_RECORDS, failures, joined, scored
from measurements.runner import Measurement, Workers, run
from measurements.store import Record
from measurements.tables import MISSING, figure, markdown_table
from measurements.timing import Timed
from twostagegp.engines.neighbors.index import BruteIndex, TreeIndex

__all__ = [
    "MEASUREMENT",
    "Cell",
    "Search",
    "agreement",
    "makers",
    "measure",
    "predicted",
    "report",
    "table",
    "timed_queries",
]

Array = NDArray[np.float64]
Rows = NDArray[np.integer[Any]]

NEIGHBOURS = 50
ROWS = (10_000, 100_000, 1_000_000)
COLUMNS = (2, 4, 8, 16, 32, 64, 128)
INPUTS = ("uniform", "correlated")
NORMS = ("L2", "L1")
#: Leaves that the approximate search looks at.
LEAVES = (8, 32, 128)
#: Hidden directions of correlated inputs, and the noise on every column.
RANK, NOISE = 4, 0.1
QUERIES = 2000
#: Queries from which the cost of all is told, and the fewest that are timed.
PROBE, FEWEST = 16, 64
#: A search predicted to take longer is left out.
LIMIT_SECONDS = 60.0
#: Above so many rows a search is first tried on a tenth of them.
TRIED_ROWS, TRIED_SHARE = 10_000, 0.1
#: A call that would take longer gets fewer queries.
CALL_SECONDS = 5.0
#: A call this short is repeated, and the fastest counts.
SHORT_SECONDS, SHORT_RUNS = 0.5, 5
SKIPPED = "skipped"
SEARCHES = ("tree", "brute", "ckdtree", "faiss")


@dataclass(frozen=True)
class Cell:
    """One table and norm.

    Attributes
    ----------
    rows, columns : int
    inputs, norm : str
    queries : int
        Most queries per search.
    limit : float
        Seconds; a search predicted to take longer is left out.
    """

    rows: int
    columns: int
    inputs: str
    norm: str
    queries: int = QUERIES
    limit: float = LIMIT_SECONDS


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tables, norms and queries of a run."""
    parser.add_argument("--rows", type=numbers, help="several numbers, as in 10000,100000")
    parser.add_argument("--columns", type=numbers, help="several numbers")
    parser.add_argument("--inputs", type=names(INPUTS), default=list(INPUTS))
    parser.add_argument("--norms", type=names(NORMS), default=list(NORMS))
    parser.add_argument("--queries", type=positive, default=QUERIES, help="per search, at most")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return every table with every norm, few rows first."""
    rows = given.rows or ((1000,) if given.quick else ROWS)
    columns = given.columns or ((2,) if given.quick else COLUMNS)
    return [
        Cell(n, d, inputs, norm, given.queries)
        for inputs in given.inputs
        for d in columns
        for n in sorted(rows)
        for norm in given.norms
    ]


class Search(Protocol):
    """An index that is built when made."""

    def query(self, index: Rows) -> Rows:
        """Return the nearest other rows of some rows, nearest first."""


class _Ours:
    def __init__(self, X: Tensor, norm: str, kind: type[TreeIndex] | type[BruteIndex]) -> None:
        self.X = X
        self.index = kind(X, manhattan=norm == "L1")

    def query(self, index: Rows) -> Rows:
        own = torch.from_numpy(index)
        return self.index.query(self.X[own], NEIGHBOURS, own).numpy()


class _Scipy:
    def __init__(self, X: Tensor, norm: str) -> None:
        self.X, self.p = X.numpy(), 1.0 if norm == "L1" else 2.0
        self.index = cKDTree(self.X)

    def query(self, index: Rows) -> Rows:
        workers = torch.get_num_threads()
        _, near = self.index.query(self.X[index], NEIGHBOURS + 1, p=self.p, workers=workers)
        return _without_self(near, index)


class _Faiss:
    def __init__(self, X: Tensor, norm: str) -> None:
        import faiss

        faiss.omp_set_num_threads(torch.get_num_threads())
        self.X = X.float().numpy()
        kind = faiss.METRIC_L1 if norm == "L1" else faiss.METRIC_L2
        self.index = faiss.IndexFlat(X.shape[1], kind)
        self.index.add(self.X)

    def query(self, index: Rows) -> Rows:
        _, near = self.index.search(self.X[index], NEIGHBOURS + 1)
        return _without_self(near, index)


def _without_self(near: Rows, index: Rows) -> Rows:
    """Drop each row from its own list of neighbours, or the last entry if it is not in it.

    Examples
    --------
    >>> _without_self(np.array([[7, 1, 2], [3, 4, 5]]), np.array([7, 9]))
    array([[1, 2],
           [3, 4]])
    """
    keep = near != index[:, None]
    keep[keep.all(axis=1), -1] = False
    return near[keep].reshape(len(near), -1)


def makers() -> Mapping[str, Callable[[Tensor, str], Search]]:
    """Return the searches by name; faiss only if it is installed."""
    found: dict[str, Callable[[Tensor, str], Search]] = {
        "tree": lambda X, norm: _Ours(X, norm, TreeIndex),
        "brute": lambda X, norm: _Ours(X, norm, BruteIndex),
        "ckdtree": _Scipy,
    }
    if find_spec("faiss") is not None:
        found["faiss"] = _Faiss
    return found


@cache
def _hidden(columns: int) -> Array:
    return np.random.default_rng(columns).normal(size=(RANK, columns))


def table(rows: int, columns: int, inputs: str) -> Tensor:
    """Return the inputs of a cell, the same in every run.

    Examples
    --------
    >>> table(5, 3, "correlated").shape
    torch.Size([5, 3])
    """
    rng = np.random.default_rng([rows, columns])
    if inputs == "uniform":
        return torch.from_numpy(rng.uniform(size=(rows, columns)))
    hidden = rng.normal(size=(rows, RANK)) @ _hidden(columns)
    return torch.from_numpy(hidden + NOISE * rng.normal(size=(rows, columns)))


def measure(cell: Cell) -> Record:
    """Time all searches of a cell and compare the rows that they find."""
    _warm_up()
    X = table(cell.rows, cell.columns, cell.inputs)
    asked = np.random.default_rng(0).permutation(cell.rows)[: cell.queries]
    record: Record = {
        "k": NEIGHBOURS,
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "searches": {},
        "approximate": {},
    }
    right: Rows | None = None
    for name, make in makers().items():
        if _tried(make, cell) > cell.limit:
            record["searches"][name] = {SKIPPED: True}
            continue
        with Timed() as building:
            index = make(X, cell.norm)
        facts, found = timed_queries(index, asked, cell.limit)
        if found is not None and right is None:
            right = found
        record["searches"][name] = {"build": building.wall, **facts, **agreement(found, right)}
        if name == "tree" and cell.norm == "L2" and found is not None:
            record["approximate"] = _approximate(index, asked[: len(found)], found, cell.limit)
    return record


def _tried(make: Callable[[Tensor, str], Search], cell: Cell) -> float:
    """Return the seconds that a search may take at least, judged by a tenth of the rows."""
    if cell.rows <= TRIED_ROWS:
        return 0.0
    few = int(TRIED_SHARE * cell.rows)
    X = table(few, cell.columns, cell.inputs)
    with Timed() as building:
        index = make(X, cell.norm)
    with Timed() as probe:
        index.query(np.arange(PROBE))
    return predicted(cell.rows / few, building.wall, probe.wall / PROBE)


def predicted(growth: float, build: float, each: float) -> float:
    """Return seconds to build an index and ask the fewest queries, in proportion to the rows.

    Parameters
    ----------
    growth : float
        How many times as many rows.
    build, each : float
        Seconds to build an index and seconds per query on the fewer rows.

    Examples
    --------
    >>> predicted(10.0, build=1.0, each=0.1)
    74.0
    """
    return growth * (build + FEWEST * each)


def timed_queries(index: Search, asked: Rows, limit: float) -> tuple[Record, Rows | None]:
    """Return microseconds per query and the rows found, None if even a few take too long."""
    with Timed() as probe:
        index.query(asked[:PROBE])
    each = probe.wall / min(PROBE, len(asked))
    if FEWEST * each > limit:
        return {"wall_us": 1e6 * each, "queries": PROBE, "runs": 1}, None
    asked = asked[: max(FEWEST, int(CALL_SECONDS / max(each, 1e-9)))]
    took: list[Timed] = []
    while not took or (took[0].wall < SHORT_SECONDS and len(took) < SHORT_RUNS):
        with Timed() as timed:
            found = index.query(asked)
        took.append(timed)
    return {
        "wall_us": 1e6 * min(t.wall for t in took) / len(asked),
        "cpu_us": 1e6 * min(t.cpu for t in took) / len(asked),
        "queries": len(asked),
        "runs": len(took),
    }, found


def agreement(found: Rows | None, right: Rows | None) -> Record:
    """Return the share of queries with exactly the rows of the first search, in any order.

    Examples
    --------
    >>> agreement(np.array([[2, 1], [3, 4]]), np.array([[1, 2], [3, 5], [6, 7]]))
    {'same': 0.5}
    """
    if found is None or right is None:
        return {"same": None}
    m = min(len(found), len(right))
    equal = np.sort(found[:m], axis=1) == np.sort(right[:m], axis=1)
    return {"same": float(equal.all(axis=1).mean())}


def _approximate(index: Any, asked: Rows, exact: Rows, limit: float) -> Record:
    """Return speed and recall of the tree when it looks at a few leaves only."""
    facts = {}
    before = index.index.budget
    for leaves in LEAVES:
        index.index.budget = leaves
        timed, found = timed_queries(index, asked, limit)
        assert found is not None
        m = len(found)
        hits = (found[:, :, None] == exact[:m, None, :]).any(axis=2)
        facts[str(leaves)] = {**timed, "recall": float(hits.mean())}
    index.index.budget = before
    return facts


@cache
def _warm_up() -> None:
    """Pay for compilation and first calls before the clock runs, once per process."""
    X = table(2 * NEIGHBOURS, 3, "uniform")
    for norm in NORMS:
        for make in makers().values():
            make(X, norm).query(np.arange(20))


# --- the page ------------------------------------------------------------------------------------


def report(records: list[Record]) -> str:
    """Return the Markdown page."""
    usable = scored(records)
    parts = ["# Search for neighbours", _head(usable) if usable else NO_RECORDS]
    for norm in NORMS:
        chosen = [r for r in usable if r["norm"] == norm]
        if chosen:
            parts += [f"## Tree or all distances, {norm}", _CHOICE, _choice(chosen)]
    for inputs in INPUTS:
        for norm in NORMS:
            chosen = [r for r in usable if r["norm"] == norm and r["inputs"] == inputs]
            if chosen:
                parts += [f"## {inputs.capitalize()} inputs, {norm}", _searches(chosen)]
    approximate = [r for r in usable if r["approximate"]]
    if approximate:
        parts += ["## A few leaves only, L2", _APPROXIMATE, _leaves(approximate)]
    if usable:
        parts += ["## Agreement", _agreement_text(usable)]
    return joined(*parts, *failures(records, ("rows", "columns", "inputs", "norm")))


def _head(records: list[Record]) -> str:
    states = sorted({(r["version"], r["code"]) for r in records})
    note = "**Mixed states of the code**: " if len(states) > 1 else ""
    listed = ", ".join(f"{version} (source {code})" for version, code in states)
    counts = ", ".join(str(n) for n in sorted({r["threads"] for r in records}))
    loads = [r["load"] for r in records]
    machines = ", ".join(sorted({r["machine"] for r in records}))
    return (
        f"{note}twostagegp {listed}; {machines}, {counts} thread(s), load {min(loads):.1f} to "
        f"{max(loads):.1f}. {NEIGHBOURS} neighbours of rows, without themselves; wall clock. Up to "
        f"{max(_queries(records), default=0)} queries per search, fewer (at least {FEWEST}) if "
        f"they would take longer than {CALL_SECONDS:g} s; *{SKIPPED}*: predicted to take more than "
        f"{LIMIT_SECONDS:g} s."
    )


def _queries(records: list[Record]) -> list[int]:
    every = [facts for r in records for facts in r["searches"].values()]
    return [facts["queries"] for facts in every if "queries" in facts]


_CHOICE = (
    "Time of a search through all distances divided by that of the tree, building included, for "
    "a thousand queries; below one (bold) the tree is the wrong choice."
)


def _choice(records: list[Record]) -> str:
    rows = sorted({r["rows"] for r in records})
    inputs = [name for name in INPUTS if any(r["inputs"] == name for r in records)]
    by_key = {(r["rows"], r["columns"], r["inputs"]): r for r in records}
    lines = []
    for d in sorted({r["columns"] for r in records}):
        cells = [_advantage(by_key.get((n, d, name))) for name in inputs for n in rows]
        lines.append([str(d), *cells])
    header = [f"{name}, {n:,} rows" for name in inputs for n in rows]
    return markdown_table(["columns", *header], lines)


def _advantage(record: Record | None) -> str:
    """Return the ratio of seconds of a thousand queries with building, all distances by tree."""
    if record is None:
        return MISSING
    seconds = []
    for name in ("brute", "tree"):
        facts = record["searches"].get(name, {SKIPPED: True})
        if SKIPPED in facts:
            return SKIPPED
        seconds.append(facts["build"] + 1e-3 * facts["wall_us"])
    ratio = seconds[0] / seconds[1]
    return f"**{figure(ratio)}**" if ratio < 1.0 else figure(ratio)


def _searches(records: list[Record]) -> str:
    found = [name for name in SEARCHES if any(name in r["searches"] for r in records)]
    header = ["rows", "columns", *(f"{name}, µs" for name in found)]
    header += [f"{name}, build s" for name in found]
    lines = []
    for r in sorted(records, key=lambda r: (r["columns"], r["rows"])):
        facts = [r["searches"].get(name) for name in found]
        cells = [_cell(each, "wall_us") for each in facts]
        cells += [_cell(each, "build") for each in facts]
        lines.append([f"{r['rows']:,}", str(r["columns"]), *cells])
    return markdown_table(header, lines)


def _cell(facts: Record | None, field: str) -> str:
    if facts is None:
        return MISSING
    return SKIPPED if SKIPPED in facts else figure(facts[field])


_APPROXIMATE = (
    "Leaves have 32 rows. Microseconds per query, and in brackets the share of the right rows that "
    "is found."
)


def _leaves(records: list[Record]) -> str:
    lines = []
    for r in sorted(records, key=lambda r: (r["inputs"], r["columns"], r["rows"])):
        place = [r["inputs"], f"{r['rows']:,}", str(r["columns"])]
        cells = []
        for leaves in LEAVES:
            facts = r["approximate"].get(str(leaves))
            cells.append(
                MISSING if facts is None else f"{figure(facts['wall_us'])} ({facts['recall']:.1%})"
            )
        lines.append([*place, *cells, _cell(r["searches"]["tree"], "wall_us")])
    header = ["inputs", "rows", "columns", *(f"{leaves} leaves" for leaves in LEAVES), "exact"]
    return markdown_table(header, lines)


def _agreement_text(records: list[Record]) -> str:
    compared = 0
    lines = []
    for r in records:
        for name, facts in r["searches"].items():
            if facts.get("same") is None or name == "tree":
                continue
            compared += 1
            if facts["same"] < 1.0:
                place = f"{r['rows']} x {r['columns']}, {r['inputs']}, {r['norm']}"
                lines.append(f"- {name}, {place}: the same on {facts['same']:.2%} of the queries\n")
    exact = compared - len(lines)
    text = f"The rows are those of the tree in {exact} of {compared} comparisons.\n"
    return text + ("\n" + "".join(lines) if lines else "")


MEASUREMENT = Measurement(
    name="neighbor_search",
    about="Which search for neighbours is the right one, by rows, columns and norm.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=report,
    arguments=arguments,
    key=("rows", "columns", "inputs", "norm"),
    strategy=Workers(threads=2),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
