"""What a kernel search costs, against the loop that a user would write with GPyTorch, in one run.

The search is the paper's: three isotropic kernels, 100 repetitions, 500 rows of concrete each, 400
of them to train on; a Gaussian process trained by its likelihood, float64. The loop fits one kernel
to one subsample after the other, 100 steps of AdamW each; some repetitions of it are timed on the
subsamples of the search and the time of all is extrapolated. The loop neither draws subsamples nor
scores the kernels, the search does both. Runs of the search and of the loop take turns.

A subsample consists of distinct rows, and the loop gets all rows of the table that repeat them,
exact copies once: a search merges repeats without changing the likelihood and counts copies once,
so that both sides solve the same problem. The hyperparameters of both sides are judged by that
likelihood. What the loop would reach if trained to the end is shown too, and is not timed.

Needs ``TWOSTAGEGP_DATA``. On a GPU the loop is left out unless asked for.

    python -m benchmarks.kernel_search --redo
    python -m benchmarks.kernel_search --device cuda --results build/results
"""

from __future__ import annotations

import argparse
import math
import os
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks import RESULTS
from benchmarks.search_profile import Profile, profiled
from benchmarks.search_tables import KERNELS, report
from measurements.errors import CannotMeasureError
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.timing import Timed, use_threads
from twostagegp import datasets, search_kernel
from twostagegp.data.scaling import Prepared, prepare
from twostagegp.kernels import make_kernel
from twostagegp.search.kernel_search import KernelSearch

__all__ = [
    "MEASUREMENT",
    "Plan",
    "Standardised",
    "Table",
    "extrapolated_seconds",
    "gpytorch_kernel",
    "log_parameters",
    "measure",
    "measure_table",
    "nll_per_row",
    "search",
]

Array = NDArray[np.float64]
#: Inputs and target in the user's units.
Table = tuple[Array, Array]

LOOP_REPEATS = 4


@dataclass(frozen=True)
class Plan:
    """What is measured on one device.

    Attributes
    ----------
    device : str
    repeats, subsample : int
        Of the search.
    runs : int
        Times that the search is run; the fastest counts, as other programs only ever add time.
    loop_repeats : int
        Repetitions of the loop for each kernel.
    threads : int, optional
        None: as many as torch takes.
    """

    device: str = "cpu"
    repeats: int = 100
    subsample: int = 500
    runs: int = 3
    loop_repeats: int = LOOP_REPEATS
    threads: int | None = None


