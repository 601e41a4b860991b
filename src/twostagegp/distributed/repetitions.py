"""Repetitions of a search on the workers of a Dask cluster.

The client draws the subsamples. Rows that they use are sent once, as the result of a task, from
which every worker takes a copy; a task is one kernel on a few repetitions. One more task a kernel
comes first: the pilots, whose optimum starts the fits of all repetitions. How many repetitions
share a task depends on their size alone, so that the result does not depend on the number of
workers, on their order, or on one that was lost and whose tasks Dask has given to another.

A kernel travels as bytes, and each task makes its own from them: a GPyTorch kernel holds one
parameter vector at a time, and tasks of one process would overwrite each other's.
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
from twostagegp.distributed.cluster import cancel, in_words, one_thread
from twostagegp.engines.batched_problem import Extras, ProblemBatch
from twostagegp.errors import ClusterError, InputError
from twostagegp.kernels import Kernel
from twostagegp.search.bootstrap import Statistic, refit_draws
from twostagegp.search.repetitions import Repeated, Repetitions, Settings
from twostagegp.training.batched import BatchFit, Starts

__all__ = ["Workers", "on_workers", "repetitions_a_task"]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

#: Repetitions of a task at 400 training rows: some tenths of a second, where a task costs
#: milliseconds; a repetition costs as the third power of its rows. And at most, for small ones.
_AT_400_ROWS, _AT_MOST = 4, 100
#: What to do about workers that ran out of memory.
_WAY_OUT = "lower subsample"


def repetitions_a_task(n_rows: int) -> int:
    """How many repetitions of ``n_rows`` training rows share a task.

    Examples
    --------
    >>> [repetitions_a_task(n) for n in (40, 200, 400, 1000)]
    [100, 32, 4, 1]
    """
    return int(np.clip(_AT_400_ROWS * (400 / n_rows) ** 3, 1, _AT_MOST))


@contextmanager
def on_workers(client: Any) -> Iterator[Workers]:
    """The workers of a client; an error or Ctrl-C cancels what they have not done."""
    workers = Workers(client)
    try:
        yield workers
    except BaseException:
        cancel(client, workers.futures)
        raise


class Workers:
    """The place of a search that is a cluster (:class:`~twostagegp.search.places.Place`).

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
        settings: Settings,
        first: int,
    ) -> list[Callable[[], Repeated]]:
        """Give out all tasks of all kernels; the calls wait for the results of one each."""
        index = repetitions.index[first:]
        part = repetitions.of(index)
        sent = [pickled(kernel) for kernel in kernels]
        held = self._held(Part(part.rows, part.index))
        if settings.model == "gp":
            for kernel, data in zip(kernels, sent, strict=True):
                # A second round of the same kernel starts where the first one did.
                if id(kernel) not in self._starts:
                    self._starts[id(kernel)] = self._submit(
                        find_starts, held, data, settings, repetitions.pilots()
                    )
        size = repetitions_a_task(repetitions.n_train)
        cuts = [slice(i, min(i + size, len(index))) for i in range(0, len(index), size)]
        waits: list[Callable[[], Repeated]] = []
        for kernel, data in zip(kernels, sent, strict=True):
            starts = self._starts.get(id(kernel))
            tasks = [self._submit(fit_some, held, data, settings, cut, starts) for cut in cuts]
            waits.append(partial(self._repeated, tasks, kernel.label))
        return waits

    def refit(
        self, draws: ProblemBatch, start: Array, inverse: Array, statistic: Statistic
    ) -> tuple[BatchFit, Array]:
        """Draws in chunks; inputs, which they share, are sent once."""
        extras = draws.extras
        shared = Shared(
            pickled(draws.kernel),
            draws.X,
            None if extras is None else (extras.c, extras.known),
            draws.noise_floor,
            draws.use_prior,
        )
        held = self._held(shared)
        size = repetitions_a_task(draws.n_rows)
        tasks = []
        for i in range(0, len(draws), size):
            q = None if extras is None else extras.q[i : i + size]
            targets = draws.t[i : i + size]
            tasks.append(self._submit(refit_some, held, targets, q, start, inverse, statistic))
        parts = self._gathered(tasks, f"simulations of {draws.kernel.label}")
        fits, statistics = zip(*parts, strict=True)
        return reduce(BatchFit.extended, fits), np.concatenate(statistics)

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        future = self.client.submit(function, *arguments, pure=False)
        self.futures.append(future)
        return future

    def _held(self, value: Any) -> Any:
        """Something large on the workers, as the result of a task: not lost with a worker."""
        import dask

        # Dask warns of what is sent with a task; it is sent once, which is what Dask advises.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
            return self._submit(itself, value)

    def _gathered(self, tasks: list[Any], what: str) -> list[Any]:
        with in_words(self.client, what, _WAY_OUT):
            try:
                return list(self.client.gather(tasks))
            except BaseException:
                cancel(self.client, tasks)
                raise

    def _repeated(self, tasks: list[Any], label: str) -> Repeated:
        return reduce(Repeated.extended, self._gathered(tasks, f"repetitions of {label}"))


