"""Run the repetitions of a search on the workers of a Dask cluster.

The client draws the subsamples. The rows that they use are sent once, as the result of a task, and
every worker takes a copy from it. A task fits one kernel on a few repetitions. Before them comes
one task per kernel for the pilots, whose optimum is the start of all fits. The number of
repetitions per task depends on their size alone, so that the result does not depend on the number
of workers, on the order of the tasks, or on a lost worker whose tasks Dask has given to another.

A kernel is sent as bytes, and each task makes its own kernel from them: a GPyTorch kernel holds
one parameter vector at a time, and concurrent tasks of one process would overwrite each other's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.engines.batched_problem import Extras, ProblemBatch
from twostagegp.errors import ClusterError, InputError
from twostagegp.kernels import Kernel
from twostagegp.runtime.dask_cluster import cancel, cluster_errors, single_thread
from twostagegp.search.bootstrap import Statistic, refit_draws
from twostagegp.search.repetitions import Repeated, RepetitionOptions, Repetitions
from twostagegp.training.batched import BatchFit, Starts

__all__ = ["DaskRunner", "open_dask_runner", "repetitions_per_task"]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

#: What to do about workers that ran out of memory.
_ADVICE = "lower subsample"


def repetitions_per_task(n_rows: int) -> int:
    """Return the number of repetitions of ``n_rows`` training rows that share a task.

    The cost of a repetition grows with the third power of its rows.

    Examples
    --------
    >>> [repetitions_per_task(n) for n in (40, 200, 400, 1000)]
    [100, 32, 4, 1]
    """
    # Four of 400 rows take some tenths of a second, while the overhead of a task is milliseconds.
    return int(np.clip(4 * (400 / n_rows) ** 3, 1, 100))


@contextmanager
def open_dask_runner(client: Any) -> Iterator[DaskRunner]:
    """Yield a runner on the workers of a client; an error or Ctrl-C cancels unfinished tasks."""
    runner = DaskRunner(client)
    try:
        yield runner
    except BaseException:
        cancel(client, runner.futures)
        raise


class DaskRunner:
    """Runs one search on a cluster (a :class:`~twostagegp.search.runners.RepetitionRunner`).

    Parameters
    ----------
    client : distributed.Client
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self.futures: list[Any] = []
        self._starts: dict[int, Any] = {}

    def start(
        self,
        repetitions: Repetitions,
        kernels: Sequence[Kernel],
        options: RepetitionOptions,
        first: int,
    ) -> list[Callable[[], Repeated]]:
        """Submit the tasks of all kernels; each returned function waits for those of one kernel."""
        index = repetitions.index[first:]
        part = repetitions.restricted_to(index)
        sent = [pickle_kernel(kernel) for kernel in kernels]
        held = self.hold(RepetitionData(part.rows, part.index))
        if options.model == "gp":
            for kernel, data in zip(kernels, sent, strict=True):
                # A second round of the same kernel starts where the first one did.
                if id(kernel) not in self._starts:
                    self._starts[id(kernel)] = self._submit(
                        find_starts, held, data, options, repetitions.pilots()
                    )
        size = repetitions_per_task(repetitions.n_train)
        cuts = [slice(i, min(i + size, len(index))) for i in range(0, len(index), size)]
        waits: list[Callable[[], Repeated]] = []
        for kernel, data in zip(kernels, sent, strict=True):
            starts = self._starts.get(id(kernel))
            tasks = [self._submit(fit_some, held, data, options, cut, starts) for cut in cuts]
            waits.append(partial(self._collect_scores, tasks, kernel.label))
        return waits

    def refit(
        self, draws: ProblemBatch, start: Array, inverse: Array, statistic: Statistic
    ) -> tuple[BatchFit, Array]:
        """Refit the draws in chunks; the inputs, which all draws share, are sent once."""
        extras = draws.extras
        shared = SharedInputs(
            pickle_kernel(draws.kernel),
            draws.X,
            None if extras is None else (extras.c, extras.known),
            draws.noise_floor,
            draws.use_prior,
        )
        held = self.hold(shared)
        size = repetitions_per_task(draws.n_rows)
        tasks = []
        for i in range(0, len(draws), size):
            q = None if extras is None else extras.q[i : i + size]
            targets = draws.t[i : i + size]
            tasks.append(self._submit(refit_some, held, targets, q, start, inverse, statistic))
        parts = self._collect(tasks, f"simulations of {draws.kernel.label}")
        fits, statistics = zip(*parts, strict=True)
        return reduce(BatchFit.extended, fits), np.concatenate(statistics)

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        future = self.client.submit(function, *arguments, pure=False)
        self.futures.append(future)
        return future

    def hold(self, value: Any) -> Any:
        """Send a large value to the workers once, as the result of a task that Dask can repeat."""
        import dask

        # Dask warns about large values in a task. This one is sent only once, as Dask advises.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
            return self._submit(identity, value)

    def _collect(self, tasks: list[Any], work: str) -> list[Any]:
        with cluster_errors(self.client, work, _ADVICE):
            try:
                return list(self.client.gather(tasks))
            except BaseException:
                cancel(self.client, tasks)
                raise

    def _collect_scores(self, tasks: list[Any], label: str) -> Repeated:
        return reduce(Repeated.extended, self._collect(tasks, f"repetitions of {label}"))


