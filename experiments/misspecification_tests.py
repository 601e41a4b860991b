r"""Do the misspecification tests hold their level, and do they find violations?

Tables are drawn where the truth is known: from Gaussian processes with the kernel that is then
tested (the level), and with one thing wrong at a time (the power). ``test="bootstrap"`` is judged
by its rejections at 0.05 and by the first cause that it names; beside it are statistics that could
have taken its place, each with a null distribution from the same simulations, and the paper's two
tests on the same tables.

``python -m experiments.misspecification_tests --quick``: every cell with four tables, minutes.
``python -m experiments.misspecification_tests --jobs 16``: 500 tables per cell in which nothing is
wrong, 200 per violation.
``python -m experiments.misspecification_tests --part paper --tables 40 --violations 40``: the
paper's tests on the first tables of each cell.

A stored cell is measured again, for example with more tables, only with ``--redo``.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom
from torch import Tensor

from experiments import RESULTS
from measurements.arguments import positive
from measurements.pages import Page, scored
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.tables import markdown_table
from twostagegp import check_misspecification
from twostagegp.data.scaling import prepare
from twostagegp.engines.batched_problem import Block, ProblemBatch
from twostagegp.kernels import make_kernel
from twostagegp.search.bootstrap import adjusted_p_values, simulate_and_refit
from twostagegp.search.evidence import CAUSES, evidence
from twostagegp.search.misspecification import order_of_causes

__all__ = [
    "MEASUREMENT",
    "RIVALS",
    "Cell",
    "Kind",
    "band",
    "bootstrap_statistics",
    "draw_table",
    "judge",
    "kinds",
    "measure",
    "rivals",
    "summarise",
    "two_sided_p",
]

Array = NDArray[np.float64]
LEVEL = 0.05
#: Simulations of the bootstrap, and repetitions of the paper's tests on each table.
SIMULATIONS, PAPER_REPEATS = 100, 20
ROWS = 300


@dataclass(frozen=True)
class Kind:
    """One kind of table.

    Attributes
    ----------
    name : str
    kernel : str
        The kernel that is tested.
    d, n : int
    draw : callable
        ``draw(X, rng)`` gives the target, shape (n,).
    cause : str
        What the diagnosis should name; empty if nothing is wrong.
    """

    name: str
    kernel: str
    d: int
    n: int
    draw: Callable[[Array, np.random.Generator], Array]
    cause: str = ""


def gaussian_process(name: str, lengthscale: float, noise: float) -> Any:
    """Return a function that draws unit variance plus noise.

    The lengthscale is in units of the typical distance of two rows.
    """

    def draw(X: Array, rng: np.random.Generator) -> Array:
        kernel = make_kernel(name, X.shape[1])
        theta = kernel.start()
        theta[0] += math.log(lengthscale)
        K, _ = kernel.evaluate(torch.as_tensor(X), theta)
        L = np.linalg.cholesky(K.numpy() + 1e-9 * np.eye(len(X)))
        return np.asarray(L @ rng.normal(size=len(X)) + math.sqrt(noise) * rng.normal(size=len(X)))

    return draw


def step(X: Array, rng: np.random.Generator) -> Array:
    """Draw a jump in the first column, with a little noise."""
    return np.where(X[:, 0] > 0.0, 1.0, -1.0) + 0.1 * rng.normal(size=len(X))


def growing_noise(X: Array, rng: np.random.Generator) -> Array:
    """Draw noise whose standard deviation grows from 0.05 to 0.5 across the first column."""
    place = (X[:, 0] - X[:, 0].min()) / np.ptp(X[:, 0])
    smooth = gaussian_process("rbf", 0.6, 1e-8)(X, rng)
    return np.asarray(smooth + 0.05 * 10.0**place * rng.normal(size=len(X)))


def heavy_tails(X: Array, rng: np.random.Generator) -> Array:
    """Draw Student-t noise with three degrees of freedom."""
    smooth = gaussian_process("rbf", 0.6, 1e-8)(X, rng)
    return np.asarray(smooth + 0.2 * rng.standard_t(3, size=len(X)))


def trend(X: Array, rng: np.random.Generator) -> Array:
    """Draw a line of slope 3 plus a process of unit variance and short lengthscale."""
    return np.asarray(gaussian_process("rbf", 0.25, 0.05)(X, rng) + 3.0 * X[:, 0])


def kinds() -> list[Kind]:
    """Return the kinds in which nothing is wrong, then those in which something is."""
    gp = gaussian_process
    nulls = [
        ("rbf", 1, ROWS, 0.4, 0.05),
        ("rbf", 2, ROWS, 0.4, 0.01),
        ("rbf", 5, ROWS, 0.6, 0.5),
        ("matern52", 5, ROWS, 0.6, 0.1),
        ("matern32", 2, ROWS, 0.6, 0.01),
        ("matern12", 1, ROWS, 1.0, 0.01),
        ("matern12", 2, ROWS, 1.0, 0.1),
        ("laplacian", 5, ROWS, 1.0, 0.1),
        ("matern32", 2, 100, 0.6, 0.1),
    ]
    right = [
        Kind(f"{k}, d={d}, n={n}, noise {s:g}", k, d, n, gp(k, ell, s)) for k, d, n, ell, s in nulls
    ]
    wrong = []
    for d in (1, 2):
        wrong += [
            Kind(f"matern12 truth, d={d}", "rbf", d, ROWS, gp("matern12", 1.0, 1e-3), "too smooth"),
            Kind(f"a step, d={d}", "rbf", d, ROWS, step, "too smooth"),
            Kind(f"rbf truth, d={d}", "matern12", d, ROWS, gp("rbf", 0.6, 0.01), "too rough"),
            Kind(f"growing noise, d={d}", "rbf", d, ROWS, growing_noise, "noise not constant"),
            Kind(f"t3 noise, d={d}", "rbf", d, ROWS, heavy_tails, "heavy tails"),
            Kind(f"a trend, d={d}", "rbf", d, ROWS, trend, "trend left over"),
        ]
    return right + wrong


#: Statistics that could have been the test, each alone and two-sided.
RIVALS = ("whitened residuals", "LOO z-scores", "neighbouring residuals", "the paper's ratio")


def rivals(block: Block) -> Tensor:
    r"""Return the four statistics of ``RIVALS``, shape (b, 4).

    The Kolmogorov distance of :math:`L^{-1} t` from the normal distribution; the mean of
    :math:`z_i^2`; the mean of :math:`z_i z_{nn(i)}` over nearest neighbours; and the share of
    leave-one-out error ratios :math:`|\alpha_i| / |(A \hat\epsilon)_i|` within 1.1.
    """
    n = block.t.shape[1]
    w = torch.linalg.solve_triangular(block.L, block.t[:, :, None], upper=False)[:, :, 0]
    place = torch.special.ndtr(w.sort(dim=1).values)
    grid = (torch.arange(n, dtype=w.dtype, device=w.device) + 0.5) / n
    whitened = (place - grid).abs().amax(1)
    z = block.alpha / block.kappa.sqrt()
    covariance = block.K.clone()
    covariance.diagonal(dim1=-2, dim2=-1).fill_(-math.inf)
    nearest = covariance.argmax(2)  # the kernels here fall with distance
    neighbour = (z * z.gather(1, nearest)).mean(1)
    residual = block.s * block.alpha
    ratio = block.alpha.abs() / (block.A @ residual[:, :, None])[:, :, 0].abs()
    share = (ratio <= 1.1).to(z.dtype).mean(1)
    return torch.stack([whitened, z.square().mean(1), neighbour, share], dim=1)


def two_sided_p(observed: float, simulated: Array) -> float:
    """Return the rank p-value of the distance from the median."""
    together = np.append(simulated, observed)
    distance = np.abs(together - np.median(together))
    return float((1 + (distance[:-1] >= distance[-1]).sum()) / len(together))


def draw_table(kind: Kind, seed: int) -> tuple[Array, Array]:
    """Return inputs and target of one table, in the user's units."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, size=(kind.n, kind.d)) * math.sqrt(3.0)
    return X, kind.draw(X, rng)


