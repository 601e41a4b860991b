"""Rows outside the data: what mean and intervals are worth where no training row is near.

*ours* is the default; *before* is the same fit without what is learned about rows outside the data
(``OutsideSettings(members=0)``). There are three kinds of tables:

- *function*: fourteen functions of one variable, 120 rows in [-3, 3], noise 0.2; tested at
  4 <= |x| <= 8, and inside. One RBF and one Matérn-5/2 process are fitted as well.
- *table*: 400 rows of nineteen tables of numbers. Held out are the lowest and the highest fifth of
  each of the two columns with the largest rank correlation with the target, those of five clusters
  that have 20 to 200 rows, and, to see that nothing changes inside, a random fifth.
- *series*: 500 days with a yearly season, from which the last hundred are forecast.

Five tables also show what the settings are worth: the same fits with other ``OutsideSettings``.

    python -m benchmarks.outside --draws 20
    python -m benchmarks.outside --kinds table --sets yacht,bike
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import RESULTS
from benchmarks.many_tables import NUMERIC, load
from measurements.arguments import names, positive
from measurements.pages import Page, joined, scored
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import markdown_table, mean_se
from twostagegp import ExactGPRegressor, TwoStageGPRegressor, TwoStageGPWarning, metrics
from twostagegp.pipeline.outside.law import Outside
from twostagegp.pipeline.outside.learn import learn_outside
from twostagegp.pipeline.settings import OutsideSettings

__all__ = ["FUNCTIONS", "MEASUREMENT", "SERIES", "Cell", "measure", "without_outside"]

Array = NDArray[np.float64]
Index = NDArray[np.intp]

KINDS = ("function", "table", "series")
DRAWS = 20
FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "x": lambda x: x,
    "|x|": np.abs,
    "max(x, 0)": lambda x: np.maximum(x, 0.0),
    "x² / 3": lambda x: x**2 / 3.0,
    "x³ / 9": lambda x: x**3 / 9.0,
    "exp(x / 2.5)": lambda x: np.exp(x / 2.5),
    "log(1 + |x|)": lambda x: np.log1p(np.abs(x)),
    "tanh x": np.tanh,
    "sign x": np.sign,
    "exp(-x²)": lambda x: np.exp(-(x**2)),
    "sinc x": np.sinc,
    "sin x": np.sin,
    "sin 2x": lambda x: np.sin(2.0 * x),
    "cos 2x + 0.4 x": lambda x: np.cos(2.0 * x) + 0.4 * x,
}
ROWS, NOISE = 120, 0.2
#: Trend of a daily series as a function of the share of the days that are over, from 0 to 1.
SERIES: Mapping[str, Callable[[Array, np.random.Generator], Array]] = {
    "season only": lambda u, rng: 0.0 * u,
    "season, linear trend": lambda u, rng: 4.0 * u,
    "season, trend that levels off": lambda u, rng: 3.0 * (1.0 - np.exp(-3.0 * u)),
    "season, random walk": lambda u, rng: np.cumsum(rng.normal(size=len(u))) * 2.0 / len(u) ** 0.5,
}
DAYS = 500
TABLES = ("diabetes", *NUMERIC)
TABLE_ROWS = 400
#: Largest change of NLPD that enters a mean, in nats: before, some are hundreds.
MOST_NATS = 5.0
#: Tables on which other settings are tried, and these.
VARIANT_TABLES = ("diabetes", "concrete", "power", "bike", "protein")
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "members=1": {"members": 1},
    "members=2": {"members": 2},
    "usual_share=0.95": {"usual_share": 0.95},
    "usual_share=1.0": {"usual_share": 1.0},
    "no ends held out (sizes=())": {"sizes": ()},
    "one size, 1/6": {"sizes": (1 / 6,)},
    "one size, 1/3": {"sizes": (1 / 3,)},
    "largest_variance=1": {"largest_variance": 1.0},
    "largest_variance=16": {"largest_variance": 16.0},
    "variance without limit": {"largest_variance": 1e300},
    "half_depth=0.02": {"half_depth": 0.02},
    "half_depth=0.5": {"half_depth": 0.5},
    "columns=2": {"columns": 2},
    "expected_ends=0.5": {"expected_ends": 0.5},
    "expected_ends=8": {"expected_ends": 8.0},
    "least_added=0.1": {"least_added": 0.1},
    "rows=150": {"rows": 150},
}
#: A variant that is no setting: the same factor, but the mean is not continued.
NO_TRENDS = "the mean is not continued"


@dataclass(frozen=True)
class Cell:
    """One draw of a function or series, or all held-out parts of one draw of a table."""

    kind: str
    set: str
    draw: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add kinds, tables and draws."""
    parser.add_argument("--kinds", type=names(KINDS), help="all by default")
    parser.add_argument("--sets", type=names(TABLES), help="tables; all by default")
    parser.add_argument("--draws", type=positive, help=f"of each function; {DRAWS} by default")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return tables, then series (a quarter of the draws), then functions, draw by draw."""
    draws = given.draws or (1 if given.quick else DRAWS)
    tables = given.sets or (("diabetes",) if given.quick else TABLES)
    functions = ("sin 2x",) if given.quick else FUNCTIONS
    series = ("season, linear trend",) if given.quick else SERIES
    every = [Cell("table", name, 0) for name in tables]
    every += [Cell("series", name, k) for k in range(-(-draws // 4)) for name in series]
    every += [Cell("function", name, k) for k in range(draws) for name in functions]
    return [cell for cell in every if cell.kind in (given.kinds or KINDS)]


# --- one fit -------------------------------------------------------------------------------------


def without_outside(model: TwoStageGPRegressor) -> TwoStageGPRegressor:
    """Return the same fit as ``OutsideSettings(members=0)`` makes it."""
    return _with_outside(model, None)


def _with_outside(model: TwoStageGPRegressor, outside: Outside | None) -> TwoStageGPRegressor:
    (target,) = model.fitted_.targets
    fit = replace(target.fit, outside=outside)
    other = copy.copy(model)
    other.fitted_ = replace(model.fitted_, targets=(replace(target, fit=fit),))
    return other


def _other_settings(model: TwoStageGPRegressor) -> Iterator[tuple[str, Outside | None]]:
    """Yield what each variant learns about rows outside the data from the same fit."""
    (target,) = model.fitted_.targets
    data, mean = target.data, target.fit.mean
    inside = float(data.merged.weight @ mean.heldout_residuals**2 / data.merged.weight.sum())
    for name, changed in VARIANTS.items():
        settings = replace(OutsideSettings(), **changed)
        outside = learn_outside(data.rows, mean, inside, 0, settings)
        if name == "default":
            yield NO_TRENDS, None if outside is None else outside.without_trends()
        yield name, outside


def _scores(model: Any, X: Array, y: Array, scale: float) -> Record:
    """Return scores of one set of rows, the target divided by ``scale``."""
    mean, interval = model.predict(X), model.predict_interval(X)
    found = {
        "coverage": metrics.coverage(y, interval=interval),
        "width": metrics.interval_width(y, interval=interval) / scale,
        "rmse": metrics.rmse(y, mean) / scale,
    }
    if isinstance(model, TwoStageGPRegressor):
        levels = (np.arange(100) + 0.5) / 100
        crps = metrics.crps_from_quantiles(y, model.predict_quantiles(X, levels), levels)
        found["crps"] = crps / scale
        found["nlpd"] = float(np.log(1.0 / scale) - np.mean(model.predict_logpdf(X, y)))
    return found


def _fit(X: Array, y: Array) -> TwoStageGPRegressor:
    return TwoStageGPRegressor(random_state=0, n_jobs=1).fit(X, y)


def _both(model: TwoStageGPRegressor, X: Array, y: Array, scale: float) -> Record:
    """Return scores with and without what is learned about rows outside."""
    before = without_outside(model)
    return {"ours": _scores(model, X, y, scale), "before": _scores(before, X, y, scale)}


def measure(cell: Cell) -> Record:
    """Fit and score one cell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TwoStageGPWarning)
        return {"function": _function, "table": _table, "series": _series}[cell.kind](cell)


