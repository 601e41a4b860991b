"""Which search for neighbours is the right one, by rows, columns and norm.

Microseconds a query (50 neighbours, without the row itself; queries are rows) and seconds to build
an index, for the tree and the blocks of distances of this package, SciPy's cKDTree and, where it is
installed, faiss (float32, so that its rows may differ). Inputs are *uniform*, the worst case of
every tree, and *correlated*: four hidden directions and a little noise, as columns of a real table
often are. All rows found are compared with those of the tree. The tree is also asked to look at a
few leaves only: how fast it is then, and how many of the right rows it finds.

A search that would take more than a minute, judged by the same one on fewer rows, is left out; one
that is slow gets fewer queries, and the record says how many. Each cell is kept as soon as it is
known, so that a broken run goes on where it stopped.

    python -m benchmarks.neighbor_search
    python -m benchmarks.neighbor_search --rows 10000 --columns 2,8 --norms L2
"""

from __future__ import annotations

import argparse
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

import twostagegp
from benchmarks import RESULTS
from measurements.arguments import positive
from measurements.provenance import code_version
from measurements.store import JsonLines, Record, write_whole
from measurements.tables import MISSING, figure, markdown_table
from measurements.timing import Timed, use_threads
from twostagegp.engines.neighbors.index import BruteIndex, TreeIndex

__all__ = ["Cell", "main", "measure", "report", "table"]

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
#: A call that would take longer gets fewer queries.
CALL_SECONDS = 5.0
#: A call this short is repeated, and the fastest counts.
SHORT_SECONDS, SHORT_RUNS = 0.5, 5
SKIPPED = "skipped"
SEARCHES = ("tree", "brute", "ckdtree", "faiss")


@dataclass(frozen=True)
class Cell:
    """One place of the grid."""

    rows: int
    columns: int
    inputs: str
    norm: str

    @property
    def key(self) -> tuple[int, int, str, str]:
        """As in the store."""
        return self.rows, self.columns, self.inputs, self.norm


class Search(Protocol):
    """An index that is built when made."""

    def query(self, index: Rows) -> Rows:
        """The nearest other rows of some rows, nearest first."""


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
    """Drop each row from its own list; where it is not there, the last one.

    Examples
    --------
    >>> _without_self(np.array([[7, 1, 2], [3, 4, 5]]), np.array([7, 9]))
    array([[1, 2],
           [3, 4]])
    """
    keep = near != index[:, None]
    keep[keep.all(axis=1), -1] = False
    return near[keep].reshape(len(near), -1)


def _makers() -> Mapping[str, Callable[[Tensor, str], Search]]:
    makers: dict[str, Callable[[Tensor, str], Search]] = {
        "tree": lambda X, norm: _Ours(X, norm, TreeIndex),
        "brute": lambda X, norm: _Ours(X, norm, BruteIndex),
        "ckdtree": _Scipy,
    }
    if find_spec("faiss") is not None:
        makers["faiss"] = _Faiss
    return makers


@cache
def _hidden(columns: int) -> Array:
    return np.random.default_rng(columns).normal(size=(RANK, columns))


def table(rows: int, columns: int, inputs: str) -> Tensor:
    """Inputs of a cell, the same in every run.

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, then write and print the page."""
    given = _parser().parse_args(arguments)
    store = JsonLines(
        given.results / "neighbor_search.jsonl", key=("rows", "columns", "inputs", "norm")
    )
    if not given.table_only:
        use_threads(given.threads)
        _warm_up()
        cells = [
            Cell(n, d, inputs, norm)
            for inputs in given.inputs
            for d in given.columns
            for n in sorted(given.rows)
            for norm in given.norms
        ]
        done = set() if given.redo else store.done()
        print(f"{sum(c.key in done for c in cells)} of {len(cells)} cells are there already.")
        for cell in cells:
            if cell.key in done:
                continue
            record = measure(cell, _fewer_rows(cell, store), given.queries)
            store.append(record, replace=given.redo)
            print(_line(record), flush=True)
            write_whole(given.results / "neighbor_search.md", report(_records(store)))
    page = report(_records(store))
    write_whole(given.results / "neighbor_search.md", page)
    print(page)
    return 0


