"""``TwoStageGPRegressor``: the three parts behind one estimator.

The constructor stores the choices; ``pipeline/fit.py`` carries them out for each target column.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, ClassVar

from sklearn.utils._param_validation import StrOptions

from twostagegp.data.checks import penalty_option, seen_columns
from twostagegp.data.columns.levels import Levels, find_column, learn_levels
from twostagegp.data.scaling import Prepared
from twostagegp.engines.choice import choose_method
from twostagegp.engines.memory import plan_factor
from twostagegp.errors import InputError
from twostagegp.estimators.base import BaseGPRegressor
from twostagegp.estimators.exports import GPyTorchExports
from twostagegp.estimators.fit_report import FitReport
from twostagegp.estimators.reporting import two_stage_report, words_on_factor
from twostagegp.estimators.validation import (
    KERNEL,
    KERNELS_LIST,
    PENALTY,
    SHARED_CONSTRAINTS,
    SOME_KERNELS,
    Where,
    at_least,
    is_kernel,
)
from twostagegp.pipeline.fit import METHODS, fit_two_stage
from twostagegp.pipeline.forecast import foretell
from twostagegp.pipeline.mean.build import MEANS, is_regressor_like
from twostagegp.pipeline.model import TwoStageFit
from twostagegp.pipeline.settings import QUICK, Options, Settings
from twostagegp.runtime.progress import current
from twostagegp.training.schedule import Training

__all__ = ["TwoStageGPRegressor"]


_SELECTIONS = {"heldout", "misspecification"}


def _is_pair(value: Any) -> bool:
    pair = isinstance(value, list | tuple) and len(value) == 2
    return pair and all(isinstance(word, str) and word in _SELECTIONS for word in value)


def _is_column(value: Any) -> bool:
    return isinstance(value, str | Integral) and not isinstance(value, bool)


def _is_mean_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(_is_mean, value))


def _are_bounds(value: Any) -> bool:
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    known = [isinstance(end, Real) and not isinstance(end, bool) for end in value]
    if not all(fine or end is None for fine, end in zip(known, value, strict=True)):
        return False
    if any(fine and math.isnan(end) for fine, end in zip(known, value, strict=True)):
        return False
    return not all(known) or value[0] < value[1]


def _is_mean(value: Any) -> bool:
    if isinstance(value, str):
        return value in MEANS or is_kernel(value)
    return is_kernel(value) or is_regressor_like(value) or _is_mean_list(value)


class TwoStageGPRegressor(GPyTorchExports, BaseGPRegressor):
    """Gaussian process regression that chooses its mean, kernel and noise by held-out scores.

    The model has three parts, each trained on the held-out errors of the one before: a stack of
    kernel ridge regressions predicts the mean; a zero-mean GP on its held-out residuals gives the
    variance; held-out z-scores calibrate the variance. docs/defaults.md has the evidence for each
    default.

    Parameters
    ----------
    method : {"auto", "exact", "neighbors", "vecchia", "svgp"}
        Engine. ``"exact"`` factorises the matrix of all rows; ``"neighbors"`` predicts from the
        nearest rows only, for ten thousand rows to millions; ``"vecchia"`` does the same with
        hyperparameters from Vecchia's likelihood, rows conditioned on nearest rows before them in
        a random order; ``"svgp"`` is a sparse variational GP with inducing points. ``"auto"``
        chooses between the first two by rows, memory and predicted time, and says why in
        ``fit_report_.method_reason``.
    kernels : sequence of str or GPyTorch kernels
        The dictionary that ``mean="stack"``, ``mean="search"`` and ``variance="search"`` use.
    ard : {"both", True, False}
        One lengthscale per column, one for all columns, or candidates of both forms.
    mean : "stack", "search", "constant", "tabpfn", kernel, regressor, or list
        Part 1: a stack of kernels and the constant; the single best kernel; one kernel by
        name or object; any scikit-learn regressor (cross-fitted, docs/any_regressor.md);
        ``"tabpfn"`` or a :class:`~twostagegp.TabPFNMean`, whose weights have a licence of their
        own; a list of these (stacked, with weights by held-out residuals).
    penalty : "auto", float, sequence of floats, or "0.01n"
        Ridge penalty. ``"auto"`` chooses it together with the lengthscales. A number, a grid
        (the best by leave-one-out error) or ``"0.01n"`` is classical kernel ridge with the
        fixed lengthscale gamma = 1/d.
    objective : {"loo", "nll"}
        What the kernels of the mean are trained by: the leave-one-out density (some candidates of
        a stack, and all of them below 60 rows, also by the likelihood), or the negative log
        likelihood alone.
    variance : "search", kernel, or list of kernels
        Part 2: the best kernel of the dictionary, or one kernel.
    variance_objective : {"heldout", "nll"}
        What the kernels of the variance are trained by: the held-out variance density, or the
        negative log likelihood.
    selection : {"heldout", "misspecification"} or a pair of them
        How one kernel is chosen for ``mean="search"`` and for the variance: by the held-out score
        of the trained candidates, or by the paper's ratio test (Algorithms 2 and 3) on subsamples,
        which ignores groups. A pair gives one value for the mean and one for the variance.
    residuals : {"heldout", "insample"}
        Residuals that part 2 sees; ``"insample"`` is the paper's choice and overconfident.
    calibration : {"local", "scale", None}
        Part 3. ``"local"`` learns from held-out z-scores where the variance is too small or too
        large, and what shape the distribution has; ``"scale"`` multiplies all variances by one
        factor and keeps a Gaussian.
    calibrate_by : str or int, optional
        A column of X, by name or number, within whose levels intervals should hold: a category, a
        boolean or a column with few distinct values. Variances get a factor per level, which
        tends to 1 for levels with few rows (docs/calibration.md).
    reweight_values : bool
        Whether ``calibration="local"`` may weight the values of the target: levels that repeat
        (ratings, counts, zero in half of the rows) get probabilities of their own, and values that
        the target avoids become rarer. It is done where it lowers held-out CRPS; mean and standard
        deviation stay as they are (docs/calibration.md).
    bounds : pair of float or None, optional
        Smallest and largest value that the target can have, as in ``(0, None)``: intervals,
        quantiles and samples of observations stay between them. Zero is recognised as a bound if
        no target passes it although many are expected to. For all targets, if there are several.
    n_neighbors : int
        Rows that a prediction of ``method="neighbors"`` is made from.
    training : Training, optional
        A fixed optimiser schedule instead of the warm-start ladder.
    noise_floor : float
        Lower bound of the noise variance, and so of the variance of an observation, relative to
        the variance of y. Where residuals are smaller still, the standard deviation is too large.
    device : str
        ``"auto"``, ``"cpu"`` or ``"cuda"``.
    dtype : {"float64", "float32"}
        float32 raises the noise floor to 1e-4.
    n_jobs : int, optional
        Cores of a fit or prediction: -1 for all, -2 for all but one. None uses all cores, and one
        inside a worker of joblib, multiprocessing or Dask. Results do not depend on it, except
        for the order of sums in exact fits to more than 4000 distinct rows.
    random_state : int, RandomState or None
    verbose : int
        1 shows progress, with the remaining time if there is a forecast (docs/troubleshooting.md),
        and the fit report on the standard error stream.
    missing : {"auto", "impute", "error"}
        Gaps in X: ``"impute"`` fills them by the rules of docs/tables.md, ``"error"`` refuses them,
        ``"auto"`` fills those of data frames and refuses those of arrays.
    settings : Settings, optional
        Thresholds of the fit, for experiments with the method itself
        (:class:`twostagegp.pipeline.settings.Settings`).

    Attributes
    ----------
    mean_, variance_, calibration_ : the fitted parts (lists of them for several targets)
    fit_report_ : FitReport (or list)
    search_ : SearchRecord
        Every candidate kernel of both stages with its score.
    relevance_ : dict or list of dict
        Share of each input column in the mean's inverse lengthscales, by name.
    columns_ : TableEncoder or None
        What became of the columns of a data frame.
    n_features_in_, feature_names_in_ : as in scikit-learn

    Examples
    --------
    >>> import numpy as np
    >>> from twostagegp import TwoStageGPRegressor
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> y = np.sin(6 * X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=40)
    >>> model = TwoStageGPRegressor(random_state=0).fit(X, y)
    >>> mean, std = model.predict(X, return_std=True)
    >>> mean.shape, bool(np.all(std > 0))
    ((40,), True)
    >>> model.predict_interval(X[:2], level=0.95).shape
    (2, 2)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "method": [StrOptions({"auto", *METHODS})],
        "kernels": [KERNELS_LIST],
        "ard": ["boolean", StrOptions({"both"})],
        "mean": [
            StrOptions(set(MEANS)),
            KERNEL,
            Where("a scikit-learn regressor object", holds=is_regressor_like),
            Where("a non-empty list of these", holds=_is_mean_list),
        ],
        "penalty": [StrOptions({"auto", "0.01n"}), PENALTY],
        "objective": [StrOptions({"loo", "nll"})],
        "variance": [StrOptions({"search"}), KERNEL, SOME_KERNELS],
        "variance_objective": [StrOptions({"heldout", "nll"})],
        "selection": [
            StrOptions(_SELECTIONS),
            Where("a pair of them, for the mean and for the variance", holds=_is_pair),
        ],
        "residuals": [StrOptions({"heldout", "insample"})],
        "calibration": [StrOptions({"local", "scale"}), None],
        "calibrate_by": [Where("the name or number of a column of X", holds=_is_column), None],
        "reweight_values": ["boolean"],
        "bounds": [Where("a pair like (0, None), the first smaller", holds=_are_bounds), None],
        "n_neighbors": [at_least(1)],
        "settings": [Settings, None],
        **SHARED_CONSTRAINTS,
    }

    def __init__(
        self,
        method: str = "auto",
        kernels: Any = ("rbf", "matern12", "matern32", "matern52", "laplacian"),
        ard: bool | str = "both",
        mean: Any = "stack",
        penalty: Any = "auto",
        objective: str = "loo",
        variance: Any = "search",
        variance_objective: str = "heldout",
        selection: str | tuple[str, str] = "heldout",
        residuals: str = "heldout",
        calibration: str | None = "local",
        calibrate_by: str | int | None = None,
        reweight_values: bool = True,
        bounds: tuple[float | None, float | None] | None = None,
        n_neighbors: int = 50,
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
        self.method = method
        self.kernels = kernels
        self.ard = ard
        self.mean = mean
        self.penalty = penalty
        self.objective = objective
        self.variance = variance
        self.variance_objective = variance_objective
        self.selection = selection
        self.residuals = residuals
        self.calibration = calibration
        self.calibrate_by = calibrate_by
        self.reweight_values = reweight_values
        self.bounds = bounds
        self.n_neighbors = n_neighbors
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
    def quick(cls, **overrides: Any) -> TwoStageGPRegressor:
        """Return an estimator that does a fraction of the work, for interactive use.

        The stack has one kernel, Matérn 5/2, with one lengthscale and with one per column, trained
        for fewer steps; the variance has the same kernel, and the calibration no trees. What it
        saves, and what it costs in accuracy: docs/defaults.md.

        Parameters
        ----------
        **overrides
            Parameters of the estimator that replace those of the preset.

        Examples
        --------
        >>> import numpy as np
        >>> from twostagegp import TwoStageGPRegressor
        >>> X = np.linspace(0, 6, 60)[:, None]
        >>> model = TwoStageGPRegressor.quick(random_state=0).fit(X, np.sin(X[:, 0]))
        >>> bool(abs(model.predict([[3.0]])[0] - np.sin(3.0)) < 0.01)
        True
        """
        settings: dict[str, Any] = {
            "kernels": ("matern52",),
            "variance": ("matern52",),
            "settings": QUICK,
        }
        return cls(**{**settings, **overrides})

    @classmethod
    def from_paper(cls, **overrides: Any) -> TwoStageGPRegressor:
        """Return an estimator with the settings of the paper's Table 5.

        Stage 1 is classical kernel ridge with the L1 Laplacian or the RBF kernel, gamma = 1/d
        and a penalty from {1e-5, ..., 1}, both by held-out error; stage 2 a GP on *in-sample*
        residuals, its kernel by the ratio test (Algorithms 2 and 3), AdamW with cosine warm
        restarts, 100 steps at 0.1 on a subsample of 500 rows and 10 steps at 0.1 on all; no
        calibration. How open points of the paper were read: docs/paper_settings.md.

        With ``method="neighbors"`` those of Table 7: the same ridge from the 50 nearest rows, and
        a GP trained by 200 steps at 0.1 on a random subsample of 1000 residuals.
        """
        settings: dict[str, Any] = {
            "method": "exact",
            "kernels": ("rbf", "laplacian"),
            "variance": ("rbf", "matern32", "matern12"),
            "ard": False,
            "mean": "search",
            "penalty": (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0),
            "variance_objective": "nll",
            "selection": ("heldout", "misspecification"),
            "residuals": "insample",
            "calibration": None,
            "training": Training(
                optimizer="adamw",
                steps=100,
                lr=0.1,
                schedule="cosine",
                subsample=500,
                refine_steps=10,
                refine_lr=0.1,
            ),
        }
        if overrides.get("method") in ("neighbors", "vecchia"):
            settings["training"] = Training(
                optimizer="adamw", steps=200, lr=0.1, schedule="cosine", subsample=1000
            )
        return cls(**{**settings, **overrides})

    def _check_combinations(self) -> None:
        if self.calibrate_by is not None and self.calibration is None:
            raise InputError(
                f"calibrate_by={self.calibrate_by!r} needs a calibration; use calibration='local' "
                "or 'scale', or leave calibrate_by out."
            )

    def _levels(self, data: Prepared) -> Levels | None:
        """Return the levels of the column ``calibrate_by``."""
        if self.calibrate_by is None:
            return None
        names = seen_columns(self)
        named = hasattr(self, "feature_names_in_")
        column = find_column(self.calibrate_by, names, named)
        return learn_levels(column, names, self.columns_, data, self._settings.levels.most, named)

    def _bounds(self, data: Prepared) -> tuple[float, float]:
        """Return ``bounds`` with infinity for None, after comparing them with the target."""
        given = (None, None) if self.bounds is None else self.bounds
        low = -math.inf if given[0] is None else float(given[0])
        high = math.inf if given[1] is None else float(given[1])
        scaling, y = data.scaling, data.merged.y
        smallest, largest = (scaling.y_mean + scaling.y_scale * end for end in (y.min(), y.max()))
        slack = 1e-9 * scaling.y_scale
        if smallest < low - slack or largest > high + slack:
            raise InputError(
                f"bounds={self.bounds!r}, but y reaches from {smallest:.6g} to {largest:.6g}; "
                "widen the bounds, or leave out the rows beyond them."
            )
        return low, high

    def _fit_target(self, data: Prepared, seed: int) -> TwoStageFit:
        levels = self._levels(data)
        method, reason = self._method(data)
        m, device, dtype = len(data.rows), data.rows.X.device, data.rows.X.dtype
        factor_dtype = dtype
        if method == "exact":
            groups = data.rows.group_sizes()
            factor_dtype = plan_factor(m, device, dtype, groups, self._settings.exact)
        reason += words_on_factor(data.rows, factor_dtype, self._settings.exact)
        chosen = self.selection
        for_mean, for_variance = (chosen, chosen) if isinstance(chosen, str) else chosen
        options = Options(
            kernels=self.kernels,
            ard=self.ard,
            mean=self.mean,
            penalty=penalty_option(self.penalty, ("auto", "0.01n")),
            variance=self.variance,
            variance_objective="heldout" if self.variance_objective == "heldout" else "nll",
            objective="nll" if self.objective == "nll" else "loo",
            mean_selection=for_mean,
            variance_selection=for_variance,
            residuals=self.residuals,
            calibration=self.calibration,
            training=self.training,
            noise_floor=self._floor,
            levels=levels,
            reweight_values=self.reweight_values,
            bounds=self._bounds(data),
            method=method,
            n_neighbors=int(self.n_neighbors),
            factor_dtype=factor_dtype,
            settings=self._settings,
        )
        forecast = None
        if not data.constant_target:
            forecast = foretell(options, m, data.rows.X.shape[1], device)
        if forecast is not None and (progress := current()) is not None:
            progress.expect(forecast.parts, forecast.cost)
        fit = fit_two_stage(data, options, seed)
        fit.foretold_seconds = None if forecast is None else forecast.seconds
        copies = "; copies that agree are one row, held out whole" * (data.weight_unit != 1.0)
        fit.method = method, reason + copies
        return fit

    def _method(self, data: Prepared) -> tuple[str, str]:
        """Return the engine, and why it was chosen."""
        if self.method != "auto":
            return self.method, "asked for"
        rows, settings = data.rows, self._settings
        return choose_method(
            len(rows),
            rows.X.device,
            rows.X.element_size(),
            rows.group_sizes(),
            settings.method.exact_seconds,
            settings.exact,
        )

    def _describe(self, data: Prepared, fit: TwoStageFit) -> FitReport:
        return two_stage_report(data, fit)

    @property
    def mean_(self) -> Any:
        """Part 1: a StackedMean, or a list with one per target."""
        return self.fitted_.per_target([fit.mean for fit in self.fitted_.fits])

    @property
    def variance_(self) -> Any:
        """Part 2: for example a GPVariance, or a list with one per target."""
        return self.fitted_.per_target([fit.variance for fit in self.fitted_.fits])

    @property
    def calibration_(self) -> Any:
        """Part 3: a Calibration, or a list with one per target."""
        return self.fitted_.per_target([fit.calibration for fit in self.fitted_.fits])
