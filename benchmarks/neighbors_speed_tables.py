"""The page of :mod:`benchmarks.neighbors_speed`."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.neighbors_contestants import CONTESTANTS, LOCAL, WARM_POINTS
from measurements.pages import NO_RECORDS, joined, scored
from measurements.store import Record
from measurements.tables import MISSING, figure, markdown_table, yes_no

__all__ = ["report"]

#: (ours, theirs, how many times as many predictions per second).
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


def report(records: list[Record]) -> str:
    """Return the Markdown page."""
    if not records:
        return joined("# Speed of predictions from neighbours", NO_RECORDS)
    parts = ["# Speed of predictions from neighbours", _head(records)]
    known: dict[str, dict[str, Record]] = {}
    for record in records:
        if record["model"] != LOCAL:
            known.setdefault(record["set"], {})[record["model"]] = record
    for name, by_model in known.items():
        usable = {r["model"]: r for r in scored(by_model.values())}
        parts += [f"## Predictions on {name}", _note(usable), _table(usable)]
        failed = [f"- {r['model']}: {r['error']}" for r in by_model.values() if r.get("error")]
        parts += ["\n".join(failed), f"### Goals on {name}", _goal_table(usable)]
        if any("parts_us" in record for record in usable.values()):
            parts += [f"### Where the time of ours goes on {name}", _parts_table(usable)]
    for record in scored(records):
        if record["model"] == LOCAL:
            parts += ["## Local solves", _solve_note(record), _solve_table(record)]
    return joined(*parts)


def _head(records: list[Record]) -> str:
    states = sorted({(r["version"], r["code"]) for r in records if r.get("code")})
    note = "**Mixed states of the code**: " if len(states) > 1 else ""
    listed = ", ".join(f"twostagegp {version} (source {code})" for version, code in states)
    others = sorted({r["version"] for r in records if not r.get("code") and r.get("version")})
    machines = sorted({r["machine"] for r in records if "machine" in r})
    loads = [r["load"] for r in records if "load" in r]
    busy = f"; load {min(loads):.1f} to {max(loads):.1f} before each model" if loads else ""
    return f"{note}{'; '.join([listed, *others, *machines])}{busy}."


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
        text += f" Fewer points than there are, so **extrapolated** per point: {', '.join(slow)}."
    return text


def _table(records: Mapping[str, Record]) -> str:
    header = ["name", "model", "neighbours", "fit, wall s", "fit, CPU s", "first call, s", "points"]
    header += ["predictions per s", "wall µs per point", "of the slowest call"]
    header += ["CPU µs per point", "RMSE", "NLPD"]
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
        what = f"predictions per second, {ours} over {theirs}"
        lines.append([what, _times(wall), _times(cpu), f"≥ {goal:g}×", met])
    ours, theirs = FIT_GOAL
    wall = _ratio(records, ours, theirs, "fit_wall")
    cpu = _ratio(records, ours, theirs, "fit_cpu")
    met = yes_no(None if wall is None or cpu is None else max(wall, cpu) <= 1.0)
    lines.append([f"fit, {ours} over {theirs}", _times(wall), _times(cpu), "≤ 1×", met])
    return markdown_table(["what", "by wall clock", "by CPU time", "goal", "met"], lines)


def _parts_table(records: Mapping[str, Record]) -> str:
    """Return the parts of one more call, which has stopwatches in it."""
    lines = []
    for name, record in records.items():
        if (taken := record.get("parts_us")) is not None:
            cells = [figure(taken[part]) for part in ("search", "solve", "rest")]
            lines.append([name, *cells, figure(sum(taken.values()))])
    return markdown_table(
        ["name", "search, wall µs per point", "local solves", "the rest", "all"], lines
    )


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
        f"operations over {figure(record['matmul_gflops'])} · 10⁹ per second, the rate of a "
        "product of two 1000 × 1000 matrices. Parts are differences of loops that stop after them; "
        "*factor* has the two right-hand sides and the products in it. Compiled over floor: "
        f"{figure(ratio)} (goal: at most {SOLVE_GOAL:g}; met: {yes_no(ratio <= SOLVE_GOAL)}). "
        "Largest difference of means and variances from torch's: "
        f"{record['difference']:.0e}."
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
    header = ["part", "µs per point", "operations", "floor µs", "over the floor", "share"]
    return markdown_table(header, lines)


def _solve_cells(record: Record, taken: float, flops: float | None) -> list[str]:
    if flops is None:
        return [figure(taken), MISSING, MISSING, MISSING]
    floor = _floor(record, flops)
    return [figure(taken), f"{flops:,.0f}", figure(floor), figure(taken / floor)]


def _floor(record: Record, flops: float) -> float:
    """Return the microseconds of so many operations at the rate of a matrix product."""
    return flops / record["matmul_gflops"] / 1e3