# --- on the workers ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Some repetitions and the rows that they use.

    Attributes
    ----------
    rows : Rows
    index : array of shape (R, size)
    """

    rows: Rows
    index: Indices

    def __sizeof__(self) -> int:
        return int(self.rows.X.nbytes + 4 * self.rows.t.nbytes + self.index.nbytes)

    def some(self, which: slice | Indices) -> Repetitions:
        """Some of them, ready to run."""
        size = self.index.shape[1]
        chosen = Repetitions(self.rows, size, "random", np.random.default_rng(0))
        chosen.index = self.index[which]
        return chosen


@dataclass(frozen=True)
class Shared:
    """What all simulations of a model have in common.

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
        """Problems with these targets, shape (B, n), and spreads within merged rows."""
        extras = None
        if self.merged is not None and q is not None:
            c, known = self.merged
            extras = Extras(c, q, known)
        return ProblemBatch.of(
            loaded(self.kernel),
            self.X,
            t,
            extras=extras,
            noise_floor=self.noise_floor,
            use_prior=self.use_prior,
        )


def itself(value: Any) -> Any:
    """The task that holds what others share."""
    return value


def find_starts(part: Part, kernel: bytes, settings: Settings, pilots: Indices) -> Starts:
    """The task of the pilots: where the fits of a kernel begin."""
    with one_thread():
        return part.some(pilots).starts(loaded(kernel), settings)


def fit_some(
    part: Part, kernel: bytes, settings: Settings, which: slice, starts: Starts | None
) -> Repeated:
    """The task of a few repetitions of one kernel."""
    with one_thread():
        return part.some(which).run(loaded(kernel), settings, starts=starts)


def refit_some(
    shared: Shared,
    t: Tensor,
    q: Tensor | None,
    start: Array,
    inverse: Array,
    statistic: Statistic,
) -> tuple[BatchFit, Array]:
    """The task of a few simulations."""
    with one_thread():
        return refit_draws(shared.problems(t, q), start, inverse, statistic)


def pickled(kernel: Kernel) -> bytes:
    """A kernel on its way to the workers."""
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(kernel))
    except Exception as error:
        raise InputError(
            f"kernel {kernel.label} cannot be sent to the workers ({error}); make it of parts that "
            "can be pickled, or search without client=."
        ) from error


def loaded(data: bytes) -> Kernel:
    """The kernel again, a new one each time."""
    import cloudpickle

    try:
        kernel: Kernel = cloudpickle.loads(data)
    except Exception as error:
        raise ClusterError(
            f"a worker cannot load a kernel ({type(error).__name__}: {error}); workers need the "
            "same packages and modules: see Client.upload_file."
        ) from error
    return kernel