def _function(cell: Cell) -> Record:
    rng, f = _rng(cell), FUNCTIONS[cell.set]
    x = rng.uniform(-3.0, 3.0, ROWS)
    inside = rng.uniform(-3.0, 3.0, 200)
    outside = rng.uniform(4.0, 8.0, 400) * np.repeat([1.0, -1.0], 200)
    y, inner, outer = (f(v) + NOISE * rng.normal(size=len(v)) for v in (x, inside, outside))
    ours, X = _fit(x[:, None], y), x[:, None]
    models = {
        "ours": ours,
        "before": without_outside(ours),
        "rbf": ExactGPRegressor("rbf", random_state=0, n_jobs=1).fit(X, y),
        "matern52": ExactGPRegressor("matern52", random_state=0, n_jobs=1).fit(X, y),
    }
    return {
        "inside": {k: _scores(m, inside[:, None], inner, 1.0) for k, m in models.items()},
        "outside": {k: _scores(m, outside[:, None], outer, 1.0) for k, m in models.items()},
        "changed": _changed(ours, inside[:, None]),
    }


def _changed(model: TwoStageGPRegressor, X: Array) -> float:
    """Return the share of rows whose prediction is not that of the three parts."""
    return float(np.mean(model.predict(X, return_support=True)[1] < 1.0))


