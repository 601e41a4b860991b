"""The page of the nine larger tables.

Models may have been run on different folds, and one fold differs from another by more than one good
model from another. So a cell shows the mean over the folds that its model has, but the ranking is
decided pair by pair, each over the folds that both have: a model is first if no other beats it, and
one of ours is *within 1 % of first* if none of the peers' errors is lower by more than that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from benchmarks.large_sets import SETS
from benchmarks.peers import MODELS, OURS, PEERS
from measurements.provenance import provenance
from measurements.store import Record
from measurements.tables import MISSING, figure, markdown_table, mean_sd

__all__ = [
    "COVERAGE",
    "CRPS",
    "METRICS",
    "NEAR",
    "NLPD",
    "RMSE",
    "Cell",
    "Grid",
    "Metric",
    "failure_list",
    "marked",
    "model_list",
    "report",
    "rough",
]

#: "Within 1 % of first".
NEAR = 0.01
NEAR_MARK = "≈"
TARGET_COVERAGE = 0.95


@dataclass(frozen=True)
class Metric:
    """A column of the records, and how it is shown and compared.

    Attributes
    ----------
    field, title, text : str
    loss : callable, optional
        What is compared, the lower the better; None if the column is not compared.
    show : callable
        The text of a cell.
    near : bool
        Whether to mark our models that are close to the first.
    """

    field: str
    title: str
    text: str
    loss: Callable[[float], float] | None
    show: Callable[[Cell], str]
    near: bool = False


@dataclass(frozen=True)
class Cell:
    """The folds of one model on one table."""

    records: Sequence[Record]

    @cached_property
    def scored(self) -> dict[int, Record]:
        """The records that have scores, by fold."""
        return {r["fold"]: r for r in self.records if not r.get("error")}

    @property
    def error(self) -> str | None:
        """One or two words for what went wrong, or None."""
        errors = [str(r["error"]) for r in self.records if r.get("error")]
        if not errors:
            return None
        known = ("time limit", "diverged")
        return next((word for word in known if errors[0].startswith(word)), "failed")

    def values(self, field: str) -> list[float]:
        """Return a field over the folds that have scores."""
        return [r[field] for r in self.scored.values() if r.get(field) is not None]

    def text(self, show: Callable[[Cell], str]) -> str:
        """Return the text of a table cell: a figure, an error, or both."""
        if not self.records:
            return MISSING
        if not self.scored:
            return self.error or MISSING
        return show(self) + (f" ({self.error} on some folds)" if self.error else "")


def _loss_over(cell: Cell, folds: Iterable[int], metric: Metric) -> float:
    assert metric.loss is not None
    return fmean(metric.loss(cell.scored[fold][metric.field]) for fold in folds)


class Grid:
    """All cells."""

    def __init__(self, records: Iterable[Record]) -> None:
        found: dict[tuple[str, str], list[Record]] = defaultdict(list)
        for record in records:
            found[record["model"], record["set"]].append(record)
        self._cells = {key: Cell(group) for key, group in found.items()}
        self.models = [name for name in MODELS if any(key[0] == name for key in self._cells)]
        self.records = [record for group in found.values() for record in group]

    def cell(self, model: str, name: str) -> Cell:
        """Return the cell of a model and table; it is empty if nothing was run."""
        return self._cells.get((model, name), Cell(()))

    def not_beaten(
        self, model: str, name: str, metric: Metric, others: Iterable[str], slack: float = 0.0
    ) -> bool | None:
        """Return whether no other is better by more than the slack; None without another.

        A model that failed on a fold is beaten.
        """
        cell = self.cell(model, name)
        if not cell.scored or cell.error:
            return False
        compared = False
        for other in others:
            rival = self.cell(other, name)
            common = cell.scored.keys() & rival.scored.keys()
            if other == model or not common:
                continue
            compared = True
            mine, theirs = (_loss_over(c, common, metric) for c in (cell, rival))
            if mine > (1.0 + slack) * theirs if slack else mine > theirs:
                return False
        return True if compared else None


def report(records: Iterable[Record]) -> str:
    """Return all tables as one Markdown page."""
    grid = Grid(records)
    ours = [record for record in grid.records if record["model"] in OURS]
    lines = ["# Nine larger tables\n", f"{len(grid.records)} fits."]
    if with_code := [record for record in ours if record.get("code")]:
        lines.append(f"Ours: {provenance(with_code)}")
    lines += [
        "\nScores are of the target standardised by the training rows: mean over the folds that "
        "were run, ± sd if there are several. The best is bold, compared pair by pair over the "
        f"folds that both models have; {NEAR_MARK} marks ours within 1 % of the first.\n",
        *_summary(grid),
        "",
    ]
    for metric in METRICS:
        lines += [f"## {metric.title}\n", f"{metric.text}\n", _table(grid, metric)]
    lines += [
        "## Time and memory\n",
        "CPU seconds per fit, predictions (mean and standard deviation) per CPU second, and the "
        "largest resident memory of the process, libraries and data included.\n",
        _costs(grid),
        "## Models\n",
        model_list(grid),
        *failure_list(grid, "fold"),
    ]
    return "\n".join(lines)


def _summary(grid: Grid) -> list[str]:
    lines = []
    for model in (name for name in grid.models if name in OURS):
        first = sum(grid.not_beaten(model, name, RMSE, PEERS) is True for name in SETS)
        near = sum(grid.not_beaten(model, name, RMSE, PEERS, NEAR) is True for name in SETS)
        run = sum(bool(grid.cell(model, name).records) for name in SETS)
        lines.append(
            f"**{model}: RMSE first or within 1 % of first on {near} of {len(SETS)} sets** "
            f"({first} first; {run} sets run)."
        )
    return lines


def _table(grid: Grid, metric: Metric) -> str:
    rows = [[name, *(marked(grid, model, name, metric) for model in grid.models)] for name in SETS]
    return markdown_table(["set", *grid.models], rows)


def marked(grid: Grid, model: str, name: str, metric: Metric) -> str:
    """Return a cell's text: bold if no other is better; a mark if ours is close to the first."""
    cell = grid.cell(model, name)
    text = cell.text(metric.show)
    if metric.loss is None or not cell.scored:
        return text
    if grid.not_beaten(model, name, metric, grid.models):
        text = f"**{text}**"
    near = metric.near and model in OURS and grid.not_beaten(model, name, metric, PEERS, NEAR)
    return f"{text} {NEAR_MARK}" if near else text


