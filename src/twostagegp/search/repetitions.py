r"""Repeat a fit on subsamples; all problems of one kernel are solved as one batch.

Every repetition draws some rows of the table, trains on the first part of them and tests on the
rest. The subsamples are common to all kernels, so that scores are compared in pairs. A kernel
ridge regression has the classical lengthscale (gamma = 1/d) and a penalty :math:`\lambda`, given
or chosen by the smallest leave-one-out error :math:`\sum_i (\alpha_i / \kappa_i)^2`; a Gaussian
process is trained by its likelihood.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.checks import penalty_option
from twostagegp.data.rows import Rows
from twostagegp.data.sampling import draw_subsamples
from twostagegp.engines.batched_problem import Block, Extras, ProblemBatch
from twostagegp.errors import InputError
from twostagegp.kernels import Kernel, NamedKernel
from twostagegp.runtime.memory import available_bytes
from twostagegp.search.paper_tests import bound_beta, error_ratio, passes_bound, rkhs_norm
from twostagegp.search.settings import DEFAULT_SEARCH, SearchSettings
from twostagegp.training.batched import Starts, fit_batch, pilot_index, pilot_starts

__all__ = [
    "MIN_ROWS",
    "PAPER_PENALTIES",
    "TRAIN_SHARE",
    "Model",
    "Repeated",
    "RepetitionOptions",
    "Repetitions",
    "penalty_grid",
]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Model = Literal["gp", "krr"]

#: The paper's grid of ridge penalties.
PAPER_PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
#: Share of a subsample that is trained on: 400 of 500 rows, as in the paper.
TRAIN_SHARE = 0.8
#: Smallest number of distinct rows that can be split into a training part and a test part.
MIN_ROWS = 10


@dataclass(frozen=True)
class RepetitionOptions:
    """The model that is fitted in every repetition, and the scores that are computed.

    Parameters
    ----------
    model : {"gp", "krr"}
    penalties : sequence of float
        Grid of ridge penalties of ``model="krr"``.
    threshold : float
        Largest error ratio that passes the ratio test.
    delta : float
        Probability in the error bound.
    rkhs_bound : float, "estimate" or None
        B in the error bound; None drops it, as the paper proposes.
    noise_floor : float
    with_bound : bool
        Whether to compute the error bound, which costs one more factorisation.
    """

    model: Model = "gp"
    penalties: Sequence[float] = PAPER_PENALTIES
    threshold: float = 1.1
    delta: float = 0.05
    rkhs_bound: float | str | None = None
    noise_floor: float = 1e-8
    with_bound: bool = False


@dataclass
class Repeated:
    """Scores of one kernel, one entry per repetition.

    Attributes
    ----------
    nll, loo, heldout : arrays of shape (R,)
        Negative log likelihood, negative leave-one-out log density and negative log density of
        the test rows, each per row. For ``model="krr"`` the last two are mean squared errors, and
        the likelihood is NaN.
    ratio : array of shape (R,)
        Share of test rows whose error ratio is at most the threshold.
    bound, bound_printed : arrays of shape (R,)
        Share of test rows within the error bound, corrected and as printed in the paper; NaN
        unless ``with_bound``.
    noise : array of shape (R,)
        Fitted noise standard deviation; the square root of the penalty for ``model="krr"``.
    parameters : array of shape (R, p)
    evaluations : array of shape (R,)
        Number of evaluations of the objective.
    seconds : float
    """

    nll: Array
    loo: Array
    heldout: Array
    ratio: Array
    bound: Array
    bound_printed: Array
    noise: Array
    parameters: Array
    evaluations: Indices
    seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.nll)

    def extended(self, other: Repeated) -> Repeated:
        """Return these repetitions followed by those of ``other``."""
        joined = {
            name: np.concatenate([getattr(self, name), getattr(other, name)])
            for name in self.__dataclass_fields__
            if name != "seconds"
        }
        return Repeated(**joined, seconds=self.seconds + other.seconds)


@dataclass
class Repetitions:
    """Common subsamples of a table, drawn as they are needed.

    Parameters
    ----------
    rows : Rows
        The table, standardised and merged.
    size : int
        Number of rows of a subsample; larger numbers mean all rows.
    sampling : {"fps", "random"}
    rng : Generator
    settings : SearchSettings
        Only the limits of memory are used.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from twostagegp.kernels import make_kernel
    >>> X = torch.randn(60, 2, dtype=torch.float64)
    >>> one, zero = torch.ones(60).double(), torch.zeros(60).double()
    >>> rows = Rows(X, X[:, 0], one, zero, zero)
    >>> repetitions = Repetitions(rows, 40, "random", np.random.default_rng(0))
    >>> repetitions.draw(3)
    >>> repeated = repetitions.run(make_kernel("rbf", 2), RepetitionOptions())
    >>> len(repeated), repetitions.n_train
    (3, 32)
    """

    rows: Rows
    size: int
    sampling: str
    rng: np.random.Generator
    settings: SearchSettings = DEFAULT_SEARCH
    index: Indices = field(init=False)
    seconds: float = field(default=0.0, init=False)
    _starts: dict[int, Starts] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        n = len(self.rows)
        if n < MIN_ROWS:
            raise InputError(
                f"{n} distinct rows are too few to split into training and test rows; at least "
                f"{MIN_ROWS} are needed."
            )
        self.rows = self.rows.counting_copies_once()
        self.size = min(self.size, n)
        self.index = np.empty((0, self.size), dtype=np.int64)
        self._table = self.rows.X.cpu().numpy().astype(np.float64)

    @property
    def n_train(self) -> int:
        """Number of training rows of a subsample; the rest are test rows."""
        return round(TRAIN_SHARE * self.size)

    def draw(self, n_repeats: int) -> None:
        """Draw subsamples until there are ``n_repeats``."""
        missing = n_repeats - len(self.index)
        if missing > 0:
            begin = time.perf_counter()
            more = draw_subsamples(self._table, self.size, missing, self.sampling, self.rng)
            self.index = np.concatenate([self.index, more])
            self.seconds += time.perf_counter() - begin

    def restricted_to(self, index: Indices) -> Repetitions:
        """Return the repetitions ``index``, shape (R, size), with the rows that they use only."""
        used, position = np.unique(index, return_inverse=True)
        rows = self.rows.subset(used)
        part = Repetitions(rows, self.size, self.sampling, self.rng, self.settings)
        part.index = position.reshape(index.shape)
        return part

    def starts(self, kernel: Kernel, options: RepetitionOptions) -> Starts:
        """Return the starting points of the fits, from the pilots among the repetitions."""
        pilots = self.index[self.pilots(), : self.n_train]
        return pilot_starts(self.problems(kernel, options, pilots))

    def pilots(self) -> Indices:
        """Return the numbers of the repetitions that :meth:`run` uses as pilots."""
        return pilot_index(min(len(self.index), self._repetitions_at_once()))

    def run(
        self,
        kernel: Kernel,
        options: RepetitionOptions,
        first: int = 0,
        starts: Starts | None = None,
    ) -> Repeated:
        """Fit and score the kernel on all repetitions drawn so far, from number ``first`` on.

        Fits begin at ``starts``; by default these are found from the pilots among these
        repetitions.
        """
        if starts is not None:
            self._starts[id(kernel)] = starts
        index = self.index[first:]
        size = self._repetitions_at_once()
        parts = [
            self._run_part(kernel, options, index[i : i + size]) for i in range(0, len(index), size)
        ]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.extended(part)
        return whole

    def _repetitions_at_once(self) -> int:
        """Return the number of problems whose distance matrices fit into the memory limit."""
        device = self.rows.X.device
        budget = self.settings.matrix_bytes
        if device.type == "cuda":
            budget = int(self.settings.gpu_memory_share * (available_bytes(device) or budget))
        return max(1, budget // (self.n_train**2 * self.rows.X.element_size()))

    def _run_part(self, kernel: Kernel, options: RepetitionOptions, index: Indices) -> Repeated:
        begin = time.perf_counter()
        problems = self.problems(kernel, options, index[:, : self.n_train])
        parameters, evaluations = self._train(problems, options)
        test = _TestRows.of(self.rows, index[:, self.n_train :])

        def scores(block: Block) -> dict[str, Array]:
            return _scores(block, problems, test, options)

        parts = problems.map(parameters, np.arange(len(index)), scores)
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        seconds = time.perf_counter() - begin
        return Repeated(**columns, parameters=parameters, evaluations=evaluations, seconds=seconds)

    def problems(self, kernel: Kernel, options: RepetitionOptions, index: Indices) -> ProblemBatch:
        """Return the training problems of repetitions; ``index`` has shape (R, n_train)."""
        where = torch.as_tensor(index, device=self.rows.X.device)
        return ProblemBatch.of(
            kernel,
            self.rows.X[where],
            self.rows.t[where],
            extras=Extras.of(self.rows, where),
            noise_floor=options.noise_floor,
        )

    def _train(self, problems: ProblemBatch, options: RepetitionOptions) -> tuple[Array, Indices]:
        if options.model == "krr":
            return _choose_penalties(problems, options.penalties)
        # Later repetitions of a kernel have the same starting points as its first ones.
        key = id(problems.kernel)
        if key not in self._starts:
            self._starts[key] = pilot_starts(problems)
        fit = fit_batch(problems, starts=self._starts[key])
        return fit.parameters, fit.evaluations


@dataclass(frozen=True)
class _TestRows:
    X: Tensor
    t: Tensor
    extras: Extras | None

    @classmethod
    def of(cls, rows: Rows, index: Indices) -> _TestRows:
        where = torch.as_tensor(index, device=rows.X.device)
        return cls(rows.X[where], rows.t[where], Extras.of(rows, where))

    def take(self, index: slice | Tensor) -> _TestRows:
        extras = None if self.extras is None else self.extras.take(index)
        return _TestRows(self.X[index], self.t[index], extras)


def penalty_grid(penalty: Any) -> tuple[float, ...]:
    """Return the grid that a ``penalty`` parameter means; ``"auto"`` is the paper's grid."""
    grid = penalty_option(penalty, ("auto",))
    return PAPER_PENALTIES if isinstance(grid, str) else grid


