"""Fill a :class:`FitReport` from the fitted parts."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from twostagegp.data.rows import Rows
from twostagegp.data.scaling import Prepared
from twostagegp.engines.exact.engine import ExactPosterior
from twostagegp.engines.exact.settings import ExactSettings
from twostagegp.engines.memory import exact_bytes
from twostagegp.engines.neighbors.engine import NeighborPosterior
from twostagegp.errors import TwoStageGPWarning
from twostagegp.estimators.fit_report import FitReport
from twostagegp.pipeline.calibration.fit import Calibration
from twostagegp.pipeline.mean.crossfit import RegressorMean
from twostagegp.pipeline.mean.models import RidgeMean
from twostagegp.pipeline.model import TwoStageFit
from twostagegp.pipeline.variance import ConstantVariance, GPVariance
from twostagegp.training.candidates import Candidate

if TYPE_CHECKING:  # regressors do not need them
    from twostagegp.classification.fit import ClassFit
    from twostagegp.classification.table import ClassTable

__all__ = [
    "announce",
    "candidate_rows",
    "class_candidates",
    "class_report",
    "largest_jitter",
    "single_stage_report",
    "two_stage_report",
    "words_on_factor",
]


def candidate_rows(
    candidates: Iterable[Candidate], stage: str, weights: dict[int, float]
) -> list[dict[str, Any]]:
    """Return one table row per candidate kernel."""
    return [
        {
            "stage": stage,
            "kernel": c.label,
            "score": c.value,
            "weight": weights.get(id(c), 0.0),
            "noise_variance": math.nan if c.parameters is None else math.exp(c.parameters[-1]),
            "evaluations": c.evaluations,
            "full_evaluations": c.full_evaluations,
            "gradient_norm": c.gradient_norm,
            "seconds": c.seconds,
            "failure": c.failure,
        }
        for c in candidates
    ]


def _saved(candidates: list[Candidate]) -> float:
    """Return how many more seconds the evaluations on subsamples would have taken on all rows.

    This needs a measurement: 0 if no evaluation was on all rows.
    """
    full = sum(c.full_evaluations for c in candidates)
    if full == 0:
        return 0.0
    full_cost = sum(c.full_seconds for c in candidates) / full
    warm = sum(c.evaluations for c in candidates) - full
    warm_seconds = sum(c.seconds - c.full_seconds for c in candidates)
    return max(0.0, warm * full_cost - warm_seconds)


def two_stage_report(data: Prepared, fit: TwoStageFit) -> FitReport:
    """Return the record of the two-stage fit of one target."""
    weights = {
        id(model.candidate): float(weight)
        for model, weight in zip(fit.mean.models, fit.mean.weights, strict=True)
        if isinstance(model, RidgeMean)
    }
    winner = None if isinstance(fit.variance, ConstantVariance) else fit.variance.candidate
    chosen = {id(winner): 1.0} if winner else {}
    candidates = [*fit.mean.searched, *fit.variance.searched]
    full = sum(c.full_evaluations for c in candidates)
    calibration = fit.calibration.label
    if fit.calibration.note:
        calibration += f" ({fit.calibration.note})"
    return FitReport(
        **_table_facts(data),
        method=fit.method[0],
        method_reason=fit.method[1],
        mean=fit.mean.label,
        variance=fit.variance.label,
        calibration=calibration,
        target_values="" if fit.calibration.values is None else fit.calibration.values.label,
        levels=_by_level(fit.calibration),
        noise_std=data.scaling.y_scale * math.sqrt(fit.noise),
        jitter=largest_jitter(fit),
        seconds=dict(fit.seconds),
        foretold_seconds=fit.foretold_seconds,
        evaluations=sum(c.evaluations + c.refit_evaluations for c in candidates),
        full_evaluations=full,
        full_factorizations=full + fit.conditionings,
        seconds_saved=_saved(candidates),
        gradient_norm=winner.gradient_norm if winner else math.nan,
        refits=fit.n_refits,
        candidates=candidate_rows(fit.mean.searched, "mean", weights),
        variance_candidates=candidate_rows(fit.variance.searched, "variance", chosen),
        notes=list(fit.mean.notes),
        warnings=_warnings(data) + _ignored_weights(fit),
    )


def _by_level(calibration: Calibration) -> list[dict[str, Any]] | None:
    """Return one table row per level of the column ``calibrate_by``."""
    by_level = calibration.levels
    if by_level is None:
        return None
    pit, weight, L = calibration.pit_after, calibration.weight, len(by_level.levels)
    inside = weight * ((pit >= 0.025) & (pit <= 0.975))
    count = np.bincount(by_level.of_row, weights=inside, minlength=L)
    return [
        {
            "level": by_level.levels.labels[k],
            "rows": float(by_level.rows[k]),
            "own": float(by_level.own[k]),
            "factor": float(by_level.factor[k]),
            "coverage": float(count[k] / by_level.rows[k]) if by_level.rows[k] > 0.0 else math.nan,
        }
        for k in range(L)
    ]


def largest_jitter(fit: Any) -> float:
    """Return the largest jitter of the factorisations behind the fit of one target."""
    if not isinstance(fit, TwoStageFit):
        return 0.0 if fit.posterior is None else float(fit.posterior.jitter)
    ridges = [m.posterior.jitter for m in fit.mean.models if isinstance(m, RidgeMean)]
    own = [fit.variance.posterior.jitter] if isinstance(fit.variance, GPVariance) else []
    return max([0.0, *ridges, *own])


def _ignored_weights(fit: TwoStageFit) -> list[str]:
    return [
        f"{model.label} takes no sample_weight: it counted every row once."
        for model in fit.mean.models
        if isinstance(model, RegressorMean) and model.ignored_weights
    ]


def announce(reports: list[FitReport], verbose: int, stacklevel: int) -> None:
    """Give the warnings of a fit as one warning; print the reports on stderr if verbose."""
    notes = sorted({note for report in reports for note in report.warnings})
    if notes:
        warnings.warn(" ".join(notes), TwoStageGPWarning, stacklevel=stacklevel)
    if verbose:
        from rich.console import Console

        for report in reports:
            Console(stderr=True).print(str(report), markup=False, highlight=False)


def single_stage_report(
    data: Prepared,
    candidates: list[Candidate],
    posterior: ExactPosterior | NeighborPosterior | None,
    noise: float,
    seconds: dict[str, float],
) -> FitReport:
    """Return the record of a single-stage fit, whose GP is both mean and variance."""
    kernel = "constant" if posterior is None else posterior.kernel.label
    chosen = [c for c in candidates if posterior is not None and c.kernel is posterior.kernel]
    full = sum(c.full_evaluations for c in candidates)
    return FitReport(
        **_table_facts(data),
        method="exact",
        method_reason=f"the only method of this estimator{_factor_of(posterior, data)}",
        mean=kernel,
        variance=kernel,
        calibration="none",
        jitter=0.0 if posterior is None else posterior.jitter,
        noise_std=data.scaling.y_scale * math.sqrt(noise),
        seconds=dict(seconds),
        evaluations=sum(c.evaluations for c in candidates),
        full_evaluations=full,
        full_factorizations=full + (posterior is not None),
        seconds_saved=_saved(candidates),
        gradient_norm=chosen[0].gradient_norm if chosen else math.nan,
        candidates=candidate_rows(candidates, "gp", {id(c): 1.0 for c in chosen}),
        warnings=_warnings(data),
    )


def _factor_of(posterior: ExactPosterior | NeighborPosterior | None, data: Prepared) -> str:
    if not isinstance(posterior, ExactPosterior):
        return ""
    return words_on_factor(data.rows, posterior.L.dtype, posterior.settings)


def words_on_factor(rows: Rows, factor_dtype: torch.dtype, settings: ExactSettings) -> str:
    """Return a remark on a factor of lower precision than the rows; otherwise an empty text."""
    X = rows.X
    if factor_dtype == X.dtype:
        return ""
    groups = rows.group_sizes()
    needed = exact_bytes(len(X), X.device, X.dtype.itemsize, groups, settings) / 2**30
    return (
        f"; the factor is float32, for which there is memory (float64 needs {needed:.0f} GiB), "
        "and solutions are refined to float64"
    )


def class_candidates(fit: ClassFit) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return one row per candidate of a classifier's mean, and one per candidate of its variance.

    A kernel of the mean that was trained again on more rows has a row for each number of rows.
    """
    mean = []
    if fit.mean is not None:
        pooled = zip(fit.mean.members, fit.mean.pool.weights, strict=True)
        weights = {member.label: float(weight) for member, weight in pooled}
        mean = [
            {
                "stage": "mean",
                "kernel": f"{tried.label} ({tried.view})",
                "score": tried.loss,
                "weight": weights.get(f"{tried.label} ridge ({tried.view})", 0.0),
                "rows": tried.rows,
                "seconds": tried.seconds,
                "failure": tried.failure,
            }
            for tried in fit.mean.tried
        ]
    variance = [
        {
            "stage": "variance",
            "kernel": label,
            "score": value,
            "weight": float(label == fit.trained.label),
            "failure": "",
        }
        for label, value in fit.trained.tried.items()
    ]
    return mean, variance


