r"""Do the misspecification tests hold their level, and do they see what is wrong?

Tables are drawn where the truth is known: from Gaussian processes with the kernel that is then
tested (the level), and with one thing wrong at a time (the power). ``test="bootstrap"`` is judged
by its rejections at 0.05 and by the first cause that it names; beside it stand statistics that
could have taken its place, each with a null distribution from the same simulations, and the paper's
two tests on the same tables.

``python -m experiments.misspecification_tests --quick``: every cell with a few tables, minutes.
``python -m experiments.misspecification_tests --jobs 16``: 500 tables a cell, 200 a violation.
``python -m experiments.misspecification_tests --part paper --tables 40 --violations 40``: the
paper's tests on the first tables of each cell.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from scipy.stats import binom
from torch import Tensor

from measurements.provenance import code_version
from measurements.store import JsonLines, write_whole
from measurements.tables import markdown_table
from twostagegp import check_misspecification
from twostagegp.data.scaling import prepare
from twostagegp.engines.batched_problem import Block, ProblemBatch
from twostagegp.kernels import make_kernel
from twostagegp.search.bootstrap import adjusted_p_values, simulate_and_refit
from twostagegp.search.evidence import CAUSES, evidence
from twostagegp.search.misspecification import order_of_causes

Array = NDArray[np.float64]
LEVEL = 0.05
SIMULATIONS = 100
ROWS = 300
#: Repetitions of the paper's tests on each table.
PAPER_REPEATS = 20


@dataclass(frozen=True)
class Cell:
    """Tables of one kind.

    Attributes
    ----------
    name : str
    kernel : str
        The kernel that is tested.
    d, n : int
    draw : callable
        ``draw(X, rng)`` gives the target, shape (n,).
    cause : str
        What the diagnosis should name; empty where nothing is wrong.
    """

    name: str
    kernel: str
    d: int
    n: int
    draw: Callable[[Array, np.random.Generator], Array]
    cause: str = ""


def gaussian_process(name: str, lengthscale: float, noise: float) -> Any:
    """A draw of unit variance plus noise; the lengthscale is in units of the typical distance."""

    def draw(X: Array, rng: np.random.Generator) -> Array:
        kernel = make_kernel(name, X.shape[1])
        theta = kernel.start()
        theta[0] += math.log(lengthscale)
        K, _ = kernel.evaluate(torch.as_tensor(X), theta)
        L = np.linalg.cholesky(K.numpy() + 1e-9 * np.eye(len(X)))
        return np.asarray(L @ rng.normal(size=len(X)) + math.sqrt(noise) * rng.normal(size=len(X)))

    return draw


def step(X: Array, rng: np.random.Generator) -> Array:
    """A jump in the first column, with a little noise."""
    return np.where(X[:, 0] > 0.0, 1.0, -1.0) + 0.1 * rng.normal(size=len(X))


def growing_noise(X: Array, rng: np.random.Generator) -> Array:
    """Noise whose standard deviation grows tenfold, 0.05 to 0.5, across the first column."""
    place = (X[:, 0] - X[:, 0].min()) / np.ptp(X[:, 0])
    smooth = gaussian_process("rbf", 0.6, 1e-8)(X, rng)
    return np.asarray(smooth + 0.05 * 10.0**place * rng.normal(size=len(X)))


def heavy_tails(X: Array, rng: np.random.Generator) -> Array:
    """Student-t noise with three degrees of freedom."""
    smooth = gaussian_process("rbf", 0.6, 1e-8)(X, rng)
    return np.asarray(smooth + 0.2 * rng.standard_t(3, size=len(X)))


def trend(X: Array, rng: np.random.Generator) -> Array:
    """A line of slope 3 under a process of unit variance and short lengthscale."""
    return np.asarray(gaussian_process("rbf", 0.25, 0.05)(X, rng) + 3.0 * X[:, 0])


def cells() -> list[Cell]:
    """Where nothing is wrong, then where something is."""
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
        Cell(f"{k}, d={d}, n={n}, noise {s:g}", k, d, n, gp(k, ell, s)) for k, d, n, ell, s in nulls
    ]
    wrong = []
    for d in (1, 2):
        wrong += [
            Cell(f"matern12 truth, d={d}", "rbf", d, ROWS, gp("matern12", 1.0, 1e-3), "too smooth"),
            Cell(f"a step, d={d}", "rbf", d, ROWS, step, "too smooth"),
            Cell(f"rbf truth, d={d}", "matern12", d, ROWS, gp("rbf", 0.6, 0.01), "too rough"),
            Cell(f"growing noise, d={d}", "rbf", d, ROWS, growing_noise, "noise not constant"),
            Cell(f"t3 noise, d={d}", "rbf", d, ROWS, heavy_tails, "heavy tails"),
            Cell(f"a trend, d={d}", "rbf", d, ROWS, trend, "trend left over"),
        ]
    return right + wrong


#: Statistics that could have been the test, each alone and two-sided.
RIVALS = ("whitened residuals", "LOO z-scores", "neighbouring residuals", "the paper's ratio")


def rivals(block: Block) -> Tensor:
    r"""The four of ``RIVALS``, shape (b, 4).

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
    """Rank p-value of the distance from the middle of the simulations."""
    everyone = np.append(simulated, observed)
    distance = np.abs(everyone - np.median(everyone))
    return float((1 + (distance[:-1] >= distance[-1]).sum()) / len(everyone))


