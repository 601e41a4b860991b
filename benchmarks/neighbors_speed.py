"""What a prediction from 50 neighbours costs: ours, three other libraries, and the arithmetic.

Every model is fitted once to the training rows of fold 0, in a process of its own, and then
predicts test rows with a standard deviation, several times over; the fastest call counts, as other
programs only ever add time. All have the same number of threads. A small fit and a small prediction
come first, so that nobody pays for loading; what a first call costs stands in the table. A model
too slow for all test rows predicts fewer, and the page says how many: its cost a row is that of
those.

The second part is one local solve: distances, covariances and factor of one point with 50
neighbours have a known number of operations, and a matrix product shows how many of them the
machine does in a second, on one thread. The quotient is the floor that the compiled loops are
compared with; a batch of the same problems in torch stands beside them.

Needs ``TWOSTAGEGP_DATA``. The other libraries' interpreter (``--python``, see
:mod:`benchmarks.uci_large`) needs nothing of this package: it gets the rows in a file, and nothing
is imported here before it is used.

    python -m benchmarks.neighbors_speed --python .venv-peers/bin/python
    python -m benchmarks.neighbors_speed --models bare_iso,local_solves --runs 10
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks import RESULTS
from benchmarks.peers import PEERS
from benchmarks.peers.base import Array, Fitted, NotInstalledError, threads
from measurements.arguments import positive
from measurements.store import JsonLines, Record, plain, write_whole
from measurements.tables import MISSING, figure, markdown_table, yes_no
from measurements.timing import Timed, use_threads

__all__ = [
    "CONTESTANTS",
    "COVARIANCE_FLOPS",
    "Contestant",
    "Split",
    "local_solves",
    "main",
    "measure",
    "prediction_parts",
    "report",
    "solve_flops",
]

NEIGHBOURS = 50
#: Rows of the fit, and points of the prediction, that come before the clock runs.
WARM_ROWS, WARM_POINTS = 600, 64
#: Points from whose times the cost of one more point is told.
PROBE_POINTS = (64, 256)
#: A call that would take longer gets fewer points.
CALL_SECONDS = 15.0
TIME_LIMIT = 1800

#: (ours, theirs, how many times as many predictions a second).
GOALS = (
    ("default", "gpnn", 30.0),
    ("bare_ard", "gpnn", 100.0),
    ("bare_iso", "gpnn", 100.0),
    ("bare_ard", "muygpys", 10.0),
    ("bare_iso", "muygpys", 10.0),
    ("bare_ard", "gpboost", 5.0),
    ("bare_iso", "gpboost", 5.0),
    ("bare_ard", "gpboost_50", 5.0),
    ("bare_iso", "gpboost_50", 5.0),
)
#: The fit of the first may take no longer than that of the second.
FIT_GOAL = ("default", "gpboost")
#: How many times as long as its operations a local solve may take.
SOLVE_GOAL = 4.0

#: The second part, by the name that the command line uses.
LOCAL = "local_solves"
#: Operations of one Matérn 3/2 covariance in ``compiled/vector_loops.py``: s (1 + r) exp(-r) with
#: r = the root of 3 D are seven (three products, a sum, a square root, two minima); the exponential
#: is one product, ten terms of two operations each, and eight squares.
COVARIANCE_FLOPS = 36

Fit = Callable[[Array, Array, int], Fitted]


@dataclass(frozen=True)
class Split:
    """Training and test rows."""

    X: Array
    y: Array
    X_test: Array
    y_test: Array

    @classmethod
    def of_fold(cls, name: str, fold: int = 0) -> Split:
        """A fold of one of the larger tables."""
        from benchmarks.large_sets import fold_rows, load

        data = load(name)
        train, test = fold_rows(data, fold)
        return cls(data.X[train], data.y[train], data.X[test], data.y[test])

    @classmethod
    def read(cls, file: Path) -> Split:
        """What :meth:`write` wrote."""
        with np.load(file) as arrays:
            return cls(*(arrays[name] for name in ("X", "y", "X_test", "y_test")))

    def write(self, file: Path) -> None:
        """Keep the rows for another process."""
        np.savez(file, X=self.X, y=self.y, X_test=self.X_test, y_test=self.y_test)


@dataclass(frozen=True)
class Contestant:
    """A model of the first part.

    Attributes
    ----------
    label : str
    neighbours : str
        How many a prediction is made from.
    fit : callable
        ``fit(X, y, seed)``, returns a :class:`~benchmarks.peers.base.Fitted`.
    peer : str, optional
        Its name in :data:`benchmarks.peers.PEERS`; None: ours.
    """

    label: str
    neighbours: str
    fit: Fit
    peer: str | None = None


def _default(X: Array, y: Array, seed: int) -> Fitted:
    from benchmarks.peers.ours import fitter

    return fitter("ours")(X, y, seed)


def _bare(ard: bool) -> Fit:
    def fit(X: Array, y: Array, seed: int) -> Fitted:
        from benchmarks.peers.ours import Ours
        from twostagegp import GPNNRegressor

        model = GPNNRegressor(
            kernel="matern32",
            n_neighbors=NEIGHBOURS,
            objective="neighbors",
            ard=ard,
            preprocess="standardize",
            random_state=seed,
        )
        return Ours(model.fit(X, y), float(np.std(y)))

    return fit


def _peer(name: str) -> Fit:
    def fit(X: Array, y: Array, seed: int) -> Fitted:
        return PEERS[name].load()(X, y, seed)

    return fit


def _gpboost_50(X: Array, y: Array, seed: int) -> Fitted:
    """50 neighbours to fit and 50 to predict, where its default would be twice as many."""
    fit = PEERS["gpboost"].load()
    from benchmarks.peers import gpboost_gp

    gpboost_gp.NUM_NEIGHBORS = NEIGHBOURS
    found: Any = fit(X, y, seed)
    found.model.set_prediction_data(num_neighbors_pred=NEIGHBOURS)
    return found


CONTESTANTS: Mapping[str, Contestant] = {
    "default": Contestant("twostagegp, default of method='neighbors'", "50", _default),
    "bare_ard": Contestant("twostagegp, one kernel, a lengthscale a column", "50", _bare(True)),
    "bare_iso": Contestant("twostagegp, one kernel, one lengthscale", "50", _bare(False)),
    "gpnn": Contestant("GPNN, point by point as its program does", "50", _peer("gpnn"), "gpnn"),
    "muygpys": Contestant("MuyGPyS, one lengthscale", "50", _peer("muygpys"), "muygpys"),
    "gpboost": Contestant("GPBoost, one range", "20, 40 to predict", _peer("gpboost"), "gpboost"),
    "gpboost_50": Contestant("GPBoost, one range", "50", _gpboost_50, "gpboost"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, keep the results, then write and print the page; returns 1 if a model failed."""
    given = _parser().parse_args(arguments)
    if given.alone is not None:
        return _answer(given)
    store = JsonLines(given.results / "neighbors_speed.jsonl", key=("set", "model"))
    failed = 0
    if not given.table_only:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "split.npz"
            if set(given.models) - {LOCAL}:
                Split.of_fold(given.set).write(file)
            for name in given.models:
                failed += _measure_alone(name, file, given, store)
    page = report(list(store.records().values()))
    write_whole(given.results / "neighbors_speed.md", page)
    print(page)
    return 1 if failed else 0