def bootstrap_statistics(
    kind: Kind, seed: int, device: str, simulations: int = SIMULATIONS
) -> tuple[Array, Array]:
    """Return the evidence and the statistics of ``RIVALS``, of a table and of its simulations."""
    names = [f"x{k}" for k in range(kind.d)]
    data = prepare(*draw_table(kind, seed), names, device=torch.device(device), dtype=torch.float64)
    rng = np.random.default_rng(seed + 1)
    order = torch.as_tensor(rng.permutation(kind.n), device=device)
    rows = data.rows.subset(order)
    problem = ProblemBatch.of(make_kernel(kind.kernel, kind.d), rows.X[None], rows.t[None])

    def statistics(block: Block, X: Tensor) -> Tensor:
        return torch.cat([evidence(block, X), rivals(block)], dim=1)

    result = simulate_and_refit(problem, statistics, simulations, rng)
    return result.observed, result.simulated


def judge(observed: Array, simulated: Array) -> Record:
    """Return the p-values of a table from its statistics and those of its simulations."""
    k = len(CAUSES)
    p, z = adjusted_p_values(observed[:k], simulated[:, :k])
    found: Record = {"p": float(p.min()), "named": order_of_causes(p, z[0], LEVEL)}
    for j, rival in enumerate(RIVALS):
        found[rival] = two_sided_p(observed[k + j], simulated[:, k + j])
    return found


