r"""How often do 95 % intervals of the function itself, without noise, contain a known function?

    python -m benchmarks.function_intervals --draws 10
    python -m benchmarks.function_intervals --functions friedman,smooth

Four intervals are compared on the same rows:

- *ours*: ``predict_interval(X, 0.95, noise=False)`` of the default estimator
- *part 2 alone*: the mean of the same fit plus and minus 1.96 standard deviations of the latent
  function of its second stage, which ``return_latent_std`` returned before
- *rbf*, *matern52*: one exact process with that kernel

There are ten functions of one variable, with x uniform in [-3, 3], and two functions of several
columns, uniform on the unit cube (:mod:`benchmarks.known_laws`). The noise is Gaussian, with a
constant standard deviation; for functions of one variable also with one that grows along x,
0.05 + 0.4 (x + 3) / 6. Test inputs have the distribution of the training inputs.
"""

from __future__ import annotations

import argparse
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from benchmarks import RESULTS
from benchmarks.known_laws import friedman, smooth
from benchmarks.outside import FUNCTIONS as EVERY_FUNCTION
from measurements.arguments import names, positive
from measurements.pages import Page, joined, scored, standard_error
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import MISSING, markdown_table, mean_se
from twostagegp import ExactGPRegressor, TwoStageGPRegressor, TwoStageGPWarning, metrics

__all__ = [
    "MEASUREMENT",
    "Cell",
    "Law",
    "Rows",
    "cells",
    "generate",
    "interval_scores",
    "measure",
    "part_2_interval",
]

Array = NDArray[np.float64]

LEVEL = 0.95
#: Half the width of a Gaussian interval of that level, in standard deviations.
HALF_WIDTH = float(ndtri(0.5 + LEVEL / 2.0))
#: Functions of one variable on [-3, 3].
FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    name: EVERY_FUNCTION[name]
    for name in (
        *("x", "|x|", "x² / 3", "exp(x / 2.5)", "tanh x", "sign x"),
        *("exp(-x²)", "sinc x", "sin 2x", "cos 2x + 0.4 x"),
    )
}


@dataclass(frozen=True)
class Law:
    """A function of several columns, the number of columns and the noise's standard deviation."""

    function: Callable[[Array], Array]
    columns: int
    noise: float


LAWS: Mapping[str, Law] = {"friedman": Law(friedman, 10, 1.0), "smooth": Law(smooth, 4, 0.2)}

CONSTANT, CHANGING = "constant", "changing"
#: Standard deviation of the noise of a function of one variable at x.
NOISE: Mapping[str, Callable[[Array], Array]] = {
    CONSTANT: lambda x: np.full_like(x, 0.2),
    CHANGING: lambda x: 0.05 + 0.4 * (x + 3.0) / 6.0,
}
#: Training rows for functions of one variable and of several columns.
ROWS, LAW_ROWS = (60, 120, 400), (100, 400)
#: Training rows of the table by function, and of a quick run.
MIDDLE_ROWS = 120
TEST_ROWS = 1000
#: A draw whose intervals cover less than this is counted.
LOW_COVERAGE = 0.8
DRAWS = 10
MODELS: Mapping[str, str] = {
    "ours": "ours",
    "part_2": "part 2 alone",
    "rbf": "one RBF process",
    "matern52": "one Matérn-5/2 process",
}


@dataclass(frozen=True)
class Cell:
    """One draw of a function with noise, to which all models are fitted."""

    noise: str
    function: str
    rows: int
    draw: int


@dataclass(frozen=True)
class Rows:
    """Training rows, and test rows with the value of the function there.

    Attributes
    ----------
    X, y : arrays of shape (rows, columns) and (rows,)
    X_test, f_test : arrays of shape (TEST_ROWS, columns) and (TEST_ROWS,)
    noise : float
        Root mean square of the noise's standard deviation at the test rows.
    """

    X: Array
    y: Array
    X_test: Array
    f_test: Array
    noise: float


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the noise, the functions and the draws of a run."""
    parser.add_argument("--noise", type=names(NOISE), help="kinds of noise; all by default")
    parser.add_argument("--functions", type=names([*FUNCTIONS, *LAWS]), help="all by default")
    parser.add_argument("--draws", type=positive, help=f"number of draws; {DRAWS} by default")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return all kinds of noise, functions and numbers of rows, draw by draw."""
    quick = ("sin 2x", "smooth")
    functions = given.functions or (quick if given.quick else (*FUNCTIONS, *LAWS))
    return [
        Cell(noise, function, rows, number)
        for number in range(given.draws or (1 if given.quick else DRAWS))
        for noise in given.noise or NOISE
        for function in functions
        for rows in _numbers_of_rows(noise, function, given.quick)
    ]


