"""Fill a :class:`FitReport` from the fitted parts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from twostagegp.candidates import Candidate
from twostagegp.crossfit import RegressorMean
from twostagegp.engines.exact import ExactPosterior
from twostagegp.fit_report import FitReport
from twostagegp.inputs import Prepared
from twostagegp.mean import RidgeMean
from twostagegp.twostage import TwoStageFit
from twostagegp.variance import GPVariance

__all__ = ["candidate_rows", "single_stage_report", "two_stage_report"]


def candidate_rows(
    candidates: Iterable[Candidate], stage: str, weights: dict[str, float]
) -> list[dict[str, Any]]:
    """One table row a candidate kernel."""
    return [
        {
            "stage": stage,
            "kernel": c.label,
            "score": c.value,
            "weight": weights.get(c.label, 0.0),
            "noise_variance": math.nan if c.parameters is None else math.exp(c.parameters[-1]),
            "evaluations": c.evaluations,
            "full_evaluations": c.full_evaluations,
            "gradient_norm": c.gradient_norm,
            "seconds": c.seconds,
            "failure": c.failure,
        }
        for c in candidates
    ]


def _saved(candidates: list[Candidate], n: int) -> float:
    """Seconds that evaluations on subsamples would have cost more on all rows.

    Uses the measured seconds of one full evaluation where there was one, else scales the
    average evaluation by nothing: a claim needs a measurement.
    """
    full = [c for c in candidates if c.full_evaluations and c.evaluations > c.full_evaluations]
    if not full:
        return 0.0
    # Seconds of a candidate = warm part + full part; the warm part is the smaller unknown, so
    # candidates that never reached all rows tell what a warm evaluation costs.
    warm_only = [c for c in candidates if not c.full_evaluations and c.evaluations]
    if not warm_only:
        return 0.0
    warm_cost = sum(c.seconds for c in warm_only) / sum(c.evaluations for c in warm_only)
    warm_count = sum(c.evaluations - c.full_evaluations for c in candidates)
    full_seconds = sum(c.seconds - warm_cost * (c.evaluations - c.full_evaluations) for c in full)
    full_cost = max(full_seconds, 0.0) / sum(c.full_evaluations for c in full)
    return max(0.0, warm_count * (full_cost - warm_cost))


def two_stage_report(data: Prepared, fit: TwoStageFit, method: str) -> FitReport:
    """The record of one target's fit."""
    weights = {
        model.label: float(weight)
        for model, weight in zip(fit.mean.models, fit.mean.weights, strict=True)
    }
    winner = fit.variance.candidate if isinstance(fit.variance, GPVariance) else None
    chosen = {winner.label: 1.0} if winner else {}
    everyone = [*fit.mean.searched, *fit.variance.everyone]
    m = len(data.rows)
    conditioned = sum(isinstance(model, RidgeMean) for model in fit.mean.models) + bool(chosen)
    full = sum(c.full_evaluations for c in everyone)
    unit = data.scaling.y_scale * math.sqrt(fit.calibration.factor)
    reason = "asked for" if method != "auto" else f"{m} distinct rows fit into memory"
    calibration = f"{fit.calibration.kind}, factor {fit.calibration.factor:.3g}"
    if fit.calibration.note:
        calibration += f" ({fit.calibration.note})"
    return FitReport(
        **_table_facts(data),
        method_reason=reason,
        mean=fit.mean.label,
        variance=fit.variance.label,
        calibration=calibration,
        noise_std=unit * math.sqrt(fit.variance.noise),
        seconds=dict(fit.seconds),
        evaluations=sum(c.evaluations for c in everyone),
        full_evaluations=full,
        full_factorisations=full + conditioned,
        seconds_saved=_saved(fit.mean.searched, m),
        gradient_norm=winner.gradient_norm if winner else math.nan,
        refits=fit.n_refits,
        candidates=candidate_rows(fit.mean.searched, "mean", weights),
        variance_candidates=candidate_rows(fit.variance.everyone, "variance", chosen),
        warnings=_warnings(data) + _ignored_weights(fit),
    )


def _ignored_weights(fit: TwoStageFit) -> list[str]:
    return [
        f"{model.label} takes no sample_weight: it counted every row once."
        for model in fit.mean.models
        if isinstance(model, RegressorMean) and model.ignored_weights
    ]


def single_stage_report(
    data: Prepared,
    candidates: list[Candidate],
    posterior: ExactPosterior | None,
    noise: float,
    seconds: dict[str, float],
) -> FitReport:
    """The record of a single-stage fit; its GP is both mean and variance."""
    kernel = "constant" if posterior is None else posterior.kernel.label
    chosen = [c for c in candidates if posterior is not None and c.kernel is posterior.kernel]
    full = sum(c.full_evaluations for c in candidates)
    return FitReport(
        **_table_facts(data),
        method_reason="the only method of this estimator",
        mean=kernel,
        variance=kernel,
        calibration="none",
        noise_std=data.scaling.y_scale * math.sqrt(noise),
        seconds=dict(seconds),
        evaluations=sum(c.evaluations for c in candidates),
        full_evaluations=full,
        full_factorisations=full + (posterior is not None),
        seconds_saved=_saved(candidates, len(data.rows)),
        gradient_norm=chosen[0].gradient_norm if chosen else math.nan,
        candidates=candidate_rows(candidates, "gp", {c.label: 1.0 for c in chosen}),
        warnings=_warnings(data),
    )


def _table_facts(data: Prepared) -> dict[str, Any]:
    return {
        "method": "exact",
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