def _costs(grid: Grid) -> str:
    kinds = {
        "fit, CPU s": "fit_cpu",
        "predictions per CPU s": "predictions_a_second",
        "peak, MiB": "peak_mib",
    }
    rows = [
        [
            name,
            title,
            *(grid.cell(model, name).text(lambda c, f=field: rough(c, f)) for model in grid.models),
        ]
        for name in SETS
        for title, field in kinds.items()
    ]
    return markdown_table(["set", "", *grid.models], rows)


def model_list(grid: Grid) -> str:
    """Return a list of the models with their descriptions and versions."""
    rows = []
    for name in grid.models:
        versions = {r.get("version") for r in grid.records if r["model"] == name} - {None}
        rows.append([name, MODELS[name].label, ", ".join(sorted(versions)) or MISSING])
    return markdown_table(["name", "what it is", "version"], rows)


def failure_list(grid: Grid, part: str) -> list[str]:
    """Return a section on the failed fits, empty without any; ``part`` is "fold" or "split"."""
    lines = [
        f"- {record['model']}, {record['set']}, {part} {record['fold']}: {record['error']}"
        for record in grid.records
        if record.get("error")
    ]
    return ["## What went wrong\n", *lines, ""] if lines else []


def rough(cell: Cell, field: str) -> str:
    """Return a mean with two digits."""
    values = cell.values(field)
    return f"{float(figure(fmean(values), 2)):,.6g}" if values else MISSING


def _mean_sd(field: str) -> Callable[[Cell], str]:
    return lambda cell: mean_sd(cell.values(field))


def _qice(cell: Cell) -> str:
    return f"{fmean(cell.values('qice')):.2f} ({fmean(cell.values('qice_floor')):.2f})"


RMSE = Metric(
    "rmse",
    "RMSE",
    "Root mean squared error of the mean.",
    float,
    _mean_sd("rmse"),
    near=True,
)
NLPD = Metric(
    "nlpd",
    "NLPD",
    "Negative log density of the Gaussian with the model's mean and standard deviation.",
    float,
    _mean_sd("nlpd"),
)
COVERAGE = Metric(
    "coverage_95",
    "95 % coverage",
    "Share of the outcomes in the model's own interval if it has one, otherwise in mean ± "
    "1.96 standard deviations; bold: nearest to 0.95.",
    lambda value: abs(value - TARGET_COVERAGE),
    _mean_sd("coverage_95"),
)
CRPS = Metric(
    "crps",
    "CRPS",
    "Continuous ranked probability score of the same Gaussian; for ours, of its own quantiles.",
    float,
    _mean_sd("crps"),
)
METRICS = (
    RMSE,
    NLPD,
    Metric(
        "qice",
        "QICE",
        "In percent, for the same Gaussian; in brackets the expected QICE of a perfectly "
        "calibrated model on as many test rows.",
        float,
        _qice,
    ),
    COVERAGE,
    Metric(
        "hc_rmse",
        "HC-RMSE",
        "RMSE over the tenth of the rows that a model is surest of.",
        float,
        _mean_sd("hc_rmse"),
    ),
    Metric(
        "lc_rmse",
        "LC-RMSE",
        "RMSE over the tenth of the rows that a model is least sure of. It should be above the "
        "HC-RMSE; otherwise neither a low nor a high value is better.",
        None,
        _mean_sd("lc_rmse"),
    ),
)