def draw_table(cell: Cell, seed: int) -> tuple[Array, Array]:
    """Inputs and target of one table, in the user's units."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, size=(cell.n, cell.d)) * math.sqrt(3.0)
    return X, cell.draw(X, rng)


def bootstrap_test(cell: Cell, seed: int, device: str) -> dict[str, Any]:
    """``test="bootstrap"`` with the rivals' statistics from the same fits and simulations."""
    torch.set_num_threads(1)
    names = [f"x{k}" for k in range(cell.d)]
    data = prepare(*draw_table(cell, seed), names, device=torch.device(device), dtype=torch.float64)
    rng = np.random.default_rng(seed + 1)
    order = torch.as_tensor(rng.permutation(cell.n), device=device)
    rows = data.rows.subset(order)
    problem = ProblemBatch.of(make_kernel(cell.kernel, cell.d), rows.X[None], rows.t[None])

    def statistics(block: Block, X: Tensor) -> Tensor:
        return torch.cat([evidence(block, X), rivals(block)], dim=1)

    result = simulate_and_refit(problem, statistics, SIMULATIONS, rng)
    return judge(result.observed, result.simulated)


def judge(observed: Array, simulated: Array) -> dict[str, Any]:
    """p-values of one table from its statistics and those of its simulations."""
    k = len(CAUSES)
    p, z = adjusted_p_values(observed[:k], simulated[:, :k])
    found: dict[str, Any] = {"p": float(p.min()), "named": order_of_causes(p, z[0], LEVEL)}
    for j, rival in enumerate(RIVALS):
        found[rival] = two_sided_p(observed[k + j], simulated[:, k + j])
    return found


def paper_tests(cell: Cell, seed: int) -> dict[str, Any]:
    """The paper's two tests on one table."""
    torch.set_num_threads(1)
    X, y = draw_table(cell, seed)
    found: dict[str, Any] = {}
    for test in ("ratio", "bound"):
        check = check_misspecification(
            X, y, cell.kernel, test=test, n_repeats=PAPER_REPEATS, device="cpu", random_state=seed
        )
        found |= {test: check.rejected, f"{test} p_hat": check.p_hat}
    return found


def summarise(cell: Cell, tables: list[dict[str, Any]]) -> dict[str, Any]:
    """Rates over the tables of a cell, for one of the two parts."""
    summary: dict[str, Any] = {"cell": cell.name, "kernel": cell.kernel, "cause": cell.cause}
    if "ratio" in tables[0]:
        for test in ("ratio", "bound"):
            summary[test] = float(np.mean([x[test] for x in tables]))
            summary[f"{test} p_hat"] = float(np.mean([x[f"{test} p_hat"] for x in tables]))
        return summary
    first = Counter(t["named"][0] if t["named"] else "" for t in tables)
    return summary | {
        "rejected": float(np.mean([t["p"] <= LEVEL for t in tables])),
        "right_first": first[cell.cause] / len(tables),
        "right_among": sum(cell.cause in t["named"] for t in tables) / len(tables),
        "first_named": dict(first),
        "rivals": {r: float(np.mean([t[r] <= LEVEL for t in tables])) for r in RIVALS},
    }