def _numbers_of_rows(noise: str, function: str, quick: bool) -> Sequence[int]:
    """Return the numbers of training rows; none for several columns and changing noise."""
    if function in LAWS:
        return () if noise == CHANGING else LAW_ROWS[: 1 if quick else None]
    return (MIDDLE_ROWS,) if quick else ROWS


def generate(cell: Cell) -> Rows:
    """Return the rows of a cell; both kinds of noise have the same inputs and normal variables."""
    rng = np.random.default_rng([cell.draw, cell.rows, zlib.crc32(cell.function.encode())])
    n = cell.rows + TEST_ROWS
    if cell.function in LAWS:
        law = LAWS[cell.function]
        X = rng.uniform(size=(n, law.columns))
        f, std = law.function(X), np.full(n, law.noise)
    else:
        X = rng.uniform(-3.0, 3.0, size=(n, 1))
        f, std = FUNCTIONS[cell.function](X[:, 0]), NOISE[cell.noise](X[:, 0])
    train, test = slice(cell.rows), slice(cell.rows, None)
    y = f[train] + std[train] * rng.normal(size=cell.rows)
    return Rows(X[train], y, X[test], f[test], float(np.sqrt(np.mean(std[test] ** 2))))


def measure(cell: Cell) -> Record:
    """Fit all models to one draw and score their intervals of the function."""
    rows = generate(cell)
    X, f = rows.X_test, rows.f_test
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TwoStageGPWarning)
        ours = TwoStageGPRegressor(random_state=0, n_jobs=1).fit(rows.X, rows.y)
        models: dict[str, Any] = {"ours": ours}
        for kernel in ("rbf", "matern52"):
            process = ExactGPRegressor(kernel, random_state=0, n_jobs=1)
            models[kernel] = process.fit(rows.X, rows.y)
        found = {
            name: interval_scores(
                f, model.predict(X), model.predict_interval(X, LEVEL, noise=False), rows.noise
            )
            for name, model in models.items()
        }
        mean, interval = part_2_interval(ours, X)
        found["part_2"] = interval_scores(f, mean, interval, rows.noise)
    return {**found, "has_members": ours.fitted_.fits[0].outside is not None}


def part_2_interval(model: TwoStageGPRegressor, X: Array) -> tuple[Array, Array]:
    """Return the mean, and the interval that part 2 of the model alone would give the function."""
    means, latents, _ = model.fitted_.moments(X)
    assert latents is not None
    mean, half = means[:, 0], HALF_WIDTH * np.sqrt(latents[:, 0])
    return mean, np.stack([mean - half, mean + half], axis=1)


def interval_scores(f: Array, mean: Array, interval: Array, noise: float) -> Record:
    r"""Return scores of intervals of the function, given its true values f.

    ``relative_width`` compares their mean width with the error of the mean,

    .. math:: \frac{\tfrac{1}{n} \sum_i (u_i - l_i)}{2 \cdot 1.96 \, \mathrm{RMSE}} .

    ``rmse`` is in units of the noise's standard deviation ``noise``.

    Examples
    --------
    >>> f, mean = np.array([0.0, 3.0]), np.array([1.0, 2.0])
    >>> interval = np.array([[-0.96, 2.96], [0.04, 2.96]])
    >>> {name: round(score, 3) for name, score in interval_scores(f, mean, interval, 2.0).items()}
    {'coverage': 0.5, 'relative_width': 0.872, 'rmse': 0.5}
    """
    rmse, width = metrics.rmse(f, mean), metrics.interval_width(f, interval=interval)
    return {
        "coverage": metrics.coverage(f, interval=interval),
        "relative_width": width / (2.0 * HALF_WIDTH * rmse),
        "rmse": rmse / noise,
    }


# --- page ----------------------------------------------------------------------------------------


def _of(records: Sequence[Record], noise: str, functions: Mapping[str, Any]) -> list[Record]:
    return [r for r in scored(records) if r["noise"] == noise and r["function"] in functions]


