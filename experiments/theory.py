r"""The paper's theory in numbers: every theorem, lemma and bound, as printed and put right.

Everything is small, and exact where that is possible: expectations and probabilities come from
formulas, derivatives are checked by differences, and simulations are shown with their errors. A
verdict is computed from the figures (:mod:`experiments.theory_verdicts`), never written by hand.

1. Theorem 1, a mean that is taken for zero: :mod:`experiments.theory_mean`.
2. Theorem 2, the error ratio: :mod:`experiments.theory_ratio`.
3. Theorem 3, the expected loss at the true hyperparameters: :mod:`experiments.theory_expected`.
4. Concentration of the loss and its slope: :mod:`experiments.theory_concentration`.
5. The frequentist band of Algorithm 5: :mod:`experiments.theory_band`.
6. Lemmas 1 to 4: :mod:`experiments.theory_lemmas`.

    python -m experiments theory --quick
    python -m experiments theory --jobs 2
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from experiments import RESULTS
from experiments.theory_band import measure_band
from experiments.theory_concentration import measure_concentration
from experiments.theory_expected import measure_expected
from experiments.theory_lemmas import (
    CONTRACTIONS,
    measure_contraction,
    measure_spectrum,
    measure_tail,
    measure_worst_case,
)
from experiments.theory_mean import MEANS, measure_mean
from experiments.theory_ratio import FITS, measure_limit, measure_ratio
from experiments.theory_report import picture, report
from measurements.runner import Measurement, run
from measurements.store import Record

__all__ = ["MEASUREMENT", "Task", "bound_tasks", "measure", "tasks", "theorem_tasks"]


@dataclass(frozen=True)
class Task:
    """One measurement.

    Attributes
    ----------
    item : str
        A key of ``MEASURES``.
    case : str
        Mean, kernel, design or function, as the item has it; may be empty.
    n : int
        Number of rows; 0 if the item has no rows.
    noise : float
        Noise variance, or standard deviation for the band; 0 where the item has its own.
    seed : int
    """

    item: str
    case: str
    n: int
    noise: float
    seed: int


MEASURES: dict[str, Callable[[Task], Record]] = {
    "mean": lambda t: measure_mean(t.case, t.n, t.seed),
    "ratio": lambda t: measure_ratio(t.case, t.n, t.noise, t.seed),
    "limit": lambda t: measure_limit(t.case, t.n, t.noise, t.seed),
    "expected": lambda t: measure_expected(t.case, t.n, t.seed),
    "concentration": lambda t: measure_concentration(t.case, t.n, t.seed),
    "band": lambda t: measure_band(t.case, t.n, t.noise, t.seed),
    "contraction": lambda t: measure_contraction(t.case, t.n),
    "worst_case": lambda t: measure_worst_case(t.n, t.noise, t.seed),
    "tail": lambda t: measure_tail(t.n, t.noise, t.seed),
    "spectrum": lambda t: measure_spectrum(t.case),
}


@dataclass(frozen=True)
class Plan:
    """Sizes and seeds of every item."""

    mean_rows: tuple[int, ...]
    ratio_rows: tuple[int, ...]
    expected_kernels: tuple[str, ...]
    expected_rows: tuple[int, ...]
    concentration_rows: tuple[int, ...]
    band_rows: tuple[int, ...]
    contraction_rows: tuple[int, ...]
    #: Seeds of items that are all but exact, of the others, and of the concentration.
    few: int
    many: int
    slopes: int


FULL = Plan(
    mean_rows=(30, 100),
    ratio_rows=(25, 100, 400),
    expected_kernels=("rbf", "matern52", "matern32", "matern12"),
    expected_rows=(50, 100, 200, 400),
    concentration_rows=(64, 128, 256, 512, 1024),
    band_rows=(10, 50, 200),
    contraction_rows=(25, 49, 100, 196, 400, 784, 1600),
    few=3,
    many=10,
    slopes=10,
)
QUICK = Plan(
    mean_rows=(30,),
    ratio_rows=(25, 100),
    expected_kernels=("rbf", "matern12"),
    expected_rows=(50,),
    concentration_rows=(64, 128, 256),
    band_rows=(10, 50),
    contraction_rows=(49, 100, 196, 400, 784),
    few=1,
    many=2,
    slopes=4,
)

RATIO_NOISES = (0.01, 0.1, 1.0)
LIMIT_NOISES = (0.1, 1e-4, 1e-8, 1e-12)
LIMIT_ROWS = 10
BAND_DEVIATIONS = (1e-3, 1e-2, 0.1, 1.0, 5.0)
LEVEL_DEVIATIONS = (1.0, 2.0, 5.0, 10.0, 20.0)
LEVEL_ROWS = 10
LEMMA_NOISES = (1e-4, 1e-2, 1.0)
LEMMA_ROWS = (5, 50, 200)


def tasks(given: argparse.Namespace) -> list[Task]:
    """Return all tasks, in the order of the page."""
    plan = QUICK if given.quick else FULL
    return [*theorem_tasks(plan), *bound_tasks(plan)]


def theorem_tasks(plan: Plan) -> Iterator[Task]:
    """Yield the measurements of the theorems and lemmas."""
    few, many = range(plan.few), range(plan.many)
    for case, n, seed in product(MEANS, plan.mean_rows, few):
        yield Task("mean", case, n, 0.0, seed)
    for case, n, noise, seed in product(FITS, plan.ratio_rows, RATIO_NOISES, many):
        yield Task("ratio", case, n, noise, seed)
    for case, noise, seed in product(FITS, LIMIT_NOISES, many):
        if case != "right, flat":
            yield Task("limit", case, LIMIT_ROWS, noise, seed)
    for case, n, seed in product(plan.expected_kernels, plan.expected_rows, few):
        yield Task("expected", case, n, 0.0, seed)


def bound_tasks(plan: Plan) -> Iterator[Task]:
    """Yield the measurements of the bounds and bands."""
    few, many = range(plan.few), range(plan.many)
    designs = ("growing", "infill")
    for case, n, seed in product(designs, plan.concentration_rows, range(plan.slopes)):
        yield Task("concentration", case, n, 0.0, seed)
    for case, n, sd, seed in product(("random", "worst"), plan.band_rows, BAND_DEVIATIONS, many):
        yield Task("band", case, n, sd, seed)
    for sd, seed in product(LEVEL_DEVIATIONS, many):
        yield Task("band", "level", LEVEL_ROWS, sd, seed)
    for case, n in product(CONTRACTIONS, plan.contraction_rows):
        yield Task("contraction", case, n, 0.0, 0)
    for item, n, noise, seed in product(("worst_case", "tail"), LEMMA_ROWS, LEMMA_NOISES, few):
        yield Task(item, "", n, noise, seed)
    for case in ("matern12", "matern32", "matern52", "rbf"):
        yield Task("spectrum", case, 0, 0.0, 0)


def measure(task: Task) -> Record:
    """Return the record of a task."""
    return MEASURES[task.item](task)


MEASUREMENT = Measurement(
    name="theory",
    about="The paper's theory in numbers, as printed and put right.",
    results=RESULTS,
    cell=Task,
    cells=tasks,
    measure=measure,
    report=report,
    figure=picture,
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