def _measure_alone(name: str, file: Path, given: argparse.Namespace, store: JsonLines) -> bool:
    """Measure one model in a process of its own and keep the record; whether that failed."""
    from benchmarks.alone import Limits, Task, measure_alone
    from benchmarks.peers.base import NOT_INSTALLED
    from measurements.provenance import code_version

    ours = name == LOCAL or CONTESTANTS[name].peer is None
    limits = Limits(
        given.time_limit,
        1 if name == LOCAL else given.threads,
        sys.executable if ours else given.python,
    )
    program = ["-m", "benchmarks.neighbors_speed", "--alone", name, "--input", str(file)]
    program += ["--runs", str(given.runs)]
    if given.points is not None:
        program += ["--points", str(given.points)]
    table, load = "" if name == LOCAL else given.set, os.getloadavg()[0]
    record = measure_alone(Task(name, table, 0), limits, program)
    record |= {"set": table, "load": load, "threads": limits.threads}
    record["machine"] = platform.processor() or platform.machine()
    if ours:
        record["code"] = code_version()
    print(_line(record), flush=True)
    if not str(record.get("error", "")).startswith(NOT_INSTALLED):
        store.append(record, replace=True)
    return "error" in record


def _line(record: Record) -> str:
    if "error" in record:
        return f"{record['model']}: {record['error']}"
    if record["model"] == LOCAL:
        return f"{LOCAL}: {record['microseconds']:.2f} µs a point"
    return (
        f"{record['model']}: fit {record['fit_wall']:.1f} s, "
        f"{record['predictions_a_second']:.0f} predictions/s ({record['points']} points)"
    )