def band(n: int) -> tuple[float, float]:
    """The central 99 % of the rejection rate of a test of level 0.05 over n tables.

    Examples
    --------
    >>> tuple(round(edge, 3) for edge in band(500))
    (0.026, 0.076)
    """
    lower, upper = binom.ppf([0.005, 0.995], n, LEVEL) / n
    return float(lower), float(upper)


def report(records: list[dict[str, Any]]) -> str:
    """Both tables in Markdown."""
    head = [*RIVALS, "ratio (p̂)", "bound (p̂)"]
    level_head = ["nothing wrong", "tables", "bootstrap", "99 % band", *head]
    power_head = ["what is wrong", "kernel", "bootstrap", "right cause first", "named", *head]
    level, power = [], []
    paper = {r["cell"]: r for r in records if r["part"] == "paper"}
    for r in (r for r in records if r["part"] == "bootstrap"):
        rates = [f"{r['rivals'][rival]:.2f}" for rival in RIVALS]
        beside = paper.get(r["cell"])
        for test in ("ratio", "bound"):
            rates.append(
                "–" if beside is None else f"{beside[test]:.2f} ({beside[test + ' p_hat']:.2f})"
            )
        if r["cause"]:
            shares = [f"{r[name]:.2f}" for name in ("rejected", "right_first", "right_among")]
            power.append([r["cell"], r["kernel"], *shares, *rates])
        else:
            low, high = band(r["tables"])
            inside = [f"{r['rejected']:.3f}", f"{low:.3f}–{high:.3f}"]
            level.append([r["cell"], str(r["tables"]), *inside, *rates])
    return "\n".join(
        [
            "# Level and power of the misspecification tests",
            "",
            f"Shares of tables that are rejected at level {LEVEL}. Right cause first: the share in "
            "which the bootstrap names the true cause before any other; named: names it at all. "
            "The next four columns are statistics that could have taken its place, each alone, "
            f"with the same {SIMULATIONS} simulations. Last, the paper's tests with "
            f"{PAPER_REPEATS} repetitions on the first tables of each cell, and their mean p̂.",
            "",
            "## Nothing wrong",
            "",
            markdown_table(level_head, level),
            "## Something wrong",
            "",
            markdown_table(power_head, power),
        ]
    )


def run(out: Path, part: str, counts: tuple[int, int], device: str, jobs: int, only: str) -> None:
    """Every cell of a part that is not done yet, then the report."""
    store = JsonLines(out / "misspecification_tests.jsonl", ("cell", "part"))
    begin, code = time.perf_counter(), code_version()
    for number, cell in enumerate(cells()):
        count = counts[1] if cell.cause else counts[0]
        done = {(r["cell"], r["part"]): r["tables"] for r in store.records().values()}
        if only not in cell.name or done.get((cell.name, part), 0) >= count:
            continue
        seeds = [10_000 * number + i for i in range(count)]
        if part == "paper":
            work = [delayed(paper_tests)(cell, seed) for seed in seeds]
        else:
            work = [delayed(bootstrap_test)(cell, seed, device) for seed in seeds]
        tables = Parallel(n_jobs=jobs)(work)
        record = summarise(cell, tables)
        store.append(record | {"part": part, "tables": count, "code": code}, replace=True)
        said = record.get("rejected", record.get("ratio"))
        named = record.get("first_named", "")
        print(
            f"{time.perf_counter() - begin:6.0f} s  {cell.name:36s} {said:.3f} {named}", flush=True
        )
    order = {cell.name: i for i, cell in enumerate(cells())}
    records = sorted(store.records().values(), key=lambda r: order.get(r["cell"], 99))
    write_whole(out / "misspecification_tests.md", report(records))
    print(report(records))


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=("bootstrap", "paper"), default="bootstrap")
    parser.add_argument("--tables", type=int, default=500, help="tables where nothing is wrong")
    parser.add_argument("--violations", type=int, default=200, help="tables of each violation")
    parser.add_argument("--quick", action="store_true", help="4 tables a cell")
    parser.add_argument("--device", default="cpu", help="of the bootstrap: cpu or cuda")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    counts = (4, 4) if options.quick else (options.tables, options.violations)
    run(options.out, options.part, counts, options.device, options.jobs, options.only)


if __name__ == "__main__":
    main()