def classical_start(kernel: Kernel) -> Array:
    """Return the parameters of classical kernel ridge: gamma = 1/d and a unit outputscale."""
    return kernel.classical() if isinstance(kernel, NamedKernel) else kernel.start()


def _choose_penalties(problems: ProblemBatch, penalties: Sequence[float]) -> tuple[Array, Indices]:
    """Return parameters with the best penalty by leave-one-out error, and evaluation counts."""
    B, theta = len(problems), classical_start(problems.kernel)

    def errors(block: Block) -> Array:
        return torch.where(block.fine, block.loo_error(), math.inf).cpu().numpy()

    table, grids = [], []
    for penalty in penalties:
        grids.append(np.tile(np.append(theta, math.log(penalty)), (B, 1)))
        table.append(np.concatenate(problems.map(grids[-1], np.arange(B), errors)))
    best = np.argmin(np.array(table), axis=0)
    count = np.full(B, len(grids), dtype=np.int64)
    return np.stack(grids)[best, np.arange(B)], count


def _scores(
    block: Block, problems: ProblemBatch, test: _TestRows, options: RepetitionOptions
) -> dict[str, Array]:
    """Return the score columns of :class:`Repeated` for the problems of a block."""
    part = test.take(block.index)
    cross = problems.covariance.cross(part.X, problems.X[block.index], block.theta)
    error = (cross @ block.alpha[:, :, None])[:, :, 0] - part.t
    ratio = error_ratio(block, cross, part.t)
    passed = (ratio <= options.threshold).to(error.dtype).mean(1)
    nothing = torch.full_like(passed, math.nan)
    bound, printed = nothing, nothing
    if options.model == "krr":
        nll, loo = nothing, block.loo_error()
        heldout = error.square().mean(1)
    else:
        nll, loo = block.nll() / block.total, block.loo_density() / block.total
        V = torch.linalg.solve_triangular(block.L, cross.mT, upper=False)
        latent = problems.covariance.diagonal(part.X, block.theta) - V.square().sum(1)
        latent = latent.clamp(min=0.0)
        s = block.noise[:, None]
        v = latent + (s if part.extras is None else (s + part.extras.known) / part.extras.c)
        heldout = 0.5 * (error.square() / v + v.log() + math.log(2.0 * math.pi)).mean(1)
        if options.with_bound:
            bound, printed = _share_within_bounds(block, error, latent.sqrt(), options)
    columns = {
        "nll": nll,
        "loo": loo,
        "heldout": heldout,
        "ratio": passed,
        "bound": bound,
        "bound_printed": printed,
        "noise": block.noise.sqrt(),
    }
    return {
        name: torch.where(block.fine, values, math.nan).cpu().numpy().astype(np.float64)
        for name, values in columns.items()
    }


def _share_within_bounds(
    block: Block, error: Tensor, latent_sd: Tensor, options: RepetitionOptions
) -> tuple[Tensor, Tensor]:
    """Return the shares of test rows within the corrected and the printed bound, each (b,)."""
    B, delta = _rkhs_bound(block, options), options.delta
    betas = [bound_beta(block, B, delta, printed=printed) for printed in (False, True)]
    corrected, printed = (
        passes_bound(error, latent_sd, beta, block, delta).to(error.dtype).mean(1) for beta in betas
    )
    return corrected, printed


def _rkhs_bound(block: Block, options: RepetitionOptions) -> Tensor | float:
    if options.rkhs_bound is None:
        return 0.0
    if isinstance(options.rkhs_bound, str):
        return rkhs_norm(block)
    return float(options.rkhs_bound)