def _records(store: JsonLines) -> list[Record]:
    return list(store.records().values())


def _fewer_rows(cell: Cell, store: JsonLines) -> Record | None:
    """The same cell on the largest smaller number of rows that is known."""
    same = [
        record
        for (rows, *rest), record in store.records().items()
        if tuple(rest) == cell.key[1:] and rows < cell.rows
    ]
    return max(same, key=lambda record: record["rows"], default=None)


def measure(cell: Cell, smaller: Record | None = None, queries: int = QUERIES) -> Record:
    """All searches of a cell.

    Parameters
    ----------
    cell : Cell
    smaller : dict, optional
        The record of the same cell on fewer rows, to judge what would take too long.
    queries : int
        At most.
    """
    X = table(cell.rows, cell.columns, cell.inputs)
    asked = np.random.default_rng(0).permutation(cell.rows)[:queries]
    record: Record = {
        "rows": cell.rows,
        "columns": cell.columns,
        "inputs": cell.inputs,
        "norm": cell.norm,
        "k": NEIGHBOURS,
        "version": twostagegp.__version__,
        "code": code_version(),
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "searches": {},
        "approximate": {},
    }
    right: Rows | None = None
    for name, make in _makers().items():
        if predicted(name, cell, smaller) > LIMIT_SECONDS:
            record["searches"][name] = {SKIPPED: True}
            continue
        with Timed() as building:
            index = make(X, cell.norm)
        facts, found = _timed_queries(index, asked)
        if found is not None and right is None:
            right = found
        record["searches"][name] = {"build": building.wall, **facts, **_agreement(found, right)}
        if name == "tree" and cell.norm == "L2" and found is not None:
            record["approximate"] = _approximate(index, asked[: len(found)], found)
    return record


def predicted(name: str, cell: Cell, smaller: Record | None) -> float:
    """Seconds that a search of a cell may take at least, were it to grow in proportion to the rows.

    Examples
    --------
    >>> smaller = {"rows": 100, "searches": {"tree": {"build": 1.0, "wall_us": 1e5}}}
    >>> predicted("tree", Cell(1000, 2, "uniform", "L2"), smaller)
    74.0
    """
    known = {} if smaller is None else smaller["searches"].get(name, {})
    if smaller is None or not known:
        return 0.0
    if SKIPPED in known:
        return math.inf
    growth = cell.rows / smaller["rows"]
    return growth * (known["build"] + FEWEST * known["wall_us"] / 1e6)


def _timed_queries(index: Search, asked: Rows) -> tuple[Record, Rows | None]:
    """Microseconds a query and the rows found; without them where even a few take too long."""
    with Timed() as probe:
        index.query(asked[:PROBE])
    each = probe.wall / min(PROBE, len(asked))
    if FEWEST * each > LIMIT_SECONDS:
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


def _agreement(found: Rows | None, right: Rows | None) -> Record:
    """Share of the queries with exactly the rows of the first search, whatever their order.

    Examples
    --------
    >>> _agreement(np.array([[2, 1], [3, 4]]), np.array([[1, 2], [3, 5], [6, 7]]))
    {'same': 0.5}
    """
    if found is None or right is None:
        return {"same": None}
    m = min(len(found), len(right))
    equal = np.sort(found[:m], axis=1) == np.sort(right[:m], axis=1)
    return {"same": float(equal.all(axis=1).mean())}


def _approximate(index: Any, asked: Rows, exact: Rows) -> Record:
    """Speed and recall of the tree when it looks at a few leaves only."""
    facts = {}
    before = index.index.budget
    for leaves in LEAVES:
        index.index.budget = leaves
        timed, found = _timed_queries(index, asked)
        assert found is not None
        m = len(found)
        hits = (found[:, :, None] == exact[:m, None, :]).any(axis=2)
        facts[str(leaves)] = {**timed, "recall": float(hits.mean())}
    index.index.budget = before
    return facts


def _warm_up() -> None:
    """Pay for compilation and first calls before the clock runs."""
    X = table(2 * NEIGHBOURS, 3, "uniform")
    for norm in NORMS:
        for make in _makers().values():
            make(X, norm).query(np.arange(20))


