"""The demonstration: three models on two small tables, and a page about the two-stage model.

Run ``python -m twostagegp.cli.demo``. It uses the paper's toy function and scikit-learn's diabetes
table, downloads nothing, and takes less than a minute on one core. The page is the one of
:func:`twostagegp.report.write_report` for the diabetes table, with an additional section that
compares the models.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from twostagegp import ExactGPRegressor, TwoStageGPRegressor, datasets, metrics, plotting
from twostagegp.estimators.base import BaseGPRegressor
from twostagegp.report import Picture, write_page
from twostagegp.report.write import report_context

__all__ = ["Result", "Task", "load_tasks", "main", "verdict"]

Array = NDArray[np.float64]

PAPER, OPTIMISED, TWO_STAGE = "Single-stage, paper", "Single-stage, optimised", "Two-stage"
TOY, DIABETES = "Toy", "Diabetes"
#: Limits of the toy's inputs.
TOY_RANGE = (-5.0, 5.0)

INTRODUCTION = (
    "A two-stage Gaussian process and single-stage ones predict the same rows. "
    "The two-stage model first predicts the mean, then learns the uncertainty from the errors of "
    "the mean on held-out rows, and calibrates the result on held-out rows as well. "
    "The single-stage model appears twice, trained briefly as in the paper and optimised well, "
    "because a comparison with a poorly trained model proves little."
)


@dataclass(frozen=True)
class Task:
    """A table, split into training and test rows.

    Attributes
    ----------
    name, description : str
    X_train, X_test : arrays or data frames of shape (n, d) and (m, d)
    y_train, y_test : arrays or series of shape (n,) and (m,)
    """

    name: str
    description: str
    X_train: Any
    y_train: Any
    X_test: Any
    y_test: Any


@dataclass(frozen=True)
class Result:
    """A model after its fit, and its predictions for the test rows of a task."""

    task: Task
    model_name: str
    model: BaseGPRegressor
    mean: Array
    std: Array
    seconds: float

    @property
    def scores(self) -> dict[str, str]:
        """Row of the table of scores, as text."""
        y = self.task.y_test
        return {
            "model": self.model_name,
            "rmse": f"{metrics.rmse(y, self.mean):#.4g}",
            "nlpd": f"{metrics.nlpd(y, self.mean, self.std):.3f}",
            "coverage": _percent(metrics.coverage(y, self.mean, self.std)),
            "seconds": f"{self.seconds:.1f}",
        }

    @property
    def log_density(self) -> Array:
        """Log predictive density of each test row."""
        return np.asarray(self.model.predict_logpdf(self.task.X_test, self.task.y_test))


def load_tasks(quick: bool = False) -> list[Task]:
    """Return the two tables with their splits; ``quick`` keeps 80 rows of the second.

    The training rows of the toy are 80 % of the paper's 30 points. The other six would say little,
    so its test rows are 1000 new points from the same distribution.
    """
    X, y = datasets.toy(n=30, random_state=0)
    X_train, _, y_train, _ = train_test_split(X, y, test_size=0.2, random_state=0)
    X_test, y_test = datasets.toy(n=1000, random_state=1)
    toy = Task(TOY, _describe("Toy function", X_train, X_test), X_train, y_train, X_test, y_test)
    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    y = y.rename("progression")
    rows = 80 if quick else len(y)
    X_train, X_test, y_train, y_test = train_test_split(
        X.head(rows), y.head(rows), test_size=0.2, random_state=0
    )
    text = _describe("Diabetes", X_train, X_test)
    return [toy, Task(DIABETES, text, X_train, y_train, X_test, y_test)]


def _describe(name: str, X_train: Any, X_test: Any) -> str:
    return f"{name} ({len(X_train)} training rows, {len(X_test)} test rows)"


def make_models(quick: bool = False) -> dict[str, BaseGPRegressor]:
    """Return the three models by name; ``quick`` gives the two-stage one fewer kernels."""
    fewer: dict[str, Any] = {"kernels": ("rbf", "matern12"), "ard": False} if quick else {}
    return {
        PAPER: ExactGPRegressor.from_paper(random_state=0),
        OPTIMISED: ExactGPRegressor("rbf", random_state=0),
        TWO_STAGE: TwoStageGPRegressor(random_state=0, **fewer),
    }


def run_all(tasks: Iterable[Task], quick: bool, console: Console) -> list[Result]:
    """Fit every model to every task, and print one line of progress per fit."""
    results = []
    for task in tasks:
        for name, model in make_models(quick).items():
            console.print(f"Fitting {name} to {task.description}", highlight=False, soft_wrap=True)
            begin = time.perf_counter()
            model.fit(task.X_train, task.y_train)
            seconds = time.perf_counter() - begin
            mean, std = model.predict(task.X_test, return_std=True)
            results.append(Result(task, name, model, mean, std, seconds))
    return results


def verdict(results: Sequence[Result]) -> str:
    """Return a sentence that says on which tables the two-stage model is not better.

    The log densities of the test rows are compared in pairs. A mean difference of less than twice
    its standard error counts as a tie.
    """
    by_name = {(r.task.name, r.model_name): r for r in results}
    parts = []
    for name in dict.fromkeys(r.task.name for r in results):
        for rival in (OPTIMISED, PAPER):
            gain = by_name[name, TWO_STAGE].log_density - by_name[name, rival].log_density
            mean, error = float(gain.mean()), float(gain.std(ddof=1)) / math.sqrt(len(gain))
            if mean > 2.0 * error:
                continue
            word = "worse than" if mean < -2.0 * error else "no better than"
            gap = _minus(f"{-mean:+.3f} ± {error:.3f}")
            parts.append(f"on {name} it is {word} “{rival}” ({gap})")
    if not parts:
        return "Here two-stage is better than both single-stage models on both tables."
    return f"Two-stage is not better everywhere: {'; '.join(parts)}; in brackets the NLPD it adds."


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _percent(share: float) -> str:
    return f"{100.0 * share:.1f} %"


def draw_toy(results: Sequence[Result]) -> list[Picture]:
    """Draw one picture per model with mean and band, on the same axes."""
    x = np.linspace(*TOY_RANGE, 400)
    truth = 3.0 * x + 2.0 * np.sin(2.0 * np.pi * x)
    pictures = []
    for result in results:
        task = result.task
        mean = result.model.predict(x[:, None])
        interval = result.model.predict_interval(x[:, None], level=0.95)
        figure, ax = _axes()
        plotting.plot_band(ax, x, mean, interval, task.X_train, task.y_train, truth)
        ax.set_ylim(-24.0, 24.0)
        alt = (
            f"{result.model_name}: predicted mean with its 95 % band over x from −5 to 5, the true "
            f"function and {len(task.y_train)} training points; the band contains "
            f"{result.scores['coverage']} of {len(task.y_test)} new points."
        )
        pictures.append(Picture.from_figure(figure, result.model_name, alt))
    return pictures


def _axes() -> tuple[Figure, Any]:
    figure = Figure(figsize=(3.8, 3.0), layout="constrained")
    return figure, figure.subplots()


def page_context(results: Sequence[Result]) -> dict[str, Any]:
    """Return the variables of the template of the page."""
    tasks = list(dict.fromkeys(r.task.name for r in results))
    of = {name: [r for r in results if r.task.name == name] for name in tasks}
    table = next(r for r in of[DIABETES] if r.model_name == TWO_STAGE)
    context = report_context(
        table.model, table.task.X_test, table.task.y_test, "Progression of diabetes, predicted"
    )
    comparison = {
        "id": "comparison",
        "title": "Compared with single-stage models",
        "template": "comparison.html.j2",
        "introduction": INTRODUCTION,
        "verdict": verdict(results),
        "tasks": [
            {"description": of[name][0].task.description, "scores": [r.scores for r in of[name]]}
            for name in tasks
        ],
        "toy_text": (
            "The paper's example, f(x) = 3x + 2 sin 2πx with noise of standard deviation 1. So few "
            "points hardly show a wave of period 1: at best, a model follows the trend and treats "
            "the wave as noise, with a band that is wide enough for both."
        ),
        "toy_pictures": draw_toy(of[TOY]),
    }
    return {**context, "extra": [comparison]}


def print_scores(results: Iterable[Result], console: Console) -> None:
    """Print the table of scores."""
    table = Table(title="Scores on test rows")
    table.add_column("data")
    table.add_column("model")
    for name in ("RMSE", "NLPD", "95 % coverage", "seconds"):
        table.add_column(name, justify="right")
    for result in results:
        s = result.scores
        is_last = result.model_name == TWO_STAGE
        table.add_row(
            result.task.name, s["model"], s["rmse"], s["nlpd"], s["coverage"], s["seconds"],
            end_section=is_last,
        )  # fmt: skip
    console.print(table)


def main(argv: Sequence[str] | None = None, quick: bool = False) -> int:
    """Fit the models, print their scores, write the page, and return the exit code 0.

    Parameters
    ----------
    argv : sequence of str, optional
        Command line without the program's name.
    quick : bool
        Fewer rows and kernels, for the tests.
    """
    parser = argparse.ArgumentParser(prog="python -m twostagegp.cli.demo", description=__doc__)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("build/demo-report.html"),
        metavar="FILE",
        help="the page to write (default: %(default)s)",
    )
    arguments = parser.parse_args(argv)
    console = Console()
    results = run_all(load_tasks(quick), quick, console)
    print_scores(results, console)
    console.print(verdict(results), highlight=False)
    path = write_page(arguments.output, page_context(results))
    console.print(f"The page is at {path}", highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