def _answer(given: argparse.Namespace) -> int:
    """What the process of one model does: the record and nothing else on the output stream."""
    answer = os.dup(1)
    os.dup2(2, 1)  # libraries in C print to file 1 too
    use_threads(threads())
    try:
        if given.alone == LOCAL:
            record = local_solves(runs=given.runs)
        else:
            split = Split.read(given.input)
            record = measure(CONTESTANTS[given.alone], split, given.runs, given.points)
    except NotInstalledError as error:
        record = {"error": str(error)}
    except Exception as error:
        record = {"error": f"{type(error).__name__}: {error}"}
    with os.fdopen(answer, "w", encoding="utf-8") as file:
        json.dump(plain({"model": given.alone, **record}), file, allow_nan=False)
    return 0


def measure(
    contestant: Contestant, split: Split, runs: int = 5, points: int | None = None
) -> Record:
    """Fit once, then predict several times: what both cost, and how good the prediction is.

    Parameters
    ----------
    contestant : Contestant
    split : Split
    runs : int
        Predictions of the same points.
    points : int, optional
        The first so many test rows; all by default.
    """
    rows = np.random.default_rng(0).permutation(len(split.y))[:WARM_ROWS]
    contestant.fit(split.X[rows], split.y[rows], 0).predict(split.X_test[:WARM_POINTS])
    with Timed() as fitting:
        model = contestant.fit(split.X, split.y, 0)
    X = split.X_test[:points]
    with Timed() as first:
        model.predict(X[:WARM_POINTS])
    X = X[: _affordable(model, X)]
    took = []
    for _ in range(runs):
        with Timed() as predicting:
            found = model.predict(X)
        took.append(predicting)
    wall, cpu = min(t.wall for t in took), min(t.cpu for t in took)
    parts = {}
    if contestant.peer is None:
        seconds = prediction_parts(lambda: model.predict(X))
        parts = {"parts_us": {part: 1e6 * s / len(X) for part, s in seconds.items()}}
    scale = float(np.std(split.y))
    error = (split.y_test[: len(X)] - found.mean) / scale
    variance = (found.std / scale) ** 2
    return {
        **_versions(contestant),
        "n": len(split.y),
        "d": split.X.shape[1],
        "fit_wall": fitting.wall,
        "fit_cpu": fitting.cpu,
        "first_call": first.wall,
        "test_rows": len(split.y_test),
        "points": len(X),
        "runs": runs,
        "wall_us": 1e6 * wall / len(X),
        "cpu_us": 1e6 * cpu / len(X),
        "all_wall_us": [1e6 * t.wall / len(X) for t in took],
        "predictions_a_second": len(X) / wall,
        **parts,
        "rmse": float(np.sqrt(np.mean(error**2))),
        "nlpd": float(np.mean(0.5 * (error**2 / variance + np.log(2.0 * np.pi * variance)))),
    }