def _line(record: Record) -> str:
    parts = []
    for name, facts in record["searches"].items():
        if SKIPPED in facts:
            parts.append(f"{name} {SKIPPED}")
        else:
            same = "" if facts["same"] in (None, 1.0) else f" (same {facts['same']:.3f})"
            parts.append(f"{name} {facts['wall_us']:.1f}{same}")
    place = f"{record['rows']} x {record['columns']}, {record['inputs']}, {record['norm']}"
    return f"{place}: {', '.join(parts)} µs"


# --- the page ------------------------------------------------------------------------------------


def report(records: list[Record]) -> str:
    """The Markdown page."""
    if not records:
        return "# Search for neighbours\n\nNo results yet.\n"
    parts = ["# Search for neighbours\n", _head(records)]
    for norm in NORMS:
        chosen = [r for r in records if r["norm"] == norm]
        if chosen:
            parts += [f"## Tree or all distances, {norm}\n", _choice_note(), _choice(chosen)]
    for inputs in INPUTS:
        for norm in NORMS:
            chosen = [r for r in records if r["norm"] == norm and r["inputs"] == inputs]
            if chosen:
                parts += [f"## {inputs.capitalize()} inputs, {norm}\n", _searches(chosen)]
    approximate = [r for r in records if r["approximate"]]
    if approximate:
        parts += ["## A few leaves only, L2\n", _approximate_note(), _leaves(approximate)]
    parts += ["## Agreement\n", _agreement_text(records)]
    return "\n".join(parts)


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
        f"{max(_queries(records), default=0)} queries a search, fewer (at least {FEWEST}) where "
        f"they would take longer than {CALL_SECONDS:g} s; *{SKIPPED}*: predicted to take more than "
        f"{LIMIT_SECONDS:g} s.\n"
    )


def _queries(records: list[Record]) -> list[int]:
    every = [facts for r in records for facts in r["searches"].values()]
    return [facts["queries"] for facts in every if "queries" in facts]


def _choice_note() -> str:
    return (
        "How many times as long as the tree a search through all distances takes, building "
        "included for a thousand queries; below one the tree is the wrong choice.\n"
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
    """Seconds of a thousand queries with building, all distances over tree."""
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
    names = [name for name in SEARCHES if any(name in r["searches"] for r in records)]
    header = ["rows", "columns", *(f"{name}, µs" for name in names)]
    header += [f"{name}, build s" for name in names]
    lines = []
    for r in sorted(records, key=lambda r: (r["columns"], r["rows"])):
        facts = [r["searches"].get(name) for name in names]
        cells = [_cell(each, "wall_us") for each in facts]
        cells += [_cell(each, "build") for each in facts]
        lines.append([f"{r['rows']:,}", str(r["columns"]), *cells])
    return markdown_table(header, lines)


def _cell(facts: Record | None, field: str) -> str:
    if facts is None:
        return MISSING
    return SKIPPED if SKIPPED in facts else figure(facts[field])


def _approximate_note() -> str:
    return (
        "Leaves have 32 rows. Microseconds a query, and in brackets the share of the right rows "
        "that is found.\n"
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.neighbor_search", description="Which search for neighbours."
    )
    parser.add_argument("--rows", type=_numbers, default=list(ROWS))
    parser.add_argument("--columns", type=_numbers, default=list(COLUMNS))
    parser.add_argument("--inputs", type=_words(INPUTS), default=list(INPUTS))
    parser.add_argument("--norms", type=_words(NORMS), default=list(NORMS))
    parser.add_argument("--queries", type=positive, default=QUERIES, help="of a search, at most")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table-only", action="store_true", help="no searches, only the page")
    parser.add_argument("--redo", action="store_true", help="measure again what is there already")
    return parser


def _numbers(text: str) -> list[int]:
    return [positive(part.strip()) for part in text.split(",")]


def _words(known: Sequence[str]) -> Callable[[str], list[str]]:
    def words(text: str) -> list[str]:
        chosen = [word.strip() for word in text.split(",") if word.strip()]
        if not chosen or any(word not in known for word in chosen):
            raise argparse.ArgumentTypeError(f"{text!r}: choose from {', '.join(known)}")
        return chosen

    return words


if __name__ == "__main__":
    raise SystemExit(main())
