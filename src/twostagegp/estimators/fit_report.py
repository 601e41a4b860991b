"""What was chosen during a fit, why, and what it cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["FitReport"]


@dataclass
class FitReport:
    """Plain record of a fit; ``str(report)`` is for people, ``to_dict()`` for files.

    Attributes
    ----------
    method : str
        Engine that was used.
    method_reason : str
        Why, where the user left it open.
    n_rows, n_distinct_rows, n_features : int
        Size of the table, rows after merging repeats, columns in use.
    constant_columns : list of str
        Columns that were dropped.
    encoded_columns : list of str
        What each column that is not a plain number became.
    device, dtype : str
    mean, variance : str
        What the two stages became.
    calibration : str
    noise_std : float
        Learned noise, in the user's units, calibration included.
    seconds : dict
        Wall-clock seconds by part.
    evaluations : int
        Evaluations of a training objective on any number of rows.
    full_evaluations : int
        Those on all rows.
    full_factorisations : int
        Cholesky factorisations on all rows, training and conditioning together.
    seconds_saved : float
        Estimated seconds that the warm start saved: what its evaluations would have cost on all
        rows, less what they did cost.
    gradient_norm : float
        Largest entry of the objective's gradient at the end of the variance stage's training.
    jitter : float
        Largest jitter that a factorisation needed, on the standardised target's scale; usually 0.
    refits : int
        Refits of hyperparameters without a fold.
    candidates : list of dict
        One row a candidate kernel of the mean: label, value, weight, noise, evaluations, seconds.
    variance_candidates : list of dict
    warnings : list of str
    updates : list of dict
        One an update since the fit: when, rows, repeated rows among them, seconds, mean and mean
        square of the z-scores of the new rows, and the evidence against the model so far.
    refit_due : str
        Why a refit is due (docs/updating.md); empty where it is not.
    """

    method: str = "exact"
    method_reason: str = ""
    n_rows: int = 0
    n_distinct_rows: int = 0
    n_features: int = 0
    constant_columns: list[str] = field(default_factory=list)
    encoded_columns: list[str] = field(default_factory=list)
    device: str = "cpu"
    dtype: str = "float64"
    mean: str = ""
    variance: str = ""
    calibration: str = ""
    noise_std: float = float("nan")
    seconds: dict[str, float] = field(default_factory=dict)
    evaluations: int = 0
    full_evaluations: int = 0
    full_factorisations: int = 0
    seconds_saved: float = 0.0
    gradient_norm: float = float("nan")
    jitter: float = 0.0
    refits: int = 0
    candidates: list[dict[str, Any]] = field(default_factory=list)
    variance_candidates: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    updates: list[dict[str, Any]] = field(default_factory=list)
    refit_due: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain Python objects."""
        return asdict(self)

    def __str__(self) -> str:
        repeats = self.n_rows - self.n_distinct_rows
        lines = [
            f"{self.n_rows} rows ({repeats} repeated), {self.n_features} columns in use"
            + (
                f", dropped as constant: {', '.join(self.constant_columns)}"
                * bool(self.constant_columns)
            ),
            *(f"column       {line}" for line in self.encoded_columns),
            f"method       {self.method}: {self.method_reason}",
            f"mean         {self.mean}",
            f"variance     {self.variance}",
            f"calibration  {self.calibration}",
            f"noise std    {self.noise_std:.4g}",
            f"work         {self.evaluations} evaluations, {self.full_evaluations} of them on all "
            f"rows; {self.full_factorisations} full factorisations; about "
            f"{self.seconds_saved:.1f} s saved by the warm start",
            "seconds      "
            + ", ".join(f"{part} {value:.2f}" for part, value in self.seconds.items()),
        ]
        lines += [f"warning      {text}" for text in self.warnings]
        if self.updates:
            added = sum(update["rows"] for update in self.updates)
            lines.append(
                f"updates      {len(self.updates)} since the fit with {added} rows, the last at "
                f"{self.updates[-1]['when']}"
            )
        if self.refit_due:
            lines.append(f"refit due    {self.refit_due}")
        return "\n".join(lines)