def paper_tests(kind: Kind, seed: int, repeats: int = PAPER_REPEATS) -> Record:
    """Return the results of the paper's two tests on one table."""
    X, y = draw_table(kind, seed)
    found: Record = {}
    for test in ("ratio", "bound"):
        check = check_misspecification(
            X, y, kind.kernel, test=test, n_repeats=repeats, device="cpu", random_state=seed
        )
        found |= {test: check.rejected, f"{test} p_hat": check.p_hat}
    return found


def summarise(kind: Kind, tables: Sequence[Record]) -> Record:
    """Return rates over the tables of a kind, for one of the two parts."""
    summary: Record = {"kernel": kind.kernel, "cause": kind.cause}
    if "ratio" in tables[0]:
        for test in ("ratio", "bound"):
            summary[test] = float(np.mean([x[test] for x in tables]))
            summary[f"{test} p_hat"] = float(np.mean([x[f"{test} p_hat"] for x in tables]))
        return summary
    first = Counter(t["named"][0] if t["named"] else "" for t in tables)
    return summary | {
        "rejected": float(np.mean([t["p"] <= LEVEL for t in tables])),
        "right_first": first[kind.cause] / len(tables),
        "right_among": sum(kind.cause in t["named"] for t in tables) / len(tables),
        "first_named": dict(first),
        "rivals": {r: float(np.mean([t[r] <= LEVEL for t in tables])) for r in RIVALS},
    }


def band(n: int) -> tuple[float, float]:
    """Return the central 99 % of the rejection rate of a test of level 0.05 over n tables.

    Examples
    --------
    >>> tuple(round(edge, 3) for edge in band(500))
    (0.026, 0.076)
    """
    lower, upper = binom.ppf([0.005, 0.995], n, LEVEL) / n
    return float(lower), float(upper)


# --- cells ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One part of the experiment on the tables of one kind.

    Attributes
    ----------
    cell : str
        Name of the kind.
    part : {"bootstrap", "paper"}
    tables : int
        Number of tables.
    rows : int
        Rows per table.
    draws : int
        Simulations of the bootstrap, or repetitions of the paper's tests.
    device : str
        Of the bootstrap.
    """

    cell: str
    part: str
    tables: int
    rows: int
    draws: int
    device: str = "cpu"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the part and the tables of a run."""
    parser.add_argument("--part", choices=("bootstrap", "paper"), default="bootstrap")
    parser.add_argument(
        "--tables", type=positive, help="tables without a violation; 500 by default"
    )
    parser.add_argument("--violations", type=positive, help="tables per violation; 200 by default")
    parser.add_argument("--device", default="cpu", help="of the bootstrap: cpu or cuda")
    parser.add_argument("--only", default="", help="cells whose name contains this")


