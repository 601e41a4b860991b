r"""The single-stage neighbour baseline: GPNN of Allison et al. (2023).

One zero-mean GP gives mean and variance of every point from its k nearest training rows.
Hyperparameters come from random blocks of rows, each an ordinary GP,

.. math::

    \min_\theta \sum_b -\log p(y_b \mid X_b, \theta),

and are then recalibrated: with held-out z-scores of a few rows, outputscale and noise are
multiplied by :math:`\mathrm{cal} = \frac1N \sum_i z_i^2` (the paper prints a sum), which is one
afterwards.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils._param_validation import StrOptions
from torch import Tensor

from twostagegp.data.appending import CONSTANT_MODEL, AppendedRows
from twostagegp.data.rows import Rows
from twostagegp.data.scaling import Prepared
from twostagegp.engines.neighbors.engine import KnownPoints, NeighborEngine, NeighborPosterior
from twostagegp.engines.problem import Problem
from twostagegp.errors import InputError
from twostagegp.estimators.base import BaseGPRegressor
from twostagegp.estimators.fit_report import FitReport
from twostagegp.estimators.reporting import single_stage_report
from twostagegp.estimators.single_stage import GaussianFit, constant_spread
from twostagegp.estimators.validation import KERNEL, SHARED_CONSTRAINTS, at_least
from twostagegp.kernels import Vector, inverse_lengthscale_shares, kernel_list
from twostagegp.training.candidates import Candidate, fitted_only
from twostagegp.training.optimise import minimise
from twostagegp.training.rounds import Schedule, train_in_rounds
from twostagegp.training.schedule import Training

__all__ = ["GPNNFit", "GPNNRegressor"]

Array = NDArray[np.float64]

#: Added to the variances of principal components before they are divided by.
_WHITENING_JITTER = 1e-5


@dataclass
class BlocksProblem(Problem):
    """The mean of the same objective over several blocks of rows."""

    blocks: list[Rows] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._parts = [
            Problem(self.kernel, rows, self.objective, None, self.noise_floor, self.use_prior)
            for rows in self.blocks
        ]

    def __call__(self, parameters: Vector) -> tuple[float, Vector]:
        self.evaluations += 1
        results = [part(parameters) for part in self._parts]
        self.jitter = max(part.jitter for part in self._parts)
        value = float(np.mean([value for value, _ in results]))
        return value, np.mean([gradient for _, gradient in results], axis=0)


@dataclass
class Whitening:
    """Uncorrelated inputs of variance 1/d, as GPNN's own preprocessing makes them."""

    mean: Tensor
    matrix: Tensor

    def __post_init__(self) -> None:
        self._last: tuple[KnownPoints, Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_last": None}

    @classmethod
    def of(cls, rows: Rows) -> Whitening:
        """Return the whitening of the training rows."""
        share = rows.c / rows.total
        mean = share @ rows.X
        centred = rows.X - mean
        variances, directions = torch.linalg.eigh(centred.T @ (share[:, None] * centred))
        scale = (variances.clamp(min=0.0) + _WHITENING_JITTER).sqrt() * len(mean) ** 0.5
        return cls(mean, directions / scale)

    def __call__(self, X: Tensor) -> Tensor:
        last = self._last  # read once: another thread may store its own
        if last is not None and last[0].same(X):
            return last[1]
        Z = (X - self.mean) @ self.matrix
        self._last = KnownPoints(X), Z
        return Z


@dataclass
class GPNNFit(GaussianFit):
    """A GP on nearest neighbours at fixed hyperparameters, or a constant."""

    posterior: NeighborPosterior | None
    candidates: list[Candidate]
    whitening: Whitening | None = None
    constant_noise: float = 1.0
    factor: float = 1.0
    seconds: dict[str, float] = field(default_factory=dict)
    searches: tuple[None, None] = (None, None)

    @property
    def noise(self) -> float:
        """Calibrated noise variance, never below the floor."""
        if self.posterior is None:
            return self.constant_noise
        return max(self.factor * self.posterior.noise, self.posterior.engine.noise_floor)

    def inputs(self, X: Tensor) -> Tensor:
        """Return standardised inputs, whitened if the fit was."""
        return X if self.whitening is None else self.whitening(X)

    def extended(self, appended: AppendedRows, residuals: Array) -> GPNNFit:
        """Return the fit with more rows at the same hyperparameters, whitening and factor."""
        if self.posterior is None:
            raise InputError(CONSTANT_MODEL)
        rows, known = appended.data.rows, self.posterior.rows.X
        if self.whitening is not None:
            rows = replace(rows, X=torch.cat([known, self.whitening(rows.X[len(known) :])]))
        return replace(self, posterior=self.posterior.extended(rows, appended.changed_rows))

    def relevance(self, n_features: int) -> Array:
        """Return the share of each column in the inverse lengthscales.

        Zeros after whitening, whose directions are not columns of the table.
        """
        share = np.zeros(n_features)
        if self.posterior is not None and self.whitening is None:
            share += inverse_lengthscale_shares(self.posterior.kernel, self.posterior.parameters)
        return share


class GPNNRegressor(BaseGPRegressor):
    """Gaussian process regression from nearest neighbours in a single stage (GPNN).

    Parameters
    ----------
    kernel : str or GPyTorch kernel
    n_neighbors : int
        The official program takes 400, the two-stage paper 50.
    ard : bool
        One lengthscale per column.
    objective : {"blocks", "neighbors"}
        What the hyperparameters are trained by. ``"blocks"``: the likelihood of random blocks of
        rows, as published; it ignores groups. ``"neighbors"``: the density of rows predicted from
        their neighbours, as in :class:`~twostagegp.TwoStageGPRegressor`.
    n_blocks, block_rows : int
        Number of blocks, and of rows per block.
    preprocess : {"whiten", "standardize"}
        Principal components of unit variance, divided by the root of their number, as published;
        or columns of unit variance.
    calibration : {"scale", None}
        ``"scale"`` multiplies outputscale and noise by the mean squared held-out z-score.
    n_calibration : int
        Number of rows whose held-out z-scores are used for it.
    training : Training, optional
        Optimiser of ``objective="blocks"``; L-BFGS by default. Since the blocks are the subsample,
        its ``subsample`` and its refining steps are refused.
    noise_floor, device, dtype, n_jobs, random_state, verbose, missing
        As in :class:`~twostagegp.TwoStageGPRegressor`.

    Examples
    --------
    >>> import numpy as np
    >>> from twostagegp import GPNNRegressor
    >>> X = np.random.default_rng(0).uniform(size=(500, 2))
    >>> y = np.sin(6 * X[:, 0]) + X[:, 1]
    >>> gp = GPNNRegressor(random_state=0).fit(X, y)
    >>> bool(np.abs(gp.predict(X) - y).max() < 0.1)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "kernel": [KERNEL],
        "n_neighbors": [at_least(1)],
        "ard": ["boolean"],
        "objective": [StrOptions({"blocks", "neighbors"})],
        "n_blocks": [at_least(1)],
        "block_rows": [at_least(3)],
        "preprocess": [StrOptions({"whiten", "standardize"})],
        "calibration": [StrOptions({"scale"}), None],
        "n_calibration": [at_least(2)],
        **SHARED_CONSTRAINTS,
    }

    def __init__(
        self,
        kernel: Any = "rbf",
        n_neighbors: int = 50,
        ard: bool = False,
        objective: str = "blocks",
        n_blocks: int = 10,
        block_rows: int = 300,
        preprocess: str = "whiten",
        calibration: str | None = "scale",
        n_calibration: int = 1000,
        training: Training | None = None,
        noise_floor: float = 1e-8,
        device: str = "auto",
        dtype: str = "float64",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
        missing: str = "auto",
    ) -> None:
        self.kernel = kernel
        self.n_neighbors = n_neighbors
        self.ard = ard
        self.objective = objective
        self.n_blocks = n_blocks
        self.block_rows = block_rows
        self.preprocess = preprocess
        self.calibration = calibration
        self.n_calibration = n_calibration
        self.training = training
        self.noise_floor = noise_floor
        self.device = device
        self.dtype = dtype
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.missing = missing

    @classmethod
    def from_paper(cls, **overrides: Any) -> GPNNRegressor:
        """Return the baseline of the paper's Table 7: 50 neighbours, AdamW, 200 steps at 0.1."""
        training = Training(optimizer="adamw", steps=200, lr=0.1, schedule="cosine")
        return cls(**{"training": training, **overrides})

    def _check_combinations(self) -> None:
        """Refuse parts of ``training`` that would have no effect."""
        if self.training is None:
            return
        if self.objective == "neighbors":
            raise InputError(
                f"training={self.training!r} is for objective='blocks'; "
                "objective='neighbors' has a schedule of its own, use training=None."
            )
        plain = Training()
        for name in ("subsample", "refine_steps", "refine_lr"):
            value = getattr(self.training, name)
            if value != getattr(plain, name):
                raise InputError(
                    f"Training({name}={value!r}) has no effect here: hyperparameters are trained "
                    "on blocks of rows, n_blocks of block_rows each, from the first step to the "
                    "last. Leave it out."
                )

    def _fit_target(self, data: Prepared, seed: int) -> GPNNFit:
        m, d = len(data.rows), data.rows.X.shape[1]
        if m < 3 or d == 0 or data.constant_target:
            return GPNNFit(None, [], constant_noise=constant_spread(data, self._floor))
        begin = time.perf_counter()
        rng = np.random.default_rng(seed)
        rows, whitening = data.rows, None
        if self.preprocess == "whiten":
            whitening = Whitening.of(rows)
            rows = replace(rows, X=whitening(rows.X))
        (kernel,) = kernel_list([self.kernel], self.ard, d, data.columns)
        engine = NeighborEngine(rows, int(self.n_neighbors), self._floor, self.training is None)
        candidate = Candidate(kernel, "loo" if self.objective == "neighbors" else "nll")
        if self.objective == "neighbors":
            train_in_rounds(engine, [candidate], Schedule(), rng)
        else:
            self._train_on_blocks(rows, candidate, rng)
        fitted_only([candidate])
        assert candidate.parameters is not None
        posterior = engine.condition(kernel, candidate.parameters)
        assert isinstance(posterior, NeighborPosterior)  # one target
        factor = 1.0
        if self.calibration is not None:
            some = np.sort(rng.permutation(m)[: self.n_calibration])
            held = posterior.heldout(torch.as_tensor(some, device=rows.X.device))
            squares = held.sum_of_squares(rows.subset(some)) / held.variance
            factor = max(float(squares.sum() / rows.c[some].sum()), 1e-6)
        seconds = {"gp": time.perf_counter() - begin}
        return GPNNFit(posterior, [candidate], whitening, factor=factor, seconds=seconds)

    def _train_on_blocks(self, rows: Rows, candidate: Candidate, rng: np.random.Generator) -> None:
        order = rng.permutation(len(rows))
        count = max(1, min(int(self.n_blocks), len(rows) // int(self.block_rows)))
        parts = [order[i * self.block_rows : (i + 1) * self.block_rows] for i in range(count)]
        blocks = [rows.subset(np.sort(part)) for part in parts]
        problem = BlocksProblem(
            candidate.kernel, blocks[0], "nll", None, self._floor, self.training is None,
            blocks=blocks,
        )  # fmt: skip
        training = self.training or Training(steps=60)
        begin = time.perf_counter()
        start = None
        if self.training is None:
            start = problem.start()
            if self.preprocess == "whiten":  # whose unit of length is 1/sqrt(d)
                start[: candidate.kernel.lengthscale_slots] -= 0.5 * np.log(rows.X.shape[1])
        candidate.record(
            minimise(
                problem,
                start,
                optimizer=training.optimizer,
                steps=training.steps,
                lr=training.lr,
                schedule=training.schedule,
                restart_every=training.restart_every,
                weight_decay=training.weight_decay,
                tolerance=1e-4,
            )
        )
        candidate.account(problem.evaluations, time.perf_counter() - begin, is_full=False)

    def _describe(self, data: Prepared, fit: GPNNFit) -> FitReport:
        report = single_stage_report(data, fit.candidates, fit.posterior, fit.noise, fit.seconds)
        report.method, report.full_factorizations = "neighbors", 0
        if self.calibration is not None and fit.posterior is not None:
            report.calibration = f"scale, factor {fit.factor:.3g}"
        trained_blind = fit.posterior is not None and self.objective == "blocks"
        given = data.merged.groups is not None and data.weight_unit == 1.0
        if given and trained_blind:
            report.warnings.append(
                "groups have no effect on the likelihood of blocks: the calibration alone holds "
                "them out. Use objective='neighbors' to hold them out in training too."
                if self.calibration is not None
                else "groups have no effect on the likelihood of blocks, and there is no "
                "calibration to hold them out. Use objective='neighbors'."
            )
        return report

    @property
    def gp_(self) -> Any:
        """The GP given the training rows, None for a constant, or a list with one per target."""
        return self.fitted_.per_target([fit.posterior for fit in self.fitted_.fits])
