"""The record of a fit: what was chosen, why, and what it cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["FitReport"]


@dataclass
class FitReport:
    """Plain record of a fit; ``str(report)`` is for people, ``to_dict()`` for files.

    Regressors and classifiers share it. A field that belongs to the other kind is None.

    Attributes
    ----------
    method : str
        Engine that was used.
    method_reason : str
        Why it was chosen with ``method="auto"``.
    n_rows, n_distinct_rows, n_features : int
        Size of the table, rows after merging repeats, columns in use.
    constant_columns : list of str
        Columns that were dropped because they do not vary.
    encoded_columns : list of str
        What each column that is not a plain number became.
    device, dtype : str
    mean, variance, calibration : str
        The fitted parts in words.
    target_values : str
        Levels, weights and bounds of the target's values; empty if there are none.
    levels : list of dict or None
        With ``calibrate_by``: one row per level of the column, with its held-out rows, its factor
        of the variance with (factor) and without (own) shrinkage, and the coverage of the 95 %
        intervals of its held-out rows.
    seconds : dict
        Wall-clock seconds per part, and in total.
    foretold_seconds : float or None
        The total that was expected before the fit, from the evaluations that its options lead to
        and the speed of this machine. Nothing is decided by it. None if the options have no
        forecast, such as a mean that is a scikit-learn regressor.
    candidates, variance_candidates : list of dict
        One row per candidate kernel of the mean and of the variance, the rows of ``search_``:
        label, score, weight, seconds and more.
    notes : list of str
        Pretrained weights that the mean uses, with their licence, and members of a list of means
        that were left out.
    warnings : list of str
    noise_std : float
        Regressors: learned noise, in the user's units, calibration included.
    evaluations : int
        Regressors: evaluations of a training objective on any number of rows.
    full_evaluations : int
        Those on all rows.
    full_factorizations : int
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
    updates : list of dict
        One entry per update since the fit: when, rows, repeated rows among them, seconds, mean and
        mean square of the z-scores of the new rows, and the evidence against the model so far.
    refit_due : str
        Why a refit is due (docs/updating.md); empty if none is.
    n_classes : int
        Classifiers only.
    alpha_eps : float
        Classifiers: the Dirichlet parameter of the classes that a row does not belong to.
    log_loss : float
        Classifiers: log loss of training rows that were held out.
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
    target_values: str = ""
    levels: list[dict[str, Any]] | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    foretold_seconds: float | None = None
    candidates: list[dict[str, Any]] = field(default_factory=list)
    variance_candidates: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    noise_std: float | None = None
    evaluations: int | None = None
    full_evaluations: int | None = None
    full_factorizations: int | None = None
    seconds_saved: float | None = None
    gradient_norm: float | None = None
    jitter: float | None = None
    refits: int | None = None
    updates: list[dict[str, Any]] = field(default_factory=list)
    refit_due: str = ""
    n_classes: int | None = None
    alpha_eps: float | None = None
    log_loss: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain Python objects."""
        return asdict(self)

    def __str__(self) -> str:
        repeats = self.n_rows - self.n_distinct_rows
        lines = [
            f"{self.n_rows} rows ({repeats} repeated), {self.n_features} columns in use"
            + (f", {self.n_classes} classes" if self.n_classes is not None else "")
            + (
                f", dropped as constant: {', '.join(self.constant_columns)}"
                * bool(self.constant_columns)
            ),
            *(f"column       {line}" for line in self.encoded_columns),
            f"method       {self.method}: {self.method_reason}",
            f"mean         {self.mean}",
            f"variance     {self.variance}",
            f"calibration  {self.calibration}",
        ]
        if self.target_values:
            lines.append(f"values       {self.target_values}")
        lines += [
            f"level        {each['level']}: factor {each['factor']:.2f}, without shrinkage "
            f"{each['own']:.2f}; {each['rows']:.6g} held-out rows, "
            f"{100.0 * each['coverage']:.1f} % of them in their 95 % interval"
            for each in self.levels or ()
        ]
        if self.noise_std is not None:
            lines.append(f"noise std    {self.noise_std:.4g}")
        if self.seconds_saved is not None:
            lines.append(
                f"work         {self.evaluations} evaluations, {self.full_evaluations} of them on "
                f"all rows; {self.full_factorizations} full factorisations; about "
                f"{self.seconds_saved:.1f} s saved by the warm start"
            )
        if self.log_loss is not None:
            lines.append(f"score        held-out log loss {self.log_loss:.4f}")
        if self.alpha_eps is not None:
            lines.append(f"alpha_eps    {self.alpha_eps:.3g}")
        lines.append(
            "seconds      "
            + ", ".join(f"{part} {value:.2f}" for part, value in self.seconds.items())
            + ("" if self.foretold_seconds is None else f" ({self.foretold_seconds:.1f} foretold)")
        )
        lines += [f"note         {text}" for text in self.notes]
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