def prediction_parts(predict: Callable[[], Any], cuda: bool = False) -> dict[str, float]:
    """Wall seconds of a prediction of ours: search for neighbours, local solves, and the rest.

    The rest is what comes before and after, and in a stack with trees those.
    """
    from benchmarks.search_profile import Profile
    from twostagegp.engines.neighbors import engine as neighbors

    profile = Profile(cuda, {"search": 0.0, "solve": 0.0})
    near = profile.timed("search", neighbors.IndexStore.near)
    solve = profile.timed("solve", neighbors.local_predict)
    with (
        patch.object(neighbors.IndexStore, "near", near),
        patch.object(neighbors, "local_predict", solve),
        Timed() as took,
    ):
        predict()
    return {**profile.seconds, "rest": took.wall - sum(profile.seconds.values())}


def _versions(contestant: Contestant) -> Record:
    if contestant.peer is not None:
        return {"version": PEERS[contestant.peer].version()}
    import torch

    import twostagegp

    return {"version": twostagegp.__version__, "torch": torch.__version__}


def _affordable(model: Fitted, X: Array) -> int:
    """How many points one call can have; what a call costs without any point is not blamed on them.

    Examples
    --------
    >>> class Instant(Fitted):
    ...     def predict(self, X): ...
    >>> _affordable(Instant(), np.zeros((1000, 1)))
    1000
    """
    few, more = PROBE_POINTS
    if len(X) <= more:
        return len(X)
    seconds = []
    for count in PROBE_POINTS:
        with Timed() as took:
            model.predict(X[:count])
        seconds.append(took.wall)
    each = max((seconds[1] - seconds[0]) / (more - few), 1e-9)
    fixed = max(seconds[0] - few * each, 0.0)
    if fixed + len(X) * each <= CALL_SECONDS:
        return len(X)
    return max(more, int((CALL_SECONDS - fixed) / each))


# --- local solves --------------------------------------------------------------------------------


def solve_flops(k: int, d: int, covariance: int = COVARIANCE_FLOPS) -> dict[str, float]:
    """Operations of one point with k neighbours in d columns, by part.

    There are k (k + 1) / 2 pairs among the neighbours and the point, each with three operations a
    column; the factor takes k³ / 3 and 2 k² for its two right-hand sides.

    Examples
    --------
    >>> solve_flops(3, 2, covariance=10)
    {'distances': 36.0, 'covariances': 60.0, 'factor': 27.0}
    """
    pairs = k * (k + 1) / 2
    return {
        "distances": pairs * 3 * d,
        "covariances": pairs * covariance,
        "factor": k**3 / 3 + 2.0 * k**2,
    }


def local_solves(
    n: int = 40_000, d: int = 9, k: int = NEIGHBOURS, points: int = 4096, runs: int = 5
) -> Record:
    """Microseconds of one local solve on this thread, in parts, against its operations.

    Rows and points are normal draws; neighbours are known beforehand.
    """
    import torch

    import twostagegp
    from twostagegp.data.rows import Rows
    from twostagegp.engines.neighbors import local_gp
    from twostagegp.engines.neighbors.compiled import local
    from twostagegp.engines.neighbors.index import TreeIndex
    from twostagegp.kernels import NamedKernel

    rng = np.random.default_rng(0)
    Z, Q = rng.normal(size=(n, d)), rng.normal(size=(points, d))
    t, noises = np.sin(Z.sum(axis=1)), np.full(n, 0.01)
    near = TreeIndex(torch.from_numpy(Z)).query(torch.from_numpy(Q), k)
    form = NamedKernel("matern32", d).form.compiled
    assert form is not None
    index, kernel = near.numpy(), local.CompiledKernel.of(form, metric=2)
    mean, variance = np.empty(points), np.empty(points)

    def whole() -> None:
        local.predict(Z, t, noises, index, Q, kernel, 1.0, mean, variance)

    loop = _part_loop()
    seconds = [
        _fastest(lambda count=count: loop(Z, t, noises, index, Q, kernel, 1.0, count), runs)
        for count in (1, 2, 3)
    ]
    seconds.append(_fastest(whole, runs))
    zero, one = torch.zeros(n, dtype=torch.float64), torch.ones(n, dtype=torch.float64)
    rows = Rows(torch.from_numpy(Z), torch.from_numpy(t), one, zero, zero)
    parameters = np.append(np.zeros(2), np.log(0.01))  # lengthscale and outputscale one
    found: list[Any] = []

    def batched() -> None:
        found[:] = local_gp.torch_predict(  # the engine takes the compiled one
            NamedKernel("matern32", d), parameters, rows, near, torch.from_numpy(Q)
        )

    torch_seconds = _fastest(batched, runs)
    each = 1e6 / points
    return {
        "version": twostagegp.__version__,
        "torch": torch.__version__,
        "n": n,
        "d": d,
        "k": k,
        "points": points,
        "runs": runs,
        "matmul_gflops": matmul_rate() / 1e9,
        "flops": solve_flops(k, d),
        "microseconds": each * seconds[-1],
        "parts": dict(
            zip(
                ("gather", "distances", "covariances", "factor"),
                (each * np.diff([0.0, *seconds])).tolist(),
                strict=True,
            )
        ),
        "torch_microseconds": each * torch_seconds,
        "difference": float(
            max(
                np.abs(found[0].numpy() - mean).max(),
                np.abs(found[1].numpy() - variance).max(),
            )
        ),
    }


