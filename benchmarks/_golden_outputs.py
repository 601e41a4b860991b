"""What the golden fits record: every prediction of a model, and what its fit report says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._golden_tables import Table
from twostagegp.errors import InputError

__all__ = ["Outcome", "classification", "joined", "regression"]

Array = NDArray[Any]

#: Outputs in units of the target (1) or of its square (2); all others have no unit.
_POWERS = {
    "mean": 1,
    "std": 1,
    "latent_std": 1,
    "interval": 1,
    "conformal": 1,
    "quantiles": 1,
    "sample": 1,
    "joint_sample": 1,
    "noise_std": 1,
    "covariance": 2,
    "variance": 2,
}
LEVELS = (0.05, 0.25, 0.5, 0.9)
#: Rows of the covariance and of joint draws.
FEW = 5


@dataclass
class Outcome:
    """Named numbers and texts; ``unit`` is the standard deviation of the target."""

    unit: float = 1.0
    numbers: dict[str, Array] = field(default_factory=dict)
    text: dict[str, str] = field(default_factory=dict)

    def scale(self, name: str) -> float:
        """Return the unit in which differences of this output are measured."""
        return self.unit ** _POWERS.get(name.rpartition("/")[2], 0)

    def record(self, name: str, make: Callable[[], Any]) -> None:
        """Add numbers, or the fact that the model refuses to give them."""
        try:
            self.numbers[name] = np.asarray(make())
        except InputError:
            self.text[name] = "refused"


def joined(**parts: Outcome) -> Outcome:
    """Join several outcomes; the name of each becomes a prefix of the names of its outputs."""
    made = Outcome(next(iter(parts.values())).unit)
    for part, outcome in parts.items():
        made.numbers |= {f"{part}/{name}": value for name, value in outcome.numbers.items()}
        made.text |= {f"{part}/{name}": value for name, value in outcome.text.items()}
    return made


def regression(model: Any, table: Table) -> Outcome:
    """Return every prediction of a fitted regressor."""
    made, X, y = Outcome(table.unit), table.X_new, table.y_new
    outputs: Mapping[str, Callable[[], Any]] = {
        "mean": lambda: model.predict(X),
        "std": lambda: model.predict(X, return_std=True)[1],
        "latent_std": lambda: model.predict(X, return_latent_std=True)[1],
        "interval": lambda: model.predict_interval(X, level=0.95),
        "conformal": lambda: model.predict_interval(X, level=0.8, method="conformal"),
        "quantiles": lambda: model.predict_quantiles(X, LEVELS),
        "cdf": lambda: model.predict_cdf(X, y),
        "logpdf": lambda: model.predict_logpdf(X, y),
        "sample": lambda: model.sample_y(X, 3, random_state=4, joint=False),
        "covariance": lambda: model.predict(X[:FEW], return_cov=True)[1],
        "joint_sample": lambda: model.sample_y(X[:FEW], 3, joint=True, random_state=5),
    }
    for name, make in outputs.items():
        made.record(name, make)
    reports, relevances = _listed(model.fit_report_), _listed(model.relevance_)
    for j, (report, relevance) in enumerate(zip(reports, relevances, strict=True)):
        _add_report(made, report, f"target{j}/" if len(reports) > 1 else "")
        made.numbers[f"relevance{j}"] = np.array(list(relevance.values()))
    return made


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _add_report(made: Outcome, report: Any, prefix: str) -> None:
    """Add what was chosen and with which weight; leave out everything that depends on the clock."""
    tried = [*report.candidates, *report.variance_candidates]
    texts = {
        "mean_label": report.mean,
        "variance_label": report.variance,
        "calibration": report.calibration,
        "method": report.method,
        "candidates": "; ".join(f"{row['stage']} {row['kernel']}" for row in tried),
        "columns": "; ".join(report.encoded_columns),
        "work": f"{report.n_distinct_rows} rows, {report.refits or 0} refits, "
        f"{report.evaluations} evaluations, {report.full_evaluations} of them on all rows",
        "warnings": " ".join(report.warnings),
        "refit_due": report.refit_due,
    }
    made.text |= {prefix + name: text for name, text in texts.items()}
    for name in ("weight", "score", "noise_variance"):
        made.numbers[f"{prefix}candidates_{name}"] = np.array([row[name] for row in tried])
    made.numbers[prefix + "noise_std"] = np.array(report.noise_std)


def classification(model: Any, table: Table) -> Outcome:
    """Return every prediction of a fitted classifier."""
    X, report = table.X_new, model.fit_report_
    latent_mean, latent_std = model.predict_latent(X)
    numbers = {
        "proba": model.predict_proba(X),
        "quadrature": model.predict_proba(X, method="quadrature"),
        "latent_mean": latent_mean,
        "latent_deviation": latent_std,
        "sample_proba": model.sample_proba(X[:FEW], 3, random_state=4),
        "pvalue": model.predict_certainty(X, return_pvalue=True)[1],
        "log_loss": np.array(report.log_loss),
        "alpha_eps": np.array(report.alpha_eps),
    }
    text = {
        "labels": " ".join(map(str, model.predict(X))),
        "mean_label": report.mean,
        "variance_label": report.variance,
        "calibration": report.calibration,
        "method": report.method,
        "columns": "; ".join(report.encoded_columns),
    }
    return Outcome(1.0, numbers, text)
