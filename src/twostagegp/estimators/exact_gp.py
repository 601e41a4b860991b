"""The exact single-stage baseline: one zero-mean Gaussian process for mean and variance.

``ExactGPRegressor`` is what most libraries call a Gaussian process regressor. By default it is
well optimised; :meth:`ExactGPRegressor.from_paper` is the under-trained baseline of the paper.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils._param_validation import StrOptions

from twostagegp.data.appending import CONSTANT_MODEL, AppendedRows
from twostagegp.data.scaling import Prepared
from twostagegp.engines.exact.engine import ExactEngine, ExactPosterior
from twostagegp.engines.memory import can_keep_factors, plan_factor
from twostagegp.errors import InputError
from twostagegp.estimators.base import BaseGPRegressor
from twostagegp.estimators.exports import GPyTorchExports
from twostagegp.estimators.fit_report import FitReport
from twostagegp.estimators.reporting import single_stage_report
from twostagegp.estimators.single_stage import GaussianFit, constant_spread
from twostagegp.estimators.validation import KERNEL, KERNELS_LIST, SHARED_CONSTRAINTS
from twostagegp.kernels import inverse_lengthscale_shares, kernel_list
from twostagegp.pipeline.settings import Settings
from twostagegp.search.kernel_search import KernelSearch
from twostagegp.search.stages import search_stage
from twostagegp.training.candidates import Candidate, fitted_only, rank_by_unseen_error, train_with
from twostagegp.training.ladder import Ladder, climb
from twostagegp.training.schedule import Training

__all__ = ["ExactGPRegressor", "SingleStageFit"]

Array = NDArray[np.float64]


@dataclass
class SingleStageFit(GaussianFit):
    """An exact GP at fixed hyperparameters, or a constant."""

    posterior: ExactPosterior | None
    candidates: list[Candidate]
    constant_noise: float = 1.0
    factor: float = 1.0
    seconds: dict[str, float] = field(default_factory=dict)
    search: KernelSearch | None = None

    @property
    def searches(self) -> tuple[KernelSearch | None, None]:
        """Search by the ratio test, None without one; and None, as there is no second stage."""
        return self.search, None

    @property
    def noise(self) -> float:
        """Noise variance."""
        return self.constant_noise if self.posterior is None else self.posterior.noise

    def extended(self, appended: AppendedRows, residuals: Array) -> SingleStageFit:
        """Return the GP conditioned on more rows at the same hyperparameters."""
        if self.posterior is None:
            raise InputError(CONSTANT_MODEL)
        rows = appended.data.rows
        can_keep_factors(
            len(rows), 1, rows.X.device, rows.X.element_size(), appended.n_before,
            self.posterior.settings,
        )  # fmt: skip
        return replace(self, posterior=self.posterior.extended(rows, appended.changed_rows))

    def relevance(self, n_features: int) -> Array:
        """Return the share of each column in the inverse lengthscales."""
        share = np.zeros(n_features)
        if self.posterior is not None:
            share += inverse_lengthscale_shares(self.posterior.kernel, self.posterior.parameters)
        return share


class ExactGPRegressor(GPyTorchExports, BaseGPRegressor):
    """Exact Gaussian process regression in a single stage.

    Parameters
    ----------
    kernel : str or GPyTorch kernel
        A name, an object, or ``"search"``: one of ``kernels``, as ``selection`` says.
    kernels : sequence
        The dictionary of ``kernel="search"``.
    ard : bool
        One lengthscale per column.
    objective : {"nll", "loo"}
        What the hyperparameters are trained by: the negative log likelihood or the leave-one-out
        density.
    selection : {"objective", "misspecification"}
        How ``kernel="search"`` chooses a kernel: by the objective on all rows, among the kernels
        that predict unseen rows best on a subsample; or by the paper's ratio test (AKS-Exact-GP).
    training : Training, optional
        A fixed optimiser schedule (with ``subsample``: the subset-of-data warm start) instead
        of L-BFGS with our own warm start.
    noise_floor, device, dtype, n_jobs, random_state, verbose, missing, settings
        As in :class:`~twostagegp.TwoStageGPRegressor`.

    Examples
    --------
    >>> import numpy as np
    >>> from twostagegp import ExactGPRegressor
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> gp = ExactGPRegressor("matern52", random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> bool(np.abs(gp.predict(X) - np.sin(6 * X[:, 0])).max() < 0.01)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "kernel": [StrOptions({"search"}), KERNEL],
        "kernels": [KERNELS_LIST],
        "ard": ["boolean"],
        "objective": [StrOptions({"nll", "loo"})],
        "selection": [StrOptions({"objective", "misspecification"})],
        "settings": [Settings, None],
        **SHARED_CONSTRAINTS,
    }

    def __init__(
        self,
        kernel: Any = "rbf",
        kernels: Any = ("rbf", "matern32", "matern12"),
        ard: bool = False,
        objective: str = "nll",
        selection: str = "objective",
        training: Training | None = None,
        noise_floor: float = 1e-8,
        device: str = "auto",
        dtype: str = "float64",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
        missing: str = "auto",
        settings: Settings | None = None,
    ) -> None:
        self.kernel = kernel
        self.kernels = kernels
        self.ard = ard
        self.objective = objective
        self.selection = selection
        self.training = training
        self.noise_floor = noise_floor
        self.device = device
        self.dtype = dtype
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.missing = missing
        self.settings = settings

    @classmethod
    def from_paper(cls, table: int = 5, **overrides: Any) -> ExactGPRegressor:
        """Return an estimator with the single-stage settings of one of the paper's tables.

        ``table=1``: the kernel by the ratio test from RBF, Matérn-3/2 and Matérn-1/2
        (AKS-Exact-GP), else as ``table=5``.
        ``table=5``: RBF, AdamW with cosine warm restarts, 100 steps at 0.1 on all rows.
        ``table=3``: Matérn-3/2, Adam, 50 steps at 0.1 on 200 random rows, then 5 steps at 0.02 on
        all (SoD-Exact-GP).
        """
        if table in (1, 5):
            training = Training(optimizer="adamw", steps=100, lr=0.1, schedule="cosine")
            settings: dict[str, Any] = {"kernel": "rbf", "training": training}
            if table == 1:
                settings |= {"kernel": "search", "selection": "misspecification"}
        elif table == 3:
            training = Training(
                optimizer="adam", steps=50, lr=0.1, subsample=200, refine_steps=5, refine_lr=0.02
            )
            settings = {"kernel": "matern32", "training": training}
        else:
            raise InputError(f"table={table!r}: single-stage settings are in tables 1, 3 and 5.")
        return cls(**{**settings, **overrides})

    def _fit_target(self, data: Prepared, seed: int) -> SingleStageFit:
        m, d = len(data.rows), data.rows.X.shape[1]
        if m < 3 or d == 0 or data.constant_target:
            return SingleStageFit(None, [], constant_spread(data, self._floor))
        settings = self._settings
        X = data.rows.X
        groups = data.rows.group_sizes()
        factor_dtype = plan_factor(m, X.device, X.dtype, groups, settings.exact)
        begin = time.perf_counter()
        searching = isinstance(self.kernel, str) and self.kernel == "search"
        given = self.kernels if searching else [self.kernel]
        kernels = kernel_list(given, self.ard, d, data.columns)
        objective: Any = self.objective
        rng = np.random.default_rng(seed)
        search = None
        if self.selection == "misspecification":
            search = search_stage(
                data.rows, kernels, "gp", rng, noise_floor=self._floor, settings=settings.search
            )
            kernels = kernels if search is None else [search.best]
        candidates = [Candidate(kernel, objective) for kernel in kernels]
        # The paper trains without a prior on the hyperparameters.
        engine = ExactEngine(
            data.rows,
            self._floor,
            use_prior=self.training is None,
            factor_dtype=factor_dtype,
            settings=settings.exact,
        )
        if self.training is None:
            ladder = Ladder.plan(
                m, len(candidates), full_keep=min(2, len(candidates)), full_steps=30
            )
            order = rng.permutation(m)
            survivors, _ = climb(engine, candidates, ladder, rank_by_unseen_error, order)
        else:
            for candidate in candidates:
                train_with(engine, candidate, self.training, rng)
            survivors = fitted_only(candidates)
        best = min(survivors, key=lambda candidate: candidate.value)
        assert best.parameters is not None
        with torch.no_grad():
            posterior = engine.condition(best.kernel, best.parameters)
        assert isinstance(posterior, ExactPosterior)  # one target
        seconds = {"gp": time.perf_counter() - begin}
        return SingleStageFit(posterior, candidates, seconds=seconds, search=search)

    def _describe(self, data: Prepared, fit: SingleStageFit) -> FitReport:
        report = single_stage_report(data, fit.candidates, fit.posterior, fit.noise, fit.seconds)
        given = data.merged.groups is not None and data.weight_unit == 1.0
        if given and self.objective == "nll":
            report.warnings.append(
                "groups have no effect on the likelihood; use objective='loo' to hold them out."
            )
        return report

    @property
    def gp_(self) -> Any:
        """The GP given the training rows, None for a constant, or a list with one per target."""
        return self.fitted_.per_target([fit.posterior for fit in self.fitted_.fits])