@dataclass(frozen=True)
class Standardised:
    """The rows of a table, repeats included, exact copies not, standardised as a search does it.

    Attributes
    ----------
    X : Tensor of shape (n, d)
    t : Tensor of shape (n,)
    distinct : array of shape (n,)
        Number of the distinct row that each row repeats.
    """

    X: Tensor
    t: Tensor
    distinct: NDArray[np.int64]

    @classmethod
    def of(cls, table: Table, device: str) -> Standardised:
        """Return the rows in float64 on a device."""
        X, y = table
        where = torch.device(device)
        names = [f"x{k}" for k in range(X.shape[1])]
        data: Prepared = prepare(X, y, names, device=where, dtype=torch.float64)
        t = (y - data.scaling.y_mean) / data.scaling.y_scale
        distinct = data.merged.inverse
        # A search counts rows with the same inputs and the same target once.
        once = (data.rows.counting_copies_once().c != data.rows.c).cpu().numpy()
        is_first = np.zeros(len(y), dtype=bool)
        is_first[np.unique(distinct, return_index=True)[1]] = True
        kept = is_first | ~once[distinct]
        return cls(
            torch.as_tensor(data.scaling.inputs(X)[kept], device=where),
            torch.as_tensor(t[kept], device=where),
            distinct[kept],
        )

    def behind(self, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return inputs and target of the rows that repeat the distinct rows in ``index``."""
        rows = torch.as_tensor(np.flatnonzero(np.isin(self.distinct, index)), device=self.X.device)
        return self.X[rows], self.t[rows]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the fields of the plan."""
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--repeats", type=int, help=f"of the search; {Plan.repeats} by default")
    add("--subsample", type=int, help=f"rows of each; {Plan.subsample} by default")
    add("--runs", type=int, help=f"searches of each kind; {Plan.runs} by default")
    loop = f"repetitions of the loop for each kernel; by default {LOOP_REPEATS}, on a GPU 0"
    add("--loop-repeats", type=int, help=loop)
    add("--threads", type=int, help="default: as many as torch takes")


def cells(given: argparse.Namespace) -> list[Plan]:
    """Return the plan of one device."""
    default = Plan(repeats=2, subsample=30, runs=1) if given.quick else Plan()
    loop_repeats = given.loop_repeats
    if loop_repeats is None:
        loop_repeats = LOOP_REPEATS if given.device == "cpu" and not given.quick else 0
    return [
        Plan(
            given.device,
            given.repeats or default.repeats,
            given.subsample or default.subsample,
            given.runs or default.runs,
            loop_repeats,
            given.threads,
        )
    ]


def measure(plan: Plan) -> Record:
    """Measure search and loop on concrete."""
    if plan.device == "cuda" and not torch.cuda.is_available():
        raise CannotMeasureError("torch sees no CUDA device")
    if plan.threads is not None:
        use_threads(plan.threads)
    data = datasets.load("concrete")
    return measure_table(plan, (data.X, data.y))


def measure_table(plan: Plan, table: Table) -> Record:
    """Time search and loop in turns, then profile one more search."""
    record: Record = {
        "machine": _machine(plan.device),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
    }
    rows = Standardised.of(table, plan.device)
    _warm_up(plan, table, rows)
    took: dict[bool, list[Timed]] = {False: [], True: []}
    found: dict[bool, KernelSearch] = {}
    fits: list[Record] = []
    for turn in range(plan.runs):
        for early in took:
            with Timed() as timed:
                found[early] = search(plan, table, early)
            took[early].append(timed)
            what = "early decision" if early else "all repetitions"
            print(f"search, {what}: {timed.wall:.2f} s ({timed.cpu:.2f} CPU s)", flush=True)
        for repeat in range(plan.loop_repeats)[turn :: plan.runs]:
            for name in KERNELS:
                fits.append(_loop_fit(name, repeat, found[False], rows))
                print(f"loop, {name}: {fits[-1]['wall_seconds']:.2f} s", flush=True)
    for early, name in ((False, "full"), (True, "early")):
        record[name] = _search_facts(found[early], took[early])
    if fits:
        record["loop"] = {
            "repeats": plan.loop_repeats,
            "wall_seconds": extrapolated_seconds(fits, "wall_seconds", plan.repeats),
            "cpu_seconds": extrapolated_seconds(fits, "cpu_seconds", plan.repeats),
            "slowest_wall_seconds": extrapolated_seconds(fits, "wall_seconds", plan.repeats, max),
            "fits": fits,
        }
    if plan.device == "cuda":
        record["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return record | {"breakdown": _breakdown(plan, table)}


def nll_per_row(name: str, parameters: Array, X: Tensor, t: Tensor) -> float:
    """Return the negative log likelihood per row of an isotropic kernel, without any prior.

    Parameters
    ----------
    name : str
    parameters : array of shape (3,)
        Logarithms of lengthscale, outputscale and noise variance.
    X : Tensor of shape (n, d)
    t : Tensor of shape (n,)
    """
    K, _ = make_kernel(name, X.shape[1]).evaluate(X, parameters[:-1])
    K.diagonal().add_(math.exp(parameters[-1]))
    L = torch.linalg.cholesky(K)
    white = torch.linalg.solve_triangular(L, t[:, None], upper=False)
    value = 0.5 * white.square().sum() + L.diagonal().log().sum()
    return float(value) / len(t) + 0.5 * math.log(2.0 * math.pi)


def search(plan: Plan, table: Table, early: bool, n_jobs: int | None = None) -> KernelSearch:
    """Run the search that is timed."""
    return search_kernel(
        *table,
        KERNELS,
        model="gp",
        selection="nll",
        sampling="fps",
        early=early,
        n_repeats=plan.repeats,
        subsample=plan.subsample,
        device=plan.device,
        n_jobs=n_jobs,
        random_state=0,
    )


def _search_facts(search: KernelSearch, took: list[Timed]) -> Record:
    repeated = {entry.label: entry.repeated for entry in search.entries}
    assert all(part is not None for part in repeated.values())
    evaluations = {name: part.evaluations for name, part in repeated.items() if part is not None}
    return {
        "wall_seconds": min(timed.wall for timed in took),
        "cpu_seconds": min(timed.cpu for timed in took),
        "slowest_wall_seconds": max(timed.wall for timed in took),
        "all_wall_seconds": [timed.wall for timed in took],
        "repeats": len(search.index),
        "n_train": search.n_train,
        "ranking": list(search.table.index),
        "nll": {name: search.table.loc[name, "score"] for name in KERNELS},
        "evaluations": {name: float(counts.mean()) for name, counts in evaluations.items()},
        "most_evaluations": max(int(counts.max()) for counts in evaluations.values()),
    }


def _loop_fit(
    name: str, repeat: int, search: KernelSearch, rows: Standardised, steps: int = 100
) -> Record:
    """Time one fit of the plain loop; return its likelihood beside that of the search."""
    from benchmarks.gpytorch_exact import train, train_to_the_end

    X, t = rows.behind(search.index[repeat, : search.n_train])
    with Timed() as timed:
        model = train(X, t, gpytorch_kernel(name), steps)
        parameters = {"loop": log_parameters(model)}  # waits for a GPU to finish
    train_to_the_end(model)
    parameters["end"] = log_parameters(model)
    entry = next(entry for entry in search.entries if entry.label == name)
    assert entry.repeated is not None
    parameters["ours"] = entry.repeated.parameters[repeat]
    return {
        "kernel": name,
        "repeat": repeat,
        "wall_seconds": timed.wall,
        "cpu_seconds": timed.cpu,
        "rows": len(t),
        "nll": {who: nll_per_row(name, p, X, t) for who, p in parameters.items()},
        "parameters": {who: list(p) for who, p in parameters.items()},
    }


def gpytorch_kernel(name: str) -> Any:
    """Return the kernel of the loop."""
    from gpytorch.kernels import MaternKernel, RBFKernel

    return RBFKernel() if name == "rbf" else MaternKernel(nu={"12": 0.5, "32": 1.5}[name[-2:]])


def log_parameters(model: Any) -> Array:
    """Return the logarithms of lengthscale, outputscale and noise variance of a GPyTorch model."""
    kernel = model.covar_module
    values = (kernel.base_kernel.lengthscale, kernel.outputscale, model.likelihood.noise)
    return np.log([value.item() for value in values])


def extrapolated_seconds(
    fits: list[Record], field: str, repeats: int, pick: Callable[[Iterable[float]], float] = min
) -> float:
    """Return the seconds of all repetitions of all kernels, from the fastest of a few."""
    return sum(
        repeats * pick(fit[field] for fit in fits if fit["kernel"] == name) for name in KERNELS
    )


def _breakdown(plan: Plan, table: Table) -> Record:
    """Return the seconds of the parts of one more search; on the CPU it runs on one thread."""
    cuda = plan.device == "cuda"
    with profiled(cuda) as profile, Timed() as timed:
        found = search(plan, table, early=False, n_jobs=None if cuda else 1)
    seconds = {"subsampling": found.seconds["subsamples"], **profile.seconds}
    seconds["the rest"] = timed.wall - sum(seconds.values())
    return {
        "wall_seconds": timed.wall,
        "seconds": seconds,
        "threads": torch.get_num_threads() if cuda else 1,
        "blocks": profile.calls,
        **_matrix_counts(profile, found.n_train, len(KERNELS) * plan.repeats),
    }


def _matrix_counts(profile: Profile, n_train: int, n_problems: int) -> Record:
    whole = profile.matrices[n_train]
    return {
        "matrices": whole,
        "matrices_a_problem": whole / n_problems,
        "small_matrices": profile.matrices.total() - whole,
    }


def _warm_up(plan: Plan, table: Table, rows: Standardised) -> None:
    """Import and compile before the clock runs."""
    size = min(100, plan.subsample)
    small = search(Plan(plan.device, repeats=4, subsample=size), table, early=False)
    if plan.loop_repeats:
        _loop_fit(KERNELS[0], 0, small, rows, steps=2)


def _machine(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    return platform.processor() or platform.machine()


MEASUREMENT = Measurement(
    name="kernel_search",
    about="What a kernel search costs.",
    results=RESULTS,
    cell=Plan,
    cells=cells,
    measure=measure,
    report=report,
    arguments=arguments,
    key=("device",),
)

if __name__ == "__main__":
    raise SystemExit(run(MEASUREMENT))