def _series(cell: Cell) -> Record:
    """Columns are the day and sine and cosine of the day of the year."""
    rng, day = _rng(cell), np.arange(float(DAYS))
    year = 2.0 * np.pi * day / 365.25
    X = np.column_stack([day, np.sin(year), np.cos(year)])
    y = np.sin(year) + SERIES[cell.set](day / DAYS, rng) + 0.3 * rng.normal(size=DAYS)
    train, test = np.arange(DAYS) < 0.8 * DAYS, np.arange(DAYS) >= 0.8 * DAYS
    model = _fit(X[train], y[train])
    return {"outside": _both(model, X[test], y[test], float(y[train].std()))}


def held_out_parts(X: Array, y: Array) -> Iterator[tuple[str, Index]]:
    """Yield name and rows of each part of a table that is held out.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> [name for name, rows in held_out_parts(X, X[:, 1])][:4]
    ['low 1', 'high 1', 'low 0', 'high 0']
    """
    from scipy.stats import spearmanr
    from sklearn.cluster import KMeans

    n = len(y)
    columns = [j for j in range(X.shape[1]) if len(np.unique(X[:, j])) >= 12]
    for j in sorted(columns, key=lambda j: -abs(spearmanr(X[:, j], y)[0]))[:2]:
        order = np.argsort(X[:, j], kind="stable")
        yield f"low {j}", order[: n // 5]
        yield f"high {j}", order[-(n // 5) :]
    Z = (X - X.mean(0)) / (X.std(0) + 1e-12)
    labels = KMeans(5, n_init=3, random_state=0).fit_predict(Z)
    for g, size in enumerate(np.bincount(labels)):
        if 20 <= size <= n // 2:
            yield f"cluster {g}", np.flatnonzero(labels == g)
    yield "random", np.random.default_rng(0).permutation(n)[: n // 5]


def _table(cell: Cell) -> Record:
    every, target = load(cell.set)
    rows = _rng(cell).permutation(len(target))[:TABLE_ROWS]
    X, y = np.asarray(every, dtype=float)[rows], np.asarray(target, dtype=float)[rows]
    parts = [_part(cell, name, X, y, out) for name, out in held_out_parts(X, y)]
    return {"parts": parts}


def _part(cell: Cell, name: str, X: Array, y: Array, out: Index) -> Record:
    rest = np.setdiff1d(np.arange(len(y)), out)
    begin = time.process_time()
    model = _fit(X[rest], y[rest])
    seconds, scale = time.process_time() - begin, float(y[rest].std())
    fit, data = model.fitted_.fits[0], model.fitted_.data[0]
    begin = time.process_time()
    learn_outside(data.rows, fit.mean, float(np.mean(fit.mean.heldout_residuals**2)), 0)
    learning = time.process_time() - begin
    found = {
        "name": name,
        "n": len(out),
        "has_outside": fit.outside is not None,
        "support": float(np.mean(model.predict(X[out], return_support=True)[1])),
        "changed": _changed(model, X[out]),
        "fit_cpu_seconds": seconds,
        "outside_cpu_seconds": learning,
        "scores": _both(model, X[out], y[out], scale),
    }
    if cell.set in VARIANT_TABLES:
        found["variants"] = {
            variant: _scores(_with_outside(model, outside), X[out], y[out], scale)
            for variant, outside in _other_settings(model)
        }
    return found


def _rng(cell: Cell) -> np.random.Generator:
    return np.random.default_rng([cell.draw, zlib.crc32(cell.set.encode())])


# --- page ----------------------------------------------------------------------------------------


def _of(records: Sequence[Record], kind: str) -> list[Record]:
    return [record for record in scored(records) if record["kind"] == kind]


_MODELS = {"ours": "ours", "before": "before", "rbf": "one RBF process", "matern52": "one Matérn"}
_PAIR = ("ours", "before")


def _functions(records: list[Record]) -> str:
    found = _of(records, "function")
    if not found:
        return ""
    head = ["function", *(f"{title}, coverage" for title in _MODELS.values())]
    head += [f"{_MODELS[m]}, {what}" for what in ("width", "RMSE") for m in ("ours", "before")]
    rows = [
        _function_row(name, [r for r in found if r["set"] == name])
        for name in FUNCTIONS
        if any(r["set"] == name for r in found)
    ]
    rows.append(_function_row("**all**", found))
    inside = [
        [
            title,
            *(
                mean_se([r["inside"][model][score] for r in found])
                for score in ("coverage", "width", "rmse")
            ),
        ]
        for model, title in _MODELS.items()
    ]
    changed = mean_se([100.0 * r["changed"] for r in found])
    return joined(
        "Tested at 4 ≤ |x| ≤ 8, where no training row is. Coverage, mean width and RMSE of 95 % "
        "intervals; mean ± standard error over the draws.",
        markdown_table(head, rows),
        f"Inside, at |x| ≤ 3; {changed} % of these rows have a support below 1.",
        markdown_table(["model", "coverage", "width", "RMSE"], inside),
    )


def _function_row(name: str, own: Sequence[Record]) -> list[str]:
    def score(model: str, what: str) -> str:
        return mean_se([r["outside"][model][what] for r in own])

    coverage = [score(model, "coverage") for model in _MODELS]
    return [name, *coverage, *(score(m, w) for w in ("width", "rmse") for m in _PAIR)]


@dataclass(frozen=True)
class _Case:
    """One held-out part: scores of two models, the second as reference."""

    name: str
    ours: Record
    before: Record

    @property
    def group(self) -> str:
        """What kind of part it is."""
        kind = self.name.split()[0]
        return {"low": "ends of columns", "high": "ends of columns", "cluster": "clusters"}.get(
            kind, "random rows"
        )


def _cases(records: Sequence[Record]) -> dict[str, list[_Case]]:
    return {
        r["set"]: [_Case(p["name"], p["scores"]["ours"], p["scores"]["before"]) for p in r["parts"]]
        for r in _of(records, "table")
    }


def _ratio(cases: Sequence[_Case], score: str) -> str:
    """Return the geometric mean of ratios, with its standard error."""
    logs = np.log([case.ours[score] / case.before[score] for case in cases])
    mean = float(np.exp(logs.mean()))
    error = mean * float(logs.std(ddof=1)) / len(logs) ** 0.5 if len(logs) > 1 else float("nan")
    return f"{mean:.3f} ± {error:.3f}" if len(logs) > 1 else f"{mean:.3f}"


def _nats(cases: Sequence[_Case]) -> str:
    change = [case.ours["nlpd"] - case.before["nlpd"] for case in cases]
    return mean_se(list(np.clip(change, -MOST_NATS, MOST_NATS)), 2)


def _comparison(title: str, cases: Sequence[_Case]) -> list[str]:
    low = [mean_se([100.0 * (s["coverage"] < 0.8) for s in each]) for each in _pairs(cases)]
    coverage = [mean_se([s["coverage"] for s in each]) for each in _pairs(cases)]
    ratios = [_ratio(cases, score) for score in ("rmse", "width", "crps")]
    return [title, str(len(cases)), *coverage, *low, _nats(cases), *ratios]


def _pairs(cases: Sequence[_Case]) -> tuple[list[Record], list[Record]]:
    return [case.ours for case in cases], [case.before for case in cases]


_COMPARED = [
    *("cases", "coverage, ours", "before", "below 80 %, ours (% of cases)", "before"),
    *("NLPD change", "RMSE ratio", "width ratio", "CRPS ratio"),
]
_GROUPS = ("ends of columns", "clusters", "random rows")


def _tables(records: list[Record]) -> str:
    by_table = _cases(records)
    every = [case for cases in by_table.values() for case in cases]
    if not every:
        return ""
    rows = [
        _comparison(group, own)
        for group in _GROUPS
        if (own := [case for case in every if case.group == group])
    ]
    parts = [part for r in _of(records, "table") for part in r["parts"]]
    share = float(np.median([p["outside_cpu_seconds"] / p["fit_cpu_seconds"] for p in parts]))
    random = [part for part in parts if part["name"] == "random"]
    without = sum(not part["has_outside"] for part in parts)
    return joined(
        "Means ± standard errors over held-out parts. Coverage is that of 95 % intervals. The "
        f"NLPD change is in nats, each limited to ±{MOST_NATS:g}. Ratios are geometric means of "
        "ours / before; below 1 is better for RMSE and CRPS.",
        markdown_table(["held out", *_COMPARED], rows),
        f"Of the random rows, {mean_se([100.0 * p['changed'] for p in random])} % have a support "
        f"below 1. Learning what is added takes {100.0 * share:.1f} % of the CPU time of a fit "
        f"(median). {without} of {len(parts)} fits have no kernel ridge in the stack; nothing is "
        "added to them.",
    )


def _each_table(records: list[Record]) -> str:
    rows = [
        _comparison(name, own)
        for name, cases in _cases(records).items()
        if (own := [case for case in cases if case.group != "random rows"])
    ]
    return markdown_table(["table", *_COMPARED], rows) if rows else ""


def _forecasts(records: list[Record]) -> str:
    found = _of(records, "series")
    rows = []
    for name in SERIES:
        own = [
            _Case("series", r["outside"]["ours"], r["outside"]["before"])
            for r in found
            if r["set"] == name
        ]
        if own:
            rows.append(_comparison(name, own))
    if not rows:
        return ""
    text = "The last hundred of 500 days, predicted from the first four hundred."
    return joined(text, markdown_table(["series", *_COMPARED], rows))


def _settings(records: list[Record]) -> str:
    parts = [p for r in _of(records, "table") for p in r["parts"] if "variants" in p]
    outer = [part for part in parts if part["name"] != "random"]
    inner = [part for part in parts if part["name"] == "random"]
    if not outer:
        return ""
    rows = []
    for name in [*VARIANTS, NO_TRENDS]:
        cases = [_Case(p["name"], p["variants"][name], p["variants"]["default"]) for p in outer]
        inside = [_Case(p["name"], p["variants"][name], p["variants"]["default"]) for p in inner]
        ours = [case.ours for case in cases]
        rows.append(
            [
                name,
                mean_se([s["coverage"] for s in ours]),
                mean_se([100.0 * (s["coverage"] < 0.8) for s in ours]),
                _nats(cases),
                *(_ratio(cases, score) for score in ("rmse", "width", "crps")),
                _ratio(inside, "crps") if inside else "–",
            ]
        )
    head = ["settings", "coverage", "below 80 % (% of cases)", "NLPD change"]
    head += ["RMSE ratio", "width ratio", "CRPS ratio", "CRPS ratio, random rows"]
    return joined(
        f"Ends and clusters of {', '.join(VARIANT_TABLES)}: {len(outer)} held-out parts. Changes "
        "and ratios are against the default.",
        markdown_table(head, rows),
    )


MEASUREMENT = Measurement(
    name="outside",
    about="Rows outside the data.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page(
        "Outside the data",
        {
            "Functions of one variable": _functions,
            "Held-out ends and clusters of tables": _tables,
            "Table by table": _each_table,
            "Forecasts of daily series": _forecasts,
            "Settings": _settings,
        },
        command="python -m benchmarks.outside",
        failed_by=("kind", "set", "draw"),
        counted="cells",
    ),
    arguments=arguments,
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
