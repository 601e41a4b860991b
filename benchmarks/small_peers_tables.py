"""The page of the small tables with other libraries.

One row per model, one column per table. Models may have different numbers of splits, so the best,
shown in bold, is decided pair by pair over the splits that both have, as on the page of the larger
tables. Our own records are those of :mod:`benchmarks.uci_small`, converted to the peers' units (the
standardised target), on the splits that a peer has. If our model was run by the peers' program too,
that record is used instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from statistics import fmean

from benchmarks.large_tables import (
    COVERAGE,
    CRPS,
    NLPD,
    RMSE,
    Cell,
    Grid,
    Metric,
    failure_list,
    marked,
    model_list,
    rough,
)
from benchmarks.uci_tables import REFERENCES
from measurements.pages import scored
from measurements.provenance import provenance
from measurements.store import Record
from measurements.tables import MISSING, figure, markdown_table

__all__ = ["NAME", "our_records", "report"]

#: The default model by the name that it has among the peers.
DEFAULT, NAME = "default", "ours_auto"
METRICS = (RMSE, NLPD, CRPS, COVERAGE)
NEW_ROWS = "nlpd_new_rows"


def our_records(records: Iterable[Record]) -> list[Record]:
    """Return the default model's records of :mod:`benchmarks.uci_small` in the peers' form."""
    return [_as_peers(r) for r in scored(records) if r["model"] == DEFAULT]


def _as_peers(record: Record) -> Record:
    """Return the record in units of the target's sd, as the peers' records are."""
    scale = math.exp(record["nlpd"] - record["nlpd_standardized"])
    on_gpu = str(record.get("device", "")).startswith("cuda")
    return {
        "model": NAME,
        "set": record["set"],
        "fold": record["split"],
        "rmse": record["rmse"] / scale,
        "nlpd": record["nlpd_standardized"],
        "crps": record["crps"] / scale,
        "coverage_95": record["coverage_95"],
        "fit_cpu": None if on_gpu else record["fit_cpu_seconds"],
        "version": record["version"],
        "code": record["code"],
    }


def report(records: Iterable[Record], ours: Iterable[Record] = ()) -> str:
    """Return the page in Markdown."""
    given = list(records)
    peers = [record for record in given if record["model"] != NAME]
    again = [record for record in given if record["model"] == NAME]
    places = {(record["set"], record["fold"]) for record in peers}
    known = {(record["set"], record["fold"]): record for record in [*ours, *again]}
    shown = [record for place, record in known.items() if place in places]
    grid = Grid([*shown, *peers])
    lines = ["# Other libraries on the small UCI tables\n", f"{len(peers)} fits of theirs."]
    if with_code := [record for record in shown if record.get("code")]:
        lines.append(f"Ours (`{NAME}`, the default model): {provenance(with_code)}")
    lines += [
        "\nScores are of the target standardised by the training rows: mean over the splits that "
        "were run, ± sd. The best is bold, compared pair by pair over the splits that both models "
        "have; ≈ marks an RMSE of ours within 1 % of the first. LightGBM and `catboost_rmse` have "
        "no density of their own: their standard deviation is estimated on held-out rows.\n"
    ]
    for metric in METRICS:
        lines += [f"## {metric.title}\n", f"{metric.text}\n", _scores(grid, metric)]
    lines += [
        *_new_rows(grid),
        "## CPU seconds of a fit\n",
        "One thread; our fits on a GPU are left out.\n",
        _table(
            grid, lambda model, name: grid.cell(model, name).text(lambda c: rough(c, "fit_cpu"))
        ),
        "## Splits\n",
        "With scores.\n",
        _table(grid, lambda model, name: str(len(grid.cell(model, name).scored))),
        "## Models\n",
        model_list(grid),
        *failure_list(grid, "split"),
    ]
    return "\n".join(lines)


def _new_rows(grid: Grid) -> list[str]:
    """Return a section on NLPDs without repeated rows; empty if no record has them."""
    there = [record for record in grid.records if record.get(NEW_ROWS) is not None]
    sets = [name for name in REFERENCES if any(record["set"] == name for record in there)]
    rows = [
        [model, *(_with_and_without(grid.cell(model, name)) for name in sets)]
        for model in grid.models
        if any(record["model"] == model for record in there)
    ]
    if not rows:
        return []
    return [
        "## NLPD without repeated rows\n",
        "Some test rows have the inputs of a training row, and on wine its outcome too: a model "
        "with almost no noise gives them a very high density. Mean over all test rows → over the "
        "new rows only, for the splits that were scored both ways.\n",
        markdown_table(["model", *sets], rows),
    ]


def _with_and_without(cell: Cell) -> str:
    both = [r for r in cell.scored.values() if r.get(NEW_ROWS) is not None]
    if not both:
        return MISSING
    first, second = (fmean(r[field] for r in both) for field in ("nlpd", NEW_ROWS))
    return f"{figure(first)} → {figure(second)} ({len(both)})"


def _seconds(cell: Cell) -> str:
    return cell.text(lambda cell: rough(cell, "fit_cpu"))


def _scores(grid: Grid, metric: Metric) -> str:
    return _table(grid, lambda model, name: marked(grid, model, name, metric))


def _table(grid: Grid, text: Callable[[str, str], str]) -> str:
    rows = [[model, *(text(model, name) for name in REFERENCES)] for model in grid.models]
    return markdown_table(["model", *REFERENCES], rows)