def matmul_rate(size: int = 1000, runs: int = 10) -> float:
    """Operations a CPU second of a float64 matrix product; the fastest of several.

    Examples
    --------
    >>> matmul_rate(50, runs=2) > 1e6
    True
    """
    import torch

    A = torch.rand(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    out = torch.empty_like(A)
    return 2.0 * size**3 / _fastest(lambda: torch.matmul(A, A, out=out), runs)


def _fastest(work: Callable[[], Any], runs: int) -> float:
    """CPU seconds of the fastest call, after one that does not count; for work of one thread."""
    work()
    took = []
    for _ in range(runs):
        with Timed() as timed:
            work()
        took.append(timed.cpu)
    return min(took)


def _part_loop() -> Any:
    """The first parts of ``compiled.local.predict`` alone: one, two or all three of them."""
    from numba import njit

    from twostagegp.engines.neighbors.compiled import local
    from twostagegp.engines.neighbors.compiled.lanes import LANES, OPTIONS

    gather, distances, covariances = local.gather, local.pair_distances, local.covariances

    @njit(**{**OPTIONS, "cache": False})
    def loop(Z, t, noise, near, points, kernel, s, count):  # type: ignore[no-untyped-def]
        m, k = near.shape
        d = Z.shape[1]
        X, T, N = np.empty((k + 1, d, LANES)), np.empty((k, LANES)), np.empty((k, LANES))
        missing = np.empty((k, LANES), np.bool_)
        D = np.zeros((k + 2, k + 2, LANES))
        for begin in range(0, m, LANES):
            gather(Z, t, noise, near, points, begin, X, T, N, missing)
            if count > 1:
                distances(X, D, False)
            if count > 2:
                for i in range(1, k + 1):
                    covariances(D.reshape(-1), i * D.shape[1] * LANES, i * LANES, kernel, s)
        return X[0, 0, 0] + D[1, 0, 0]

    return loop


# --- the page ------------------------------------------------------------------------------------


def report(records: list[Record]) -> str:
    """The Markdown page."""
    if not records:
        return "# Speed of predictions from neighbours\n\nNo results yet.\n"
    parts = ["# Speed of predictions from neighbours\n", _head(records)]
    known: dict[str, dict[str, Record]] = {}
    for record in records:
        if record["model"] != LOCAL:
            known.setdefault(record["set"], {})[record["model"]] = record
    for name, by_model in known.items():
        usable = {model: record for model, record in by_model.items() if "error" not in record}
        parts += [f"## Predictions on {name}\n", _note(usable), _table(usable)]
        failures = [r for r in by_model.values() if "error" in r]
        if failures:
            parts.append("".join(f"- {r['model']}: {r['error']}\n" for r in failures))
        parts += [f"### Goals on {name}\n", _goal_table(usable)]
        if any("parts_us" in record for record in usable.values()):
            parts += [f"### Where the time of ours goes on {name}\n", _parts_table(usable)]
    solves = [r for r in records if r["model"] == LOCAL and "error" not in r]
    for record in solves:
        parts += ["## Local solves\n", _solve_note(record), _solve_table(record)]
    return "\n".join(parts)


def _head(records: list[Record]) -> str:
    states = sorted({(r["version"], r["code"]) for r in records if "code" in r and "version" in r})
    note = "**Mixed states of the code**: " if len(states) > 1 else ""
    listed = ", ".join(f"twostagegp {version} (source {code})" for version, code in states)
    others = sorted({r["version"] for r in records if "code" not in r and r.get("version")})
    machines = sorted({r["machine"] for r in records if "machine" in r})
    loads = [r["load"] for r in records if "load" in r]
    busy = f"; load {min(loads):.1f} to {max(loads):.1f} before each model" if loads else ""
    return f"{note}{'; '.join([listed, *others, *machines])}{busy}.\n"


def _note(records: Mapping[str, Record]) -> str:
    if not records:
        return ""
    first = next(iter(records.values()))
    counts = ", ".join(str(n) for n in sorted({r["threads"] for r in records.values()}))
    runs = ", ".join(str(n) for n in sorted({r["runs"] for r in records.values()}))
    text = (
        f"Fold 0: {first['n']} training rows, {first['d']} columns; {counts} thread(s) for each. "
        f"Mean and standard deviation of the test rows, the fastest of {runs} calls. *First call*: "
        f"{WARM_POINTS} points right after the fit. RMSE and NLPD (Gaussian) of the points that "
        "were predicted, on the standardised target."
    )
    slow = [name for name, r in records.items() if r["points"] < r["test_rows"]]
    if slow:
        text += f" Fewer points than there are, so **extrapolated** a point: {', '.join(slow)}."
    return f"{text}\n"


def _table(records: Mapping[str, Record]) -> str:
    header = ["name", "model", "neighbours", "fit wall s", "fit CPU s", "first call s", "points"]
    header += ["predictions/s", "wall µs", "slowest", "CPU µs", "RMSE", "NLPD"]
    lines = []
    for name, contestant in CONTESTANTS.items():
        if (r := records.get(name)) is None:
            continue
        cells = [figure(r[field]) for field in ("fit_wall", "fit_cpu", "first_call")]
        speed = [f"{r['predictions_a_second']:,.0f}", figure(r["wall_us"])]
        speed += [figure(max(r["all_wall_us"])), figure(r["cpu_us"])]
        scores = [figure(r["rmse"]), figure(r["nlpd"])]
        what = [name, contestant.label, contestant.neighbours]
        lines.append([*what, *cells, str(r["points"]), *speed, *scores])
    return markdown_table(header, lines)


def _goal_table(records: Mapping[str, Record]) -> str:
    lines = []
    for ours, theirs, goal in GOALS:
        wall = _ratio(records, theirs, ours, "wall_us")
        cpu = _ratio(records, theirs, ours, "cpu_us")
        met = yes_no(None if wall is None else wall >= goal)
        what = f"predictions/s, {ours} over {theirs}"
        lines.append([what, _times(wall), _times(cpu), f"≥ {goal:g}×", met])
    ours, theirs = FIT_GOAL
    wall = _ratio(records, ours, theirs, "fit_wall")
    cpu = _ratio(records, ours, theirs, "fit_cpu")
    met = yes_no(None if wall is None or cpu is None else max(wall, cpu) <= 1.0)
    lines.append([f"fit, {ours} over {theirs}", _times(wall), _times(cpu), "≤ 1×", met])
    return markdown_table(["what", "by wall clock", "by CPU time", "goal", "met"], lines)


def _parts_table(records: Mapping[str, Record]) -> str:
    """One more call with stopwatches in it."""
    lines = []
    for name, record in records.items():
        if (taken := record.get("parts_us")) is not None:
            cells = [figure(taken[part]) for part in ("search", "solve", "rest")]
            lines.append([name, *cells, figure(sum(taken.values()))])
    return markdown_table(["name", "search, wall µs", "local solves", "the rest", "all"], lines)


def _ratio(records: Mapping[str, Record], above: str, below: str, field: str) -> float | None:
    if above not in records or below not in records:
        return None
    return records[above][field] / records[below][field]


def _times(ratio: float | None) -> str:
    return MISSING if ratio is None else f"{figure(ratio)}×"


def _solve_note(record: Record) -> str:
    floor = _floor(record, sum(record["flops"].values()))
    ratio = record["microseconds"] / floor
    return (
        f"One point, {record['k']} neighbours, {record['d']} columns, Matérn 3/2, float64, one "
        f"thread; {record['n']} rows, neighbours known; CPU time of the fastest of "
        f"{record['runs']} calls with {record['points']} points. The floor is the number of "
        f"operations over {figure(record['matmul_gflops'])} · 10⁹ a second, the rate of a product "
        "of two 1000 × 1000 matrices. Parts are differences of loops that stop after them; "
        "*factor* has the two right-hand sides and the products in it. Compiled over floor: "
        f"{figure(ratio)} (goal: at most {SOLVE_GOAL:g}; met: {yes_no(ratio <= SOLVE_GOAL)}). "
        "Largest difference of means and variances from torch's: "
        f"{record['difference']:.0e}.\n"
    )


def _solve_table(record: Record) -> str:
    whole = record["microseconds"]
    lines = []
    for part, taken in record["parts"].items():
        flops = record["flops"].get(part)
        lines.append([part, *_solve_cells(record, taken, flops), f"{taken / whole:.0%}"])
    total = sum(record["flops"].values())
    lines.append(["compiled, all", *_solve_cells(record, whole, total), "100%"])
    slow = record["torch_microseconds"]
    lines.append(["torch, batched", *_solve_cells(record, slow, total), f"{slow / whole:.0%}"])
    header = ["part", "µs a point", "operations", "floor µs", "over the floor", "share"]
    return markdown_table(header, lines)


def _solve_cells(record: Record, taken: float, flops: float | None) -> list[str]:
    if flops is None:
        return [figure(taken), MISSING, MISSING, MISSING]
    floor = _floor(record, flops)
    return [figure(taken), f"{flops:,.0f}", figure(floor), figure(taken / floor)]


def _floor(record: Record, flops: float) -> float:
    """Microseconds of so many operations at the rate of a matrix product."""
    return flops / record["matmul_gflops"] / 1e3


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.neighbors_speed",
        description="What a prediction from neighbours costs.",
    )
    parser.add_argument("--set", default="protein", help="one of the larger tables")
    parser.add_argument("--models", type=_models, default=[*CONTESTANTS, LOCAL])
    parser.add_argument("--points", type=positive, help="test rows (default: all of the fold)")
    parser.add_argument("--threads", type=positive, default=2, help="of every model")
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter with the other libraries"
    )
    parser.add_argument("--runs", type=positive, default=5, help="calls, the fastest counts")
    parser.add_argument("--time-limit", type=positive, default=TIME_LIMIT, help="seconds a model")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table-only", action="store_true", help="no fits, only the page")
    parser.add_argument("--alone", choices=[*CONTESTANTS, LOCAL], help=argparse.SUPPRESS)
    parser.add_argument("--input", type=Path, help=argparse.SUPPRESS)
    return parser


def _models(text: str) -> list[str]:
    known = [*CONTESTANTS, LOCAL]
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    if not chosen or any(name not in known for name in chosen):
        raise argparse.ArgumentTypeError(f"{text!r}: choose from {', '.join(known)}")
    return list(dict.fromkeys(chosen))


if __name__ == "__main__":
    raise SystemExit(main())