# --- what is sent to the workers, and the tasks that run there -----------------------------------


@dataclass(frozen=True)
class RepetitionData:
    """Repetitions and the rows that they use.

    Attributes
    ----------
    rows : Rows
    index : array of shape (R, size)
    """

    rows: Rows
    index: Indices

    def __sizeof__(self) -> int:
        return int(self.rows.X.nbytes + 4 * self.rows.t.nbytes + self.index.nbytes)

    def select(self, which: slice | Indices) -> Repetitions:
        """Return the repetitions of these numbers, ready to run."""
        size = self.index.shape[1]
        chosen = Repetitions(self.rows, size, "random", np.random.default_rng(0))
        chosen.index = self.index[which]
        return chosen


@dataclass(frozen=True)
class SharedInputs:
    """What all simulations of a fitted model have in common.

    Attributes
    ----------
    kernel : bytes
    X : Tensor of shape (1, n, d)
    merged : pair of Tensors of shape (1, n), or None
        Weights and known noise variances.
    noise_floor : float
    use_prior : bool
    """

    kernel: bytes
    X: Tensor
    merged: tuple[Tensor, Tensor] | None
    noise_floor: float
    use_prior: bool

    def problems(self, t: Tensor, q: Tensor | None) -> ProblemBatch:
        """Return problems with these targets, shape (B, n), and within-row sums of squares q."""
        extras = None
        if self.merged is not None and q is not None:
            c, known = self.merged
            extras = Extras(c, q, known)
        return ProblemBatch.of(
            load_kernel(self.kernel),
            self.X,
            t,
            extras=extras,
            noise_floor=self.noise_floor,
            use_prior=self.use_prior,
        )


def identity(value: Any) -> Any:
    """Return the value: the task that holds what other tasks share."""
    return value


def find_starts(
    data: RepetitionData, kernel: bytes, options: RepetitionOptions, pilots: Indices
) -> Starts:
    """Return the starting points of a kernel's fits, from the pilots (a task)."""
    with single_thread():
        return data.select(pilots).starts(load_kernel(kernel), options)


def fit_some(
    data: RepetitionData,
    kernel: bytes,
    options: RepetitionOptions,
    which: slice,
    starts: Starts | None,
) -> Repeated:
    """Return the scores of one kernel on a few repetitions (a task)."""
    with single_thread():
        return data.select(which).run(load_kernel(kernel), options, starts=starts)


def refit_some(
    shared: SharedInputs,
    t: Tensor,
    q: Tensor | None,
    start: Array,
    inverse: Array,
    statistic: Statistic,
) -> tuple[BatchFit, Array]:
    """Return the refits of a few simulations and their statistics (a task)."""
    with single_thread():
        return refit_draws(shared.problems(t, q), start, inverse, statistic)


def pickle_kernel(kernel: Kernel) -> bytes:
    """Return a kernel as bytes that can be sent to the workers."""
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(kernel))
    except Exception as error:
        raise InputError(
            f"kernel {kernel.label} cannot be sent to the workers ({error}); build it from parts "
            "that can be pickled, or search without client=."
        ) from error


def load_kernel(data: bytes) -> Kernel:
    """Return a new kernel made from the bytes of :func:`pickle_kernel`."""
    import cloudpickle

    try:
        kernel: Kernel = cloudpickle.loads(data)
    except Exception as error:
        raise ClusterError(
            f"a worker cannot load a kernel ({type(error).__name__}: {error}); workers need the "
            "same packages and modules: see Client.upload_file."
        ) from error
    return kernel