def _about(records: Sequence[Record]) -> str:
    """Return what the columns of the tables are."""
    found = scored(records)
    without = sum(not record["has_members"] for record in found)
    return (
        f"95 % intervals of the function, without noise, at {TEST_ROWS} test rows with the "
        "distribution of the training rows. *ours*: `predict_interval(X, 0.95, noise=False)`; "
        "*part 2 alone*: the same mean ± 1.96 standard deviations of the latent function of part "
        "2. Coverage: share of the test rows at which the interval contains the function. "
        "Below 80 %: share of the draws for which that share is below 0.8. "
        "Width / error: mean width of the intervals divided by 2 · 1.96 · RMSE (geometric mean); "
        "near 1 if their width agrees with the errors. RMSE: that of the mean against the "
        "function, in units of the noise's standard deviation (its root mean square over the test "
        "rows). Mean ± standard error over draws and functions. "
        f"{without} of {len(found)} default fits have no kernel ridge in the stack; for them "
        "*ours* is *part 2 alone*."
    )


def _by_rows(noise: str, functions: Mapping[str, Any], text: str) -> Callable[[list[Record]], str]:
    """Return a section whose table has one line per number of rows and model."""

    def section(records: list[Record]) -> str:
        found = _of(records, noise, functions)
        lines = [
            _line(str(number), model, [record for record in found if record["rows"] == number])
            for number in sorted({record["rows"] for record in found})
            for model in MODELS
        ]
        head = ("rows", "model", "coverage", "below 80 % (% of draws)", "width / error", "RMSE")
        return joined(text, markdown_table(head, lines)) if lines else ""

    return section


def _line(rows: str, model: str, records: Sequence[Record]) -> list[str]:
    low = [100.0 * (record[model]["coverage"] < LOW_COVERAGE) for record in records]
    return [
        rows,
        MODELS[model],
        _mean(records, model, "coverage"),
        mean_se(low),
        _geometric_mean(records, model, "relative_width"),
        _mean(records, model, "rmse"),
    ]


def _by_function(records: list[Record]) -> str:
    """Return coverage by function of one variable, for both kinds of noise."""
    found = {
        noise: [r for r in _of(records, noise, FUNCTIONS) if r["rows"] == MIDDLE_ROWS]
        for noise in NOISE
    }
    measured = {record["function"] for own in found.values() for record in own}
    if not measured:
        return ""
    head = ["function", *(f"{title}, {noise}" for noise in NOISE for title in MODELS.values())]
    lines = [
        [
            name,
            *(
                _mean([r for r in found[noise] if r["function"] == name], model, "coverage")
                for noise in NOISE
                for model in MODELS
            ),
        ]
        for name in FUNCTIONS
        if name in measured
    ]
    return joined(
        f"Coverage for {MIDDLE_ROWS} training rows, with constant noise and with noise that "
        "changes with x; mean ± standard error over the draws.",
        markdown_table(head, lines),
    )


def _mean(records: Sequence[Record], model: str, score: str) -> str:
    return mean_se([record[model][score] for record in records])


def _geometric_mean(records: Sequence[Record], model: str, score: str) -> str:
    """Return the geometric mean with its standard error: ratios are far from symmetric."""
    logs = [float(np.log(record[model][score])) for record in records]
    if not logs:
        return MISSING
    mean = float(np.exp(np.mean(logs)))
    return f"{mean:.2f} ± {mean * standard_error(logs):.2f}" if len(logs) > 1 else f"{mean:.2f}"


MEASUREMENT = Measurement(
    name="function_intervals",
    about="Intervals of a known function, without noise.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page(
        "Intervals of the function itself",
        {
            "Constant noise": _by_rows(
                CONSTANT,
                FUNCTIONS,
                "Functions of one variable; the standard deviation of the noise is 0.2.",
            ),
            "Noise that changes with x": _by_rows(
                CHANGING,
                FUNCTIONS,
                "The same functions and inputs; the standard deviation of the noise grows from "
                "0.05 at x = −3 to 0.45 at x = 3.",
            ),
            "Several columns": _by_rows(
                CONSTANT,
                LAWS,
                "Friedman's first function (ten columns, five of them without effect, noise of "
                "standard deviation 1) and a smooth function of four columns (0.2).",
            ),
            "By function": _by_function,
        },
        about=_about,
        command="python -m benchmarks.function_intervals",
        failed_by=("noise", "function", "rows", "draw"),
        counted="draws",
    ),
    arguments=arguments,
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