def class_report(table: ClassTable, fit: ClassFit, method: str, reason: str) -> FitReport:
    """Return the record of a classifier's fit."""
    loss = fit.scale.loss
    if math.isnan(loss) and fit.mean is not None:
        loss = fit.mean.pool.loss
    candidates, variance_candidates = class_candidates(fit)
    dropped = table.constant_columns
    more = f" and {len(dropped) - 5} more" if len(dropped) > 5 else ""
    note = f"constant columns were dropped: {', '.join(dropped[:5])}{more}"
    return FitReport(
        method=method,
        method_reason=reason,
        n_rows=table.n_rows,
        n_distinct_rows=len(table),
        n_features=len(table.views[0].columns),
        constant_columns=dropped,
        device=str(table.device),
        dtype=str(table.dtype).removeprefix("torch."),
        mean="of the Gaussian process" if fit.mean is None else fit.mean.label,
        variance=fit.trained.label,
        calibration=fit.scale.label,
        seconds=dict(fit.seconds),
        candidates=candidates,
        variance_candidates=variance_candidates,
        warnings=[note] if dropped else [],
        n_classes=table.n_classes,
        alpha_eps=fit.trained.dirichlet.alpha_eps,
        log_loss=loss,
    )


def _table_facts(data: Prepared) -> dict[str, Any]:
    return {
        "n_rows": data.n_rows,
        "n_distinct_rows": len(data.rows),
        "n_features": data.rows.X.shape[1],
        "constant_columns": data.constant_columns,
        "device": str(data.rows.X.device),
        "dtype": str(data.rows.X.dtype).removeprefix("torch."),
    }


def _warnings(data: Prepared) -> list[str]:
    notes = []
    if data.constant_target:
        notes.append("The target is constant: every prediction is that constant.")
    elif data.rows.X.shape[1] == 0:
        notes.append("No input column varies: every prediction is the mean of y.")
    elif len(data.rows) < 3:
        notes.append("Fewer than three distinct rows: every prediction is the mean of y.")
    return notes