def cells(given: argparse.Namespace) -> list[Cell]:
    """Return one part of every kind."""
    right = given.tables or (4 if given.quick else 500)
    wrong = given.violations or (4 if given.quick else 200)
    draws = SIMULATIONS if given.part == "bootstrap" else PAPER_REPEATS
    return [
        Cell(k.name, given.part, wrong if k.cause else right, k.n, draws, given.device)
        for k in kinds()
        if given.only in k.name
    ]


def measure(cell: Cell) -> Record:
    """Draw the tables of a cell and summarise their tests."""
    torch.set_num_threads(1)
    number, kind = next((i, k) for i, k in enumerate(kinds()) if k.name == cell.cell)
    kind = replace(kind, n=cell.rows)
    seeds = range(10_000 * number, 10_000 * number + cell.tables)
    if cell.part == "paper":
        return summarise(kind, [paper_tests(kind, seed, cell.draws) for seed in seeds])
    found = (bootstrap_statistics(kind, seed, cell.device, cell.draws) for seed in seeds)
    return summarise(kind, [judge(*statistics) for statistics in found])


# --- page ----------------------------------------------------------------------------------------


def _about(records: list[Record]) -> str:
    return (
        f"Shares of tables that are rejected at level {LEVEL}. Right cause first: the share in "
        "which the bootstrap names the true cause before any other; named: names it at all. "
        "The next four columns are statistics that could have taken its place, each alone, "
        f"with the same {SIMULATIONS} simulations. Last, the paper's tests with "
        f"{PAPER_REPEATS} repetitions on the first tables of each cell, and their mean p̂."
    )


def _bootstrap(records: list[Record], wrong: bool) -> list[Record]:
    """Return the bootstrap's records in the order of the kinds, with the other columns' rates."""
    order = [kind.name for kind in kinds()]
    paper = {r["cell"]: r for r in scored(records) if r["part"] == "paper"}
    own = [r for r in scored(records) if r["part"] == "bootstrap" and bool(r["cause"]) == wrong]
    found = []
    for r in sorted(own, key=lambda r: order.index(r["cell"])):
        rates = [f"{r['rivals'][rival]:.2f}" for rival in RIVALS]
        beside = paper.get(r["cell"])
        for test in ("ratio", "bound"):
            rates.append(
                "–" if beside is None else f"{beside[test]:.2f} ({beside[test + ' p_hat']:.2f})"
            )
        found.append({**r, "rates": rates})
    return found


OTHER_TESTS = (*RIVALS, "ratio (p̂)", "bound (p̂)")


def _level(records: list[Record]) -> str:
    rows = []
    for r in _bootstrap(records, wrong=False):
        low, high = band(r["tables"])
        inside = [f"{r['rejected']:.3f}", f"{low:.3f}–{high:.3f}"]
        rows.append([r["cell"], str(r["tables"]), *inside, *r["rates"]])
    return markdown_table(["nothing wrong", "tables", "bootstrap", "99 % band", *OTHER_TESTS], rows)


def _power(records: list[Record]) -> str:
    rows = []
    for r in _bootstrap(records, wrong=True):
        shares = [f"{r[name]:.2f}" for name in ("rejected", "right_first", "right_among")]
        rows.append([r["cell"], r["kernel"], *shares, *r["rates"]])
    head = ["what is wrong", "kernel", "bootstrap", "right cause first", "named", *OTHER_TESTS]
    return markdown_table(head, rows)


MEASUREMENT = Measurement(
    name="misspecification_tests",
    about="Level and power of the misspecification tests.",
    results=RESULTS,
    cell=Cell,
    cells=cells,
    measure=measure,
    report=Page(
        "Level and power of the misspecification tests",
        {"Nothing wrong": _level, "Something wrong": _power},
        about=_about,
        failed_by=("cell", "part"),
        counted="cells",
    ),
    arguments=arguments,
    key=("cell", "part"),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
